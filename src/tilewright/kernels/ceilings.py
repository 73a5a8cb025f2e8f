"""What a card does at most, as kernels: wgmma or mma.sync alone, reads alone, copies alone, and nothing at all.

Knows each kernel's source, constants, launch and arguments, on the road of every other kernel: a Source, a Launch and
arguments. bench/ceilings.py gives them operands and times them. They compute no product, so they are no Family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tilewright import dtypes
from tilewright.backends.base import Argument, IntArgument, Launch, MapArgument, PointerArgument, TensorMap
from tilewright.device import Device
from tilewright.dtypes import DType
from tilewright.jit.source import Source
from tilewright.kernels.render import constants_header, unit, wgmma_header
from tilewright.tiling import ATOM_BYTES, BARRIER_BYTES, SWIZZLE_BYTES, WARP_THREADS, WARPGROUP_THREADS, WGMMA_M

CHUNK_BYTES = 16384  # of one bulk copy: 13 in flight an SM are 208 KiB, as the rates of device.py were measured
CHUNK_SLOTS = 13
CHUNK_ALIGNMENT_BYTES = 128  # of Chunks in chunks.cuh
READ_THREADS = 256  # a chunk is 4 reads of 16 bytes a thread: under a third of the time that the L2 takes to deliver it
COPY_THREADS = 32
COPY_PENDING = 5  # chunks that may be on their way out; the other 8 slots are being filled
TICKS = 2  # cycles and nanoseconds, 8 bytes each


@dataclass(frozen=True, kw_only=True)
class Ceiling(ABC):
    """One kernel that does one thing only. `entry` is the extern "C" function and names the file."""

    entry: str

    @property
    def name(self) -> str:
        """Which one it is, in rows and profilers."""
        return self.entry

    @property
    def smem_bytes(self) -> int:
        """Bytes of dynamic shared memory a CTA."""
        return 0

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads a CTA."""

    def source(self, device: Device, wait_limit: int = 0) -> Source:
        """What it is compiled from. `wait_limit` bounds its waits in a debug build."""
        name = f"ceiling_{self.name.replace(' ', '_')}"
        return unit(name, f"ceilings/{self.entry}.cu", self.entry, self.headers(wait_limit), device)

    def headers(self, wait_limit: int) -> dict[str, str]:
        """The rendered headers by path."""
        return {"config.cuh": constants_header(self.constants() | {"WAIT_LIMIT": wait_limit})}

    def constants(self) -> dict[str, int | bool | str]:
        """What its source reads of struct Config, but for the wait limit."""
        return {"THREADS": self.threads, "SMEM_BYTES": self.smem_bytes}

    def launch(self, num_ctas: int) -> Launch:
        """One wave of CTAs: their shared memory or registers leave room for one an SM."""
        return Launch(grid=num_ctas, block=self.threads, cluster=1, smem_bytes=self.smem_bytes)


@dataclass(frozen=True, kw_only=True)
class EmptyLaunch(Ceiling):
    """A kernel that does nothing, on CTAs of `block` threads."""

    entry: str = "empty_launch"
    block: int = 32

    @property
    def threads(self) -> int:
        """As asked for."""
        return self.block

    def arguments(self) -> tuple[Argument, ...]:
        """None."""
        return ()


