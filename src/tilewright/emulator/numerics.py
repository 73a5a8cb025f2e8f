"""Number formats of PTX and conversions between them: bits to values, values to bits, each with one rounding.

Knows the formats that instructions name, their rounding modes, and what becomes of NaN, infinity and subnormals. Knows
nothing of registers, opcodes or memory; arithmetic is in arithmetic.py.

Two forms travel. *Bits* are unsigned integers of the format's width. *Values* are what NumPy computes with: float32
for every floating format but f64, whose values are float64; integers for integers. Every float32 holds every f16,
bf16, tf32 and fp8 value exactly.

How one rounding is kept. A result that float64 cannot hold is first rounded to odd (the last bit is set when anything
was lost): rounding that to any format of up to 51 bits, in any mode, equals rounding the exact result. Source: S. Boldo
and G. Melquiond, Emulation of a FMA and correctly rounded sums, IEEE Transactions on Computers 57 (2008).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.emulator.exact import Array, directed_sum64, odd_sum, stops_at_max


@dataclass(frozen=True)
class Format:
    """One floating format.

    Units: bits; `precision` counts the hidden bit; `min_exponent` is that of the smallest normal number. `nan` is the
    pattern that conversions and arithmetic write; f64: the one of an invalid operation, for there a NaN operand keeps
    its payload. Source: PTX ISA, alternate floating-point data formats, and the result columns of cvt; f64 and tf32:
    golden vectors f64_sums, cvt_narrow.
    """

    name: str
    bits: int
    precision: int
    min_exponent: int
    max_finite: float
    nan: int

    @property
    def storage(self) -> np.dtype[Any]:
        return np.dtype(f"u{self.bits // 8}")


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("f64", 64, 53, -1022, float(np.finfo(np.float64).max), 0xFFF8_0000_0000_0000),
        Format("f32", 32, 24, -126, float(np.finfo(np.float32).max), 0x7FFF_FFFF),
        Format("tf32", 32, 11, -126, (2 - 2.0**-10) * 2.0**127, 0x7FFF_E000),
        Format("bf16", 16, 8, -126, (2 - 2.0**-7) * 2.0**127, 0x7FFF),
        Format("f16", 16, 11, -14, 65504.0, 0x7FFF),
        Format("e5m2", 8, 3, -14, 57344.0, 0x7F),
        Format("e4m3", 8, 4, -6, 448.0, 0x7F),
    )
}
INTEGERS: dict[str, np.dtype[Any]] = {
    f"{sign}{bits}": np.dtype(f"{'i' if sign == 's' else 'u'}{bits // 8}") for sign in "su" for bits in (8, 16, 32, 64)
}

TF32_DROPPED_BITS = 13  # the tensor core ignores them. Source: PTX ISA, tf32
TF32_KEPT = np.uint32(0xFFFF_FFFF << TF32_DROPPED_BITS & 0xFFFF_FFFF)
QUIET64 = np.uint64(1 << 51)  # set in every f64 NaN that an instruction writes

NAN32 = np.array(FORMATS["f32"].nan, np.uint32).view(np.float32)[()]
NAN64 = np.array(FORMATS["f64"].nan, np.uint64).view(np.float64)[()]

ROUND_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


def is_float(fmt: str) -> bool:
    return fmt in FORMATS


def value_dtype(fmt: str) -> np.dtype[Any]:
    """The NumPy type of this format's values."""
    if fmt in INTEGERS:
        return INTEGERS[fmt]
    return np.dtype(np.float64 if fmt == "f64" else np.float32)


# -- bits and values ---------------------------------------------------------------------------------------------------


def decode(fmt: str, bits: Array) -> Array:
    """The values of these bits, exact; NaN keeps its payload where the value's type has room for it.

    tf32: what the tensor core sees of a 32-bit register, without its low 13 bits.
    """
    if fmt in INTEGERS:
        return np.asarray(bits).view(INTEGERS[fmt])
    if fmt == "f32":
        return np.asarray(bits).view(np.float32)
    if fmt == "f64":
        return np.asarray(bits).view(np.float64)
    if fmt == "bf16":
        return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if fmt == "f16":
        return np.asarray(bits).view(np.float16).astype(np.float32)
    if fmt == "tf32":
        return (np.asarray(bits) & TF32_KEPT).view(np.float32)
    narrow = ml_dtypes.float8_e4m3fn if fmt == "e4m3" else ml_dtypes.float8_e5m2
    return np.asarray(np.asarray(bits).view(narrow).astype(np.float32))


