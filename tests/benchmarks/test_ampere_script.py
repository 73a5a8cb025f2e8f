"""benchmarks/ampere.py: what it would run on a GPU, and how it tells of it, with no GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ampere.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ampere_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_config_can_run_every_problem_that_is_timed(script: ModuleType) -> None:
    assert [len(list(script.plans(problem))) for problem in script.TIMED] == [len(script.CONFIGS)] * len(script.TIMED)
    assert len(set(script.CONFIGS)) == len(script.CONFIGS)


def test_what_is_checked_has_operands_of_every_width_of_copy_and_some_that_are_copied_first(script: ModuleType) -> None:
    (config, *_) = script.CONFIGS
    assert {config.copy_bytes(problem, "a") for problem in script.checked_problems()} == {0, 4, 8, 16}


def test_wrong_results_and_times_are_told(script: ModuleType) -> None:
    time: dict[str, Any] = {
        "kind": "time",
        "problem": "4096^3",
        "status": "ok",
        "rate_tflops": 492.0,
        "median_us": 279.3,
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
