"""kernels/hopper.py: every config of the space compiles clean, and the launch and its arguments are legal."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tilewright import device, disassemble
from tilewright.backends.base import IntArgument, Launch, MapArgument
from tilewright.config import Config
from tilewright.jit.build import build, flaws
from tilewright.jit.source import Binary
from tilewright.kernels.family import group_rows
from tilewright.kernels.hopper import HOPPER, row_scale
from tilewright.kernels.render import render
from tilewright.legality import CLUSTERS
from tilewright.packing import packed
from tilewright.problem import Problem

H200 = device.preset("h200")
ONE_CTA = Launch(grid=1, block=384, cluster=1, smem_bytes=0)
PROBLEMS = {
    "decode": packed(24, 4096, 4096),
    "long_k_fp32": packed(256, 256, 16384, out_dtype="fp32"),
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
        Config(tile_m=256, tile_n=112, stages=2, consumers=1),
    ),
    "15 slots of 8 columns": (packed(1000, 999, 64), Config(tile_n=120, stages=3, pingpong=True, store_slots=1)),
    "19 slots of one consumer": (packed(1000, 999, 64), Config(tile_n=152, stages=5, consumers=1, store_slots=1)),
    "17 slots": (packed(1000, 999, 64), Config(tile_n=136, stages=3, consumers=1)),
    "11 slots": (packed(1000, 999, 64), Config(tile_n=88, stages=4, pingpong=True)),
    "9 slots of 16 columns, cluster": (packed(1000, 999, 64), Config(tile_m=256, tile_n=144, stages=3, cluster_m=2)),
    "21 slots side by side": (packed(1000, 999, 64), Config(tile_m=256, tile_n=168, stages=2, cluster_n=2)),
    "31 slots": (packed(1000, 999, 64), Config(tile_m=64, tile_n=248, stages=3, pingpong=True, store_slots=1)),
    "200 accumulators": (packed(1000, 999, 64), Config(tile_m=256, tile_n=200, stages=2)),
    "192 in a cluster": (packed(1000, 999, 64), Config(tile_n=192, stages=2, pingpong=True, cluster_n=2)),
    "224 of one consumer": (packed(1000, 999, 64), Config(tile_m=256, tile_n=112, stages=2, consumers=1)),
}
ILLEGAL = {
    "216 accumulators", "216 accumulators, ping-pong", "208 in a cluster", "224 of one consumer, fp32",
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
        cluster_m, cluster_n = rng.choice([(1, 1), *CLUSTERS])
        split_k = rng.choice([1, 1, 2, 4, 8]) if cluster_m == cluster_n == 1 else 1
        swap = rng.random() < 0.3
        is_plain = split_k == 1 and not swap
        config = Config(
            tile_m=rng.choice([64, 128, 192, 256]),
            tile_n=8 * rng.randint(1, 32),
            stages=rng.randint(2, 8),
            consumers=rng.choice([1, 2]),
            cluster_m=cluster_m,
            cluster_n=cluster_n,
            store_slots=rng.randint(1, 8),
            pingpong=is_plain and rng.random() < 0.5,
            tail_n=8 * rng.randint(1, 31) if is_plain and rng.random() < 0.4 else 0,
            staggered=is_plain and rng.random() < 0.5,
            k_back_and_forth=rng.random() < 0.5,
            swap=swap,
            split_k=split_k,
            dependent_launch=rng.random() < 0.2,
        )
        dtype = rng.choice(["bf16", "fp16"])
        out_dtype, n = rng.choice([dtype, "fp32"]), rng.choice([1000, 999])
        problem = packed(
            1000,
            n,
            1000,
            dtype=dtype,
            out_dtype=out_dtype,
            a_major=rng.choice("kkm"),
            b_major=rng.choice("kkn"),
            batch=rng.choice([(), (), (3,), (2, 3), (2, 3, 4)]),
        )
        spare = config.registers(problem)[1] - config.accumulators
        if not config.violations(problem, H200) and (spare <= 56 or not near_the_limit):
            yield problem, config


@pytest.mark.parametrize(
    ("near_the_limit", "seed", "first", "count"),
    [
        (True, 24, 0, 24),
        (False, 8, 0, 8),
        # in parts: 60 compiles are minutes, and a test's limit is five, where other work has the cores
        *(pytest.param(True, 120, first, 20, marks=pytest.mark.slow) for first in range(0, 60, 20)),
        pytest.param(False, 60, 0, 30, marks=pytest.mark.slow),
    ],
)
def test_whatever_is_legal_compiles_clean(near_the_limit: bool, seed: int, first: int, count: int) -> None:
    """violations() is the one home of legality, also for configs that no space has. Measured, NVRTC 13.5, 2026-11-30:
    212 of such configs, none spills."""
    drawn = legal_configs(random.Random(seed), near_the_limit=near_the_limit)
    for problem, config in islice(drawn, first, first + count):
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
        "barrier.cluster.arrive.relaxed.aligned",
        "stmatrix.sync.aligned.m8n8.x4.shared.b16",
        "setmaxnreg.inc.sync.aligned.u32 232",
        "setmaxnreg.dec.sync.aligned.u32 40",
    ):
        assert instruction in ptx
    assert ".release.cluster.shared::cluster.b64" not in ptx  # MEMBAR.ALL.GPU in the main loop
    assert ptx.count("barrier.cluster.arrive") == 1  # at the start: at the end it would wait for the others' stores


def test_a_single_cta_pays_for_no_cluster() -> None:
    ptx = compiled(packed(512, 512, 512), Config()).ptx
    assert "barrier.cluster" not in ptx
    assert "multicast" not in ptx


def test_a_split_pays_for_no_fence_of_the_whole_gpu() -> None:
    """Partial sums go by st.async, and the cluster meets once, before its barriers are used."""
    ptx = compiled(packed(256, 256, 4096), Config(tile_m=64, tile_n=64, consumers=1, split_k=8)).ptx
    assert "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32" in ptx
    assert ptx.count("barrier.cluster.arrive.relaxed") == ptx.count("barrier.cluster.wait.acquire") == 1
    for costly in ("release.cluster.shared", "barrier.cluster.arrive.release", "multicast", "fence.acq_rel"):
        assert costly not in ptx


UNTIL_THE_WAIT = [
    Config(dependent_launch=True),
    Config(tile_m=64, tile_n=16, consumers=1, stages=16, swap=True, split_k=2, dependent_launch=True),
    Config(cluster_m=2, pingpong=True, tile_n=128, dependent_launch=True),
]


@pytest.mark.parametrize("config", UNTIL_THE_WAIT, ids=str)
@pytest.mark.parametrize("n", [4096, 4095])
def test_a_dependent_launch_touches_no_memory_before_its_wait(config: Config, n: int) -> None:
    """B064, B065: on no path from the entry."""
    reached = before_the_wait(compiled(packed(24, n, 4096), config).ptx)
    assert any("griddepcontrol.launch_dependents" in line for line in reached)
    assert any("mbarrier.init" in line for line in reached)
    for line in reached:
        assert not re.search(r"\b(ld|st|ldu|red|atom)\.\S*global|cp\.async|^(@\S+\s+)?(ret|exit)\b", line), line


def test_a_dependent_launch_that_started_early_would_be_seen() -> None:
    """The emulator has no launch before; in the paths it shows."""
    source = render(HOPPER, packed(24, 4096, 4096), UNTIL_THE_WAIT[0], H200)
    old = "STARTS_EARLY = STARTED_SLOTS > 0 && !Config::DEPENDENT_LAUNCH;"
    assert source.text.count(old) == 1
    early = build(dataclasses.replace(source, text=source.text.replace(old, "STARTS_EARLY = true;")))
    assert any("cp.async.bulk.tensor" in line for line in before_the_wait(early.ptx))


@pytest.mark.parametrize("config", UNTIL_THE_WAIT, ids=str)
def test_another_launch_waits_for_nobody(config: Config) -> None:
    assert "griddepcontrol" not in compiled(packed(24, 4096, 4096), config.replace(dependent_launch=False)).ptx


def before_the_wait(ptx: str) -> list[str]:
    """Every instruction that some path from the entry reaches without griddepcontrol.wait."""
    body = [line.strip() for line in ptx[ptx.index(".entry") :].splitlines()]
    labels = {line[:-1]: number for number, line in enumerate(body) if line.startswith("$") and line.endswith(":")}
    waiting, seen = [0], set()
    while waiting:
        number = waiting.pop()
        if number in seen or number >= len(body):
            continue
        seen.add(number)
        line = body[number]
        if line.startswith("griddepcontrol.wait"):
            continue
        branch = re.match(r"(@\S+\s+)?bra(?:\.uni)?\s+(\S+);", line)
        if branch:
            waiting.append(labels[branch[2]])
        if (branch is None or branch[1]) and not re.match(r"(ret|exit)\b", line):
            waiting.append(number + 1)
    return [body[number] for number in sorted(seen)]


SPLIT_STORES = {  # how the sums of a split leave: by TMA, and row by row
    "tma": (packed(72, 64, 1024), Config(tile_m=64, tile_n=64, consumers=1, stages=2, split_k=2)),
    "rows": (packed(72, 67, 1024, batch=(2,)), Config(tile_m=64, tile_n=24, consumers=1, stages=2, split_k=4)),
}


@pytest.mark.parametrize("stores", SPLIT_STORES)
def test_a_split_gives_its_room_free_behind_the_stores_of_its_sums(stores: str) -> None:
    """Behind the reads alone runs differed on the GPU: the arrival has no scope and waits for no read. The emulator,
    where a read has happened at once, tells no difference; in the order of instructions it shows."""
    source = render(HOPPER, *SPLIT_STORES[stores], H200)
    headers = dict(source.headers)
    old = "store_blocks(sums, to, tile, tile.n / Fused::FOLD + reduction.first_column());"
    room = "if (!is_last) reduction.give_room();"
    text, found = re.subn(rf"{re.escape(old)}\s+{re.escape(room)}", f"{room} {old}", headers["consumer.cuh"])
    assert found == 1
    mutant = dataclasses.replace(source, headers=tuple({**headers, "consumer.cuh": text}.items()))
    assert gives_room_last(build(source).ptx)
    assert not gives_room_last(build(mutant).ptx)


def gives_room_last(ptx: str) -> bool:
    """Whether every other CTA is told behind the last instruction that writes or sends what was read of its sums."""
    lines = ptx.splitlines()

    def last(pattern: str) -> int:
        return max(number for number, line in enumerate(lines) if re.search(pattern, line))

    arrivals = [number for number, line in enumerate(lines) if "mbarrier.arrive.shared::cluster" in line]
    assert len(arrivals) == 1  # the ring's are of the own CTA
    read, written = (
        last(r"ld\.shared\.v4\.f32"),
        last(r"stmatrix|st\.global|cp\.async\.bulk\.tensor\S*\.global\.shared"),
    )
    assert read < written
    return written < arrivals[0]


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
    assert len(maps) == (3 if problem.out_through_tma else 2) + (
        0 if not config.tail_n else 2 if problem.out_through_tma else 1
    )
    for tensor_map in maps:
        assert tensor_map.violations() == ()


def test_arguments_follow_the_kernel_s_parameter_list() -> None:
    entry = re.search(r"hopper_gemm\((.*?)\)\s*\{", render(HOPPER, packed(64, 64, 64), Config(), H200).text, re.DOTALL)
    assert entry is not None
    names = [parameter.split()[-1] for parameter in entry[1].split(",")]
    assert names == [
        "a_map", "b_map", "b_tail_map", "out_map", "out_tail_map", "out_base", "out_pitch", "m", "n", "k", "group_m",
        "square_m", "square_n", "num_wide", "batch", "fused", "row_scale",
    ]  # fmt: skip
    arguments = HOPPER.arguments(packed(64, 72, 80), Config(), ONE_CTA)
    values = {a.name: (a.value, a.size_bytes) for a in arguments if isinstance(a, IntArgument)}
    assert values == {
        "b_tail_map": (0, 4),
        "out_tail_map": (0, 4),
        "out_pitch": (72, 8),
        "m": (64, 4),
        "n": (72, 4),
        "k": (80, 4),
        "group_m": (1, 4),
        "square_m": (1, 4),
        "square_n": (1, 4),
        "num_wide": (1, 4),
        "batch": (0, 4),
        "fused": (0, 4),
        "row_scale": (2**30, 4),
    }
    assert len(arguments) == len(names)


def test_by_the_scale_of_rows_a_multiplication_is_the_division() -> None:
    """For all places below 2^15: of every number of rows up to 2^11, and of others up to 2^30."""
    places = np.arange(1 << 15, dtype=np.uint64)
    rng = np.random.default_rng(1)
    ends = [2**power + step for power in range(11, 31) for step in (-1, 0, 1) if 2**power + step <= 2**30]
    for rows in [*range(1, 1 << 11), *ends, *rng.integers(1, 2**30, 200)]:
        scale = row_scale(int(rows))
        assert scale < 2**31  # an int32 of the kernel's
        columns = (4 * places * np.uint64(scale)) >> np.uint64(32)
        assert np.array_equal(columns, places // np.uint64(rows)), rows


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
        ((8192, 8192, 64), Config(cluster_m=2, cluster_n=4), None, 120),
        ((1000, 1000, 1000), Config(tile_n=72, cluster_m=4, cluster_n=2), None, 112),
        ((64, 4096, 4096), Config(tile_m=64, tile_n=64, consumers=1, stages=10, split_k=4), None, 120),
        ((64, 4096, 4096), Config(tile_m=64, tile_n=64, consumers=1, stages=10, split_k=8), None, 120),
        ((64, 4096, 4096), Config(tile_m=64, tile_n=64, consumers=1, stages=10, split_k=8), 64, 64),
        ((64, 4096, 4096), Config(tile_m=64, tile_n=64, consumers=1, stages=3, split_k=8), None, 128),
    ],
)
def test_the_grid_is_whole_clusters_and_no_more_than_the_tiles(
    extents: tuple[int, int, int], config: Config, num_sms: int | None, grid: int
) -> None:
    """Of 8 CTAs 15 clusters run at once, with room for one CTA in an SM; 16 with room for two."""
    assert HOPPER.launch(packed(*extents), config, H200, num_sms).grid == grid


def test_the_order_s_group_never_exceeds_the_rows() -> None:
    arguments = HOPPER.arguments(packed(128, 8192, 64), Config(group_m=16), ONE_CTA)
    assert IntArgument("group_m", 1, 4) in arguments


def test_one_column_of_tiles_is_one_group() -> None:
    """Walked alike in any: so its first tile takes no division."""
    for config in (Config(group_m=16), Config(group_m=16, cluster_m=2, cluster_n=2), Config(group_m=3, swap=True)):
        problem = packed(8192, 128, 64) if not config.swap else packed(128, 8192, 64)
        rows, columns = config.tiles(config.computed(problem))
        assert columns == config.cluster_n
        values = {a.name: a.value for a in HOPPER.arguments(problem, config, ONE_CTA) if isinstance(a, IntArgument)}
        assert (values["group_m"], values["square_m"], values["square_n"]) == (rows // config.cluster_m,) * 2 + (1,)


def test_tiles_that_all_run_at_once_are_one_group() -> None:
    """So most CTAs' first tiles take one division, those of the first column none."""
    problem, config = packed(1024, 1024, 64), Config(group_m=3)
    for grid, group in ((32, 8), (31, 3)):
        launch = Launch(grid=grid, block=384, cluster=1, smem_bytes=0)
        assert {IntArgument("group_m", group, 4), IntArgument("square_m", group, 4)} <= set(
            HOPPER.arguments(problem, config, launch)
        )


