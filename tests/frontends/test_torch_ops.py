"""The ops in torch.library: what they compute, their fakes and gradients, under compilers, autocast and transforms.

Products are NumPy's here (conftest.py), so that a fact about torch costs no compile; the emulator's are at the end.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import tilewright  # noqa: E402  torch first: without it this file is skipped
from tilewright.errors import DTypeError, LayoutError, ShapeError, UnsupportedError  # noqa: E402
from tilewright.frontends.torch import gradients as recorded  # noqa: E402

T = tilewright.torch
OPS = torch.ops.tilewright
Tensor = Any


def whole(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Tensor:
    """Whole numbers from -2 to 2: sums are exact, whatever the order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, dtype=torch.int8).to(dtype)


def layouts(rows: int, columns: int, seed: int = 0) -> dict[str, Tensor]:
    """The same kind of matrix, as it may lie in memory."""
    return {
        "rows": whole(rows, columns, seed=seed),
        "columns": whole(columns, rows, seed=seed).t(),
        "padded": whole(rows, columns + 3, seed=seed)[:, :columns],
        "every other": whole(2 * rows, 2 * columns, seed=seed)[::2, ::2],
        "expanded": whole(1, columns, seed=seed).expand(rows, columns),
    }


LAYOUTS = tuple(layouts(1, 1))
pytestmark = pytest.mark.usefixtures("fast")


# -- opcheck -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_is_clean_in_every_layout(layout: str) -> None:
    """B133, B016."""
    a, b = layouts(5, 8)[layout], layouts(8, 7, seed=1)[layout]
    torch.library.opcheck(OPS.matmul.default, (a, b))
    torch.library.opcheck(OPS.linear.default, (a, b.t().detach().requires_grad_(), whole(7), None, "gelu"))
    torch.library.opcheck(OPS.linear_and_pre.default, (a, b.t(), whole(7), "gelu"))
    torch.library.opcheck(OPS.matmul_out.default, (a, b, torch.empty(7, 5, dtype=torch.float32).t()))


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)], ids=str)
def test_opcheck_is_clean_of_an_out_of_the_other_16_bit_type(dtypes: Any) -> None:
    kind, other = dtypes
    a, b = whole(5, 8, dtype=kind), whole(8, 7, seed=1, dtype=kind)
    torch.library.opcheck(OPS.matmul.default, (a.requires_grad_(), b, other))
    torch.library.opcheck(OPS.matmul_out.default, (a.detach(), b, torch.empty(7, 5, dtype=other).t()))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 7, 8), (5, 0, 8), (5, 7, 0)])
def test_opcheck_is_clean_without_rows_columns_or_sums(m: int, n: int, k: int) -> None:
    a, b = whole(m, k).requires_grad_(), whole(k, n).requires_grad_()
    torch.library.opcheck(OPS.matmul.default, (a, b))
    torch.library.opcheck(OPS.linear.default, (a, whole(n, k), whole(n)))
    torch.library.opcheck(OPS.addmm.default, (whole(n), a, b, 0.5, 2.0))


# -- values and gradients ----------------------------------------------------------------------------------------------

SHAPES = {
    "matrices": ((5, 8), (8, 7)),
    "a batch": ((3, 5, 8), (3, 8, 7)),
    "one b for all": ((2, 3, 5, 8), (8, 7)),
    "one a for all": ((5, 8), (3, 8, 7)),
    "broadcast both ways": ((2, 1, 5, 8), (3, 8, 7)),
    "a row": ((8,), (8, 7)),
    "a row and a batch": ((8,), (3, 8, 7)),
    "a column": ((5, 8), (8,)),
    "a batch and a column": ((3, 5, 8), (8,)),
    "two vectors": ((8,), (8,)),
}


