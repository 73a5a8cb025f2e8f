"""Rows of the table for atomic operations and reductions of the threads themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.atomics import element_bytes, reduce_values
from tilewright.emulator.events import Site
from tilewright.emulator.isa.memory import SCOPE, check_global, in_space, outside, report
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import Instruction, Name

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []


def _form(pattern: str, emit: Emit, family: str, **flags: Any) -> None:
    FORMS.append(Form(pattern, emit, family, **flags))


def _atomic(e: Emitter, i: Instruction, m: Modifiers) -> None:
    """atom returns the old value, red does not; cas takes a third operand."""
    returns = i.opcode.startswith("atom")
    operands = i.operands if returns else (Name("_"), *i.operands)
    if len(operands) > (4 if m["op"] == "cas" else 3) + bool(m["hint"]):
        raise e.error(f"{len(i.operands)} operands are too many")
    kind = m["type"]
    size = element_bytes(kind)
    space = m["space"].split("::")[0] or "generic"
    place = e.address(operands[1], "u32" if space == "shared" else "u64")
    bits = f"u{8 * size}"
    values = [e.read(operand, bits, wide=True) for operand in operands[2 : 4 if m["op"] == "cas" else 3]]
    semantics, scope = m["sem"] or "relaxed", m["scope"] or "gpu"
    other = values[1] if len(values) > 1 else "None"
    arguments = (
        place,
        repr(space),
        repr(m["op"]),
        repr(kind),
        str(size),
        values[0],
        other,
        repr(semantics),
        repr(scope),
    )
    e.write(operands[0], bits, e.call(atomic, *arguments))


_ATOM = (
    "[.<sem:relaxed|acquire|release|acq_rel>]" + SCOPE + "[.<space:global|shared::cta|shared::cluster|shared>]"
    ".<op:add|min|max|and|or|xor|exch|inc|dec|cas>[.noftz][.<hint:L2::cache_hint>]"
    ".<type:u32|s32|u64|s64|b16|b32|b64|f16x2|bf16x2|f16|bf16|f32|f64>"
)
_form(f"atom{_ATOM}", _atomic, "atomics")
_form(f"red{_ATOM}", _atomic, "atomics", destinations=0)


def atomic(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    addresses: Array,
    space: str,
    op: str,
    element: str,
    size: int,
    values: Array,
    other: Array | None,
    semantics: str,
    scope: str,
) -> Array:
    """Lane after lane where addresses meet, all at once where they do not. Returns the old values."""
    if space == "generic":
        space, addresses = in_space(team, s, site, addresses)
    machine = team.machine
    if space == "shared":
        places = team.flat(site, addresses, size, s)
    else:
        check_global(team, s, site, addresses, size)
        places = addresses
    if machine.observer is not None:
        report(team, s, site, space, places, size, "atomic", semantics, scope)
    old = np.empty(n, f"u{size}")
    for chosen in _rounds(places):
        where, new = places[chosen], values[chosen]
        if space == "shared":
            before = machine.smem.views[size][where // size]
        else:
            loaded = machine.memory.load(where, size)
            if isinstance(loaded, int):
                raise outside(team, s, site, where, loaded, size)
            before = loaded
        old[chosen] = before
        after = (
            np.where(before == new, other[chosen], before)
            if other is not None
            else reduce_values(op, element, before, new)
        )
        if space == "shared":
            machine.smem.views[size][where // size] = after
        elif (bad := machine.memory.store(where, size, after)) is not None:
            raise outside(team, s, site, where, bad, size)
    machine.progress_mark = machine.blocks_run
    machine.moved(f"{space} atomic", size * n)
    if space == "global":
        machine.spin()  # it may poll
    return old


def _rounds(places: Array) -> list[Array]:
    """Positions in rounds of different addresses, each address's lanes in order."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    fresh = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    if fresh.all():
        return [np.arange(len(places))]
    starts = np.maximum.accumulate(np.where(fresh, np.arange(len(places)), 0))
    turn = np.empty(len(places), np.int64)
    turn[order] = np.arange(len(places)) - starts
    return [np.flatnonzero(turn == number) for number in range(int(turn.max()) + 1)]
