"""What follows from the fields of a config: bytes, threads, registers, arrivals, tiles and waves, for a problem.

Each number is computed here and nowhere else; the rendered header hands them to the kernel by name. What the fields
mean is config.py's, what of it is legal legality.py's.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import ClassVar, Literal

from tilewright.device import Device
from tilewright.dtypes import FP32, sums_of
from tilewright.problem import Problem
from tilewright.tma import TMA_ALIGNMENT_BYTES

Schedule = Literal["linear", "grouped"]
SCHEDULES: tuple[Schedule, ...] = ("linear", "grouped")

WARP_THREADS = 32
WARPGROUP_THREADS = 128
WARPGROUP_WARPS = 4
WGMMA_M = 64  # rows of one wgmma, PTX ISA
SWIZZLE_BYTES = 128  # bytes of a row of one swizzle atom
ATOM_BYTES = 1024  # 8 rows of 128 bytes: the period of the 128-byte swizzle
ATOM_ROWS = 8
STORE_ROWS = 16  # rows of one store slot: what one warp holds of a 64-row wgmma
BARRIER_BYTES = 8
TILE_BYTES = 8  # a Tile of schedule.cuh: row and column
# Slots of a ring beyond this slow down batches of which each product has matrices of its own, where DRAM is the limit.
# Measured, H200, 2026-12-01, 4096 x 384x128x256 in fp16, interleaved, us by KB of the ring: 64x128 96 375, 120 357, 144
# 352, 192 416; 128x128 ping-pong 96 367, 128 375, 160 394, 192 398; 256x128 staggered 144 362, 192 424. Why is not
# known: with tall outputs, whose b is one matrix, more is faster up to 192 (131072 x 256 x 512: 69 to 63 us).
STREAMED_RING_BYTES = 144 << 10
MAX_SMEM_BYTES = 232448  # of a CTA on compute capability 9.0 (CUDA programming guide: 227 KB)
TRANSPOSED_COLUMNS = 64  # of a slot that is stored transposed, at most: 2 KB of 16-bit values a warp
MAX_TILES = 2**30  # schedule.cuh counts tiles in 32 bits


class Tiling:
    """The numbers of a Config, which has the fields that are named here, with their defaults and meanings."""

    family: ClassVar[str]
    reader: ClassVar[str]
    steps: ClassVar[frozenset[str]]

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    consumers: int
    cluster_m: int
    cluster_n: int
    schedule: Schedule
    group_m: int
    store_slots: int
    pingpong: bool
    tail_n: int
    staggered: bool
    k_back_and_forth: bool
    square: int
    swap: bool
    split_k: int
    dependent_launch: bool
    slices: int
    dependent_sums: bool

    def sliced(self, problem: Problem) -> Problem:
        """The batch of products that `slices` makes of a single one; any other problem is itself, and so is sliced() of
        it: this is the one place that knows what a slice is.

        Shapes: a (slices, m, k / slices) and b (slices, k / slices, n), the next slice so far along k; out (slices, m,
        n) in fp32, of int8 in int32, its rows as those of the problem's own, but each at a multiple of 16 bytes, with
        free bytes behind. An epilogue follows their sums: they have none, and are row-major where it gates columns.
        """
        if self.slices < 2 or problem.batch:
            return problem
        if problem.epilogue is not None:
            out_major = "n" if problem.gates else problem.out_major
            problem = dataclasses.replace(problem, epilogue=None, out_major=out_major)
        k = problem.k // self.slices
        rows, extent = problem.rows_of("out")
        pitch = -(-extent * FP32.size // TMA_ALIGNMENT_BYTES) * TMA_ALIGNMENT_BYTES // FP32.size
        return dataclasses.replace(
            problem,
            k=k,
            batch=(self.slices,),
            a_batch=(k if problem.a_major == "k" else k * problem.a_pitch,),
            b_batch=(k if problem.b_major == "k" else k * problem.b_pitch,),
            out_dtype=sums_of(problem.dtype),
            out_pitch=pitch,
            out_batch=(rows * pitch,),
            out_align_bytes=TMA_ALIGNMENT_BYTES,
            out_is_padded=True,
        )

    def slices_bytes(self, problem: Problem) -> int:
        """Bytes of the slices' sums; 0 without slices."""
        if self.slices < 2:
            return 0
        sliced = self.sliced(problem)
        return sliced.batch[0] * sliced.out_batch[0] * FP32.size

    def computed(self, problem: Problem) -> Problem:
        """The product as the kernel computes it: its slices; out row-major, or column-major with `swap`; as it is where
        columns are gated. What this config, its family and the model say about sizes, majors and tiles is about this
        one; computed() of it is itself."""
        problem = self.sliced(problem)
        is_kept = problem.gates or problem.out_major == ("m" if self.swap else "n")
        return problem if is_kept else problem.transposed

    def needs_bytes(self, problem: Problem, operand: str) -> int:
        """The bytes of which the address of "a" or "b" has to be a multiple, so that the kernel reads it where it lies;
        0 where it is copied first wherever it lies. The same for every config of a family.

        Source: TMA's rules (Problem.unreadable).
        """
        return 0 if operand in problem.unreadable else TMA_ALIGNMENT_BYTES

    def copied(self, problem: Problem) -> tuple[str, ...]:
        """Those of "a" and "b" that are copied first (kernels/repack.py), at the addresses that the problem expects."""
        return problem.repacked

    # -- derived numbers, each used by the kernel under the same name in capitals ------------------------------------

    @property
    def threads(self) -> int:
        """Threads of one CTA: one producer warpgroup and the consumers."""
        return (1 + self.consumers) * WARPGROUP_THREADS

    @property
    def sharing(self) -> int:
        """CTAs that load for each other by multicast, each with a tile of its own."""
        return self.cluster_m * self.cluster_n

    @property
    def starts_early(self) -> bool:
        """Whether the model counts the first loads as asked for before the CTA has met: not where others are loaded
        for, nor where the launch before has to end first.

        The kernel has it finer (STARTS_EARLY in hopper_gemm.cu): clusters of one consumer fill two slots early, by
        which 1000^3 gained nothing (H200, 2026-12-01), and walks of more than one square, of many tiles, fill none.
        """
        return self.sharing == 1 and not self.dependent_launch

    @property
    def peers(self) -> int:
        """CTAs into whose slots this one loads, itself among them: its column of the cluster and its row."""
        return self.cluster_m + self.cluster_n - 1

    @property
    def shares_both(self) -> bool:
        """Whether CTAs of a cluster share tiles of a and of b: it has rows and columns."""
        return self.cluster_m > 1 and self.cluster_n > 1

    @property
    def a_box_rows(self) -> int:
        """Rows of a TMA box of a: with `cluster_n` side by side every one of them loads some of a tile's boxes."""
        return _box_rows(self.tile_m, self.cluster_n)

    def b_box_rows(self, problem: Problem) -> int:
        """Rows of a TMA box of b: with `cluster_m` below each other every one of them loads some of a tile's boxes. A
        gated epilogue's halves have boxes of their own."""
        return _box_rows(self._b_extent(problem), self.cluster_m)

    def _b_extent(self, problem: Problem) -> int:
        """Columns of a tile that one tensor map of b brings."""
        return self.tile_n // 2 if self.sliced(problem).gates else self.tile_n

    def share(self, problem: Problem, operand: str) -> float:
        """The part of a tile of "a" or "b" that the busiest CTA of its sharers loads."""
        extent, shares, box_rows = (
            (self.tile_m, self.cluster_n, self.a_box_rows)
            if operand == "a"
            else (self._b_extent(problem), self.cluster_m, self.b_box_rows(problem))
        )
        is_k_major = getattr(problem, f"{operand}_major") == "k"  # else rows of k, which divide evenly
        return busiest_rows(extent, shares, box_rows) / extent if is_k_major else 1 / shares

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.sharing * self.split_k

    @property
    def stored_n(self) -> int:
        """Columns of a tile that one CTA stores: all, or with `split_k` an equal share of whole blocks of 8.

        Where the blocks do not divide evenly some CTAs store none. Worked example: 64 columns of 4 CTAs are 2 blocks
        each; 24 of 2 are 3 blocks, and the first CTA stores all of them; 8 of 4 are one, of the first CTA.
        """
        blocks = self.tile_n // 8
        return 8 * min(
            share for share in range(1, blocks + 1) if blocks % share == 0 and share * self.split_k >= blocks
        )

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

    def registers(self, problem: Problem) -> tuple[int, int]:
        """Registers that a producer thread keeps and that a consumer thread has, in multiples of 8 (setmaxnreg).

        A producer of single matrices that both lie along k keeps the least that there is, 24 (PTX ISA: 24 .. 256).
        Panels, multicast and batches need more state: with 24 they spilled 4 to 64 bytes (panels of one operand 8, by
        NVRTC 13.0.88 alone), and multicast of a batch of several dimensions with 40 another 20 to 36; multicast of both
        operands 8 with 40, and of such a batch 8 with 56 (NVRTC 13.5, 2026-11-30).
        Consumers have those at entry and what the producer gave up. Worked example: 2 consumers, 384 threads, 168 at
        entry: (384 x 168 - 128 x 24) / 256 = 240. One consumer has enough at entry, and nothing moves.
        """
        if not self.moves_registers:
            return self.entry_registers, self.entry_registers
        problem = self.computed(problem)
        is_simple = self.cluster == 1 and not problem.batch and (problem.a_major, problem.b_major) == ("k", "k")
        producer = 24 if is_simple else 40
        if self.cluster > 1 and len(problem.batch) > 1:
            producer += 16
        if self.shares_both:
            producer += 16
        pool = self.entry_registers * self.threads - producer * WARPGROUP_THREADS
        return producer, pool // (self.consumers * WARPGROUP_THREADS) // 8 * 8

    def stage_bytes(self, problem: Problem) -> int:
        """Bytes that one stage of the ring holds and one full barrier expects: a tile of a and a tile of b."""
        return (self.tile_m + self.tile_n) * self.tile_k * problem.dtype.size

    def streamed_stages(self, problem: Problem) -> int:
        """Stages of a ring that is deep enough for matrices which are read once: STREAMED_RING_BYTES, at least 2."""
        return max(2, STREAMED_RING_BYTES // self.stage_bytes(problem))

    def narrow_bytes(self, problem: Problem) -> int:
        """Bytes of one slot of the narrow tiles' ring."""
        return (self.tile_m + self.tail_n) * self.tile_k * problem.dtype.size

    def store_warp_bytes(self, problem: Problem) -> int:
        """Bytes of one consumer warp's store slots: `store_slots` of a wide tile."""
        return self._store_warp_bytes(problem, self.stored_columns(problem), self.store_slots)

    def tail_store_warp_bytes(self, problem: Problem) -> int:
        """Bytes of one consumer warp's store slots for narrow tiles: all columns at once; 0 without them."""
        if not self.tail_n:
            return 0
        columns = store_columns(self.computed(problem), self.tail_n)
        return self._store_warp_bytes(problem, self.tail_n, -(-self.tail_n // columns))

    def _store_warp_bytes(self, problem: Problem, width: int, slots: int) -> int:
        """Up to the period of the swizzle that they are written in."""
        problem = self.computed(problem)
        size = problem.out_dtype.size
        row_bytes = store_columns(problem, width) * size
        period = 8 * row_bytes if row_bytes % 32 == 0 else 128
        if self.swap:  # a slot's rows are columns of the tile
            period = 8 * STORE_ROWS * size
        return -(-STORE_ROWS * slots * row_bytes // period) * period

    def store_bytes(self, problem: Problem) -> int:
        """Bytes of all store slots of wide tiles: each consumer warp has its own."""
        return self.consumers * WARPGROUP_WARPS * self.store_warp_bytes(problem)

    def tail_stages(self, problem: Problem) -> int:
        """Slots of the narrow tiles' ring: as many as fit beside their store slots, 16 at most; 0 without them.

        A narrow tile reads more bytes a cycle than a wide one, and so needs more of them in flight. Worked example,
        256x192 and a tail of 120, 3 stages: 48,128 bytes a slot and 30,720 of store slots in 232,448 bytes make 4.
        """
        if not self.tail_n:
            return 0
        stores = self.consumers * WARPGROUP_WARPS * self.tail_store_warp_bytes(problem)
        room = MAX_SMEM_BYTES - stores - self._slot_overhead_bytes(problem) * (self.stages + 16) - ATOM_BYTES
        return min(16, room // self.narrow_bytes(problem))

    def _slot_overhead_bytes(self, problem: Problem) -> int:
        """A full barrier, an empty one, and the tile that the slot belongs to; of a batch with its matrix."""
        return 2 * BARRIER_BYTES + (2 * TILE_BYTES if self.sliced(problem).batch else TILE_BYTES)

    @property
    def partial_bytes(self) -> int:
        """Bytes of what the CTAs of a tile hand to this one: of each CTA fp32 values of the columns that this one
        stores, and for each consumer warp a full and an empty barrier. Source: Partials of split.cuh, which asserts it.
        """
        if self.split_k == 1:
            return 0
        warps = self.consumers * WARPGROUP_WARPS
        return self.split_k * self.tile_m * self.stored_n * 4 + warps * 2 * BARRIER_BYTES

    def smem_bytes(self, problem: Problem) -> int:
        """Bytes of dynamic shared memory that one CTA asks for.

        Shapes: stages x (tile_m + tile_n) x tile_k operands and their store slots, or what the narrow tiles need in the
        same place; for each slot of both rings its barriers and tile; one more barrier. Source: the Shared struct of
        ring.cuh, which asserts the same sum.
        """
        wide = self.stages * self.stage_bytes(problem) + self.store_bytes(problem)
        tail_stores = self.consumers * WARPGROUP_WARPS * self.tail_store_warp_bytes(problem)
        narrow = self.tail_stages(problem) * self.narrow_bytes(problem) + tail_stores
        slots = self.stages + self.tail_stages(problem)
        total = max(wide, narrow) + slots * self._slot_overhead_bytes(problem) + BARRIER_BYTES
        return -(-total // ATOM_BYTES) * ATOM_BYTES + self.partial_bytes

    def ctas_per_sm(self, problem: Problem, device: Device) -> int:
        """CTAs of one kernel that an SM has room for, at most 2.

        By shared memory, of which each takes 1 KB more than it asks for (CUDA programming guide), and by registers: one
        consumer's kernels use 48 to 64 a thread with 64 accumulators or fewer (NVRTC 13.5), and two consumers' as many
        as there are.
        """
        fits = 2 * (self.smem_bytes(problem) + 1024) <= device.smem_per_sm_bytes
        return 2 if fits and not self.moves_registers and self.accumulators <= 64 else 1

    @property
    def full_arrivals(self) -> int:
        """Arrivals that complete a full barrier: the producer's own; the bytes are counted apart."""
        return 1

    @property
    def empty_arrivals(self) -> int:
        """Arrivals that complete an empty barrier: one of each warp that reads the slot, of each peer."""
        return (1 if self.pingpong else self.consumers) * WARPGROUP_WARPS * self.peers

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Tile rows and tile columns of one matrix of out as it is computed, both rounded up to whole clusters."""
        problem = self.computed(problem)
        rows, columns = -(-problem.m // self.tile_m), -(-problem.n // self.tile_n)
        return (
            -(-rows // self.cluster_m) * self.cluster_m,
            -(-columns // self.cluster_n) * self.cluster_n,
        )

    def num_tiles(self, problem: Problem) -> int:
        """Tiles of all matrices of the batch, were all of them wide."""
        rows, columns = self.tiles(problem)
        return rows * columns * self.sliced(problem).num_matrices

    def wide_tiles(self, problem: Problem, grid: int) -> int:
        """How many tiles are TILE_N wide: those of the full waves where a narrow tail follows, else all.

        Worked example, 8192^3, 256x192 with tail_n = 80 on 132 CTAs: 32 x 43 tiles are 10 full waves and 56 tiles. The
        1320 wide ones are 41 columns and one more in 8 of the 32 rows; the 128 columns that are left of those rows and
        the 320 of the others are 8 x 2 + 24 x 4 = 112 narrow tiles. Together 10 + 80 / 192 = 10.4 waves instead of 11.
        """
        rows, columns = self.tiles(problem)
        wide = rows * columns // grid * grid
        if (
            self.tail_n == 0
            or self.sliced(problem).batch
            or wide == 0
            or self._narrow_waves(problem, grid, wide) >= 1.0
        ):
            return self.num_tiles(problem)
        return wide

    def narrow_tiles(self, problem: Problem, wide: int) -> int:
        """How many narrow tiles cover what `wide` tiles leave of out. schedule.cuh counts the same."""
        problem = self.computed(problem)
        rows, columns = self.tiles(problem)
        if wide >= rows * columns:
            return 0
        full, further = divmod(wide, rows)
        rest = problem.n - full * self.tile_n
        return further * max(0, -(-(rest - self.tile_n) // self.tail_n)) + (rows - further) * -(-rest // self.tail_n)

    def _narrow_waves(self, problem: Problem, grid: int, wide: int) -> float:
        """The time of the narrow tiles in units of one wide tile; there is a `tail_n`."""
        return -(-self.narrow_tiles(problem, wide) // grid) * self.tail_n / self.tile_n

    def has_too_many_tiles(self, problem: Problem) -> bool:
        """Whether the schedule cannot count the problem's tiles."""
        return self.num_tiles(problem) >= MAX_TILES

    def waves(self, problem: Problem, grid: int) -> tuple[int, int]:
        """Tiles that the busiest CTA computes: wide ones, and narrow ones."""
        wide = self.wide_tiles(problem, grid)
        return -(-wide // grid), -(-self.narrow_tiles(problem, wide) // grid)

    def stored_columns(self, problem: Problem) -> int:
        """Columns of out that one CTA stores of a tile: stored_n, or half of them where two make one of out: in whole
        blocks of 8, also of a tile that is not legal, whose bytes are asked for before its violations are."""
        return 8 * -(-self.stored_n // 16) if self.sliced(problem).gates else self.stored_n


def crosses_lines(problem: Problem, operand: str) -> bool:
    """Whether rows of "a" or "b" begin anywhere in a line of 128 bytes, so that 128 bytes of one lie in two."""
    pitch: int = getattr(problem, f"{operand}_pitch")
    return pitch * problem.dtype.size % SWIZZLE_BYTES != 0


def busiest_rows(extent: int, shares: int, box_rows: int) -> int:
    """Rows of a tile's `extent` that the busiest of `shares` CTAs loads, in boxes dealt out one by one."""
    return -(-extent // (box_rows * shares)) * box_rows


@cache
def _box_rows(extent: int, shares: int) -> int:
    """Rows of the boxes in which so many CTAs load a tile of so many rows: whole swizzle atoms of 8 rows, all alike.

    Where the atoms do not divide evenly, boxes are what keeps the busiest CTA's rows fewest, and a box as good as 8
    rows (a judgement: an instruction, and the request that it becomes). Worked examples: 128 rows of 4 CTAs are 4 boxes
    of 32; 72 of 4 are 3 of 24, and one CTA loads none; 72 of 2 are 3 of 24, two of the first CTA's; 176 of 4 are 11 of
    16, 3 of the busiest.
    """
    sizes = [rows for rows in range(ATOM_ROWS, extent + 1, ATOM_ROWS) if extent % rows == 0] or [extent]
    return min(sizes, key=lambda rows: busiest_rows(extent, shares, rows) // rows * (rows + ATOM_ROWS))


def store_columns(problem: Problem, tile_n: int) -> int:
    """Columns of one store slot of a tile `tile_n` wide: the widest TMA box, of which out need not be stored by TMA.

    Boxes are equal, so they divide the tile. A row of a slot is 32, 64 or 128 bytes under the swizzle of that width, or
    an odd multiple of 16 bytes without one: both keep rows below each other in different banks. Whole blocks of the 8
    columns that wgmma deals out: of fp32 these are 32 bytes, so that every slot is swizzled.
    Worked example: 200 columns of bf16 are 400 bytes, 25 times 16: one slot. 192 are 384 bytes: 3 slots of 128. 200 of
    fp32 are 800 bytes: 25 slots of 32, since neither 64 nor 128 divides them.
    """
    size = problem.out_dtype.size
    if problem.out_major == "m":  # stored transposed: rows of a slot are columns of the tile, of 16 values each
        return max(wide for wide in range(8, min(tile_n, TRANSPOSED_COLUMNS) + 1, 8) if tile_n % wide == 0)
    row_bytes = tile_n * size
    boxes = [wide for wide in range(8 * size, row_bytes + 1, 8 * size) if row_bytes % wide == 0]
    return max(wide for wide in boxes if wide % 32 == 16 or wide in (32, 64, 128)) // size
