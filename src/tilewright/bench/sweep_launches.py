"""One launch of each variant of a sweep, for a profiler to look on. Imports no torch, which ncu would wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.backends.cuda import backend
from tilewright.backends.memory import Buffer
from tilewright.bench.sweeps import PROBLEM, Sweep, described
from tilewright.errors import TilewrightError

Row = dict[str, Any]

ONES = 0x3F803F80  # two bf16: traffic and bank conflicts do not depend on the values
NAN_WORD = 0x7FC07FC0  # two bf16 NaNs


def launched_rows(sweep: Sweep) -> Iterator[Row]:
    """Launches each variant once, one after the other; a row each.

    Raises: DriverError: the process is of no more use.
    """
    cuda = backend()
    device = cuda.device(0)
    out_bytes = PROBLEM.m * PROBLEM.out_pitch * PROBLEM.out_dtype.size
    with (
        Buffer.allocate(cuda, PROBLEM.extent_bytes["a"]) as a,
        Buffer.allocate(cuda, PROBLEM.extent_bytes["b"]) as b,
        Buffer.allocate(cuda, out_bytes) as out,
    ):
        a.fill(ONES)
        b.fill(ONES)
        out.fill(NAN_WORD)
        addresses = {"a": a.address, "b": b.address, "out": out.address}
        for variant in sweep.variants:
            row = described(sweep, variant) | {"kind": "sweep_counters"}
            try:
                plan = variant.plan(PROBLEM, device, backend)
                kernel = cuda.load(plan.binary, 0, plan.launch)
            except TilewrightError as error:
                yield row | {"status": "refused", "why": f"{type(error).__name__}: {error}"[:600]}
                continue
            cuda.launch(cuda.pack(kernel, plan.launch, plan.arguments, addresses), 0)
            with cuda.on(0):
                cuda.call("cuCtxSynchronize")
            yield row | {"status": "launched", "entry": plan.binary.entry}
