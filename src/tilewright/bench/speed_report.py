"""The rows of timed products beside cuBLAS -> the lines of two tables. Makes no measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.bench.tables import caption, layout_of, markdown

Row = dict[str, Any]

_TUNED_MEANING = (
    "Tuned is the fastest of cuBLASLt's algorithms, of all that its heuristics offer for this size and for its "
    "neighbours, timed in the same run."
)


def speed_table(rows: Sequence[Row]) -> str:
    """One line a problem, the modes side by side: both rates in TFLOPS and how many times faster."""
    timed = _beside_baseline(rows)
    modes = [mode for mode in ("burst", "interleaved", "steady") if any(each.row["mode"] == mode for each in timed)]
    lines = []
    for problem in dict.fromkeys(_problem_of(each.row) for each in timed):
        own = {each.row["mode"]: each for each in timed if _problem_of(each.row) == problem}
        row = next(iter(own.values())).row
        lines.append(
            (
                f"{row['m']}, {row['n']}, {row['k']}",
                layout_of(row),
                *(own[mode].cell() if mode in own else "-" for mode in modes),
                row["config"],
            )
        )
    head = ("M, N, K", "type", *modes, "config")
    meaning = (
        "In each cell: TFLOPS of cuBLAS (as `torch.matmul` calls it), TFLOPS of tilewright, and how many times faster "
        "tilewright is, the median over rounds of cuBLAS's time over tilewright's of the same round. TN: `b` is "
        "`w.t()`, k-contiguous; NN: `b` is row-major."
    )
    if any(each.tuned for each in timed):
        meaning += f" {_TUNED_MEANING} TFLOPS and ratio stand behind the stroke."
    return markdown(head, lines) + caption([each.row for each in timed], meaning)


def time_table(rows: Sequence[Row]) -> str:
    """One line a problem and mode: both rates, the ratio with its quartiles, power and clock."""
    timed = _beside_baseline(rows)
    is_tuned = any(each.tuned for each in timed)
    head = ["M, N, K", "type", "mode", "cuBLAS TFLOPS", "tilewright TFLOPS", "ratio", "quartiles"]
    head += ["tuned TFLOPS", "ratio", "quartiles"] * is_tuned
    head += ["W", "SM MHz", "config"]
    lines = []
    for each in timed:
        row, base = each.row, each.base
        is_steady = row["mode"] == "steady"  # the driver averages power over a second: the others are shorter
        cells = [
            f"{row['m']}, {row['n']}, {row['k']}",
            layout_of(row),
            row["mode"],
            f"{base['rate_tflops']:.0f}",
            f"{row['rate_tflops']:.0f}",
            f"**{row['ratio']:.3f}**",
            f"{row['ratio_lower']:.3f} .. {row['ratio_upper']:.3f}",
        ]
        if each.tuned:
            cells += [
                f"{each.tuned['rate_tflops']:.0f}",
                f"**{row['ratio_tuned']:.3f}**",
                f"{row['ratio_tuned_lower']:.3f} .. {row['ratio_tuned_upper']:.3f}",
            ]
        elif is_tuned:
            cells += ["-"] * 3
        cells += [
            _whole(row["watts"] if is_steady else None),
            _whole(row["clock_mhz"] if is_steady else None),
            row["config"],
        ]
        lines.append(cells)
    meaning = "A ratio is the median over rounds of cuBLAS's time over tilewright's of the same round."
    if is_tuned:
        meaning += f" {_TUNED_MEANING}"
    return markdown(head, lines) + caption([each.row for each in timed], meaning)


@dataclass(frozen=True)
class _Beside:
    """One timed row of tilewright and those that it was measured beside."""

    row: Row
    base: Row
    tuned: Row | None

    def cell(self) -> str:
        """Both rates and the ratio, and those of the tuned baseline."""
        text = f"{self.base['rate_tflops']:.0f}, {self.row['rate_tflops']:.0f}, **{self.row['ratio']:.3f}**"
        if self.tuned:
            text += f" / {self.tuned['rate_tflops']:.0f}, **{self.row['ratio_tuned']:.3f}**"
        return text


def _beside_baseline(rows: Sequence[Row]) -> list[_Beside]:
    """Each timed row of tilewright that has a ratio, with the baselines that it was measured beside."""
    timed = [row for row in rows if row.get("kind") == "time" and row["status"] == "ok"]
    baselines = {(*_problem_of(row), row["mode"]): row for row in timed if row["ratio"] is None}
    tuned = {(*_problem_of(row), row["mode"]): row for row in timed if "tuned" in row}
    found = []
    for row in timed:
        key = (*_problem_of(row), row["mode"])
        if row["ratio"] is not None and "tuned" not in row and key in baselines:
            found.append(_Beside(row, baselines[key], tuned.get(key)))
    return found


def _problem_of(row: Row) -> tuple[Any, ...]:
    return (row["m"], row["n"], row["k"], row["dtype"], row["out_dtype"], row["b_major"])


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


TABLES = {"speed": speed_table, "time": time_table}
