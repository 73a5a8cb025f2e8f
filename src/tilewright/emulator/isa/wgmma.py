"""Rows of the table for wgmma: products of a whole warpgroup, their fences and groups."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import fragments
from tilewright.emulator.events import Site
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.isa.tensor import items, tuple_of
from tilewright.emulator.launch import WARP
from tilewright.emulator.syntax import Imm, Instruction, Reg, Vec
from tilewright.emulator.values import InFlight
from tilewright.emulator.warpgroups import (
    Participant,
    Shape,
    Tile,
    Warpgroup,
    Wgmma,
    decoded,
    materialise,
    pick,
    tile_from_registers,
)

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []


def _form(pattern: str, emit: Emit, **flags: Any) -> None:
    FORMS.append(Form(pattern, emit, "wgmma", **flags))


_N = "|".join(f"m64n{n}" for n in range(256, 0, -8))
_FLAGS: dict[str, Any] = {"aligned": "warpgroup", "updates": True}
_form(
    f"wgmma.mma_async.sync.aligned.<shape:{_N}>k16.<d:f32|f16>.<a:f16>.<b:f16>",
    lambda e, i, m: _wgmma(e, i, m, 16),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sync.aligned.<shape:{_N}>k16.<d:f32>.<a:bf16>.<b:bf16>",
    lambda e, i, m: _wgmma(e, i, m, 16),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sync.aligned.<shape:{_N}>k8.<d:f32>.<a:tf32>.<b:tf32>",
    lambda e, i, m: _wgmma(e, i, m, 32),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sync.aligned.<shape:{_N}>k32.<d:f32|f16>.<a:e4m3|e5m2>.<b:e4m3|e5m2>",
    lambda e, i, m: _wgmma(e, i, m, 8),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sync.aligned.<shape:{_N}>k32[<satfinite:.satfinite>].<d:s32>.<a:s8|u8>.<b:s8|u8>",
    lambda e, i, m: _wgmma(e, i, m, 8),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sync.aligned.<shape:{_N}>k32.<d:s32>.<a:s8|u8>.<b:s8|u8><satfinite:.satfinite>",
    lambda e, i, m: _wgmma(e, i, m, 8),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k32.<d:f32|f16>.<a:f16>.<b:f16>",
    lambda e, i, m: _wgmma(e, i, m, 16),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k32.<d:f32>.<a:bf16>.<b:bf16>",
    lambda e, i, m: _wgmma(e, i, m, 16),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k16.<d:f32>.<a:tf32>.<b:tf32>",
    lambda e, i, m: _wgmma(e, i, m, 32),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k64.<d:f32|f16>.<a:e4m3|e5m2>.<b:e4m3|e5m2>",
    lambda e, i, m: _wgmma(e, i, m, 8),
    **_FLAGS,
)
_form(
    f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k64[<satfinite:.satfinite>].<d:s32>.<a:s8|u8>.<b:s8|u8>",
    lambda e, i, m: _wgmma(e, i, m, 8),
    **_FLAGS,
)
_form("wgmma.fence.sync.aligned", lambda e, i, m: _wgmma_fence(e), aligned="warpgroup", destinations=0)
_form(
    "wgmma.commit_group.sync.aligned",
    lambda e, i, m: e.line(e.call(wgmma_commit)),
    aligned="warpgroup",
    destinations=0,
)
_form(
    "wgmma.wait_group.sync.aligned",
    lambda e, i, m: _wgmma_wait(e, i),
    aligned="warpgroup",
    starts=True,
    destinations=0,
)


def _wgmma_fence(e: Emitter) -> None:
    e.flush(everything=True)
    e.line(e.call(wgmma_fence))


def _wgmma_wait(e: Emitter, i: Instruction) -> None:
    pending = e.constant_int(i.operands[0])
    if pending is None or not 0 <= pending <= 7:
        raise e.error("wgmma.wait_group takes a literal from 0 to 7")
    e.reload()
    e.line(f"if {e.call(wgmma_wait, str(pending))}: return PARKED")


def _wgmma(e: Emitter, i: Instruction, m: Modifiers, bits: int) -> None:
    """Operands: d, a, b, [metadata, selector,] scale-d [, negate a, negate b [, transpose a, transpose b]]."""
    sparse = ".sp." in i.opcode
    n = int(m["shape"].partition("n")[2])
    if (m["d"] == "s32" and n not in (8, 24) and n % 16) or n > 256:
        raise e.error(f"n = {n} is no size of an integer wgmma", "unsupported")
    k = 256 // bits * (2 if sparse else 1)
    shape = Shape(n=n, k=k, d=m["d"], a=m["a"], b=m["b"], bits=bits, satfinite=bool(m.get("satfinite")), sparse=sparse)
    d_items = items(e, i.operands[0])
    count = n // 4 if m["d"] == "f16" else n // 2
    if len(d_items) != count or not all(isinstance(item, Reg) for item in d_items):
        raise e.error(f"d takes {count} registers, {len(d_items)} are given")
    d_registers = tuple(item.index for item in d_items if isinstance(item, Reg))
    from_registers = isinstance(i.operands[1], Vec)
    rest = list(i.operands[3:])
    metadata, selector = "None", 0
    if sparse:
        metadata = e.read(rest.pop(0), "b32", wide=True)
        selector = e.constant_int(rest.pop(0)) or 0
    scale = rest.pop(0)
    scale_d = str(bool(e.constant_int(scale))) if isinstance(scale, Imm) else e.read(scale, "pred")
    literals = [e.constant_int(operand) for operand in rest]
    if None in literals or len(literals) > 4:
        raise e.error("the signs and transposes of wgmma are at most four literals")
    negate = len(literals) >= 2 and (literals[0] == -1) != (literals[1] == -1)
    transposes = literals[2:]
    a_k_major = from_registers or not (transposes and transposes[0])
    b_k_major = not (transposes and transposes[-1])
    if from_registers:
        a_names = [e.read(item, "b32", wide=True) for item in items(e, i.operands[1])]
        a_registers = tuple(item.index for item in items(e, i.operands[1]) if isinstance(item, Reg))
        a = tuple_of(a_names)
    else:
        a, a_registers = e.read(i.operands[1], "b64", wide=True), ()
    b = e.read(i.operands[2], "b64", wide=True)
    e.flush()
    form = WgmmaForm(
        shape=shape,
        d=d_registers,
        a=a_registers,
        pick=pick(d_registers),
        negate=negate,
        a_k_major=a_k_major,
        b_k_major=b_k_major,
        selector=selector,
    )
    e.line(e.call(wgmma_issue, e.hold(form), a, b, scale_d, metadata))
    for index in d_registers:
        e.locals.pop(index, None)


@dataclass(frozen=True, eq=False, kw_only=True)
class WgmmaForm:
    """What one wgmma instruction says, worked out once. `pick` takes d's registers out of a file at once."""

    shape: Shape
    d: tuple[int, ...]
    a: tuple[int, ...]
    pick: Callable[[list[Any]], Any]
    negate: bool
    a_k_major: bool
    b_k_major: bool
    selector: int


