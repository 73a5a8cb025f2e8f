"""NumPy arrays through matmul, plans and Emulator: right numbers, what is refused, and what is found."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
from fakes import HostBackend
from tilewright import Emulator
from tilewright.ampere_config import AmpereConfig
from tilewright.backends.base import HostBackend as Protocol
from tilewright.backends.emulated import emulated
from tilewright.dispatch import Dispatcher
from tilewright.errors import EmulationError, ShapeError, UnsupportedError
from tilewright.packing import packed

BF16 = ml_dtypes.bfloat16


def whole(shape: tuple[int, int], dtype: Any = np.float16, seed: int = 0) -> np.ndarray:
    """Small whole numbers, whose products are exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def exact(a: np.ndarray, b: np.ndarray, dtype: Any) -> np.ndarray:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(("dtype", "out_dtype"), [(np.float16, np.float16), (BF16, BF16), (BF16, np.float32)])
def test_matmul_of_numpy_arrays_is_exact_for_whole_numbers(dtype: Any, out_dtype: Any) -> None:
    a, w = whole((65, 72), dtype), whole((24, 72), dtype, seed=1)
    out = np.full((65, 24), np.nan, out_dtype)
    assert tilewright.matmul(a, w.T, out) is out
    assert (out == exact(a, w.T, out_dtype)).all()


def test_out_is_allocated_in_the_inputs_dtype() -> None:
    a, b = whole((64, 64), BF16), whole((64, 64), BF16, seed=1)
    out = tilewright.matmul(a, b)
    assert out.dtype == BF16
    assert (out == exact(a, b, BF16)).all()


def test_out_may_lie_in_a_larger_array_whose_rest_is_not_touched() -> None:
    a, b = whole((10, 64)), whole((64, 9), seed=1)
    padded = np.zeros((64, 16), np.float16)
    padded[:, :9] = b
    around = np.full((12, 21), 7, np.float16)
    out = around[1:11, 3:12]
    tilewright.matmul(a, padded[:, :9], out)
    assert (out == exact(a, b, np.float16)).all()
    assert (np.delete(around, slice(3, 12), axis=1) == 7).all()
    assert (around[[0, 11]] == 7).all()


def test_a_product_of_an_array_with_itself_shares_its_memory() -> None:
    a = whole((64, 64))
    assert (tilewright.matmul(a, a.T) == exact(a, a.T, np.float16)).all()


def test_a_plan_of_a_problem_runs_numpy_arrays_with_the_launch_of_its_device() -> None:
    plan = tilewright.plan(tilewright.packed(64, 64, 64, dtype="fp16"), device="h100")
    a, w, out = whole((64, 64)), whole((64, 64), seed=1), np.empty((64, 64), np.float16)
    plan.run(a, w.T, out)
    assert (out == exact(a, w.T, np.float16)).all()


def test_configs_that_differ_in_a_field_of_their_own_family_run_each_as_it_is() -> None:
    a, emulator, counts = whole((64, 32)), Emulator("a100", checks=False), set()
    for warps_m in (1, 2):
        emulator.matmul(a, a.T, config=AmpereConfig(tile_m=64, tile_n=32, warps_m=warps_m, warps_n=1))
        counts.add(emulator.report.warp_instructions)
    assert len(counts) == 2


def test_a_product_without_k_is_zeros() -> None:
    out = np.ones((3, 5), np.float16)
    tilewright.matmul(np.zeros((3, 0), np.float16), np.zeros((0, 5), np.float16), out)
    assert (out == 0).all()


def test_an_input_off_sixteen_bytes_is_copied_first() -> None:
    raw = np.zeros(64 * 64 + 8, np.float16)
    start = (-raw.ctypes.data % 16) // 2 + 4
    a, b = raw[start : start + 4096].reshape(64, 64), whole((64, 64))
    a[...] = whole((64, 64), seed=1)
    assert (tilewright.matmul(a, b) == exact(a, b, np.float16)).all()


def test_a_later_call_of_the_same_arrays_meets_its_packed_call() -> None:
    emulator = Emulator(checks=False)
    a, b, out = whole((64, 64)), whole((64, 64), seed=1), np.empty((64, 64), np.float16)
    plan = emulator.plan(a, b, out)
    plan.run(a, b, out)
    a += 1
    plan.run(a, b, out)
    assert (out == exact(a, b, np.float16)).all()


def test_a_product_of_minutes_is_refused_before_it_is_compiled_with_a_size_that_works() -> None:
    big = np.broadcast_to(np.zeros(1, np.float16), (1 << 14, 1 << 14))
    big = np.lib.stride_tricks.as_strided(big, strides=(1 << 15, 2))  # a layout; no element is ever read
    with pytest.raises(UnsupportedError, match=r"would take about \d+ minutes.*try \d+x\d+x\d+.*limit_s=None"):
        tilewright.matmul(big, big)