def gradients(function: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The result and every input's gradient, of a sum weighted with whole numbers."""
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    out = function(*leaves)
    out.backward(whole(*out.shape, seed=9, dtype=out.dtype))
    return (out.detach(), *(x.grad for x in leaves))


def assert_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("shapes", SHAPES)
def test_results_and_gradients_of_matmul_are_torchs(shapes: str) -> None:
    a, b = whole(*SHAPES[shapes][0]), whole(*SHAPES[shapes][1], seed=1)
    assert_same(gradients(T.matmul, a, b), gradients(torch.matmul, a, b))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_and_gradients_of_linear_and_addmm_are_torchs_in_every_layout(layout: str) -> None:
    x, w, bias = layouts(5, 8)[layout], layouts(7, 8, seed=1)[layout], whole(7, seed=2)
    assert_same(gradients(T.linear, x, w, bias), gradients(torch.nn.functional.linear, x, w, bias))
    for c in (bias, whole(5, 1, seed=2), whole(5, 7, seed=2)):
        scaled = lambda op: lambda *t: op(*t, beta=2, alpha=-1)  # noqa: E731
        assert_same(gradients(scaled(T.addmm), c, x, w.t()), gradients(scaled(torch.addmm), c, x, w.t()))


# Of weight and bias: what torch's linear takes besides (n, k) and (n,).
BROADCAST = {
    "a bias of no dimension": ((7, 8), ()),
    "one bias for all": ((7, 8), (1,)),
    "a bias that is a row": ((7, 8), (1, 7)),
    "one column": ((8,), None),
    "one row of weight": ((1, 8), ()),
}


@pytest.mark.parametrize("rows", [(), (5,), (2, 5)], ids=str)
@pytest.mark.parametrize("case", BROADCAST)
def test_a_linear_of_one_column_or_one_bias_is_torchs(case: str, rows: tuple[int, ...]) -> None:
    shapes = [(*rows, 8), *(shape for shape in BROADCAST[case] if shape is not None)]
    given = [whole(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    linear = torch.nn.functional.linear
    expected = gradients(linear, *given)
    assert_same(gradients(T.linear, *given), expected)
    relu = lambda op: lambda *t: torch.relu(op(*t))  # noqa: E731
    assert_same(gradients(lambda *t: T.linear(*t, activation="relu"), *given), gradients(relu(linear), *given))
    assert T.linear(*(x.to("meta") for x in given)).shape == expected[0].shape
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(gradients(T.linear, *(x.float() for x in given)), gradients(linear, *(x.float() for x in given)))


def test_a_weight_of_one_dimension_takes_a_bias_of_none_and_a_main_grad_of_its_shape() -> None:
    x, w, bias = whole(5, 8), whole(8, seed=1), torch.tensor(2.0, dtype=torch.bfloat16)  # torch's takes it of one row
    assert torch.equal(T.linear(x, w, bias), x @ w + bias)
    total = torch.zeros(8)
    T.linear(x, w.requires_grad_(), bias, main_grad=total).sum().backward()
    assert torch.equal(total, x.float().sum(0))
    assert w.grad is None


def test_a_linear_of_one_column_or_one_bias_compiles_to_one_graph_and_is_mapped() -> None:
    x, w, bias = whole(5, 8), whole(7, 8, seed=1).requires_grad_(), whole(1, seed=2).requires_grad_()

    def both(op: Any) -> Any:
        return lambda x, w, bias: op(x, w, bias).sum(-1) + op(x, w[0])

    torch._dynamo.reset()
    compiled = torch.compile(both(T.linear), backend="aot_eager", fullgraph=True, dynamic=True)
    expected = gradients(both(torch.nn.functional.linear), x, w, bias)
    assert_same(gradients(compiled, x, w, bias), expected)
    mapped = torch.vmap(both(T.linear), (0, None, None))(x, w, bias)
    assert torch.equal(mapped, expected[0])


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_an_addmm_into_another_type_is_rounded_once_and_has_gradients(out: Any) -> None:
    for dtype, c_dtype in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        for shape in ((5, 7), (7,), (5, 1)):
            c, a, b = whole(*shape, dtype=c_dtype), whole(5, 8, seed=1, dtype=dtype), whole(8, 7, seed=2, dtype=dtype)
            found = gradients(lambda *t: T.addmm(*t, beta=2, alpha=-1, out_dtype=out), c, a, b)
            assert found[0].dtype == out
            of_floats = gradients(lambda *t: torch.addmm(*t, beta=2, alpha=-1), *(x.float() for x in (c, a, b)))
            exact = zip(found, of_floats, strict=True)
            assert all(torch.equal(ours, theirs.to(ours.dtype)) for ours, theirs in exact)
            assert [grad.dtype for grad in found[1:]] == [c_dtype, dtype, dtype]
    torch.library.opcheck(OPS.addmm.default, (c, a.requires_grad_(), b, 0.5, 2.0, out))
    mapped = torch.vmap(lambda a: T.addmm(c, a, b, out_dtype=out))(a.detach().expand(3, 5, 8))
    assert torch.equal(mapped[1], T.addmm(c, a.detach(), b, out_dtype=out))


def test_the_gradient_of_a_narrower_c_is_rounded_once_and_last() -> None:
    """Behind a sum of rows and beta: 98304 is past fp16, and 257 is no bf16."""
    for dtype, terms, beta in (
        (torch.float16, (98304.0, -98304.0, 2.0), 2.0),
        (torch.bfloat16, (257.0, -256.0, 0.0), 4.0),
        (torch.float16, (98304.0, 0.0, 0.0), 0.5),
    ):
        c, a, b = whole(1, dtype=dtype).requires_grad_(), whole(3, 8, dtype=dtype), whole(8, 1, dtype=dtype)
        out = T.addmm(c, a, b, beta=beta, out_dtype=torch.float32)
        out.backward(torch.tensor(terms)[:, None])
        assert c.grad is not None
        assert c.grad.tolist() == [sum(terms) * beta]


def test_fp16_and_an_fp32_out_of_either_type_are_served() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        a, b = whole(5, 300, dtype=dtype), whole(300, 7, seed=1, dtype=dtype)
        found = T.matmul(a, b, out_dtype=torch.float32)
        assert found.dtype == torch.float32
        assert torch.equal(found, a.float() @ b.float())
        out = torch.empty(5, 7, dtype=dtype)
        assert T.matmul(a, b, out=out) is out
        assert torch.equal(out, a @ b)


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)], ids=str)
def test_an_out_of_the_other_16_bit_type_is_rounded_once_and_has_gradients(dtypes: Any) -> None:
    """Under autocast, which casts operands and leaves out's type, under vmap, compiled, and into memory."""
    kind, other = dtypes
    a, b = whole(5, 300, dtype=kind) + 0.5, whole(300, 7, seed=1, dtype=kind)
    expected = (a.float() @ b.float()).to(other)
    product = lambda a, b: T.matmul(a, b, out_dtype=other)  # noqa: E731
    found = gradients(product, a, b)
    grad = whole(5, 7, seed=9, dtype=kind)
    assert_same(found, (expected, grad @ b.t(), a.t() @ grad))
    out = torch.full((5, 14), 77.0, dtype=other)
    T.matmul(a, b, out=out[:, ::2])
    assert torch.equal(out[:, ::2], expected)
    assert (out[:, 1::2] == 77).all()
    with torch.autocast("cpu", dtype=kind):
        assert torch.equal(product(a.float(), b.float()), expected)
    assert torch.equal(torch.vmap(product, (0, None))(a[None], b)[0], expected)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(product, backend="aot_eager", fullgraph=True)(a, b), expected)


