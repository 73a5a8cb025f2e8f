"""The Ampere family: ampere_gemm.cu, its constants, its launch, its parameters, and the configs worth a look."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.ampere_config import AmpereConfig
from tilewright.backends.base import Argument, IntArgument, IntsArgument, Launch, PointerArgument
from tilewright.config import Config
from tilewright.device import Device
from tilewright.dtypes import FP16, FP32
from tilewright.kernels import fused, sums
from tilewright.kernels.family import (
    batch_dims,
    filled,
    group_rows,
    own_config,
    with_inputs_exchanged,
    with_operands_named,
)
from tilewright.kernels.render import constants_header
from tilewright.kernels.sliced import LEAST_K, slice_counts
from tilewright.problem import Problem
from tilewright.tiling import store_columns

# (tile_m, tile_n, warps_m, warps_n, ctas): the tiles worth a look, in the order of preference between equals. 64 x 64 a
# warp first: 32 wavefronts of shared memory for 32 mma.sync, where 64 x 32 have 24 for 16 (warp_tile.cuh).
_TILES = (
    (128, 256, 2, 4, 1),
    (256, 128, 4, 2, 1),
    (128, 128, 2, 2, 2),
    (192, 128, 4, 2, 1),
    (128, 128, 2, 2, 1),
    (128, 128, 2, 4, 1),
    (128, 64, 2, 2, 2),
    (64, 128, 2, 2, 2),
    (64, 64, 2, 2, 2),
    (64, 64, 2, 2, 4),
    (32, 64, 2, 2, 4),
)
# What leads of a tile, by bytes of a row of k values: its fields. Source, of 16-bit inputs with fp32 sums: H200,
# 2026-11-30, 4096^3 and 8192^3 (docs/ampere.md, "Measured"): a split barrier and three ahead over three ahead alone 5 %
# of 128x256x64, 4 and 3 of 256x128x64, 4 of 128x256x32, 5 of 192x128x64, and one ahead is slower yet; of two CTAs of
# 128x128x64 three ahead over one 7 and 13 %, where two of 128x128x32 lose 5 and 4. 256x128x32 was measured in this form
# alone, 192x128x32 in none and has the form of its like, as what is not named here has the plain one. Of other kinds
# all six tiles with a split barrier lead their plain ones: int8 by 13 to 23 %, fp16 sums by 9 to 30, tf32 by 1 to 11
# (H200, 2026-12-01, 4096^3); three ahead for two CTAs was not measured with them.
_SPLIT: dict[str, Any] = {"ahead": 3, "split_barrier": True}
_AHEAD: dict[str, Any] = {"ahead": 3}
_LEADING: dict[tuple[int, int, int, int, int], dict[int, dict[str, Any]]] = {
    (128, 256, 2, 4, 1): {64: _SPLIT, 128: _SPLIT},
    (256, 128, 4, 2, 1): {64: _SPLIT, 128: _SPLIT},
    (192, 128, 4, 2, 1): {64: _SPLIT, 128: _SPLIT},
    (128, 128, 2, 2, 2): {128: _AHEAD},
}
_SPLIT_STAGES = 4  # the fewest: one slot of them is neither read nor on its way (ampere_gemm.cu)
_SLICED_TILES = ((128, 128, 2, 4, 1), (128, 64, 2, 2, 1), (64, 64, 2, 2, 1))  # one CTA an SM, where tiles are few
_ROWS_BYTES = (64, 128)  # of a row of k values
_MOST_STAGES = 6  # more than are ever in want: 4 on their way are 96 KB of 128x256x32, and Little's law asks for 36

_DEFAULT = AmpereConfig()


@dataclass(frozen=True)
class AmpereFamily:
    """The production family of compute capability 8.0, 8.6 and 8.9; on 9.0 for whoever names a config of it."""

    name: str = AmpereConfig.family
    source: str = "ampere_gemm.cu"
    entry: str = "ampere_gemm"
    config: Config = _DEFAULT

    def space(self, problem: Problem, device: Device) -> Iterator[Config]:
        """Every legal config that is worth a look for the problem on the device, each with as many stages as fit: in
        the form that leads, where it fits; what was not measured in it, in the plain one."""
        for tile, row_bytes in itertools.product(_TILES, _ROWS_BYTES):
            offers = (_deepest(tile, row_bytes, form, problem, device) for form in _forms(tile, row_bytes, problem))
            found = next((offer for offer in offers if offer is not None), None)
            if found is not None:
                yield found
        yield from _sliced_space(problem, device)

    def trials(self, problem: Problem, device: Device) -> Iterator[Config]:
        """Of int8, tf32 and fp16 sums what leads with fp32 sums of 16 bits and was not measured with them."""
        if _has_fp32_sums_of_16_bits(problem):
            return
        for tile, by_row in _LEADING.items():
            for row_bytes, form in by_row.items():
                found = None if form is _SPLIT else _deepest(tile, row_bytes, form, problem, device)
                if found is not None:
                    yield found

    def headers(self, problem: Problem, config: Config, wait_limit: int = 0) -> dict[str, str]:
        """The rendered header by path: struct Config. There is no wait to be limited."""
        own = own_config(config, AmpereConfig)
        problem = own.computed(problem)
        slots = dataclasses.replace(problem, out_major="n")  # as wide where they leave in columns
        constants: dict[str, int | bool | str] = {
            "TILE_M": own.tile_m,
            "TILE_N": own.tile_n,
            "TILE_K": own.tile_k,
            "STAGES": own.stages,
            "WARPS_M": own.warps_m,
            "WARPS_N": own.warps_n,
            "WARP_M": own.warp_m,
            "WARP_N": own.warp_n,
            "AHEAD": own.ahead,
            "PREFETCH": own.prefetch,
            "THREADS": own.threads,
            "SPLIT_BARRIER": own.split_barrier,
            "CTAS": own.ctas,
            "CLUSTER_M": 1,
            "CLUSTER_N": 1,
            "CLUSTER": 1,
            "TAIL_N": 0,
            "INPUT": f"Input::{problem.dtype}",
            "F16_SUMS": problem.sums is FP16,
            "OUT_TYPE": f"Type::{FP32 if problem.out_dtype.is_whole else problem.out_dtype}",  # of int32 the bits
            "A_K_MAJOR": problem.a_major == "k",
            "B_K_MAJOR": problem.b_major == "k",
            "A_COPY_BYTES": own.copy_bytes(problem, "a"),
            "B_COPY_BYTES": own.copy_bytes(problem, "b"),
            "A_IN_PIECES": own.is_in_pieces(problem, "a"),
            "B_IN_PIECES": own.is_in_pieces(problem, "b"),
            "B_FOLD": own.b_fold(problem),
            "B_APART": problem.gates == "apart",
            "B_STEP": 2 if own.b_fold(problem) == 2 and problem.gates == "interleaved" else 1,
            "BATCH_DIMS": batch_dims(problem),
            "OUT_IN_CHUNKS": problem.out_through_tma,  # TMA's rule: whole chunks of 16 bytes, or padding behind a row
            "OUT_TRANSPOSED": problem.out_major == "m",  # a gated one: any other is computed as its transpose
            "STORE_COLUMNS": store_columns(slots, own.stored_columns(problem)),
            "STORE_WARP_BYTES": own.store_warp_bytes(problem),
            "SMEM_BYTES": own.smem_bytes(problem),
        }
        return {"config.cuh": constants_header(constants, ("kinds.cuh",)), **fused.headers(problem)}

    def launch(self, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Launch:
        """As many CTAs as run at once, never more than tiles."""
        own = own_config(config, AmpereConfig)
        sms = device.num_sms if num_sms is None else num_sms
        return Launch(
            grid=max(1, min(sms * own.ctas, own.num_tiles(problem))),
            block=own.threads,
            cluster=1,
            smem_bytes=own.smem_bytes(problem),
        )

    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The parameters of ampere_gemm in order, operands named as `problem` does; slices have their own out."""
        own = own_config(config, AmpereConfig)
        given, problem = problem, own.computed(problem)
        rows, columns = own.tiles(problem)
        group = rows if own.schedule == "linear" else min(own.group_m, rows)
        arguments: tuple[Argument, ...] = (
            PointerArgument("a", problem.extent_bytes["a"]),
            PointerArgument("b", problem.extent_bytes["b"]),
            PointerArgument("out", own.slices_bytes(given) or problem.extent_bytes["out"]),
            IntArgument("a_pitch", problem.a_pitch, 8),
            IntArgument("b_pitch", problem.b_pitch, 8),
            IntArgument("out_pitch", problem.out_pitch, 8),
            IntArgument("m", problem.m, 4),
            IntArgument("n", problem.n, 4),
            IntArgument("k", problem.k, 4),
            IntArgument("group_m", group, 4),
            IntArgument("square_m", min(own.square or group, group), 4),
            IntArgument("square_n", min(own.square or columns, columns), 4),
            IntArgument("num_tiles", own.num_tiles(problem), 4),
            _strides(problem),
            fused.argument(problem),
        )
        if own.slices > 1:
            arguments = with_operands_named(arguments, {"out": sums.SCRATCH_NAME})
        is_exchanged = problem.out_major != own.sliced(given).out_major
        return with_inputs_exchanged(arguments) if is_exchanged else arguments


