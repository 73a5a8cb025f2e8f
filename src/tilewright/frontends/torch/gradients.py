"""Gradients of the ops: formulas, and the kernels above the devices' that record them.

Each is the same ops on transposed views, so they are differentiable in turn, and no operand is transposed in memory.
Knows nothing of how a product is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad

from tilewright.errors import UnsupportedError
from tilewright.frontends.torch import eager, gate_gradient, ops, products

# -- formulas ----------------------------------------------------------------------------------------------------------


def _save_matmul(ctx: Any, needs: Sequence[bool], a: Tensor, b: Tensor, out_dtype: Any = None) -> None:
    """Each operand is kept for the other one's gradient alone."""
    needs_a, needs_b, *_ = needs
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.set_materialize_grads(False)  # see _of_defined()
    ctx.shapes, ctx.dtype = (a.shape, b.shape), a.dtype


def _matmul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    a_shape, b_shape = ctx.shapes
    grad = grad.to(ctx.dtype)  # of an out of another type: a product reads one, of 16 bits
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
            tall, grad = ops.rows(tall), ops.rows(grad)
        matrices = b_shape if len(b_shape) > 1 else (*b_shape, 1)
        grad_b = _summed(tall.mT, grad, matrices).reshape(b_shape)
    return grad_a, grad_b, None


def _summed(a: Tensor, b: Tensor, shape: Any) -> Tensor:
    """a x b, summed in fp32 over the dimensions along which an operand of this shape was broadcast."""
    if products.out_shape(a.shape, b.shape) == tuple(shape):
        return eager.matmul(a, b)
    return ops.matmul(a, b, torch.float32).sum_to_size(shape).to(a.dtype)


def _save_linear(
    ctx: Any,
    needs: Sequence[bool],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    main_grad: Tensor | None,
    activation: str | None,
    kept: Tensor | None,
) -> None:
    """`kept`: what the activation's derivative is computed from: of relu its result, else what it was given; of a gate
    both of its parts."""
    needs_x, needs_weight, *rest = needs
    if activation is not None and torch._C._are_functorch_transforms_active():
        needs_x = needs_weight = True  # every backward there is one that may be differentiated again
    # The weight is there anyway; of x nothing is kept alive that the first derivative does not need.
    keeps_weight = needs_x or (needs_weight and activation is not None)
    ctx.save_for_backward(
        x if needs_weight else None, weight if keeps_weight else None, bias if activation else None, kept
    )
    ctx.set_materialize_grads(False)  # see _of_defined()
    ctx.needs = tuple(needs[:2])
    ctx.bias_dtype = bias.dtype if bias is not None and rest[0] else None  # None: no gradient is asked for
    ctx.activation = activation
    ctx.main_grad, ctx.other = (
        main_grad,
        None,
    )  # not saved: several backwards write it in turn, and none reads what another one saved


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, kept = ctx.saved_tensors
    if ctx.activation is not None:
        if ctx.activation != "relu" and torch.is_grad_enabled():
            kept = _pre_again(x, weight, bias)
        grad = _ACTIVATION_GRADIENTS[ctx.activation](grad, kept)
    return _operand_gradients(ctx, grad, x, weight)


def _gated_linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """In one kernel, rounded once; or of torch's operations, which each round."""
    if ctx.other is not None:
        return _gated_apart_backward(ctx, grad)
    x, weight, bias, pre = ctx.saved_tensors
    of_pre = gate_gradient.of_gate(grad, pre, ctx.activation, ctx.split)
    if of_pre is None:
        if torch.is_grad_enabled():
            pre = _pre_again(x, weight, bias)
        grads = _gate_gradients(ctx.activation, grad, *products.parted(pre, ctx.split))
        of_pre = products.joined(*grads, ctx.split)
    return *_operand_gradients(ctx, of_pre, x, weight), None


