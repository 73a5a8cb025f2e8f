"""Who is fastest, and when that is known: rounds of times in, a winner and the reason for stopping out.

Compares within rounds: what drifts between them is in both times of a pair and cancels. Knows nothing of devices,
of configs or of clocks: a runner is a number, its place in the family's order, which breaks ties the same everywhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Decided = Literal["clear", "tie", "budget"]

MIN_ROUNDS = 9  # fewer tell little of their own spread
MAX_ROUNDS = 60  # about 4 ms a runner and round: what is not apart by then is called a tie
# A gap counts when it is this many standard errors of the median of the pairs' ratios. Every round is another look at
# the same question. With these figures two equal runners are told apart wrongly in 1 of 100 races, a gap of 1 % is seen
# in 20 rounds at 0.5 % noise and in 44 at 1 % (simulated, 300 races each, 2026-11-30; tests/tuning/test_race.py).
NOISE_FACTOR = 4.0
RESOLUTION = 0.003  # and it is at least this: one process differs from the next by as much
SAME = 0.005  # a gap below this, noise included, decides nothing for anybody: the model's own indifference
_MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, normal noise: sqrt(pi / 2)
_FEW = 6  # the deviation of few samples is often far too small: 9 rounds count as 1.7 times as noisy as they look
_MAD_SIGMA = 1.4826  # standard deviation over median absolute deviation, normal noise


@dataclass(frozen=True)
class Gap:
    """How much slower than the leader, as parts of its time: the median over rounds, and how far that is to be
    trusted."""

    median: float
    noise: float

    @property
    def is_slower(self) -> bool:
        """Whether it is more than noise."""
        return self.median > max(self.noise, RESOLUTION)

    @property
    def is_same(self) -> bool:
        """Whether it cannot matter."""
        return self.median + self.noise < SAME


@dataclass
class Race:
    """The times of every runner by complete round; `running` are those that may still win."""

    running: list[int]
    times: dict[int, list[float]] = field(default_factory=dict)
    lost_to: dict[int, tuple[int, Gap]] = field(default_factory=dict)  # who was clearly slower, than whom, by how much

    @property
    def rounds(self) -> int:
        """Complete rounds of those that are running."""
        return len(self.times.get(self.running[0], ())) if self.running else 0

    def add(self, round_us: Mapping[int, float]) -> None:
        """One complete round of everybody who runs; whoever is clearly slower by now runs no more."""
        for runner in self.running:
            self.times.setdefault(runner, []).append(round_us[runner])
        if not self.is_telling:
            return
        leader = self.leader()
        gaps = {runner: self.gap(runner, leader) for runner in self.running if runner != leader}
        self.lost_to |= {runner: (leader, gap) for runner, gap in gaps.items() if gap.is_slower}
        self.running = [runner for runner in self.running if runner not in self.lost_to]

    def drop(self, runner: int) -> None:
        """Takes a runner out, whatever it did so far."""
        self.running.remove(runner)

    def leader(self) -> int:
        """The runner of the smallest median; of equals the first in order."""
        return min(self.running, key=lambda runner: (statistics.median(self.times[runner]), runner))

    def gap(self, runner: int, leader: int) -> Gap:
        """By how much a runner is behind the leader, over the rounds that both ran."""
        pairs = zip(self.times[runner], self.times[leader], strict=False)
        ratios = [own / best for own, best in pairs]
        median = statistics.median(ratios)
        deviation = statistics.median(abs(ratio - median) for ratio in ratios)
        error = _MEDIAN_ERROR * _MAD_SIGMA * deviation / math.sqrt(len(ratios))
        return Gap(median - 1, NOISE_FACTOR * error * (1 + _FEW / len(ratios)))

    def decided(self) -> Decided | None:
        """Why the race is over, or None while it is not."""
        if not self.is_telling:
            return None
        if len(self.running) == 1:
            return "clear"
        leader = self.leader()
        others = [runner for runner in self.running if runner != leader]
        if self.rounds >= MAX_ROUNDS or all(self.gap(runner, leader).is_same for runner in others):
            return "tie"
        return None

    def winner(self) -> int:
        """Of those that nobody has shown to be slower, the first in order."""
        return min(self.running)

    @property
    def is_telling(self) -> bool:
        """Whether there were rounds enough for a winner to mean something."""
        return self.rounds >= MIN_ROUNDS

    def verdict(self, decided: Decided) -> str:
        """The decision as a sentence, with its numbers."""
        if not self.is_telling:
            return f"the time ended after {self.rounds} of the {MIN_ROUNDS} rounds that tell candidates apart"
        others = [runner for runner in self.running if runner != self.winner()]
        rounds = f"{self.rounds} rounds"
        if decided == "clear":
            if not self.lost_to:
                return f"the only candidate that ran, timed over {rounds}"
            nearest = min((gap for _, gap in self.lost_to.values()), key=lambda gap: gap.median)
            return f"clearly the fastest: the next is {nearest.median:.1%} slower, noise {nearest.noise:.1%}"
        leader = self.leader()
        noise = max((self.gap(runner, leader).noise for runner in self.running if runner != leader), default=0.0)
        order = f"{len(others) + 1} candidates are equal within the noise of {noise:.1%}, the first in order wins"
        if not others:
            order = "one candidate was left"
        if decided == "budget":
            return f"the time ended after {rounds}: {order}"
        return f"a tie after {rounds}: {order}"


def spread(times: Sequence[float]) -> float:
    """The distance between the quartiles over the median."""
    from tilewright.timing import quartiles  # here: timing.py loads the driver's room, and naming tune() must not

    lower, median, upper = quartiles(times)
    return (upper - lower) / median
