"""One launch: its memory, its CTAs cluster by cluster, whose turn it is, and what was counted. Knows no instruction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.emulator.barriers import Mbarrier
from tilewright.emulator.engines import Engine
from tilewright.emulator.events import AsyncOp, Observer, Site, error_facts
from tilewright.emulator.launch import WARP, WARPGROUP, Cluster, Cta, Geometry, cluster_members
from tilewright.emulator.memory import GlobalMemory, SharedMemory
from tilewright.emulator.patterns import Patterns
from tilewright.emulator.schedule import Schedule
from tilewright.emulator.team import Fragment, Team
from tilewright.emulator.translate import Kernel
from tilewright.errors import EmulationError

BUDGETED_VECTORS = 16  # resident vectors for which a run may take `max_blocks` without getting on
MAX_SPINS = 50_000  # turns and blocks without any change before polling is taken for endless


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
        exact_sums: bool,
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
        self.exact_sums = exact_sums
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
        self.block_warps = [0] * (len(kernel.blocks) + 1)
        self.blocks_run = 0
        self.turn_end = 0  # of blocks_run; 0: the turn was given up
        self.spins = 0  # turns in a row that ended while their vectors could run
        self.progress_mark = 0  # blocks_run when something last changed that a spinning thread may see
        self.advance_mark = 0  # blocks_run when a thread last left or a page of global memory was first written
        self.exits = 0
        self.traffic: dict[str, int] = {}
        self.banks: dict[Site, list[int]] | None = {} if count_banks else None
        reader = next((name for name in ("wgmma", "ldmatrix") if kernel.uses(name)), "rows")
        self.patterns = Patterns(reader) if count_banks else None
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
            for rank, linear in enumerate(cluster_members(geometry, index)):
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
        budget = self.max_blocks * max(1, len(queue) // BUDGETED_VECTORS)
        advance, self.advance_mark = (-1, -1), self.blocks_run
        while True:
            while queue:
                schedule.advance(self)
                team = schedule.pick(queue)
                team.is_queued = False
                team.run(schedule.turn())
                if team.ready:
                    self.enqueue(team)
                    self._after_spin(team)
                else:
                    self.spins = 0
                if advance != (now := (self.exits, self.memory.num_written_pages)):
                    advance, self.advance_mark = now, self.blocks_run
                elif self.blocks_run - self.advance_mark > budget:
                    raise self._endless(budget)
            if not engine.pending:
                break
            engine.advance_oldest()
        if any(cta is not None and cta.live_threads for cta in self.slots):
            raise self.stuck("deadlock: nobody can run", "deadlock")
        self.slots = [None] * len(self.slots)

    def _endless(self, budget: int) -> EmulationError:
        message = (
            f"the kernel has not ended after {self.blocks_run} blocks of instructions, and in the last {budget} no "
            "thread left and no new page of global memory was written; a larger max_blocks lets it go on"
        )
        return self.stuck(message, "step budget")

    def _after_spin(self, team: Team) -> None:
        """A vector's turn ended while it could run. When all that can run only ask, asynchronous work must go on."""
        if self.turn_end and not self.schedule.is_random:
            self.spins += len(self.queue)  # it ran for a whole turn
        self.spins += 1
        if self.spins > len(self.queue) and self.engine.pending:
            self.engine.advance_oldest()
            self.spins = 0
        elif self.spins > MAX_SPINS and self.blocks_run - self.progress_mark > MAX_SPINS:
            raise self.stuck("livelock: everybody who can run polls for something that nobody will change", "deadlock")

    def spin(self) -> None:
        """The running threads asked for something that is not there yet: others have their turn."""
        self.turn_end = 0

    def enqueue(self, team: Team) -> None:
        if not team.is_queued:
            team.is_queued = True
            self.queue.append(team)

    def wake(self, fragment: Fragment) -> None:
        """A parked fragment may run again."""
        team = fragment.team
        if fragment in team.parked:
            team.parked.remove(fragment)
            fragment.reason, fragment.site = None, None
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
                    site = site or team.site_of(fragment)
        shown = lines[:64] + ([f"... and {len(lines) - 64} more"] if len(lines) > 64 else [])
        return EmulationError("\n  ".join([message, *shown]), rule=rule, **error_facts(site))


def _local_layout(kernel: Kernel) -> tuple[dict[str, int], int]:
    offsets, position = {}, 0
    for variable in kernel.entry.variables:
        if variable.space == "local":
            position = -(-position // variable.alignment) * variable.alignment
            offsets[variable.name] = position
            position += variable.size
    return offsets, position
