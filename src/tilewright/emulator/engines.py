"""Asynchronous work: what was issued and has effects left. Copies by TMA and in bulk, cp.async, wgmma.

Each piece of work has one or two steps: read its sources, then write its results and signal. When a step happens is
the schedule's business; that it must have happened is a wait's, which finishes work through the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import fragments, numerics, tiled
from tilewright.emulator.atomics import reduce_bytes
from tilewright.emulator.barriers import BarrierError
from tilewright.emulator.events import AsyncOp, Site, error_facts
from tilewright.emulator.values import STORAGE, InFlight
from tilewright.errors import EmulationError

if TYPE_CHECKING:
    from tilewright.emulator.machine import Fragment, Machine, Team

Array = NDArray[Any]
MULTICAST_MAX = 16


@dataclass(eq=False)
class Work(AsyncOp):
    """An AsyncOp that knows how to do itself."""

    def read(self, machine: Machine) -> None:
        """Reads the sources."""

    def write(self, machine: Machine) -> None:
        """Writes the results and signals."""

    def before(self) -> list[Work]:
        """Work that must be done first."""
        return []

    def can_run(self) -> bool:
        """Whether every thread that takes part has issued it."""
        return True


class Engine:
    """All work with effects left, in the order of issue."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.pending: dict[int, Work] = {}
        self.issued = 0

    def number(self) -> int:
        self.issued += 1
        return self.issued

    def issue(self, work: Work) -> None:
        """Takes work over."""
        self.pending[work.number] = work
        if self.machine.observer is not None:
            self.machine.observer.op_issue(work)
        if self.machine.schedule.is_eager:
            self.finish(work)

    def advance(self, work: Work) -> None:
        """One step."""
        if work.state == "done":
            return
        for earlier in work.before():
            self.finish(earlier)
        if work.state == "issued":
            work.read(self.machine)
            work.state = "read"
            self.machine.progress_mark = self.machine.blocks_run
        elif work.state == "read":
            work.write(self.machine)
            work.state = "done"
            self.pending.pop(work.number, None)
            self.machine.progress_mark = self.machine.blocks_run
            if self.machine.observer is not None:
                self.machine.observer.op_done(work)

    def finish(self, work: Work) -> None:
        """All steps that are left."""
        while work.state != "done":
            self.advance(work)

    def read_sources(self, work: Work) -> None:
        """The first step, if it has not happened."""
        if work.state == "issued":
            self.advance(work)

    def advance_oldest(self) -> None:
        """Finishes the piece of work that was issued first."""
        for work in self.pending.values():
            if work.can_run():
                self.finish(work)
                return
        if self.pending:
            raise self.machine.stuck("deadlock: asynchronous work waits for threads that have not issued it", "deadlock")


def error_at(site: Site, rule: str, message: str, cta: int) -> EmulationError:
    """An EmulationError of asynchronous work."""
    return EmulationError(f"{site.opcode}: {message} [CTA {cta}]", rule=rule, **error_facts(site))


def signal(machine: Machine, work: Work, flat: int, num_bytes: int) -> None:
    """complete_tx on an mbarrier."""
    barrier = machine.mbarriers.get(flat)
    if barrier is None:
        raise error_at(work.site, "mbarrier before init", f"completes on {machine.describe_barrier(flat)}", work.cta)
    phase = barrier.phase
    try:
        done = barrier.complete(num_bytes)
    except BarrierError as broken:
        raise error_at(work.site, broken.rule, broken.message, work.cta) from None
    if machine.observer is not None:
        machine.observer.op_complete_tx(work, flat, num_bytes, phase)
    if done:
        machine.phase_completed(barrier)


