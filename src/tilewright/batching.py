"""What a batch of products comes down to: matmul's broadcasting, and the fewest dimensions that say the same.

Plain strides of three operands; knows nothing of array libraries, of element types or of what a kernel can read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

Array = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides in elements


class Dim(NamedTuple):
    """One dimension of a batch: its extent, and the strides of a, b and out along it; 0 where a or b is the same. And
    those of further arrays of out's size."""

    extent: int
    a: int
    b: int
    out: int
    further: tuple[int, ...] = ()

    @property
    def strides(self) -> tuple[int, ...]:
        """All strides."""
        return self.a, self.b, self.out, *self.further

    @property
    def is_shared(self) -> bool:
        """Whether a or b is the same matrix all along."""
        return self.a == 0 or self.b == 0


@dataclass(frozen=True)
class Matrices:
    """Products out (m, n) = a (m, k) x b (k, n), one for each index of `dims`; the last dimension is walked fastest.

    Units: elements; `a`, `b` and `out` hold the strides of the two dimensions of each matrix, in the order above, and
    `further` those of arrays that go along with out, 0 where all rows or all columns have the same values.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    out: tuple[int, int]
    dims: tuple[Dim, ...]
    further: tuple[tuple[int, int], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to multiply."""
        return 0 in (self.m, self.n, self.k, *self.batch)

    @property
    def batch(self) -> tuple[int, ...]:
        """Extents of the batch."""
        return tuple(dim.extent for dim in self.dims)

    @property
    def a_batch(self) -> tuple[int, ...]:
        """Strides of a along the batch."""
        return tuple(dim.a for dim in self.dims)

    @property
    def b_batch(self) -> tuple[int, ...]:
        """Strides of b along the batch."""
        return tuple(dim.b for dim in self.dims)

    @property
    def out_batch(self) -> tuple[int, ...]:
        """Strides of out along the batch."""
        return tuple(dim.out for dim in self.dims)

    def further_batch(self, index: int) -> tuple[int, ...]:
        """Strides of a further array along the batch."""
        return tuple(dim.further[index] for dim in self.dims)

    def with_a_like_out(self) -> Matrices:
        """The same with an a that lies as out does, and one b: where neither is read, whatever simplifies out."""
        dims = tuple(dim._replace(a=dim.out, b=0) for dim in self.dims)
        return replace(self, a=(self.out[0], 1), b=(1, 1), dims=dims)

    def without_inputs(self) -> Matrices:
        """The same with one a and one b for all."""
        return replace(self, dims=tuple(dim._replace(a=0, b=0) for dim in self.dims))


