"""benchmarks/ampere.py: what it would run on a GPU, and how it tells of it, with no GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tilewright
from tilewright.device import preset

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ampere.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ampere_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_config_can_run_every_problem_that_something_is_expected_of_it_on(script: ModuleType) -> None:
    assert len(set(script.CONFIGS)) == len(script.CONFIGS)
    for problem in script.TIMED:
        configs = script.timed_configs(problem)
        assert len(configs) >= 6
        for config in configs:
            assert tilewright.plan(problem, device="h200", config=config).config == config
    assert all(any(variant.expected(problem) for problem in script.TIMED) for variant in script.VARIANTS)
    assert set(script.COUNTED) <= set(script.timed_configs(script.SQUARE))


def test_what_was_expected_stands_beside_what_was_measured(script: ModuleType) -> None:
    config = script.CONFIGS[0]
    variant = script.VARIANTS[0]
    row: dict[str, Any] = {"candidate": f"tilewright {config}"}
    assert script.expectation(script.SQUARE, row) == {"expected_tflops": variant.square}
    (rate,) = script.expectation(script.BATCH, row).values()
    assert rate == pytest.approx(script.BATCH.flops / variant.batch_us / 1e6)
    assert script.expectation(script.SQUARE, {"candidate": "cublas"}) == {}
    timed = {"kind": "time", "problem": "p", "candidate": "x", "status": "ok", "rate_tflops": 1.0, "median_us": 1.0}
    timed |= {"dtype": "bf16", "mode": "burst"}
    assert "(expected 420)" in "\n".join(script.table([timed | {"expected_tflops": 420.0}]))


def test_what_ncu_counts_is_told_line_by_line(script: ModuleType) -> None:
    row = {"kind": "count", "problem": "p", "config": "c", "status": "ok", "hmma_pct": 61.5, "cycles": None}
    lines = script.table([row])
    assert any(line.split() == ["hmma_pct", "61.5"] for line in lines)
    assert not any("cycles" in line for line in lines)
    assert "not counted no ncu" in "\n".join(script.table([row | {"status": "not counted", "why": "no ncu"}]))


def test_what_is_checked_has_operands_of_every_width_of_copy_and_some_that_are_copied_first(script: ModuleType) -> None:
    (config, *_) = script.CONFIGS
    assert {config.copy_bytes(problem, "a") for problem in script.checked_problems()} == {0, 4, 8, 16}


def test_wrong_results_and_times_are_told(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = {"kind": "ceiling", "status": "ok", "ceiling": "mma.sync bf16", "device": "NVIDIA H200", "dtype": "bf16"}
    monkeypatch.setattr(script, "committed_rows", lambda: [loop | {"mode": "burst", "rate_tflops": 615.0}])
    time: dict[str, Any] = {
        "kind": "time",
        "problem": "4096^3",
        "status": "ok",
        "rate_tflops": 492.0,
        "median_us": 279.3,
        "dtype": "bf16",
        "mode": "burst",
        "device": "NVIDIA H200",
    }
    lines = script.table(
        [
            {"kind": "check", "case": "one", "status": "ok", "why": ""},
            {"kind": "check", "case": "other", "status": "wrong", "why": "2 elements"},
            {"kind": "child", "part": "time", "status": "stopped after 180 s", "why": "hung"},
            time | {"candidate": "tilewright 128x256", "ratio": 0.7},
            {"kind": "time", "problem": "4096^3", "candidate": "small", "status": "refused"},
        ]
    )
    text = "\n".join(lines)
    assert lines[0] == "1 ok, 0 refused, 1 wrong"
    for words in ("wrong: other: 2 elements", "time: stopped after 180 s: hung", "0.800 of mma.sync  0.700x cuBLAS ok"):
        assert words in text
    assert "small: refused" in text


def test_every_row_says_its_device_whose_ceilings_count(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {"facts": {"device": "NVIDIA H200"}, "modes": {"kind": "time"}}
    monkeypatch.setattr(script, "run_part", lambda part, limit_s: ([made[part]], None))
    assert script.content([], ["modes"])["rows"] == [{"kind": "time", "device": "NVIDIA H200"}]


def test_each_kind_is_timed_and_checked_with_configs_that_can_run_it(script: ModuleType) -> None:
    for problem in (*script.KINDS_TIMED, *script.KINDS_CHECKED):
        assert len(script.kinds_configs(problem)) >= (4 if problem.m == 4096 else 1), problem
    assert {problem.dtype.name for problem in script.KINDS_TIMED} == {"int8", "tf32", "fp16"}


def test_each_kind_is_timed_in_pairs_of_a_plain_loop_and_a_split_barrier(script: ModuleType) -> None:
    assert [problem.dtype.name for problem in script.FORMS_TIMED] == ["int8", "tf32", "fp16"]
    for timed, checked in zip(script.FORMS_TIMED, script.FORMS_CHECKED, strict=True):
        configs = script.forms_configs(timed)
        assert len(configs) == 12
        assert [each.violations(problem, preset("h200")) for each in configs for problem in (timed, checked)] == [
            ()
        ] * 24
        for plain, split in zip(configs[::2], configs[1::2], strict=True):
            assert plain.replace(split_barrier=True, ahead=3) == split != plain
    alone = {unit.digest("") for unit in script.sources(forms_alone=True)}
    assert len(alone) == 48 < len({unit.digest("") for unit in script.sources()} | alone)


def test_bursts_steady_times_and_fp16_are_of_a_config_that_was_timed_interleaved(script: ModuleType) -> None:
    assert script.MODES_CONFIG in script.timed_configs(script.SQUARE)
    for problem, modes in script.MODES_TIMED:
        assert script.MODES_CONFIG.violations(problem, preset("h200")) == ()
        assert {"burst", "steady"} <= set(modes)
        assert ("interleaved" in modes) == (problem not in script.TIMED)
    assert {problem.dtype.name for problem, _ in script.MODES_TIMED} == {"bf16", "fp16"}
