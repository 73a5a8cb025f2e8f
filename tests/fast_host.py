"""CPU tensors whose products run at once: the whole way of a call but for the compiler and the emulator."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from fakes import FakeCompiler, HostBackend
from tilewright.dispatch import Dispatcher
from tilewright.epilogue import as_epilogue, evaluate, whole_b


@dataclass
class FastHost(HostBackend):
    """NumPy in the emulator's place: no limit, no kernel."""

    limit_s: float | None = None
    checks: bool = False


class FastDispatcher(Dispatcher):
    """Epilogues are planned, which refuses what has to be refused, and then computed by their reference."""

    planned: ClassVar[set[Any]] = set()

    def matmul(self, a: Any, b: Any, out: Any = None, *, epilogue: Any = None, **options: Any) -> Any:
        if epilogue is None:
            return super().matmul(a, b, out, **options)
        layout = [(x.shape, x.strides, x.dtype) for x in (a, b, out, *as_epilogue(epilogue).arrays)]
        key = (str(layout), as_epilogue(epilogue).structure)
        if key not in self.planned:
            self.plan(a, b, out, epilogue=epilogue)
            self.planned.add(key)
        self.host().count("fused")
        sums = a.astype(np.float64) @ whole_b(b, epilogue).astype(np.float64)
        for matrix in np.ndindex(sums.shape[:-2]):
            found = evaluate(epilogue, sums[matrix], sums[matrix] * 0, matrix)
            out[matrix] = found.out.value.astype(out.dtype)
            for step, values in found.written:
                step.array[matrix] = values.value.astype(step.array.dtype)
        return out


def multiplied_by_numpy(monkeypatch: pytest.MonkeyPatch) -> FastHost:
    """The ops' CPU kernels multiply with NumPy in float64 and round once; the backend counts what it is asked."""
    from tilewright.frontends.torch import products

    backend = FastHost()
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    monkeypatch.setattr(products, "dispatch", FastDispatcher(lambda: backend, lambda: backend))
    return backend
