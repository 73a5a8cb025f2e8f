"""The clock against a machine whose time is simulated: no test here waits."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from simulated_machine import SimulatedMachine
from tilewright.timing import (
    Candidate,
    Column,
    burst,
    host_cost_us,
    interleaved,
    num_cold_sets,
    quartiles,
    rates,
    single,
    steady,
)


def columns(machine: SimulatedMachine, *names_and_us: tuple[str, float]) -> list[Candidate]:
    return [Candidate(name, machine.work(name, us), num_sets=3) for name, us in names_and_us]


def test_interleaved_measures_each_columns_time_a_call() -> None:
    machine = SimulatedMachine()
    timing = interleaved(machine, columns(machine, ("cublas", 200.0), ("ours", 160.0)))
    assert timing.sample("cublas").median_us == pytest.approx(200.0)
    assert timing.sample("ours").median_us == pytest.approx(160.0)
    [ratio] = timing.ratios
    assert (ratio.candidate, ratio.baseline, ratio.pairs) == ("ours", "cublas", 9)
    assert ratio.median == pytest.approx(1.25)


def test_interleaved_fills_about_four_milliseconds_with_2_to_256_calls() -> None:
    machine = SimulatedMachine()
    timing = interleaved(machine, columns(machine, ("slow", 20_000.0), ("middle", 200.0), ("tiny", 1.0)))
    assert [timing.sample(name).calls for name in ("slow", "middle", "tiny")] == [2, 20, 256 * 16]


def test_interleaved_flushes_the_l2_before_every_sample_and_discards_a_round() -> None:
    machine = SimulatedMachine()
    prepared = columns(machine, ("a", 100.0), ("b", 100.0))
    timing = interleaved(machine, prepared, rounds=4)
    samples = machine.log[machine.log.index("flush") :]
    assert samples[::2] == ["flush"] * 10
    assert all(entry.startswith("graph") for entry in samples[1::2])
    assert timing.sample("a").rounds == 4


class SlowHost(SimulatedMachine):
    """A host that needs 50 us for every launch, in which the device waits; a graph is one launch."""

    HOST_US = 50.0

    def work(self, name: str, us: float) -> Callable[[int], None]:
        launch = super().work(name, us)

        def slowly(index: int) -> None:
            self.now_us += self.HOST_US
            launch(index)

        return slowly

    def capture(self, enqueue: Callable[[], None]) -> tuple[Callable[[], None], bool]:
        before = self.now_us
        replay, is_captured = super().capture(enqueue)
        if is_captured:
            self.now_us = before
        return replay, is_captured


def test_a_slow_host_changes_neither_times_nor_ranks_of_products_of_two_microseconds() -> None:
    """B104: M = 1 with 50 us on the host for each launch. Both times are of graphs, and the device's own."""
    machine = SlowHost()
    us = {"first": 2.2, "second": 2.0, "third": 2.1}
    timing = interleaved(machine, columns(machine, *us.items()))
    assert {name: timing.sample(name).median_us for name in us} == pytest.approx(us)
    assert all(sample.captured for sample in timing.samples)
    columns_of_a_tuning = {each.name: Column(machine, each) for each in columns(machine, *us.items())}
    assert {name: column.sample() for name, column in columns_of_a_tuning.items()} == pytest.approx(us)


def test_a_column_of_its_own_is_sampled_cold_whenever_it_is_asked() -> None:
    machine = SimulatedMachine()
    fast, slow = (Column(machine, candidate) for candidate in columns(machine, ("fast", 100.0), ("slow", 200.0)))
    prepared = len(machine.log)
    assert [fast.sample(), slow.sample(), fast.sample()] == pytest.approx([100.0, 200.0, 100.0])
    turns = machine.log[prepared:]
    assert turns[::2] == ["flush"] * 3
    assert [turn.split()[1] for turn in turns[1::2]] == ["fast", "slow", "fast"]


