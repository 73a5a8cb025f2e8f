"""Power, clock and temperature of one GPU while something runs on it. Reads only: no setting is ever changed.

Knows nothing of what is being timed. Sources, in this order: NVML through cuda.bindings.nvml, nvidia-smi as a child
process, nothing (then every reading is None and no measurement fails for it).
"""

from __future__ import annotations

import functools
import operator
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

INTERVAL_S = 0.02  # the driver refreshes its power average about every 20 to 100 ms; more often reads the same value
SMI_FIELDS = "power.draw,clocks.sm,temperature.gpu,clocks_event_reasons.active"
CLOCK_SM = 1  # NVML_CLOCK_SM, nvml.h
SENSOR_GPU = 0  # NVML_TEMPERATURE_GPU, nvml.h


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The state of the card at one moment, or the median over a while.

    Units: `watts` as the driver averages it over about a second (Ampere and later); `clock_mhz` reads about 10 %
    above the clock counted inside a kernel (measured, H200, 2026-11-29); `limits` is NVML's mask of clock-limit
    reasons, 0x4 the power cap; over a while, the reasons of all moments together.
    """

    watts: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    limits: int | None = None

    @classmethod
    def together(cls, readings: Iterable[Reading]) -> Reading:
        """The median of each quantity over the readings that have it; the limits of all."""
        readings = list(readings)

        def middle(values: list[float | None]) -> float | None:
            known = [value for value in values if value is not None]
            return statistics.median(known) if known else None

        masks = [reading.limits for reading in readings if reading.limits is not None]
        return cls(
            watts=middle([reading.watts for reading in readings]),
            clock_mhz=middle([reading.clock_mhz for reading in readings]),
            temperature_c=middle([reading.temperature_c for reading in readings]),
            limits=functools.reduce(operator.or_, masks) if masks else None,
        )


Reader = Callable[[], Reading]


class Sampler:
    """A background thread that reads the card every `INTERVAL_S`; a `with` block starts and stops it."""

    def __init__(self, readings: Iterator[Reading] | None) -> None:
        self._readings = readings
        self._log: list[tuple[float, Reading]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def between(self, start_s: float, stop_s: float) -> Reading:
        """The median of the readings taken between two moments of time.perf_counter()."""
        return Reading.together(reading for moment, reading in list(self._log) if start_s <= moment <= stop_s)

    def _run(self, readings: Iterator[Reading]) -> None:
        for reading in readings:
            self._log.append((time.perf_counter(), reading))
            if self._stop.is_set():
                return

    def __enter__(self) -> Sampler:
        if self._readings is not None:
            self._thread = threading.Thread(target=self._run, args=(self._readings,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        close = getattr(self._readings, "close", None)
        if close is not None and (self._thread is None or not self._thread.is_alive()):
            close()


def sampler(uuid: str) -> Sampler:
    """A sampler of the card with this UUID ("GPU-..."), from the first source that answers."""
    reader = _nvml_reader(uuid)
    if reader is not None:
        return Sampler(_polled(reader))
    return Sampler(_smi_readings(uuid))


def _polled(reader: Reader) -> Iterator[Reading]:
    while True:
        yield reader()
        time.sleep(INTERVAL_S)


def _nvml_reader(uuid: str) -> Reader | None:
    """One reading at a time through NVML, or None where the bindings or the library are not there."""
    try:
        from cuda.bindings import nvml  # here: machines without it still time

        nvml.init_v2()
        handle = nvml.device_get_handle_by_uuid(uuid)
    except Exception:  # the bindings' loader, an old package, no permission: each means "take nvidia-smi"
        return None
    return reader_of(nvml, handle)


def reader_of(nvml: Any, handle: Any) -> Reader:
    """Reads what the module `nvml` knows of the device; what it does not know, or refuses, is None."""

    def one(ask: Callable[[], Any], scale: float = 1.0) -> float | None:
        try:
            return float(ask()) * scale
        except Exception:  # each field is optional: virtual GPUs and old drivers refuse some of them
            return None

    def read() -> Reading:
        limits = one(lambda: nvml.device_get_current_clocks_event_reasons(handle))
        return Reading(
            watts=one(lambda: nvml.device_get_power_usage(handle), 1e-3),  # milliwatts
            clock_mhz=one(lambda: nvml.device_get_clock_info(handle, CLOCK_SM)),
            temperature_c=one(lambda: nvml.device_get_temperature_v(handle, SENSOR_GPU)),
            limits=None if limits is None else int(limits),
        )

    return read


def _smi_readings(uuid: str) -> Iterator[Reading] | None:
    """nvidia-smi's own loop, one reading a line; None where it is not installed. The child ends with the iterator."""
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        child = subprocess.Popen(  # ended in lines(), below
            [*command, f"--loop-ms={round(INTERVAL_S * 1000)}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        return None

    def lines() -> Iterator[Reading]:
        try:
            for line in child.stdout or ():
                yield parse_smi(line)
        finally:
            child.terminate()
            child.wait(timeout=5.0)

    return lines()


def parse_smi(line: str) -> Reading:
    """A line of nvidia-smi's CSV; fields that it does not know ("[N/A]") are None."""
    fields = [field.strip() for field in line.split(",")]

    def number(text: str) -> float | None:
        try:
            return float(int(text, 16)) if text.startswith("0x") else float(text)
        except ValueError:
            return None

    watts, clock, temperature, limits = [*map(number, fields), None, None, None, None][:4]
    return Reading(
        watts=watts,
        clock_mhz=clock,
        temperature_c=temperature,
        limits=None if limits is None else int(limits),
    )
