"""The rows of a suite as they are committed, and the tables that documents have of them. Makes no measurement.

A record that was measured may be shipped no longer when the rows are committed: its row keeps its time and says
DROPPED, and what is shipped for that shape is the model's choice, as it is for a user. What is compared, and how, is
suite_report.py's to know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.bench import suite_report as suite
from tilewright.bench.suite_report import DROPPED, Mean, Shape, Size
from tilewright.bench.suite_run import RECORDED
from tilewright.bench.tables import caption, markdown

Row = dict[str, Any]

KIND = "bench"  # of a row: one column of one shape
MODE = "interleaved"  # whose tables documents have: all columns of a shape take turns in it

COLUMNS = (
    "group", "M, N, K", "cuBLAS us", "tuned us", "tilewright us", "over cuBLAS", "over tuned", "spread",
    "of the floor", "cuBLAS of it", "choice", "config",
)  # fmt: skip
MEAN_COLUMNS = ("shapes", "from records", "over", "geometric mean", "least", "at", "below 0.97", "below 0.95")

_KEPT = (
    "kind", "group", "shape", "m", "n", "k", "dtype", "out_dtype", "b_major", "candidate", "mode", "status", "why",
    "data", "num_sets", "is_cold", "median_us", "lower_us", "upper_us", "spread", "rounds", "captured", "watts",
    "clock_mhz", "limits", "ratio", "ratio_lower", "ratio_upper", "ratio_tuned", "ratio_tuned_lower",
    "ratio_tuned_upper", "config", "ctas", "num_sms", "waves", "error_over_bound", "floor_us", "bound",
    "share_of_floor",
)  # fmt: skip
_SEARCH = ("offered", "tried")  # of the tuned column: algorithms that the heuristics named, and that were timed
_DIGITS = 6  # of a committed number: a clock tells no more


def published(rows: Sequence[Row], shipped: Callable[[Size], str | None]) -> list[Row]:
    """The rows as they are committed: of each column what tables, picture and a doubter need.

    `shipped`: the config of the record that the package has for a size, or None.
    """
    found = []
    for row in rows:
        kept = {name: _short(row[name]) for name in _KEPT if row.get(name) is not None}
        if "tuned" in row:
            kept |= {name: row["tuned"].get(name) for name in _SEARCH}
        is_recorded = row.get("candidate") == RECORDED and row["status"] == "ok"
        if is_recorded and shipped((row["m"], row["n"], row["k"])) != row["config"]:
            kept |= {"status": DROPPED, "why": "this record is not shipped"}
        found.append(kept | {"candidate": row.get("candidate")})
    return found


def _short(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line of COLUMNS for each shape: what is shipped, beside both baselines. Units: microseconds."""
    lines = []
    for shape in _shapes(rows):
        own, base, tuned = shape.shipped, shape.timed(suite.BASELINE), shape.timed(suite.TUNED)
        if own is None or base is None:
            continue
        lines.append(
            (
                shape.group,
                f"{shape}{'' if base.get('is_cold', True) else ' *'}",
                *("-" if row is None else _us(row["median_us"]) for row in (base, tuned, own)),
                *(_bold(own.get(key)) for _, key in suite.OVER),
                f"{own['spread']:.1%}",
                *(_percent(row.get("share_of_floor")) for row in (own, base)),
                "record" if own["candidate"] == RECORDED else "model",
                str(own["config"]),
            )
        )
    return lines


def mean_cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line of MEAN_COLUMNS for each baseline: what is shipped, over all shapes."""
    lines = []
    for mean in suite.means(_shapes(rows), MODE):
        if (mean.group, mean.column) != ("all", suite.SHIPPED):
            continue
        ratio, shape = mean.worst
        lines.append(
            (
                str(len(mean.ratios)),
                str(_recorded(mean)),
                mean.over,
                f"**{mean.value:.3f}**",
                f"{ratio:.3f}",
                str(shape),
                *(str(sum(each < bar for each, _ in mean.ratios)) for bar in (0.97, 0.95)),
            )
        )
    return lines


def summary_cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line of suite_report.SUMMARY_COLUMNS for each column over each baseline, and for each group."""
    return [mean.cells() for mean in suite.means(_shapes(rows), MODE)]


