"""TensorMap: the rules of cuTensorMapEncodeTiled that a value carries."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.backends.base import L2_PROMOTION_CODES, SWIZZLE_CODES, TensorMap
from tilewright.dtypes import BF16

MAP = TensorMap(dtype=BF16, extents=(64, 128), pitches_bytes=(128,), box=(64, 64), swizzle_bytes=128)


def test_a_map_promotes_to_a_line_unless_it_says_otherwise() -> None:
    assert MAP.l2_promotion_bytes == 128
    assert MAP.violations() == ()


@pytest.mark.parametrize("size", L2_PROMOTION_CODES)
def test_every_promotion_of_the_driver_is_legal(size: int) -> None:
    assert dataclasses.replace(MAP, l2_promotion_bytes=size).violations() == ()


@pytest.mark.parametrize("size", [32, 512, -1])
def test_any_other_promotion_is_refused_with_those_that_are(size: int) -> None:
    [reason] = dataclasses.replace(MAP, l2_promotion_bytes=size).violations()
    assert reason == f"L2 promotion of {size} bytes is not one of 0, 64, 128, 256"


def test_codes_are_the_driver_s_own() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    for size, code in L2_PROMOTION_CODES.items():
        assert driver.CUtensorMapL2promotion(code).name.endswith(f"_L2_{size}B" if size else "_NONE")
    for size, code in SWIZZLE_CODES.items():
        assert driver.CUtensorMapSwizzle(code).name.endswith(f"_{size}B" if size else "_NONE")
