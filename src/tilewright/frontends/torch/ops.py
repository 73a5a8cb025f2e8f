"""The ops of the namespace `tilewright` in torch.library: schemas, kernels and fakes.

Defined with define/impl: a call through them costs less than through custom_op. Their gradients are in gradients.py,
autocast and vmap in transforms.py; the way around all of it in functional.py and eager.py. Knows nothing of what a
product is (products.py).

    matmul(a, b, out_dtype=None)            as torch.matmul
    matmul_out(a, b, out)                   into out; returns nothing, so that compilers may reuse its memory
    linear(x, weight, bias, main_grad, activation)      activation(x weight^T + bias)
    linear_and_pre(x, weight, bias, activation)         the same, and what the activation was given
    gated_linear(x, weight, bias, main_grad, activation, split,     activation(gate) up, of x weight^T + bias, or of
                 up, up_bias, up_main_grad)                         two such, of which `up` makes the second
    gated_linear_and_pre(x, weight, bias, activation, split, up, up_bias)    the same, and gate and up
    addmm(c, a, b, beta, alpha, out_dtype)  as torch.addmm
    add_weight_grad(grad, x, main_grad)     main_grad += grad^T x, in fp32
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewright.errors import DTypeError, LayoutError, ShapeError, UnsupportedError
from tilewright.frontends.torch import products

NAMESPACE = "tilewright"
KEYS = {"cuda": "CUDA", "cpu": "CPU"}  # as the dispatcher spells them

library = torch.library.Library(NAMESPACE, "DEF")  # its registrations live as long as it does

for _schema in (
    "matmul(Tensor a, Tensor b, ScalarType? out_dtype=None) -> Tensor",
    "matmul_out(Tensor a, Tensor b, Tensor(a!) out) -> ()",
    "linear(Tensor x, Tensor weight, Tensor? bias=None, Tensor? main_grad=None, str? activation=None) -> Tensor",
    "linear_and_pre(Tensor x, Tensor weight, Tensor? bias, str activation) -> (Tensor, Tensor)",
    "gated_linear(Tensor x, Tensor weight, Tensor? bias=None, Tensor? main_grad=None, str activation='silu', "
    "str split='halves', Tensor? up=None, Tensor? up_bias=None, Tensor? up_main_grad=None) -> Tensor",
    "gated_linear_and_pre(Tensor x, Tensor weight, Tensor? bias, str activation, str split, Tensor? up=None, "
    "Tensor? up_bias=None) -> (Tensor, Tensor)",
    "addmm(Tensor c, Tensor a, Tensor b, float beta=1.0, float alpha=1.0, ScalarType? out_dtype=None) -> Tensor",
    "add_weight_grad(Tensor grad, Tensor x, Tensor(a!) main_grad) -> ()",
):
    library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

# The overloads themselves: finding one through torch.ops costs a look-up more on each call.
_ops = getattr(torch.ops, NAMESPACE)
matmul = _ops.matmul.default
matmul_out = _ops.matmul_out.default
linear = _ops.linear.default
linear_and_pre = _ops.linear_and_pre.default
gated_linear = _ops.gated_linear.default
gated_linear_and_pre = _ops.gated_linear_and_pre.default
addmm = _ops.addmm.default
add_weight_grad = _ops.add_weight_grad.default


# -- shapes, for kernels and fakes alike -------------------------------------------------------------------------------


def _check_devices(a: Tensor, *others: Tensor | None) -> None:
    for other in others:
        if other is not None and a.device != other.device:
            raise UnsupportedError(
                asked=f"operands on {a.device} and {other.device}",
                rule="the operands of one product lie on one device",
                works="move one of them with .to()",
            )


def _check_inner(a: Tensor, b: Tensor, b_dim: int, rule: str, works: str) -> None:
    """Raises ShapeError unless the last extent of a meets that of b. Of symbols this becomes the one guard, on k."""
    if a.dim() == 0 or b.dim() == 0 or a.shape[-1] != b.shape[b_dim]:
        raise ShapeError(asked=f"{tuple(a.shape)} and {tuple(b.shape)}", rule=rule, works=works)


def _check_matmul(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> None:
    products.check_dtypes("a", a.dtype, "b", b.dtype, out_dtype)
    _check_devices(a, b)
    _check_inner(
        a,
        b,
        -2 if b.dim() > 1 else 0,
        "the columns of a meet the rows of b",
        "pass b (..., k, n); a weight stored as (n, k) goes in as its transpose, weight.t()",
    )


def _check_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, main_grad: Tensor | None = None, activation: str | None = None
) -> None:
    products.check_dtypes("x", x.dtype, "weight", weight.dtype)
    _check_devices(x, weight, bias, main_grad)
    if weight.dim() != 2:
        raise ShapeError(
            asked=f"a weight of shape {tuple(weight.shape)}",
            rule="a weight has two dimensions, (out_features, in_features)",
            works="pass weight (n, k), or use tilewright.torch.matmul for batches",
        )
    _check_inner(x, weight, 1, "the last extent of x is in_features, weight's second", "pass x (..., in_features)")
    if bias is not None:
        if bias.dim() != 1 or bias.shape[0] != weight.shape[0]:
            raise ShapeError(
                asked=f"bias {tuple(bias.shape)} and weight {tuple(weight.shape)}",
                rule="bias has an element for each of weight's rows",
                works="pass bias (out_features,); one of another shape can be added to the result",
            )
        products.check_bias_dtype(bias.dtype, x.dtype)
    if main_grad is not None:
        _check_main_grad(main_grad, weight.shape[0], weight.shape[1])
    products.check_activation(activation)


def _check_gated_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    main_grad: Tensor | None,
    activation: str,
    split: str,
    up: Tensor | None = None,
    up_bias: Tensor | None = None,
    up_main_grad: Tensor | None = None,
) -> None:
    _check_linear(x, weight, bias, main_grad)
    if up is None:
        products.check_gate(activation, split, weight.shape[0])
        if up_bias is not None or up_main_grad is not None:
            raise UnsupportedError(
                asked="a bias or main_grad of up without up",
                rule="they belong to a second weight",
                works="pass weight, bias and main_grad for gate and up together, or each as a pair",
            )
        return
    products.check_gate(activation, split)
    _check_linear(x, up, up_bias, up_main_grad)
    if weight.shape[0] != up.shape[0]:
        raise ShapeError(
            asked=f"weights {tuple(weight.shape)} and {tuple(up.shape)} of gate and up",
            rule="each row of the one gates a row of the other",
            works="pass two weights (n, k)",
        )
    if split != "halves" or (bias is None) != (up_bias is None) or (main_grad is None) != (up_main_grad is None):
        raise UnsupportedError(
            asked=f"gate and up as two weights, with split = {split!r}, "
            f"{sum(each is not None for each in (bias, up_bias))} biases and "
            f"{sum(each is not None for each in (main_grad, up_main_grad))} main_grads",
            rule="they are the halves of the columns, and both have a bias, or a main_grad, or none has",
            works="leave split out, and pass biases and main_grads as pairs",
        )
    if bias is not None and up_bias is not None and bias.dtype != up_bias.dtype:
        raise DTypeError(
            asked=f"biases of {bias.dtype} and {up_bias.dtype}", rule="both have one type", works="cast one of them"
        )


def _check_main_grad(main_grad: Tensor, rows: int, columns: int) -> None:
    if main_grad.dtype != torch.float32 or main_grad.dim() != 2 or main_grad.requires_grad:
        raise UnsupportedError(
            asked=f"main_grad of {main_grad.dtype}, shape {tuple(main_grad.shape)}, "
            f"requires_grad={main_grad.requires_grad}",
            rule="a weight's gradient is accumulated into a float32 buffer of the weight's shape",
            works="pass torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)",
        )
    if main_grad.shape[0] != rows or main_grad.shape[1] != columns:
        raise ShapeError(
            asked=f"main_grad {tuple(main_grad.shape)} for a weight ({rows}, {columns})",
            rule="it has the weight's shape",
            works=f"pass a buffer of shape ({rows}, {columns})",
        )


def _check_addmm(c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype | None) -> None:
    products.check_dtypes("a", a.dtype, "b", b.dtype, out_dtype)
    _check_devices(a, b, c)
    if a.dim() != 2 or b.dim() != 2:
        raise ShapeError(
            asked=f"a {tuple(a.shape)} and b {tuple(b.shape)}",
            rule="addmm multiplies two matrices",
            works="use tilewright.torch.matmul for batches",
        )
    _check_inner(a, b, 0, "the columns of a meet the rows of b", "pass b (k, n)")
    if c.dtype not in (a.dtype, torch.float32):
        raise UnsupportedError(
            asked=f"c of {c.dtype} with a and b of {a.dtype}",
            rule="c has the inputs' element type or float32",
            works="cast c",
        )
    extents = (a.shape[0], b.shape[1])[2 - c.dim() :] if c.dim() <= 2 else None
    if extents is None or any(own != 1 and own != full for own, full in zip(c.shape, extents, strict=True)):
        raise ShapeError(
            asked=f"c {tuple(c.shape)} for a product ({a.shape[0]}, {b.shape[1]})",
            rule="c broadcasts to the product: from the last on its extents are the product's, or 1",
            works="pass c (m, n), (n,), (m, 1) or a single element",
        )


# -- kernels -----------------------------------------------------------------------------------------------------------


def _matmul(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    if out_dtype is None and products.is_on_gpu(a):
        found = products.plain_product(a, b)
        if found is not None:
            return found
    return products.product(a, b, out_dtype)


def _matmul_out(a: Tensor, b: Tensor, out: Tensor) -> None:
    products.product_into(a, b, out)


def _linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    main_grad: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    if products.is_on_gpu(x) and main_grad is None:
        found = products.plain_linear(x, weight, bias, activation)
        if found is not None:
            return found
    _check_linear(x, weight, bias, main_grad, activation)
    return products.linear(x, weight, bias, activation)


def _linear_and_pre(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    _check_linear(x, weight, bias, None, activation)
    pre = x.new_empty((*x.shape[:-1], weight.shape[0]))
    return products.linear(x, weight, bias, activation, pre), pre


def _gated_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    main_grad: Tensor | None = None,
    activation: str = "silu",
    split: str = "halves",
    up: Tensor | None = None,
    up_bias: Tensor | None = None,
    up_main_grad: Tensor | None = None,
) -> Tensor:
    if products.is_on_gpu(x) and main_grad is None and up_main_grad is None:
        found = products.plain_gated_linear(x, weight, bias, activation, split, up, up_bias)
        if found is not None:
            return found
    _check_gated_linear(x, weight, bias, main_grad, activation, split, up, up_bias, up_main_grad)
    return products.gated_linear(x, weight, bias, activation, split, None, up, up_bias)


def _gated_linear_and_pre(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    split: str,
    up: Tensor | None = None,
    up_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    _check_gated_linear(x, weight, bias, None, activation, split, up, up_bias)
    pre = _pre_like(x, weight, up)
    return products.gated_linear(x, weight, bias, activation, split, pre, up, up_bias), pre


def _pre_like(x: Tensor, weight: Tensor, up: Tensor | None) -> Tensor:
    """Memory for gate and up, (..., 2 n)."""
    return x.new_empty((*x.shape[:-1], weight.shape[0] * (1 if up is None else 2)))


def _addmm(
    c: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0, out_dtype: torch.dtype | None = None
) -> Tensor:
    _check_addmm(c, a, b, out_dtype)
    return products.product_added(c, a, b, beta, alpha, out_dtype)


def _add_weight_grad(grad: Tensor, x: Tensor, main_grad: Tensor) -> None:
    try:
        products.add_product(rows(grad).t(), rows(x), main_grad)
    except LayoutError as refusal:  # adds what the caller's names for them are
        raise LayoutError(
            asked=f"main_grad as the out of weight's gradient, whose b is x: {refusal.asked}",
            rule=refusal.rule,
            works=refusal.works,
        ) from None


# -- fakes: dtype, shape, strides and device as the kernels give -------------------------------------------------------


def _fake_matmul(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    _check_matmul(a, b, out_dtype)
    return a.new_empty(products.out_shape(a.shape, b.shape), dtype=out_dtype or a.dtype)


def _fake_matmul_out(a: Tensor, b: Tensor, out: Tensor) -> None:
    _check_matmul(a, b, out.dtype)
    _check_devices(a, out)
    products.check_out_shape(a.shape, b.shape, out.shape)


def _fake_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    main_grad: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    _check_linear(x, weight, bias, main_grad, activation)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _fake_linear_and_pre(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    out = _fake_linear(x, weight, bias, None, activation)
    return out, torch.empty_like(out)


def _fake_gated_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    main_grad: Tensor | None = None,
    activation: str = "silu",
    split: str = "halves",
    up: Tensor | None = None,
    up_bias: Tensor | None = None,
    up_main_grad: Tensor | None = None,
) -> Tensor:
    _check_gated_linear(x, weight, bias, main_grad, activation, split, up, up_bias, up_main_grad)
    return x.new_empty((*x.shape[:-1], weight.shape[0] // 2 if up is None else weight.shape[0]))


def _fake_gated_linear_and_pre(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    split: str,
    up: Tensor | None = None,
    up_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    out = _fake_gated_linear(x, weight, bias, None, activation, split, up, up_bias)
    return out, _pre_like(x, weight, up)


def _fake_addmm(
    c: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0, out_dtype: torch.dtype | None = None
) -> Tensor:
    _check_addmm(c, a, b, out_dtype)
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype)


def _fake_add_weight_grad(grad: Tensor, x: Tensor, main_grad: Tensor) -> None:
    products.check_dtypes("grad", grad.dtype, "x", x.dtype)
    _check_devices(grad, x, main_grad)
    _check_main_grad(main_grad, grad.shape[-1], x.shape[-1])


def rows(tensor: Tensor) -> Tensor:
    """(..., k) as a matrix of rows: a view where torch finds one."""
    if tensor.dim() == 2:
        return tensor
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


# -- registration ------------------------------------------------------------------------------------------------------

KERNELS: dict[Any, Callable[..., Any]] = {
    matmul: _matmul,
    matmul_out: _matmul_out,
    linear: _linear,
    linear_and_pre: _linear_and_pre,
    gated_linear: _gated_linear,
    gated_linear_and_pre: _gated_linear_and_pre,
    addmm: _addmm,
    add_weight_grad: _add_weight_grad,
}
_FAKES: dict[Any, Callable[..., Any]] = {
    matmul: _fake_matmul,
    matmul_out: _fake_matmul_out,
    linear: _fake_linear,
    linear_and_pre: _fake_linear_and_pre,
    gated_linear: _fake_gated_linear,
    gated_linear_and_pre: _fake_gated_linear_and_pre,
    addmm: _fake_addmm,
    add_weight_grad: _fake_add_weight_grad,
}

for _op, _kernel in KERNELS.items():
    for _key in KEYS.values():
        library.impl(_op, _kernel, _key)
    torch.library.register_fake(_op._schema.name, _FAKES[_op], lib=library)
