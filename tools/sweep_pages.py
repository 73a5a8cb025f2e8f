"""Writes the generated parts of docs/ladder/sweeps.md and ampere_sweeps.md: each sweep's plot, table and statement.

    python tools/sweep_pages.py [--check] [ROWS.json ...]

A page holds `<!-- sweep: NAME -->` ... `<!-- end: NAME -->`; what lies between is never written by hand. Rows come
from the newest benchmarks/results/*_sweeps.json unless files are named. Plots go to docs/ladder/plots; each carries the
digest of the numbers that it shows, so a stale one is found without drawing it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tilewright.bench.report import files_of, read_rows
from tilewright.bench.sweep_report import block, digest, lines_of, plot
from tilewright.bench.sweeps import ampere_size_sweeps, ampere_sweeps, sweeps
from tilewright.device import preset
from tilewright.errors import UnsupportedError

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "ladder" / "sweeps.md", ROOT / "docs" / "ladder" / "ampere_sweeps.md")
PLOTS = PAGES[0].parent / "plots"
RESULTS = ROOT / "benchmarks" / "results"
ALL = (*sweeps(preset("h200")), *ampere_sweeps(), *ampere_size_sweeps())

_BLOCK = re.compile(r"(<!-- sweep: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end: (?P=name) -->)", re.DOTALL)


def committed(folder: Path) -> list[Path]:
    """The newest files of sweeps in the folder, one a device."""
    return [path for path in files_of([folder]) if path.stem.endswith("_sweeps")]


def filled(document: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page with every block made anew. Raises: KeyError: a block of no sweep."""
    blocks = {each.name: block(rows, each.name, f"plots/sweep_{each.name}.svg") for each in ALL}
    return _BLOCK.sub(lambda found: f"{found[1]}{blocks[found['name']]}{found[4]}", document)


def stale_plots(rows: Sequence[dict[str, Any]], folder: Path) -> list[tuple[str, Path]]:
    """The sweeps whose plot is missing or shows other numbers."""
    found = []
    for each in ALL:
        lines = lines_of(rows, each.name)
        path = folder / f"sweep_{each.name}.svg"
        if any(line.rates for line in lines) and not (path.exists() and digest(lines) in path.read_text()):
            found.append((each.name, path))
    return found


def drawn(rows: Sequence[dict[str, Any]], plots: Iterable[tuple[str, Path]]) -> list[Path]:
    """Draws the plots. Raises: UnsupportedError: matplotlib is not installed."""
    questions = {each.name: each.question for each in ALL}
    paths = []
    for name, path in plots:
        plot(lines_of(rows, name), questions[name], path)
        paths.append(path)
    return paths


def main(words: Sequence[str] | None = None) -> int:
    """0 when pages and plots are, or were brought, up to date; 1 when --check finds one that is not, or a plot cannot
    be drawn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when something would change")
    options = parser.parse_args(words)
    rows = read_rows(options.rows or committed(RESULTS))
    before = {page: page.read_text(encoding="utf-8") for page in PAGES}
    changed = {page: after for page, text in before.items() if (after := filled(text, rows)) != text}
    plots = stale_plots(rows, PLOTS)
    if options.check:
        stale = [*changed, *(path for _, path in plots)]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run tools/sweep_pages.py")
        return 1 if stale else 0
    for page, text in changed.items():
        page.write_text(text, encoding="utf-8")
        print(f"{page.relative_to(ROOT)} written")
    try:
        for path in drawn(rows, plots):
            print(f"{path.relative_to(ROOT)} written")
    except UnsupportedError as error:  # the tables are written; the plots can be drawn where matplotlib is
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