def test_a_product_of_minutes_is_refused_with_a_config_of_another_family_too() -> None:
    big = np.broadcast_to(np.zeros(1, np.float16), (1 << 14, 1 << 14))
    big = np.lib.stride_tricks.as_strided(big, strides=(1 << 15, 2))
    with pytest.raises(UnsupportedError, match=r"would take about \d+ hours.*try \d+x\d+x\d+"):
        Emulator("h200").matmul(big, big, config=AmpereConfig())


def test_an_emulator_that_checks_refuses_what_takes_too_long_with_its_checks() -> None:
    a = whole((1024, 1024))
    plan = tilewright.plan(packed(1024, 1024, 1024))
    assert plan.emulated_s(plan.problem) < 5 < plan.emulated_s(plan.problem, checks=True)
    with pytest.raises(UnsupportedError, match=r"the limit is 5\.0 s"):
        Emulator(limit_s=5.0).matmul(a, a.T)


def test_the_limit_is_the_emulators_own() -> None:
    a = whole((64, 64))
    with pytest.raises(UnsupportedError, match=r"the limit is 0\.1 s"):
        Emulator(limit_s=0.1).matmul(a, a.T)
    Emulator(limit_s=None, checks=False).matmul(a, a.T)


def test_the_process_says_once_that_numpy_arrays_are_emulated() -> None:
    sys.modules["tilewright.plan"].host_backend.cache_clear()
    dispatcher = Dispatcher(HostBackend)  # with no plan yet: one of the process may have its backend already
    a = whole((64, 64))
    with pytest.warns(UserWarning, match="multiplied by the emulator"):
        dispatcher.matmul(a, a.T)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dispatcher.matmul(a, a.T)
        Dispatcher(HostBackend).matmul(a, a.T)
        Emulator(checks=False).matmul(a, a.T)


@pytest.mark.parametrize("schedule", ["lazy", "eager", "random"])
def test_an_emulator_checks_under_every_schedule_and_reports(schedule: Any) -> None:
    emulator = Emulator(schedule=schedule, seed=3, banks=True)
    a, w = whole((64, 72)), whole((16, 72), seed=1)
    out = emulator.matmul(a, w.T)
    assert (out == exact(a, w.T, np.float16)).all()
    assert emulator.findings == ()
    assert emulator.report is not None
    assert emulator.report.instructions
    assert emulator.report.banks
    assert emulator.report.patterns


def test_a_finding_of_the_checks_raises_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = Emulator()
    a, w, out = whole((64, 72)), whole((16, 72), seed=1), np.empty((64, 16), np.float16)
    plan = emulator.plan(a, w.T, out)
    fence = "fence.proxy.async.shared::cta;"
    binary = plan.binary
    assert fence in binary.ptx
    plan._binary = type(binary)(**{**vars(binary), "ptx": binary.ptx.replace(fence, "")})
    with pytest.raises(EmulationError, match="repair:") as raised:
        plan.run(a, w.T, out)
    assert emulator.findings
    assert raised.value.line == emulator.findings[0].site.line
    assert raised.value.source.startswith(("copy.cuh", "epilogue.cuh"))


def test_an_emulator_plans_for_its_own_device() -> None:
    emulator = Emulator("h100")
    assert emulator.plan(tilewright.packed(64, 64, 64)).device is emulator.device
    assert emulator.plan(whole((64, 64)), whole((64, 64))).device is emulator.device


def test_arrays_on_a_gpu_are_refused_by_an_emulator() -> None:
    class Array:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (64, 64), "typestr": "<f2", "data": (1 << 20, False), "version": 3,
        }  # fmt: skip

    with pytest.raises(UnsupportedError, match="on a GPU in the emulator"):
        Emulator().matmul(Array(), Array(), Array())


def test_a_dispatcher_on_a_gpu_never_asks_its_host_backend() -> None:
    def forbidden() -> Protocol:
        raise AssertionError("the emulator was asked for")

    from fakes import gpu

    Dispatcher(HostBackend, forbidden).plan(gpu((64, 64)), gpu((64, 64)), gpu((64, 64)))


def test_shapes_are_refused_as_on_a_gpu() -> None:
    with pytest.raises(ShapeError):
        tilewright.matmul(whole((64, 64)), whole((32, 64)))


def test_the_emulated_backend_speaks_the_protocol_of_the_host() -> None:
    backend: Protocol = emulated(limit_s=3.0)
    assert backend.limit_s == 3.0


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"seed": -1}, "seed = -1"),
        ({"seed": True}, "seed = True"),
        ({"limit_s": "60"}, "limit_s = '60'"),
        ({"limit_s": float("nan")}, "limit_s = nan"),
        ({"device": 3}, "device 3"),
    ],
)
def test_choices_that_mean_nothing_are_refused_when_an_emulator_is_made(choice: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnsupportedError, match=sentence):
        tilewright.Emulator(**choice)
