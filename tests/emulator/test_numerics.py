"""Number formats and conversions against exact rational arithmetic: every value of a format, searched, not computed."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tilewright.emulator import numerics

# (exponent bits, mantissa bits, bias) by the formats' definitions; e4m3 has no infinity and one NaN a sign.
LAYOUTS = {"f16": (5, 10, 15), "bf16": (8, 7, 127), "e5m2": (5, 2, 15), "e4m3": (4, 3, 7), "f32": (8, 23, 127)}
MODES = ("rn", "rz", "rm", "rp", "rna")
STEPS: dict[str, Callable[[Fraction], int]] = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}


def by_definition(fmt: str, bits: int) -> Fraction | float:
    exponent_bits, mantissa_bits, bias = LAYOUTS[fmt]
    sign = -1 if bits >> (exponent_bits + mantissa_bits) else 1
    exponent = bits >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = bits & (1 << mantissa_bits) - 1
    top = (1 << exponent_bits) - 1
    if fmt == "e4m3" and exponent == top and mantissa == 7:
        return math.nan
    if fmt != "e4m3" and exponent == top:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * Fraction(mantissa, 1 << mantissa_bits) * Fraction(2) ** (1 - bias)
    return sign * (1 + Fraction(mantissa, 1 << mantissa_bits)) * Fraction(2) ** (exponent - bias)


@functools.cache
def magnitudes(fmt: str) -> list[Fraction]:
    """All finite values of the format that are not negative, in order; the index is the bit pattern."""
    found = []
    for bits in range(1 << (sum(LAYOUTS[fmt][:2]))):
        value = by_definition(fmt, bits)
        if isinstance(value, float):
            break
        found.append(value)
    return found


def rounded_by_search(fmt: str, value: float, mode: str) -> int:
    """The pattern of a finite value's rounding; one past the largest finite value's for overflow."""
    table = magnitudes(fmt)
    exact = abs(Fraction(value))
    negative = math.copysign(1, value) < 0
    above = bisect.bisect_left(table, exact)
    if above < len(table) and table[above] == exact:
        chosen = above
    else:
        below = above - 1
        # Past the end stands the value that one more step of the exponent would give.
        upper = table[above] if above < len(table) else 2 * table[-1] - table[-2]
        up = {"rz": False, "rm": negative, "rp": not negative}.get(mode)
        if up is None:
            middle = (table[below] + upper) / 2
            up = exact > middle or (exact == middle and (mode == "rna" or above % 2 == 0))
        chosen = above if up else below
        if exact > upper and up:
            chosen = len(table)
    return chosen | negative << sum(LAYOUTS[fmt][:2])


@functools.cache
def samples() -> np.ndarray:
    """Halfway cases of each narrow format, limits, subnormals, and random bit patterns of float32."""
    generator = np.random.default_rng(1)
    values = list(generator.integers(0, 2**32, 300, np.uint32).view(np.float32).tolist())
    for fmt in ("f16", "bf16", "e4m3", "e5m2"):
        table = magnitudes(fmt)
        picks = [0, 1, 2, 3, len(table) // 2, len(table) // 2 + 1, len(table) - 2, len(table) - 1]
        for pick in picks:
            for step in (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)):
                upper = table[pick + 1] if pick + 1 < len(table) else 2 * table[-1] - table[-2]
                value = float(table[pick] + (upper - table[pick]) * step)
                values += [value, -value]
    found = np.array(values, np.float64).astype(np.float32)
    return found[np.isfinite(found)]


@pytest.mark.parametrize("fmt", ["f16", "bf16", "e5m2", "e4m3"])
def test_every_pattern_decodes_by_the_definition(fmt: str) -> None:
    width = 1 + sum(LAYOUTS[fmt][:2])
    bits = np.arange(1 << width).astype(f"u{width // 8}")
    for pattern, value in zip(bits.tolist(), numerics.decode(fmt, bits).tolist(), strict=True):
        want = float(by_definition(fmt, pattern))
        assert value == want or (math.isnan(value) and math.isnan(want))


@pytest.mark.parametrize("fmt", ["f16", "bf16", "e5m2"])
@pytest.mark.parametrize("mode", MODES)
def test_rounding_is_the_nearest_value_of_the_whole_format(fmt: str, mode: str) -> None:
    values = samples()
    got = numerics.encode(fmt, values, mode).tolist()
    largest = len(magnitudes(fmt))
    for value, bits in zip(values.tolist(), got, strict=True):
        want = rounded_by_search(fmt, value, mode)
        if want % (1 << sum(LAYOUTS[fmt][:2])) == largest and mode == "rz":
            want -= 1
        assert bits == want, (value, hex(bits), hex(want))


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "f16", "bf16"])
def test_satfinite_stops_at_the_largest_value_even_from_infinity(fmt: str) -> None:
    values = np.concatenate([samples(), np.array([np.inf, -np.inf], np.float32)])
    largest = len(magnitudes(fmt)) - 1
    sign = 1 << sum(LAYOUTS[fmt][:2])
    got = numerics.encode(fmt, values, satfinite=True).tolist()
    for value, bits in zip(values.tolist(), got, strict=True):
        finite = min(max(value, -3.4e38), 3.4e38)
        want = rounded_by_search(fmt, finite, "rn")
        assert bits == (want & sign) | min(want & (sign - 1), largest), value


def test_f64_rounds_to_f32_once_and_not_by_way_of_another_format() -> None:
    tie_and_a_bit = 1 + 2.0**-24 + 2.0**-50  # float32 rounds up; by way of a shorter format it would be a tie
    got = numerics.encode("f32", np.array([tie_and_a_bit, 1 + 2.0**-24]))
    assert got.tolist() == [0x3F80_0001, 0x3F80_0000]
    for mode in MODES[:4]:
        values = np.random.default_rng(2).standard_normal(200) * 1e-41
        want = [_f32_by_fractions(v, mode) for v in values.tolist()]
        assert numerics.decode("f32", numerics.encode("f32", values, mode)).tolist() == want


def _f32_by_fractions(value: float, mode: str) -> float:
    unit = Fraction(2) ** -149
    steps = Fraction(value) / unit
    whole = STEPS[mode](steps)
    return float(whole * unit)


def test_nan_becomes_the_pattern_of_each_format() -> None:
    nan = np.array([0x7FC1_2345, 0xFFFF_FFFF], np.uint32).view(np.float32)
    want = {"f16": 0x7FFF, "bf16": 0x7FFF, "tf32": 0x7FFF_E000, "f32": 0x7FFF_FFFF, "e4m3": 0x7F, "e5m2": 0x7F}
    for fmt, bits in want.items():
        for options in ({}, {"satfinite": True}, {"relu": True}, {"mode": "rz"}):
            assert numerics.encode(fmt, nan, **options).tolist() == [bits, bits], (fmt, options)


def test_tf32_by_rna_keeps_what_is_left_of_a_nan_without_its_low_13_bits() -> None:
    nan = np.array([0x7FC1_2345, 0xFFFF_FFFF], np.uint32).view(np.float32)
    assert numerics.encode("tf32", nan, "rna").tolist() == [0x7FC1_2000, 0xFFFF_E000]


def test_f64_nan_keeps_sign_and_the_top_of_its_payload_through_conversions() -> None:
    """The first as recorded on the H200; a signalling one becomes quiet, and an infinity never appears."""
    nan = np.array([0x7FF8_0000_0000_1234, 0xFFF9_2345_6789_ABCD, 0x7FF0_0000_0000_0001], np.uint64).view(np.float64)
    assert numerics.cvt("f32", "f64", nan, "rn").view(np.uint32).tolist() == [0x7FC0_0000, 0xFFC9_1A2B, 0x7FC0_0000]
    assert numerics.cvt_bits("f16", "f64", nan, "rn").tolist() == [0x7E00, 0xFE48, 0x7E00]
    assert numerics.cvt_bits("f16", "f64", nan, "rn", sat=True).tolist() == [0, 0, 0]
    single = np.array([0x7FC1_2345, 0xFF80_0001], np.uint32).view(np.float32)
    got = numerics.cvt("f64", "f32", single, "").view(np.uint64).tolist()
    assert got == [0x7FF8_2468_A000_0000, 0xFFF8_0000_2000_0000]


def test_conversions_to_bits_agree_with_those_to_values() -> None:
    values = samples().astype(np.float64) * (1 + 2.0**-40)
    for fmt in ("f16", "bf16"):
        got = numerics.decode(fmt, numerics.cvt_bits(fmt, "f64", values, "rz"))
        assert (got == numerics.cvt(fmt, "f64", values, "rz")).all()


def test_packed_conversion_puts_the_first_source_in_the_high_half() -> None:
    high, low = np.array([1.0], np.float32), np.array([-2.0], np.float32)
    assert numerics.cvt_packed("bf16", high, low).tolist() == [0x3F80_C000]
    assert numerics.cvt_packed("f16", high, low).tolist() == [0x3C00_C000]
    assert numerics.cvt_packed("e4m3", high, low, satfinite=True).tolist() == [0x38C0]
    assert numerics.cvt_packed("f16", high, low, relu=True).tolist() == [0x3C00_0000]


def test_tf32_operand_drops_its_low_13_bits() -> None:
    assert numerics.decode("tf32", np.array([0x3F80_1FFF, 0x0000_1FFF], np.uint32)).tolist() == [1.0, 0.0]


def test_tf32_conversion_rounds_ties_away_with_rna_and_to_even_with_rn() -> None:
    tie = np.array([0x3F80_1000], np.uint32).view(np.float32)
    assert numerics.encode("tf32", tie, "rna").tolist() == [0x3F80_2000]
    assert numerics.encode("tf32", tie, "rn").tolist() == [0x3F80_0000]


@pytest.mark.parametrize("dst", ["s32", "u32", "s16", "u16", "s8", "u8", "s64", "u64"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_float_to_integer_rounds_then_clamps(dst: str, mode: str) -> None:
    values = np.array(
        [0.5, 1.5, 2.5, -0.5, -2.5, 127.5, -128.5, 2.0**31, -(2.0**31) - 256, 2.0**63, 2.0**64, np.inf, -np.inf]
    )
    values = values.astype(np.float32)
    limits = np.iinfo(numerics.INTEGERS[dst])
    step = STEPS[mode.removesuffix("i")]
    for value, got in zip(values.tolist(), numerics.cvt(dst, "f32", values, mode).tolist(), strict=True):
        want = (limits.max if value > 0 else limits.min) if math.isinf(value) else step(Fraction(value))
        assert got == min(max(want, limits.min), limits.max), value


def test_nan_to_integer_is_zero_or_the_top_bit() -> None:
    nan32, nan64 = np.array([np.nan], np.float32), np.array([np.nan])
    assert numerics.cvt("s32", "f32", nan32, "rzi").tolist() == [0]
    assert numerics.cvt("u8", "f32", nan32, "rzi").tolist() == [0]
    assert numerics.cvt("s64", "f32", nan32, "rzi").tolist() == [-(2**63)]
    assert numerics.cvt("s32", "f64", nan64, "rzi").tolist() == [-(2**31)]
    assert numerics.cvt("u32", "f64", nan64, "rzi").tolist() == [2**31]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integer_to_float_rounds_the_exact_integer(mode: str) -> None:
    generator = np.random.default_rng(3)
    values = generator.integers(-(2**63), 2**63, 200, np.int64)
    values[:4] = (2**53 + 1, 2**24 + 1, -(2**63), 2**63 - 1)
    for dst, precision in (("f32", 24), ("f64", 53)):
        got = numerics.cvt(dst, "s64", values, mode).astype(np.float64).tolist()
        for value, result in zip(values.tolist(), got, strict=True):
            unit = 1 << max(abs(value).bit_length() - precision, 0)
            assert Fraction(result) == STEPS[mode](Fraction(value, unit)) * unit, (dst, value)


def test_integer_conversion_wraps_or_clamps() -> None:
    values = np.array([-1, 200, -200, 70000], np.int32)
    assert numerics.cvt("u8", "s32", values).tolist() == [255, 200, 56, 112]
    assert numerics.cvt("u8", "s32", values, sat=True).tolist() == [0, 200, 0, 255]
    assert numerics.cvt("s8", "s32", values, sat=True).tolist() == [-1, 127, -128, 127]


def test_saturation_to_the_unit_interval_turns_nan_into_zero() -> None:
    values = np.array([np.nan, -1, 0.5, 2, -0.0], np.float32)
    got = numerics.cvt("f32", "f32", values, sat=True)
    assert got.tolist() == [0, 0, 0.5, 1, 0]
    assert not np.signbit(got).any()


def test_flush_keeps_the_sign_of_a_subnormal_and_normal_numbers() -> None:
    bits = np.array([0x0000_0001, 0x807F_FFFF, 0x0080_0000, 0x7FC0_0000], np.uint32)
    assert numerics.flush(bits.view(np.float32)).view(np.uint32).tolist() == [0, 0x8000_0000, 0x0080_0000, 0x7FC0_0000]
    halves = numerics.decode("f16", np.array([0x0001, 0x83FF, 0x0400, 0x8400, 0x7C00], np.uint16))
    flushed = numerics.encode("f16", numerics.flush(halves, "f16"))
    assert flushed.tolist() == [0, 0x8000, 0x0400, 0x8400, 0x7C00]


def test_registers_unpack_from_their_low_end_and_pack_back() -> None:
    word = np.array([0x3C00_C000], np.uint32)
    assert numerics.unpack("f16", word).tolist() == [[-2.0, 1.0]]
    assert numerics.pack("f16", np.array([[-2.0, 1.0]], np.float32)).tolist() == word.tolist()
    assert numerics.unpack("s8", np.array([0x807F_01FF], np.uint32)).tolist() == [[-1, 1, 127, -128]]
    assert numerics.pack("s8", np.array([[-1, 1, 127, -128]])).tolist() == [0x807F_01FF]
    assert numerics.unpack("f32", np.array([0x3F80_0000], np.uint32)).tolist() == [[1.0]]
