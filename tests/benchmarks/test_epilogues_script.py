"""benchmarks/epilogues.py: what it would run on a GPU, and how it tells of it, with no GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tilewright

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "epilogues.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("epilogues_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_kind_is_checked_in_several_forms_and_every_form_in_several_kinds(script: ModuleType) -> None:
    cases = [name for m, n, k in script.CHECKED for name, _, _ in script.checked_cases(m, n, k)]
    for name in (*script.FORMS, *script.KINDS):
        assert sum(f" {name}," in case or case.endswith(f", {name}") for case in cases) >= 3, name


def test_every_epilogue_that_is_timed_can_run_and_a_gated_out_has_half_of_the_columns(script: ModuleType) -> None:
    square = tilewright.packed(4096, 4096, 4096)
    for name, kind in script.KINDS.items():
        problem = script.with_epilogue(square, kind.make(script.TYPES))
        plan = tilewright.plan(problem, device="h200")
        assert not plan.config.violations(problem, plan.device)
        assert problem.out_pitch == problem.out_n == (2048 if "swiglu" in name else 4096)


def test_costs_stand_beside_their_bars_and_means_beside_theirs(script: ModuleType) -> None:
    time: dict[str, Any] = {"kind": "time", "median_us": 200.0, "config": "c"}
    layer: dict[str, Any] = {"kind": "layer", "layer": "up", "tokens": 8, "median_us": 9.0, "status": "ok"}
    text = "\n".join(
        script.table(
            [
                {"kind": "check", "case": "one", "status": "ok", "why": ""},
                {"kind": "check", "case": "other", "status": "wrong", "why": "2 elements"},
                time | {"candidate": "plain", "cost": None, "bar": None, "status": "ok"},
                time | {"candidate": "gelu, own", "cost": 0.061, "bar": 0.05, "status": "over"},
                {"kind": "time", "candidate": "swiglu, as plain", "status": "refused", "why": "tail_n"},
                layer | {"candidate": "eager", "ratio": None},
                layer | {"candidate": "tilewright", "ratio": 1.44, "ratio_compile": 1.21, "config": "c"},
                layer | {"candidate": "tilewright", "ratio": 1.0, "ratio_compile": 1.0, "config": "c"},
            ]
        )
    )
    for words in (
        "1 ok, 1 wrong", "wrong: other: 2 elements", "+6.10% of 5% over", "refused: tail_n",
        "1.440x eager  1.210x compile", "geometric mean of 2: 1.200x eager, bar 1.15",
        "geometric mean of 2: 1.100x compile, bar 1.05",
    ):  # fmt: skip
        assert words in text
