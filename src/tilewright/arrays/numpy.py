"""NumPy arrays: memory of the host, which a CUDA kernel cannot read and an emulator can."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.arrays.base import Adapter, element_strides, numpy_dtype, read_only
from tilewright.dtypes import DType
from tilewright.tensor import Location, View


class NumpyAdapter(Adapter):
    """numpy.ndarray and its subclasses; bf16 is ml_dtypes.bfloat16."""

    library = "numpy"
    is_emulated = True

    @staticmethod
    def owns(kind: type) -> bool:
        return issubclass(kind, np.ndarray)

    @staticmethod
    def refusal_of(kind: type) -> tuple[str, str] | None:
        if issubclass(kind, np.ma.MaskedArray):
            return "a product has no missing elements", "pass .filled(0), or the elements without their mask, .data"
        return None

    def view(self, array: Any, name: str, is_written: bool = False) -> View:
        dtype = numpy_dtype(array.dtype, name)
        if is_written and not array.flags.writeable:
            raise read_only(name, self.library)
        strides = element_strides(array.shape, array.strides, dtype, name)
        return View(array.ctypes.data, array.shape, strides, dtype, Location("host", 0))

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, ordinal: int) -> tuple[Any, int]:
        array = np.empty(shape, dtype=dtype.numpy)
        return array, array.ctypes.data

    def scratch(self, num_bytes: int, ordinal: int) -> tuple[Any, int]:
        memory = np.empty(num_bytes + 256, np.uint8)
        return memory, memory.ctypes.data + -memory.ctypes.data % 256
