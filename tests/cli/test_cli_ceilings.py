"""`tilewright ceilings` and `ladder --ceilings`: emulated without a GPU, measured with one, written as rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import call, printed, refused

from tilewright.bench import ceilings, facts, ladder, ladder_counters


def row(mode: str, rate: float, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": "ceiling", "status": "ok", "ceiling": "wgmma bf16", "device": "NVIDIA H200", "dtype": "bf16",
        "mode": mode, "rate_tflops": rate, "rate_gbps": None, "median_us": 4000.0, "spread": 0.001, "watts": 700.0,
        "tflops_per_watt": None, "clock_mhz": 1770.0, "kernel_mhz": 1600.0, "ops_per_cycle": 4090.0,
    }  # fmt: skip
    return found | more


@pytest.fixture
def measured(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A GPU whose loop reaches 1000 TFLOPS in a burst and 800 steady; what was asked for."""
    asked: list[tuple[Any, ...]] = []

    def measure(names: Any, rounds: Any) -> list[dict[str, Any]]:
        asked.append((names, rounds))
        return [row("burst", 1000.0), row("steady", 800.0)]

    monkeypatch.setattr(ceilings, "measure", measure)
    monkeypatch.setattr(facts, "facts", lambda _: {"device": "NVIDIA H200", "date": "2026-11-30"})
    return asked


def test_without_a_gpu_the_kernels_run_in_the_emulator_and_say_why(tmp_path: Path) -> None:
    result = call("ceilings", "--dtypes", "fp16", "--into", str(tmp_path))
    assert result.exit_code == 0
    assert "in the emulator: cuInit" in result.stderr
    rows = json.loads((tmp_path / "ceilings.json").read_text())["rows"]
    assert [found["status"] for found in rows] == ["ok"] * 7
    assert not any("bf16" in found["ceiling"] for found in rows)
    assert (tmp_path / "ceilings.md").read_text().count("\n") == 9


def test_with_a_gpu_types_and_rounds_reach_the_measurement_and_the_rows_are_written(
    measured: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    text = printed("ceilings", "--dtypes", "bfloat16", "--rounds", "1", "--into", str(tmp_path))
    assert measured == [(["bf16"], 1)]
    assert " 1000 " in text
    document = json.loads((tmp_path / "ceilings.json").read_text())
    assert document["facts"]["device"] == "NVIDIA H200"
    assert document["facts"]["command"].startswith("tilewright")
    assert document["rows"] == [row("burst", 1000.0), row("steady", 800.0)]


def test_emulate_leaves_a_gpu_alone(measured: list[tuple[Any, ...]]) -> None:
    assert "right" in printed("ceilings", "--dtypes", "bf16", "--emulate")
    assert measured == []


def test_an_unknown_type_is_refused() -> None:
    assert "bf16 or fp16" in refused("ceilings", "--dtypes", "int8")


def test_a_ceiling_that_is_wrong_fails_the_command(
    measured: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"kind": "ceiling", "ceiling": "read, DRAM", "mode": "all", "status": "wrong", "why": "sums"}
    monkeypatch.setattr(ceilings, "measure", lambda *_: [wrong])
    assert call("ceilings").exit_code == 1


@pytest.fixture
def climbed(measured: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A ladder whose one rung reaches 500 TFLOPS in both modes, and no ncu."""

    def measure(names: Any, problem: Any, **options: Any) -> list[dict[str, Any]]:
        base = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": "bf16", "rate_tflops": 500.0, "ratio": 0.8}
        base |= {"watts": 690.0, "clock_mhz": 1400.0, "tflops_per_watt": 0.7}
        return [ladder.described(base | {"mode": mode}, names[0], "NVIDIA H200", None) for mode in ("burst", "steady")]

    monkeypatch.setattr(ladder, "measure", measure)
    monkeypatch.setattr(ladder_counters, "is_there", lambda: False)
    monkeypatch.setattr(ceilings, "RESULTS", Path("absent"))
    return measured


def shares(folder: Path) -> list[Any]:
    rows = json.loads((folder / "ladder.json").read_text())["rows"]
    return [found["share_of_ceiling"] for found in rows if found["kind"] == "rung_time"]


def test_the_ladder_with_ceilings_shows_the_share_of_those_of_the_same_run(
    climbed: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    text = printed("ladder", "--rungs", "v04", "--steady", "--ceilings", "--into", str(tmp_path))
    assert climbed == [(["bf16"], None)]
    assert "ceilings, NVIDIA H200" in text
    assert shares(tmp_path) == [0.5, 0.625]
    assert len(json.loads((tmp_path / "ceilings.json").read_text())["rows"]) == 2


def test_without_ceilings_the_share_is_of_committed_rows_of_this_very_card_or_empty(
    climbed: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, expected in (("NVIDIA H200", [0.25, None]), ("NVIDIA H100", [None, None])):
        rows = [row("burst", 2000.0, device=name)]
        monkeypatch.setattr(ceilings, "committed_rows", lambda rows=rows: rows)
        printed("ladder", "--rungs", "v04", "--steady", "--into", str(tmp_path))
        assert shares(tmp_path) == expected
    assert climbed == []


def test_rungs_are_counted_where_ncu_is_and_a_refusal_of_ncu_does_not_fail_the_command(
    climbed: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def counted_rows(names: Any, problem: Any, *, progress: Any) -> list[dict[str, Any]]:
        asked.append(names)
        return [{"kind": "rung_counters", "rung": names[0], "status": "not counted", "why": "ERR_NVGPUCTRPERM"}]

    monkeypatch.setattr(ladder_counters, "is_there", lambda: True)
    monkeypatch.setattr(ladder_counters, "counted_rows", counted_rows)
    result = call("ladder", "--rungs", "v04")
    assert result.exit_code == 0
    assert "ERR_NVGPUCTRPERM" in result.stderr
    assert asked == [["v04_warp_specialized"]]
    assert call("ladder", "--rungs", "v04", "--no-counters").exit_code == 0
    assert len(asked) == 1
