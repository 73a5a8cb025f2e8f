"""Epilogues: what happens to the sums of a product before they are rounded, as values that compose in order.

    tilewright.matmul(x, w, epilogue=Alpha(0.5) | Bias(b) | Gelu())

A value holds arrays and numbers of the caller. What a kernel needs to know of it is its form (epilogue_form.py); where
arrays may lie, layout.py knows. Here is what each step means: in float64, with a bound of what a kernel may be off,
element by element. NumPy arrays and torch tensors take the same road.

What a kernel computes: fp32 throughout, on the fp32 sums, step after step, each operation rounded to nearest (Beta is
one fused multiply-add), and one rounding to out's type at the end. exp2 and reciprocals are the hardware's
approximations; GELU_ERROR and the others say what comes of that.
"""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.epilogue_form import KINDS, REDUCED, ArrayForm, Form, Kind, StepForm
from tilewright.errors import DTypeError, ShapeError, UnsupportedError

Per = Literal["column", "row"]
Approximate = Literal["none", "tanh"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Split = Literal["interleaved", "halves"]

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


class Step:
    """One step of an epilogue; by itself it is an epilogue of one step."""

    kind: Kind
    option: str = ""

    @property
    def array(self) -> Any | None:
        """The step's array, or None."""
        return None

    @property
    def number(self) -> float | None:
        """The number that a call gives anew each time, or None."""
        return None

    def __or__(self, other: Step | Epilogue) -> Epilogue:
        return Epilogue((self, *_steps_of(other)))

    def __ror__(self, other: Any) -> Epilogue:
        return Epilogue((*_steps_of(other), self))  # refuses what is no step and has no | of its own, such as a class


@dataclass(frozen=True)
class Alpha(Step):
    """Multiplies by a number."""

    x: float
    kind = "alpha"

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _number("alpha", self.x))

    @property
    def number(self) -> float:
        return self.x


@dataclass(frozen=True, eq=False)
class Beta(Step):
    """Adds x times the matrix `c`, of out's shape; c may be out itself. With x = 0 no element of c is read."""

    x: float
    c: Any
    kind = "beta"

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _number("beta", self.x))
        _checked_array(self.kind, self.c)

    @property
    def array(self) -> Any:
        return self.c

    @property
    def number(self) -> float:
        return self.x


@dataclass(frozen=True, eq=False)
class _Vector(Step):
    """A vector: a value for each column of out, or for each row.

    Shapes: (n,) per column; per row (m,), or (*batch, m) with values for each matrix of a batch.
    """

    vector: Any
    per: Per = "column"

    def __post_init__(self) -> None:
        if self.vector is None or self.per is not _Vector.per:  # most calls make a value anew, of the default
            _checked_array(self.kind, self.vector)
            _checked_word("per", self.per, ("column", "row"))

    @property
    def option(self) -> str:  # type: ignore[override]
        return self.per

    @property
    def array(self) -> Any:
        return self.vector


class Bias(_Vector):
    """Adds a vector. Shapes: (n,) per "column"; per "row" (m,), or (*batch, m)."""

    kind = "bias"


class Scale(_Vector):
    """Multiplies by a vector. Shapes: as Bias."""

    kind = "scale"


@dataclass(frozen=True)
class Relu(Step):
    """max(x, 0); NaN stays."""

    kind = "relu"


@dataclass(frozen=True)
class Gelu(Step):
    """x Phi(x), with the error function, or with its approximation by tanh."""

    approximate: Approximate = "none"
    kind = "gelu"

    def __post_init__(self) -> None:
        _checked_word("approximate", self.approximate, ("none", "tanh"))

    @property
    def option(self) -> str:  # type: ignore[override]
        return self.approximate


@dataclass(frozen=True)
class Silu(Step):
    """x / (1 + exp(-x))."""

    kind = "silu"


@dataclass(frozen=True, eq=False)
class Add(Step):
    """Adds a matrix of out's shape, a residual for one; it may be out itself."""

    tensor: Any
    kind = "add"

    def __post_init__(self) -> None:
        _checked_array(self.kind, self.tensor)

    @property
    def array(self) -> Any:
        return self.tensor


@dataclass(frozen=True)
class Gated(Step):
    """activation(gate) x up: the product's n columns become n / 2. "silu" makes swiglu, "gelu" and "gelu_tanh" geglu.

    `split`: of column c of out gate and up are columns 2 c and 2 c + 1, or with "halves" c and n / 2 + c.
    """

    activation: Activation = "silu"
    split: Split = "halves"
    kind = "gated"

    def __post_init__(self) -> None:
        _checked_word("activation", self.activation, ("silu", "gelu", "gelu_tanh", "relu"))
        _checked_word("split", self.split, ("interleaved", "halves"))

    @property
    def option(self) -> str:  # type: ignore[override]
        return f"{self.activation} {self.split}"


@dataclass(frozen=True, eq=False)
class _Written(Step):
    """Writes an array of the caller's, and leaves the values as they are."""

    out: Any

    def __post_init__(self) -> None:
        _checked_array(self.kind, self.out)

    @property
    def array(self) -> Any:
        return self.out


class Aux(_Written):
    """Stores the values at this point, rounded to the type of `out`, into that matrix of the product's shape."""

    kind = "aux"


class RowAmax(_Written):
    """Stores the largest magnitude of each row at this point, before any rounding; NaN where a value is NaN.

    Shapes: `out` (m,), of a batch (*batch, m), fp32.
    """

    kind = "row_amax"


