"""When a CTA may end: its shared memory goes with its last thread, so whoever uses it must be known to have finished.

Kept per CTA: the newest asynchronous operation of each kind and place (older ones end before), and the newest access of
each thread of another CTA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulator.clocks import Clock, CtaClocks, Threads, time_of
from tilewright.emulator.events import Finding, Site
from tilewright.emulator.launch import WARP
from tilewright.emulator.rules import KINDS, STORES, Reporter, threads_in_words
from tilewright.emulator.shadow import NEVER, Access, Trace

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine


class Ends:
    """What must be over before each resident CTA ends."""

    def __init__(self, reporter: Reporter, machine: Machine) -> None:
        self.reporter = reporter
        self.machine = machine
        self.known: dict[int, Clock] = {}  # what threads knew when they left, by CTA
        self.sites: dict[int, Site] = {}
        self.traces: dict[int, dict[Any, Trace]] = {}
        self.remotes: dict[int, dict[tuple[int, int], tuple[int, Site]]] = {}

    def issued(self, trace: Trace) -> None:
        """An asynchronous operation that touches the shared memory of one CTA or several."""
        op = trace.op
        stride = self.machine.smem_stride
        for base in getattr(op, "targets", ()) if op.barrier is not None else ():
            cta = self.machine.smem_owner(base)[0]
            place = base // stride * stride + (op.barrier or 0) % stride
            self.traces.setdefault(cta, {})["write", place] = trace
        if op.kind in STORES or op.kind == "wgmma":
            self.traces.setdefault(op.cta, {})[op.kind, int(op.threads[0])] = trace
        elif op.kind == "cp_async":
            self.traces.setdefault(op.cta, {})[op.kind, int(op.threads[0]), len(op.threads)] = trace

    def remote(self, access: Access, state: CtaClocks) -> None:
        """Threads access shared memory, perhaps of another CTA."""
        first, num_bytes = self.machine.smem_range(access.cta)
        if int(access.starts.min()) >= first and int(access.starts.max()) < first + num_bytes:
            return
        owners = access.starts // self.machine.smem_stride
        own = first // self.machine.smem_stride
        for slot in np.unique(owners[owners != own]).tolist():
            cta = self.machine.smem_owner(slot * self.machine.smem_stride)[0]
            self.remote_arrival(access.site, state, access.threads[owners == slot], cta, int(access.times))

    def remote_arrival(self, site: Site, state: CtaClocks, threads: Threads, target: int, now: int) -> None:
        """Threads of one CTA touch the shared memory of another."""
        table = self.remotes.setdefault(target, {})
        for thread in threads.tolist():
            table[state.cta, thread] = (now, site)

    def exit(self, site: Site, state: CtaClocks, threads: Threads, now: int) -> None:
        """Threads leave, and what they know counts for their CTA's end."""
        state.tell(self.known.setdefault(state.cta, {}), threads, now)
        self.sites[state.cta] = site

    def cta_exit(self, cta: int) -> None:
        """The last thread has left."""
        known = self.known.pop(cta, {})
        site = self.sites.pop(cta)
        for trace in self.traces.pop(cta, {}).values():
            self._check(cta, site, trace, known)
        for (source, thread), (time, where) in self.remotes.pop(cta, {}).items():
            if time_of(known, source, thread) < time:
                self.reporter.add(
                    Finding(
                        rule="exit before remote access",
                        message=(
                            f"CTA {cta} may end before {threads_in_words(source, np.array([thread]))} has accessed "
                            "its shared memory"
                        ),
                        repair=(
                            "all threads of the cluster end with a cluster barrier (arrive.release, wait.acquire), or "
                            "the CTA waits for the access first"
                        ),
                        site=where,
                        other_site=site,
                        cta=source,
                        warp=thread // WARP,
                        lane=thread % WARP,
                    )
                )

    def _check(self, cta: int, site: Site, trace: Trace, known: Clock) -> None:
        op = trace.op
        if op.kind == "cp_async":
            for access in trace.accesses:
                if access.writes and bool((access.times == NEVER).any()) and not _arrived(access, known):
                    self._report(cta, site, trace)
                    return
            if not trace.accesses:
                self._report(cta, site, trace)
            return
        own = cta == op.cta and op.kind in (*STORES, "wgmma")
        ends = [end for owner, end in trace.ends if own or owner in (-1, cta)]
        if own:
            ends += trace.read_ends
        for source, where, time in ends:
            if isinstance(where, int):
                if time_of(known, source, where) >= time:
                    return
            elif any(time_of(known, source, thread) >= time for thread in where.tolist()):
                return
        self._report(cta, site, trace)

    def _report(self, cta: int, site: Site, trace: Trace) -> None:
        op = trace.op
        if op.kind == "wgmma":
            rule, what, repair = (
                "exit with wgmma in flight",
                "may still read its shared memory",
                "execute wgmma.commit_group and wgmma.wait_group 0 before the CTA ends",
            )
        elif op.kind in STORES:
            rule, what, repair = (
                "exit before store read",
                "may still read its shared memory",
                "the issuing thread commits and executes cp.async.bulk.wait_group.read 0 before it leaves",
            )
        else:
            rule, what, repair = (
                "exit with copy in flight",
                "may still write its shared memory",
                "some thread of the CTA waits for every copy into its shared memory before the CTA ends",
            )
        barrier = self.machine.describe_barrier(op.barrier) if op.barrier is not None else ""
        kind, who = KINDS.get(op.kind, op.kind), threads_in_words(op.cta, op.threads)
        self.reporter.add(
            Finding(
                rule=rule,
                message=f"CTA {cta} ends while the {kind} of {who} {what}",
                repair=repair,
                site=op.site,
                other_site=site,
                cta=op.cta,
                warp=int(op.threads[0]) // WARP,
                lane=int(op.threads[0]) % WARP if len(op.threads) == 1 else None,
                barrier=barrier,
            )
        )


def _arrived(access: Access, known: Clock) -> bool:
    return any(time_of(known, cta, place) >= time for cta, place, time in access.arrivals)
