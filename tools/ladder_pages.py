"""Writes the generated parts of docs/ladder: what each rung changes in the code, its constants, and what was measured.

    python tools/ladder_pages.py [--check] [ROWS.json ...]

A page holds `<!-- NAME -->` ... `<!-- end: NAME -->` for NAME in diff, constants, measured; an index holds `table`, and
where a ladder was timed at more than one size `also`, a table of each of the others.
What lies between is never written by hand. Rows come from benchmarks/results/*ladder*.json unless files are named;
those of files called *ampere_ladder.json are the Ampere ladder's, and each ladder is compared with its own cuBLAS.
Where a ladder was measured at another size than the pages' or in fewer ways, its pages say at which and in which not;
of several sizes they show the one that was measured in the most ways.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.bench.ladder import MODES
from tilewright.bench.ladder_report import COLUMNS, cells, markdown, shown
from tilewright.bench.report import read_rows
from tilewright.bench.tables import NOT_MEASURED, caption
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.ladder import RUNGS, Rung
from tilewright.kernels.render import device_code
from tilewright.packing import packed

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "ladder"
ROWS = ROOT / "benchmarks" / "results"
PROBLEM = packed(8192, 8192, 8192)  # whose constants the pages show
PROBLEM_SIZE = (PROBLEM.m, PROBLEM.n, PROBLEM.k)

# Rungs that share no line with the one before: their code is shown in place of a diff.
NEW = frozenset({"v01", "v02", "a0"})

_PARAMETERS = re.compile(r"^    rung\(.*?\) \{", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"(<!-- (?P<name>\w+) -->\n)(?P<body>.*?)(<!-- end: (?P=name) -->)", re.DOTALL)


def code(rung: Rung) -> list[str]:
    """The rung's lines after its head comment, its own name spelled alike on every rung."""
    lines = device_code()[rung.source].splitlines()
    start = next(index for index, line in enumerate(lines) if not line.startswith("//"))
    text = "\n".join(lines[start:]).strip().replace(rung.name, "rung")
    # One parameter a line: the list is set flush under the name, which has another length on each rung.
    return _PARAMETERS.sub(lambda found: _one_a_line(found[0]), text).splitlines()


def diff(rung: Rung) -> str:
    """What the rung changes in the code of the one before; of a rung that shares nothing with it, the entry."""
    own = code(rung)
    if rung.number in NEW:
        entry = next(index for index, line in enumerate(own) if line.startswith('extern "C"'))
        return "```cuda\n" + "\n".join(own[entry:]) + "\n```\n"
    lines = list(difflib.unified_diff(code(before(rung)), own, lineterm="", n=1))[2:]
    shown = "\n".join("" if line.startswith("@@") else line.rstrip() for line in lines)
    return "```diff\n" + shown.strip("\n") + "\n```\n"


def before(rung: Rung) -> Rung:
    """The rung below it on its own ladder."""
    track: tuple[Rung, ...] = AMPERE_RUNGS if rung in AMPERE_RUNGS else RUNGS
    return track[track.index(rung) - 1]


def changed_lines(rung: Rung) -> int:
    """Lines of code that the rung adds or takes away."""
    if rung.number in NEW:
        return len(code(rung))
    lines = list(difflib.unified_diff(code(before(rung)), code(rung), lineterm="", n=0))[2:]
    return sum(not line.startswith("@@") for line in lines)


def constants(rung: Rung) -> str:
    """The constants that the rung is compiled with at 8192^3, in the order of struct Config."""
    found = rung.constants(PROBLEM, rung.config)
    words = [f"`{name} = {str(value).lower() if isinstance(value, bool) else value}`" for name, value in found.items()]
    return textwrap.fill(", ".join(words) + ".", 118, break_long_words=False, break_on_hyphens=False) + "\n"


def measured(rung: Rung, rows: Sequence[dict[str, Any]]) -> str:
    """The rung's line of the table, one column a line."""
    for line in cells(rows):
        if line[0] == rung.name:
            pairs = [(name, value) for name, value in zip(COLUMNS, line, strict=True) if value != "-"]
            note = told(rows)
            lines = "".join(f"| {name} | {value} |\n" for name, value in pairs)
            return f"{note}\n\n" * bool(note) + "| | |\n| --- | --- |\n" + lines
    return "_Not measured yet._\n"


