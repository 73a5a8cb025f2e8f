"""Products of plain torch tensors, on whichever device they are: CUDA by the kernels, the CPU by the emulator.

What the ops (ops.py) and the way around them (functional.py) come down to. Knows nothing of gradients, of compilers or
of the dispatcher; adds to tilewright.matmul what users of torch.matmul take for granted: any strides, tensors that
require gradients, an out of any layout.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilewright import dispatch
from tilewright.dtypes import by_name
from tilewright.epilogue_steps import Alpha, Aux, Beta, Bias, Epilogue, Gated, Gelu, Relu, Silu, Step, as_epilogue
from tilewright.errors import DTypeError, LayoutError, RefusalError, ShapeError, UnsupportedError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
_ACTIVATION_STEPS: dict[str, Step] = {"relu": Relu(), "gelu": Gelu(), "gelu_tanh": Gelu("tanh"), "silu": Silu()}

is_on_gpu = attrgetter("is_cuda")

INPUTS = (torch.bfloat16, torch.float16)
# What tilewright.matmul multiplies besides, without gradients.
_SERVED_ELSEWHERE = {
    torch.float32: "; outside of autograd tilewright.matmul(..., inputs='tf32') rounds it to 11 bits",
    torch.int8: "; outside of autograd tilewright.matmul takes it, into int32",
}
OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)


def check_dtypes(first: str, a: torch.dtype, second: str, b: torch.dtype, out: torch.dtype | None = None) -> None:
    """Refuses, also of tensors without memory, what the kernels would refuse.

    Raises: DTypeError: inputs that are not both bf16 or both fp16; an out that is none of OUTPUTS.
    """
    if a not in INPUTS or b not in INPUTS:
        name, dtype = (second, b) if a in INPUTS else (first, a)
        raise DTypeError(
            asked=f"{name} of {_word(dtype)}",
            rule="inputs are bfloat16 or float16",
            works=f"cast it, {name}.to(torch.bfloat16), or call under torch.autocast{_SERVED_ELSEWHERE.get(dtype, '')}",
        )
    if a != b:
        raise DTypeError(
            asked=f"{first} of {_word(a)} and {second} of {_word(b)}",
            rule="both inputs have one element type",
            works=f"cast {second} to {_word(a)} or {first} to {_word(b)}, or call under torch.autocast",
        )
    if out is not None and out not in OUTPUTS:
        raise DTypeError(
            asked=f"{_word(a)} inputs with out in {_word(out)}",
            rule="sums are float32, and out holds them or is rounded from them to 16 bits",
            works="use bfloat16, float16 or float32",
        )


def check_bias_dtype(bias: torch.dtype, x: torch.dtype) -> None:
    """Raises: DTypeError: a bias that is of neither x's type nor fp32."""
    if bias not in (x, torch.float32):
        raise DTypeError(
            asked=f"bias of {_word(bias)} with x of {_word(x)}",
            rule="bias has x's element type or float32",
            works=f"cast bias to {_word(x)}",
        )


def check_activation(activation: str | None) -> None:
    """Raises: UnsupportedError: one that linear() does not have."""
    if activation is not None and not (isinstance(activation, str) and activation in ACTIVATIONS):
        raise UnsupportedError(
            asked=f"activation {repr(activation)[:60]}",
            rule=f"activations are {', '.join(ACTIVATIONS)}",
            works="apply another one to the result",
        )


def check_gate(activation: Any, split: Any, rows: int = 0) -> None:
    """Raises: UnsupportedError: an activation or a split that gated_linear() does not have. ShapeError: a weight of an
    odd number of rows."""
    Gated(activation, split)
    if rows % 2:
        raise ShapeError(
            asked=f"a gated weight of {rows} rows",
            rule="half of its rows make the gates, the others what they gate: their number is even",
            works="pass weight (2 n, k)",
        )


def check_numbers(c: Tensor, beta: Any, alpha: Any) -> None:
    """Raises: DTypeError: a beta or alpha that torch takes for no number, or one that fp32 does not hold."""
    for value, step in ((beta, lambda: Beta(beta, c)), (alpha, lambda: Alpha(alpha))):
        if not (isinstance(value, Tensor) and value.numel() == 1):  # that one torch takes
            step()


