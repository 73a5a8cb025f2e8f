"""kernels/narrow.py: what is offered for few rows, columns and tiles, and that nothing is for large products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright import device
from tilewright.epilogue import Gated
from tilewright.kernels.narrow import narrow_space
from tilewright.packing import packed, packed_form
from tilewright.problem import Problem

H200 = device.preset("h200")


@pytest.mark.parametrize(
    "problem",
    [
        packed(1, 4096, 4096),
        packed(16, 6144, 4096, out_dtype="fp32"),
        packed(100, 4096, 4096, a_major="m"),
        packed(33, 4095, 4096, b_major="n"),
        packed(4096, 24, 4096),
        packed(256, 256, 65536),
        packed(512, 511, 16384, batch=(2,)),
        packed(128, 128, 128),
    ],
    ids=str,
)
def test_everything_offered_is_legal_and_offered_once(problem: Problem) -> None:
    found = list(narrow_space(problem, H200))
    assert 3 <= len(found) <= 48
    assert len(set(found)) == len(found)
    assert all(config.violations(problem, H200) == () for config in found)


@pytest.mark.parametrize("m", [1, 24, 64])
@pytest.mark.parametrize("n", [2, 24, 200, 4096])
def test_a_gate_is_offered_whole_halves_of_tiles(m: int, n: int) -> None:
    problem = replace(packed(m, n, 512), epilogue=packed_form(Gated(), m, n))
    assert all(config.violations(problem, H200) == () for config in narrow_space(problem, H200))


def test_a_large_product_is_offered_none() -> None:
    assert list(narrow_space(packed(8192, 8192, 8192), H200)) == []


@pytest.mark.parametrize(("rows", "widths"), [(1, {8}), (24, {24}), (60, {64}), (72, {72, 40}), (128, {128, 64})])
def test_few_rows_are_the_narrow_side_of_the_tile(rows: int, widths: set[int]) -> None:
    found = [config for config in narrow_space(packed(rows, 4096, 4096), H200) if config.swap]
    assert {config.tile_n for config in found} == widths
    assert {config.split_k for config in found} == {1, 2, 4, 8}


def test_few_rows_of_an_m_contiguous_a_are_whole_panels() -> None:
    found = [config for config in narrow_space(packed(100, 4096, 4096, a_major="m"), H200) if config.swap]
    assert {config.tile_n for config in found} == {128, 64}


def test_few_columns_need_no_swap() -> None:
    found = list(narrow_space(packed(4096, 24, 4096), H200))
    assert {config.tile_n for config in found if config.tile_m == 64} >= {24}
    assert not any(config.swap for config in found)


def test_rings_are_as_deep_as_shared_memory_and_no_deeper_than_k() -> None:
    """64 x 8 x 64: slots of 9 KB, of which 25 fit; k of 4 slots needs 4."""
    deep = next(config for config in narrow_space(packed(8, 4096, 4096), H200) if config.swap)
    assert (deep.tile_m, deep.tile_n, deep.stages) == (64, 8, 25)
    assert deep.replace(stages=26).violations(packed(8, 4096, 4096), H200)
    assert {config.stages for config in narrow_space(packed(8, 4096, 256), H200)} == {4}


def test_every_cta_of_a_split_has_four_k_tiles() -> None:
    assert {config.split_k for config in narrow_space(packed(64, 64, 1024), H200)} == {1, 2, 4}
