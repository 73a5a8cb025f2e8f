"""A product as cuBLASLt sees it: column-major matrices, transposed or not, and how well they are aligned.

Knows nothing of the library's calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.errors import LayoutError

MAX_ALIGNMENT_BYTES = 256  # the default of the library's preferences: what it expects of a buffer


@dataclass(frozen=True, kw_only=True)
class Strided:
    """One operand as its owner sees it. Units: strides in elements."""

    rows: int
    columns: int
    row_stride: int
    column_stride: int
    dtype: DType
    align_bytes: int = MAX_ALIGNMENT_BYTES

    @property
    def t(self) -> Strided:
        """The transpose: the same memory."""
        return Strided(
            rows=self.columns,
            columns=self.rows,
            row_stride=self.column_stride,
            column_stride=self.row_stride,
            dtype=self.dtype,
            align_bytes=self.align_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A column-major matrix: `rows` adjacent elements, `columns` of them `pitch` elements apart.

    `is_transposed`: what is multiplied is its transpose.
    """

    rows: int
    columns: int
    pitch: int
    dtype: DType
    align_bytes: int
    is_transposed: bool = False

    def __str__(self) -> str:
        turned = "T" if self.is_transposed else "N"
        return f"{turned} {self.rows}x{self.columns} pitch {self.pitch} {self.dtype} at {self.align_bytes}"

    def resized(self, rows: int, columns: int) -> Matrix:
        """A matrix of another size in the same layout: rows of memory that are as well aligned, or as little."""
        if self.is_transposed:
            rows, columns = columns, rows
        step = max(1, 16 // self.dtype.size)
        pitch = rows if self.pitch % step else -(-rows // step) * step
        return Matrix(
            rows=rows,
            columns=columns,
            pitch=pitch,
            dtype=self.dtype,
            align_bytes=self.align_bytes,
            is_transposed=self.is_transposed,
        )


@dataclass(frozen=True, kw_only=True)
class Product:
    """D (rows, columns) = op(A) (rows, k) x op(B) (k, columns), column-major.

    `is_swapped`: A is the caller's b and B the caller's a: a row-major out is the column-major out^T = b^T x a^T.
    """

    a: Matrix
    b: Matrix
    d: Matrix
    is_swapped: bool

    @property
    def size(self) -> tuple[int, int, int]:
        """(rows, columns, k)."""
        return (self.d.rows, self.d.columns, self.a.rows if self.a.is_transposed else self.a.columns)

    @property
    def key(self) -> str:
        """All that the library's choice depends on, but for the device."""
        return " x ".join(map(str, (self.a, self.b))) + f" = {self.d}"

    def resized(self, rows: int, columns: int, k: int) -> Product:
        """The same layouts at another size."""
        return Product(
            a=self.a.resized(rows, k),
            b=self.b.resized(k, columns),
            d=self.d.resized(rows, columns),
            is_swapped=self.is_swapped,
        )


def product_of(a: Strided, b: Strided, out: Strided) -> Product:
    """out (m, n) = a (m, k) x b (k, n) as the library sees it.

    Raises: LayoutError: a layout that it cannot be told.
    """
    direct = _column_major("out", out)
    if direct.is_transposed or out.column_stride == 1:
        return Product(
            a=_column_major("b", b.t), b=_column_major("a", a.t), d=_column_major("out", out.t), is_swapped=True
        )
    return Product(a=_column_major("a", a), b=_column_major("b", b), d=direct, is_swapped=False)


def _column_major(name: str, view: Strided) -> Matrix:
    for each, is_transposed in ((view, False), (view.t, True)):
        if (each.row_stride == 1 or each.rows == 1) and (each.column_stride >= each.rows or each.columns == 1):
            return Matrix(
                rows=each.rows,
                columns=each.columns,
                pitch=max(each.column_stride, each.rows),
                dtype=each.dtype,
                align_bytes=each.align_bytes,
                is_transposed=is_transposed,
            )
    raise LayoutError(
        asked=f"{name} with strides ({view.row_stride}, {view.column_stride}) in cuBLASLt",
        rule="one dimension of each matrix is contiguous and the other's stride passes it",
        works=f"time a contiguous {name}",
    )


def alignment_bytes(*addresses: int) -> int:
    """The largest power of two up to MAX_ALIGNMENT_BYTES that divides them all."""
    together = MAX_ALIGNMENT_BYTES
    for address in addresses:
        together |= address
    return together & -together
