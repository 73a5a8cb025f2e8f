"""arrays/untraced.py: torch.compile breaks its graph at tilewright.matmul and plans, and follows nothing below."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from fakes import FakeCompiler, HostBackend
from tilewright import dispatch
from tilewright.arrays import registry, untraced
from tilewright.arrays.torch import TorchAdapter
from tilewright.dispatch import Dispatcher
from tilewright.epilogue import Gelu

torch = pytest.importorskip("torch")


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    """CPU tensors go the way of those on a GPU, as far as there is one: nothing is compiled, NumPy multiplies."""
    monkeypatch.setattr(TorchAdapter, "is_emulated", True)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 0, raising=False)
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "BY_TYPE", table := {})
    monkeypatch.setattr(sys.modules["tilewright.calls"], "BY_TYPE", table)
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    untraced.tell_torch()  # as the first tensor does, where torch was loaded behind tilewright
    torch._dynamo.reset()
    backend = HostBackend()
    backend.limit_s, backend.checks = None, False
    return Dispatcher(lambda: backend, lambda: backend)


def test_a_product_in_what_is_compiled_breaks_the_graph_and_is_right(dispatcher: Dispatcher) -> None:
    torch._dynamo.utils.counters.clear()

    def model(x: Any, w: Any) -> Any:
        out = torch.empty(x.shape[0], w.shape[1], dtype=x.dtype)
        dispatcher.matmul(x + 1, w, out)
        other = torch.empty_like(out)
        dispatcher.plan(x, w).run(x, w, other)
        return out + other

    compiled = torch.compile(model, backend="eager")
    w = torch.randint(-4, 5, (16, 24)).half()
    for rows in (8, 8, 32):
        x = torch.randint(-4, 5, (rows, 16)).half()
        assert torch.equal(compiled(x, w), ((x + 1).float() @ w.float() + x.float() @ w.float()).half())
    traced = [str(where) for where in torch._dynamo.utils.counters["graph_break"]]
    assert len(traced) == 3  # matmul, plan, run: of what lies below nothing is met
    assert all("tilewright.torch.matmul" in reason for reason in traced)


def test_a_whole_graph_is_refused_with_the_op_that_compiles_into_it(dispatcher: Dispatcher) -> None:
    def model(x: Any) -> Any:
        return dispatcher.matmul(x, x, epilogue=Gelu()) + 1

    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"call tilewright\.torch\.matmul"):
        torch.compile(model, backend="eager", fullgraph=True)(torch.ones(8, 8).half())


def test_a_torch_that_is_loaded_later_is_told_and_keeps_it_over_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch")

        @untraced.untraced
        def marked(x: Any) -> Any:
            return below(x)

    def below(x: Any) -> Any:
        calls.append(torch.compiler.is_compiling())  # a constant, True, in what is traced
        return x + 1

    compiled = torch.compile(lambda x: marked(x) * 2, backend="eager")
    for is_traced in (True, False, False):
        torch._dynamo.reset()
        assert compiled(torch.ones(3)).tolist() == [4.0] * 3
        assert any(calls) == is_traced
        untraced.tell_torch()
        calls.clear()


def test_every_door_is_marked() -> None:
    doors = (dispatch.matmul, dispatch.plan, Dispatcher.matmul, Dispatcher.plan)
    assert all(getattr(door, "_torchdynamo_disable", False) for door in doors)
