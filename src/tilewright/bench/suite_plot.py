"""The picture of a suite: times as fast, and shares of the floor, shape by shape. Knows numbers and names, no rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.bench.plots import drawing

Series = Mapping[str, Sequence[float | None]]

TICKS = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
TOP = 1.65  # of the plot of ratios: what is above is drawn there with its number, else one cliff flattens all the rest
MARKS = {"tilewright": ("o", "tab:blue"), "cuBLAS": ("s", "tab:gray"), "cuBLASLt tuned": ("x", "tab:orange")}


def draw(
    labels: Sequence[str],
    groups: Sequence[str],
    ratios: Series,
    shares: Series,
    title: str,
    path: Path,
    digest: str | None = None,
) -> None:
    """A file of two plots over the shapes that `labels` names; neighbours of one group stand between two lines.

    `digest`, the name of its numbers, is written into the file.
    Shapes: each series has a value or None for each label. `ratios`: times as fast as each baseline, by its name;
    `shares`: parts of the floor, by the name of what reaches them; names are those of MARKS.
    Raises: UnsupportedError: matplotlib is not installed.
    """
    matplotlib, pyplot = drawing(path)
    with matplotlib.rc_context({"svg.hashsalt": "tilewright", "svg.fonttype": "none", "font.size": 8}):
        size = (max(8.0, 0.2 * len(labels) + 2), 8)
        figure, (upper, lower) = pyplot.subplots(2, 1, figsize=size, layout="constrained", sharex=True)
        for baseline, marked in (("cuBLAS", "tilewright"), ("cuBLASLt tuned", "cuBLASLt tuned")):
            _points(upper, ratios.get(baseline, ()), f"tilewright over {baseline}", *MARKS[marked], top=TOP)
        upper.set_yscale("log", base=2)
        upper.set_ylim(top=TOP * 1.05)
        upper.yaxis.set_major_locator(matplotlib.ticker.FixedLocator(TICKS))
        upper.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        upper.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        upper.set_ylabel("times as fast")
        for name, values in shares.items():
            _points(lower, values, name, *MARKS[name])
        lower.set_ylim(bottom=0, top=max(1.05, lower.get_ylim()[1]))
        lower.set_ylabel("share of the floor")
        lower.set_xlim(-1, len(labels))
        lower.set_xticks(range(len(labels)), labels, rotation=90)
        starts = [index for index, group in enumerate(groups) if index == 0 or groups[index - 1] != group]
        for axes in (upper, lower):
            axes.axhline(1.0, color="black", linewidth=0.8)
            axes.grid(axis="y", linewidth=0.3)
            for start in starts[1:]:
                axes.axvline(start - 0.5, color="gray", linewidth=0.5)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
        for start in starts:
            lower.text(start - 0.4, 0.02, groups[start], rotation=90, va="bottom", color="gray")
        figure.suptitle(title)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if digest is None else {"Date": None, "Description": digest})
        pyplot.close(figure)


def _points(
    axes: Any, values: Sequence[float | None], name: str, marker: str, color: str, *, top: float = math.inf
) -> None:
    """One series; a point above `top` is drawn there, with its number beside it."""
    points = [(index, value) for index, value in enumerate(values) if value]
    if points:
        heights = [min(y, top) for _, y in points]
        axes.plot([x for x, _ in points], heights, marker, color=color, label=name, markersize=4)
    for x, y in points:
        if y > top:
            side = "right" if marker == "o" else "left"
            axes.text(x, top * 0.985, f" {y:.1f} ", rotation=90, va="top", ha=side, color=color, fontsize=6)
