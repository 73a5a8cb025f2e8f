"""The rows of benchmarks/ampere.py -> what is committed of them, and the lines of their table. Makes no measurement.

Knows which rate of mma.sync a row is held to and which column is compared with which, and nothing of how one was timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tilewright.bench.ceiling_report import tensor_ceilings
from tilewright.bench.published import published_parts
from tilewright.bench.tables import NOT_MEASURED, caption, markdown

Row = dict[str, Any]

KIND = "ampere"  # of every committed row; `part` says which: check, time, count, child
# The kind of rows, which is their table's name too, by the part that the file is: configs with 16-bit inputs; those of
# the inputs that the family alone multiplies; these in two forms; an earlier run of 16 bits, with configs that the
# newest has not; --modes.
RUNS = {
    "ampere": KIND,
    "kinds": "ampere-kinds",
    "kinds_forms": "ampere-forms",
    "ampere_earlier": "ampere-earlier",
    "ampere_modes": "ampere-modes",
}
# The mode whose rate of a loop on registers a time is held to. Interleaved has none of its own: it lies between the two
# and is held to the lower, as floor.py does it.
HELD_TO = {"burst": "burst", "interleaved": "steady", "steady": "steady"}
# What has no committed loop, whatever the mode: the middles of what loops of an H200 reached under load (2026-11-29,
# rows not kept: int8 1236 to 1302 TOPS, fp16 sums 607 to 626 TFLOPS). Of tf32 nothing was measured.
UNKEPT_TFLOPS = {"int8": 1270.0, "fp16 sums": 615.0}
OWN = "tilewright "  # what the candidates that a config of the family names begin with

COLUMNS = ("product", "config", "us", "TFLOPS", "of mma.sync", "over cuBLAS", "quartiles", "spread")
_KEPT = (
    "status", "why", "case", "problem", "candidate", "m", "n", "k", "dtype", "out_dtype", "num_sets", "is_cold",
    "mode", "median_us", "lower_us", "upper_us", "spread", "rounds", "rate_tflops", "ratio", "ratio_lower",
    "ratio_upper", "watts", "clock_mhz", "limits", "error_over_bound", "config", "ctas",
    "expected_tflops",
)  # fmt: skip


def published(rows: Sequence[Row], kind: str = KIND) -> list[Row]:
    """The rows as they are committed."""
    return published_parts(rows, kind, _KEPT, whole=("count",))


def cells(rows: Sequence[Row], ceilings: Sequence[Row] = ()) -> list[tuple[str, ...]]:
    """One line a column of a measurement: of each product the family's configs, the fastest first, then what stood
    beside them.

    Units: microseconds; TFLOPS; shares of ceiling_tflops(), `ceilings` being rows of those; how many times faster than
    cuBLAS in the same rounds.
    """
    timed = [row for row in rows if row["part"] == "time" and "median_us" in row]
    lines: list[tuple[str, ...]] = []
    for problem in dict.fromkeys(row["problem"] for row in timed):
        own = [row for row in timed if row["problem"] == problem]
        for row in sorted(own, key=lambda row: (not row["candidate"].startswith(OWN), row["median_us"])):
            has_ratio = row.get("ratio") is not None
            ceiling = ceiling_tflops(row, ceilings)
            lines.append(
                (
                    problem,
                    name_of(row),
                    f"{row['median_us']:.1f}",
                    f"{row['rate_tflops']:.0f}",
                    "-" if ceiling is None else f"{row['rate_tflops'] / ceiling:.2f}",
                    f"**{row['ratio']:.2f}**" if has_ratio else "-",
                    f"{row['ratio_lower']:.2f} .. {row['ratio_upper']:.2f}" if has_ratio else "-",
                    f"{100 * row['spread']:.0f} %",
                )
            )
    return lines


def ceiling_tflops(row: Row, ceilings: Sequence[Row]) -> float | None:
    """What mma.sync alone reaches with the row's inputs and sums in the mode that its time is held to, by the rows of
    `ceilings` that are of its card; None where it was not measured."""
    kind = "fp16 sums" if row["problem"].endswith("sums in fp16") else str(row.get("dtype"))
    if kind in UNKEPT_TFLOPS:
        return UNKEPT_TFLOPS[kind]
    return tensor_ceilings(ceilings, str(row.get("device")), kind, "mma.sync").get(HELD_TO[row["mode"]])


def ceilings_told(rows: Sequence[Row], ceilings: Sequence[Row]) -> str:
    """What the rows' times are held to, of each type and mode, in the order of the rows; "" where nothing is known."""
    found: dict[str, float] = {}
    for row in rows:
        if "median_us" in row and (rate := ceiling_tflops(row, ceilings)) is not None:
            found[f"{row['dtype']} {HELD_TO[row['mode']]}"] = rate
    return ", ".join(f"{name} {rate:.0f}" for name, rate in found.items())


def name_of(row: Row) -> str:
    """What a table calls a column: the config of the family; matmul's own choice and cuBLAS by their names."""
    candidate = str(row["candidate"])
    if candidate.startswith(OWN):
        return candidate.removeprefix(OWN)
    return "cuBLAS" if candidate == "cublas" else "matmul's choice: the Hopper kernel"


def ampere_table(rows: Sequence[Row], kind: str = KIND) -> str:
    """One line a config of the Ampere family and product, and what was measured beside them; of one of RUNS."""
    own = [row for row in rows if row.get("kind") == kind]
    held = ceilings_told(own, rows)
    beside = (
        f"of what a loop on registers reaches on an H200, in TFLOPS {held or 'not measured'}; interleaved is held to "
        "steady, the lower. The Hopper kernel and cuBLAS at aligned sizes use wgmma, which does 1.5 times as much a "
        "cycle."
    )
    if not own:
        return NOT_MEASURED
    if kind in (RUNS["kinds"], RUNS["kinds_forms"]):
        whole, half = (UNKEPT_TFLOPS[name] for name in ("int8", "fp16 sums"))
        beside = (
            f"of {whole:.0f} TOPS of int8 and {half:.0f} TFLOPS with fp16 sums, the middles of what loops on registers "
            "reached on an H200 under load, whose rows were not kept; of tf32 it was not measured. cuBLAS is "
            "`torch._int_mm`, and `torch.matmul` that may use tf32 or sum in fp16; past the ceiling it uses wgmma."
        )
    timed = "Interleaved with cuBLAS, inputs cold"
    if kind == RUNS["ampere_modes"]:
        timed = "Beside cuBLAS in the mode that stands behind the product, inputs cold"
    checked = "".join(
        f" Checked beside: {row['ok']} products right, {row['wrong']} wrong, {row['refused']} refused."
        for row in own
        if row["part"] == "check"
    )
    meaning = f"{timed}, every column's result checked first. Of mma.sync: {beside}{checked}"
    return markdown(COLUMNS, cells(own, rows)) + caption(own, meaning)


TABLES = {kind: partial(ampere_table, kind=kind) for kind in RUNS.values()}