def test_tiles_of_a_batch_or_a_split_in_more_than_one_wave_keep_their_groups() -> None:
    """Counted are those of all matrices, and a split's CTAs: of 4 x 8 tiles 32 run at once, of two matrices not."""
    plain = packed(1024, 1024, 64 * 8)
    for problem, config in (
        (packed(1024, 1024, 64, batch=(2,)), Config(group_m=3)),
        (plain, Config(group_m=3, stages=4, store_slots=1, split_k=2)),
    ):
        for grid, group in ((64, 8), (32, 3)):
            launch = Launch(grid=grid, block=384, cluster=config.cluster, smem_bytes=0)
            assert IntArgument("group_m", group, 4) in HOPPER.arguments(problem, config, launch)


def test_squares_never_exceed_the_group_or_the_columns() -> None:
    arguments = HOPPER.arguments(packed(1024, 512, 64), Config(group_m=3, square=4), ONE_CTA)
    assert {IntArgument("square_m", 3, 4), IntArgument("square_n", 2, 4)} <= set(arguments)


def test_without_squares_a_group_is_walked_down_its_columns() -> None:
    arguments = HOPPER.arguments(packed(1024, 4096, 64), Config(group_m=3), ONE_CTA)
    assert {IntArgument("square_m", 3, 4), IntArgument("square_n", 16, 4)} <= set(arguments)


