"""The one clock: how long calls take on a GPU, in the three kinds of time that such a card has.

burst        the first 12 ms after half a second of idleness: the tensor cores' limit
interleaved  columns take turns, about 4 ms each, inputs cold: the fair comparison
steady       the second half of seconds of back-to-back calls: the power limit

Beside them `single` is one launch at a time on an idle GPU: what a call costs that nothing follows.
The three differ by 15 to 25 % for one kernel (measured, H200, 2026-11-29): compare only within one kind and one run.
Knows nothing of GEMM, of kernels or of array libraries: a candidate is a name and a function that enqueues call i.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from tilewright.backends.cuda import CudaBackend
from tilewright.backends.memory import Buffer
from tilewright.backends.nvml import Reading, Sampler, sampler
from tilewright.backends.stream import Stream
from tilewright.errors import DriverError

Mode = Literal["burst", "interleaved", "steady", "single"]

SAMPLE_US = 4_000.0  # one interleaved sample of one column: long enough that launch and event cost vanish
BURST_US = 12_000.0
IDLE_S = 0.5  # lets the card's power average and clock recover before a burst
STEADY_S = 2.0  # the second half is timed: NVML's power is an average over a second
MIN_CALLS, MAX_CALLS = 2, 256  # calls in one graph
COLD_FACTOR = 4  # operand sets together exceed this many times the L2


@dataclass(frozen=True)
class Candidate:
    """One column: `launch(i)` enqueues a call on operand set i % num_sets, on the clock's stream."""

    name: str
    launch: Callable[[int], None]
    num_sets: int = 1


class Machine(Protocol):
    """What the clock asks of a device. `CudaMachine` is the real one; tests bring their own."""

    def record(self) -> Any:
        """An event after everything enqueued so far."""
        ...

    def wait(self, event: Any) -> None:
        """Block until the event has happened."""
        ...

    def elapsed_us(self, start: Any, stop: Any) -> float:
        """Between two events that have happened; both are used up."""
        ...

    def capture(self, enqueue: Callable[[], None]) -> tuple[Callable[[], None], bool]:
        """What replays `enqueue`'s work with no gaps between launches, and True; or `enqueue` itself, and False."""
        ...

    def flush_l2(self) -> None:
        """Enqueue writes that leave none of the operands in the L2."""
        ...

    def idle(self, seconds: float) -> None:
        """Wait until all work is done, and then the given time."""
        ...

    def now_s(self) -> float:
        """The host's clock, the same that readings are logged by."""
        ...

    def reading(self, start_s: float, stop_s: float) -> Reading:
        """The card's state between two moments of now_s()."""
        ...


class CudaMachine:
    """A GPU, with a stream of its own and a power log; used as a `with` block.

    `stream` is the raw stream that every candidate must enqueue on.
    """

    def __init__(self, backend: CudaBackend, ordinal: int = 0) -> None:
        self._queue = Stream(backend, ordinal)
        self.stream = self._queue.handle
        self.l2_bytes = backend.device(ordinal).l2_bytes
        self._flusher = Buffer.allocate(backend, COLD_FACTOR * self.l2_bytes, ordinal)
        self._sampler: Sampler = sampler(backend.uuid(ordinal))
        self.record = self._queue.record
        self.wait = self._queue.wait
        self.elapsed_us = self._queue.elapsed_us
        self.reading = self._sampler.between
        self.now_s = time.perf_counter

    def capture(self, enqueue: Callable[[], None]) -> tuple[Callable[[], None], bool]:
        """A graph of `enqueue`, or `enqueue` itself where the driver refuses to capture it."""
        try:
            graph = self._queue.capture(enqueue)
        except DriverError:  # some candidates synchronise or allocate: they are timed with their launch gaps
            return enqueue, False
        return lambda: self._queue.replay(graph), True

    def flush_l2(self) -> None:
        """Overwrites COLD_FACTOR times the L2."""
        self._flusher.fill(0x7FC07FC0, self.stream)

    def idle(self, seconds: float) -> None:
        """Nothing on this stream, then the given time."""
        self._queue.synchronize()
        time.sleep(seconds)

    def __enter__(self) -> CudaMachine:
        self._sampler.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.__exit__()
        self._queue.close()
        self._flusher.free()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one candidate took.

    Units: microseconds a call; `spread` is the distance between the quartiles over the median; `calls` a round.
    """

    candidate: str
    mode: Mode
    median_us: float
    min_us: float
    max_us: float
    lower_us: float
    upper_us: float
    spread: float
    rounds: int
    calls: int
    captured: bool
    watts: float | None
    clock_mhz: float | None
    temperature_c: float | None
    limits: int | None


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times faster than the baseline: the median over rounds of baseline time / candidate time."""

    candidate: str
    baseline: str
    mode: Mode
    median: float
    lower: float
    upper: float
    pairs: int


