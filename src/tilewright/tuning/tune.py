"""tune(): the model's best configs measured against each other on the GPU, and the winner kept as a record.

Knows the course of a tuning: candidates, compiled here (candidates.py), checked and timed in a child (worker.py), raced
until the gap is more than the noise (race.py) or the budget ends, written down (records.py).
A candidate that is wrong, faults or hangs costs itself: the child is started anew without it. The parent launches
nothing. matmul never comes here: measuring is always asked for.
"""

from __future__ import annotations

import dataclasses
import datetime
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright import dispatch, dtypes, model, records
from tilewright.arrays.registry import common_adapter
from tilewright.backends.base import Backend
from tilewright.backends.steps import Built
from tilewright.calls import fusing_of, views_of
from tilewright.device import Device
from tilewright.dtypes import DTypeLike
from tilewright.epilogue_steps import Epilogue, Step, as_epilogue
from tilewright.errors import ShapeError, TuningError, UnsupportedError
from tilewright.kernels import product
from tilewright.kernels.catalog import check_supported
from tilewright.layout import problem_of
from tilewright.order import Reduction, checked_reduction
from tilewright.packing import with_epilogue
from tilewright.planning import checked_num_sms
from tilewright.problem import Problem, checked
from tilewright.records import Record
from tilewright.tuning import beside
from tilewright.tuning.candidates import Entry, candidates_of, compile_all, computed_problem
from tilewright.tuning.child import Job
from tilewright.tuning.outcome import Row, Status, Tuned
from tilewright.tuning.race import Decided, Race, spread
from tilewright.tuning.worker import Worker, WorkerLostError

CANDIDATES = 8
BUDGET_S = 60.0  # of one problem; most end in under 10 s
SHARES = 3.0  # of what is left, for the next of many: most take less than one, and a large one takes several

# Seconds that a step may take before its kernel counts as hung; and how often a kernel runs in a step, at most.
OPEN_LIMIT_S = 180.0
STEP_LIMIT_S = 20.0
STEP_CALLS = 600

Progress = Callable[[str], None]


def tune(
    a: Any,
    b: Any = None,
    out: Any | None = None,
    *,
    out_dtype: DTypeLike | None = None,
    num_sms: int | None = None,
    reduction: Reduction = "fast",
    candidates: int = CANDIDATES,
    budget_s: float = BUDGET_S,
    keep: bool = True,
    progress: Progress | None = None,
    inputs: DTypeLike | None = None,
    sums: DTypeLike | None = None,
    epilogue: Step | Epilogue | None = None,
) -> Tuned:
    """The fastest config of a product on this GPU, measured; later products of this kind run with it.

    Of a Problem on device 0, or of arrays where they lie; their values are neither read nor written. `candidates` of
    the model are measured, with cold operands of random data, in shuffled rounds, until the gap exceeds the noise or
    `budget_s` has passed. `keep` False: no record is written. `reduction` "invariant": for products that ask for it,
    among the configs that add in the one order, with a record of its own. `inputs`, `sums` and `epilogue` are those of
    matmul(): a product with an epilogue has a record of its own, for every product with the same steps; without one,
    that of the plain product counts. With a Problem, names of element types stand for arrays: epilogue=Bias("bf16").
    Raises: what plan() raises; UnsupportedError: arrays in host memory, or a stream that is being captured.
    TuningError: no candidate could be measured; with what became of each. DriverError: no GPU.
    Cost: 3 to 10 s, in another process, on the whole GPU: what runs beside it disturbs both. Compiles what is not
    cached, up to 1 s each. On a card that others use nothing that it finds is worth keeping.
    """
    if isinstance(a, Problem):
        if any(each is not None for each in (b, out, out_dtype, inputs, sums)):
            raise UnsupportedError(
                asked="tuning a Problem with b, out, out_dtype, inputs or sums",
                rule="a Problem holds all of them",
                works="pass tune(problem) or tune(a, b, out)",
            )
        if epilogue is not None:
            a = with_epilogue(a, epilogue)
        problem, ordinal = checked(a), 0
    else:
        problem, ordinal = _problem_of(a, b, out, out_dtype, inputs, sums, epilogue)
    present = _present(ordinal)
    (tuned,) = tune_many(
        [problem],
        ordinal=ordinal,
        num_sms=num_sms,
        reduction=reduction,
        candidates=candidates,
        budget_s=budget_s,
        keep=keep,
        progress=progress,
        device=present,
    )
    return tuned


