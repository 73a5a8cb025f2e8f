"""tune() with a pretended device in a real child: what wins, what is left out and why, and what is written down."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_child import name_of_kernel

import tilewright
from fakes import T4, FakeCompiler, HostBackend, gpu
from tilewright import device, dispatch, model, records
from tilewright.config import Config
from tilewright.epilogue import Bias, Gelu
from tilewright.errors import CompileError, ShapeError, TuningError, UnsupportedError
from tilewright.order import INVARIANT, order_of
from tilewright.packing import packed, with_epilogue
from tilewright.records import RecordsWarning
from tilewright.tuning import candidates as proposing
from tilewright.tuning import tune as tuning
from tilewright.tuning.outcome import Tuned
from tilewright.tuning.race import MIN_ROUNDS
from tilewright.tuning.tune import tune_many
from tilewright.tuning.worker import Worker

H200 = device.preset("h200")
PROBLEM = packed(512, 768, 1024)
CHILD = Path(__file__).with_name("fake_child.py")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "records.jsonl"
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(path))
    monkeypatch.setenv("TILEWRIGHT_USE_RECORDS", "1")
    monkeypatch.setattr(proposing, "build", FakeCompiler())
    records.clear()
    yield path
    records.clear()


def name_of(config: Config) -> str:
    """As the fake child calls a kernel."""
    return f"{config.tile_m}x{config.tile_n}s{config.stages}c{config.cluster_m}x{config.cluster_n}"


RANKED = proposing.candidates_of(PROBLEM, H200, None, 4)
NAMES = [name_of(each.config) for each in RANKED]
assert len(set(NAMES)) == len(NAMES), "the fake child's script goes by name"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Tuned]:
    """Tunes PROBLEM among the model's first four; the arguments are the fake device's script."""

    def tuned(*, count: int = 4, budget_s: float = 60.0, keep: bool = True, **script: Any) -> Tuned:
        return next(many(tmp_path, [PROBLEM], count=count, budget_s=budget_s, keep=keep, **script))

    return tuned


def many(
    tmp_path: Path,
    problems: list[Any],
    *,
    count: int = 4,
    budget_s: float = 60.0,
    keep: bool = True,
    progress: Callable[[str], None] | None = None,
    **script: Any,
) -> Iterator[Tuned]:
    whole = {"us": {}, "acts": {}, "acts_at": {}, "log": str(tmp_path / "log")} | script
    worker = Worker(command=(sys.executable, str(CHILD), json.dumps(whole)))
    return tune_many(
        problems, candidates=count, budget_s=budget_s, keep=keep, progress=progress, worker=worker, device=H200
    )


def log(tmp_path: Path) -> list[tuple[str, str]]:
    """(process, request) in order."""
    lines = (tmp_path / "log").read_text().splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def status_of(tuned: Tuned, name: str) -> str:
    (row,) = (row for row in tuned.rows if name_of(row.config) == name)
    return row.status


# -- who wins ----------------------------------------------------------------------------------------------------------


def test_the_fastest_wins_and_becomes_the_choice(run: Callable[..., Tuned]) -> None:
    tuned = run(us={NAMES[2]: 80.0})
    assert tuned.record is not None
    assert (name_of(tuned.record.config), tuned.decided, tuned.kept) == (NAMES[2], "clear", True)
    assert (tuned.record.measured_us, tuned.record.predicted_us) == (80.0, RANKED[2].predicted_us)
    assert "clearly the fastest: the next is 25.0% slower" in tuned.verdict
    plan = tilewright.plan(PROBLEM, device=H200)
    assert plan.config == RANKED[2].config
    assert plan.why.startswith("from records: measured 80.0 us on NVIDIA H200")
    assert [row.status for row in tuned.rows] == ["fastest", "slower", "slower", "slower"]


def test_a_tie_goes_to_the_first_in_the_familys_order_whatever_the_model_ranked_first(
    run: Callable[..., Tuned],
) -> None:
    tuned = run()
    first = min(RANKED, key=lambda each: each.order)
    assert tuned.record is not None
    assert (tuned.record.config, tuned.decided) == (first.config, "tie")
    assert "4 candidates are equal" in tuned.verdict


def test_ranks_whose_timings_disagree_within_the_noise_choose_the_same(run: Callable[..., Tuned]) -> None:
    """B103: timings in opposite order, and a rank that begins with a record of another config."""
    last = max(RANKED, key=lambda each: each.order)
    ranks = [run(us={NAMES[0]: 99.9}), run(us={NAMES[3]: 99.9}), run(noise=0.02)]
    first = ranks[0].record
    assert first is not None
    records.append(dataclasses.replace(first, config=last.config))
    ranks.append(run(us={name_of(last.config): 99.9}))
    assert {tuned.record.config for tuned in ranks if tuned.record is not None} == {first.config}
    assert {tuned.decided for tuned in ranks} == {"tie"}


def test_every_candidate_is_checked_before_any_is_timed_and_rounds_are_shuffled(
    run: Callable[..., Tuned], tmp_path: Path
) -> None:
    run(us={NAMES[0]: 50.0})
    requests = [request for _, request in log(tmp_path)]
    assert [request.split()[0] for request in requests[:9]] == ["open"] + ["check"] * 4 + ["arm"] * 4
    samples = [request.split()[1] for request in requests if request.startswith("sample")]
    rounds = [tuple(samples[start : start + 4]) for start in range(0, 36, 4)]
    assert all(sorted(order) == sorted(NAMES) for order in rounds)
    assert len(set(rounds)) > 3


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "status", "words", "children"),
    [
        ("wrong", "wrong", "3 of 4096 elements", 1),
        ("die", "fault", "signal 11", 2),
        ("fault", "fault", "CUDA_ERROR_ILLEGAL_INSTRUCTION", 2),
        ("hang", "hung", "no answer in 2 s", 2),
        ("refuse", "fault", "another device", 1),
    ],
)
def test_a_candidate_that_fails_its_check_costs_itself_alone(
    run: Callable[..., Tuned],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: str,
    status: str,
    words: str,
    children: int,
) -> None:
    monkeypatch.setattr(tuning, "STEP_LIMIT_S", 1.5 if act == "hang" else 60.0)
    tuned = run(us={NAMES[1]: 10.0}, acts={NAMES[1]: act})  # it would have won
    assert status_of(tuned, NAMES[1]) == status
    assert words in next(row.why for row in tuned.rows if name_of(row.config) == NAMES[1])
    assert tuned.record is not None
    assert name_of(tuned.record.config) != NAMES[1]
    assert len({process for process, _ in log(tmp_path)}) == children
    assert f"sample {NAMES[1]}" not in [request for _, request in log(tmp_path)]


@pytest.mark.parametrize(("act", "status", "words"), [("die", "fault", "status 7"), ("hang", "hung", "no answer")])
def test_a_candidate_that_fails_while_it_is_timed_is_told_from_the_others(
    run: Callable[..., Tuned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, status: str, words: str
) -> None:
    monkeypatch.setattr(tuning, "STEP_LIMIT_S", 1.5 if act == "hang" else 60.0)
    tuned = run(us={NAMES[3]: 10.0, NAMES[2]: 90.0}, acts_at={NAMES[3]: (act, 4)})
    assert status_of(tuned, NAMES[3]) == status
    assert words in next(row.why for row in tuned.rows if name_of(row.config) == NAMES[3])
    assert tuned.record is not None
    assert (name_of(tuned.record.config), tuned.decided) == (NAMES[2], "clear")
    requests = [request for _, request in log(tmp_path)]
    assert requests.count(f"check {NAMES[2]}") == 1, "what was proven is not checked again"
    assert requests.count(f"arm {NAMES[2]}") == 2


def test_a_kernel_that_does_not_compile_costs_itself_alone(
    run: Callable[..., Tuned], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = FakeCompiler()

    def build(source: Any, *, refuse: bool) -> Any:
        if name_of_kernel(source.name) == NAMES[0]:
            raise CompileError(source.name, "registers spill", "log", "command")
        return compiler(source)

    monkeypatch.setattr(proposing, "build", build)
    tuned = run()
    assert status_of(tuned, NAMES[0]) == "not compiled"
    assert tuned.record is not None


def test_when_nothing_can_be_measured_each_reason_is_told(run: Callable[..., Tuned]) -> None:
    with pytest.raises(TuningError) as caught:
        run(acts=dict.fromkeys(NAMES, "wrong"))
    assert len(caught.value.reasons) == 4
    assert all("wrong" in reason for reason in caught.value.reasons)
    assert records.lookup(PROBLEM, H200) is None


def test_a_device_that_cannot_be_used_is_no_candidates_fault(run: Callable[..., Tuned]) -> None:
    with pytest.raises(TuningError, match=r"the device cannot be used.*OUT_OF_MEMORY"):
        run(no_device=True)


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_budget_that_ends_at_once_measures_nothing_and_says_so(run: Callable[..., Tuned]) -> None:
    tuned = run(budget_s=1e-3)
    assert (tuned.record, tuned.decided, tuned.kept) == (None, "budget", False)
    assert "time ended" in tuned.verdict


class SkippingClock:
    """The time module's clock, which a test moves on."""

    skipped_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped_s


