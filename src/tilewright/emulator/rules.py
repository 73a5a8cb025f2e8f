"""What each kind of unordered pair is called, in words, and what repairs it. Knows no clocks.

A pair is judged by which access was issued first: that one should have come to its end, and been handed on, before the
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.clocks import FENCED_SHARED, ORDERED, WRITTEN
from tilewright.emulator.events import Finding, Site
from tilewright.emulator.launch import WARP
from tilewright.emulator.order import Meeting
from tilewright.emulator.shadow import Access, AnyAccess, AsyncAccess

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine

# Every rule that the checker may report, with what it means. Rules of the machine itself are EmulationErrors.
RULES: dict[str, str] = {
    "data race": "two threads touch the same bytes, one of them writes, and nothing orders them",
    "missing __syncwarp": "lanes of one warp hand data to each other with no bar.warp.sync between",
    "missing proxy fence": "asynchronous work meets an ordinary write with no fence.proxy.async between",
    "scope too narrow": "ordinary writes are handed to another CTA by an operation whose scope is the CTA",
    "copy not waited for": "bytes that an asynchronous copy writes are touched before anybody has seen it complete",
    "cp.async not waited for": "bytes that a cp.async writes are touched without its wait_group and a barrier",
    "operand released early": "bytes that a wgmma still reads are written",
    "store source overwritten": "bytes that a bulk store still reads are written",
    "refilled while read": "an asynchronous copy writes bytes that threads may still read or write",
    "unordered copies": "two asynchronous copies write the same bytes and nothing orders them",
    "unordered global copies": "asynchronous copies to and from global memory meet and nothing orders them",
    "mbarrier init order": "an mbarrier is used by an agent that its init does not come before",
    "mbarrier init fence": "an mbarrier's init is not fenced for asynchronous copies that signal it",
    "mbarrier bytes": "the bytes of a live mbarrier are read or written",
    "exit before store read": "a CTA ends while a bulk store may still read its shared memory",
    "exit with copy in flight": "a CTA ends while an asynchronous copy may still write its shared memory",
    "exit with wgmma in flight": "a CTA ends before its wgmmas have been waited for",
    "exit before remote access": "a CTA ends while another CTA may still access its shared memory",
}

KINDS: dict[str, str] = {
    "tma_load": "TMA load",
    "tma_store": "TMA store",
    "tma_reduce": "TMA reduction",
    "bulk_load": "bulk load",
    "bulk_store": "bulk store",
    "bulk_copy": "bulk copy to shared memory",
    "st_async": "st.async",
    "cp_async": "cp.async",
    "wgmma": "wgmma",
}
STORES = ("tma_store", "tma_reduce", "bulk_store", "bulk_copy")


@dataclass(frozen=True)
class Conflict:
    """A pair without order. `row`: what was asked; `ordered`: it came before, `written`: and its writes are visible."""

    access: AnyAccess
    other: AnyAccess
    meeting: Meeting
    row: int
    ordered: bool
    written: bool


class Reporter:
    """Turns conflicts into findings, each pair of instructions once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.seen: set[tuple[str, frozenset[tuple[str, ...] | int]]] = set()
        self.machine: Machine | None = None

    def add(self, finding: Finding) -> None:
        """Keeps a finding unless its pair is known."""
        key = _key(finding.rule, finding.site, finding.other_site)
        if key not in self.seen:
            self.seen.add(key)
            self.findings.append(finding)

    def conflict(self, found: Conflict) -> None:
        """Reports a pair."""
        accesses = (found.access, found.other)
        first, second = accesses if found.access.order < found.other.order else accesses[::-1]
        meeting = found.meeting
        mine = found.access is second
        threads = (meeting.other_thread, meeting.thread) if mine else (meeting.thread, meeting.other_thread)
        rule, repair = judged(found, first, second, _warp(first, threads[0]) == _warp(second, threads[1]))
        if _key(rule, second.site, first.site) in self.seen:
            return
        bytes_met = self.place(first.space, meeting.first, meeting.last)
        one, two = self.agent(first, threads[0]), self.agent(second, threads[1])
        barrier = self._barrier(first) or self._barrier(second)
        cta, thread = _identity(second, threads[1])
        self.add(
            Finding(
                rule=rule,
                message=f"{two} {_verb(second)} {bytes_met}, which {one} {_verb(first)}{_state(found, first)}",
                repair=repair,
                site=second.site,
                other_site=first.site,
                cta=cta,
                warp=None if thread < 0 else thread // WARP,
                lane=None if thread < 0 else thread % WARP,
                barrier=barrier,
            )
        )

    def place(self, space: str, first: int, last: int) -> str:
        """A range of bytes in words."""
        machine = self.machine
        if machine is None:
            return f"{space} {first:#x}..{last:#x}"
        if space == "shared":
            cta, offset = machine.smem_owner(first)
            start = offset - machine.smem.first
            return f"bytes smem+{start}..{start + last - first} of CTA {cta}"
        buffer = machine.memory.find(first, last + 1)
        if buffer is None:
            return f"global bytes {first:#x}..{last:#x}"
        return f"bytes {first - buffer.address}..{last - buffer.address} of buffer {buffer.name!r}"

    def agent(self, access: AnyAccess, thread: int) -> str:
        """Who makes an access, in words."""
        if isinstance(access, AsyncAccess):
            op = access.trace.op
            return f"the {KINDS.get(op.kind, op.kind)} issued by {threads_in_words(op.cta, op.threads)}"
        who = access.threads if thread < 0 else np.array([thread])
        if access.op is not None:
            return f"the cp.async of {threads_in_words(access.cta, who)}"
        return threads_in_words(access.cta, who)

    def _barrier(self, access: AnyAccess) -> str:
        if isinstance(access, AsyncAccess) and access.trace.op.barrier is not None and self.machine is not None:
            return self.machine.describe_barrier(access.trace.op.barrier)
        return ""


