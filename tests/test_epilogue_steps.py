"""epilogue_steps.py: values that compose, and what is refused when one is made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tilewright.epilogue_steps import Alpha, Beta, Bias, Epilogue, Gated, Gelu, Relu, Silu, Step, as_epilogue
from tilewright.errors import DTypeError, UnsupportedError


def test_values_compose_in_order_and_one_alone_is_an_epilogue() -> None:
    composed = Alpha(0.5) | Bias(np.zeros(3)) | Gelu()
    assert str(composed) == "alpha bias(column) gelu(none)"
    assert str(Relu() | (Silu() | Gelu("tanh"))) == "relu silu gelu(tanh)"
    assert as_epilogue(Relu()).steps == (Relu(),)
    assert composed.numbers == (0x3F000000,)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Alpha("1"), DTypeError),
        (lambda: Alpha(True), DTypeError),
        (lambda: Alpha(10**400), DTypeError),  # no float holds it
        (lambda: Bias(None), UnsupportedError),
        (lambda: Beta(1e39, np.zeros((2, 2))), DTypeError),
        (lambda: Bias(np.zeros(2), per="col"), UnsupportedError),
        (lambda: Gelu("erf"), UnsupportedError),
        (lambda: Gated("tanh"), UnsupportedError),
        (lambda: Gated("silu", split="thirds"), UnsupportedError),
        (lambda: as_epilogue("relu"), UnsupportedError),
        (lambda: Epilogue((3,)), UnsupportedError),
        (lambda: Epilogue(Gelu()), UnsupportedError),
        (lambda: Epilogue((Step(),)), UnsupportedError),
        (lambda: None | Gelu(), UnsupportedError),
        (lambda: 3 | (Gelu() | Relu()), UnsupportedError),
    ],
)
def test_what_is_no_value_is_refused_when_it_is_made(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


@pytest.mark.parametrize("make", [lambda: Gelu() | Relu, lambda: Relu | Gelu(), lambda: as_epilogue(Relu)])
def test_the_class_of_a_step_is_none_yet(make: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"call the class, Relu\(\.\.\.\)"):
        make()


def test_a_list_of_steps_is_as_good_as_a_tuple() -> None:
    assert Epilogue([Gelu(), Relu()]).steps == (Gelu(), Relu())  # type: ignore[arg-type]


def test_numbers_are_rounded_to_fp32_once() -> None:
    assert Alpha(0.1).x == float(np.float32(0.1))
    assert Alpha(math.inf).x == math.inf