def _gated_apart_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The same of two weights: either with its own gradient, and that of x of both, added in the second product."""
    x, weight, bias, pre, up_weight, up_bias = ctx.saved_tensors
    of_pre = gate_gradient.of_gate(grad, pre, ctx.activation, ctx.split)
    if of_pre is not None:
        grad_gate, grad_up = products.parted(of_pre, ctx.split)
    else:
        if torch.is_grad_enabled():
            gate, up = _pre_again(x, weight, bias), _pre_again(x, up_weight, up_bias)
        else:
            gate, up = products.parted(pre, ctx.split)
        grad_gate, grad_up = _gate_gradients(ctx.activation, grad, gate, up)
    grad_x, *of_gate = _operand_gradients(ctx, grad_gate, x, weight)
    _, *of_up = _operand_gradients(ctx.other, grad_up, x, up_weight)
    if grad_x is not None:
        grad_x = ops.addmm(ops.rows(grad_x), ops.rows(grad_up), up_weight).reshape(grad_x.shape)
    return grad_x, *of_gate[:2], None, None, None, *of_up[:2], None


def _gate_gradients(activation: str, grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Those of gate and up, from that of activation(gate) up."""
    return _ACTIVATION_GRADIENTS[activation](grad * up, gate), grad * products.ACTIVATIONS[activation](gate)


def _operand_gradients(ctx: Any, grad: Tensor, x: Any, weight: Any) -> tuple[Tensor | None, ...]:
    """Of linear's arguments, from that of x weight^T + bias."""
    needs_x, needs_weight = ctx.needs
    grad_x = eager.matmul(grad, weight) if needs_x else None
    grad_weight = None
    if needs_weight:
        if ctx.main_grad is not None:
            ops.add_weight_grad(grad.detach(), x.detach(), ctx.main_grad)
        else:
            grad_weight = eager.matmul(ops.rows(grad).t(), ops.rows(x))
    grad_bias = ops.rows(grad).sum(0, dtype=ctx.bias_dtype) if ctx.bias_dtype is not None else None
    return grad_x, grad_weight, grad_bias, None, None


_ACTIVATION_GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda grad, out: torch.ops.aten.threshold_backward(grad, out, 0),
    "gelu": lambda grad, pre: torch.ops.aten.gelu_backward(grad, pre),
    "gelu_tanh": lambda grad, pre: torch.ops.aten.gelu_backward(grad, pre, approximate="tanh"),
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
            asked="a second derivative of linear with an activation or a gate, whose weight requires no gradient",
            rule="the first one keeps only what it needs itself",
            works="apply the activation to the result of linear, called without one",
        )
    again: Tensor = ops.linear(x, weight, bias)
    return again


