"""What may be varied of a rung of the Ampere ladder, and what is legal: the configs of ampere_ladder.py's rungs.

Each kind of config is what one rung is written for; what a rung's source does not ask for is refused. Legality is that
of the device at hand: shared memory and registers of an A100, an RTX 3090 or 4090, or an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright import dtypes
from tilewright.device import Device
from tilewright.kernels.ladder_configs import RungConfig
from tilewright.occupancy import RESERVED_BYTES, register_budget
from tilewright.problem import Problem
from tilewright.tiling import WARP_THREADS

CHUNK_BYTES = 16  # of one copy of a thread, and of the row that a lane names to ldmatrix
MMA_M, MMA_N = 16, 16  # of a warp's part: one a fragment, and the two b fragments that one ldmatrix brings
MMA_K = 16
MAX_TILE = 256
MAX_WARPS = 16
MAX_STAGES = 8
STATE_REGISTERS = 40  # addresses and loop state beside sums and fragments; a test compiles what this lets pass
INPUT_SIZE = 2  # bytes of bf16 and fp16


@dataclass(frozen=True, kw_only=True)
class ElementConfig(RungConfig):
    """a0 and a1: one slot, filled element by element. Units: tiles in elements; `warps_m` x `warps_n` warps share the
    tile; `matrices` that one ldmatrix brings, which a0 does not use."""

    CHUNKED: ClassVar[bool] = False  # whether rows are read 16 bytes at a time
    STAGES: ClassVar[range] = range(1, 2)
    TILE_K: ClassVar[tuple[int, ...]] = (16, 32, 64)
    FRAGMENT_SETS: ClassVar[int] = 1

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 32
    stages: int = 1
    warps_m: int = 2
    warps_n: int = 4
    matrices: int = 4

    @property
    def threads(self) -> int:
        """Of all warps: each loads, multiplies and stores."""
        return self.warps_m * self.warps_n * WARP_THREADS

    @property
    def warp_m(self) -> int:
        """Rows of a warp's part."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of a warp's part."""
        return self.tile_n // self.warps_n

    @property
    def row_bytes(self) -> int:
        """From row to row of an operand tile in shared memory."""
        return self.tile_k * INPUT_SIZE

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums."""
        return self.warp_m * self.warp_n // WARP_THREADS

    @property
    def fragment_registers(self) -> int:
        """Registers of a thread that hold fragments: 4 for each 16 rows and for each 16 columns, of each set."""
        return self.FRAGMENT_SETS * 4 * (self.warp_m // MMA_M + self.warp_n // MMA_N)

    @property
    def ctas(self) -> int:
        """CTAs an SM that the compiler is held to."""
        return 1

    def stage_bytes(self, problem: Problem) -> int:
        """Bytes of one slot: a tile of a and a tile of b."""
        return (self.tile_m + self.tile_n) * self.row_bytes

    @property
    def state_registers(self) -> int:
        """Registers of a thread beside sums and fragments.

        Source: with these none of 200 random legal configs of a2 to a9, two thirds of them within 16 registers of the
        limit, spilled for sm_80 or sm_90 (NVRTC 13.5, 2026-11-30); with 32, and 2 a chunk, 7 of 200 did.
        """
        return STATE_REGISTERS

    def smem_bytes(self, problem: Problem) -> int:
        """Bytes of the Shared struct of the rung's source, which asserts the same."""
        return self.stages * self.stage_bytes(problem)

    def scope_violations(self, problem: Problem, device: Device) -> list[str]:
        """Products and devices that the rung is not written for."""
        found = []
        is_16_bit = problem.is_for_wgmma and problem.out_dtype == problem.dtype
        if not is_16_bit or problem.layout != "TN":
            found.append(f"{problem}: a rung of the Ampere ladder computes bf16 -> bf16 or fp16 -> fp16 TN alone")
        if problem.batch and self.SLICED:
            found.append(f"{problem}: a rung that cuts k computes one matrix at a time")
        elif problem.batch and not _is_stacked(problem):
            found.append(
                f"{problem}: the matrices of a batch are to lie below each other, as many rows apart as each has; make "
                "the batch one dimension, contiguous and not broadcast"
            )
        if device.sm < (8, 0):
            found.append(
                f"the Ampere ladder climbs compute capability 8.0 and later; {device.name} has "
                f"{device.sm[0]}.{device.sm[1]}"
            )
        if self.CHUNKED and not found:
            found += _row_violations(problem)
        return found

    def tile_violations(self) -> list[str]:
        found = []
        if self.warps_m < 1 or self.warps_n < 1 or self.warps_m * self.warps_n > MAX_WARPS:
            return [f"warps_m x warps_n = {self.warps_m} x {self.warps_n} are not 1 to {MAX_WARPS} warps"]
        for name, tile, warps, step in (
            ("tile_m", self.tile_m, self.warps_m, MMA_M),
            ("tile_n", self.tile_n, self.warps_n, MMA_N),
        ):
            unit = max(step * warps, 32)
            if not unit <= tile <= MAX_TILE or tile % (step * warps) or tile % 32:
                found.append(
                    f"{name} = {tile} is not a multiple of 32 and of {step * warps} ({step} a warp) up to {MAX_TILE}"
                )
        if self.tile_k not in self.TILE_K:
            found.append(f"tile_k = {self.tile_k} is not {_any_of(self.TILE_K)}")
        if self.stages not in self.STAGES:
            found.append(f"stages = {self.stages} is outside {self.STAGES[0]} .. {self.STAGES[-1]}")
        if self.matrices not in (1, 2, 4):
            found.append(f"matrices = {self.matrices} is not 1, 2 or 4, which one ldmatrix brings")
        if not found:
            found += self._sharing_violations()
        return found

    def _sharing_violations(self) -> list[str]:
        """Whether threads share a tile out evenly."""
        size = CHUNK_BYTES // INPUT_SIZE if self.CHUNKED else 1
        found = []
        for name, rows in (("a", self.tile_m), ("b", self.tile_n)):
            pieces = rows * self.tile_k // size
            if pieces % self.threads:
                what = f"{CHUNK_BYTES}-byte chunks" if self.CHUNKED else "elements"
                found.append(f"the {pieces} {what} of a tile of {name} do not go round {self.threads} threads evenly")
        return found

    def budget_violations(self, problem: Problem, device: Device) -> list[str]:
        """Registers and shared memory beyond what the device has."""
        found = []
        budget = register_budget(device, self.threads, self.ctas)
        needed = self.accumulators + self.fragment_registers + self.state_registers
        if needed > budget:
            found.append(
                f"{self.accumulators} registers of sums, {self.fragment_registers} of fragments and "
                f"{self.state_registers} of state exceed the {budget} that a thread of {self.ctas} x "
                f"{self.threads} an SM may have; use a smaller part for a warp or fewer CTAs an SM"
            )
        held = self.ctas * (self.smem_bytes(problem) + RESERVED_BYTES)
        if self.ctas > 1 and held > device.smem_per_sm_bytes:
            found.append(
                f"{self.ctas} CTAs of {self.smem_bytes(problem)} bytes and {RESERVED_BYTES} of the system's are {held} "
                f"bytes of shared memory; an SM of {device.name} has {device.smem_per_sm_bytes}"
            )
        return found

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k} s{self.stages} w{self.warps_m}x{self.warps_n}" + (
            f" x{self.matrices}" if self.matrices != 4 else ""
        )


