"""What tests share: a kernel cache of the run's own, a dispatcher on a pretended GPU, the skip of GPU tests."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from fakes import FakeCompiler, HostBackend
from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from tilewright.dispatch import Dispatcher


@pytest.fixture(scope="session", autouse=True)
def _own_kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests compile into a folder of their run, never into the user's cache; the workers of pytest-xdist share it."""
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(run / "kernels")


@pytest.fixture(scope="session", autouse=True)
def _no_records(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The model chooses unless a test turns records on; the user's file is never read or written."""
    os.environ["TILEWRIGHT_USE_RECORDS"] = "0"
    os.environ["TILEWRIGHT_RECORDS"] = str(tmp_path_factory.getbasetemp() / "records.jsonl")


@pytest.fixture(scope="session", autouse=True)
def _no_gpu_memory_ahead() -> None:
    """JAX would take 75 % of the card at its first array and keep it, and processes beside it would find too little.

    Source: JAX's documentation, "GPU memory allocation". Read when JAX first asks for the card.
    """
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """In the place of NVRTC, for plans."""
    import tilewright.dispatch  # noqa: F401  # loads plan.py, whose name on the package is the function

    fake = FakeCompiler()
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", fake)
    return fake


@pytest.fixture
def backend(compiler: FakeCompiler) -> HostBackend:
    """In the place of a GPU's driver."""
    return HostBackend()


@pytest.fixture
def dispatcher(backend: HostBackend) -> Dispatcher:
    """One of its own, on the pretended GPU."""
    from tilewright.dispatch import Dispatcher

    return Dispatcher(lambda: backend)


@pytest.fixture
def unplugged(compiler: FakeCompiler) -> Dispatcher:
    """Of a machine without a GPU."""
    from tilewright.dispatch import Dispatcher

    def no_driver() -> HostBackend:
        raise AssertionError("planning a problem touched the driver")

    return Dispatcher(no_driver)


@cache
def _why_no_gpu() -> str:
    """The reason why GPU tests cannot run here; empty when they can."""
    from tilewright.backends.cuda import backend  # asks the driver: not at import

    try:
        device = backend().device(0)
    except TilewrightError as error:
        return str(error)
    return "" if device.sm == (9, 0) else f"{device} is no Hopper GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and _why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=_why_no_gpu()))
        elif (alone := item.get_closest_marker("alone")) and os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1":
            item.add_marker(pytest.mark.skip(reason=f"{alone.args[0]}; run it without -n"))
