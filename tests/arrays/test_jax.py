"""The JAX adapter, on a stand-in everywhere and on JAX itself where it is installed (its CPU arrays suffice)."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_dlpack import Producer

from fakes import FakeCompiler, HostBackend, aligned_copy, gpu
from tilewright import device as devices
from tilewright.arrays import registry
from tilewright.dispatch import Dispatcher
from tilewright.errors import LayoutError, UnsupportedError


class Array(Producer):
    """A jax.Array on a pretended GPU: it speaks DLPack, and says on how many devices it lies."""

    def __init__(self, host: np.ndarray, index: int = 0, num_devices: int = 1) -> None:
        super().__init__(host, device=(2, index))
        self.num_devices = num_devices
        self.waited = 0

    def devices(self) -> set[int]:
        return set(range(self.num_devices))

    def block_until_ready(self) -> Array:
        self.waited += 1
        return self

    def unsafe_buffer_pointer(self) -> int:
        return self.host.ctypes.data


class Tracer:
    """What jit puts in an array's place."""

    def __dlpack__(self, **_: Any) -> Any: ...


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module: Any = ModuleType("jax")
    module.Array, module.core = Array, SimpleNamespace(Tracer=Tracer)
    module.local_devices = lambda backend: [SimpleNamespace(local_hardware_id=index) for index in (1, 0)]
    module.numpy = SimpleNamespace(
        empty=lambda shape, dtype, device: Array(
            aligned_copy(np.zeros(shape, dtype), order="C"), device.local_hardware_id
        )
    )
    monkeypatch.setitem(sys.modules, "jax", module)
    _forget_types(monkeypatch)
    return module


def _forget_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "BY_TYPE", table := {})
    monkeypatch.setattr(sys.modules["tilewright.calls"], "BY_TYPE", table)
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())


@pytest.fixture
def backend() -> HostBackend:
    return HostBackend(devices=(devices.preset("h200"),) * 2)


@pytest.mark.usefixtures("jax")
def test_the_product_is_a_fresh_array_on_the_same_device_and_is_written_when_it_is_returned(backend: HostBackend):
    a, b = Array(gpu((8, 64), seed=1).host, 1), Array(gpu((64, 16), seed=2).host, 1)
    for calls in (1, 2):
        out = Dispatcher(lambda: backend).matmul(a, b)
        assert backend.counts["wait"] == calls
    assert isinstance(out, Array)
    assert (out.device, out.waited) == ((2, 1), 1)  # JAX's own zeros are there before the product is
    assert np.array_equal(out.host.astype(float), a.host.astype(float) @ b.host.astype(float))
    assert set(backend.launched) == {(1, 1)}  # the legacy default stream, which JAX was told of:
    assert a.asked[-1]["stream"] == b.asked[-1]["stream"] == 1


@pytest.mark.usefixtures("jax")
def test_an_empty_product_needs_no_address(backend: HostBackend):
    assert Dispatcher(lambda: backend).matmul(Array(gpu((0, 8)).host), Array(gpu((8, 4)).host)).host.shape == (0, 4)


@pytest.mark.usefixtures("jax")
def test_a_tracer_an_out_and_an_array_on_two_devices_are_refused_by_name(backend: HostBackend):
    x = Array(gpu((8, 8)).host)
    dispatcher = Dispatcher(lambda: backend)
    with pytest.raises(UnsupportedError, match=r"b, a Tracer.*jax\.jit.*jax\.numpy\.matmul"):
        dispatcher.matmul(x, Tracer())
    with pytest.raises(LayoutError, match="JAX arrays do not change; leave out out"):
        dispatcher.matmul(x, x, Array(gpu((8, 8)).host))
    with pytest.raises(UnsupportedError, match=r"a on 2 devices.*addressable_data\(0\)"):
        dispatcher.matmul(Array(x.host, num_devices=2), x)


def test_jaxs_own_tracers_and_cpu_arrays_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, backend: HostBackend):
    real = pytest.importorskip("jax")
    _forget_types(monkeypatch)
    dispatcher = Dispatcher(lambda: backend)
    x = real.numpy.ones((8, 8), real.numpy.bfloat16)
    with pytest.raises(UnsupportedError, match=r"a on the CPU.*NumPy arrays run in the emulator"):
        dispatcher.matmul(x, x)
    for transform in (real.jit, real.grad, real.vmap):
        with pytest.raises(UnsupportedError, match=r"Tracer.*under jax\.jit, grad and vmap"):
            transform(lambda t: dispatcher.matmul(t, t))(x)
    assert np.asarray(x).dtype == ml_dtypes.bfloat16  # what the emulator takes


@pytest.mark.gpu
def test_jax_arrays_on_a_gpu_are_multiplied_in_order_with_jaxs_own_work():
    real = pytest.importorskip("jax")
    import tilewright

    if real.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    rng = np.random.default_rng(0)
    for seed in range(20):
        a, b = (real.numpy.asarray(rng.integers(-2, 3, (256, 256)), real.numpy.bfloat16) for _ in range(2))
        out = tilewright.matmul(a * 2, b) + seed  # JAX still multiplies when ours is enqueued, and adds at once after
        assert np.array_equal(
            np.asarray(out, float),
            (2 * np.asarray(a, float) @ np.asarray(b, float) + seed).astype(out.dtype).astype(float),
        )
