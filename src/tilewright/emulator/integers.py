"""What the code of a block calls for arithmetic that NumPy has no operator for. Pure functions on arrays of lanes.

Integers of any width; and short ways for the floats that kernels use most, exact like those of `arithmetic`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import arithmetic, numerics

Array = NDArray[Any]

# Generic addresses: each space but global has a window far above any address of the host or of named buffers.
WINDOWS: dict[str, int] = {"shared": 1 << 56, "param": 1 << 57, "local": 1 << 58}
WINDOW_BYTES = 1 << 32


def window(space: str) -> np.uint64:
    """Where the space starts among generic addresses."""
    return np.uint64(WINDOWS[space])


def is_in_space(address: Array, space: str) -> Array:
    """Whether generic addresses lie in the space."""
    if space == "global":
        return np.asarray(address < np.uint64(1 << 56))
    start = WINDOWS[space]
    return np.asarray((address >= np.uint64(start)) & (address < np.uint64(start + WINDOW_BYTES)))


# -- integers -------------------------------------------------------------------------------------------------------


def _saturated(wide: Array) -> Array:
    return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)


def add_saturating(a: Array, b: Array) -> Array:
    """a + b clamped to 32 bits."""
    return _saturated(a.astype(np.int64) + b)


def subtract_saturating(a: Array, b: Array) -> Array:
    """a - b clamped to 32 bits."""
    return _saturated(a.astype(np.int64) - b)


def multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the product."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return np.asarray((np.multiply(a, b, dtype=wide) >> bits).astype(a.dtype))
    a, b = np.broadcast_arrays(a, b)
    products = [int(x) * int(y) >> 64 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return np.array([p % 2**64 for p in products], np.uint64).view(a.dtype)


def divide(a: Array, b: Array) -> Array:
    """a / b towards zero; all ones where b is 0 (the ISA leaves that open)."""
    if a.dtype.kind == "u":
        return np.where(b == 0, a.dtype.type(np.iinfo(a.dtype).max), a // b)
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    quotient = a // safe
    inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
    return np.asarray(np.where(zero, a.dtype.type(-1), quotient + inexact.astype(a.dtype)))


def remainder(a: Array, b: Array) -> Array:
    """a - divide(a, b) x b."""
    return np.where(b == 0, a, a - divide(a, b) * b)


def absolute_difference_sum(a: Array, b: Array, c: Array) -> Array:
    """c + |a - b|."""
    return np.where(a > b, a - b, b - a) + c


def dot4(a: Array, b: Array, c: Array) -> Array:
    """c plus the dot product of four bytes, each side signed or unsigned as its type is."""
    return _dot(_pieces(a, 1), _pieces(b, 1), c)


def dot2_low(a: Array, b: Array, c: Array) -> Array:
    """c plus the dot product of the two 16-bit halves of a and the lower two bytes of b. Source: PTX ISA, dp2a."""
    return _dot(_pieces(a, 2), _pieces(b, 1)[:, :2], c)


def dot2_high(a: Array, b: Array, c: Array) -> Array:
    """The same with the upper two bytes of b."""
    return _dot(_pieces(a, 2), _pieces(b, 1)[:, 2:], c)


def _pieces(values: Array, size: int) -> Array:
    """Each 32-bit value as its numbers of `size` bytes, the lowest first, signed or not as its type is."""
    kind = values.dtype.kind
    return np.ascontiguousarray(values).reshape(-1, 1).view(f"{kind}{size}").astype(np.int64)


def _dot(a: Array, b: Array, c: Array) -> Array:
    return np.asarray((c + (a * b).sum(axis=1)).astype(np.int32))


def shift_left(a: Array, amount: Array) -> Array:
    """a << amount, 0 past the width."""
    bits = a.dtype.itemsize * 8
    shifted = a << (amount & np.uint32(bits - 1)).astype(a.dtype)
    return np.asarray(np.where(amount >= bits, a.dtype.type(0), shifted))


def shift_right(a: Array, amount: Array) -> Array:
    """a >> amount; past the width 0, or the sign."""
    bits = a.dtype.itemsize * 8
    return np.asarray(
        np.where(
            amount >= bits,
            (a >> a.dtype.type(bits - 1)) if a.dtype.kind == "i" else a.dtype.type(0),
            a >> (amount & np.uint32(bits - 1)).astype(a.dtype),
        )
    )


def funnel_shift(low: Array, high: Array, amount: Array, left: bool, wraps: bool) -> Array:
    """32 bits of high:low shifted. Source: PTX ISA, shf."""
    both = (high.astype(np.uint64) << np.uint64(32)) | low
    count = (amount & np.uint32(31) if wraps else np.minimum(amount, np.uint32(32))).astype(np.uint64)
    shifted = (both << count) >> np.uint64(32) if left else both >> count
    return shifted.astype(np.uint32)


def _field(position: Array, length: Array, bits: int) -> tuple[Array, Array]:
    return (position & np.uint32(0xFF)).astype(np.uint32), (length & np.uint32(0xFF)).astype(np.uint32)


def extract_field(a: Array, position: Array, length: Array) -> Array:
    """`length` bits of a from `position`, sign-extended for signed types. Source: PTX ISA, bfe."""
    bits = a.dtype.itemsize * 8
    position, length = _field(position, length, bits)
    unsigned = a.view(f"u{a.dtype.itemsize}")
    taken = np.minimum(length, np.maximum(bits - position.astype(np.int64), 0).astype(np.uint32))
    mask = shift_left(np.ones_like(unsigned), taken) - unsigned.dtype.type(1)
    value: Array = np.asarray(shift_right(unsigned, position) & mask)
    if a.dtype.kind == "u":
        return value
    last = np.minimum(position.astype(np.int64) + length - 1, bits - 1).astype(np.uint32)
    sign = (shift_right(unsigned, last) & unsigned.dtype.type(1)).astype(bool) & (length > 0)
    return np.asarray(np.where(sign, value | ~mask, value).astype(unsigned.dtype).view(a.dtype))


def insert_field(a: Array, b: Array, position: Array, length: Array) -> Array:
    """b with `length` bits from `position` replaced by the low bits of a. Source: PTX ISA, bfi."""
    bits = a.dtype.itemsize * 8
    position, length = _field(position, length, bits)
    one = a.dtype.type(1)
    mask = shift_left(shift_left(np.full(length.shape, one, a.dtype), length) - one, position)
    return (shift_left(a, position) & mask) | (b & ~mask)


def bit_mask(first: Array, length: Array, wraps: bool) -> Array:
    """`length` ones from bit `first`. Source: PTX ISA, bmsk."""
    if wraps:
        first, length = first & np.uint32(31), length & np.uint32(31)
    ones = shift_left(np.ones(np.broadcast_shapes(first.shape, length.shape), np.uint32), length) - np.uint32(1)
    return shift_left(ones, first)


def extend(a: Array, length: Array, wraps: bool) -> Array:
    """The low `length` bits of a, sign- or zero-extended as its type is. Source: PTX ISA, szext."""
    length = length & np.uint32(31) if wraps else np.minimum(length, np.uint32(32))
    return extract_field(a, np.zeros_like(length), length)


def count_leading_zeros(a: Array) -> Array:
    """Zero bits above the highest one."""
    bits = a.dtype.itemsize * 8
    return np.asarray(bits - 1 - _leading(a).astype(np.int64)).astype(np.uint32)


def _leading(a: Array) -> Array:
    """The index of the highest one; -1 for zero."""
    found = np.full(a.shape, -1, np.int64)
    rest = a.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        high = rest >> np.uint64(step)
        found = np.where(high != 0, found + step, found)
        rest = np.where(high != 0, high, rest)
    return np.where(a != 0, found + 1, -1)


def find_leading_bit(a: Array, as_shift: bool) -> Array:
    """The index of the highest bit that is not a copy of the sign; all ones when there is none.

    Source: PTX ISA, bfind.
    """
    unsigned = a.view(f"u{a.dtype.itemsize}")
    if a.dtype.kind == "i":
        unsigned = np.where(a < 0, ~unsigned, unsigned)
    index = _leading(unsigned)
    if as_shift:
        index = np.where(index < 0, index, a.dtype.itemsize * 8 - 1 - index)
    return index.astype(np.int32).view(np.uint32)


def reverse_bits(a: Array) -> Array:
    """The bits in the other order."""
    size = a.dtype.itemsize
    raw = np.ascontiguousarray(a).view(np.uint8).reshape(-1, size)
    flipped = np.packbits(np.unpackbits(raw, axis=1, bitorder="little")[:, ::-1], axis=1, bitorder="little")
    return np.ascontiguousarray(flipped).view(a.dtype).reshape(a.shape)


def permute_bytes(a: Array, b: Array, selector: Array, mode: str) -> Array:
    """Four bytes picked from b:a by four nibbles, whose top bit copies the sign. Source: PTX ISA, prmt."""
    shape = np.broadcast_shapes(a.shape, b.shape, selector.shape)
    pool = np.stack([np.broadcast_to(v, shape) for v in (a, b)], axis=-1).view(np.uint8)  # (n, 8)
    selector = np.broadcast_to(selector, shape)
    if mode:
        picks = np.array(_PERMUTE_MODES[mode])[selector & np.uint32(3)]
        signs = np.zeros_like(picks, bool)
    else:
        nibbles = (selector[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)) & np.uint32(15)
        picks, signs = (nibbles & 7).astype(np.intp), (nibbles & 8) != 0
    taken = np.take_along_axis(pool, picks.astype(np.intp), axis=1)
    taken = np.where(signs, np.where(taken & 0x80, 0xFF, 0), taken).astype(np.uint8)
    return np.ascontiguousarray(taken).view(np.uint32)[:, 0]


_PERMUTE_MODES: dict[str, list[list[int]]] = {
    "f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
    "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
    "rc8": [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]],
    "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
    "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
    "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
}


# -- floats ---------------------------------------------------------------------------------------------------------


def one_nan(values: Array) -> Array:
    """The values with every NaN as PTX writes it. The dot product with itself is NaN only if one of them is."""
    square = values.dot(values)
    if square != square:
        return numerics.canonical("f32" if values.dtype.itemsize == 4 else "f64", values)
    return values


_NAN_ABOVE = {"f16": 0x7C00, "bf16": 0x7F80}  # bits of infinity: a larger magnitude is a NaN


def one_half_nan(bits: Array, fmt: str) -> Array:
    """16-bit floats, or pairs of them in 32 bits, with every NaN as PTX writes it."""
    halves = np.ascontiguousarray(bits).view(np.uint16)
    nan = (halves & np.uint16(0x7FFF)) > _NAN_ABOVE[fmt]
    return np.where(nan, np.uint16(0x7FFF), halves).view(bits.dtype)


_TIE = np.uint64(0x1000_0000)  # float64 bits below float32's, when the value lies half way between two float32
_BELOW = np.uint64(0x1FFF_FFFF)
_SMALLEST_NORMAL = 2.0**-126


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a x b + c in float32 with one rounding.

    The product is exact in float64. Rounding the sum twice could differ where it was inexact in float64 and lies on a
    tie of float32, or is subnormal there: then the exact way is taken.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    wide = product + addend
    ties = (wide.view(np.uint64) & _BELOW) == _TIE
    if b"\x01" in ties.tobytes():
        part = wide - product
        error = (product - (wide - part)) + (addend - part)  # Knuth's two-sum
        if (error[ties] != 0).any():
            return np.asarray(arithmetic.fma("f32", a, b, c))
    magnitude = np.abs(wide)
    if np.minimum.reduce(magnitude) < _SMALLEST_NORMAL and ((magnitude < _SMALLEST_NORMAL) & (magnitude > 0)).any():
        return np.asarray(arithmetic.fma("f32", a, b, c))
    return one_nan(wide.astype(np.float32))


def test_property(a: Array, test: str) -> Array:
    """testp."""
    tiny = np.finfo(a.dtype).tiny
    tests: dict[str, Callable[[], Array]] = {
        "finite": lambda: np.isfinite(a),
        "infinite": lambda: np.isinf(a),
        "number": lambda: ~np.isnan(a),
        "notanumber": lambda: np.isnan(a),
        "normal": lambda: np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": lambda: (np.abs(a) < tiny) & (a != 0),
    }
    return tests[test]()


def _rounded(values: Array, dtype: Any) -> Array:
    """float32 -> 16-bit float as bits, nearest even, NaN 0x7FFF."""
    bits = values.astype(dtype).view(np.uint16)
    square = values.dot(values)
    return np.where(np.isnan(values), np.uint16(0x7FFF), bits) if square != square else bits


def pair_bf16(high: Array, low: Array) -> Array:
    """cvt.rn.bf16x2.f32."""
    return (_rounded(high, ml_dtypes.bfloat16).astype(np.uint32) << 16) | _rounded(low, ml_dtypes.bfloat16)


def pair_f16(high: Array, low: Array) -> Array:
    """cvt.rn.f16x2.f32."""
    return (_rounded(high, np.float16).astype(np.uint32) << 16) | _rounded(low, np.float16)


PAIRS: dict[str, Callable[[Array, Array], Array]] = {"f16": pair_f16, "bf16": pair_bf16}
