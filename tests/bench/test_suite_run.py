"""bench/suite_run.py: the file of rows, children that hang or die, time, and going on where a run was stopped."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilewright
from tilewright import records
from tilewright.bench import suite_run
from tilewright.bench.suite import Entry, problem_of
from tilewright.bench.suite_run import (
    Journal,
    Options,
    Run,
    asked,
    described,
    records_in,
    records_of,
    rows_in,
    understood,
)
from tilewright.config import Config
from tilewright.device import preset
from tilewright.errors import ConfigError, DriverError, LayoutError, TilewrightError, UnsupportedError
from tilewright.kernels.repack import repacked

H200 = preset("h200")
A, B, C = Entry("g", (1, 2, 3)), Entry("g", (4, 5, 6)), Entry("h", (7, 8, 9))

# A child of its own: takes the request, and does with each shape what its behaviour says; once, where a file says so.
CHILD = """
import json, os, sys, threading
from pathlib import Path
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
request = json.loads(Path(arguments["--request"]).read_text())
log = Path(arguments["--log"])
behaviour = json.loads(Path(__file__).with_suffix(".json").read_text())
def add(**row):
    with log.open("a") as file:
        file.write(json.dumps(row) + "\\n")
if behaviour.get("start") == "die":
    print("no GPU")
    sys.exit(3)
add(kind="facts", device="NVIDIA H200", budget=arguments.get("--budget-s"))
for group, m, n, k in request["entries"]:
    shape = f"{m}x{n}x{k}"
    if behaviour.get(shape) == "leave":
        sys.exit(0)
    add(kind="begun", shape=shape)
    if behaviour.get(shape) == "hang":
        threading.Event().wait()
    if behaviour.get(shape) == "die":
        print("last words", flush=True)
        os.abort()
    add(kind="bench", shape=shape, group=group, candidate="cublas", mode="interleaved", status="ok")
    add(kind="done", shape=shape)
    if behaviour.get(shape) == "fault after":
        sys.exit(1)
