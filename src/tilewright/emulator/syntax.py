"""What a PTX text becomes: operands, instructions, variables, entries, as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright.emulator.events import Site

# Bytes of a type. Predicates live in one byte.
TYPE_BYTES: dict[str, int] = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Reg:
    """A register of the entry: its place in the register file, and the type it was declared with."""

    index: int
    type: str
    name: str


@dataclass(frozen=True)
class Imm:
    """A literal. `value` is an int, or a float where there is a point; `bits` is set for 0f... and 0d... literals."""

    value: int | float
    bits: int = 0


@dataclass(frozen=True)
class Name:
    """A variable, a parameter, a label or a special register (starts with %)."""

    name: str


@dataclass(frozen=True)
class Vec:
    """{a, b, ...}."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Mem:
    """[base + offset], and for tensors [base, {x, y, ...}]."""

    base: Operand
    offset: int = 0
    coordinates: tuple[Operand, ...] | None = None


@dataclass(frozen=True)
class Pair:
    """d|p: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Not:
    """!p."""

    operand: Operand


class Operands(tuple["Operand", ...]):
    """Operands of one instruction that remember how many from the front were looked at."""

    seen: int = 0

    def __getitem__(self, key: Any) -> Any:
        last = max(range(len(self))[key], default=-1) if isinstance(key, slice) else key
        self.seen = max(self.seen, last + 1)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Operand]:
        self.seen = len(self)
        return super().__iter__()


Operand = Reg | Imm | Name | Vec | Mem | Pair | Not


@dataclass(frozen=True)
class Instruction:
    """One statement. `guard` is the predicate of @p, with True for @!p beside it."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: tuple[Reg, bool] | None
    site: Site
    scope: tuple[int, ...]  # of labels that its operands may name, innermost last


@dataclass
class Variable:
    """A variable of the module or of an entry. `size` 0 and extern: dynamic shared memory."""

    name: str
    space: str
    alignment: int
    size: int
    initial: bytes = b""


@dataclass
class Entry:
    """One kernel: parameters as (name, offset, bytes, type), registers, instructions, and labels by (scope, name).

    `directives`: those that say how it may be launched, with their numbers. `line`: where it stands in the text.
    """

    name: str
    parameters: list[tuple[str, int, int, str]] = field(default_factory=list)
    registers: list[Reg] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[tuple[int, str], int] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parameter_bytes: int = 0
    line: int = 0

    def label(self, name: str, scope: tuple[int, ...]) -> int | None:
        """The index of the instruction that the label stands before."""
        for number in reversed(scope):
            if (found := self.labels.get((number, name))) is not None:
                return found
        return None


@dataclass
class Program:
    """A module: its kernels, its variables, and its version and target as written."""

    entries: dict[str, Entry]
    variables: list[Variable]
    version: str
    target: str
