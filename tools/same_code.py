"""Gives shipped records the digest of the kernels as they are now, where the machine code is still what was measured.

    git worktree add BEFORE COMMIT               # one whose kernels the records know
    python tools/same_code.py BEFORE

A record knows its kernel by a digest of the whole text, so a comment, or code for another form of kernel, makes it a
hint. Here both trees compile the kernel of every shipped record; where BEFORE's text is the record's and both give the
same instructions, the record gets the new digest. Where they differ it stays a hint, and is named.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright import device, disassemble, records
from tilewright.choice import kernel_digest
from tilewright.jit.build import build
from tilewright.kernels import catalog
from tilewright.kernels.render import render
from tilewright.packing import packed_named
from tilewright.records import Record

ROOT = Path(__file__).parent.parent
SHIPPED = ROOT / "src" / "tilewright" / "data" / "records"

Codes = Mapping[str, tuple[str, str]]  # key of a record -> (digest of its kernel's text, digest of its instructions)


def codes(file: Path) -> dict[str, tuple[str, str]]:
    """What this process's package makes of every record of a file."""
    target, found = device.preset(file.stem), {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = records.record_of(line)
        problem = packed_named(record.problem)  # as tests/test_records.py knows them all
        family = catalog.family(record.family)
        cubin = build(render(family, problem, record.config, target)).cubin
        instructions = hashlib.sha256(disassemble.sass(cubin).encode()).hexdigest()
        found[record.key] = (kernel_digest(family, problem, record.config, target), instructions)
    return found


def codes_of(tree: Path, file: Path) -> dict[str, tuple[str, str]]:
    """The same by the package of another tree, of this tree's file."""
    words = [sys.executable, str(Path(__file__).resolve()), "--codes", str(file.resolve())]
    environment = os.environ | {"PYTHONPATH": str(tree.resolve() / "src")}
    done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return {key: (text, code) for key, (text, code) in json.loads(done.stdout).items()}


def renewed(shipped: Sequence[Record], before: Codes, now: Codes) -> tuple[list[Record], list[str]]:
    """The records, with new digests where the code is the same; and a sentence for each that stays a hint."""
    found, left = [], []
    for record in shipped:
        (old_text, old_code), (text, code) = before[record.key], now[record.key]
        if record.digest == text or (record.digest == old_text and old_code == code):
            found.append(dataclasses.replace(record, digest=text))
            continue
        reason = "other instructions" if record.digest == old_text else "measured before that tree"
        found.append(record)
        left.append(f"stays a hint, {reason}: {record.problem}: {record.config}")
    return found, left


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", type=Path, metavar="BEFORE", help="a tree of this project")
    parser.add_argument("--codes", type=Path, metavar="FILE.jsonl", help="print what codes() finds, as JSON")
    options = parser.parse_args(words)
    if options.codes:
        print(json.dumps(codes(options.codes)))
        return 0
    if options.before is None:
        parser.error("name a tree of this project as it was before")
    for file in sorted(SHIPPED.glob("*.jsonl")):
        shipped = [records.record_of(line) for line in file.read_text(encoding="utf-8").splitlines()]
        found, left = renewed(shipped, codes_of(options.before, file), codes_of(ROOT, file))
        file.write_text("".join(each.line() + "\n" for each in found), encoding="utf-8")
        print(*left, f"{file.name}: {len(found) - len(left)} of {len(found)} records know their kernel", sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
