"""What the emulator tells an observer, as plain values and one protocol: no machine, no rules.

The machine calls an Observer in the order of execution; without one the same code runs and nothing here is touched.
Shared memory is one flat byte space of all resident CTAs (machine.smem_owner takes a flat address apart); global
addresses are the kernel's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine

Addresses = NDArray[np.int64]
Threads = NDArray[np.int64]
Space = Literal["shared", "global"]


@dataclass(frozen=True, eq=False)
class Site:
    """One PTX instruction. `line` counts from 1; `source_chain` goes from the innermost CUDA line outwards."""

    line: int
    opcode: str
    text: str = ""
    source_chain: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The innermost CUDA line as "file.cu:123", "" without -lineinfo."""
        return self.source_chain[0] if self.source_chain else ""

    def __str__(self) -> str:
        where = f"{self.opcode} at PTX line {self.line}"
        return f"{where} ({' from '.join(self.source_chain)})" if self.source_chain else where


@dataclass(eq=False)
class AsyncOp:
    """One asynchronous operation, which is its own agent.

    `barrier` is the flat address of the mbarrier that it signals; a multicast signals the same offset in each target.
    `group` is None until a commit, and for families without groups.
    """

    kind: str
    site: Site
    cta: int
    threads: Threads
    number: int
    barrier: int | None = None
    group: int | None = None
    state: Literal["issued", "read", "done"] = "issued"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One broken rule: what happened, where, and one sentence that says what would repair it."""

    rule: str
    message: str
    repair: str
    site: Site
    other_site: Site | None = None
    cta: int | None = None
    warp: int | None = None
    lane: int | None = None
    barrier: str = ""
    facts: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        place = ", ".join(f"{name} {value}" for name, value in self._place() if value is not None)
        lines = [f"{self.rule}: {self.message}", f"at {self.site}" + (f" [{place}]" if place else "")]
        if self.other_site is not None:
            lines.append(f"against {self.other_site}")
        if self.barrier:
            lines.append(self.barrier)
        return "\n  ".join([*lines, *self.facts, f"repair: {self.repair}"])

    def _place(self) -> tuple[tuple[str, int | None], ...]:
        return (("CTA", self.cta), ("warp", self.warp), ("lane", self.lane))


class Observer:
    """Hears every access and every synchronisation. This class hears them and does nothing.

    Threads of one call are of one CTA, in rising order, and act at the same time.
    """

    def begin(self, machine: Machine) -> None:
        """The launch is set up; nothing has run."""

    def cta_start(self, cta: int, cluster: int, rank: int, num_threads: int) -> None:
        """The CTA is resident: its shared memory is new."""

    def access(
        self,
        site: Site,
        cta: int,
        threads: Threads,
        space: Space,
        addresses: Addresses,
        size: int,
        kind: Literal["read", "write", "atomic"],
        proxy: str,
        semantics: str,
        scope: str,
    ) -> None:
        """One access of `size` bytes a thread, by the threads themselves (generic proxy)."""

    def op_issue(self, op: AsyncOp) -> None:
        """The operation was issued; it has done nothing yet."""

    def op_read(self, op: AsyncOp, space: Space, starts: Addresses, size: int) -> None:
        """The operation read `size` bytes from each start."""

    def op_write(self, op: AsyncOp, space: Space, starts: Addresses, size: int) -> None:
        """The operation wrote `size` bytes to each start."""

    def op_complete_tx(self, op: AsyncOp, barrier: int, num_bytes: int, phase: int) -> None:
        """The operation's bytes were counted in this phase of the mbarrier."""

    def op_done(self, op: AsyncOp) -> None:
        """The operation has no effect left."""

    def commit(self, site: Site, cta: int, threads: Threads, family: str, group: int, ops: tuple[AsyncOp, ...]) -> None:
        """The threads closed a group of the family "wgmma", "cp_async" or "bulk"."""

    def wait_group(
        self, site: Site, cta: int, threads: Threads, family: str, ops: tuple[AsyncOp, ...], read_only: bool
    ) -> None:
        """The threads now know that these operations are done, or that their sources are read."""

    def wgmma_fence(self, site: Site, cta: int, threads: Threads) -> None:
        """wgmma.fence."""

    def fence(self, site: Site, cta: int, threads: Threads, kind: str) -> None:
        """A fence of the kind "proxy.async...", "mbarrier_init", "acq_rel.SCOPE" or "sc.SCOPE"."""

    def bar_arrive(self, site: Site, cta: int, threads: Threads, barrier: int, generation: int, waits: bool) -> None:
        """The threads arrived at a named barrier."""

    def bar_leave(self, site: Site, cta: int, threads: Threads, barrier: int, generation: int) -> None:
        """The threads go on: every arrival of this generation came before."""

    def cluster_arrive(self, site: Site, cta: int, threads: Threads, generation: int, semantics: str) -> None:
        """barrier.cluster.arrive."""

    def cluster_leave(self, site: Site, cta: int, threads: Threads, generation: int, semantics: str) -> None:
        """barrier.cluster.wait succeeded."""

    def warp_sync(self, site: Site, cta: int, threads: Threads) -> None:
        """The lanes of each warp among the threads met."""

    def mbarrier_init(self, site: Site, cta: int, thread: int, barrier: int, count: int) -> None:
        """mbarrier.init."""

    def mbarrier_inval(self, site: Site, cta: int, thread: int, barrier: int) -> None:
        """mbarrier.inval."""

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
        """Each thread made `count` arrivals on this phase, and announced bytes."""

    def mbarrier_expect(self, site: Site, cta: int, threads: Threads, barrier: int, num_bytes: int, phase: int) -> None:
        """mbarrier.expect_tx without an arrival."""

    def mbarrier_phase(self, barrier: int, phase: int) -> None:
        """The phase has just completed; phases count from 0."""

    def mbarrier_wait(
        self, site: Site, cta: int, threads: Threads, barrier: int, phase: int, semantics: str, scope: str
    ) -> None:
        """A test or try succeeded: the phase is complete. -1: parity 1 of a fresh barrier."""

    def setmaxnreg(self, site: Site, cta: int, threads: Threads, direction: str, registers: int) -> None:
        """setmaxnreg took effect."""

    def exit(self, site: Site, cta: int, threads: Threads) -> None:
        """The threads left."""

    def cta_exit(self, cta: int) -> None:
        """The last thread of the CTA left."""

    def end(self) -> None:
        """Every CTA has left and no asynchronous operation is pending."""


def error_facts(site: Site | None) -> dict[str, Any]:
    """The keywords that tell an EmulationError where it happened."""
    return {} if site is None else {"line": site.line, "source": site.source}
