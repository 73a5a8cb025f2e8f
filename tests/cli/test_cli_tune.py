"""`tilewright tune`, and what the other commands tell of records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import call, printed, refused

from tilewright import device, model, records
from tilewright.config import Config
from tilewright.packing import packed
from tilewright.problem import Problem
from tilewright.records import Record
from tilewright.tuning import tune as tuning
from tilewright.tuning.candidates import computed_problem
from tilewright.tuning.outcome import Row, Tuned

H200 = device.preset("h200")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "records.jsonl"
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(path))
    monkeypatch.setenv("TILEWRIGHT_USE_RECORDS", "1")
    records.clear()
    yield path
    records.clear()


def record(problem: Problem, config: Config | None = None, us: float = 8.0) -> Record:
    return Record(
        key=records.key_of(problem, H200),
        family="hopper",
        config=config or Config(tile_n=128, stages=5),
        measured_us=us,
        predicted_us=9.0,
        spread=0.01,
        rounds=9,
        regime="interleaved",
        digest="0" * 32,
        compiler="nvrtc",
        driver="13.0",
        date="2026-12-01",
    )


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A tuner that measures nothing: what it was asked, and products ("fails") of which it finds no record."""
    asked: dict[str, Any] = {"fails": ()}

    def tune_many(problems: list[Problem], **options: Any) -> Iterator[Tuned]:
        asked.update(options, problems=problems)
        for problem in problems:
            untuned = model.best(problem, H200).config
            won = record(problem)
            options["progress"]("round 1")
            failed = problem.m in asked["fails"]
            rows = (
                Row(config=won.config, family="hopper", predicted_us=9.0, status="fastest", median_us=8.0, rounds=9),
                Row(config=untuned, family="hopper", predicted_us=8.5, status="slower", median_us=8.2, rounds=9),
                Row(config=Config(), family="hopper", predicted_us=8.5, status="hung", why="no answer in 20 s"),
            )
            yield Tuned(
                problem=problem,
                device=H200,
                record=None if failed else won,
                decided="budget" if failed else "clear",
                verdict="no time was left for it" if failed else "clearly the fastest",
                untuned=untuned,
                rows=rows,
                seconds=1.0,
                kept=not failed,
            )

    monkeypatch.setattr(tuning, "tune_many", tune_many)
    return asked


def test_one_product_is_told_with_every_candidate(tuner: dict[str, Any]) -> None:
    text = printed("tune", "512", "768", "1024", "--dtype", "fp16", "--b-major", "n", "--budget-s", "5")
    assert tuner["problems"] == [packed(512, 768, 1024, dtype="fp16", b_major="n", padded=False)]
    assert (tuner["budget_s"], tuner["candidates"], tuner["keep"]) == (5.0, 8, True)
    assert "clearly the fastest" in text
    assert "hung" in text
    assert "no answer in 20 s" in text


def test_products_are_of_contiguous_arrays_unless_they_are_said_to_be_padded(tuner: dict[str, Any]) -> None:
    printed("tune", "65", "63", "66")
    assert tuner["problems"] == [packed(65, 63, 66, padded=False)]
    printed("tune", "65", "63", "66", "--padded")
    assert tuner["problems"] == [packed(65, 63, 66)]


def test_a_product_is_tuned_and_forgotten_with_what_follows_it(tuner: dict[str, Any]) -> None:
    words = ("tune", "64", "96", "32", "--epilogue", "bias gated(gelu)", "--dtype", "fp16")
    printed(*words)
    (problem,) = tuner["problems"]
    assert str(problem).endswith("| bias(column) gated(gelu halves)")
    assert problem.out_pitch == 48
    records.append(record(problem))
    assert printed("tune", "64", "96", "32", "--dtype", "fp16", "--forget").startswith("forgot 0 records")
    assert printed(*words, "--forget") == "forgot 1 record\n"


def test_forgetting_finds_the_record_of_the_copies_which_is_not_that_of_padded_rows() -> None:
    contiguous = packed(65, 63, 66, padded=False)
    records.append(record(computed_problem(contiguous, H200)))
    assert printed("tune", "65", "63", "66", "--padded", "--forget").startswith("forgot 0 records")
    assert printed("tune", "65", "63", "66", "--forget") == "forgot 1 record\n"


def test_a_suite_is_a_table_that_says_how_well_the_model_chose(tuner: dict[str, Any]) -> None:
    text = printed("tune", "--suite", "tiny", "--no-keep", "--candidates", "3")
    assert [problem.m for problem in tuner["problems"]] == [128, 384]
    assert (tuner["budget_s"], tuner["candidates"], tuner["keep"]) == (120.0, 3, False)
    assert "1.025" in text
    assert "untuned within 5 % of tuned: 100% of 2; the worst 2.5% off" in text


def test_a_product_without_a_record_fails_the_command_and_the_rest_is_told(tuner: dict[str, Any]) -> None:
    tuner["fails"] = (384,)
    result = call("tune", "--suite", "tiny")
    assert result.exit_code == 1
    assert "no time was left for it" in result.stdout
    assert "1.025" in result.stdout


