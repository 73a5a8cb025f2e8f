"""Plain eager mode: which calls need nothing of torch's dispatcher, and the products of such calls around it.

Knows nothing of gradients but whether one is wanted, and nothing of what a product is (products.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilewright.frontends.torch import ops, products

PLAIN = (Tensor, torch.nn.Parameter)
_INPUTS, _STRIDED = products.INPUTS, torch.strided
is_on_gpu = products.is_on_gpu

# Bound once: each is asked on every call, and costs 0.1 to 0.3 us (2-core x86 host, 2026-11-30).
is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_dynamo_compiling
_num_modes = torch._C._len_torch_dispatch_stack
_num_function_modes = torch._C._len_torch_function_stack
_transform = torch._C._functorch.peek_interpreter_stack
_is_autocasting = torch._C._is_any_autocast_enabled
_trace = torch._C._get_tracing_state


def is_eager(a: Any, b: Any) -> bool:
    """Whether nothing but this process's eager mode, and autograd, can notice a product of the two: then the dispatcher
    has nothing to do."""
    if _is_compiling():  # first: a compiler that traces this reads no further
        return False
    return (
        type(a) in PLAIN
        and type(b) in PLAIN
        and is_on_gpu(a)
        and not _num_modes()
        and not _num_function_modes()
        and _transform() is None
        and not _is_autocasting()
        and _trace() is None
    )


def is_recordable(a: Tensor, b: Tensor) -> bool:
    """Whether a product of the two, of a call that is_eager(), may be recorded around the dispatcher: a pair that a
    kernel multiplies or refuses by name, with nothing between it and autograd."""
    dtype = a.dtype
    return (
        dtype in _INPUTS
        and b.dtype is dtype
        and a.get_device() == b.get_device()
        and a.layout is b.layout is _STRIDED
        and not (a.is_nested or b.is_nested)
        and forward_ad._current_level < 0
    )


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """ops.matmul(), around the dispatcher where that may be and no gradient is wanted."""
    if is_eager(a, b) and not (is_grad_enabled() and (a.requires_grad or b.requires_grad)):
        found = products.plain_product(a, b)
        if found is not None:
            return found
    out: Tensor = ops.matmul(a, b)
    return out
