"""The rows of what a call costs the host -> the lines of their table. Makes no measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.bench.tables import caption, markdown

Row = dict[str, Any]


def host_table(rows: Sequence[Row]) -> str:
    """One line a way of calling, one column a problem: median microseconds of host time."""
    hosted = [row for row in rows if row.get("kind") == "host"]
    problems = list(dict.fromkeys((row["m"], row["n"], row["k"]) for row in hosted))
    costs = {(row["way"], (row["m"], row["n"], row["k"])): row for row in hosted}
    head = ("call", *("x".join(map(str, problem)) for problem in problems))
    lines = []
    for way in dict.fromkeys(row["way"] for row in hosted):
        cells = [costs.get((way, problem)) for problem in problems]
        lines.append((f"`{way}`", *("-" if cell is None else f"{cell['median_us']:.1f}" for cell in cells)))
    meaning = "Microseconds before the call returns, medians of shuffled rounds; the GPU waits for the host throughout."
    return markdown(head, lines) + caption(hosted, meaning)


TABLES = {"host": host_table}
