"""The rows of benchmarks/lines.py -> what is committed of them, a line of a table for each, and their picture.

Makes no measurement; what is a cliff, neighbours.py says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.bench.lines_plot import Panel, draw
from tilewright.bench.neighbours import STEP, Line, Size, lines
from tilewright.bench.tables import caption, markdown

Row = dict[str, Any]

KIND = "line"  # of a row: one size of one line

COLUMNS = (
    "M, N, K", "sizes", "us", "over an aligned neighbour", "at", "over a larger size", "at", "largest spread",
    "configs", "right",
)  # fmt: skip
_KEPT = (
    "kind", "line", "status", "why", "m", "n", "k", "dtype", "out_dtype", "b_major", "num_sets", "is_cold", "mode",
    "median_us", "lower_us", "upper_us", "min_us", "max_us", "spread", "rounds", "calls", "captured", "watts",
    "clock_mhz", "temperature_c", "limits", "error_over_bound", "launches", "config",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One line, and the row of each of its sizes in their order."""

    line: Line
    rows: tuple[Row, ...]

    @property
    def num_right(self) -> int:
        """Sizes whose result was right."""
        return sum(row["status"] == "ok" for row in self.rows)


def published(rows: Sequence[Row]) -> list[Row]:
    """The rows as they are committed: of each size what table, picture and a doubter need."""
    return [{name: row[name] for name in _KEPT if row.get(name) is not None} for row in rows]


def measured(rows: Sequence[Row]) -> list[Measured]:
    """Every line whose sizes have times, in the order of the rows; one that lacks sizes in between may be two."""
    found = []
    own = [row for row in rows if row.get("kind") == KIND and "median_us" in row]
    for name in dict.fromkeys(map(_name, own)):
        of_size = {size_of(row): row for row in own if _name(row) == name}
        times = {size: row["median_us"] for size, row in of_size.items()}
        found += [Measured(line, tuple(of_size[size] for size in line.sizes)) for line in lines(times)]
    return found


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line of COLUMNS for each line of sizes."""
    return [
        (
            str(each.line),
            str(len(each.rows)),
            f"{min(each.line.times_us):.1f} .. {max(each.line.times_us):.1f}",
            *(f"**{cell}**" if index % 2 == 0 else cell for index, cell in enumerate(each.line.cells())),
            f"{max(row['spread'] for row in each.rows):.1%}",
            str(len({row["config"] for row in each.rows})),
            f"{each.num_right} of {len(each.rows)}",
        )
        for each in measured(rows)
    ]


def failures(rows: Iterable[Row]) -> list[str]:
    """What is not right, not served or not measured, a sentence each."""
    return [
        f"{'x'.join(map(str, size_of(row))) if row['kind'] == KIND else row['line']}: {row['status']}: {row['why']}"
        for row in rows
        if row["status"] != "ok"
    ]


def digest(rows: Sequence[Row]) -> str:
    """The name of what the picture shows: a file that holds it is fresh."""
    shown = [
        [each.line.sizes, each.line.times_us, [(row["lower_us"], row["upper_us"]) for row in each.rows]]
        for each in measured(rows)
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def plot(rows: Sequence[Row], title: str, path: Path) -> None:
    """The times of each line over its sizes. Raises: UnsupportedError: matplotlib is not installed."""
    panels = []
    for each in measured(rows):
        extents = tuple(size[each.line.axis] for size in each.line.sizes)
        panels.append(
            Panel(
                title=str(each.line),
                extent="MNK"[each.line.axis],
                extents=extents,
                aligned=tuple(extent % STEP == 0 for extent in extents),
                times_us=each.line.times_us,
                quartiles_us=tuple((row["lower_us"], row["upper_us"]) for row in each.rows),
            )
        )
    draw(panels, title, path, digest(rows))


def title(facts: Row) -> str:
    """What stands over the picture of one file of rows."""
    return f"{facts.get('device')}, {facts.get('date')}: all sizes of a line in the same rounds, inputs cold"


def size_of(row: Row) -> Size:
    """The product that a row is about."""
    return row["m"], row["n"], row["k"]


def _name(row: Row) -> tuple[Any, str]:
    """Of the line that a row is of, on its device."""
    return row.get("device"), row["line"]


def lines_table(rows: Sequence[Row]) -> str:
    """One line for each line of sizes that lie side by side: its times, and the worst of its cliffs."""
    own = [row for row in rows if row.get("kind") == KIND and "median_us" in row]
    meaning = (
        "The model's choice for each size, whatever is recorded; all sizes of a line are columns of one interleaved "
        "measurement, on the same cold memory. A ratio is of two medians, the worst of the line with the size that has "
        "it: over the faster of the next multiples of 8 on either side, and over any larger size of the line. Spread "
        "is the distance between the quartiles over the median."
    )
    return markdown(COLUMNS, cells(own)) + caption(own, meaning)


TABLES = {"lines": lines_table}
