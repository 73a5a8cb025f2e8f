"""CPU tensors whose products run at once: the whole way of a call but for the compiler and the emulator."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from fakes import FakeCompiler, HostBackend
from tilewright.dispatch import Dispatcher


@dataclass
class FastHost(HostBackend):
    """NumPy in the emulator's place: no limit, no kernel."""

    limit_s: float | None = None
    checks: bool = False


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> FastHost:
    """The ops' CPU kernels multiply with NumPy in float64 and round once; the backend counts what it is asked."""
    pytest.importorskip("torch")
    from tilewright.frontends.torch import products

    backend = FastHost()
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    monkeypatch.setattr(products, "dispatch", Dispatcher(lambda: backend, lambda: backend))
    return backend
