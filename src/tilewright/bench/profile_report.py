"""ncu's counters of a kernel beside the emulator's: what can be compared, whether they agree, what else ncu says.

Makes no measurement. A count that disagrees is a fault of one of the two, or of how it was carried over to the size;
docs/measuring.md says how to find which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.bench.counters import SECTOR_BYTES, SHARED_WAYS, STALLS
from tilewright.bench.profile import Asked, told
from tilewright.bench.profile_counts import Emulated, emulated_counts

Row = dict[str, Any]
Counts = Mapping[str, float | None]

TOLERANCE = 0.02  # of a count; of conflicts: of the wavefronts that they are part of

AGREE, DISAGREE, UNKNOWN = "agree", "disagree", "-"
COLUMNS = ("count", "ncu", "emulator", "ncu / emulator", "a k tile", "verdict", "")
EMULATED_COLUMNS = ("count", "emulator", "a k tile")
STALL_COLUMNS = ("why warps wait", "warps an issue", "share")
SAID_COLUMNS = ("ncu", "value")

_WAY_NAMES = {
    "ld": "ld.shared", "st": "st.shared", "ldsm": "ldmatrix", "stsm": "stmatrix", "ldgsts": "cp.async",
}  # fmt: skip
_WMMA_WAYS = ("ld", "st", "ldsm", "stsm")  # what ptxas makes WMMA's loads and stores of, one or the other
_COLLISIONS = "ncu's count without smsp__sass_: what meets other traffic at the banks is in it"


@dataclass(frozen=True)
class Compared:
    """One count of both. `verdict`: AGREE, DISAGREE, or UNKNOWN where one of them is not there; `why` says more. `of`:
    wavefronts that conflicts are part of; a count of 0 among some is worth a line."""

    name: str
    ncu: float | None
    emulated: float | None
    verdict: str
    why: str = ""
    of: float = 0.0

    @property
    def ratio(self) -> float | None:
        """ncu's over the emulator's."""
        return None if self.ncu is None or not self.emulated else self.ncu / self.emulated


def answered(row: Row) -> Row:
    """The row with what is told of the kernel, the emulator's counts and the comparison.

    Raises: UnsupportedError: it does not say what was asked. ConfigError: that cannot run. Cost: see emulated_counts().
    """
    plan = Asked.of_row(row).emulated_plan(row.get("preset", "h200"))
    about, emulated = told(plan), emulated_counts(plan)
    found = compared(row["counted"], emulated, about)
    return row | {
        "told": about,
        "emulated": emulated.counts,
        "how": emulated.how,
        "left_out": list(emulated.left_out),
        "compared": [asdict(each) | {"ratio": each.ratio} for each in found],
    }


def compared(counted: Counts, emulated: Emulated, about: Mapping[str, Any]) -> list[Compared]:
    """Every count of which both, or either, have something. `counted` may be empty: the emulator's alone.

    `about`: told() of the plan.
    """
    own = emulated.counts
    found = [*_instructions(counted, own), *_shared(counted, own), *_bytes(counted, own, about)]
    achieved, theoretical = counted.get("warps_pct"), about["occupancy_pct"]
    verdict = UNKNOWN if achieved is None else AGREE if achieved <= theoretical * (1 + TOLERANCE) else DISAGREE
    found.append(Compared("occupancy %", achieved, theoretical, verdict, "achieved; theoretical, which bounds it"))
    return [each for each in found if each.ncu or each.emulated or each.of]


def _instructions(counted: Counts, own: Counts) -> Iterator[Compared]:
    yield _equal("mma.sync, wmma.mma (HMMA)", counted.get("hmmas"), own.get("hmmas"))
    yield _equal("mma.sync of int8 (IMMA)", counted.get("immas"), own.get("immas"))
    yield _equal("wgmma, by warps", counted.get("gmmas"), own.get("gmmas"))
    for way in SHARED_WAYS:
        if not (own.get("wmma_instructions") and way in _WMMA_WAYS):
            yield _equal(_WAY_NAMES[way], counted.get(f"{way}_instructions"), own.get(f"{way}_instructions"))


def _shared(counted: Counts, own: Counts) -> Iterator[Compared]:
    """Wavefronts and conflicts, of each way of using shared memory and of all."""
    if own.get("wmma_instructions"):
        why = "PTX leaves the layout of WMMA's fragments open: ptxas has one, the emulator another"
        yield Compared("wavefronts, all", counted.get("wavefronts"), None, UNKNOWN, why)
        yield Compared("conflicts, all", counted.get("bank_conflicts"), None, UNKNOWN, why)
        return
    for way in SHARED_WAYS:
        wavefronts, ideal = counted.get(f"{way}_wavefronts"), own.get(f"{way}_wavefronts")
        yield _equal(f"wavefronts, {_WAY_NAMES[way]}", wavefronts, ideal)
        yield _conflicts(_WAY_NAMES[way], counted.get(f"{way}_conflicts"), own.get(f"{way}_conflicts"), ideal)
    every = [own.get(f"{way}_wavefronts") for way in ("ld", "st", "ldsm", "stsm", "gmma")]
    if not any(value is not None for value in every):
        yield Compared("wavefronts, all", counted.get("wavefronts"), None, UNKNOWN)
        return
    total, copied = sum(filter(None, every)), own.get("ldgsts_wavefronts") or 0.0
    reads = _equal("wavefronts, all", counted.get("wavefronts"), total, "wgmma's reads too, and no writes of TMA")
    both = _equal("wavefronts, all", counted.get("wavefronts"), total + copied, "cp.async's writes too")
    yield both if copied and (both.verdict == AGREE or reads.verdict != AGREE) else reads
    conflicts = sum(own.get(f"{way}_conflicts") or 0.0 for way in (*SHARED_WAYS, "gmma"))
    yield _conflicts("all", counted.get("bank_conflicts"), conflicts, total + copied, _COLLISIONS)


def _bytes(counted: Counts, own: Counts, about: Mapping[str, Any]) -> Iterator[Compared]:
    """What lanes ask for, and the bounds of what the levels of memory move."""
    read, written = own.get("global_read_bytes"), own.get("global_written_bytes")
    loads, copies = counted.get("global_load_sectors"), counted.get("global_copy_sectors")
    if loads or copies:  # neither: TMA reads
        sectors = max(loads or 0.0, copies or 0.0)  # ncu's loads hold the copies, or stand beside them
        if read and abs((loads or 0.0) + (copies or 0.0) - read / SECTOR_BYTES) < abs(sectors - read / SECTOR_BYTES):
            sectors = (loads or 0.0) + (copies or 0.0)
        yield _at_least("sectors read by threads", sectors, None if read is None else read / SECTOR_BYTES)
    stores = counted.get("global_store_sectors")
    if stores or not counted:
        yield _at_least("sectors written by threads", stores, None if written is None else written / SECTOR_BYTES)
    if own.get("delivered_bytes"):
        why = "TMA's, to each CTA of a multicast; rows of 16 bytes fill sectors of 32"
        yield _equal("bytes from the L2 to SMs", counted.get("fill_bytes"), own["delivered_bytes"], why)
    else:
        yield _between("bytes from the L2 to SMs", counted.get("fill_bytes"), None, read)
    yield _between("bytes that the L2 read for SMs", counted.get("l2_read_bytes"), None, read)
    yield _between("bytes read from DRAM", counted.get("dram_read_bytes"), about["once_read_bytes"], read)
    yield _between("bytes written to DRAM", counted.get("dram_written_bytes"), None, about["once_written_bytes"])


def _equal(name: str, ncu: float | None, emulated: float | None, why: str = "") -> Compared:
    if ncu is None or emulated is None:
        return Compared(name, ncu, emulated, UNKNOWN, why if emulated is None or ncu is not None else "not counted")
    is_equal = abs(ncu - emulated) <= TOLERANCE * max(ncu, emulated)
    return Compared(name, ncu, emulated, AGREE if is_equal else DISAGREE, why)


def _conflicts(
    what: str, ncu: float | None, emulated: float | None, wavefronts: float | None, why: str = ""
) -> Compared:
    name = f"conflicts, {what}"
    if ncu is None or emulated is None or wavefronts is None:
        return Compared(name, ncu, emulated, UNKNOWN, why if ncu is not None else "not counted", wavefronts or 0.0)
    agree = abs(ncu - emulated) <= TOLERANCE * wavefronts
    share = f"{ncu / wavefronts:.2%} of the wavefronts" if wavefronts else ""
    return Compared(
        name, ncu, emulated, AGREE if agree else DISAGREE, "; ".join(filter(None, (share, why))), wavefronts
    )


def _at_least(name: str, ncu: float | None, emulated: float | None) -> Compared:
    """Whole sectors move: more than what lanes ask for are rows that begin or end inside of one."""
    if ncu is None or emulated is None:
        return Compared(name, ncu, emulated, UNKNOWN, "" if ncu is not None else "not counted")
    verdict = DISAGREE if ncu < emulated * (1 - TOLERANCE) else AGREE
    return Compared(name, ncu, emulated, verdict, "at least what lanes ask for, in whole sectors")


def _between(name: str, ncu: float | None, least: float | None, most: float | None) -> Compared:
    """A level below the lanes moves no more than what they ask for, and DRAM each byte of a and b once."""
    if ncu is None or most is None:
        return Compared(name, ncu, most, UNKNOWN, "not counted" if ncu is None else "")
    is_within = (least or 0.0) * (1 - TOLERANCE) <= ncu <= most * (1 + 5 * TOLERANCE)  # the L2 writes back by lines
    bounds = "at most" if least is None else f"at least {least:.4g}, at most"
    return Compared(name, ncu, most, AGREE if is_within else DISAGREE, f"{bounds} the emulator's count: caches catch")


def cells(row: Row) -> list[tuple[str, ...]]:
    """One line a count of an answered row."""
    return [
        (
            each["name"],
            _number(each["ncu"]),
            _number(each["emulated"]),
            "-" if each["ratio"] is None else f"{each['ratio']:.3f}",
            _a_k_tile(each, row),
            each["verdict"],
            each["why"],
        )
        for each in row["compared"]
    ]


def emulated_cells(row: Row) -> list[tuple[str, ...]]:
    """The emulator's column alone. Bounds that caches have to be held against are left out."""
    return [
        (each["name"], _number(each["emulated"]), _a_k_tile(each, row))
        for each in row["compared"]
        if each["emulated"] is not None and "DRAM" not in each["name"] and "L2 read" not in each["name"]
    ]


