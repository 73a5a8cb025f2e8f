"""The race: it stops when the gap is more than the noise, calls a tie a tie, and breaks it by order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tilewright.tuning.race import MAX_ROUNDS, MIN_ROUNDS, Race, spread


def raced(true_us: Sequence[float], noise: float, seed: int = 0, drift: float = 0.05) -> Race:
    """A race to its end: each round drifts for all, and each sample has noise of its own."""
    chance = random.Random(seed)
    race = Race(list(range(len(true_us))))
    while race.decided() is None:
        heat = 1 + drift * chance.random()
        race.add({runner: true_us[runner] * heat * (1 + chance.gauss(0, noise)) for runner in race.running})
    return race


def test_a_large_gap_is_decided_after_the_fewest_rounds() -> None:
    race = raced([105.0, 100.0, 120.0], noise=0.002)
    assert (race.decided(), race.winner(), race.rounds) == ("clear", 1, MIN_ROUNDS)
    assert "the next is 5." in race.verdict("clear")


def test_nothing_is_decided_before_the_fewest_rounds() -> None:
    race = Race([0, 1])
    for _ in range(MIN_ROUNDS - 1):
        race.add({0: 100.0, 1: 900.0})
        assert race.decided() is None
        assert race.running == [0, 1]


def test_drift_that_all_share_hides_no_gap() -> None:
    race = raced([100.0, 102.0], noise=0.001, drift=0.5)
    assert (race.decided(), race.winner(), race.rounds) == ("clear", 0, MIN_ROUNDS)
    assert spread(race.times[0]) > 0.1


def test_equals_without_noise_are_a_tie_at_once_and_the_first_in_order_wins() -> None:
    race = raced([100.2, 100.0, 100.0], noise=0.0)
    assert (race.decided(), race.winner(), race.rounds) == ("tie", 0, MIN_ROUNDS)
    assert "3 candidates are equal within the noise" in race.verdict("tie")


def test_a_gap_within_the_noise_is_a_tie_when_the_rounds_end() -> None:
    race = raced([101.0, 100.0], noise=0.1)
    assert (race.decided(), race.winner(), race.rounds) == ("tie", 0, MAX_ROUNDS)


def test_who_is_clearly_slower_runs_no_more_while_the_others_go_on() -> None:
    race = raced([100.0, 150.0, 100.1], noise=0.01)
    assert len(race.times[1]) == MIN_ROUNDS < race.rounds
    assert race.lost_to[1][1].median == pytest.approx(0.5, abs=0.05)


def test_the_winner_of_equals_is_the_same_in_nearly_every_race() -> None:
    winners = [raced([100.0] * 8, noise=0.01, seed=seed).winner() for seed in range(40)]
    assert winners.count(0) >= 38


def test_a_gap_of_one_percent_is_found_in_nearly_every_race_at_half_a_percent_of_noise() -> None:
    races = [raced([101.0, 100.0], noise=0.005, seed=seed) for seed in range(40)]
    assert sum(race.winner() == 1 for race in races) >= 38
    assert sum(race.rounds for race in races) / 40 < 30


def test_a_dropped_runner_leaves_the_rest_to_be_compared() -> None:
    race = Race([0, 1, 2])
    for _ in range(3):
        race.add({0: 90.0, 1: 100.0, 2: 110.0})
    race.drop(0)
    while race.decided() is None:
        race.add({runner: {1: 100.0, 2: 110.0}[runner] for runner in race.running})
    assert (race.winner(), race.decided()) == (1, "clear")


def test_a_single_runner_is_timed_and_said_to_be_the_only_one() -> None:
    race = raced([100.0], noise=0.01)
    assert (race.decided(), race.rounds) == ("clear", MIN_ROUNDS)
    assert "only candidate" in race.verdict("clear")


def test_a_race_that_the_budget_ends_says_after_how_many_rounds() -> None:
    race = Race([3, 5])
    race.add({3: 101.0, 5: 100.0})
    assert not race.is_telling
    assert race.verdict("budget") == f"the time ended after 1 of the {MIN_ROUNDS} rounds that tell candidates apart"
    chance = random.Random(0)
    while not race.is_telling:
        race.add({3: 101.0 * chance.uniform(0.9, 1.1), 5: 100.0 * chance.uniform(0.9, 1.1)})
    assert race.decided() is None
    assert race.verdict("budget").startswith(f"the time ended after {MIN_ROUNDS} rounds: 2 candidates are equal within")
