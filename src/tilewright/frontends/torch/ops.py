"""The ops of the namespace `tilewright` in torch.library: schemas, kernels, fakes, gradients, autocast and vmap.

Defined with define/impl: a call through them costs less than through custom_op. Knows nothing of the way around the
dispatcher (functional.py), nor of what a product is (products.py).

    matmul(a, b, out_dtype=None)            as torch.matmul
    matmul_out(a, b, out)                   into out; returns nothing, so that compilers may reuse its memory
    linear(x, weight, bias, main_grad, activation)      activation(x weight^T + bias)
    linear_and_pre(x, weight, bias, activation)         the same, and what the activation was given
    addmm(c, a, b, beta, alpha)             as torch.addmm
    add_weight_grad(grad, x, main_grad)     main_grad += grad^T x, in fp32

Gradients are the same ops on transposed views, so they are differentiable in turn; no operand is transposed in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.frontends.torch import products

NAMESPACE = "tilewright"
DEVICES = ("cuda", "cpu")
_KEYS = {"cuda": "CUDA", "cpu": "CPU"}  # as the dispatcher spells them

_library = torch.library.Library(NAMESPACE, "DEF")  # its registrations live as long as it does

for _schema in (
    "matmul(Tensor a, Tensor b, ScalarType? out_dtype=None) -> Tensor",
    "matmul_out(Tensor a, Tensor b, Tensor(a!) out) -> ()",
    "linear(Tensor x, Tensor weight, Tensor? bias=None, Tensor? main_grad=None, str? activation=None) -> Tensor",
    "linear_and_pre(Tensor x, Tensor weight, Tensor? bias, str activation) -> (Tensor, Tensor)",
    "addmm(Tensor c, Tensor a, Tensor b, float beta=1.0, float alpha=1.0) -> Tensor",
    "add_weight_grad(Tensor grad, Tensor x, Tensor(a!) main_grad) -> ()",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

# The overloads themselves: finding one through torch.ops costs a look-up more on each call.
_ops = getattr(torch.ops, NAMESPACE)
matmul = _ops.matmul.default
matmul_out = _ops.matmul_out.default
linear = _ops.linear.default
linear_and_pre = _ops.linear_and_pre.default
addmm = _ops.addmm.default
add_weight_grad = _ops.add_weight_grad.default


# -- shapes, for kernels and fakes alike -------------------------------------------------------------------------------


def _check_devices(a: Tensor, b: Tensor) -> None:
    if a.device != b.device:
        raise UnsupportedError(
            asked=f"operands on {a.device} and {b.device}",
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
    _check_devices(x, weight)
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
                works="pass bias (out_features,)",
            )
        products.check_bias_dtype(bias.dtype, x.dtype)
    if main_grad is not None:
        _check_main_grad(main_grad, weight.shape[0], weight.shape[1])
    if activation is not None and activation not in products.ACTIVATIONS:
        raise UnsupportedError(
            asked=f"activation {activation!r}",
            rule=f"activations are {', '.join(products.ACTIVATIONS)}",
            works="apply another one to the result",
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


def _check_addmm(c: Tensor, a: Tensor, b: Tensor) -> None:
    products.check_dtypes("a", a.dtype, "b", b.dtype)
    _check_devices(a, b)
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
    torch.broadcast_shapes(c.shape, (a.shape[0], b.shape[1]))  # torch's own words when they do not fit


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


def _addmm(c: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    _check_addmm(c, a, b)
    return products.product_added(c, a, b, beta, alpha)


def _add_weight_grad(grad: Tensor, x: Tensor, main_grad: Tensor) -> None:
    products.add_product(_rows(grad).t(), _rows(x), main_grad)


# -- fakes: dtype, shape, strides and device as the kernels give -------------------------------------------------------


def _fake_matmul(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    _check_matmul(a, b, out_dtype)
    return a.new_empty(products.out_shape(a.shape, b.shape), dtype=out_dtype or a.dtype)


def _fake_matmul_out(a: Tensor, b: Tensor, out: Tensor) -> None:
    _check_matmul(a, b, out.dtype)


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


def _fake_addmm(c: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    _check_addmm(c, a, b)
    return a.new_empty((a.shape[0], b.shape[1]))


def _fake_add_weight_grad(grad: Tensor, x: Tensor, main_grad: Tensor) -> None:
    products.check_dtypes("grad", grad.dtype, "x", x.dtype)
    _check_main_grad(main_grad, grad.shape[-1], x.shape[-1])


# -- gradients ---------------------------------------------------------------------------------------------------------


def _rows(tensor: Tensor) -> Tensor:
    """(..., k) as a matrix of rows: a view where torch finds one."""
    if tensor.dim() == 2:
        return tensor
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _save_matmul(ctx: Any, needs: Sequence[bool], a: Tensor, b: Tensor, out_dtype: Any = None) -> None:
    """Each operand is kept for the other one's gradient alone."""
    needs_a, needs_b, *_ = needs
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.shapes, ctx.dtype = (a.shape, b.shape), a.dtype