def test_columns_take_turns_in_an_order_that_changes_from_round_to_round() -> None:
    machine = SimulatedMachine()
    interleaved(machine, columns(machine, ("a", 100.0), ("b", 100.0), ("c", 100.0)), rounds=20)
    turns = [entry.split()[1] for entry in machine.log if entry.startswith("graph") and entry.endswith(" 40")]
    rounds = [tuple(turns[start : start + 3]) for start in range(0, 63, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 3


def test_ratio_is_paired_so_that_drift_between_rounds_cancels() -> None:
    machine = SimulatedMachine()
    original = machine.flush_l2
    flushes = iter(range(10_000))

    def drifting_flush() -> None:
        original()
        machine.heat = 1.0 + 0.05 * (next(flushes) // 2)  # each round is 5 % slower than the one before

    machine.flush_l2 = drifting_flush  # type: ignore[method-assign]
    timing = interleaved(machine, columns(machine, ("cublas", 200.0), ("ours", 160.0)))
    assert timing.sample("ours").spread > 0.1
    [ratio] = timing.ratios
    assert (ratio.lower, ratio.median, ratio.upper) == pytest.approx((1.25, 1.25, 1.25))


def test_burst_idles_half_a_second_before_each_twelve_milliseconds() -> None:
    machine = SimulatedMachine()
    timing = burst(machine, columns(machine, ("a", 1000.0)), rounds=3)
    assert machine.log.count("idle 0.5") == 4
    assert timing.sample("a").calls == 12
    assert timing.sample("a").watts is None


def test_burst_discards_no_round_when_the_card_is_warm_already() -> None:
    machine = SimulatedMachine()
    timing = burst(machine, columns(machine, ("a", 1000.0)), rounds=2, warm_rounds=0)
    assert timing.sample("a").rounds == 2
    assert machine.log.count("idle 0.5") == 2


def test_steady_times_the_second_half_and_logs_power_and_clock() -> None:
    machine = SimulatedMachine()
    [candidate] = columns(machine, ("a", 1000.0))
    timing = steady(machine, [candidate], rounds=2, seconds=0.1)
    sample = timing.sample("a")
    assert sample.median_us == pytest.approx(1000.0)
    assert (sample.clock_mhz, sample.limits) == (1500.0, 4)
    graphs = [entry for entry in machine.log if entry == "graph a 4"]
    assert len(graphs) == 2 * (1 + 2 * 13)  # a first one, then two halves of 50 ms in 4 ms graphs


def test_single_times_one_call_at_a_time_on_an_idle_card() -> None:
    machine = SimulatedMachine()
    timing = single(machine, columns(machine, ("a", 3.0), ("b", 2.0)), rounds=5)
    assert [timing.sample(name).median_us for name in ("a", "b")] == pytest.approx([3.0, 2.0])
    assert (timing.sample("a").rounds, timing.sample("a").calls, timing.sample("a").captured) == (5, 1, False)
    assert machine.log[6::2] == ["idle 0.0"] * 12  # after three sets of each: a round discarded, five timed
    assert all(entry in ("a 0", "b 0") for entry in machine.log[7::2])


def test_rates_are_what_the_median_means_and_power_counts_in_the_steady_mode_alone() -> None:
    row = {"median_us": 1000.0, "watts": 700.0, "mode": "steady"}
    found = rates(row, flops=7 * 10**11, moved_bytes=4 * 10**9)
    assert found == pytest.approx({"rate_tflops": 700.0, "rate_gbps": 4000.0, "tflops_per_watt": 1.0})
    assert rates(row | {"mode": "interleaved"}, flops=7 * 10**11)["tflops_per_watt"] is None
    assert rates(row | {"watts": None}, flops=1)["tflops_per_watt"] is None
    assert rates(row) == {"rate_tflops": None, "rate_gbps": None, "tflops_per_watt": None}


def test_candidate_that_cannot_be_captured_is_timed_and_marked() -> None:
    machine = SimulatedMachine(captures=False)
    sample = interleaved(machine, columns(machine, ("a", 100.0))).sample("a")
    assert sample.median_us == pytest.approx(100.0)
    assert not sample.captured


def test_every_operand_set_is_used_before_anything_is_timed() -> None:
    machine = SimulatedMachine()
    interleaved(machine, columns(machine, ("a", 100.0)))
    assert machine.log[:3] == ["a 0", "a 1", "a 2"]


def test_rows_are_json_with_the_ratio_beside_the_sample() -> None:
    machine = SimulatedMachine()
    rows = interleaved(machine, columns(machine, ("cublas", 200.0), ("ours", 100.0))).rows()
    assert json.loads(json.dumps(rows)) == rows
    assert [row["ratio"] for row in rows] == [None, pytest.approx(2.0)]
    assert rows[1]["baseline"] == "cublas"


def test_operand_sets_pass_four_times_the_l2() -> None:
    l2_bytes = 60 << 20
    for set_bytes in (1 << 14, 1 << 20, 100 << 20, 1 << 30):
        sets = num_cold_sets(set_bytes, l2_bytes)
        assert 2 <= sets <= 256
        assert sets == 256 or sets * set_bytes > 4 * l2_bytes


def test_quartiles_of_few_values_are_their_extremes() -> None:
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([1.0, 3.0]) == (1.0, 2.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_host_cost_starts_each_repeat_with_an_idle_gpu() -> None:
    events: list[str] = []
    cost = host_cost_us(lambda: events.append("call"), lambda: events.append("sync"), repeats=3, calls=5)
    assert events == (["sync"] + ["call"] * 5) * 4 + ["sync"]
    assert cost > 0
