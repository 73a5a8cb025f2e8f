"""The torch adapter, on a stand-in everywhere and on torch itself where it is installed (CPU tensors suffice)."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fake_torch import Parameter, Tensor, make_torch
from fakes import FakeCompiler, HostBackend, gpu
from tilewright import dtypes
from tilewright.arrays import registry
from tilewright.arrays.torch import TorchAdapter
from tilewright.dispatch import Dispatcher
from tilewright.errors import DriverError, DTypeError, LayoutError, ShapeError, UnsupportedError
from tilewright.tensor import Location


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch):
    module = make_torch(streams={0: 0x70, 1: 0x71})
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "BY_TYPE", table := {})
    monkeypatch.setattr(sys.modules["tilewright.calls"], "BY_TYPE", table)
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    return module


@pytest.fixture
def backend() -> HostBackend:
    from tilewright import device

    return HostBackend(devices=(device.preset("h200"),) * 2)


@pytest.fixture
def dispatcher(fake, backend: HostBackend) -> Dispatcher:
    return Dispatcher(lambda: backend)


def tensor(fake, shape, dtype="bf16", seed=None, index=0) -> Tensor:
    return Tensor(gpu(shape, dtype, seed=seed).host, fake, "cuda", index)


def test_the_product_lands_in_a_fresh_tensor_of_the_inputs_dtype(fake, dispatcher: Dispatcher):
    a, b = tensor(fake, (8, 64), seed=1), tensor(fake, (16, 64), seed=2).t()
    out = dispatcher.matmul(a, b)
    assert isinstance(out, Tensor)
    assert (out.shape, out.stride(), str(out.dtype)) == ((8, 16), (16, 1), "torch.bfloat16")
    assert np.array_equal(out.host.astype(float), a.host.astype(float) @ b.host.astype(float))


def test_int8_gives_int32_and_the_other_kinds_are_asked_for_by_name(fake, backend, dispatcher: Dispatcher):
    backend.computes = False  # it knows Hopper's arguments alone
    int8, fp32, fp16 = (tensor(fake, (16, 16), name) for name in ("int8", "fp32", "fp16"))
    assert str(dispatcher.matmul(int8, int8).dtype) == "torch.int32"
    assert str(dispatcher.matmul(fp32, fp32, inputs="tf32").dtype) == "torch.float32"
    assert str(dispatcher.matmul(fp16, fp16, sums="fp16").dtype) == "torch.float16"
    assert dispatcher.plan(fp16, fp16, sums="fp16").family.name == "ampere"
    assert dispatcher.plan(fp16, fp16).family.name == "hopper"
    with pytest.raises(DTypeError, match="pass inputs='tf32'"):
        dispatcher.matmul(fp32, fp32)
    with pytest.raises(DTypeError, match="a of int8 and b of fp16"):
        dispatcher.matmul(int8, fp16)


def test_the_launch_is_on_torchs_current_stream_of_the_tensors_device(fake, backend, dispatcher: Dispatcher):
    fake.current = 1
    for index in (0, 1, 0):
        dispatcher.matmul(tensor(fake, (8, 8), index=index), tensor(fake, (8, 8), index=index))
    assert backend.launched == [(0, 0x70), (1, 0x71), (0, 0x70)]


def test_every_fact_of_every_operand_tells_layouts_apart(fake):
    adapter = TorchAdapter()
    base = {name: tensor(fake, (16, 16)) for name in ("a", "b", "out")}
    keys = [adapter.describe(*base.values())[0], adapter.describe(base["a"], base["b"], None)[0]]
    for name in base:
        for other in (
            tensor(fake, (8, 16)),  # shape
            tensor(fake, (16, 24))[:, :16],  # stride
            tensor(fake, (16, 16), "fp16"),  # dtype
            tensor(fake, (16, 16), index=1),  # device
        ):
            keys.append(adapter.describe(*{**base, name: other}.values())[0])
    shifted = tensor(fake, (16, 24))[:, 1:17]
    keys += [adapter.describe(base["a"], base["b"], shifted)[0]]  # the low bits of out's address
    assert len(set(keys)) == len(keys) == 15
    assert adapter.describe(*(tensor(fake, (16, 16)) for _ in range(3)))[0] == keys[0]


@pytest.mark.parametrize("current", [0, 1])
def test_out_is_allocated_on_the_tensors_device_whichever_is_current(fake, dispatcher: Dispatcher, current: int):
    fake.current = current
    out = dispatcher.matmul(tensor(fake, (8, 8), index=1), tensor(fake, (8, 8), index=1))
    assert out.get_device() == 1


def test_without_the_private_names_of_torch_the_documented_ones_serve(fake, backend, monkeypatch):
    fake._C = SimpleNamespace()
    fake.cuda = SimpleNamespace(
        current_stream=lambda ordinal: SimpleNamespace(cuda_stream=0x90 + ordinal), current_device=lambda: 1
    )
    bumped = []
    fake.autograd = SimpleNamespace(graph=SimpleNamespace(increment_version=bumped.append))
    dispatcher = Dispatcher(lambda: backend)
    a, b, out = (tensor(fake, (8, 8), index=1) for _ in range(3))
    dispatcher.matmul(a, b, out)
    assert dispatcher.matmul(a, b).get_device() == 1
    assert backend.launched == [(1, 0x91)] * 2
    assert bumped == [out]
    assert TorchAdapter().current_ordinal() == 1


def test_the_current_device_is_torchs(fake):
    fake.current = 1
    assert TorchAdapter().current_ordinal() == 1


def test_a_parameter_is_a_tensor(fake, dispatcher: Dispatcher):
    w = Parameter(gpu((16, 64), seed=1).host, fake)
    assert dispatcher.matmul(tensor(fake, (8, 64)), w.t()).shape == (8, 16)
    assert registry.adapter_of(w, "b") is registry.adapter_of(tensor(fake, (8, 8)), "a")


@pytest.mark.parametrize("which", ["a", "b", "out"])
def test_a_tensor_that_requires_grad_is_refused_while_gradients_are_recorded(fake, dispatcher: Dispatcher, which):
    named = {name: tensor(fake, (8, 8)) for name in ("a", "b", "out")}
    dispatcher.matmul(*named.values())
    named[which].requires_grad = True
    with pytest.raises(UnsupportedError, match=rf"{which} requires grad.*{which}\.detach\(\).*torch\.no_grad\(\)"):
        dispatcher.matmul(*named.values())
    fake.grad_enabled = False
    dispatcher.matmul(*named.values())


@pytest.mark.parametrize("which", ["a", "b", "out"])
@pytest.mark.parametrize(("dtype", "out_dtype"), [("fp16", "fp16"), ("fp16", "fp32"), ("bf16", "fp32")])
def test_a_lazily_negated_view_of_served_memory_is_refused(fake, dispatcher: Dispatcher, which, dtype, out_dtype):
    dtypes = {"a": dtype, "b": dtype, "out": out_dtype}
    named = {name: tensor(fake, (8, 8), kind) for name, kind in dtypes.items()}
    dispatcher.matmul(*named.values())
    named[which].negative = True  # address, shape, strides and dtype are as before
    with pytest.raises(UnsupportedError, match=rf"{which}, a lazily negated tensor.*resolve_neg"):
        dispatcher.matmul(*named.values())


def test_writing_out_raises_its_version_as_torch_does(fake, dispatcher: Dispatcher):
    a, b, out = (tensor(fake, (8, 8)) for _ in range(3))
    for calls in (1, 2):
        dispatcher.matmul(a, b, out)
        assert (a.version, b.version, out.version) == (0, 0, calls)


def test_an_out_that_was_not_written_keeps_its_version(fake, backend, dispatcher: Dispatcher, monkeypatch):
    a, b, out = (tensor(fake, (8, 8)) for _ in range(3))
    dispatcher.matmul(a, b, out)
    with pytest.raises(ShapeError):
        dispatcher.matmul(a, tensor(fake, (16, 8)), out)
    with pytest.raises(LayoutError, match="shares memory with a"):
        dispatcher.matmul(out, b, out)

    def failing(*_):
        raise DriverError("cuLaunchKernelEx", "CUDA_ERROR_LAUNCH_FAILED", "")

    monkeypatch.setattr(backend, "launch", failing)
    dispatcher.clear()
    with pytest.raises(DriverError):
        dispatcher.matmul(a, b, out)
    assert out.version == 1


def test_cpu_tensors_are_refused_with_the_method_that_moves_them(fake, dispatcher: Dispatcher):
    on_cpu = Tensor(gpu((8, 8)).host, fake, "cpu", 0)
    with pytest.raises(UnsupportedError, match=r"b on the CPU|a on cuda:0 and b on the CPU|b\.cuda\(\)"):
        dispatcher.matmul(tensor(fake, (8, 8)), on_cpu)
    with pytest.raises(UnsupportedError, match=r"a on the CPU.*a\.cuda\(\)"):
        dispatcher.matmul(on_cpu, on_cpu)


def test_tensors_of_two_devices_are_refused(fake, dispatcher: Dispatcher):
    with pytest.raises(UnsupportedError, match="a on cuda:0 and b on cuda:1"):
        dispatcher.matmul(tensor(fake, (8, 8)), tensor(fake, (8, 8), index=1))


def test_a_tensor_with_numpy_is_refused(fake, dispatcher: Dispatcher):
    with pytest.raises(UnsupportedError, match="a of torch and b of numpy"):
        dispatcher.matmul(tensor(fake, (8, 8)), np.zeros((8, 8), np.float16))


@pytest.mark.parametrize("name", ["float64", "uint8", "complex64"])
def test_other_dtypes_are_refused_by_torchs_name(fake, dispatcher: Dispatcher, name):
    other = Tensor(np.zeros((8, 8), name), fake)
    with pytest.raises(DTypeError, match=rf"a of dtype torch\.{name}"):
        dispatcher.matmul(other, other)


def test_a_tensor_without_memory_is_refused_by_address(fake, dispatcher: Dispatcher):
    hollow = tensor(fake, (8, 8))
    hollow.data_ptr = lambda: 0  # type: ignore[method-assign]
    with pytest.raises(LayoutError, match="a at address 0"):
        dispatcher.matmul(hollow, tensor(fake, (8, 8)))


# -- torch itself ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed; the stand-in covers the same paths")


def test_torchs_own_tensors_are_viewed_as_they_are(torch):
    adapter = TorchAdapter()
    x = torch.zeros(64, 80, dtype=torch.bfloat16)[:, 8:72].t()
    view = adapter.view(x, "a")
    assert view.address == x.data_ptr()
    assert (view.shape, view.strides, view.dtype) == ((64, 64), (1, 80), dtypes.BF16)
    assert view.location == Location("host", 0)
    assert adapter.view(torch.nn.Parameter(torch.zeros(2, 2)), "a").dtype == dtypes.FP32


def test_torchs_own_tensors_are_described_by_all_that_a_plan_depends_on(torch):
    adapter = TorchAdapter()
    base = torch.zeros(64, 64, dtype=torch.float16)
    with torch.no_grad():
        key, addresses, stream = adapter.describe(base, base, base[:, :8])
    assert addresses == (base.data_ptr(),) * 3
    assert stream is None
    others = [
        adapter.describe(*arrays)[0]
        for arrays in (
            (base[:32], base, base[:, :8]),
            (base.t(), base, base[:, :8]),
            (base.bfloat16(), base, base[:, :8]),
            (base, base[:32], base[:, :8]),
            (base, base, base[:, 1:9]),
            (base, base, base[:, :8].float()),
            (base, base, None),
        )
    ]
    assert len({key, *others}) == 1 + len(others)


TENSORS = {
    "sparse_coo": lambda torch: torch.zeros(8, 8).to_sparse(),
    "sparse_csr": lambda torch: torch.zeros(8, 8).to_sparse_csr(),
    "nested": lambda torch: torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)]),
    "quantized": lambda torch: torch.quantize_per_tensor(torch.zeros(8, 8), 0.1, 0, torch.qint8),
    "meta": lambda torch: torch.zeros(8, 8, device="meta"),
    "lazily negated": lambda torch: torch._neg_view(torch.zeros(8, 8)),
    "zero": lambda torch: torch._efficientzerotensor((8, 8)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TENSORS)
def test_torchs_tensors_without_plain_memory_are_refused_by_kind(torch, kind):
    x, good = TENSORS[kind](torch), torch.zeros(8, 8)
    dispatcher = Dispatcher(HostBackend)
    for arrays in ((x, good), (good, x), (good, good, x)):
        with pytest.raises(UnsupportedError, match=kind if arrays[0] is x else f"{kind}|a on the CPU"):
            dispatcher.matmul(*arrays)
    with pytest.raises(UnsupportedError, match=f"b, a {kind} tensor"):
        TorchAdapter().view(x, "b")


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_fake_tensor_is_refused_by_its_class(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.zeros(8, 8)
    with pytest.raises(UnsupportedError, match="a FakeTensor tensor"):
        Dispatcher(HostBackend).matmul(x, x)


def test_a_tensor_inside_a_transform_is_refused_with_torchs_reason(torch):
    def inside(x):
        return Dispatcher(HostBackend).matmul(x, x)

    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.vmap(inside)(torch.zeros(3, 8, 8, dtype=torch.bfloat16))


def test_torchs_gradients_are_guarded(torch):
    adapter = TorchAdapter()
    x, w = torch.zeros(8, 8), torch.nn.Parameter(torch.zeros(8, 8))
    with pytest.raises(UnsupportedError, match="b requires grad"):
        adapter.describe(x, w, None)
    adapter.describe(x, w.detach(), None)
    with torch.no_grad():
        adapter.describe(x, w, None)
    with torch.inference_mode():
        adapter.describe(x, w, torch.zeros(8, 8))


@pytest.fixture
def on_gpu(torch, monkeypatch) -> Dispatcher:
    """A dispatcher to which torch's CPU tensors are on GPU 0, whose kernels multiply them where they lie."""
    real = TorchAdapter.view

    def view(self, array, name, is_written=False):
        return dataclasses.replace(real(self, array, name), location=Location("cuda", 0))

    monkeypatch.setattr(TorchAdapter, "view", view)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 0, raising=False)
    monkeypatch.setattr(TorchAdapter, "empty", lambda self, shape, strides, dtype, ordinal: _empty(torch, shape))
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "BY_TYPE", table := {})
    monkeypatch.setattr(sys.modules["tilewright.calls"], "BY_TYPE", table)
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    backend = HostBackend()
    return Dispatcher(lambda: backend)