def test_past_65504_a_product_in_fp16_is_infinite() -> None:
    a, b = (
        torch.tensor([[256.0, 1.0]]).bfloat16(),
        torch.tensor([[255.0, -255.0, 255.0], [240.0, -240.0, 239.0]]).bfloat16(),
    )
    assert T.matmul(a, b, out_dtype=torch.float16).tolist() == [[float("inf"), float("-inf"), 65504.0]]
    assert T.matmul(a, b, out_dtype=torch.float32).tolist() == [[65520.0, -65520.0, 65519.0]]


def test_an_out_of_any_layout_is_written_and_what_lies_between_stays() -> None:
    a, b = whole(5, 8), whole(8, 7, seed=1)
    for make in (lambda base: base[:10:2, :14:2], lambda base: base[:7, :5].t(), lambda base: base[1:6, 1:8]):
        base = torch.full((16, 16), 77.0, dtype=torch.bfloat16)
        T.matmul(a, b, out=make(base))
        assert torch.equal(make(base), a @ b)
        make(base)[...] = 77.0
        assert (base == 77.0).all()


def test_the_second_derivative_is_torchs() -> None:
    x, w = whole(4, 3).requires_grad_(), whole(5, 3, seed=1).requires_grad_()

    def second(function: Any) -> tuple[Tensor, ...]:
        out = function(x, w)
        first = torch.autograd.grad(out, (x, w), whole(4, 5, seed=2), create_graph=True)
        return torch.autograd.grad([each.float().square().sum() for each in first], (x, w))

    assert_same(second(T.linear), second(torch.nn.functional.linear))


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_only_the_gradients_that_are_asked_for_are_computed_and_their_operand_kept(fast: Any, wanted: Any) -> None:
    x, w = whole(8, 16).requires_grad_(wanted[0]), whole(24, 16, seed=1).requires_grad_(wanted[1])
    out = T.linear(x, w)
    assert [saved is not None for saved in out.grad_fn.saved_tensors[:2]] == [wanted[1], wanted[0]]
    before = fast.counts["launch"]
    out.sum().backward()
    assert fast.counts["launch"] - before == 1
    assert [t.grad is not None for t in (x, w)] == list(wanted)


def test_the_products_of_a_backward_copy_no_operand(fast: Any) -> None:
    """NN and TN products of views, whose rows are whole multiples of 16 bytes."""
    x, w = whole(16, 8).requires_grad_(), whole(24, 8, seed=1).requires_grad_()
    out, grad = T.linear(x, w), whole(16, 24, seed=2)
    fast.kernels.clear()
    out.backward(grad)
    layouts = sorted(kernel.name.split("_")[3] for kernel in fast.kernels)
    assert layouts == ["nn", "nt"]


