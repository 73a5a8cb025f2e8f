"""Instructions -> basic blocks: where blocks start, which registers each reads first. Knows no instruction by name.

A guarded instruction becomes a branch round it, so that only branches have predicates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.emulator.events import Site, error_facts
from tilewright.emulator.isa.table import Aligned, Form, Modifiers, Table
from tilewright.emulator.syntax import Entry, Instruction, Mem, Name, Not, Operand, Pair, Reg, Vec
from tilewright.errors import EmulationError


@dataclass(eq=False)
class Item:
    """One step of a block: an instruction of the table, or a branch to an item (form None)."""

    instruction: Instruction
    form: Form | None
    modifiers: Modifiers
    guard: tuple[Reg, bool] | None = None
    target: int = -1


@dataclass(eq=False)
class Block:
    """Items that run as one. `next` is the block that follows in the text."""

    index: int
    items: list[Item]
    aligned: Aligned
    exposed: frozenset[int] = frozenset()
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def site(self) -> Site:
        return self.items[0].instruction.site


def items_of(entry: Entry, table: Table) -> tuple[list[Item], set[int]]:
    """Every step in order and the indices where blocks start. A guarded instruction becomes a branch round it."""
    items: list[Item] = []
    starts = {0}
    first_item: list[int] = []
    branches: list[tuple[Item, Instruction]] = []
    for instruction in entry.instructions:
        first_item.append(len(items))
        if instruction.opcode in ("bra", "bra.uni"):
            item = Item(instruction, None, {}, instruction.guard)
            branches.append((item, instruction))
            items.append(item)
            starts.add(len(items))
            continue
        form, modifiers = table.find(instruction)
        if instruction.guard is not None:
            reg, negated = instruction.guard
            items.append(Item(instruction, None, {}, (reg, not negated), len(items) + 2))
            starts.update((len(items), len(items) + 1))
        if form.starts or form.ends:
            starts.add(len(items))
        items.append(Item(instruction, form, modifiers))
        if form.ends:
            starts.add(len(items))
    first_item.append(len(items))
    for item, instruction in branches:
        label = instruction.operands[0] if len(instruction.operands) == 1 else None
        at = entry.label(label.name, instruction.scope) if isinstance(label, Name) else None
        if at is None:
            message = f"no label for {instruction.site.text or instruction.opcode}: a branch names one of its entry"
            raise EmulationError(message, rule="syntax", **error_facts(instruction.site))
        item.target = first_item[at]
        starts.add(item.target)
    return items, starts


def blocks_of(items: list[Item], starts: set[int]) -> list[Block]:
    """Cuts at the starts, and before an aligned instruction that nothing earlier in its block has already aligned."""
    blocks: list[Block] = []
    rank = {"": 0, "warp": 1, "warpgroup": 2}
    current: list[Item] = []
    aligned: Aligned = ""
    for index, item in enumerate(items):
        needs = item.form.aligned if item.form is not None else ""
        if current and (index in starts or rank[needs] > rank[aligned]):
            blocks.append(Block(len(blocks), current, aligned))
            current, aligned = [], ""
            starts.add(index)
        if not current:
            aligned = needs
        current.append(item)
    if current:
        blocks.append(Block(len(blocks), current, aligned))
    for block in blocks:
        for item in block.items:
            if item.form is not None:
                opcode = item.instruction.opcode
                block.counts[opcode] = block.counts.get(opcode, 0) + 1
    return blocks


def operand_registers(operand: Operand) -> list[Reg]:
    """Every register that the operand names."""
    if isinstance(operand, Reg):
        return [operand]
    if isinstance(operand, Vec):
        return [reg for item in operand.items for reg in operand_registers(item)]
    if isinstance(operand, Mem):
        return [reg for item in (operand.base, *(operand.coordinates or ())) for reg in operand_registers(item)]
    if isinstance(operand, Pair):
        return operand_registers(operand.first) + operand_registers(operand.second)
    if isinstance(operand, Not):
        return operand_registers(operand.operand)
    return []


def names_of(operand: Operand) -> list[str]:
    if isinstance(operand, Name):
        return [operand.name]
    return names_of(operand.base) if isinstance(operand, Mem) else []


def item_registers(item: Item) -> tuple[list[Reg], list[Reg]]:
    """(read, written) registers of one step."""
    if item.form is None:
        return ([item.guard[0]] if item.guard else []), []
    read, written = [], []
    for position, operand in enumerate(item.instruction.operands):
        found = operand_registers(operand)
        if position < item.form.destinations and not isinstance(operand, Mem):
            written += found
            if item.form.updates:
                read += found
        else:
            read += found
    return read, written


def used_registers(item: Item) -> list[Reg]:
    """Registers of which one step needs the values. Of accumulators that it updates in the file it judges itself."""
    read, written = item_registers(item)
    if item.form is None or not item.form.updates:
        return read
    updated = {reg.index for reg in written}
    return [reg for reg in read if reg.index not in updated]


def exposed(block: Block) -> set[int]:
    """Registers that the block reads before it writes them."""
    exposed: set[int] = set()
    local: set[int] = set()
    for item in block.items:
        read, written = item_registers(item)
        exposed |= {reg.index for reg in read} - local
        if item.form is not None and item.form.updates:  # read and written behind the block's back, in the file
            exposed |= {reg.index for reg in written}
        local |= {reg.index for reg in written}
    return exposed
