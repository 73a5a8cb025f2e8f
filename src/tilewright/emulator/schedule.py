"""Which vector runs next, and when asynchronous work takes effect. Three policies; one seed makes one run.

lazy: asynchronous work is done when somebody must wait for it, or nobody can run. eager: at its issue. random: at any
time, in random order, with vectors interleaved after few blocks and with try_wait failing at random.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

import numpy as np

from tilewright.errors import EmulationError

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine
    from tilewright.emulator.team import Team

Policy = Literal["lazy", "eager", "random"]
POLICIES: tuple[Policy, ...] = ("lazy", "eager", "random")

TURN_BLOCKS = 2000  # blocks that a vector runs before others get their turn: only spinning ones need that many
RANDOM_TURN_BLOCKS = 24
RANDOM_COMPLETIONS = 0.3  # chance before each turn that a piece of asynchronous work is done
RANDOM_FAILURES = 0.1  # chance that a try_wait which could succeed returns false


class Schedule:
    """The policy of one run."""

    def __init__(self, policy: Policy, seed: int) -> None:
        if policy not in POLICIES:
            raise EmulationError(f"schedule {policy!r} is none of {', '.join(POLICIES)}", rule="launch")
        self.policy = policy
        self.is_eager = policy == "eager"
        self.is_random = policy == "random"
        self.generator = np.random.default_rng(seed)

    def pick(self, queue: deque[Team]) -> Team:
        """Takes a vector off the queue."""
        if self.is_random and len(queue) > 1:
            position = int(self.generator.integers(len(queue)))
            team = queue[position]
            del queue[position]
            return team
        return queue.popleft()

    def turn(self) -> int:
        """Blocks of one turn."""
        return int(self.generator.integers(1, RANDOM_TURN_BLOCKS)) if self.is_random else TURN_BLOCKS

    def fails(self) -> bool:
        """Whether a try_wait fails for no reason."""
        return self.is_random and bool(self.generator.random() < RANDOM_FAILURES)

    def advance(self, machine: Machine) -> None:
        """Before a turn: lets asynchronous work happen."""
        if self.is_random and machine.engine.pending and self.generator.random() < RANDOM_COMPLETIONS:
            pending = list(machine.engine.pending.values())
            machine.engine.advance(pending[int(self.generator.integers(len(pending)))])