def broadcast(a: Array, b: Array, out: Array, further: tuple[tuple[int, ...], ...] = ()) -> Matrices:
    """The matrices of a product whose shapes meet (layout.out_shape).

    Shapes: a (..., m, k) or (k,), b (..., k, n) or (k,), out what these make. `further`: strides (..., m, n) of arrays
    that go along with out, of which a and b are no vectors.
    """
    (a_shape, a_strides), (b_shape, b_strides), (out_shape, out_strides) = a, b, out
    if len(a_shape) == 1:
        a_shape, a_strides = (1, *a_shape), (0, *a_strides)
        at = len(out_shape) - (1 if len(b_shape) > 1 else 0)
        out_shape, out_strides = (*out_shape[:at], 1, *out_shape[at:]), (*out_strides[:at], 0, *out_strides[at:])
    if len(b_shape) == 1:
        b_shape, b_strides = (*b_shape, 1), (*b_strides, 0)
        out_shape, out_strides = (*out_shape, 1), (*out_strides, 0)
    num_dims = len(out_shape) - 2

    def along(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
        missing = num_dims - (len(shape) - 2)
        return [0] * missing + [
            stride if extent > 1 else 0 for extent, stride in zip(shape[:-2], strides[:-2], strict=True)
        ]

    of_further = zip(*(strides[:-2] for strides in further), strict=True) if further else ((),) * num_dims
    dims = zip(
        out_shape[:-2],
        along(a_shape, a_strides),
        along(b_shape, b_strides),
        out_strides[:-2],
        of_further,
        strict=True,
    )
    return Matrices(
        m=out_shape[-2],
        n=out_shape[-1],
        k=a_shape[-1],
        a=(a_strides[-2], a_strides[-1]),
        b=(b_strides[-2], b_strides[-1]),
        out=(out_strides[-2], out_strides[-1]),
        dims=tuple(Dim(*dim) for dim in dims),
        further=tuple((strides[-2], strides[-1]) for strides in further),
    )


def simplified(given: Matrices, is_served: Callable[[Matrices], bool]) -> Matrices:
    """The same products in as few dimensions as their strides allow, and as few and large matrices.

    First a dimension along which b (or a) stays the same, and a (or b) and out go on as their rows (columns), becomes
    more rows (columns): a (B, M, K) times one b is a product of B x M rows, unless that is no longer `is_served`. Then
    the rest is ordered: dimensions along which an operand stays the same come last, so that it is still in the L2 when
    it is read again. Neighbours whose strides fit together in all operands become one.
    """
    if 0 in given.batch:  # whichever of them is 0
        return replace(given, dims=(Dim(0, 0, 0, 0, (0,) * len(given.further)),))
    if 0 in (given.m, given.n):
        return replace(given, dims=())
    held = replace(given, dims=tuple(dim for dim in given.dims if dim.extent != 1))
    held = _folded(held, is_served)
    ordered = sorted(held.dims, key=lambda dim: (dim.is_shared, -abs(dim.out), dim.extent))
    merged: list[Dim] = []  # from the fastest on
    for dim in reversed(ordered):
        inner = merged[-1] if merged else None
        if inner is not None and all(
            outer_stride == inner.extent * inner_stride
            for outer_stride, inner_stride in zip(dim.strides, inner.strides, strict=True)
        ):
            merged[-1] = inner._replace(extent=dim.extent * inner.extent)
        else:
            merged.append(dim)
    return replace(held, dims=tuple(reversed(merged)))


def _folded(held: Matrices, is_served: Callable[[Matrices], bool]) -> Matrices:
    """Dimensions of the batch made rows of a or columns of b, the nearest first, as long as one is found."""
    found: Matrices | None = held
    while found is not None:
        held = found
        candidates = (
            changed
            for dim in sorted(held.dims, key=lambda dim: abs(dim.out))
            for changed in (_as_rows(held, dim), _as_columns(held, dim))
        )
        found = next((changed for changed in candidates if changed is not None and is_served(changed)), None)
    return held


def _as_rows(held: Matrices, dim: Dim) -> Matrices | None:
    """The dimension as more rows of a and out, and of what goes along with out; None where they do not lie so. A single
    row lies as anyone likes."""
    row, out_row = (dim.a, dim.out) if held.m == 1 else (held.a[0], held.out[0])
    rows = dim.further if held.m == 1 else tuple(strides[0] for strides in held.further)
    wanted = (dim.a, dim.out, *dim.further)
    if dim.b or not dim.a or wanted != tuple(held.m * stride for stride in (row, out_row, *rows)):
        return None
    rest = _without(held, dim)
    further = tuple((own, strides[1]) for own, strides in zip(rows, held.further, strict=True))
    return replace(
        held, m=held.m * dim.extent, a=(row, held.a[1]), out=(out_row, held.out[1]), dims=rest, further=further
    )


def _as_columns(held: Matrices, dim: Dim) -> Matrices | None:
    """The dimension as more columns of b and out."""
    column, out_column = (dim.b, dim.out) if held.n == 1 else (held.b[1], held.out[1])
    columns = dim.further if held.n == 1 else tuple(strides[1] for strides in held.further)
    wanted = (dim.b, dim.out, *dim.further)
    if dim.a or not dim.b or wanted != tuple(held.n * stride for stride in (column, out_column, *columns)):
        return None
    rest = _without(held, dim)
    further = tuple((strides[0], own) for own, strides in zip(columns, held.further, strict=True))
    return replace(
        held, n=held.n * dim.extent, b=(held.b[0], column), out=(held.out[0], out_column), dims=rest, further=further
    )


def _without(held: Matrices, dim: Dim) -> tuple[Dim, ...]:
    return tuple(other for other in held.dims if other is not dim)
