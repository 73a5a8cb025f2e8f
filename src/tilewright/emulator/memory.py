"""The two memories that threads see: named buffers of global memory by address, and one flat space of shared memory.

Knows bounds and alignment of single accesses; nothing of instructions, proxies or time.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import EmulationError

Bytes = NDArray[np.uint8]
Array = NDArray[Any]

# Buffers without an address of their own lie here, apart from each other, so that an access past an end meets nothing.
FIRST_ADDRESS = 1 << 40
GUARD_BYTES = 4096
ALIGNMENT_BYTES = 512  # of cudaMalloc's blocks, at least 256
PAGE_BYTES = 4096  # by which first writes are counted
FAR_BYTES = 1 << 32  # past a buffer's end: no slip of an index, but another number


@dataclass(eq=False)
class Buffer:
    """One block of global memory. `data` is the memory itself: what a kernel writes is there for the owner."""

    name: str
    address: int
    data: Bytes
    writable: bool = True
    written_pages: NDArray[np.bool_] | None = None
    views: dict[int, Array] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.address + self.data.size

    def elements(self, size: int) -> Array | None:
        """The block as unsigned elements of `size` bytes; None if it does not start at a multiple of the size."""
        found = self.views.get(size)
        if found is None:
            if self.address % size:
                return None
            whole = self.data[: self.data.size // size * size]
            found = self.views[size] = whole.view(f"u{size}") if size <= 8 else whole.reshape(-1, size)
        return found


class GlobalMemory:
    """Named buffers by address."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []  # by address
        self.starts: list[int] = []
        self.last: Buffer | None = None
        self.num_written_pages = 0  # since the memory was made: grows where a run gets on

    def add(self, name: str, values: Array, address: int | None = None) -> int:
        """Registers a contiguous array under a name; its own memory is used. Returns its address.

        Raises: EmulationError: the array is not contiguous, or overlaps another buffer.
        """
        if not values.flags.c_contiguous:
            raise EmulationError(f"buffer {name!r} is not C-contiguous; register its contiguous base", rule="buffer")
        data = values.reshape(-1).view(np.uint8)
        if address is None:
            end = max([buffer.end for buffer in self.buffers if buffer.end >= FIRST_ADDRESS], default=FIRST_ADDRESS)
            address = -(-(end + GUARD_BYTES) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        buffer = Buffer(name, address, data, writable=bool(data.flags.writeable))
        position = bisect.bisect(self.starts, address)
        for other in self.buffers[max(position - 1, 0) : position + 1]:
            if other.address < buffer.end and address < other.end and data.size and other.data.size:
                raise EmulationError(f"buffers {name!r} and {other.name!r} overlap", rule="buffer")
        self.buffers.insert(position, buffer)
        self.starts.insert(position, address)
        return address

    def buffer(self, name: str) -> Buffer:
        """The buffer of this name."""
        return next(buffer for buffer in self.buffers if buffer.name == name)

    def find(self, first: int, last: int) -> Buffer | None:
        """The buffer that holds all bytes first .. last - 1."""
        buffer = self.last
        if buffer is not None and buffer.address <= first and last <= buffer.end:
            return buffer
        position = bisect.bisect(self.starts, first) - 1
        if position < 0:
            return None
        buffer = self.buffers[position]
        if last > buffer.end:
            return None
        self.last = buffer
        return buffer

    def explain(self, address: int, size: int) -> str:
        """Where an address that lies in no buffer lies instead."""
        position = bisect.bisect(self.starts, address) - 1
        if position >= 0:
            buffer = self.buffers[position]
            past = address + size - buffer.end
            if past > FAR_BYTES:
                number = f"; as a signed number it is {address - (1 << 64)}" if address >> 63 else ""
                return f"far past the end of the last buffer before it, {buffer.name!r} ({buffer.end:#x}){number}"
            return (
                f"{past} bytes past the end of buffer {buffer.name!r} ({buffer.data.size} bytes at {buffer.address:#x})"
            )
        if self.buffers:
            buffer = self.buffers[0]
            return f"{buffer.address - address} bytes before buffer {buffer.name!r} at {buffer.address:#x}"
        return "no buffer is registered"

    def load(self, addresses: Array, size: int) -> Array | int:
        """Elements (n,) for sizes up to 8, rows (n, size) above; or the position of the first address out of bounds."""
        low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses)) + size
        buffer = self.find(low, high)
        if buffer is not None and (elements := buffer.elements(size)) is not None:
            return np.asarray(elements[((addresses - np.uint64(buffer.address)) // np.uint64(size)).astype(np.intp)])
        result = np.empty((len(addresses), size), np.uint8)
        for position, address in enumerate(addresses.tolist()):
            buffer = self.find(address, address + size)
            if buffer is None:
                return position
            start = address - buffer.address
            result[position] = buffer.data[start : start + size]
        return result.view(f"u{size}")[:, 0] if size <= 8 else result

    def store(self, addresses: Array, size: int, values: Array) -> int | None:
        """Writes elements (n,) or rows (n, size). Returns the position of the first address that may not be written."""
        low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses)) + size
        buffer = self.find(low, high)
        if buffer is not None and buffer.writable and (elements := buffer.elements(size)) is not None:
            starts = (addresses - np.uint64(buffer.address)).astype(np.intp)
            elements[starts // size] = values
            self.wrote(buffer, starts)
            return None
        rows = np.ascontiguousarray(values).view(np.uint8).reshape(-1, size)
        found: list[tuple[Buffer, int]] = []
        for position, address in enumerate(addresses.tolist()):
            buffer = self.find(address, address + size)
            if buffer is None or not buffer.writable:
                return position
            found.append((buffer, address - buffer.address))
        for (buffer, start), row in zip(found, rows, strict=True):
            buffer.data[start : start + size] = row
            self.wrote(buffer, start)
        return None

    def wrote(self, buffer: Buffer, starts: Any) -> None:
        """Counts the pages of the buffer that a write at these offsets, or this one, is the first to reach."""
        if buffer.written_pages is None:
            buffer.written_pages = np.zeros(buffer.data.size // PAGE_BYTES + 1, np.bool_)
        pages = starts // PAGE_BYTES
        if not buffer.written_pages[pages].all():
            self.num_written_pages += 1
            buffer.written_pages[pages] = True


class SharedMemory:
    """Shared memory of all resident CTAs as one flat array: CTA slot x stride + offset. Poisoned with 0xFF: NaN in
    every float format.

    Units: bytes; `first` .. `last` is what a CTA may touch of its window.
    """

    def __init__(self, num_slots: int, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.stride = -(-last // 1024) * 1024
        self.data: Bytes = np.empty(max(num_slots, 1) * self.stride, np.uint8)
        self.views: dict[int, Array] = {size: self.data.view(f"u{size}") for size in (1, 2, 4, 8)}
        self.chunks: Array = self.data.view(np.complex128)  # 16-byte pieces that NumPy moves as one
        self.rows: Array = self.data.reshape(-1, 16)

    def poison(self, slot: int) -> None:
        """The slot as a new CTA finds it."""
        self.data[slot * self.stride : (slot + 1) * self.stride] = 0xFF
