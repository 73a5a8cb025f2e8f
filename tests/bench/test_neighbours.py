"""bench/neighbours.py: which sizes lie side by side, and which of them is a cliff (B143, B145)."""

from __future__ import annotations

import pytest

from tilewright.bench import suite
from tilewright.bench.neighbours import Line, lines


def test_sizes_alike_but_for_one_extent_are_a_line_until_a_gap_of_more_than_8() -> None:
    sizes = [(64, n, 32) for n in (8, 9, 17, 40, 41, 42)] + [(1, 1, 1), (64, 41, 33)]
    found = lines({size: float(sum(size)) for size in sizes})
    assert [str(line) for line in found] == ["64, 8 .. 17, 32", "64, 40 .. 42, 32"]
    assert found[0].times_us == (104.0, 105.0, 113.0)


@pytest.mark.parametrize(("suite_name", "shown"), [
    ("neighbours", ["4096, 2040 .. 2072, 4096", "4096, 4096, 8184 .. 8200"]),
    ("decode", ["1 .. 64, 4096, 4096", "1 .. 64, 6144, 4096"]),
])  # fmt: skip
def test_the_shipped_sweeps_are_lines(suite_name: str, shown: list[str]) -> None:
    times = {entry.shape: 1.0 for entry in suite.entries(suite_name)}
    assert [str(line) for line in lines(times)] == shown


def line(*times_us: float) -> Line:
    return Line(1, tuple((1, n, 1) for n in range(14, 14 + len(times_us))), times_us)


def test_a_time_is_held_against_the_faster_aligned_neighbour() -> None:
    """N of 14 to 26: 17 has 16 and 24 as neighbours, 14 has 16 alone."""
    assert line(9, 9, 10, 14, 11, 11, 11, 11, 11, 11, 8).over_aligned() == (14 / 8, (1, 17, 1))
    assert line(20, 9, 10).over_aligned() == (2.0, (1, 14, 1))


def test_a_step_from_one_aligned_size_to_the_next_shows() -> None:
    assert line(1, 1, 10, 10, 10, 10, 10, 10, 10, 10, 30).over_aligned() == (3.0, (1, 24, 1))


def test_without_an_aligned_size_the_next_sizes_are_the_neighbours() -> None:
    assert Line(0, ((1, 1, 1), (2, 1, 1), (3, 1, 1)), (4.0, 6.0, 5.0)).over_aligned() == (1.5, (2, 1, 1))


def test_times_that_grow_are_1_over_a_larger_size_and_a_hump_is_more() -> None:
    assert line(1, 2, 3).over_larger()[0] == 1.0
    assert line(1, 6, 3, 4, 5).over_larger() == (2.0, (1, 15, 1))


def test_a_line_is_told_as_cells_and_as_one_word() -> None:
    assert line(1, 6, 3, 9, 9).cells() == ("3.000", "17", "2.000", "15")
    assert line(1, 6, 3, 4, 5).key == "1x14..18x1"
