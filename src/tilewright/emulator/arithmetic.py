"""Arithmetic of PTX with one rounding: sums, products, fused multiply-add, quotients, roots, extremes, approximations.

Works on values as numerics.py defines them. Knows nothing of registers, opcodes or memory. NaN results are the
format's canonical NaN, but for f64: there a NaN operand's sign and payload go on, quiet, and an invalid operation gives
0xFFF8000000000000 (golden vectors f64_sums, f64_fma, nan_f64). `ftz` takes the format's subnormals as zeros, going in
and coming out; `sat` clamps to 0 .. 1, NaN to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tilewright.emulator.exact import Array, directed_sum64, odd_sum, to_odd, two_sum
from tilewright.emulator.numerics import NAN32, NAN64, QUIET64, canonical, decode, encode, flush, flush_result

# How far the hardware's approximation may lie from ours: its own error and our rounding. Source: PTX ISA, the notes of
# rcp and div (1 and 2 ulps), sin and cos (2^-20.5 up to 2 pi) and tanh (2^-11); the others: measured, H200, golden
# vector approximations, 1 ulp and for lg2 2^-22.3, against which they have a factor of 2 and of 1.2.
# Units: ulps of the result's format, but sin, cos: absolute; lg2: of the result, or absolute where that is below 1;
# tanh: relative.
APPROX_ULPS: dict[str, float] = {
    "ex2": 2.0,
    "rcp": 1.0,
    "rsqrt": 2.0,
    "sqrt": 2.0,
    "div": 2.0,
    "lg2": 2.0**-22,
    "sin": 2.0**-20.5 + 2.0**-25,
    "cos": 2.0**-20.5 + 2.0**-25,
    "tanh": 2.0**-11 + 2.0**-24,
}

# The 29 bits of a float64 that float32 has no room for, and what they are half-way between two float32.
_F32_CUT = np.uint64(0x1FFF_FFFF)
_F32_TIE = np.uint64(0x1000_0000)


def add(fmt: str, a: Array, b: Array, mode: str = "rn", *, ftz: bool = False, sat: bool = False) -> Array:
    """a + b."""
    return _finish(fmt, _exact_sum, (a, b), mode, ftz, sat, False)


def sub(fmt: str, a: Array, b: Array, mode: str = "rn", *, ftz: bool = False, sat: bool = False) -> Array:
    """a - b."""
    b = np.asarray(b)
    return _finish(fmt, _exact_sum, (a, np.where(np.isnan(b), b, -b)), mode, ftz, sat, False)


def mul(fmt: str, a: Array, b: Array, mode: str = "rn", *, ftz: bool = False, sat: bool = False) -> Array:
    """a x b."""
    return _finish(fmt, _exact_product, (a, b), mode, ftz, sat, False)


def fma(
    fmt: str,
    a: Array,
    b: Array,
    c: Array,
    mode: str = "rn",
    *,
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
) -> Array:
    """a x b + c, rounded once."""
    return _finish(fmt, _exact_fma, (a, b, c), mode, ftz, sat, relu)


def div(fmt: str, a: Array, b: Array, mode: str = "rn", *, ftz: bool = False, sat: bool = False) -> Array:
    """a / b."""
    return _finish(fmt, _exact_quotient, (a, b), mode, ftz, sat, False)


def sqrt(fmt: str, a: Array, mode: str = "rn", *, ftz: bool = False) -> Array:
    """The square root of a."""
    return _finish(fmt, _exact_root, (a,), mode, ftz, False, False)


def _finish(
    fmt: str, exact: Callable[..., Array], operands: tuple[Array, ...], mode: str, ftz: bool, sat: bool, relu: bool
) -> Array:
    """The operation on float64 copies, rounded to odd, then once to the format."""
    inputs = [flush(np.asarray(o), fmt) if ftz else np.asarray(o) for o in operands]
    with np.errstate(all="ignore"):
        if mode == "rn" and exact in _NATIVE and (fmt == "f64" or (fmt == "f32" and not ftz)):
            result = np.asarray(_NATIVE[exact](*inputs))
        elif fmt == "f64":
            result = np.asarray(exact(*inputs, mode, False))
        else:
            wide = _wide_fma(*inputs) if fmt == "f32" and mode == "rn" and exact is _exact_fma else None
            if wide is None:
                wide = exact(*(i.astype(np.float64) for i in inputs), mode, True)
            wide = flush_result(fmt, wide, mode) if ftz else wide
            result = decode(fmt, encode(fmt, wide, mode, relu=relu))
    if fmt == "f64":
        result = with_nan_operands(result, *(reversed(inputs) if exact is _exact_quotient else inputs))
    else:
        result = canonical(fmt, result)
    if sat:
        result = np.where(result > 0, np.minimum(result, 1), result.dtype.type(0))
    return result


def with_nan_operands(result: Array, *operands: Array) -> Array:
    """The f64 result with every NaN as the H200 writes it: the second operand's goes before the third's, the first's
    comes last; but a quotient's goes on from the first.

    Source: golden vector nan_f64.
    """
    nan = np.isnan(result)
    if not nan.any():
        return result
    bits = np.full(result.shape, NAN64).view(np.uint64)
    for operand in (operands[0], *reversed(operands[1:])):
        bits = np.where(np.isnan(operand), operand.view(np.uint64) | QUIET64, bits)
    return np.where(nan, bits, result.view(np.uint64)).view(np.float64)


def _wide_fma(a: Array, b: Array, c: Array) -> Array | None:
    """a x b + c in float64 where rounding that to f32 is sure to be one rounding: no element is near a tie of f32, and
    none is subnormal. None otherwise."""
    wide = a.astype(np.float64) * b + c
    if ((wide.view(np.uint64) & _F32_CUT) == _F32_TIE).any():
        return None
    size = np.abs(wide)
    return None if ((size < 2.0**-125) & (size > 0)).any() else wide


# Each of these gives the exact result rounded to odd, or to float64 in the mode.


def _exact_sum(a: Array, b: Array, mode: str, odd: bool) -> Array:
    return odd_sum(a, b, mode) if odd else directed_sum64(a, b, mode)


def _exact_product(a: Array, b: Array, mode: str, odd: bool) -> Array:
    if odd or mode == "rn":
        return a * b  # of two 24-bit numbers: exact in 53 bits
    high, low = _two_product(a, b)
    plain = ~np.isfinite(a) | ~np.isfinite(b) | (a == 0) | (b == 0)
    rounded = np.where(plain, a * b, directed_sum64(high, low, mode))
    return _mended(rounded, ~plain & ~_tame(a, b), mode, a, b)


def _exact_fma(a: Array, b: Array, c: Array, mode: str, odd: bool) -> Array:
    if odd:
        return odd_sum(a * b, c, mode)
    high, low = _two_product(a, b)
    sum_low, error_low = two_sum(c, low)
    sum_high, error_high = two_sum(high, sum_low)
    rounded = directed_sum64(sum_high, odd_sum(error_high, error_low), mode)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    no_product = (a == 0) | (b == 0)
    rounded = np.where(no_product, directed_sum64(a * b, c, mode), rounded)
    wild = finite & ~no_product & (~_tame(a, b) | (np.abs(c) > 2.0**900) | (rounded == 0))
    return _mended(np.where(finite, rounded, a * b + c), wild, mode, a, b, c)


def _tame(a: Array, b: Array) -> Array:
    """Whether the halves of the factors and the product's error are far from overflow and from subnormals."""
    low, high = 2.0**-400, 2.0**400
    size_a, size_b = np.abs(a), np.abs(b)
    return np.asarray((size_a > low) & (size_a < high) & (size_b > low) & (size_b < high))


