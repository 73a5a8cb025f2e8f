"""The steps of epilogues, as values that compose in order: Alpha(0.5) | Bias(b) | Gelu().

A value holds arrays and numbers of the caller, and refuses what can be seen to be none when it is made. What each step
means, epilogue.py knows; what a kernel needs to know of it is its form (epilogue_form.py); where arrays may lie,
layout.py knows.
"""

from __future__ import annotations

import math
import numbers
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.epilogue_form import KINDS, Form, Kind, StepForm
from tilewright.errors import DTypeError, UnsupportedError

Per = Literal["column", "row"]
Approximate = Literal["none", "tanh"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Split = Literal["interleaved", "halves"]


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


@dataclass(frozen=True, eq=False)
class Gated(Step):
    """activation(gate) x up: the product's n columns become n / 2. "silu" makes swiglu, "gelu" and "gelu_tanh" geglu.

    `split`: of column c of out gate and up are columns 2 c and 2 c + 1, or with "halves" c and n / 2 + c.
    `up`: where gate and up are two weights, the other one: b makes the gates then, `up` what they gate, and the product
    that steps meet is that of the two side by side, in halves: b has half of its columns, out as many as b.
    Shapes: `up` is as b, (k, n / 2), and lies as b does: same type and strides. Both begin at multiples of 16 bytes.
    """

    activation: Activation = "silu"
    split: Split = "halves"
    up: Any | None = None
    kind = "gated"

    def __post_init__(self) -> None:
        _checked_word("activation", self.activation, ("silu", "gelu", "gelu_tanh", "relu"))
        _checked_word("split", self.split, ("interleaved", "halves"))
        if self.up is not None and self.split != "halves":
            raise UnsupportedError(
                asked=f"split = {self.split!r} of gate and up in two arrays",
                rule="b and `up` are the halves of the columns",
                works="leave split or up out",
            )

    @property
    def option(self) -> str:  # type: ignore[override]
        return f"{self.activation} {self.split if self.up is None else 'apart'}"

    @property
    def array(self) -> Any | None:
        return self.up

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gated) and self.option == other.option and self.up is other.up

    def __hash__(self) -> int:
        return hash(self.option)


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
