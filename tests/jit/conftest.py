"""A cache folder of one's own, and processes that see the package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jit_units import make_source

from tilewright.jit import build, cache
from tilewright.jit.source import Source


@pytest.fixture
def source() -> Source:
    return make_source()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's cache of this test, not there yet; memory is empty before and after."""
    folder = tmp_path / "cache"
    for name in ("TILEWRIGHT_CACHE_TRUST", "TILEWRIGHT_PREBUILT", "TILEWRIGHT_COMPILE_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    build.clear()
    cache.forget_warnings()
    yield folder
    build.clear()


@pytest.fixture
def start_python() -> Callable[..., subprocess.Popen[str]]:
    """Starts Python code in a process with exactly these environment variables and the package on its path."""

    def start(code: str, **environment: str) -> subprocess.Popen[str]:
        import tilewright.jit.source

        package = str(Path(tilewright.jit.source.__file__).parents[2])
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": os.pathsep.join((package, str(Path(__file__).parent))), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
