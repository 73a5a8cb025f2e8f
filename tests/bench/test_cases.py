"""The products that a config is shown right on."""

from __future__ import annotations

import pytest

from tilewright import dtypes
from tilewright.bench import suite
from tilewright.bench.cases import cases, shapes, small_cases, with_out
from tilewright.config import Config
from tilewright.device import preset
from tilewright.packing import packed
from tilewright.problem import checked

CONFIGS = [Config(), Config(tile_m=64, tile_n=8, consumers=1, stages=16), Config(tile_n=128, stages=6, cluster_m=2)]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_at_least_40_sizes_hold_the_ones_that_were_promised(config: Config) -> None:
    found = shapes(config)
    assert len(set(found)) == len(found) >= 40
    assert {(1, 8, 8), (64, 64, 64), *((128 + i, 256 + j, 64) for i in (-1, 0, 1) for j in (-1, 0, 1))} <= set(found)
    ks = {k for _, _, k in found}
    ring = config.stages * config.tile_k
    assert {config.tile_k, ring - config.tile_k, ring, ring + config.tile_k} <= ks


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_case_is_a_problem_that_some_kernel_serves(config: Config) -> None:
    for case in (*cases(config), *small_cases(config)):
        assert checked(case.problem) is case.problem
        assert not case.problem.is_empty


def test_cases_meet_every_option() -> None:
    found = list(cases(Config()))
    assert {case.problem.dtype.name for case in found} == {"bf16", "fp16"}
    assert {case.problem.b_major for case in found} == {"k", "n"}
    assert {(case.problem.out_through_tma, case.problem.out_dtype.name) for case in found} >= {
        (through, name) for through in (False, True) for name in ("bf16", "fp16", "fp32")
    }
    crossed = [case.problem for case in found if case.problem.out_dtype not in (case.problem.dtype, dtypes.FP32)]
    assert len({(each.dtype, each.layout, each.out_through_tma) for each in crossed}) == 16
    assert {case.num_sms for case in found} == {None, 1, 3}
    assert {case.kind for case in found} == {"normal", "integer"}
    assert (8192, 8192, 8192) in {case.shape for case in found}
    assert all(case.shape != (8192, 8192, 8192) for case in cases(Config(), large=False))


def test_default_config_runs_almost_every_case() -> None:
    found = list(cases(Config()))
    refused = [case for case in found if Config().violations(case.problem, preset("h200"))]
    assert not refused


@pytest.mark.parametrize(("offset", "size", "align"), [(0, 2, 16), (1, 2, 2), (4, 2, 8), (8, 2, 16), (1, 4, 4)])
def test_offset_of_out_becomes_the_alignment_of_its_address(offset: int, size: int, align: int) -> None:
    problem = packed(64, 64, 64, out_dtype={2: "bf16", 4: "fp32"}[size])
    assert with_out(problem, 0, offset).out_align_bytes == align
    assert with_out(problem, 3, offset).out_pitch == 67


def test_suite_holds_68_shapes() -> None:
    assert len(suite.shapes()) == 68