def _matmul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    a_shape, b_shape = ctx.shapes
    grad = grad.to(ctx.dtype)  # of an fp32 out: products read 16-bit types
    if len(a_shape) == 1:
        grad = grad.unsqueeze(-2 if len(b_shape) > 1 else -1)
    if len(b_shape) == 1:
        grad = grad.unsqueeze(-1)
    grad_a = grad_b = None
    if b is not None:
        wide = b.unsqueeze(-1) if b.dim() == 1 else b
        matrices = a_shape if len(a_shape) > 1 else (1, *a_shape)
        grad_a = _summed(grad, wide.mT, matrices).reshape(a_shape)
    if a is not None:
        tall = a.unsqueeze(0) if a.dim() == 1 else a
        if len(b_shape) <= 2 < tall.dim():  # one b for the whole batch: its gradient is one product of all rows
            tall, grad = _rows(tall), _rows(grad)
        matrices = b_shape if len(b_shape) > 1 else (*b_shape, 1)
        grad_b = _summed(tall.mT, grad, matrices).reshape(b_shape)
    return grad_a, grad_b, None


def _summed(a: Tensor, b: Tensor, shape: Any) -> Tensor:
    """a x b, summed in fp32 over the dimensions along which an operand of this shape was broadcast."""
    if products.out_shape(a.shape, b.shape) == tuple(shape):
        return matmul(a, b)
    return matmul(a, b, torch.float32).sum_to_size(shape).to(a.dtype)


def _save_linear(
    ctx: Any,
    needs: Sequence[bool],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    main_grad: Tensor | None = None,
    activation: str | None = None,
    *,
    kept: Tensor | None,
) -> None:
    """`kept`: what the activation's derivative is computed from: of relu its result, else what it was given."""
    needs_x, needs_weight, *rest = needs
    if activation is not None and torch._C._are_functorch_transforms_active():
        needs_x = needs_weight = True  # every backward there is one that may be differentiated again
    ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None, bias if activation else None, kept)
    ctx.needs = tuple(needs[:2])
    ctx.bias_dtype = bias.dtype if bias is not None and rest[0] else None  # None: no gradient is asked for
    ctx.activation = activation
    ctx.main_grad = main_grad  # not saved: several backwards write it in turn, and none reads what another one saved


def _run_linear(ctx: Any, keyset: Any, args: tuple[Any, ...]) -> Tensor:
    """The forward of a linear() that records, which keeps what its activation's derivative needs."""
    activation = args[4] if len(args) > 4 else None
    if activation in (None, "relu"):
        out = _below_autograd(linear, keyset, args)
        kept = None if activation is None else out
    else:
        x, weight, bias, _, activation = args
        out, kept = _below_autograd(linear_and_pre, keyset, (x, weight, bias, activation))
    _save_linear(ctx, ctx.needs_input_grad[1:], *args, kept=kept)
    return out


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, kept = ctx.saved_tensors
    if ctx.activation is not None:
        if ctx.activation != "relu" and torch.is_grad_enabled():
            kept = _pre_again(x, weight, bias)
        grad = _ACTIVATION_GRADIENTS[ctx.activation](grad, kept)
    needs_x, needs_weight = ctx.needs
    grad_x = matmul(grad, weight) if needs_x else None
    grad_weight = None
    if needs_weight:
        if ctx.main_grad is not None:
            add_weight_grad(grad.detach(), x.detach(), ctx.main_grad)
        else:
            grad_weight = matmul(_rows(grad).t(), _rows(x))
    grad_bias = _rows(grad).sum(0, dtype=ctx.bias_dtype) if ctx.bias_dtype is not None else None
    return grad_x, grad_weight, grad_bias, None, None


