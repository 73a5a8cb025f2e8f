"""patch() and forwards of modules: which become one kernel, that they compute the same, and where they stay torch's."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402  torch first: without it this file is skipped
from tilewright.frontends.torch import fused_modules  # noqa: E402

T = tilewright.torch
nn = torch.nn
F = nn.functional
Tensor = Any
BF16 = torch.bfloat16
pytestmark = pytest.mark.usefixtures("fast")


def whole(*shape: int, seed: int = 0, dtype: Any = BF16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, dtype=torch.int8).to(dtype)


class GELUActivation(nn.Module):
    """As in transformers: a function held by an attribute."""

    def __init__(self, act: Any = F.gelu) -> None:
        super().__init__()
        self.act = act

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self.act(input)


class SiLUActivation(nn.Module):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.silu(input)


class Gated(nn.Module):
    """Llama's, Qwen's, Mistral's; with another activation Gemma's."""

    def __init__(self, act: nn.Module | None = None, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 16, bias=bias, dtype=BF16), nn.Linear(8, 16, bias=bias, dtype=BF16)
        self.down_proj = nn.Linear(16, 8, bias=bias, dtype=BF16)
        self.act_fn = act or nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(hidden)


class Reversed(Gated):
    def forward(self, x: Tensor) -> Tensor:
        up = self.up_proj(x)
        gate = F.silu(self.gate_proj(x))
        return self.down_proj(torch.mul(up, gate))


class Halves(nn.Module):
    """Phi 3's: one weight, and its halves."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(8, 32, dtype=BF16), nn.Linear(16, 8, bias=False, dtype=BF16)
        self.act = nn.SiLU()

    def forward(self, hidden: Tensor) -> Tensor:
        up_states = self.gate_up(hidden)
        gate, up_states = up_states.chunk(2, dim=-1)
        up_states = up_states * self.act(gate)
        return self.down(up_states)


class Vision(nn.Module):
    """timm's: with modules behind, and a dropout between."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16, dtype=BF16), nn.Linear(16, 8, dtype=BF16)
        self.act, self.drop, self.norm = act or nn.GELU(), nn.Dropout(0.0), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.act(x)
        x = self.drop(x)
        x = self.norm(x)
        return self.drop(self.fc2(x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(8, dtype=BF16),
            nn.Linear(8, 16, dtype=BF16),
            nn.Linear(16, 8, dtype=BF16),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def sequential() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16, dtype=BF16),
        nn.GELU("tanh"),
        nn.Linear(16, 16, dtype=BF16),
        nn.ReLU(),
        nn.Linear(16, 8, dtype=BF16),
    )


MODELS: dict[str, tuple[Any, str]] = {
    "gated": (Gated, "silu(gate_proj) * up_proj"),
    "gated with biases": (lambda: Gated(bias=True), "silu(gate_proj) * up_proj"),
    "gated by gelu": (lambda: Gated(nn.GELU("tanh")), "gelu_tanh(gate_proj) * up_proj"),
    "gated by a module of somebody's": (lambda: Gated(SiLUActivation()), "silu(gate_proj) * up_proj"),
    "gated by a partial": (
        lambda: Gated(GELUActivation(functools.partial(F.gelu, approximate="tanh"))),
        "gelu_tanh(gate_proj) * up_proj",
    ),
    "reversed": (Reversed, "silu(gate_proj) * up_proj"),
    "halves": (Halves, "silu(gate_up) * its other half"),
    "vision": (Vision, "gelu(fc1)"),
    "vision by a module of somebody's": (lambda: Vision(GELUActivation()), "gelu(fc1)"),
    "residual": (Residual, "relu(up)"),
    "sequential": (sequential, "gelu_tanh(0), relu(2)"),
}


def made(kind: Any) -> nn.Module:
    model = kind()
    for index, parameter in enumerate(model.parameters()):
        parameter.data = whole(*parameter.shape, seed=index) / (4 if parameter.dim() > 1 else 1)
    return model


def results(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The output and the gradients of x and all parameters."""
    model.zero_grad()
    leaf = x.clone().requires_grad_()
    out = model(leaf)
    out.backward(whole(*out.shape, seed=9).to(out.dtype))
    return [out.detach(), leaf.grad, *(parameter.grad for parameter in model.parameters())]


