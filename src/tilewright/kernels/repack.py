"""The copy that makes an operand readable by TMA: which one needs it, where the copy lies, and its kernel's launch.

It computes no product, so it is no Family. Knows nothing of who allocates the copies or who runs what.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from tilewright.backends.base import Argument, IntsArgument, Launch, PointerArgument
from tilewright.device import Device
from tilewright.dtypes import DType
from tilewright.jit.source import Source
from tilewright.kernels.render import constants_header, unit
from tilewright.problem import Problem
from tilewright.tma import MAX_BATCH_DIMS, TMA_ALIGNMENT_BYTES

NAME = "repack"
CHUNK_BYTES = 16  # that one thread moves at once
LINE_BYTES = 128  # rows of a copy start at multiples of it: whole lines of the L2
THREADS = 256
STRIP_LANES = 8  # that share a strip of a long row: a line at once
# A row is cut into strips where they leave at most this share of their chunks empty: 128 chunks are 8 strips of 16, and
# 129 are 9. A chunk by itself costs 67 instructions, one of a full strip 49 (SASS of NVRTC 13.5, both loops).
MAX_IDLE = 0.5

Operands = tuple[str, ...]  # of "a" and "b", in this order


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How the kernel is cut. Units: 16-byte chunks in flight a thread, and those of a strip that are a lane's.

    Source of the defaults: measured, H200, 2026-11-30, commit f23e8be, the copies alone, cold: 4095^3 in 35.3 us, where
    one wave takes 37.3, 4 chunks in strips of 4 with 4 CTAs an SM 36.1, and one wave of those 37.6; 2047^3 10.5, 10.6,
    10.7, 10.7; 1535^3 6.75, 6.88, 7.02, 7.27; 1023^3 4.05, 4.06, 4.10, 4.10; no cut that was measured is faster by more
    than 0.1 % anywhere (`benchmarks/unaligned.py --variants`).
    """

    chunks: int = 2
    strip: int = 2
    ctas_per_sm: int = 6  # 48 KiB in flight an SM
    waves: int = 1000  # of such CTAs, at most; 1: each stays for all that it has to do

    def __str__(self) -> str:
        waves = "" if self.waves == 1 else f", up to {self.waves} waves"
        return f"{self.chunks} chunks in strips of {self.strip}, {self.ctas_per_sm} CTAs an SM{waves}"

    @property
    def strip_chunks(self) -> int:
        """Chunks of a strip."""
        return self.strip * STRIP_LANES


SHAPE = Shape()


def scratch_name(operand: str) -> str:
    """What arguments call an operand's copy."""
    return f"scratch_{operand}"


def repacked(problem: Problem, operands: Operands) -> Problem:
    """The product of the copies of these operands and of the others as they are: what the product's kernel is made for.

    Rows of a copy are padded to LINE_BYTES, its matrices lie one behind the other, one that many products share once.
    The pitch of an operand of one row, which reaches no second row, becomes one that TMA takes.
    """
    changes: dict[str, object] = {}
    for operand in ("a", "b"):
        rows, extent = problem.rows_of(operand)
        if operand in operands:
            pitch, batch = _copied(problem, operand)
            changes |= {f"{operand}_pitch": pitch, f"{operand}_batch": batch}
            changes[f"{operand}_align_bytes"] = TMA_ALIGNMENT_BYTES
        elif rows == 1:
            changes[f"{operand}_pitch"] = _padded(extent, problem.dtype, TMA_ALIGNMENT_BYTES)
    return dataclasses.replace(problem, **changes)  # type: ignore[arg-type]  # names and types of its fields


def scratch_bytes(problem: Problem, operand: str) -> int:
    """Bytes of an operand's copy."""
    rows, _ = problem.rows_of(operand)
    pitch, batch = _copied(problem, operand)
    matrices = math.prod(extent for extent, stride in zip(problem.batch, batch, strict=True) if stride)
    return matrices * rows * pitch * problem.dtype.size


def moved_bytes(problem: Problem, operands: Operands) -> tuple[int, int]:
    """Bytes that the copies read at least, rows that are one and the same once, and bytes that they write."""
    read = written = 0
    for operand in operands:
        rows, extent = problem.rows_of(operand)
        strides = getattr(problem, f"{operand}_batch")
        row_bytes = extent * problem.dtype.size
        matrices = math.prod(count for count, stride in zip(problem.batch, strides, strict=True) if stride)
        read += matrices * row_bytes * (rows if getattr(problem, f"{operand}_pitch") else 1)
        written += matrices * row_bytes * rows
    return read, written


def source(problem: Problem, device: Device, shape: Shape = SHAPE) -> Source:
    """The unit: one for single products, one for batches."""
    constants: dict[str, int | bool | str] = {
        "THREADS": THREADS,
        "CTAS_PER_SM": shape.ctas_per_sm,
        "CHUNKS": shape.chunks,
        "STRIP": shape.strip,
        "STRIP_LANES": STRIP_LANES,
        "DIMS": _dims(problem),
    }
    name = f"{NAME}_batch" if problem.batch else NAME
    return unit(name, f"{NAME}.cu", NAME, {"config.cuh": constants_header(constants)}, device)


