"""The picture of lines of sizes: time over the extent that grows, a panel a line. Knows numbers and names, no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.bench.plots import drawing

COLUMNS = 2  # panels side by side


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One line. `extent` names what grows; the other values are one a size, `aligned` those that are filled.

    Units: microseconds; quartiles are of the rounds.
    """

    title: str
    extent: str
    extents: tuple[int, ...]
    aligned: tuple[bool, ...]
    times_us: tuple[float, ...]
    quartiles_us: tuple[tuple[float, float], ...]


def draw(panels: Sequence[Panel], title: str, path: Path, digest: str) -> None:
    """An SVG file that carries `digest`, the name of its numbers. Times start at 0, so that heights compare.

    Raises: UnsupportedError: matplotlib is not installed. ValueError: no panel.
    """
    if not panels:
        raise ValueError(f"no line to draw at {path}")
    matplotlib, pyplot = drawing(path)
    num_rows = -(-len(panels) // COLUMNS)
    with matplotlib.rc_context({"svg.hashsalt": "tilewright", "svg.fonttype": "none", "font.size": 8}):
        figure, grid = pyplot.subplots(
            num_rows, COLUMNS, figsize=(4.5 * COLUMNS, 0.4 + 2.4 * num_rows), layout="constrained", squeeze=False
        )
        axes = [each for row in grid for each in row]
        for unused in axes[len(panels) :]:
            unused.remove()
        for panel, own in zip(panels, axes, strict=False):
            lower, upper = zip(*panel.quartiles_us, strict=True)
            own.fill_between(panel.extents, lower, upper, color="tab:blue", alpha=0.25, linewidth=0)
            own.plot(panel.extents, panel.times_us, color="tab:blue", linewidth=0.6)
            for is_aligned, face, label in ((False, "white", "other"), (True, "tab:blue", "multiple of 8")):
                points = [
                    (x, y)
                    for x, y, aligned in zip(panel.extents, panel.times_us, panel.aligned, strict=True)
                    if aligned == is_aligned
                ]
                if points:
                    style = {"markersize": 3.5, "markeredgewidth": 0.7, "markeredgecolor": "tab:blue"}
                    own.plot(*zip(*points, strict=True), "o", markerfacecolor=face, label=label, **style)
            own.set_ylim(bottom=0)
            own.set_title(panel.title)
            own.set_xlabel(panel.extent)
            own.set_ylabel("us")
            own.grid(axis="y", linewidth=0.3)
            own.legend(loc="lower right", frameon=False, fontsize=7)
        figure.suptitle(title)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Description": digest})
        pyplot.close(figure)