def stall_cells(counted: Counts) -> list[tuple[str, ...]]:
    """Why warps wait, the most frequent first; shares of all the reasons that are asked for."""
    waits = {reason: counted.get(f"{reason}_stall") for reason in STALLS}
    known = {reason: value for reason, value in waits.items() if value is not None}
    total = sum(known.values())
    return [
        (reason, f"{value:.2f}", f"{100 * value / total:.0f} %" if total else "-")
        for reason, value in sorted(known.items(), key=lambda item: -item[1])
    ]


def said_cells(counted: Counts) -> list[tuple[str, ...]]:
    """What ncu says and the emulator cannot: time is not its own."""
    names = {
        "cycles": "cycles",
        "instructions": "instructions of warps (SASS)",
        "hmma_pct": "tensor pipe busy %",
        "issued_pct": "issue slots used %",
        "lsu_pct": "shared memory's pipe busy %",
    }
    return [(name, _number(counted.get(key))) for key, name in names.items() if counted.get(key) is not None]


def _a_k_tile(each: Row, row: Row) -> str:
    """A count, ncu's where there is one, over the k tiles of all tiles: what a CTA does between two barriers."""
    value = each["emulated"] if each["ncu"] is None else each["ncu"]
    return "-" if value is None or "%" in each["name"] else f"{value / row['told']['k_tiles']:,.1f}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == round(value) or value >= 1000 else f"{value:.2f}"
