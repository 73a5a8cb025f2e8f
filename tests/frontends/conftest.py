"""What tests of the PyTorch frontend share."""

from __future__ import annotations

import pytest

from fast_host import FastHost, multiplied_by_numpy


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> FastHost:
    """CPU tensors whose products are NumPy's."""
    pytest.importorskip("torch")
    return multiplied_by_numpy(monkeypatch)