def _mended(rounded: Array, wild: Array, mode: str, *operands: Array) -> Array:
    """a x b or a x b + c by rational arithmetic where `wild`. Finite operands there; neither a nor b is zero."""
    if not wild.any():
        return rounded
    columns = [np.broadcast_to(o, rounded.shape)[wild].tolist() for o in operands]
    result = rounded.copy()
    result[wild] = [_by_fractions(mode, *row) for row in zip(*columns, strict=True)]
    return result


def _by_fractions(mode: str, a: float, b: float, c: float = 0.0) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return -0.0 if mode == "rm" else 0.0  # opposite terms. Source: IEEE 754, 6.3
    try:
        nearest = float(exact)  # one rounding: the quotient of two integers
    except OverflowError:
        nearest = math.inf if exact > 0 else -math.inf
    return _toward(nearest, exact, mode)


def _exact_quotient(a: Array, b: Array, mode: str, odd: bool) -> Array:
    quotient = a / b
    if not odd:
        return _stepped(quotient, mode, lambda q, x, y: Fraction(x) / Fraction(y), a, b)
    high, low = _split(quotient)
    return to_odd(quotient, ((a - high * b) - low * b) * np.sign(b))


def _exact_root(a: Array, mode: str, odd: bool) -> Array:
    root = np.sqrt(a)
    if not odd:
        # The root's side of r is that of a / r: they lie on either side of the root, or both are it.
        return _stepped(root, mode, lambda r, x: Fraction(x) / Fraction(r), a)
    high, low = _split(root)
    return to_odd(root, ((a - high * high) - 2 * high * low) - low * low)


