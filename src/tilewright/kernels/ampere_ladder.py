"""The Ampere ladder: from WMMA to ldmatrix and mma.sync with everything that makes them fast, one idea a rung.

Knows each rung's idea, source, constants, launch and arguments; ampere_ladder_configs.py knows what is legal. Dispatch
never sees them. All compute bf16 or fp16 with fp32 sums, k contiguous in a and b, at any m, n and k, on compute
capability 8.0 and later: neither wgmma nor TMA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.backends.base import Argument, IntArgument, Launch, PointerArgument
from tilewright.config import Config
from tilewright.device import Device
from tilewright.kernels import sums
from tilewright.kernels.ampere_ladder_configs import (
    BudgetConfig,
    BufferedConfig,
    ChunkConfig,
    ElementConfig,
    MultistageConfig,
    OrderedConfig,
    PaddedConfig,
    SplitConfig,
    SwizzledConfig,
    WmmaConfig,
)
from tilewright.kernels.family import own_config
from tilewright.kernels.ladder import Constants, Rung, size_arguments
from tilewright.kernels.ladder_configs import RungConfig
from tilewright.kernels.render import constants_header
from tilewright.problem import Problem


@dataclass(frozen=True, kw_only=True)
class AmpereRung(Rung):
    """a0 to a7: one CTA a tile."""

    public_tflops: float | None = None  # the seed's ladder gives none

    def headers(self, problem: Problem, config: Config, wait_limit: int = 0) -> dict[str, str]:
        """struct Config. Nothing here waits for a barrier that may never come: `wait_limit` is not used."""
        return {"config.cuh": constants_header(self.constants(problem, config))}

    def launch(self, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Launch:
        """One CTA a tile of each matrix and slice, whatever the number of SMs."""
        return Launch(
            grid=config.num_tiles(problem),
            block=config.threads,
            cluster=1,
            smem_bytes=config.smem_bytes(problem),
        )

    def constants(self, problem: Problem, config: Config) -> Constants:
        """What the sources of all rungs read of struct Config."""
        own = self._own(config)
        is_batched = bool(problem.batch)
        problem = own.sliced(problem)
        return {
            "TILE_M": own.tile_m,
            "TILE_N": own.tile_n,
            "TILE_K": own.tile_k,
            "STAGES": own.stages,
            "WARPS_M": own.warps_m,
            "WARPS_N": own.warps_n,
            "THREADS": own.threads,
            "MIN_CTAS": own.ctas,
            "PADDING": getattr(own, "padding", 0),
            "LDMATRIX": own.matrices,
            "F16_SUMS": getattr(own, "f16_sums", False),
            "SWIZZLED": getattr(own, "swizzled", True),
            "BATCHED": is_batched,
            "SMEM_BYTES": own.smem_bytes(problem),
            "IN_TYPE": f"Type::{problem.dtype}",
            "OUT_TYPE": f"Type::{problem.out_dtype}",
            "PAIRED_STORES": _pairs(problem),
        }

    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The parameters of the entry in order; of a slice, with k of its own."""
        problem = self._own(config).sliced(problem)
        return (
            PointerArgument("a", problem.extent_bytes["a"]),
            PointerArgument("b", problem.extent_bytes["b"]),
            PointerArgument("out" if config.slices == 1 else sums.SCRATCH_NAME, problem.extent_bytes["out"]),
            IntArgument("a_pitch", problem.a_pitch, 8),
            IntArgument("b_pitch", problem.b_pitch, 8),
            IntArgument("out_pitch", problem.out_pitch, 8),
            *size_arguments(problem),
        )

    def _own(self, config: Config) -> Any:
        return own_config(config, type(self.config))


@dataclass(frozen=True, kw_only=True)
class SplitRung(AmpereRung):
    """a8 and a9: slices of k. `takes_group`: the order's height is a parameter."""

    takes_group: bool = False

    def choice(self, problem: Problem, device: Device) -> RungConfig:
        """As many slices as fill the device."""
        assert isinstance(self.config, SplitConfig)
        return self.config.fitting(problem, device)

    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The parameters of the entry in order."""
        own = self._own(config)
        sliced = own.sliced(problem)
        strides = (sliced.a_batch, sliced.b_batch, sliced.out_batch)
        found: list[Argument] = list(super().arguments(problem, config, launch))
        for name, stride in zip(("a_slice", "b_slice", "out_slice"), strides, strict=True):
            found.append(IntArgument(name, stride[0] if stride else 0, 8))
        if self.takes_group:
            found.append(IntArgument("group_m", min(own.group_m, own.tiles(problem)[0]), 4))
        return tuple(found)


def _pairs(problem: Problem) -> bool:
    """Whether two neighbours of a row of out, the first in an even column, are always aligned together inside out."""
    aligned = problem.out_align_bytes % (2 * problem.out_dtype.size) == 0
    return problem.n % 2 == 0 and problem.out_pitch % 2 == 0 and aligned


AMPERE_RUNGS: tuple[AmpereRung, ...] = (
    AmpereRung(
        name="a0_wmma",
        idea="WMMA: the tensor cores' first interface, whose fragments keep their layout to themselves",
        config=WmmaConfig(),
    ),
    AmpereRung(
        name="a1_mma_sync",
        idea="ldmatrix and mma.sync: every register of every lane is known, out leaves straight from them",
        config=ElementConfig(),
    ),
    AmpereRung(
        name="a2_vectorized",
        idea="loads and stores of 16 bytes where there were eight of 2",
        config=ChunkConfig(),
    ),
    AmpereRung(
        name="a3_padded",
        idea="rows padded by 16 bytes, an odd number of chunks: ldmatrix meets no bank twice",
        config=PaddedConfig(),
    ),
    AmpereRung(
        name="a4_swizzled",
        idea="an XOR swizzle in place of padding: no bank is met twice, by stores neither, and no byte is lost",
        config=SwizzledConfig(),
    ),
    AmpereRung(
        name="a5_multistage",
        idea="cp.async into a ring of slots: copies run ahead by a prefetch distance, past the registers",
        config=MultistageConfig(),
    ),
    AmpereRung(
        name="a6_double_buffered",
        idea="two sets of fragments in registers: one is loaded while the other is multiplied",
        config=BufferedConfig(),
    ),
    AmpereRung(
        name="a7_register_budget",
        idea="launch bounds give 256 threads 255 registers each: a warp's part grows to 64 x 64",
        config=BudgetConfig(),
    ),
    SplitRung(
        name="a8_split_k",
        idea="where tiles are few k is cut into slices: CTAs for all SMs, a second kernel adds up",
        config=SplitConfig(),
    ),
    SplitRung(
        name="a9_block_swizzle",
        idea="tiles at work at once form a patch, whose operands the L2 holds",
        config=OrderedConfig(),
        takes_group=True,
    ),
)