def test_a_main_grad_collects_in_fp32_over_backwards_and_leaves_grad_alone() -> None:
    x, w = whole(4, 8), whole(5, 8, seed=1).requires_grad_()
    total = torch.full((5, 8), 0.5, dtype=torch.float32)
    outs = [T.linear(x * factor, w, main_grad=total) for factor in (1, 2)]  # two forwards before the first backward
    grad = whole(4, 5, seed=2)
    for out in outs:
        out.backward(grad)
    assert w.grad is None
    assert torch.equal(total, 0.5 + 3 * (grad.float().t() @ x.float()))


class Cut(torch.autograd.Function):
    """What hands back no gradient at all, as an op of a branch that nothing was asked of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


TOTAL = torch.zeros(6, 8)
RECORDING = {
    "matmul": lambda x, w, _: T.matmul(x, w.t()),
    "matmul around the dispatcher": lambda x, w, _: recorded.record_matmul(x, w.t()),
    "linear": T.linear,
    "linear around the dispatcher": lambda x, w, bias: recorded.record_linear(x, w, bias, None, "relu"),
    "an activation": lambda x, w, bias: T.linear(x, w, bias, activation="silu"),
    "a main_grad": lambda x, w, bias: T.linear(x, w, bias, main_grad=TOTAL),
    "a gate": T.gated_linear,
    "addmm": lambda x, w, bias: T.addmm(bias, x, w.t(), beta=2),
}


@pytest.mark.parametrize("case", RECORDING)
def test_a_result_without_a_gradient_gives_none_and_multiplies_nothing(case: str, fast: Any) -> None:
    leaves = [whole(*shape).requires_grad_() for shape in ((5, 8), (6, 8), (6,))]
    out = Cut.apply(RECORDING[case](*leaves))
    before = sum(fast.counts.values())
    out.sum().backward()
    assert [leaf.grad for leaf in leaves] == [None] * 3
    assert sum(fast.counts.values()) == before


def test_an_addmm_with_beta_zero_reads_no_c() -> None:
    """B035."""
    a, b, c = whole(5, 8), whole(8, 7, seed=1), torch.full((5, 7), float("nan"), dtype=torch.bfloat16)
    assert torch.equal(T.addmm(c, a, b, beta=0.0, alpha=2.0), torch.addmm(c, a, b, beta=0.0, alpha=2.0))
    c.requires_grad_()
    T.addmm(c, a, b, beta=0.0).sum().backward()
    assert (c.grad == 0).all()


ACTIVATIONS = ["relu", "gelu", "silu"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layout", ["rows", "every other"])
def test_an_activation_and_its_gradients_are_torchs_within_rounding(activation: str, layout: str, fast: Any) -> None:
    """In one launch, beside what it was given where a gradient is wanted; rounded once where torch rounds twice."""
    function = getattr(torch.nn.functional, activation)
    x, w, bias = layouts(5, 8)[layout] / 4, layouts(7, 8, seed=1)[layout], whole(7, seed=2)
    ours = gradients(lambda *t: T.linear(*t, activation=activation), x, w, bias)
    theirs = gradients(lambda *t: function(torch.nn.functional.linear(*t)), x, w, bias)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-5)
    assert fast.counts["fused"] == 1
    vector = T.linear(x[0], w, activation=activation)
    torch.testing.assert_close(vector, function(torch.nn.functional.linear(x[0], w)), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_second_derivatives_and_transforms_go_through_an_activation(activation: str) -> None:
    function = getattr(torch.nn.functional, activation)
    linears = (
        lambda t, s: T.linear(t, s, activation=activation),
        lambda t, s: function(torch.nn.functional.linear(t, s)),
    )
    x, w = whole(4, 3), whole(5, 3, seed=1)

    def second(linear: Any) -> Tensor:
        wanted = w.clone().requires_grad_()
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(linear(leaf, wanted).float().square().sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.float().square().sum(), wanted)[0]

    def each_sample(linear: Any) -> Tensor:
        return torch.vmap(torch.func.grad(lambda s, t: linear(t, s).float().square().sum()), (None, 0))(w, x)

    for of in (second, each_sample):
        ours, theirs = (of(linear).float() for linear in linears)
        assert (ours - theirs).abs().max() <= 0.02 * theirs.abs().max()
    if activation != "relu":
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(linears[0](leaf, w).sum(), leaf)
        with pytest.raises(UnsupportedError, match="apply the activation to the result"):
            torch.autograd.grad(linears[0](leaf, w).sum(), leaf, create_graph=True)


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_a_derivative_can_be_taken_of_weights_alone_and_of_gradients_by_transforms(activation: str) -> None:
    function = getattr(torch.nn.functional, activation)
    x, w = whole(4, 3) / 8, whole(5, 3, seed=1) / 8

    def of_weights(linear: Any) -> Tensor:
        leaf = w.clone().requires_grad_()
        (first,) = torch.autograd.grad(linear(x, leaf).float().square().sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.float().square().sum(), leaf)[0]

    def nested(linear: Any) -> Tensor:
        inner = torch.func.grad(lambda t: linear(t, w).float().square().sum())
        return torch.func.grad(lambda t: inner(t).float().square().sum())(x)

    for derivative in (of_weights, nested):
        found = derivative(lambda t, s: T.linear(t, s, activation=activation))
        expected = derivative(lambda t, s: function(torch.nn.functional.linear(t.double(), s.double())))
        torch.testing.assert_close(found, expected, rtol=2**-4, atol=2**-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_expert_without_tokens_has_gradients_of_zero(activation: str) -> None:
    x, w, bias = whole(0, 8).requires_grad_(), whole(4, 8).requires_grad_(), whole(4).requires_grad_()
    T.linear(x, w, bias, activation=activation).sum().backward()
    assert x.grad.shape == (0, 8)
    assert not w.grad.any()
    assert not bias.grad.any()


@pytest.mark.parametrize("activation", [None, "silu"])
def test_the_result_of_a_linear_of_one_vector_may_be_changed_in_place(activation: Any) -> None:
    """As of any linear: autograd lets no view that a Function returns be written."""
    x, w, bias = (whole(*shape).requires_grad_() for shape in ((8,), (5, 8), (5,)))
    T.linear(x, w, bias, activation=activation).mul_(2).sum().backward()
    changed = [each.grad for each in (x, w, bias)]
    again = [each.detach().clone().requires_grad_() for each in (x, w, bias)]
    (T.linear(*again, activation=activation) * 2).sum().backward()
    assert all(torch.equal(found, expected.grad) for found, expected in zip(changed, again, strict=True))


def test_an_fp32_bias_leaves_the_type_of_a_mapped_linear() -> None:
    x, w = whole(4, 8), whole(5, 8)
    found = torch.vmap(lambda bias: T.linear(x, w, bias))(whole(2, 5, dtype=torch.float32))
    assert found.dtype == torch.bfloat16


def test_deterministic_algorithms_are_what_these_are() -> None:
    x, w = whole(5, 8).requires_grad_(), whole(7, 8, seed=1).requires_grad_()
    expected = gradients(T.linear, x, w)
    torch.use_deterministic_algorithms(True)
    try:
        assert_same(gradients(T.linear, x, w), expected)
        T.matmul(x.detach(), w.detach().t(), out=torch.empty(5, 7, dtype=torch.bfloat16))
    finally:
        torch.use_deterministic_algorithms(False)


# -- refusals ----------------------------------------------------------------------------------------------------------


def freed(*shape: int) -> Any:
    tensor = whole(*shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def into_main_grad(x: Any, main_grad: Any) -> None:
    weight = whole(*main_grad.shape).requires_grad_()
    T.linear(x, weight, main_grad=main_grad).sum().backward()


REFUSED = {
    "two types": (lambda: T.matmul(whole(4, 8), whole(8, 4, dtype=torch.float16)), DTypeError, "cast b"),
    "fp32": (lambda: T.linear(whole(4, 8).float(), whole(4, 8).float()), DTypeError, "autocast"),
    "sizes": (lambda: T.matmul(whole(4, 8), whole(4, 8)), ShapeError, r"w\.t\(\)"),
    "a wide bias": (lambda: T.linear(whole(4, 8), whole(6, 8), whole(5)), ShapeError, "bias"),
    "a matrix for a bias": (lambda: T.linear(whole(4, 8), whole(6, 8), whole(4, 6)), ShapeError, "added to the result"),
    "a bias of a column": (lambda: T.linear(whole(4, 8), whole(8), whole(1)), ShapeError, r"pass bias\[0\]"),
    "a weight of no dimension": (lambda: T.linear(whole(4, 8), whole()), ShapeError, "two dimensions"),
    "an addmm in int32": (
        lambda: T.addmm(whole(4), whole(4, 8), whole(8, 4), out_dtype=torch.int32),
        DTypeError,
        "bfloat16 inputs with out in int32",
    ),
    "an out_dtype of addmm that is none": (
        lambda: T.addmm(whole(4), whole(4, 8), whole(8, 4), out_dtype=[1]),
        UnsupportedError,
        "element type of torch",
    ),
    "a batch for mm": (lambda: T.mm(whole(2, 4, 8), whole(8, 4)), ShapeError, "mm multiplies matrices"),
    "bmm of two sizes": (lambda: T.bmm(whole(2, 4, 8), whole(3, 8, 4)), ShapeError, "broadcasts"),
    "an activation": (lambda: T.linear(whole(4, 8), whole(4, 8), activation="elu"), UnsupportedError, "relu, gelu"),
    "a bf16 main_grad": (lambda: T.linear(whole(4, 8), whole(4, 8), main_grad=whole(4, 8)), UnsupportedError, "zeros"),
    "gradients of an out": (
        lambda: T.matmul(whole(4, 8).requires_grad_(), whole(8, 4), out=whole(4, 4)),
        UnsupportedError,
        "no_grad",
    ),
    "the meta device and the CPU": (
        lambda: T.matmul(whole(4, 8).to("meta"), whole(8, 4)),
        UnsupportedError,
        "on one device",
    ),
    "a bias elsewhere": (
        lambda: T.linear(whole(4, 8), whole(4, 8), whole(4).to("meta")),
        UnsupportedError,
        "on one device",
    ),
    "a c elsewhere": (
        lambda: T.addmm(whole(4).to("meta"), whole(4, 8), whole(8, 4)),
        UnsupportedError,
        "on one device",
    ),
    "a c of more rows": (lambda: T.addmm(whole(4, 4), whole(1, 8), whole(8, 4)), ShapeError, "c broadcasts"),
    "a number for a row": (lambda: T.addmm(whole(4), whole(4, 8), whole(8, 4), beta=1e300), DTypeError, "fp32"),
    "batches of two sizes": (lambda: T.matmul(whole(2, 4, 8), whole(3, 8, 4)), ShapeError, "are broadcast"),
    "an out that would be broadcast to": (
        lambda: T.matmul(whole(4, 8), whole(8, 4), out=whole(3, 8, 8)[:, ::2, ::2]),
        ShapeError,
        r"out with shape \(4, 4\)",
    ),
    "an out that overlaps itself": (
        lambda: T.matmul(whole(8, 8), whole(8, 8), out=whole(64).as_strided((8, 8), (3, 2))),
        LayoutError,
        "a place of its own",
    ),
    "no tensor": (lambda: T.matmul(whole(4, 8), None), UnsupportedError, "pass a tensor"),
    "a negated out": (
        lambda: T.matmul(whole(4, 8), whole(8, 4), out=torch._neg_view(whole(4, 4))),
        UnsupportedError,
        "resolve_neg",
    ),
    "an out of whole numbers": (
        lambda: T.matmul(whole(4, 8), whole(8, 4), out_dtype=torch.int32),
        DTypeError,
        "bfloat16 inputs with out in int32: .*; use bfloat16, float16 or float32",
    ),
    "an out of float64": (
        lambda: T.matmul(whole(4, 8), whole(8, 4), out=torch.empty(4, 4, dtype=torch.float64)),
        DTypeError,
        "out in float64: .*; use bfloat16, float16 or float32",
    ),
    "an out_dtype that is none": (lambda: T.matmul(whole(4, 8), whole(8, 4), out_dtype=[1]), UnsupportedError, "type"),
    "a whole number that torch's dispatcher takes for float32": (
        lambda: T.matmul(whole(4, 8), whole(8, 4), out_dtype=6),
        UnsupportedError,
        "element type of torch",
    ),
    "the same of addmm": (
        lambda: T.addmm(whole(4), whole(4, 8), whole(8, 4), out_dtype=6),
        UnsupportedError,
        "element type of torch",
    ),
    "a main_grad of two dimensions for a weight of one": (
        lambda: T.linear(whole(4, 8), whole(8), main_grad=torch.zeros(8, 1)),
        ShapeError,
        r"main_grad \(8, 1\) for a weight \(8,\)",
    ),
    "an out_dtype beside an out": (
        lambda: T.matmul(whole(4, 8), whole(8, 4), out=whole(4, 4), out_dtype=whole(2)),
        UnsupportedError,
        "element type of torch",
    ),
    "a bias that is none": (lambda: T.linear(whole(4, 8), whole(4, 8), [1.0]), UnsupportedError, "bias a builtins.l"),
    "a sparse bias": (lambda: T.linear(whole(4, 8), whole(4, 8), whole(4).to_sparse()), UnsupportedError, "to_dense"),
    "a main_grad that is none": (
        lambda: T.linear(whole(4, 8), whole(4, 8), main_grad=3),
        UnsupportedError,
        "main_grad a builtins.int",
    ),
    "an activation that is none": (
        lambda: T.linear(whole(4, 8), whole(4, 8), activation=whole(2)),
        UnsupportedError,
        "relu, gelu",
    ),
    "an alpha that is none": (
        lambda: T.addmm(whole(4), whole(4, 8), whole(8, 4), alpha="2"),
        DTypeError,
        "alpha = '2'",
    ),
    "a beta past fp64": (lambda: T.addmm(whole(4), whole(4, 8), whole(8, 4), beta=10**400), DTypeError, "fp32"),
    "a quantized tensor": (
        lambda: T.mm(torch.quantize_per_tensor(torch.ones(4, 8), 1.0, 0, torch.qint8), whole(8, 4)),
        UnsupportedError,
        "dequantize",
    ),
    "a storage that was freed": (lambda: T.matmul(freed(4, 8), whole(8, 4)), LayoutError, "no memory"),
    "a main_grad of one element": (
        lambda: into_main_grad(whole(4, 8), torch.zeros(1, 1).expand(4, 8)),
        LayoutError,
        "main_grad .* a place of its own",
    ),
    "a sparse tensor": (lambda: T.linear(whole(4, 8).to_sparse(), whole(4, 8)), UnsupportedError, "to_dense"),
    "an activation under vmap": (
        lambda: torch.vmap(lambda x, w: T.linear(x, w, activation="elu"))(whole(2, 4, 8), whole(2, 4, 8)),
        UnsupportedError,
        "relu, gelu",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused_with_what_would_work(case: str) -> None:
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


def test_a_fake_refuses_what_the_kernel_refuses() -> None:
    """B016."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        for a, b in (
            (whole(4, 8), whole(8, 4, dtype=torch.float16)),
            (whole(4, 8).float(), whole(8, 4).float()),
            (whole(4, 8), whole(4, 8)),
        ):
            with pytest.raises((DTypeError, ShapeError)):
                T.matmul(mode.from_tensor(a), mode.from_tensor(b))
        with pytest.raises(ShapeError):
            T.matmul(*map(mode.from_tensor, (whole(4, 8), whole(8, 4))), out=mode.from_tensor(whole(3, 4)))


