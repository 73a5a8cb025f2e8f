"""How a product is computed: tiles, pipeline depth, roles, order. And the one home of what is legal.

A Config is what the model chooses among and what a caller may name. Its derived numbers (bytes, threads, registers,
arrivals) are computed here and nowhere else; the rendered header hands them to the kernel by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, cast

from tilewright.device import Device
from tilewright.dtypes import FP32, sums_of
from tilewright.epilogue_form import WRITTEN, Access, Form
from tilewright.errors import ConfigError
from tilewright.problem import MAX_PITCH_BYTES, TMA_ALIGNMENT_BYTES, Problem

Schedule = Literal["linear", "grouped"]
SCHEDULES: tuple[Schedule, ...] = ("linear", "grouped")

WARP_THREADS = 32
WARPGROUP_THREADS = 128
WARPGROUP_WARPS = 4
WGMMA_M = 64  # rows of one wgmma, PTX ISA
WGMMA_MAX_N = 256  # columns of one wgmma, PTX ISA
SWIZZLE_BYTES = 128  # bytes of a row of one swizzle atom
ATOM_BYTES = 1024  # 8 rows of 128 bytes: the period of the 128-byte swizzle
ATOM_ROWS = 8
STORE_ROWS = 16  # rows of one store slot: what one warp holds of a 64-row wgmma
BARRIER_BYTES = 8
TILE_BYTES = 8  # a Tile of schedule.cuh: row and column
MAX_SMEM_BYTES = 232448  # of a CTA on compute capability 9.0 (CUDA programming guide: 227 KB)
MAX_STAGES = 32  # of the smallest slots, 9 KB of a 64x8 tile, 25 fit
SPLITS: tuple[int, ...] = (1, 2, 4, 8)  # 8 CTAs is the largest cluster that every device takes (CUDA programming guide)
# CTAs below each other x side by side that load for each other; of more than 4 a share is hardly worth its load.
CLUSTERS: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
TRANSPOSED_COLUMNS = 64  # of a slot that is stored transposed, at most: 2 KB of 16-bit values a warp
MAX_TILES = 2**30  # schedule.cuh counts tiles in 32 bits
MAX_SLICES = 1024  # a judgement: 132 SMs have work for 264 slices of a single tile in two waves
MAX_SLICES_BYTES = 1 << 30  # of their sums: sums.cu counts chunks of 16 bytes in 32 bits, and no gain comes near

# Registers of an epilogue's steps, by how an array is reached: 16-bit values in pairs of columns, and any others, of
# which more are on their way. Source: 177 random compositions of up to five steps in random legal configs, half of them
# within 14 registers of the limit: 175 did not spill, one did, 12 bytes, and a split whose columns do not divide, of
# whose sums more are counted since (NVRTC 13.5, sm_90a, 2026-11-30). Of 191 others, all within 14 registers and most
# of kinds that were suspected, 13 did, 4 to 72 bytes (docs/decisions.md). Columns of m are the most: of each block 4
# addresses a pitch apart, which the compiler keeps.
_READ_REGISTERS: dict[Access, tuple[int, int]] = {"columns": (4, 8), "rows": (4, 4), "n": (16, 44), "m": (56, 56)}
_WRITTEN_REGISTERS: dict[Access, tuple[int, int]] = {"columns": (8, 8), "rows": (20, 20), "n": (16, 20), "m": (56, 56)}
_ACTIVATIONS = frozenset({"gelu", "silu", "gated"})
_ACTIVATION_REGISTERS = 12

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
    each other share tiles of b by multicast, and `cluster_n` side by side tiles of a; `group_m` tile rows walked
    together by the grouped schedule, and in them squares of `square` x `square` tiles (0: none); `store_slots` slots of
    16 rows a warp through which out leaves. `tail_n` is the width of the narrow tiles that take the last wave's place
    (0: none); `staggered` runs a consumer's first row block ahead of its second, so that each is stored while the other
    multiplies; `k_back_and_forth` walks k backwards on every second tile of a CTA.

    `swap` computes out^T = b^T a^T and stores it transposed, so that the columns of out meet wgmma's 64 rows and its
    rows the 8, 16, 24 ... columns: for few rows. Then tile_m counts columns of out and tile_n rows (computed()).
    `split_k` CTAs, a cluster, share each tile: every one multiplies its part of k, and they add up in their order.
    `slices` equal parts of k are products of their own, a batch (sliced()), each with fp32 sums of its own in scratch;
    a second kernel, sums.cu, adds them in their order and rounds once. With `dependent_sums` that one may start while
    the last tiles are computed; it waits for them before it reads.
    `dependent_launch` lets the kernel start while the one before it in the stream still runs; it waits for that one
    before it touches memory.
    """

    family: ClassVar[str] = "hopper"  # whose kernel it is for
    reader: ClassVar[str] = "TMA"  # what brings a and b into shared memory
    # The steps of an epilogue that its kernel is rendered with.
    steps: ClassVar[frozenset[str]] = frozenset(
        {"alpha", "beta", "bias", "scale", "relu", "gelu", "silu", "add", "gated", "aux", "row_amax"}
    )

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
    tail_n: int = 0
    staggered: bool = False
    k_back_and_forth: bool = False
    square: int = 0
    swap: bool = False
    split_k: int = 1
    dependent_launch: bool = False
    slices: int = 1
    dependent_sums: bool = False

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

    def beside_copies(self) -> Config:
        """This config for a kernel behind copies of its operands: it gets ready while they end, and waits for that."""
        return self.replace(dependent_launch=True)

    def __post_init__(self) -> None:
        """Keeps whole numbers of other libraries, NumPy's for one, as int. What is none is violations()' to refuse."""
        for field in _fields_of(cast("Hashable", type(self))):
            value = getattr(self, field.name)
            if _KINDS[field.type][0] is int and type(value) is not int and not isinstance(value, bool):
                with contextlib.suppress(TypeError):
                    object.__setattr__(self, field.name, operator.index(value))

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

        A producer of single matrices keeps the least that there is, 24 (PTX ISA: 24 .. 256). Multicast, batches, and
        panels of both operands need more state: with 24 they spilled 4 to 64 bytes, and multicast of a batch of several
        dimensions with 40 another 20 to 36; multicast of both operands 8 with 40, and of such a batch 8 with 56 (NVRTC
        13.5, 2026-11-30).
        Consumers have those at entry and what the producer gave up. Worked example: 2 consumers, 384 threads, 168 at
        entry: (384 x 168 - 128 x 24) / 256 = 240. One consumer has enough at entry, and nothing moves.
        """
        if not self.moves_registers:
            return self.entry_registers, self.entry_registers
        problem = self.computed(problem)
        is_simple = self.cluster == 1 and not problem.batch and (problem.a_major, problem.b_major) != ("m", "n")
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

    # -- legality ----------------------------------------------------------------------------------------------------

    def violations(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """Every reason why this config cannot run the problem on the device, in words with numbers; () when it can."""
        if wrong_types := self._wrong_types():
            return tuple(wrong_types)  # no rule below can be stated about a value that is no number
        if refused := [*self._slices_violations(problem), *self._epilogue_violations(problem)]:
            return (*refused, *self._shape_violations())  # there is no problem to state the others about
        problem = self.computed(problem)
        found = [*self._shape_violations(), *self._problem_violations(problem)]
        if device.sm != (9, 0):
            found.append(
                f"the hopper family uses wgmma and TMA, which compute capability 9.0 alone has; {device.name} has "
                f"{device.sm[0]}.{device.sm[1]}, which AmpereConfig is for"
            )
        if not found:  # the numbers below mean something only for a config that is sound in itself
            found += self._budget_violations(problem, device)
        return tuple(found)

    def check(self, problem: Problem, device: Device) -> None:
        """Raises ConfigError with every violation when there is one."""
        found = self.violations(problem, device)
        if found:
            raise ConfigError(str(self), found)

    def _wrong_types(self) -> list[str]:
        """Fields whose value is not of their kind."""
        return [
            f"{field.name} = {value!r} is not {_KINDS[field.type][1]}"
            for field in _fields_of(cast("Hashable", type(self)))
            for value in [getattr(self, field.name)]
            if type(value) is not _KINDS[field.type][0]
        ]

    def _shape_violations(self) -> list[str]:
        found = []
        if self.consumers not in (1, 2):
            found.append(f"consumers = {self.consumers} is outside 1 .. 2")
        else:
            step = WGMMA_M * (1 if self.pingpong else self.consumers)
            if self.tile_m < 1 or self.tile_m % step or self.tile_m > 256:
                found.append(f"tile_m = {self.tile_m} is not a multiple of {step} (64 rows a consumer) up to 256")
            elif self.staggered and (self.pingpong or self.wgmmas_m != 2):
                blocks = "ping-pong already hides the stores" if self.pingpong else f"not {self.wgmmas_m}"
                found.append(f"staggered = True is for consumers that share tiles and have 2 row blocks; {blocks}")
        if self.pingpong and self.consumers != 2:
            found.append(f"pingpong = True alternates between 2 consumers, not {self.consumers}")
        if self.tail_n and (self.tail_n % 8 or not 8 <= self.tail_n < self.tile_n):
            found.append(f"tail_n = {self.tail_n} is not 0 or a multiple of 8 below tile_n = {self.tile_n}")
        if self.tail_n and (self.cluster != 1 or self.pingpong):
            found.append(f"tail_n = {self.tail_n} is for single CTAs whose consumers share their tiles")
        if self.tile_n % 8 or not 8 <= self.tile_n <= WGMMA_MAX_N:
            found.append(f"tile_n = {self.tile_n} is not a multiple of 8 from 8 to {WGMMA_MAX_N}, the widths of wgmma")
        if not 2 <= self.stages <= MAX_STAGES:
            found.append(f"stages = {self.stages} is outside 2 .. {MAX_STAGES}")
        if (self.cluster_m, self.cluster_n) not in CLUSTERS:
            known = ", ".join(f"{rows} x {columns}" for rows, columns in CLUSTERS)
            found.append(f"cluster_m x cluster_n = {self.cluster_m} x {self.cluster_n} is not one of {known}")
        if self.schedule not in SCHEDULES:
            found.append(f"schedule = {self.schedule!r} is not one of {', '.join(SCHEDULES)}")
        if not 1 <= self.group_m <= 65536:
            found.append(f"group_m = {self.group_m} is outside 1 .. 65536")
        if not 0 <= self.square <= 65536:
            found.append(f"square = {self.square} is outside 0 .. 65536")
        if not 1 <= self.store_slots <= 8:
            found.append(f"store_slots = {self.store_slots} is outside 1 .. 8")
        if self.split_k not in SPLITS:
            found.append(
                f"split_k = {self.split_k} is not one of {', '.join(map(str, SPLITS))}, the sizes of a cluster"
            )
        elif self.split_k > 1 and self.sharing > 1:
            found.append(
                f"split_k = {self.split_k} takes the whole cluster; cluster_m x cluster_n = {self.cluster_m} x "
                f"{self.cluster_n} is not 1 x 1"
            )
        for name, value in (("swap", self.swap), ("split_k", self.split_k if self.split_k > 1 else False)):
            forms = [form for form in ("pingpong", "staggered", "tail_n") if getattr(self, form)]
            if value and forms:
                found.append(f"{name} = {value} is for consumers that share wide tiles, not for {', '.join(forms)}")
        return found

    def _slices_violations(self, problem: Problem) -> list[str]:
        """Of a problem that is not sliced yet."""
        if self.slices == 1:
            return ["dependent_sums = True is for slices; there are none"] if self.dependent_sums else []
        if not 1 <= self.slices <= MAX_SLICES:
            return [f"slices = {self.slices} is outside 1 .. {MAX_SLICES}"]
        if problem.batch and not problem.out_is_padded:
            return [f"slices = {self.slices} is for a single product, not for a batch {problem.batch}"]
        found = []
        step = TMA_ALIGNMENT_BYTES // problem.dtype.size
        if not problem.batch and problem.k % (self.slices * step):
            found.append(
                f"slices = {self.slices} of k = {problem.k} are not parts of whole {TMA_ALIGNMENT_BYTES}-byte steps; "
                f"use a k that is a multiple of {self.slices * step}, or fewer slices"
            )
        sliced = self.sliced(problem)
        if any(stride * problem.dtype.size >= MAX_PITCH_BYTES for stride in (*sliced.a_batch, *sliced.b_batch)):
            found.append(f"slices = {self.slices} lie 2^40 bytes apart or more, which no tensor map takes")
        if (num_bytes := self.slices_bytes(problem)) > MAX_SLICES_BYTES:
            found.append(
                f"slices = {self.slices} of {problem.m} x {problem.n} fp32 sums are {num_bytes} bytes of scratch, more "
                f"than {MAX_SLICES_BYTES}; such a product has tiles enough without"
            )
        return found

    def _epilogue_violations(self, problem: Problem) -> list[str]:
        """Of a problem as it is given."""
        form = problem.epilogue
        if form is None:
            return []
        found = [
            f"{step.kind} is no step of the {self.family} family's epilogues"
            for step in form.steps
            if step.kind not in self.steps
        ]
        if form.is_gated and self.slices == 1:  # sums of slices are gated where they are added up
            found += self._gated_violations(problem)
        return found

    def _gated_violations(self, problem: Problem) -> list[str]:
        forms = [form for form in ("swap", "tail_n") if getattr(self, form)]
        if self.split_k > 1:
            forms.append("split_k")
        found = [f"{form}: a gated epilogue needs both halves of a tile's columns in one CTA" for form in forms]
        step = 16 * self.cluster_m if problem.b_major == "k" else 2 * SWIZZLE_BYTES // problem.dtype.size
        if self.tile_n % step:
            found.append(
                f"tile_n = {self.tile_n} of a gated epilogue is not a multiple of {step}: half of its columns are gates"
            )
        return [*found, *problem.gate_refusals]

    def stored_columns(self, problem: Problem) -> int:
        """Columns of out that one CTA stores of a tile: stored_n, or half of them where two make one of out: in whole
        blocks of 8, also of a tile that is not legal, whose bytes are asked for before its violations are."""
        return 8 * -(-self.stored_n // 16) if self.sliced(problem).gates else self.stored_n

    def _problem_violations(self, problem: Problem) -> list[str]:
        if not problem.is_for_wgmma:
            return [f"the hopper family multiplies bf16 and fp16 with fp32 sums; {problem} is for AmpereConfig"]
        found = []
        if self.tile_k * problem.dtype.size != SWIZZLE_BYTES:
            found.append(
                f"tile_k = {self.tile_k} of {problem.dtype} is not one {SWIZZLE_BYTES}-byte swizzle row; "
                f"use {SWIZZLE_BYTES // problem.dtype.size}"
            )
        if problem.b_major == "n" and self.tile_n % (SWIZZLE_BYTES // problem.dtype.size):
            operand = "m-contiguous a" if self.swap else "n-contiguous b"
            found.append(
                f"tile_n = {self.tile_n} of an {operand} is not a multiple of "
                f"{SWIZZLE_BYTES // problem.dtype.size}, the columns of one {SWIZZLE_BYTES}-byte swizzle row"
            )
        if problem.b_major == "n" and self.tail_n % (SWIZZLE_BYTES // problem.dtype.size):
            found.append(
                f"tail_n = {self.tail_n} of an n-contiguous b is not a multiple of "
                f"{SWIZZLE_BYTES // problem.dtype.size}"
            )
        if self.tail_n and problem.batch:
            found.append(f"tail_n = {self.tail_n} is for a single product, not for a batch {problem.batch}")
        if self.staggered and problem.out_dtype.size != 2:
            found.append(f"staggered = True keeps rounded 16-bit values, and out is {problem.out_dtype}")
        if self.staggered and problem.k <= self.tile_k:
            found.append(f"staggered = True needs two k tiles or more; k = {problem.k} is one")
        if self.split_k > 1 and -(-problem.k // self.tile_k) < self.split_k:
            tiles = -(-problem.k // self.tile_k)
            found.append(f"split_k = {self.split_k} needs a k tile for each CTA; k = {problem.k} has only {tiles}")
        return found

    def _budget_violations(self, problem: Problem, device: Device) -> list[str]:
        found = []
        if self.has_too_many_tiles(problem):
            rows, columns = self.tiles(problem)
            matrices = f"{problem.num_matrices} x " if problem.batch else ""
            fewest = -(-problem.m // 256) * -(-problem.n // 128) * problem.num_matrices  # that tile is always legal
            works = "split the product along m or n" if fewest >= MAX_TILES else "use a larger tile, such as 256x128"
            found.append(f"{matrices}{rows} x {columns} tiles are past the 2^30 that the schedule counts; {works}")
        if self.cluster > device.num_sms:
            found.append(f"clusters of {self.cluster} CTAs do not fit the {device.num_sms} SMs of {device.name}")
        if self.tail_n and self.tail_stages(problem) < 2:
            found.append(
                f"tail_n = {self.tail_n} leaves room for fewer than 2 slots of {self.narrow_bytes(problem)} bytes"
            )
        smem = self.smem_bytes(problem)
        if smem > device.smem_per_cta_bytes:
            partials = f" and {self.partial_bytes} of partial sums" if self.split_k > 1 else ""
            found.append(
                f"{self.stages} stages of {self.stage_bytes(problem)} bytes and {self.store_bytes(problem)} bytes of "
                f"store slots{partials} are {smem} bytes of shared memory; {device.name} gives a CTA "
                f"{device.smem_per_cta_bytes}"
            )
        state, (_, registers) = self._state_registers(problem), self.registers(problem)
        if self.split_k > 1 and problem.epilogue is not None:  # sums that are made while an epilogue waits for them
            state += self.wgmmas_m * self.stored_n * 5 // 4  # 2.5 times as many: ptxas loads further ones meanwhile
        if self.accumulators + state > registers:
            found.append(
                f"{self.accumulators} accumulators a thread and {state} registers of state exceed the "
                f"{registers} registers of a consumer; use a smaller tile"
                + (" or 2 consumers" if self.consumers == 1 else " or no pingpong" if self.pingpong else "")
            )
        return found

    def _state_registers(self, problem: Problem) -> int:
        """Registers of a consumer beside its accumulators: addresses, descriptors, the tile, the way out.

        Source: with these none of 640 random legal configs spilled or had its wgmmas serialised, half of them near the
        limit (NVRTC 13.5, 2026-11-30). With less: 8 of 8 spilled through TMA at 24, and 2 of 11 with fp32 out at 31.
        Batches of one dimension need no more, since a consumer finds its matrix when it stores; of several 2 of 65
        spilled at 31. Where out is stored without TMA, whatever its type and the batch, 1 of 165 with 31 to 48 spilled
        (16 bytes; staggered, a tail, one consumer), and 15 of 15 at 24; stored element by element, as a transposed one
        is, 43 of 63 did at 24 to 40. In clusters that share both operands a lane also keeps the rank that it tells of
        free slots; 4 more are taken to be enough, and of 120 random legal ones none spilled.
        """
        batch = 4 if len(problem.batch) > 1 else 0
        batch += 0 if problem.epilogue is None else epilogue_registers(problem.epilogue, len(problem.batch) > 1)
        peers = 4 if self.shares_both else 0
        if not problem.out_through_tma:
            return peers + (31 + (batch if problem.epilogue else 0) if problem.out_major == "n" else 44 + batch)
        return peers + (32 if problem.out_dtype.size == 4 else 28) + batch

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
            + (f" squares{self.square}" if self.square else "")
            + (f" tail{self.tail_n}" if self.tail_n else "")
            + (" staggered" if self.staggered else "")
            + (" k-back-and-forth" if self.k_back_and_forth else "")
            + (" swap" if self.swap else "")
            + (f" split{self.split_k}" if self.split_k != 1 else "")
            + (" dependent" if self.dependent_launch else "")
            + (f" slices{self.slices}" if self.slices != 1 else "")
            + (" dependent-sums" if self.dependent_sums else "")
        )


def epilogue_registers(form: Form, has_dimensions: bool) -> int:
    """Registers of a consumer for an epilogue, of a problem as it is computed: addresses of arrays and how far they go,
    values on their way, what activations hold meanwhile. `has_dimensions`: the batch has several.
    """
    found = _ACTIVATION_REGISTERS if any(step.kind in _ACTIVATIONS for step in form.steps) else 0
    for step in form.steps:
        if step.array is not None:
            access = step.array.access
            lean, other = _WRITTEN_REGISTERS[access] if step.kind in WRITTEN else _READ_REGISTERS[access]
            is_lean = step.array.is_paired and step.array.dtype.size == 2
            found += (lean if is_lean else other) + (2 if has_dimensions else 0)
    return found


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


@cache
def _fields_of(kind: Hashable) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a kind of config; once: a choice looks at them hundreds of times."""
    return dataclasses.fields(cast("type[Config]", kind))


def changes_from(words: Iterable[str]) -> dict[str, int | bool | str]:
    """Fields of a Config from KEY=VALUE words: whole numbers, True and False become what they say, the rest stays text.

    Raises: ConfigError: a word without its "=" or with two, a key given twice. What values may be, violations() says.
    """
    changes: dict[str, int | bool | str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ConfigError("of the command line", [f"{word!r} is not KEY=VALUE, such as tile_n=192"])
        if "=" in value:
            raise ConfigError("of the command line", [f"{word!r} is more than one KEY=VALUE; give each by itself"])
        if key in changes:
            raise ConfigError("of the command line", [f"{key} is given twice: {changes[key]} and {value}"])
        if value.lower() in ("true", "false"):
            changes[key] = value.lower() == "true"
        else:
            # 18 digits: int() refuses thousands of them, and no field is near 10^18
            changes[key] = int(value) if re.fullmatch(r"[-+]?\d{1,18}", value) else value
    return changes
