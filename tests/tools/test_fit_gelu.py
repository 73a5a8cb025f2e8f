"""tools/fit_gelu.py: the kernels have the polynomial that it derives, and gelu is within the bound of check()."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tilewright
from tilewright.epilogue import GELU_ERROR

ROOT = Path(__file__).parents[2]
CODE = Path(tilewright.__file__).parent / "kernels" / "cuda" / "activations.cuh"


@pytest.fixture(scope="module")
def shipped() -> np.ndarray:
    """The coefficients that the kernels have, from the constant on."""
    body = CODE.read_text().split("float normal_share(float x)")[1]
    last, *others = re.findall(r"(-?[0-9.]+(?:e-[0-9]+)?)f[,)]", body)[:8]
    return np.array([*map(float, reversed(others)), float(last)])


def test_kernels_have_the_polynomial_that_is_derived(tool: ModuleType, shipped: np.ndarray) -> None:
    assert (tool.fitted(7, -1e-6).astype(np.float32) == shipped.astype(np.float32)).all()


def test_gelu_is_within_its_bound_whichever_way_ex2_is_off(tool: ModuleType, shipped: np.ndarray) -> None:
    for error in (-tool.EX2_ERROR, tool.EX2_ERROR):
        beyond, x = tool.excess(shipped, error)
        assert beyond < GELU_ERROR.absolute, x


def test_gelu_of_infinities_and_nan_is_what_the_formula_has(tool: ModuleType, shipped: np.ndarray) -> None:
    found = tool.replayed(shipped, np.array([math.inf, -math.inf, math.nan, 1e38, -1e38], np.float32), 0.0)
    np.testing.assert_array_equal(found, np.array([math.inf, math.nan, math.nan, 1e38, -0.0], np.float32))
