"""Faults that users met in other GEMM libraries, as runs of the shipped kernel in the emulator.

A case's number is that of the project's collection, in the docstring of its test. All cases of hangs, races, edges and
architecture that a plain dense product can have:

| case | what went wrong elsewhere | tested in |
| --- | --- | --- |
| B001 | slices are read as if they were packed | here, all layouts; test_layout_bug_cases.py |
| B011 | a TMA store reads shared memory off its alignment | here; test_hopper_kernel.py, shared memory shifted |
| B028 | k shorter than the pipeline | here; test_ampere.py |
| B029 | one k tile, or as many as there are slots, never ends | here |
| B031 | rows of the remainder are skipped | here |
| B032 | m, n or k of 0 | here; test_problem.py |
| B046, B047 | sums shorter than promised; past fp16's range | test_special_values.py |
| B058 | a cluster straddles tiles past the end | here, dense; groups of k wait for the grouped form |
| B059 | one row more than the tiles, one column | here, dense; test_hopper_kernel.py, split; fp8 waits |
| B061 | a split waits for one that cannot run | test_hopper_kernel.py: more tiles than clusters, 2 SMs |
| B062 | the kernel counts on 132 SMs | here |
| B064, B065 | a dependent launch reads before it waits | here: others never wait; kernels/test_hopper.py: those |
| B067 | a tensor map is changed under a store | waits for the grouped form, which changes maps |
| B068 | the store slots start anew with each tile | here; test_mutants.py, "many stores" |
| B070 | no barrier back to the loop's start | here; test_ampere.py, each bar.sync left out |
| B071 | products at the same time disturb each other | here; on streams of a GPU in test_bug_cases_on_gpu.py |
| B073 | an arrive of CTA scope hands words to another CTA | pairs.py, "ordinary writes for the peer" |
| B074 | a copy reloads words that are still read | pairs.py, "a copy lands on bytes that are still read" |
| B080 | a grid that is no multiple of the cluster | here; test_control.py, refused by the emulator |
| B082 | the multicast mask of 8 CTAs | here |
| B083 | the cluster given in the code and at the launch | here; test_bad_input.py, a mismatch |
| B085 | a swizzle that is right for fp16 and wrong for bf16 | here; test_ampere.py, ldmatrix of both |
| B086 | m = 8 is wrong at some n | here; the real sizes on a GPU, test_bug_cases_on_gpu.py |
| B088 | tiles keep stale memory | here: out is NaN before each run; beside other work in test_bug_cases_on_gpu.py |
| B089 | a config that no model picks faults | here: all of the space; test_bug_cases_on_gpu.py |
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from products import H200, Product, binary, multiply, product
from snippets import execute, kernel

import tilewright
from tilewright.backends.emulated import emulated
from tilewright.bench.cases import LAYOUTS
from tilewright.bench.emulated import run_plan
from tilewright.config import Config
from tilewright.emulator.events import Addresses, AsyncOp, Observer, Space
from tilewright.emulator.machine import Machine
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed
from tilewright.problem import Problem

SMALL = Config(tile_m=64, tile_n=64, consumers=1, stages=3)
NARROW = Config(tile_m=64, tile_n=16, consumers=1, stages=3)
PINGPONG = Config(tile_m=64, tile_n=32, stages=3, pingpong=True)
CLUSTERS = [NARROW.replace(cluster_m=2), NARROW.replace(cluster_n=2)]


def exact(problem: Problem, config: Config, num_sms: int | None = None, **choices: Any) -> Product:
    """Runs whole numbers with checks; every element must be right and no other be touched."""
    given = product(problem, whole=True, seed=problem.k)
    multiply(given, config, num_sms=num_sms, checks=True, **choices)
    assert (given.result() == (given.a @ given.b).astype(problem.out_dtype.numpy)).all()
    assert (given.out[:, problem.n :] == 3).all()
    return given


@pytest.mark.parametrize("out_major", ["n", "m"])
@pytest.mark.parametrize(("a_major", "b_major"), LAYOUTS)
def test_slices_with_a_padded_leading_dimension_are_read_and_written_where_they_lie(
    a_major: str, b_major: str, out_major: str
) -> None:
    """B001: (64, 64) of bases of (128, 256), which are NaN elsewhere, each alone and all together."""
    rng = np.random.default_rng(0)

    def operand(name: str, is_sliced: bool, major: str) -> tuple[Any, Any]:
        base = np.full((128, 256) if is_sliced else (64, 64), np.nan, np.float16)
        is_by_rows = major == {"a": "k", "b": "n", "out": "n"}[name]
        view = base[:64, :64] if is_by_rows else base[:64, :64].T
        if name != "out":
            view[...] = rng.integers(-4, 5, view.shape)
        return base, view

    for sliced in ("a", "b", "out", "a b out"):
        (_, a), (_, b), (base, out) = (
            operand(name, name in sliced.split(), major)
            for name, major in (("a", a_major), ("b", b_major), ("out", out_major))
        )
        tilewright.Emulator().matmul(a, b, out)
        assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32))
        out[...] = np.nan
        assert np.isnan(base).all()


class Boxes(Observer):
    """Where the copies' boxes start in shared memory, in bytes from the CTA's address 0."""

    def __init__(self) -> None:
        self.starts: dict[str, set[int]] = {}
        self.machine: Machine | None = None

    def begin(self, machine: Machine) -> None:
        self.machine = machine

    def op_read(self, op: AsyncOp, space: Space, starts: Addresses, size: int) -> None:
        if space == "shared" and self.machine is not None:
            self.starts.setdefault(op.kind, set()).add(int(starts.min()) % self.machine.smem_stride)

    op_write = op_read


@pytest.mark.parametrize("tile_n", [8, 24, 128])
def test_every_box_of_a_copy_starts_at_a_multiple_of_its_pattern(tile_n: int) -> None:
    """B011: k of one k step; slots of 16, 16 and 128 bytes a row."""
    problem, config = packed(256, 128, 16, dtype="fp16"), Config(tile_m=64, tile_n=tile_n, consumers=1, stages=2)
    given, launch, boxes, memory = product(problem), HOPPER.launch(problem, config, H200, 2), Boxes(), GlobalMemory()
    addresses = {
        name: memory.add(name, array, array.ctypes.data)
        for name, array in sorted(zip(("a", "b", "out"), given.rows, strict=True), key=lambda item: item[1].ctypes.data)
    }
    backend = emulated()
    compiled = binary(HOPPER, problem, config)
    call = backend.pack(backend.load(compiled, 0, launch), launch, HOPPER.arguments(problem, config, launch), addresses)
    grid = Grid(grid=launch.grid, block=launch.block, smem_bytes=launch.smem_bytes)
    run(compiled.ptx, compiled.entry, grid, call.parameters, memory, observer=boxes)
    assert given.excess() <= 1
    assert all(start % 1024 == 0 for start in boxes.starts["tma_load"])
    assert all(start % 128 == 0 for start in boxes.starts["tma_store"])


@pytest.mark.parametrize("config", [SMALL, PINGPONG], ids=str)
def test_ones_give_k_exactly_for_every_k_about_the_pipeline(config: Config) -> None:
    """B028."""
    pipeline = (config.stages - 1) * config.tile_k
    for k in (1, 8, 16, 63, 64, 65, pipeline - 1, pipeline, pipeline + 1, pipeline + 64 + 1):
        given = product(packed(64, 64, k))
        given.a_rows[:, :k] = given.b_rows[:, :k] = 1
        multiply(given, config, num_sms=1, checks=True)
        assert (given.result() == k).all(), k


@pytest.mark.parametrize("config", [SMALL, PINGPONG, *CLUSTERS], ids=str)
def test_one_k_tile_and_as_many_as_slots_end(config: Config) -> None:
    """B029."""
    for num_k_tiles in (1, config.stages):
        exact(packed(config.tile_m, config.tile_n, num_k_tiles * config.tile_k), config)


@pytest.mark.parametrize("extents", [(3000, 64, 64), (35, 79, 19), (3, 3, 431)], ids=str)
def test_remainder_rows_are_computed(extents: tuple[int, int, int]) -> None:
    """B031: the first with 3,000 rows for 30,000: the same remainder of 56 in tiles of 64."""
    exact(packed(*extents), SMALL, 4)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0)])
def test_a_size_of_zero_has_a_result_and_no_launch(m: int, n: int, k: int) -> None:
    """B032."""
    emulator = tilewright.Emulator()
    out = emulator.matmul(np.ones((m, k), np.float16), np.ones((k, n), np.float16))
    assert out.shape == (m, n)
    assert (out == 0).all()
    assert emulator.report is None


@pytest.mark.parametrize("num_tiles", [1, 3, 5])
@pytest.mark.parametrize("config", CLUSTERS, ids=str)
def test_a_cluster_with_tiles_past_the_end_ends(config: Config, num_tiles: int) -> None:
    """B058: an odd number of tiles for pairs of CTAs, one after another on 2 SMs and all at once on 6."""
    m, n = (num_tiles * 64, 16) if config.cluster_m == 2 else (64, num_tiles * 16)
    for num_sms in (2, 6):
        exact(packed(m, n, 200), config, num_sms)


def test_one_row_more_than_the_tiles_and_a_single_column() -> None:
    """B059."""
    for m in (2 * 64 + 1, 3 * 64 - 1):
        exact(packed(m, 1, 328), NARROW, 2)


@pytest.mark.parametrize("num_sms", [1, 2, 78, 114, 132])
def test_any_number_of_sms_gives_the_same_bytes(num_sms: int) -> None:
    """B062."""
    problem = packed(200, 136, 136)
    one, given = product(problem), product(problem)
    multiply(one, SMALL, num_sms=3)
    multiply(given, SMALL, num_sms=num_sms)
    assert given.out.tobytes() == one.out.tobytes()
    device = replace(H200, num_sms=num_sms)
    launch = tilewright.plan(packed(4096, 4096, 4096), device=device).launch
    assert 1 <= launch.grid <= max(num_sms, launch.cluster)


def test_no_kernel_is_a_dependent_launch_unasked() -> None:
    """B064, B065: none of these waits for the grid before it, so none may be launched before that grid has ended."""
    for config in (SMALL, PINGPONG, *CLUSTERS):
        assert "griddepcontrol" not in binary(HOPPER, packed(64, 64, 64), config).ptx


@pytest.mark.parametrize("store_slots", [1, 2, 3])
def test_slots_that_do_not_divide_a_tile_go_on_into_the_next(store_slots: int) -> None:
    """B068: one k tile, so that a tile's stores are in flight when the next one's begin; 5 slots' worth a tile."""
    config = Config(tile_m=64, tile_n=160, consumers=1, stages=2, store_slots=store_slots)
    exact(packed(64, 4 * 160, 64), config, 1, schedule="lazy")
    exact(packed(64, 4 * 160, 64, out_dtype="fp32"), config, 1, schedule="random", seed=store_slots)


