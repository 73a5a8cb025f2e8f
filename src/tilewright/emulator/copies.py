"""Asynchronous copies as work: boxes of tensors by TMA, runs of bytes, cp.async of lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import tiled
from tilewright.emulator.atomics import reduce_bytes
from tilewright.emulator.barriers import BarrierError
from tilewright.emulator.engines import Work, error_at, signal
from tilewright.emulator.fragments import CHUNK_BYTES
from tilewright.errors import EmulationError

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine
    from tilewright.emulator.team import Team

Array = NDArray[Any]


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
                    self.site,
                    "out of bounds",
                    f"the tensor map's box reads {machine.memory.explain(first, length)}",
                    self.cta,
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
            starts, length = _shared_runs(tensor_map, box, self.offset)
            bases = np.array(self.targets, np.int64)
            machine.observer.op_write(self, "shared", (bases[:, None] + starts).reshape(-1), length)
        for base in self.targets:
            signal(machine, self, base + self.barrier_offset, size)


def _shared_runs(tensor_map: tiled.TiledMap, box: tiled.Box, offset: int) -> tuple[Array, int]:
    """(starts, length) of what a box touches in a window: one run, or chunks where its rows leave gaps."""
    if tensor_map.shared_bytes == tensor_map.box_bytes:
        return np.array([offset], np.int64), tensor_map.box_bytes
    return box.shared.reshape(-1), CHUNK_BYTES


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
            starts, length = _shared_runs(self.tensor_map, self.box, self.offset)
            machine.observer.op_read(self, "shared", self.base + starts, length)

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
        machine.memory.wrote(buffer, tensor_map.address - buffer.address + starts)
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
                machine.memory.wrote(buffer, target - buffer.address)
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
        machine.moved("global read", size * len(sources) if lengths is None else int(lengths.sum()))
        machine.moved("shared written", size * len(sources))
        if machine.observer is not None:
            issued = self.threads
            threads = issued[chosen]  # the threads whose copies these are
            for length in (size,) if lengths is None else np.unique(lengths[lengths > 0]).tolist():
                reads = slice(None) if lengths is None else lengths == length
                self.threads = threads[reads]
                machine.observer.op_read(self, "global", sources[reads].astype(np.int64), length)
            self.threads = threads
            machine.observer.op_write(self, "shared", targets, size)
            self.threads = issued

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
                raise error_at(
                    self.site, "mbarrier before init", f"arrives on {machine.describe_barrier(flat)}", self.cta
                )
            phase = barrier.phase
            try:
                done = barrier.arrive(1)
            except BarrierError as broken:
                raise error_at(
                    self.site, broken.rule, f"{broken.message}; {machine.describe_barrier(flat)}", self.cta
                ) from None
            if machine.observer is not None:
                machine.observer.op_complete_tx(self, flat, 0, phase)
            if done:
                machine.phase_completed(barrier)