# -- copies -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class TensorLoad(Work):
    """TMA: a box of a tensor into the shared memory of one CTA or several. `targets`: flat bases of their windows."""

    tensor_map: tiled.TiledMap
    box: tiled.Box
    offset: int  # of the box in each window
    targets: tuple[int, ...]
    barrier_offset: int

    def write(self, machine: Machine) -> None:
        tensor_map, box = self.tensor_map, self.box
        starts, length = box.load_ranges()
        if length and len(starts):
            first = tensor_map.address + int(starts.min())
            buffer = machine.memory.find(first, tensor_map.address + int(starts.max()) + length)
            if buffer is None:
                raise error_at(
                    self.site, "out of bounds", f"the tensor map's box reads {machine.memory.explain(first, length)}", self.cta
                )
            rows = tiled.load(tensor_map, box, buffer.data, buffer.address)
            machine.moved("global read", length * len(starts))
            if machine.observer is not None:
                machine.observer.op_read(self, "global", tensor_map.address + starts, length)
        else:
            rows = tiled.load(tensor_map, box, np.empty(0, np.uint8), 0)
        chunks = np.ascontiguousarray(rows).reshape(-1).view(np.complex128)
        places = box.shared.reshape(-1)
        for base in self.targets:
            machine.smem.chunks[(places + base) // 16] = chunks
        size = tensor_map.box_bytes
        machine.moved("shared written", size * len(self.targets))
        if machine.observer is not None:
            machine.observer.op_write(self, "shared", np.array(self.targets, np.int64) + self.offset, size)
        for base in self.targets:
            signal(machine, self, base + self.barrier_offset, size)


@dataclass(eq=False, kw_only=True)
class TensorStore(Work):
    """TMA: a box of shared memory into a tensor, or combined with it."""

    tensor_map: tiled.TiledMap
    box: tiled.Box
    offset: int
    base: int
    reduction: str = ""
    rows: Array | None = None

    def read(self, machine: Machine) -> None:
        places = (self.box.shared + self.base) // 16
        self.rows = machine.smem.chunks[places].view(np.uint8).reshape(len(self.box.rows), self.box.row_bytes)
        machine.moved("shared read", self.tensor_map.box_bytes)
        if machine.observer is not None:
            start = np.array([self.base + self.offset], np.int64)
            machine.observer.op_read(self, "shared", start, self.tensor_map.box_bytes)

    def write(self, machine: Machine) -> None:
        tensor_map, box = self.tensor_map, self.box
        starts, length = box.store_ranges()
        if not length or not len(starts):
            return
        first = tensor_map.address + int(starts.min())
        last = tensor_map.address + int(starts.max()) + length
        buffer = machine.memory.find(first, last)
        if buffer is None or not buffer.writable:
            where = machine.memory.explain(first, length) if buffer is None else f"read-only buffer {buffer.name!r}"
            raise error_at(self.site, "out of bounds", f"the tensor map's box writes {where}", self.cta)
        assert self.rows is not None
        if self.reduction:
            tiled.reduce(tensor_map, box, self.rows, buffer.data, buffer.address, self.reduction)
        else:
            tiled.store(tensor_map, box, self.rows, buffer.data, buffer.address)
        machine.moved("global written", length * len(starts))
        if machine.observer is not None:
            machine.observer.op_write(self, "global", tensor_map.address + starts, length)


@dataclass(eq=False, kw_only=True)
class BulkCopy(Work):
    """cp.async.bulk of a run of bytes. Places are flat shared addresses or global ones."""

    source_space: str
    source: int
    target_space: str
    targets: tuple[int, ...]
    num_bytes: int
    barriers: tuple[int, ...] = ()
    reduction: str = ""
    element: str = ""
    data: Array | None = None

    def read(self, machine: Machine) -> None:
        if self.source_space == "shared":
            self.data = machine.smem.data[self.source : self.source + self.num_bytes].copy()
        else:
            buffer = machine.memory.find(self.source, self.source + self.num_bytes)
            if buffer is None:
                where = machine.memory.explain(self.source, self.num_bytes)
                raise error_at(self.site, "out of bounds", f"reads {where}", self.cta)
            start = self.source - buffer.address
            self.data = buffer.data[start : start + self.num_bytes].copy()
        machine.moved(f"{self.source_space} read", self.num_bytes)
        if machine.observer is not None:
            space: Any = self.source_space
            machine.observer.op_read(self, space, np.array([self.source], np.int64), self.num_bytes)

    def write(self, machine: Machine) -> None:
        assert self.data is not None
        for target in self.targets:
            if self.target_space == "shared":
                place = machine.smem.data[target : target + self.num_bytes]
            else:
                buffer = machine.memory.find(target, target + self.num_bytes)
                if buffer is None or not buffer.writable:
                    where = machine.memory.explain(target, self.num_bytes)
                    raise error_at(self.site, "out of bounds", f"writes {where}", self.cta)
                place = buffer.data[target - buffer.address : target - buffer.address + self.num_bytes]
            place[:] = reduce_bytes(self.reduction, self.element, place, self.data) if self.reduction else self.data
        machine.moved(f"{self.target_space} written", self.num_bytes * len(self.targets))
        if machine.observer is not None:
            space: Any = self.target_space
            machine.observer.op_write(self, space, np.array(self.targets, np.int64), self.num_bytes)
        for barrier in self.barriers:
            signal(machine, self, barrier, self.num_bytes)


@dataclass(eq=False, kw_only=True)
class LaneCopies(Work):
    """cp.async of several lanes at once: each copies `size` bytes, the last of them zeros. Groups are per lane."""

    team: Team
    lanes: Array
    groups: Array  # how many groups each lane had committed before
    sources: Array  # global addresses
    targets: Array  # flat
    size: int
    lengths: Array | None  # bytes that are copied; the rest is zeros

    def write(self, machine: Machine) -> None:
        self._copy(machine, np.ones(len(self.lanes), np.bool_))

    def part(self, machine: Machine, chosen: Array) -> None:
        """Some lanes' copies now, the others' later."""
        self._copy(machine, chosen)
        rest = ~chosen
        self.lanes, self.groups, self.threads = self.lanes[rest], self.groups[rest], self.threads[rest]
        self.sources, self.targets = self.sources[rest], self.targets[rest]
        self.lengths = None if self.lengths is None else self.lengths[rest]

    def _copy(self, machine: Machine, chosen: Array) -> None:
        every = bool(chosen.all())
        sources, targets = (self.sources, self.targets) if every else (self.sources[chosen], self.targets[chosen])
        lengths = self.lengths if self.lengths is None or every else self.lengths[chosen]
        size = self.size
        if lengths is None or (lengths == size).all():
            values = machine.memory.load(sources, size)
            if isinstance(values, int):
                raise self._outside(machine, int(sources[values]), size)
        else:
            values = np.zeros((len(sources), size), np.uint8)
            for position, length in enumerate(lengths.tolist()):
                if length:
                    address = int(sources[position])
                    buffer = machine.memory.find(address, address + length)
                    if buffer is None:
                        raise self._outside(machine, address, length)
                    start = address - buffer.address
                    values[position, :length] = buffer.data[start : start + length]
            if size <= 8:
                values = values.view(f"u{size}")[:, 0]
        if size == 16:
            machine.smem.chunks[targets // 16] = np.ascontiguousarray(values).view(np.complex128)[:, 0]
        else:
            machine.smem.views[size][targets // size] = values
        machine.moved("global read", size * len(sources))
        machine.moved("shared written", size * len(sources))
        if machine.observer is not None:
            machine.observer.op_read(self, "global", sources.astype(np.int64), size)
            machine.observer.op_write(self, "shared", targets, size)

    def _outside(self, machine: Machine, address: int, size: int) -> EmulationError:
        return error_at(self.site, "out of bounds", f"reads {machine.memory.explain(address, size)}", self.cta)


@dataclass(eq=False, kw_only=True)
class LaneArrivals(Work):
    """cp.async.mbarrier.arrive: arrivals when all earlier cp.async of the same lanes are done."""

    team: Team
    lanes: Array
    barriers: Array  # flat
    earlier: list[Work]

    def before(self) -> list[Work]:
        return self.earlier

    def write(self, machine: Machine) -> None:
        for flat in self.barriers.tolist():
            barrier = machine.mbarriers.get(flat)
            if barrier is None:
                raise error_at(self.site, "mbarrier before init", f"arrives on {machine.describe_barrier(flat)}", self.cta)
            try:
                done = barrier.arrive(1)
            except BarrierError as broken:
                raise error_at(self.site, broken.rule, f"{broken.message}; {machine.describe_barrier(flat)}", self.cta) from None
            if done:
                machine.phase_completed(barrier)


# -- wgmma ------------------------------------------------------------------------------------------------------------


class Tile:
    """Accumulators of one vector's part of a wgmma: rows x n numbers, while wgmmas may write them.

    `slices` are what the registers hold meanwhile; `in_flight` counts wgmmas that nobody has waited for.
    """

    def __init__(self, values: Array, num_registers: int, site: Site) -> None:
        self.values = values
        self.site = site
        self.in_flight = 0
        self.slices = tuple(InFlight(self, index) for index in range(num_registers))


@dataclass(frozen=True, eq=False)
class Shape:
    """What a wgmma opcode says. `k`: columns of k; `bits`: of an element of a and b."""

    n: int
    k: int
    d: str
    a: str
    b: str
    bits: int
    satfinite: bool
    sparse: bool


@dataclass(eq=False, kw_only=True)
class Wgmma(Work):
    """One wgmma.mma_async of a warpgroup. In warp-wide vectors four of them issue it, each its own 16 rows."""

    shape: Shape
    warpgroup: Warpgroup
    base: int  # flat base of the CTA's window
    a_descriptor: int | None
    b_descriptor: int
    scale_d: bool
    negate: bool
    a_k_major: bool
    b_k_major: bool
    metadata: Array | None = None
    selector: int = 0
    previous: Wgmma | None = None
    parts: dict[int, tuple[Tile, Array | None]] = field(default_factory=dict)  # first row -> accumulators, A's registers
    rows_issued: int = 0

    def before(self) -> list[Work]:
        return [self.previous] if self.previous is not None and self.previous.state != "done" else []

    def can_run(self) -> bool:
        """Whether every warp has issued it and all before it."""
        return self.rows_issued == 64 and (self.previous is None or self.previous.state == "done" or self.previous.can_run())

    def write(self, machine: Machine) -> None:
        self.previous = None
        shape = self.shape
        b = self._operand(machine, self.b_descriptor, shape.n, shape.b, self.b_k_major, "B", shape.k)
        a_full = None
        if self.a_descriptor is not None:
            stored = shape.k // 2 if shape.sparse else shape.k
            a_full = self._operand(machine, self.a_descriptor, 64, shape.a, self.a_k_major, "A", stored)
        for row, (tile, registers) in self.parts.items():
            num_rows = len(tile.values)
            a = a_full[row : row + num_rows] if a_full is not None else registers
            assert a is not None
            if self.metadata is not None:
                columns = fragments.wgmma_sparse_columns(self.metadata, self.selector, shape.k, shape.bits)
                a = fragments.sparse_expand(a, columns[row : row + num_rows], shape.k)
            tile.values = multiplied(shape, a, b, tile.values if self.scale_d else None, self.negate)

    def _operand(
        self, machine: Machine, descriptor: int, rows: int, kind: str, k_major: bool, name: str, k: int
    ) -> Array:
        shape = self.shape
        smem = machine.smem
        window = smem.data[self.base : self.base + smem.stride]
        try:
            bits = fragments.wgmma_operand(window, descriptor, rows, k, shape.bits, k_major)
        except fragments.OperandRangeError as outside:
            raise error_at(self.site, "out of bounds", f"operand {name}: {outside}", self.cta) from None
        if machine.observer is not None:
            start, offsets = fragments.wgmma_offsets(descriptor, rows, k, shape.bits, k_major)
            chunks = np.unique(offsets // 16) * 16 + (self.base + start)
            machine.observer.op_read(self, "shared", chunks.astype(np.int64), 16)
        return decoded(kind, bits)


def decoded(kind: str, bits: Array) -> Array:
    """Elements of a tensor-core operand as float32, exactly."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind in ("s8", "u8"):
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.float32)
    return np.asarray(numerics.decode(kind, bits))


def multiplied(shape: Any, a: Array, b: Array, c: Array | None, negate: bool) -> Array:
    """a (rows, k) x b (n, k) transposed + c in the accumulators' type: float32, float32 holding f16, or int32."""
    product = a @ b.T
    if shape.d == "s32":
        whole = np.rint(product).astype(np.int64)  # exact: |sum| < 2^24
        if c is not None:
            whole += c
        if shape.satfinite:
            return np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32)
        return whole.astype(np.int32)
    if negate:
        product = -product
    if c is not None:
        product += c
    return product if shape.d == "f32" else product.astype(np.float16).astype(np.float32)


@dataclass(eq=False)
class Warpgroup:
    """The wgmmas of one warpgroup in order. Positions count from the CTA's start."""

    ops: list[Wgmma] = field(default_factory=list)
    waiters: list[Fragment] = field(default_factory=list)


@dataclass(eq=False)
class Participant:
    """One vector's view of its warpgroup: how much it has issued, committed and waited for."""

    warpgroup: Warpgroup
    first_row: int
    num_rows: int
    issued: int = 0
    waited: int = 0
    group_ends: list[int] = field(default_factory=list)
    tiles: list[Any] = field(default_factory=list)


def accumulators(n: int, kind: str, num_rows: int) -> tuple[Array, Array]:
    """(rows, columns) of the accumulators of one vector, each (registers x elements a register, lanes)."""
    rows, columns = fragments.wgmma_d(n)
    lanes = num_rows * 2
    return np.ascontiguousarray(rows[:lanes].T), np.ascontiguousarray(columns[:lanes].T)


_PLACES: dict[tuple[int, int], Array] = {}


def flat_places(n: int, num_rows: int) -> Array:
    """Index of each accumulator in the flattened tile, (elements, lanes)."""
    found = _PLACES.get((n, num_rows))
    if found is None:
        rows, columns = accumulators(n, "f32", num_rows)
        found = _PLACES[n, num_rows] = rows * n + columns
    return found


def tile_from_registers(shape: Shape, values: list[Array], num_rows: int) -> Array:
    """The tile that registers hold."""
    places = flat_places(shape.n, num_rows)
    stacked = np.stack(values)
    if shape.d == "f16":
        halves = np.ascontiguousarray(stacked).view(np.uint16).reshape(len(values), -1, 2)
        elements = np.ascontiguousarray(halves.transpose(0, 2, 1)).reshape(len(values) * 2, -1)
        stacked = elements.view(np.float16).astype(np.float32)
    elif shape.d == "s32":
        stacked = stacked.view(np.int32)
    tile = np.empty(num_rows * shape.n, stacked.dtype)
    tile[places] = stacked
    return tile.reshape(num_rows, shape.n)


def registers_from_tile(shape: Shape, tile: Array) -> list[Array]:
    """The registers that hold a tile: arrays of lanes, float32 or 32 bits."""
    elements = tile.reshape(-1)[flat_places(shape.n, len(tile))]
    if shape.d == "f16":
        bits = elements.astype(np.float16).view(np.uint16).astype(np.uint32)
        return list(bits[0::2] | (bits[1::2] << 16))
    return list(elements)


def materialise(team: Team, tile: Tile, shape: Shape) -> None:
    """The accumulators become ordinary register values, wherever moves have taken them."""
    values = registers_from_tile(shape, tile.values)
    registers = team.machine.kernel.entry.registers
    fenced = team.fenced
    for index, value in enumerate(team.registers):
        if value.__class__ is InFlight and value.tile is tile:
            ready = values[value.index]
            stored = STORAGE[registers[index].type]
            ready = ready if ready.dtype == stored else ready.view(stored)
            if fenced is not None and fenced[index] is value:
                fenced[index] = ready
            team.registers[index] = ready


def pick(registers: tuple[int, ...]) -> itemgetter[Any]:
    """A function that takes these registers out of a file at once."""
    return itemgetter(*registers)