def _participant(team: Team, s: Any, n: int, site: Site) -> Participant:
    if s is not None or team.width not in (WARP, 4 * WARP):
        raise team.error(site, "partial warpgroup", f"{n} threads where a whole warpgroup of 128 must take part")
    if team.wgmma is None:
        first = int(team.threads[0])
        table = team.cta.warpgroups
        group = table.setdefault(first // 128, Warpgroup())
        team.wgmma = Participant(group, first % 128 // 2, team.width // 2)
    found: Participant = team.wgmma
    return found


def wgmma_fence(team: Team, s: Any, n: int, site: Site) -> None:
    """Remembers what the registers hold: a wgmma may use them as long as they still do."""
    _participant(team, s, n, site)
    team.fenced, team.fenced_ids = list(team.registers), None
    if team.machine.observer is not None:
        team.machine.observer.wgmma_fence(site, team.cta.index, team.threads_of(s))


def _one(team: Team, site: Site, values: Array, name: str) -> int:
    if len(values) > 1 and values.tobytes() != values[:1].tobytes() * len(values):
        raise team.error(site, "wgmma operands differ", f"{name} differs between threads of the warpgroup")
    return int(values[0])


def wgmma_issue(
    team: Team, s: Any, n: int, site: Site, form: WgmmaForm, a: Any, b: Array, scale_d: Any, metadata: Array | None
) -> None:
    """wgmma.mma_async by one vector: a whole warpgroup, or one of its warps."""
    member = _participant(team, s, n, site)
    shape, registers = form.shape, team.registers
    scale = bool(_one(team, site, scale_d, "scale-d")) if isinstance(scale_d, np.ndarray) else bool(scale_d)
    b_descriptor = _one(team, site, b, "the descriptor of B")
    from_registers = isinstance(a, tuple)
    a_descriptor = None if from_registers else _one(team, site, a, "the descriptor of A")
    _check_descriptors(team, site, a_descriptor, b_descriptor)
    if team.fenced is None:
        raise team.error(site, "missing wgmma.fence", "no wgmma.fence stands before the first wgmma")
    tile = _tile(team, site, form, scale, member.num_rows)
    operand = _a_from_registers(a, shape, member.num_rows) if from_registers else None
    group = member.warpgroup
    position = member.issued
    member.issued += 1
    if position == len(group.ops):
        previous = group.ops[-1] if group.ops else None
        work = Wgmma(
            kind="wgmma",
            site=site,
            cta=team.cta.index,
            threads=np.arange(128, dtype=np.int64) + int(team.threads[0]) // 128 * 128,
            number=team.machine.engine.number(),
            shape=shape,
            warpgroup=group,
            base=team.cta.base,
            a_descriptor=a_descriptor,
            b_descriptor=b_descriptor,
            scale_d=scale,
            negate=form.negate,
            a_k_major=form.a_k_major,
            b_k_major=form.b_k_major,
            selector=form.selector,
            previous=previous if previous is not None and previous.state != "done" else None,
        )
        if metadata is not None:
            work.metadata = np.zeros(128, np.uint32)
        group.ops.append(work)
    else:
        work = group.ops[position]
        same = (work.site, work.a_descriptor, work.b_descriptor, work.scale_d) == (
            site,
            a_descriptor,
            b_descriptor,
            scale,
        )
        if not same:
            raise team.error(
                site, "wgmma operands differ", f"the warps of the warpgroup disagree: another issued {work.site}"
            )
    if work.metadata is not None and metadata is not None:
        work.metadata[member.first_row * 2 : member.first_row * 2 + n] = metadata
    tile.in_flight += 1
    work.parts[member.first_row] = (tile, operand)
    work.rows_issued += member.num_rows
    member.tiles.append((tile, form, registers_of(team, form)))
    for index, value in zip(form.d, tile.slices, strict=True):
        registers[index] = value
    if work.rows_issued == 64:
        team.machine.engine.issue(work)
        waiters, group.waiters = group.waiters, []
        for fragment in waiters:
            team.machine.wake(fragment)


def registers_of(team: Team, form: WgmmaForm) -> tuple[Any, ...]:
    """What A's registers hold now."""
    return tuple(team.registers[index] for index in form.a)


def _check_descriptors(team: Team, site: Site, a: int | None, b: int) -> None:
    for name, bits in (("A", a), ("B", b)):
        if bits is not None and bits not in _GOOD_DESCRIPTORS:
            found = fragments.descriptor_violations(bits)
            if found:
                raise team.error(
                    site, "wgmma descriptor", f"the descriptor of {name}, {bits:#018x}: {'; '.join(found)}"
                )
            if len(_GOOD_DESCRIPTORS) > 65536:
                _GOOD_DESCRIPTORS.clear()
            _GOOD_DESCRIPTORS.add(bits)


_GOOD_DESCRIPTORS: set[int] = set()


def _check_fenced(team: Team, site: Site, registers: tuple[int, ...]) -> None:
    """Registers must hold values that were there at the last wgmma.fence, literals, or accumulators of earlier wgmmas.

    Moves after the fence are allowed: they are the compiler's, and ptxas renames registers.
    """
    fenced = team.fenced_ids
    if fenced is None:
        fenced = team.fenced_ids = set(map(id, team.fenced or ()))
    for index in registers:
        value = team.registers[index]
        if value.__class__ is np.ndarray and id(value) not in fenced and value.flags.writeable:
            name = team.machine.kernel.entry.registers[index].name
            message = f"{name} was written or read after the last wgmma.fence; a fence must stand between"
            raise team.error(site, "missing wgmma.fence", message)


def _tile(team: Team, site: Site, form: WgmmaForm, scale: bool, num_rows: int) -> Tile:
    """The accumulators: those in flight already in the same registers, or new ones from the registers' values."""
    shape = form.shape
    held = form.pick(team.registers) if len(form.d) > 1 else (team.registers[form.d[0]],)
    first = held[0]
    if form.a:
        _check_fenced(team, site, form.a)
    if isinstance(first, InFlight) and _are_the_same(first.tile.slices, held):
        first.tile.site = site
        found: Tile = first.tile
        return found
    _check_fenced(team, site, form.d)
    names = team.machine.kernel.entry.registers
    for index, value in zip(form.d, held, strict=True):
        if isinstance(value, InFlight) and value.tile.in_flight:
            message = f"{names[index].name} is an accumulator of {value.tile.site} in another place; wait for it first"
            raise team.error(site, "accumulator in flight", message)
        if scale and value.__class__ is not np.ndarray:
            raise team.unusable(site, names[index].name, value)
    if scale:
        values = tile_from_registers(shape, list(held), num_rows)
    else:
        values = np.zeros((num_rows, shape.n), np.int32 if shape.d == "s32" else np.float32)
    return Tile(values, len(form.d), site)


def _are_the_same(slices: tuple[InFlight, ...], held: tuple[Any, ...]) -> bool:
    """Whether registers hold just these: by identity, since some may hold arrays."""
    return len(slices) == len(held) and all(map(operator.is_, slices, held))


def _a_from_registers(registers: tuple[Array, ...], shape: Shape, num_rows: int) -> Array:
    """A of one vector, (rows, k) float32."""
    rows, columns = fragments.wgmma_a(shape.bits)
    lanes = num_rows * 2
    stacked = np.stack(registers, axis=1)
    elements = decoded(shape.a, np.ascontiguousarray(stacked).view(f"u{shape.bits // 8}"))
    matrix = np.empty((num_rows, fragments.wgmma_k(shape.bits)), np.float32)
    matrix[rows[:lanes], columns[:lanes]] = elements
    return matrix


def wgmma_commit(team: Team, s: Any, n: int, site: Site) -> None:
    """wgmma.commit_group: everything issued since the last one."""
    member = _participant(team, s, n, site)
    first = member.group_ends[-1] if member.group_ends else 0
    member.group_ends.append(member.issued)
    ops = member.warpgroup.ops[first : member.issued]
    number = len(member.group_ends) - 1
    for op in ops:
        op.group = number
    if team.machine.observer is not None:
        team.machine.observer.commit(site, team.cta.index, team.threads_of(s), "wgmma", number, tuple(ops))


def _waits_for(op: Wgmma) -> Callable[[], str]:
    return lambda: f"waits for other warps to issue {op.site}"


def wgmma_wait(team: Team, s: Any, n: int, site: Site, pending: int) -> bool:
    """wgmma.wait_group. True: parked, since another warp has not issued its part yet."""
    member = _participant(team, s, n, site)
    groups = len(member.group_ends) - pending
    through = member.group_ends[groups - 1] if groups > 0 else 0
    ops = member.warpgroup.ops[member.waited : through]
    machine = team.machine
    for op in ops:
        if not op.can_run():
            parked = team.park(team.current.block, _waits_for(op))
            member.warpgroup.waiters.append(parked)
            return True
    for position, op in enumerate(ops, start=member.waited):
        machine.engine.finish(op)
        tile, form, a_values = member.tiles[position]
        for index, value in zip(form.a, a_values, strict=True):
            if team.registers[index] is not value:
                name = machine.kernel.entry.registers[index].name
                raise team.error(
                    op.site,
                    "operand overwritten in flight",
                    f"{name} of A was written before wgmma.wait_group at {site}",
                )
        tile.in_flight -= 1
        if tile.in_flight == 0:
            materialise(team, tile, form.shape)
        member.tiles[position] = (None, None, ())
    member.waited = max(member.waited, through)
    if machine.observer is not None:
        machine.observer.wait_group(site, team.cta.index, team.threads_of(s), "wgmma", tuple(ops), False)
    return False