def assert_near(found: list[Tensor], others: list[Tensor], exact: list[Tensor]) -> None:
    """As near to float64 as torch is, but for one rounding of what it rounds; norms, since either may be lucky."""
    for ours, theirs, right in zip(found, others, exact, strict=True):
        assert ours.shape == right.shape
        off, allowed = ((each.double() - right).norm() for each in (ours, theirs))
        assert off <= allowed + 2**-8 * right.norm(), (off, allowed)


X = whole(2, 3, 8, seed=20)


@pytest.mark.parametrize("name", MODELS)
def test_a_fused_forward_and_its_gradients_are_as_exact_as_torchs(name: str, fast: Any) -> None:
    kind, words = MODELS[name]
    model, double = made(kind), made(kind).double()
    expected, exact = results(model, X), results(double, X.double())
    modules = dict(model.named_modules())
    classes = {key: type(module) for key, module in modules.items()}
    state = list(model.state_dict())
    report = T.patch(model, emulates=True)
    assert report.fused == (("", words),)
    assert report.unfused == ()
    assert words in str(report)
    assert_near(results(model, X), expected, exact)
    with torch.no_grad():
        fast.counts.clear()
        model(X)
    assert fast.counts["fused"] >= 1
    assert isinstance(model, classes[""])
    assert list(model.state_dict()) == state
    T.unpatch(model)
    assert {key: type(module) for key, module in model.named_modules()} == classes
    assert all(module is modules[key] for key, module in model.named_modules())
    assert all(torch.equal(*pair) for pair in zip(results(model, X), expected, strict=True))


def launches(model: nn.Module, fast: Any, **options: Any) -> tuple[int, int]:
    """How many products ran with an epilogue and without."""
    fast.counts.clear()
    with torch.no_grad():
        model(X, **options)
    return fast.counts["fused"], fast.counts["launch"]


def test_a_gate_is_one_kernel_and_with_fuse_false_three() -> None:
    fast = _backend()
    model = made(Gated)
    assert T.patch(model, emulates=True, fuse=False).fused == ()
    assert launches(model, fast) == (0, 3)
    T.unpatch(model)
    T.patch(model, emulates=True)
    assert launches(model, fast) == (1, 1)
    fast.counts.clear()
    with torch.no_grad():
        model(x=X)
    assert (fast.counts["fused"], fast.counts["launch"]) == (1, 1)


def _backend() -> Any:
    from tilewright.frontends.torch import products

    return products.dispatch.host()


def spoiled() -> dict[str, Any]:
    """What may happen to a patched module, each with the number of (fused, plain) products that are left."""

    def hook(module: nn.Module) -> None:
        module.gate_proj.register_forward_hook(lambda *_: None)

    def activation_hook(module: nn.Module) -> None:
        module.act_fn.register_forward_pre_hook(lambda *_: None)

    def other_activation(module: nn.Module) -> None:
        module.act_fn = nn.Tanh()

    def other_function(module: nn.Module) -> None:
        module.act_fn.act = torch.tanh

    def other_approximation(module: nn.Module) -> None:
        module.act_fn.approximate = "tanh"

    def own_forward(module: nn.Module) -> None:
        module.up_proj.forward = lambda x: F.linear(x, module.up_proj.weight)

    def unpatched(module: nn.Module) -> None:
        T.unpatch(module.up_proj)

    def parametrised(module: nn.Module) -> None:
        nn.utils.parametrizations.weight_norm(module.up_proj)

    def another_type(module: nn.Module) -> None:
        module.gate_proj.half()
        module.gate_proj.register_forward_pre_hook(lambda m, args: tuple(t.half() for t in args))
        module.gate_proj.register_forward_hook(lambda m, args, out: out.to(BF16))

    def a_bias_less(module: nn.Module) -> None:
        module.up_proj.bias = None

    def broadcast(module: nn.Module) -> None:
        module.up_proj = nn.Linear(8, 1, dtype=BF16)
        T.patch(module.up_proj, emulates=True)

    return {
        change.__name__: change
        for change in (
            hook, activation_hook, other_activation, other_function, other_approximation, own_forward, unpatched,
            parametrised, another_type, a_bias_less, broadcast,
        )
    }  # fmt: skip


