"""What a row of the instruction table is, and how an opcode finds its row. Knows no instruction.

A pattern spells an opcode with its modifiers: "setp.<cmp:eq|ne>[.ftz].<type:f32|f64>". <name:a|b> is a choice that the
row's code is told by name, [...] may be absent. An opcode that no pattern spells is an EmulationError with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from tilewright.emulator.events import error_facts
from tilewright.emulator.syntax import Instruction
from tilewright.errors import EmulationError

if TYPE_CHECKING:
    from tilewright.emulator.translate import Emitter

Modifiers = dict[str, str]
Emit = Callable[["Emitter", Instruction, Modifiers], None]
Aligned = Literal["", "warp", "warpgroup"]

_PIECE = re.compile(r"<(\w+):([^>]*)>|\[([^\]]*)\]|([^<\[]+)")


@dataclass(frozen=True, eq=False)
class Form:
    """One row. `aligned`: what must have converged. `starts`: it may wait, so it begins a block and is begun again.

    `ends`: it decides where its threads go on, so it ends a block. `destinations`: how many leading operands it writes;
    `updates`: it reads those too. `unread`: how many last operands it may have that change nothing here.
    """

    pattern: str
    emit: Emit
    family: str
    aligned: Aligned = ""
    starts: bool = False
    ends: bool = False
    destinations: int = 1
    updates: bool = False
    unread: int = 0

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(_regex(self.pattern))

    @cached_property
    def bases(self) -> tuple[str, ...]:
        """What an opcode of this row may be up to its first point."""
        choice = re.match(r"<\w+:([^>]*)>", self.pattern)
        return tuple(choice[1].split("|")) if choice else (re.split(r"[.\[<]", self.pattern)[0],)


def _regex(pattern: str) -> str:
    parts = []
    for name, choices, optional, literal in _PIECE.findall(pattern):
        if name:
            parts.append(f"(?P<{name}>{'|'.join(re.escape(choice) for choice in choices.split('|'))})")
        elif optional:
            parts.append(f"(?:{_regex(optional)})?")
        else:
            parts.append(re.escape(literal))
    return "".join(parts)


class Table:
    """All rows, found by opcode."""

    def __init__(self, forms: Iterable[Form]) -> None:
        self.forms = tuple(forms)
        self.by_base: dict[str, list[Form]] = {}
        for form in self.forms:
            for base in form.bases:
                self.by_base.setdefault(base, []).append(form)
        self.found: dict[str, tuple[Form, Modifiers]] = {}

    def find(self, instruction: Instruction) -> tuple[Form, Modifiers]:
        """The row of the instruction and its choices.

        Raises: EmulationError: no row spells the opcode.
        """
        opcode = instruction.opcode
        if (hit := self.found.get(opcode)) is not None:
            return hit
        forms = self.by_base.get(opcode.split(".")[0], [])
        for form in forms:
            if (match := form.regex.fullmatch(opcode)) is not None:
                hit = (form, {name: value or "" for name, value in match.groupdict().items()})
                self.found[opcode] = hit
                return hit
        known = f"; the table has {', '.join(form.pattern for form in forms)}" if forms else ""
        raise EmulationError(
            f"{opcode} is not in the table of instructions{known}",
            rule="unsupported",
            **error_facts(instruction.site),
        )
