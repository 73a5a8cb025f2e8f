"""Linear in place of torch.nn.Linear, and what patch() and unpatch() do to a model and leave alone."""

from __future__ import annotations

import copy
import io
import pickle
import re
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402  torch first: without it this file is skipped
from fakes import T4  # noqa: E402
from tilewright import device as devices  # noqa: E402
from tilewright.errors import DTypeError, UnsupportedError  # noqa: E402
from tilewright.frontends.torch import patching  # noqa: E402

T = tilewright.torch
nn = torch.nn
Tensor = Any
BF16 = torch.bfloat16
pytestmark = pytest.mark.usefixtures("fast")


def whole(*shape: int, seed: int = 0, dtype: Any = BF16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, dtype=torch.int8).to(dtype)


class Model(nn.Module):
    """Two layers and a head that is tied to an embedding; weights are whole numbers, so that sums are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8, dtype=BF16)
        self.up, self.down = nn.Linear(8, 24, dtype=BF16), nn.Linear(24, 8, bias=False, dtype=BF16)
        self.head = nn.Linear(8, 16, bias=False, dtype=BF16)
        self.head.weight = self.embedding.weight
        for index, parameter in enumerate(self.parameters()):
            parameter.data = whole(*parameter.shape, seed=index)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(x + self.down(torch.relu(self.up(x))))


TOKENS = torch.tensor([1, 5, 7, 2, 1])


def step(model: nn.Module) -> tuple[Tensor, ...]:
    """The output and all gradients."""
    model.zero_grad()
    out = model(TOKENS)
    out.backward(whole(*out.shape, seed=9))
    return (out.detach(), *(parameter.grad.clone() for parameter in model.parameters()))


def assert_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


# -- Linear ------------------------------------------------------------------------------------------------------------


def test_linear_takes_and_gives_the_state_of_nn_linear_and_multiplies_as_it() -> None:
    theirs, ours = nn.Linear(8, 24, dtype=BF16), T.Linear(8, 24, dtype=BF16)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for layer in (theirs, ours):
        layer.weight.data, layer.bias.data = whole(24, 8, seed=1), whole(24, seed=2)
    x = whole(3, 5, 8)
    assert torch.equal(ours(x), theirs(x))
    assert isinstance(ours, nn.Linear)
    assert repr(ours) == repr(theirs)


def test_linear_of_fp32_is_refused_and_served_under_autocast() -> None:
    layer = T.Linear(8, 24)
    with pytest.raises(DTypeError, match=r"under torch\.autocast"):
        layer(torch.zeros(4, 8))
    with torch.autocast("cpu", dtype=BF16):
        assert layer(torch.zeros(4, 8)).dtype == BF16


def test_an_accumulating_linear_adds_to_main_grad_where_there_is_one() -> None:
    layer = T.Linear(8, 24, bias=False, dtype=BF16)
    layer.accumulates = True
    assert "accumulates=True" in repr(layer)
    layer(whole(4, 8)).sum().backward()
    assert layer.weight.grad is not None
    layer.weight.grad, layer.weight.main_grad = None, torch.zeros(24, 8)
    for _ in range(2):
        layer(whole(4, 8)).sum().backward()
    assert layer.weight.grad is None
    assert torch.equal(layer.weight.main_grad, 2 * whole(4, 8).float().sum(0).expand(24, 8))


# -- patch and unpatch -------------------------------------------------------------------------------------------------


def test_a_patched_model_gives_the_same_numbers_and_is_unpatched_to_the_very_modules(fast: Any) -> None:
    model = Model()
    expected, modules, state = step(model), dict(model.named_modules()), list(model.state_dict())
    assert fast.counts["launch"] == 0
    report = T.patch(model, emulates=True)
    assert report.replaced == ("up", "down", "head")
    assert report.kept == ()
    assert_same(step(model), expected)
    assert fast.counts["launch"] > 0
    assert list(model.state_dict()) == state
    assert model.head.weight is model.embedding.weight
    assert T.unpatch(model) == ("up", "down", "head")
    assert all(module is modules[name] for name, module in model.named_modules())
    assert all(type(module) is not T.PatchedLinear for module in model.modules())
    assert "emulates" not in vars(model.up)
    assert_same(step(model), expected)
    assert T.unpatch(model) == ()


def test_a_patched_model_can_be_copied_pickled_saved_and_loaded() -> None:
    model = Model()
    expected = step(model)
    T.patch(model, emulates=True)
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    fresh = Model()
    fresh.load_state_dict(torch.load(io.BytesIO(saved.getvalue())))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), fresh):
        assert_same(step(other), expected)
    assert T.unpatch(copy.deepcopy(model)) == ("up", "down", "head")


def test_hooks_and_other_names_of_a_module_stay() -> None:
    model = Model()
    model.alias = model.up
    seen = []
    model.up.register_forward_hook(lambda module, args, out: seen.append(module))
    T.patch(model, emulates=True)
    model(TOKENS)
    assert seen == [model.up]
    assert model.alias is model.up


class Own(nn.Linear):
    """Somebody's subclass."""


