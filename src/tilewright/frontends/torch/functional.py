"""matmul, mm, bmm, linear, gated_linear, addmm: what users call.

Goes around torch's dispatcher where a call does not need it (eager.py): without a gradient the way is that of
tilewright.matmul, with its plans, and with one that of autograd's own Function. Knows nothing of what the ops do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.epilogue_steps import Activation, Split
from tilewright.errors import ShapeError, UnsupportedError
from tilewright.frontends.torch import eager, gradients, ops, products

Pair = tuple[Tensor, Tensor]  # of gate and of up

_NO_KERNEL = (
    AttributeError,
    NotImplementedError,
    RuntimeError,
)  # what becomes of None, of a sparse tensor, of an array


def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    """a x b as torch.matmul has it: vectors, matrices, and batches that are broadcast.

    Shapes: a (..., m, k) or (k,), b (..., k, n) or (k,), the result (..., m, n), row-major. `out` is written in place,
    outside of autograd, and returned; `out_dtype` torch.float32 keeps the sums as they are, and torch.bfloat16 or
    torch.float16 has them rounded once, of either inputs; past 65504 float16 is infinite.
    Raises: ShapeError, DTypeError, UnsupportedError: operands that no kernel serves, also while compiling.
    Cost: in eager mode as tilewright.matmul, beside what autograd adds; else through torch.library. On the CPU the
    emulator, for small sizes.
    """
    if out_dtype is not None:
        _check_out_dtype(out_dtype)
    if out is not None:
        _check_tensors("matmul", a=a, b=b, out=out)
        if out_dtype is not None and out_dtype is not out.dtype:
            products.check_dtypes("a", a.dtype, "b", b.dtype, out_dtype)
            raise UnsupportedError(
                asked=f"out of {out.dtype} with out_dtype {out_dtype}",
                rule="out_dtype names the element type of a fresh out",
                works="leave out_dtype out",
            )
        try:
            ops.matmul_out(a, b, out)
        except _NO_KERNEL:
            _check_not_negated(out)
            raise
        return out
    if out_dtype is None and eager.is_eager(a, b):
        if not (eager.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
            found = products.plain_product(a, b)
            if found is not None:
                return found
        elif eager.is_recordable(a, b):
            return gradients.record_matmul(a, b)
    try:
        return ops.matmul(a, b, out_dtype)
    except _NO_KERNEL:  # asked only now: every call through the op comes this way
        _check_tensors("matmul", a=a, b=b)
        raise


def mm(a: Tensor, b: Tensor, *, out: Tensor | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    """a x b of two matrices, as torch.mm; else as matmul().

    Raises: ShapeError: anything but two dimensions; and what matmul() raises.
    """
    _check_rank("mm", "matrices", 2, a, b)
    return matmul(a, b, out=out, out_dtype=out_dtype)


def bmm(a: Tensor, b: Tensor, *, out: Tensor | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    """a x b of two batches of as many matrices, as torch.bmm; else as matmul().

    Raises: ShapeError: anything but three dimensions, or batches of two sizes; and what matmul() raises.
    """
    _check_rank("bmm", "batches of matrices", 3, a, b)
    if a.shape[0] != b.shape[0]:
        raise ShapeError(
            asked=f"bmm of {tuple(a.shape)} and {tuple(b.shape)}",
            rule="both batches have as many matrices",
            works="use tilewright.torch.matmul, which broadcasts batches",
        )
    return matmul(a, b, out=out, out_dtype=out_dtype)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    main_grad: Tensor | None = None,
) -> Tensor:
    """x weight^T + bias as torch.nn.functional.linear, and `activation` of that: "relu", "gelu" (erf), "gelu_tanh" or
    "silu".

    Shapes: x (..., k), weight (n, k), bias (n,) or a single element, the result (..., n), row-major. A weight (k,) goes
    with a bias () and gives (...,).
    `main_grad`: a float32 buffer of weight's shape to which the backward adds weight's gradient, at once and in fp32;
    weight.grad then stays as it is.
    Raises: as matmul(); UnsupportedError: another activation, or a main_grad that is no such buffer.
    """
    out = linear_around(x, weight, bias, activation, main_grad)
    if out is not None:
        return out
    try:
        if weight.dim() == 1:
            return _linear_of_one_column(x, weight, bias, activation, main_grad)
        return ops.linear(x, weight, _spread(bias, weight), main_grad, activation)
    except _NO_KERNEL:
        given = {name: value for name, value in (("bias", bias), ("main_grad", main_grad)) if value is not None}
        _check_tensors("linear", x=x, weight=weight, **given)
        products.check_activation(activation)
        raise


def _linear_of_one_column(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None, main_grad: Tensor | None
) -> Tensor:
    """linear() of a weight (k,): that of the one row, without the dimension that it has no name for."""
    if bias is not None and bias.dim():
        raise ShapeError(
            asked=f"bias {tuple(bias.shape)} and weight {tuple(weight.shape)}",
            rule="a weight of one dimension makes one value of a row, and its bias is one element of no dimension",
            works="pass bias[0], or weight[None] for a result with a last dimension",
        )
    if main_grad is not None and main_grad.shape != weight.shape:
        raise ShapeError(
            asked=f"main_grad {tuple(main_grad.shape)} for a weight {tuple(weight.shape)}",
            rule="it has the weight's shape",
            works="pass torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)",
        )
    column = None if bias is None else bias.unsqueeze(0)
    total = None if main_grad is None else main_grad.unsqueeze(0)
    return linear(x, weight.unsqueeze(0), column, activation=activation, main_grad=total).squeeze(-1)


def _spread(bias: Tensor | None, weight: Tensor) -> Tensor | None:
    """The bias as a row, where torch broadcasts it to one: (), (1,), (1, 1), (1, n). Others as they are."""
    if bias is None or weight.dim() != 2 or bias.dim() > 2 or (bias.dim() == 2 and bias.shape[0] != 1):
        return bias
    row = bias[0] if bias.dim() == 2 else bias
    if row.dim() == 1 and row.shape[0] != 1:
        return row
    return row.expand(weight.shape[0])


def linear_around(
    x: Any, weight: Any, bias: Any, activation: str | None = None, main_grad: Tensor | None = None
) -> Tensor | None:
    """linear() around the dispatcher; None where that may not be, or where the op has something to refuse."""
    if not eager.is_eager(x, weight):
        return None
    if bias is None:
        is_wanted = x.requires_grad or weight.requires_grad
    elif type(bias) in eager.PLAIN and bias.dtype is x.dtype:
        is_wanted = x.requires_grad or weight.requires_grad or bias.requires_grad
    else:
        return None
    if not (is_wanted and eager.is_grad_enabled()):
        return products.plain_linear(x, weight, bias, activation)
    if not eager.is_recordable(x, weight):
        return None
    try:
        return gradients.record_linear(x, weight, bias, main_grad, activation)
    except ShapeError:  # of a bias for linear() to broadcast; asked for by no call that is served
        return None


def gated_linear(
    x: Tensor,
    weight: Tensor | Pair,
    bias: Tensor | Pair | None = None,
    *,
    activation: Activation = "silu",
    split: Split = "halves",
    main_grad: Tensor | Pair | None = None,
) -> Tensor:
    """activation(gate) up in one kernel, gate and up being parts of x weight^T + bias: "silu" makes swiglu, "gelu" and
    "gelu_tanh" geglu, "relu" reglu.

    Shapes: x (..., k), weight (2 n, k), bias (2 n,), the result (..., n), row-major. `split`: weight's first n rows
    make the gates and the last n what they gate ("halves"), or rows 2 c and 2 c + 1 make both of column c
    ("interleaved"). Or weight is a pair of two, (n, k) each, of gate and up, and so are bias and main_grad: where both
    weights lie alike, at multiples of 16 bytes, as modules have them, neither is copied. `main_grad`: as in linear().
    Raises: as linear(); ShapeError: a weight of an odd number of rows, a pair of unlike ones.
    Cost: through torch.library. Where a gradient is wanted the kernel also stores gate and up, rounded: 2 n elements a
    row, kept for the backward, which multiplies twice and makes of them the product's gradient by torch's own kernels.
    """
    own, up = _pair("weight", weight)
    own_bias, up_bias = _pair("bias", bias)
    total, up_total = _pair("main_grad", main_grad)
    try:
        return ops.gated_linear(x, own, own_bias, total, activation, split, up, up_bias, up_total)
    except _NO_KERNEL:
        named = {"bias": own_bias, "main_grad": total, "up": up, "up's bias": up_bias, "up's main_grad": up_total}
        given = {name: value for name, value in named.items() if value is not None}
        _check_tensors("gated_linear", x=x, weight=own, **given)
        products.check_gate(activation, split)
        raise


def _pair(name: str, value: Tensor | Pair | None) -> tuple[Tensor | None, Tensor | None]:
    """Both of a pair, or one and None.

    Raises: UnsupportedError: another number than two.
    """
    if not isinstance(value, tuple | list):
        return value, None
    if len(value) != 2:
        raise UnsupportedError(
            asked=f"gated_linear with {len(value)} tensors for {name}",
            rule="a pair is of gate and up",
            works=f"pass one tensor for both, or ({name} of gate, {name} of up)",
        )
    if value[0] is None or value[1] is None:
        raise UnsupportedError(
            asked=f"gated_linear with None in the pair for {name}",
            rule="a pair is of gate and up, and has both",
            works="pass None alone where there is neither" if name != "weight" else "pass two weights (n, k)",
        )
    return value[0], value[1]


def addmm(
    c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, out_dtype: torch.dtype | None = None
) -> Tensor:
    """beta c + alpha a x b as torch.addmm, rounded once, to a's type or `out_dtype`, which is matmul()'s. With beta =
    0, c is not read: NaN in it stays out.

    Shapes: a (m, k), b (k, n), c of a shape that broadcasts to (m, n), the result's.
    Raises: as matmul(); UnsupportedError: a c that is of neither a's type nor float32. DTypeError: an alpha or beta
    that is no number which fp32 holds.
    """
    _check_tensors("addmm", c=c, a=a, b=b)
    if out_dtype is not None:
        _check_out_dtype(out_dtype)
    try:
        # beta and alpha are whole numbers by default: of a float a compiler would make an input
        return ops.addmm(c, a, b, beta, alpha, out_dtype)
    except _NO_KERNEL:
        products.check_numbers(c, beta, alpha)
        raise


def _check_tensors(name: str, **tensors: Any) -> None:
    """Refuses what is no tensor, or none of plain strides: the dispatcher would say that it knows no kernel."""
    for argument, value in tensors.items():
        if not isinstance(value, Tensor):
            if hasattr(type(value), "__torch_function__"):  # what stands for a tensor, such as a tracer's proxy
                continue
            raise UnsupportedError(
                asked=f"{name} with {argument} a {type(value).__module__}.{type(value).__qualname__}",
                rule="its operands are torch tensors",
                works="pass a tensor, or call tilewright.matmul, which takes arrays of other libraries",
            )
        if value.layout is not torch.strided or value.is_nested:
            raise UnsupportedError(
                asked=f"{name} with {argument} {'nested' if value.is_nested else str(value.layout)}",
                rule="kernels read tensors of plain strides",
                works=f"pass {argument}.to_padded_tensor(0)" if value.is_nested else f"pass {argument}.to_dense()",
            )
        if value.is_quantized:
            raise UnsupportedError(
                asked=f"{name} with {argument} quantized",
                rule="products are of bfloat16 and float16",
                works=f"pass {argument}.dequantize().to(torch.bfloat16)",
            )


def _check_out_dtype(out_dtype: object) -> None:
    """Refuses what is no type: the dispatcher would take a whole number, of which 6 is float32."""
    if not isinstance(out_dtype, torch.dtype):
        raise UnsupportedError(
            asked=f"out_dtype = {repr(out_dtype)[:60]}",
            rule="it is an element type of torch",
            works="pass torch.float32, torch.bfloat16 or torch.float16, or leave it out",
        )


def _check_not_negated(out: Tensor) -> None:
    if out.is_neg():
        raise UnsupportedError(
            asked="an out whose negative bit is set",
            rule="its memory holds the negated values, and is written as it is",
            works="pass out.resolve_neg(), a tensor of its own",
        )


def _check_rank(name: str, what: str, rank: int, a: Tensor, b: Tensor) -> None:
    _check_tensors(name, a=a, b=b)
    if a.dim() != rank or b.dim() != rank:
        raise ShapeError(
            asked=f"{name} of {tuple(a.shape)} and {tuple(b.shape)}",
            rule=f"{name} multiplies {what}, of {rank} dimensions each",
            works="use tilewright.torch.matmul, which takes any",
        )
