"""What mbarriers hand on, phase by phase, and whether their inits come before their uses.

Knows clocks and who initialised what; counts and parities are the machine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulator.clocks import FENCED_SHARED, ORDERED, Clock, CtaClocks, Message, View, time_of
from tilewright.emulator.events import Finding, Site, Threads
from tilewright.emulator.launch import WARP
from tilewright.emulator.rules import Reporter, threads_in_words
from tilewright.emulator.shadow import Access, AnyAccess, AsyncAccess, Index, Shadow, Trace

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine

KEPT_PHASES = 3  # only the last one may be asked for; a late waiter asks while the next two go on


class BarrierClock:
    """One mbarrier from its init on. `place`: of its phases in clocks. `fenced`: when its init was fenced, or 0."""

    def __init__(self, access: Access, place: int) -> None:
        self.access = access
        self.cta = access.cta
        self.thread = int(access.threads[0])
        self.time = int(access.times)
        self.place = place
        self.fenced = 0
        self.message = Message()
        self.phases: dict[int, Message] = {}
        self.last_view: View | None = None  # of the threads that last waited

    def gathering(self) -> Message:
        """The message of the phase under way: all that this barrier has been told since its init."""
        if self.message.is_shared:
            self.message = self.message.copy()
        return self.message

    def completed(self, phase: int) -> None:
        """The phase is complete: its message stays as it is."""
        self.message.is_shared = True
        self.phases[phase] = self.message
        self.phases.pop(phase - KEPT_PHASES, None)

    def phase(self, phase: int) -> Message:
        """What the completed phase hands on."""
        return self.phases.get(phase, self.message)


class Mbarriers:
    """Live mbarriers by flat address."""

    def __init__(self, reporter: Reporter, machine: Machine) -> None:
        self.reporter = reporter
        self.machine = machine
        self.live: dict[int, BarrierClock] = {}

    def at(self, barrier: int) -> BarrierClock | None:
        """The live mbarrier at a flat address."""
        return self.live.get(barrier)

    def init(self, access: Access, state: CtaClocks) -> None:
        """mbarrier.init."""
        self.live[int(access.starts[0])] = BarrierClock(access, state.new_place())

    def forget(self, first: int, num_bytes: int) -> None:
        """mbarrier.inval, or a new CTA."""
        for barrier in [b for b in self.live if first <= b < first + num_bytes]:
            del self.live[barrier]

    def fenced(self, cta: int, threads: Threads, now: int) -> None:
        """fence.mbarrier_init: the threads' earlier inits are ready for asynchronous copies and for the cluster."""
        for clock in self.live.values():
            if clock.cta == cta and not clock.fenced and clock.thread in threads:
                clock.fenced = now

    def tell_fenced(self, into: Clock, state: CtaClocks, threads: Threads) -> None:
        """A relaxed arrival hands on the inits that were fenced for it, and nothing else."""
        for clock in self.live.values():
            if clock.cta == state.cta and clock.fenced and clock.thread in threads:
                block = state.block(into)
                block[ORDERED, clock.thread] = max(block[ORDERED, clock.thread], clock.fenced)

    def used(self, site: Site, state: CtaClocks, threads: Threads, clock: BarrierClock) -> None:
        """Threads use an mbarrier: its init must come before."""
        for view, part, _ in state.parts(threads):
            if time_of(view.clock, clock.cta, clock.thread) >= clock.time:
                continue
            others = part if clock.cta != state.cta else part[part != clock.thread]
            if len(others):
                self._report_order(site, state.cta, others, clock)
                return

    def used_by_copy(self, trace: Trace, clock: BarrierClock) -> None:
        """An asynchronous copy signals an mbarrier: the init must come before, and be fenced."""
        op = trace.op
        own = op.cta == clock.cta and len(op.threads) == 1 and int(op.threads[0]) == clock.thread
        for known, part in trace.known:
            if time_of(known, clock.cta, clock.thread) < clock.time and not own:
                self._report_order(op.site, op.cta, part, clock)
                return
            if time_of(known, clock.cta, clock.thread, FENCED_SHARED) >= clock.time:
                continue
            if own and (trace.fenced[0] >= clock.time or 0 < clock.fenced <= trace.now):
                continue
            if clock.fenced and time_of(known, clock.cta, clock.thread) >= clock.fenced:
                continue
            self.reporter.add(
                Finding(
                    rule="mbarrier init fence",
                    message=(
                        f"an asynchronous copy of {threads_in_words(op.cta, op.threads)} signals an mbarrier that "
                        f"{threads_in_words(clock.cta, clock.access.threads)} initialised with no fence after the init"
                    ),
                    repair=(
                        "the initialising thread executes fence.mbarrier_init.release.cluster (or fence.proxy.async) "
                        "after mbarrier.init and before the barrier that lets others use it"
                    ),
                    site=op.site,
                    other_site=clock.access.site,
                    cta=op.cta,
                    warp=int(op.threads[0]) // WARP,
                    lane=int(op.threads[0]) % WARP,
                    barrier=self.machine.describe_barrier(int(clock.access.starts[0])),
                )
            )
            return

    def _report_order(self, site: Site, cta: int, threads: Threads, clock: BarrierClock) -> None:
        far = "cluster barrier (arrive.release, wait.acquire)" if cta != clock.cta else "barrier (__syncthreads)"
        self.reporter.add(
            Finding(
                rule="mbarrier init order",
                message=(
                    f"{threads_in_words(cta, threads)} uses an mbarrier of CTA {clock.cta} whose init by "
                    f"{threads_in_words(clock.cta, clock.access.threads)} does not come before"
                ),
                repair=f"a {far} stands between mbarrier.init and the first use by others",
                site=site,
                other_site=clock.access.site,
                cta=cta,
                warp=int(threads[0]) // WARP,
                lane=int(threads[0]) % WARP,
                barrier=self.machine.describe_barrier(int(clock.access.starts[0])),
            )
        )

    def bytes_touched(self, access: AnyAccess, init: Access, granules: Index, shadow: Shadow) -> None:
        """Something reads or writes the bytes of an mbarrier."""
        barrier = int(init.starts[0])
        clock = self.live.get(barrier)
        if clock is None or clock.access is not init:
            return
        cta = access.trace.op.cta if isinstance(access, AsyncAccess) else access.cta
        threads = access.trace.op.threads if isinstance(access, AsyncAccess) else access.threads
        verb = "writes" if access.writes else "reads"
        first, last = shadow.address(int(np.min(granules))), shadow.address(int(np.max(granules)) + 1) - 1
        self.reporter.add(
            Finding(
                rule="mbarrier bytes",
                message=(
                    f"{self.reporter.agent(access, int(threads[0]))} {verb} "
                    f"{self.reporter.place('shared', first, last)}, a live mbarrier"
                ),
                repair="keep data apart from mbarriers, or execute mbarrier.inval before their bytes are used again",
                site=access.site,
                other_site=init.site,
                cta=cta,
                warp=int(threads[0]) // WARP,
                lane=int(threads[0]) % WARP,
                barrier=self.machine.describe_barrier(barrier),
            )
        )
