"""CuPy arrays. CuPy itself is never imported here."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tilewright.arrays.base import Adapter, element_strides, numpy_dtype
from tilewright.dtypes import DType
from tilewright.tensor import Location, View


class CupyAdapter(Adapter):
    """cupy.ndarray and its subclasses."""

    library = "cupy"

    def __init__(self) -> None:
        self._cupy: Any = sys.modules["cupy"]

    @staticmethod
    def owns(kind: type) -> bool:
        array = getattr(sys.modules.get("cupy"), "ndarray", None)
        return array is not None and issubclass(kind, array)

    def view(self, array: Any, name: str, is_written: bool = False) -> View:
        dtype = numpy_dtype(np.dtype(array.dtype), name)
        return View(
            array.data.ptr,
            tuple(array.shape),
            element_strides(array.shape, array.strides, dtype, name),
            dtype,
            Location("cuda", array.device.id),
        )

    def stream(self, ordinal: int) -> int:
        return int(self._cupy.cuda.get_current_stream(ordinal).ptr)

    def current_ordinal(self) -> int:
        return int(self._cupy.cuda.runtime.getDevice())

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, ordinal: int) -> tuple[Any, int]:
        with self._cupy.cuda.Device(ordinal):
            array = self._cupy.empty(shape, dtype=dtype.numpy)
        return array, int(array.data.ptr)

    def scratch(self, num_bytes: int, ordinal: int) -> tuple[Any, int]:
        """Memory of CuPy's pool, which belongs to the current stream; its addresses are multiples of 512 bytes."""
        with self._cupy.cuda.Device(ordinal):
            memory = self._cupy.cuda.alloc(num_bytes)
        return memory, int(memory.ptr)