def test_a_narrow_tail_takes_the_place_of_the_last_wave() -> None:
    """4096^3 with 256x192: 352 tiles are 2 waves and a half; 264 wide ones leave 8 x 7 + 8 x 9 of 120 columns."""
    problem, config = packed(4096, 4096, 4096), Config(tile_m=256, tile_n=192, stages=3, tail_n=120)
    launch = HOPPER.launch(problem, config, H200)
    assert IntArgument("num_wide", 264, 4) in HOPPER.arguments(problem, config, launch)
    assert config.waves(problem, launch.grid) == (2, 1)


def test_the_space_offers_the_tail_that_takes_the_least_time() -> None:
    tails = {config.tile_n: config.tail_n for config in HOPPER.space(packed(4096, 4096, 4096), H200) if config.tail_n}
    assert tails == {200: 104, 192: 120, 128: 120}


def test_an_m_contiguous_a_is_offered_tails_where_they_do_not_spill() -> None:
    """With a k-contiguous b each of them does, by 4 bytes."""
    offered = {
        b_major: [c for c in HOPPER.space(packed(8192, 2048, 4096, a_major="m", b_major=b_major), H200) if c.tail_n]
        for b_major in ("k", "n")
    }
    assert not offered["k"]
    for config in offered["n"]:
        compiled(packed(8192, 2048, 4096, a_major="m", b_major="n"), config)
    assert offered["n"]


