"""Rows of the table for exchanges between the lanes of a warp: shuffles, votes, elections, reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.events import Site
from tilewright.emulator.isa.sync import warp_met
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import Instruction, Not, Operand, Pair, Reg

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

WARP = 32
ALL_LANES = 0xFFFFFFFF

FORMS: list[Form] = []


def _form(pattern: str, emit: Emit, **flags: Any) -> None:
    FORMS.append(Form(pattern, emit, "warp", **flags))


_form("shfl.sync.<mode:up|down|bfly|idx>.b32", lambda e, i, m: _shfl(e, i, m), aligned="warp")
_form("elect.sync", lambda e, i, m: _elect(e, i), aligned="warp")
_form("vote.sync.<mode:all|any|uni>.pred", lambda e, i, m: _vote(e, i, m), aligned="warp")
_form("vote.sync.<mode:ballot>.b32", lambda e, i, m: _vote(e, i, m), aligned="warp")
_form("activemask.b32", lambda e, i, m: e.write(i.operands[0], "b32", e.call(active_mask)))
_form(
    "match.any.sync.<type:b32|b64>",
    lambda e, i, m: _match(e, i, m),
    aligned="warp",
)
_form("redux.sync.<op:add|min|max>.<type:u32|s32>", lambda e, i, m: _redux(e, i, m), aligned="warp")
_form("redux.sync.<op:and|or|xor>.<type:b32>", lambda e, i, m: _redux(e, i, m), aligned="warp")


def _warps(team: Team, s: Any, values: Array, fill: Any = 0) -> tuple[Array, Array]:
    """(values, active), each (warps, 32), of the lanes that are here; a dead lane has `fill`."""
    width = -(-team.width // WARP) * WARP
    if s is None and width == team.width:
        whole = np.broadcast_to(values, (width,))
        return whole.reshape(-1, WARP), np.ones((width // WARP, WARP), np.bool_)
    grid = np.full(width, fill, values.dtype)
    active = np.zeros(width, np.bool_)
    lanes = team.lanes if s is None else team.lanes[s]
    grid[lanes], active[lanes] = values, True
    return grid.reshape(-1, WARP), active.reshape(-1, WARP)


def _back(team: Team, s: Any, grid: Array) -> Array:
    """(warps, 32) values as one array of the lanes that are here."""
    flat = np.ascontiguousarray(grid).reshape(-1)[: team.width]
    return flat if s is None else flat[s]


def _check_members(e: Emitter, mask: Operand) -> None:
    """Whoever runs a .sync instruction is in its member mask. Source: PTX ISA, shfl.sync, vote.sync, elect.sync."""
    if e.constant_int(mask) not in (-1, ALL_LANES):
        e.line(e.call(members, e.read(mask, "u32", wide=True)))


def members(team: Team, s: Any, n: int, site: Site, masks: Array) -> None:
    """Raises: EmulationError: a lane that is here is not in its mask."""
    lanes = (team.lanes if s is None else team.lanes[s]) % WARP
    outside = (masks >> lanes.astype(np.uint32)) & 1 == 0
    if outside.any():
        lane = int(np.argmax(outside))
        mask = int(np.broadcast_to(masks, (n,))[lane])
        raise team.error(site, "member mask", f"runs with mask {mask:#010x}, which does not have this lane", s, lane)


def _shfl(e: Emitter, i: Instruction, m: Modifiers) -> None:
    _check_members(e, i.operands[4])
    value, lane, clamp = (e.read(operand, "b32", wide=True) for operand in i.operands[1:4])
    result = e.fresh(e.call(shuffle, value, lane, clamp, repr(m["mode"])))
    destination = i.operands[0]
    if isinstance(destination, Pair):
        e.write(destination.first, "b32", f"{result}[0]")
        e.write(destination.second, "pred", f"{result}[1]")
    else:
        e.write(destination, "b32", f"{result}[0]")


def shuffle(
    team: Team, s: Any, n: int, site: Site, values: Array, b: Array, c: Array, mode: str
) -> tuple[Array, Array]:
    """Source: PTX ISA, shfl.sync: c holds the segment mask at bits 8 .. 12 and the clamp at 0 .. 4."""
    grid, active = _warps(team, s, values)
    offset = (_warps(team, s, b)[0] & np.uint32(31)).astype(np.int64)
    control = _warps(team, s, c)[0].astype(np.int64)
    clamp, segment = control & 31, (control >> 8) & 31
    lane = np.broadcast_to(np.arange(WARP), grid.shape)
    highest = (lane & segment) | (clamp & ~segment)
    lowest = lane & segment
    if mode == "up":
        source = lane - offset
        valid = source >= highest
    elif mode == "down":
        source = lane + offset
        valid = source <= highest
    elif mode == "bfly":
        source = lane ^ offset
        valid = source <= highest
    else:
        source = lowest | (offset & ~segment)
        valid = source <= highest
    source = np.where(valid, source, lane)
    if not (np.take_along_axis(active, source, axis=1) | ~active).all():
        raise team.error(site, "shuffle", "reads a lane that does not take part")
    warp_met(team, s, n, site)
    return _back(team, s, np.take_along_axis(grid, source, axis=1)), _back(team, s, valid)


def _elect(e: Emitter, i: Instruction) -> None:
    destination = i.operands[0]
    if not isinstance(destination, Pair):
        raise e.error("elect.sync writes d|p")
    _check_members(e, i.operands[1])
    result = e.fresh(e.call(elect, e.read(i.operands[1], "u32", wide=True)))
    e.write(destination.first, "b32", f"{result}[0]")
    e.write(destination.second, "pred", f"{result}[1]")


def elect(team: Team, s: Any, n: int, site: Site, members: Array) -> tuple[Array, Array]:
    """The lowest lane of the member mask that is here; every lane is told which."""
    masks, active = _warps(team, s, members)
    lane = np.arange(WARP)
    member = active & ((masks >> lane.astype(np.uint32)) & 1).astype(bool)
    leader = np.argmax(member, axis=1)[:, None]
    warp_met(team, s, n, site)
    chosen = np.broadcast_to(leader, active.shape)
    return _back(team, s, chosen.astype(np.uint32)), _back(team, s, lane == chosen)


def _vote(e: Emitter, i: Instruction, m: Modifiers) -> None:
    _check_members(e, i.operands[2])
    source = i.operands[1]
    predicate = e.read(source, "pred", wide=not isinstance(source, (Reg, Not)))
    e.write(i.operands[0], "b32" if m["mode"] == "ballot" else "pred", e.call(vote, predicate, repr(m["mode"])))


def vote(team: Team, s: Any, n: int, site: Site, predicate: Array, mode: str) -> Array:
    """vote.sync."""
    grid, active = _warps(team, s, predicate, False)
    warp_met(team, s, n, site)
    if mode == "ballot":
        bits = (np.where(active, grid, False) * (np.uint64(1) << np.arange(WARP, dtype=np.uint64))).sum(axis=1)
        return _back(team, s, np.broadcast_to(bits[:, None], grid.shape).astype(np.uint32))
    every = np.where(active, grid, True).all(axis=1)
    some = np.where(active, grid, False).any(axis=1)
    result = np.asarray({"all": every, "any": some, "uni": every | ~some}[mode])
    return _back(team, s, np.broadcast_to(result[:, None], grid.shape))


def active_mask(team: Team, s: Any, n: int, site: Site) -> Array:
    """Lanes that are here."""
    return vote(team, s, n, site, np.ones(n, np.bool_), "ballot")


def match_any(team: Team, s: Any, n: int, site: Site, values: Array) -> Array:
    """match.any.sync."""
    grid, active = _warps(team, s, values)
    same = (grid[:, :, None] == grid[:, None, :]) & active[:, None, :]
    bits = (same * (np.uint64(1) << np.arange(WARP, dtype=np.uint64))).sum(axis=2)
    return _back(team, s, bits.astype(np.uint32))


def _match(e: Emitter, i: Instruction, m: Modifiers) -> None:
    _check_members(e, i.operands[2])
    e.write(i.operands[0], "b32", e.call(match_any, e.read(i.operands[1], m["type"], wide=True)))


def _redux(e: Emitter, i: Instruction, m: Modifiers) -> None:
    _check_members(e, i.operands[2])
    value = e.read(i.operands[1], m["type"], wide=True)
    e.write(i.operands[0], m["type"], e.call(redux, value, repr(m["op"])))


_REDUCE: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "add": (np.add.reduce, lambda info: 0),
    "min": (np.minimum.reduce, lambda info: info.max),
    "max": (np.maximum.reduce, lambda info: info.min),
    "and": (np.bitwise_and.reduce, lambda info: info.max),
    "or": (np.bitwise_or.reduce, lambda info: 0),
    "xor": (np.bitwise_xor.reduce, lambda info: 0),
}


def redux(team: Team, s: Any, n: int, site: Site, values: Array, op: str) -> Array:
    """redux.sync."""
    function, neutral = _REDUCE[op]
    grid, active = _warps(team, s, values)
    filled = np.where(active, grid, neutral(np.iinfo(values.dtype)))
    warp_met(team, s, n, site)
    result = function(filled.astype(values.dtype), axis=1, dtype=values.dtype)
    return _back(team, s, np.broadcast_to(result[:, None], grid.shape))