def _key(rule: str, site: Site, other: Site | None) -> tuple[str, frozenset[tuple[str, ...] | int]]:
    """What makes two findings the same: the rule and the places in the CUDA source, or in the PTX without one."""
    places = (site, other) if other is not None else (site,)
    return rule, frozenset(place.source_chain or place.line for place in places)


def threads_in_words(cta: int, threads: NDArray[np.int64]) -> str:
    """CTA, warps and lanes."""
    first, last = int(threads[0]), int(threads[-1])
    if first // WARP != last // WARP:
        return f"CTA {cta} warps {first // WARP}..{last // WARP}"
    if first == last:
        return f"CTA {cta} warp {first // WARP} lane {first % WARP}"
    return f"CTA {cta} warp {first // WARP} lanes {first % WARP}..{last % WARP}"


def _identity(access: AnyAccess, thread: int) -> tuple[int, int]:
    if isinstance(access, AsyncAccess):
        op = access.trace.op
        return op.cta, int(op.threads[0]) if len(op.threads) == 1 else -1
    return access.cta, thread if thread >= 0 else int(access.threads[0])


def _verb(access: AnyAccess) -> str:
    return "writes" if access.writes else "reads"


def _state(found: Conflict, first: AnyAccess) -> str:
    if found.row >= FENCED_SHARED and found.written:
        return ", in order but with no fence.proxy.async between"
    if found.row != ORDERED and found.ordered:
        return ", in order but with a scope that does not reach the other CTA"
    if isinstance(first, AsyncAccess):
        return ", not known to have ended"
    return ", with nothing that orders the two"


def judged(found: Conflict, first: AnyAccess, second: AnyAccess, same_warp: bool) -> tuple[str, str]:
    """(rule, repair) of a conflict whose first access was issued first."""
    if found.row >= FENCED_SHARED and found.written:
        space = "global" if first.space == "global" else "shared::cta"
        return "missing proxy fence", (
            f"every writing thread executes fence.proxy.async.{space} after its writes and before the barrier that "
            "hands them on"
        )
    if found.row >= WRITTEN and found.ordered:
        reach = "cluster" if first.space == "shared" else "gpu"
        return "scope too narrow", f"give the release and the acquire between the two the scope .{reach}"
    if isinstance(first, AsyncAccess):
        return _after_async(first, second)
    if first.op is not None:
        return "cp.async not waited for", (
            "the issuing threads wait (cp.async.wait_group, or an mbarrier by cp.async.mbarrier.arrive), then a "
            "barrier hands the bytes on"
        )
    return _after_threads(first, second, same_warp)


def _after_async(first: AsyncAccess, second: AnyAccess) -> tuple[str, str]:
    op = first.trace.op
    if first.writes:
        if isinstance(second, AsyncAccess) and second.writes:
            return "unordered copies", "wait for the first copy before the second is issued"
        if op.kind in STORES and op.barrier is None:
            return "unordered global copies", (
                "the issuing thread waits (cp.async.bulk.wait_group without .read), then releases; the reader acquires"
            )
        return "copy not waited for", (
            "wait for the phase of the mbarrier that counts the copy's bytes before touching them"
        )
    if op.kind == "wgmma":
        return "operand released early", (
            "execute wgmma.wait_group before the arrival that releases the bytes, and wait for that arrival before "
            "writing them"
        )
    if op.kind in STORES and first.space == "shared":
        return "store source overwritten", (
            "the issuing thread executes cp.async.bulk.wait_group.read, then __syncwarp or a barrier, before the bytes "
            "are written again"
        )
    return "refilled while read", "wait for the copy that reads the bytes before they are written"


def _after_threads(first: Access, second: AnyAccess, same_warp: bool) -> tuple[str, str]:
    if isinstance(second, AsyncAccess) and second.writes and second.space == "shared":
        return "refilled while read", (
            "threads arrive on a barrier after their last access, and the issuer of the copy waits for it first"
        )
    if same_warp:
        return "missing __syncwarp", "execute __syncwarp (bar.warp.sync) between the two"
    if first.space == "global":
        return "data race", (
            "the first releases (fence and flag, or st.release / red.release at scope .gpu) and the second acquires "
            "it, or both are atomics"
        )
    if _cta(first) != _cta(second):
        return "data race", "a cluster barrier (arrive.release, wait.acquire) or an mbarrier stands between the two"
    return "data race", "a barrier (__syncthreads, barrier.sync or an mbarrier) stands between the two"


def _cta(access: AnyAccess) -> int:
    return access.trace.op.cta if isinstance(access, AsyncAccess) else access.cta


def _warp(access: AnyAccess, thread: int) -> tuple[int, int]:
    """(CTA, warp) of the thread that met; a wgmma is of no one warp."""
    if isinstance(access, AsyncAccess):
        op = access.trace.op
        return op.cta, int(op.threads[0]) // WARP if len(op.threads) == 1 else -1
    warps = set((access.threads // WARP).tolist()) if thread < 0 else {thread // WARP}
    return access.cta, warps.pop() if len(warps) == 1 else -2
