"""How the Ampere family computes a product: its own fields, derived numbers and legality, on what a Config has.

The family runs by mma.sync and cp.async, so on compute capability 8.0, 8.6 and 8.9, and on 9.0 for whoever names such a
config. Knows nothing of how one is chosen.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

from tilewright.config import Config
from tilewright.device import Device
from tilewright.dtypes import FP32
from tilewright.legality import epilogue_registers
from tilewright.occupancy import RESERVED_BYTES, occupancy, register_budget
from tilewright.problem import Problem
from tilewright.tiling import MAX_TILES, STORE_ROWS, WARP_THREADS

SMS: tuple[tuple[int, int], ...] = ((8, 0), (8, 6), (8, 9), (9, 0))  # compute capabilities that the kernel is tried for
MMA_M = 16  # rows of one mma.sync (PTX ISA)
STEP_BYTES = 32  # of k values that it multiplies: 16 of 16 bits, 32 of int8
WARP_N_STEP = 32  # columns of a warp: fp32 leaves in blocks of 32, and ldmatrix reads 16
PANEL_BYTES = 128  # of a row of an operand whose m or n is contiguous
ROWS_BYTES: tuple[int, ...] = (64, 128)  # of tile_k values: the widths of the swizzle
PREFETCHES: tuple[int, ...] = (0, 64, 128, 256)  # bytes (PTX ISA, cp.async's prefetch size); 0: none is named
COPY_BYTES: tuple[int, ...] = (16, 8, 4)  # of one cp.async (PTX ISA)
BARRIER_BYTES = 16  # of a split barrier: 8, and what keeps a multiple of 16
MAX_EXTENT = 256  # of a tile
MAX_STAGES = 12
# Registers of a thread beside accumulators and fragments: addresses of copies and fragments, the tile, loop state.
# Source: with these no config of tests/kernels/test_ampere_family.py spills (NVRTC 13.5, sm_80, 86, 89 and 90a). The
# compiler keeps addresses of copies where a thread has many: none of 24 copies of 4 bytes spilled, nor of up to 16 of
# 16 bytes; 13 kernels of 32 to 64 spilled 4 to 168, one of 48, with 31 registers to spare by 2 a copy, 8 to 20.
_STATE_REGISTERS = 24
_NARROW_COPY_REGISTERS = 2
_MANY_NARROW_COPIES = 24
_MANY_NARROW_COPY_REGISTERS = 3  # of each, where there are more
# ... and of int8 where m or n is contiguous: 128x128x64, 16 of 4 bytes a thread, spilled 16 bytes by 2.
_NARROW_COPY_OF_BYTES_REGISTERS = 4
# One fewer does for k-contiguous operands in whole pieces of 16 bytes and rows of 128, at most 14 a thread: 256x192x64
# of 64x96 a warp has 254 and 255 registers and no spill, batched or not, with any out (NVRTC 13.5, sm_90a); m- or
# n-contiguous it spilled 120 to 200 bytes, with a k off 8 up to 8, with rows of 64 bytes 0 to 8.
_LEAN_STATE_REGISTERS = 23
_LEAN_COPIES = 14
# More of a split barrier: its address, its parity. 256x192x64 spilled 8 bytes (NVRTC 13.5, sm_90a).
_SPLIT_REGISTERS = 2


@dataclass(frozen=True, kw_only=True)
class AmpereConfig(Config):
    """One way to run the Ampere family.

    Units: tiles in elements, tile_k of 64 or 128 bytes; `stages` slots of the ring of cp.async, of which stages - 2 are
    on their way while one is multiplied; `warps_m` x `warps_n` warps share a tile, each with tile_m / warps_m rows and
    tile_n / warps_n columns; `ahead` fragments of b, of 16 columns each, are loaded before they are multiplied;
    `split_barrier`: warps arrive a step of k before they wait for one another, where else they meet at once;
    `prefetch`: so many bytes around each copy of 16 the L2 may fetch from memory, 0 for what it does by itself; `ctas`
    CTAs of the kernel fit an SM at a time, which bounds the registers of each. `schedule`, `group_m`, `square` and
    `slices` are those of Config; its other fields belong to the Hopper family and keep their defaults.
    """

    family: ClassVar[str] = "ampere"
    reader: ClassVar[str] = "cp.async"

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 32
    stages: int = 4
    warps_m: int = 2
    warps_n: int = 2
    ahead: int = 1
    prefetch: int = 0
    split_barrier: bool = False
    ctas: int = 1

    def needs_bytes(self, problem: Problem, operand: str) -> int:
        """What copy_bytes() says of the problem; 0, a copy first, where not even 4 bytes of a row begin at a multiple
        of 4: cp.async copies no 2, and a copy of the whole operand reads it once, not once for each tile that needs it.
        """
        return self.copy_bytes(problem, operand)

    def copied(self, problem: Problem) -> tuple[str, ...]:
        """Those of "a" and "b" that are copied first (kernels/repack.py)."""
        return () if problem.is_empty else tuple(each for each in ("a", "b") if not self.needs_bytes(problem, each))

    def copy_bytes(self, problem: Problem, operand: str) -> int:
        """Bytes of one cp.async of an operand: the most, of 16, 8 and 4, at whose multiples its pieces begin; 0: none.

        Address, pitch and batch strides decide, and of an n-contiguous b with gates where the other half begins; rows
        need not be that long, since the end of one is copied in part.
        """
        rows, _ = problem.rows_of(operand)
        pitches = (getattr(problem, f"{operand}_pitch"),) if rows > 1 else ()
        halves = (problem.n // 2,) if operand == "b" and self._has_halves_in_rows(problem) else ()
        strides = (*pitches, *getattr(problem, f"{operand}_batch"), *halves)
        common = math.gcd(getattr(problem, f"{operand}_align_bytes"), *(step * problem.dtype.size for step in strides))
        return next((size for size in COPY_BYTES if common % size == 0), 0)

    def is_in_pieces(self, problem: Problem, operand: str) -> bool:
        """Whether the rows of an operand end where a piece of copy_bytes() does: each piece is there whole or not at
        all."""
        _, row = problem.rows_of(operand)
        if operand == "b" and self._has_halves_in_rows(problem):
            row //= 2
        return row * problem.dtype.size % max(self.copy_bytes(problem, operand), 1) == 0

    def beside_copies(self) -> Config:
        """Itself: launches that wait for one another inside the kernel are compute capability 9.0's."""
        return self

    # -- derived numbers, each used by the kernel under the same name in capitals ------------------------------------

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.warps_m * self.warps_n

    @property
    def threads(self) -> int:
        """Threads of one CTA: all of them copy, multiply and store."""
        return self.warps * WARP_THREADS

    @property
    def warp_m(self) -> int:
        """Rows of a tile that a warp multiplies."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of a tile that a warp multiplies."""
        return self.tile_n // self.warps_n

    @property
    def accumulators(self) -> int:
        """Sums a thread."""
        return self.warp_m * self.warp_n // WARP_THREADS

    def sum_registers(self, problem: Problem) -> int:
        """Registers a thread that hold them: of fp16 two each."""
        return self.accumulators * problem.sums.size // FP32.size

    @property
    def fragment_registers(self) -> int:
        """Registers a thread that hold fragments: a of this step of k and the next, b `ahead` + 1 times.

        Worked example: 64 x 64 a warp, ahead 1: 2 x 4 x 4 of a and 2 x 4 of b are 40.
        """
        return 2 * (self.warp_m // MMA_M) * 4 + (self.ahead + 1) * 4

    def registers_at_most(self, device: Device) -> int:
        """Registers a thread that the launch bounds leave: `ctas` CTAs on an SM at once."""
        return register_budget(device, self.threads, self.ctas)

    def smem_bytes(self, problem: Problem) -> int:
        """Bytes of dynamic shared memory that one CTA asks for: the ring, and what each warp stores through.

        Source: ampere_gemm.cu, which asserts the same sum.
        """
        barrier = BARRIER_BYTES if self.split_barrier else 0
        return self.stages * self.stage_bytes(problem) + self.warps * self.store_warp_bytes(problem) + barrier

    def store_warp_bytes(self, problem: Problem) -> int:
        """Bytes through which a warp stores: 16 rows of its part of the tile."""
        return STORE_ROWS * self.stored_columns(problem) * self.computed(problem).out_dtype.size

    def stored_columns(self, problem: Problem) -> int:
        """Columns of out that a warp stores: all that it multiplies, or half of them where two make one of out."""
        return self.warp_n // 2 if self.sliced(problem).gates else self.warp_n

    def _has_halves_in_rows(self, problem: Problem) -> bool:
        """Whether gates are one half of each row of b, and what they gate the other."""
        return problem.b_major == "n" and self.sliced(problem).gates == "halves"

    def b_fold(self, problem: Problem) -> int:
        """2 where columns of b that gate and those that they gate come into a tile in turns (tile_copy.cuh), else 1:
        every second column of rows of n lies beside the first in one piece of any copy."""
        return 2 if problem.gates and (problem.b_major == "k" or problem.gates != "interleaved") else 1

    def ctas_per_sm(self, problem: Problem, device: Device) -> int:
        """CTAs of one kernel that an SM has room for, were each thread to have as many registers as it may."""
        return occupancy(device, self.threads, self.registers_at_most(device), self.smem_bytes(problem)).ctas

    # -- legality ----------------------------------------------------------------------------------------------------

    def violations(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """Every reason why this config cannot run the problem on the device, in words with numbers; () when it can."""
        if wrong_types := self._wrong_types():
            return tuple(wrong_types)
        found = self._shape_violations()
        if refused := [*self._slices_violations(problem), *self._epilogue_violations(problem)]:
            return (*refused, *found)
        if device.sm not in SMS:
            served = ", ".join(f"{major}.{minor}" for major, minor in SMS)
            found.append(
                f"the ampere family is for compute capability {served}; {device.name} has {device.sm[0]}.{device.sm[1]}"
            )
        if not found:  # the numbers below mean something only for a config that is sound in itself
            problem = self.computed(problem)
            found = self._step_violations(problem)  # of a k tile that is none the others would say nothing true
        if not found:
            found = [*self._problem_violations(problem), *self._budget_violations(problem, device)]
        return tuple(found)

    def _shape_violations(self) -> list[str]:
        found = [
            f"{name} = {getattr(self, name)!r} is for the hopper family; leave it out"
            for name in _HOPPER_ONLY
            if getattr(self, name) != getattr(_DEFAULT, name)
        ]
        if self.warps_m < 1 or self.warps_n < 1 or self.warps not in (1, 2, 4, 8):
            found.append(f"warps_m x warps_n = {self.warps_m} x {self.warps_n} are not 1, 2, 4 or 8 warps")
            return found
        for name, warps, step in (("m", self.warps_m, MMA_M), ("n", self.warps_n, WARP_N_STEP)):
            extent = getattr(self, f"tile_{name}")
            if extent < 1 or extent % (step * warps) or extent > MAX_EXTENT:
                found.append(
                    f"tile_{name} = {extent} is not a multiple of {step * warps}, {step} for each of {warps} warps, up "
                    f"to {MAX_EXTENT}"
                )
        if not 3 <= self.stages <= MAX_STAGES:
            found.append(f"stages = {self.stages} is outside 3 .. {MAX_STAGES}")
        if self.prefetch not in PREFETCHES:
            found.append(f"prefetch = {self.prefetch} is not 0, 64, 128 or 256")
        if not 1 <= self.ctas <= 8:
            found.append(f"ctas = {self.ctas} is outside 1 .. 8")
        found += self._walk_violations()
        return found

    def _step_violations(self, problem: Problem) -> list[str]:
        """Of a tile that is sound."""
        row_bytes = self.tile_k * problem.dtype.size
        if row_bytes not in ROWS_BYTES:
            legal = " or ".join(str(each // problem.dtype.size) for each in ROWS_BYTES)
            row_text = " or ".join(map(str, ROWS_BYTES))
            return [f"tile_k = {self.tile_k} of {problem.dtype} is not {legal}, rows of {row_text} bytes"]
        blocks = self.warp_n // 16
        units = blocks * (row_bytes // STEP_BYTES)
        works = [ahead for ahead in range(1, blocks + 1) if units % (ahead + 1) == 0]
        if self.ahead not in works:
            return [
                f"ahead = {self.ahead} is not one of {', '.join(map(str, works))}: ahead + 1 buffers take turns in the "
                f"{units} blocks of a k tile, and no more than {blocks} are loaded ahead"
            ]
        return []

    def _gated_violations(self, problem: Problem) -> list[str]:
        if self._has_halves_in_rows(problem) and problem.n // 2 * problem.dtype.size % COPY_BYTES[-1]:
            return [
                f"the second half of an n-contiguous b begins {problem.n // 2} elements on, which is no multiple of "
                f"{COPY_BYTES[-1]} bytes, and cp.async copies no 2; use a k-contiguous b"
            ]
        return []

    def _problem_violations(self, problem: Problem) -> list[str]:
        found = []
        if problem.gates and problem.out_dtype.size == FP32.size and problem.out_major == "n" and self.warp_n % 64:
            found.append(
                f"warp_n = {self.warp_n} of a gated epilogue with an fp32 out is not a multiple of 64: fp32 leaves in "
                "blocks of 32 columns, and two make one; use fewer warps_n, or a larger tile_n"
            )
        size = problem.dtype.size
        panel = PANEL_BYTES // size
        for operand, name in (("a", "m"), ("b", "n")):
            extent = getattr(self, f"tile_{name}")
            contiguous = getattr(problem, f"{operand}_major")
            if contiguous != "k" and extent % panel:
                found.append(f"tile_{name} = {extent} of {contiguous}-contiguous {operand} is no multiple of {panel}")
            copy_bytes = self.copy_bytes(problem, operand)
            if not copy_bytes:
                found.append(f"{operand} has rows or matrices at no multiples of 4 bytes, which cp.async does not copy")
            elif (tile_bytes := extent * self.tile_k * size) % (self.threads * copy_bytes):
                found.append(
                    f"the {tile_bytes} bytes of a k tile of {operand} are not as many pieces of {copy_bytes} for each "
                    f"of {self.threads} threads; use a larger tile_{name}, or fewer warps"
                )
        return found

    def _budget_violations(self, problem: Problem, device: Device) -> list[str]:
        found = []
        if self.has_too_many_tiles(problem):
            rows, columns = self.tiles(problem)
            found.append(
                f"{problem.num_matrices} x {rows} x {columns} tiles are past the {MAX_TILES} that the schedule counts; "
                "split the product along m or n, or use a larger tile"
            )
        smem = self.smem_bytes(problem)
        if smem > device.smem_per_cta_bytes:
            stage_bytes, stores = self.stage_bytes(problem), self.warps * self.store_warp_bytes(problem)
            fewer = self._stages_in(problem, device.smem_per_cta_bytes)
            works = f"use {fewer} stages" if fewer else "use a smaller tile" + self._or_half_rows(problem, device)
            found.append(
                f"{self.stages} stages of {stage_bytes} bytes and {stores} to store through are {smem} "
                f"bytes of shared memory; {device.name} gives a CTA {device.smem_per_cta_bytes}; {works}"
            )
        elif (fit := self.ctas_per_sm(problem, device)) < self.ctas:
            fewer = self._stages_in(problem, device.smem_per_sm_bytes // self.ctas - RESERVED_BYTES)
            found.append(
                f"ctas = {self.ctas} of {smem} + {RESERVED_BYTES} bytes of shared memory and {self.warps} warps "
                f"do not fit an SM of {device.name}, which has {device.smem_per_sm_bytes} bytes and takes {fit}; use "
                f"ctas = {fit}" + (f", or {fewer} stages" if fewer else "")
            )
        registers, state = self.registers_at_most(device), self._registers_of_state(problem)
        sums = self.sum_registers(problem)
        if (needed := sums + self.fragment_registers + state) > registers:
            fits = (
                ctas for ctas in range(self.ctas - 1, 0, -1) if register_budget(device, self.threads, ctas) >= needed
            )
            fewer = next(fits, 0)
            found.append(
                f"{sums} accumulators a thread, {self.fragment_registers} registers of fragments and "
                f"{state} of state are {needed}; {self.ctas} x {self.threads} threads on an SM have "
                f"{registers} each; use "
                + (f"ctas = {fewer}, a smaller tile or more warps" if fewer else "a smaller tile or more warps")
            )
        return found

    def _or_half_rows(self, problem: Problem, device: Device) -> str:
        """That tile_k may be half as long, where with as many stages it then fits."""
        half = dataclasses.replace(self, tile_k=self.tile_k // 2)
        fits = not half._step_violations(problem) and half.smem_bytes(problem) <= device.smem_per_cta_bytes
        return f" or tile_k = {half.tile_k}" if fits else ""

    def _stages_in(self, problem: Problem, room_bytes: int) -> int:
        """Stages, fewer than these, with which a CTA asks for no more shared memory; 0: not even with the fewest."""
        stage_bytes = self.stage_bytes(problem)
        fewer = (room_bytes - (self.smem_bytes(problem) - self.stages * stage_bytes)) // stage_bytes
        return fewer if 3 <= fewer < self.stages else 0

    def _registers_of_state(self, problem: Problem) -> int:
        """Registers a thread beside accumulators and fragments."""
        form, has_dimensions = problem.epilogue, len(problem.batch) > 1
        further = 0 if form is None else epilogue_registers(form, has_dimensions)
        further += _SPLIT_REGISTERS if self.split_barrier else 0
        copies = narrow = 0  # a thread for a k tile; those of fewer than 16 bytes
        for operand, extent in (("a", self.tile_m), ("b", self.tile_n)):
            copy_bytes = self.copy_bytes(problem, operand)
            own = extent * self.tile_k * problem.dtype.size // (self.threads * max(copy_bytes, 1))
            copies += own
            narrow += own if copy_bytes < COPY_BYTES[0] else 0
        in_pieces = all(self.is_in_pieces(problem, operand) for operand in ("a", "b"))
        is_lean = problem.a_major == problem.b_major == "k" and in_pieces and not narrow and copies <= _LEAN_COPIES
        if is_lean and self.tile_k * problem.dtype.size == ROWS_BYTES[-1]:
            return _LEAN_STATE_REGISTERS + further
        each = _MANY_NARROW_COPY_REGISTERS if narrow > _MANY_NARROW_COPIES else _NARROW_COPY_REGISTERS
        if problem.dtype.size == 1 and (problem.a_major, problem.b_major) != ("k", "k"):
            each = _NARROW_COPY_OF_BYTES_REGISTERS
        return _STATE_REGISTERS + narrow * each + further

    def __str__(self) -> str:
        order = f"grouped{self.group_m}" if self.schedule == "grouped" else self.schedule
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k} s{self.stages} w{self.warps_m}x{self.warps_n} {order} "
            f"ahead{self.ahead} x{self.ctas}"
            + (" split-barrier" if self.split_barrier else "")
            + (f" prefetch{self.prefetch}" if self.prefetch else "")
            + (f" squares{self.square}" if self.square else "")
            + (f" slices{self.slices}" if self.slices != 1 else "")
        )


_DEFAULT = AmpereConfig()
_HOPPER_ONLY = (
    "consumers", "cluster_m", "cluster_n", "store_slots", "pingpong", "tail_n", "staggered", "k_back_and_forth", "swap",
    "split_k", "dependent_launch", "dependent_sums",
)  # fmt: skip
