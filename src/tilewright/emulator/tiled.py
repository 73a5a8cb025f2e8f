"""What TMA does with a tensor map: which global bytes a box covers, where each lands in shared memory, what is clipped.

A map is a value with its own encoding in the 128 bytes of a CUtensorMap; the encoding is the emulator's alone, for the
real one is NVIDIA's secret. Tiled mode without interleave, every element (element strides 1). Knows nothing of
barriers, multicast, groups or time. Dimension 0 is the innermost everywhere.

Source: CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, tensors and cp.async.bulk.tensor.
"""

from __future__ import annotations

import functools
import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import arithmetic, numerics
from tilewright.emulator.fragments import CHUNK_BYTES, swizzled
from tilewright.errors import LayoutError

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]

MAP_BYTES = 128
SHARED_ALIGNMENT_BYTES = 128  # of a box. Source: PTX ISA, cp.async.bulk.tensor

# The values of CUtensorMapDataType follow the order. Source: cuda.h.
ELEMENT_BYTES: dict[str, int] = {
    "u8": 1,
    "u16": 2,
    "u32": 4,
    "s32": 4,
    "u64": 8,
    "s64": 8,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "bf16": 2,
    "f32_ftz": 4,
    "tf32": 4,
    "tf32_ftz": 4,
}
ELEMENTS: tuple[str, ...] = tuple(ELEMENT_BYTES)

FILL_NAN = 0x7FF7  # each 16 bits outside, when NaN is asked for: a NaN of every type. Source: tma_load_fill_nan_*

_MAGIC = b"tilewTMA"
_LAYOUT = struct.Struct("<8sQ4B5Q4Q5H")


class InnerCoordinateError(ValueError):
    """A box that starts inside a 16-byte chunk: the hardware raises an illegal instruction (measured, H200)."""


class StoreCoordinateError(ValueError):
    """A store or reduction of a box that starts before the tensor.

    A load may. Source: CUDA C++ programming guide, tensor memory access, on negative indices; the hardware raises an
    illegal instruction: golden vectors tma_store_before*.
    """


class SharedAddressError(ValueError):
    """A box in shared memory that is not 128-byte aligned."""


