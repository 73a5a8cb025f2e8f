"""Whether a product is right, element by element, against float64 from the rounded inputs; of int8 bit for bit.

Knows nothing of who computed it or where it lies: NumPy arrays and torch tensors take the same road, through the
operators that both have, and a torch tensor is checked on its own device.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import FP16, FP32, INT32, TF32, DType
from tilewright.epilogue import evaluate, whole_b
from tilewright.epilogue_form import check_sums
from tilewright.epilogue_steps import Epilogue, RowAmax, RowSum, Step, array_dtype

BLOCK_ELEMENTS = 1 << 26  # elements of out checked at once: 512 MiB a float64 matrix of that size
SAMPLED_ROWS = 192  # as in the field's own comparison; a tile is at least 64 rows high, so none is missed at M <= 12288
FP32_ULP = 2.0**-23
EXACT_SUM = 2**24  # integers up to here are exact in fp32
FP16_EXACT_SUM = 2**11  # ... and in fp16
FP16_LARGEST = float(ml_dtypes.finfo(FP16.numpy).max)
INT32_RANGE = 2.0**32


@dataclass(frozen=True, kw_only=True)
class Check:
    """The verdict on one product.

    Units: `worst` is the largest error over its own bound, at most 1 when right; `max_error` absolute. `wrong` counts
    elements past their bound, `unwritten` those that still hold the poison, `damaged` canary elements around out that
    changed. `first_wrong` is (row, column), in whichever matrix of a batch.
    """

    elements: int
    wrong: int
    worst: float
    max_error: float
    first_wrong: tuple[int, int] | None
    unwritten: int = 0
    damaged: int = 0

    @property
    def ok(self) -> bool:
        """Whether every checked element is right and nothing else was touched."""
        return not (self.wrong or self.unwritten or self.damaged)

    def __str__(self) -> str:
        if self.ok:
            return f"right: {self.elements} elements, largest error {self.worst:.3f} of its bound"
        return (
            f"WRONG: {self.wrong} of {self.elements} elements past their bound (first at {self.first_wrong}, largest "
            f"{self.worst:.3g} of it), {self.unwritten} not written, {self.damaged} damaged around out"
        )


def accumulation_factor(k: int, inputs: DType | None = None, sums: DType | None = None) -> float:
    """The f of |error| <= f x (|A| x |B|) for a sum of k exact products in tensor-core fp32, or fp16.

    Products of two 16-bit values are exact, and so are those of two of tf32, 22 bits. A wgmma or mma.sync adds 16 of
    them, or 8 of tf32, and the accumulator at once: each addend is aligned to the largest and cut off, and so is the
    sum; each cut loses less than one fp32 ulp of a number below |A| x |B|. That makes k + k/16 cuts of a whole ulp (k +
    k/8 of tf32), where rounding to nearest would lose half of one.
    `sums` fp16: what each block of 16 leaves is rounded to nearest, k/16 times at 2^-11. Below the smallest normal
    number that is an absolute error instead, which check() adds. Where the form below has no value any more, from about
    k = 32768 on, nothing is promised: infinity.
    Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330, 2021; the
    form n u / (1 - n u): Higham, "Accuracy and Stability of Numerical Algorithms", lemma 3.1.
    """
    block = 8 if inputs is TF32 else 16
    cuts = (k + -(-k // block)) * FP32_ULP
    if sums is FP16:
        cuts += -(-k // block) * FP16.unit_roundoff
    return cuts / (1 - cuts) if cuts < 1 else float("inf")


def overflow_of(dtype: DType) -> float:
    """The smallest value that rounding to nearest even makes infinite: half an ulp past the largest number, a tie of
    whose neighbours that one is odd. 65520 of fp16.

    Source: IEEE 754-2019, 4.3.1; PTX ISA, cvt: without .satfinite f16 and bf16 take infinities.
    """
    power = float(ml_dtypes.finfo(dtype.numpy).max) / (1 - dtype.unit_roundoff)  # of 2, exact
    return power * (1 - dtype.unit_roundoff / 2)


def check(
    a: Any,
    b: Any,
    out: Any,
    out_dtype: DType,
    *,
    inputs: DType | None = None,
    sums: DType | None = None,
    rows: list[int] | None = None,
    allowed: float = 0.0,
    epilogue: Step | Epilogue | None = None,
) -> Check:
    """The verdict on out = a x b under the derived bound of each element.

    `inputs`: what elements are multiplied as, where that is not their own type: fp32 as tf32, rounded as the kernel
    rounds them (cvt.rna), so that the bound is that of the sums alone. `sums`: what products are summed in; in fp16,
    where a partial sum may pass its largest number, an infinity or NaN is right too.
    Shapes: a (*batch, m, k), b (*batch, k, n), out (*batch, m, n), any strides. `rows` limits the check to these rows.
    The bound: accumulation, then half an ulp of the output type (or half its smallest subnormal number). `allowed` is
    added to it, an absolute error: for a baseline that is known to round in between. From overflow_of() on, a value is
    an infinity: which is right where sums within their bound may be as large, as a number is where they may be smaller.
    `epilogue`: what became of the sums, of fp32, of a gate with an `up` those of b and up; what it stored beside out is
    checked as well. Its arrays hold what the kernel read: of a beta or add that was out itself a copy from before.
    An out of whole numbers has no bound: it is checked as check_exact() does.
    Cost: two float64 products of the checked rows, in blocks of BLOCK_ELEMENTS.
    """
    if epilogue is not None:
        check_sums(INT32 if out_dtype.is_whole else sums or FP32)
    if out_dtype.is_whole:
        return check_exact(a, b, out, rows=rows)
    return _verdict(_bounded(a, b, out_dtype, inputs, sums, rows, epilogue), out, allowed)


def check_exact(a: Any, b: Any, out: Any, *, rows: list[int] | None = None) -> Check:
    """The verdict on out = a x b for whole numbers: bit for bit the rounded reference, but for the sign of zeros.

    Shapes: as check(). Of floating-point numbers the inputs' partial sums must stay below 2^24: see integer_limit(). An
    int32 out holds them modulo 2^32, as mma.sync without .satfinite wraps (PTX ISA, mma).
    """
    return _verdict(_exact(a, b, rows), out)


class Reference:
    """What out must be, computed once, for whoever has many outs of one a and b.

    Holds one float64 matrix of out's size, or two with bounds: for samples of a product, not for all of a large one.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        out_dtype: DType,
        *,
        inputs: DType | None = None,
        sums: DType | None = None,
        exact: bool = False,
        epilogue: Step | Epilogue | None = None,
    ) -> None:
        """`inputs`, `sums`, `epilogue`: as check(). `exact`: of whole numbers, as check_exact(). Cost: that of one
        check."""
        is_exact = exact or out_dtype.is_whole
        self._blocks = list(_exact(a, b, None) if is_exact else _bounded(a, b, out_dtype, inputs, sums, None, epilogue))

    def check(self, out: Any) -> Check:
        """The verdict on one out."""
        return _verdict(self._blocks, out)


