"""Forwards that look as if they were one kernel and are not: what they write, and what may change behind a name."""

from __future__ import annotations

import copy
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


# -- what stays as it was written --------------------------------------------------------------------------------------


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.act = linear(8, 8), linear(8, 8), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.gate(x)) * self.up(x)


class Chunked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both, self.act = linear(8, 16), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        gate, up = torch.chunk(input=self.both(x), chunks=2, dim=-1)
        return self.act(gate) * up


class Aliased(MLP):
    """Which of its two names a forward means, a trace does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.same = self.gate

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.same(x))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all, self.act = nn.ModuleList([linear(8, 8), linear(8, 8)]), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.all[-1](x))


class Backwards(nn.Sequential):
    def __iter__(self) -> Any:
        return reversed(list(self._modules.values()))


def linear(k: int, n: int) -> nn.Module:
    return nn.Linear(k, n, dtype=torch.bfloat16)


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).bfloat16()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.fx.symbolic_trace(MLP()),
        Aliased,
        Listed,
        lambda: Backwards(linear(8, 8), nn.SiLU(), linear(8, 8)),
    ],
    ids=["a graph module", "two names", "a list", "an order of its own"],
)
def test_what_a_trace_does_not_tell_stays_as_it_was_written(make: Any) -> None:
    model = make()
    expected, kind = model(X), type(model)
    report = T.patch(model, emulates=True)
    assert report.fused == ()
    assert type(model) is kind
    torch.testing.assert_close(model(X), expected, rtol=2**-6, atol=2**-6)
    copy.deepcopy(model)(X)


def test_a_module_that_cannot_be_read_leaves_the_rest_patched() -> None:
    class Failing(MLP):
        def __setattr__(self, name: str, value: Any) -> None:
            if name.startswith("tilewright"):
                raise ValueError("no attribute of yours")
            super().__setattr__(name, value)

    holes = nn.Sequential(linear(8, 8), nn.SiLU())
    holes._modules["2"] = None
    model = nn.ModuleDict({"failing": Failing(), "chunked": Chunked(), "holes": holes, "good": MLP()})
    report = T.patch(model, emulates=True)
    assert [name for name, _ in report.fused] == ["chunked", "good"]
    assert {name for name, _ in report.unfused} == {"failing", "holes"}
    assert "no attribute of yours" in str(report)
    assert type(model["failing"]) is Failing
    assert model["failing"](X).shape == X.shape


def test_a_frozen_module_lets_its_input_be_changed_in_place_and_be_differentiated_twice() -> None:
    model = MLP().requires_grad_(False)
    plain = copy.deepcopy(model)
    T.patch(model, emulates=True)
    found = []
    for each in (model, plain):
        leaf = X.clone().requires_grad_()
        h = leaf * 1
        h += each(h)
        h.float().sum().backward()
        again = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(each(again).float().square().sum(), again, create_graph=True)
        found.append((leaf.grad, torch.autograd.grad(first.float().sum(), again)[0]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2**-4, atol=2**-4)


def test_nobody_is_told_of_the_class_and_a_part_of_a_fused_sequence_is_unpatched() -> None:
    registry: list[str] = []

    class Registered(MLP):
        def __init_subclass__(cls, *, kind: str) -> None:
            registry.append(kind)

    class Own(Registered, kind="own"):
        pass

    assert T.patch(Own(), emulates=True).fused
    assert registry == ["own"]
    model = nn.Sequential(linear(8, 8), nn.SiLU(), linear(8, 8), nn.ReLU())
    T.patch(model, emulates=True)
    part = model[:2]
    assert T.patch(part, emulates=True).fused == (("", "silu(0)"),)
    T.unpatch(part)
    assert type(part) is nn.Sequential
    loose = MLP()
    loose.__dict__["tilewright_fusion"] = object()  # of a copy that took the attribute and not the class
    T.unpatch(loose)
    assert type(loose) is MLP
    assert "tilewright_fusion" not in vars(loose)


def test_the_forward_of_an_activations_class_is_looked_at_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Act(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.silu(x)

    model = MLP()
    model.act = Act()
    assert T.patch(model, emulates=True).fused
    monkeypatch.setattr(Act, "forward", lambda self, x: x * 0)
    assert not model(X).any()


def test_children_that_return_no_tensor_are_added_as_python_adds() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x, x)

    class Joined(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.twice, self.again = Twice(), Twice()

        def forward(self, x: Tensor) -> Any:
            return self.twice(self.act(self.gate(x))) + self.again(x)

    model = Joined()
    assert T.patch(model, emulates=True).fused
    assert len(model(X)) == 4