def told(rows: Sequence[dict[str, Any]]) -> str:
    """What a reader has to know of rows that are not all that the pages are for: their size, and what is missing."""
    timed = [row for row in rows if row["kind"] == "rung_time" and row["status"] == "ok"]
    modes = {row["mode"] for row in timed}
    missing = [mode for mode in MODES if mode not in modes]
    missing += [] if any(row["kind"] == "rung_counters" for row in rows) else ["what ncu counts"]
    words = []
    if timed and size_of(timed[0]) != PROBLEM_SIZE:
        words.append(f"At {' x '.join(map(str, size_of(timed[0])))}.")
    if timed and missing:
        words.append(f"Not measured yet: {', '.join(missing)}.")
    return " ".join(words)


def size_of(row: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The product that a row is about; nothing known where it says none."""
    return row.get("m"), row.get("n"), row.get("k")


def of_one_size(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the size that a ladder was timed at in the most ways; of equals PROBLEM's, else the first."""
    return next(iter(by_size(rows).values()), [])


def by_size(rows: Sequence[dict[str, Any]]) -> dict[tuple[Any, Any, Any], list[dict[str, Any]]]:
    """The rows of each size that a ladder was timed at; first that of the most modes, of equals PROBLEM's."""
    modes: dict[tuple[Any, Any, Any], set[str]] = {}
    for row in rows:
        if row["kind"] == "rung_time":
            modes.setdefault(size_of(row), set()).add(row.get("mode", ""))
    sizes = sorted(modes, key=lambda size: (-len(modes[size]), size != PROBLEM_SIZE))
    return {size: [row for row in rows if size_of(row) == size] for size in sizes}


def also(rows: Sequence[dict[str, Any]]) -> str:
    """A table of each size but the one that the pages show, and where its rows are from; a rung that failed is in none,
    its row says no size."""
    parts = []
    for size, own in [*by_size(rows).items()][1:]:
        timed = [row for row in own if row["kind"] == "rung_time"]
        parts.append(f"At {' x '.join(map(str, size))}.\n\n{markdown(*shown(own))}{caption(timed, 'TFLOPS.')}")
    return "\n".join(parts) or NOT_MEASURED


def _one_a_line(parameters: str) -> str:
    return "    " + " ".join(parameters.split()).replace(", ", ",\n" + " " * 9)


def filled(document: str, blocks: dict[str, str]) -> str:
    """The document with every block made anew. Raises: KeyError: a block of an unknown name."""
    return _BLOCK.sub(lambda found: f"{found[1]}{blocks[found['name']]}{found[4]}", document)


def pages(rows: Sequence[dict[str, Any]], ampere_rows: Sequence[dict[str, Any]] = ()) -> dict[Path, str]:
    """Every page of docs/ladder as it should be, by path."""
    result = {}
    tracks: tuple[tuple[str, tuple[Rung, ...], Sequence[dict[str, Any]]], ...] = (
        ("index.md", RUNGS, rows),
        ("ampere.md", AMPERE_RUNGS, ampere_rows),
    )
    for name, rungs, found in tracks:
        own = of_one_size(found)
        for rung in rungs:
            path = PAGES / f"{rung.number}.md"
            blocks = {"diff": diff(rung), "constants": constants(rung), "measured": measured(rung, own)}
            result[path] = filled(path.read_text(encoding="utf-8"), blocks)
        blocks = {"table": table(own), "also": also(found)}
        result[PAGES / name] = filled((PAGES / name).read_text(encoding="utf-8"), blocks)
    return result


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A ladder's table."""
    if not any(row["kind"] == "rung_time" for row in rows):
        return "_Not measured yet._\n"
    note = told(rows)
    return f"{note}\n\n" * bool(note) + markdown(*shown(rows))


def main(words: Sequence[str] | None = None) -> int:
    """0 when the pages are, or were brought, up to date; 1 when --check finds one that is not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page would change")
    options = parser.parse_args(words)
    stale = []
    files = options.rows or sorted(ROWS.glob("*ladder*.json"))
    ampere = [file for file in files if file.stem.endswith("ampere_ladder")]
    for path, text in pages(read_rows([file for file in files if file not in ampere]), read_rows(ampere)).items():
        if path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is stale: run tools/ladder_pages.py' if options.check else 'written'}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