def product(
    a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None, epilogue: Step | Epilogue | None = None
) -> Tensor:
    """a x b, and what an epilogue makes of it, in a fresh row-major tensor; shapes as in torch.matmul.

    Shapes: a (..., m, k) or (k,), b (..., k, n) or (k,); with an epilogue matrices, and one that gates leaves half of
    the columns. Operands of which neither matrix dimension is contiguous are copied first.
    Raises: ShapeError, DTypeError, UnsupportedError: what no kernel serves.
    """
    check_dtypes("a", a.dtype, "b", b.dtype, out_dtype)
    a, b = _plain(a), _plain(b)
    if is_on_gpu(a) and (out_dtype is None or out_dtype == a.dtype):
        return dispatch.matmul(a, b, epilogue=epilogue)
    shape = out_shape(a.shape, b.shape)
    if epilogue is not None and any(
        isinstance(step, Gated) and step.up is None for step in as_epilogue(epilogue).steps
    ):
        shape = (*shape[:-1], shape[-1] // 2)
    out = a.new_empty(shape, dtype=out_dtype or a.dtype)
    _run(a, b, out, epilogue)
    return out


def product_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a x b, in place. An out of which neither matrix dimension is contiguous is written through a copy.

    Raises: as product(); LayoutError: an out that shares memory with a or b, or whose own elements share places.
    """
    check_dtypes("a", a.dtype, "b", b.dtype, out.dtype)
    if out.dim() and not _is_readable(out) and 0 not in out.stride():
        if a.device != b.device or out.device != a.device:
            _refuse_devices(a, b, out)
        check_out_shape(a.shape, b.shape, out.shape)
        _check_apart(out)
        out.copy_(product(a, b, out.dtype))
        return
    _run(_plain(a), _plain(b), out.detach())


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None = None, pre: Tensor | None = None
) -> Tensor:
    """activation(x weight^T + bias) in a fresh row-major tensor, rounded once.

    Shapes: x (..., k), weight (n, k), bias (n,). `pre` (..., n), row-major and of x's type, is filled with what the
    activation is given, rounded.
    """
    if bias is None and activation is None:
        return product(x, weight.t())
    held = None if bias is None else _outside_of_autograd(bias).contiguous()
    if x.dim() < 2:  # an epilogue meets rows; the result is no view of one, which could not be written in place
        out = x.new_empty((weight.shape[0],))
        steps = _steps(held, activation, None if pre is None else pre[None])
        _run(_plain(x[None]), _plain(weight.t()), out[None], steps)
        return out
    return product(x, weight.t(), epilogue=_steps(held, activation, pre))


def gated_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    split: str,
    pre: Tensor | None = None,
    up: Tensor | None = None,
    up_bias: Tensor | None = None,
) -> Tensor:
    """activation(gate) up of x weight^T + bias in a fresh row-major tensor, rounded once.

    Shapes: x (..., k), weight (2 n, k), bias (2 n,), the result (..., n). With `up` (n, k) weight (n, k) makes the
    gates alone, and either has its bias (n,) or none has: where the two weights lie alike nothing is copied for it but
    biases. `pre` (..., 2 n), row-major and of x's type, is filled with gate and up, rounded.
    """
    if x.dim() < 2:
        above = None if pre is None else pre[None]
        return gated_linear(x[None], weight, bias, activation, split, above, up, up_bias)[0]
    held = None if bias is None else _outside_of_autograd(_whole(bias, up_bias)).contiguous()
    if up is not None:
        try:
            return product(x, weight.t(), epilogue=_gating(held, activation, split, pre, _plain(up.t())))
        except LayoutError:
            weight = _whole(weight, up)
    return product(x, _partable(weight, split).t(), epilogue=_gating(held, activation, split, pre))


def _whole(gate: Tensor, up: Tensor | None) -> Tensor:
    """Gate and up, one behind the other."""
    return gate if up is None else torch.cat((gate, up))


def _partable(weight: Tensor, split: str) -> Tensor:
    """The weight, or a copy of it where no kernel finds its second half: behind an odd number of elements of a
    contiguous column."""
    rows, k = weight.shape
    if split == "halves" and rows % 4 and weight.stride(0) == 1:
        return torch.nn.functional.pad(weight, (0, 8 - k % 8))[:, :k]  # rows of whole 16 bytes, also with k = 1
    return weight


def parted(pre: Tensor, split: str) -> tuple[Tensor, Tensor]:
    """Gate and up of (..., 2 n): views (..., n)."""
    if split == "interleaved":
        return pre[..., 0::2], pre[..., 1::2]
    half = pre.shape[-1] // 2
    return pre[..., :half], pre[..., half:]


def joined(gate: Tensor, up: Tensor, split: str) -> Tensor:
    """What parted() takes apart, in fresh memory."""
    if split == "interleaved":
        return torch.stack((gate, up), -1).flatten(-2)
    return torch.cat((gate, up), -1)


def gated(pre: Tensor, activation: str, split: str) -> Tensor:
    """activation(gate) up by torch: what an epilogue does, rounded twice. Raises: as check_gate()."""
    check_gate(activation, split, pre.shape[-1])
    gate, up = parted(pre, split)
    return ACTIVATIONS[activation](gate) * up


def plain_product(a: Tensor, b: Tensor) -> Tensor | None:
    """product() of tensors that are all it takes: on a GPU, outside of autograd, in layouts that a kernel reads. None:
    they are not, and product() has to make them so, or has something to refuse."""
    if a.dtype not in INPUTS:  # tilewright.matmul takes more of them
        return None
    try:
        return dispatch.matmul(a, b)
    except RefusalError:
        return None


def plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor | None:
    """The same for linear()."""
    dtype = x.dtype
    if dtype not in INPUTS or weight.dtype is not dtype or weight.dim() != 2:
        return None
    if bias is None:
        if activation is None:
            return plain_product(x, weight.t())
    elif bias.dtype is not dtype:  # its shape is checked where its layout is first met
        return None
    if x.dim() < 2 or (activation is not None and (type(activation) is not str or activation not in ACTIVATIONS)):
        return None
    try:
        return dispatch.matmul(x, weight.t(), epilogue=_steps(bias, activation))
    except RefusalError:
        return None


def plain_gated_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    split: str,
    up: Tensor | None,
    up_bias: Tensor | None,
) -> Tensor | None:
    """The same for gated_linear()."""
    dtype = x.dtype
    if dtype not in INPUTS or weight.dtype is not dtype or weight.dim() != 2 or x.dim() < 2:
        return None
    if bias is not None and (bias.dtype is not dtype or up is not None):
        return None
    try:
        if up is not None:
            return dispatch.matmul(x, weight.t(), epilogue=_gating(None, activation, split, None, up.t()))
        return dispatch.matmul(x, _partable(weight, split).t(), epilogue=_gating(bias, activation, split))
    except RefusalError:
        return None


def _steps(bias: Tensor | None, activation: str | None, pre: Tensor | None = None) -> Epilogue:
    if activation is None and pre is None and bias is not None:  # most calls
        return Epilogue((Bias(bias),))
    steps: list[Step] = []
    if bias is not None:
        steps.append(Bias(bias))
    if pre is not None:
        steps.append(Aux(pre))
    if activation is not None:
        steps.append(_ACTIVATION_STEPS[activation])
    return Epilogue(tuple(steps))


def _gating(
    bias: Tensor | None, activation: Any, split: Any, pre: Tensor | None = None, up: Tensor | None = None
) -> Epilogue:
    before: list[Step] = [] if bias is None else [Bias(bias)]
    if pre is not None:
        before.append(Aux(pre))
    return Epilogue((*before, Gated(activation, split, up)))


def product_added(
    c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float, out_dtype: torch.dtype | None = None
) -> Tensor:
    """beta c + alpha a x b in a's type or another one, summed in fp32 and rounded once. With beta = 0, c is not
    read."""
    steps: list[Step] = [] if alpha == 1 else [Alpha(alpha)]
    if beta != 0:
        steps.append(_added(c.detach(), a.shape[0], b.shape[1], beta))
    return product(a, b, out_dtype, Epilogue(tuple(steps)) if steps else None)


def _added(c: Tensor, m: int, n: int, beta: float) -> Step:
    """beta c, which broadcasts to (m, n), as the step that reads the least of it."""
    if c.shape == (m, n):
        return Beta(beta, _plain(c))
    scaled = c if beta == 1 else c.float() * Beta(beta, c).x
    if c.shape == (m, 1):
        return Bias(scaled[:, 0].contiguous(), per="row")
    return Bias(scaled.broadcast_to((1, n))[0].contiguous())


def add_product(a: Tensor, b: Tensor, total: Tensor) -> None:
    """total += a x b, in place and in fp32."""
    check_dtypes("a", a.dtype, "b", b.dtype)
    if _is_readable(total):
        _run(_plain(a), _plain(b), total, Beta(1.0, total))
    else:
        _check_apart(total)
        total.add_(product(a, b, torch.float32))


def out_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape of torch.matmul's result. Sizes may be symbols; those of rows and columns stay free of guards.

    Raises: ShapeError: batches that do not broadcast.
    """
    batch: tuple[int, ...] = ()
    if len(a) > 2 or len(b) > 2:
        batch = _broadcast(tuple(a[:-2]), tuple(b[:-2]))
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(a, b))
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # a compiler's, of symbols that it cannot compare
            raise
        raise ShapeError(
            asked=f"batches {a} and {b}",
            rule="batches are broadcast: from the last on their extents are equal, or one of them is 1",
            works="reshape one of them",
        ) from error


