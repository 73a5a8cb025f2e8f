"""kernels/hopper.py: every config of the space compiles clean, and the launch and its arguments are legal."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import islice

import pytest

from tilewright import device
from tilewright.backends.base import IntArgument, Launch, MapArgument
from tilewright.config import Config
from tilewright.jit.build import build, flaws
from tilewright.jit.source import Binary
from tilewright.kernels.hopper import HOPPER, store_columns
from tilewright.kernels.render import render
from tilewright.problem import Problem, packed

H200 = device.preset("h200")
ONE_CTA = Launch(grid=1, block=384, cluster=1, smem_bytes=0)
PROBLEMS = {
    "tn_bf16": packed(4096, 4096, 4096),
    "nn_fp16_fp32": packed(4096, 4096, 4096, dtype="fp16", out_dtype="fp32", b_major="n"),
    "tn_odd_n": packed(4096, 4095, 4096),
}
CASES = [
    pytest.param(problem, config, id=f"{name}-{config}".replace(" ", "_"))
    for name, problem in PROBLEMS.items()
    for config in HOPPER.space(problem, H200)
]


def compiled(problem: Problem, config: Config) -> Binary:
    return build(render(HOPPER, problem, config, H200), refuse=True)


@pytest.mark.parametrize(("problem", "config"), CASES)
def test_every_config_of_the_space_compiles_clean(problem: Problem, config: Config) -> None:
    """B112: no spill, no stack, no serialised wgmma, and the registers that the setmaxnreg plan starts from."""
    binary = compiled(problem, config)
    assert binary.warnings == ()
    assert binary.resources.spill_store_bytes == binary.resources.spill_load_bytes == 0
    assert binary.resources.stack_bytes == 0
    if config.moves_registers:
        assert binary.resources.registers == config.entry_registers
    else:
        assert binary.resources.registers <= config.entry_registers


# Configs that were legal and spilled, or whose wgmmas ptxas serialised, one of a kind. Those that are legal now must
# compile clean.
SPILLED: dict[str, tuple[Problem, Config]] = {
    "216 accumulators": (packed(1000, 1000, 64), Config(tile_m=256, tile_n=216, stages=2)),
    "216 accumulators, ping-pong": (packed(1000, 1000, 64), Config(tile_m=192, tile_n=144, stages=2, pingpong=True)),
    "208 in a cluster": (
        packed(1000, 1000, 1000, out_dtype="fp32"),
        Config(tile_n=208, stages=3, pingpong=True, cluster_m=2),
    ),
    "224 of one consumer, fp32": (
        packed(1000, 1000, 1000, out_dtype="fp32"),
        Config(tile_m=256, tile_n=112, stages=2, consumers=1, halves=True),
    ),
    "15 slots of 8 columns": (packed(1000, 999, 64), Config(tile_n=120, stages=3, pingpong=True, store_slots=1)),
    "19 slots of one consumer": (packed(1000, 999, 64), Config(tile_n=152, stages=6, consumers=1, store_slots=1)),
    "17 slots, halves": (packed(1000, 999, 64), Config(tile_n=136, stages=3, consumers=1, halves=True)),
    "11 slots, both": (packed(1000, 999, 64), Config(tile_n=88, stages=4, pingpong=True, halves=True)),
    "9 slots of 16 columns, cluster": (packed(1000, 999, 64), Config(tile_m=256, tile_n=144, stages=3, cluster_m=2)),
    "21 slots side by side": (packed(1000, 999, 64), Config(tile_m=256, tile_n=168, stages=2, cluster_n=2)),
    "31 slots": (packed(1000, 999, 64), Config(tile_m=64, tile_n=248, stages=3, pingpong=True)),
    "200 accumulators": (packed(1000, 999, 64), Config(tile_m=256, tile_n=200, stages=2, halves=True)),
    "192 in a cluster": (packed(1000, 999, 64), Config(tile_n=192, stages=2, pingpong=True, cluster_n=2)),
    "224 of one consumer": (packed(1000, 999, 64), Config(tile_m=256, tile_n=112, stages=2, consumers=1)),
}
ILLEGAL = {
    "216 accumulators", "216 accumulators, ping-pong", "208 in a cluster", "224 of one consumer, fp32",
    "200 accumulators", "192 in a cluster", "224 of one consumer",
}  # fmt: skip


@pytest.mark.parametrize("kind", SPILLED)
def test_a_config_that_spilled_is_refused_or_compiles_clean(kind: str) -> None:
    problem, config = SPILLED[kind]
    if config.violations(problem, H200):
        assert kind in ILLEGAL
        return
    compiled(problem, config)
    assert kind not in ILLEGAL


def legal_configs(rng: random.Random, *, near_the_limit: bool) -> Iterator[tuple[Problem, Config]]:
    """Configs that violations() lets pass, each with a problem; all of them, or those with many accumulators."""
    while True:
        cluster_m, cluster_n = rng.choice([(1, 1), (1, 1), (2, 1), (1, 2)])
        config = Config(
            tile_m=rng.choice([64, 128, 192, 256]),
            tile_n=8 * rng.randint(1, 32),
            stages=rng.randint(2, 8),
            consumers=rng.choice([1, 2]),
            cluster_m=cluster_m,
            cluster_n=cluster_n,
            store_slots=rng.randint(1, 8),
            pingpong=rng.random() < 0.5,
            halves=rng.random() < 0.4,
            k_back_and_forth=rng.random() < 0.5,
        )
        dtype = rng.choice(["bf16", "fp16"])
        out_dtype, n = rng.choice([dtype, "fp32"]), rng.choice([1000, 999])
        problem = packed(1000, n, 1000, dtype=dtype, out_dtype=out_dtype, b_major=rng.choice("kkn"))  # type: ignore[arg-type]
        spare = config.consumer_registers - config.accumulators
        if not config.violations(problem, H200) and (spare <= 56 or not near_the_limit):
            yield problem, config


@pytest.mark.parametrize(
    ("near_the_limit", "count"),
    [
        (True, 24),
        (False, 8),
        pytest.param(True, 300, marks=pytest.mark.slow),
        pytest.param(False, 150, marks=pytest.mark.slow),
    ],
)
def test_whatever_is_legal_compiles_clean(near_the_limit: bool, count: int) -> None:
    """violations() is the one home of legality, also for configs that no space has. Measured, NVRTC 13.5, 2026-11-30:
    640 of such configs, none spills."""
    drawn = legal_configs(random.Random(count), near_the_limit=near_the_limit)
    for problem, config in islice(drawn, count):
        assert not flaws(build(render(HOPPER, problem, config, H200))), f"{config} for {problem}"


def test_the_space_offers_tiles_for_large_and_for_short_problems() -> None:
    rows = {config.tile_m for config in HOPPER.space(PROBLEMS["tn_bf16"], H200)}
    assert {64, 128, 256} <= rows


@pytest.mark.parametrize("width", range(8, 257, 8))
def test_every_width_of_wgmma_compiles(width: int) -> None:
    config = Config(tile_m=64, tile_n=width, consumers=1, stages=3)
    assert f"m64n{width}k16" in compiled(packed(512, 512, 512), config).ptx


def test_the_ptx_holds_each_instruction_of_the_protocol() -> None:
    ptx = compiled(packed(512, 512, 512), Config(cluster_m=2)).ptx
    for instruction in (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group",
        "fence.proxy.async.shared::cta",
        "mbarrier.arrive.shared::cluster.b64",
        "barrier.cluster.arrive.release.aligned",
        "stmatrix.sync.aligned.m8n8.x4.shared.b16",
        "setmaxnreg.inc.sync.aligned.u32 232",
        "setmaxnreg.dec.sync.aligned.u32 40",
    ):
        assert instruction in ptx
    assert ".release.cluster.shared::cluster.b64" not in ptx  # MEMBAR.ALL.GPU in the main loop


def test_a_single_cta_pays_for_no_cluster() -> None:
    ptx = compiled(packed(512, 512, 512), Config()).ptx
    assert "barrier.cluster" not in ptx
    assert "multicast" not in ptx


def test_a_debug_build_traps_instead_of_waiting_for_ever() -> None:
    source = render(HOPPER, packed(512, 512, 512), Config(), H200, wait_limit=1000)
    assert "trap;" in build(source).ptx
    assert "trap;" not in compiled(packed(512, 512, 512), Config()).ptx


@pytest.mark.parametrize(("problem", "config"), CASES[::4])
def test_every_tensor_map_is_one_that_the_driver_takes(problem: Problem, config: Config) -> None:
    maps = [
        a.tensor_map
        for a in HOPPER.arguments(problem, config, HOPPER.launch(problem, config, H200))
        if isinstance(a, MapArgument)
    ]
    assert len(maps) == (3 if problem.out_through_tma else 2)
    for tensor_map in maps:
        assert tensor_map.violations() == ()


def test_arguments_follow_the_kernel_s_parameter_list() -> None:
    entry = re.search(r"hopper_gemm\((.*?)\)\s*\{", render(HOPPER, packed(64, 64, 64), Config(), H200).text, re.DOTALL)
    assert entry is not None
    names = [parameter.split()[-1] for parameter in entry[1].split(",")]
    assert names == ["a_map", "b_map", "out_map", "out_base", "out_pitch", "m", "n", "k", "group_m", "num_whole"]
    arguments = HOPPER.arguments(packed(64, 72, 80), Config(), ONE_CTA)
    values = {a.name: (a.value, a.size_bytes) for a in arguments if isinstance(a, IntArgument)}
    assert values == {
        "out_pitch": (72, 8),
        "m": (64, 4),
        "n": (72, 4),
        "k": (80, 4),
        "group_m": (1, 4),
        "num_whole": (1, 4),
    }
    assert len(arguments) == len(names)


@pytest.mark.parametrize(
    ("extents", "config", "num_sms", "grid"),
    [
        ((8192, 8192, 64), Config(), None, 132),
        ((8192, 8192, 64), Config(), 3, 3),
        ((128, 256, 64), Config(), None, 1),
        ((129, 256, 64), Config(), None, 2),
        ((129, 256, 64), Config(cluster_m=2), None, 2),
        ((300, 256, 64), Config(cluster_m=2), None, 4),
        ((8192, 8192, 64), Config(cluster_m=2), 1, 2),
        ((8192, 8192, 64), Config(cluster_m=2), 131, 130),
    ],
)
def test_the_grid_is_whole_clusters_and_no_more_than_the_tiles(
    extents: tuple[int, int, int], config: Config, num_sms: int | None, grid: int
) -> None:
    assert HOPPER.launch(packed(*extents), config, H200, num_sms).grid == grid


def test_the_order_s_group_never_exceeds_the_rows() -> None:
    *_, group, _ = HOPPER.arguments(packed(128, 8192, 64), Config(group_m=16), ONE_CTA)
    assert group == IntArgument("group_m", 1, 4)


@pytest.mark.parametrize(
    ("tile_n", "out_dtype", "columns"),
    [(256, None, 64), (256, "fp32", 32), (176, None, 16), (8, None, 8), (24, "fp32", 8)],
)
def test_a_store_slot_is_as_wide_as_128_bytes_and_divides_the_tile(tile_n: int, out_dtype: str, columns: int) -> None:
    assert store_columns(packed(64, 64, 64, out_dtype=out_dtype), Config(tile_n=tile_n)) == columns
    assert store_columns(packed(64, 61, 64, out_dtype=out_dtype), Config(tile_n=tile_n)) == (32 if out_dtype else 64)


def test_a_small_last_wave_is_walked_as_halves() -> None:
    """1376 tiles on 132 CTAs: 10 full waves, and 112 halves of the other 56."""
    problem = packed(8192, 8192, 8192)
    config = Config(tile_m=256, tile_n=192, stages=3, halves=True)
    launch = HOPPER.launch(problem, config, H200)
    assert HOPPER.arguments(problem, config, launch)[-1] == IntArgument("num_whole", 1320, 4)
    assert config.waves(1376, launch.grid) == 10.5


def test_a_large_last_wave_is_left_whole() -> None:
    config = Config(tile_m=256, tile_n=192, stages=3, halves=True)
    assert config.whole_tiles(132 + 67, 132) == 132 + 67
    assert config.waves(132 + 67, 132) == 2
