"""Arithmetic with one rounding against rational arithmetic that is rounded by counting units."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tilewright.emulator import arithmetic, numerics

FORMATS = {"f16": (11, -14), "bf16": (8, -126), "f32": (24, -126), "f64": (53, -1022)}
MODES = ("rn", "rz", "rm", "rp")
STEPS: dict[str, Callable[[Fraction], int]] = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}


def rounded(fmt: str, exact: Fraction, mode: str) -> Fraction:
    """The rounding of a number that does not overflow: so many units of its binade."""
    if exact == 0:
        return exact
    precision, min_exponent = FORMATS[fmt]
    exponent = min_exponent
    magnitude = abs(exact)
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent = max(guess - 1, min_exponent)
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - precision + 1)
    return STEPS[mode](exact / unit) * unit


def operands(fmt: str, num: int, seed: int) -> list[np.ndarray]:
    """Numbers of like size, so that sums cancel, and of very unlike size, so that little of one is left."""
    generator = np.random.default_rng(seed)
    scale = 4 if fmt == "f16" else 30
    found = []
    for _ in range(num):
        values = generator.standard_normal(150) * 2.0 ** generator.integers(-scale, scale, 150)
        found.append(numerics.decode(fmt, numerics.encode(fmt, values)))
    found[-1][::5] = -found[0][::5]
    return found


def check(fmt: str, mode: str, got: np.ndarray, exact: list[Fraction]) -> None:
    for value, want in zip(got.tolist(), exact, strict=True):
        assert Fraction(value) == rounded(fmt, want, mode), (value, float(want))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("mode", MODES)
def test_sum_product_and_fused_product_are_rounded_once(fmt: str, mode: str) -> None:
    a, b, c = operands(fmt, 3, 7)
    x, y, z = ([Fraction(v) for v in o.tolist()] for o in (a, b, c))
    check(fmt, mode, arithmetic.add(fmt, a, b, mode), [p + q for p, q in zip(x, y, strict=True)])
    check(fmt, mode, arithmetic.sub(fmt, a, b, mode), [p - q for p, q in zip(x, y, strict=True)])
    check(fmt, mode, arithmetic.mul(fmt, a, b, mode), [p * q for p, q in zip(x, y, strict=True)])
    check(fmt, mode, arithmetic.fma(fmt, a, b, c, mode), [p * q + r for p, q, r in zip(x, y, z, strict=True)])


@pytest.mark.parametrize("mode", MODES)
def test_f64_products_are_rounded_once_where_their_halves_overflow_or_underflow(mode: str) -> None:
    generator = np.random.default_rng(11)
    a, b, c = (generator.standard_normal(200) * 2.0 ** generator.integers(-540, 500, 200) for _ in range(3))
    c[::7] = -(a * b)[::7]
    b[::11] = 2.0**-1000
    x, y, z = ([Fraction(v) for v in o.tolist()] for o in (a, b, c))
    check("f64", mode, arithmetic.mul("f64", a, b, mode), [p * q for p, q in zip(x, y, strict=True)])
    check("f64", mode, arithmetic.fma("f64", a, b, c, mode), [p * q + r for p, q, r in zip(x, y, z, strict=True)])


@pytest.mark.parametrize("mode", MODES)
def test_f64_products_of_zeros_have_the_sign_of_the_factors(mode: str) -> None:
    a, b = (v.reshape(-1) for v in np.meshgrid([0.0, -0.0, 1.5, -1e308], [0.0, -0.0]))
    got = arithmetic.mul("f64", a, b, mode)
    assert (np.signbit(got) == (np.signbit(a) ^ np.signbit(b))).all()
    assert (got == 0).all()


@pytest.mark.parametrize("fmt", ["f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
def test_quotient_and_root_are_rounded_once(mode: str, fmt: str) -> None:
    a, b = operands(fmt, 2, 8)
    number = numerics.value_dtype(fmt).type
    check(
        fmt,
        mode,
        arithmetic.div(fmt, a, b, mode),
        [Fraction(p) / Fraction(q) for p, q in zip(a.tolist(), b.tolist(), strict=True)],
    )
    for value, root in zip(np.abs(a).tolist(), arithmetic.sqrt(fmt, np.abs(a), mode).tolist(), strict=True):
        below, above = np.nextafter(number(root), number(0)), np.nextafter(number(root), number(np.inf))
        square = Fraction(value)
        if mode in ("rz", "rm"):
            assert Fraction(root) ** 2 <= square < Fraction(float(above)) ** 2
        elif mode == "rp":
            assert Fraction(float(below)) ** 2 < square <= Fraction(root) ** 2
        else:
            low, high = (Fraction(root) + Fraction(float(below))) / 2, (Fraction(root) + Fraction(float(above))) / 2
            assert low**2 <= square <= high**2


def test_fma_is_right_where_float64_alone_rounds_twice() -> None:
    # 1 + 2^-24 is a tie of f32; a further 2^-78 breaks it, and float64 cannot hold both.
    a = np.array([1 + 2.0**-12], np.float32)
    b = np.array([2.0**-12 - 2.0**-24 + 2.0**-36], np.float32)
    c = np.array([1.0], np.float32)
    exact = Fraction(float(a[0])) * Fraction(float(b[0])) + 1
    assert Fraction(arithmetic.fma("f32", a, b, c).tolist()[0]) == rounded("f32", exact, "rn")
    tie, little = np.array([2.0**-24], np.float32), np.array([2.0**-78], np.float32)
    got = arithmetic.fma("f32", little, np.array([1.0], np.float32), np.array([1.0], np.float32), "rp")
    assert got.tolist() == [1 + 2.0**-23]
    assert arithmetic.add("f32", tie, c).tolist() == [1.0]


def test_exact_zero_is_negative_only_when_rounding_down() -> None:
    one = np.array([1.0], np.float32)
    for mode in MODES:
        for fmt, value in (("f32", one), ("f64", one.astype(np.float64))):
            assert np.signbit(arithmetic.sub(fmt, value, value, mode))[0] == (mode == "rm"), (fmt, mode)


def test_results_that_are_no_number_are_the_canonical_nan() -> None:
    infinity, zero = np.array([np.inf], np.float32), np.array([0.0], np.float32)
    payload = np.array([0x7FC1_2345], np.uint32).view(np.float32)
    for got in (
        arithmetic.sub("f32", infinity, infinity),
        arithmetic.mul("f32", infinity, zero),
        arithmetic.fma("f32", infinity, zero, zero),
        arithmetic.div("f32", zero, zero),
        arithmetic.sqrt("f32", np.array([-1.0], np.float32)),
        arithmetic.add("f32", payload, zero),
        arithmetic.maximum("f32", payload, payload),
    ):
        assert got.view(np.uint32).tolist() == [0x7FFF_FFFF]
    assert numerics.encode("bf16", arithmetic.add("bf16", payload, zero)).tolist() == [0x7FFF]


F64_NAN = [0x7FF8_0000_0000_1234, 0xFFF9_2345_6789_ABCD, 0x7FF0_0000_0000_0001]


def test_f64_nan_goes_on_with_its_payload_and_an_invalid_operation_makes_the_negative_one() -> None:
    nan = np.array(F64_NAN, np.uint64).view(np.float64)
    quiet = [0x7FF8_0000_0000_1234, 0xFFF9_2345_6789_ABCD, 0x7FF8_0000_0000_0001]
    one = np.ones(3)
    for got in (
        arithmetic.add("f64", nan, one),
        arithmetic.add("f64", one, nan, "rz"),
        arithmetic.mul("f64", nan, 0 * one, "rp"),
        arithmetic.fma("f64", one, one, nan),
        arithmetic.fma("f64", np.inf * one, nan, one, "rm"),
        arithmetic.maximum("f64", nan, nan),
    ):
        assert got.view(np.uint64).tolist() == quiet
    infinity = np.array([np.inf])
    for got in (
        arithmetic.sub("f64", infinity, infinity),
        arithmetic.mul("f64", infinity, np.zeros(1), "rz"),
        arithmetic.fma("f64", infinity, np.zeros(1), np.ones(1)),
        arithmetic.sqrt("f64", -np.ones(1)),
    ):
        assert got.view(np.uint64).tolist() == [0xFFF8_0000_0000_0000]


def test_of_several_f64_nan_the_second_goes_on_then_the_third_but_the_first_of_a_quotient() -> None:
    a, b, c = (np.array([bits], np.uint64).view(np.float64) for bits in F64_NAN)
    quiet_c, one = 0x7FF8_0000_0000_0001, np.ones(1)
    for function in (arithmetic.add, arithmetic.sub, arithmetic.mul, arithmetic.minimum, arithmetic.maximum):
        assert function("f64", a, b).view(np.uint64).tolist() == [F64_NAN[1]]
    assert arithmetic.fma("f64", a, b, c).view(np.uint64).tolist() == [F64_NAN[1]]
    assert arithmetic.fma("f64", a, one, c).view(np.uint64).tolist() == [quiet_c]
    assert arithmetic.div("f64", b, a).view(np.uint64).tolist() == [F64_NAN[1]]


def test_overflow_goes_to_infinity_or_stops_by_the_mode() -> None:
    large = np.array([3e38], np.float32)
    top = float(np.finfo(np.float32).max)
    assert [arithmetic.add("f32", large, large, m).tolist()[0] for m in MODES] == [np.inf, top, top, np.inf]
    assert [arithmetic.add("f32", -large, -large, m).tolist()[0] for m in MODES] == [-np.inf, -top, -np.inf, -top]
    large, top = np.array([1.5e308]), float(np.finfo(np.float64).max)
    ten = np.array([10.0])
    for function, given in ((arithmetic.add, large), (arithmetic.mul, ten), (arithmetic.div, 1 / ten)):
        assert [function("f64", large, given, m).tolist()[0] for m in MODES] == [np.inf, top, top, np.inf]
        assert [
            function("f64", -large, -given if function is arithmetic.add else given, m).tolist()[0] for m in MODES
        ] == [
            -np.inf,
            -top,
            -np.inf,
            -top,
        ]


def test_ftz_takes_subnormals_as_zeros_going_in_and_coming_out() -> None:
    tiny = np.array([1e-40], np.float32)
    normal = np.array([2.0**-126], np.float32)
    assert arithmetic.add("f32", tiny, tiny, ftz=True).tolist() == [0.0]
    assert arithmetic.mul("f32", normal, np.array([0.5], np.float32), ftz=True).tolist() == [0.0]
    assert arithmetic.mul("f32", normal, np.array([0.5], np.float32)).tolist() == [2.0**-127]


def test_ftz_takes_the_subnormals_of_f16_for_f16() -> None:
    tiny, normal, half = (numerics.decode("f16", np.array([bits], np.uint16)) for bits in (0x83FF, 0x0400, 0x3800))
    assert numerics.encode("f16", arithmetic.add("f16", tiny, tiny, ftz=True)).tolist() == [0x8000]
    assert numerics.encode("f16", arithmetic.mul("f16", normal, half, ftz=True)).tolist() == [0x0000]
    assert numerics.encode("f16", arithmetic.mul("f16", normal, half)).tolist() == [0x0200]
    assert numerics.encode("f16", arithmetic.minimum("f16", tiny, half, ftz=True)).tolist() == [0x8000]


def test_ftz_looks_at_the_result_rounded_as_if_exponents_had_no_end() -> None:
    smallest, below_one = np.array([2.0**-126], np.float32), np.array([1 - 2.0**-24], np.float32)
    for mode in MODES:
        assert arithmetic.mul("f32", smallest, below_one, mode, ftz=True).tolist() == [0.0]
    assert arithmetic.mul("f32", smallest, below_one).tolist() == [2.0**-126]
    a, b = (numerics.decode("f16", np.array([bits], np.uint16)) for bits in (0x0400, 0x8401))
    assert arithmetic.fma("f16", a, b, a, ftz=True).tolist() == [2.0**-14]


def test_extremes_order_zeros_and_let_nan_lose() -> None:
    nan, plus, minus = (np.array([v], np.float32) for v in (np.nan, 0.0, -0.0))
    assert not np.signbit(arithmetic.maximum("f32", plus, minus))[0]
    assert not np.signbit(arithmetic.maximum("f32", minus, plus))[0]
    assert np.signbit(arithmetic.minimum("f32", plus, minus))[0]
    assert np.signbit(arithmetic.minimum("f32", minus, plus))[0]
    one = np.array([1.0], np.float32)
    assert arithmetic.minimum("f32", nan, one).tolist() == [1.0]
    assert arithmetic.minimum("f32", one, nan).tolist() == [1.0]
    assert np.isnan(arithmetic.minimum("f32", one, nan, nan=True))[0]
    three = np.array([-3.0], np.float32)
    assert arithmetic.maximum("f32", one, three, xorsign_abs=True).tolist() == [-3.0]
    assert arithmetic.maximum("f32", three, three, xorsign_abs=True).tolist() == [3.0]


def test_approximations_are_float64_rounded_once() -> None:
    values = np.random.default_rng(9).uniform(0.1, 8, 100).astype(np.float32)
    for ours, exact in (
        (arithmetic.ex2_approx, lambda v: 2.0**v),
        (arithmetic.lg2_approx, math.log2),
        (arithmetic.rcp_approx, lambda v: 1 / v),
        (arithmetic.tanh_approx, math.tanh),
    ):
        want = np.array([exact(v) for v in values.tolist()])
        assert np.abs(ours(values) - want).max() <= np.spacing(np.float32(np.abs(want).max()))
    assert arithmetic.rcp_approx(np.array([0.0, -0.0], np.float32)).tolist() == [np.inf, -np.inf]