@dataclass(frozen=True, kw_only=True)
class WmmaConfig(ElementConfig):
    """a0: each warp has a fragment of fp32 sums in shared memory, through which out leaves."""

    def smem_bytes(self, problem: Problem) -> int:
        return super().smem_bytes(problem) + self.threads // WARP_THREADS * MMA_M * MMA_N * 4

    @property
    def fragment_registers(self) -> int:
        """f16 fragments of WMMA take twice the registers of bf16."""
        return 2 * super().fragment_registers


@dataclass(frozen=True, kw_only=True)
class ChunkConfig(ElementConfig):
    """a2: 16 bytes a load."""

    CHUNKED: ClassVar[bool] = True

    @property
    def state_registers(self) -> int:
        """The 16 bytes of each chunk that a thread loads, as well."""
        chunks = (self.tile_m + self.tile_n) * self.tile_k * INPUT_SIZE // CHUNK_BYTES // self.threads
        return STATE_REGISTERS + 4 * chunks


@dataclass(frozen=True, kw_only=True)
class PaddedConfig(ChunkConfig):
    """a3. Units: `padding` in elements behind each row."""

    padding: int = 8

    @property
    def row_bytes(self) -> int:
        return (self.tile_k + self.padding) * INPUT_SIZE

    def tile_violations(self) -> list[str]:
        """Why 2 or 4 will not do: ldmatrix, and loads and stores of 16 bytes, start at multiples of 16 bytes (PTX ISA),
        and row r starts r (tile_k + padding) x 2 bytes into the tile. That is a multiple of 16 for every r exactly
        where it is for r = 1, so where padding is a multiple of 8 elements, as tile_k is."""
        found = super().tile_violations()
        if not 0 <= self.padding <= 64:
            found.append(f"padding = {self.padding} is outside 0 .. 64")
        elif self.row_bytes % CHUNK_BYTES:
            found.append(
                f"padding = {self.padding} makes rows of {self.row_bytes} bytes, so that row 1 begins "
                f"{self.row_bytes % CHUNK_BYTES} bytes past a multiple of {CHUNK_BYTES}, where neither ldmatrix nor a "
                f"store of {CHUNK_BYTES} bytes may begin; pad by 8, or swizzle"
            )
        return found

    def __str__(self) -> str:
        return f"{super().__str__()} padding{self.padding}"


