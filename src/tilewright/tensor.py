"""A view of anybody's array: where it lies, how it is shaped and strided, on which device. Metadata only, never a copy.

Knows nothing of array libraries: arrays/ has one adapter a library that makes these. Knows when two pieces of memory
share a byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from tilewright.dtypes import DType


class Location(NamedTuple):
    """The memory that holds an array: kind "cuda" with the device's ordinal, or kind "host" with ordinal 0."""

    kind: str
    ordinal: int

    def __str__(self) -> str:
        return f"cuda:{self.ordinal}" if self.kind == "cuda" else "the CPU"


@dataclass(frozen=True, slots=True)
class View:
    """One array in memory.

    Units: `address` in bytes; `strides` in elements, one for each dimension.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    location: Location

    def __str__(self) -> str:
        return f"{tuple(self.shape)} {self.dtype} with strides {tuple(self.strides)} on {self.location}"


# Steps of NumPy's search for a common byte of two batches; each is some 10 ns.
_MAX_SEARCH = 1_000_000


class Rows(NamedTuple):
    """Memory as rows of neighbouring bytes: what a matrix with one contiguous dimension occupies, or a batch of them.

    Units: bytes; `pitch_bytes`, at least 1, from the start of one row to the start of the next; `batch` holds the
    (extent, stride) of each further dimension, strides from 1 up.
    """

    address: int
    num_rows: int
    row_bytes: int
    pitch_bytes: int
    batch: tuple[tuple[int, int], ...] = ()

    @property
    def end(self) -> int:
        """The byte after the last one."""
        end = self.address + (self.num_rows - 1) * self.pitch_bytes + self.row_bytes
        for extent, stride in self.batch:
            end += (extent - 1) * stride
        return end

    @property
    def is_empty(self) -> bool:
        """Whether there is no byte at all."""
        if self.num_rows == 0 or self.row_bytes == 0:
            return True
        return bool(self.batch) and any(extent == 0 for extent, _ in self.batch)

    def matrices(self) -> Iterator[Rows]:
        """Each matrix of the batch by itself."""
        for offsets in itertools.product(*(range(0, extent * stride, stride) for extent, stride in self.batch)):
            yield self._replace(address=self.address + sum(offsets), batch=())


def overlap(first: Rows, second: Rows) -> bool:
    """Whether the two share at least one byte. Exact: interleaved rows that only surround each other do not.

    Of batches that cannot be told apart in a fraction of a second: True.
    Cost: two comparisons when the spans are apart; else O(log) of the pitches, whatever the number of rows, and for
    batches NumPy's search, milliseconds at most.
    """
    if first.is_empty or second.is_empty or first.end <= second.address or second.end <= first.address:
        return False
    if first.batch or second.batch:
        try:
            return np.shares_memory(_bytes_of(first), _bytes_of(second), max_work=_MAX_SEARCH)  # type: ignore[arg-type]  # its stub lacks numbers
        except (np.exceptions.TooHardError, ValueError):  # a search that takes too long, or 2^63 bytes and more, which
            return True  # NumPy does not count: two such batches are refused
    # Row i of first meets row j of second when low + i P <= j Q <= high + i P, with P and Q their pitches.
    distance = first.address - second.address
    low, high = distance - second.row_bytes + 1, distance + first.row_bytes - 1
    step, period = first.pitch_bytes, second.pitch_bytes
    # Only the rows i whose window of j Q reaches into 0 .. (num_rows - 1) Q; in these some j is in range if any j is,
    # because a window that holds a multiple of Q outside and reaches inside holds the border's multiple as well.
    start = max(0, -(high // step))  # least i with high + i P >= 0
    stop = min(first.num_rows, ((second.num_rows - 1) * period - low) // step + 1)
    if start >= stop:
        return False
    count, low, high = stop - start, low + start * step, high + start * step
    hits = _floor_sum(count, period, step, high) - _floor_sum(count, period, step, low - 1)
    return hits > 0


def _bytes_of(rows: Rows) -> Any:
    """The bytes as a NumPy array that nobody reads: its strides are what is asked about. All are moved up by the same
    amount: NumPy takes no address 0."""
    steps = (*rows.batch, (rows.num_rows, rows.pitch_bytes), (rows.row_bytes, 1))

    described = {
        "version": 3,
        "data": (rows.address + 4096, True),
        "typestr": "|u1",
        "shape": tuple(extent for extent, _ in steps),
        "strides": tuple(stride for _, stride in steps),
    }
    return np.asarray(SimpleNamespace(__array_interface__=described))


def _floor_sum(count: int, divisor: int, slope: int, offset: int) -> int:
    """The sum of (slope i + offset) // divisor over i = 0 .. count - 1, in O(log) steps, as in Euclid's algorithm.

    Source: Graham, Knuth, Patashnik, Concrete Mathematics, 3.5, lattice points under a line.
    """
    total = 0
    while True:
        total += (count - 1) * count // 2 * (slope // divisor) + count * (offset // divisor)
        slope, offset = slope % divisor, offset % divisor
        top = slope * count + offset
        if top < divisor:
            return total
        count, offset = top // divisor, top % divisor
        divisor, slope = slope, divisor
