"""The CUDA array interface, NumPy, CuPy (a stand-in), and which of them an array falls to."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fakes import FakeCompiler, GpuArray, HostBackend, gpu
from tilewright import dtypes
from tilewright.arrays import base, registry
from tilewright.arrays.cuda_interface import CudaInterfaceAdapter
from tilewright.arrays.cupy import CupyAdapter
from tilewright.arrays.dlpack import DLPackAdapter
from tilewright.arrays.numpy import NumpyAdapter
from tilewright.dispatch import Dispatcher
from tilewright.errors import DTypeError, LayoutError, UnsupportedError
from tilewright.tensor import Location

# -- the CUDA array interface ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_interface_gives_the_whole_view_but_the_device(dtype):
    array = gpu((8, 16), dtype)[:, 4:12].t()
    found = CudaInterfaceAdapter().view(array, "a")
    assert (found.address, found.shape, found.strides) == (array.address, (8, 8), (1, 16))
    assert (found.dtype, found.location) == (dtypes.by_name(dtype), Location("cuda", base.UNKNOWN_ORDINAL))


class Interface:
    def __init__(self, **changes: Any) -> None:
        self.__cuda_array_interface__ = {**gpu((8, 8)).__cuda_array_interface__, **changes}


def test_missing_strides_mean_row_major():
    assert CudaInterfaceAdapter().view(Interface(strides=None, shape=(2, 3, 4)), "a").strides == (12, 4, 1)


@pytest.mark.parametrize("typestring", ["<f8", "|u1", "<c8", ">f2", "|V2", "<V4"])
def test_other_typestrings_are_refused_as_they_are_spelled(typestring):
    with pytest.raises(DTypeError, match=rf"b of dtype {typestring}".replace("|", r"\|")):
        CudaInterfaceAdapter().view(Interface(typestr=typestring), "b")


@pytest.mark.parametrize(
    ("shape", "strides"), [((1, 8), (3, 2)), ((8, 1), (2, -7)), ((0, 8), (3, 5)), ((2, 1, 8), (16, 7, 2))]
)
def test_a_stride_that_reaches_no_second_element_may_be_any_number(shape, strides):
    CudaInterfaceAdapter().view(Interface(shape=shape, strides=strides), "a")
    array = np.lib.stride_tricks.as_strided(np.zeros(64, np.float16), shape, strides)
    assert NumpyAdapter().view(array, "a").shape == shape


def test_numpys_masked_arrays_are_refused():
    masked = np.ma.masked_less(np.ones((8, 8), np.float16), 2)
    with pytest.raises(UnsupportedError, match=r"MaskedArray.*\.filled\(0\)"):
        Dispatcher(FakeCompiler).matmul(masked, masked)


def test_a_mask_a_torn_stride_and_a_read_only_out_are_refused():
    adapter = CudaInterfaceAdapter()
    with pytest.raises(UnsupportedError, match="mask"):
        adapter.view(Interface(mask=gpu((8, 8))), "a")
    with pytest.raises(LayoutError, match="stride of 3 bytes"):
        adapter.view(Interface(strides=(16, 3)), "a")
    array = GpuArray(gpu((8, 8)).host, read_only=True)
    adapter.view(array, "a")
    with pytest.raises(LayoutError, match="read-only"):
        adapter.view(array, "out", is_written=True)


@pytest.mark.parametrize(
    ("streams", "expected"),
    [((None, None, None), 1), ((7, None, 7), 7), ((None, None, 2), 2), ((1, 1, 1), 1), ((1, None, None), 1)],
)
def test_the_work_runs_on_the_one_stream_that_is_named(streams, expected):
    arrays = [GpuArray(gpu((8, 8)).host, stream=stream) for stream in streams]
    assert CudaInterfaceAdapter().describe(*arrays)[2] == expected


@pytest.mark.parametrize("streams", [(7, 8, None), (1, 2, None), (0, None, None)])
def test_two_streams_or_stream_zero_are_refused(streams):
    arrays = [GpuArray(gpu((8, 8)).host, stream=stream) for stream in streams]
    with pytest.raises(UnsupportedError, match="stream"):
        CudaInterfaceAdapter().describe(*arrays)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": None}, "data is None"),
        ({"data": 4096}, "data is 4096"),
        ({"data": (4096,)}, "data is"),
        ({"data": ("x", False)}, "data is"),
        ({"data": (-16, False)}, "data is"),
        ({"strides": (2,)}, r"strides is \(2,\)"),
        ({"strides": ()}, "strides is"),
        ({"strides": 16}, "strides is 16"),
        ({"strides": (16, "x")}, "strides is"),
        ({"typestr": None}, "typestr is None"),
        ({"typestr": ["<f2"]}, "typestr is"),
        ({"shape": None}, "shape is None"),
        ({"shape": 8}, "shape is 8"),
        ({"shape": (8, 8.0)}, "shape is"),
        ({"shape": (-1, 8)}, "shape is"),
        ({"stream": "x"}, "stream is 'x'"),
        ({"stream": True}, "stream is True"),
        ({"stream": [1]}, "stream is"),
        ({"stream": -1}, "stream is -1"),
    ],
)
def test_an_interface_that_says_something_else_is_refused_by_operand_and_field(changes, words):
    array, good = Interface(**changes), gpu((8, 8))
    for name, arrays in {"a": (array, good, good), "b": (good, array, good), "out": (good, good, array)}.items():
        with pytest.raises(UnsupportedError, match=f"{name} with a __cuda_array_interface__ in which {words}"):
            CudaInterfaceAdapter().describe(*arrays)


@pytest.mark.parametrize("field", ["data", "typestr", "shape"])
def test_an_interface_that_lacks_a_field_is_refused(field):
    array = Interface()
    del array.__cuda_array_interface__[field]
    with pytest.raises(UnsupportedError, match=f"{field} is None"):
        CudaInterfaceAdapter().view(array, "a")


def test_an_interface_that_is_no_dictionary_is_refused():
    array = Interface()
    array.__cuda_array_interface__ = 5
    with pytest.raises(UnsupportedError, match="a dict"):
        CudaInterfaceAdapter().view(array, "a")


def test_numbers_of_numpy_in_an_interface_are_numbers():
    array = Interface(shape=(np.int64(8), np.int32(8)), strides=(np.int64(16), np.int64(2)))
    found = CudaInterfaceAdapter().view(array, "a")
    assert (found.shape, found.strides) == ((8, 8), (8, 1))
    assert {type(extent) for extent in (*found.shape, *found.strides)} == {int}


# -- NumPy -------------------------------------------------------------------------------------------------------------


def test_numpy_arrays_are_host_memory_and_bf16_is_that_of_ml_dtypes():
    array = np.zeros((8, 16), ml_dtypes.bfloat16)[::2, 4:12]
    found = NumpyAdapter().view(array, "a")
    assert (found.address, found.shape, found.strides) == (array.ctypes.data, (4, 8), (32, 1))
    assert (found.dtype, found.location) == (dtypes.BF16, Location("host", 0))


def test_numpys_negative_strides_are_kept_for_the_layout_to_refuse():
    assert NumpyAdapter().view(np.zeros((8, 8), np.float16)[::-1], "a").strides == (-8, 1)


def test_numpys_foreign_byte_order_torn_strides_and_read_only_out_are_refused():
    with pytest.raises(DTypeError, match="byte order"):
        NumpyAdapter().view(np.zeros((8, 8), ">f2"), "a")
    torn = np.zeros((8,), [("x", np.float16), ("y", np.int8)])["x"]
    with pytest.raises(LayoutError, match="stride of 3 bytes"):
        NumpyAdapter().view(torn, "a")
    fixed = np.zeros((8, 8), np.float16)
    fixed.flags.writeable = False
    NumpyAdapter().view(fixed, "a")
    with pytest.raises(LayoutError, match="read-only"):
        NumpyAdapter().view(fixed, "out", is_written=True)


def test_numpy_allocates_in_host_memory():
    array, address = NumpyAdapter().empty((3, 5), (5, 1), dtypes.BF16, 0)
    assert (array.shape, array.dtype, address) == ((3, 5), dtypes.BF16.numpy, array.ctypes.data)


# -- CuPy --------------------------------------------------------------------------------------------------------------


class CupyArray:
    def __init__(self, host: np.ndarray, index: int = 0) -> None:
        self.host = host
        self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype
        self.data = SimpleNamespace(ptr=host.ctypes.data)
        self.device = SimpleNamespace(id=index)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module: Any = ModuleType("cupy")
    current = [0]

    @contextlib.contextmanager
    def device(ordinal: int):
        before, current[0] = current[0], ordinal
        yield
        current[0] = before

    module.ndarray = CupyArray
    module.empty = lambda shape, dtype: CupyArray(gpu(shape, np.dtype(dtype).name).host, current[0])
    module.cuda = SimpleNamespace(
        Device=device,
        get_current_stream=lambda ordinal: SimpleNamespace(ptr=0x50 + ordinal),
        runtime=SimpleNamespace(getDevice=lambda: current[0]),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "BY_TYPE", table := {})
    monkeypatch.setattr(sys.modules["tilewright.calls"], "BY_TYPE", table)
    return module


def test_cupy_arrays_run_on_cupys_stream_of_their_device_and_out_is_allocated_there(cupy, monkeypatch):
    from tilewright import device

    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    backend = HostBackend(devices=(device.preset("h200"),) * 2)
    a, b = CupyArray(gpu((8, 64), seed=1).host, 1), CupyArray(gpu((64, 8), seed=2).host, 1)
    out = Dispatcher(lambda: backend).matmul(a, b)
    assert isinstance(out, CupyArray)
    assert (out.device.id, backend.launched) == (1, [(1, 0x51)])
    assert np.array_equal(out.host.astype(float), a.host.astype(float) @ b.host.astype(float))
    assert CupyAdapter().current_ordinal() == 0


# -- which adapter -----------------------------------------------------------------------------------------------------


class Both:
    """Speaks both protocols."""

    __cuda_array_interface__ = None

    def __dlpack__(self, **_: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...  # type: ignore[empty-body]


def test_a_librarys_own_adapter_comes_first_and_dlpack_before_the_interface():
    assert isinstance(registry.adapter_of(np.zeros(3), "a"), NumpyAdapter)
    assert isinstance(registry.adapter_of(np.zeros(3).view(np.recarray), "a"), NumpyAdapter)
    assert isinstance(registry.adapter_of(Both(), "a"), DLPackAdapter)
    assert isinstance(registry.adapter_of(gpu((2, 2)), "a"), CudaInterfaceAdapter)


def test_the_dictionary_of_types_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "BY_TYPE", {})
    for index in range(3 * registry.MAX_TYPES):
        registry.adapter_of(type(f"Array{index}", (Both,), {})(), "a")
        assert len(registry.BY_TYPE) <= registry.MAX_TYPES


@pytest.mark.parametrize("stranger", [3.0, None, "a", [[1.0]], object()])
def test_an_object_of_no_protocol_is_refused_by_type(stranger):
    with pytest.raises(UnsupportedError, match=type(stranger).__qualname__):
        registry.common_adapter(gpu((2, 2)), stranger, None)
