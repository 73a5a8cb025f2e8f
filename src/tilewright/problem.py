"""What is to be computed: out (m, n) = a (m, k) x b (k, n), with the layouts of all three.

A Problem holds all that a kernel's choice and code depend on and nothing that changes from call to call: no pointers,
no stream. Its checks are those that hold for every kernel; what one config cannot do is config.violations.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

from tilewright import dtypes
from tilewright.dtypes import DType, DTypeLike
from tilewright.errors import DTypeError, LayoutError, RefusalError, ShapeError

Major = Literal["k", "n"]
MAJORS: tuple[Major, ...] = ("k", "n")

# TMA coordinates are 32-bit signed and a tile may start past the end of its matrix by less than 2^9.
MAX_EXTENT = 2**31 - 512
# cuTensorMapEncodeTiled: strides in bytes are below 2^40 and, like the base address, multiples of 16.
MAX_PITCH_BYTES = 2**40
TMA_ALIGNMENT_BYTES = 16
ALIGNMENTS_BYTES: tuple[int, ...] = (1, 2, 4, 8, 16)  # of out's address; more than 16 serves nobody


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One matrix product.

    Shapes: a (m, k) with k contiguous; b (k, n) with `b_major` contiguous: "k" is the transpose of an (n, k) weight,
    "n" is a plain row-major matrix; out (m, n) with n contiguous.
    Units: pitches in elements, the distance between rows of the contiguous dimension; `out_align_bytes` is the largest
    power of two up to 16 that divides out's base address.
    """

    m: int
    n: int
    k: int
    dtype: DType = dtypes.BF16
    out_dtype: DType = dtypes.BF16
    b_major: Major = "k"
    a_pitch: int
    b_pitch: int
    out_pitch: int
    out_align_bytes: int = TMA_ALIGNMENT_BYTES

    def __post_init__(self) -> None:
        """Keeps what was given in its own type: any whole number as an int, any spelling of an element type as a DType.

        Raises: ShapeError, LayoutError, DTypeError: a value that is none.
        """
        kept: dict[str, object] = {name: _whole(name, getattr(self, name), ShapeError) for name in ("m", "n", "k")}
        for name in ("a_pitch", "b_pitch", "out_pitch", "out_align_bytes"):
            kept[name] = _whole(name, getattr(self, name), LayoutError)
        for name in ("dtype", "out_dtype"):
            kept[name] = dtypes.by_name(getattr(self, name))
        for name, value in kept.items():
            object.__setattr__(self, name, value)
        if self.b_major not in MAJORS:
            raise LayoutError(
                asked=f"b_major = {self.b_major!r}",
                rule="b has k contiguous (a weight's w.t()) or n (a plain row-major b)",
                works="pass 'k' or 'n'",
            )
        if self.out_align_bytes not in ALIGNMENTS_BYTES:
            raise LayoutError(
                asked=f"out_align_bytes = {self.out_align_bytes}",
                rule=f"it is the largest power of two up to {TMA_ALIGNMENT_BYTES} that divides out's address",
                works=f"pass one of {', '.join(map(str, ALIGNMENTS_BYTES))}",
            )

    @property
    def out_through_tma(self) -> bool:
        """Whether out can be written by TMA: base, pitch and row bytes all in multiples of 16.

        A row of any other length would be clipped only at the next 16-byte boundary: bytes past the row would be
        overwritten (PTX ISA, tensor copy; reported as triton#11583).
        """
        size = self.out_dtype.size
        row_bytes, pitch_bytes = self.n * size, self.out_pitch * size
        return (
            self.out_align_bytes % TMA_ALIGNMENT_BYTES == 0
            and row_bytes % TMA_ALIGNMENT_BYTES == 0
            and pitch_bytes % TMA_ALIGNMENT_BYTES == 0
            and pitch_bytes < MAX_PITCH_BYTES
        )

    @property
    def is_empty(self) -> bool:
        """Whether the result needs no multiplication: no element, or all zeros because k is 0."""
        return self.m == 0 or self.n == 0 or self.k == 0

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    @property
    def min_bytes(self) -> int:
        """The fewest bytes that device memory must move: each operand read once, out written once."""
        return (self.m + self.n) * self.k * self.dtype.size + self.m * self.n * self.out_dtype.size

    @property
    def extent_bytes(self) -> dict[str, int]:
        """Bytes from the first element of each operand to the end of its last, padding between rows included."""
        size, out_size = self.dtype.size, self.out_dtype.size
        b_rows, b_extent = (self.n, self.k) if self.b_major == "k" else (self.k, self.n)
        return {
            "a": ((self.m - 1) * self.a_pitch + self.k) * size,
            "b": ((b_rows - 1) * self.b_pitch + b_extent) * size,
            "out": ((self.m - 1) * self.out_pitch + self.n) * out_size,
        }

    def __str__(self) -> str:
        layout = {"k": "TN", "n": "NN"}[self.b_major]
        return f"{self.m}x{self.n}x{self.k} {self.dtype} -> {self.out_dtype} {layout}"


