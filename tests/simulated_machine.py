"""A device whose time is simulated, for the clock and for what is built on it."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.backends.nvml import Reading


class SimulatedMachine:
    """Work takes what each candidate says, times the heat of the moment; every step is logged."""

    def __init__(self, *, captures: bool = True) -> None:
        self.now_us = 0.0
        self.heat = 1.0
        self.captures = captures
        self.log: list[str] = []
        self._capturing: list[tuple[str, float]] | None = None

    def work(self, name: str, us: float) -> Callable[[int], None]:
        def launch(index: int) -> None:
            if self._capturing is not None:
                self._capturing.append((name, us))
            else:
                self.now_us += us * self.heat
                self.log.append(f"{name} {index}")

        return launch

    def record(self) -> float:
        return self.now_us

    def wait(self, event: float) -> None:
        pass

    def elapsed_us(self, start: float, stop: float) -> float:
        return stop - start

    def capture(self, enqueue: Callable[[], None]) -> tuple[Callable[[], None], bool]:
        if not self.captures:
            return enqueue, False
        self._capturing = []
        enqueue()
        captured, self._capturing = self._capturing, None

        def replay() -> None:
            self.log.append(f"graph {captured[0][0]} {len(captured)}")
            self.now_us += sum(us for _, us in captured) * self.heat

        return replay, True

    def flush_l2(self) -> None:
        self.log.append("flush")
        self.now_us += 70

    def idle(self, seconds: float) -> None:
        self.log.append(f"idle {seconds}")

    def now_s(self) -> float:
        return self.now_us * 1e-6

    def reading(self, start_s: float, stop_s: float) -> Reading:
        return Reading(watts=700.0 if stop_s > start_s else None, clock_mhz=1500.0, limits=4)
