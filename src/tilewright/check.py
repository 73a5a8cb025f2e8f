"""Whether a product is right, element by element, against float64 from the rounded inputs.

Knows nothing of who computed it or where it lies: NumPy arrays and torch tensors take the same road, through the
operators that both have, and a torch tensor is checked on its own device.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType
from tilewright.epilogue import Epilogue, RowAmax, RowSum, Step, array_dtype, evaluate

BLOCK_ELEMENTS = 1 << 26  # elements of out checked at once: 512 MiB a float64 matrix of that size
SAMPLED_ROWS = 192  # as in the field's own comparison; a tile is at least 64 rows high, so none is missed at M <= 12288
FP32_ULP = 2.0**-23
EXACT_SUM = 2**24  # integers up to here are exact in fp32


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


def accumulation_factor(k: int) -> float:
    """The f of |error| <= f x (|A| x |B|) for a sum of k exact products in tensor-core fp32.

    Products of two 16-bit values are exact. A wgmma adds 16 of them and the accumulator at once: each addend is aligned
    to the largest and cut off, and so is the sum; each cut loses less than one fp32 ulp of a number below |A| x |B|.
    That makes k + k/16 cuts of a whole ulp, where rounding to nearest would lose half of one.
    Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330, 2021; the
    form n u / (1 - n u): Higham, "Accuracy and Stability of Numerical Algorithms", lemma 3.1.
    """
    cuts = (k + -(-k // 16)) * FP32_ULP
    return cuts / (1 - cuts)


def check(
    a: Any,
    b: Any,
    out: Any,
    out_dtype: DType,
    *,
    rows: list[int] | None = None,
    allowed: float = 0.0,
    epilogue: Step | Epilogue | None = None,
) -> Check:
    """The verdict on out = a x b under the derived bound of each element.

    Shapes: a (*batch, m, k), b (*batch, k, n), out (*batch, m, n), any strides. `rows` limits the check to these rows.
    The bound: accumulation, then half an ulp of the output type (or half its smallest subnormal number). `allowed` is
    added to it, an absolute error: for a baseline that is known to round in between.
    `epilogue`: what became of the sums; what it stored beside out is checked as well. Its arrays hold what the kernel
    read: of a beta or add that was out itself a copy from before.
    Cost: two float64 products of the checked rows, in blocks of BLOCK_ELEMENTS.
    """
    return _verdict(_bounded(a, b, out_dtype, rows, epilogue), out, allowed)


def check_exact(a: Any, b: Any, out: Any, *, rows: list[int] | None = None) -> Check:
    """The verdict on out = a x b for whole numbers: bit for bit the rounded reference, but for the sign of zeros.

    Shapes: as check(). The inputs' partial sums must stay below 2^24: see integer_limit().
    """
    return _verdict(_exact(a, b, rows), out)


class Reference:
    """What out must be, computed once, for whoever has many outs of one a and b.

    Holds one float64 matrix of out's size, or two with bounds: for samples of a product, not for all of a large one.
    """

    def __init__(self, a: Any, b: Any, out_dtype: DType, *, exact: bool = False) -> None:
        """`exact`: the inputs are whole numbers, as in check_exact(). Cost: that of one check."""
        self._blocks = list(_exact(a, b, None) if exact else _bounded(a, b, out_dtype, None))

    def check(self, out: Any) -> Check:
        """The verdict on one out."""
        return _verdict(self._blocks, out)


@dataclass(frozen=True)
class _Block:
    """The reference of some rows of one matrix. `summing` None: out must equal the reference, rounded to its type."""

    matrix: tuple[int, ...]
    selected: Any
    reference: Any
    summing: Any = None  # how far fp32 sums may be off, after an epilogue what it makes of them
    out_dtype: DType | None = None
    beside: tuple[tuple[Any, _Block], ...] = ()  # arrays that an epilogue has stored, each with its own reference


def _bounded(
    a: Any, b: Any, out_dtype: DType, rows: list[int] | None, epilogue: Step | Epilogue | None = None
) -> Iterator[_Block]:
    factor = accumulation_factor(b.shape[-2])
    for matrix in np.ndindex(*b.shape[:-2]):
        b64 = _float64(b[matrix])
        b64_size = abs(b64)
        for selected in _blocks(a.shape[-2], b.shape[-1], rows):
            a64 = _float64(a[matrix][selected])
            with np.errstate(invalid="ignore"):  # infinities and NaN in the inputs are data
                block = _Block(matrix, selected, a64 @ b64, factor * (abs(a64) @ b64_size), out_dtype)
            yield block if epilogue is None else _after(block, epilogue)


def _after(block: _Block, epilogue: Step | Epilogue) -> _Block:
    """The block of what the epilogue makes of the sums of another."""
    found = evaluate(epilogue, block.reference, block.summing, block.matrix, block.selected)
    beside = []
    for step, (value, bound) in found.written:
        if isinstance(step, RowAmax | RowSum):
            value, bound = value[:, None], bound[:, None]
        own = _Block(block.matrix, block.selected, value, bound, array_dtype(step.array))
        beside.append((step.array[..., None] if isinstance(step, RowAmax | RowSum) else step.array, own))
    return _Block(block.matrix, block.selected, found.out.value, found.out.bound, block.out_dtype, tuple(beside))


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
            reference = _float64(_cast(block.reference, array))
            tally.add(block.selected, abs(got - reference), None, got == reference)
            continue
        finfo = ml_dtypes.finfo(block.out_dtype.numpy)
        half_ulp, tiny = block.out_dtype.unit_roundoff, float(finfo.smallest_subnormal) / 2
        reference, summing, largest = block.reference, block.summing, float(finfo.max)
        with np.errstate(invalid="ignore"):
            bound = summing + half_ulp * (abs(reference) + summing) + tiny + allowed
            error = abs(got - reference)
        overflows = (abs(got) == float("inf")) & (got * reference > 0) & (abs(reference) + summing > largest)
        # Where the reference is no number or infinite, out must be the same: both NaN, or equal.
        same = (got == reference) | ((got != got) & (reference != reference))
        tally.add(block.selected, error, bound, (error <= bound) | overflows | same)
    return tally.verdict()


def _with_beside(blocks: Iterable[_Block], out: Any) -> Iterator[tuple[_Block, Any]]:
    """Each block with what it is the reference of."""
    for block in blocks:
        yield block, out
        yield from ((own, array) for array, own in block.beside)


def integer_limit(k: int) -> int:
    """The largest whole number for inputs such that no partial sum of k products reaches 2^24, at most 3."""
    return min(3, isqrt((EXACT_SUM - 1) // max(k, 1)))


def sampled_rows(m: int, seed: int = 0) -> list[int]:
    """SAMPLED_ROWS rows of m in order, the first and the last among them; all of a smaller m."""
    if m <= SAMPLED_ROWS:
        return list(range(m))
    inner = random.Random(seed).sample(range(1, m - 1), SAMPLED_ROWS - 2)
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


def _cast(values: Any, like: Any) -> Any:
    return values.to(like.dtype) if hasattr(values, "to") else values.astype(like.dtype)


def _where(condition: Any, values: Any, other: float) -> Any:
    """`values` where the condition holds. Not arithmetic: NaN x 0 is NaN."""
    kept = values.clone() if hasattr(values, "clone") else values.copy()
    kept[~condition] = other
    return kept