def tune_many(
    problems: Iterable[Problem],
    *,
    ordinal: int = 0,
    num_sms: int | None = None,
    reduction: Reduction = "fast",
    candidates: int = CANDIDATES,
    budget_s: float = BUDGET_S,
    keep: bool = True,
    progress: Progress | None = None,
    worker: Worker | None = None,
    device: Device | None = None,
) -> Iterator[Tuned]:
    """Each problem's outcome as soon as it is there, in one child for as long as nothing goes wrong in it.

    Where operands have to be copied first it is that of the copies' product.

    `budget_s` is for all: each problem may take three equal shares of what is left. A problem that no time is left for,
    or that nothing could be measured of, is an outcome without a record. `worker` and `device` are for tests.
    """
    present = device or _present(ordinal)
    check_supported(present)
    problems = [computed_problem(each, present) for each in problems]
    for problem in problems:
        beside.check_tunable(problem)
    num_sms = checked_num_sms(num_sms, present)
    reduction = checked_reduction(reduction)
    until_s = time.monotonic() + budget_s
    with worker or Worker(ordinal) as at_work:
        for index, problem in enumerate(problems):
            share_s = (until_s - time.monotonic()) * min(1.0, SHARES / (len(problems) - index))
            tuning = _Tuning(problem, present, num_sms, reduction, at_work, share_s, progress or _quiet)
            if share_s <= 0:
                yield tuning.outcome(None, "budget", "no time was left for it", kept=False)
                continue
            try:
                tuned = tuning.run(candidates, keep)
            except TuningError as error:
                if len(problems) == 1:
                    raise
                tuned = tuning.outcome(None, "budget", str(error), kept=False)
            if tuned.kept:
                dispatch.forget_choices()
            yield tuned


@dataclass
class _Tuning:
    """The course of one problem."""

    problem: Problem
    device: Device
    num_sms: int | None
    reduction: Reduction
    worker: Worker
    budget_s: float
    progress: Progress
    entries: list[Entry] = field(default_factory=list)
    race: Race = field(default_factory=lambda: Race([]))
    driver: str = ""

    def __post_init__(self) -> None:
        self.started_s = time.monotonic()
        self.until_s = self.started_s + self.budget_s
        self._at_work: Entry | None = None  # whose kernel the child was last asked to run
        self._order = random.Random(0)

    def run(self, candidates: int, keep: bool) -> Tuned:
        """Raises: TuningError: no candidate could be measured."""
        if self.problem.is_empty:
            raise ShapeError(
                asked=f"tuning {self.problem}",
                rule="a size of 0 leaves nothing to multiply: no kernel runs",
                works="give sizes from 1 up",
            )
        self.entries = candidates_of(self.problem, self.device, self.num_sms, candidates, self.reduction)
        self.progress(f"{self.problem}: compiling")
        compile_all(self.entries, self.problem, self.device)
        self.race = Race(sorted(entry.order for entry in self.entries if entry.binaries))
        decided = self._measure()
        if not self.race.running:
            raise TuningError(
                str(self.problem), [f"{entry.config}: {entry.status}, {entry.why}" for entry in self.entries]
            )
        if not self.race.is_telling:
            return self.outcome(None, "budget", self.race.verdict("budget"), kept=False)
        record = self._record()
        kept = keep and records.append(record)
        return self.outcome(record, decided, self.race.verdict(decided), kept=kept)

    def outcome(self, record: Record | None, decided: Decided, verdict: str, *, kept: bool) -> Tuned:
        """What there is to tell, fastest first."""
        rows = [self._row(entry) for entry in self.entries]
        return Tuned(
            problem=self.problem,
            device=self.device,
            record=record,
            decided=decided,
            verdict=verdict,
            untuned=model.best(self.problem, self.device, self.num_sms, self.reduction).config,
            rows=tuple(sorted(rows, key=lambda row: (row.median_us is None, row.median_us or row.predicted_us))),
            seconds=time.monotonic() - self.started_s,
            kept=kept,
        )

    def _measure(self) -> Decided:
        """Checks and races the candidates until it is decided, in as many children as it takes."""
        while self.race.running:
            try:
                return self._measure_in_one_child()
            except WorkerLostError as lost:
                if lost.how == "hung" and time.monotonic() >= self.until_s:
                    return "budget"
                if self._at_work is None:  # not a candidate's doing
                    raise TuningError(str(self.problem), [f"the device cannot be used: {lost.text}"]) from lost
                status: Status = "hung" if lost.how == "hung" else "fault"
                self._leave(self._at_work, status, lost.text)
        return "budget"

    def _measure_in_one_child(self) -> Decided:
        """Raises: WorkerLostError: a candidate ended the child."""
        self._at_work = None
        self.progress(f"{self.problem}: operands")
        self.driver = self._ask("facts", limit_s=OPEN_LIMIT_S)["driver"]
        self._ask("open", self.problem, 0, limit_s=OPEN_LIMIT_S)
        for entry in self._running():
            if not entry.is_proven:
                self.progress(f"{self.problem}: checking {entry.config}")
                if wrong := self._ask_of(entry, "check", self._job(entry)):
                    self._leave(entry, "wrong", wrong)
                entry.is_proven = True
            if self._is_over():
                return "budget"
        for entry in self._running():
            self._ask_of(entry, "arm", self._job(entry))
        is_warm = False
        while self.race.running:
            if (decided := self.race.decided()) is not None:
                return decided
            times: dict[int, float] = {}
            running = self._running()
            for entry in self._order.sample(running, len(running)):
                if self._is_over():
                    return "budget"
                times[entry.order] = self._ask_of(entry, "sample", entry.order)
            if is_warm:  # the first round of a child warms the card up to the state in which all others run
                self.race.add(times)
            is_warm = True
            self.progress(f"{self.problem}: round {self.race.rounds}, {len(self.race.running)} candidates")
        return "budget"

    def _ask(self, request: str, *arguments: Any, limit_s: float) -> Any:
        """The child's answer, awaited no longer than the budget lasts."""
        return self.worker.ask(request, *arguments, limit_s=max(min(limit_s, self.until_s - time.monotonic()), 0.01))

    def _ask_of(self, entry: Entry, request: str, *arguments: Any) -> Any:
        self._at_work = entry
        return self._ask(request, *arguments, limit_s=STEP_LIMIT_S + STEP_CALLS * entry.predicted_us * 1e-6)

    def _is_over(self) -> bool:
        return time.monotonic() >= self.until_s

    def _running(self) -> list[Entry]:
        """Those still in the race, in the order in which they were proposed: a record's config first."""
        return [entry for entry in self.entries if entry.order in self.race.running]

    def _leave(self, entry: Entry, status: Status, why: str) -> None:
        entry.status, entry.why = status, why
        self.race.drop(entry.order)

    def _job(self, entry: Entry) -> Job:
        binaries = tuple(Built(binary) for binary in entry.binaries)
        made = product.work(entry.family, self.problem, entry.config, self.device, self.num_sms, binaries=binaries)
        return Job(entry.order, dataclasses.replace(made, cleared=beside.cleared(self.problem)))

    def _record(self) -> Record:
        (winner,) = (entry for entry in self.entries if entry.order == self.race.winner())
        times = self.race.times[winner.order]
        return Record(
            key=records.key_of(self.problem, self.device, self.num_sms, self.reduction),
            family=winner.family.name,
            config=winner.config,
            measured_us=statistics.median(times),
            predicted_us=winner.predicted_us,
            spread=spread(times),
            rounds=len(times),
            regime="interleaved",
            digest=winner.digest,
            compiler=winner.binaries[0].compiler,
            driver=self.driver,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )

    def _row(self, entry: Entry) -> Row:
        times = self.race.times.get(entry.order, [])
        status, why = entry.status, entry.why
        if entry.order in self.race.lost_to:
            _, gap = self.race.lost_to[entry.order]
            status, why = "slower", f"{gap.median:.1%} slower, noise {gap.noise:.1%}"
        elif entry.order in self.race.running and self.race.is_telling:
            status = "fastest" if entry.order == self.race.winner() else "equal"
        return Row(
            config=entry.config,
            family=entry.family.name,
            predicted_us=entry.predicted_us,
            status=status,
            why=why,
            median_us=statistics.median(times) if times else None,
            spread=spread(times) if times else None,
            rounds=len(times),
        )