AMPERE = AmpereFamily()


def _forms(tile: tuple[int, int, int, int, int], row_bytes: int, problem: Problem) -> list[dict[str, Any]]:
    """The forms of a tile, of which the first that fits is offered: a split barrier wants a slot more, three ahead
    registers."""
    leads = _LEADING.get(tile, {}).get(row_bytes, {})
    if _has_fp32_sums_of_16_bits(problem):
        return [leads, _AHEAD, {}] if leads else [{}]
    return [_SPLIT, {}] if leads is _SPLIT else [{}]


def _has_fp32_sums_of_16_bits(problem: Problem) -> bool:
    return problem.dtype.size == FP16.size and problem.sums is FP32


def _deepest(
    tile: tuple[int, int, int, int, int], row_bytes: int, form: dict[str, Any], problem: Problem, device: Device
) -> AmpereConfig | None:
    """The tile in a form with as many stages as fit; None where none does."""
    tile_m, tile_n, warps_m, warps_n, ctas = tile
    config = AmpereConfig(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=row_bytes // problem.dtype.size,
        warps_m=warps_m,
        warps_n=warps_n,
        ctas=ctas,
        **form,
    )
    rows, _ = config.tiles(problem)
    height = group_rows(rows, tile_m, tile_n, device.num_sms * ctas)
    least = _SPLIT_STAGES if config.split_barrier else 3
    depths = range(_MOST_STAGES, least - 1, -1)
    made = (dataclasses.replace(config, stages=stages, group_m=height) for stages in depths)
    return next((each for each in made if not each.violations(problem, device)), None)


def _sliced_space(problem: Problem, device: Device) -> Iterator[Config]:
    """For few tiles and a long k: parts of k as a batch, each with as many stages as fit (kernels/sliced.py)."""
    if problem.batch or problem.k < LEAST_K:
        return
    tile_k = _ROWS_BYTES[-1] // problem.dtype.size
    for tile_m, tile_n, warps_m, warps_n, ctas in _SLICED_TILES:
        config = AmpereConfig(
            tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, warps_m=warps_m, warps_n=warps_n, ctas=ctas, group_m=1
        )
        for slices in slice_counts(problem, config, device):
            made = (config.replace(slices=slices, stages=stages) for stages in range(_MOST_STAGES, 2, -1))
            found = next((each for each in made if not each.violations(problem, device)), None)
            if found is not None:
                yield found


def _strides(problem: Problem) -> Argument:
    """strides.cuh's StridesOf."""
    if not problem.batch:
        return IntArgument("strides", 0, 4)
    return IntsArgument(
        "strides",
        (
            problem.num_matrices,
            *filled(problem, problem.batch, 1),
            *filled(problem, problem.a_batch, 0),
            *filled(problem, problem.b_batch, 0),
            *filled(problem, problem.out_batch, 0),
        ),
    )