def encode(
    fmt: str, values: Array, mode: str = "rn", *, satfinite: bool = False, relu: bool = False, ftz: bool = False
) -> Array:
    """The bits of these values after one rounding. e4m3 has no infinity: what is too large becomes NaN or, with
    satfinite, 448. NaN becomes the format's own; but f64 keeps it, and tf32 by rna keeps what is left of it without
    the low 13 bits (golden vector cvt_narrow).

    `mode`: rn (nearest even), rz (to zero), rm (down), rp (up), rna (nearest, ties away from zero). `ftz` takes
    float32 subnormals as zeros of their sign, and makes an f32 result so. `relu` turns what is negative into +0.
    """
    form = FORMATS[fmt]
    values = np.asarray(values)
    if ftz:
        values = flush_result("f32", values, mode) if fmt == "f32" else flush(values)
    if mode == "rn" and not satfinite:
        bits = _encode_nearest(form, values)
    else:
        bits = _store(form, _rounded(form, values, mode, satfinite))
    nan = np.isnan(values)
    if relu:
        sign = form.storage.type(1 << (form.bits - 1))
        bits = np.where((bits & sign) != 0, form.storage.type(0), bits)
    if nan.any():
        bits = np.where(nan, _nan_bits(form, values, mode), bits)
    return bits


def _nan_bits(form: Format, values: Array, mode: str) -> Array:
    if form.name == "f64":
        with np.errstate(invalid="ignore"):  # a signalling float32 becomes quiet in the cast
            return values.astype(np.float64).view(np.uint64) | QUIET64
    if form.name == "tf32" and mode == "rna" and values.dtype == np.float32:
        return values.view(np.uint32) & TF32_KEPT
    return np.asarray(form.nan, form.storage)


def _encode_nearest(form: Format, values: Array) -> Array:
    """The short ways for what epilogues do most; all others take the general one. NaN is the caller's."""
    with np.errstate(over="ignore", invalid="ignore"):
        if form.name == "f16":
            return values.astype(np.float16).view(np.uint16)
        if form.name == "f32":
            return values.astype(np.float32).view(np.uint32)
        if form.name == "f64":
            return values.astype(np.float64).view(np.uint64)
    if form.name == "bf16" and values.dtype == np.float32:
        bits = values.view(np.uint32)
        half_less_one = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # ties go to the even neighbour
        return ((bits + half_less_one) >> np.uint32(16)).astype(np.uint16)
    return _store(form, _rounded(form, values, "rn", False))


def _rounded(form: Format, values: Array, mode: str, satfinite: bool) -> Array:
    """float64 values that `form` holds exactly (or infinity), each the rounding of the exact input."""
    exact = np.asarray(values, np.float64)
    if form.name == "f64":
        return exact
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(exact)  # |exact| = f x 2^exponent with 0.5 <= f < 1
        unit = np.maximum(exponent - form.precision, form.min_exponent - form.precision + 1)
        result = np.ldexp(ROUND_INTEGRAL[mode](np.ldexp(exact, -unit)), unit)
        result = np.where(np.isfinite(exact), result, exact)
        too_large = np.abs(result) > form.max_finite
        to_max = too_large & (satfinite | ~np.isinf(exact) & stops_at_max(mode, exact))
    limit = np.copysign(form.max_finite, exact)
    result = np.where(too_large, np.copysign(np.inf, exact), result)
    return np.asarray(np.where(to_max, limit, result))


