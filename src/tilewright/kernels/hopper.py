"""The Hopper family: hopper_gemm.cu, its constants, its launch, its parameters, and the configs worth a look."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.backends.base import (
    Argument,
    IntArgument,
    IntsArgument,
    Launch,
    MapArgument,
    PointerArgument,
    TensorMap,
)
from tilewright.config import Config
from tilewright.device import Device
from tilewright.dtypes import DType
from tilewright.epilogue_form import UP
from tilewright.kernels import fused, sums, trials
from tilewright.kernels.family import batch_dims, filled, group_rows, with_inputs_exchanged, with_operands_named
from tilewright.kernels.fitted import crossing_space, fitted_space, high_space
from tilewright.kernels.narrow import narrow_space
from tilewright.kernels.render import constants_header, wgmma_header
from tilewright.kernels.sliced import sliced_space
from tilewright.problem import Problem
from tilewright.tiling import STORE_ROWS, SWIZZLE_BYTES, store_columns

# The tiles worth a look, in the order of preference between equals: those that fill the register file, then those that
# fill the waves of smaller outputs. Stages are as many as fit; a fourth stage beyond three changes nothing (measured,
# H200, 2026-11-29, 8192^3: 686 and 682 TFLOPS). Store slots: a row block at once where it fits, half a one else.
# Measured, H200, 2026-11-30, 8192^3, TFLOPS in bursts and steady, of several runs: 256x200 staggered 839 and 704,
# cuBLAS 794 and 665 beside it; ping-pong 128x192 799 and 672, 128x256 792 and 662, cuBLAS 785 to 788 and 657 to 670
# beside them (benchmarks/results, sweeps).
_STAGGERED = (
    Config(tile_m=256, tile_n=200, stages=3, store_slots=1, staggered=True, k_back_and_forth=True),
    Config(tile_m=256, tile_n=192, stages=3, store_slots=3, staggered=True, k_back_and_forth=True),
    Config(tile_m=256, tile_n=128, stages=4, store_slots=2, staggered=True, k_back_and_forth=True),
)
_LARGE = (
    Config(tile_m=128, tile_n=256, stages=4, k_back_and_forth=True),
    Config(tile_m=128, tile_n=192, stages=5, pingpong=True, store_slots=1, k_back_and_forth=True),
    Config(tile_m=128, tile_n=160, stages=5, pingpong=True, k_back_and_forth=True),
    Config(tile_m=128, tile_n=128, stages=6, pingpong=True, k_back_and_forth=True),
    Config(tile_m=128, tile_n=192, stages=4, k_back_and_forth=True),
    Config(tile_m=128, tile_n=128, stages=6, k_back_and_forth=True),
    Config(tile_m=128, tile_n=64, stages=8),
)
_SHORT = tuple(
    Config(tile_m=64, tile_n=tile_n, consumers=1, stages=stages)
    for tile_n, stages in ((256, 4), (192, 6), (128, 8), (64, 12), (32, 14), (16, 16), (8, 16))
)
# Narrow tiles from here on: their kernels are compiled by the tests, and narrower ones wait for their operands.
_NARROWEST = 64

_DEFAULT = Config()


@dataclass(frozen=True)
class HopperFamily:
    """The production family of compute capability 9.0."""

    name: str = "hopper"
    source: str = "hopper_gemm.cu"
    entry: str = "hopper_gemm"
    config: Config = _DEFAULT

    def space(self, problem: Problem, device: Device) -> Iterator[Config]:
        """Every legal config that is worth a look for the problem on the device."""
        for base in _STAGGERED + _LARGE + _SHORT:
            if base.staggered and store_columns(problem, base.tile_n) * problem.out_dtype.size < 64:
                continue  # 200 columns of fp32: 25 boxes of 32 bytes
            if base.staggered and (problem.out_dtype.size != 2 or problem.k <= base.tile_k):
                base = base.replace(staggered=False)
            # Ping-pong in clusters, and pairs with shares that are no equals: trials.py.
            for cluster_m in (1,) if base.pingpong or base.tile_n % 16 else (1, 2):
                config = base.replace(cluster_m=cluster_m)
                if config.violations(problem, device):
                    continue
                rows, _ = config.tiles(problem)
                clusters = device.num_sms // cluster_m
                config = config.replace(
                    group_m=group_rows(rows // cluster_m, base.tile_m * cluster_m, base.tile_n, clusters)
                )
                yield config
                if problem.shares_no_matrix and (stages := config.streamed_stages(problem)) < config.stages:
                    yield config.replace(stages=stages)
                if base.tile_m == 256 and cluster_m == 1:
                    yield from self._with_tail(problem, config, device)
        yield from fitted_space(problem, device)
        yield from high_space(problem, device)
        yield from crossing_space(problem, device)
        yield from narrow_space(problem, device)
        yield from sliced_space(problem, device)

    def trials(self, problem: Problem, device: Device) -> Iterator[Config]:
        """Configs for a tuner alone (kernels/trials.py)."""
        offered = set(self.space(problem, device))  # two kinds may come to the same width
        yield from (config for config in trials.trials(problem, device) if config not in offered)

    def _with_tail(self, problem: Problem, config: Config, device: Device) -> Iterator[Config]:
        """The config with the narrow tiles that take the least time after the full waves, where there are such.

        Of equally good widths the widest: it has the fewest tiles. None of an m-contiguous a with a k-contiguous b: of
        these, and of no other layout, every kernel with a tail spills 4 bytes (NVRTC 13, 2026-11-30).
        """
        if (problem.a_major, problem.b_major) == ("m", "k"):
            return
        step = 8 if problem.b_major == "k" else SWIZZLE_BYTES // problem.dtype.size
        rows, columns = config.tiles(problem)
        grid = min(device.num_sms, rows * columns)
        found: dict[int, float] = {}
        for tail_n in range(_NARROWEST, config.tile_n, step):
            tailed = config.replace(tail_n=tail_n)
            _, narrow = tailed.waves(problem, grid)
            if narrow and not tailed.violations(problem, device):
                found[tail_n] = narrow * tail_n
        if found:
            yield config.replace(tail_n=min(found, key=lambda tail_n: (found[tail_n], -tail_n)))

    def headers(self, problem: Problem, config: Config, wait_limit: int = 0) -> dict[str, str]:
        """The rendered headers by path: struct Config, and the wgmma wrapper of exactly this shape and type.

        Units: `wait_limit` in tries of a barrier wait before a debug build traps; 0 waits forever.
        """
        problem = config.computed(problem)
        producer_registers, consumer_registers = config.registers(problem)
        constants: dict[str, int | bool | str] = {
            "TILE_M": config.tile_m,
            "TILE_N": config.tile_n,
            "TILE_K": config.tile_k,
            "STAGES": config.stages,
            "CONSUMERS": config.consumers,
            "WGMMAS_M": config.wgmmas_m,
            "CLUSTER_M": config.cluster_m,
            "CLUSTER_N": config.cluster_n,
            "SHARING": config.sharing,
            "A_BOX_ROWS": config.a_box_rows,
            "B_BOX_ROWS": config.b_box_rows(problem),
            "SPLIT_K": config.split_k,
            "CLUSTER": config.cluster,
            "THREADS": config.threads,
            "PINGPONG": config.pingpong,
            "TAIL_N": config.tail_n,
            "TAIL_STAGES": config.tail_stages(problem),
            "STAGGERED": config.staggered,
            "K_BACK_AND_FORTH": config.k_back_and_forth,
            "MOVES_REGISTERS": config.moves_registers,
            "PRODUCER_REGISTERS": producer_registers,
            "CONSUMER_REGISTERS": consumer_registers,
            "FULL_ARRIVALS": config.full_arrivals,
            "EMPTY_ARRIVALS": config.empty_arrivals,
            "STAGE_BYTES": config.stage_bytes(problem),
            "STORE_WARP_BYTES": config.store_warp_bytes(problem),
            "TAIL_STORE_WARP_BYTES": config.tail_store_warp_bytes(problem),
            "STORED_N": config.stored_columns(problem),
            "STORE_COLUMNS": store_columns(problem, config.stored_columns(problem)),
            "TAIL_STORE_COLUMNS": store_columns(problem, config.tail_n) if config.tail_n else 0,
            "PARTIAL_BYTES": config.partial_bytes,
            "SMEM_BYTES": config.smem_bytes(problem),
            "A_K_MAJOR": problem.a_major == "k",
            "B_K_MAJOR": problem.b_major == "k",
            "BATCH_DIMS": batch_dims(problem),
            "OUT_TYPE": f"Type::{problem.out_dtype}",
            "OUT_THROUGH_TMA": problem.out_through_tma,
            "OUT_TRANSPOSED": config.swap,
            "DEPENDENT_LAUNCH": config.dependent_launch,
            "LAUNCHES_DEPENDENTS": config.dependent_launch or config.dependent_sums,
            "WAIT_LIMIT": wait_limit,
        }
        return {
            "config.cuh": constants_header(constants),
            "wgmma_mma_async.cuh": wgmma_header(
                config.tile_n,
                problem.dtype,
                a_k_major=problem.a_major == "k",
                b_k_major=problem.b_major == "k",
                tail_n=config.tail_n,
            ),
            **fused.headers(problem),
        }

    def launch(self, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Launch:
        """One CTA an SM, whole clusters, never more than run at once, never more CTAs than tiles.

        A cluster that has to wait begins when another has done all its tiles: 33 clusters of 4 on an h200, of which 30
        run at once, take twice the time of any of them.
        """
        sms = device.num_sms if num_sms is None else num_sms
        at_once = device.clusters_at_once(config.cluster) * config.ctas_per_sm(problem, device)
        clusters = max(1, min(sms // config.cluster, at_once, config.num_tiles(problem) // config.sharing))
        return Launch(
            grid=clusters * config.cluster,
            block=config.threads,
            cluster=config.cluster,
            smem_bytes=config.smem_bytes(problem),
            is_dependent=config.dependent_launch,
        )

    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The parameters of hopper_gemm in order, operands named as `problem` does; slices have their own out."""
        given, problem = problem, config.computed(problem)
        rows, columns = config.tiles(problem)
        cluster_rows = max(1, rows // config.cluster_m)
        cluster_columns = max(1, columns // config.cluster_n)
        # Of one column every group is walked alike, and of one wave all tiles run at once in any order: the walk whose
        # first tile is found soonest (schedule.cuh).
        is_one_wave = config.num_tiles(problem) * config.split_k <= launch.grid
        is_whole = config.schedule == "linear" or cluster_columns == 1 or is_one_wave
        group = cluster_rows if is_whole else min(config.group_m, cluster_rows)
        square_m = min(config.square or group, group)
        b_tail: Argument = IntArgument("b_tail_map", 0, 4)
        out: Argument = IntArgument("out_map", 0, 4)
        out_tail: Argument = IntArgument("out_tail_map", 0, 4)
        if problem.out_through_tma:
            out = MapArgument("out", out_map(problem, config.stored_columns(problem)))
        if config.tail_n:
            b_tail = MapArgument("b", _b_map(problem, config, config.tail_n))
            if problem.out_through_tma:
                out_tail = MapArgument("out", out_map(problem, config.tail_n))
        if problem.out_n < problem.n:
            b, b_tail = _b_halves(problem, config)
        else:
            b = MapArgument("b", _b_map(problem, config, config.b_box_rows(problem)))
        arguments: tuple[Argument, ...] = (
            MapArgument("a", _a_map(problem, config)),
            b,
            b_tail,
            out,
            out_tail,
            PointerArgument("out", config.slices_bytes(given) or problem.extent_bytes["out"]),
            IntArgument("out_pitch", problem.out_pitch, 8),
            IntArgument("m", problem.m, 4),
            IntArgument("n", problem.n, 4),
            IntArgument("k", problem.k, 4),
            IntArgument("group_m", group, 4),
            IntArgument("square_m", square_m, 4),
            IntArgument("square_n", min(config.square or cluster_columns, cluster_columns), 4),
            IntArgument("num_wide", config.wide_tiles(problem, launch.grid) // config.sharing, 4),
            _batch(problem),
            fused.argument(problem),
            IntArgument("row_scale", row_scale(square_m), 4),
        )
        if config.slices > 1:
            arguments = with_operands_named(arguments, {"out": sums.SCRATCH_NAME})
        is_exchanged = problem.out_major != config.sliced(given).out_major
        return with_inputs_exchanged(arguments) if is_exchanged else arguments


HOPPER = HopperFamily()


def row_scale(rows: int) -> int:
    """2^30 / rows, rounded up: place x 4 x this / 2^32, rounded down, is place // rows (schedule.cuh).

    Units: `rows` 1 .. 2^30; places below 2^15, which are CTAs that run at once, 264 on an H200.
    Source: as (2^30 + e) / rows, e < rows, it makes place / rows and less than place / 2^30 more, which reaches the
    next number nowhere while place x rows <= 2^30; with more than 2^15 rows no place comes near 1.
    """
    return -(-(1 << 30) // rows)


def _batch(problem: Problem) -> Argument:
    """batch.cuh's BatchOf."""
    if not problem.batch:
        return IntArgument("batch", 0, 4)
    return IntsArgument(
        "batch",
        (
            problem.num_matrices,
            *filled(problem, problem.batch, 1),
            *(int(stride > 0) for stride in filled(problem, problem.a_batch, 0)),
            *(int(stride > 0) for stride in filled(problem, problem.b_batch, 0)),
            *filled(problem, problem.out_batch, 0),
        ),
    )


def _map(problem: Problem, operand: str, dtype: DType, box: tuple[int, int], swizzle_bytes: int) -> TensorMap:
    """The map of an operand: one matrix, then the batch. A dimension along which the operand is the same has an extent
    of 1, and a stride that means nothing: the driver's documentation does not say what a stride of 0 does."""
    rows, extent = problem.rows_of(operand)
    pitch = getattr(problem, f"{operand}_pitch")
    strides = filled(problem, getattr(problem, f"{operand}_batch"), 0)
    extents = filled(problem, problem.batch, 1)
    return TensorMap(
        dtype=dtype,
        extents=(extent, rows, *(count if stride else 1 for count, stride in zip(extents, strides, strict=True))),
        pitches_bytes=tuple((stride or pitch) * dtype.size for stride in (pitch, *strides)),
        box=(*box, *(1 for _ in strides)),
        swizzle_bytes=swizzle_bytes,
    )


def _operand_map(problem: Problem, operand: str, box_rows: int, shares: int, config: Config) -> TensorMap:
    """A CTA of a cluster loads its share: rows of m or n where k is contiguous, else rows of k, 128 bytes wide."""
    if getattr(problem, f"{operand}_major") == "k":
        box = (config.tile_k, box_rows)
    else:
        box = (SWIZZLE_BYTES // problem.dtype.size, config.tile_k // shares)
    return _map(problem, operand, problem.dtype, box, SWIZZLE_BYTES)


def _a_map(problem: Problem, config: Config) -> TensorMap:
    return _operand_map(problem, "a", config.a_box_rows, config.cluster_n, config)


def _b_map(problem: Problem, config: Config, box_rows: int) -> TensorMap:
    return _operand_map(problem, "b", box_rows, config.cluster_m, config)


def _b_halves(problem: Problem, config: Config) -> tuple[MapArgument, MapArgument]:
    """The columns of b that gate and those that are gated, each for one half of a tile: every second one, one half of b
    and the other, or two b. So what lies behind the last of one is not the first of the other, but zeros."""
    form = problem.epilogue
    assert form is not None
    step = 2 if form.split == "interleaved" else 1
    k_contiguous = problem.b_major == "k"
    columns = dataclasses.replace(
        problem, n=problem.out_n, epilogue=None, b_pitch=problem.b_pitch * (step if k_contiguous else 1)
    )
    further = 1 if step == 2 else problem.out_n  # columns from the first to the first of the others
    offset_bytes = further * (problem.b_pitch if k_contiguous else 1) * problem.dtype.size
    tensor_map = _b_map(columns, config, config.b_box_rows(problem))
    if form.split == "apart":
        return MapArgument("b", tensor_map), MapArgument(UP, tensor_map)
    return MapArgument("b", tensor_map), MapArgument("b", tensor_map, offset_bytes)


def out_map(problem: Problem, tile_n: int) -> TensorMap:
    """Boxes of one store slot of a tile `tile_n` wide."""
    columns = store_columns(problem, tile_n)
    if problem.out_major == "m":
        return _map(problem, "out", problem.out_dtype, (STORE_ROWS, columns), STORE_ROWS * problem.out_dtype.size)
    row_bytes = columns * problem.out_dtype.size
    swizzle_bytes = 0 if row_bytes % 32 == 16 else row_bytes
    return _map(problem, "out", problem.out_dtype, (columns, STORE_ROWS), swizzle_bytes)