def _problem_of(
    a: Any,
    b: Any,
    out: Any,
    out_dtype: DTypeLike | None,
    inputs: DTypeLike | None,
    sums: DTypeLike | None,
    epilogue: Step | Epilogue | None,
) -> tuple[Problem, int]:
    """The problem of arrays, and the device that they lie on.

    Raises: UnsupportedError: host memory, or a stream that is being captured; and what plan() raises.
    """
    adapter = common_adapter(a, b, out)
    views = views_of(_backend, adapter, a, b, out)
    location = views[0].location
    if location.kind == "host":
        raise UnsupportedError(
            asked="tuning NumPy arrays",
            rule="configs are measured on a GPU; the emulator tells no times",
            works="pass arrays on a GPU, or a Problem",
        )
    fusing = None if epilogue is None else fusing_of(_backend, adapter, as_epilogue(epilogue))
    problem = problem_of(*views, None if out_dtype is None else dtypes.by_name(out_dtype), inputs, sums, fusing)
    if _backend().is_capturing(adapter.stream(location.ordinal), location.ordinal):
        raise UnsupportedError(
            asked=f"tuning {problem} while its stream is being captured",
            rule="measuring would take the GPU while a graph is made, and leave nothing in the graph",
            works="tune before the capture; matmul inside it uses the record",
        )
    return problem, location.ordinal


def _backend() -> Any:
    from tilewright.backends import cuda  # here: naming tune() must work on a machine without the bindings

    return cuda.backend()


def _present(ordinal: int) -> Device:
    backend: Backend = _backend()
    return backend.device(ordinal)


def _quiet(text: str) -> None:
    """No progress is told."""
