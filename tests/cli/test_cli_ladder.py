"""`tilewright ladder`: emulated without a GPU, measured with one, refused where there is nothing to climb."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import call, printed, refused

from tilewright.bench import facts, ladder


def test_without_a_gpu_the_rungs_run_in_the_emulator_and_say_why(tmp_path: Path) -> None:
    result = call("ladder", "--rungs", "v03,v07", "--size", "128x256x128", "--into", str(tmp_path))
    assert result.exit_code == 0
    assert "in the emulator: cuInit" in result.stderr
    assert "v03_tuned_tma" in result.stdout
    assert result.stdout.count("exact") == 2
    document = json.loads((tmp_path / "ladder.json").read_text())
    assert [row["rung"] for row in document["rows"]] == ["v03_tuned_tma", "v07_cheap_barriers"]
    assert (tmp_path / "ladder.md").read_text().count("\n") == 4
    assert not (tmp_path / "ladder.svg").exists()


def test_the_ampere_ladder_runs_in_the_emulator_as_well() -> None:
    result = call("ladder", "--rungs", "a1,a5-a6", "--size", "64x64x64")
    assert result.exit_code == 0
    assert result.stdout.count("exact") == 3
    assert "ldmat" in result.stdout


@pytest.mark.parametrize("size", ["0", "12x", "4096x4096", "big", "-4"])
def test_a_size_that_is_none_is_refused(size: str) -> None:
    assert "4096x8192x1024" in refused("ladder", "--size", size, "--rungs", "v03")


def test_an_unknown_rung_is_refused_with_the_known_ones() -> None:
    assert "v01_simt, v02_tensor_cores" in refused("ladder", "--rungs", "v42")


@pytest.mark.parametrize(
    "words",
    [
        ("ladder", "--rungs", "v03", "--size", "64", "--into"),
        ("ceilings", "--into"),
        ("emulate", "none.ptx", "--launch", "none.toml", "--save"),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert f"{words[-1]} {file}: results are written there" in refused(*words, str(file))
    assert file.read_text() == "mine"


@pytest.fixture
def measured(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A GPU whose every rung is timed at 500 TFLOPS; what was asked for."""
    asked: list[dict[str, Any]] = []

    def measure(names: Any, problem: Any, **options: Any) -> list[dict[str, Any]]:
        asked.append({"names": names, "problem": problem, **options})
        row = {"candidate": "", "rate_tflops": 500.0, "ratio": 0.8, "watts": None, "clock_mhz": None}
        row["tflops_per_watt"] = None
        size = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": "bf16"}
        for name in names:
            options["progress"](f"checking {name}")
        return [
            ladder.described(row | size | {"mode": mode}, name, "NVIDIA H200", None)
            for mode in options["modes"]
            for name in names
        ]

    monkeypatch.setattr(ladder, "measure", measure)
    monkeypatch.setattr(facts, "facts", lambda _: {"device": "NVIDIA H200"})
    return asked


def test_with_a_gpu_8192_cubed_is_timed_in_a_burst_and_interleaved(measured: list[dict[str, Any]]) -> None:
    text = printed("ladder", "--rungs", "v10-v12")
    assert "8192x8192x8192" in text
    assert [line.split()[1] for line in text.splitlines() if " 500 " in line] == [
        "v10_tma_store",
        "v11_hilbert",
        "v12_production",
    ]
    assert measured[0]["modes"] == ("burst", "interleaved")


def test_steady_and_rounds_reach_the_measurement(measured: list[dict[str, Any]]) -> None:
    printed("ladder", "--rungs", "v10", "--steady", "--rounds", "3", "--size", "4096x2048x1024", "--tune-s", "5")
    assert measured[0]["modes"] == ("burst", "interleaved", "steady")
    assert (measured[0]["rounds"], measured[0]["tune_s"]) == (3, 5.0)
    assert str(measured[0]["problem"]).startswith("4096x2048x1024")


def test_emulate_leaves_a_gpu_alone(measured: list[dict[str, Any]]) -> None:
    assert "emulated" in printed("ladder", "--rungs", "v02", "--emulate", "--size", "64")
    assert measured == []


def test_a_failed_rung_fails_the_command(measured: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"kind": "rung_check", "rung": "v04_warp_specialized", "status": "stopped after 120 s", "why": "hung"}
    monkeypatch.setattr(ladder, "measure", lambda *_, **__: [row])
    result = call("ladder", "--rungs", "v04")
    assert result.exit_code == 1
    assert "stopped after 120 s" in result.stderr
