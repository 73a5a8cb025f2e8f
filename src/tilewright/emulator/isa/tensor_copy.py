"""Rows of the table for copies of boxes of tensors between global and shared memory, by tensor map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright.emulator import tiled
from tilewright.emulator.copies import TensorLoad, TensorStore
from tilewright.emulator.events import Site
from tilewright.emulator.integers import WINDOW_BYTES, WINDOWS
from tilewright.emulator.isa.bulk import groups_of, lane_values, targets_of
from tilewright.emulator.isa.sync import shared_address
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import Imm, Instruction, Mem, Operand
from tilewright.errors import LayoutError

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []

_HINT = "[<hint:.L2::cache_hint>]"
_MBARRIER = "mbarrier::complete_tx::bytes"


def _form(pattern: str, emit: Emit, *, unread: int = 0) -> None:
    FORMS.append(Form(pattern, emit, "tensor copy", destinations=0, unread=unread))


_DIM = "<dim:1d|2d|3d|4d|5d>"
_form(
    f"cp.async.bulk.tensor.{_DIM}.<space:shared::cluster|shared::cta>.global[.tile].{_MBARRIER}[<multicast:.multicast::cluster>]{_HINT}",
    lambda e, i, m: _tensor_load(e, i, m),
)
_form(
    f"cp.async.bulk.tensor.{_DIM}.global.shared::cta[.tile].bulk_group{_HINT}",
    lambda e, i, m: _tensor_store(e, i, m, ""),
)
_form(
    f"cp.reduce.async.bulk.tensor.{_DIM}.global.shared::cta.<op:add|min|max|inc|dec|and|or|xor>[.tile].bulk_group{_HINT}",
    lambda e, i, m: _tensor_store(e, i, m, m["op"]),
)
_form(f"cp.async.bulk.prefetch.tensor.{_DIM}.L2.global[.tile]{_HINT}", lambda e, i, m: None, unread=1)


def _coordinates(e: Emitter, operand: Operand, m: Modifiers) -> tuple[str, str]:
    """(address of the map, coordinates) of [map, {x, y, ...}]."""
    if not isinstance(operand, Mem) or operand.coordinates is None:
        raise e.error("a tensor operand is [map, {coordinates}]")
    rank = int(m["dim"][0])
    if len(operand.coordinates) != rank:
        raise e.error(f"{len(operand.coordinates)} coordinates of a {rank}-D tensor")
    place = e.address(Mem(operand.base, operand.offset), "u64")
    values = [e.read(coordinate, "s32", wide=isinstance(coordinate, Imm)) for coordinate in operand.coordinates]
    return place, f"({', '.join(values)},)"


def _tensor_load(e: Emitter, i: Instruction, m: Modifiers) -> None:
    """[dst], [map, {...}], [mbarrier] {, multicast mask} {, cache policy}."""
    target = shared_address(e, i.operands[0])
    place, coordinates = _coordinates(e, i.operands[1], m)
    barrier = shared_address(e, i.operands[2])
    mask = e.read(i.operands[3], "u16", wide=True) if m["multicast"] else "None"
    e.line(e.call(tensor_load, target, place, coordinates, barrier, mask))


def _tensor_store(e: Emitter, i: Instruction, m: Modifiers, op: str) -> None:
    """[map, {...}], [src]."""
    place, coordinates = _coordinates(e, i.operands[0], m)
    e.line(e.call(tensor_store, place, coordinates, shared_address(e, i.operands[1]), repr(op)))


def _map_at(team: Team, s: Any, site: Site, address: int, rank: int, lane: int) -> tiled.TiledMap:
    """The tensor map that a generic or global address points to."""
    machine = team.machine
    start = WINDOWS["param"]
    if address % 64:
        raise team.error(site, "tensor map", f"the map's address {address:#x} is not a multiple of 64", s, lane)
    if start <= address < start + WINDOW_BYTES:
        raw = machine.parameters[address - start : address - start + tiled.MAP_BYTES].tobytes()
    else:
        buffer = machine.memory.find(address, address + tiled.MAP_BYTES)
        if buffer is None:
            where = machine.memory.explain(address, tiled.MAP_BYTES)
            raise team.error(site, "tensor map", f"the map's address {address:#x} is {where}", s, lane)
        raw = buffer.data[address - buffer.address : address - buffer.address + tiled.MAP_BYTES].tobytes()
    try:
        found = tiled.decode(raw)
    except LayoutError as wrong:
        raise team.error(site, "tensor map", str(wrong), s, lane) from None
    if found.rank != rank:
        raise team.error(site, "tensor map", f"a {found.rank}-D map in a {rank}-D instruction", s, lane)
    return found


def _place_box(
    team: Team,
    s: Any,
    site: Site,
    tensor_map: tiled.TiledMap,
    coordinates: tuple[int, ...],
    offset: int,
    lane: int,
    *,
    stores: bool = False,
) -> tiled.Box:
    last = team.machine.smem.last
    if offset + tensor_map.shared_bytes > last:
        message = f"a box of {tensor_map.shared_bytes} bytes at {offset:#x} ends past shared memory, {last:#x}"
        raise team.error(site, "out of bounds", message, s, lane)
    try:
        return tiled.box(tensor_map, coordinates, offset, stores=stores)
    except (tiled.InnerCoordinateError, tiled.StoreCoordinateError) as wrong:
        raise team.error(site, "tensor coordinate", str(wrong), s, lane) from None
    except tiled.SharedAddressError as wrong:
        raise team.error(site, "misaligned", str(wrong), s, lane) from None


def tensor_load(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    targets: Array,
    maps: Array,
    coordinates: tuple[Array, ...],
    barriers: Array,
    masks: Array | None,
) -> None:
    """cp.async.bulk.tensor into shared memory: one copy a lane."""
    machine = team.machine
    stride = machine.smem.stride
    flat_targets = team.flat(site, targets, 16, s).tolist()
    flat_barriers = team.flat(site, barriers, 8, s).tolist()
    places = [lane_values(values, n) for values in coordinates]
    addresses = lane_values(maps, n)
    threads = team.threads_of(s)
    for lane in range(n):
        flat, barrier = flat_targets[lane % len(flat_targets)], flat_barriers[lane % len(flat_barriers)]
        tensor_map = _map_at(team, s, site, addresses[lane], len(coordinates), lane)
        offset = flat % stride
        box = _place_box(team, s, site, tensor_map, tuple(place[lane] for place in places), offset, lane)
        mask = None if masks is None else int(masks[lane % len(masks)])
        if flat // stride != barrier // stride:
            raise team.error(site, "remote mbarrier", "destination and mbarrier are in different CTAs", s, lane)
        bases = targets_of(team, s, site, mask, flat, lane)
        if machine.patterns is not None:
            machine.patterns.box(site, tensor_map, len(bases))
        work = TensorLoad(
            kind="tma_load",
            site=site,
            cta=team.cta.index,
            threads=threads[lane : lane + 1],
            number=machine.engine.number(),
            barrier=barrier,
            tensor_map=tensor_map,
            box=box,
            offset=offset,
            targets=bases,
            barrier_offset=barrier % stride,
        )
        machine.engine.issue(work)


def tensor_store(
    team: Team, s: Any, n: int, site: Site, maps: Array, coordinates: tuple[Array, ...], sources: Array, op: str
) -> None:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor out of shared memory: one copy a lane."""
    machine = team.machine
    stride = machine.smem.stride
    flats = team.flat(site, sources, 16, s).tolist()
    places = [lane_values(values, n) for values in coordinates]
    addresses = lane_values(maps, n)
    threads = team.threads_of(s)
    lanes = (team.lanes if s is None else team.lanes[s]).tolist()
    for lane in range(n):
        flat = flats[lane % len(flats)]
        tensor_map = _map_at(team, s, site, addresses[lane], len(coordinates), lane)
        offset = flat % stride
        box = _place_box(team, s, site, tensor_map, tuple(place[lane] for place in places), offset, lane, stores=True)
        work = TensorStore(
            kind="tma_reduce" if op else "tma_store",
            site=site,
            cta=team.cta.index,
            threads=threads[lane : lane + 1],
            number=machine.engine.number(),
            tensor_map=tensor_map,
            box=box,
            offset=offset,
            base=flat - offset,
            reduction=op,
        )
        groups_of(team, lanes[lane]).open.append(work)
        machine.engine.issue(work)
