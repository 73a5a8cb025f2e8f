"""Rows -> Markdown tables, put between markers of a document. Makes no measurement.

A document holds `<!-- table: NAME -->` ... `<!-- end: NAME -->`; what lies between is generated from the JSON files of
rows and never written by hand. `python -m tilewright.bench.report ROWS... --into README.md [--check]`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end: (?P=name) -->)", re.DOTALL)


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Every row of the files, each with its file's facts. Shapes: a file is {"facts": {...}, "rows": [{...}, ...]}."""
    rows = []
    for path in paths:
        content = json.loads(path.read_text())
        rows += [content["facts"] | row for row in content["rows"]]
    return rows


def time_table(rows: Sequence[Row]) -> str:
    """One line a problem and mode: both rates, the ratio with its quartiles, power and clock."""
    head = (
        "M, N, K",
        "type",
        "mode",
        "cuBLAS TFLOPS",
        "tilewright TFLOPS",
        "ratio",
        "quartiles",
        "W",
        "SM MHz",
        "config",
    )
    lines = []
    timed = [row for row in rows if row.get("kind") == "time"]
    baselines = {(*_problem_of(row), row["mode"]): row for row in timed if row["ratio"] is None}
    for row in timed:
        base = baselines.get((*_problem_of(row), row["mode"]))
        if row["ratio"] is None or base is None:
            continue
        lines.append(
            (
                f"{row['m']}, {row['n']}, {row['k']}",
                _type_of(row),
                row["mode"],
                f"{base['rate_tflops']:.0f}",
                f"{row['rate_tflops']:.0f}",
                f"**{row['ratio']:.3f}**",
                f"{row['ratio_lower']:.3f} .. {row['ratio_upper']:.3f}",
                _whole(row["watts"]),
                _whole(row["clock_mhz"]),
                row["config"],
            )
        )
    return _table(head, lines) + _footnote(timed)


def check_table(rows: Sequence[Row]) -> str:
    """One line a config: products and elements checked, how many wrong, the largest error over its bound."""
    head = ("config", "products", "sizes", "elements", "exact", "wrong", "largest error / bound")
    checked = [row for row in rows if row.get("kind") == "check"]
    lines = []
    for config in dict.fromkeys(row["config"] for row in checked):
        own = [row for row in checked if row["config"] == config and row["status"] != "skipped"]
        if not own:
            continue
        lines.append(
            (
                config,
                str(len(own)),
                str(len({(row["m"], row["n"], row["k"]) for row in own})),
                f"{sum(row.get('elements') or 0 for row in own):,}",
                str(sum(row["data"] == "integer" for row in own)),
                str(sum(row["status"] != "ok" for row in own)),
                f"{max((row.get('worst') or 0.0 for row in own), default=0.0):.3f}",
            )
        )
    return _table(head, lines) + _footnote(checked)


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
    return _table(head, lines) + _footnote(hosted)


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {"time": time_table, "check": check_table, "host": host_table}


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
    files = [file for path in options.rows for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    before = options.into.read_text()
    after = filled(before, read_rows(files))
    if after == before:
        return 0
    if options.check:
        print(f"{options.into} is not what {len(files)} files of rows make; run this without --check", file=sys.stderr)
        return 1
    options.into.write_text(after)
    return 0


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return "_No rows._\n"
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in rows)


def _footnote(rows: Sequence[Row]) -> str:
    """Where the numbers come from: device, versions, day, commit; nothing for no rows."""
    sources = dict.fromkeys(
        f"{row.get('device')}, driver for CUDA {row.get('driver_cuda')}, torch {row.get('torch')}, "
        f"{row.get('compiler') or 'NVRTC ' + str(row.get('nvidia_cuda_nvrtc'))}, {row.get('date')}, "
        f"commit {row.get('commit')}"
        for row in rows
        if row.get("ratio") is not None or row.get("kind") != "time"
    )
    return "".join(f"\n{source}\n" for source in sources)


def _problem_of(row: Row) -> tuple[Any, ...]:
    return (row["m"], row["n"], row["k"], row["dtype"], row["out_dtype"], row["b_major"])


def _type_of(row: Row) -> str:
    layout = {"k": "TN", "n": "NN"}[row["b_major"]]
    out = "" if row["out_dtype"] == row["dtype"] else f" -> {row['out_dtype']}"
    return f"{row['dtype']}{out} {layout}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