def test_forward_mode_is_refused_by_name() -> None:
    x, w = whole(4, 8), whole(5, 8, seed=1)
    for function in (T.matmul, lambda t, w: T.linear(t, w.t()), lambda t, w: T.addmm(w[0], t, w)):
        with pytest.raises(UnsupportedError, match="dual tensor of forward-mode"):
            torch.func.jvp(lambda t, function=function: function(t, w.t()), (x,), (x,))


TRANSFORMS = {
    "grad": lambda f, w, x: torch.func.grad(f)(w, x),
    "grad of grad": lambda f, w, x: torch.func.grad(lambda s: torch.func.grad(f)(s, x).float().square().sum())(w),
    "grad of each sample": lambda f, w, x: torch.vmap(torch.func.grad(f), (None, 0))(w, x),
    "jacrev": lambda f, w, x: torch.func.jacrev(f)(w, x),
    "the backward of vmap": lambda f, w, x: torch.autograd.grad(torch.vmap(f, (None, 0))(w, x).sum(), w),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_reverse_mode_are_torchs(name: str) -> None:
    x, w = whole(4, 8), whole(5, 8, seed=1).requires_grad_(name == "the backward of vmap")
    found, expected = (
        TRANSFORMS[name](lambda t, z, linear=linear: linear(z, t).float().square().sum(), w, x)
        for linear in (T.linear, torch.nn.functional.linear)
    )
    assert_same((*found,), (*expected,))


# -- vmap --------------------------------------------------------------------------------------------------------------

MAPPED = {
    "a": ((3, 5, 8), (8, 7), (0, None)),
    "b": ((5, 8), (8, 3, 7), (None, 1)),
    "both": ((5, 3, 8), (3, 8, 7), (1, 0)),
    "a batch inside": ((3, 2, 5, 8), (3, 8, 7), (0, 0)),
    "rows": ((3, 8), (8, 7), (0, None)),
    "columns": ((5, 8), (8, 3), (None, 1)),
    "vectors": ((3, 8), (3, 8), (0, 0)),
}


@pytest.mark.parametrize("case", MAPPED)
def test_vmap_of_matmul_is_torchs(case: str) -> None:
    a_shape, b_shape, dims = MAPPED[case]
    a, b = whole(*a_shape), whole(*b_shape, seed=1)
    assert torch.equal(torch.vmap(T.matmul, dims)(a, b), torch.vmap(torch.matmul, dims)(a, b))


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (0, 0, 0), (None, None, 0)])
@pytest.mark.parametrize("rows", [(), (5,)])
def test_vmap_of_linear_and_addmm_is_torchs(dims: Any, rows: Any) -> None:
    sizes = ((*rows, 8), (7, 8), (7,))
    x, w, bias = (
        whole(*(() if dim is None else (3,)), *size, seed=seed)
        for seed, (dim, size) in enumerate(zip(dims, sizes, strict=True))
    )
    linear = torch.nn.functional.linear
    assert torch.equal(torch.vmap(T.linear, dims)(x, w, bias), torch.vmap(linear, dims)(x, w, bias))
    if rows:
        ours = torch.vmap(lambda a, b, c: T.addmm(c, a, b.t(), beta=2), dims)(x, w, bias)
        assert torch.equal(ours, torch.vmap(lambda a, b, c: torch.addmm(c, a, b.t(), beta=2), dims)(x, w, bias))


