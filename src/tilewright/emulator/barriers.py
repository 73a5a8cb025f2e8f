"""The state of the three kinds of barriers: mbarriers, named barriers of a CTA, the barrier of a cluster.

Knows their counts and phases, the errors of using them wrongly, and who waits. Knows nothing of threads' registers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.emulator.team import Fragment

MAX_COUNT = (1 << 20) - 1  # of arrivals and of bytes. Source: PTX ISA, mbarrier


class BarrierError(Exception):
    """(rule, sentence): a barrier was used against its rules."""

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        self.message = message
        super().__init__(rule, message)


@dataclass(eq=False)
class Mbarrier:
    """One mbarrier. Phase `phase` is under way; it completes when no arrival and no byte is pending.

    Units: arrivals; bytes for `tx`, which may be negative for a while: bytes that came before they were announced.
    """

    address: int  # flat
    count: int
    phase: int = 0
    pending: int = 0
    tx: int = 0
    observed: bool = True  # somebody has seen the last completed phase complete
    waiters: list[Fragment] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_COUNT:
            raise BarrierError(
                "mbarrier count", f"mbarrier.init with {self.count} arrivals; 1 .. {MAX_COUNT} are allowed"
            )
        self.pending = self.count

    def arrive(self, count: int) -> bool:
        """`count` arrivals. Whether the phase completed."""
        if self.phase and not self.observed:
            raise BarrierError(
                "missing wait",
                f"an arrival on phase {self.phase} of an mbarrier whose phase {self.phase - 1} nobody has waited for",
            )
        if count > self.pending:
            raise BarrierError(
                "mbarrier over-arrival",
                f"{count} arrival(s) where phase {self.phase} expects {self.pending} more of {self.count}",
            )
        self.pending -= count
        return self.settle()

    def expect(self, num_bytes: int) -> bool:
        """Announces bytes. Whether the phase completed (bytes that came early may settle it)."""
        self.tx += num_bytes
        self._check_tx()
        return False

    def complete(self, num_bytes: int) -> bool:
        """Bytes have come. Whether the phase completed."""
        self.tx -= num_bytes
        self._check_tx()
        return self.settle()

    def settle(self) -> bool:
        """Ends the phase if nothing is pending."""
        if self.pending or self.tx:
            return False
        self.phase += 1
        self.pending = self.count
        self.observed = False
        return True

    def is_complete(self, parity: int) -> bool:
        """Whether the phase of this parity has completed; a fresh barrier counts as having completed parity 1."""
        return (self.phase & 1) != parity

    def _check_tx(self) -> None:
        if abs(self.tx) > MAX_COUNT:
            raise BarrierError("mbarrier tx-count", f"the tx-count becomes {self.tx}; +-{MAX_COUNT} is its range")

    def __str__(self) -> str:
        return f"phase {self.phase}, {self.count - self.pending} of {self.count} arrived, tx-count {self.tx} bytes"


@dataclass(eq=False)
class NamedBarrier:
    """One of a CTA's 16 barriers. Units: threads."""

    number: int
    expected: int = 0  # 0: all threads of the CTA that have not left
    arrived: int = 0
    generation: int = 0
    waiters: list[Fragment] = field(default_factory=list)


@dataclass(eq=False)
class ClusterBarrier:
    """The barrier of one cluster. Units: threads; those that have left count as arrived."""

    arrived: int = 0
    generation: int = 0
    waiters: list[Fragment] = field(default_factory=list)