def check_out_shape(a: Sequence[int], b: Sequence[int], out: Sequence[int]) -> None:
    """Raises: ShapeError: an out of another shape than the product's."""
    shape = out_shape(a, b)
    if tuple(out) != shape:
        raise ShapeError(
            asked=f"out {tuple(out)}", rule=f"the product is {shape}", works=f"pass out with shape {shape}"
        )


def _check_apart(out: Tensor) -> None:
    """Raises: LayoutError: elements of out that share places. More layouts than torch's copy_() notices."""
    span = 1
    for stride, extent in sorted(zip(out.stride(), out.shape, strict=True)):
        if extent > 1 and stride < span:
            raise LayoutError(
                asked=f"out {tuple(out.shape)} with strides {out.stride()}",
                rule="each element of out has a place of its own",
                works="pass an out whose rows and columns lie apart",
            )
        span += (extent - 1) * stride if extent > 1 else 0


def _run(a: Tensor, b: Tensor, out: Tensor, epilogue: Step | Epilogue | None = None) -> None:
    if a.device != b.device or out.device != a.device:
        _refuse_devices(a, b, out)
    if out.device.type != "cpu":
        dispatch.matmul(a, b, out, epilogue=epilogue)
        return
    given = None if epilogue is None else Epilogue(tuple(_on_host(step) for step in as_epilogue(epilogue).steps))
    dispatch.matmul(host_array(a), host_array(b), host_array(out), epilogue=given)
    torch.autograd.graph.increment_version(out)  # it was written behind torch's back


