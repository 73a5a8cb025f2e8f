"""gated_linear: values and gradients beside float64's, and what becomes of it under compilers, autocast and transforms.

Products are NumPy's (fast_host.py) but for the last test, whose are the emulator's.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import tilewright  # noqa: E402  torch first: without it this file is skipped
from tilewright.errors import DTypeError, ShapeError, UnsupportedError  # noqa: E402

T = tilewright.torch
OPS = torch.ops.tilewright
Tensor = Any
F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("fast")

ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": torch.relu,
}


def quarters(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Tensor:
    """Quarters from -1/2 to 1/2. Of a product of 8 with whole numbers each sum is exact in 16 bits."""
    return whole(*shape, seed=seed, dtype=dtype) / 4


def whole(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, dtype=torch.int8).to(dtype)


def unfused(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "silu", split: str = "halves"):
    """The same in torch's words."""
    pre = F.linear(x, weight, bias)
    gate, up = pre.chunk(2, -1) if split == "halves" else (pre[..., 0::2], pre[..., 1::2])
    return ACTIVATIONS[activation](gate) * up


def assert_right(inputs: tuple[Tensor, ...], activation: str, split: str) -> None:
    """Result and gradients against float64's, within what roundings can make.

    Where x weight^T + bias is exact, an element of its gradient is rounded twice (a product and an activation's value
    or derivative), and the sums of such once more, by a unit roundoff u each. Of fp32's activations an ulp or two.
    """
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = T.gated_linear(*leaves, activation=activation, split=split)
    grad = whole(*out.shape, seed=9, dtype=out.dtype)
    out.backward(grad)
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    pre = F.linear(*doubles)
    eye = torch.eye(pre.shape[-1], dtype=torch.float64)
    expected = unfused(pre, eye, None, activation, split)
    grad_pre, *grads = torch.autograd.grad(expected, (pre, *doubles), grad.double())
    u = torch.finfo(out.dtype).eps / 2
    off, x, weight = (2 * u + 2**-18) * grad_pre.abs() + 2**-18, doubles[0].detach().abs(), doubles[1].detach().abs()
    rows, x_rows = (torch.atleast_2d(t).flatten(0, -2) for t in (off, x))
    bounds = [off @ weight, rows.t() @ x_rows, rows.sum(0)][: len(inputs)]
    found = [(out.detach(), expected.detach(), 2**-18)]
    found += zip([leaf.grad for leaf in leaves], grads, bounds, strict=True)
    for (ours, right, bound), like in zip(found, (out, *inputs), strict=True):
        assert ours.dtype == like.dtype
        assert ours.shape == like.shape
        assert ((ours.double() - right).abs() <= bound + u * (right.abs() + bound)).all()