def test_vmap_into_given_memory_is_refused() -> None:
    a, b, out = whole(3, 5, 8), whole(8, 7), whole(3, 5, 7)
    with pytest.raises(UnsupportedError, match="vmap"):
        torch.vmap(lambda x, y: T.matmul(x, b, out=y))(a, out)


# -- autocast ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_it_does_for_torchs_products(dtype: Any) -> None:
    x, w, bias = whole(5, 8).float(), whole(7, 8, seed=1), whole(7, seed=2).float()
    with torch.autocast("cpu", dtype=dtype):
        ours, theirs = gradients(T.linear, x, w, bias), gradients(torch.nn.functional.linear, x, w, bias)
        assert T.matmul(x, w.t()).dtype == T.addmm(bias, x, w.t()).dtype == dtype
    assert_same(ours, theirs)


# -- compilers ---------------------------------------------------------------------------------------------------------


def test_one_graph_serves_every_number_of_rows() -> None:
    """B136, forward and backward."""
    counter = CompileCounterWithBackend("aot_eager")
    w, bias = whole(7, 8, seed=1).requires_grad_(), whole(7, seed=2)

    def model(x: Tensor) -> Tensor:
        return T.addmm(bias, T.matmul(T.linear(x, w, bias, activation="gelu"), w), w.t()).sum()

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for rows in range(2, 22):
        x = whole(rows, 8, seed=rows)
        w.grad = None
        expected = model(x)
        expected.backward()
        grad, w.grad = w.grad, None
        found = compiled(x)
        found.backward()
        assert torch.equal(found, expected)
        assert torch.equal(w.grad, grad)
    assert counter.frame_count == 1


