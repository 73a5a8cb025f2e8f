"""The form of an epilogue: which steps, and how a kernel reaches their arrays. What a Problem holds of one.

Hashable and without addresses or numbers that a call gives: plans and kernels are chosen by it. The steps themselves,
with their arrays, are epilogue_steps.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import DTypeError, UnsupportedError

Kind = Literal["alpha", "beta", "bias", "scale", "relu", "gelu", "silu", "add", "gated", "aux", "row_amax", "row_sum"]
KINDS: frozenset[str] = frozenset(get_args(Kind))
WITH_NUMBER: frozenset[str] = frozenset({"alpha", "beta"})  # steps with a number that every call gives
WITHOUT_ARRAY: frozenset[str] = frozenset({"alpha", "relu", "gelu", "silu", "gated"})
WRITTEN: frozenset[str] = frozenset({"aux", "row_amax", "row_sum"})  # steps whose array is written
REDUCED: frozenset[str] = frozenset({"row_amax", "row_sum"})  # of these a value for each row
UP = "up"  # what arguments call the other b of a gate whose weights lie apart
ARRAY_DTYPES: tuple[DType, ...] = (BF16, FP16, FP32)  # what kernels read and write of a step (fused_arrays.cuh)

# How an array is reached from (row, column) of out: a value for each column, or each row; a matrix whose columns (n) or
# whose rows (m) are contiguous.
Access = Literal["columns", "rows", "n", "m"]


@dataclass(frozen=True, kw_only=True)
class ArrayForm:
    """An array of a step as a matrix of out's size: element (row, column) lies row x strides[0] + column x strides[1]
    elements from its first, one of them 1, the other 0 where all rows or all columns have the same values.

    Units: elements; `batch` the distance between matrices along each dimension of the batch, 0 where all have the same;
    `align_bytes` the largest power of two up to 16 that divides the address.
    """

    dtype: DType
    strides: tuple[int, int]
    batch: tuple[int, ...] = ()
    align_bytes: int = 16

    @property
    def access(self) -> Access:
        """How it is reached."""
        row, column = self.strides
        if column == 1:
            return "n" if row else "columns"
        return "m" if column else "rows"

    @property
    def pitch(self) -> int:
        """Elements between rows, or columns, of a matrix; 0 of one value for each of the other."""
        return self.strides[0] if self.strides[1] == 1 else self.strides[1]

    @property
    def is_paired(self) -> bool:
        """Whether the values of two neighbouring columns, the first an even one, are one access."""
        steps = (self.strides[0], *self.batch)
        return self.strides[1] == 1 and self.align_bytes >= 2 * self.dtype.size and not any(step % 2 for step in steps)

    @property
    def is_wide(self) -> bool:
        """Whether rows are read in chunks of 16 bytes: those of 16-bit values, each at a multiple of that."""
        steps = (self.pitch, *self.batch)
        is_aligned = self.align_bytes == 16 and not any(step % 8 for step in steps)
        return self.access == "n" and self.dtype.size == 2 and is_aligned

    @property
    def transposed(self) -> ArrayForm:
        """The same for out^T."""
        return replace(self, strides=self.strides[::-1])


@dataclass(frozen=True, kw_only=True)
class StepForm:
    """One step. `option` is its word: "column" or "row" of vectors, "none" or "tanh" of gelu, "silu interleaved" and
    the like of gated. The other b of "silu apart" lies as b does, so there is no form of it."""

    kind: Kind
    option: str = ""
    array: ArrayForm | None = None

    @property
    def transposed(self) -> StepForm:
        """The same for out^T; the word stays that of the caller's out."""
        return self if self.array is None else replace(self, array=self.array.transposed)

    def __str__(self) -> str:
        kind = self.kind.replace("_", "-")
        return f"{kind}({self.option})" if self.option else kind