"""


def run_of(
    tmp_path: Path, behaviour: dict[str, str], *, options: Options | None = None, entries: Any = (A, B, C), **more: Any
) -> Run:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    script.with_suffix(".json").write_text(json.dumps(behaviour))
    journal = Journal.opened(tmp_path / "out" / "rows.jsonl")
    command = (sys.executable, str(script))
    return Run(entries, options or Options(limit_s=30.0), journal, command=command, **more)


def statuses(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["shape"], row["status"].split(" after ")[0]) for row in rows]


def test_every_shape_is_measured_by_one_child(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    run = run_of(tmp_path, {}, progress=lambda done, text: told.append((done, text)))
    assert statuses(run.go()) == [("1x2x3", "ok"), ("4x5x6", "ok"), ("7x8x9", "ok")]
    assert sum(row["kind"] == "facts" for row in run.journal.rows) == 1
    assert run.journal.facts["device"] == "NVIDIA H200"
    assert told == sorted(told)


def test_a_child_that_hangs_costs_the_shape_that_it_hung_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_run, "START_S", 20.0)
    run = run_of(tmp_path, {"4x5x6": "hang"}, options=Options(limit_s=1.0))
    rows = run.go()
    assert statuses(rows) == [("1x2x3", "ok"), ("4x5x6", "stopped"), ("7x8x9", "ok")]
    assert (rows[1]["candidate"], rows[1]["m"], rows[1]["status"]) == (None, 4, "stopped after 1 s")


def test_a_child_that_dies_costs_the_shape_that_it_died_in_and_its_last_words_are_kept(tmp_path: Path) -> None:
    rows = run_of(tmp_path, {"1x2x3": "die"}).go()
    assert statuses(rows) == [("1x2x3", "exit -6"), ("4x5x6", "ok"), ("7x8x9", "ok")]
    assert "last words" in rows[0]["why"]


def test_a_child_that_ends_between_shapes_is_followed_by_another(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"1x2x3": "fault after"})
    assert [status for _, status in statuses(run.go())] == ["ok"] * 3
    assert sum(row["kind"] == "facts" for row in run.journal.rows) == 2


def test_a_child_that_cannot_begin_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"exit 3\): no GPU"):
        run_of(tmp_path, {"start": "die"}).go()


def test_a_run_that_was_stopped_goes_on_with_the_shape_that_it_was_in(tmp_path: Path) -> None:
    first = run_of(tmp_path, {"4x5x6": "leave"})
    first.go()
    first.journal.add({"kind": "begun", "shape": "4x5x6"})
    first.journal.add({"kind": "bench", "shape": "4x5x6", "candidate": "cublas", "status": "ok", "mode": "burst"})
    with first.journal.path.open("a") as file:
        file.write('{"kind": "bench", "sha')  # cut off
    second = run_of(tmp_path, {})
    assert statuses(second.go()) == [("1x2x3", "ok"), ("4x5x6", "ok"), ("7x8x9", "ok")]
    assert sum(row.get("shape") == "1x2x3" for row in second.journal.rows) == 3, "begun, its row, done: once"
    assert run_of(tmp_path, {"start": "die"}).go() == second.journal.measured, "nothing is left to do"


def test_a_child_that_dies_at_its_start_is_not_blamed_on_a_shape_of_an_earlier_run(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"start": "die"})
    run._continue()
    run.journal.add({"kind": "begun", "shape": "4x5x6"})
    with pytest.raises(UnsupportedError, match="no GPU"):
        run.go()


def test_rows_of_another_kind_of_run_are_not_continued(tmp_path: Path) -> None:
    run_of(tmp_path, {}).go()
    with pytest.raises(UnsupportedError, match="had other dtype"):
        run_of(tmp_path, {}, options=Options(dtype="fp16")).go()
    run_of(tmp_path, {}, options=Options(tune_s=3.0, limit_s=7.0)).go()


def test_what_the_time_does_not_suffice_for_is_named_and_measured_by_a_later_run(tmp_path: Path) -> None:
    options = Options(budget_s=60.0, limit_s=30.0)
    rows = run_of(tmp_path, {"4x5x6": "leave"}, options=options).go()
    assert statuses(rows) == [("1x2x3", "ok"), ("4x5x6", "not run"), ("7x8x9", "not run")]
    assert "60.0 s" in rows[1]["why"]
    run = run_of(tmp_path, {}, options=options)
    assert [status for _, status in statuses(run.go())] == ["ok"] * 3
    assert 0 < float(run.journal.facts["budget"]) <= 60.0


def test_no_child_begins_when_the_time_is_over(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"start": "die"}, options=Options(budget_s=1.0))
    assert {status for _, status in statuses(run.go())} == {"not run"}


def test_a_child_understands_what_it_is_asked(tmp_path: Path) -> None:
    options = Options(
        modes=("burst", "steady"), rounds=3, tune_s=1.5, tuned_from=Path("a.json"), records=Path("b.json"), budget_s=9.0
    )
    for each in (options, Options()):
        request = json.loads(json.dumps(asked([A, C], each)))
        assert understood(request) == ([A, C], each)


# -- the child's own part ----------------------------------------------------------------------------------------------


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Journal, list[tuple[str, float]]]:
    """A journal, and the shapes that were measured with the seconds of their search. B raises what `raises` is."""
    measured: list[tuple[str, float]] = []

    def measure_shape(entry: Entry, options: Options, tune_s: float, *_: Any) -> list[dict[str, Any]]:
        measured.append((str(entry), tune_s))
        if entry == B and (error := getattr(measure_shape, "raises", None)):
            raise error
        return [{"kind": "bench", "shape": str(entry), "status": "ok"}]

    monkeypatch.setattr(suite_run, "measure_shape", measure_shape)
    monkeypatch.setattr("tilewright.backends.cuda.backend", lambda: SimpleNamespace(device=lambda _: H200))
    monkeypatch.setattr("tilewright.bench.facts.facts", lambda _: {"device": "NVIDIA H200"})
    return Journal(tmp_path / "rows.jsonl"), measured


def test_rows_are_on_disk_before_the_next_shape_begins(
    measuring: tuple[Journal, list[tuple[str, float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    journal, _ = measuring
    suite_run.measure([A, B], Options(), journal, None)
    kinds = [json.loads(line)["kind"] for line in journal.path.read_text().splitlines()]
    assert kinds == ["facts", "begun", "bench", "done", "begun", "bench", "done"]


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (LayoutError("a", "b", "c"), True),
        (DriverError("cuLaunchKernelEx", "CUDA_ERROR_ILLEGAL_ADDRESS", "restart", ""), False),
    ],
)
def test_after_a_fault_of_the_gpu_the_child_ends_and_after_a_refusal_it_goes_on(
    measuring: tuple[Journal, list[tuple[str, float]]], error: TilewrightError, goes_on: bool
) -> None:
    pytest.importorskip("torch")
    journal, measured = measuring
    suite_run.measure_shape.raises = error  # type: ignore[attr-defined]
    if goes_on:
        suite_run.measure([A, B, C], Options(), journal, None)
    else:
        with pytest.raises(DriverError):
            suite_run.measure([A, B, C], Options(), journal, None)
    assert len(measured) == (3 if goes_on else 2)
    (failed,) = [row for row in journal.measured if row["status"] == "error"]
    assert (failed["shape"], failed["candidate"]) == ("4x5x6", None)
    assert failed["why"].startswith(type(error).__name__)
    assert journal.done() == ({"1x2x3", "4x5x6", "7x8x9"} if goes_on else {"1x2x3", "4x5x6"})


def test_searches_shrink_so_that_every_shape_is_reached(
    measuring: tuple[Journal, list[tuple[str, float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    journal, measured = measuring
    clock = [100.0]
    monkeypatch.setattr(suite_run.time, "monotonic", lambda: clock[0])
    suite_run.measure([A, B, C], Options(tune_s=20.0), journal, 100.0 + 3 * (suite_run.SHAPE_S + 4.0))
    assert [seconds for _, seconds in measured] == pytest.approx([4.0, 7.0, 16.0]), "a third, a half, all that is left"
    measured.clear()
    suite_run.measure([A, B], Options(tune_s=20.0), journal, 100.0 + suite_run.SHAPE_S)
    assert [seconds for _, seconds in measured] == [suite_run.LEAST_TUNE_S] * 2
    measured.clear()
    suite_run.measure([A, B], Options(tune_s=20.0), journal, 100.5)
    assert measured == []


def test_a_child_whose_parent_is_gone_measures_no_further_shape(
    measuring: tuple[Journal, list[tuple[str, float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    journal, measured = measuring
    parents = iter([7, 7, 1, 1])
    monkeypatch.setattr(suite_run.os, "getppid", lambda: next(parents))
    suite_run.measure([A, B, C], Options(), journal, None)
    assert [shape for shape, _ in measured] == ["1x2x3"]


def test_a_shape_without_a_record_says_so_and_one_with_a_record_is_given_its_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    given: list[dict[str, Any]] = []

    def compare(problem: Any, **options: Any) -> list[dict[str, Any]]:
        given.append(options)
        head = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": "bf16", "out_dtype": "bf16", "b_major": "k"}
        return [head | {"candidate": "cublas", "mode": mode, "status": "ok"} for mode in options["modes"]]

    monkeypatch.setattr("tilewright.bench.compare.compare", compare)
    own = tmp_path / "records.json"
    own.write_text(json.dumps({str(problem_of(A.shape)): ["tile_m=256", "stages=3"]}))
    options = Options(records=own, modes=("burst", "steady"))
    with_record = suite_run.measure_shape(A, options, 1.0, {}, H200)
    without = suite_run.measure_shape(B, dataclasses.replace(options, tune_s=0.0), 1.0, {}, H200)
    assert given[0]["named"]["tilewright recorded"] == Config(tile_m=256, stages=3)
    assert given[0]["tuned"].seconds == 1.0
    assert len(with_record) == 2
    assert (given[1]["named"], given[1]["tuned"]) == ({"tilewright": None}, False), "the model's choice"
    assert [(row["candidate"], row["status"], row["mode"]) for row in without[2:]] == [
        ("tilewright recorded", "no record", "burst"),
        ("tilewright recorded", "no record", "steady"),
    ]
    assert without[2]["group"] == "g"


def test_without_a_file_what_is_on_record_for_the_device_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(tmp_path / "records.jsonl"))
    monkeypatch.setattr(records, "shipped", lambda: records.Store(None))
    problem, config = problem_of((4096, 4096, 4096)), Config(tile_m=128, stages=3)
    assert records_of(None, H200)(problem) is None
    record = records.Record(
        key=records.key_of(problem, H200), family="hopper", config=config, measured_us=200.0, predicted_us=210.0,
        spread=0.01, rounds=9, regime="interleaved", digest="d", compiler="c", driver="580", date="2026-11-30",
    )  # fmt: skip
    assert records.append(record)
    assert records_of(None, H200)(problem) == config
    assert records_of(None, preset("h100"))(problem) is None
    assert records_of(None, H200, "invariant")(problem) == config  # which adds in the one order
    assert records.append(dataclasses.replace(record, config=config.replace(k_back_and_forth=True)))
    assert records_of(None, H200, "invariant")(problem) is None


def test_what_is_on_record_for_copied_operands_is_what_a_plan_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(tmp_path / "records.jsonl"))
    monkeypatch.setenv("TILEWRIGHT_USE_RECORDS", "1")
    monkeypatch.setattr(records, "shipped", lambda: records.Store(None))
    problem = problem_of((512, 512, 1023))
    assert problem.repacked
    copies = repacked(problem, problem.repacked)
    assert records.append(
        records.Record(
            key=records.key_of(copies, H200), family="hopper", config=Config(tile_m=128, stages=3), measured_us=200.0,
            predicted_us=210.0, spread=0.01, rounds=9, regime="interleaved", digest="d", compiler="c", driver="580",
            date="2026-11-30",
        )
    )  # fmt: skip
    plan = tilewright.plan(problem, device=H200)
    assert plan.record is not None
    assert records_of(None, H200)(problem) == plan.config


def test_rows_of_another_reduction_are_rows_of_another_run() -> None:
    assert "reduction" not in Options().identity  # files from before there was one go on
    assert Options(reduction="invariant").identity["reduction"] == "invariant"
    assert understood(json.loads(json.dumps(asked([A], Options(reduction="invariant")))))[1].reduction == "invariant"


def test_a_row_says_its_distance_to_the_floor() -> None:
    problem = problem_of((8192, 8192, 8192))
    row = {"mode": "steady", "median_us": 1700.0, "status": "ok"}
    found = described(row, Entry("square", (8192, 8192, 8192)), problem, "NVIDIA H200")
    assert (found["kind"], found["group"], found["shape"], found["bound"]) == (
        "bench", "square", "8192x8192x8192", "compute"
    )  # fmt: skip
    assert found["share_of_floor"] == pytest.approx(0.755, abs=0.001)
    other = described(row, Entry("square", (8192, 8192, 8192)), problem, "NVIDIA H20")
    assert (other["floor_us"], other["share_of_floor"]) == (None, None)
    refused = described({"mode": "steady", "status": "refused"}, A, problem, "NVIDIA H200")
    assert refused["share_of_floor"] is None


def test_records_of_no_config_are_refused(tmp_path: Path) -> None:
    own = tmp_path / "records.json"
    own.write_text(json.dumps({str(problem_of(A.shape)): ["tile=3"]}))
    with pytest.raises(ConfigError):
        records_in(own)(problem_of(A.shape))
    for content in ("[]", "{", '{"a": 3}'):
        own.write_text(content)
        with pytest.raises(UnsupportedError, match=r"records\.json"):
            records_of(own, H200)


def test_rows_are_read_from_either_kind_of_file_and_nothing_else(tmp_path: Path) -> None:
    rows = [{"kind": "bench", "shape": "1x2x3"}]
    lines, document = tmp_path / "rows.jsonl", tmp_path / "bench.json"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    document.write_text(json.dumps({"facts": {}, "rows": rows}))
    assert rows_in(lines) == rows_in(document) == rows
    document.write_text("[]")
    for path in (document, tmp_path / "none.json"):
        with pytest.raises(UnsupportedError, match=path.name):
            rows_in(path)
