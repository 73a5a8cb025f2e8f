"""bench/irregular.py: every step exact in the emulator at the study's shape; its rows and the lines of its tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tilewright import device
from tilewright.backends.emulated import emulated
from tilewright.bench import irregular
from tilewright.bench.emulated import run_plan
from tilewright.bench.irregular import BATCHES, STEPS, Step
from tilewright.bench.tables import NOT_MEASURED
from tilewright.jit.build import build
from tilewright.kernels.render import render
from tilewright.packing import packed

H200 = device.preset("h200")
# Of the family, whose own tests have the rest: a walk through two matrices in tiles of 128 rows and of 192.
EMULATED = [step for step in STEPS if step.rung or step.name.endswith(("two CTAs", "two tiles a matrix"))]


@pytest.mark.parametrize("step", EMULATED, ids=lambda step: step.name)
def test_two_matrices_are_exact_and_free_of_races(step: Step) -> None:
    """With the checker, but for WMMA, which takes the emulator longest: test_ampere_ladder_emulated.py has it."""
    chip = emulated("h200", checks=step.name != irregular.WMMA, schedule="random", seed=3)
    plan = step.plan(irregular.problem_of(2), chip.model, lambda: chip)
    verdict, made = run_plan(plan, chip)
    assert verdict.ok, str(verdict)
    assert verdict.elements == 2 * irregular.M * irregular.N
    assert made.traffic["global written"] == verdict.elements * 2


def test_a_batch_whose_second_matrix_is_read_from_the_first_is_wrong() -> None:
    """The mutant of the one line that finds a matrix."""
    chip = emulated("h200")
    problem = packed(32, 32, 32, dtype="fp16", batch=(2,))
    step = Step("small", 0, "a5", (("tile_m", 32), ("tile_n", 32), ("warps_m", 1), ("warps_n", 1)))
    for broken in (False, True):
        plan = step.plan(problem, chip.model, lambda: chip)
        source = render(plan.family, plan.problem, plan.config, plan.device)
        if broken:
            headers = tuple(
                (path, text.replace("base + matrix * (rows * pitch)", "base")) for path, text in source.headers
            )
            assert headers != source.headers
            source = dataclasses.replace(source, headers=headers)
        binary = build(source)
        plan._binary = plan._binary or binary  # what the plan would compile
        plan.__class__ = type("Made", (type(plan),), {"binary": property(lambda self, made=binary: made)})
        assert run_plan(plan, chip).check.ok is not broken


def test_every_step_can_run_every_problem() -> None:
    chip = emulated("h200")
    problems = (*map(irregular.problem_of, BATCHES), *irregular.checked_problems())
    for step in STEPS:
        for problem in problems:
            plan = step.plan(problem, chip.model, lambda: chip)
            assert plan.launch.grid > 0
            if step.rung:
                assert plan.launch.grid == plan.config.num_tiles(problem)
    assert irregular.problem_of(1).batch == ()
    assert irregular.problem_of(1024).flops == 2 * 384 * 128 * 256 * 1024


def timed(step: str, batch: int, median_us: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": "time", "step": step, "batch": batch, "status": "ok", "median_us": median_us, "spread": 0.01,
        "rate_tflops": 1.0, "config": "c", "m": 1,
    } | more  # fmt: skip


def test_each_batch_has_a_line_a_step_with_its_ratio_to_wmma_and_to_cublas() -> None:
    rows = [
        timed("cublas", 1024, 100.0, config=None),
        timed("swizzled", 1024, 125.0),
        timed("WMMA", 1024, 500.0),
        timed("WMMA", 1, 5.0),
    ]
    kept = irregular.published(rows)
    assert {row["kind"] for row in kept} == {"irregular"}
    lines = irregular.cells(kept)
    assert all(len(line) == len(irregular.COLUMNS) for line in lines)
    assert [line[:2] for line in lines] == [("1024", "WMMA"), ("1024", "swizzled"), ("1024", "cuBLAS"), ("1", "WMMA")]
    assert lines[1][6:9] == ("**4.00**", "**0.80**", "125")
    assert lines[0][6:9] == ("-", "**0.20**", "560")
    assert lines[3][6:9] == ("-", "-", "-")
    assert lines[2][5] == f"{irregular.problem_of(1024).min_bytes / 100e6:.2f}"


def test_checks_are_committed_as_one_row_and_told_below_the_table() -> None:
    checks = [{"kind": "check", "case": status, "status": status, "why": ""} for status in ("ok", "ok", "wrong")]
    kept = irregular.published([*checks, timed("WMMA", 1, 5.0)])
    assert (kept[0]["ok"], kept[0]["wrong"], kept[0]["failed"][0]["case"]) == (2, 1, "wrong")
    text = irregular.irregular_table([row | {"device": "x"} for row in kept])
    assert "2 products right, 1 wrong" in text
    assert irregular.irregular_table(kept[:1]) == NOT_MEASURED


def test_what_the_emulator_counts_has_a_line_a_step_and_wmma_no_wavefronts() -> None:
    row = {
        "kind": "emulated", "status": "ok", "config": "c", "registers": 99, "smem_bytes": 2048,
        "occupancy_a100_pct": None, "occupancy_h200_pct": 25.0, "products": 100.0,
    }  # fmt: skip
    rows = [row | {"step": "swizzled", "wavefronts": 200.0, "conflicts": 0.0}, row | {"step": "WMMA"}]
    lines = irregular.emulated_cells(irregular.published(rows))
    assert lines == [
        ("WMMA", "c", "99", "2", "-", "25.0 %", "-", "-", "-"),
        ("swizzled", "c", "99", "2", "-", "25.0 %", "200", "0", "0.50"),
    ]
    assert "dash" in irregular.irregular_emulated_table(irregular.published(rows))
