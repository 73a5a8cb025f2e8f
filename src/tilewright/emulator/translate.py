"""Instructions -> basic blocks -> Python source of NumPy functions, one block a function. Knows no instruction by name.

A block runs for all threads of a vector at once. It exists twice: for the whole vector, and for a part of it (a
divergent path), where registers are read and written through a selection. Register values are arrays that nobody
writes into: a partial write makes a new array. A block loads a register when it first needs it and writes back only
those that another block may read.

A block returns the index of the next block, PARKED when its threads wait, or (predicate, taken, not taken).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.emulator.blocks import Block, Item, blocks_of, exposed, item_registers, items_of, names_of
from tilewright.emulator.events import error_facts
from tilewright.emulator.isa import (
    atomic,
    bulk,
    cp_async,
    floats,
    mbarrier,
    memory,
    scalar,
    sync,
    tensor,
    tensor_copy,
    warp,
    wgmma,
    wmma,
)
from tilewright.emulator.isa.table import Form, Table
from tilewright.emulator.ptx import parse
from tilewright.emulator.syntax import (
    TYPE_BYTES,
    Entry,
    Imm,
    Instruction,
    Mem,
    Name,
    Not,
    Operand,
    Operands,
    Program,
    Reg,
)
from tilewright.emulator.values import DTYPES, PARKED, STORAGE, blend
from tilewright.errors import EmulationError

TABLE = Table(
    [
        *scalar.FORMS,
        *floats.FORMS,
        *memory.FORMS,
        *atomic.FORMS,
        *sync.FORMS,
        *mbarrier.FORMS,
        *warp.FORMS,
        *tensor.FORMS,
        *wmma.FORMS,
        *wgmma.FORMS,
        *cp_async.FORMS,
        *bulk.FORMS,
        *tensor_copy.FORMS,
    ]
)

BlockFunction = Callable[[Any, list[Any], Any, int], Any]


class Kernel:
    """One entry in blocks. Functions of blocks are made when first needed, for each width of vector."""

    def __init__(self, program: Program, entry: Entry) -> None:
        self.program = program
        self.entry = entry
        items, starts = items_of(entry, TABLE)
        self.blocks = blocks_of(items, starts)
        self.block_of_item = {}
        position = 0
        for block in self.blocks:
            self.block_of_item[position] = block.index
            position += len(block.items)
        self.block_of_item[position] = len(self.blocks)
        needed: set[int] = set()
        for block in self.blocks:
            block.exposed = frozenset(exposed(block))
            needed |= block.exposed
        self.needed = frozenset(needed)
        self.used_outside_wgmma = frozenset(
            reg.index
            for item in items
            if item.form is not None and item.form.family != "wgmma"
            for reg in item_registers(item)[0]
        )
        self.functions: dict[tuple[int, int, bool], BlockFunction] = {}
        self.opcodes = [item.instruction.opcode for item in items if item.form is not None]
        self.shared_layout = _layout(program, entry)
        self.names = {
            name for instruction in entry.instructions for operand in instruction.operands for name in names_of(operand)
        }

    def uses(self, prefix: str) -> bool:
        """Whether an opcode starts with the prefix."""
        return any(opcode.startswith(prefix) for opcode in self.opcodes)

    def function(self, index: int, width: int, masked: bool) -> BlockFunction:
        """The block's function for vectors of `width` threads."""
        key = (index, width, masked)
        found = self.functions.get(key)
        if found is None:
            found = self.functions[key] = Emitter(self, self.blocks[index], width, masked).compile()
        return found

    def source(self, index: int, width: int, masked: bool) -> str:
        """The Python text of the block's function, for people."""
        emitter = Emitter(self, self.blocks[index], width, masked)
        emitter.emit_all()
        return "\n".join(emitter.lines)

    def step_at(self, index: int, width: int, masked: bool, line: int) -> tuple[Item, dict[int, str]]:
        """(step, locals that hold registers before it, by the registers' indices) of a line of the block's function."""
        emitter = Emitter(self, self.blocks[index], width, masked)
        emitter.emit_all()
        _, item, held = next((step for step in emitter.steps if line <= step[0]), emitter.steps[-1])
        return item, held