CASES = {
    "rows": (quarters(5, 8), whole(14, 8, seed=1), whole(14, seed=2), "silu", "halves"),
    "fp16": (quarters(5, 8, dtype=torch.float16), whole(14, 8, seed=1, dtype=torch.float16), "gelu", "interleaved"),
    "a batch": (quarters(2, 3, 8), whole(14, 8, seed=1), whole(14, seed=2), "relu", "interleaved"),
    "a vector": (quarters(8), whole(14, 8, seed=1), whole(14, seed=2), "gelu_tanh", "halves"),
    "strides": (quarters(10, 16)[::2, ::2], whole(8, 14, seed=1).t(), whole(28, seed=2)[::2], "gelu", "halves"),
    "expanded": (quarters(1, 8).expand(5, 8), whole(14, 11, seed=1)[:, :8], whole(14, seed=2), "silu", "interleaved"),
    "a wide bias": (quarters(5, 8), whole(2, 8, seed=1), whole(2, seed=2).float(), "gelu_tanh", "interleaved"),
    "one sum": (quarters(5, 1), whole(14, 1, seed=1), whole(14, seed=2), "relu", "halves"),
    "no rows": (quarters(0, 8), whole(14, 8, seed=1), whole(14, seed=2), "silu", "interleaved"),
    "no columns": (quarters(5, 8), whole(0, 8), whole(0), "relu", "halves"),
    "no sums": (quarters(5, 0), whole(14, 0), whole(14, seed=2), "silu", "halves"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_gate_and_its_gradients_are_right(case: str) -> None:
    """B038, for every activation and split; which tile computes it is test_epilogues_on_gpu.py's."""
    *inputs, activation, split = CASES[case]
    assert_right(tuple(inputs), activation, split)


@pytest.mark.parametrize("split", ["halves", "interleaved"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gradient_of_gate_and_up_is_torchs_to_the_bit(activation: str, split: str) -> None:
    """Products with the identity change nothing: erf and tanh are told apart."""
    x, grad = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).bfloat16(), whole(64, 16, seed=9)
    eye, found = torch.eye(32).bfloat16(), []
    for gated in (T.gated_linear, unfused):
        leaf = x.clone().requires_grad_()
        gated(leaf, eye, activation=activation, split=split).backward(grad)
        found.append(leaf.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("wanted", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_one_kernel_runs_forward_and_a_product_for_each_matrix_that_wants_a_gradient(fast: Any, wanted: Any) -> None:
    inputs = [quarters(8, 16), whole(32, 16, seed=1), whole(32, seed=2)]
    for index in wanted:
        inputs[index].requires_grad_()
    out = T.gated_linear(*inputs)
    assert (fast.counts["fused"], fast.counts["launch"]) == (1, 0)
    assert out.requires_grad == bool(wanted)
    if wanted:
        x, weight, _, pre = out.grad_fn.saved_tensors
        assert torch.equal(pre, F.linear(*inputs))
        assert (x is not None) == (1 in wanted)
        assert (weight is not None) == (0 in wanted or 1 in wanted)
        out.sum().backward()
        assert fast.counts["launch"] == len({0, 1} & {*wanted})
    assert [t.grad is not None for t in inputs] == [index in wanted for index in range(3)]


def test_a_main_grad_takes_the_weights_gradient_in_fp32() -> None:
    x, w, total = quarters(8, 16), whole(32, 16, seed=1).requires_grad_(), torch.ones(32, 16)
    T.gated_linear(x, w, split="interleaved", main_grad=total).sum().backward()
    assert w.grad is None
    T.gated_linear(x, w, split="interleaved").sum().backward()
    assert torch.equal((total - 1).bfloat16(), w.grad)


@pytest.mark.parametrize(("activation", "split"), [*zip(ACTIVATIONS, ("halves", "interleaved") * 2, strict=True)])
def test_second_derivatives_and_transforms_are_torchs_within_rounding(activation: str, split: str) -> None:
    x, w, bias = quarters(4, 3), whole(6, 3, seed=1) / 2, whole(6, seed=2)
    ours = functools.partial(T.gated_linear, activation=activation, split=split)
    theirs = functools.partial(unfused, activation=activation, split=split)

    def loss(gated: Any, s: Tensor, t: Tensor, b: Tensor) -> Tensor:
        return gated(t, s, b).double().square().sum()

    def second(gated: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in inputs]
        first = torch.autograd.grad(loss(gated, *leaves), leaves, create_graph=True)
        return torch.autograd.grad(sum(each.double().square().sum() for each in first), leaves)

    def nested(gated: Any, s: Tensor, t: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        inner = torch.func.grad(functools.partial(loss, gated))
        return torch.func.grad(lambda *u: inner(*u).double().square().sum(), (0, 1))(s, t, b)

    def each_sample(gated: Any, s: Tensor, t: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (torch.vmap(torch.func.grad(functools.partial(loss, gated)), (None, 0, None))(s, t, b),)

    for derivative in (second, nested, each_sample):
        found = derivative(ours, w, x, bias)
        expected = derivative(theirs, w.double(), x.double(), bias.double())
        for one, other in zip(found, expected, strict=True):
            assert (one - other).abs().max() <= 0.03 * other.abs().max()  # bf16 after four products: 2**-5


def test_a_second_derivative_of_x_alone_is_refused_by_name() -> None:
    """The weight requires no gradient: what is needed is not kept."""
    leaf = quarters(4, 3).requires_grad_()
    with pytest.raises(UnsupportedError, match="apply the activation to the result"):
        torch.autograd.grad(T.gated_linear(leaf, whole(6, 3, seed=1)).sum(), leaf, create_graph=True)


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (0, 0, 0), (None, None, 0)])
@pytest.mark.parametrize("rows", [(), (5,)])
def test_vmap_is_torchs_within_rounding(dims: Any, rows: Any) -> None:
    x, w, bias = (
        whole(*(() if dim is None else (3,)), *size, seed=seed)
        for seed, (dim, size) in enumerate(zip(dims, ((*rows, 8), (14, 8), (14,)), strict=True))
    )
    for split in ("halves", "interleaved"):
        found, expected = (
            torch.vmap(functools.partial(gated, split=split), dims)(x, w, bias) for gated in (T.gated_linear, unfused)
        )
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7)


def test_opcheck_is_clean() -> None:
    """B133."""
    for case in ("strides", "no rows"):
        *inputs, activation, split = CASES[case]
        given = [t.detach().requires_grad_() for t in inputs]
        torch.library.opcheck(OPS.gated_linear.default, (*given, None, activation, split))
        torch.library.opcheck(OPS.gated_linear_and_pre.default, (*inputs, activation, split))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_the_operands_and_leaves_the_main_grad(dtype: Any) -> None:
    x, w, bias = quarters(5, 8).float(), whole(14, 8, seed=1).float().requires_grad_(), whole(14, seed=2)
    with torch.autocast("cpu", dtype=dtype):
        found, expected = T.gated_linear(x, w, bias), unfused(x, w, bias)
    assert found.dtype == expected.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7)
    total = torch.zeros(14, 8)
    with torch.autocast("cpu", dtype=dtype):
        T.gated_linear(x, w, bias, main_grad=total).sum().backward()
    assert total.any()


def test_one_graph_serves_every_number_of_rows() -> None:
    """Forward and backward, to the bit of the eager way."""
    counter = CompileCounterWithBackend("aot_eager")
    w, bias, down = whole(16, 8, seed=1).requires_grad_(), whole(16, seed=2).requires_grad_(), whole(8, 8, seed=3)

    def model(x: Tensor) -> Tensor:
        h = T.gated_linear(x, w, bias, activation="gelu", split="interleaved")
        return T.gated_linear(T.linear(h, down), w).float().sum()

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for rows in (2, 3, 5, 16, 21):
        x = quarters(rows, 8, seed=rows)
        results = [(out, *torch.autograd.grad(out, (w, bias))) for out in (model(x), compiled(x))]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
    assert counter.frame_count == 1


REFUSED = {
    "an odd weight": ((quarters(4, 8), whole(7, 8)), {}, ShapeError, r"weight of 7 rows.*pass weight \(2 n, k\)"),
    "half a bias": ((quarters(4, 8), whole(14, 8), whole(7)), {}, ShapeError, "bias has an element"),
    "fp32": ((quarters(4, 8).float(), whole(14, 8)), {}, DTypeError, "autocast"),
    "no activation": ((quarters(4, 8), whole(14, 8)), {"activation": None}, UnsupportedError, "activation"),
    "another activation": ((quarters(4, 8), whole(14, 8)), {"activation": "elu"}, UnsupportedError, "gelu_tanh"),
    "another split": ((quarters(4, 8), whole(14, 8)), {"split": "thirds"}, UnsupportedError, "'interleaved', 'halves'"),
    "a split that is none": ((quarters(4, 8), whole(14, 8)), {"split": 2}, UnsupportedError, "interleaved"),
    "no tensor": ((quarters(4, 8), 1.0), {}, UnsupportedError, "pass a tensor"),
    "a list": ((quarters(4, 8), [1.0]), {}, UnsupportedError, "a pair is of gate and up"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused_eagerly_by_fakes_and_by_transforms(case: str) -> None:
    """B016."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    inputs, options, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        T.gated_linear(*inputs, **options)
    with FakeTensorMode() as mode, pytest.raises(error, match=words):
        T.gated_linear(*(mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in inputs), **options)
    with pytest.raises(error, match=words):
        torch.func.grad(lambda x: T.gated_linear(x, *inputs[1:], **options).float().sum())(inputs[0])


def test_forward_mode_a_recording_helper_and_a_mapped_main_grad_are_refused_by_name() -> None:
    x, w = quarters(4, 8), whole(14, 8)
    with pytest.raises(UnsupportedError, match="dual tensor of forward-mode"):
        torch.func.jvp(lambda t: T.gated_linear(t, w), (x,), (x,))
    with pytest.raises(UnsupportedError, match="records no gradient"):
        OPS.gated_linear_and_pre(x, w.requires_grad_(), None, "silu", "halves")
    with pytest.raises(UnsupportedError, match="main_grad under vmap"):
        torch.vmap(lambda t: T.gated_linear(t, w.detach(), main_grad=torch.zeros(14, 8)))(x)


@pytest.mark.parametrize("split", ["halves", "interleaved"])
def test_the_emulator_gates_cpu_tensors_and_stores_what_their_gradients_need(split: str, monkeypatch: Any) -> None:
    """B038: the kernels' own PTX, forward without and with a gradient, and backward."""
    from tilewright import dispatch
    from tilewright.frontends.torch import products

    monkeypatch.undo()
    assert products.dispatch is dispatch
    inputs = (quarters(9, 16), whole(24, 16, seed=1), whole(24, seed=2))
    assert_right(inputs, "silu", split)
    expected = unfused(*(t.double() for t in inputs), split=split)
    torch.testing.assert_close(T.gated_linear(*inputs, split=split).double(), expected, rtol=2**-8, atol=2**-18)


def test_plain_eager_tensors_have_the_gradient_of_gate_and_up_in_one_launch(monkeypatch: Any) -> None:
    """On a GPU. Here the emulator stands in for it, and CPU tensors for its own."""
    from tilewright.backends.emulated import emulated
    from tilewright.frontends.torch import eager, gate_gradient

    backend, pitches = emulated("h200"), []
    of_gate = gate_gradient.of_gate

    def seen(grad: Tensor, *rest: Any) -> Any:
        found = of_gate(grad, *rest)
        pitches.append(None if found is None else grad.stride(-2))
        return found

    monkeypatch.setattr(backend, "device", lambda ordinal: backend.model)  # of CPU tensors it is -1
    monkeypatch.setattr(gate_gradient, "of_gate", seen)
    monkeypatch.setattr(gate_gradient, "dispatch", type("D", (), {"backend": staticmethod(lambda: backend)}))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 0, raising=False)
    monkeypatch.setattr(eager, "is_eager", lambda *tensors: True)
    x, w = quarters(2, 3, 8), whole(16, 8, seed=1) / 2
    for grad in (whole(2, 3, 8, seed=9), whole(2, 3, 16, seed=9)[..., :8], whole(2, 8, 3, seed=9).mT):
        found = []
        for gated in (T.gated_linear, unfused):
            leaves = [t.detach().requires_grad_() for t in (x, w)]
            gated(*leaves).backward(grad)
            found.append([leaf.grad for leaf in leaves])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=2**-4)
    assert pitches == [8, 16, 1]
    T.gated_linear(x, whole(14, 8, seed=1).requires_grad_()).sum().backward()  # 7 columns are no chunk
    assert pitches[-1] is None
    leaf, other = x.clone().requires_grad_(), w.clone().requires_grad_()
    torch.autograd.grad(T.gated_linear(leaf, other).sum(), leaf, create_graph=True)  # is differentiated again
    assert pitches[-1] is None
