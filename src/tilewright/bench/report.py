"""Rows -> Markdown tables, put between markers of a document. Makes no measurement.

A document holds `<!-- table: NAME -->` ... `<!-- end: NAME -->`; what lies between is generated from the JSON files of
rows and never written by hand. `python -m tilewright.bench.report ROWS... --into README.md [--check]`. Of a folder, the
newest file of each device and part counts: `h200_2026-11-30_time.json` is device, day and part.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tilewright.bench import (
    ampere_report,
    ceiling_report,
    check_report,
    dependent_report,
    epilogue_report,
    host_report,
    irregular,
    lines_report,
    narrow_report,
    speed_report,
    suite_page,
    torch_report,
    unaligned_report,
)
from tilewright.bench.tables import NO_ROWS, NOT_MEASURED

Row = dict[str, Any]

EMPTY = (NO_ROWS, NOT_MEASURED)

_DATED = re.compile(r"(?P<device>.+)_(?P<date>\d{4}-\d\d-\d\d)_(?P<part>.+)\.json")
_BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end: (?P=name) -->)", re.DOTALL)


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Every row of the files, each with its file's facts. Shapes: a file is {"facts": {...}, "rows": [{...}, ...]}."""
    rows = []
    for path in paths:
        content = json.loads(path.read_text())
        rows += [content["facts"] | row for row in content["rows"]]
    return rows


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and of each folder the newest JSON file of each device and part."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        newest: dict[tuple[str, str], Path] = {}
        for file in sorted(path.glob("*.json")):
            dated = _DATED.fullmatch(file.name)
            newest[(dated["device"], dated["part"]) if dated else ("", file.name)] = file
        found += sorted(newest.values())
    return found


# By name: what a document's blocks are made of. Each report has the tables of its own rows.
TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    name: table
    for report in (
        speed_report,
        check_report,
        host_report,
        ceiling_report,
        narrow_report,
        unaligned_report,
        lines_report,
        ampere_report,
        irregular,
        suite_page,
        dependent_report,
        epilogue_report,
        torch_report,
    )
    for name, table in report.TABLES.items()
}


def filled(document: str, rows: Sequence[Row]) -> str:
    """The document with every block that TABLES knows made anew from the rows.

    Raises: ValueError: a block of an unknown name.
    """

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in TABLES:
            raise ValueError(f"table {name!r} is none of {', '.join(TABLES)}")
        return f"{match[1]}{TABLES[name](rows)}{match[4]}"

    return _BLOCK.sub(block, document)


def main(words: Sequence[str] | None = None) -> int:
    """The command line: 0 when the document is, or was brought, up to date; 1 when --check finds that it is not."""
    parser = argparse.ArgumentParser(prog="tilewright.bench.report", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", type=Path, help="JSON files of rows, or folders of them")
    parser.add_argument("--into", type=Path, required=True, help="the document with the markers")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the document would change")
    options = parser.parse_args(words)
    files = files_of(options.rows)
    before = options.into.read_text()
    after = filled(before, read_rows(files))
    if after == before:
        return 0
    if options.check:
        print(f"{options.into} is not what {len(files)} files of rows make; run this without --check", file=sys.stderr)
        return 1
    options.into.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
