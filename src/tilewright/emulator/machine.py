"""Threads in vectors: who runs which block, where paths part and meet, who waits for what. Knows no instruction.

A Team is a vector of neighbouring threads of one width, with one register file. Where its threads part, it is several
Fragments: a selection of lanes and the block they stand before. The fragment at the lowest block runs; fragments that
meet at a block become one. A fragment that waits is parked with whoever will wake it; nothing polls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.barriers import ClusterBarrier, Mbarrier, NamedBarrier
from tilewright.emulator.engines import Engine, Warpgroup
from tilewright.emulator.events import AsyncOp, Observer, Site, error_facts
from tilewright.emulator.integers import WINDOWS
from tilewright.emulator.isa import sync
from tilewright.emulator.memory import GlobalMemory, SharedMemory
from tilewright.emulator.schedule import Schedule
from tilewright.emulator.translate import Block, Kernel, item_registers
from tilewright.emulator.values import EXITED, PARKED, STORAGE, InFlight, Partial, UnusableError
from tilewright.errors import EmulationError

WARP = 32
WARPGROUP = 128

Selection = slice | NDArray[np.intp] | None
Index = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """One launch. Units: CTAs, threads, CTAs a cluster; bytes of dynamic shared memory; registers a thread at launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    registers: int

    @property
    def num_ctas(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


@dataclass(eq=False)
class Fragment:
    """Threads of a team that go the same way. `selection` None: the whole team."""

    team: Team
    selection: Selection
    count: int
    block: int
    is_pinned: bool = False  # split off at its block on purpose: must run before it may merge
    waits_for: tuple[int, int] | None = None  # (flat mbarrier, phase) that it was parked on
    reason: Callable[[], str] | None = None  # while parked: what it waits for, in words
    cluster_generation: int = -1  # of the cluster barrier that it has arrived at and not waited for
    site: Site | None = None  # while parked at a barrier: the instruction that parked it
    semantics: str = ""


@dataclass(eq=False)
class Cta:
    """One block of threads and what belongs to it. `base`: flat address of its shared memory."""

    index: int
    rank: int
    cluster: Cluster
    slot: int
    base: int
    live_threads: int
    barriers: dict[int, NamedBarrier] = field(default_factory=dict)
    spare_registers: int = 0
    register_waiters: list[tuple[Fragment, int]] = field(default_factory=list)
    warp_registers: dict[int, int] = field(default_factory=dict)
    warpgroups: dict[int, Warpgroup] = field(default_factory=dict)
    teams: list[Team] = field(default_factory=list)


@dataclass(eq=False)
class Cluster:
    """CTAs that see each other's shared memory, by rank."""

    index: int
    ctas: list[Cta] = field(default_factory=list)
    barrier: ClusterBarrier = field(default_factory=ClusterBarrier)


class Machine:
    """One launch: its memory, its CTAs cluster by cluster, and what was counted."""

    def __init__(
        self,
        kernel: Kernel,
        geometry: Geometry,
        parameters: bytes,
        memory: GlobalMemory,
        *,
        schedule: Schedule,
        width: str,
        observer: Observer | None,
        smem_base: int,
        max_blocks: int,
        count_banks: bool,
        resident_clusters: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.kernel = kernel
        self.program = kernel.program
        self.geometry = geometry
        self.parameters = np.frombuffer(parameters, np.uint8)
        self.memory = memory
        self.schedule = schedule
        self.width = width
        self.observer = observer
        self.max_blocks = max_blocks
        self.resident_clusters = resident_clusters
        self.progress = progress
        layout = kernel.shared_layout
        dynamic = max(layout.dynamic.values(), default=-(-layout.static_bytes // 16) * 16)
        self.smem = SharedMemory(
            resident_clusters * geometry.cluster_size, smem_base, smem_base + dynamic + geometry.smem_bytes
        )
        self.smem_symbols = {n: smem_base + o for n, o in {**layout.offsets, **layout.dynamic}.items()}
        self.engine = Engine(self)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.slots: list[Cta | None] = [None] * (resident_clusters * geometry.cluster_size)
        self.queue: deque[Team] = deque()
        self.block_threads = [0] * (len(kernel.blocks) + 1)
        self.blocks_run = 0
        self.progress_mark = 0  # blocks_run when something last changed that a spinning thread may see
        self.traffic: dict[str, int] = {}
        self.banks: dict[str, list[int]] | None = {} if count_banks else None
        self.local_symbols, self.local_bytes = _local_layout(kernel)
        self.parameter_cache: dict[tuple[int, str, int], Any] = {}
        self.parameter_offsets = {name: offset for name, offset, _, _ in kernel.entry.parameters}
        self.special_cache: dict[tuple[str, int], Any] = {}

    # -- identities for observers ---------------------------------------------------------------------------------

    @property
    def smem_stride(self) -> int:
        return self.smem.stride

    def smem_owner(self, flat: int) -> tuple[int, int]:
        """(CTA, offset) of a flat shared address."""
        cta = self.slots[flat // self.smem.stride]
        return (-1 if cta is None else cta.index), flat % self.smem.stride

    def smem_range(self, cta: int) -> tuple[int, int]:
        """(first flat address, bytes) of a resident CTA."""
        for resident in self.slots:
            if resident is not None and resident.index == cta:
                return resident.base, self.smem.stride
        raise KeyError(cta)

    def describe_barrier(self, flat: int) -> str:
        """An mbarrier's place and state in words."""
        cta, offset = self.smem_owner(flat)
        barrier = self.mbarriers.get(flat)
        return f"mbarrier(CTA {cta}, smem+{offset - self.smem.first}: {barrier or 'not initialised'})"

    def pending(self, cta: int) -> list[AsyncOp]:
        """Operations that the CTA issued and that have effects left."""
        return [op for op in self.engine.pending.values() if op.cta == cta]

    def phase_completed(self, barrier: Mbarrier) -> None:
        """The barrier's phase has just completed: whoever waits for it may go on."""
        self.progress_mark = self.blocks_run
        if self.observer is not None:
            self.observer.mbarrier_phase(barrier.address, barrier.phase - 1)
        waiters, barrier.waiters = barrier.waiters, []
        for fragment in waiters:
            self.wake(fragment)

    def moved(self, what: str, num_bytes: int) -> None:
        """Counts bytes for the report."""
        self.traffic[what] = self.traffic.get(what, 0) + num_bytes

    # -- running --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Every CTA of the grid.

        Raises: EmulationError.
        """
        geometry = self.geometry
        num_clusters = geometry.num_ctas // geometry.cluster_size
        if self.observer is not None:
            self.observer.begin(self)
        with np.errstate(all="ignore"):
            for first in range(0, num_clusters, self.resident_clusters):
                last = min(first + self.resident_clusters, num_clusters)
                self._start(range(first, last))
                self._run_resident()
                if self.progress is not None:
                    self.progress(last * geometry.cluster_size, geometry.num_ctas)
        if self.observer is not None:
            self.observer.end()

    def _start(self, clusters: range) -> None:
        self.mbarriers.clear()
        geometry, size = self.geometry, self.geometry.cluster_size
        threads = geometry.threads
        residents: list[Cta] = []
        for position, index in enumerate(clusters):
            cluster = Cluster(index)
            for rank, linear in enumerate(_cluster_members(geometry, index)):
                slot = position * size + rank
                cta = Cta(linear, rank, cluster, slot, slot * self.smem.stride, threads)
                cta.warp_registers = dict.fromkeys(range(-(-threads // WARP)), geometry.registers)
                cluster.ctas.append(cta)
                self.slots[slot] = cta
                self.smem.poison(slot)
                residents.append(cta)
                if self.observer is not None:
                    self.observer.cta_start(linear, index, rank, threads)
        if self.width == "grid":
            self.queue.append(Team(self, residents, 0, threads * len(residents)))
            return
        width = {"warp": WARP, "warpgroup": WARPGROUP, "cta": threads}[self.width]
        for cta in residents:
            for first in range(0, threads, width):
                team = Team(self, [cta], first, min(width, threads - first))
                cta.teams.append(team)
                self.queue.append(team)

    def _run_resident(self) -> None:
        schedule, queue, engine = self.schedule, self.queue, self.engine
        while True:
            while queue:
                schedule.advance(self)
                team = schedule.pick(queue)
                team.is_queued = False
                before = self.blocks_run
                team.run(schedule.turn())
                if team.ready:
                    self.enqueue(team)
                    if not schedule.is_random and self.blocks_run - before >= 1000:
                        engine.advance_oldest()  # a spinning thread may wait for it
                if self.blocks_run > self.max_blocks:
                    raise self.stuck(f"the kernel has not ended after {self.blocks_run} blocks", "step budget")
            if not engine.pending:
                break
            engine.advance_oldest()
        if any(cta is not None and cta.live_threads for cta in self.slots):
            raise self.stuck("deadlock: nobody can run", "deadlock")
        self.slots = [None] * len(self.slots)

    def enqueue(self, team: Team) -> None:
        if not team.is_queued:
            team.is_queued = True
            self.queue.append(team)

    def wake(self, fragment: Fragment) -> None:
        """A parked fragment may run again."""
        team = fragment.team
        if fragment in team.parked:
            team.parked.remove(fragment)
            fragment.reason = None
            team.arrive(fragment)
            self.enqueue(team)

    def stuck(self, message: str, rule: str) -> EmulationError:
        """An error that tells where every vector stands and what it waits for."""
        lines = []
        site = None
        seen: set[int] = set()
        for cta in self.slots:
            for team in cta.teams if cta is not None else []:
                lines += team.describe()
                seen.add(id(team))
        for team in self.queue:
            if id(team) not in seen:
                lines += team.describe()
        for cta in self.slots:
            for team in cta.teams if cta is not None else []:
                for fragment in [*team.parked, *team.ready]:
                    site = site or self.kernel.blocks[fragment.block].site
        shown = lines[:64] + ([f"... and {len(lines) - 64} more"] if len(lines) > 64 else [])
        return EmulationError("\n  ".join([message, *shown]), rule=rule, **error_facts(site))


class Team:
    """A vector of threads. Generated code and the functions of the table see it as T."""

    def __init__(self, machine: Machine, ctas: list[Cta], first_thread: int, width: int) -> None:
        self.machine = machine
        self.ctas = ctas
        self.cta = ctas[0]
        self.width = width
        self.first_thread = first_thread
        self.registers: list[Any] = [None] * len(machine.kernel.entry.registers)
        self.lanes: Index = np.arange(width)
        per_cta = machine.geometry.threads
        self.threads: NDArray[np.int64] = (self.lanes % per_cta if len(ctas) > 1 else self.lanes + first_thread).astype(
            np.int64
        )
        self.base: Any = ctas[0].base
        if len(ctas) > 1:
            self.base = np.repeat(np.array([cta.base for cta in ctas], np.int64), per_cta)
        self.live = np.ones(width, np.bool_)
        self.num_live = width
        self.ready: list[Fragment] = [Fragment(self, None, width, 0)]
        self.parked: list[Fragment] = []
        self.current: Fragment = self.ready[0]
        self.is_queued = True
        self.functions: list[Any] = [None] * len(machine.kernel.blocks)
        self.masked_functions: list[Any] = [None] * len(machine.kernel.blocks)
        self.cp_async_commits = np.zeros(width, np.int64)
        self.cp_async_ops: list[Any] = []
        self.bulk_groups: dict[int, Any] = {}
        self.wgmma: Any = None
        self.fenced: list[Any] | None = None
        self.local: NDArray[np.uint8] | None = None
        self.cluster_size = machine.geometry.cluster_size
        self.specials: dict[str, NDArray[Any]] = {}

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, turn: int) -> None:
        """Runs ready fragments, the lowest block first, until none is ready or the turn is over."""
        machine, ready = self.machine, self.ready
        kernel, counts = machine.kernel, machine.block_threads
        blocks = kernel.blocks
        end = len(blocks)
        last = machine.blocks_run + turn
        while ready:
            fragment = ready[0] if len(ready) == 1 else min(ready, key=lambda f: f.block)
            ready.remove(fragment)
            self.current = fragment
            block = fragment.block
            while True:
                if machine.blocks_run >= last:
                    fragment.block = block
                    ready.append(fragment)
                    return
                if block == end:
                    self.exit(fragment, blocks[-1].site)
                    break
                selection = fragment.selection
                if selection is not None and blocks[block].aligned and not self._has_converged(fragment, blocks[block]):
                    fragment.block = block
                    self.parked.append(fragment)
                    fragment.reason = self._join_reason(blocks[block])
                    break
                selection = fragment.selection
                functions = self.functions if selection is None else self.masked_functions
                function = functions[block]
                if function is None:
                    function = functions[block] = kernel.function(block, self.width, selection is not None)
                machine.blocks_run += 1
                counts[block] += fragment.count
                fragment.is_pinned = False
                fragment.block = block
                try:
                    result = function(self, self.registers, selection, fragment.count)
                except (TypeError, AttributeError, UnusableError) as failure:
                    raise self._diagnosis(fragment, blocks[block], failure) from failure
                if result.__class__ is int:
                    if result == PARKED or result == EXITED:
                        break
                    block = result
                    if ready or self.parked:
                        fragment.block = block
                        if self._meets(fragment):
                            break
                        if ready and min(f.block for f in ready) < block:
                            ready.append(fragment)
                            break
                else:
                    self._part(fragment, result)
                    break

    def _part(self, fragment: Fragment, branch: tuple[NDArray[np.bool_], int, int]) -> None:
        predicate, taken, other = branch
        lanes = self.lanes if fragment.selection is None else self.lanes[fragment.selection]
        for block, chosen in ((taken, predicate), (other, ~predicate)):
            part = lanes[chosen]
            other_part = Fragment(self, _selection(part), len(part), block)
            other_part.cluster_generation = fragment.cluster_generation
            self.arrive(other_part)

    def arrive(self, fragment: Fragment) -> None:
        """The fragment is ready at its block; it joins who is there already."""
        if fragment.is_pinned or not self._meets(fragment):
            self.ready.append(fragment)

    def _meets(self, fragment: Fragment) -> bool:
        """Joins a fragment that stands at the same block, ready or waiting for the rest of its warp."""
        for other in self.ready:
            if other.block == fragment.block and not other.is_pinned and other is not fragment:
                self._merge(other, fragment)
                return True
        for other in self.parked:
            if other.block == fragment.block and other.waits_for == (-1, -1):
                self.parked.remove(other)
                other.reason, other.waits_for = None, None
                self._merge(other, fragment)
                self.ready.append(other)
                return True
        return False

    def _merge(self, into: Fragment, other: Fragment) -> None:
        into.count += other.count
        into.cluster_generation = max(into.cluster_generation, other.cluster_generation)
        if into.count == self.width:
            into.selection = None
        else:
            into.selection = _selection(
                np.sort(np.concatenate([self.lanes[into.selection], self.lanes[other.selection]]))
            )

    def split(self, keys: NDArray[Any]) -> int:
        """Parts the running fragment by key at its block, when an instruction needs one key for all."""
        fragment = self.current
        lanes = self.lanes if fragment.selection is None else self.lanes[fragment.selection]
        for key in np.unique(keys):
            part = lanes[np.broadcast_to(keys, lanes.shape) == key]
            split_off = Fragment(self, _selection(part), len(part), fragment.block, is_pinned=True)
            split_off.cluster_generation = fragment.cluster_generation
            self.ready.append(split_off)
        return PARKED

    def park(self, block: int, reason: Callable[[], str]) -> Fragment:
        """The running fragment waits before `block`. Whoever holds it wakes it through Machine.wake."""
        fragment = self.current
        fragment.block = block
        fragment.reason = reason
        self.parked.append(fragment)
        return fragment

    def _has_converged(self, fragment: Fragment, block: Block) -> bool:
        """Whether the fragment holds every live thread of each warp (or warpgroup) that it touches."""
        size = WARP if block.aligned == "warp" else WARPGROUP
        selection = fragment.selection
        if isinstance(selection, slice) and selection.start % size == 0 and selection.stop % size == 0:
            return True
        inside = np.zeros(-(-self.width // size) * size, np.bool_)
        inside[self.lanes[selection]] = True
        live = np.zeros_like(inside)
        live[: self.width] = self.live
        groups, living = inside.reshape(-1, size), live.reshape(-1, size)
        touched = groups.any(axis=1)
        if (groups[touched] == living[touched]).all():
            return True
        complete = touched & (groups == living).all(axis=1)
        if complete.any():  # whole warps need not wait for those that are not
            lanes = self.lanes[selection]
            whole = complete[lanes // size]
            rest = lanes[~whole]
            waiting = Fragment(self, _selection(rest), len(rest), fragment.block, waits_for=(-1, -1))
            waiting.reason = self._join_reason(block)
            self.parked.append(waiting)
            fragment.selection, fragment.count = _selection(lanes[whole]), int(whole.sum())
            return True
        fragment.waits_for = (-1, -1)
        return False

    def _join_reason(self, block: Block) -> Callable[[], str]:
        return lambda: (
            f"waits for the other threads of its {block.aligned or 'warp'}, which went another way, at {block.site.opcode}"
        )

    def exit(self, fragment: Fragment, site: Site) -> int:
        """The fragment's threads leave."""
        machine = self.machine
        selection = slice(None) if fragment.selection is None else fragment.selection
        self.live[selection] = False
        self.num_live -= fragment.count
        if machine.observer is not None:
            machine.observer.exit(site, self.cta.index, self.threads[selection])
        if len(self.ctas) > 1:
            slots = np.bincount(self.lanes[selection] // machine.geometry.threads, minlength=len(self.ctas))
            left = list(zip(self.ctas, slots.tolist(), strict=True))
        else:
            left = [(self.cta, fragment.count)]
        for cta, count in left:
            cta.live_threads -= count
            if count:
                sync.threads_left(machine, cta)
                if cta.live_threads == 0 and machine.observer is not None:
                    machine.observer.cta_exit(cta.index)
        for other in [f for f in self.parked if f.waits_for == (-1, -1)]:  # their warp may be whole now
            self.parked.remove(other)
            other.waits_for = None
            self.ready.append(other)
        return EXITED

    # -- what generated code and the table's functions ask ----------------------------------------------------------

    def threads_of(self, selection: Selection) -> NDArray[np.int64]:
        """Thread indices in the CTA."""
        return self.threads if selection is None else self.threads[selection]

    def special_register(self, name: str, site: Site) -> NDArray[Any]:
        """The value of %tid.x and the like for every lane of the team."""
        found = self.specials.get(name)
        if found is None:
            found = self.specials[name] = np.broadcast_to(_special(self, name, site), (self.width,)).copy()
        return found

    def symbol(self, name: str, site: Site) -> NDArray[np.uint64]:
        """The address of a variable in its own space, for every lane."""
        key = (name, self.width)
        found = self.machine.special_cache.get(key)
        if found is None:
            machine = self.machine
            for table in (machine.smem_symbols, machine.parameter_offsets, machine.local_symbols):
                if name in table:
                    address = table[name]
                    break
            else:
                buffers = [buffer for buffer in machine.memory.buffers if buffer.name == name]
                if not buffers:
                    raise self.error(site, "syntax", f"{name} is no variable, parameter or special register")
                address = buffers[0].address
            found = machine.special_cache[key] = np.full(self.width, address, np.uint64)
        return found

    def error(self, site: Site, rule: str, message: str, selection: Selection = None, lane: int | None = None) -> EmulationError:
        """An EmulationError at this instruction, with the CTA and, where known, the thread."""
        place = f"CTA {self.cta.index}"
        if lane is not None:
            lanes = self.lanes if selection is None else self.lanes[selection]
            position = int(lanes[lane])
            cta = self.ctas[position // self.machine.geometry.threads] if len(self.ctas) > 1 else self.cta
            thread = int(self.threads[position])
            place = f"CTA {cta.index}, thread {thread} (warp {thread // WARP}, lane {thread % WARP})"
        return EmulationError(f"{site.opcode}: {message} [{place}]", rule=rule, **error_facts(site))

    def flat(self, site: Site, addresses: NDArray[Any], size: int, selection: Selection) -> NDArray[np.int64]:
        """Flat addresses of .shared::cluster (or own) addresses, checked for bounds and alignment of `size` bytes."""
        smem = self.machine.smem
        low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
        base = self.base if selection is None or self.base.__class__ is int else self.base[selection]
        if high < 1 << 24:
            if low < smem.first or high + size > smem.last:
                bad = int(np.argmax((addresses < smem.first) | (addresses.astype(np.int64) + size > smem.last)))
                raise self._outside(site, int(addresses[bad]), size, selection, bad)
            result = addresses.astype(np.int64) + base
        else:
            offsets = (addresses & 0xFFFFFF).astype(np.int64)
            ranks = (addresses >> 24).astype(np.int64) - 1
            outside = (offsets < smem.first) | (offsets + size > smem.last) | (ranks >= self.cluster_size)
            if outside.any():
                bad = int(np.argmax(outside))
                raise self._outside(site, int(addresses[bad]), size, selection, bad)
            first = self.cta.base - self.cta.rank * smem.stride
            result = offsets + np.where(ranks < 0, base, first + ranks * smem.stride)
            for rank in np.unique(ranks[ranks >= 0]).tolist():
                if self.cta.cluster.ctas[rank].live_threads == 0:
                    raise self.error(site, "peer exited", f"the shared memory of CTA rank {rank} is gone: that CTA has left")
        if size > 1 and int(np.bitwise_or.reduce(addresses)) & (size - 1):
            bad = int(np.argmax((addresses & (size - 1)) != 0))
            raise self.misaligned(site, int(addresses[bad]), size, selection, bad)
        return result

    def _outside(self, site: Site, address: int, size: int, selection: Selection, lane: int) -> EmulationError:
        smem = self.machine.smem
        message = (
            f"shared address {address:#x} with {size} bytes is outside the {smem.last - smem.first} bytes of shared memory "
            f"at {smem.first:#x} .. {smem.last - 1:#x}"
        )
        return self.error(site, "out of bounds", message, selection, lane)

    def misaligned(self, site: Site, address: int, size: int, selection: Selection, lane: int) -> EmulationError:
        return self.error(
            site, "misaligned", f"address {address:#x} is not a multiple of the access's {size} bytes", selection, lane
        )

    # -- reports ----------------------------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """One line for each fragment: who, where, and what it waits for."""
        found = []
        for fragment in [*self.parked, *self.ready]:
            lanes = self.lanes if fragment.selection is None else self.lanes[fragment.selection]
            block = min(fragment.block, len(self.machine.kernel.blocks) - 1)
            site = self.machine.kernel.blocks[block].site
            what = fragment.reason() if fragment.reason is not None else "can run"
            for cta in self.ctas:
                own = lanes if len(self.ctas) == 1 else lanes[lanes // self.machine.geometry.threads == cta.slot]
                if len(own):
                    threads = self.threads[own]
                    warps = _ranges(np.unique(threads // WARP).tolist())
                    part = "" if len(own) % WARP == 0 else f" ({len(own)} threads from {int(threads[0])})"
                    found.append(f"CTA {cta.index} warp {warps}{part} at {site}: {what}")
        return found

    def _diagnosis(self, fragment: Fragment, block: Block, failure: Exception) -> Exception:
        """Why a block failed on a register that holds no value: the first such read. Anything else is passed on."""
        written: set[int] = set()
        for item in block.items:
            read, writes = item_registers(item)
            for reg in read:
                value = self.registers[reg.index]
                if reg.index in written or value.__class__ is np.ndarray:
                    continue
                site = item.instruction.site
                if isinstance(value, InFlight):
                    return self.error(
                        site,
                        "accumulator in flight",
                        f"{reg.name} is an accumulator of {value.tile.site} which no wgmma.wait_group has waited for",
                    )
                if isinstance(value, Partial):
                    bad = value.unwritten if fragment.selection is None else value.unwritten[fragment.selection]
                    if bad.any():
                        lane = int(np.argmax(bad))
                        message = f"{reg.name} is read but was never written by this thread"
                        return self.error(site, "uninitialised register", message, fragment.selection, lane)
                elif value is None:
                    return self.error(site, "uninitialised register", f"{reg.name} is read but was never written")
            written |= {reg.index for reg in writes}
        return failure


# -- helpers ----------------------------------------------------------------------------------------------------------


def _selection(lanes: Index) -> Selection:
    """A slice where the lanes are neighbours."""
    if len(lanes) and int(lanes[-1]) - int(lanes[0]) + 1 == len(lanes):
        return slice(int(lanes[0]), int(lanes[-1]) + 1)
    return lanes


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in parts)


def _cluster_members(geometry: Geometry, index: int) -> list[int]:
    """Linear CTA indices of a cluster, by rank."""
    (gx, gy, _), (cx, cy, cz) = geometry.grid, geometry.cluster
    nx, ny = gx // cx, gy // cy
    x, y, z = index % nx, index // nx % ny, index // (nx * ny)
    return [
        (x * cx + i) + gx * ((y * cy + j) + gy * (z * cz + k)) for k in range(cz) for j in range(cy) for i in range(cx)
    ]


def _local_layout(kernel: Kernel) -> tuple[dict[str, int], int]:
    offsets, position = {}, 0
    for variable in kernel.entry.variables:
        if variable.space == "local":
            position = -(-position // variable.alignment) * variable.alignment
            offsets[variable.name] = position
            position += variable.size
    return offsets, position


def _special(team: Team, name: str, site: Site) -> Any:
    """Source: PTX ISA, special registers."""
    geometry = team.machine.geometry
    threads = team.threads
    (bx, by, _), (gx, gy, _), (cx, cy, _) = geometry.block, geometry.grid, geometry.cluster
    per_lane = np.repeat([cta.index for cta in team.ctas], geometry.threads) if len(team.ctas) > 1 else team.cta.index
    linear = np.asarray(per_lane, np.int64)
    x, y, z = linear % gx, linear // gx % gy, linear // (gx * gy)
    tables: dict[str, tuple[Any, Any, Any]] = {
        "%tid": (threads % bx, threads // bx % by, threads // (bx * by)),
        "%ntid": geometry.block,
        "%ctaid": (x, y, z),
        "%nctaid": geometry.grid,
        "%cluster_nctaid": geometry.cluster,
        "%cluster_ctaid": (x % cx, y % cy, z % geometry.cluster[2]),
        "%clusterid": (x // cx, y // cy, z // geometry.cluster[2]),
        "%nclusterid": tuple(g // c for g, c in zip(geometry.grid, geometry.cluster, strict=True)),  # type: ignore[dict-item]
    }
    base, _, axis = name.partition(".")
    if base in tables and axis in ("x", "y", "z"):
        return np.asarray(tables[base]["xyz".index(axis)]).astype(np.uint32)
    lane = threads % WARP
    one = np.uint64(1)
    singles: dict[str, Callable[[], Any]] = {
        "%laneid": lambda: lane,
        "%warpid": lambda: threads // WARP,
        "%nwarpid": lambda: -(-geometry.threads // WARP),
        "%cluster_ctarank": lambda: team.cta.rank,
        "%cluster_nctarank": lambda: geometry.cluster_size,
        "%is_explicit_cluster": lambda: int(geometry.cluster_size > 1),
        "%smid": lambda: linear,
        "%nsmid": lambda: geometry.num_ctas,
        "%gridid": lambda: 0,
        "%dynamic_smem_size": lambda: geometry.smem_bytes,
        "%total_smem_size": lambda: team.machine.smem.last - team.machine.smem.first,
        "%lanemask_eq": lambda: one << lane.astype(np.uint64),
        "%lanemask_lt": lambda: (one << lane.astype(np.uint64)) - one,
        "%lanemask_le": lambda: (one << (lane.astype(np.uint64) + one)) - one,
        "%lanemask_gt": lambda: ~((one << (lane.astype(np.uint64) + one)) - one),
        "%lanemask_ge": lambda: ~((one << lane.astype(np.uint64)) - one),
        "%clock": lambda: team.machine.blocks_run,
    }
    if name in ("%clock64", "%globaltimer"):
        return np.uint64(team.machine.blocks_run)
    if name not in singles:
        raise team.error(site, "unsupported", f"special register {name} is not in the table")
    return (np.asarray(singles[name]()).astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)


__all__ = ["STORAGE", "WINDOWS", "Cluster", "Cta", "Fragment", "Geometry", "Machine", "Team"]
