"""How a product is computed: tiles, pipeline depth, roles, order. And the one home of what is legal.

A Config is what the model chooses among and what a caller may name. Its derived numbers (bytes, threads, registers,
arrivals) are computed here and nowhere else; the rendered header hands them to the kernel by name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.device import Device
from tilewright.errors import ConfigError
from tilewright.problem import Problem

Schedule = Literal["linear", "grouped"]
SCHEDULES: tuple[Schedule, ...] = ("linear", "grouped")

WARP_THREADS = 32
WARPGROUP_THREADS = 128
WARPGROUP_WARPS = 4
WGMMA_M = 64  # rows of one wgmma, PTX ISA
WGMMA_MAX_N = 256  # columns of one wgmma, PTX ISA
SWIZZLE_BYTES = 128  # bytes of a row of one swizzle atom
ATOM_BYTES = 1024  # 8 rows of 128 bytes: the period of the 128-byte swizzle
STORE_ROWS = 16  # rows of one store slot: what one warp holds of a 64-row wgmma
BARRIER_BYTES = 8
MAX_TILES = 2**30  # schedule.cuh counts places, at most two a tile, in 32 bits

# What a field's annotation asks of its value: the exact type, and its name in a sentence. True is no whole number.
_KINDS: dict[Any, tuple[type, str]] = {
    "int": (int, "a whole number"),
    "bool": (bool, "True or False"),
    "Schedule": (str, "a word"),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """One way to run the Hopper family.

    Units: tiles in elements; `stages` slots of the operand ring; `consumers` warpgroups that multiply, each with
    tile_m / consumers rows of every tile or, with `pingpong`, every second tile whole; `cluster_m` CTAs below
    each other share tiles of b by multicast, or `cluster_n` side by side tiles of a; `group_m` tile rows walked
    together by the grouped schedule; `store_slots` slots of 16 rows x 128 bytes a warp through which out leaves.
    `halves` computes the tiles of a small
    last wave as two halves on two SMs; `k_back_and_forth` walks k backwards on every second tile of a CTA.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    stages: int = 4
    consumers: int = 2
    cluster_m: int = 1
    cluster_n: int = 1
    schedule: Schedule = "grouped"
    group_m: int = 16
    store_slots: int = 2
    pingpong: bool = False
    halves: bool = False
    k_back_and_forth: bool = False

    # -- derived numbers, each used by the kernel under the same name in capitals ------------------------------------

    @property
    def threads(self) -> int:
        """Threads of one CTA: one producer warpgroup and the consumers."""
        return (1 + self.consumers) * WARPGROUP_THREADS

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def consumer_m(self) -> int:
        """Rows of the tile that one consumer multiplies."""
        return self.tile_m if self.pingpong else self.tile_m // self.consumers

    @property
    def wgmmas_m(self) -> int:
        """wgmma row blocks that one consumer holds."""
        return self.consumer_m // WGMMA_M

    @property
    def accumulators(self) -> int:
        """fp32 accumulators a consumer thread."""
        return self.consumer_m * self.tile_n // WARPGROUP_THREADS

    @property
    def entry_registers(self) -> int:
        """Registers a thread at launch: an equal share of the file, in steps of 8, at most 255 (PTX ISA)."""
        return min(65536 // self.threads // 8 * 8, 255)

    @property
    def moves_registers(self) -> bool:
        """Whether setmaxnreg moves registers from the producer to the consumers: one consumer has enough at entry."""
        return self.consumers > 1

    @property
    def producer_registers(self) -> int:
        """Registers a producer thread keeps: the least that setmaxnreg takes (PTX ISA: 24 .. 256, multiples of 8).

        Multicast needs more state: with 24 the producer of an n-contiguous b spilled 4 bytes (NVRTC 13.5, 2026-11-30).
        """
        return 24 if self.cluster == 1 else 40

    @property
    def consumer_registers(self) -> int:
        """Registers a consumer thread: those at entry, and what the producer gave up, in multiples of 8.

        Worked example: 2 consumers, 384 threads, 168 at entry: (384 x 168 - 128 x 24) / 256 = 240.
        """
        if not self.moves_registers:
            return self.entry_registers
        pool = self.entry_registers * self.threads - self.producer_registers * WARPGROUP_THREADS
        return pool // (self.consumers * WARPGROUP_THREADS) // 8 * 8

    def stage_bytes(self, problem: Problem) -> int:
        """Bytes that one stage of the ring holds and one full barrier expects: a tile of a and a tile of b."""
        return (self.tile_m + self.tile_n) * self.tile_k * problem.dtype.size

    @property
    def store_bytes(self) -> int:
        """Bytes of all store slots: each consumer warp has its own."""
        return self.consumers * WARPGROUP_WARPS * self.store_slots * STORE_ROWS * SWIZZLE_BYTES

    def smem_bytes(self, problem: Problem) -> int:
        """Bytes of dynamic shared memory that one CTA asks for.

        Shapes: stages x (tile_m + tile_n) x tile_k operands, the store slots, a full and an empty barrier a stage.
        Source: the Shared struct of hopper_gemm.cu, which asserts the same sum.
        """
        total = self.stages * self.stage_bytes(problem) + self.store_bytes + 2 * self.stages * BARRIER_BYTES
        return -(-total // ATOM_BYTES) * ATOM_BYTES

    @property
    def full_arrivals(self) -> int:
        """Arrivals that complete a full barrier: the producer's own; the bytes are counted apart."""
        return 1

    @property
    def empty_arrivals(self) -> int:
        """Arrivals that complete an empty barrier: one of each warp that reads the slot, of each CTA sharing it."""
        return (1 if self.pingpong else self.consumers) * WARPGROUP_WARPS * self.cluster

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Tile rows and tile columns of out, both rounded up to whole clusters."""
        rows, columns = -(-problem.m // self.tile_m), -(-problem.n // self.tile_n)
        return (
            -(-rows // self.cluster_m) * self.cluster_m,
            -(-columns // self.cluster_n) * self.cluster_n,
        )

    def whole_tiles(self, num_tiles: int, grid: int) -> int:
        """How many of the tiles are computed whole, those of the full waves; the halves of the others fit one wave.

        Worked example: 1376 tiles on 132 CTAs are 10 full waves and 56 tiles; their 112 halves take half of a wave, so
        the whole takes 10.5 waves instead of 11.
        """
        rest = num_tiles % grid
        return num_tiles - rest if self.halves and 2 * rest <= grid else num_tiles

    def has_too_many_tiles(self, problem: Problem) -> bool:
        """Whether the schedule cannot count the problem's tiles."""
        rows, columns = self.tiles(problem)
        return rows * columns >= MAX_TILES

    def waves(self, num_tiles: int, grid: int) -> float:
        """The time of all tiles in units of one whole tile."""
        whole = self.whole_tiles(num_tiles, grid)
        return -(-whole // grid) + (0.5 if whole < num_tiles else 0.0)

    # -- legality ----------------------------------------------------------------------------------------------------

    def violations(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """Every reason why this config cannot run the problem on the device, in words with numbers; () when it can."""
        wrong_types = [
            f"{field.name} = {value!r} is not {_KINDS[field.type][1]}"
            for field in dataclasses.fields(self)
            for value in [getattr(self, field.name)]
            if type(value) is not _KINDS[field.type][0]
        ]
        if wrong_types:
            return tuple(wrong_types)  # no rule below can be stated about a value that is no number
        found = [*self._shape_violations(), *self._problem_violations(problem)]
        if device.sm != (9, 0):
            found.append(
                f"the hopper family uses wgmma and TMA, which compute capability 9.0 alone has; {device.name} has "
                f"{device.sm[0]}.{device.sm[1]}"
            )
        if not found:  # the numbers below mean something only for a config that is sound in itself
            found += self._budget_violations(problem, device)
        return tuple(found)

    def check(self, problem: Problem, device: Device) -> None:
        """Raises ConfigError with every violation when there is one."""
        found = self.violations(problem, device)
        if found:
            raise ConfigError(str(self), found)

    def _shape_violations(self) -> list[str]:
        found = []
        if self.consumers not in (1, 2):
            found.append(f"consumers = {self.consumers} is outside 1 .. 2")
        else:
            step = WGMMA_M * (1 if self.pingpong else self.consumers) * (2 if self.halves else 1)
            if self.tile_m < 1 or self.tile_m % step or self.tile_m > 256:
                blocks = "64 rows a consumer" + (" and half" if self.halves else "")
                found.append(f"tile_m = {self.tile_m} is not a multiple of {step} ({blocks}) up to 256")
        if self.pingpong and self.consumers != 2:
            found.append(f"pingpong = True alternates between 2 consumers, not {self.consumers}")
        if self.halves and self.cluster != 1:
            found.append(f"halves = True is for single CTAs, not for clusters of {self.cluster}")
        if self.tile_n % 8 or not 8 <= self.tile_n <= WGMMA_MAX_N:
            found.append(f"tile_n = {self.tile_n} is not a multiple of 8 from 8 to {WGMMA_MAX_N}, the widths of wgmma")
        if not 2 <= self.stages <= 16:
            found.append(f"stages = {self.stages} is outside 2 .. 16")
        if self.cluster_m not in (1, 2):
            found.append(f"cluster_m = {self.cluster_m} is outside 1 .. 2")
        elif self.cluster_m > 1 and self.tile_n % (8 * self.cluster_m):
            found.append(
                f"tile_n = {self.tile_n} cannot be loaded by {self.cluster_m} CTAs in whole swizzle atoms of 8 rows; "
                f"use a multiple of {8 * self.cluster_m}"
            )
        if self.cluster_n not in (1, 2) or self.cluster > 2:
            found.append(f"cluster_m x cluster_n = {self.cluster_m} x {self.cluster_n} is not 1 x 1, 2 x 1 or 1 x 2")
        if self.schedule not in SCHEDULES:
            found.append(f"schedule = {self.schedule!r} is not one of {', '.join(SCHEDULES)}")
        if not 1 <= self.group_m <= 65536:
            found.append(f"group_m = {self.group_m} is outside 1 .. 65536")
        if not 1 <= self.store_slots <= 8:
            found.append(f"store_slots = {self.store_slots} is outside 1 .. 8")
        return found

    def _problem_violations(self, problem: Problem) -> list[str]:
        found = []
        if self.tile_k * problem.dtype.size != SWIZZLE_BYTES:
            found.append(
                f"tile_k = {self.tile_k} of {problem.dtype} is not one {SWIZZLE_BYTES}-byte swizzle row; "
                f"use {SWIZZLE_BYTES // problem.dtype.size}"
            )
        if problem.b_major == "n" and self.tile_n % (SWIZZLE_BYTES // problem.dtype.size):
            found.append(
                f"tile_n = {self.tile_n} of an n-contiguous b is not a multiple of "
                f"{SWIZZLE_BYTES // problem.dtype.size}, the columns of one {SWIZZLE_BYTES}-byte swizzle row"
            )
        return found

    def _budget_violations(self, problem: Problem, device: Device) -> list[str]:
        found = []
        if self.has_too_many_tiles(problem):
            rows, columns = self.tiles(problem)
            fewest = -(-problem.m // 256) * -(-problem.n // WGMMA_MAX_N)  # no tile is larger
            works = "split the product along m or n" if fewest >= MAX_TILES else "use a larger tile"
            found.append(f"{rows} x {columns} tiles are past the 2^30 that the schedule counts; {works}")
        if self.cluster > device.num_sms:
            found.append(f"clusters of {self.cluster} CTAs do not fit the {device.num_sms} SMs of {device.name}")
        smem = self.smem_bytes(problem)
        if smem > device.smem_per_cta_bytes:
            found.append(
                f"{self.stages} stages of {self.stage_bytes(problem)} bytes and {self.store_bytes} bytes of store "
                f"slots are {smem} bytes of shared memory; {device.name} gives a CTA {device.smem_per_cta_bytes}"
            )
        state = self._state_registers(problem)
        if self.accumulators + state > self.consumer_registers:
            found.append(
                f"{self.accumulators} accumulators a thread and {state} registers of state exceed the "
                f"{self.consumer_registers} registers of a consumer; use a smaller tile"
                + (" or 2 consumers" if self.consumers == 1 else " or no pingpong" if self.pingpong else "")
            )
        return found

    @staticmethod
    def _state_registers(problem: Problem) -> int:
        """Registers of a consumer beside its accumulators: addresses, descriptors, the tile, the way out.

        Source: with these none of 640 random legal configs spilled or had its wgmmas serialised, half of them near the
        limit (NVRTC 13.5, 2026-11-30). With less: 8 of 8 spilled through TMA at 24, 2 of 11 with fp32 out at 31, and 43
        of 63 at 24 to 40 where out is stored element by element.
        """
        if not problem.out_through_tma:
            return 44
        return 32 if problem.out_dtype.size == 4 else 28

    def replace(self, **changes: Any) -> Config:
        """This config with some fields changed.

        Raises: ConfigError: a name that is no field.
        """
        names = [field.name for field in dataclasses.fields(self)]
        unknown = [f"{name} is no field; fields are {', '.join(names)}" for name in changes if name not in names]
        if unknown:
            raise ConfigError(str(self), unknown)
        return dataclasses.replace(self, **changes)

    def words(self) -> tuple[str, ...]:
        """Every field as KEY=VALUE, which changes_from() reads back."""
        return tuple(f"{field.name}={getattr(self, field.name)}" for field in dataclasses.fields(self))

    def __str__(self) -> str:
        order = f"grouped{self.group_m}" if self.schedule == "grouped" else self.schedule
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k} s{self.stages} w{self.consumers} "
            f"c{self.cluster_m}x{self.cluster_n} {order} o{self.store_slots}"
            + (" pingpong" if self.pingpong else "")
            + (" halves" if self.halves else "")
            + (" k-back-and-forth" if self.k_back_and_forth else "")
        )


def changes_from(words: Iterable[str]) -> dict[str, int | bool | str]:
    """Fields of a Config from KEY=VALUE words: whole numbers, True and False become what they say, the rest stays text.

    Raises: ConfigError: a word without its "=", or a key given twice. What a value may be, violations() says.
    """
    changes: dict[str, int | bool | str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ConfigError("of the command line", [f"{word!r} is not KEY=VALUE, such as tile_n=192"])
        if key in changes:
            raise ConfigError("of the command line", [f"{key} is given twice: {changes[key]} and {value}"])
        if value.lower() in ("true", "false"):
            changes[key] = value.lower() == "true"
        else:
            # 18 digits: int() refuses thousands of them, and no field is near 10^18
            changes[key] = int(value) if re.fullmatch(r"[-+]?\d{1,18}", value) else value
    return changes
