"""Where the elements of a matrix lie: in the registers of a warp or a warpgroup, and in shared memory for wgmma.

Every map is an index array, made once and read-only. Knows nothing of the machine, of values or of opcodes. Notation:
lane t of a warp is in group g = t / 4 at place q = t % 4; element e of a register counts from its low end.

Shared addresses are offsets in the CTA's window, whose first byte is at address `window_start`.
Source: PTX ISA, matrix fragments for mma, ldmatrix, wgmma; the canonical layouts of the wgmma matrix descriptor.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]
Map = tuple[Index, Index]
Operand = Literal["a", "b", "c", "d"]

REGISTER_BITS = 32
WARP_LANES = 32
CHUNK_BYTES = 16  # what swizzles move, and the row of a core matrix
CORE_ROWS = 8  # rows of a core matrix

# Code in bits 62-63 of a descriptor -> bytes of the swizzle's row. Source: PTX ISA, matrix descriptor format.
SWIZZLE_BYTES: dict[int, int] = {0: 0, 1: 128, 2: 64, 3: 32}
SWIZZLE_CODES: dict[int, int] = {size: code for code, size in SWIZZLE_BYTES.items()}


class OperandRangeError(ValueError):
    """A wgmma operand that leaves the CTA's shared memory."""


def _frozen(*arrays: NDArray[Any]) -> Any:
    result = tuple(np.ascontiguousarray(a, np.intp) for a in arrays)
    for array in result:
        array.flags.writeable = False
    return result if len(result) > 1 else result[0]


def _lanes(*shape: int) -> tuple[Index, Index, Index]:
    """(g, q, element numbers) that broadcast to (32, *shape)."""
    lane = np.arange(WARP_LANES).reshape(-1, *([1] * len(shape)))
    return lane // 4, lane % 4, np.arange(int(np.prod(shape))).reshape(1, *shape)


# -- warp: ldmatrix, stmatrix, mma -------------------------------------------------------------------------------------


@functools.cache
def ldmatrix_map(num: int, trans: bool) -> Map:
    """(lane, offset), each (32, num, 2): the 16-bit half e of register j of lane t lies `offset[t, j, e]` bytes after
    the row address that lane `lane[t, j, e]` gave. Not transposed, the two halves are one aligned word.

    Lanes 8 j .. 8 j + 7 give the rows of matrix j. stmatrix writes by the same map.
    """
    g, q, _ = _lanes(num, 2)
    matrix = np.arange(num).reshape(1, num, 1)
    half = np.arange(2).reshape(1, 1, 2)
    row, column = (2 * q + half, g + 0 * half) if trans else (g + 0 * half, 2 * q + half)
    shape = (WARP_LANES, num, 2)
    lane, offset = np.broadcast_to(8 * matrix + row, shape), np.broadcast_to(2 * column, shape)
    result: Map = _frozen(lane, offset)
    return result


