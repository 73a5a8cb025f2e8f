"""The fastest of hundreds of candidates in seconds: one short sample of each, then successive halving.

Knows nothing of what a candidate is; a candidate whose launch raises LibraryError is left out with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import LibraryError
from tilewright.timing import MAX_CALLS, MIN_CALLS, Candidate, Machine, interleaved

SCREEN_US = 300.0  # one sample of the first look
SCREEN_CALLS = 64  # at most, in one sample
ANCHOR_EVERY = 8  # candidates between two looks at the first one: the card's clock drifts while it works
FAR = 3.0  # times the best: slower than this in its first call, a candidate gets no second
LOAD_US = 50_000.0  # what a first call may add to itself by loading its kernel
CAPTURE_US = 15.0  # of the host, to put one call into a graph through ctypes


@dataclass(frozen=True)
class Rung:
    """One stage of the race. `keep` is how many enter it, the best of the stage before."""

    keep: int
    rounds: int
    sample_us: float


RUNGS = (Rung(24, 2, 1000.0), Rung(12, 3, 2000.0), Rung(6, 9, 4000.0))


@dataclass
class Screened:
    """What the first look found. Units: microseconds; `relative` is the time over the first candidate's nearest one."""

    times_us: dict[str, float] = field(default_factory=dict)
    relative: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def order(self) -> list[str]:
        """Names, the fastest first."""
        return sorted(self.relative, key=self.relative.__getitem__)


def screen(machine: Machine, candidates: Sequence[Candidate], *, until_s: float) -> Screened:
    """One cold sample of each candidate, in their order; those that the time did not suffice for are in no field.

    Times are taken relative to the first candidate that runs, which is timed again every ANCHOR_EVERY candidates:
    what is looked at first meets a cool card and would win for that alone.
    """
    found = Screened()
    anchor: Candidate | None = None
    anchor_us = best_us = float("inf")
    for index, candidate in enumerate(candidates):
        if anchor is not None and machine.now_s() > until_s:
            break
        try:
            us = _sampled_us(machine, candidate, best_us)
        except LibraryError as error:
            found.failed[candidate.name] = str(error)
            continue
        if anchor is None:
            anchor, anchor_us = candidate, us
        elif index % ANCHOR_EVERY == 0:
            anchor_us = _sampled_us(machine, anchor, best_us)
        best_us = min(best_us, us)
        found.times_us[candidate.name] = us
        found.relative[candidate.name] = us / anchor_us
    return found


def race(
    machine: Machine,
    candidates: Sequence[Candidate],
    times_us: Mapping[str, float],
    *,
    until_s: float,
    rungs: Sequence[Rung] = RUNGS,
    seed: int = 0,
) -> list[tuple[Candidate, float]]:
    """(candidate, median microseconds) of those that reached the last rung, the fastest first.

    `candidates` come with the most promising first, `times_us` are their rough times. Fewer enter a rung when the time
    would not suffice, though never fewer than two, and the last rung always runs.
    """
    entrants = list(candidates)
    results: list[tuple[Candidate, float]] = []
    for number, rung in enumerate(rungs):
        is_last = number == len(rungs) - 1
        share = 1.0 if is_last else 0.5  # of the time that is left
        left_us = max(0.0, until_s - machine.now_s()) * 1e6 * share
        entrants = affordable(entrants[: rung.keep], times_us, rung, left_us)
        if len(entrants) <= 2 and not is_last:
            continue
        timing = interleaved(machine, entrants, rounds=rung.rounds, sample_us=rung.sample_us, seed=seed + number)
        results = [(candidate, timing.sample(candidate.name).median_us) for candidate in entrants]
        results.sort(key=lambda result: result[1])
        entrants = [candidate for candidate, _ in results]
    return results


def affordable(
    candidates: Sequence[Candidate], times_us: Mapping[str, float], rung: Rung, left_us: float
) -> list[Candidate]:
    """As many of the first candidates as their time on a rung allows, at least two."""
    kept: list[Candidate] = []
    for candidate in candidates:
        left_us -= cost_us(times_us[candidate.name], candidate.num_sets, rung)
        if left_us < 0 and len(kept) >= 2:
            break
        kept.append(candidate)
    return kept


def cost_us(call_us: float, num_sets: int, rung: Rung) -> float:
    """About what one candidate takes on a rung: every operand set once, a trial, and the rounds."""
    trial_calls = max(MIN_CALLS, min(num_sets, 8))
    calls = max(MIN_CALLS, min(MAX_CALLS, round(rung.sample_us / call_us)))
    sample_us = max(rung.sample_us, calls * call_us)
    host_us = (num_sets + trial_calls + calls) * CAPTURE_US
    return max(host_us, (num_sets + 2 * trial_calls) * call_us) + (rung.rounds + 1) * sample_us


def _sampled_us(machine: Machine, candidate: Candidate, best_us: float) -> float:
    """Microseconds of a call, from one cold sample."""
    us = _timed_us(machine, candidate, 0)
    if us > FAR * best_us + LOAD_US:
        return us
    us = max(_timed_us(machine, candidate, 1 % candidate.num_sets), 0.1)
    calls = min(SCREEN_CALLS, round(SCREEN_US / us))
    if calls < 2:
        return us

    def enqueue() -> None:
        for index in range(calls):
            candidate.launch(index % candidate.num_sets)

    run, _ = machine.capture(enqueue)
    machine.flush_l2()
    start = machine.record()
    run()
    stop = machine.record()
    machine.wait(stop)
    return max(machine.elapsed_us(start, stop) / calls, 0.01)


def _timed_us(machine: Machine, candidate: Candidate, index: int) -> float:
    """One call behind a flush of the L2, during which the host enqueues it: no launch gap is timed."""
    machine.flush_l2()
    start = machine.record()
    candidate.launch(index)
    stop = machine.record()
    machine.wait(stop)
    return machine.elapsed_us(start, stop)
