"""A cache folder of one's own, no driver, and a GPU that is made up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from command_line import no_driver

from tilewright import device
from tilewright.backends import cuda
from tilewright.bench import verify
from tilewright.check import Check
from tilewright.jit import build, cache

RIGHT = Check(elements=4096, wrong=0, worst=0.1, max_error=0.01, first_wrong=None)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of this test, not there yet, no other setting, and no driver unless a test brings one."""
    folder = tmp_path / "cache"
    for name in ("CACHE_TRUST", "PREBUILT", "COMPILE_THREADS"):
        monkeypatch.delenv(f"TILEWRIGHT_{name}", raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(cuda, "backend", no_driver)
    build.clear()
    cache.forget_warnings()
    yield folder
    build.clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An H200 that is there, with torch: what verify and compare answer is the test's choice."""
    fake = SimpleNamespace(name="h200", device=None, checks=[RIGHT, RIGHT], has_torch=True, asked=[])
    row = {"candidate": "cublas", "median_us": 10.0, "spread": 0.01, "rate_tflops": 500.0, "ratio": None}
    own = {"candidate": "tilewright", "median_us": 8.0, "spread": 0.02, "rate_tflops": 625.0, "ratio": 1.25}
    states = {"watts": None, "clock_mhz": None}

    def check(problem: Any, **options: Any) -> Check:
        fake.asked.append(options)
        verdict: Check = fake.checks[len(fake.asked) - 1]
        return verdict

    def compare(problem: Any, **options: Any) -> list[dict[str, Any]]:
        fake.asked.append(options)
        return [{"mode": mode, **states, **line} for mode in options["modes"] for line in (row, own)]

    module = ModuleType("tilewright.bench.compare")  # the real one needs torch
    module.compare = compare  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tilewright.bench.compare", module)
    monkeypatch.setattr(verify, "verify", check)
    monkeypatch.setattr(verify, "has_torch", lambda: fake.has_torch)
    monkeypatch.setattr(
        cuda, "backend", lambda: SimpleNamespace(device=lambda _: fake.device or device.preset(fake.name))
    )
    return fake
