"""One launch of each variant of a sweep, for a profiler to look on. Imports no torch, which ncu would wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.backends.cuda import backend
from tilewright.bench.launched import launched
from tilewright.bench.sweeps import Sweep, described
from tilewright.errors import CompileError, ConfigError

Row = dict[str, Any]


def launched_rows(sweep: Sweep) -> Iterator[Row]:
    """Launches the kernel of each variant once, one after the other, without what adds slices up; a row each.

    Raises: DriverError: the process is of no more use.
    """
    device = backend().device(0)
    for variant in sweep.variants:
        row = described(sweep, variant) | {"kind": "sweep_counters"}
        try:
            plan = variant.plan(sweep.problem, device, backend)
            launched(plan)
        except (ConfigError, CompileError) as error:
            yield row | {"status": "refused", "why": f"{type(error).__name__}: {error}"[:600]}
            continue
        yield row | {"status": "launched", "entry": plan.binary.entry}