@lru_cache(maxsize=64)
def kernel_of(text: str, name: str) -> Kernel:
    """The translated entry of a PTX text.

    Raises: EmulationError: the text is malformed, has no such entry, or uses an instruction that is not in the table.
    """
    program = parse(text)
    entry = program.entries.get(name)
    if entry is None:
        known = ", ".join(f"{each.name} (line {each.line})" for each in program.entries.values())
        line = next((each.line for each in program.entries.values()), 1)
        raise EmulationError(f"no entry {name!r}; the module has {known or 'none'}", rule="missing entry", line=line)
    return Kernel(program, entry)


@dataclass(frozen=True)
class SharedLayout:
    """Offsets of shared variables after the base; `dynamic` is where the extern arrays start. Bytes."""

    offsets: dict[str, int]
    static_bytes: int
    dynamic: dict[str, int]


def _layout(program: Program, entry: Entry) -> SharedLayout:
    offsets: dict[str, int] = {}
    dynamic = []
    position = 0
    for variable in [*program.variables, *entry.variables]:
        if variable.space != "shared":
            continue
        if variable.size == 0:
            dynamic.append(variable)
            continue
        position = -(-position // variable.alignment) * variable.alignment
        offsets[variable.name] = position
        position += variable.size
    alignment = max([variable.alignment for variable in dynamic], default=16)
    start = -(-position // alignment) * alignment
    return SharedLayout(offsets, position, {variable.name: start for variable in dynamic})


class Emitter:
    """Writes the function of one block. The emit functions of the table call its methods."""

    def __init__(self, kernel: Kernel, block: Block, width: int, masked: bool) -> None:
        self.kernel = kernel
        self.block = block
        self.width = width
        self.masked = masked
        self.lines: list[str] = []
        self.names: dict[str, Any] = dict(_NAMESPACE)
        self.locals: dict[int, str] = {}
        self.steps: list[tuple[int, Item, dict[int, str]]] = []  # last line, step, the locals before it
        self.views: dict[tuple[str, str], str] = {}
        self.dirty: dict[int, Reg] = {}
        self.counter = 0
        self.constants: dict[Any, str] = {}
        self.instruction: Instruction = block.items[0].instruction
        self.selection = "s" if masked else "None"

    # -- what emit functions use ----------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """One line of the body."""
        self.lines.append("    " + text)

    def fresh(self, text: str) -> str:
        """A new local with the value of an expression."""
        self.counter += 1
        name = f"v{self.counter}"
        self.line(f"{name} = {text}")
        return name

    def hold(self, value: Any, key: Any = None) -> str:
        """A name in the function's namespace for a value."""
        key = ("object", id(value)) if key is None else key
        if (name := self.constants.get(key)) is None:
            name = self.constants[key] = f"k{len(self.constants)}"
            self.names[name] = value
        return name

    @property
    def site(self) -> str:
        """The name of the instruction's Site."""
        return self.hold(self.instruction.site)

    @property
    def _takes_wider(self) -> bool:
        """Whether registers may be wider than the instruction's type. Source: PTX ISA, operand size exceeding type."""
        return self.instruction.opcode.split(".")[0] in ("ld", "ldu", "st", "cvt")

    @property
    def next_block(self) -> int:
        """The block that follows."""
        return self.block.index + 1

    def call(self, function: Callable[..., Any], *arguments: str) -> str:
        """The text of a call of a run-time function: (team, selection, count, site, ...)."""
        return f"{self.hold(function)}(T, {self.selection}, n, {self.site}{''.join(', ' + a for a in arguments)})"

    def error(self, message: str, rule: str = "syntax") -> EmulationError:
        return EmulationError(message, rule=rule, **error_facts(self.instruction.site))

    def read(self, operand: Operand, kind: str, *, wide: bool = False) -> str:
        """The name of the operand's value as an array of the PTX type. Literals have one element unless `wide`."""
        if isinstance(operand, Reg):
            return self._register(operand, kind)
        if isinstance(operand, Not):
            return self.fresh(f"~{self.read(operand.operand, 'pred')}")
        if isinstance(operand, Imm):
            return self._constant(self.literal(operand, kind), kind, wide)
        if isinstance(operand, Name):
            if operand.name.startswith("%"):
                return self._special(operand.name, kind)
            if operand.name == "WARP_SZ":
                return self._constant(32, kind, wide)
            return self._symbol(operand.name, kind)
        raise self.error("a list, pair or address where one value was expected")

    def reads(self, operands: tuple[Operand, ...], kinds: tuple[str, ...]) -> list[str]:
        """The values of several operands, at least one of them as wide as the vector."""
        literal = all(isinstance(operand, Imm) for operand in operands)
        return [
            self.read(operand, kind, wide=literal and position == 0)
            for position, (operand, kind) in enumerate(zip(operands, kinds, strict=True))
        ]

    def literal(self, operand: Imm, kind: str) -> Any:
        """A literal as a NumPy scalar of the type."""
        dtype = DTYPES[kind]
        value = operand.value
        if dtype.kind == "f":
            if operand.bits and TYPE_BYTES[kind] == (4 if operand.bits < 1 << 32 else 8):
                return np.array([operand.bits], f"u{TYPE_BYTES[kind]}").view(dtype)[0]
            return dtype.type(value)
        if operand.bits or isinstance(value, float):
            return np.array([operand.bits & ((1 << (8 * dtype.itemsize)) - 1)], f"u{dtype.itemsize}").view(dtype)[0]
        if dtype.kind == "b":
            return np.bool_(value)
        return np.array([int(value) % (1 << (8 * dtype.itemsize))], f"u{dtype.itemsize}").view(dtype)[0]

    def constant_int(self, operand: Operand) -> int | None:
        """The value of a literal operand, None for anything else."""
        return int(operand.value) if isinstance(operand, Imm) and not operand.bits else None

    def write(self, operand: Operand, kind: str, text: str) -> None:
        """The operand becomes the expression, an array of the PTX type `kind`."""
        if isinstance(operand, Name) and operand.name == "_":
            self.line(text)
            return
        if not isinstance(operand, Reg):
            raise self.error("a result must go to a register")
        stored, given = STORAGE[operand.type], DTYPES[kind]
        if stored != given:
            if stored.itemsize == given.itemsize:
                text = f"({text}).view({self._dtype(stored)})"
            elif stored.itemsize > given.itemsize and stored.kind != "f" and self._takes_wider:
                wide = np.dtype(f"{given.kind if given.kind in 'iu' else 'u'}{stored.itemsize}")
                text = f"({text}).astype({self._dtype(wide)})"
                if wide != stored:
                    text += f".view({self._dtype(stored)})"
            else:
                raise self.error(f"{operand.name} of type {operand.type} cannot hold a {kind}")
        name = self.fresh(text)
        self.locals[operand.index] = name
        self.dirty[operand.index] = operand

    def flush(self, *, everything: bool = False) -> None:
        """Writes every changed register that others may read back to the file; or even those that nobody may."""
        for index in self.dirty:
            if everything or index in self.kernel.needed or index in self._live_here:
                value = self.locals[index]
                if self.masked:
                    self.line(f"R[{index}] = blend(R[{index}], s, {value}, {self.width})")
                else:
                    self.line(f"R[{index}] = {value}")
        self.dirty.clear()

    def reload(self) -> None:
        """Forgets every local: the file has been changed by a run-time function."""
        self.flush()
        self.locals.clear()
        self.views.clear()

    def address(self, operand: Operand, kind: str) -> str:
        """The value of [base + offset] as an array of type u32 or u64."""
        if not isinstance(operand, Mem):
            raise self.error("an address must stand in brackets")
        if isinstance(operand.base, Reg):
            base = self._register(operand.base, kind, narrows=True)
        else:
            base = self.read(operand.base, kind, wide=isinstance(operand.base, Imm))
        if not operand.offset:
            return base
        offset = self._constant(operand.offset % (1 << (8 * TYPE_BYTES[kind])), kind, False)
        return self.fresh(f"{base} + {offset}")

    # -- the block --------------------------------------------------------------------------------------------------

    def compile(self) -> BlockFunction:
        self.emit_all()
        name = f"<block {self.block.index} of {self.kernel.entry.name}>"
        exec(compile("\n".join(self.lines), name, "exec"), self.names)
        function: BlockFunction = self.names["block"]
        return function

    def emit_all(self) -> None:
        self.lines = ["def block(T, R, s, n):"]
        self._live_here: set[int] = set()
        for item in self.block.items:
            if item.form is not None and item.form.updates:
                self._live_here |= {reg.index for reg in item_registers(item)[1]}
        for item in self.block.items:
            self.instruction, held = item.instruction, dict(self.locals)
            try:
                if item.form is None:
                    self._branch(item)
                else:
                    self._emit(item.form, item)
            except (ValueError, IndexError, KeyError, TypeError, AttributeError) as failure:
                raise self.error(f"the operands do not fit {item.instruction.opcode}") from failure
            self.steps.append((len(self.lines), item, held))
            if item.form is None or item.form.ends:
                return
        self.flush()
        self.line(f"return {self.next_block}")

    def _emit(self, form: Form, item: Item) -> None:
        """Lets the row write its code, and refuses operands that it has not looked at."""
        operands = Operands(item.instruction.operands)
        form.emit(self, replace(item.instruction, operands=operands), item.modifiers)
        hint = "L2::cache_hint" in item.modifiers.get("hint", "")
        if len(operands) > operands.seen + form.unread + hint:
            known = operands.seen + form.unread + hint
            raise self.error(f"{len(operands)} operands where {item.instruction.opcode} has at most {known}")

    def _branch(self, item: Item) -> None:
        target = self.kernel.block_of_item[item.target]
        if item.guard is None:
            self.flush()
            self.line(f"return {target}")
            return
        reg, negated = item.guard
        predicate = self._register(reg, "pred")
        self.flush()
        taken, other = (self.next_block, target) if negated else (target, self.next_block)
        bits = self.fresh(f"{predicate}.tobytes()")
        self.line(f"if FALSE not in {bits}: return {taken}")
        self.line(f"if TRUE not in {bits}: return {other}")
        self.line(f"return ({predicate}, {taken}, {other})")

    def _register(self, reg: Reg, kind: str, *, narrows: bool = False) -> str:
        """The register as an array of the type. `narrows`: one that is wider gives its low bits."""
        name = self.locals.get(reg.index)
        if name is None:
            name = self.locals[reg.index] = f"r{reg.index}_{len(self.lines)}"
            self.line(f"{name} = R[{reg.index}]" + ("[s]" if self.masked else ""))
        stored, wanted = STORAGE[reg.type], DTYPES[kind]
        if stored == wanted:
            return name
        key = (name, kind)
        if (view := self.views.get(key)) is None:
            if stored.itemsize == wanted.itemsize:
                text = f"{name}.view({self._dtype(wanted)})"
            elif stored.itemsize > wanted.itemsize and (narrows or self._takes_wider):
                narrow = np.dtype(f"u{wanted.itemsize}")
                bits = f"{name}.view({self._dtype(np.dtype(f'u{stored.itemsize}'))})"
                text = f"{bits}.astype({self._dtype(narrow)}).view({self._dtype(wanted)})"
            else:
                size = "small" if stored.itemsize < wanted.itemsize else "wide"
                raise self.error(f"{reg.name} of type {reg.type} is too {size} for {kind}")
            view = self.views[key] = self.fresh(text)
        return view

    def _constant(self, value: Any, kind: str, wide: bool) -> str:
        dtype = DTYPES[kind]
        if not isinstance(value, np.generic):
            value = np.array([value]).astype(dtype)[0]
        key = (value.tobytes(), kind, wide)
        array = np.full(self.width if wide else 1, value, dtype)
        array.flags.writeable = False
        name = self.hold(array, key)
        return f"{name}[:n]" if wide and self.masked else name

    def _special(self, name: str, kind: str) -> str:
        local = self.fresh(f"T.special_register({name!r}, {self.site})" + ("[s]" if self.masked else ""))
        size = TYPE_BYTES[kind]
        if name in ("%clock64", "%globaltimer"):
            return local
        return local if size == 4 else self.fresh(f"{local}.astype({self._dtype(DTYPES[kind])})")

    def _symbol(self, name: str, kind: str) -> str:
        """The address of a variable or parameter in its own space."""
        text = f"T.symbol({name!r}, {self.site})" + ("[s]" if self.masked else "")
        return self.fresh(text if TYPE_BYTES[kind] == 8 else f"{text}.astype({self._dtype(DTYPES[kind])})")

    def _dtype(self, dtype: np.dtype[Any]) -> str:
        return {"b": "bool_"}.get(dtype.kind, f"{dtype.kind}{dtype.itemsize}")


_NAMESPACE: dict[str, Any] = {
    "np": np,
    "where": np.where,
    "blend": blend,
    "PARKED": PARKED,
    "TRUE": b"\x01",
    "FALSE": b"\x00",
    "bool_": np.dtype("?"),
    **{f"{kind}{size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)},
    "f4": np.dtype("f4"),
    "f8": np.dtype("f8"),
}
