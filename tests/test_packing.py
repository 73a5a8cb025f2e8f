"""packing.py: products and epilogues of freshly allocated arrays, known by their types alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.epilogue_steps import Add, Beta, Bias, Gated
from tilewright.errors import DTypeError, LayoutError, UnsupportedError
from tilewright.packing import epilogue_named, packed, packed_form, packed_named, with_epilogue
from tilewright.records import problem_text


def test_what_a_batch_shares_is_a_or_b() -> None:
    with pytest.raises(LayoutError, match="shared = 'out'"):
        packed(8, 8, 8, batch=(2,), shared="out")


def test_packed_pitches_are_the_smallest_that_tma_reads() -> None:
    problem = packed(3, 5, 9, b_major="n")
    assert (problem.a_pitch, problem.b_pitch, problem.out_pitch) == (16, 8, 5)


def test_contiguous_matrices_have_no_padding_when_none_is_asked_for() -> None:
    problem = packed(3, 5, 9, b_major="n", batch=(2,), padded=False)
    assert (problem.a_pitch, problem.b_pitch, problem.a_batch, problem.b_batch) == (9, 5, (27,), (45,))
    assert problem.unreadable == ("a", "b")


def test_the_form_of_names_is_that_of_packed_arrays() -> None:
    form = packed_form(Bias("bf16") | Beta(1.0, "fp32") | Gated("silu") | Add("fp16"), 6, 8, (2,))
    assert str(form) == "bias(column) beta gated(silu halves) add"
    bias, c, residual = (array for _, _, array in form.arrays)
    assert (bias.access, bias.batch) == ("columns", (0,))
    assert (c.strides, c.batch, c.is_paired) == ((8, 1), (48,), True)
    assert (residual.strides, residual.batch) == ((4, 1), (24,))
    assert form.transposed.transposed == form
    assert [array.access for _, _, array in form.transposed.arrays] == ["rows", "m", "m"]


@pytest.mark.parametrize("array", [3, np.ndarray])
def test_what_is_neither_an_array_nor_the_name_of_a_type_has_no_form(array: Any) -> None:
    with pytest.raises(DTypeError):
        packed_form(Bias(array), 64, 64)


@pytest.mark.parametrize(
    "text",
    ["bias(column) gelu(none)", "alpha beta relu", "scale(row) aux gated(gelu_tanh interleaved) add row-amax", "silu"],
)
def test_an_epilogue_is_named_as_it_is_told(text: str) -> None:
    assert str(epilogue_named(text, "bf16")) == text


def test_what_is_the_default_need_not_be_named() -> None:
    assert str(epilogue_named("bias gelu gated", "fp16")) == "bias(column) gelu(none) gated(silu halves)"


@pytest.mark.parametrize("text", ["", "bias elu", "relu(row)", "bias, gelu", "gelu(erf)", "gated(silu thirds)"])
def test_a_text_that_names_no_steps_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError):
        epilogue_named(text, "bf16")


def test_a_gated_problem_has_a_packed_out_of_half_the_columns() -> None:
    made = with_epilogue(packed(64, 96, 32, batch=(2,)), epilogue_named("gated", "bf16"))
    assert (made.out_n, made.out_pitch, made.out_batch) == (48, 48, (64 * 48,))


def test_a_record_names_its_product_with_what_follows_it() -> None:
    problem = with_epilogue(packed(64, 96, 32, dtype="fp16"), epilogue_named("bias gated(gelu)", "fp16"))
    assert packed_named(problem_text(problem)) == problem
    plain = packed(64, 96, 32, batch=(3,))
    assert packed_named(problem_text(plain)) == plain
