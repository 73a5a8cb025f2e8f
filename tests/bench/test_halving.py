"""bench/halving.py on a machine whose time is simulated: what is looked at, what is raced, what it costs."""

from __future__ import annotations

import random

import pytest

from simulated_machine import SimulatedMachine
from tilewright.bench.halving import RUNGS, Rung, affordable, cost_us, race, screen
from tilewright.errors import LibraryError
from tilewright.timing import Candidate

FOREVER = 1e9


def field(machine: SimulatedMachine, times_us: dict[str, float], num_sets: int = 3) -> list[Candidate]:
    return [Candidate(name, machine.work(name, us), num_sets) for name, us in times_us.items()]


def calls_of(machine: SimulatedMachine, name: str) -> int:
    direct = sum(entry.rsplit(" ", 1)[0] == name for entry in machine.log)
    return direct + sum(int(entry.split()[2]) for entry in machine.log if entry.startswith(f"graph {name} "))


def test_the_first_look_finds_the_order() -> None:
    machine = SimulatedMachine()
    times = {str(index): us for index, us in enumerate(random.Random(0).sample(range(20, 2000), 50))}
    found = screen(machine, field(machine, times), until_s=FOREVER)
    assert found.order() == sorted(times, key=times.__getitem__)
    assert found.relative["0"] == 1.0
    assert found.times_us["7"] == pytest.approx(times["7"])


def test_a_card_that_slows_down_does_not_favour_what_is_looked_at_first() -> None:
    machine = SimulatedMachine()
    flush = machine.flush_l2

    def warming() -> None:
        flush()
        machine.heat = min(1.25, machine.heat + 0.002)

    machine.flush_l2 = warming  # type: ignore[method-assign]
    times = dict.fromkeys(map(str, range(80)), 500.0) | {"79": 450.0}
    found = screen(machine, field(machine, times), until_s=FOREVER)
    assert machine.heat == pytest.approx(1.25)
    assert found.times_us["79"] > found.times_us["1"], "by the clock alone the last would not win"
    assert found.order()[0] == "79"


def test_short_calls_are_sampled_in_a_graph_and_long_ones_twice() -> None:
    machine = SimulatedMachine()
    screen(machine, field(machine, {"short": 5.0, "long": 5000.0}), until_s=FOREVER)
    assert calls_of(machine, "short") == 2 + 60
    assert calls_of(machine, "long") == 2


def test_what_is_far_off_is_called_once() -> None:
    machine = SimulatedMachine()
    screen(machine, field(machine, {"good": 20_000.0, "bad": 200_000.0}), until_s=FOREVER)
    assert calls_of(machine, "bad") == 1


def test_every_sample_begins_with_a_cold_cache() -> None:
    machine = SimulatedMachine()
    screen(machine, field(machine, {"a": 1000.0, "b": 10.0}), until_s=FOREVER)
    samples = [entry for entry in machine.log if not entry.startswith("flush")]
    assert machine.log.count("flush") == len(samples)


def test_the_time_ends_the_first_look_but_not_before_one_has_run() -> None:
    machine = SimulatedMachine()
    found = screen(machine, field(machine, dict.fromkeys(map(str, range(50)), 1000.0)), until_s=0.0101)
    assert 3 < len(found.relative) < 10
    found = screen(machine, field(machine, {"a": 1000.0, "b": 10.0}), until_s=0.0)
    assert list(found.relative) == ["a"]


def test_what_does_not_launch_is_left_out_with_its_reason() -> None:
    machine = SimulatedMachine()

    def broken(index: int) -> None:
        raise LibraryError("cublasLtMatmul", "CUBLAS_STATUS_NOT_SUPPORTED", "no")

    candidates = [Candidate("broken", broken), *field(machine, {"a": 100.0, "b": 90.0})]
    found = screen(machine, candidates, until_s=FOREVER)
    assert found.order() == ["b", "a"]
    assert "NOT_SUPPORTED" in found.failed["broken"]


def test_the_race_ends_with_the_fastest_and_its_last_rung_is_long() -> None:
    machine = SimulatedMachine()
    times = {str(index): 200.0 + index for index in range(40)}
    results = race(machine, field(machine, times), times, until_s=FOREVER)
    assert [candidate.name for candidate, _ in results] == ["0", "1", "2", "3", "4", "5"]
    assert [us for _, us in results] == pytest.approx([times[str(index)] for index in range(6)])
    assert calls_of(machine, "0") > 10 * 20, "ten rounds of four milliseconds"
    assert calls_of(machine, "30") == 0


def test_the_race_corrects_a_first_look_that_was_wrong() -> None:
    machine = SimulatedMachine()
    times = {str(index): 200.0 + index for index in range(20)}
    backwards = list(reversed(field(machine, times)))
    results = race(machine, backwards, times, until_s=FOREVER)
    assert results[0][0].name == "0"


def test_without_time_two_are_raced_on_the_last_rung_alone() -> None:
    machine = SimulatedMachine()
    times = {str(index): 5000.0 + index for index in range(20)}
    results = race(machine, field(machine, times), times, until_s=0.0)
    assert [candidate.name for candidate, _ in results] == ["0", "1"]


def test_a_single_candidate_wins() -> None:
    machine = SimulatedMachine()
    assert [us for _, us in race(machine, field(machine, {"a": 100.0}), {"a": 100.0}, until_s=FOREVER)] == [100.0]


@pytest.mark.parametrize("us", [4.0, 100.0, 13_000.0])
def test_what_a_rung_is_said_to_cost_is_about_what_it_takes(us: float) -> None:
    for rung in RUNGS:
        machine = SimulatedMachine()
        race(machine, field(machine, {"a": us}), {"a": us}, until_s=FOREVER, rungs=[rung])
        estimate = cost_us(us, 3, rung)
        assert machine.now_us - 70 * (rung.rounds + 1) <= estimate * 1.05
        assert estimate < 1.5 * machine.now_us + 10_000


def test_as_many_enter_a_rung_as_its_time_allows() -> None:
    machine = SimulatedMachine()
    times = dict.fromkeys("abcdefgh", 1000.0)
    rung = Rung(8, 2, 1000.0)
    one_us = cost_us(1000.0, 3, rung)
    columns = field(machine, times)
    assert [len(affordable(columns, times, rung, count * one_us)) for count in (0, 1, 2, 3.5, 100)] == [2, 2, 2, 3, 8]
