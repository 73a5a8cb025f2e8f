"""Device memory without an array library: buffers, copies, fills. For the clock and for machines without torch.

Knows nothing of what the bytes mean. Reaches the driver only through the CUDA backend's guard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.backends.cuda import CudaBackend


@dataclass(eq=False)
class Buffer:
    """Bytes on one device, owned: given back by free(), or at the end of a `with` block."""

    backend: CudaBackend
    ordinal: int
    size_bytes: int
    address: int

    @classmethod
    def allocate(cls, backend: CudaBackend, size_bytes: int, ordinal: int = 0) -> Buffer:
        """Raises: DriverError: the device has not that much left. Cost: synchronises with the device."""
        with backend.on(ordinal):
            return cls(backend, ordinal, size_bytes, int(backend.call("cuMemAlloc", max(size_bytes, 1))))

    def fill(self, pattern: int, stream: int = 0) -> None:
        """Enqueue the 32-bit `pattern` over the whole buffer; a rest of 1 to 3 bytes gets its low byte."""
        words, rest = divmod(self.size_bytes, 4)
        with self.backend.on(self.ordinal):
            if words:
                self.backend.call("cuMemsetD32Async", self.address, pattern, words, stream)
            if rest:
                self.backend.call("cuMemsetD8Async", self.address + 4 * words, pattern & 0xFF, rest, stream)

    def write(self, values: NDArray[Any], offset_bytes: int = 0) -> None:
        """Copy `values` to that place of the buffer. Blocks until the copy is done.

        Raises: ValueError: more bytes than the buffer has there, or values that are not contiguous.
        """
        self._check(values, offset_bytes)
        with self.backend.on(self.ordinal):
            self.backend.call("cuMemcpyHtoD", self.address + offset_bytes, values.ctypes.data, values.nbytes)

    def read(self, shape: tuple[int, ...], dtype: Any, offset_bytes: int = 0) -> NDArray[Any]:
        """That place of the buffer as a new array. Blocks until the copy, and all work before it, is done.

        Raises: ValueError: more bytes than the buffer has there.
        """
        values = np.empty(shape, dtype)
        self._check(values, offset_bytes)
        with self.backend.on(self.ordinal):
            self.backend.call("cuMemcpyDtoH", values.ctypes.data, self.address + offset_bytes, values.nbytes)
        return values

    def free(self) -> None:
        """Give the memory back; a second call does nothing."""
        if self.address:
            address, self.address = self.address, 0
            with self.backend.on(self.ordinal):
                self.backend.call("cuMemFree", address)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def _check(self, values: NDArray[Any], offset_bytes: int) -> None:
        if offset_bytes < 0 or offset_bytes + values.nbytes > self.size_bytes or not values.flags.c_contiguous:
            place = f" from byte {offset_bytes} on" if offset_bytes else ""
            raise ValueError(
                f"{values.nbytes} bytes ({'contiguous' if values.flags.c_contiguous else 'strided'}) do not fit a "
                f"buffer of {self.size_bytes} bytes{place}; pass a C-contiguous array of at most what is there"
            )
