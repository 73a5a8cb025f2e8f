"""Operands and canaries, as torch tensors on the CPU."""

from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from tilewright.bench.cases import wide  # noqa: E402  torch first: without it this file is skipped
from tilewright.bench.operands import Canary, inputs, operand_sets, set_bytes  # noqa: E402
from tilewright.check import integer_limit  # noqa: E402  torch first: without it this file is skipped
from tilewright.dtypes import BF16, FP16, FP32  # noqa: E402
from tilewright.packing import packed  # noqa: E402


def _pitched(dtype):  # type: ignore[no-untyped-def]
    """An out of 5 rows of 7, 9 apart."""
    inputs_of = FP16 if dtype is FP16 else BF16
    return dataclasses.replace(packed(5, 7, 8, dtype=inputs_of, out_dtype=dtype), out_pitch=9)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_canary_starts_as_nan_and_counts_what_was_not_written(dtype) -> None:  # type: ignore[no-untyped-def]
    canary = Canary.around(_pitched(dtype), offset=3, device="cpu")
    assert canary.out.shape == (5, 7)
    assert canary.out.stride() == (9, 1)
    assert torch.isnan(canary.out).all()
    assert (canary.unwritten(), canary.damaged()) == (35, 0)
    canary.out[1:] = 1.0
    assert (canary.unwritten(), canary.damaged()) == (7, 0)


@pytest.mark.parametrize("where", [(0, 7), (4, 7), (4, 8)])
def test_canary_finds_one_element_between_the_rows(where: tuple[int, int]) -> None:
    canary = Canary.around(_pitched(BF16), device="cpu")
    row, column = where
    canary.buffer[canary.out.storage_offset() + 9 * row + column] = 2.0
    assert canary.damaged() == 1


@pytest.mark.parametrize("side", [-1, 1])
def test_canary_finds_one_element_before_and_after(side: int) -> None:
    canary = Canary.around(packed(5, 7, 8), device="cpu")
    start = canary.out.storage_offset()
    canary.buffer[start - 1 if side < 0 else start + 35] = 2.0
    assert canary.damaged() == 1


@pytest.mark.parametrize("b_major", ["k", "n"])
def test_inputs_have_the_problems_layout_and_nan_in_their_padding(b_major) -> None:  # type: ignore[no-untyped-def]
    problem = packed(5, 13, 11, b_major=b_major)
    a, b = inputs(problem, device="cpu")
    assert (tuple(a.shape), tuple(b.shape)) == ((5, 11), (11, 13))
    assert a.stride() == (problem.a_pitch, 1)
    assert b.stride() == ((1, problem.b_pitch) if b_major == "k" else (problem.b_pitch, 1))
    assert torch.isfinite(a).all()
    assert torch.isfinite(b).all()
    assert torch.isnan(a.as_strided((4, problem.a_pitch), (problem.a_pitch, 1))[:, 11:]).all()


@pytest.mark.parametrize("shared", ["", "a", "b"])
def test_batches_have_the_problems_strides_and_share_what_it_shares(shared: str) -> None:
    problem = wide(packed(5, 13, 11, a_major="m", out_major="m", batch=(2, 3), shared=shared))
    a, b = inputs(problem, "integer", device="cpu")
    canary = Canary.around(problem, device="cpu")
    for name, array in (("a", a), ("b", b), ("out", canary.out)):
        assert (tuple(array.shape), array.stride()) == problem.strided(name)
    assert torch.isfinite(a).all()
    assert torch.isfinite(b).all()
    assert torch.equal(a[0, 0], a[1, 2]) == (shared == "a")
    assert torch.equal(b[0, 0], b[1, 2]) == (shared == "b")
    canary.out.copy_(torch.zeros(2, 3, 5, 13))
    assert (canary.unwritten(), canary.damaged()) == (0, 0)


def test_whole_numbers_stay_within_the_limit_of_exact_sums() -> None:
    a, b = inputs(packed(8, 8, 64), "integer", device="cpu")
    for values in (a, b):
        assert (values == values.round()).all()
        assert values.abs().max() == integer_limit(64)


def test_operand_sets_are_different_data_at_different_addresses() -> None:
    problem = packed(8, 16, 24)
    sets = operand_sets(problem, 3, device="cpu")
    assert len({a.data_ptr() for a, _, _ in sets}) == 3
    assert not torch.equal(sets[0][0], sets[1][0])
    assert set_bytes(problem) == 2 * (8 * 24 + 16 * 24 + 8 * 16)
