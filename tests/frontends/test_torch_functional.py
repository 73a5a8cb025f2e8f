"""Which calls go around the dispatcher, those that nothing but plain eager mode can notice: with gradients and without.
And that none leaks."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd.forward_ad import dual_level  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tilewright  # noqa: E402  torch first: without it this file is skipped
from fakes import FakeCompiler  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import DTypeError, UnsupportedError  # noqa: E402
from tilewright.frontends.torch import eager, functional, gradients, modules  # noqa: E402

T = tilewright.torch
Tensor = Any


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The way of each product, of CPU tensors that are taken for the GPU's; nothing is computed."""
    found: list[str] = []

    def way(name: str, is_transposed: bool) -> Callable[..., Tensor]:
        def product(a: Tensor, b: Tensor, *_: Any) -> Tensor:
            found.append(name)
            return a.new_zeros(*a.shape[:-1], b.shape[-2 if is_transposed else -1])

        return product

    monkeypatch.setattr(eager, "is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(functional.products, "plain_product", way("around", False))
    monkeypatch.setattr(functional.products, "plain_linear", way("around", True))
    monkeypatch.setattr(gradients, "record_matmul", way("recorded", False))
    monkeypatch.setattr(gradients, "record_linear", way("recorded", True))
    through = {name: way("through", name == "linear") for name in ("matmul", "linear")}
    monkeypatch.setattr(functional, "ops", SimpleNamespace(**through))
    return found


class Wrapped(torch.Tensor):
    """A subclass: what its memory holds may not be its value."""


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def with_a_nested(call: Callable[..., Any], a: Tensor, b: Tensor) -> None:
    with contextlib.suppress(UnsupportedError):
        call(torch.nested.nested_tensor([a]), b.requires_grad_())


def under(context: Callable[[], Any]) -> Callable[..., None]:
    def run(call: Callable[..., Any], a: Tensor, b: Tensor) -> None:
        with context():
            call(a, b)

    return run


CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "plain": (lambda call, a, b: call(a, b), "around"),
    "a parameter under no_grad": (
        lambda call, a, b: under(torch.no_grad)(call, a, torch.nn.Parameter(b)),
        "around",
    ),
    "inference mode": (under(torch.inference_mode), "around"),
    "gradients": (lambda call, a, b: call(a, b.requires_grad_()), "recorded"),
    "gradients under autocast": (
        lambda call, a, b: under(lambda: torch.autocast("cpu", dtype=torch.bfloat16))(call, a, b.requires_grad_()),
        "through",
    ),
    "gradients in a dispatch mode": (lambda call, a, b: under(Mode)(call, a, b.requires_grad_()), "through"),
    "gradients in forward mode": (lambda call, a, b: under(dual_level)(call, a, b.requires_grad_()), "through"),
    "gradients of two types": (lambda call, a, b: call(a.half(), b.requires_grad_()), "through"),
    "gradients of a sparse tensor": (lambda call, a, b: call(a.to_sparse(), b.requires_grad_()), "through"),
    "gradients of a nested tensor": (with_a_nested, "through"),
    "autocast": (under(lambda: torch.autocast("cpu", dtype=torch.bfloat16)), "through"),
    "a dispatch mode": (under(Mode), "through"),
    "a function mode": (under(lambda: torch.device("cpu")), "through"),
    "vmap": (lambda call, a, b: torch.vmap(call, (0, None))(a, b), "through"),
    "a subclass": (lambda call, a, b: call(a.as_subclass(Wrapped), b), "through"),
    "a trace": (lambda call, a, b: torch.jit.trace(call, (a, b), check_trace=False), "through"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore:.*prototype stage")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["matmul", "linear"])
def test_only_plain_eager_calls_go_around_the_dispatcher(ways: list[str], name: str, case: str) -> None:
    run, expected = CASES[case]
    run(getattr(T, name), torch.zeros(4, 8, dtype=torch.bfloat16), torch.zeros(8, 8, dtype=torch.bfloat16))
    assert ways == [expected]


def test_a_patched_module_that_records_is_asked_for_nothing_but_its_parameters(
    ways: list[str], monkeypatch: Any
) -> None:
    """Whether it is served is asked only of calls that are not plain."""
    monkeypatch.setattr(modules, "is_served", None)
    layer = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    T.patch(layer, emulates=True)
    x = torch.zeros(4, 8, dtype=torch.bfloat16)
    layer(x)
    with torch.no_grad():
        layer(x)
    assert ways == ["recorded", "around"]


def whole(*shape: int, seed: int = 0) -> Tensor:
    """Whole numbers from -2 to 2: sums are exact, whatever the order."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def everything_of_autograd() -> list[Tensor]:
    """Gradients of every kind of call, and what hooks of each kind see of them."""
    found: list[Tensor] = []

    def seen(tensor: Tensor) -> Tensor:
        found.append(tensor.detach().clone())
        return tensor

    total = torch.zeros(7, 8)
    calls: dict[str, Callable[..., Tensor]] = {
        "linear": T.linear,
        "without a bias": lambda x, w, bias: T.linear(x, w),
        "relu": lambda x, w, bias: T.linear(x, w, bias, activation="relu"),
        "gelu": lambda x, w, bias: T.linear(x, w, bias, activation="gelu"),
        "a main_grad": lambda x, w, bias: T.linear(x, w, bias, main_grad=total),
        "matmul": lambda x, w, bias: T.matmul(x, w.t()),
        "a batch": lambda x, w, bias: T.matmul(x.expand(3, 5, 8), w.t()),
        "recomputed": lambda x, w, bias: checkpoint(T.linear, x, w, bias, use_reentrant=False),
    }
    grad = whole(5, 7, seed=3)
    for call in calls.values():
        x, w, bias = (whole(*size).requires_grad_() for size in ((5, 8), (7, 8), (7,)))
        x.register_hook(seen)
        with torch.autograd.graph.saved_tensors_hooks(seen, lambda t: t):
            out = call(x, w, bias)
        out.backward(grad.expand_as(out))
        found += [out.detach(), *(leaf.grad for leaf in (x, w, bias) if leaf.grad is not None)]
    x, w = whole(5, 8).requires_grad_(), whole(7, 8, seed=1).requires_grad_()
    first = torch.autograd.grad(T.linear(x, w), (x, w), grad, create_graph=True)
    found += torch.autograd.grad([each.float().square().sum() for each in first], (x, w))
    found += torch.autograd.grad(T.linear(x, w), (x, w), whole(2, 5, 7), is_grads_batched=True)
    return [*found, total]


@pytest.mark.usefixtures("fast")
def test_what_is_recorded_around_the_dispatcher_is_what_its_kernel_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every saved tensor, hook, gradient and second derivative, to the bit."""
    expected = everything_of_autograd()
    monkeypatch.setattr(eager, "is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(functional, "ops", None)
    found = everything_of_autograd()
    assert len(found) == len(expected) > 50
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("fast")
def test_a_bias_to_broadcast_goes_through_and_a_single_column_is_recorded_as_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eager, "is_on_gpu", lambda tensor: True)
    x, w = whole(4, 8).requires_grad_(), whole(6, 8, seed=1)
    for weight, bias in ((w, w[0, 0]), (w, w[0, :1]), (w, w[:, :1].t()), (w[0], None), (w[0], w[0, 0])):
        plain = x @ weight.t() if bias is None else x @ weight.t() + bias
        out = T.linear(x, weight, bias)
        assert torch.equal(out, plain)
        assert out.requires_grad


def test_what_the_way_around_refuses_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """For its strides, which the op copies, or with the same words."""
    monkeypatch.setattr(eager, "is_on_gpu", lambda tensor: True)  # whose memory is the CPU's: dispatch refuses it
    through = SimpleNamespace(matmul=lambda a, b, _: "through", linear=lambda *_: "through")
    monkeypatch.setattr(functional, "ops", through)
    x = torch.zeros(8, 8, dtype=torch.bfloat16)
    assert T.matmul(x, x) == T.linear(x, x) == T.linear(x.float(), x) == T.linear(x, x, x) == "through"


def test_what_matmul_alone_multiplies_goes_through_to_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """int8 and fp32: also where tilewright.matmul would take them."""
    monkeypatch.setattr(eager, "is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(functional.products, "dispatch", SimpleNamespace(matmul=lambda *_, **__: "served"))
    for dtype, words in ((torch.int8, r"takes it, into int32"), (torch.float32, r"matmul\(\.\.\., inputs='tf32'\)")):
        x = torch.zeros(8, 8, dtype=dtype)
        for call in (T.matmul, T.linear):
            with pytest.raises(DTypeError, match=f"inputs are bfloat16 or float16; .*{words}"):
                call(x, x)
    assert T.matmul(x.bfloat16(), x.bfloat16()) == "served"


@pytest.mark.usefixtures("fast")
def test_many_calls_of_fresh_tensors_leave_no_memory_behind(fast: Any, monkeypatch: Any) -> None:
    """B130. Under 100 bytes a call with its backward, around the dispatcher and through it in turns; 10^5 calls and the
    device's memory: test_torch_on_gpu.py."""
    fast.computes = False
    monkeypatch.setattr(eager, "is_on_gpu", lambda tensor: True)
    linears = (T.linear, torch.ops.tilewright.linear.default)
    compiler = FakeCompiler()  # kernels with an epilogue may spill
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", lambda source, **_: compiler(source, refuse=True))
    monkeypatch.setattr(functional.products, "dispatch", Dispatcher(lambda: fast, lambda: fast))
    w, bias = torch.zeros(16, 8, dtype=torch.bfloat16, requires_grad=True), torch.zeros(16, dtype=torch.bfloat16)
    kept = [torch.zeros(8, 8, dtype=torch.bfloat16) for _ in range(8)]

    def calls(count: int) -> None:
        for index in range(count):
            linears[index % 2](kept[index % 8].clone(), w, bias).sum().backward()
        w.grad = None

    # Packed calls, of each address another, are bounded: to few here.
    monkeypatch.setattr(tilewright.calls, "MAX_CALLS", 16)
    calls(100)
    tracemalloc.start()
    sizes = []
    for _ in range(4):
        calls(150)
        fast.launched.clear()
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert min(after - before for before, after in itertools.pairwise(sizes)) < 15_000  # of a leak, each turn has it