_ACTIVATION_GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda grad, out: torch.ops.aten.threshold_backward(grad, out, 0),
    "gelu": lambda grad, pre: torch.ops.aten.gelu_backward(grad, pre),
    "silu": lambda grad, pre: _silu_gradient(grad, pre),
}


def _silu_gradient(grad: Tensor, pre: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, pre)
    x = pre.float()  # aten's has no derivative
    share = torch.sigmoid(x)
    return (grad * (share * (1 + x * (1 - share)))).to(grad.dtype)


def _pre_again(x: Tensor | None, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """What the activation was given, computed anew: a backward that is differentiated needs it as a function of x.

    Raises: UnsupportedError: x or weight was not kept.
    """
    if x is None or weight is None:
        raise UnsupportedError(
            asked="a second derivative of linear with an activation, of x or weight alone",
            rule="the first one keeps only what it needs itself",
            works="apply the activation to the result of linear instead of passing activation=",
        )
    again: Tensor = linear(x, weight, bias)
    return again


def _save_addmm(
    ctx: Any, needs: Sequence[bool], c: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0
) -> None:
    needs_c, needs_a, needs_b, *_ = needs
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.c_like = (c.shape, c.dtype) if needs_c else None
    ctx.beta, ctx.alpha = beta, alpha


def _addmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    grad_c = None
    if ctx.c_like is not None:
        shape, dtype = ctx.c_like
        grad_c = _scaled(grad.to(dtype).sum_to_size(shape), ctx.beta)
    grad_a = None if b is None else _scaled(matmul(grad, b.t()), ctx.alpha)
    grad_b = None if a is None else _scaled(matmul(a.t(), grad), ctx.alpha)
    return grad_c, grad_a, grad_b, None, None


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else tensor * factor


def _saving(op: Any, save: Callable[..., None]) -> Callable[..., Tensor]:
    """The forward of an op that records: it runs, and `save` keeps what its backward needs of the arguments."""

    def run(ctx: Any, keyset: Any, args: tuple[Any, ...]) -> Tensor:
        out: Tensor = _below_autograd(op, keyset, args)
        save(ctx, ctx.needs_input_grad[1:], *args)  # arguments that have their default are left out of args
        return out

    return run


def _differentiable(op: Any, run: Callable[..., Tensor], backward: Callable[..., Any]) -> Callable[..., Tensor]:
    """The op's kernel above the devices': where a gradient is wanted it records `run`, and `backward` for later.

    Not torch.library.register_autograd: under forward-mode differentiation that one goes on without the tangents.
    """

    def forward(ctx: Any, keyset: Any, *args: Any) -> Tensor:
        if torch._C._are_functorch_transforms_active():  # a Function turns off what outer transforms may record
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                return run(ctx, keyset, args)
        return run(ctx, keyset, args)

    def backwards(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *backward(ctx, grad))

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backwards)}
    function: Any = type(f"Tilewright{op._opname.capitalize()}", (torch.autograd.Function,), methods)
    # The C function: Function.apply of Python costs more, and refuses torch.func, which has unwrapped its tensors
    # when it comes here.
    records = super(torch.autograd.Function, function).apply

    def kernel(keyset: Any, *args: Any) -> Tensor:
        if forward_ad._current_level >= 0:
            _check_tangents(op, args)
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*args)):
            return _below_autograd(op, keyset, args)
        if torch._C._are_functorch_transforms_active():
            with enable_single_level_autograd_function():
                return records(keyset, *args)
        return records(keyset, *args)

    return kernel


