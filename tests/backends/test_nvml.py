"""The power log: what each source says, and that a missing source costs no measurement."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tilewright.backends import nvml
from tilewright.backends.nvml import Reading, Sampler, parse_smi, reader_of


class Nvml:
    """A card at 700 W whose driver does not tell the temperature."""

    def device_get_power_usage(self, handle: int) -> int:
        return 700_250

    def device_get_clock_info(self, handle: int, kind: int) -> int:
        return {1: 1500}[kind]

    def device_get_temperature_v(self, handle: int, sensor: int) -> int:
        raise RuntimeError("not supported")

    def device_get_current_clocks_event_reasons(self, handle: int) -> int:
        return 0x4


def test_reading_is_in_watts_and_megahertz_and_an_unknown_field_is_none() -> None:
    assert reader_of(Nvml(), 1)() == Reading(watts=700.25, clock_mhz=1500.0, temperature_c=None, limits=4)


def test_line_of_nvidia_smi_is_parsed() -> None:
    assert parse_smi("705.31, 1522, 61, 0x0000000000000004\n") == Reading(
        watts=705.31, clock_mhz=1522.0, temperature_c=61.0, limits=4
    )


@pytest.mark.parametrize("line", ["", "[N/A], [N/A], [N/A], [N/A]", "No devices were found"])
def test_line_without_numbers_is_a_reading_of_nothing(line: str) -> None:
    assert parse_smi(line) == Reading()


def test_readings_together_are_medians_and_all_limits() -> None:
    readings = [Reading(watts=watts, limits=limits) for watts, limits in ((1.0, 1), (9.0, 4), (2.0, 0))]
    assert Reading.together([*readings, Reading(clock_mhz=5.0)]) == Reading(watts=2.0, clock_mhz=5.0, limits=5)
    assert Reading.together([]) == Reading()


def test_missing_nvml_and_nvidia_smi_give_none_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_nvml_reader", lambda uuid: None)
    monkeypatch.setenv("PATH", "")
    with nvml.sampler("GPU-0") as log:
        assert log.between(0.0, time.perf_counter()) == Reading()


def test_sampler_keeps_what_was_read_between_two_moments() -> None:
    taken = threading.Event()

    def readings() -> Iterator[Reading]:
        yield Reading(watts=1.0)
        taken.set()
        yield Reading(watts=2.0)

    start = time.perf_counter()
    with Sampler(readings()) as log:
        assert taken.wait(5.0)
    assert log.between(start, time.perf_counter()).watts == 1.5
    assert log.between(start - 2.0, start - 1.0) == Reading()


def test_sampler_ends_its_source() -> None:
    ended = []

    def readings() -> Iterator[Reading]:
        try:
            while True:
                yield Reading(watts=1.0)
        finally:
            ended.append(True)

    with Sampler(readings()):
        pass
    assert ended == [True]