@dataclass(frozen=True)
class Form:
    """The steps in their order, at least one. str() tells the steps, not how their arrays lie."""

    steps: tuple[StepForm, ...]

    @property
    def is_gated(self) -> bool:
        """Whether out has half as many columns as the product."""
        return any(step.kind == "gated" for step in self.steps)

    @property
    def split(self) -> str:
        """How gate and up lie in the product's columns: "interleaved", "halves", or "apart", the halves in two b; ""
        without them."""
        return next((step.option.split()[1] for step in self.steps if step.kind == "gated"), "")

    @property
    def order(self) -> str:
        """The same for who does not ask where b lies: "interleaved" or "halves"."""
        return "halves" if self.split == "apart" else self.split

    @property
    def with_gates_in_one(self) -> Form:
        """The same with gate and up as the halves of one b, where they are two."""
        return Form(
            tuple(
                replace(step, option=step.option.replace("apart", "halves")) if step.kind == "gated" else step
                for step in self.steps
            )
        )

    def unpaired_where_halves_are_odd(self, n: int) -> Form:
        """The form for a product of n columns: where their second half begins at an odd one, what steps before the
        gate read or write is not taken in pairs, as if it were aligned no further than its elements."""
        gates = [index for index, step in enumerate(self.steps) if step.kind == "gated"]
        if not gates or self.order != "halves" or n // 2 % 2 == 0:
            return self
        return Form(
            tuple(
                replace(step, array=replace(step.array, align_bytes=step.array.dtype.size))
                if step.array is not None and index < gates[0]
                else step
                for index, step in enumerate(self.steps)
            )
        )

    @property
    def transposed(self) -> Form:
        """The same for out^T."""
        return Form(tuple(step.transposed for step in self.steps))

    @property
    def arrays(self) -> tuple[tuple[str, str, ArrayForm], ...]:
        """(name, kind, form) of each array in order. The name is what arguments call it."""
        return tuple(
            (array_name(index), step.kind, step.array)
            for index, step in enumerate(self.steps)
            if step.array is not None
        )

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the numbers that every call gives, in order."""
        return tuple(number_name(index) for index, step in enumerate(self.steps) if step.kind in WITH_NUMBER)

    @property
    def names(self) -> tuple[str, ...]:
        """What a call gives beside a, b and out: addresses of arrays, a gate's other b among them, then numbers (the
        bits of an fp32)."""
        addresses = (
            UP if step.array is None else array_name(index)
            for index, step in enumerate(self.steps)
            if takes_array(step.kind, step.option)
        )
        return (*addresses, *self.numbers)

    def fits(self, given: Form) -> bool:
        """Whether a kernel for this form runs `given`: the same but for arrays that are aligned further."""
        wanted = tuple(
            step
            if step.array is None or own.array is None or step.array.align_bytes % own.array.align_bytes
            else replace(step, array=replace(step.array, align_bytes=own.array.align_bytes))
            for step, own in zip(given.steps, self.steps, strict=False)
        )
        return len(given.steps) == len(self.steps) and wanted == self.steps

    def __str__(self) -> str:
        return " ".join(map(str, self.steps))


def takes_array(kind: str, option: str) -> bool:
    """Whether a step has an array: one that it reads or writes, or a gate's other b."""
    return kind not in WITHOUT_ARRAY or option.endswith(" apart")


def array_name(index: int) -> str:
    """What arguments call the array of the step with this index."""
    return f"epilogue{index}"


def number_name(index: int) -> str:
    """What arguments call the number of the step with this index."""
    return f"epilogue{index}_number"


def check_sums(sums: DType) -> None:
    """Raises UnsupportedError: sums of a type that no step of an epilogue takes."""
    if sums is not FP32:
        inputs = "int8 inputs" if sums.is_whole else f"{sums} inputs"
        raise UnsupportedError(
            asked=f"an epilogue of {inputs} with sums in {sums}",
            rule="the steps of an epilogue are computed in fp32, on fp32 sums",
            works="multiply without an epilogue and apply its steps with the array library"
            + ("" if sums.is_whole else ", or leave sums out, which sums in fp32"),
        )


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises UnsupportedError: steps that no kernel has, or has together."""
    kinds = tuple(kinds)
    if kinds.count("gated") > 1:
        raise UnsupportedError(
            asked="an epilogue that gates twice", rule="columns are gated once", works="leave one Gated out"
        )
    if "row_sum" in kinds:
        raise UnsupportedError(
            asked="the sum of each row",
            rule="tiles of one row are added by CTAs in no fixed order, and results are the same bits in every run",
            works="sum out, or an Aux, with the array library",
        )


def check_array_dtypes(form: Form) -> None:
    """Raises DTypeError: an array of a type that no kernel reads or writes beside a product."""
    for _, kind, array in form.arrays:
        if array.dtype not in ARRAY_DTYPES:
            raise DTypeError(
                asked=f"an array of {array.dtype} for {kind}", rule=array_dtypes_rule(), works="cast it to one of them"
            )
        if kind in REDUCED and array.dtype != FP32:
            raise DTypeError(
                asked=f"an array of {array.dtype} for {kind}",
                rule="values of rows are stored in fp32",
                works="pass fp32",
            )


def array_dtypes_rule() -> str:
    """What arrays may be, in a sentence."""
    return f"arrays of an epilogue are {', '.join(map(str, ARRAY_DTYPES[:-1]))} or {ARRAY_DTYPES[-1]}"