def packed(
    m: int,
    n: int,
    k: int,
    *,
    dtype: DTypeLike = "bf16",
    out_dtype: DTypeLike | None = None,
    b_major: Major = "k",
) -> Problem:
    """The product of freshly allocated matrices: every pitch is the smallest that TMA can read.

    Raises: ShapeError, LayoutError, DTypeError: see checked().
    """
    m, n, k = (_whole(name, extent, ShapeError) for name, extent in (("m", m), ("n", n), ("k", k)))
    in_type = dtypes.by_name(dtype)
    out_type = in_type if out_dtype is None else dtypes.by_name(out_dtype)
    step = TMA_ALIGNMENT_BYTES // in_type.size
    return checked(
        Problem(
            m=m,
            n=n,
            k=k,
            dtype=in_type,
            out_dtype=out_type,
            b_major=b_major,
            a_pitch=_round_up(max(k, 1), step),
            b_pitch=_round_up(max(k if b_major == "k" else n, 1), step),
            out_pitch=max(n, 1),
        )
    )


def checked(problem: Problem) -> Problem:
    """`problem` itself, when some kernel could serve it.

    Raises: ShapeError: a size is negative or past the index range. DTypeError: a combination of element types without
    a kernel. LayoutError: a pitch that TMA cannot read.
    """
    for name, extent in (("m", problem.m), ("n", problem.n), ("k", problem.k)):
        if not 0 <= extent <= MAX_EXTENT:
            raise ShapeError(
                asked=f"{name} = {extent}",
                rule=f"sizes run from 0 to {MAX_EXTENT} (32-bit tensor coordinates)",
                works="split the product along that dimension",
            )
    if problem.dtype not in dtypes.INPUTS:
        raise DTypeError(
            asked=f"inputs of {problem.dtype}",
            rule=f"inputs are {' or '.join(map(str, dtypes.INPUTS))}",
            works="cast a and b",
        )
    if problem.out_dtype not in dtypes.out_choices(problem.dtype):
        raise DTypeError(
            asked=f"{problem.dtype} inputs with out in {problem.out_dtype}",
            rule="out has the inputs' dtype or fp32",
            works=f"use an out of {' or '.join(map(str, dtypes.out_choices(problem.dtype)))}",
        )
    if not problem.is_empty:
        _check_pitch("a", problem.k, problem.a_pitch, problem.dtype, "a")
        if problem.b_major == "k":
            _check_pitch("b", problem.k, problem.b_pitch, problem.dtype, "b.t()")
        else:
            _check_pitch("b", problem.n, problem.b_pitch, problem.dtype, "b")
    if problem.m and problem.n:  # out is written also where k is 0
        _check_out_pitch(problem)
    return problem


def pitch_refusal(row_extent: int, pitch: int, dtype: DType) -> str:
    """The rule of TMA that rows `pitch` elements apart break; empty where it can read them."""
    pitch_bytes = pitch * dtype.size
    if pitch < row_extent:
        return f"rows of {row_extent} elements must not overlap"
    if pitch_bytes >= MAX_PITCH_BYTES:
        return f"TMA needs row pitches below 2^40 bytes, this one is {pitch_bytes}"
    if pitch_bytes % TMA_ALIGNMENT_BYTES:
        return (
            f"TMA reads rows whose pitch is a multiple of {TMA_ALIGNMENT_BYTES} bytes, "
            f"{pitch} x {dtype.size} is {pitch_bytes}"
        )
    return ""


def padded_copy(rows: str, row_extent: int, dtype: DType) -> str:
    """The copy of a matrix that TMA can always read, as advice. `rows` is what has the rows: "a", "b" or "b.t()"."""
    padded = _round_up(row_extent, TMA_ALIGNMENT_BYTES // dtype.size)
    view = "the view" if "." not in rows else "the transpose of the view"
    return f"copy {rows} into rows padded to {padded} elements and pass {view} of the first {row_extent}"


def _check_pitch(operand: str, row_extent: int, pitch: int, dtype: DType, rows: str) -> None:
    """Raises LayoutError when TMA cannot read rows `pitch` elements apart."""
    if rule := pitch_refusal(row_extent, pitch, dtype):
        raise LayoutError(
            asked=f"{operand} with {pitch} {dtype} elements between rows",
            rule=rule,
            works=padded_copy(rows, row_extent, dtype),
        )


def _check_out_pitch(problem: Problem) -> None:
    """Raises LayoutError when rows of out overlap, or lie further apart than any memory reaches."""
    asked = f"out with {problem.out_pitch} elements between rows of {problem.n}"
    if problem.out_pitch < problem.n:
        works = f"give out a row stride of at least {problem.n}"
        raise LayoutError(asked=asked, rule="rows of out must not overlap", works=works)
    if problem.out_pitch * problem.out_dtype.size >= MAX_PITCH_BYTES:
        works = f"give out a row stride nearer to {problem.n}"
        raise LayoutError(asked=asked, rule="row pitches are below 2^40 bytes", works=works)


def _whole(name: str, value: object, refusal: type[RefusalError]) -> int:
    """`value` as an int, of whichever library's integers it is.

    Raises: `refusal`: no whole number, a truth value, or one past 64 bits.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # whatever has no __index__ is refused below
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        shown = repr(value)
        raise refusal(
            asked=f"{name} = {shown[:40]}{'...' if len(shown) > 40 else ''}, a {type(value).__name__}",
            rule="sizes, pitches and alignments are whole numbers",
            works=f"pass {name} as an int",
        )
    if number.bit_length() > 63:  # not shown: Python refuses to print thousands of digits
        raise refusal(
            asked=f"{name}, a number of {number.bit_length()} bits",
            rule="sizes and pitches are 64-bit numbers",
            works="split the product along that dimension" if refusal is ShapeError else f"pass a smaller {name}",
        )
    return number


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
