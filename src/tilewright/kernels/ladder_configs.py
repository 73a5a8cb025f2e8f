"""What may be varied of a rung of the ladder, and what is legal: the configs that ladder.py's rungs are compiled with.

Each kind of config is what one stretch of the ladder is written for; what a rung's source does not ask for is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tilewright import dtypes
from tilewright.config import Config
from tilewright.device import Device
from tilewright.legality import WGMMA_MAX_N
from tilewright.problem import Problem
from tilewright.tiling import (
    ATOM_BYTES,
    BARRIER_BYTES,
    STORE_ROWS,
    SWIZZLE_BYTES,
    WARPGROUP_THREADS,
    WARPGROUP_WARPS,
    WGMMA_M,
)

MAX_TILES = 2**30  # a 32-bit index of tiles, and room for one step of the grid
MAX_BOX = 256  # rows of one TMA box: CUDA driver API, cuTensorMapEncodeTiled
STATE_REGISTERS = 24  # addresses, descriptors and loop state beside the accumulators, as legality.py counts them


@dataclass(frozen=True, kw_only=True)
class RungConfig(Config, ABC):
    """The constants of a rung, and its own legality: what the rung's source does not ask for is not there to vary."""

    steps: ClassVar[frozenset[str]] = frozenset()
    SLICED: ClassVar[bool] = False  # whether k may be cut into slices

    def violations(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """Every reason why this rung cannot run the problem on the device, in words with numbers; () when it can."""
        found = self.scope_violations(problem, device) + self.tile_violations()
        if not self.SLICED and self.slices != 1:
            found.append(f"slices = {self.slices}: the rung does not cut k")
        found += [*self._slices_violations(problem), *self._epilogue_violations(problem)]
        if found:  # the numbers below mean something only for a sound tile
            return tuple(found)
        if self.num_tiles(problem) >= MAX_TILES:
            found.append(f"{self.num_tiles(problem)} tiles are past the 2^30 that the rungs count")
        smem = self.smem_bytes(problem)
        if smem > device.smem_per_cta_bytes:
            found.append(
                f"{smem} bytes of shared memory are more than the {device.smem_per_cta_bytes} that {device.name} gives "
                "a CTA"
            )
        found += self.budget_violations(problem, device)
        return tuple(found)

    def scope_violations(self, problem: Problem, device: Device) -> list[str]:
        """Products and devices that the rung is not written for."""
        found = []
        if (problem.dtype, problem.out_dtype, problem.layout, problem.batch) != (dtypes.BF16, dtypes.BF16, "TN", ()):
            found.append(f"{problem}: a rung of the ladder computes bf16 -> bf16 TN alone, one matrix at a time")
        if device.sm != (9, 0):
            found.append(f"the ladder climbs compute capability 9.0; {device.name} has {device.sm[0]}.{device.sm[1]}")
        return found

    def budget_violations(self, problem: Problem, device: Device) -> list[str]:
        """What of the device a sound tile exceeds, beside the shared memory of a CTA."""
        return []

    @abstractmethod
    def tile_violations(self) -> list[str]:
        """What is wrong with the tile itself."""


@dataclass(frozen=True, kw_only=True)
class SimtConfig(RungConfig):
    """v01: 256 threads of 8 x 8 outputs. Its shared memory is static."""

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 16

    @property
    def threads(self) -> int:
        """One for each 8 x 8 outputs."""
        return 256

    def smem_bytes(self, problem: Problem) -> int:
        """No dynamic shared memory."""
        return 0

    def tile_violations(self) -> list[str]:
        tile = (self.tile_m, self.tile_n, self.tile_k)
        return [] if tile == (128, 128, 16) else [f"tile {tile} is not (128, 128, 16), which 256 threads share out"]


@dataclass(frozen=True, kw_only=True)
class SynchronousConfig(RungConfig):
    """v02 and v03: one warpgroup and one slot. Units: `panel_bytes` of k under one swizzle, 16 is none; `box_rows` of
    one TMA load."""

    stages: int = 1
    consumers: int = 1
    panel_bytes: int = SWIZZLE_BYTES
    box_rows: int = 128

    @property
    def threads(self) -> int:
        """The one warpgroup."""
        return WARPGROUP_THREADS

    def smem_bytes(self, problem: Problem) -> int:
        """The slot and its barrier, rounded up to the swizzle's period."""
        return _whole_atoms(self.stage_bytes(problem) + BARRIER_BYTES)

    def tile_violations(self) -> list[str]:
        found = _wgmma_tile_violations(self)
        if (self.stages, self.consumers) != (1, 1):
            found.append(f"stages = {self.stages} and consumers = {self.consumers} are not one slot and one warpgroup")
        if self.panel_bytes not in (16, 32, 64, 128):
            found.append(f"panel_bytes = {self.panel_bytes} is not 16 (no swizzle), 32, 64 or 128")
        if (
            not 8 <= self.box_rows <= MAX_BOX
            or self.box_rows % 8
            or self.tile_m % self.box_rows
            or self.tile_n % self.box_rows
        ):
            found.append(
                f"box_rows = {self.box_rows} is not a multiple of 8 that divides {self.tile_m} and {self.tile_n}"
            )
        if self.accumulators + STATE_REGISTERS > 255:
            found.append(f"{self.accumulators} accumulators a thread leave no room in 255 registers")
        return found


@dataclass(frozen=True, kw_only=True)
class SimpleConfig(SynchronousConfig):
    """v02: one box an operand, rows of 128 bytes, one wgmma high."""

    def tile_violations(self) -> list[str]:
        found = super().tile_violations()
        if not self.tile_m == self.tile_n == self.box_rows == WGMMA_M or self.panel_bytes != SWIZZLE_BYTES:
            found.append(
                f"tile {self.tile_m} x {self.tile_n}, boxes of {self.box_rows} rows x {self.panel_bytes} bytes: not "
                f"{WGMMA_M} x {WGMMA_M} and {WGMMA_M} rows x {SWIZZLE_BYTES} bytes, which the rung is written for"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class SpecializedConfig(RungConfig):
    """v05 to v07: a producer warpgroup and two consumers. `store_slots` 0: out is stored from the registers.

    Units: `producer_registers` a thread after setmaxnreg; 24 is the least there is.
    """

    CONSUMERS: ClassVar[int] = 2  # what the source of the rung is written for, like the two below
    CLUSTERS: ClassVar[tuple[int, ...]] = (1,)
    SLOTS: ClassVar[range] = range(1)

    store_slots: int = 0
    producer_registers: int = 40

    @property
    def consumer_registers(self) -> int:
        """Registers a consumer thread: those at entry, and what the producer gave up, in multiples of 8.

        Worked example: 2 consumers, 384 threads, 168 at entry: (384 x 168 - 128 x 40) / 256 = 232.
        """
        if not self.moves_registers:
            return self.entry_registers
        pool = self.entry_registers * self.threads - self.producer_registers * WARPGROUP_THREADS
        return pool // (self.consumers * WARPGROUP_THREADS) // 8 * 8

    def smem_bytes(self, problem: Problem) -> int:
        """Bytes of the Shared struct: the FIFO, the store slots, two barriers a slot, the table of tiles."""
        total = self.stages * self.stage_bytes(problem) + self.slot_bytes + 2 * self.stages * BARRIER_BYTES
        total += self.table_bytes
        return _whole_atoms(total)

    @property
    def most_tiles(self) -> int:
        """Tiles that one CTA may take, one after another."""
        return MAX_TILES

    @property
    def table_bytes(self) -> int:
        """Bytes of the table of a CTA's tiles; only v11 has one."""
        return 0

    @property
    def slot_bytes(self) -> int:
        """Bytes of the store slots of all consumer warps."""
        return self.consumers * WARPGROUP_WARPS * self.slots_a_warp_bytes

    @property
    def slots_a_warp_bytes(self) -> int:
        """Bytes of the store slots of one consumer warp."""
        return self.store_slots * STORE_ROWS * SWIZZLE_BYTES

    def tile_violations(self) -> list[str]:
        found = _wgmma_tile_violations(self)
        if self.consumers != self.CONSUMERS:
            found.append(f"consumers = {self.consumers} is not {self.CONSUMERS}, which the rung is written for")
        if not 2 <= self.stages <= 16:
            found.append(f"stages = {self.stages} is outside 2 .. 16")
        if self.producer_registers % 8 or not 24 <= self.producer_registers <= 160:
            found.append(f"producer_registers = {self.producer_registers} is not a multiple of 8 from 24 to 160")
        if self.cluster_m not in self.CLUSTERS or self.tile_n % (8 * self.cluster_m):
            allowed = " or ".join(map(str, self.CLUSTERS))
            found.append(
                f"cluster_m = {self.cluster_m} is not {allowed} with tile_n = {self.tile_n} in whole 8 rows each"
            )
        if self.store_slots not in self.SLOTS:
            found.append(f"store_slots = {self.store_slots} is outside {self.SLOTS[0]} .. {self.SLOTS[-1]}")
        if not found and self.accumulators + STATE_REGISTERS > self.consumer_registers:
            found.append(f"{self.accumulators} accumulators a thread do not fit {self.consumer_registers} registers")
        return found


@dataclass(frozen=True, kw_only=True)
class SingleConsumerConfig(SpecializedConfig):
    """v04: one consumer, with all the registers that it may address from the start."""

    CONSUMERS: ClassVar[int] = 1

    consumers: int = 1


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(SpecializedConfig):
    """v08: clusters of two CTAs."""

    CLUSTERS: ClassVar[tuple[int, ...]] = (1, 2)

    cluster_m: int = 2


@dataclass(frozen=True, kw_only=True)
class SlotConfig(ClusterConfig):
    """v09 and v10: out leaves through store slots."""

    SLOTS: ClassVar[range] = range(1, 9)

    store_slots: int = 2


@dataclass(frozen=True, kw_only=True)
class TableConfig(SlotConfig):
    """v11: each thread computes one of the CTA's tiles beforehand, 4 bytes in shared memory."""

    @property
    def most_tiles(self) -> int:
        """One a thread."""
        return self.threads

    @property
    def table_bytes(self) -> int:
        """Bytes of HilbertSchedule::Table."""
        return 4 * self.most_tiles

    def violations(self, problem: Problem, device: Device) -> tuple[str, ...]:
        found = super().violations(problem, device)
        if found:
            return found
        rows, columns = self.tiles(problem)
        tiles = -(-rows * columns // (device.num_sms // self.cluster_m * self.cluster_m))
        if tiles > self.most_tiles:
            return (f"{tiles} tiles a CTA are more than the {self.most_tiles} of the rung's table",)
        return ()


def _wgmma_tile_violations(config: Config) -> list[str]:
    found = []
    step = WGMMA_M * max(config.consumers, 1)
    if config.tile_m < 1 or config.tile_m % step or config.tile_m > MAX_BOX:
        found.append(f"tile_m = {config.tile_m} is not a multiple of {step} (64 rows a consumer) up to {MAX_BOX}")
    if config.tile_n % 8 or not 8 <= config.tile_n <= WGMMA_MAX_N:
        found.append(f"tile_n = {config.tile_n} is not a multiple of 8 from 8 to {WGMMA_MAX_N}, the widths of wgmma")
    if config.tile_k * dtypes.BF16.size != SWIZZLE_BYTES:
        found.append(
            f"tile_k = {config.tile_k} is not {SWIZZLE_BYTES // dtypes.BF16.size}, whose rows are {SWIZZLE_BYTES} bytes"
        )
    return found


def _whole_atoms(size_bytes: int) -> int:
    return -(-size_bytes // ATOM_BYTES) * ATOM_BYTES
