"""The run without torch, against a driver that multiplies on the CPU in place of a launch."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tilewright.backends.cuda import CudaBackend
from tilewright.bench import verify
from tilewright.check import sampled_rows
from tilewright.host_operands import host_operand
from tilewright.packing import packed
from tilewright.problem import Problem

FAKE = Path(__file__).parents[1] / "backends" / "fake_driver.py"


@pytest.fixture(scope="module")
def fake_driver() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_driver_of_bench", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def multiplying(fake_driver: ModuleType, problem: Problem, fault: Any = None) -> CudaBackend:
    """A backend whose launch writes a x b where out lies; `fault` changes the product first."""
    driver = fake_driver.FakeDriver()
    launch = driver.cuLaunchKernelEx

    def multiply(*arguments: Any) -> Any:
        a_at, b_at, out_at = driver.memory  # in the order of allocation

        def operand(name: str, address: int, dtype: Any) -> Any:
            block = (ctypes.c_char * problem.extent_bytes[name]).from_address(address)
            return host_operand(problem, name, np.frombuffer(block, dtype.numpy)).view

        a = operand("a", a_at, problem.dtype).astype(np.float32)
        b = operand("b", b_at, problem.dtype).astype(np.float32)
        product = a @ b
        if fault is not None:
            fault(product)
        operand("out", out_at, problem.out_dtype)[...] = product
        return launch(*arguments)

    driver.cuLaunchKernelEx = multiply
    return CudaBackend(driver)


@pytest.mark.parametrize("b_major", ["k", "n"])
@pytest.mark.parametrize("kind", ["normal", "integer"])
def test_right_product_is_found_right(
    fake_driver: ModuleType, monkeypatch: pytest.MonkeyPatch, b_major: Any, kind: Any
) -> None:
    problem = packed(70, 45, 100, b_major=b_major, out_dtype="fp32")
    backend = multiplying(fake_driver, problem)
    monkeypatch.setattr(verify, "backend", lambda: backend)
    verdict = verify.verify_without_torch(problem, kind=kind)
    assert verdict.ok, verdict
    assert verdict.elements == 70 * 45
    assert backend.driver.module.launches[0].stream == 0
    assert not backend.driver.module.memory


def test_element_that_was_never_written_is_found(fake_driver: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = packed(70, 48, 64)

    def fault(product: Any) -> None:
        product[69, 47] = np.nan  # what the poison leaves there

    backend = multiplying(fake_driver, problem, fault)
    monkeypatch.setattr(verify, "backend", lambda: backend)
    verdict = verify.verify_without_torch(problem)
    assert (verdict.wrong, verdict.unwritten, verdict.first_wrong) == (1, 1, (69, 47))


@pytest.mark.parametrize("broken", [None, 0, 99])
def test_of_a_long_batch_the_first_and_the_last_matrix_are_checked_and_all_must_be_written(broken: int | None) -> None:
    torch = pytest.importorskip("torch")
    problem = packed(3, 4, 8, dtype="fp16", batch=(100,))
    a, b = torch.ones(100, 3, 8, dtype=torch.float16), torch.ones(100, 8, 4, dtype=torch.float16)
    out = torch.empty(100, 3, 4, dtype=torch.float16)
    unsampled = min(set(range(100)) - set(sampled_rows(100, count=verify.SAMPLED_MATRICES)))

    def launch(_: int) -> None:
        out.copy_(a @ b)
        if broken is not None:
            out[broken, 2, 3] = 7.0
        out[unsampled, 1, 1] = float("nan")

    verdict = verify.verify_launch(problem, (a, b, out), launch, lambda: None)
    assert verdict.unwritten == 1
    assert verdict.elements == verify.SAMPLED_MATRICES * 12
    assert verdict.wrong == (broken is not None)
