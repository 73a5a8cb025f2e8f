"""bench/emulated.py: counts of a run as rows, and the work that instructions stand for."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.backends.emulated import emulated
from tilewright.bench import emulated as bench
from tilewright.calls import Ledger
from tilewright.config import Config
from tilewright.packing import packed
from tilewright.plan import Plan
from tilewright.planning import plan_problem


def planned(*sizes: int, **config: int | bool) -> Plan:
    device = emulated().model
    return plan_problem(packed(*sizes), device, backend=emulated, ledger=Ledger(), config=config or None)


@pytest.mark.parametrize(
    ("opcode", "tensor", "other"),
    [
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", 2 * 64 * 128 * 16, 0),
        ("wgmma.mma_async.sp.sync.aligned.m64n128k32.f32.bf16.bf16", 64 * 128 * 32, 0),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 4 * 2 * 16 * 8 * 16, 0),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", 4 * 2 * 16**3, 0),
        ("fma.rn.f32", 0, 4 * 64),
        ("fma.rn.f16x2", 0, 4 * 128),
        ("add.f32", 0, 4 * 32),
        ("add.s32", 0, 0),
        ("wgmma.wait_group.sync.aligned", 0, 0),
    ],
)
def test_flops_of_four_warps_instructions(opcode: str, tensor: int, other: int) -> None:
    assert bench.flops({opcode: 4}) == (tensor, other)


def test_a_run_is_exact_and_counts_the_products_of_whole_tiles_each_once() -> None:
    plan, device = planned(64, 64, 128), emulated(banks=True)
    verdict, report = bench.run_plan(plan, device)
    assert verdict.ok
    facts = bench.work_facts(report, plan.problem.min_bytes)
    assert facts["FLOPs, tensor cores"] == plan.problem.flops
    assert facts["bytes, global written"] == 64 * 64 * 2
    assert facts["bytes, global, each operand once"] == plan.problem.min_bytes
    assert facts["times each byte passes the L2"] >= 1


def test_an_instruction_of_one_lane_counts_as_its_warps() -> None:
    plan, device = planned(64, 64, 512), emulated()
    report = bench.run_plan(plan, device).report
    tiles = plan.config.tiles(plan.problem)
    assert bench.families(report.instructions)["TMA load"] == 2 * tiles[0] * tiles[1] * 512 // 64


def test_a_product_of_three_launches_is_told_whole() -> None:
    problem = dataclasses.replace(packed(31, 17, 1039, padded=False), k=1024)
    config = Config(tile_m=64, tile_n=64, consumers=1, stages=3, store_slots=1, slices=4, dependent_sums=True)
    device = emulated(banks=True)
    plan = plan_problem(problem, device.model, backend=emulated, ledger=Ledger(), config=config)
    assert [step.name for step in plan.work.steps] == ["repack a and b", "hopper", "sums of 4 slices"]
    verdict, report = bench.run_plan(plan, device)
    assert verdict.ok
    assert device.report is not None  # of the sums alone
    assert bench.flops(device.report.instructions)[0] == 0
    k_tiles, chunks = 1024 // 64, 31 * -(-17 // 4)
    assert bench.flops(report.instructions)[0] == 2 * 64 * 64 * 64 * k_tiles
    copied, slices_bytes = (31 + 17) * 1024 * 2, 4 * chunks * 16
    assert report.traffic["global written"] == copied + slices_bytes + problem.out_bytes
    assert report.banks


def test_unrolled_copies_of_an_instruction_are_one_row() -> None:
    plan, device = planned(64, 64, 64, tile_n=64, tile_m=64, stages=4), emulated(banks=True)
    report = bench.run_plan(plan, device).report
    assert len(report.banks) == 6  # 4 stmatrix, a tile's coordinates written and read
    rows = [dict(zip(bench.BANK_COLUMNS, row, strict=True)) for row in bench.bank_rows(report)]
    (shown,) = (row for row in rows if "stmatrix" in row["instruction"])
    assert shown["ideal"] == shown["wavefronts"] == "64"  # 4 warps, 4 stmatrix of 4 matrices each
    assert shown["too many"] == "0.0%"
    assert shown["CUDA line"].startswith("copy.cuh:")
    patterns = [dict(zip(bench.PATTERN_COLUMNS, row, strict=True)) for row in bench.pattern_rows(report)]
    assert {row["instruction"] for row in patterns} == {"TMA load", "wgmma"}
    assert {row["verdict"] for row in patterns} == {"no conflict"}
