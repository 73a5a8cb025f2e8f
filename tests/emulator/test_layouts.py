"""The Hopper kernel in the emulator in every layout, with and without a batch: exact, and no finding of the checks."""

from __future__ import annotations

import itertools
import mmap
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from products import H200

from tilewright.backends.emulated import emulated
from tilewright.bench.cases import LAYOUTS, wide
from tilewright.bench.emulated import run_plan
from tilewright.config import Config
from tilewright.dispatch import plan
from tilewright.emulation import Emulator
from tilewright.host_operands import host_operand
from tilewright.packing import packed
from tilewright.problem import AMajor, Major, Problem

# Both consumers on a tile, one each, staggered row blocks, both clusters, one consumer, few rows, k split.
CONFIGS = {
    "cooperative": Config(tile_m=128, tile_n=64, stages=3),
    "pingpong": Config(tile_m=64, tile_n=64, stages=3, pingpong=True, k_back_and_forth=True),
    "staggered": Config(tile_m=256, tile_n=64, stages=2, store_slots=1, staggered=True),
    "below": Config(tile_m=128, tile_n=64, stages=3, cluster_m=2),
    "beside": Config(tile_m=64, tile_n=64, stages=2, consumers=1, cluster_n=2),
    "one consumer": Config(tile_m=64, tile_n=128, stages=2, consumers=1, store_slots=1),
    "swap": Config(tile_m=64, tile_n=64, stages=2, consumers=1, swap=True),
    "swap split": Config(tile_m=64, tile_n=64, stages=2, consumers=1, swap=True, split_k=2),
    "split": Config(tile_m=64, tile_n=64, stages=2, split_k=2, consumers=1, k_back_and_forth=True),
}
SCHEDULES = itertools.cycle([("lazy", 0), ("eager", 0), ("random", 1), ("random", 2)])


def turn(name: str, a_major: AMajor, b_major: Major) -> int:
    """Whose turn it is among the kinds of product that take turns over configs and layouts."""
    return list(CONFIGS).index(name) + LAYOUTS.index((a_major, b_major))


def verdict_of(problem: Problem, config: Config, num_sms: int, policy: Any = "lazy", seed: int = 0) -> None:
    device = emulated(replace(H200, num_sms=num_sms), checks=True, schedule=policy, seed=seed)
    found = run_plan(plan(problem, device=device.model, config=config), device).check
    assert found.ok, f"{problem} {config}: {found}"
    assert device.findings == ()


