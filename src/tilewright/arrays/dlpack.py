"""Arrays of any library that speaks DLPack, read from the capsule itself.

Source of the structures: dlpack.h, versions 0 (DLManagedTensor) and 1 (DLManagedTensorVersioned).
"""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright.arrays.base import LEGACY_STREAM, Adapter, describe_views, named_dtype, packed_strides, read_only
from tilewright.dtypes import DType
from tilewright.errors import UnsupportedError
from tilewright.tensor import Location, View

_CPU, _CUDA, _CUDA_MANAGED = 1, 2, 13  # DLDeviceType
_VERSION = (1, 0)  # the newest major that the structures below describe
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}  # DLDataTypeCode


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("version", _Version),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class DLPackAdapter(Adapter):
    """Anything with __dlpack__ and __dlpack_device__. Work is enqueued on the legacy default stream.

    The producer is told so, and by the protocol makes that stream wait for whatever still writes the array.
    """

    library = "DLPack"

    @staticmethod
    def owns(kind: type) -> bool:
        return hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")

    def describe(self, a: Any, b: Any, out: Any | None) -> Any:
        written = None if out is None else self.view(out, "out", is_written=True)
        return describe_views(self.view(a, "a"), self.view(b, "b"), written)._replace(stream=LEGACY_STREAM)

    def view(self, array: Any, name: str, is_written: bool = False) -> View:
        kind, _ = map(int, array.__dlpack_device__())
        if kind not in (_CPU, _CUDA, _CUDA_MANAGED):
            raise UnsupportedError(
                asked=f"{name} on a device of DLPack's kind {kind}",
                rule=f"kernels run on CUDA devices (kinds {_CUDA} and {_CUDA_MANAGED})",
                works=f"move {name} to an NVIDIA GPU",
            )
        # The capsule is only read. Its name is left as it is, so it frees what it holds when it goes out of scope; the
        # caller's array keeps the memory alive.
        capsule = _capsule_of(array, None if kind == _CPU else LEGACY_STREAM, name)
        tensor, is_read_only = _tensor_of(capsule, name)
        if is_written and is_read_only:
            raise read_only(name, type(array).__module__.split(".")[0])
        shape = tuple(tensor.shape[: tensor.ndim])
        strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else packed_strides(shape)
        location = Location("host", 0) if kind == _CPU else Location("cuda", tensor.device.ordinal)
        dtype = _dtype_of(tensor.dtype, name)
        return View((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, location)


def _capsule_of(array: Any, stream: int | None, name: str) -> Any:
    try:
        try:
            return array.__dlpack__(stream=stream, max_version=_VERSION, copy=False)
        except TypeError:  # a producer from before version 1 knows neither argument
            return array.__dlpack__(stream=stream)
    except BufferError as failure:  # the protocol's word for an array that cannot be exported
        raise UnsupportedError(
            asked=f"{name}, a {type(array).__qualname__} that DLPack does not export",
            rule=str(failure).splitlines()[0] if str(failure) else "its library gives no reason",
            works=f"pass a copy of {name} in plain memory of the GPU",
        ) from failure


def _tensor_of(capsule: Any, name: str) -> tuple[_Tensor, bool]:
    """The tensor that the capsule holds, and whether it may only be read. Valid as long as the capsule."""
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _ManagedVersioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if versioned.version.major == _VERSION[0]:
            return versioned.tensor, bool(versioned.flags & _READ_ONLY)
        rule = f"its version {versioned.version.major} lays memory out in a way that is not known here"
    elif _is_valid(capsule, b"dltensor"):
        return _Managed.from_address(_pointer_of(capsule, b"dltensor")).tensor, False
    else:
        rule = "it is no capsule of DLPack, or one that was consumed before"
    raise UnsupportedError(
        asked=f"the DLPack capsule of {name}", rule=rule, works=f"pass an array that speaks DLPack {_VERSION[0]}"
    )


def _dtype_of(kind: _Type, name: str) -> DType:
    spelling = f"{_CODES.get(kind.code, f'DLPack code {kind.code} of bits ')}{kind.bits}"
    return named_dtype(spelling if kind.lanes == 1 else f"{spelling} in vectors of {kind.lanes}", name)
