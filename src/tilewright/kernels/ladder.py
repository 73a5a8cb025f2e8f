"""The ladder: from plain CUDA threads to a modern Hopper GEMM, one idea a rung, each a family of its own.

Knows each rung's idea, source, constants, launch and arguments; ladder_configs.py knows what is legal. Dispatch never
sees them: they are there to be read, measured and emulated, on the same road as the production kernel. All compute
bf16 x bf16 -> bf16 with k contiguous in a and b, at any m, n and k.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.backends.base import Argument, IntArgument, Launch, MapArgument, PointerArgument, TensorMap
from tilewright.config import Config
from tilewright.device import Device
from tilewright.errors import ConfigError
from tilewright.kernels.family import own_config
from tilewright.kernels.hopper import out_map
from tilewright.kernels.ladder_configs import (
    ClusterConfig,
    RungConfig,
    SimpleConfig,
    SimtConfig,
    SingleConsumerConfig,
    SlotConfig,
    SpecializedConfig,
    SynchronousConfig,
    TableConfig,
)
from tilewright.kernels.render import constants_header, wgmma_header
from tilewright.problem import Problem
from tilewright.tiling import SWIZZLE_BYTES, WARPGROUP_THREADS, WARPGROUP_WARPS, store_columns

Constants = dict[str, int | bool | str]


@dataclass(frozen=True, kw_only=True)
class Rung(ABC):
    """One step of the ladder: a Family whose space is its one config.

    `idea` in one sentence; `public_tflops` is what the public ladder's rung reaches at 8192^3 in a burst (measured,
    H200, 2026-11-29, fast.cu 38eb642).
    """

    name: str
    idea: str
    config: RungConfig
    public_tflops: float | None

    @property
    def number(self) -> str:
        """Its place: "v04"."""
        return self.name.split("_")[0]

    @property
    def source(self) -> str:
        """The file of kernels/cuda."""
        return f"ladder/{self.name}.cu"

    @property
    def entry(self) -> str:
        """The extern "C" function, named as the file, so that profilers show the rung."""
        return self.name

    def choice(self, problem: Problem, device: Device) -> RungConfig:
        """The config that the rung runs a problem with."""
        return self.config

    def space(self, problem: Problem, device: Device) -> Iterator[Config]:
        """The rung's own config where it is legal; sweeps replace() its fields."""
        if not self.config.violations(problem, device):
            yield self.config

    def trials(self, problem: Problem, device: Device) -> Iterator[Config]:
        """None: every config worth a look is in the space."""
        return iter(())

    def headers(self, problem: Problem, config: Config, wait_limit: int = 0) -> dict[str, str]:
        """The rendered headers by path: struct Config, and the wgmma of exactly this width."""
        constants = self.constants(problem, config) | {"WAIT_LIMIT": wait_limit}
        return {
            "config.cuh": constants_header(constants),
            "wgmma_mma_async.cuh": wgmma_header(config.tile_n, problem.dtype, a_k_major=True, b_k_major=True),
        }

    def launch(self, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Launch:
        """One CTA a tile: before v06 `num_sms` is nothing that a grid can be held to."""
        rows, columns = config.tiles(problem)
        return Launch(grid=rows * columns, block=config.threads, cluster=1, smem_bytes=config.smem_bytes(problem))

    def constants(self, problem: Problem, config: Config) -> Constants:
        """What the rung's source reads of struct Config, but for the wait limit."""
        return {
            "TILE_M": config.tile_m,
            "TILE_N": config.tile_n,
            "TILE_K": config.tile_k,
            "THREADS": config.threads,
            "PAIRED_STORES": _even(problem),
        }

    @abstractmethod
    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The parameters of the entry in order."""

    def __str__(self) -> str:
        return f"{self.name}: {self.idea}"


@dataclass(frozen=True, kw_only=True)
class SimtRung(Rung):
    """v01, which takes pointers."""

    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The parameters of v01_simt in order."""
        return (
            PointerArgument("a", problem.extent_bytes["a"]),
            PointerArgument("b", problem.extent_bytes["b"]),
            PointerArgument("out", problem.extent_bytes["out"]),
            IntArgument("a_pitch", problem.a_pitch, 8),
            IntArgument("b_pitch", problem.b_pitch, 8),
            IntArgument("out_pitch", problem.out_pitch, 8),
            *size_arguments(problem),
        )


@dataclass(frozen=True, kw_only=True)
class SynchronousRung(Rung):
    """v02 and v03: one slot, loaded and multiplied in turn."""

    def constants(self, problem: Problem, config: Config) -> Constants:
        """What the rung's source reads of struct Config."""
        own = own_config(config, SynchronousConfig)
        return super().constants(problem, config) | {
            "WGMMAS_M": own.wgmmas_m,
            "STAGE_BYTES": own.stage_bytes(problem),
            "SMEM_BYTES": own.smem_bytes(problem),
            "FULL_ARRIVALS": own.threads,
            "PANEL_BYTES": own.panel_bytes,
            "BOX_ROWS": own.box_rows,
        }

    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The parameters of the entry in order."""
        own = own_config(config, SynchronousConfig)
        swizzle = own.panel_bytes if own.panel_bytes > 16 else 0
        return (
            MapArgument("a", _operand_map(problem, "a", own.box_rows, own.panel_bytes, swizzle)),
            MapArgument("b", _operand_map(problem, "b", own.box_rows, own.panel_bytes, swizzle)),
            PointerArgument("out", problem.extent_bytes["out"]),
            IntArgument("out_pitch", problem.out_pitch, 8),
            *size_arguments(problem),
        )


@dataclass(frozen=True, kw_only=True)
class SpecializedRung(Rung):
    """v04 to v11: producer and consumers over a FIFO.

    `waits_by_token`: who waits arrives (v04 to v06). `persistent`: CTAs stay. `takes_group`: the grouped order's height
    is a parameter. `stores_by_tma`: out has a tensor map.
    """

    waits_by_token: bool = False
    persistent: bool = True
    takes_group: bool = True
    stores_by_tma: bool = False

    def launch(self, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Launch:
        """From v06 on CTAs that stay, one an SM at most, in whole clusters: the fewest that need no more waves.

        Worked example: 2048 tiles on 132 SMs are 16 waves, the last one half empty; 128 CTAs have 16 whole ones.
        Raises: ConfigError: more tiles a CTA than its table holds (v11, on few SMs).
        """
        base = super().launch(problem, config, device, num_sms)
        if not self.persistent:
            return base
        sms = device.num_sms if num_sms is None else num_sms
        places = base.grid // config.cluster_m
        waves = -(-places // max(1, min(sms // config.cluster_m, places)))
        most = own_config(config, SpecializedConfig).most_tiles
        if waves > most:
            raise ConfigError(
                str(config), [f"{waves} tiles a CTA are more than {most}: give it {-(-places // most)} clusters of SMs"]
            )
        clusters = -(-places // waves)
        return Launch(
            grid=clusters * config.cluster_m, block=base.block, cluster=config.cluster_m, smem_bytes=base.smem_bytes
        )

    def constants(self, problem: Problem, config: Config) -> Constants:
        """What the rung's source, and the concepts that it shares with the production kernel, read of struct Config."""
        own = own_config(config, SpecializedConfig)
        multipliers = own.consumers * (WARPGROUP_THREADS if self.waits_by_token else WARPGROUP_WARPS)
        found = super().constants(problem, config) | {
            "STAGES": own.stages,
            "CONSUMERS": own.consumers,
            "CONSUMER_M": own.consumer_m,
            "WGMMAS_M": own.wgmmas_m,
            "CLUSTER_M": own.cluster_m,
            "PRODUCER_REGISTERS": own.producer_registers,
            "CONSUMER_REGISTERS": own.consumer_registers,
            "FULL_ARRIVALS": 1 + (multipliers if self.waits_by_token else 0),
            "EMPTY_ARRIVALS": multipliers * own.cluster_m + (1 if self.waits_by_token else 0),
            "STAGE_BYTES": own.stage_bytes(problem),
            "SMEM_BYTES": own.smem_bytes(problem),
        }
        if own.store_slots:  # what epilogue.cuh reads
            found |= {
                "BATCH_DIMS": 0,
                "STORE_WARP_BYTES": own.slots_a_warp_bytes,
                "STORED_N": own.tile_n,
                "STORE_COLUMNS": store_columns(problem, own.tile_n),
                "TAIL_N": 0,
                "TAIL_STORE_COLUMNS": 0,
                "TAIL_STORE_WARP_BYTES": 0,
                "OUT_TYPE": f"Type::{problem.out_dtype}",
                "OUT_THROUGH_TMA": self.stores_by_tma and problem.out_through_tma,
                "OUT_TRANSPOSED": False,
                "WHOLE_CHUNKS": problem.out_through_tma,  # the same rule: rows of whole 16 bytes
            }
        return found

    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The parameters of the entry in order."""
        own = own_config(config, SpecializedConfig)
        found: list[Argument] = [
            MapArgument("a", _operand_map(problem, "a", own.tile_m)),
            MapArgument("b", _operand_map(problem, "b", own.tile_n // own.cluster_m)),
        ]
        if self.stores_by_tma:
            by_map = MapArgument("out", out_map(problem, own.tile_n))
            found.append(by_map if problem.out_through_tma else IntArgument("out_map", 0, 4))
        found += [
            PointerArgument("out", problem.extent_bytes["out"]),
            IntArgument("out_pitch", problem.out_pitch, 8),
            *size_arguments(problem),
        ]
        if self.persistent and self.takes_group:
            cluster_rows = own.tiles(problem)[0] // own.cluster_m
            found.append(IntArgument("group_m", min(own.group_m, cluster_rows), 4))
        return tuple(found)


def _even(problem: Problem) -> bool:
    """Whether two neighbours of a row of out, the first in an even column, are always one aligned word inside out."""
    return problem.n % 2 == 0 and problem.out_pitch % 2 == 0 and problem.out_align_bytes % 4 == 0


def size_arguments(problem: Problem) -> tuple[Argument, ...]:
    """m, n and k as a kernel takes them."""
    return IntArgument("m", problem.m, 4), IntArgument("n", problem.n, 4), IntArgument("k", problem.k, 4)


def _operand_map(
    problem: Problem, operand: str, rows: int, row_bytes: int = SWIZZLE_BYTES, swizzle: int = SWIZZLE_BYTES
) -> TensorMap:
    """Boxes of `rows` rows of `row_bytes` of k."""
    extent, pitch = (problem.m, problem.a_pitch) if operand == "a" else (problem.n, problem.b_pitch)
    return TensorMap(
        dtype=problem.dtype,
        extents=(problem.k, extent),
        pitches_bytes=(pitch * problem.dtype.size,),
        box=(row_bytes // problem.dtype.size, rows),
        swizzle_bytes=swizzle,
    )


# -- the ladder --------------------------------------------------------------------------------------------------------

_WIDE = SpecializedConfig(tile_m=128, tile_n=256, consumers=2, stages=4, group_m=16)
_PAIRS = ClusterConfig(tile_m=128, tile_n=256, consumers=2, stages=4, cluster_m=2, group_m=8)
_SLOTS = SlotConfig(tile_m=128, tile_n=256, consumers=2, stages=4, cluster_m=2, group_m=8, store_slots=2)
_CURVE = TableConfig(tile_m=128, tile_n=256, consumers=2, stages=4, cluster_m=2, group_m=8, store_slots=2)

RUNGS: tuple[Rung, ...] = (
    SimtRung(
        name="v01_simt",
        idea="plain CUDA threads: tiles in shared memory, 8 x 8 outputs in each thread's registers, fp32 multiply-adds",
        config=SimtConfig(),
        public_tflops=32,
    ),
    SynchronousRung(
        name="v02_tensor_cores",
        idea="Hopper's units: TMA loads a slot of swizzled rows, wgmma multiplies it, one after the other",
        config=SimpleConfig(tile_m=64, tile_n=64, box_rows=64),
        public_tflops=307,
    ),
    SynchronousRung(
        name="v03_tuned_tma",
        idea="tuned TMA: any swizzle and any box, the best of them on a 128 x 128 tile",
        config=SynchronousConfig(tile_m=128, tile_n=128, panel_bytes=128, box_rows=128),
        public_tflops=426,
    ),
    SpecializedRung(
        name="v04_warp_specialized",
        idea="a producer warpgroup loads ahead into a FIFO of slots, a consumer warpgroup multiplies behind it",
        config=SingleConsumerConfig(tile_m=128, tile_n=128, stages=4),
        public_tflops=554,
        waits_by_token=True,
        persistent=False,
    ),
    SpecializedRung(
        name="v05_moved_registers",
        idea="setmaxnreg gives the producer's registers to two consumers, which share a 128 x 256 tile",
        config=_WIDE,
        public_tflops=667,
        waits_by_token=True,
        persistent=False,
    ),
    SpecializedRung(
        name="v06_persistent",
        idea="CTAs that stay take tile after tile, in whole waves and patches whose operands the L2 holds",
        config=_WIDE,
        public_tflops=689,
        waits_by_token=True,
    ),
    SpecializedRung(
        name="v07_cheap_barriers",
        idea="one arrival a warp, not one a thread; waits by parity, not by arriving; descriptors in uniform registers",
        config=_WIDE,
        public_tflops=785,
    ),
    SpecializedRung(
        name="v08_cluster_multicast",
        idea="two CTAs below each other load half a tile of b each and multicast it to both",
        config=_PAIRS,
        public_tflops=800,
    ),
    SpecializedRung(
        name="v09_micro_tuned",
        idea="one wgmma group stays in flight, out leaves as whole lines through stmatrix, tensor maps are prefetched",
        config=_SLOTS,
        public_tflops=804,
    ),
    SpecializedRung(
        name="v10_tma_store",
        idea="TMA stores out from shared memory while the next tile is multiplied",
        config=_SLOTS,
        public_tflops=813,
        stores_by_tma=True,
    ),
    SpecializedRung(
        name="v11_hilbert",
        idea="tiles along a Hilbert curve, near in time and near in out at every scale",
        config=_CURVE,
        public_tflops=818,
        stores_by_tma=True,
        takes_group=False,
    ),
)