@functools.cache
def mma_a(m: int, k: int, bits: int) -> Map:
    """(row, column of k) of each element of A, (32, elements). m is 16, or 8 for the 64-bit m8n8k4.

    A register holds 32 / bits elements along k (one of 64 bits takes two registers, and is one element here).
    """
    packed = max(REGISTER_BITS // bits, 1)
    g, q, element = _lanes(m * k // WARP_LANES)
    register, place = element // packed, element % packed
    row_blocks = m // 8
    row = g + 8 * (register % row_blocks)
    column = q * packed + place + 4 * packed * (register // row_blocks)
    result: Map = _frozen(row, column)
    return result


@functools.cache
def mma_b(k: int, n: int, bits: int) -> Map:
    """(row of k, column of n) of each element of B, (32, elements). n is 8."""
    packed = max(REGISTER_BITS // bits, 1)
    g, q, element = _lanes(k * n // WARP_LANES)
    register, place = element // packed, element % packed
    result: Map = _frozen(q * packed + place + 4 * packed * register, g + 0 * element)
    return result


@functools.cache
def mma_c(m: int, n: int) -> Map:
    """(row, column) of each element of C and D, (32, elements). 16-bit accumulators: the same order, two a register."""
    g, q, element = _lanes(m * n // WARP_LANES)
    block, within = element // (m // 4), element % (m // 4)  # blocks of 8 columns
    result: Map = _frozen(g + 8 * (within // 2), 8 * block + 2 * q + within % 2)
    return result


@functools.cache
def wmma_map(operand: Operand, m: int, n: int, k: int, bits: int) -> Map:
    """(row, column) of each element of a wmma fragment, (32, elements), for m16n16k16 and its 32x8 and 8x32 kin.

    PTX leaves this layout open: the emulator's choice is its own, and a kernel may only treat all elements alike.
    16-bit a and b hold each element twice, as PTX gives them 8 registers for 256 elements.
    """
    if operand in ("c", "d"):
        blocks = [(8 * i, 8 * j) for i in range(m // 8) for j in range(n // 8)]
        parts = [(r + i, c + j) for i, j in blocks for r, c in (mma_c(8, 8),)]
    elif operand == "a":
        parts = [(r + i, c) for i in range(0, m, 8) for r, c in (mma_a(8, k, bits),)]
    else:
        parts = [(r, c + j) for j in range(0, n, 8) for r, c in (mma_b(k, 8, bits),)]
    rows, columns = (np.concatenate([p[i] for p in parts], axis=1) for i in (0, 1))
    if operand in ("a", "b") and bits == 16:
        repeats = 16 // rows.shape[1]
        rows, columns = np.tile(rows, (1, repeats)), np.tile(columns, (1, repeats))
    result: Map = _frozen(rows, columns)
    return result


def scatter(where: Map, values: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """Matrices (..., *shape) from register elements (..., lanes, elements)."""
    matrix = np.zeros((*values.shape[:-2], *shape), values.dtype)
    matrix[..., where[0], where[1]] = values
    return matrix


def gather(where: Map, matrix: NDArray[Any]) -> NDArray[Any]:
    """Register elements (..., lanes, elements) of matrices (..., rows, columns)."""
    return np.asarray(matrix[..., where[0], where[1]])


# -- warpgroup: wgmma registers ----------------------------------------------------------------------------------------


def wgmma_k(bits: int) -> int:
    """Columns of k that one dense wgmma multiplies: 32 bytes of them."""
    return 256 // bits


def _stacked(where: Map) -> Map:
    """Four warps below each other, 16 rows each."""
    rows = np.concatenate([where[0] + 16 * warp for warp in range(4)])
    result: Map = _frozen(rows, np.tile(where[1], (4, 1)))
    return result


@functools.cache
def wgmma_d(n: int) -> Map:
    """(row, column) of each accumulator, (128, n / 2). f16: the same order, two a register."""
    return _stacked(mma_c(16, n))


@functools.cache
def wgmma_a(bits: int) -> Map:
    """(row, column of k) of each element of A in four registers, (128, 128 / bits); 64 rows, wgmma_k(bits) columns."""
    return _stacked(mma_a(16, wgmma_k(bits), bits))


# -- warpgroup: wgmma operands in shared memory ------------------------------------------------------------------------


@dataclass(frozen=True)
class Descriptor:
    """A wgmma matrix descriptor. Units: bytes, but `base_offset`: 128-byte lines, 0 .. 7."""

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle_bytes: int

    @property
    def period(self) -> int:
        """Bytes after which the swizzle repeats; 16 where there is none."""
        return 8 * self.swizzle_bytes or CHUNK_BYTES


def decode_descriptor(bits: int) -> Descriptor:
    """Source: PTX ISA, matrix descriptor format: five fields, addresses and offsets without their low 4 bits."""
    return Descriptor(
        start=(bits & 0x3FFF) << 4,
        leading=(bits >> 16 & 0x3FFF) << 4,
        stride=(bits >> 32 & 0x3FFF) << 4,
        base_offset=bits >> 49 & 7,
        swizzle_bytes=SWIZZLE_BYTES[bits >> 62 & 3],
    )


def encode_descriptor(descriptor: Descriptor) -> int:
    """The 64 bits of a descriptor; the start address goes modulo 2^18."""
    return (
        (descriptor.start & 0x3FFFF) >> 4
        | (descriptor.leading >> 4 & 0x3FFF) << 16
        | (descriptor.stride >> 4 & 0x3FFF) << 32
        | (descriptor.base_offset & 7) << 49
        | SWIZZLE_CODES[descriptor.swizzle_bytes] << 62
    )


def descriptor_violations(bits: int) -> tuple[str, ...]:
    """What is wrong with a descriptor whatever its operand, in words with numbers."""
    found = []
    unused = bits & ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62)
    if unused:
        found.append(f"bits {unused:#018x} of descriptor {bits:#018x} belong to no field")
    descriptor = decode_descriptor(bits)
    if descriptor.base_offset and not descriptor.swizzle_bytes:
        found.append(f"base offset {descriptor.base_offset} needs a swizzle, and the descriptor has none")
    return tuple(found)


def swizzled(address: NDArray[Any], swizzle_bytes: int, base_offset: int = 0) -> NDArray[Any]:
    """Addresses under the swizzle: the number of the 16-byte chunk, modulo the chunks of a row, XORed with the number
    of the 128-byte line, counted from `base_offset`.

    Source: PTX ISA, tensor swizzle modes; the base offset: golden vectors wgmma_base_offset_0 and _3.
    """
    if not swizzle_bytes:
        return address
    return np.asarray(address ^ ((((address >> 7) - base_offset) & (swizzle_bytes // CHUNK_BYTES - 1)) << 4))


def linear_offsets(descriptor: Descriptor, rows: int, k: int, bits: int, k_major: bool) -> Index:
    """Bytes of each element (row, column of k) after the start, before the swizzle, (rows, k).

    Without swizzle and with k not contiguous, leading and stride change their roles. Source: the canonical layouts of
    the matrix descriptor.
    """
    size = bits // 8
    per_chunk = CHUNK_BYTES // size
    row, column = np.arange(rows)[:, None], np.arange(k)[None, :]
    leading, stride, width = descriptor.leading, descriptor.stride, descriptor.swizzle_bytes
    if k_major and width:
        return np.asarray(row % 8 * width + row // 8 * stride + column * size)
    if k_major:
        return np.asarray(row % 8 * 16 + row // 8 * stride + column // per_chunk * leading + column % per_chunk * size)
    if width:
        panel = width // size
        return np.asarray(row % panel * size + row // panel * leading + column % 8 * width + column // 8 * stride)
    return np.asarray(row % per_chunk * size + row // per_chunk * stride + column % 8 * 16 + column // 8 * leading)


@dataclass(frozen=True, eq=False)
class _Located:
    """Where an operand lies: `base` plus offsets (rows, k), in bytes and in elements; `end` is one past its last byte,
    counted from base."""

    base: int
    byte_offsets: Index
    element_offsets: Index
    end: int


@functools.lru_cache(maxsize=4096)
def _offsets(descriptor: Descriptor, rows: int, k: int, bits: int, k_major: bool) -> tuple[Index, Index, int]:
    """Offsets and end of an operand that starts within the first period, so that all stages of a ring share them."""
    linear = descriptor.start + linear_offsets(descriptor, rows, k, bits, k_major)
    offsets: Index = _frozen(swizzled(linear, descriptor.swizzle_bytes, descriptor.base_offset))
    return offsets, _frozen(offsets // (bits // 8)), int(offsets.max()) + bits // 8


@functools.lru_cache(maxsize=65536)
def _located(bits_of_descriptor: int, rows: int, k: int, bits: int, k_major: bool) -> _Located:
    descriptor = decode_descriptor(bits_of_descriptor)
    within = descriptor.start % descriptor.period
    first = dataclasses.replace(descriptor, start=within)
    return _Located(descriptor.start - within, *_offsets(first, rows, k, bits, k_major))


def wgmma_offsets(descriptor: int, rows: int, k: int, bits: int, k_major: bool) -> tuple[int, Index]:
    """(base, offsets (rows, k)): element (r, c) lies at shared address base + offsets[r, c].

    `rows` is 64 for A and n for B; the second index runs along k. `base` is the start rounded down to the swizzle's
    period.
    """
    located = _located(descriptor, rows, k, bits, k_major)
    return located.base, located.byte_offsets


def wgmma_operand(
    smem: NDArray[np.uint8], descriptor: int, rows: int, k: int, bits: int, k_major: bool, window_start: int = 0
) -> NDArray[Any]:
    """The operand (rows, k) as unsigned elements, gathered from the bytes of shared memory.

    Raises: OperandRangeError: part of it lies outside.
    """
    located = _located(descriptor, rows, k, bits, k_major)
    first = located.base - window_start
    if first < 0 or first + located.end > smem.size:
        raise OperandRangeError(
            f"the operand reads shared addresses {located.base:#x} .. {located.base + located.end - 1:#x}, outside the "
            f"CTA's {window_start:#x} .. {window_start + smem.size - 1:#x}"
        )
    elements = smem[first : first + located.end].view(f"u{bits // 8}")
    return np.asarray(elements[located.element_offsets])


# -- structured sparsity -----------------------------------------------------------------------------------------------


def sparse_columns(metadata: NDArray[np.uint32], selector: int, k: int, bits: int) -> Index:
    """The column of k, 0 .. k - 1, that each packed element (row, i) of A stands for, (16, k / 2).

    `metadata` is (32,), one word a lane; k counts the dense columns. 8 and 16 bits: of each four columns two are
    stored, and a nibble names them, the lower first. tf32: of each two columns one is stored; a nibble 0b0100 or
    0b1110 names the first or the second. The words of four lanes give rows g and g + 8:

    16 bits and tf32: half a word a row, row g in the low half. The selector names one lane, or where a row has more
    than four chunks a pair of lanes, of which the first has the first half of the columns.
    8 bits: a word a row, 32 columns; the first lane of a pair has row g, the second row g + 8. k32: the selector names
    the pair. k64: the first pair has columns 0-31, the second 32-63.

    Source: the ISA shows this in figures only; golden vectors mma_sp_* and wgmma_sp_*, all of which agree.
    """
    words = np.asarray(metadata, np.uint32).reshape(8, 4)
    chunk = 2 if bits == 32 else 4
    row = np.arange(16)
    pieces = np.stack([words[row % 8, lane] >> shift & 0xFFFF for lane, shift in _row_pieces(row, selector, k, bits)])
    nibbles = (pieces.T[:, :, None] >> (4 * np.arange(4, dtype=np.uint32)) & 0xF).reshape(16, k // chunk)
    first = chunk * np.arange(k // chunk)
    if bits == 32:
        return np.asarray(first + (nibbles & 3) // 2, np.intp)
    return np.stack([first + (nibbles & 3), first + (nibbles >> 2)], axis=2).reshape(16, k // 2).astype(np.intp)


def _row_pieces(row: Index, selector: int, k: int, bits: int) -> list[tuple[Index, NDArray[np.uint32]]]:
    """(lane of four, shift) of each 16 bits of metadata of every row, the lowest columns first."""
    upper = row // 8
    if bits == 8:
        pairs = (0, 2) if k == 64 else (2 * selector,)
        return [(pair + upper, np.full(16, shift, np.uint32)) for pair in pairs for shift in (0, 16)]
    num_lanes = k // (8 if bits == 32 else 16)
    lanes = range(selector * num_lanes, (selector + 1) * num_lanes)
    return [(np.full(16, lane, np.intp), (16 * upper).astype(np.uint32)) for lane in lanes]


def wgmma_sparse_columns(metadata: NDArray[np.uint32], selector: int, k: int, bits: int) -> Index:
    """As sparse_columns for the 64 rows of wgmma.sp, (64, k / 2): each warp gives the words of its own 16 rows."""
    warps = np.asarray(metadata).reshape(4, WARP_LANES)
    return np.concatenate([sparse_columns(words, selector, k, bits) for words in warps])


def sparse_expand(packed: NDArray[Any], columns: Index, k: int) -> NDArray[Any]:
    """The dense matrix (rows, k) of packed elements (rows, k / 2); zeros elsewhere."""
    dense = np.zeros((packed.shape[0], k), packed.dtype)
    np.put_along_axis(dense, columns, packed, axis=1)
    return dense
