"""The copy that makes an operand readable by TMA: which one needs it, where the copy lies, and its kernel's launch.

It computes no product, so it is no Family. Knows nothing of who allocates the copies or who runs what.
"""

from __future__ import annotations

import dataclasses
import math

from tilewright.backends.base import Argument, IntsArgument, Launch, PointerArgument
from tilewright.device import Device
from tilewright.dtypes import DType
from tilewright.jit.source import Source
from tilewright.kernels.render import constants_header, unit
from tilewright.problem import MAX_BATCH_DIMS, TMA_ALIGNMENT_BYTES, Problem

NAME = "repack"
CHUNK_BYTES = 16  # that one thread moves at once
LINE_BYTES = 128  # rows of a copy start at multiples of it: whole lines of the L2
THREADS = 256
CHUNKS = 4  # in flight a thread
CTAS_PER_SM = 4  # 64 KiB in flight an SM

Operands = tuple[str, ...]  # of "a" and "b", in this order


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


def source(problem: Problem, device: Device) -> Source:
    """The unit: one for single products, one for batches."""
    constants: dict[str, int | bool | str] = {
        "THREADS": THREADS,
        "CTAS_PER_SM": CTAS_PER_SM,
        "CHUNKS": CHUNKS,
        "DIMS": _dims(problem),
    }
    name = f"{NAME}_batch" if problem.batch else NAME
    return unit(name, f"{NAME}.cu", NAME, {"config.cuh": constants_header(constants)}, device)


def launch(problem: Problem, operands: Operands, device: Device, num_sms: int | None = None) -> Launch:
    """As many CTAs as fill `num_sms` SMs (default: all), or fewer that leave no thread without a chunk."""
    chunks = sum(math.prod(extent for extent, _, _ in _dimensions(problem, operand)) for operand in operands)
    needed = -(-chunks // (THREADS * CHUNKS))
    sms = device.num_sms if num_sms is None else num_sms
    return Launch(grid=max(1, min(needed, sms * CTAS_PER_SM)), block=THREADS, cluster=1, smem_bytes=0)


def arguments(problem: Problem, operands: Operands, launch: Launch) -> tuple[Argument, ...]:
    """The parameters of repack in order; of a single operand the second half says that there is nothing to do."""
    threads = launch.grid * launch.block
    found: list[Argument] = []
    done = 0  # chunks before
    for operand in (*operands, operands[0])[:2]:
        dims = _dimensions(problem, operand)
        chunks = math.prod(extent for extent, _, _ in dims)
        extents = [extent for extent, _, _ in dims]
        if len(found) // 3 == len(operands):
            extents[-1] = 0
        row_bytes = problem.rows_of(operand)[1] * problem.dtype.size
        numbers = (row_bytes, done % threads, *extents, *_digits(threads, dims))
        strides = (*(stride for _, stride, _ in dims), *(stride for _, _, stride in dims))
        found += [
            PointerArgument(operand, problem.extent_bytes[operand], granule_bytes=CHUNK_BYTES),
            PointerArgument(scratch_name(operand), scratch_bytes(problem, operand)),
            IntsArgument(f"{operand}_matrices", (*numbers, *strides)),
        ]
        done += chunks
    return tuple(found)


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


def _dimensions(problem: Problem, operand: str) -> list[tuple[int, int, int]]:
    """(extent, source stride, target stride) of the kernel's dimensions, the fastest first. Strides in bytes."""
    size = problem.dtype.size
    rows, extent = problem.rows_of(operand)
    pitch, batch = _copied(problem, operand)
    found = [
        (-(-extent * size // CHUNK_BYTES), CHUNK_BYTES, CHUNK_BYTES),
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