@dataclass(frozen=True, kw_only=True)
class TensorLoop(Ceiling):
    """Multiplications alone: out (num_ctas x tile_m, tile_n) fp32 = passes x (a x b^T), num_sums times.

    Shapes: a (num_ctas x tile_m, k), b (tile_n, k).
    """

    dtype: DType = dtypes.BF16

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Rows and columns of a CTA, and values of k that it holds."""

    @property
    def k(self) -> int:
        """Values of k that a CTA holds."""
        return self.shape[2]

    def flops(self, num_ctas: int, num_sums: int, passes: int) -> int:
        """Operations of one launch."""
        tile_m, tile_n, k = self.shape
        return 2 * num_ctas * tile_m * tile_n * k * num_sums * passes

    @abstractmethod
    def arguments(self, num_ctas: int, num_sums: int, passes: int) -> tuple[Argument, ...]:
        """For operands a, b, out and ticks (num_ctas, TICKS) uint64."""

    def _results(self, num_ctas: int, num_sums: int, passes: int) -> tuple[Argument, ...]:
        tile_m, tile_n, _ = self.shape
        return (
            PointerArgument("out", num_ctas * tile_m * tile_n * dtypes.FP32.size),
            PointerArgument("ticks", num_ctas * TICKS * 8),
            IntArgument("num_sums", num_sums, 4),
            IntArgument("passes", passes, 4),
        )


@dataclass(frozen=True, kw_only=True)
class WgmmaLoop(TensorLoop):
    """Wgmmas alone, on operands that stay in shared memory.

    The instruction is m64 n`tile_n` k16; each of the consumers issues `wgmmas_m` of them, below each other, a k16 step.
    """

    entry: str = "tensor_loop"
    tile_n: int
    wgmmas_m: int
    slots: int
    consumers: int = 2
    tile_k: int = 64

    @property
    def name(self) -> str:
        """Type, instruction and tile: "wgmma bf16 m64n192k16 256x192"."""
        return f"wgmma {self.dtype} m{WGMMA_M}n{self.tile_n}k16 {self.tile_m}x{self.tile_n}"

    @property
    def threads(self) -> int:
        """The consumers alone."""
        return self.consumers * WARPGROUP_THREADS

    @property
    def tile_m(self) -> int:
        """Rows of a CTA."""
        return self.consumers * self.wgmmas_m * WGMMA_M

    @property
    def shape(self) -> tuple[int, int, int]:
        """All of k lies in shared memory."""
        return self.tile_m, self.tile_n, self.slots * self.tile_k

    @property
    def smem_bytes(self) -> int:
        """Bytes of Shared: the operands and one barrier, rounded up to the swizzle's period."""
        operands = self.slots * (self.tile_m + self.tile_n) * SWIZZLE_BYTES
        return -(-(operands + BARRIER_BYTES) // ATOM_BYTES) * ATOM_BYTES

    def constants(self) -> dict[str, int | bool | str]:
        """What tensor_loop.cu reads of struct Config."""
        return super().constants() | {
            "TILE_M": self.tile_m,
            "TILE_N": self.tile_n,
            "TILE_K": self.tile_k,
            "SLOTS": self.slots,
            "CONSUMERS": self.consumers,
            "WGMMAS_M": self.wgmmas_m,
        }

    def headers(self, wait_limit: int) -> dict[str, str]:
        """The constants, and the wgmma of this width and type."""
        wrapper = wgmma_header(self.tile_n, self.dtype, a_k_major=True, b_k_major=True)
        return super().headers(wait_limit) | {"wgmma_mma_async.cuh": wrapper}

    def arguments(self, num_ctas: int, num_sums: int, passes: int) -> tuple[Argument, ...]:
        """a and b through tensor maps."""
        return (
            MapArgument("a", self._map(num_ctas * self.tile_m, self.tile_m)),
            MapArgument("b", self._map(self.tile_n, self.tile_n)),
            *self._results(num_ctas, num_sums, passes),
        )

    def _map(self, rows: int, box_rows: int) -> TensorMap:
        return TensorMap(
            dtype=self.dtype,
            extents=(self.k, rows),
            pitches_bytes=(self.k * self.dtype.size,),
            box=(self.tile_k, box_rows),
            swizzle_bytes=SWIZZLE_BYTES,
        )


@dataclass(frozen=True, kw_only=True)
class MmaLoop(TensorLoop):
    """mma.sync m16n8k16 alone, on fragments that stay in registers: 8 warps of 64 x 64, 128 sums a thread."""

    entry: str = "mma_loop"
    fragments_m: int = 4
    fragments_n: int = 8
    warps_m: int = 2
    warps_n: int = 4

    @property
    def name(self) -> str:
        """Type, instruction and tile: "mma.sync bf16 m16n8k16 128x256"."""
        tile_m, tile_n, k = self.shape
        return f"mma.sync {self.dtype} m16n8k{k} {tile_m}x{tile_n}"

    @property
    def threads(self) -> int:
        """All of them multiply."""
        return self.warps_m * self.warps_n * WARP_THREADS

    @property
    def shape(self) -> tuple[int, int, int]:
        """One step of k lies in registers."""
        return self.warps_m * self.fragments_m * 16, self.warps_n * self.fragments_n * 8, 16

    def constants(self) -> dict[str, int | bool | str]:
        """What mma_loop.cu reads of struct Config."""
        tile_m, tile_n, _ = self.shape
        return super().constants() | {
            "TILE_M": tile_m,
            "TILE_N": tile_n,
            "FRAGMENTS_M": self.fragments_m,
            "FRAGMENTS_N": self.fragments_n,
            "WARPS_M": self.warps_m,
            "WARPS_N": self.warps_n,
            "IN_TYPE": f"Type::{self.dtype}",
        }

    def arguments(self, num_ctas: int, num_sums: int, passes: int) -> tuple[Argument, ...]:
        """a and b by their addresses."""
        tile_m, tile_n, k = self.shape
        return (
            PointerArgument("a", num_ctas * tile_m * k * self.dtype.size),
            PointerArgument("b", tile_n * k * self.dtype.size),
            *self._results(num_ctas, num_sums, passes),
        )


@dataclass(frozen=True, kw_only=True)
class Bulk(Ceiling):
    """A ring of chunks that bulk copies fill."""

    slots: int = CHUNK_SLOTS
    chunk_bytes: int = CHUNK_BYTES

    @property
    def smem_bytes(self) -> int:
        """Bytes of Chunks: the ring and a barrier a slot."""
        total = self.slots * (self.chunk_bytes + BARRIER_BYTES)
        return -(-total // CHUNK_ALIGNMENT_BYTES) * CHUNK_ALIGNMENT_BYTES

    def constants(self) -> dict[str, int | bool | str]:
        """What chunks.cuh reads of struct Config."""
        return super().constants() | {"SLOTS": self.slots, "CHUNK_BYTES": self.chunk_bytes}


@dataclass(frozen=True, kw_only=True)
class BulkRead(Bulk):
    """Reads of memory, every word of them added up."""

    entry: str = "bulk_read"

    @property
    def threads(self) -> int:
        """Those that add."""
        return READ_THREADS

    def arguments(self, num_ctas: int, num_chunks: int, passes: int) -> tuple[Argument, ...]:
        """For operands source (num_chunks x chunk_bytes) and sums (num_ctas, threads) uint32."""
        return (
            PointerArgument("source", num_chunks * self.chunk_bytes),
            PointerArgument("sums", num_ctas * self.threads * 4),
            IntArgument("num_chunks", num_chunks, 4),
            IntArgument("passes", passes, 4),
        )


@dataclass(frozen=True, kw_only=True)
class BulkCopy(Bulk):
    """Copies of memory. `pending` slots may be on their way out."""

    entry: str = "bulk_copy"
    pending: int = COPY_PENDING

    @property
    def threads(self) -> int:
        """One warp, of which one thread does everything."""
        return COPY_THREADS

    def constants(self) -> dict[str, int | bool | str]:
        """What bulk_copy.cu reads of struct Config."""
        return super().constants() | {"PENDING": self.pending}

    def arguments(self, num_chunks: int) -> tuple[Argument, ...]:
        """For operands source and target (num_chunks x chunk_bytes)."""
        num_bytes = num_chunks * self.chunk_bytes
        return (
            PointerArgument("source", num_bytes),
            PointerArgument("target", num_bytes),
            IntArgument("num_chunks", num_chunks, 4),
        )


def wgmma_loops(dtype: DType) -> tuple[WgmmaLoop, ...]:
    """The loops of one type: the widest instruction there is, and that of the largest production tile, 256 x 192."""
    return (
        WgmmaLoop(dtype=dtype, tile_n=256, wgmmas_m=1, slots=4),
        WgmmaLoop(dtype=dtype, tile_n=192, wgmmas_m=2, slots=4),
    )


def tensor_loops(dtype: DType) -> tuple[TensorLoop, ...]:
    """All loops of one type: those of wgmma, and what mma.sync does on the same card."""
    return (*wgmma_loops(dtype), MmaLoop(dtype=dtype))