def test_every_candidate_is_appended_as_a_line(tuner: dict[str, Any], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    printed("tune", "--suite", "tiny", "--into", str(rows))
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(lines) == 6
    assert [line["is_record"] for line in lines[:3]] == [True, False, False]
    assert [line["is_untuned"] for line in lines[:2]] == [False, True]
    assert json.loads(printed("tune", "--suite", "tiny", "--json")) == lines


def test_records_are_listed_yours_before_the_shipped_which_they_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = [record(packed(64, 64, 64), us=5.0), record(packed(128, 64, 64), us=6.0)]
    text = "\n".join(each.line() for each in shipped).encode()
    monkeypatch.setattr(records, "shipped", lambda: records.Store(None, (("h200.jsonl", text),)))
    records.append(record(packed(64, 64, 64), us=4.0))
    listed = json.loads(printed("tune", "--list", "--json"))
    assert [(row["whose"], row["measured_us"]) for row in listed] == [("yours", 4.0), ("shipped", 6.0)]
    assert "1 record in " in printed("tune", "--list")


def test_records_of_named_products_are_forgotten() -> None:
    for m in (64, 128):
        records.append(record(packed(m, 64, 64)))
    assert printed("tune", "64", "64", "64", "--forget") == "forgot 1 record\n"
    assert records.lookup(packed(64, 64, 64), H200) is None
    assert records.lookup(packed(128, 64, 64), H200) is not None


def test_forgetting_a_product_says_that_its_shipped_record_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    text = record(packed(64, 64, 64), us=5.0).line().encode()
    monkeypatch.setattr(records, "shipped", lambda: records.Store(None, (("h200.jsonl", text),)))
    shown = printed("tune", "64", "64", "64", "--forget")
    assert shown == "forgot 0 records\n1 shipped record counts as before; TILEWRIGHT_USE_RECORDS=0 leaves it out\n"


def test_forgetting_all_asks_first() -> None:
    records.append(record(packed(64, 64, 64)))
    assert call("tune", "--forget", keys="n\n").exit_code == 1
    assert records.lookup(packed(64, 64, 64), H200) is not None
    assert printed("tune", "--forget", "--yes") == "forgot 1 record\n"
    assert records.lookup(packed(64, 64, 64), H200) is None


def test_candidates_are_compiled_for_another_machine_with_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed("tune", "64", "64", "64", "--candidates", "2", "--build", str(tmp_path / "cubins"))
    assert text.startswith("2 kernels for NVIDIA H200")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give M N K, or --suite"),
        (("64", "64", "64", "--suite", "tiny"), "not both"),
        (("--suite", "cubes"), "square, tiny"),
        (("64", "64"), "64 64"),
        (("64", "64", "64", "--device", "h200"), "what is measured is the GPU present"),
        (("64", "64", "64", "--candidates", "0"), "--candidates"),
        (("64", "64", "64"), "cuInit"),
        (("-5", "8", "8"), "m = -5"),
        (("64", "64", "64", "--epilogue", "bias elu"), "steps are alpha, beta, bias"),
    ],
)
def test_what_cannot_be_tuned_is_refused(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused("tune", *words)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tuner: dict[str, Any], tmp_path: Path
) -> None:
    sentence = refused("tune", "64", "64", "64", "--into", str(tmp_path / "none" / "rows.jsonl"))
    assert "cannot be written" in sentence
    assert "problems" not in tuner


# -- the other commands ------------------------------------------------------------------------------------------------


def test_show_and_run_say_where_the_choice_comes_from() -> None:
    assert "untuned: the model's choice" in printed("show", "256", "256", "256")
    problem = packed(256, 256, 256)
    records.append(record(problem))
    assert "from records, a hint only" in printed("show", "256", "256", "256")
    answer = json.loads(printed("run", "256", "256", "256", "--no-emulate", "--json"))
    assert answer["config"] == dataclasses.asdict(record(problem).config)
    assert answer["record"]["measured_us"] == 8.0
    assert answer["why"].startswith("from records")


def test_doctor_counts_records_and_says_when_they_are_off(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    records.append(record(packed(256, 256, 256)))
    with file.open("a") as damaged:
        damaged.write("torn\n")
    found = [each for each in json.loads(printed("doctor", "--json"))["findings"] if each["topic"] == "records"]
    assert found[0]["value"].startswith(f"1 in {file}, ")
    assert "torn" in found[1]["value"]
    monkeypatch.setenv("TILEWRIGHT_USE_RECORDS", "0")
    assert "turned off" in printed("doctor")


def test_invariant_products_are_tuned_and_forgotten_apart(tuner: dict[str, Any]) -> None:
    printed("tune", "64", "64", "64", "--reduction", "invariant")
    assert tuner["reduction"] == "invariant"
    problem = packed(64, 64, 64)
    own = dataclasses.replace(record(problem), key=records.key_of(problem, H200, reduction="invariant"))
    for each in (own, record(problem)):
        records.append(each)
    assert printed("tune", "64", "64", "64", "--forget", "--reduction", "invariant") == "forgot 1 record\n"
    assert records.lookup(problem, H200) is not None
    assert [each.sms for each in records.user().records()] == ["all SMs"]
