"""DLPack capsules of both versions, made here byte by byte, so that every field can be what a producer may say."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fakes import FakeCompiler, HostBackend, gpu
from tilewright import dtypes
from tilewright.arrays import dlpack
from tilewright.arrays.dlpack import DLPackAdapter
from tilewright.dispatch import Dispatcher
from tilewright.errors import DTypeError, LayoutError, UnsupportedError
from tilewright.tensor import Location

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_CODES = {"bfloat16": 4, "float16": 2, "float32": 2, "float64": 2, "int8": 0, "int32": 0, "uint8": 1, "complex64": 5}


class Producer:
    """An array whose library speaks DLPack and nothing else."""

    def __init__(
        self,
        host: np.ndarray,
        *,
        device: tuple[int, int] = (2, 0),
        version: int | None = 1,
        flags: int = 0,
        has_strides: bool = True,
        byte_offset: int = 0,
        lanes: int = 1,
        code: int | None = None,
    ) -> None:
        self.host, self.device, self.version = host, device, version
        self.asked: list[dict[str, Any]] = []
        kind = dlpack._Managed if version is None else dlpack._ManagedVersioned
        self.managed = kind()
        tensor = self.managed.tensor
        tensor.data = host.ctypes.data - byte_offset
        tensor.byte_offset = byte_offset
        tensor.device.kind, tensor.device.ordinal = device
        tensor.ndim = host.ndim
        tensor.dtype.code = _CODES[host.dtype.name] if code is None else code
        tensor.dtype.bits, tensor.dtype.lanes = host.dtype.itemsize * 8, lanes
        extents = (ctypes.c_int64 * host.ndim)(*host.shape)
        strides = (ctypes.c_int64 * host.ndim)(*(stride // host.itemsize for stride in host.strides))
        tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
        if has_strides:
            tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        self.kept = (extents, strides)
        if version is not None:
            self.managed.version.major, self.managed.flags = version, flags

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        if self.version is None and set(asked) != {"stream"}:
            raise TypeError("unexpected keyword")
        self.asked.append(asked)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        return _new_capsule(ctypes.addressof(self.managed), name, None)


def view(producer: Producer, name: str = "a"):
    return DLPackAdapter().view(producer, name)


@pytest.mark.parametrize("version", [None, 1])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_both_versions_of_the_capsule_give_the_whole_view(version, dtype):
    host = gpu((8, 16), dtype).host[:, 4:12].T
    found = view(Producer(host, device=(2, 3), version=version))
    assert (found.address, found.shape, found.strides) == (host.ctypes.data, (8, 8), (1, 16))
    assert (found.dtype, found.location) == (dtypes.by_name(dtype), Location("cuda", 3))


def test_missing_strides_mean_row_major():
    assert view(Producer(gpu((4, 6, 8)).host, has_strides=False)).strides == (48, 8, 1)


def test_a_byte_offset_is_added_to_the_address():
    host = gpu((8, 8)).host
    assert view(Producer(host, byte_offset=64)).address == host.ctypes.data


def test_managed_memory_is_the_gpus():
    assert view(Producer(gpu((8, 8)).host, device=(13, 1))).location == Location("cuda", 1)


def test_host_memory_is_seen_as_such_and_no_stream_is_asked_for():
    producer = Producer(gpu((8, 8)).host, device=(1, 0))
    assert view(producer).location == Location("host", 0)
    assert producer.asked[0]["stream"] is None


@pytest.mark.parametrize("kind", [3, 7, 10, 14])
def test_other_kinds_of_device_are_refused(kind):
    with pytest.raises(UnsupportedError, match=f"kind {kind}"):
        view(Producer(gpu((8, 8)).host, device=(kind, 0)))


@pytest.mark.parametrize("name", ["int8", "int32"])
def test_whole_numbers_are_known(name):
    assert view(Producer(np.zeros((8, 8), name))).dtype.name == name


@pytest.mark.parametrize("name", ["float64", "uint8", "complex64"])
def test_other_dtypes_are_refused_by_name(name):
    with pytest.raises(DTypeError, match=f"a of dtype {name}"):
        view(Producer(np.zeros((8, 8), name)))


def test_an_unknown_dtype_code_and_vectors_are_refused():
    with pytest.raises(DTypeError, match="DLPack code 11 of bits 16"):
        view(Producer(gpu((8, 8)).host, code=11))
    with pytest.raises(DTypeError, match="vectors of 2"):
        view(Producer(gpu((8, 8), "fp16").host, lanes=2))


def test_a_read_only_array_can_be_read_and_not_be_out():
    producer = Producer(gpu((8, 8)).host, flags=1)
    view(producer, "a")
    with pytest.raises(LayoutError, match="read-only"):
        DLPackAdapter().view(producer, "out", is_written=True)


def test_a_capsule_of_an_unknown_major_version_is_refused():
    with pytest.raises(UnsupportedError, match="version 2"):
        view(Producer(gpu((8, 8)).host, version=2))


def test_the_producer_is_told_the_stream_that_the_work_runs_on(monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    backend = HostBackend()
    producers = [Producer(gpu((8, 8), seed=seed).host) for seed in (1, 2, 3)]
    Dispatcher(lambda: backend).matmul(*producers)
    assert backend.launched == [(0, 1)]
    assert all(asked["stream"] == 1 for producer in producers for asked in producer.asked)
    a, b, out = (producer.host.astype(np.float64) for producer in producers)
    assert np.array_equal(out, (a @ b).astype(ml_dtypes.bfloat16).astype(np.float64))


def test_an_array_that_its_library_does_not_export_is_refused_with_its_reason():
    class Kept:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **_):
            raise BufferError("it is kept")

    with pytest.raises(UnsupportedError, match=r"b, a .*Kept that DLPack does not export: it is kept"):
        DLPackAdapter().view(Kept(), "b")
