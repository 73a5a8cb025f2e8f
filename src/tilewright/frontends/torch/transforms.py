"""What becomes of the ops under torch.autocast and torch.vmap. Knows nothing of gradients or kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewright.errors import UnsupportedError
from tilewright.frontends.torch import ops, products

# -- autocast ----------------------------------------------------------------------------------------------------------


def _autocasting(op: Any, device: str) -> Callable[..., Any]:
    """The op with its floating-point tensors in the region's type, as torch's own matrix products have them.

    Not torch.library.register_autocast: that one fixes the type when it is registered.
    """
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{ops.KEYS[device]}"))

    def cast(value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
            return value.to(dtype) if value.device.type == device else value
        return value

    def kernel(*args: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        # A main_grad is where a gradient goes, not an operand.
        kept = (3, 8) if op in (ops.linear, ops.gated_linear) else ()
        changed = [x if index in kept else cast(x, dtype) for index, x in enumerate(args)]
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
    out = ops.matmul(_front(a, a_dim, rank), _front(b, b_dim, rank), out_dtype)
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
    products.check_activation(activation)
    if bias is not None:
        products.check_bias_dtype(bias.dtype, x.dtype)
    if weight_dim is None and bias_dim is None:
        return ops.linear(x.movedim(x_dim, 0), weight, bias, None, activation), 0
    rank = max(x.dim() - (x_dim is not None), 1)
    is_row = rank == 1
    if x_dim is not None:
        x = x.movedim(x_dim, 0)
    if is_row:
        x, rank = x.unsqueeze(-2), 2
    weight = weight if weight_dim is None else weight.movedim(weight_dim, 0)
    out = ops.matmul(x, _front(weight.mT, None if weight_dim is None else 0, rank))
    if bias is not None:
        out = (out + (bias if bias_dim is None else _front(bias, bias_dim, rank))).to(x.dtype)  # of an fp32 bias
    out = out.squeeze(-2) if is_row else out
    return (out if activation is None else products.ACTIVATIONS[activation](out)), 0


def _vmap_linear_and_pre(
    info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    pre, _ = _vmap_linear(info, in_dims[:3], x, weight, bias)
    return (products.ACTIVATIONS[activation](pre), pre), (0, 0)


def _vmap_gated_linear(
    info: Any,
    in_dims: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    main_grad: Tensor | None = None,
    activation: str = "silu",
    split: str = "halves",
    up: Tensor | None = None,
    up_bias: Tensor | None = None,
    up_main_grad: Tensor | None = None,
) -> tuple[Tensor, int]:
    main_grads = (main_grad, up_main_grad)
    if main_grads == (None, None) and all(dim is None for dim in in_dims[1:]):
        moved = x.movedim(in_dims[0], 0)
        return ops.gated_linear(moved, weight, bias, None, activation, split, up, up_bias), 0
    pre = _vmap_pre(info, in_dims, x, (weight, up), (bias, up_bias), main_grads)
    return products.gated(pre, activation, split), 0


def _vmap_pre(
    info: Any,
    in_dims: Any,
    x: Tensor,
    weights: tuple[Tensor, Tensor | None],
    biases: tuple[Tensor | None, Tensor | None],
    main_grads: tuple[Tensor | None, Tensor | None],
    up_at: int = 6,
) -> Tensor:
    """Gate and up, (..., 2 n), the mapped dimension first; `up_at` is the place of the second weight."""

    def one(dims: Any, weight: Tensor, bias: Tensor | None, main_grad: Tensor | None) -> Tensor:
        if all(dim is None for dim in dims):  # the same for all
            return ops.linear(x, weight, bias).expand(info.batch_size, *x.shape[:-1], weight.shape[0])
        return _vmap_linear(info, dims, x, weight, bias, main_grad)[0]

    pre = one(in_dims[:3], weights[0], biases[0], main_grads[0])
    if weights[1] is None:
        return pre
    up_dims = (in_dims[0], *(*in_dims[up_at:], None, None)[:2])
    return products.joined(pre, one(up_dims, weights[1], biases[1], main_grads[1]), "halves")


def _vmap_gated_linear_and_pre(
    info: Any,
    in_dims: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    split: str,
    up: Tensor | None = None,
    up_bias: Tensor | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    pre = _vmap_pre(info, in_dims, x, (weight, up), (bias, up_bias), (None, None), up_at=5)
    return (products.gated(pre, activation, split), pre), (0, 0)


def _vmap_addmm(
    info: Any,
    in_dims: Any,
    c: Tensor,
    a: Tensor,
    b: Tensor,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, int]:
    c_dim, a_dim, b_dim, *_ = in_dims
    product, _ = _vmap_matmul(info, (a_dim, b_dim), a, b, torch.float32)
    if a_dim is None and b_dim is None:
        product = product.unsqueeze(0)
    out = product * alpha
    if beta:
        out = out + _front(c, c_dim, 2).float() * beta
    return out.to(out_dtype or a.dtype), 0


def _refuse_vmap(info: Any, in_dims: Any, *args: Any) -> Any:
    raise UnsupportedError(
        asked="a product into given memory under vmap",
        rule="what is written in place has one place for a mapped batch",
        works="use tilewright.torch.matmul, which returns a fresh tensor",
    )


# -- registration ------------------------------------------------------------------------------------------------------

_VMAPS: dict[Any, Callable[..., Any]] = {
    ops.matmul: _vmap_matmul,
    ops.matmul_out: _refuse_vmap,
    ops.linear: _vmap_linear,
    ops.linear_and_pre: _vmap_linear_and_pre,
    ops.gated_linear: _vmap_gated_linear,
    ops.gated_linear_and_pre: _vmap_gated_linear_and_pre,
    ops.addmm: _vmap_addmm,
    ops.add_weight_grad: _refuse_vmap,
}

for _op, _vmap in _VMAPS.items():
    torch.library.register_vmap(_op._schema.name, _vmap, lib=ops.library)

for _op in (
    ops.matmul,
    ops.linear,
    ops.gated_linear,
    ops.addmm,
):  # the others run inside of these, or into memory of a type of its own
    for _device, _key in ops.KEYS.items():
        ops.library.impl(_op, _autocasting(_op, _device), f"Autocast{_key}")