def test_an_n_contiguous_b_is_offered_tails_of_whole_panels() -> None:
    tails = [config.tail_n for config in HOPPER.space(packed(4096, 4096, 4096, b_major="n"), H200) if config.tail_n]
    assert tails
    assert all(tail_n % 64 == 0 for tail_n in tails)


def test_an_fp32_out_is_offered_no_staggered_tile() -> None:
    assert not any(config.staggered for config in HOPPER.space(packed(4096, 4096, 4096, out_dtype="fp32"), H200))


def test_one_k_tile_is_offered_no_staggered_tile() -> None:
    assert not any(config.staggered for config in HOPPER.space(packed(4096, 4096, 64), H200))


@pytest.mark.parametrize("tile_n", [192, 200, 128])
def test_every_tail_that_the_space_may_offer_compiles_clean(tile_n: int) -> None:
    base = next(c for c in HOPPER.space(packed(4096, 4096, 4096), H200) if c.tile_n == tile_n and c.staggered)
    for tail_n in range(64 + 8 * (tile_n // 64), tile_n, 40):  # a few here, all of them below
        compiled(packed(4096, 4096, 4096), base.replace(tail_n=tail_n))


@pytest.mark.slow
@pytest.mark.parametrize("tile_n", [192, 200, 128])
@pytest.mark.parametrize("changes", [{}, {"dtype": "fp16"}, {"b_major": "n"}], ids=["bf16", "fp16", "n-contiguous b"])
def test_every_tail_compiles_clean(tile_n: int, changes: dict[str, str]) -> None:
    """Of 86 such kernels 50 had their wgmmas serialised (C7511) while accumulators seemed to live on between tiles. Of
    fp16, whose kernels differ from bf16's by the type of their wgmmas alone, every third."""
    problem = packed(4096, 4096, 4096, **changes)
    for base in HOPPER.space(problem, H200):
        if base.tile_n != tile_n or base.tile_m != 256 or base.tail_n:
            continue
        for tail_n in range(64, tile_n, 24 if changes.get("dtype") else 8):
            config = base.replace(tail_n=tail_n)
            if not config.violations(problem, H200):
                compiled(problem, config)


@pytest.mark.parametrize(
    ("rows", "tile_n", "height"), [(32, 200, 8), (64, 200, 8), (33, 192, 11), (16, 192, 8), (5, 192, 5), (1, 192, 1)]
)
def test_groups_are_alike_where_they_can_be(rows: int, tile_n: int, height: int) -> None:
    assert group_rows(rows, 256, tile_n, 132) == height


def test_a_tile_that_would_leave_in_thin_boxes_is_not_offered() -> None:
    offered = {config.tile_n for config in HOPPER.space(packed(4096, 4096, 4096, out_dtype="fp32"), H200)}
    assert 192 in offered
    assert 200 not in offered


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_tile_of_8_columns_compiles_whatever_room_its_stores_have(slots: int) -> None:
    """The shape of a tail that is not there is that of no tile."""
    config = Config(tile_m=64, tile_n=8, consumers=1, stages=4, store_slots=slots)
    for out_dtype in (None, "fp32"):
        assert build(render(HOPPER, packed(65, 67, 64, out_dtype=out_dtype), config, H200)).resources.registers


@pytest.mark.parametrize(
    ("problem", "fields"),
    [
        (packed(4097, 8200, 520), {"tile_m": 128, "tile_n": 128, "stages": 4, "split_k": 4}),
        (packed(4097, 8201, 520), {"tile_m": 128, "tile_n": 128, "stages": 4, "split_k": 4}),
        (packed(4097, 8200, 520, out_dtype="fp32"), {"tile_m": 128, "tile_n": 128, "stages": 4, "split_k": 4}),
        (packed(64, 4096, 4096), {"tile_m": 64, "tile_n": 64, "stages": 8, "consumers": 1, "swap": True, "split_k": 2}),
        (packed(1, 4096, 4096), {"tile_m": 64, "tile_n": 8, "stages": 8, "consumers": 1, "swap": True, "split_k": 8}),
    ],
    ids=str,
)
def test_partial_sums_have_left_their_registers_before_their_room_is_given_free(
    problem: Problem, fields: dict[str, Any]
) -> None:
    """In machine code, where loads that have been issued may still be on their way: between the last load and the
    arrival stands a store, as none did when 9 runs of 100 differed (H200). That each load is one that a store needs, or
    one that nobody does, is split.cuh's to say: what is loaded is summed and stored, or lies outside out."""
    source = render(HOPPER, problem, Config(store_slots=1, **fields), H200)
    lines = [line for line in disassemble.sass(build(source).cubin).splitlines() if ";" in line]
    loads = [index for index, line in enumerate(lines) if "LDS.128" in line]
    (given_free,) = [index for index, line in enumerate(lines) if "SYNCS.ARRIVE.TRANS64.RED" in line]
    stores = [index for index, line in enumerate(lines) if re.search(r"\b(STSM|STS|STG)\b", line)]
    assert loads[-1] < given_free
    assert any(loads[-1] < store < given_free for store in stores)