@dataclass(frozen=True, kw_only=True)
class SwizzledConfig(ChunkConfig):
    """a4."""


@dataclass(frozen=True, kw_only=True)
class MultistageConfig(SwizzledConfig):
    """a5: a ring of `stages` slots: the prefetch distance and one more. A thread copies the same chunk of every so many
    rows, which the swizzle's pattern of 8 has to divide. `swizzled` False leaves rows as they are, with a2's conflicts:
    what prefetch alone does."""

    STAGES: ClassVar[range] = range(1, MAX_STAGES + 1)
    ALWAYS_SWIZZLED: ClassVar[bool] = False

    stages: int = 4
    swizzled: bool = True

    def tile_violations(self) -> list[str]:
        found = super().tile_violations()
        if self.ALWAYS_SWIZZLED and not self.swizzled:
            found.append("swizzled = False: only a5 can leave rows as they are")
        return found

    def __str__(self) -> str:
        return super().__str__() + ("" if self.swizzled else " unswizzled")

    @property
    def state_registers(self) -> int:
        """One pointer an operand, whatever is copied."""
        return STATE_REGISTERS

    def _sharing_violations(self) -> list[str]:
        chunks = self.row_bytes // CHUNK_BYTES
        rows = self.threads // chunks
        if rows % 8 or self.tile_m % rows or self.tile_n % rows:
            return [
                f"{self.threads} threads copy {rows} rows of {chunks} chunks at once; that has to be a multiple of 8, "
                f"the swizzle's period, which divides tile_m = {self.tile_m} and tile_n = {self.tile_n}"
            ]
        return []


