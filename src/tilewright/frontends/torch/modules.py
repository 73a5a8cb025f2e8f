"""Linear, in place of torch.nn.Linear, and PatchedLinear, which an existing torch.nn.Linear becomes.

Both are torch.nn.Linear in everything but forward: same parameters, names, state_dict, initialisation. Knows nothing of
whole models (patching.py).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from tilewright.frontends.torch import ops, products
from tilewright.frontends.torch.functional import linear, linear_around


class Linear(nn.Linear):  # type: ignore[misc]  # torch is Any to the checker
    """x weight^T + bias by tilewright. Arguments, parameters and state_dict are torch.nn.Linear's.

    `accumulates` True: where weight has an attribute `main_grad`, a float32 buffer of its shape, the backward adds to
    that and leaves weight.grad alone (as Megatron-LM's optimizers expect).
    Raises, in forward: DTypeError: parameters that are not bf16 or fp16, outside of autocast; else as linear().
    """

    accumulates: bool = False  # on the class: a module that was made or pickled as nn.Linear lacks it

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # nn.Linear's name
        weight = self.weight
        return linear(input, weight, self.bias, main_grad=self._main_grad_of(weight))

    def _main_grad_of(self, weight: Tensor) -> Tensor | None:
        return getattr(weight, "main_grad", None) if self.accumulates else None

    def extra_repr(self) -> str:
        shown: str = super().extra_repr()
        return shown + (", accumulates=True" if self.accumulates else "")


class PatchedLinear(Linear):
    """A torch.nn.Linear that patch() changed: tilewright's product where it is served, torch's where not.

    `emulates` True: also on the CPU, by the emulator: for tests, since it is thousands of times slower.
    """

    emulates: bool = False

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # nn.Linear's name
        weight, bias = self.weight, self.bias
        main_grad = self._main_grad_of(weight) if self.accumulates else None
        out = linear_around(input, weight, bias, None, main_grad)
        if out is not None:
            return out
        if is_served(input, weight, bias, self.emulates):
            return ops.linear(input, weight, bias, main_grad)
        return nn.functional.linear(input, weight, bias)


def is_served(x: Tensor, weight: Tensor, bias: Tensor | None, emulates: bool = False) -> bool:
    """Whether this very call is one for tilewright: plain tensors of one 16-bit type, or about to be cast to one, in
    nn.Linear's own shapes, on a device with kernels. Everything else is torch's."""
    if not (isinstance(x, Tensor) and is_memory(x) and is_memory(weight)):
        return False  # a proxy of a tracer, or a class whose memory is not its value
    if forward_ad._current_level >= 0 or x.layout is not torch.strided or x.is_nested:
        return False
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return False
    kind = weight.device.type
    if x.device != weight.device or not (kind == "cuda" or (emulates and kind == "cpu")):
        return False
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        castable = x.is_floating_point() and weight.is_floating_point()
        return dtype in products.INPUTS and castable and torch.float64 not in (x.dtype, weight.dtype)
    if weight.dtype not in products.INPUTS or x.dtype != weight.dtype:
        return False
    return bias is None or bias.dtype == x.dtype


def is_memory(tensor: Tensor) -> bool:
    """Whether the tensor is what its memory holds: no subclass that wraps others (DTensor, quantised types)."""
    kind = type(tensor)
    return kind is Tensor or kind is nn.Parameter or not hasattr(kind, "__tensor_flatten__")
