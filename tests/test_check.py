"""The element-wise check: it passes what is right and finds every kind of fault."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.check import (
    SAMPLED_ROWS,
    Reference,
    accumulation_factor,
    check,
    check_exact,
    integer_limit,
    integer_stride,
    overflow_of,
    sampled_rows,
    tf32_rounded,
)
from tilewright.dtypes import BF16, FP16, FP32, INT32, DType
from tilewright.emulator import numerics

TYPES = [(BF16, BF16), (BF16, FP32), (BF16, FP16), (FP16, FP16), (FP16, FP32), (FP16, BF16)]


def product(m: int, n: int, k: int, dtype: DType, out_dtype: DType, seed: int = 0):  # type: ignore[no-untyped-def]
    """a, b and their product as fp32 accumulation gives it."""
    generator = np.random.default_rng(seed)
    a = generator.standard_normal((m, k)).astype(dtype.numpy)
    b = generator.standard_normal((k, n)).astype(dtype.numpy)
    return a, b, (a.astype(np.float32) @ b.astype(np.float32)).astype(out_dtype.numpy)


@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES, ids=str)
@pytest.mark.parametrize("k", [1, 64, 1000])
def test_fp32_accumulation_of_16_bit_products_is_right(dtype: DType, out_dtype: DType, k: int) -> None:
    verdict = check(*product(40, 30, k, dtype, out_dtype), out_dtype)
    assert verdict.ok, verdict
    assert verdict.elements == 1200
    assert 0 <= verdict.worst <= 1


@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES, ids=str)
def test_one_element_an_ulp_off_is_found_where_it_is(dtype: DType, out_dtype: DType) -> None:
    a, b, out = product(40, 30, 64, dtype, out_dtype)
    # Two ulps of the output type, or well past the accumulation bound of fp32.
    out[17, 5] = np.float32(out[17, 5]) * (1 + max(4 * out_dtype.unit_roundoff, 1e-2))
    verdict = check(a, b, out, out_dtype)
    assert (verdict.wrong, verdict.first_wrong) == (1, (17, 5))
    assert verdict.worst > 1
    assert "first at (17, 5)" in str(verdict)


def test_what_is_allowed_is_added_to_every_bound_and_covers_no_more() -> None:
    a, b, out = product(8, 8, 64, BF16, FP32)
    out[3, 4] += 1.0
    assert not check(a, b, out, FP32).ok
    assert check(a, b, out, FP32, allowed=1.0).ok
    assert check(a, b, out, FP32, allowed=0.9).first_wrong == (3, 4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_element_that_is_no_number_is_wrong(value: float) -> None:
    a, b, out = product(8, 8, 64, BF16, BF16)
    out[7, 7] = value
    verdict = check(a, b, out, BF16)
    assert (verdict.wrong, verdict.first_wrong, verdict.worst) == (1, (7, 7), float("inf"))


def test_zeroed_tile_is_counted_element_by_element() -> None:
    a, b, out = product(256, 256, 64, BF16, BF16)
    out[128:, 128:] = 0
    assert check(a, b, out, BF16).wrong > 0.99 * 128 * 128


def test_overflow_of_the_output_type_is_infinity_of_the_right_sign() -> None:
    a = np.full((2, 64), 60000, np.float16)
    b = np.full((64, 2), 60000, np.float16)
    out = np.full((2, 2), np.inf, np.float16)
    assert check(a, b, out, FP16).ok
    assert check(a, b, -out, FP16).wrong == 4


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_the_type_overflows_where_rounding_to_nearest_even_does(dtype: DType) -> None:
    overflow = overflow_of(dtype)
    largest = float(ml_dtypes.finfo(dtype.numpy).max)
    below = largest + (overflow - largest) * (1 - 2.0**-10)
    with np.errstate(over="ignore"):
        rounded = np.array([overflow, below]).astype(dtype.numpy).astype(np.float64)
    assert rounded.tolist() == [np.inf, largest]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("rest", "right", "wrong"), [(239, 65504, np.inf), (241, np.inf, 65504), (256, np.inf, 65504), (224, 65504, np.inf)]
)
def test_an_infinity_is_right_exactly_where_the_true_value_rounds_past_65504(
    rest: int, right: float, wrong: float, library: str
) -> None:
    """The bound of sums is 3 cuts of an fp32 ulp here, below 2^-5: so 65519 and 65521 are told from 65520, the tie."""
    a, b = np.array([[256, 1]], BF16.numpy), np.array([[255, -255], [rest, -rest]], BF16.numpy)
    outs = [np.array([[value, -value]], FP16.numpy) for value in (right, wrong)]
    if library == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        a, b = (torch.from_numpy(each.astype(np.float32)).bfloat16() for each in (a, b))
        outs = [torch.from_numpy(each) for each in outs]
    for of in (lambda out: check(a, b, out, FP16), lambda out: check_exact(a, b, out)):
        assert of(outs[0]).ok
        assert of(outs[1]).wrong == 2
        assert of(-outs[0]).wrong == 2
        assert not of(outs[1]).worst <= 1


def test_the_tie_itself_is_infinite_where_sums_are_exact() -> None:
    a, b = np.array([[256, 1]], BF16.numpy), np.array([[255], [240]], BF16.numpy)
    for value, is_right in ((np.inf, True), (65504, False)):
        out = np.array([[value]], FP16.numpy)
        assert check_exact(a, b, out).ok == is_right
        assert check(a, b, out, FP16).ok  # by sums that lost an ulp it were 65504


def test_within_the_bound_of_long_sums_either_side_of_the_overflow_is_right() -> None:
    """k = 4096: 4352 cuts of an ulp of |A| x |B| about 65520 are 34, as much as the last step of fp16."""
    a, b = np.full((1, 4096), 16, BF16.numpy), np.full((4096, 1), 1, BF16.numpy)
    b[0] = -1  # 65504
    for value in (65504, np.inf):
        assert check(a, b, np.array([[value]], FP16.numpy), FP16).ok
    assert not check(a, b, np.array([[-np.inf]], FP16.numpy), FP16).ok
    assert check(a[:, :64], b[:64], np.array([[np.inf]], FP16.numpy), FP16).wrong == 1


def test_a_number_in_an_infinitys_place_is_wrong() -> None:
    a, b = np.ones((2, 8), BF16.numpy), np.ones((8, 2), BF16.numpy)
    a[1, 0] = np.inf
    out = np.full((2, 2), 8, np.float32)
    assert (check(a, b, out, FP32).wrong, check(a, b, out, FP32).first_wrong) == (2, (1, 0))
    out[1] = np.inf
    assert check(a, b, out, FP32).ok


def test_nan_and_infinity_in_the_inputs_must_come_through() -> None:
    a, b, _ = product(4, 4, 8, BF16, FP32)
    a[1, 0], a[2, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        out = a.astype(np.float32) @ b.astype(np.float32)
    assert check(a, b, out, FP32).ok
    out[1] = 0
    assert check(a, b, out, FP32).wrong == 4


def test_factor_is_one_ulp_a_cut_not_half() -> None:
    assert accumulation_factor(16) == pytest.approx(17 * 2.0**-23, rel=1e-5)
    assert accumulation_factor(8192) < 2.0**-9


@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES, ids=str)
@pytest.mark.parametrize("k", [1, 65, 4096])
def test_whole_numbers_are_exact_in_any_order(dtype: DType, out_dtype: DType, k: int) -> None:
    limit = integer_limit(k)
    generator = np.random.default_rng(k)
    a = generator.integers(-limit, limit + 1, (20, k)).astype(np.float32).astype(dtype.numpy)
    b = generator.integers(-limit, limit + 1, (k, 20)).astype(np.float32).astype(dtype.numpy)
    shuffled = generator.permutation(k)
    out = (a[:, shuffled].astype(np.float32) @ b[shuffled].astype(np.float32)).astype(out_dtype.numpy)
    assert check_exact(a, b, out).ok


def test_dropped_product_that_the_bound_cannot_see_is_found_by_whole_numbers() -> None:
    k = 4096
    a, b = np.ones((4, k), BF16.numpy), np.ones((k, 4), BF16.numpy)
    out = np.full((4, 4), k - 1, np.float32)  # one product of 4096 is missing
    assert check(a, b, out, FP32).ok
    verdict = check_exact(a, b, out)
    assert (verdict.wrong, verdict.first_wrong) == (16, (0, 0))


def test_partial_sums_of_whole_numbers_stay_below_2_to_the_24() -> None:
    for k in (1, 8192, 65536, 2**22, 2**24 - 1):
        assert 1 <= integer_limit(k) <= 3
        assert k * integer_limit(k) ** 2 < 2**24


def test_sampled_rows_hold_the_first_and_the_last() -> None:
    assert sampled_rows(5) == [0, 1, 2, 3, 4]
    rows = sampled_rows(10_000)
    assert (len(set(rows)), rows[0], rows[-1]) == (SAMPLED_ROWS, 0, 9999)
    assert rows == sorted(rows)


def test_an_out_without_columns_or_rows_is_right() -> None:
    a, b = np.ones((4, 8), BF16.numpy), np.ones((8, 4), BF16.numpy)
    for rows, columns in ((4, 0), (0, 4)):
        out = np.zeros((rows, columns), BF16.numpy)
        assert check(a[:rows], b[:, :columns], out, BF16).elements == 0
        assert check_exact(a[:rows], b[:, :columns], out).ok


def test_only_the_named_rows_are_checked() -> None:
    a, b, out = product(40, 30, 64, BF16, BF16)
    out[3] = np.nan
    assert check(a, b, out, BF16, rows=[0, 2, 39]).ok
    assert check(a, b, out, BF16, rows=[0, 3]).first_wrong == (3, 0)


def test_blocks_of_rows_give_the_same_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out = product(40, 30, 64, BF16, BF16)
    out[33, 2] = np.nan
    whole = check(a, b, out, BF16)
    monkeypatch.setattr("tilewright.check.BLOCK_ELEMENTS", 100)
    assert check(a, b, out, BF16) == whole


def test_torch_tensors_take_the_same_road() -> None:
    torch = pytest.importorskip("torch")
    a, b, out = product(20, 30, 64, FP16, FP32)
    on_numpy = check(a, b, out, FP32)
    on_torch = check(*map(torch.from_numpy, (a, b, out)), FP32)
    assert on_torch.ok
    assert on_torch.worst == pytest.approx(on_numpy.worst)
    wrong = torch.from_numpy(out.copy())
    wrong[3, 4] = float("nan")
    assert check(torch.from_numpy(a), torch.from_numpy(b), wrong, FP32).first_wrong == (3, 4)


def test_a_reference_gives_the_verdicts_of_a_check_on_every_out_that_it_is_asked_about() -> None:
    a, b, out = product(40, 30, 64, BF16, BF16)
    wrong = out.copy()
    wrong[7, 3] = np.nan
    reference = Reference(a, b, BF16)
    assert (reference.check(out), reference.check(wrong)) == (check(a, b, out, BF16), check(a, b, wrong, BF16))
    ones = np.ones((4, 64), BF16.numpy), np.ones((64, 4), BF16.numpy)
    exact = Reference(*ones, FP32, exact=True)
    assert exact.check(np.full((4, 4), 64, np.float32)).ok
    assert exact.check(np.full((4, 4), 63, np.float32)).wrong == 16


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_fp32_is_rounded_to_tf32_as_cvt_rna_does(library: str) -> None:
    """Against the emulator's conversion, which an H200's vectors hold; NaN of any payload stays one."""
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    values[:6] = [np.inf, -np.inf, np.nan, 3.4e38, 1e-40, -0.0]
    values[6] = np.uint32(0x7FFFFFFF).view(np.float32)
    wanted = numerics.encode("tf32", values, "rna").view(np.float32)
    if library == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        found = tf32_rounded(torch.from_numpy(values.copy())).numpy()
    else:
        found = tf32_rounded(values)
    assert np.array_equal(found, wanted, equal_nan=True)


def test_int32_sums_are_right_modulo_2_to_the_32() -> None:
    a, b = np.full((1, 2**17), -128, np.int8), np.full((2**17, 1), -128, np.int8)
    assert check_exact(a, b, np.array([[-(2**31)]], np.int32)).ok
    assert not check_exact(a, b, np.array([[2**31 - 1]], np.int32)).ok
    assert check(a[:, :9], b[:9], np.array([[9 * 2**14]], np.int32), INT32).ok
    assert not check(a[:, :9], b[:9], np.array([[9 * 2**14 + 1]], np.int32), INT32).ok


def test_the_bound_of_fp16_sums_counts_a_rounding_a_block_and_admits_what_overflows() -> None:
    assert accumulation_factor(64, sums=FP16) == pytest.approx(4 * 2.0**-11, rel=0.01)
    assert accumulation_factor(1 << 16, sums=FP16) == np.inf
    a, b = np.full((1, 32), 64, np.float16), np.full((32, 1), 64, np.float16)
    b[16:] = -64  # 16 products are 65536, past the largest number of fp16, and all 32 are 0
    for out in (np.inf, np.nan, 0.0):
        assert check(a, b, np.array([[out]], np.float16), FP16, sums=FP16).ok
        assert check(a, b, np.array([[out]], np.float16), FP16).ok == (out == 0)


def test_whole_numbers_with_exact_fp16_sums_are_few_where_k_is_long() -> None:
    assert [integer_limit(k, FP16) for k in (100, 227, 511, 2047, 2048)] == [3, 3, 2, 1, 0]
    assert [integer_stride(k, FP16) for k in (100, 2047, 2048, 8192)] == [1, 1, 2, 5]
    assert -(-8192 // integer_stride(8192, FP16)) < 2**11