@pytest.mark.parametrize("change", spoiled())
def test_what_changed_since_runs_as_it_was_written(change: str) -> None:
    """Hooks fire, wrappers are called, other activations count."""
    act = {"other_function": GELUActivation(), "other_approximation": nn.GELU()}.get(change)
    model = made(lambda: Gated(copy.deepcopy(act), bias=True))
    T.patch(model, emulates=True)
    fast = _backend()
    assert launches(model, fast)[0] == 2  # the gate, and a layer with a bias
    spoiled()[change](model)
    found = model(X)
    plain = copy.deepcopy(model)
    T.unpatch(plain)
    torch.testing.assert_close(found, plain(X), rtol=2**-6, atol=2**-6)
    seen = []
    model.gate_proj.register_forward_hook(lambda *_: seen.append("gate"))
    model.act_fn.register_forward_hook(lambda *_: seen.append("act"))
    model(X)
    assert seen == ["gate", "act"]


def test_global_hooks_see_every_module() -> None:
    model = made(Gated)
    T.patch(model, emulates=True)
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        model(X)
    finally:
        handle.remove()
    assert seen == ["PatchedLinear", "SiLU", "PatchedLinear", "PatchedLinear", "Gated"]


def test_a_sequential_that_grew_runs_all_of_it() -> None:
    model = made(sequential)
    T.patch(model, emulates=True)
    model.append(nn.Tanh())
    assert model(X).abs().max() <= 1
    assert type(model[:2])(*model[:2])(X).shape == (2, 3, 16)


class Branching(Gated):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + 1
        return super().forward(x)


class Counting(Gated):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Keeping(Gated):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Scaling(Gated):
    scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * self.scale


class Dropping(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)), training=self.training)


class Telling(Gated):
    def forward(self, x: Tensor) -> Tensor:
        print("called")
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Using(Gated):
    """The gate is used twice."""

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        return self.down_proj(self.act_fn(gate) * self.up_proj(x) + gate)


class OfTwo(Gated):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(y))


class OfAny(Gated):
    def forward(self, *xs: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(xs[0])) * self.up_proj(xs[0]))


class UnlikeInputs(Gated):
    def forward(self, x: Tensor) -> Tensor:
        y = x + x
        return self.down_proj(self.up_proj(y) * self.gate_proj(x))


class Thirds(Halves):
    def forward(self, hidden: Tensor) -> Tensor:
        gate, up = self.gate_up(hidden).chunk(2, dim=0)
        return self.down((self.act(gate) * up).chunk(2, dim=-1)[0])


class Swapped(Halves):
    """The second half gates: no kernel has it so."""

    def forward(self, hidden: Tensor) -> Tensor:
        up, gate = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(up * self.act(gate))


class Helped(Gated):
    def helper(self, x: Tensor) -> Tensor:
        return self.act_fn(self.gate_proj(x)) * self.up_proj(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.helper(x))


UNFUSED = {
    Branching: "no straight line",
    Counting: "reads calls",
    Keeping: "no straight line",
    Scaling: "reads scale",
    Dropping: "dropout",
    Telling: "calls print",
    OfTwo: "more than one argument",
    OfAny: "more than one argument",
    UnlikeInputs: "no activation follows",
    Thirds: "chunks otherwise",
    Swapped: "halves of a layer",
    Helped: "reads helper",
}


@pytest.mark.parametrize("kind", UNFUSED, ids=lambda kind: kind.__name__)
def test_a_forward_of_which_nothing_can_be_proven_stays_and_the_report_says_why(kind: Any) -> None:
    model = made(kind)
    report = T.patch(model, emulates=True)
    assert report.fused == ()
    ((name, reason),) = report.unfused
    assert name == ""
    assert UNFUSED[kind] in reason, reason
    assert reason in str(report)
    assert type(model) is kind


def test_a_gate_that_somebody_else_reads_is_no_part_of_a_kernel() -> None:
    model = made(Using)
    assert T.patch(model, emulates=True).fused == ()


def test_where_leaves_out_layers_and_with_them_what_would_be_fused() -> None:
    model = made(Gated)
    report = T.patch(model, emulates=True, where=lambda name, module: name != "up_proj")
    assert report.fused == (("", "silu(gate_proj)"),)
    expected = made(Gated)(X)
    torch.testing.assert_close(model(X), expected, rtol=2**-6, atol=2**-6)


