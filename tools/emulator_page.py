"""Writes the generated parts of docs/emulator.md: the PTX that is supported, and the report of the example.

    python tools/emulator_page.py [--check]

The page holds `<!-- NAME -->` ... `<!-- end: NAME -->` for NAME in rules, supported, report. What lies between is never
written by hand.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from typer.testing import CliRunner

from tilewright.cli import app
from tilewright.emulator.rules import RULES
from tilewright.emulator.run import supported

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "emulator.md"
EXAMPLE = "examples/emulate/reverse"
WIDTH = 118  # columns of the report

_BLOCK = re.compile(r"(<!-- (?P<name>\w+) -->\n)(?P<body>.*?)(<!-- end: (?P=name) -->)", re.DOTALL)
_TIME = re.compile(r", \d+\.\d+ s on this CPU")  # differs from run to run


def supported_text() -> str:
    """Every row of the instruction table by family, as the table spells it."""
    lines = []
    for family, rows in groupby(sorted(supported(), key=lambda row: row[0]), key=lambda row: row[0]):
        lines += [f"# {family}", *(pattern for _, pattern in rows), ""]
    return "```text\n" + "\n".join(lines).rstrip() + "\n```\n"


def rules_text() -> str:
    """What the checker may report."""
    return "".join(f"- **{rule}**: {meaning}\n" for rule, meaning in RULES.items())


def report_text() -> str:
    """What the command prints for the example. Cost: a compile and a run, half a second."""
    words = ["emulate", f"{EXAMPLE}.cu", "--launch", f"{EXAMPLE}.toml"]
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as cache:
        environment = {"COLUMNS": str(WIDTH), "TILEWRIGHT_CACHE_DIR": os.environ.get("TILEWRIGHT_CACHE_DIR", cache)}
        os.chdir(ROOT)  # the report names the files as they are named
        try:
            printed = CliRunner().invoke(app, words, env=environment).stdout
        finally:
            os.chdir(before)
    shown = "\n".join(line.rstrip() for line in _TIME.sub("", printed).splitlines())
    return f"```console\n$ tilewright {' '.join(words)}\n{shown}\n```\n"


def fresh(text: str) -> str:
    """The page with its generated parts made anew.

    Raises: KeyError: a part that nobody makes.
    """
    makers = {"rules": rules_text, "supported": supported_text, "report": report_text}
    return _BLOCK.sub(lambda found: f"{found[1]}{makers[found['name']]()}{found[4]}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the page is written, or with --check was fresh."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a part is not fresh")
    check = parser.parse_args(arguments).check
    text = PAGE.read_text(encoding="utf-8")
    made = fresh(text)
    if check:
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