def _save_addmm(
    ctx: Any,
    needs: Sequence[bool],
    c: Tensor,
    a: Tensor,
    b: Tensor,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> None:
    needs_c, needs_a, needs_b, *_ = needs
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.set_materialize_grads(False)  # see _of_defined()
    ctx.c_like = (c.shape, c.dtype) if needs_c else None
    ctx.beta, ctx.alpha, ctx.dtype = beta, alpha, a.dtype


def _addmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    grad_c = None
    if ctx.c_like is not None:
        shape, dtype = ctx.c_like
        wide = grad.to(torch.promote_types(grad.dtype, dtype))  # c's type may be the narrower: rounded to it once, last
        grad_c = _scaled(wide.sum_to_size(shape), ctx.beta).to(dtype)
    grad = grad.to(ctx.dtype)  # as in _matmul_backward()
    grad_a = None if b is None else _scaled(eager.matmul(grad, b.t()), ctx.alpha)
    grad_b = None if a is None else _scaled(eager.matmul(a.t(), grad), ctx.alpha)
    return grad_c, grad_a, grad_b, None, None, None


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else tensor * factor


# -- kernels -----------------------------------------------------------------------------------------------------------


# Of the few sets of keys that there are: whether only a device's key, and what passes through, is below autograd's.
_direct: dict[int, bool] = {}
_DEVICE_KEYS = tuple(getattr(torch._C.DispatchKey, name) for name in ("CPU", "CUDA", "BackendSelect"))


def _below_autograd(op: Any) -> Callable[..., Any]:
    """What lies below, called with a keyset and arguments: the device's kernel itself where nothing is between, which
    saves a turn of the dispatcher. None for a keyset: no dispatcher is above (eager.py), and a Function has turned
    autograd off."""
    kernel = ops.KERNELS[op]  # once: an op is hashed in Python

    def below(keyset: Any, *args: Any) -> Any:
        if keyset is None:
            return kernel(*args)
        with torch._C._AutoDispatchBelowAutograd():
            word = keyset.raw_repr()
            is_direct = _direct.get(word)
            if is_direct is None:
                keys = keyset & torch._C._after_ADInplaceOrView_keyset
                is_direct = _direct[word] = keys.highestPriorityTypeId() in _DEVICE_KEYS
            if is_direct:
                return kernel(*args)
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    return below


def _saving(op: Any, save: Callable[..., None]) -> Callable[..., Tensor]:
    """The forward of an op that records: it runs, and `save` keeps what its backward needs of the arguments."""
    below = _below_autograd(op)

    def run(keyset: Any, ctx: Any, *args: Any) -> Tensor:
        out: Tensor = below(keyset, *args)
        save(ctx, _needs(keyset, ctx), *args)  # arguments that have their default are left out of args
        return out

    return run


_linear_below, _linear_and_pre_below = _below_autograd(ops.linear), _below_autograd(ops.linear_and_pre)
_gated_linear_and_pre_below = _below_autograd(ops.gated_linear_and_pre)


def _run_linear(
    keyset: Any,
    ctx: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    main_grad: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """The forward of an ops.linear() that records, which keeps what its activation's derivative needs."""
    kept: Tensor | None = None
    if activation is None or activation == "relu":
        out: Tensor = _linear_below(keyset, x, weight, bias, main_grad, activation)
        kept = out if activation else None
    elif torch._C._are_functorch_transforms_active():  # an outer one may record: two results are not for it
        products.check_activation(activation)
        kept = _linear_below(keyset, x, weight, bias)
        out = products.ACTIVATIONS[activation](kept)
    else:
        out, kept = _linear_and_pre_below(keyset, x, weight, bias, activation)
    _save_linear(ctx, _needs(keyset, ctx), x, weight, bias, main_grad, activation, kept)
    return out


def _run_gated_linear(
    keyset: Any,
    ctx: Any,
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
    """The forward of an ops.gated_linear() that records, which keeps gate and up."""
    out: Tensor
    if torch._C._are_functorch_transforms_active():  # as in _run_linear()
        pre: Tensor = _linear_below(keyset, x, weight, bias)
        if up is not None:
            pre = products.joined(pre, _linear_below(keyset, x, up, up_bias), split)
        out = products.gated(pre, activation, split)
    else:
        out, pre = _gated_linear_and_pre_below(keyset, x, weight, bias, activation, split, up, up_bias)
    needs = _needs(keyset, ctx)
    _save_linear(ctx, needs, x, weight, bias, main_grad, activation, pre)
    ctx.split = split
    if up is not None:
        needs_all = torch._C._are_functorch_transforms_active()
        needs_up = needs[6] or needs_all
        own_x, *kept = ctx.to_save
        keeps_up = needs[0] or needs_up
        ctx.save_for_backward(x if needs_up else own_x, *kept, up if keeps_up else None, up_bias)
        bias_dtype = up_bias.dtype if up_bias is not None and needs[7] else None
        ctx.other = SimpleNamespace(needs=(False, needs_up), bias_dtype=bias_dtype, main_grad=up_main_grad)
    return out


def _needs(keyset: Any, ctx: Any) -> Sequence[bool]:
    """Of each of the op's arguments, whether its gradient is wanted."""
    needs: Sequence[bool] = ctx.needs_input_grad
    return needs if keyset is None else needs[1:]


def _of_defined(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The formula; of a result without a gradient no gradients, as of torch's own products: nothing is multiplied, and
    a leaf's grad stays None."""

    def backward_of(ctx: Any, grad: Tensor | None) -> Any:
        return _NO_GRADIENTS if grad is None else backward(ctx, grad)

    return backward_of


# At least as many as the op of the most arguments has; autograd takes further ones that are None.
_NO_GRADIENTS = (None,) * 10


def _recorder(op: Any, forward: Callable[..., Tensor], backward: Callable[..., Any]) -> Callable[..., Tensor]:
    """What records a call of `forward` in autograd, with `backward` for later."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(_of_defined(backward))}
    function: Any = type(f"Tilewright{op._opname.capitalize()}", (torch.autograd.Function,), methods)
    # The C function: Function.apply of Python costs more, and refuses torch.func, which has unwrapped its tensors
    # when it comes here.
    records: Callable[..., Tensor] = super(torch.autograd.Function, function).apply
    return records


def _differentiable(op: Any, run: Callable[..., Tensor], backward: Callable[..., Any]) -> Callable[..., Tensor]:
    """The op's kernel above the devices': where a gradient is wanted it records `run`, and `backward` for later.

    Not torch.library.register_autograd: under forward-mode differentiation that one goes on without the tangents.
    """

    def forward(ctx: Any, keyset: Any, *args: Any) -> Tensor:
        if torch._C._are_functorch_transforms_active():  # a Function turns off what outer transforms may record
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                return run(keyset, ctx, *args)
        return run(keyset, ctx, *args)

    def backwards(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *backward(ctx, grad))

    records, below = _recorder(op, forward, backwards), _below_autograd(op)

    def kernel(keyset: Any, *args: Any) -> Tensor:
        if forward_ad._current_level >= 0:
            _check_tangents(op, args)
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*args)):
            out: Tensor = below(keyset, *args)
            return out
        if torch._C._are_functorch_transforms_active():
            with enable_single_level_autograd_function():
                return records(keyset, *args)
        return records(keyset, *args)

    return kernel


def _recorded(op: Any, run: Callable[..., Tensor], backward: Callable[..., Any]) -> Callable[..., Tensor]:
    """The op of a call that eager.is_recordable(): as its kernel records it, and no dispatcher is asked."""
    return _recorder(op, functools.partial(run, None), backward)


def _into_memory(op: Any) -> Callable[..., Any]:
    """The same of an op without a gradient of its own, such as one that writes into its last argument: it refuses to
    record, as torch's own do."""
    below = _below_autograd(op)

    def kernel(keyset: Any, *args: Any) -> Any:
        if forward_ad._current_level >= 0:
            _check_tangents(op, args)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            raise UnsupportedError(
                asked=f"{op.name()} of tensors that require gradients",
                rule="an op that fills memory or keeps results for another one records no gradient",
                works="call matmul or linear, which return a fresh tensor, or call it under torch.no_grad()",
            )
        return below(keyset, *args)

    return kernel


def _check_tangents(op: Any, args: tuple[Any, ...]) -> None:
    """Raises UnsupportedError for a dual tensor: its tangent would be lost."""
    for value in args:
        if isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise UnsupportedError(
                asked=f"{op.name()} of a dual tensor of forward-mode differentiation",
                rule="the products have a backward formula and no forward one: the result would have no tangent",
                works="use torch.matmul under jvp, jacfwd and hessian; jacrev is served",
            )


# -- registration ------------------------------------------------------------------------------------------------------

GRADIENTS: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {
    ops.matmul: (_saving(ops.matmul, _save_matmul), _matmul_backward),
    ops.linear: (_run_linear, _linear_backward),
    ops.gated_linear: (_run_gated_linear, _gated_linear_backward),
    ops.addmm: (_saving(ops.addmm, _save_addmm), _addmm_backward),
}

for _op in ops.KERNELS:
    _kernel = _differentiable(_op, *GRADIENTS[_op]) if _op in GRADIENTS else _into_memory(_op)
    ops.library.impl(_op, _kernel, "Autograd", with_keyset=True)

record_matmul = _recorded(ops.matmul, *GRADIENTS[ops.matmul])
record_linear = _recorded(ops.linear, *GRADIENTS[ops.linear])