def _on_host(step: Step) -> Step:
    """The step with the CPU tensor that it holds as a NumPy array."""
    for name in ("vector", "c", "tensor", "out", "up"):
        if (tensor := getattr(step, name, None)) is not None:
            return dataclasses.replace(step, **{name: host_array(tensor)})  # type: ignore[type-var]  # steps are dataclasses
    return step


def host_array(tensor: Tensor) -> Any:
    """The CPU tensor's own memory as a NumPy array, valid as long as the tensor; bf16 as ml_dtypes has it.

    Not Tensor.numpy(), after which torch can never resize the tensor's storage, as FSDP does.
    Raises: LayoutError: a tensor whose storage was freed.
    """
    dtype = by_name(str(tensor.dtype)).numpy
    extents = tuple(tensor.shape)
    if 0 in extents:
        return np.empty(extents, dtype)
    if tensor.data_ptr() == 0:  # NumPy would take fresh memory
        raise LayoutError(
            asked=f"a tensor {extents} whose storage has no memory",
            rule="an operand with elements has memory",
            works="call while its storage is there, such as inside FSDP's forward",
        )
    strides = tuple(stride * dtype.itemsize for stride in tensor.stride())
    num_bytes = sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True)) + dtype.itemsize
    memory = (ctypes.c_uint8 * num_bytes).from_address(tensor.data_ptr())
    return np.ndarray(extents, dtype, memory, strides=strides)


def _plain(tensor: Tensor) -> Tensor:
    """The tensor as the kernels can read it: outside of autograd, with one contiguous matrix dimension, its negation
    carried out."""
    tensor = _outside_of_autograd(tensor)
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor if _is_readable(tensor) else tensor.contiguous()


def _outside_of_autograd(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad and torch.is_grad_enabled() else tensor


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