def _empty(torch, shape):
    fresh = torch.empty(shape, dtype=torch.bfloat16)
    return fresh, fresh.data_ptr()


def _integers(torch, rows, columns):
    return torch.randint(-4, 5, (rows, columns)).to(torch.bfloat16)


def test_torchs_tensors_are_multiplied_where_they_lie(torch, on_gpu):
    a, b = _integers(torch, 16, 64), _integers(torch, 64, 32)
    for x in (a, torch.nn.Parameter(a, requires_grad=False), torch.nn.Buffer(a)):
        assert torch.equal(on_gpu.matmul(x, b), (a.float() @ b.float()).bfloat16())


def test_torch_refuses_a_backward_pass_over_an_out_that_was_written(torch, on_gpu):
    x = torch.zeros(8, 8, requires_grad=True, dtype=torch.bfloat16)
    saved, good = torch.zeros(8, 8, dtype=torch.bfloat16), torch.zeros(8, 8, dtype=torch.bfloat16)
    loss = (x * saved).sum()
    with pytest.raises(LayoutError):  # refused: the contents are the old ones, and so is the version
        on_gpu.matmul(saved, good, saved)
    loss.backward(retain_graph=True)
    on_gpu.matmul(good, good, saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_inference_tensor_is_written_in_and_outside_of_inference_mode(torch, on_gpu):
    a = _integers(torch, 8, 8)
    with torch.inference_mode():
        out = torch.zeros(8, 8, dtype=torch.bfloat16)
        on_gpu.matmul(a, a, out)
    on_gpu.matmul(a, a, out)
    assert torch.equal(out, (a.float() @ a.float()).bfloat16())


def _doubled_by_dispatch(torch):
    class Doubled(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise AssertionError("its value is twice its memory")

    return Doubled


def _doubled_by_function(torch):
    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return super().__torch_function__(function, types, args, kwargs or {})

    return Doubled


@pytest.mark.parametrize("make", [_doubled_by_dispatch, _doubled_by_function])
def test_a_class_with_a_meaning_of_its_own_is_refused_before_and_after_its_layout_was_served(torch, on_gpu, make):
    a, b, out = _integers(torch, 16, 64), _integers(torch, 64, 16), torch.zeros(16, 16, dtype=torch.bfloat16)
    kind = make(torch)

    class Heir(kind):
        pass

    for of in (kind, Heir):
        named = {"a": a, "b": b, "out": out}
        for name, plain in named.items():
            strange = torch.Tensor._make_subclass(of, plain)
            for _ in range(2):
                with pytest.raises(
                    UnsupportedError, match=rf"{name}, a .*{of.__name__} tensor: its class has a __torch_"
                ):
                    on_gpu.matmul(**{**named, name: strange})
                on_gpu.matmul(**named)


def test_a_class_without_a_meaning_of_its_own_is_served(torch, on_gpu):
    class Named(torch.Tensor):
        color = "red"

    class Quiet(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

    a, b = _integers(torch, 16, 64), _integers(torch, 64, 32)
    for kind in (Named, Quiet):
        assert torch.equal(on_gpu.matmul(a.as_subclass(kind), b), on_gpu.matmul(a, b))


@pytest.mark.parametrize("which", ["a", "b", "out"])
def test_a_dual_tensor_is_refused_while_its_level_is_open(torch, on_gpu, which):
    from torch.autograd import forward_ad

    named = {"a": _integers(torch, 8, 8), "b": _integers(torch, 8, 8), "out": torch.zeros(8, 8, dtype=torch.bfloat16)}
    on_gpu.matmul(**named)
    with forward_ad.dual_level():
        on_gpu.matmul(**named)  # no tangent, nothing to lose
        dual = {**named, which: forward_ad.make_dual(named[which], torch.ones_like(named[which]))}
        with pytest.raises(UnsupportedError, match=rf"{which}, a dual tensor.*unpack_dual\({which}\)\.primal"):
            on_gpu.matmul(**dual)
        on_gpu.matmul(**{**dual, which: forward_ad.unpack_dual(dual[which]).primal})
    on_gpu.matmul(**dual)


def test_a_jvp_through_matmul_is_refused(torch, on_gpu):
    a = _integers(torch, 8, 8)
    on_gpu.matmul(a, a)
    with pytest.raises(UnsupportedError):
        torch.func.jvp(lambda x: on_gpu.matmul(x, a), (a,), (a,))


def test_a_torch_whose_open_level_cannot_be_read_is_asked_about_every_tensor(fake, backend):
    tangents = []
    unpack = lambda x: SimpleNamespace(tangent=None if x not in tangents else x)  # noqa: E731
    fake.autograd = SimpleNamespace(forward_ad=SimpleNamespace(unpack_dual=unpack))
    dispatcher = Dispatcher(lambda: backend)
    a, b, out = (tensor(fake, (8, 8)) for _ in range(3))
    dispatcher.matmul(a, b, out)
    tangents.append(b)
    with pytest.raises(UnsupportedError, match="b, a dual tensor"):
        dispatcher.matmul(a, b, out)


def test_a_cpu_tensor_of_torch_is_refused_with_cuda(torch):
    x = torch.zeros(8, 8, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match=r"a on the CPU.*pass a\.cuda\(\)"):
        Dispatcher(HostBackend).matmul(x, x)
