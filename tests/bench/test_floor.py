"""bench/floor.py against the floors of the field's table, which were made of the same measurements."""

from __future__ import annotations

import pytest

from tilewright.bench.floor import floor, read_us
from tilewright.bench.suite import problem_of

H200 = "NVIDIA H200"


@pytest.mark.parametrize(
    ("shape", "us", "bound"),
    [
        ((8192, 8192, 8192), 1283.0, "compute"),
        ((4096, 32768, 512), 160.4, "compute"),
        ((16, 6144, 4096), 13.0, "memory"),
        ((131072, 256, 512), 45.3, "memory"),
        ((512, 512, 512), 1.7, "memory"),
        ((128, 57344, 8192), 206.1, "memory"),
    ],
)
def test_floors_are_those_of_the_published_table(shape: tuple[int, int, int], us: float, bound: str) -> None:
    found = floor(problem_of(shape), "interleaved", H200)
    assert found is not None
    assert found.us == pytest.approx(us, rel=0.03)
    assert found.bound == bound


def test_a_burst_has_a_lower_floor_and_another_card_none() -> None:
    problem = problem_of((8192, 8192, 8192))
    burst, steady = floor(problem, "burst", H200), floor(problem, "steady", H200)
    assert burst is not None
    assert steady is not None
    assert burst.us < steady.us
    assert floor(problem, "burst", "NVIDIA H100 PCIe") is None


def test_more_bytes_take_longer_also_past_the_table() -> None:
    times = [read_us(mib << 20) for mib in (0, 1, 4, 5, 64, 200, 256, 4096, 8192)]
    assert times == sorted(times)
    assert times[2] == 2.50
    assert times[-1] == pytest.approx(2 * 916.6, rel=0.01)
