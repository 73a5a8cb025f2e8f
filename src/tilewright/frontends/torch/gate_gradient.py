"""The gradient of gate and up in one launch, where plain eager tensors on a GPU allow it.

Else it is made of torch's own operations (gradients.py), which a compiler fuses by itself.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from tilewright import dispatch
from tilewright.device import Device
from tilewright.dtypes import DType, by_name
from tilewright.epilogue_steps import Activation, Split
from tilewright.frontends.torch import eager
from tilewright.jit.build import build
from tilewright.jit.source import Binary
from tilewright.kernels import gate_gradient


def of_gate(grad: Tensor, pre: Tensor, activation: Activation, split: Split) -> Tensor | None:
    """The gradient of `pre`, from that of activation(gate) up; None where this is no call for the kernel.

    Shapes: grad (..., n), pre (..., 2 n), contiguous: gate and up as `split` has them; the result as pre. Each element
    is rounded once.
    Cost: grad, pre and the result are moved once; 15 us of the host.
    """
    if not eager.is_eager(grad, pre) or torch.is_grad_enabled() or grad.dtype is not pre.dtype:
        return None
    columns = grad.shape[-1]
    rows = math.prod(grad.shape[:-1])
    if not gate_gradient.is_served(rows, columns) or not pre.is_contiguous():
        return None
    grad = grad.resolve_neg().reshape(rows, columns)  # a view, or a copy of rows that do not lie evenly
    pitch = grad.stride(0) if rows > 1 else columns
    if grad.stride(1) != 1 or pitch < columns or (pitch * grad.element_size()) % 16 or grad.data_ptr() % 16:
        grad, pitch = grad.contiguous(), columns
    if grad.data_ptr() % 16 or pre.data_ptr() % 16:
        return None
    out = torch.empty_like(pre)
    ordinal = pre.get_device()
    _launch(grad, pre, out, (rows, columns, pitch), (activation, split), ordinal)
    return out


@functools.cache
def _built(dtype: DType, activation: Activation, split: Split, device: Device) -> Binary:
    """The kernel: rendering one takes longer than it runs."""
    return build(gate_gradient.source(dtype, activation, split, device))


def _launch(
    grad: Tensor, pre: Tensor, out: Tensor, sizes: tuple[int, int, int], words: tuple[Any, Any], ordinal: int
) -> None:
    backend = dispatch.backend()
    device = backend.device(ordinal)
    rows, columns, pitch = sizes
    dtype = by_name(str(pre.dtype))
    shape = gate_gradient.launch(rows, columns, device)
    kernel = backend.load(_built(dtype, *words, device), ordinal, shape)
    addresses = {"grad": grad.data_ptr(), "pre": pre.data_ptr(), "gradient": out.data_ptr()}
    call = backend.pack(kernel, shape, gate_gradient.arguments(rows, columns, pitch, dtype), addresses)
    backend.launch(call, torch._C._cuda_getCurrentRawStream(ordinal))