@pytest.mark.parametrize("config", [SMALL, PINGPONG, CLUSTERS[0]], ids=str)
def test_the_same_bytes_come_out_however_warps_and_copies_are_ordered(config: Config) -> None:
    """B070."""
    problem = packed(136, 72, 520)
    results = set()
    for seed in range(6):
        given = product(problem)
        multiply(given, config, num_sms=2, schedule="random", seed=seed, width="warp" if seed % 2 else None)
        results.add(given.out.tobytes())
    assert len(results) == 1


def test_products_at_the_same_time_come_out_as_alone() -> None:
    """B071: threads in place of streams."""
    problems = [packed(16, 64, 136), packed(72, 40, 200), packed(65, 66, 67)]
    alone = [product(problem, seed=index) for index, problem in enumerate(problems)]
    for given in alone:
        multiply(given, SMALL, num_sms=2)
    together = [product(problems[index % 3], seed=index % 3) for index in range(9)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda given: multiply(given, SMALL, num_sms=2), together))
    for index, given in enumerate(together):
        assert given.out.tobytes() == alone[index % 3].out.tobytes()


@pytest.mark.parametrize("config", [*CLUSTERS, NARROW], ids=str)
def test_a_grid_is_whole_clusters_for_every_number_of_tiles(config: Config) -> None:
    """B080: launches for 1 to 9 tiles each way; runs up to 3."""
    for rows in range(1, 10):
        for columns in range(1, 10):
            problem = packed(rows * 64 - 1, columns * 16 - 1, 72)
            for num_sms in (1, 2, 3, 132):
                launch = HOPPER.launch(problem, config, H200, num_sms)
                assert launch.grid % launch.cluster == 0
                assert launch.cluster == config.cluster
                assert launch.grid <= max(num_sms, launch.cluster)
            if rows <= 3 and columns <= 3:
                exact(problem, config, 4)


