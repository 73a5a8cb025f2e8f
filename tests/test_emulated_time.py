"""Estimates of the emulator's time: what they grow with, and what is advised where they are too long."""

from __future__ import annotations

import pytest

from tilewright import device, emulated_time
from tilewright.ampere_config import AmpereConfig
from tilewright.config import Config
from tilewright.emulated_time import affordable, duration_text, emulated_s, too_long
from tilewright.kernels.ampere import AMPERE
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.ladder import RUNGS
from tilewright.packing import packed
from tilewright.problem import Problem

H200 = device.preset("h200")
CONFIG = Config(tile_m=128, tile_n=128, stages=4)


def seconds(problem: Problem, config: Config = CONFIG, checks: bool = False) -> float:
    return emulated_s(problem, config, HOPPER.launch(problem, config, H200), checks=checks)


def test_twice_the_work_takes_nearly_twice_as_long() -> None:
    once, twice = seconds(packed(2048, 2048, 4096)), seconds(packed(2048, 2048, 8192))
    assert 1.8 < twice / once < 2


def test_the_checks_take_longer() -> None:
    assert seconds(packed(512, 512, 512), checks=True) > 2 * seconds(packed(512, 512, 512))


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.number)
def test_every_rung_has_an_estimate(rung) -> None:
    problem = packed(256, 256, 256)
    launch = rung.launch(problem, rung.config, H200)
    assert 0.2 < emulated_s(problem, rung.config, launch, family=rung.name) < 10


@pytest.mark.parametrize("checks", [False, True])
def test_the_ampere_family_takes_longer_by_its_k_tiles_however_many_ctas_run_as_one(checks: bool) -> None:
    """The way in and out is 5 us an element with the checker, so k has to be long."""
    a100, config = device.preset("a100"), AmpereConfig(tile_m=64, tile_n=128)
    problems = (packed(1024, 1024, 1 << 14), packed(1024, 1024, 1 << 15))
    once, twice = (
        emulated_s(each, config, AMPERE.launch(each, config, a100), family="ampere", checks=checks) for each in problems
    )
    assert 1.8 < twice / once < 2
    assert once > 30  # measured, 2-core x86-64, 2026-11-30: an eighth of it without the checker in 8 s


def test_an_affordable_product_is_itself() -> None:
    problem = packed(256, 256, 256)
    assert affordable(problem, seconds, 100.0) == problem


@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (100, 30000, 70), (5000, 3, 100_001)])
def test_the_size_advised_is_affordable_and_no_larger(sizes: tuple[int, int, int]) -> None:
    problem = packed(*sizes)
    smaller = affordable(problem, seconds, 1.0)
    assert smaller is not None
    assert seconds(smaller) <= 1.0
    assert smaller.m <= problem.m
    assert smaller.n <= problem.n
    assert smaller.k <= problem.k


def test_a_limit_below_any_product_has_no_advice() -> None:
    problem = packed(256, 256, 256)
    assert affordable(problem, seconds, 0.0) is None
    assert "try" not in str(too_long(problem, 9.0, 0.0, None))


@pytest.mark.parametrize(
    ("length_s", "text"), [(0.26, "0.3 s"), (19.7, "20 s"), (150, "2 minutes"), (8000, "2 hours"), (9e5, "10 days")]
)
def test_durations_read_well(length_s: float, text: str) -> None:
    assert duration_text(length_s) == text


def test_the_limit_takes_a_512_cube_with_its_checks() -> None:
    config = Config(tile_m=64, tile_n=32, stages=14, consumers=1)
    both = seconds(packed(512, 512, 512), config, checks=True) + seconds(packed(512, 512, 512), config)
    assert both < emulated_time.LIMIT_S