@dataclass(frozen=True, kw_only=True)
class TiledMap:
    """A tensor in global memory and the box that one instruction moves.

    Shapes: `extents` and `box` in elements; `pitches_bytes` one for each dimension after the innermost.
    """

    address: int
    element: str
    extents: tuple[int, ...]
    pitches_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    fill_nan: bool = False

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.element]

    @property
    def row_bytes(self) -> int:
        """Bytes of the box along the innermost dimension."""
        return self.box[0] * self.element_bytes

    @property
    def box_bytes(self) -> int:
        """Bytes of the box, those outside the tensor too: what complete_tx counts."""
        return math.prod(self.box) * self.element_bytes

    @property
    def shared_pitch_bytes(self) -> int:
        """Bytes from row to row in shared memory: a row narrower than the swizzle takes all of its width.

        Source: golden vectors tma_load_narrow_*, tma_store_narrow_*.
        """
        return self.swizzle_bytes or self.row_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory from the first row of the box to the end of the last."""
        return math.prod(self.box[1:]) * self.shared_pitch_bytes

    def violations(self) -> tuple[str, ...]:
        """Every rule of cuTensorMapEncodeTiled that this map breaks, in words with numbers."""
        if self.element not in ELEMENT_BYTES:
            return (f"element type {self.element!r} is none of {', '.join(ELEMENTS)}",)
        if not 1 <= self.rank <= 5:
            return (f"rank {self.rank} is outside 1 .. 5",)
        if len(self.box) != self.rank or len(self.pitches_bytes) != self.rank - 1:
            return (f"{self.rank} extents need {self.rank} box sizes and {self.rank - 1} pitches",)
        found = [f"extent {e} is outside 1 .. 2^32" for e in self.extents if not 1 <= e <= 2**32]
        found += [f"box size {b} is outside 1 .. 256" for b in self.box if not 1 <= b <= 256]
        found += [
            f"pitch of {p} bytes is not a multiple of 16 below 2^40"
            for p in self.pitches_bytes
            if p % 16 or not 0 <= p < 2**40
        ]
        if self.address % 16:
            found.append(f"address {self.address:#x} is not a multiple of 16")
        if self.row_bytes % CHUNK_BYTES:
            found.append(f"inner box of {self.row_bytes} bytes is not a multiple of 16")
        if self.swizzle_bytes not in (0, 32, 64, 128):
            found.append(f"swizzle of {self.swizzle_bytes} bytes is not one of 0, 32, 64, 128")
        elif self.swizzle_bytes and self.row_bytes > self.swizzle_bytes:
            found.append(f"inner box of {self.row_bytes} bytes is wider than its swizzle of {self.swizzle_bytes}")
        if self.fill_nan and self.element[0] in "us":
            found.append(f"NaN cannot fill {self.element} elements")
        return tuple(found)


def encode(tensor_map: TiledMap) -> bytes:
    """The map in 128 bytes, as a kernel parameter carries it.

    Raises: LayoutError: the driver would refuse the map.
    """
    found = tensor_map.violations()
    if found:
        raise LayoutError(
            asked=f"a tensor map over {tensor_map.extents} {tensor_map.element} at {tensor_map.address:#x}",
            rule="; ".join(found),
            works="pad rows to multiples of 16 bytes and keep boxes within 256 elements and their swizzle",
        )
    rank = tensor_map.rank
    packed = _LAYOUT.pack(
        _MAGIC,
        tensor_map.address,
        ELEMENTS.index(tensor_map.element),
        rank,
        tensor_map.swizzle_bytes,
        tensor_map.fill_nan,
        *tensor_map.extents,
        *[0] * (5 - rank),
        *tensor_map.pitches_bytes,
        *[0] * (5 - rank),
        *tensor_map.box,
        *[0] * (5 - rank),
    )
    return packed.ljust(MAP_BYTES - 4, b"\0") + zlib.crc32(packed).to_bytes(4, "little")


@functools.lru_cache(maxsize=256)
def decode(raw: bytes) -> TiledMap:
    """The map in these 128 bytes.

    Raises: LayoutError: they are not an encoding of the emulator, or were changed.
    """
    packed = raw[: _LAYOUT.size]
    if len(raw) != MAP_BYTES or raw[:8] != _MAGIC or raw[-4:] != zlib.crc32(packed).to_bytes(4, "little"):
        raise LayoutError(
            asked=f"128 bytes beginning {raw[:8].hex()} as a tensor map",
            rule="they hold no map that this emulator encoded",
            works="pass the address of a whole tensor map parameter, unchanged",
        )
    _, address, element, rank, swizzle_bytes, fill_nan, *rest = _LAYOUT.unpack(packed)
    return TiledMap(
        address=address,
        element=ELEMENTS[element],
        extents=tuple(rest[:rank]),
        pitches_bytes=tuple(rest[5 : 4 + rank]),
        box=tuple(rest[9 : 9 + rank]),
        swizzle_bytes=swizzle_bytes,
        fill_nan=bool(fill_nan),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Box:
    """One box of a map at one place, R rows of `row_bytes`.

    `rows` (R,): where each row begins, in bytes after the map's address; it may lie outside the tensor. `row_inside`
    (R,): the outer coordinates are within the extents. [`inner_first`, `inner_last`): the bytes of such a row that are.
    `shared` (R, row_bytes / 16): the absolute shared address of each 16-byte chunk.
    """

    rows: Offsets
    row_inside: NDArray[np.bool_]
    inner_first: int
    inner_last: int
    row_bytes: int
    shared: Offsets

    @property
    def stored_last(self) -> int:
        """Where a store stops in a row: it clips whole 16-byte chunks, so an extent that ends within one is written
        past its end, up to the chunk's. Source: measured on Hopper by others (triton issue 11583); golden vector
        tma_store_ragged."""
        return min(-(-self.inner_last // CHUNK_BYTES) * CHUNK_BYTES, self.row_bytes)

    def global_bytes(self) -> tuple[Offsets, NDArray[np.bool_]]:
        """(offset, inside) of every byte of the box, each (R, row_bytes)."""
        within = np.arange(self.row_bytes, dtype=np.int64)
        inside = (within >= self.inner_first) & (within < self.inner_last)
        return self.rows[:, None] + within, self.row_inside[:, None] & inside

    def shared_bytes(self) -> Offsets:
        """The absolute shared address of every byte of the box, (R, row_bytes)."""
        return (self.shared[:, :, None] + np.arange(CHUNK_BYTES)).reshape(len(self.rows), self.row_bytes)

    def load_ranges(self) -> tuple[Offsets, int]:
        """(first byte of each row that is read, bytes read of each): for bounds and race checks."""
        return self._ranges(self.inner_last)

    def store_ranges(self) -> tuple[Offsets, int]:
        """(first byte of each row that is written, bytes written of each)."""
        return self._ranges(self.stored_last)

    def _ranges(self, last: int) -> tuple[Offsets, int]:
        length = max(last - self.inner_first, 0)
        rows = self.rows[self.row_inside] if length else self.rows[:0]
        return rows + self.inner_first, length


def box(tensor_map: TiledMap, coordinates: tuple[int, ...], shared_address: int, *, stores: bool = False) -> Box:
    """The map's box at `coordinates` (innermost first, signed, in elements), in shared memory at `shared_address`.
    `stores`: for a store or a reduction.

    Raises: InnerCoordinateError, StoreCoordinateError, SharedAddressError.
    """
    if stores and min(coordinates) < 0:
        raise StoreCoordinateError(
            f"the box starts at {coordinates}, and one that is stored must not start before 0; a load may"
        )
    x_bytes = coordinates[0] * tensor_map.element_bytes
    if x_bytes % CHUNK_BYTES:
        raise InnerCoordinateError(
            f"the box starts at x = {coordinates[0]}, {x_bytes} bytes into the row; TMA needs a multiple of 16 bytes "
            f"({CHUNK_BYTES // tensor_map.element_bytes} elements of {tensor_map.element})"
        )
    if shared_address % SHARED_ALIGNMENT_BYTES:
        raise SharedAddressError(f"shared address {shared_address:#x} of a box is not a multiple of 128")
    outer = tensor_map.box[1:]
    rows = np.full(outer[::-1], x_bytes, np.int64)
    inside = np.ones(outer[::-1], np.bool_)
    for dimension, size in enumerate(outer, start=1):
        place = coordinates[dimension] + np.arange(size, dtype=np.int64)
        shape = [1] * len(outer)
        shape[-dimension] = size
        rows += place.reshape(shape) * tensor_map.pitches_bytes[dimension - 1]
        inside &= ((place >= 0) & (place < tensor_map.extents[dimension])).reshape(shape)
    first = min(max(-x_bytes, 0), tensor_map.row_bytes)
    last = min(max(tensor_map.extents[0] * tensor_map.element_bytes - x_bytes, 0), tensor_map.row_bytes)
    return Box(
        rows=rows.reshape(-1),
        row_inside=inside.reshape(-1),
        inner_first=first,
        inner_last=last,
        row_bytes=tensor_map.row_bytes,
        shared=shared_chunks(rows.size, tensor_map.row_bytes, tensor_map.swizzle_bytes, shared_address),
    )


@functools.lru_cache(maxsize=4096)
def shared_chunks(num_rows: int, row_bytes: int, swizzle_bytes: int, shared_address: int) -> Offsets:
    """The absolute shared address of each 16-byte chunk of each row under the swizzle, (num_rows, row_bytes / 16)."""
    starts = shared_address + np.arange(num_rows, dtype=np.int64) * (swizzle_bytes or row_bytes)
    linear = starts[:, None] + np.arange(0, row_bytes, CHUNK_BYTES)
    chunks = np.asarray(swizzled(linear, swizzle_bytes))
    chunks.flags.writeable = False
    return chunks


def load(tensor_map: TiledMap, where: Box, source: Bytes, source_address: int) -> Bytes:
    """The bytes that a load brings, (R, row_bytes), filled outside the tensor. `source` is all the buffer that holds
    the tensor, and `source_address` the address of its first byte.

    Chunk j of row r goes to where.shared[r, j]. The caller has checked load_ranges against the buffer.
    """
    result = np.empty((len(where.rows), where.row_bytes), np.uint8)
    result[:] = _fill(tensor_map, where.row_bytes)
    first, last = where.inner_first, where.inner_last
    if last <= first or not where.row_inside.any():
        return result
    starts = where.rows[where.row_inside] + (tensor_map.address - source_address)
    if last % CHUNK_BYTES == 0:  # x is a multiple of 16 bytes, so `first` is too
        rows = _chunks(source, starts, first, last)
    else:
        rows = source[starts[:, None] + np.arange(first, last)]
    result[where.row_inside, first:last] = _converted(tensor_map.element, np.ascontiguousarray(rows))
    return result


def _fill(tensor_map: TiledMap, row_bytes: int) -> Bytes:
    return np.full(row_bytes // 2, FILL_NAN if tensor_map.fill_nan else 0, np.uint16).view(np.uint8)


def _converted(element: str, rows: Bytes) -> Bytes:
    """What a load makes of tf32 elements on the way: it rounds to nearest even, NaN to the format's own. The _ftz of a
    map does nothing to a load: subnormals come as they are, or rounded.

    Source: golden vectors tma_load_rounding_tf32, tma_load_rounding_tf32_ftz, tma_load_rounding_f32_ftz.
    """
    return numerics.encode("tf32", rows.view(np.float32)).view(np.uint8) if element.startswith("tf32") else rows


def _chunk_view(buffer: Bytes, start: int) -> tuple[NDArray[Any], int]:
    """(16-byte items of the buffer in step with `start`, how many bytes they leave out in front)."""
    skipped = start % CHUNK_BYTES
    whole = (buffer.size - skipped) // CHUNK_BYTES * CHUNK_BYTES
    return buffer[skipped : skipped + whole].view("V16"), skipped


def _chunks(source: Bytes, starts: Offsets, first: int, last: int) -> Bytes:
    items, skipped = _chunk_view(source, int(starts[0]) + first)
    index = (starts + (first - skipped))[:, None] // CHUNK_BYTES + np.arange((last - first) // CHUNK_BYTES)
    return np.asarray(items[index].view(np.uint8))


def store(tensor_map: TiledMap, where: Box, rows: Bytes, target: Bytes, target_address: int) -> None:
    """Writes the rows (R, row_bytes) of a box into the buffer, but for what is clipped.

    The caller has checked store_ranges against the buffer.
    """
    first, last = where.inner_first, where.stored_last
    if last <= first or not where.row_inside.any():
        return
    starts = where.rows[where.row_inside] + (tensor_map.address - target_address)
    items, skipped = _chunk_view(target, int(starts[0]) + first)
    index = (starts + (first - skipped))[:, None] // CHUNK_BYTES + np.arange((last - first) // CHUNK_BYTES)
    items[index] = np.ascontiguousarray(rows[where.row_inside, first:last]).view("V16")


def reduce(tensor_map: TiledMap, where: Box, rows: Bytes, target: Bytes, target_address: int, op: str) -> None:
    """cp.reduce.async.bulk.tensor: combines the rows (R, row_bytes) into the buffer, element by element.

    `op`: add, min, max, inc, dec, and, or, xor. It clips as a store does, by 16-byte chunks.
    Source: PTX ISA, cp.reduce.async.bulk.tensor; golden vectors tma_reduce_add_f16, tma_reduce_or_u32.
    """
    first, last = where.inner_first, where.stored_last
    if last <= first or not where.row_inside.any():
        return
    starts = where.rows[where.row_inside] + (tensor_map.address - target_address)
    index = starts[:, None] + np.arange(first, last)
    fmt = tensor_map.element.removesuffix("_ftz").replace("tf32", "f32")
    unsigned = f"u{tensor_map.element_bytes}"
    old = np.ascontiguousarray(target[index]).view(unsigned)
    new = np.ascontiguousarray(rows[where.row_inside, first:last]).view(unsigned)
    combine: Any
    if op in ("and", "or", "xor"):
        combine = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
        result = combine(old, new)
    elif numerics.is_float(fmt):
        combine = {"add": arithmetic.add, "min": arithmetic.minimum, "max": arithmetic.maximum}[op]
        result = numerics.encode(fmt, combine(fmt, numerics.decode(fmt, old), numerics.decode(fmt, new)))
    else:
        kind = numerics.INTEGERS[fmt]
        combine = {"add": np.add, "min": np.minimum, "max": np.maximum, "inc": _incremented, "dec": _decremented}[op]
        result = combine(old.view(kind), new.view(kind))
    target[index] = np.ascontiguousarray(result).view(np.uint8)


def _incremented(old: NDArray[Any], limit: NDArray[Any]) -> NDArray[Any]:
    """One more, and 0 after the limit. Source: PTX ISA, red, on .inc and .dec."""
    return np.asarray(np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)))


def _decremented(old: NDArray[Any], limit: NDArray[Any]) -> NDArray[Any]:
    """One less, and the limit after 0 or from above it."""
    return np.asarray(np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)))