MULTICAST = """
mov.u32 %r5, buffer;
mov.u32 %r7, bar;
mov.u32 %r8, %cluster_ctarank;
setp.eq.u32 %p1, %r0, 0;
setp.eq.u32 %p2, %r8, 2;
mov.u32 %r9, MASK;
shr.u32 %r10, %r9, %r8;
and.b32 %r10, %r10, 1;
setp.eq.u32 %p3, %r10, 1;
@!%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r7], 1;
fence.mbarrier_init.release.cluster;
READY:
st.shared.u32 [%r5], 0;
fence.proxy.async.shared::cta;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
@!%p1 bra LOADED;
@!%p3 bra ISSUE;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 16;
ISSUE:
@!%p2 bra LOADED;
cvt.u16.u32 %h1, %r9;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r5], [%rd0], 16, [%r7], %h1;
LOADED:
bar.sync 0;
@!%p3 bra DONE;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r7], 0;
@!%p9 bra WAIT;
DONE:
ld.shared.u32 %r11, [%r5];
mul.wide.u32 %rd5, %r8, 4;
add.s64 %rd5, %rd1, %rd5;
@%p1 st.global.u32 [%rd5], %r11;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
"""


@pytest.mark.parametrize("mask", [0b11111111, 0b10000000, 0b01010101, 0b00000100])
def test_multicast_reaches_the_ctas_of_its_mask_and_no_other(mask: int) -> None:
    """B082: in a cluster of 8."""
    text = kernel(
        MULTICAST.replace("MASK", str(mask)), ".shared .align 128 .b8 buffer[128];\n.shared .align 8 .b8 bar[8];"
    )
    out, report = execute(text, np.full(4, 9, np.uint32), grid=8, cluster=8, out_bytes=32, checks=True)
    assert out.view(np.uint32).tolist() == [9 * (mask >> rank & 1) for rank in range(8)]
    assert report.findings == ()


