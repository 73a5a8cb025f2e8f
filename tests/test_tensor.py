"""Memory that two arrays share, to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import dtypes
from tilewright.tensor import Location, Rows, View, overlap

ROWS = st.builds(
    Rows, st.integers(0, 60), st.integers(0, 6), st.integers(0, 8), st.integers(1, 16)
)  # small enough to list every byte


def _bytes(rows: Rows) -> set[int]:
    starts = range(rows.address, rows.address + rows.num_rows * rows.pitch_bytes, rows.pitch_bytes)
    return {start + offset for start in starts for offset in range(rows.row_bytes)}


@settings(max_examples=1000, deadline=None)
@given(ROWS, ROWS)
def test_overlap_says_what_comparing_every_byte_says(first: Rows, second: Rows):
    assert overlap(first, second) == bool(_bytes(first) & _bytes(second))


def test_disjoint_columns_of_one_matrix_do_not_overlap():
    assert not overlap(Rows(0, 64, 128, 256), Rows(128, 64, 128, 256))


def test_columns_that_share_one_byte_overlap():
    assert overlap(Rows(0, 64, 129, 256), Rows(128, 64, 128, 256))


def test_the_even_and_odd_rows_of_one_matrix_do_not_overlap():
    assert not overlap(Rows(0, 32, 256, 512), Rows(256, 32, 256, 512))


@pytest.mark.parametrize("second", [Rows(1, 2**31, 1, 5), Rows(2**33 + 3, 1, 1, 1)])
def test_overlap_of_billions_of_rows_is_found_without_walking_them(second: Rows):
    assert not overlap(Rows(0, 2**31, 1, 4), Rows(2, 2**31, 1, 4))
    assert overlap(Rows(0, 2**31, 1, 4), second) == (second.pitch_bytes == 5)


def test_a_view_says_where_it_lies():
    view = View(16, (2, 3), (3, 1), dtypes.BF16, Location("cuda", 1))
    assert str(view) == "(2, 3) bf16 with strides (3, 1) on cuda:1"
    assert str(Location("host", 0)) == "the CPU"