@dataclass(frozen=True)
class Timing:
    """All samples of one measurement, and each later candidate's ratio to the first.

    `times_us`: every candidate's time in every round, in the order of `samples`.
    """

    samples: tuple[Sample, ...]
    ratios: tuple[Ratio, ...]
    times_us: tuple[tuple[float, ...], ...] = ()

    def sample(self, candidate: str) -> Sample:
        """The row of one candidate. Raises: KeyError: no such candidate."""
        return {row.candidate: row for row in self.samples}[candidate]

    def over(self, candidate: str, baseline: str) -> Ratio:
        """How many times faster than any other candidate one is. Raises: KeyError: no such candidate."""
        times = {sample.candidate: us for sample, us in zip(self.samples, self.times_us, strict=True)}
        return _ratio(self.sample(candidate).mode, candidate, times[candidate], baseline, times[baseline])

    def rows(self) -> list[dict[str, Any]]:
        """One flat JSON-able row a candidate, its ratio to the first among them."""
        ratios = {ratio.candidate: ratio for ratio in self.ratios}
        rows = []
        for sample in self.samples:
            ratio = ratios.get(sample.candidate)
            rows.append(
                asdict(sample)
                | {
                    "baseline": ratio.baseline if ratio else None,
                    "ratio": ratio.median if ratio else None,
                    "ratio_lower": ratio.lower if ratio else None,
                    "ratio_upper": ratio.upper if ratio else None,
                    "ratio_pairs": ratio.pairs if ratio else None,
                }
            )
        return rows


def num_cold_sets(set_bytes: int, l2_bytes: int, limit: int = MAX_CALLS) -> int:
    """Operand sets that together exceed COLD_FACTOR times the L2, at least 2, at most `limit`."""
    return max(2, min(limit, math.ceil(COLD_FACTOR * l2_bytes / max(set_bytes, 1)) + 1))


class Column:
    """One candidate, captured and ready: for whoever decides himself whose turn it is, and when to stop.

    Samples of several columns in turn are what interleaved() measures.
    """

    def __init__(self, machine: Machine, candidate: Candidate, *, sample_us: float = SAMPLE_US) -> None:
        """Cost: every operand set once, a trial, a capture."""
        self._machine = machine
        self._replay = _Replay.prepare(machine, candidate, sample_us)

    def sample(self) -> float:
        """Microseconds a call of one sample, after a flush of the L2."""
        self._machine.flush_l2()
        return _timed(self._machine, self._replay.run) / self._replay.calls


def interleaved(
    machine: Machine, candidates: Sequence[Candidate], *, rounds: int = 9, sample_us: float = SAMPLE_US, seed: int = 0
) -> Timing:
    """Columns in turn, in shuffled order each round, the L2 flushed before each sample; a first round is discarded.

    Power and clock are those of the whole measurement: a column's turn is shorter than the driver's averages.
    """
    started_s = machine.now_s()
    replays, times = _rounds(machine, candidates, rounds, sample_us, seed, machine.flush_l2)
    reading = machine.reading(started_s, machine.now_s())
    return _timing("interleaved", replays, times, [reading] * len(replays))


def burst(
    machine: Machine,
    candidates: Sequence[Candidate],
    *,
    rounds: int = 5,
    burst_us: float = BURST_US,
    seed: int = 0,
    warm_rounds: int = 1,
) -> Timing:
    """Each sample follows half a second of idleness; its power and clock are not logged, 12 ms are too short.

    `warm_rounds` are discarded; 0 is for a card that was at work until now.
    Cost: 0.5 s a sample, (rounds + warm_rounds) samples a candidate.
    """
    replays, times = _rounds(machine, candidates, rounds, burst_us, seed, lambda: machine.idle(IDLE_S), warm_rounds)
    return _timing("burst", replays, times, [Reading()] * len(replays))