def test_the_cluster_is_given_at_the_launch_alone() -> None:
    """B083."""
    for config in CLUSTERS:
        ptx = binary(HOPPER, packed(64, 64, 64), config).ptx
        assert "nctapercluster" not in ptx
        assert ".explicitcluster" not in ptx
        assert HOPPER.launch(packed(512, 512, 64), config, H200).cluster == config.cluster


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("tile_n", "b_major"), [(8, "k"), (16, "k"), (32, "k"), (64, "k"), (64, "n")])
def test_every_swizzle_is_right_for_both_types(tile_n: int, b_major: Any, dtype: str) -> None:
    """B085: rows of out of 16, 32, 64 and 128 bytes; operands always of 128, in both majors."""
    config = Config(tile_m=64, tile_n=tile_n, consumers=1, stages=2)
    exact(packed(72, 64 + tile_n, 72, dtype=dtype, b_major=b_major), config, 2)


def test_eight_rows_are_right_for_every_n_about_the_tiles() -> None:
    """B086: one tile of n, many, and one column more or less, with the config that is chosen for the real shape."""
    config = tilewright.plan(packed(8, 12288, 8192), device=H200).config
    width = config.tile_m if config.swap else config.tile_n  # of a tile along n
    for n in (8, width - 8, width, width + 1, 3 * width, 5 * width + 8):
        exact(packed(8, n, 200), config.replace(group_m=1), 3)


# m = 256, where elsewhere one of two ways was never taken, and few rows, which have configs of their own; out by TMA,
# and with an odd n. A config that both have is forced once.
FORCED = {
    config: problem
    for problem in (packed(16, 201, 520), packed(16, 200, 520), packed(256, 201, 136), packed(256, 200, 136))
    for config in HOPPER.space(problem, H200)
}


@pytest.mark.parametrize("config", FORCED, ids=str)
def test_every_config_that_may_be_chosen_is_right_when_forced(config: Config) -> None:
    """B089. Protocols are checked elsewhere, numbers here."""
    problem = FORCED[config]
    for given in dict.fromkeys((problem, packed(problem.m, 201, problem.k))):
        if not config.violations(given, H200):
            device = emulated(replace(H200, num_sms=max(2, config.cluster)))
            found = run_plan(tilewright.plan(given, device=device.model, config=config), device).check
            assert found.ok, f"{given}: {found}"