def test_an_out_variant_compiles_to_one_graph_and_writes_in_place() -> None:
    """B134."""
    a, b = whole(5, 8), whole(8, 7, seed=1)

    def twice(out: Tensor) -> Tensor:
        T.matmul(a, b, out=out)
        kept = out + 1
        T.matmul(a * 2, b, out=out)
        return kept

    torch._dynamo.reset()
    out = torch.full((5, 7), float("nan"), dtype=torch.bfloat16)
    kept = torch.compile(twice, backend="aot_eager_decomp_partition", fullgraph=True)(out)
    assert torch.equal(kept, a @ b + 1)
    assert torch.equal(out, 2 * (a @ b))


def test_a_main_grad_is_collected_by_a_compiled_backward() -> None:
    x, w = whole(4, 8), whole(5, 8, seed=1).requires_grad_()
    total = torch.zeros(5, 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: T.linear(t, w, main_grad=total), backend="aot_eager", fullgraph=True)
    for _ in range(2):
        compiled(x).backward(torch.ones(4, 5, dtype=torch.bfloat16))
    assert torch.equal(total, 2 * (torch.ones(5, 4) @ x.float()))
    assert w.grad is None


def test_an_exported_program_has_the_op_and_any_number_of_rows() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = T.Linear(8, 7, dtype=torch.bfloat16)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    model = Model()
    exported = torch.export.export(model, (whole(4, 8),), dynamic_shapes=({0: torch.export.Dim("m")},))
    assert "tilewright.linear" in str(exported.graph)
    x = whole(11, 8)
    assert torch.equal(exported.module()(x), model(x))


# -- the emulator ------------------------------------------------------------------------------------------------------


def test_the_emulator_multiplies_cpu_tensors_and_refuses_what_would_take_minutes(monkeypatch: Any) -> None:
    """The kernel's own PTX, forward and backward, with a bias, an activation and a sum into fp32 fused."""
    from tilewright import dispatch
    from tilewright.frontends.torch import products

    monkeypatch.undo()
    assert products.dispatch is dispatch
    x, w, bias = whole(16, 64), whole(24, 64, seed=1), whole(24, seed=2)
    assert_same(gradients(T.linear, x, w, bias), gradients(torch.nn.functional.linear, x, w, bias))
    total, grad = torch.ones(24, 64), whole(16, 24, seed=3)
    out = T.linear(x, w.requires_grad_(), bias, activation="relu", main_grad=total)
    out.backward(grad)
    assert torch.equal(out, torch.relu(torch.nn.functional.linear(x, w, bias)))
    assert torch.equal(total, 1 + (grad * (out > 0)).float().t() @ x.float())
    with pytest.raises(UnsupportedError, match="use a GPU"):
        T.matmul(torch.empty(8192, 8192, dtype=torch.bfloat16), torch.empty(8192, 8192, dtype=torch.bfloat16))
