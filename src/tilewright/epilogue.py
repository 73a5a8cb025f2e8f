"""Epilogues: what happens to the sums of a product before they are rounded.

    tilewright.matmul(x, w, epilogue=Alpha(0.5) | Bias(b) | Gelu())

Users find here the steps (epilogue_steps.py) and what they mean: in float64, with a bound of what a kernel may be off,
element by element. NumPy arrays and torch tensors take the same road.

What a kernel computes: fp32 throughout, on the fp32 sums, step after step, each operation rounded to nearest (Beta is
one fused multiply-add), and one rounding to out's type at the end. exp2 and reciprocals are the hardware's
approximations; GELU_ERROR and the others say what comes of that.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType
from tilewright.epilogue_steps import (
    Activation,
    Add,
    Alpha,
    Approximate,
    Aux,
    Beta,
    Bias,
    Epilogue,
    Gated,
    Gelu,
    Per,
    Relu,
    RowAmax,
    RowSum,
    Scale,
    Silu,
    Split,
    Step,
    as_epilogue,
)
from tilewright.errors import ShapeError

__all__ = [
    "GELU_ERROR",
    "GELU_TANH_ERROR",
    "SILU_ERROR",
    "Activation",
    "Add",
    "Alpha",
    "Approximate",
    "Aux",
    "Beta",
    "Bias",
    "Bounded",
    "Epilogue",
    "Error",
    "Evaluated",
    "Gated",
    "Gelu",
    "Per",
    "Relu",
    "RowAmax",
    "RowSum",
    "Scale",
    "Silu",
    "Split",
    "Step",
    "allowed",
    "as_epilogue",
    "evaluate",
]

HALF_ULP = 2.0**-24  # fp32: the most that one rounding to nearest is off, relative
TINY = 2.0**-149  # and absolute, where the result is subnormal


class Error(NamedTuple):
    """How far an activation in fp32 may be off: `relative` x |value| + `absolute`; and by how much it stretches errors
    of what goes in (its Lipschitz constant)."""

    relative: float
    absolute: float
    stretch: float


# Source: a float32 replay over 10^6 arguments in -30 .. 30 and powers up to 1e38, with exp2 and reciprocals off by
# 2^-22 and 2^-22.5 either way (PTX ISA: ex2.approx 2^-22, rcp.approx 1 ulp), 2026-11-30: beyond 2^-21 of the value were
# 7.3e-8 for gelu (tools/fit_gelu.py, 6.2e-8 of it the polynomial's), 2.4e-8 and 3.4e-8 for the other two.
_ERRORS: dict[str, Error] = {
    "relu": Error(0.0, 0.0, 1.0),
    "gelu": Error(2.0**-21, 1e-7, 1.13),
    "gelu_tanh": Error(2.0**-21, 1e-7, 1.13),
    "silu": Error(2.0**-21, 1e-7, 1.1),
}
GELU_ERROR, GELU_TANH_ERROR, SILU_ERROR = (_ERRORS[name] for name in ("gelu", "gelu_tanh", "silu"))


class Bounded(NamedTuple):
    """Values in float64 and how far a kernel's fp32 may be from each."""

    value: Any
    bound: Any


@dataclass(frozen=True)
class Evaluated:
    """`out`: what is rounded to out's type. `written`: what goes into the arrays of Aux, RowAmax and RowSum, each with
    its step: of Aux what is rounded to its type; of rows one value each."""

    out: Bounded
    written: tuple[tuple[Step, Bounded], ...]


def evaluate(
    epilogue: Step | Epilogue, sums: Any, bound: Any, matrix: tuple[int, ...] = (), rows: Any = slice(None)
) -> Evaluated:
    """The steps on some rows of the sums of one matrix of a batch.

    Shapes: `sums` and `bound` (rows, n) in float64, the sums and how far fp32 sums may be off, which may be a number
    for all; `rows` selects theirs from the arrays, whose matrix of the batch is `matrix`. Arrays are read as they are
    now: a c that is out itself has to be a copy from before the product.
    Raises: ShapeError: sums and a bound that are no such arrays, or a step's array that does not fit them.
    """
    shape = tuple(getattr(sums, "shape", ()))
    if isinstance(bound, numbers.Real):
        bound = _full(sums, bound)
    if len(shape) != 2 or shape != tuple(getattr(bound, "shape", ())):
        raise ShapeError(
            asked=f"an epilogue of sums {shape} with a bound {tuple(getattr(bound, 'shape', ()))}",
            rule="both are arrays (rows, n), and of one shape",
            works="pass the rows of one matrix, in NumPy or torch, and a bound for each element or a number",
        )
    current = Bounded(sums, bound)
    written: list[tuple[Step, Bounded]] = []
    with np.errstate(invalid="ignore", over="ignore"):  # infinities and NaN are data
        for step in as_epilogue(epilogue).steps:
            if step.kind == "aux":
                written.append((step, current))
            elif isinstance(step, RowAmax | RowSum):
                written.append((step, _reduced(step, current)))
            else:
                current = _after(step, current, matrix, rows)
    return Evaluated(current, tuple(written))