def odd_modules() -> dict[str, nn.Module]:
    replaced = nn.Linear(8, 8, dtype=BF16)
    replaced.forward = lambda x: x
    mixed = nn.Linear(8, 8, dtype=BF16)
    mixed.bias = nn.Parameter(torch.zeros(8))
    quantised = nn.Linear(8, 8, dtype=BF16)
    quantised.weight = nn.Parameter(_two_tensors())
    return {
        "fp32": nn.Linear(8, 8),
        "parametrised": nn.utils.parametrizations.weight_norm(nn.Linear(8, 8, dtype=BF16)),
        "subclass": Own(8, 8, dtype=BF16),
        "replaced": replaced,
        "mixed": mixed,
        "meta": nn.Linear(8, 8, dtype=BF16, device="meta"),
        "quantised": quantised,
        "lazy": nn.LazyLinear(8, dtype=BF16),
    }


def _two_tensors() -> Tensor:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.zeros(8, 8, dtype=BF16), torch.zeros(8, 8, dtype=BF16))


REASONS = {
    "fp32": r"float32.*autocast=True",
    "parametrised": "parametris",
    "subclass": r"Own, not torch\.nn\.Linear",
    "replaced": "forward was replaced",
    "mixed": "bias is float32",
    "meta": "where it runs",
    "quantised": "TwoTensor",
    "lazy": "LazyLinear",
}


def test_what_is_not_replaced_is_reported_with_the_reason_and_stays_as_it_was() -> None:
    model = nn.ModuleDict({**odd_modules(), "good": nn.Linear(8, 8, dtype=BF16), "other": nn.Conv1d(8, 8, 1)})
    kinds = {name: type(module) for name, module in model.named_modules()}
    report = T.patch(model, emulates=True, where=lambda name, module: name != "picked")
    assert report.replaced == ("good",)
    found = dict(report.kept)
    assert found.keys() == REASONS.keys()
    for name, words in REASONS.items():
        assert re.search(words, found[name]), (name, found[name])
        assert type(model[name]) is kinds[name]
        assert name in str(report)
    assert dict(T.patch(model).kept)["good"] == "patched before"


def test_a_where_that_fails_leaves_the_model_as_it_was() -> None:
    model = Model()
    with pytest.raises(ZeroDivisionError):
        T.patch(model, where=lambda name, module: 1 / (name != "head"), emulates=True)
    assert type(model.up) is nn.Linear


def test_what_is_no_module_or_has_no_weight_is_said() -> None:
    for function in (T.patch, T.unpatch):
        with pytest.raises(UnsupportedError, match="the model itself"):
            function([nn.Linear(4, 4)])
    with pytest.raises(UnsupportedError, match=r"patch with where = \['head'\]"):
        T.patch(nn.Linear(4, 4), where=["head"])
    with pytest.raises(UnsupportedError, match="emulates = tensor"):
        T.patch(nn.Linear(4, 4), emulates=torch.zeros(2))
    bare = nn.Linear(4, 4, dtype=BF16)
    del bare.weight
    assert "no weight" in str(T.patch(bare, emulates=True))


def test_a_module_that_was_parametrised_since_is_unpatched_too() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    model, x = nn.Linear(8, 4, dtype=BF16), whole(3, 8)
    expected = 2 * nn.functional.linear(x, model.weight) + model.bias
    T.patch(model, emulates=True)
    nn.utils.parametrize.register_parametrization(model, "weight", Doubled())
    assert T.unpatch(model) == ("",)
    torch.testing.assert_close(model(x), expected, rtol=2**-6, atol=2**-6)
    nn.utils.parametrize.remove_parametrizations(model, "weight")
    assert type(model) is nn.Linear