def steady(
    machine: Machine, candidates: Sequence[Candidate], *, rounds: int = 5, seconds: float = STEADY_S, seed: int = 0
) -> Timing:
    """Each sample is the second half of `seconds` of back-to-back calls of one candidate; shuffled order each round.

    Cost: rounds x candidates x seconds. No round is discarded: the first half of each is.
    """
    replays = [_Replay.prepare(machine, candidate, SAMPLE_US) for candidate in candidates]
    times: list[list[float]] = [[] for _ in replays]
    readings: list[list[Reading]] = [[] for _ in replays]
    order = random.Random(seed)
    for _ in range(rounds):
        for index in order.sample(range(len(replays)), len(replays)):
            us, reading = _steady_sample(machine, replays[index], seconds)
            times[index].append(us)
            readings[index].append(reading)
    return _timing("steady", replays, times, [Reading.together(states) for states in readings])


def single(machine: Machine, candidates: Sequence[Candidate], *, rounds: int = 201, seed: int = 0) -> Timing:
    """Each sample is one call, launched on an idle GPU and waited for; shuffled order, a first round is discarded.

    What is timed lies between two events on the GPU: about a microsecond of it is their own.
    """
    replays = []
    for candidate in candidates:
        for index in range(candidate.num_sets):
            candidate.launch(index)
        replays.append(_Replay(candidate.name, functools.partial(candidate.launch, 0), 1, False))
    times: list[list[float]] = [[] for _ in replays]
    order = random.Random(seed)
    for round_index in range(1 + rounds):
        for index in order.sample(range(len(replays)), len(replays)):
            machine.idle(0.0)
            us = _timed(machine, replays[index].run)
            if round_index:
                times[index].append(us)
    return _timing("single", replays, times, [Reading()] * len(replays))


def rates(row: Mapping[str, Any], *, flops: int = 0, moved_bytes: int = 0) -> dict[str, float | None]:
    """What a row's median time means for calls of so many operations and bytes; None where it means nothing.

    Units: TFLOPS, 10^9 bytes a second, and TFLOPS a watt (operations a picojoule), of the steady mode alone: the power
    of the others is an average over longer than they last.
    """
    us = row["median_us"]
    rate_tflops = flops / us * 1e-6 if flops else None
    watts = row["watts"] if row["mode"] == "steady" else None
    return {
        "rate_tflops": rate_tflops,
        "rate_gbps": moved_bytes / us * 1e-3 if moved_bytes else None,
        "tflops_per_watt": rate_tflops / watts if rate_tflops and watts else None,
    }


def host_cost_us(
    call: Callable[[], Any], synchronize: Callable[[], Any], *, repeats: int = 15, calls: int = 100
) -> float:
    """Median microseconds of host time that one call takes before it returns.

    Each repeat starts with an idle GPU and enqueues `calls` calls: choose a problem that the GPU finishes faster than
    the host can enqueue it, and a count below the driver's queue (about 1000), or the wait for the queue is timed.
    """
    costs = []
    for _ in range(repeats + 1):
        synchronize()
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        costs.append((time.perf_counter_ns() - start) / calls / 1000)
    synchronize()
    return statistics.median(costs[1:])  # the first repeat warms caches


# -- one candidate, prepared ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Replay:
    """A candidate's calls, captured: `run` enqueues `calls` of them."""

    name: str
    run: Callable[[], None]
    calls: int
    captured: bool

    @classmethod
    def prepare(cls, machine: Machine, candidate: Candidate, target_us: float) -> _Replay:
        """As many calls as take about `target_us`, rotating over the operand sets."""
        for index in range(candidate.num_sets):  # warm-up: every set once, so that nothing is loaded or encoded later
            candidate.launch(index)
        machine.wait(machine.record())

        def graph_of(calls: int) -> tuple[Callable[[], None], bool]:
            def enqueue() -> None:
                for index in range(calls):
                    candidate.launch(index % candidate.num_sets)

            return machine.capture(enqueue)

        trial_calls = max(MIN_CALLS, min(candidate.num_sets, 8))
        trial, _ = graph_of(trial_calls)
        trial()  # the first replay may still load code
        call_us = max(_timed(machine, trial) / trial_calls, 0.1)
        calls = max(MIN_CALLS, min(MAX_CALLS, round(target_us / call_us)))
        run, captured = graph_of(calls)
        repeats = max(1, round(target_us / (call_us * calls)))

        def run_repeatedly() -> None:
            for _ in range(repeats):
                run()

        return cls(candidate.name, run_repeatedly, calls * repeats, captured)


