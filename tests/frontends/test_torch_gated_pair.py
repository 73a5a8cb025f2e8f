"""gated_linear of two weights: the bits of one weight that holds both, each with its own gradient, and no copy of any.

Products are NumPy's (fast_host.py) but for the last test, whose are the emulator's.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import tilewright  # noqa: E402  torch first: without it this file is skipped
from tilewright.errors import DTypeError, LayoutError, ShapeError, UnsupportedError  # noqa: E402

T = tilewright.torch
OPS = torch.ops.tilewright
Tensor = Any
pytestmark = pytest.mark.usefixtures("fast")


def whole(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, dtype=torch.int8).to(dtype)


def quarters(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Tensor:
    """Quarters from -1/2 to 1/2. Of a product of 8 with whole numbers each sum is exact in 16 bits."""
    return whole(*shape, seed=seed, dtype=dtype) / 4


def pair(*shape: int, seed: int, **options: Any) -> tuple[Tensor, Tensor]:
    return whole(*shape, seed=seed, **options), whole(*shape, seed=seed + 10, **options)


CASES: dict[str, tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]] = {
    "rows": (quarters(5, 8), pair(7, 8, seed=1), pair(7, seed=2)),
    "no bias": (quarters(5, 8), pair(7, 8, seed=1), None),
    "fp16": (quarters(5, 8, dtype=torch.float16), pair(7, 8, seed=1, dtype=torch.float16), None),
    "a batch": (quarters(2, 3, 8), pair(7, 8, seed=1), pair(7, seed=2)),
    "a vector": (quarters(8), pair(7, 8, seed=1), pair(7, seed=2)),
    "transposed": (quarters(5, 8), tuple(w.t() for w in pair(8, 8, seed=1)), None),
    "wide biases": (quarters(5, 8), pair(7, 8, seed=1), pair(7, seed=2, dtype=torch.float32)),
    "rows off 16 bytes": (quarters(5, 3), pair(7, 3, seed=1), pair(7, seed=2)),
    "unlike strides": (quarters(5, 8), (whole(7, 8, seed=1), whole(8, 7, seed=2).t()), None),
    "no rows": (quarters(0, 8), pair(7, 8, seed=1), pair(7, seed=2)),
    "no columns": (quarters(5, 8), pair(0, 8, seed=1), None),
    "no sums": (quarters(5, 0), pair(7, 0, seed=1), pair(7, seed=2)),
}


def joined(both: tuple[Tensor, Tensor] | None) -> Tensor | None:
    return None if both is None else torch.cat(both)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_pair_has_the_bits_and_the_gradients_of_both_in_one_weight(case: str, activation: str) -> None:
    x, weights, biases = CASES[case]
    leaves = [t.detach().requires_grad_() for t in (x, *weights, *(biases or ()))]
    one = [None if t is None else t.detach().requires_grad_() for t in (x, joined(weights), joined(biases))]
    ours = T.gated_linear(leaves[0], leaves[1:3], leaves[3:] or None, activation=activation)
    theirs = T.gated_linear(*one, activation=activation)
    assert torch.equal(ours, theirs)
    grad = whole(*ours.shape, seed=9, dtype=ours.dtype)
    ours.backward(grad)
    theirs.backward(grad)
    assert torch.equal(torch.cat([t.grad for t in leaves[1:3]]), one[1].grad)
    if biases:
        assert torch.equal(torch.cat([t.grad for t in leaves[3:]]), one[2].grad)
    # The gradient of x is a sum of two products, the first of which is rounded.
    u = torch.finfo(x.dtype).eps / 2
    apart = (leaves[0].grad.double() - one[0].grad.double()).abs()
    size = grad.double().abs().max() * 16 if grad.numel() else 0  # of a gradient of gate or up, n of them in a sum
    assert (apart <= 4 * u * size * max(weights[0].shape[0], 1)).all()


@pytest.mark.parametrize("wanted", [(), (0,), (1,), (2,), (3,), (4,), (0, 1, 2, 3, 4)])
def test_one_kernel_runs_forward_and_nothing_is_multiplied_for_gradients_that_nobody_wants(
    fast: Any, wanted: Any
) -> None:
    inputs = [quarters(8, 16), *pair(16, 16, seed=1), *pair(16, seed=2)]
    for index in wanted:
        inputs[index].requires_grad_()
    out = T.gated_linear(inputs[0], inputs[1:3], inputs[3:])
    assert (fast.counts["fused"], fast.counts["launch"]) == (1, 0)
    assert out.requires_grad == bool(wanted)
    if wanted:
        out.sum().backward()
        # of x one product and one that adds to it; of each weight one
        assert fast.counts["launch"] == (0 in wanted) + (1 in wanted) + (2 in wanted)
        assert fast.counts["fused"] == 1 + (0 in wanted)
    assert [t.grad is not None for t in inputs] == [index in wanted for index in range(5)]


def test_weights_that_lie_alike_are_not_copied(monkeypatch: Any) -> None:
    from tilewright.frontends.torch import products

    monkeypatch.setattr(products, "_whole", lambda gate, up: pytest.fail("copied") if gate.dim() > 1 else gate)
    T.gated_linear(quarters(5, 8), pair(7, 8, seed=1))
    T.gated_linear(quarters(5, 8), tuple(w.t() for w in pair(8, 8, seed=1)))


def test_main_grads_take_the_weights_gradients_in_fp32() -> None:
    x, weights = quarters(8, 16), [w.requires_grad_() for w in pair(16, 16, seed=1)]
    totals = (torch.ones(16, 16), torch.ones(16, 16))
    T.gated_linear(x, weights, main_grad=totals).sum().backward()
    assert all(w.grad is None for w in weights)
    T.gated_linear(x, weights).sum().backward()
    assert all(torch.equal((total - 1).bfloat16(), w.grad) for total, w in zip(totals, weights, strict=True))


def unfused(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.silu(x @ gate.mT) * (x @ up.mT)


def test_second_derivatives_and_transforms_are_torchs_within_rounding() -> None:
    x, (gate, up) = quarters(4, 3), (w / 2 for w in pair(3, 3, seed=1))

    def loss(gated: Any, *inputs: Tensor) -> Tensor:
        return gated(*inputs).double().square().sum()

    def second(gated: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in inputs]
        first = torch.autograd.grad(loss(gated, *leaves), leaves, create_graph=True)
        return torch.autograd.grad(sum(each.double().square().sum() for each in first), leaves)

    def nested(gated: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        inner = torch.func.grad(lambda *u: loss(gated, *u))
        return torch.func.grad(lambda *u: inner(*u).double().square().sum(), (0, 1, 2))(*inputs)

    def each_sample(gated: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (torch.vmap(torch.func.grad(lambda *u: loss(gated, *u), (0, 1, 2)), (0, None, None))(*inputs)[1],)

    for derivative in (second, nested, each_sample):
        found = derivative(lambda x, g, u: T.gated_linear(x, (g, u)), x, gate, up)
        expected = derivative(unfused, x.double(), gate.double(), up.double())
        for one, other in zip(found, expected, strict=True):
            assert (one - other).abs().max() <= 0.03 * other.abs().max()  # bf16 after four products: 2**-5


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (None, 0, 0)])
def test_vmap_is_torchs_within_rounding(dims: Any) -> None:
    inputs = [
        whole(*(() if dim is None else (3,)), *size, seed=seed)
        for seed, (dim, size) in enumerate(zip(dims, ((5, 8), (7, 8), (7, 8)), strict=True))
    ]
    found = torch.vmap(lambda x, g, u: T.gated_linear(x, (g, u)), dims)(*inputs)
    expected = torch.vmap(unfused, dims)(*(t.double() for t in inputs))
    torch.testing.assert_close(found.double(), expected, rtol=2**-6, atol=2**-7)


def test_opcheck_is_clean() -> None:
    """B133."""
    for case in ("rows", "transposed", "rows off 16 bytes", "no rows", "unlike strides"):
        x, weights, biases = CASES[case]
        x, gate, up = (t.detach().requires_grad_() for t in (x, *weights))
        gate_bias, up_bias = biases or (None, None)
        torch.library.opcheck(OPS.gated_linear.default, (x, gate, gate_bias, None, "silu", "halves", up, up_bias))
        torch.library.opcheck(
            OPS.gated_linear_and_pre.default,
            (x.detach(), gate.detach(), gate_bias, "silu", "halves", up.detach(), up_bias),
        )


def test_autocast_casts_the_operands_and_leaves_the_main_grads() -> None:
    x, weights = quarters(5, 8).float(), [w.float().requires_grad_() for w in pair(7, 8, seed=1)]
    totals = (torch.zeros(7, 8), torch.zeros(7, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = T.gated_linear(x, weights, main_grad=totals)
        out.sum().backward()
    assert out.dtype == torch.bfloat16
    assert totals[0].any()
    assert totals[1].any()


def test_one_graph_serves_every_number_of_rows() -> None:
    """Forward and backward, to the bit of the eager way."""
    counter = CompileCounterWithBackend("aot_eager")
    weights = [w.requires_grad_() for w in pair(16, 8, seed=1)]
    torch._dynamo.reset()

    def model(x: Tensor) -> Tensor:
        return T.gated_linear(x, weights, activation="gelu").float().sum()

    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for rows in (2, 3, 5, 16, 21):
        x = quarters(rows, 8, seed=rows)
        results = [(out, *torch.autograd.grad(out, weights)) for out in (model(x), compiled(x))]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
    assert counter.frame_count == 1


X, G = quarters(4, 8), whole(7, 8)
REFUSED = {
    "three": ((X, (G, G, G)), {}, UnsupportedError, "a pair is of gate and up"),
    "half a pair": ((X, (G, None)), {}, UnsupportedError, "and has both"),
    "unlike weights": ((X, (G, whole(8, 8))), {}, ShapeError, r"weights \(7, 8\) and \(8, 8\)"),
    "one bias": ((X, (G, G), whole(7)), {}, UnsupportedError, "1 biases"),
    "a bias of half of them": ((X, (G, G), (whole(7), whole(6))), {}, ShapeError, "bias has an element"),
    "biases of two types": ((X, (G, G), (whole(7), whole(7).float())), {}, DTypeError, "both have one type"),
    "a pair of biases for one weight": ((X, whole(8, 8), (whole(8), whole(8))), {}, UnsupportedError, "without up"),
    "interleaved": ((X, (G, G)), {"split": "interleaved"}, UnsupportedError, "leave split out"),
    "one main_grad": ((X, (G, G)), {"main_grad": torch.zeros(7, 8)}, UnsupportedError, "1 main_grads"),
    "no tensor": ((X, (G, 1.0)), {}, UnsupportedError, "pass a tensor"),
    "two types": ((X, (G, G.half())), {}, DTypeError, "one element type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused_by_name(case: str) -> None:
    """B016."""
    inputs, options, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        T.gated_linear(*inputs, **options)


def test_the_emulator_reads_both_weights_where_they_lie(monkeypatch: Any) -> None:
    """B038: the kernels' own PTX, forward without and with a gradient, and backward."""
    from tilewright import dispatch
    from tilewright.frontends.torch import products

    monkeypatch.undo()
    assert products.dispatch is dispatch
    x, weights = quarters(9, 16), [w.requires_grad_() for w in pair(24, 16, seed=1)]
    out = T.gated_linear(x, weights)
    out.sum().backward()
    one = torch.cat([w.detach() for w in weights]).requires_grad_()
    same = T.gated_linear(x, one)
    same.sum().backward()
    assert torch.equal(out, same)
    assert torch.equal(torch.cat([w.grad for w in weights]), one.grad)
    with torch.no_grad():
        assert torch.equal(T.gated_linear(x, weights), same)


def test_matmul_refuses_weights_that_do_not_lie_alike() -> None:
    """Of NumPy arrays: a pair of torch's is joined."""
    import numpy as np

    from tilewright.epilogue import Gated

    a, b = np.ones((4, 8), np.float16), np.ones((8, 8), np.float16)
    with pytest.raises(LayoutError, match="both have the same strides"):
        tilewright.matmul(a, b, epilogue=Gated("silu", up=b.T))