def launch(
    problem: Problem, operands: Operands, device: Device, num_sms: int | None = None, shape: Shape = SHAPE
) -> Launch:
    """As many CTAs as leave no thread without a chunk, but no more than the waves of the shape; with `num_sms`, which
    is a promise to leave the other SMs alone, one wave of that many SMs."""
    most = device.num_sms * shape.waves if num_sms is None else num_sms
    needed = sum(_needed_ctas(problem, operand, shape) for operand in operands)
    return Launch(grid=min(needed, most * shape.ctas_per_sm), block=THREADS, cluster=1, smem_bytes=0)


def arguments(problem: Problem, operands: Operands, launch: Launch, shape: Shape = SHAPE) -> tuple[Argument, ...]:
    """The parameters of repack in order; of a single operand the second half says that there is nothing to do."""
    found: list[Argument] = []
    shares = (*_shares(problem, operands, launch.grid, shape), 0)
    for operand, num_ctas in zip((*operands, operands[0])[:2], shares, strict=False):
        is_long = _has_long_rows(problem, operand, shape)
        dims = _dimensions(problem, operand, shape)
        groups = num_ctas * launch.block // (STRIP_LANES if is_long else 1)
        row_bytes = problem.rows_of(operand)[1] * problem.dtype.size
        numbers = (row_bytes, num_ctas, int(is_long), *(extent for extent, _, _ in dims), *_digits(groups, dims))
        strides = (*(stride for _, stride, _ in dims), *(stride for _, _, stride in dims))
        found += [
            PointerArgument(operand, problem.extent_bytes[operand], granule_bytes=CHUNK_BYTES),
            PointerArgument(scratch_name(operand), scratch_bytes(problem, operand)),
            IntsArgument(f"{operand}_matrices", (*numbers, *strides)),
        ]
    return tuple(found)


def _row_chunks(problem: Problem, operand: str) -> int:
    """Chunks of one row, the last perhaps in part."""
    return -(-problem.rows_of(operand)[1] * problem.dtype.size // CHUNK_BYTES)


def _has_long_rows(problem: Problem, operand: str, shape: Shape) -> bool:
    """Whether rows are cut into strips, and not into chunks."""
    chunks = _row_chunks(problem, operand)
    strips = -(-chunks // shape.strip_chunks)
    return chunks >= (1 - MAX_IDLE) * strips * shape.strip_chunks


def _needed_ctas(problem: Problem, operand: str, shape: Shape) -> int:
    """CTAs whose threads all have their chunks at once."""
    units = math.prod(extent for extent, _, _ in _dimensions(problem, operand, shape))
    chunks = units * (
        shape.strip_chunks if _has_long_rows(problem, operand, shape) else 1
    )  # of strips the empty ones too
    return -(-chunks // (THREADS * shape.chunks))


def _shares(problem: Problem, operands: Operands, grid: int, shape: Shape) -> tuple[int, ...]:
    """How many of the CTAs copy each operand: as they are needed, at least one."""
    if len(operands) == 1:
        return (grid,)
    first, second = (_needed_ctas(problem, operand, shape) for operand in operands)
    share = min(grid - 1, max(1, round(grid * first / (first + second))))
    return share, grid - share


def _dims(problem: Problem) -> int:
    """Dimensions of the kernel: chunks and rows, and those of a batch."""
    return 2 + (MAX_BATCH_DIMS if problem.batch else 0)


def _padded(extent: int, dtype: DType, step_bytes: int) -> int:
    """Elements of a row, its bytes rounded up to whole steps."""
    step = step_bytes // dtype.size
    return -(-max(extent, 1) // step) * step


def _copied(problem: Problem, operand: str) -> tuple[int, tuple[int, ...]]:
    """The pitch and the batch strides of an operand's copy, in elements."""
    rows, extent = problem.rows_of(operand)
    pitch = _padded(extent, problem.dtype, LINE_BYTES)
    strides: list[int] = []
    matrix = rows * pitch
    for count, stride in zip(reversed(problem.batch), reversed(getattr(problem, f"{operand}_batch")), strict=True):
        strides.append(matrix if stride else 0)
        matrix *= count if stride else 1
    return pitch, tuple(reversed(strides))


def _dimensions(problem: Problem, operand: str, shape: Shape) -> list[tuple[int, int, int]]:
    """(extent, source stride, target stride) of the kernel's dimensions, the fastest, units of a row, first. Strides in
    bytes."""
    size = problem.dtype.size
    rows, _ = problem.rows_of(operand)
    pitch, batch = _copied(problem, operand)
    unit_chunks = shape.strip_chunks if _has_long_rows(problem, operand, shape) else 1
    unit_bytes = unit_chunks * CHUNK_BYTES
    found = [
        (-(-_row_chunks(problem, operand) // unit_chunks), unit_bytes, unit_bytes),
        (rows, getattr(problem, f"{operand}_pitch") * size, pitch * size),
    ]
    held = zip(problem.batch, getattr(problem, f"{operand}_batch"), batch, strict=True)
    found += [(count, stride * size, copied * size) for count, stride, copied in reversed(list(held)) if stride]
    return found + [(1, 0, 0)] * (_dims(problem) - len(found))


def _digits(number: int, dims: list[tuple[int, int, int]]) -> list[int]:
    """The number in digits whose bases are the extents, the lowest first; the last takes what is left."""
    found = []
    for extent, _, _ in dims[:-1]:
        number, digit = divmod(number, extent)
        found.append(digit)
    return [*found, number]