def _timed(machine: Machine, run: Callable[[], None]) -> float:
    start = machine.record()
    run()
    stop = machine.record()
    machine.wait(stop)
    return machine.elapsed_us(start, stop)


def _rounds(
    machine: Machine,
    candidates: Sequence[Candidate],
    rounds: int,
    target_us: float,
    seed: int,
    before: Callable[[], None],
    warm_rounds: int = 1,
) -> tuple[list[_Replay], list[list[float]]]:
    replays = [_Replay.prepare(machine, candidate, target_us) for candidate in candidates]
    times: list[list[float]] = [[] for _ in replays]
    order = random.Random(seed)
    for round_index in range(warm_rounds + rounds):
        for index in order.sample(range(len(replays)), len(replays)):
            before()
            us = _timed(machine, replays[index].run) / replays[index].calls
            if round_index >= warm_rounds:  # those before warm the card up to the state in which all later rounds run
                times[index].append(us)
    return replays, times


def _steady_sample(machine: Machine, replay: _Replay, seconds: float) -> tuple[float, Reading]:
    """Microseconds a call over the second half, and the card's state over the same time."""
    half_us = seconds * 1e6 / 2
    warm_us = max(_timed(machine, replay.run), 1.0)
    num_replays = max(1, math.ceil(half_us / warm_us))
    for _ in range(num_replays):
        replay.run()
    start = machine.record()
    for _ in range(num_replays):
        replay.run()
    stop = machine.record()
    machine.wait(start)
    started_s = machine.now_s()
    machine.wait(stop)
    reading = machine.reading(started_s, machine.now_s())
    return machine.elapsed_us(start, stop) / (num_replays * replay.calls), reading


# -- rows ------------------------------------------------------------------------------------------------------------


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; of fewer than three values, the extremes and the median."""
    if len(values) < 3:
        return min(values), statistics.median(values), max(values)
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, median, upper


def _timing(mode: Mode, replays: Sequence[_Replay], times: Sequence[list[float]], states: Sequence[Reading]) -> Timing:
    samples = []
    for replay, us, state in zip(replays, times, states, strict=True):
        lower, median, upper = quartiles(us)
        samples.append(
            Sample(
                candidate=replay.name,
                mode=mode,
                median_us=median,
                min_us=min(us),
                max_us=max(us),
                lower_us=lower,
                upper_us=upper,
                spread=(upper - lower) / median,
                rounds=len(us),
                calls=replay.calls,
                captured=replay.captured,
                watts=state.watts,
                clock_mhz=state.clock_mhz,
                temperature_c=state.temperature_c,
                limits=state.limits,
            )
        )
    return Timing(tuple(samples), tuple(_ratios(mode, replays, times)), tuple(map(tuple, times)))


def _ratios(mode: Mode, replays: Sequence[_Replay], times: Sequence[list[float]]) -> list[Ratio]:
    base = replays[0].name
    return [_ratio(mode, replay.name, us, base, times[0]) for replay, us in list(zip(replays, times, strict=True))[1:]]


def _ratio(mode: Mode, candidate: str, own_us: Sequence[float], baseline: str, base_us: Sequence[float]) -> Ratio:
    # Paired within a round: what drifts from round to round (heat, clock) is in both and cancels.
    lower, median, upper = quartiles([base / own for base, own in zip(base_us, own_us, strict=True)])
    return Ratio(
        candidate=candidate,
        baseline=baseline,
        mode=mode,
        median=median,
        lower=lower,
        upper=upper,
        pairs=len(own_us),
    )
