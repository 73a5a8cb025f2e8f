"""`tilewright profile` as a person types it, with no GPU and no ncu."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call, printed, refused

from tilewright.bench import profile as measurement

CSV = Path(__file__).parents[1] / "bench" / "ncu_a5_256.csv"


def test_counters_of_a_file_are_printed_beside_the_emulators_and_kept_as_rows(tmp_path: Path) -> None:
    into = tmp_path / "rows.json"
    text = printed("profile", "--rung", "a5", "--size", "256", "--from", str(CSV), "--into", str(into))
    assert "conflicts, ldmatrix" in text
    assert "disagree" not in text
    assert "long_scoreboard" in text
    content = json.loads(into.read_text())
    assert content["rows"][0]["asked"]["rung"] == "a5"
    assert content["rows"][0]["emulated"]["ldsm_conflicts"] == 0
    again = printed("profile", "--from", str(into))
    assert again == text


def test_a_disagreement_is_the_commands_failure(tmp_path: Path) -> None:
    wrong = tmp_path / "ncu.csv"
    wrong.write_text(CSV.read_text().replace('"3,072"', '"6,144"'))
    result = call("profile", "--rung", "a5", "--size", "256", "--from", str(wrong))
    assert result.exit_code == 1
    assert "disagree" in result.stdout


def test_the_emulator_alone_needs_no_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement.shutil, "which", lambda name: None)
    text = printed("profile", "128", "128", "128", "--rung", "a4", "--emulated")
    assert "wavefronts, ldmatrix" in text
    assert "ncu" not in text


def test_without_ncu_the_refusal_says_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement.shutil, "which", lambda name: None)
    text = refused("profile", "--rung", "a4", "--size", "128")
    assert "ncu) is not on the PATH" in text
    assert "--emulated" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("128", "128"), "not three whole numbers"),
        (("128", "128", "128", "--size", "128"), "without M N K"),
        (("--size", "12y"), "is no size"),
        (("--from", "rows.json", "--rung", "a4"), "rows say themselves"),
        (("--from", "rows.json", "--dtype", "fp16", "--device", "a100"), "leave out --dtype, --device"),
        (("--from", "rows.json", "--dtype", "bf16"), "leave out --dtype"),  # also what it would be unasked
        (("--from", "rows.json", "64", "64", "64", "--contiguous"), "leave out [M N K], --contiguous"),
        (("--from", "rows.json", "--emulated"), "without --from"),
        (("--from", "ncu.csv", "--size", "64", "--limit-s", "9"), "does not run with --emulated or --from"),
        (("--emulated", "--size", "64", "--limit-s", "9"), "does not run with --emulated or --from"),
        (("--size", "64", "--rung", "a4", "--family", "ampere"), "a rung is a kernel by itself"),
        (("--emulated", "--from", "x.csv", "--size", "128"), "without --from"),
        (("--size", "128", "--from", "nowhere.csv"), "No such file"),
        (("--from", "nowhere.json"), "No such file"),
    ],
)
def test_words_that_do_not_go_together_are_refused(words: tuple[str, ...], says: str) -> None:
    assert says in refused("profile", *words)
