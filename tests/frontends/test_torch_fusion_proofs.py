"""Forwards that look as if they were one kernel and are not: what they write, and what may change behind a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402  torch first: without it this file is skipped

T = tilewright.torch
nn = torch.nn
F = nn.functional
Tensor = Any
BF16 = torch.bfloat16
pytestmark = pytest.mark.usefixtures("fast")


class Layers(nn.Module):
    """Two layers that may gate each other, one behind them, an activation and one that writes to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(8, 8, dtype=BF16) for _ in range(3))
        self.act, self.clip = nn.SiLU(), nn.ReLU(inplace=True)


class Plain(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)))


class Adding(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x += self.down(self.act(self.gate(x)))
        return x


class ClippingBeforeTheActivation(Layers):
    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        clipped = self.clip(x)
        return self.act(gate) + clipped


class ClippingBetweenGateAndUp(Layers):
    def forward(self, x: Tensor) -> Tensor:
        gate = self.act(self.gate(x))
        self.clip(x)
        return gate * self.up(x)


class ClippingBeforeTheHalvesMeet(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(8, 16, dtype=BF16)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        clipped = self.clip(x)
        return self.act(gate) * up + clipped


class FunctionByAKnownName(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.gelu = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gelu(self.gate(x)))


class MethodByAKnownName(Layers):
    def relu(self, x: Tensor) -> Tensor:
        return F.silu(x) if self.training else F.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.relu(self.gate(x)))


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = F.gelu

    def relu(self, x: Tensor) -> Tensor:
        return F.silu(x) if self.training else F.relu(x)


class MethodOfAChild(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.held = Held()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.held.relu(self.gate(x)))


class MethodOfALocalName(MethodOfAChild):
    def forward(self, x: Tensor) -> Tensor:
        held = self.held
        return self.down(held.relu(self.gate(x)))


class FunctionOfAChild(MethodOfAChild):
    def __init__(self) -> None:
        super().__init__()
        self.f = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.held.f(self.gate(x)))


def patched_and_plain(kind: Any) -> tuple[nn.Module, nn.Module]:
    """Two models of the same parameters."""
    torch.manual_seed(0)
    patched, plain = kind(), kind()
    plain.load_state_dict(patched.state_dict())
    T.patch(patched, emulates=True)
    return patched, plain


def assert_same(patched: nn.Module, plain: nn.Module) -> None:
    """Results, and what is left of x."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(BF16)
    given = [x.clone(), x.clone()]
    with torch.no_grad():
        results = patched(given[0]), plain(given[1])
    torch.testing.assert_close(*results, rtol=2**-6, atol=2**-6)
    torch.testing.assert_close(*given, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize(
    "kind", [Adding, ClippingBeforeTheActivation, ClippingBetweenGateAndUp, ClippingBeforeTheHalvesMeet]
)
def test_what_writes_to_x_reads_it_in_the_order_of_the_forward(kind: Any) -> None:
    assert_same(*patched_and_plain(kind))


CHANGES: dict[Any, Callable[[Any], object]] = {
    FunctionByAKnownName: lambda model: setattr(model, "gelu", torch.tanh),
    MethodByAKnownName: lambda model: model.eval(),
    MethodOfAChild: lambda model: model.eval(),
    MethodOfALocalName: lambda model: model.eval(),
    FunctionOfAChild: lambda model: setattr(model.held, "f", torch.tanh),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_a_name_stands_for_may_change_after_patch(kind: Any) -> None:
    patched, plain = patched_and_plain(kind)
    assert_same(patched, plain)
    for model in (patched, plain):
        CHANGES[kind](model)
    assert_same(patched, plain)


def test_a_class_whose_forward_is_replaced_after_patch_runs_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    patched, plain = patched_and_plain(Plain)
    assert_same(patched, plain)
    monkeypatch.setattr(Plain, "forward", lambda self, x: self.down(torch.tanh(self.gate(x))))
    assert_same(patched, plain)


def test_a_class_whose_forward_was_replaced_between_two_patches_falls_back_to_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patched_and_plain(Plain)
    monkeypatch.setattr(Plain, "forward", lambda self, x: self.down(F.relu(self.gate(x))))
    patched, plain = patched_and_plain(Plain)
    assert_same(patched, plain)
    patched.gate.register_forward_hook(lambda *_: None)
    assert_same(patched, plain)
