"""The rows of benchmarks/unaligned.py -> what is committed of them, and the lines of their table. Makes no measurement.

Knows which product is whose aligned neighbour, and nothing of how either was timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.bench.tables import caption, markdown

Row = dict[str, Any]
Shape = tuple[int, int, int]

KIND = "unaligned"  # of every committed row; `part` says which: check, time, pair, repack, variant, child
# The kind of rows by the part that the file is: what the table shows, and an earlier run for its checks and variants,
# which no table reads.
RUNS = {"unaligned": KIND, "unaligned_earlier": "unaligned-earlier"}
STEP = 16  # what sizes are rounded to: 32 bytes, which TMA reads and stores

COLUMNS = (
    "M, N, K", "tilewright", "of that copies", "aligned neighbour", "times the neighbour", "cuBLAS", "over cuBLAS",
    "config",
)  # fmt: skip
_KEPT = (
    "status", "why", "candidate", "m", "n", "k", "num_sets", "is_cold", "mode", "median_us", "spread", "rounds",
    "ratio", "ratio_lower", "ratio_upper", "moved_gbps", "watts", "clock_mhz", "limits", "error_over_bound", "config",
)  # fmt: skip


@dataclass(frozen=True)
class Unaligned:
    """What was measured of one product. Units: microseconds; copies are None where none are needed.

    `times_neighbour` is of pairs, both in one round, where such were measured (`is_paired`), else of two medians.
    """

    shape: Shape
    ours_us: float
    copies_us: float | None
    neighbour_us: float
    times_neighbour: float
    is_paired: bool
    cublas_us: float
    config: str


def neighbour(shape: Shape) -> Shape:
    """The product of sizes that are multiples of STEP and next to these."""
    m, n, k = ((size + STEP // 2) // STEP * STEP for size in shape)
    return m, n, k


def published(rows: Sequence[Row], kind: str = KIND) -> list[Row]:
    """The rows as they are committed: the checks as one, with those that are not right; of the others what is read."""
    checks = [row for row in rows if row["kind"] == "check"]
    failed = [row for row in checks if row["status"] != "ok"]
    found: list[Row] = []
    if checks:
        worst = max((row.get("worst") or 0.0 for row in checks), default=0.0)
        counts = {"cases": len(checks), "not_ok": len(failed), "worst": worst, "failed": failed}
        found.append({"kind": kind, "part": "check", "status": "wrong" if failed else "ok"} | counts)
    for row in rows:
        if row["kind"] != "check":
            kept = {name: row[name] for name in _KEPT if row.get(name) is not None}
            found.append({"kind": kind, "part": row["kind"]} | kept)
    return found


def products(rows: Sequence[Row]) -> list[Unaligned]:
    """Of committed rows each product whose time, neighbour and cuBLAS are there, in the order of the rows."""
    timed = {(shape_of(row), row["candidate"]): row for row in rows if row["part"] == "time" and "median_us" in row}
    paired = {(shape_of(row), row["candidate"]): row for row in rows if row["part"] == "pair" and "median_us" in row}
    found = []
    for shape in dict.fromkeys(shape for shape, _ in timed if neighbour(shape) != shape):
        ours, cublas = timed.get((shape, "tilewright")), timed.get((shape, "cublas"))
        beside, pair = timed.get((neighbour(shape), "tilewright")), paired.get((shape, "tilewright"))
        if ours is None or cublas is None or beside is None:
            continue
        ratio = pair.get("ratio") if pair else None
        found.append(
            Unaligned(
                shape=shape,
                ours_us=ours["median_us"],
                copies_us=_copies_us(shape, rows),
                neighbour_us=beside["median_us"],
                times_neighbour=1 / ratio if ratio else ours["median_us"] / beside["median_us"],
                is_paired=bool(ratio),
                cublas_us=cublas["median_us"],
                config=ours["config"],
            )
        )
    return found


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a product."""
    return [
        (
            ", ".join(map(str, each.shape)),
            f"{each.ours_us:.1f}",
            "-" if each.copies_us is None else f"{each.copies_us:.1f}",
            f"{each.neighbour_us:.1f}",
            f"**{each.times_neighbour:.2f}**",
            f"{each.cublas_us:.1f}",
            f"**{each.cublas_us / each.ours_us:.2f}**",
            each.config,
        )
        for each in products(rows)
    ]


def checked(rows: Sequence[Row]) -> str:
    """How many cases were right, as a sentence; none for no checks."""
    checks = [row for row in rows if row["part"] == "check"]
    cases, wrong = sum(row["cases"] for row in checks), sum(row["not_ok"] for row in checks)
    return f" {cases - wrong} of {cases} cases are right." if checks else ""


def shape_of(row: Row) -> Shape:
    """The product that a row is about."""
    return row["m"], row["n"], row["k"]


def _copies_us(shape: Shape, rows: Sequence[Row]) -> float | None:
    """The copies by themselves: as the variants have them, whose first is the cut that runs, else on their own."""
    for part in ("variant", "repack"):
        for row in rows:
            if row["part"] == part and shape_of(row) == shape and row["candidate"].startswith("repack"):
                return float(row["median_us"])
    return None


def unaligned_table(rows: Sequence[Row]) -> str:
    """One line a product that is off 16 bytes: beside its aligned neighbour and beside cuBLAS."""
    own = [row for row in rows if row.get("kind") == KIND]
    is_paired = any(each.is_paired for each in products(own))
    compared = "of both in one round" if is_paired else "of two medians, of runs one after the other"
    meaning = (
        f"Microseconds, interleaved with cuBLAS, inputs cold; arrays without padding. Copies are timed by themselves. "
        f"The neighbour's sizes are the next multiples of {STEP}; its ratio is {compared}."
        f"{checked(own)}"
    )
    return markdown(COLUMNS, cells(own)) + caption(own, meaning)


TABLES = {"unaligned": unaligned_table}