@pytest.mark.parametrize("rounds", [3, 12])
def test_a_hang_at_the_end_of_the_budget_is_the_budgets_end(
    run: Callable[..., Tuned], monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    clock = SkippingClock()
    monkeypatch.setattr(tuning, "time", clock)

    def progress(text: str) -> None:
        if f": round {rounds}," in text:
            clock.skipped_s = 599.0

    script = {"noise": 0.05, "acts_at": {NAMES[3]: ("hang", rounds + 2)}}  # the first round of all is discarded
    tuned = run(budget_s=600.0, progress=progress, **script)
    assert tuned.decided == "budget"
    if rounds < MIN_ROUNDS:
        assert (tuned.record, tuned.kept) == (None, False)
        assert tuned.verdict == f"the time ended after 3 of the {MIN_ROUNDS} rounds that tell candidates apart"
        assert {row.status for row in tuned.rows} == {"unfinished"}
    else:
        assert tuned.record is not None
        assert (tuned.record.rounds, tuned.kept) == (12, True)
        assert tuned.verdict.startswith("the time ended after 12 rounds: 4 candidates are equal within the noise")


def test_many_problems_share_a_child_and_a_budget(tmp_path: Path) -> None:
    problems = [PROBLEM, packed(1024, 512, 256), packed(64, 64, 64)]
    done = list(many(tmp_path, problems))
    assert [tuned.problem for tuned in done] == problems
    assert all(tuned.kept for tuned in done)
    assert len({process for process, _ in log(tmp_path)}) == 1
    assert all(records.lookup(problem, H200) is not None for problem in problems)


def test_a_problem_that_fails_among_many_is_an_outcome_and_the_rest_goes_on(tmp_path: Path) -> None:
    odd = packed(16, 8, 64)
    broken = {name_of(each.config): "fault" for each in proposing.candidates_of(odd, H200, None, 2)}
    done = list(many(tmp_path, [odd, packed(4096, 4096, 4096)], count=2, acts=broken))
    assert done[0].record is None
    assert "nothing was measured" in done[0].verdict
    assert done[1].record is not None


def test_of_contiguous_rows_that_tma_cannot_read_the_copies_product_has_the_record(tmp_path: Path) -> None:
    """The plan of the arrays finds it, and that of padded ones does not."""
    contiguous, padded = packed(65, 63, 66, padded=False), packed(65, 63, 66)
    (tuned,) = many(tmp_path, [contiguous])
    assert tuned.kept
    assert tuned.problem == proposing.computed_problem(contiguous, H200) != padded
    assert dispatch.plan(contiguous, device=H200).config.replace(dependent_launch=False) == tuned.record.config
    assert "from records" in dispatch.plan(contiguous, device=H200).why
    assert "from records" not in dispatch.plan(padded, device=H200).why


def test_problems_without_time_are_outcomes_of_nothing(tmp_path: Path) -> None:
    done = list(many(tmp_path, [PROBLEM, PROBLEM], budget_s=-1.0))
    assert [(tuned.record, tuned.decided) for tuned in done] == [(None, "budget")] * 2
    assert not (tmp_path / "log").exists()


# -- records -----------------------------------------------------------------------------------------------------------


def test_a_record_of_old_is_the_first_candidate_even_where_the_model_would_not_name_it(
    run: Callable[..., Tuned], tmp_path: Path
) -> None:
    run()
    old = records.lookup(PROBLEM, H200)
    assert old is not None
    strange = Config(tile_m=128, tile_n=88, stages=5)
    records.append(dataclasses.replace(old, config=strange, digest="0" * 32))
    (tmp_path / "log").unlink()
    tuned = run(us={name_of(strange): 60.0})
    assert log(tmp_path)[1][1] == f"check {name_of(strange)}"
    assert tuned.record is not None
    assert tuned.record.config == strange
    assert "a hint" not in tilewright.plan(PROBLEM, device=H200).why


def test_a_record_that_cannot_run_is_no_candidate(run: Callable[..., Tuned]) -> None:
    run()
    old = records.lookup(PROBLEM, H200)
    assert old is not None
    records.append(dataclasses.replace(old, config=Config(stages=16)))
    assert all(row.config.stages != 16 for row in run().rows)


def test_keep_false_writes_nothing(run: Callable[..., Tuned], file: Path) -> None:
    tuned = run(keep=False)
    assert tuned.record is not None
    assert (tuned.kept, file.exists()) == (False, False)


def test_a_file_that_cannot_be_written_is_a_warning_and_the_result_is_there(
    run: Callable[..., Tuned], file: Path
) -> None:
    file.mkdir()
    with pytest.warns(RecordsWarning) as told:
        tuned = run()
    assert any("cannot be written" in str(warning.message) for warning in told)
    assert tuned.record is not None
    assert not tuned.kept
    assert "not kept" in str(tuned)


def test_a_new_record_reaches_a_layout_that_matmul_has_served_before(
    run: Callable[..., Tuned], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, backend = FakeCompiler(), HostBackend()
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", compiler)
    process = dispatch.Dispatcher(lambda: backend)
    monkeypatch.setattr(dispatch, "forget_choices", process.forget_choices)
    a, b, out = gpu((512, 1024), seed=1), gpu((768, 1024), seed=2).t(), gpu((512, 768))
    process.matmul(a, b, out)
    run(us={NAMES[2]: 80.0})
    process.matmul(a, b, out)
    process.matmul(a, b, out, use_records=False)
    untuned = name_of(model.best(PROBLEM, H200).config)
    assert [name_of_kernel(source.name) for source in compiler.built] == [untuned, NAMES[2], untuned]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_an_empty_product_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="no kernel runs"):
        next(many(tmp_path, [packed(0, 8, 8)]))


def test_host_arrays_are_refused() -> None:
    a = np.ones((16, 16), np.float16)
    with pytest.raises(UnsupportedError, match="no times"):
        tilewright.tune(a, a)


def test_a_device_without_kernels_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"compute capability 7\.5"):
        next(tune_many([PROBLEM], device=T4))