def _into_memory(op: Any) -> Callable[..., None]:
    """The same of an op without a gradient of its own, such as one that writes into its last argument: it refuses to
    record, as torch's own do."""

    def kernel(keyset: Any, *args: Any) -> None:
        if forward_ad._current_level >= 0:
            _check_tangents(op, args)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            raise UnsupportedError(
                asked=f"{op.name()} of tensors that require gradients",
                rule="an op that fills memory or keeps results for another one records no gradient",
                works="call matmul or linear, which return a fresh tensor, or call it under torch.no_grad()",
            )
        _below_autograd(op, keyset, args)

    return kernel


def _below_autograd(op: Any, keyset: Any, args: tuple[Any, ...]) -> Any:
    """What lies below: the device's kernel itself where nothing is in between, which saves a turn of the dispatcher."""
    with torch._C._AutoDispatchBelowAutograd():
        word = keyset.raw_repr()
        is_direct = _direct.get(word)
        if is_direct is None:
            below = keyset & torch._C._after_ADInplaceOrView_keyset
            is_direct = _direct[word] = below.highestPriorityTypeId() in _DEVICE_KEYS
        if is_direct:
            return _KERNELS[op][0](*args)
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)


# Of the few sets of keys that there are: whether only a device's key, and what passes through, is below autograd's.
_direct: dict[int, bool] = {}
_DEVICE_KEYS = tuple(getattr(torch._C.DispatchKey, name) for name in ("CPU", "CUDA", "BackendSelect"))


def _check_tangents(op: Any, args: tuple[Any, ...]) -> None:
    """Raises UnsupportedError for a dual tensor: its tangent would be lost."""
    for value in args:
        if isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise UnsupportedError(
                asked=f"{op.name()} of a dual tensor of forward-mode differentiation",
                rule="the products have a backward formula and no forward one: the result would have no tangent",
                works="use torch.matmul under jvp, jacfwd and hessian; jacrev is served",
            )


# -- autocast ----------------------------------------------------------------------------------------------------------