def _store(form: Format, exact: Array) -> Array:
    """Bits of float64 values that the format holds exactly."""
    with np.errstate(invalid="ignore", over="ignore"):
        if form.name in ("f32", "tf32"):
            return exact.astype(np.float32).view(np.uint32)
        if form.name == "bf16":
            return (exact.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        if form.name == "f16":
            return exact.astype(np.float16).view(np.uint16)
        if form.name == "f64":
            return exact.view(np.uint64)
        narrow = ml_dtypes.float8_e4m3fn if form.name == "e4m3" else ml_dtypes.float8_e5m2
        return exact.astype(np.float32).astype(narrow).view(np.uint8)


def flush(values: Array, fmt: str = "f32") -> Array:
    """The format's subnormals as zeros of their sign (.ftz). float64 values, and so f64, stay as they are."""
    if values.dtype != np.float32:
        return values
    if fmt == "f16":
        tiny = np.abs(values) < np.float32(2.0 ** FORMATS["f16"].min_exponent)
        return np.where(tiny, np.copysign(np.float32(0), values), values)
    bits = values.view(np.uint32)
    return np.where(bits & np.uint32(0x7F80_0000), bits, bits & np.uint32(0x8000_0000)).view(np.float32)


def flush_result(fmt: str, exact: Array, mode: str) -> Array:
    """Exact results, float64, with those as zeros of their sign that .ftz makes so: what is still below the smallest
    normal number when rounded to the format's precision with no end to its exponents.

    Source: golden vectors edge_f32_ftz (0x00800000 x 0x3F7FFFFF, in every mode) and edge_f16_ftz.
    """
    form = FORMATS[fmt]
    smallest = 2.0**form.min_exponent
    tiny = np.abs(exact) < smallest
    if not tiny.any():
        return exact
    places = form.precision - form.min_exponent  # the last place of numbers just below the smallest normal
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.ldexp(ROUND_INTEGRAL[mode](np.ldexp(exact, places)), -places)
    return np.where(tiny & (np.abs(rounded) < smallest), np.copysign(exact.dtype.type(0), exact), exact)


# -- packed registers --------------------------------------------------------------------------------------------------


def unpack_bits(words: Array, bits_each: int) -> Array:
    """Words (...) as unsigned elements (..., n) of `bits_each` bits, the lowest first."""
    words = np.ascontiguousarray(words)
    size = bits_each // 8
    return words[..., None].view(f"u{size}") if words.dtype.itemsize != size else words[..., None]


def pack_bits(bits: Array) -> Array:
    """Unsigned elements (..., n), the lowest first, as words (...) of 8, 16, 32 or 64 bits."""
    bits = np.ascontiguousarray(bits)
    word = bits.dtype.itemsize * bits.shape[-1]
    return np.asarray(bits.view(f"u{word}")[..., 0])


def unpack(fmt: str, words: Array) -> Array:
    """The values (..., n) that registers (...) hold, the low end first."""
    width = INTEGERS[fmt].itemsize * 8 if fmt in INTEGERS else FORMATS[fmt].bits
    return decode(fmt, unpack_bits(words, width))


def pack(fmt: str, values: Array, mode: str = "rn") -> Array:
    """Registers (...) of values (..., n), the low end first, each rounded once."""
    if fmt in INTEGERS:
        kind = INTEGERS[fmt]
        return pack_bits(np.ascontiguousarray(values, kind).view(f"u{kind.itemsize}"))
    return pack_bits(encode(fmt, values, mode))


def cvt_packed(
    fmt: str, high: Array, low: Array, mode: str = "rn", *, satfinite: bool = False, relu: bool = False
) -> Array:
    """cvt to f16x2, bf16x2, e4m3x2 or e5m2x2: the instruction's first source is the high half.

    Source: PTX ISA, cvt, packed destination types.
    """
    both = np.stack([np.asarray(low), np.asarray(high)], axis=-1)
    return pack_bits(encode(fmt, both, mode, satfinite=satfinite, relu=relu))


# -- conversions -------------------------------------------------------------------------------------------------------


def cvt(
    dst: str,
    src: str,
    values: Array,
    mode: str = "",
    *,
    sat: bool = False,
    satfinite: bool = False,
    relu: bool = False,
    ftz: bool = False,
) -> Array:
    """Values of `src` as values of `dst`.

    `mode`: rn rz rm rp rna for a rounding to the destination's precision; rni rzi rmi rpi for one to integers.
    Integers to integers wrap, or clamp with `sat`. Floats to integers always clamp; see `to_integer` for NaN.
    Source: PTX ISA, cvt.
    """
    values = np.asarray(values)
    if src in INTEGERS:
        if dst in INTEGERS:
            return _integer_to_integer(dst, values, sat)
        return decode(dst, _encode_integer(dst, values, mode or "rn"))
    if ftz:
        values = flush(values)
    if dst in INTEGERS:
        return to_integer(dst, src, values, (mode or "rzi")[:2])
    if mode.endswith("i"):
        values = canonical(src, ROUND_INTEGRAL[mode[:2]](values))
        mode = "rn"
    if sat:  # NaN becomes +0
        values = np.where(values > 0, np.minimum(values, 1), values.dtype.type(0))
    if dst == src:
        return values
    if dst == "f32" and src == "bf16":
        return values  # a shift: NaN keeps its payload
    bits = encode(dst, values, mode or "rn", satfinite=satfinite, relu=relu, ftz=ftz)
    if "f64" in (dst, src):
        bits = _moved_nan(dst, values, bits)
    return decode(dst, bits)


def cvt_bits(
    dst: str,
    src: str,
    values: Array,
    mode: str = "",
    *,
    sat: bool = False,
    satfinite: bool = False,
    relu: bool = False,
    ftz: bool = False,
) -> Array:
    """As cvt, to a floating format, but its bits: what is left of an f64 NaN in f16 or bf16 is no canonical one."""
    result = cvt(dst, src, values, mode, sat=sat, satfinite=satfinite, relu=relu, ftz=ftz)
    bits = encode(dst, result)
    return _moved_nan(dst, np.asarray(values), bits) if src == "f64" and not sat else bits


def _moved_nan(dst: str, values: Array, bits: Array) -> Array:
    """`bits`, but NaN with the sign and the top of the payload of `values`, quiet, where one side is f64.

    Source: golden vectors cvt_f64, nan_cvt_f64.
    """
    nan = np.isnan(values)
    if not nan.any():
        return bits
    form, wide = FORMATS[dst], np.dtype(np.uint64)
    if values.dtype == np.float64:
        source, exponent = values.view(np.uint64), FORMATS["f64"]
    else:
        source, exponent = values.view(np.uint32).astype(wide), FORMATS["f32"]
    mantissa, given = form.precision - 1, exponent.precision - 1
    payload = source & wide.type((1 << given) - 1)
    payload = payload >> wide.type(max(given - mantissa, 0)) << wide.type(max(mantissa - given, 0))
    sign = source >> wide.type(exponent.bits - 1) << wide.type(form.bits - 1)
    top = ((1 << (form.bits - 1 - mantissa)) - 1) << mantissa | 1 << (mantissa - 1)  # every exponent bit, and quiet
    return np.where(nan, (sign | payload | wide.type(top)).astype(form.storage), bits)


def _integer_to_integer(dst: str, values: Array, sat: bool) -> Array:
    kind = INTEGERS[dst]
    if sat:
        limits = np.iinfo(kind)
        own = np.iinfo(values.dtype)
        low, high = max(int(limits.min), int(own.min)), min(int(limits.max), int(own.max))
        values = np.clip(values, values.dtype.type(low), values.dtype.type(high))
    return values.astype(kind)


def _encode_integer(fmt: str, values: Array, mode: str) -> Array:
    """Bits of integers of up to 64 bits: two halves that float64 holds, their sum rounded to odd."""
    low = (values & values.dtype.type(0xFFFF_FFFF)) if values.dtype.itemsize == 8 else values
    high = values >> values.dtype.type(32) if values.dtype.itemsize == 8 else np.zeros_like(values)
    top = high.astype(np.float64) * 2.0**32
    if fmt == "f64" and mode == "rn":
        return (top + low.astype(np.float64)).view(np.uint64)  # one rounding: both terms are exact
    if fmt == "f64":
        return directed_sum64(top, low.astype(np.float64), mode).view(np.uint64)
    return encode(fmt, odd_sum(top, low.astype(np.float64)), mode)


def to_integer(dst: str, src: str, values: Array, mode: str) -> Array:
    """Floats rounded to integers of `dst` and clamped to its range.

    NaN becomes 0, but for f64 sources and 64-bit destinations the pattern with only the top bit set. Source: PTX ISA,
    cvt, on NaN.
    """
    kind = INTEGERS[dst]
    limits = np.iinfo(kind)
    exact = ROUND_INTEGRAL[mode](np.asarray(values, np.float64))
    nan = np.isnan(exact)
    with np.errstate(invalid="ignore"):
        inside = (exact >= float(limits.min)) & (exact < float(2 ** (kind.itemsize * 8 - (kind.kind == "i"))))
        result = np.where(inside, exact, 0.0).astype(kind)
    result = np.where(inside, result, np.where(exact > 0, limits.max, limits.min).astype(kind))
    odd = np.array(1 << (kind.itemsize * 8 - 1), f"u{kind.itemsize}").view(kind)[()]
    zero = src != "f64" and kind.itemsize < 8
    return np.where(nan, kind.type(0) if zero else odd, result)


def canonical(fmt: str, values: Array) -> Array:
    """The values with every NaN as the format's own; f64: as it is, but quiet."""
    nan = np.isnan(values)
    if not nan.any():
        return values
    if fmt == "f64":
        return np.where(nan, values.view(np.uint64) | QUIET64, values.view(np.uint64)).view(np.float64)
    return np.where(nan, decode(fmt, np.asarray(FORMATS[fmt].nan, FORMATS[fmt].storage)), values)