def test_a_fused_module_is_copied_pickled_and_inspected() -> None:
    model = nn.ModuleDict({"a": made(Gated), "b": made(lambda: Gated(GELUActivation(functools.partial(F.gelu))))})
    T.patch(model, emulates=True)
    fast = _backend()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        for name in "ab":
            assert torch.equal(other[name](X), model[name](X))
            assert launches(other[name], fast) == (1, 1)
            assert type(other[name]).__name__ == "Gated"
        assert type(other["a"]) is type(model["a"])
    assert list(inspect.signature(model["a"].forward).parameters) == ["x"]
    alone = copy.deepcopy(model)
    T.unpatch(alone)
    assert type(alone["a"]) is Gated
    assert fused_modules.is_fused(model["a"])


def test_layers_that_are_shared_or_tied_are_fused_wherever_they_are() -> None:
    model = nn.ModuleDict({"a": made(Gated), "b": made(Gated)})
    model["c"] = model["a"]
    model["b"].up_proj.weight = model["a"].up_proj.weight
    expected = [model[name](X) for name in "abc"]
    assert [name for name, _ in T.patch(model, emulates=True).fused] == ["a", "b"]
    for name, theirs in zip("abc", expected, strict=True):
        torch.testing.assert_close(model[name](X), theirs, rtol=2**-6, atol=2**-6)
    assert T.patch(model, emulates=True).fused == ()  # patched before


def test_main_grads_take_the_gradients_of_a_fused_gate() -> None:
    model, plain = made(Gated), made(Gated)
    T.patch(model, emulates=True, accumulates=True)
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros(parameter.shape)
    for each in (model, plain):
        each(X).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is None
        torch.testing.assert_close(ours.main_grad, theirs.grad.float(), rtol=2**-5, atol=2**-4)
    del model.gate_proj.weight.main_grad  # one of two: each layer by itself
    model(X).sum().backward()
    assert model.gate_proj.weight.grad is not None


def test_autocast_and_checkpoints_and_a_frozen_weights_second_derivative() -> None:
    from torch.utils.checkpoint import checkpoint

    model = made(Gated).float()
    T.patch(model, emulates=True, autocast=True)
    fast = _backend()
    with torch.autocast("cpu", dtype=BF16):
        found = model(X.float())
        assert fast.counts["fused"] == 1
        assert found.dtype == BF16
    torch.testing.assert_close(model(X.float()), found.float(), rtol=2**-5, atol=2**-5)  # torch's, in float32
    model = made(Gated)
    T.patch(model, emulates=True)
    expected = results(model, X)
    leaf = X.clone().requires_grad_()
    model.zero_grad()
    checkpoint(model, leaf, use_reentrant=False).backward(whole(2, 3, 8, seed=9))
    assert torch.equal(leaf.grad, expected[1])
    model.requires_grad_(False)
    (first,) = torch.autograd.grad(model(leaf).float().square().sum(), leaf, create_graph=True)
    (ours,) = torch.autograd.grad(first.float().square().sum(), leaf)
    T.unpatch(model)
    (first,) = torch.autograd.grad(model(leaf).float().square().sum(), leaf, create_graph=True)
    (theirs,) = torch.autograd.grad(first.float().square().sum(), leaf)
    assert (ours - theirs).float().norm() <= 0.05 * theirs.float().norm()


@pytest.mark.parametrize("name", ["gated with biases", "halves", "gated by a partial", "sequential"])
def test_a_fused_model_compiles_to_one_graph_for_any_number_of_rows(name: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    model = made(MODELS[name][0])
    T.patch(model, emulates=True)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for rows in (2, 5, 16):
        x = whole(rows, 8, seed=rows)
        assert all(torch.equal(*pair) for pair in zip(results(compiled, x), results(model, x), strict=True))
    assert counter.frame_count == 1
    graph = str(counter.graphs[0].graph)
    assert "tilewright.gated_linear" in graph or "tilewright.linear" in graph


def test_calls_that_are_not_served_are_torchs_and_transforms_see_torchs_numbers() -> None:
    model = made(Gated)
    T.patch(model, emulates=True)
    plain = made(Gated)
    _, tangent = torch.func.jvp(model, (X,), (X,))
    assert torch.equal(tangent, torch.func.jvp(plain, (X,), (X,))[1])
    traced = torch.fx.symbolic_trace(model)
    torch.testing.assert_close(traced(X), plain(X), rtol=2**-6, atol=2**-6)
    with pytest.raises(TypeError):
        model()
    assert torch.equal(model.float()(X.float()), plain.float()(X.float()))