class CapturingBackend(HostBackend):
    """Whose streams are always being captured."""

    def is_capturing(self, stream: int, ordinal: int) -> bool:
        return True


def test_a_stream_that_is_being_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_backend", CapturingBackend)
    with pytest.raises(UnsupportedError, match="being captured"):
        tilewright.tune(gpu((16, 16)), gpu((16, 16)).t(), gpu((16, 16)))


def test_a_problem_and_arrays_together_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a Problem holds all"):
        tilewright.tune(PROBLEM, gpu((16, 16)))


# -- epilogues ---------------------------------------------------------------------------------------------------------


def test_a_product_with_an_epilogue_has_a_record_of_its_own(tmp_path: Path) -> None:
    fused = with_epilogue(PROBLEM, Bias("bf16") | Gelu())
    plain = dispatch.plan(PROBLEM, device=H200).config
    script = {"us": {}, "acts": {}, "acts_at": {}, "log": str(tmp_path / "log")}
    worker = Worker(command=(sys.executable, str(CHILD), json.dumps(script)))
    (tuned,) = tune_many([fused], candidates=3, worker=worker, device=H200)
    assert tuned.record is not None
    assert tuned.record.problem.endswith("then bias(column) gelu(none)")
    assert dispatch.plan(fused, device=H200).record == tuned.record
    assert dispatch.plan(PROBLEM, device=H200).config == plain
    assert dispatch.plan(with_epilogue(PROBLEM, Gelu()), device=H200).record is None


# -- one order of summation --------------------------------------------------------------------------------------------


def test_an_invariant_tuning_measures_configs_of_the_one_order_and_serves_invariant_products(tmp_path: Path) -> None:
    fast = dispatch.plan(PROBLEM, device=H200).config
    script = {"us": {}, "acts": {}, "acts_at": {}, "log": str(tmp_path / "log")}
    worker = Worker(command=(sys.executable, str(CHILD), json.dumps(script)))
    (tuned,) = tune_many([PROBLEM], reduction="invariant", candidates=4, worker=worker, device=H200)
    assert tuned.record is not None
    assert [order_of(row.config) for row in tuned.rows] == [INVARIANT] * 4
    assert order_of(tuned.untuned) == INVARIANT
    assert dispatch.plan(PROBLEM, device=H200, reduction="invariant").record == tuned.record
    assert dispatch.plan(PROBLEM, device=H200).config == fast
    with pytest.raises(UnsupportedError, match="reduction = 'exact'"):
        next(tune_many([PROBLEM], reduction="exact", worker=worker, device=H200))  # type: ignore[arg-type]