def slowest(rows: Sequence[Row], key: str) -> list[tuple[str, ...]]:
    """The lines of suite_report.WORST_COLUMNS: the ten slowest over one baseline, with what their rows say."""
    return suite.worst_lines(_shapes(rows), MODE, key)


def choices(rows: Sequence[Row]) -> str:
    """How good the model's choices are beside the recorded ones, as a sentence."""
    return suite.choices(_shapes(rows), MODE)


def searched(rows: Sequence[Row]) -> str:
    """Where the search for the tuned baseline ended early, as a sentence; empty where it never did."""
    found = [row for shape in _shapes(rows) if (row := shape.timed(suite.TUNED)) and row.get("offered")]
    short = [row for row in found if row["tried"] < row["offered"]]
    if not short:
        return ""
    return (
        f" Of {len(short)} of {len(found)} shapes the search ended with its time, before all algorithms that the "
        "heuristics offer were timed: there tuned is the fastest of those that were."
    )


def digest(rows: Sequence[Row]) -> str:
    """The name of what the picture shows: a file that holds it is fresh."""
    shown = [
        [str(shape), [(row.get("ratio"), row.get("ratio_tuned"), row.get("share_of_floor")) for row in timed]]
        for shape in _shapes(rows)
        for timed in [[row for row in (shape.shipped, shape.timed(suite.BASELINE), shape.timed(suite.TUNED)) if row]]
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Ratios and shares of the floor, shape by shape. Raises: UnsupportedError: matplotlib is not installed."""
    suite.plot(_shapes(rows), MODE, path, digest(rows))


def _shapes(rows: Sequence[Row]) -> list[Shape]:
    own = [row for row in rows if row.get("kind") == KIND and row["mode"] == MODE]
    return suite.judged(own) if own else []


def _recorded(mean: Mean) -> int:
    return sum(shape.timed(RECORDED) is not None for _, shape in mean.ratios)


def _us(us: float) -> str:
    return f"{us:.2f}" if us < 100 else f"{us:.1f}"


def _bold(ratio: float | None) -> str:
    return "-" if ratio is None else f"**{ratio:.3f}**"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def suite_table(rows: Sequence[Row]) -> str:
    """One line a shape of the suite: what is shipped beside both baselines."""
    meaning = (
        "Medians of shuffled rounds, interleaved, operands cold (`*`: too small for that, they lay in the L2). A ratio "
        "is the median over rounds of the baseline's time over tilewright's of the same round. The floor is the longer "
        "of what a read of the product's bytes and its FLOPs take on this card. Choice: of a shipped record, or of the "
        "model, untuned."
    )
    return markdown(COLUMNS, cells(rows)) + caption(_suite(rows), meaning)


def suite_mean_table(rows: Sequence[Row]) -> str:
    """One line a baseline: what is shipped, over all shapes of the suite."""
    meaning = (
        "How many times as fast as cuBLAS (as `torch.matmul` calls it), and as the fastest of cuBLASLt's algorithms of "
        "all heuristics, measured beside it, as shipped: a record's choice where there is one, else the model's. "
        f"Interleaved, operands cold.{searched(rows)}"
    )
    return markdown(MEAN_COLUMNS, mean_cells(rows)) + caption(_suite(rows), meaning)


def suite_summary_table(rows: Sequence[Row]) -> str:
    """Every column over each baseline, each group, and how good the model's choices are."""
    sentence = choices(rows)
    table = markdown(suite.SUMMARY_COLUMNS, summary_cells(rows))
    return table + f"\n{sentence}\n" * bool(sentence)


def suite_worst_table(rows: Sequence[Row], key: str) -> str:
    """The ten shapes that are slowest over one baseline, with what their rows say."""
    return markdown(suite.WORST_COLUMNS, slowest(rows, key))


def _suite(rows: Sequence[Row]) -> list[Row]:
    """The suite's rows, for their origin."""
    return [row for row in rows if row.get("kind") == KIND]


TABLES = {
    "suite": suite_table,
    "suite-mean": suite_mean_table,
    "suite-summary": suite_summary_table,
    "suite-worst": partial(suite_worst_table, key="ratio"),
    "suite-worst-tuned": partial(suite_worst_table, key="ratio_tuned"),
}
