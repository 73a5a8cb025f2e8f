"""The command line that the scripts of benchmarks/ with parts share: compile, or run parts in children, print, write.

Knows options and exit codes; what a part measures, and in which child, is the script's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.bench.children import Row, rows_of_command, write_rows
from tilewright.jit.source import Source

# The rows of a part that had so many seconds, and how its child ended where that was not well.
PartRunner = Callable[[str, float], tuple[list[Row], Row | None]]


def rows_of_part(script: str, part: str, limit_s: float) -> tuple[list[Row], Row | None]:
    """The rows of one part of a script, run in a child, and how it ended where that was not well."""
    command = [sys.executable, str(Path(script).resolve()), "--child", part]
    return rows_of_command(command, limit_s, {"kind": "child", "part": part})


def rows_of_parts(run: PartRunner, parts: Sequence[str], limits_s: Mapping[str, float]) -> list[Row]:
    """The rows of these parts; how a child ended, where that was not well, is one more."""
    rows: list[Row] = []
    for part in parts:
        own, failed = run(part, limits_s[part])
        rows += own if failed is None else [*own, failed]
    return rows


def facts_of_part(run: PartRunner, limit_s: float) -> Row:
    """What the part "facts" says of the machine; how its child ended, where it said nothing."""
    told, failed = run("facts", limit_s)
    if told:
        return told[0]
    return {name: failed[name] for name in ("status", "why")} if failed else {}


def main_of_parts(
    words: Sequence[str] | None,
    *,
    about: str | None,
    parts: Sequence[str],
    rows: Mapping[str, Callable[[], Iterable[Row]]],
    sources: Callable[[argparse.Namespace], Iterable[Source]],
    content: Callable[[Sequence[str], Sequence[str]], dict[str, Any]],
    table: Callable[[Sequence[Row]], Iterable[str]],
    refuse: bool = False,
    fine: Collection[str] = ("ok",),
) -> int:
    """Runs the script's command line; its exit status.

    `parts` are options; a child makes the `rows` of one. `content(words, parts)` is what --into holds. `refuse`: a
    kernel with a flaw is not built. 1: a row's status is not among the `fine` ones.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, metavar="DIR", help="compile what the parts need into DIR and end")
    for part in parts:
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--into", type=Path, help="file for facts and full rows")
    parser.add_argument("--child", choices=tuple(rows), help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.build:
        from tilewright.jit.build import build_into

        units = list(sources(options))
        print(f"{len(units)} kernels")
        built = build_into(units, options.build, refuse=refuse)
        if spilled := [binary.name for binary in built if binary.resources.spill_store_bytes]:
            print(f"{len(spilled)} spill: {', '.join(spilled)}")
        return 0
    if options.child:
        return write_rows(rows[options.child](), options.log)
    asked = [part for part in parts if getattr(options, part)]
    if not asked:
        parser.error("name what to do: " + ", ".join(f"--{part}" for part in ("build", *parts)))
    found = content(sys.argv[1:] if words is None else words, asked)
    print("\n".join(table(found["rows"])))
    if options.into:
        options.into.parent.mkdir(parents=True, exist_ok=True)
        options.into.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(row.get("status", "ok") in fine for row in found["rows"]) else 1
