"""Products of plain torch tensors, on whichever device they are: CUDA by the kernels, the CPU by the emulator.

What the ops (ops.py) and the way around them (functional.py) come down to. Knows nothing of gradients, of compilers or
of the dispatcher; adds to tilewright.matmul what users of torch.matmul take for granted: any strides, tensors that
require gradients, an out of any layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import ml_dtypes
import torch
from torch import Tensor

from tilewright import dispatch
from tilewright.errors import DTypeError, UnsupportedError

_is_on_gpu = attrgetter("is_cuda")

INPUTS = (torch.bfloat16, torch.float16)
OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)


def check_dtypes(first: str, a: torch.dtype, second: str, b: torch.dtype, out: torch.dtype | None = None) -> None:
    """Refuses, also of tensors without memory, what the kernels would refuse.

    Raises: DTypeError: inputs that are not both bf16 or both fp16; an out that is neither of their type nor fp32.
    """
    if a not in INPUTS or b not in INPUTS:
        name, dtype = (second, b) if a in INPUTS else (first, a)
        raise DTypeError(
            asked=f"{name} of {_word(dtype)}",
            rule="inputs are bfloat16 or float16",
            works=f"cast it, {name}.to(torch.bfloat16), or call under torch.autocast",
        )
    if a != b:
        raise DTypeError(
            asked=f"{first} of {_word(a)} and {second} of {_word(b)}",
            rule="both inputs have one element type",
            works=f"cast {second} to {_word(a)} or {first} to {_word(b)}, or call under torch.autocast",
        )
    if out is not None and out not in (a, torch.float32):
        raise DTypeError(
            asked=f"{_word(a)} inputs with out in {_word(out)}",
            rule="out has the inputs' dtype or float32",
            works=f"use {_word(a)} or float32",
        )


def check_bias_dtype(bias: torch.dtype, x: torch.dtype) -> None:
    """Raises: DTypeError: a bias that is of neither x's type nor fp32."""
    if bias not in (x, torch.float32):
        raise DTypeError(
            asked=f"bias of {_word(bias)} with x of {_word(x)}",
            rule="bias has x's element type or float32",
            works=f"cast bias to {_word(x)}",
        )


def product(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """a x b in a fresh row-major tensor; shapes as in torch.matmul.

    Shapes: a (..., m, k) or (k,), b (..., k, n) or (k,). Operands of which neither matrix dimension is contiguous are
    copied first.
    Raises: ShapeError, DTypeError, UnsupportedError: what no kernel serves.
    """
    check_dtypes("a", a.dtype, "b", b.dtype, out_dtype)
    a, b = _plain(a), _plain(b)
    if _is_on_gpu(a) and (out_dtype is None or out_dtype == a.dtype):
        return dispatch.matmul(a, b)
    out = a.new_empty(out_shape(a.shape, b.shape), dtype=out_dtype or a.dtype)
    _run(a, b, out)
    return out


def product_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a x b, in place. An out of which neither matrix dimension is contiguous is written through a copy.

    Raises: as product(); LayoutError: an out that shares memory with a or b, or whose own elements share places.
    """
    check_dtypes("a", a.dtype, "b", b.dtype, out.dtype)
    if out.dim() and not _is_readable(out) and 0 not in out.stride():
        out.copy_(product(a, b, out.dtype))
        return
    _run(_plain(a), _plain(b), out.detach())


def product_with_bias(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight^T + bias in a fresh row-major tensor.

    Shapes: x (..., k), weight (n, k), bias (n,).
    """
    out = product(x, weight.t())
    return out if bias is None else _plus_bias(out, bias)


def plain_product_with_bias(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same of tensors on a GPU that are plain already: of one 16-bit type, outside of autograd, in a layout that a
    kernel reads.

    Raises: LayoutError, ShapeError, UnsupportedError: they are not.
    """
    out: Tensor = dispatch.matmul(x, weight.t())
    return out if bias is None else _plus_bias(out, bias)


def _plus_bias(out: Tensor, bias: Tensor) -> Tensor:
    """out + bias, in its place: rounded once more than torch's, which adds before its one rounding."""
    return out.add_(bias.detach())


def product_added(c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    """beta c + alpha a x b in a's type. The sum is fp32's and rounded once; with beta = 0, c is not read."""
    out = product(a, b, torch.float32)
    if alpha != 1.0:
        out.mul_(alpha)
    if beta != 0.0:
        out.add_(c.detach(), alpha=beta)
    return out.to(a.dtype)


def add_product(a: Tensor, b: Tensor, total: Tensor) -> None:
    """total += a x b, in place and in fp32."""
    total.add_(product(a, b, torch.float32))


def out_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape of torch.matmul's result. Sizes may be symbols; those of rows and columns stay free of guards.

    Raises: what torch raises for batches that do not broadcast.
    """
    batch: tuple[int, ...] = ()
    if len(a) > 2 or len(b) > 2:
        batch = tuple(torch.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2])))
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _run(a: Tensor, b: Tensor, out: Tensor) -> None:
    if a.device != b.device or out.device != a.device:
        _refuse_devices(a, b, out)
    if out.device.type == "cpu":
        dispatch.matmul(host_array(a), host_array(b), host_array(out))
        # The memory was written behind torch's back; saved tensors must learn of it.
        torch.autograd.graph.increment_version(out)
    else:
        dispatch.matmul(a, b, out)


def host_array(tensor: Tensor) -> Any:
    """The CPU tensor's own memory as a NumPy array; bf16 as ml_dtypes has it."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _plain(tensor: Tensor) -> Tensor:
    """The tensor as the kernels can read it: outside of autograd, with one contiguous matrix dimension, its negation
    carried out."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor if _is_readable(tensor) else tensor.contiguous()


def _is_readable(tensor: Tensor) -> bool:
    """Whether a kernel finds the elements: one of the last two dimensions is contiguous, or a single row or column."""
    return tensor.dim() < 2 or 1 in tensor.stride()[-2:] or 1 in tensor.shape[-2:] or tensor.numel() == 0


def _refuse_devices(a: Tensor, b: Tensor, out: Tensor) -> None:
    other, name = (b, "b") if b.device != a.device else (out, "out")
    raise UnsupportedError(
        asked=f"a on {a.device} and {name} on {other.device}",
        rule="the operands of one product lie on one device",
        works=f"move {name}: {name}.to(a.device)",
    )


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
