"""Generated mutants: a kernel's PTX with one instruction left out, for every instruction of some opcodes in turn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class LeftOut:
    """`line` counts from 1."""

    opcode: str
    line: int
    ptx: str


def left_out(ptx: str, starts: tuple[str, ...]) -> Iterator[LeftOut]:
    """One mutant for each instruction whose opcode starts with one of `starts`, in the order of the text."""
    lines = ptx.split("\n")
    for number, line in enumerate(lines):
        found = re.match(r"\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)", line)
        if found is not None and found[1].startswith(starts):
            kept = lines.copy()
            kept[number] = _without(line)
            yield LeftOut(found[1], number + 1, "\n".join(kept))


def _without(line: str) -> str:
    """Nothing; a try_wait becomes one that always succeeds."""
    tried = re.search(r"mbarrier\.try_wait\S*\s+(\w+),", line)
    return f"setp.eq.u32 {tried[1]}, 0, 0;" if tried else ""