def test_where_and_autocast_and_the_device_decide_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(8, 8)
    assert "left out by where" in str(T.patch(layer, where=lambda name, module: False, autocast=True, emulates=True))
    assert "on the CPU" in str(T.patch(layer, autocast=True))
    assert T.patch(layer, autocast=True, emulates=True).replaced == ("",)
    x = torch.randn(4, 8)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))  # torch's, outside of autocast
    with torch.autocast("cpu", dtype=BF16):
        theirs = nn.functional.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(layer(x), theirs, rtol=2**-7, atol=2**-7)
    for name, words in (("h200", ""), ("t4", "compute capability")):
        card = devices.preset("h200") if name == "h200" else T4
        monkeypatch.setattr(patching, "dispatch", type("D", (), {"device_of": staticmethod(lambda _, c=card: c)}))
        assert words in patching._reason_against_device(torch.device("cuda:0"), False)


def test_a_patched_module_of_shapes_that_nn_linear_does_not_make_is_torchs() -> None:
    x = torch.ones(4, 8, dtype=torch.bfloat16)
    for weight, bias in (((7, 8), (1,)), ((7, 8), (4, 7)), ((8,), None)):
        model = nn.Linear(8, 7, dtype=torch.bfloat16)
        T.patch(model, emulates=True)
        model.weight = nn.Parameter(torch.ones(weight, dtype=torch.bfloat16))
        model.bias = None if bias is None else nn.Parameter(torch.ones(bias, dtype=torch.bfloat16))
        assert torch.equal(model(x), nn.functional.linear(x, model.weight, model.bias))


def test_a_call_that_is_not_served_is_torchs() -> None:
    model = nn.Linear(8, 24, dtype=BF16)
    T.patch(model, emulates=True)
    _, tangent = torch.func.jvp(model, (whole(4, 8),), (whole(4, 8, seed=1),))
    assert torch.equal(tangent, whole(4, 8, seed=1) @ model.weight.t())
    model.float()
    x = torch.randn(4, 8)
    assert torch.equal(model(x), nn.functional.linear(x, model.weight, model.bias))
    with pytest.raises(RuntimeError, match=r"[Ss]parse"):  # torch's own refusal, not ours
        model.to(BF16)(whole(4, 8).to_sparse_csr())
    traced = torch.fx.symbolic_trace(model.to(BF16))
    assert "torch._C._nn.linear" in str(traced.graph)


def test_a_patched_model_compiles_to_one_graph_with_the_ops() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    model = Model()
    expected = step(model)
    T.patch(model, emulates=True)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    assert_same(step(compiled), expected)
    assert counter.frame_count == 1
    assert "tilewright" in str(counter.graphs[0].graph)


def test_without_torch_the_frontend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("tilewright.frontends")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UnsupportedError, match=r"pip install 'tilewright\[torch\]'"):
        _ = tilewright.torch


@pytest.mark.parametrize("shards_first", [False, True])
def test_a_model_is_patched_before_or_after_it_is_sharded(fast: Any, tmp_path: Any, shards_first: bool) -> None:
    """FSDP2, of one process: parameters are DTensors outside of forward and plain memory inside."""
    distributed = pytest.importorskip("torch.distributed.fsdp")
    if not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        expected, model = step(Model()), Model()
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())  # FSDP2 shards no tie across groups
        if not shards_first:
            T.patch(model, emulates=True)
        distributed.fully_shard(model, mesh=mesh)
        if shards_first:
            assert T.patch(model, emulates=True).replaced == ("up", "down", "head")
        out = model(TOKENS)
        out.backward(whole(*out.shape, seed=9))
        assert torch.equal(out, expected[0])
        assert fast.counts["launch"] > 0
        assert torch.equal(model.down.weight.grad.full_tensor(), expected[4])
    finally:
        torch.distributed.destroy_process_group()


def test_eight_threads_call_one_patched_model() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model = Model().requires_grad_(False)
    expected = model(TOKENS)
    T.patch(model, emulates=True)
    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(found, expected) for found in pool.map(model, [TOKENS] * 32))