def _stepped(nearest: Array, mode: str, exact: Callable[..., Fraction], *operands: Array) -> Array:
    """The nearest float64 moved to the mode's side of `exact(nearest, *operands)`. Slow."""
    if mode == "rn":
        return nearest
    usual = ~np.isnan(nearest) & np.logical_and.reduce([np.isfinite(o) & (o != 0) for o in operands])
    result = np.broadcast_to(nearest, usual.shape).copy()
    columns = [np.broadcast_to(o, usual.shape)[usual].tolist() for o in (nearest, *operands)]
    result[usual] = [_toward(row[0], exact(*row), mode) for row in zip(*columns, strict=True)]
    return result


def _toward(nearest: float, exact: Fraction, mode: str) -> float:
    """The nearest float64 to `exact`, or its neighbour on the side that the mode asks for."""
    goal = {"rn": nearest, "rz": 0.0, "rm": -math.inf, "rp": math.inf}[mode]
    if (nearest > exact and goal < nearest) or (nearest < exact and goal > nearest):
        nearest = math.nextafter(nearest, goal)
    return abs(nearest) if exact > 0 else -abs(nearest)


def _split(a: Array) -> tuple[Array, Array]:
    """26 high bits and the rest. Source: Veltkamp, in Dekker, Numerische Mathematik 18 (1971)."""
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """(p, e): p the nearest to a x b, p + e exactly a x b, short of overflow and underflow."""
    p = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


# What NumPy computes with one rounding by itself.
_NATIVE: dict[Callable[..., Array], Callable[..., Array]] = {
    _exact_sum: np.add,
    _exact_product: np.multiply,
    _exact_quotient: np.divide,
    _exact_root: np.sqrt,
}


def minimum(fmt: str, a: Array, b: Array, *, ftz: bool = False, nan: bool = False, xorsign_abs: bool = False) -> Array:
    """The smaller; -0 is below +0. One NaN loses to a number, or with `nan` (.NaN) makes the result NaN.

    `xorsign_abs`: compares magnitudes and gives the result the product's sign. Source: PTX ISA, min.
    """
    return _extreme(fmt, a, b, ftz, nan, xorsign_abs, -1)


def maximum(fmt: str, a: Array, b: Array, *, ftz: bool = False, nan: bool = False, xorsign_abs: bool = False) -> Array:
    """The larger; otherwise as minimum."""
    return _extreme(fmt, a, b, ftz, nan, xorsign_abs, 1)


def _extreme(fmt: str, a: Array, b: Array, ftz: bool, nan: bool, xorsign_abs: bool, side: int) -> Array:
    if ftz:
        a, b = flush(np.asarray(a), fmt), flush(np.asarray(b), fmt)
    sign = np.signbit(a) ^ np.signbit(b)
    if xorsign_abs:
        a, b = np.abs(a), np.abs(b)
    with np.errstate(invalid="ignore"):
        takes_a = (a > b) if side > 0 else (a < b)
        tie = (a == b) & (np.signbit(b) if side > 0 else np.signbit(a))
    result = np.where(takes_a | tie | (np.isnan(b) & ~np.isnan(a)), a, b)  # of two NaN b's: golden vector nan_f64
    if nan:
        result = np.where(np.isnan(a) | np.isnan(b), NAN64 if fmt == "f64" else NAN32, result)
    if xorsign_abs:
        result = np.where(np.isnan(result), result, np.where(sign, -result, result))
    return canonical(fmt, result)


# -- approximations: float64 rounded once ------------------------------------------------------------------------------


def _approximation(function: Callable[[Array], Array]) -> Callable[..., Array]:
    def approximate(a: Array, ftz: bool = False, fmt: str = "f32") -> Array:
        values = flush(np.asarray(a)) if ftz else np.asarray(a)
        with np.errstate(all="ignore"):
            return canonical(fmt, decode(fmt, encode(fmt, function(values.astype(np.float64)), "rn", ftz=ftz)))

    return approximate


ex2_approx = _approximation(np.exp2)
lg2_approx = _approximation(np.log2)
rcp_approx = _approximation(lambda a: np.divide(1.0, a))
rsqrt_approx = _approximation(lambda a: np.divide(1.0, np.sqrt(a)))
sqrt_approx = _approximation(np.sqrt)
sin_approx = _approximation(np.sin)
cos_approx = _approximation(np.cos)
tanh_approx = _approximation(np.tanh)


def div_approx(a: Array, b: Array, ftz: bool = False) -> Array:
    """div.approx.f32 and div.full.f32: divisors of 2^126 and more give 0. Source: PTX ISA, div.

    div.full has no such limit; it is served by `div`.
    """
    a, b = (flush(np.asarray(a)), flush(np.asarray(b))) if ftz else (np.asarray(a), np.asarray(b))
    with np.errstate(all="ignore"):
        quotient = a.astype(np.float64) / b.astype(np.float64)
        huge = np.isfinite(a) & (np.abs(b) > 2.0**126) & np.isfinite(b)
        quotient = np.where(huge, np.copysign(0.0, quotient), quotient)
        return canonical("f32", decode("f32", encode("f32", quotient, ftz=ftz)))
