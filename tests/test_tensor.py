"""Memory that two arrays share, to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import dtypes
from tilewright.tensor import Location, Rows, View, overlap

BATCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=3).map(tuple)
ROWS = st.builds(
    Rows, st.integers(0, 60), st.integers(0, 6), st.integers(0, 8), st.integers(1, 16), st.just(()) | BATCHES
)  # small enough to list every byte


def _bytes(rows: Rows) -> set[int]:
    return {
        one.address + row * one.pitch_bytes + offset
        for one in rows.matrices()
        for row in range(one.num_rows)
        for offset in range(one.row_bytes)
    }


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


def test_the_end_of_a_batch_is_that_of_its_last_matrix():
    rows = Rows(64, 2, 16, 32, ((3, 1000), (2, 100)))
    assert rows.end == max(_bytes(rows)) + 1
    assert [one.address for one in rows.matrices()] == [64, 164, 1064, 1164, 2064, 2164]


def test_heads_of_one_packed_array_do_not_overlap():
    """q, k, v and out of attention as slices of one (batch, tokens, 4, heads, 64) array of 16-bit elements."""
    token, batch = 4 * 16 * 64 * 2, 512 * 4 * 16 * 64 * 2
    parts = [Rows(4096 + part * 16 * 128, 512, 128, token, ((8, batch), (16, 128))) for part in range(4)]
    assert not any(overlap(parts[3], part) for part in parts[:3])
    assert overlap(parts[3], parts[3]._replace(address=parts[3].address + 126))


def test_batches_of_more_bytes_than_numpy_counts_are_taken_for_overlapping():
    """B056: 2^31 matrices of 2^31 rows of 2^20 bytes that lie on each other, as a view with small strides may have."""
    windows = Rows(0, 2**31, 2**20, 2**20, ((2**31, 16),))
    assert overlap(windows, Rows(2**30, 4, 64, 64))
    assert not overlap(windows, Rows(windows.end, 4, 64, 64))


def test_a_view_says_where_it_lies():
    view = View(16, (2, 3), (3, 1), dtypes.BF16, Location("cuda", 1))
    assert str(view) == "(2, 3) bf16 with strides (3, 1) on cuda:1"
    assert str(Location("host", 0)) == "the CPU"