def _autocasting(op: Any, device: str) -> Callable[..., Any]:
    """The op with its floating-point tensors in the region's type, as torch's own matrix products have them.

    Not torch.library.register_autocast: that one fixes the type when it is registered.
    """
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{_KEYS[device]}"))

    def cast(value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
            return value.to(dtype) if value.device.type == device else value
        return value

    def kernel(*args: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        # A main_grad is where a gradient goes, not an operand.
        changed = [x if op is linear and index == 3 else cast(x, dtype) for index, x in enumerate(args)]
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*changed)

    return kernel


# -- vmap --------------------------------------------------------------------------------------------------------------


def _front(tensor: Tensor, dim: int | None, rank: int) -> Tensor:
    """The tensor with its mapped dimension first and `rank` behind it; without one, as it is."""
    if dim is None:
        return tensor
    tensor = tensor.movedim(dim, 0)
    return tensor.reshape(tensor.shape[0], *(1,) * (rank + 1 - tensor.dim()), *tensor.shape[1:])


def _vmap_matmul(info: Any, in_dims: Any, a: Tensor, b: Tensor, out_dtype: Any = None) -> tuple[Tensor, int]:
    """A batch dimension more; vectors become matrices meanwhile."""
    a_dim, b_dim, *_ = in_dims
    a_rank, b_rank = a.dim() - (a_dim is not None), b.dim() - (b_dim is not None)
    is_row, is_column = a_rank == 1, b_rank == 1
    if is_row:
        a, a_rank = a.movedim(a_dim, 0).unsqueeze(1) if a_dim is not None else a.unsqueeze(0), 2
        a_dim = None if a_dim is None else 0
    if is_column:
        b, b_rank = b.movedim(b_dim, 0).unsqueeze(-1) if b_dim is not None else b.unsqueeze(-1), 2
        b_dim = None if b_dim is None else 0
    rank = max(a_rank, b_rank)
    out = matmul(_front(a, a_dim, rank), _front(b, b_dim, rank), out_dtype)
    if is_row:
        out = out.squeeze(-2)
    if is_column:
        out = out.squeeze(-1)
    return out, 0


def _vmap_linear(
    info: Any,
    in_dims: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    main_grad: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, int]:
    x_dim, weight_dim, bias_dim = in_dims[0], in_dims[1], in_dims[2] if len(in_dims) > 2 else None
    if main_grad is not None:
        raise UnsupportedError(
            asked="linear with main_grad under vmap",
            rule="one buffer cannot take the gradients of a mapped batch",
            works="leave main_grad out; gradients are then returned",
        )
    if weight_dim is None and bias_dim is None:
        return linear(x.movedim(x_dim, 0), weight, bias, None, activation), 0
    rank = max(x.dim() - (x_dim is not None), 1)
    is_row = rank == 1
    if x_dim is not None:
        x = x.movedim(x_dim, 0)
    if is_row:
        x, rank = x.unsqueeze(-2), 2
    weight = weight if weight_dim is None else weight.movedim(weight_dim, 0)
    out = matmul(x, _front(weight.mT, None if weight_dim is None else 0, rank))
    if bias is not None:
        out = out + (bias if bias_dim is None else _front(bias, bias_dim, rank))
    out = out.squeeze(-2) if is_row else out
    return (out if activation is None else products.ACTIVATIONS[activation](out)), 0


def _vmap_linear_and_pre(
    info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    pre, _ = _vmap_linear(info, in_dims[:3], x, weight, bias)
    return (products.ACTIVATIONS[activation](pre), pre), (0, 0)


def _vmap_addmm(
    info: Any, in_dims: Any, c: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0
) -> tuple[Tensor, int]:
    c_dim, a_dim, b_dim, *_ = in_dims
    product, _ = _vmap_matmul(info, (a_dim, b_dim), a, b, torch.float32)
    if a_dim is None and b_dim is None:
        product = product.unsqueeze(0)
    out = product * alpha
    if beta:
        out = out + _front(c, c_dim, 2).float() * beta
    return out.to(a.dtype), 0


def _refuse_vmap(info: Any, in_dims: Any, *args: Any) -> Any:
    raise UnsupportedError(
        asked="a product into given memory under vmap",
        rule="what is written in place has one place for a mapped batch",
        works="use tilewright.torch.matmul, which returns a fresh tensor",
    )


# -- registration ------------------------------------------------------------------------------------------------------

_KERNELS: dict[Any, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    matmul: (_matmul, _fake_matmul, _vmap_matmul),
    matmul_out: (_matmul_out, _fake_matmul_out, _refuse_vmap),
    linear: (_linear, _fake_linear, _vmap_linear),
    linear_and_pre: (_linear_and_pre, _fake_linear_and_pre, _vmap_linear_and_pre),
    addmm: (_addmm, _fake_addmm, _vmap_addmm),
    add_weight_grad: (_add_weight_grad, _fake_add_weight_grad, _refuse_vmap),
}
_GRADIENTS: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {
    matmul: (_saving(matmul, _save_matmul), _matmul_backward),
    linear: (_run_linear, _linear_backward),
    addmm: (_saving(addmm, _save_addmm), _addmm_backward),
}

for _op, (_kernel, _fake, _vmap) in _KERNELS.items():
    _name = _op._schema.name
    for _device in DEVICES:
        _library.impl(_op, _kernel, _KEYS[_device])
        if _op in _GRADIENTS:
            _library.impl(_op, _autocasting(_op, _device), f"Autocast{_KEYS[_device]}")
    torch.library.register_fake(_name, _fake, lib=_library)
    torch.library.register_vmap(_name, _vmap, lib=_library)
    _above = _differentiable(_op, *_GRADIENTS[_op]) if _op in _GRADIENTS else _into_memory(_op)
    _library.impl(_op, _above, "Autograd", with_keyset=True)
