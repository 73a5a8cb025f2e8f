"""What a tuning found out, as values: one row a candidate, and the winner. Knows nothing of how it was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.config import Config
from tilewright.device import Device
from tilewright.problem import Problem
from tilewright.records import Record
from tilewright.tuning.race import Decided

Status = Literal["fastest", "equal", "slower", "unfinished", "wrong", "fault", "hung", "not compiled"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one candidate. Units: microseconds; None where it was not timed."""

    config: Config
    family: str
    predicted_us: float
    status: Status
    why: str = ""
    median_us: float | None = None
    spread: float | None = None
    rounds: int = 0


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The outcome of one tuning; str() gives it as lines.

    `record` is the winner, None where the budget ended before the rounds told anything. `decided`: "clear", the winner
    is faster by more than the noise; "tie", it is the first in the family's order of those that are not; "budget", time
    ended first. `untuned` is what the model would have chosen. `kept`: the record is in the user's file.
    """

    problem: Problem
    device: Device
    record: Record | None
    decided: Decided
    verdict: str
    untuned: Config
    rows: tuple[Row, ...]
    seconds: float
    kept: bool

    @property
    def untuned_ratio(self) -> float | None:
        """How many times as long the model's own choice took as the winner; None where it was not timed."""
        times = {row.config: row.median_us for row in self.rows}
        own = times.get(self.untuned)
        return None if own is None or self.record is None else own / self.record.measured_us

    def __str__(self) -> str:
        head = f"{self.problem} on {self.device}: {self.verdict}"
        if self.record is not None:
            head = f"{head}\n  {self.record.config}, {self.record.measured_us:.1f} us"
            head += ", kept" if self.kept else ", not kept"
        lines = [
            f"  {row.status:<12} {'-' if row.median_us is None else f'{row.median_us:.1f} us':>12}  {row.config}"
            + (f": {row.why}" if row.why else "")
            for row in self.rows
        ]
        return "\n".join((head, *lines))
