"""Calls with an epilogue: what is planned, compiled and packed once, what anew, and what a call clears and tells."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest

from fake_torch import Tensor, make_torch
from fakes import FakeCompiler, HostBackend, gpu
from tilewright.arrays import registry
from tilewright.backends.base import IntArgument, Launch, NumberArgument, PointerArgument, StructArgument
from tilewright.backends.parameters import Packer
from tilewright.dispatch import Dispatcher
from tilewright.epilogue import Add, Alpha, Aux, Beta, Bias, Epilogue, Gated, Gelu, RowAmax, RowSum
from tilewright.epilogue_steps import fp32_bits
from tilewright.errors import DTypeError, LayoutError, UnsupportedError
from tilewright.packing import packed

LAUNCH = Launch(grid=1, block=128, cluster=1, smem_bytes=0)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = make_torch(streams={0: 0x70})
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "BY_TYPE", table := {})
    monkeypatch.setattr(sys.modules["tilewright.calls"], "BY_TYPE", table)
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    return module


@pytest.fixture
def backend() -> HostBackend:
    backend = HostBackend(computes=False)
    backend.limit_s, backend.checks = None, False  # of NumPy's arrays too
    return backend


@pytest.fixture
def dispatcher(torch: Any, backend: HostBackend) -> Dispatcher:
    return Dispatcher(lambda: backend, lambda: backend)


def tensor(torch: Any, shape: tuple[int, ...], dtype: str = "bf16") -> Tensor:
    return Tensor(gpu(shape, dtype, seed=1).host, torch)


def test_another_number_packs_and_nothing_else(torch: Any, backend: HostBackend, dispatcher: Dispatcher) -> None:
    a, b, out, c = (tensor(torch, (64, 64)) for _ in range(4))
    for alpha in (0.5, 0.5, 0.25, 0.5):
        dispatcher.matmul(a, b, out, epilogue=Alpha(alpha) | Beta(1.0, c))
    assert (backend.counts["load"], backend.counts["pack"], backend.counts["launch"]) == (1, 2, 4)
    dispatcher.matmul(a, b, out, epilogue=Alpha(0.5) | Beta(1.0, tensor(torch, (64, 64))))
    assert (backend.counts["load"], backend.counts["pack"]) == (1, 3)
    dispatcher.matmul(a, b, out, epilogue=Alpha(0.5) | Beta(1.0, c) | Gelu())
    assert backend.counts["load"] == 2


def test_what_is_added_up_in_memory_is_zeroed_before_each_launch(
    torch: Any, backend: HostBackend, dispatcher: Dispatcher
) -> None:
    a, b, amax = tensor(torch, (64, 64)), tensor(torch, (64, 64)), tensor(torch, (64,), "fp32")
    for count in (1, 2):
        amax.host[...] = 7
        out = dispatcher.matmul(a, b, epilogue=RowAmax(amax))
        assert not amax.host.any()
        assert (backend.counts["zero"], backend.counts["launch"]) == (count, count)
    dispatcher.matmul(a, b, out, epilogue=RowAmax(amax))
    assert (backend.counts["pack"], backend.counts["allocate"]) == (3, 0)


def test_torch_hears_of_every_tensor_that_is_written(torch: Any, dispatcher: Dispatcher) -> None:
    a, b, c, aux, out = (tensor(torch, (64, 64)) for _ in range(5))
    dispatcher.matmul(a, b, out, epilogue=Add(c) | Aux(aux))
    assert [each.version for each in (a, b, c, aux, out)] == [0, 0, 0, 1, 1]


def test_products_of_nothing_run_on_zeros_in_scratch(torch: Any, backend: HostBackend, dispatcher: Dispatcher) -> None:
    a, b, bias = tensor(torch, (64, 0)), tensor(torch, (0, 72)), tensor(torch, (72,))
    dispatcher.matmul(a, b, epilogue=Bias(bias))
    assert (backend.counts["zero"], backend.counts["launch"]) == (1, 1)
    dispatcher.matmul(a, b)
    assert backend.counts["launch"] == 1  # zeros without a kernel
    dispatcher.matmul(tensor(torch, (0, 64)), tensor(torch, (64, 72)), epilogue=Bias(bias))
    assert backend.counts["launch"] == 1


def test_a_step_with_gradients_or_of_another_library_is_refused(torch: Any, dispatcher: Dispatcher) -> None:
    a, b, bias = tensor(torch, (64, 64)), tensor(torch, (64, 64)), tensor(torch, (64,))
    bias.requires_grad = True
    torch.is_grad_enabled = lambda: True
    with pytest.raises(UnsupportedError, match="the array of bias requires grad"):
        dispatcher.matmul(a, b, epilogue=Bias(bias))
    with pytest.raises(UnsupportedError, match="a of torch and the array of bias of numpy"):
        dispatcher.matmul(a, b, epilogue=Bias(np.zeros(64, np.float32)))
    with pytest.raises(UnsupportedError, match=r"the array of bias, a builtins\.list"):
        dispatcher.matmul(a, b, epilogue=Gelu() | Bias([1.0]))


def test_what_is_written_is_called_by_its_own_name(dispatcher: Dispatcher) -> None:
    """NumPy: no torch is in the way."""
    a, fixed, rows = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16), np.zeros(64, np.float32)
    fixed.flags.writeable = rows.flags.writeable = False
    for step, words in (
        (Aux(fixed), "the array of aux, a read-only numpy array: .*; pass a writable array"),
        (RowAmax(rows), "the array of row_amax, a read-only"),
        (Aux(a), "aux that shares memory with a: what an epilogue writes"),
        (Aux(np.zeros((64, 64), "f8")), "aux of dtype float64: arrays of an epilogue are bf16, fp16 or fp32"),
    ):
        with pytest.raises((LayoutError, DTypeError), match=words):
            dispatcher.matmul(a, a, epilogue=Bias(rows) | step)
    out = np.zeros((64, 64), np.float16)
    for step, works in (
        (Aux(out), "pass an array of its own"),
        (Add(out.T), "pass out itself, or a copy"),
        (Bias(out[0]), "pass a copy"),
    ):
        with pytest.raises(LayoutError, match=f"shares memory with out: .*; {works}$"):
            dispatcher.matmul(a, a, out, epilogue=step)


def test_a_problem_is_planned_for_no_epilogue_that_arrays_would_be_refused_with(dispatcher: Dispatcher) -> None:
    problem = packed(64, 64, 64)
    for epilogue, error in (
        (Gated() | Gated(), UnsupportedError),
        (RowSum("fp32"), UnsupportedError),
        (RowAmax("bf16"), DTypeError),
        (Bias("int8"), DTypeError),
        (Bias([1.0]), DTypeError),
        (Gelu, UnsupportedError),
    ):
        with pytest.raises(error):
            dispatcher.plan(problem, epilogue=epilogue)  # type: ignore[arg-type]


def test_an_epilogue_without_a_step_is_none(torch: Any, backend: HostBackend, dispatcher: Dispatcher) -> None:
    a, empty = tensor(torch, (64, 64)), Epilogue(())
    for plan in (dispatcher.plan(a, a, epilogue=empty), dispatcher.plan(packed(64, 64, 64), epilogue=empty)):
        assert plan.problem.epilogue is None
    for epilogue in (empty, None):
        dispatcher.matmul(a, a, tensor(torch, (64, 64)), epilogue=epilogue)
    assert backend.counts["load"] == 1


def test_flags_are_true_or_false(dispatcher: Dispatcher) -> None:
    a = np.zeros((64, 64), np.float16)
    for call in (dispatcher.matmul, dispatcher.plan):
        with pytest.raises(UnsupportedError, match="use_records = array"):
            call(a, a, use_records=np.zeros(2))


def test_a_plan_runs_epilogues_of_its_form_alone(torch: Any, dispatcher: Dispatcher) -> None:
    a, b, bias = tensor(torch, (64, 64)), tensor(torch, (64, 64)), tensor(torch, (64,))
    plan = dispatcher.plan(a, b, epilogue=Alpha(1.0) | Bias(bias))
    plan.run(a, b, epilogue=Alpha(3.0) | Bias(tensor(torch, (64,))))
    for other in (None, Alpha(1.0), Bias(bias) | Alpha(1.0), Alpha(1.0) | Bias(bias, per="row")):
        with pytest.raises(LayoutError, match="this plan is for the epilogue"):
            plan.run(a, b, epilogue=other)


def test_a_struct_holds_addresses_and_numbers_one_behind_the_other() -> None:
    parts = (PointerArgument("c"), IntArgument("pitch", -2, 8), NumberArgument("beta"))
    packer = Packer(LAUNCH, (IntArgument("m", 5, 4), StructArgument("fused", parts)), lambda _: lambda address: b"")
    block, pointers = packer.fill({"c": 0x1234, "beta": fp32_bits(0.5)})
    first, second = (ctypes.c_uint64 * 2).from_address(pointers)
    assert second - first == 8
    words = (ctypes.c_int64 * 3).from_address(second)
    assert list(words) == [0x1234, -2, 0x3F000000]
    assert len(block) > 0
