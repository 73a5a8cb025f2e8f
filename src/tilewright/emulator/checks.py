"""The checker: hears what a run does and finds pairs of accesses that nothing orders, and CTAs that end too early.

What holds is found from what happened before what, not from what this run happened to see: a race is reported though
the numbers came out right. Threads are told apart lane by lane; what an asynchronous operation reads and writes is its
own, and known to others only through the mbarrier that counts it or the group that its issuer waits for.
Knows nothing of instructions: only the events of events.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulator import clocks, order
from tilewright.emulator.clocks import (
    FENCED_GLOBAL,
    FENCED_SHARED,
    ORDERED,
    ROWS,
    WRITTEN,
    CtaClocks,
    View,
    is_wide,
)
from tilewright.emulator.ends import Ends
from tilewright.emulator.events import Addresses, AsyncOp, Finding, Observer, Site, Threads
from tilewright.emulator.flags import Flags
from tilewright.emulator.launch import WARP
from tilewright.emulator.mbarriers import Mbarriers
from tilewright.emulator.rules import Conflict, Reporter
from tilewright.emulator.shadow import NEVER, Access, AnyAccess, AsyncAccess, Granules, Shadow, Trace
from tilewright.emulator.spaces import Spaces

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine

_PROXY_ROWS: dict[str, tuple[int, ...]] = {
    "proxy.async": (FENCED_SHARED, FENCED_GLOBAL),
    "proxy.async.shared::cta": (FENCED_SHARED,),
    "proxy.async.shared::cluster": (FENCED_SHARED,),
    "proxy.async.global": (FENCED_GLOBAL,),
}


class Checker(Observer):
    """One run's checks. `findings` grows while it runs."""

    def __init__(self) -> None:
        self.reporter = Reporter()
        self.now = 1  # rises whenever somebody hands something on
        self.events = 0
        self.ctas: dict[int, CtaClocks] = {}
        self.traces: dict[int, Trace] = {}
        self.meetings: dict[tuple[str, int, int, int], clocks.Clock] = {}  # named and cluster barriers
        self.clusters: dict[int, int] = {}

    @property
    def findings(self) -> list[Finding]:
        """What was found, each pair of instructions once, in the order of discovery."""
        return self.reporter.findings

    def begin(self, machine: Machine) -> None:
        self.machine = machine
        self.reporter.machine = machine
        self.spaces = Spaces(machine)
        self.flags = Flags()
        self.mbarriers = Mbarriers(self.reporter, machine)
        self.ends = Ends(self.reporter, machine)

    def cta_start(self, cta: int, cluster: int, rank: int, num_threads: int) -> None:
        self.ctas[cta] = CtaClocks(cta, num_threads)
        self.clusters[cta] = cluster
        first, num_bytes = self.machine.smem_range(cta)
        self.spaces.shared.clear(first, num_bytes)
        self.mbarriers.forget(first, num_bytes)
        self.flags.forget(first, num_bytes)

    def _tick(self) -> int:
        """The time of something that is handed on: later accesses are later than it."""
        now = self.now
        self.now += 1
        return now

    # -- accesses of threads -----------------------------------------------------------------------------------------

    def access(
        self,
        site: Site,
        cta: int,
        threads: Threads,
        space: Any,
        addresses: Addresses,
        size: int,
        kind: Any,
        proxy: str,
        semantics: str,
        scope: str,
    ) -> None:
        self.events += 1
        if len(addresses) != len(threads):
            addresses = np.broadcast_to(addresses, threads.shape)
        strong = (
            "" if semantics == "weak" and kind != "atomic" else ("sys" if semantics == "volatile" else scope or "gpu")
        )
        state = self.ctas[cta]
        for view, part, chosen in state.parts(threads):
            starts = addresses if chosen is None else addresses[chosen]
            access = Access(
                site, cta, part, self.now, self.events, space, starts, size, kind != "read", strong, None, False, []
            )
            self._touch(access, view.clock, part)
            if space == "shared" and self.machine.geometry.cluster_size > 1:
                self.ends.remote(access, state)
        if strong:
            self._flag(state, threads, space, addresses, kind, semantics, strong)

    def _touch(self, access: AnyAccess, clock: clocks.Clock, threads: Threads) -> None:
        self.spaces.touch(
            access, lambda other, shadow, granules: self._judge(access, [(clock, threads)], other, shadow, granules)
        )

    def _judge(
        self,
        access: AnyAccess,
        known: list[tuple[clocks.Clock, Threads]],
        other: AnyAccess,
        shadow: Shadow,
        granules: Granules,
    ) -> None:
        """Whether the access may meet the other; reports it if not."""
        if isinstance(other, Access) and other.is_barrier:
            self.mbarriers.bytes_touched(access, other, granules.numbers(), shadow)
            return
        row = ORDERED
        if isinstance(other, Access) and other.writes:
            row = WRITTEN
            if isinstance(access, AsyncAccess):
                row = FENCED_SHARED if access.space == "shared" else FENCED_GLOBAL
        for clock, threads in known:
            met = order.unordered(access, clock, threads, other, row, granules, shadow)
            if met is None:
                continue
            if _both_atomic(access, other):
                if _reach_each_other(access, other):
                    continue
                self.reporter.conflict(Conflict(access, other, met, WRITTEN, True, False))
                return
            ordered = (
                row != ORDERED and order.unordered(access, clock, threads, other, ORDERED, granules, shadow) is None
            )
            written = (
                row > WRITTEN
                and ordered
                and order.unordered(access, clock, threads, other, WRITTEN, granules, shadow) is None
            )
            self.reporter.conflict(Conflict(access, other, met, row, ordered, written))
            return

    def _flag(
        self,
        state: CtaClocks,
        threads: Threads,
        space: str,
        addresses: Addresses,
        kind: str,
        semantics: str,
        scope: str,
    ) -> None:
        """Strong accesses hand on and learn: release writes, acquire reads, and relaxed ones by way of fences."""
        if kind != "write":
            for view, message in self.flags.read(state, threads, space, addresses):
                if semantics in ("acquire", "acq_rel"):
                    message.hand_to(view.writable(), state.cta, is_wide(scope))
                else:
                    view.heard = message.heard_by(view.heard, state.cta, is_wide(scope))
        if kind != "read":
            now = self._tick() if semantics in ("release", "acq_rel") else 0
            self.flags.write(state, threads, space, addresses, now, scope, kind == "atomic")

    # -- asynchronous operations -------------------------------------------------------------------------------------

    def op_issue(self, op: AsyncOp) -> None:
        self.events += 1
        state = self.ctas[op.cta]
        known = [(view.snapshot(), part) for view, part, _ in state.parts(op.threads)]
        trace = Trace(op, self.events, self.now, known)
        if len(op.threads) == 1:
            thread = int(op.threads[0])
            trace.fenced = (int(state.fenced[0, thread]), int(state.fenced[1, thread]))
        self.traces[op.number] = trace
        self.now += 1
        self.ends.issued(trace)
        if op.kind == "cp_async_arrive" and op.barrier is not None:
            clock = self.mbarriers.at(op.barrier)
            if clock is not None:
                self.mbarriers.used(op.site, state, op.threads, clock)

    def op_read(self, op: AsyncOp, space: Any, starts: Addresses, size: int) -> None:
        trace = self.traces.get(op.number)
        if trace is None or not size or not len(starts):
            return
        if op.kind == "cp_async":
            self._cp_async(trace, space, starts, size, False)
            return
        owner = self.machine.smem_owner(int(starts[0]))[0] if space == "shared" else -1
        self._async(AsyncAccess(trace, space, starts, size, False, owner))

    def op_write(self, op: AsyncOp, space: Any, starts: Addresses, size: int) -> None:
        trace = self.traces.get(op.number)
        if trace is None or not size or not len(starts):
            return
        if op.kind == "cp_async":
            self._cp_async(trace, space, starts, size, True)
        elif space == "shared":
            slots = starts // self.machine.smem_stride
            for slot in [int(slots[0])] if len(slots) == 1 else np.unique(slots).tolist():
                owner = self.machine.smem_owner(slot * self.machine.smem_stride)[0]
                self._async(AsyncAccess(trace, space, starts[slots == slot], size, True, owner))
        else:
            self._async(AsyncAccess(trace, space, starts, size, True, -1))

    def _async(self, access: AsyncAccess) -> None:
        self.spaces.touch(
            access, lambda other, shadow, granules: self._judge(access, access.trace.known, other, shadow, granules)
        )

    def _cp_async(self, trace: Trace, space: str, starts: Addresses, size: int, writes: bool) -> None:
        """Ordinary accesses that happen when their threads have waited for them, or at any time before."""
        op = trace.op
        threads = op.threads if len(op.threads) == len(starts) else op.threads[:1]
        for clock, part in trace.known:
            chosen = np.isin(threads, part)
            if not chosen.any():
                continue
            mine = threads[chosen]
            times = np.full(len(mine), NEVER, np.int32)
            access = Access(
                op.site, op.cta, mine, times, trace.order, space, starts[chosen], size, writes, "", op, False, []
            )
            trace.accesses.append(access)
            self._touch(access, clock, mine)

    def op_complete_tx(self, op: AsyncOp, barrier: int, num_bytes: int, phase: int) -> None:
        trace = self.traces.get(op.number)
        clock = self.mbarriers.at(barrier)
        if trace is None or clock is None:
            return
        end = (clock.cta, clock.place, phase + 1)
        if op.kind == "cp_async_arrive":
            for earlier in getattr(op, "earlier", ()):
                before = self.traces.get(earlier.number)
                for access in before.accesses if before is not None else ():
                    if end not in access.arrivals:
                        access.arrivals.append(end)
            return
        self.mbarriers.used_by_copy(trace, clock)
        trace.ends.append((clock.cta, end))

    def commit(self, site: Site, cta: int, threads: Threads, family: str, group: int, ops: tuple[AsyncOp, ...]) -> None:
        """Groups say nothing until somebody waits for them."""

    def wait_group(
        self, site: Site, cta: int, threads: Threads, family: str, ops: tuple[AsyncOp, ...], read_only: bool
    ) -> None:
        if not ops:
            return
        now = self._tick()
        for op in ops:
            trace = self.traces.get(op.number)
            if trace is None:
                continue
            if family == "cp_async":
                for access in trace.accesses:
                    waiting = (access.times == NEVER) & np.isin(access.threads, threads)
                    access.times[waiting] = now
                continue
            if not read_only:
                trace.ends.append((-1, (cta, threads, now)))
            elif not trace.read_ends:  # its thread may ask again; the first answer is the earliest
                trace.read_ends.append((cta, threads, now))

    # -- order -------------------------------------------------------------------------------------------------------

    def fence(self, site: Site, cta: int, threads: Threads, kind: str) -> None:
        state = self.ctas[cta]
        if kind in _PROXY_ROWS:
            state.proxy_fence(threads, _PROXY_ROWS[kind], self._tick())
        elif kind == "mbarrier_init":
            self.mbarriers.fenced(cta, threads, self._tick())
        elif not kind.startswith("proxy."):
            state.memory_fence(threads, self._tick())

    def bar_arrive(self, site: Site, cta: int, threads: Threads, barrier: int, generation: int, waits: bool) -> None:
        clock = self.meetings.setdefault(("bar", cta, barrier, generation), {})
        self.ctas[cta].tell(clock, threads, self._tick())

    def bar_leave(self, site: Site, cta: int, threads: Threads, barrier: int, generation: int) -> None:
        self.ctas[cta].unite(threads, self.meetings[("bar", cta, barrier, generation)])
        self.meetings.pop(("bar", cta, barrier, generation - 2), None)

    def cluster_arrive(self, site: Site, cta: int, threads: Threads, generation: int, semantics: str) -> None:
        clock = self.meetings.setdefault(("cluster", self.clusters[cta], 0, generation), {})
        now = self._tick()
        if semantics == "relaxed":
            self.mbarriers.tell_fenced(clock, self.ctas[cta], threads)
        else:
            self.ctas[cta].tell(clock, threads, now)

    def cluster_leave(self, site: Site, cta: int, threads: Threads, generation: int, semantics: str) -> None:
        met = self.meetings.get(("cluster", self.clusters[cta], 0, generation), {})
        for view, _ in self.ctas[cta].separate(threads):
            clocks.join(view.writable(), met)

    def warp_sync(self, site: Site, cta: int, threads: Threads) -> None:
        if not site.opcode.startswith("bar.warp"):
            return  # other .sync instructions bring lanes together but order no memory (PTX ISA)
        now = self._tick()
        state = self.ctas[cta]
        warps = threads // WARP
        for warp in np.unique(warps).tolist() if warps[0] != warps[-1] else [int(warps[0])]:
            state.warp_meeting(threads[warps == warp], now)

    # -- mbarriers ---------------------------------------------------------------------------------------------------

    def mbarrier_init(self, site: Site, cta: int, thread: int, barrier: int, count: int) -> None:
        self.events += 1
        access = self._barrier_access(site, cta, thread, barrier)
        access.is_barrier = True
        self.mbarriers.init(access, self.ctas[cta])

    def mbarrier_inval(self, site: Site, cta: int, thread: int, barrier: int) -> None:
        self.events += 1
        self.mbarriers.forget(barrier, 8)
        self._barrier_access(site, cta, thread, barrier)

    def _barrier_access(self, site: Site, cta: int, thread: int, barrier: int) -> Access:
        threads, starts = np.array([thread], np.int64), np.array([barrier], np.int64)
        access = Access(site, cta, threads, self.now, self.events, "shared", starts, 8, True, "", None, False, [])
        self._touch(access, self.ctas[cta].view_of_thread(thread).clock, threads)
        return access

    def mbarrier_arrive(
        self,
        site: Site,
        cta: int,
        threads: Threads,
        barrier: int,
        count: int,
        phase: int,
        remote: bool,
        semantics: str,
        scope: str,
        expected_bytes: int,
    ) -> None:
        clock = self.mbarriers.at(barrier)
        if clock is None:
            return
        self.events += 1
        state = self.ctas[cta]
        self.mbarriers.used(site, state, threads, clock)
        now = self._tick()
        if semantics == "relaxed":
            state.tell_published(clock.gathering().part(cta, is_wide(scope)), threads)
        else:
            clock.gathering().tell(state, threads, is_wide(scope), now)
        if remote:
            self.ends.remote_arrival(site, state, threads, clock.cta, now)

    def mbarrier_expect(self, site: Site, cta: int, threads: Threads, barrier: int, num_bytes: int, phase: int) -> None:
        clock = self.mbarriers.at(barrier)
        if clock is not None:
            self.mbarriers.used(site, self.ctas[cta], threads, clock)
            if clock.cta != cta:
                self.ends.remote_arrival(site, self.ctas[cta], threads, clock.cta, self._tick())

    def mbarrier_phase(self, barrier: int, phase: int) -> None:
        clock = self.mbarriers.at(barrier)
        if clock is not None:
            clock.completed(phase)

    def mbarrier_wait(
        self, site: Site, cta: int, threads: Threads, barrier: int, phase: int, semantics: str, scope: str
    ) -> None:
        clock = self.mbarriers.at(barrier)
        if clock is None:
            return
        self.events += 1
        state = self.ctas[cta]
        self.mbarriers.used(site, state, threads, clock)
        if phase < 0:
            return
        message = clock.phase(phase)
        for view, part in state.separate(threads):
            if semantics == "relaxed":
                view.heard = message.heard_by(view.heard, cta, is_wide(scope))
            else:
                message.hand_to(view.writable(), cta, is_wide(scope))
            self._saw(view, clock.cta, clock.place, phase + 1)
            clock.last_view = state.settle(view, part, clock.last_view)

    def _saw(self, view: View, cta: int, place: int, time: int) -> None:
        clock = view.writable()
        block = clock.get(cta)
        if block is None or block.shape[1] <= place:
            wide = self.ctas[cta].width
            block = clock[cta] = np.zeros((ROWS, wide), np.int32) if block is None else clocks.widened(block, wide)
        block[:FENCED_SHARED, place] = np.maximum(block[:FENCED_SHARED, place], time)

    # -- ends --------------------------------------------------------------------------------------------------------

    def exit(self, site: Site, cta: int, threads: Threads) -> None:
        self.ends.exit(site, self.ctas[cta], threads, self._tick())

    def cta_exit(self, cta: int) -> None:
        self.ends.cta_exit(cta)


def _both_atomic(access: AnyAccess, other: AnyAccess) -> bool:
    return bool(_strong(access)) and bool(_strong(other))


def _strong(access: AnyAccess) -> str:
    if isinstance(access, Access):
        return access.strong
    return "gpu" if access.space == "global" and access.writes and _reduces(access) else ""


def _reduces(access: AsyncAccess) -> bool:
    return bool(getattr(access.trace.op, "reduction", ""))  # of the machine's own kinds of work


def _reach_each_other(access: AnyAccess, other: AnyAccess) -> bool:
    ctas = [a.cta if isinstance(a, Access) else a.trace.op.cta for a in (access, other)]
    return ctas[0] == ctas[1] or (is_wide(_strong(access)) and is_wide(_strong(other)))
