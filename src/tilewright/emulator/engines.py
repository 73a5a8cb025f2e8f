"""Asynchronous work: what was issued and has effects left, and when each step of it happens.

Each piece of work has one or two steps: read its sources, then write its results and signal. When a step happens is
the schedule's business; that it must have happened is a wait's, which finishes work through the engine. Knows no kind
of work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.emulator.barriers import BarrierError
from tilewright.emulator.events import AsyncOp, Site, error_facts
from tilewright.errors import EmulationError

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine


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
            raise self.machine.stuck(
                "deadlock: asynchronous work waits for threads that have not issued it", "deadlock"
            )


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
