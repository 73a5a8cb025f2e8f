"""reduction="invariant" in the emulator, whose tensor cores add as the H200's do: a row's bits are its own.

Out is fp32 where it can be, so that another order of summation shows in most elements.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orders import FREE, SINGLE, SMALL, operands
from tilewright import Emulator
from tilewright.bench.cases import FORMS
from tilewright.config import Config
from tilewright.order import INDIFFERENT, INVARIANT, order_of
from tilewright.packing import packed

M, N, K = SMALL
ROWS = (1, 2, 17, 33, 128)
NUM_SMS = 4  # several tiles a CTA, and a last wave that is not full


def multiply(a: NDArray[Any], b: NDArray[Any], **choices: Any) -> NDArray[np.uint32]:
    """The bits of a x b in fp32, with the invariant order unless `choices` say otherwise."""
    out = np.full((*a.shape[:-1], b.shape[-1]), np.nan, np.float32)
    Emulator(exact_sums=True, checks=False).matmul(a, b, out, **{"reduction": "invariant"} | choices)
    return out.view(np.uint32)


@cache
def expected(dtype: str = "bf16") -> NDArray[np.uint32]:
    """The bits of the largest product."""
    return multiply(*operands(*SMALL, dtype))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("m", ROWS)
def test_a_row_has_the_same_bits_whatever_m_is(m: int, dtype: str) -> None:
    a, b = operands(*SMALL, dtype)
    assert np.array_equal(multiply(a[:m], b), expected(dtype)[:m])


def test_a_row_has_the_same_bits_wherever_it_stands_and_whatever_stands_beside_it() -> None:
    a, b = operands(*SMALL)
    moved = a[::-1].copy()
    moved[:100] *= np.float32(1024)  # finite: with infinities the emulator adds as float32
    assert np.array_equal(multiply(moved, b)[100:], expected()[::-1][100:])


@pytest.mark.parametrize("num_sms", [1, 7])
def test_a_row_has_the_same_bits_on_any_number_of_sms(num_sms: int) -> None:
    assert np.array_equal(multiply(*operands(*SMALL), num_sms=num_sms), expected())


def test_a_row_has_the_same_bits_in_a_batch() -> None:
    """Of matrices that share b, which are folded into one, and of matrices of their own, which are not."""
    a, b = operands(*SMALL)
    stacked = a[:256].reshape(4, 64, K)
    folded = multiply(stacked, b)
    assert np.array_equal(folded.reshape(256, N), expected()[:256])
    own = multiply(stacked, np.stack([np.ascontiguousarray(b)] * 4))
    assert np.array_equal(own, folded)


def test_a_row_has_the_same_bits_in_every_layout_and_in_an_out_with_columns() -> None:
    a, b = operands(*SMALL)
    a = a[:128]
    for left in (a, np.asfortranarray(a)):
        for right in (b, np.ascontiguousarray(b)):
            assert np.array_equal(multiply(left, right), expected()[:128])
    out = np.full((N, 128), np.nan, np.float32)
    Emulator(exact_sums=True, checks=False).matmul(a, b, out.T, reduction="invariant")
    assert np.array_equal(out.T.view(np.uint32), expected()[:128])


OF_AMPERE = {"tile_k", "warps_m", "warps_n", "ahead", "split_barrier", "prefetch", "ctas"}


def test_every_field_that_moves_no_bit_has_a_config_that_shows_it() -> None:
    # staggered: below, since its out is of 16 bits; those of the Ampere family: kernels/test_ampere_family.py
    assert FREE.keys() | {"staggered"} | OF_AMPERE == INDIFFERENT
    assert all(order_of(config) == INVARIANT for config in FREE.values())
    for name, config in FREE.items():
        if name != "consumers":
            assert getattr(config, name) != getattr(SINGLE, name)
    tail, problem = FREE["tail_n"], packed(M, N, K, out_dtype="fp32")
    assert tail.narrow_tiles(problem, tail.wide_tiles(problem, NUM_SMS))


@pytest.mark.parametrize("name", FREE)
def test_a_field_that_moves_no_bit_moves_none(name: str) -> None:
    assert np.array_equal(multiply(*operands(*SMALL), config=FREE[name], num_sms=NUM_SMS), expected())


@pytest.mark.parametrize("name", FORMS)
def test_no_form_of_the_kernel_moves_a_bit_of_a_rounded_out(name: str) -> None:
    a, b = operands(*SMALL)

    def rounded(config: Config) -> NDArray[Any]:
        out = Emulator(exact_sums=True, checks=False).matmul(a, b, config=config, num_sms=2, reduction="invariant")
        return np.asarray(out).view(np.uint16)

    assert np.array_equal(rounded(INVARIANT.of(FORMS[name])), rounded(SINGLE))


def test_walking_k_back_moves_bits() -> None:
    """Else these tests could not fail."""
    back = multiply(*operands(*SMALL), config=SINGLE.replace(k_back_and_forth=True), num_sms=1, reduction="fast")
    assert (back != expected()).mean() > 0.2
