"""The Hopper family: hopper_gemm.cu, its constants, its launch, its parameters, and the configs worth a look."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.backends.base import Argument, IntArgument, Launch, MapArgument, PointerArgument, TensorMap
from tilewright.config import STORE_ROWS, SWIZZLE_BYTES, Config, store_columns
from tilewright.device import Device
from tilewright.kernels.render import constants_header, wgmma_header
from tilewright.problem import Problem

# The tiles worth a look, in the order of preference between equals: those that fill the register file, then those that
# fill the waves of smaller outputs. Stages are as many as fit; a fourth stage beyond three changes nothing (measured,
# H200, 2026-11-29, 8192^3: 686 and 682 TFLOPS). Measured, H200, 2026-11-30, 8192^3 steady, TFLOPS: 256x192 halves 683,
# with k back and forth 690; ping-pong 128x192 672; 256x192 whole 669; 128x256 659; cuBLAS 660.
_LARGE = (
    Config(tile_m=256, tile_n=192, stages=3, k_back_and_forth=True),
    Config(tile_m=256, tile_n=128, stages=4, k_back_and_forth=True),
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


@dataclass(frozen=True)
class HopperFamily:
    """The production family of compute capability 9.0."""

    name: str = "hopper"
    source: str = "hopper_gemm.cu"
    entry: str = "hopper_gemm"

    def space(self, problem: Problem, device: Device) -> Iterator[Config]:
        """Every legal config that is worth a look for the problem on the device."""
        for base in _LARGE + _SHORT:
            for cluster_m in (1,) if base.pingpong else (1, 2):  # no ping-pong in clusters: 192 columns spill there
                config = base.replace(cluster_m=cluster_m)
                if config.violations(problem, device):
                    continue
                rows, _ = config.tiles(problem)
                clusters = device.num_sms // cluster_m
                yield config.replace(
                    group_m=group_rows(rows // cluster_m, base.tile_m * cluster_m, base.tile_n, clusters)
                )

    def headers(self, problem: Problem, config: Config, wait_limit: int = 0) -> dict[str, str]:
        """The rendered headers by path: struct Config, and the wgmma wrapper of exactly this shape and type.

        Units: `wait_limit` in tries of a barrier wait before a debug build traps; 0 waits forever.
        """
        constants: dict[str, int | bool | str] = {
            "TILE_M": config.tile_m,
            "TILE_N": config.tile_n,
            "TILE_K": config.tile_k,
            "STAGES": config.stages,
            "CONSUMERS": config.consumers,
            "WGMMAS_M": config.wgmmas_m,
            "CLUSTER_M": config.cluster_m,
            "CLUSTER_N": config.cluster_n,
            "CLUSTER": config.cluster,
            "THREADS": config.threads,
            "PINGPONG": config.pingpong,
            "TAIL_N": config.tail_n,
            "STAGGERED": config.staggered,
            "K_BACK_AND_FORTH": config.k_back_and_forth,
            "MOVES_REGISTERS": config.moves_registers,
            "PRODUCER_REGISTERS": config.producer_registers,
            "CONSUMER_REGISTERS": config.consumer_registers,
            "FULL_ARRIVALS": config.full_arrivals,
            "EMPTY_ARRIVALS": config.empty_arrivals,
            "STAGE_BYTES": config.stage_bytes(problem),
            "STORE_WARP_BYTES": config.store_warp_bytes(problem),
            "STORE_COLUMNS": store_columns(problem, config.tile_n),
            "TAIL_STORE_COLUMNS": store_columns(problem, config.tail_n) if config.tail_n else 0,
            "SMEM_BYTES": config.smem_bytes(problem),
            "B_K_MAJOR": problem.b_major == "k",
            "OUT_TYPE": f"Type::{problem.out_dtype}",
            "OUT_THROUGH_TMA": problem.out_through_tma,
            "WAIT_LIMIT": wait_limit,
        }
        return {
            "config.cuh": constants_header(constants),
            "wgmma_mma_async.cuh": wgmma_header(
                config.tile_n, problem.dtype, problem.b_major == "k", tail_n=config.tail_n
            ),
        }

    def launch(self, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Launch:
        """One CTA an SM, whole clusters, never more CTAs than tiles."""
        rows, columns = config.tiles(problem)
        sms = device.num_sms if num_sms is None else num_sms
        clusters = max(1, min(sms // config.cluster, rows * columns // config.cluster))
        return Launch(
            grid=clusters * config.cluster,
            block=config.threads,
            cluster=config.cluster,
            smem_bytes=config.smem_bytes(problem),
        )

    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The parameters of hopper_gemm in order."""
        rows, columns = config.tiles(problem)
        cluster_rows = max(1, rows // config.cluster_m)
        group = cluster_rows if config.schedule == "linear" else min(config.group_m, cluster_rows)
        cluster_columns = max(1, columns // config.cluster_n)
        b_tail: Argument = IntArgument("b_tail_map", 0, 4)
        out: Argument = IntArgument("out_map", 0, 4)
        out_tail: Argument = IntArgument("out_tail_map", 0, 4)
        if problem.out_through_tma:
            out = MapArgument("out", out_map(problem, config.tile_n))
        if config.tail_n:
            b_tail = MapArgument("b", _b_map(problem, config, config.tail_n))
            if problem.out_through_tma:
                out_tail = MapArgument("out", out_map(problem, config.tail_n))
        return (
            MapArgument("a", _a_map(problem, config)),
            MapArgument("b", _b_map(problem, config, config.tile_n)),
            b_tail,
            out,
            out_tail,
            PointerArgument("out", problem.extent_bytes["out"]),
            IntArgument("out_pitch", problem.out_pitch, 8),
            IntArgument("m", problem.m, 4),
            IntArgument("n", problem.n, 4),
            IntArgument("k", problem.k, 4),
            IntArgument("group_m", group, 4),
            IntArgument("square_m", min(config.square or group, group), 4),
            IntArgument("square_n", min(config.square or cluster_columns, cluster_columns), 4),
            IntArgument("num_wide", config.wide_tiles(problem, launch.grid) // config.cluster, 4),
        )


HOPPER = HopperFamily()


def group_rows(rows: int, tile_m: int, tile_n: int, num_ctas: int) -> int:
    """Tile rows of a group of the walk: the tiles in flight cover a nearly square patch, and all groups are alike.

    Worked example, 8192^3 with 256x192 tiles on 132 CTAs: a square patch has sqrt(132 x 192 / 256) = 9.9 rows; 32 rows
    are 3.2 such groups, so 3 groups of 11. Groups of 10 would leave one of 2 rows, whose patch is 2 x 66 tiles.
    Source: measured, H200, 2026-11-30, 8192^3 steady: groups of 11 691, of 12 689, of 10 682 TFLOPS.
    """
    square = math.sqrt(num_ctas * tile_n / tile_m)
    num_groups = max(1, round(rows / square))
    return -(-rows // num_groups)


def _a_map(problem: Problem, config: Config) -> TensorMap:
    return TensorMap(
        dtype=problem.dtype,
        extents=(problem.k, problem.m),
        pitches_bytes=(problem.a_pitch * problem.dtype.size,),
        box=(config.tile_k, config.tile_m // config.cluster_n),
        swizzle_bytes=SWIZZLE_BYTES,
    )


def _b_map(problem: Problem, config: Config, tile_n: int) -> TensorMap:
    """A CTA of a cluster loads its share: rows of n where k is contiguous, rows of k where n is."""
    if problem.b_major == "k":
        extents, box = (problem.k, problem.n), (config.tile_k, tile_n // config.cluster_m)
    else:
        extents = (problem.n, problem.k)
        box = (SWIZZLE_BYTES // problem.dtype.size, config.tile_k // config.cluster_m)
    return TensorMap(
        dtype=problem.dtype,
        extents=extents,
        pitches_bytes=(problem.b_pitch * problem.dtype.size,),
        box=box,
        swizzle_bytes=SWIZZLE_BYTES,
    )


def out_map(problem: Problem, tile_n: int) -> TensorMap:
    """Boxes of one store slot of a tile `tile_n` wide."""
    columns = store_columns(problem, tile_n)
    row_bytes = columns * problem.out_dtype.size
    return TensorMap(
        dtype=problem.out_dtype,
        extents=(problem.n, problem.m),
        pitches_bytes=(problem.out_pitch * problem.out_dtype.size,),
        box=(columns, STORE_ROWS),
        swizzle_bytes=0 if row_bytes % 32 == 16 else row_bytes,
    )