class RowSum(_Written):
    """Stores the sum of each row at this point. Shapes: as RowAmax. The reference alone has it: see
    docs/decisions.md."""

    kind = "row_sum"


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Steps in their order; without any it changes nothing. What a call asks of them is worked out once: one that is
    kept costs less than a new one.

    Raises: UnsupportedError: something else than steps.
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.steps, tuple | list):
            raise UnsupportedError(
                asked=f"Epilogue({repr(self.steps)[:60]})",
                rule="it is made of a tuple of steps",
                works="pass Epilogue((Bias(b), Gelu())), or join steps by |; a single step is an epilogue by itself",
            )
        for step in self.steps:
            if not isinstance(step, Step) or getattr(step, "kind", None) not in KINDS:
                raise _no_step(step)
        if type(self.steps) is not tuple:
            object.__setattr__(self, "steps", tuple(self.steps))

    def __or__(self, other: Step | Epilogue) -> Epilogue:
        return Epilogue((*self.steps, *_steps_of(other)))

    def __ror__(self, other: Any) -> Epilogue:
        return Epilogue((*_steps_of(other), *self.steps))

    @cached_property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of all steps that have one, in order."""
        return tuple(step.array for step in self.steps if step.array is not None)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """What a call gives beside addresses: the bits of each number in fp32."""
        return tuple(fp32_bits(step.number) for step in self.steps if step.number is not None)

    @cached_property
    def structure(self) -> tuple[tuple[str, str], ...]:
        """The steps without what they hold: a part of a key."""
        return tuple((step.kind, step.option) for step in self.steps)

    def __str__(self) -> str:
        return str(Form(tuple(StepForm(kind=step.kind, option=step.option) for step in self.steps)))


def as_epilogue(value: Any) -> Epilogue:
    """`value` as an Epilogue, of one step or many.

    Raises: UnsupportedError: it is neither.
    """
    return value if isinstance(value, Epilogue) else Epilogue((value,))


def _steps_of(value: Any) -> tuple[Any, ...]:
    return value.steps if isinstance(value, Epilogue) else (value,)


def _no_step(value: object) -> UnsupportedError:
    is_class = isinstance(value, type) and issubclass(value, Step)
    return UnsupportedError(
        asked=f"epilogue = {repr(value)[:60]}",
        rule="it is a value of tilewright.epilogue, or several joined by |",
        works=f"call the class, {value.__name__}(...), which makes one"  # type: ignore[attr-defined]  # it is one
        if is_class
        else "pass epilogue=Bias(b) | Gelu() for instance",
    )


def fp32_bits(number: float) -> int:
    """The bits of a number that fp32 holds."""
    bits: int = struct.unpack("<I", struct.pack("<f", number))[0]
    return bits


def _number(name: str, value: object) -> float:
    """The number, rounded to fp32.

    Raises: DTypeError: no number, or one past what fp32 holds.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise DTypeError(
            asked=f"{name} = {repr(value)[:60]}, a {type(value).__name__}",
            rule="it is a number, a parameter of each call",
            works=f"pass a float (an array's element: {name}.item())",
        )
    largest = float(np.finfo(np.float32).max)
    try:
        number = float(value)
        is_past = math.isfinite(number) and abs(number) > largest
    except OverflowError:  # past fp64 as well
        is_past = True
    if is_past:
        raise DTypeError(
            asked=f"{name} = {repr(value)[:60]}", rule="numbers are fp32, up to 3.4e38", works="pass a smaller number"
        )
    return float(np.float32(number))


def _checked_array(kind: str, array: object) -> None:
    if array is None:  # whatever else is no array is refused where it meets a product
        raise UnsupportedError(
            asked=f"{kind} of None", rule="the step reads or writes an array", works="leave the step out"
        )


def _checked_word(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise UnsupportedError(
            asked=f"{name} = {repr(value)[:40]}",
            rule=f"it is one of {', '.join(map(repr, allowed))}",
            works=f"pass {name}={allowed[0]!r}",
        )


# -- what it means -----------------------------------------------------------------------------------------------------


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


def written_steps(epilogue: Step | Epilogue) -> Iterator[Step]:
    """The steps whose arrays are written."""
    return (step for step in as_epilogue(epilogue).steps if step.kind in ("aux", "row_amax", "row_sum"))


def array_dtype(array: Any) -> DType:
    """The element type of an array, or that a type's name stands for.

    Raises: DTypeError: neither, or another type.
    """
    if isinstance(array, str | DType):
        return dtypes.by_name(array)
    if isinstance(array, type) or not hasattr(array, "dtype"):
        raise DTypeError(
            asked=f"an epilogue with {repr(array)[:40]} for an array",
            rule="where only a Problem is known, its place is taken by an array, or by the name of an element type",
            works='pass Bias("bf16") for instance',
        )
    return dtypes.by_name(array.dtype)


def packed_form(epilogue: Step | Epilogue, m: int, n: int, batch: tuple[int, ...] = ()) -> Form:
    """The form with freshly allocated arrays: for planning with no arrays at all, whose place the names of their
    element types may take, as in Bias("bf16") | Gelu().

    Shapes: m x n is the product, n its columns before gating; vectors are shared by the matrices of a batch.
    """
    steps, columns = [], n
    for step in as_epilogue(epilogue).steps:
        array = None
        if step.array is not None:
            is_row = step.option == "row" or step.kind in REDUCED
            is_vector = is_row or step.option == "column"
            strides = (1, 0) if is_row else (0, 1) if is_vector else (n, 1)
            sizes: list[int] = []
            matrix = m if step.kind in REDUCED else 0 if is_vector else m * n
            for extent in reversed(batch):
                sizes.append(matrix)
                matrix *= extent
            array = ArrayForm(dtype=array_dtype(step.array), strides=strides, batch=tuple(reversed(sizes)))
        if step.kind == "gated":
            n //= 2
        steps.append(StepForm(kind=step.kind, option=step.option, array=array))
    return Form(tuple(steps)).apart_where_halves_are_odd(columns)