@dataclass(frozen=True)
class _Block:
    """The reference of some rows of one matrix. `summing` None: out must equal the reference, rounded to its type."""

    matrix: tuple[int, ...]
    selected: Any
    reference: Any
    summing: Any = None  # how far sums may be off, after an epilogue what it makes of them
    may_overflow: Any = None  # where a partial sum in fp16 may pass its largest number
    out_dtype: DType | None = None
    beside: tuple[tuple[Any, _Block], ...] = ()  # arrays that an epilogue has stored, each with its own reference


def _bounded(
    a: Any,
    b: Any,
    out_dtype: DType,
    inputs: DType | None,
    sums: DType | None,
    rows: list[int] | None,
    epilogue: Step | Epilogue | None = None,
) -> Iterator[_Block]:
    b = whole_b(b, epilogue)
    k = b.shape[-2]
    factor = accumulation_factor(k, inputs, sums)
    # Each rounding of a partial sum that is no normal number is off by half of the smallest number at most.
    tiny = -(-k // 16) * float(ml_dtypes.finfo(FP16.numpy).smallest_subnormal) / 2 if sums is FP16 else 0.0
    multiplied = tf32_rounded if inputs is TF32 else _as_it_is
    for matrix in np.ndindex(*b.shape[:-2]):
        b64 = _float64(multiplied(b[matrix]))
        b64_size = abs(b64)
        for selected in _blocks(a.shape[-2], b.shape[-1], rows):
            a64 = _float64(multiplied(a[matrix][selected]))
            with np.errstate(invalid="ignore"):  # infinities and NaN in the inputs are data
                size = abs(a64) @ b64_size
                summing = factor * size + tiny
                may_overflow = size + summing > FP16_LARGEST if sums is FP16 else None
                block = _Block(matrix, selected, a64 @ b64, summing, may_overflow, out_dtype)
            yield block if epilogue is None else _after(block, epilogue)


def _after(block: _Block, epilogue: Step | Epilogue) -> _Block:
    """The block of what the epilogue makes of the sums of another."""
    found = evaluate(epilogue, block.reference, block.summing, block.matrix, block.selected)
    beside = []
    for step, (value, bound) in found.written:
        if isinstance(step, RowAmax | RowSum):
            value, bound = value[:, None], bound[:, None]
        own = _Block(block.matrix, block.selected, value, bound, out_dtype=array_dtype(step.array))
        beside.append((step.array[..., None] if isinstance(step, RowAmax | RowSum) else step.array, own))
    return replace(block, reference=found.out.value, summing=found.out.bound, beside=tuple(beside))


def _exact(a: Any, b: Any, rows: list[int] | None) -> Iterator[_Block]:
    for matrix in np.ndindex(*b.shape[:-2]):
        b64 = _float64(b[matrix])
        for selected in _blocks(a.shape[-2], b.shape[-1], rows):
            yield _Block(matrix, selected, _float64(a[matrix][selected]) @ b64)


def _verdict(blocks: Iterable[_Block], out: Any, allowed: float = 0.0) -> Check:
    tally = _Tally()
    for block, array in _with_beside(blocks, out):
        got = _float64(array[block.matrix][block.selected])
        if block.out_dtype is None:
            reference = block.reference
            if _is_int32(array):  # float64 holds the sums of 2^38 products of int8
                reference = (reference + INT32_RANGE / 2) % INT32_RANGE - INT32_RANGE / 2
            with np.errstate(over="ignore", invalid="ignore"):  # past the largest number are infinities
                reference = _float64(_cast(reference, array))
                error = abs(got - reference)
            tally.add(block.selected, error, None, got == reference)
            continue
        finfo = ml_dtypes.finfo(block.out_dtype.numpy)
        half_ulp, tiny = block.out_dtype.unit_roundoff, float(finfo.smallest_subnormal) / 2
        reference, summing, overflow = block.reference, block.summing, overflow_of(block.out_dtype)
        with np.errstate(invalid="ignore"):
            size, off = abs(reference), summing + allowed
            bound = summing + half_ulp * (size + summing) + tiny + allowed
            overflows = (abs(got) == float("inf")) & (got * reference > 0) & (size + off >= overflow)
            if block.may_overflow is not None:
                overflows = overflows | (block.may_overflow & (got * 0 != 0))
            # Where no value within the bound rounds to a number, every number is infinitely far off.
            error = _where(~(size - off >= overflow), abs(got - reference), float("inf"))
        # Where the reference is no number or infinite, out must be the same: both NaN, or equal.
        same = (got == reference) | ((got != got) & (reference != reference))
        tally.add(block.selected, error, bound, (error <= bound) & (error < float("inf")) | overflows | same)
    return tally.verdict()


def _with_beside(blocks: Iterable[_Block], out: Any) -> Iterator[tuple[_Block, Any]]:
    """Each block with what it is the reference of."""
    for block in blocks:
        yield block, out
        yield from ((own, array) for array, own in block.beside)


def integer_limit(k: int, sums: DType | None = None) -> int:
    """The largest whole number for inputs such that no partial sum of k products reaches 2^24, in fp16 2^11, at most 3;
    0 where k is too long even for 1."""
    largest = FP16_EXACT_SUM if sums is FP16 else EXACT_SUM
    return min(3, isqrt((largest - 1) // max(k, 1)))


def integer_stride(k: int, sums: DType | None = None) -> int:
    """1, or where k is too long for sums of whole numbers to stay exact: of each row of a only every so manieth value
    may be other than 0, and those be 1 or -1."""
    return 1 if integer_limit(k, sums) else -(-k // ((FP16_EXACT_SUM if sums is FP16 else EXACT_SUM) - 1))


def sampled_rows(m: int, seed: int = 0, count: int = SAMPLED_ROWS) -> list[int]:
    """`count` rows of m in order, the first and the last among them; all of a smaller m."""
    if m <= count:
        return list(range(m))
    inner = random.Random(seed).sample(range(1, m - 1), count - 2)
    return [0, *sorted(inner), m - 1]


class _Tally:
    """Counts over blocks of rows."""

    def __init__(self) -> None:
        self.elements = 0
        self.wrong = 0
        self.worst = 0.0
        self.max_error = 0.0
        self.first_wrong: tuple[int, int] | None = None

    def add(self, selected: Any, error: Any, bound: Any, is_right: Any) -> None:
        """Count one block. `bound` None: any error at all is past it."""
        count = error.shape[0] * error.shape[1]
        if not count:
            return  # an out without columns: nothing has a maximum
        self.elements += count
        known = (error == error) & (error != float("inf"))
        finite = _where(known, error, 0.0)
        self.max_error = max(self.max_error, float(finite.max()))
        wrong = int((~is_right).sum())
        if bound is not None:
            self.worst = max(self.worst, float(_where(known & (bound == bound), finite / bound, 0.0).max()))
        if (bound is None and wrong) or bool((~is_right & ~known).any()):
            self.worst = float("inf")
        if wrong and self.first_wrong is None:
            flat = int(((~is_right).reshape(-1) * 1).argmax())
            row, column = divmod(flat, error.shape[1])
            start = selected[row] if isinstance(selected, list) else selected.start + row
            self.first_wrong = (start, column)
        self.wrong += wrong

    def verdict(self) -> Check:
        return Check(
            elements=self.elements,
            wrong=self.wrong,
            worst=self.worst,
            max_error=self.max_error,
            first_wrong=self.first_wrong,
        )


def _blocks(m: int, n: int, rows: list[int] | None) -> list[Any]:
    """Selections of rows that together cover what is to be checked."""
    step = max(1, BLOCK_ELEMENTS // max(n, 1))
    if rows is None:
        return [slice(start, min(m, start + step)) for start in range(0, m, step)]
    return [rows[start : start + step] for start in range(0, len(rows), step)]


def _float64(values: Any) -> Any:
    return values.double() if hasattr(values, "double") else values.astype("float64")


def tf32_rounded(values: Any) -> Any:
    """fp32 values to the nearest of tf32, ties away from zero, NaN as they are: what cvt.rna.tf32.f32 makes of them.

    Source: PTX ISA, cvt. Half of the last kept bit is added to the magnitude, and the low 13 bits are dropped; past the
    largest that carries into infinity.
    """
    copied = values.clone() if hasattr(values, "clone") else values.copy()
    bits = copied.view(_int32_of(copied))
    bits[copied == copied] += 0x1000
    bits &= -0x2000
    rounded = bits.view(copied.dtype)
    return _where(values == values, rounded, float("nan"))


def _int32_of(values: Any) -> Any:
    """The int32 of the library whose array it is."""
    return np.int32 if isinstance(values, np.ndarray) else values.new_empty(0).int().dtype


def _as_it_is(values: Any) -> Any:
    return values


def _is_int32(values: Any) -> bool:
    return str(values.dtype).removeprefix("torch.") == "int32"


def _cast(values: Any, like: Any) -> Any:
    return values.to(like.dtype) if hasattr(values, "to") else values.astype(like.dtype)


def _where(condition: Any, values: Any, other: float) -> Any:
    """`values` where the condition holds. Not arithmetic: NaN x 0 is NaN."""
    kept = values.clone() if hasattr(values, "clone") else values.copy()
    kept[~condition] = other
    return kept