@dataclass(frozen=True, kw_only=True)
class BufferedConfig(MultistageConfig):
    """a6: two sets of fragments. `f16_sums`: sums in f16, of fp16 inputs."""

    STAGES: ClassVar[range] = range(2, MAX_STAGES + 1)
    TILE_K: ClassVar[tuple[int, ...]] = (32, 64)
    FRAGMENT_SETS: ClassVar[int] = 2
    ALWAYS_SWIZZLED: ClassVar[bool] = True

    f16_sums: bool = False

    @property
    def accumulators(self) -> int:
        return super().accumulators // (2 if self.f16_sums else 1)

    def scope_violations(self, problem: Problem, device: Device) -> list[str]:
        found = super().scope_violations(problem, device)
        if self.f16_sums and problem.dtype != dtypes.FP16:
            found.append(f"f16_sums = True is for fp16 inputs (PTX ISA, mma.m16n8k16); a and b are {problem.dtype}")
        return found

    def __str__(self) -> str:
        return super().__str__() + (" f16-sums" if self.f16_sums else "")


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(BufferedConfig):
    """a7: `min_ctas` CTAs an SM, so that each thread may have its share of the registers."""

    tile_n: int = 256
    min_ctas: int = 1

    @property
    def ctas(self) -> int:
        return self.min_ctas

    def tile_violations(self) -> list[str]:
        found = super().tile_violations()
        if not 1 <= self.min_ctas <= 16:
            found.append(f"min_ctas = {self.min_ctas} is outside 1 .. 16")
        return found

    def __str__(self) -> str:
        return f"{super().__str__()} ctas{self.min_ctas}"


@dataclass(frozen=True, kw_only=True)
class SplitConfig(BudgetConfig):
    """a8: `slices` of k, which sums.cu adds."""

    SLICED: ClassVar[bool] = True

    def fitting(self, problem: Problem, device: Device) -> SplitConfig:
        """This config with as many slices as give every SM a CTA, each slice at least as long as the ring."""
        rows, columns = self.tiles(problem)
        best = 1
        for slices in range(2, device.num_sms * self.min_ctas // (rows * columns) + 1):
            candidate = self.replace(slices=slices)
            if problem.k >= slices * self.stages * self.tile_k and not candidate.violations(problem, device):
                best = slices
        found = self.replace(slices=best)
        assert isinstance(found, SplitConfig)
        return found

    def __str__(self) -> str:
        return super().__str__() + (f" slices{self.slices}" if self.slices != 1 else "")


@dataclass(frozen=True, kw_only=True)
class OrderedConfig(SplitConfig):
    """a9: `group_m` rows of tiles are walked together."""

    group_m: int = 8

    def tile_violations(self) -> list[str]:
        found = super().tile_violations()
        if not 1 <= self.group_m <= 65536:
            found.append(f"group_m = {self.group_m} is outside 1 .. 65536")
        return found

    def __str__(self) -> str:
        return f"{super().__str__()} grouped{self.group_m}"


def _is_stacked(problem: Problem) -> bool:
    """Whether each operand of the batch is one tall matrix."""
    return all(
        strides == (rows * pitch,)
        for strides, rows, pitch in (
            (problem.a_batch, problem.m, problem.a_pitch),
            (problem.b_batch, problem.n, problem.b_pitch),
            (problem.out_batch, problem.m, problem.out_pitch),
        )
    )


def _row_violations(problem: Problem) -> list[str]:
    found = []
    for name, pitch, align in (
        ("a", problem.a_pitch, problem.a_align_bytes),
        ("b", problem.b_pitch, problem.b_align_bytes),
    ):
        pitch_bytes = pitch * problem.dtype.size
        if pitch_bytes % CHUNK_BYTES or align % CHUNK_BYTES:
            found.append(
                f"{name} has rows {pitch_bytes} bytes apart and a base at a multiple of {align}; 16-byte copies need "
                f"multiples of {CHUNK_BYTES}: make the pitch a multiple of {CHUNK_BYTES // INPUT_SIZE} elements, or "
                "use a0 or a1, which copy element by element"
            )
    return found


def _any_of(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values[:-1])) + f" or {values[-1]}"