def whole_b(b: Any, epilogue: Step | Epilogue | None) -> Any:
    """The b of the product whose sums the steps meet: where gate and up are two arrays, (..., k, n / 2), both side by
    side."""
    steps = () if epilogue is None else as_epilogue(epilogue).steps
    up = next((step.up for step in steps if isinstance(step, Gated)), None)
    if up is None:
        return b
    if hasattr(b, "new_empty"):
        whole = b.new_empty((*b.shape[:-1], 2 * b.shape[-1]))
        whole[..., : b.shape[-1]], whole[..., b.shape[-1] :] = b, up
        return whole
    return np.concatenate((b, up), axis=-1)


def allowed(values: Bounded, dtype: DType) -> Any:
    """How far values of an array may be from the reference once they are rounded to its type."""
    tiny = float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal) / 2
    return values.bound + dtype.unit_roundoff * (abs(values.value) + values.bound) + tiny


def _after(step: Step, given: Bounded, matrix: tuple[int, ...], rows: Any) -> Bounded:
    """A step that changes values."""
    x, off = given
    if isinstance(step, Alpha):
        return _rounded(step.x * x, abs(step.x) * off)
    if isinstance(step, Beta):
        return given if step.x == 0 else _rounded(x + step.x * _block(step, matrix, rows, x.shape), off)
    if isinstance(step, Bias | Add):
        return _rounded(x + _block(step, matrix, rows, x.shape), off)
    if isinstance(step, Scale):
        scales = _block(step, matrix, rows, x.shape)
        return _rounded(x * scales, abs(scales) * off)
    if isinstance(step, Gated):
        half = x.shape[-1] // 2
        gate, up = (
            (slice(0, None, 2), slice(1, None, 2))
            if step.split == "interleaved"
            else (slice(0, half), slice(half, None))
        )
        act, act_off = _activated(step.activation, Bounded(x[:, gate], off[:, gate]))
        other, other_off = x[:, up], off[:, up]
        return _rounded(act * other, abs(act) * other_off + abs(other) * act_off + act_off * other_off)
    if isinstance(step, Gelu):
        return _activated("gelu" if step.approximate == "none" else "gelu_tanh", given)
    return _activated(step.kind, given)


def _rounded(value: Any, off: Any) -> Bounded:
    """One more fp32 rounding, of a value that is off already."""
    return Bounded(value, off + HALF_ULP * (abs(value) + off) + TINY)


def _activated(name: str, given: Bounded) -> Bounded:
    x, off = given
    value = _FUNCTIONS[name](x)
    error = _ERRORS[name]
    return Bounded(value, error.stretch * off * (1 + error.relative) + error.relative * abs(value) + error.absolute)


def _relu(x: Any) -> Any:
    return x.clamp(min=0) if hasattr(x, "clamp") else np.maximum(x, 0)  # either keeps NaN


def _gelu(x: Any) -> Any:
    return x * (0.5 * _erfc(x * -math.sqrt(0.5)))


def _gelu_tanh(x: Any) -> Any:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def _silu(x: Any) -> Any:
    return x * _sigmoid(x)


_FUNCTIONS = {"relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu}


def _sigmoid(x: Any) -> Any:
    return x.sigmoid() if hasattr(x, "sigmoid") else 1 / (1 + np.exp(-x))


_ERFC = np.frompyfunc(math.erfc, 1, 1)


def _erfc(x: Any) -> Any:
    return x.erfc() if hasattr(x, "erfc") else _ERFC(x).astype(np.float64)


def _reduced(step: RowAmax | RowSum, given: Bounded) -> Bounded:
    """A value for each row."""
    x, off = given
    if isinstance(step, RowAmax):  # of numbers that are each off by so much the largest is off by no more
        return Bounded(_largest(abs(x)), _largest(off))
    count = x.shape[-1]  # any order of additions: Higham, Accuracy and Stability of Numerical Algorithms, 4.2
    growth = count * HALF_ULP / (1 - count * HALF_ULP)
    return Bounded(x.sum(-1), off.sum(-1) + growth * (abs(x) + off).sum(-1))


def _largest(x: Any) -> Any:
    return x.amax(-1) if hasattr(x, "amax") else x.max(-1)  # either gives NaN where one is


def _block(step: Step, matrix: tuple[int, ...], rows: Any, shape: tuple[int, int]) -> Any:
    """The step's array in float64 as it meets these rows, (rows, n), of this matrix: (rows, n), (rows, 1) or (1, n).

    Raises: ShapeError: it does not.
    """
    array = step.array
    num_dims = len(getattr(array, "shape", ()))
    is_vector = step.option in ("column", "row")
    if num_dims >= (1 if is_vector else 2):
        own = array
        if step.option != "column":
            own = (array[matrix] if num_dims > len(matrix) + (0 if is_vector else 1) else array)[rows]  # type: ignore[index]  # an array
        block = _float64(own)
        block = block[None, :] if step.option == "column" else block[:, None] if is_vector else block
        if tuple(block.shape) in (tuple(shape), (shape[0], 1) if step.option == "row" else (1, shape[1])):
            return block
    raise ShapeError(
        asked=f"an array {tuple(getattr(array, 'shape', ()))} for {step.kind}",
        rule=f"it has values for the rows and columns that it meets, here {tuple(shape)}",
        works="pass one of the product's shape, or a vector of its rows or columns",
    )


def _full(like: Any, value: numbers.Real) -> Any:
    shape = getattr(like, "shape", ())
    return like.new_full(shape, value) if hasattr(like, "new_full") else np.full(shape, value, np.float64)


def _float64(values: Any) -> Any:
    return values.double() if hasattr(values, "double") else np.asarray(values).astype(np.float64)