@pytest.mark.parametrize(("a_major", "b_major"), LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_single_product_in_every_layout(name: str, a_major: AMajor, b_major: Major) -> None:
    config, (policy, seed) = CONFIGS[name], next(SCHEDULES)
    m, n = config.tile_m * config.cluster_m + 72, config.tile_n * config.cluster_n + 8
    problem = packed(m, n, 3 * 64 + 24, a_major=a_major, b_major=b_major)
    if turn(name, a_major, b_major) % 2:  # every config and every layout has both majors of out, with some of the other
        problem = replace(problem, out_major="m", out_pitch=m + 1)
    verdict_of(problem, config, 2, policy, seed)


@pytest.mark.parametrize(("a_major", "b_major"), LAYOUTS)
def test_narrow_tiles_in_every_layout(a_major: AMajor, b_major: Major) -> None:
    """3 x 3 tiles on 4 CTAs: two waves of wide ones and narrow ones."""
    config = Config(tile_m=128, tile_n=128, stages=2, tail_n=64)
    problem = packed(384, 384, 72, a_major=a_major, b_major=b_major)
    assert config.narrow_tiles(problem, config.wide_tiles(problem, 4)) == 2
    verdict_of(problem, config, 4, *next(SCHEDULES))


@pytest.mark.parametrize(("a_major", "b_major"), LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_in_every_layout(name: str, a_major: AMajor, b_major: Major) -> None:
    """Of one dimension stored by TMA, of three with gaps stored by TMA, of two by elements; b shared, then a. One of
    the three each: every config and every layout meets all."""
    config, (policy, seed) = CONFIGS[name], next(SCHEDULES)
    m, n = config.tile_m * config.cluster_m + 8, config.tile_n * config.cluster_n - 8
    options: Any = {"a_major": a_major, "b_major": b_major}
    match turn(name, a_major, b_major) % 3:
        case 0:
            verdict_of(packed(m, n, 136, batch=(3,), **options), config, 2, policy, seed)
        case 1:
            problem = wide(packed(m, n, 72, batch=(2, 1, 2), shared="b", **options), out_gap=8)
            verdict_of(problem, config, 4, policy, seed)
        case _:
            verdict_of(wide(packed(m - 3, n - 3, 72, batch=(2, 2), shared="a", **options)), config, 2, policy, seed)


def test_every_config_and_every_layout_meets_every_kind_of_batch_and_both_majors_of_out() -> None:
    for kinds in (2, 3):
        for name in CONFIGS:
            assert {turn(name, *layout) % kinds for layout in LAYOUTS} == set(range(kinds))
        for layout in LAYOUTS:
            assert {turn(name, *layout) % kinds for name in CONFIGS} == set(range(kinds))


@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("out_major", ["n", "m"])
def test_the_chosen_config_of_a_batch_is_exact(out_major: Any, out_dtype: str) -> None:
    problem = packed(100, 72, 88, a_major="m", b_major="n", out_major=out_major, out_dtype=out_dtype, batch=(2, 3))
    device = emulated(checks=True)
    assert run_plan(plan(problem), device).check.ok


def test_heads_of_attention_are_one_launch_over_permuted_and_shared_matrices() -> None:
    """q (batch, tokens, heads, 64) times k shared by two heads each: strides that grow in no order, and an extent of 0
    stride in the middle."""
    rng = np.random.default_rng(0)

    def whole(*shape: int) -> Any:
        return rng.integers(-3, 4, shape).astype(np.float16)

    q = whole(2, 40, 2, 2, 64).transpose(0, 2, 3, 1, 4)  # (batch, groups, heads of a group, tokens, 64)
    k = np.broadcast_to(whole(2, 40, 2, 64).transpose(0, 2, 3, 1)[:, :, None], (2, 2, 2, 64, 40))
    emulator = Emulator()
    out = emulator.matmul(q, k)
    assert np.array_equal(out, np.matmul(q.astype(np.float32), k.astype(np.float32)).astype(np.float16))
    assert emulator.plan(q, k).problem.batch == (2, 2, 2)


@pytest.mark.parametrize("shared", ["a", "b"])
def test_an_expanded_batch_multiplies_every_matrix(shared: str) -> None:
    """B020: a stride of 0 on one side left 30752 of 32768 outputs zero."""
    rng = np.random.default_rng(1)
    one, many = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((1, 8, 8), (4, 8, 8)))
    a, b = (np.broadcast_to(one, (4, 8, 8)), many) if shared == "a" else (many, np.broadcast_to(one, (4, 8, 8)))
    assert np.array_equal(Emulator().matmul(a, b), np.matmul(a, b))


@pytest.mark.parametrize("out_pitch", [72, 73], ids=["by TMA", "by elements"])
def test_matrices_gigabytes_apart_are_read_and_written_where_they_lie(out_pitch: int) -> None:
    """B050, B052: strides past 2^31 elements, in memory of which only the matrices are ever touched."""
    problem = replace(
        packed(64, 72, 64, batch=(3,), a_major="m", b_major="n"),
        a_batch=(2**31 + 8,),
        b_batch=(2**31,),
        out_batch=(2**32 + 16,),
        out_pitch=out_pitch,
    )
    operands = [host_operand(problem, name, untouched(problem, name)) for name in ("a", "b", "out")]
    rng = np.random.default_rng(0)
    for operand in operands[:2]:
        operand.view[...] = rng.integers(-3, 4, operand.view.shape)
    device = emulated()  # the checker keeps words for every byte of a buffer
    made = plan(problem, device=device.model, config=CONFIGS["one consumer"].replace(tile_n=64), num_sms=2)
    addresses = {name: x.view.ctypes.data for name, x in zip(("a", "b", "out"), operands, strict=True)}
    device.launch(device.pack(device.load(made.binary, 0, made.launch), made.launch, made.arguments, addresses), 0)
    a, b, out = (operand.view.astype(np.float32) for operand in operands)
    assert np.array_equal(out, np.matmul(a, b))


def untouched(problem: Problem, name: str) -> Any:
    """The memory of an operand, of which the system gives what is written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, problem.extent_bytes[name], flags=flags), problem.dtype.numpy)


def test_slots_of_48_columns_that_leave_without_tma_run() -> None:
    """NVRTC 13.5 computes their addresses by dp2a, a product of short numbers; what that is, test_scalar.py knows."""
    problem = packed(31, 45, 64, a_major="m")
    config = Config(tile_m=128, tile_n=48, stages=3)
    verdict_of(problem, config, num_sms=1)
