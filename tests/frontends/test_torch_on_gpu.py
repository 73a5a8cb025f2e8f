"""tilewright.torch where only a GPU can say: graphs, streams, devices, threads, forks, memory, and Inductor.

A case's number is that of the project's collection of faults. Operands are small whole numbers, whose sums are exact,
so results are compared bit for bit with torch's in float64. Their twins without a GPU: test_torch_ops.py,
backends/test_cuda.py (captures, devices, threads), arrays/test_torch.py (streams).
"""

from __future__ import annotations

import copy
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402  torch first: without it this file is skipped
from tilewright.epilogue import RowAmax  # noqa: E402

T = tilewright.torch
Tensor = Any
BF16 = torch.bfloat16
SOURCE = str(Path(tilewright.__file__).parents[1])
pytestmark = pytest.mark.gpu

two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True)
def _memory_of_its_own() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def whole(*shape: int, seed: int = 0, dtype: Any = BF16, device: str = "cuda") -> Tensor:
    """Whole numbers from -2 to 2."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, dtype=torch.int8).to(device).to(dtype)


def exact(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double()).to(a.dtype)


# -- the ops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 72, 80), (33, 17, 65)], ids=["by TMA", "by copies"])
def test_results_and_gradients_are_exact_in_every_layout(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for x in (whole(m, k), whole(k, m).t(), whole(m, k + 8)[:, :k], whole(2 * m, 2 * k)[::2, ::2]):
        for w in (whole(n, k, seed=1), whole(k, n, seed=1).t(), whole(n, k + 3, seed=1)[:, 1 : k + 1]):
            leaves = [t.detach().requires_grad_() for t in (x, w)]
            bias, grad = whole(n, seed=2).requires_grad_(), whole(m, n, seed=3)
            out = T.linear(*leaves, bias)
            out.backward(grad)
            assert torch.equal(T.linear(x, w), exact(x, w.t()))
            assert torch.equal(out, exact(x, w.t()) + bias)
            assert torch.equal(leaves[0].grad, exact(grad, w))
            assert torch.equal(leaves[1].grad, exact(grad.t(), x))
            assert torch.equal(bias.grad, grad.double().sum(0).to(BF16))


@pytest.mark.parametrize("split", ["halves", "interleaved"])
@pytest.mark.parametrize("shape", [(64, 144, 80), (33, 34, 65), (7, 512, 256), (600, 1056, 72)])
def test_a_gate_and_its_gradients_are_right(shape: tuple[int, int, int], split: str) -> None:
    """B038. With and without a gradient, in every layout of the weight. x weight^T is exact; bf16 rounds its gradient
    twice and the sums of that once."""
    m, n, k = shape
    x, grad, bias = whole(m, k) / 32, whole(m, n // 2, seed=3), whole(n, seed=2)
    for w in (whole(n, k, seed=1), whole(k, n, seed=1).t(), whole(n, k + 3, seed=1)[:, 1 : k + 1]):
        leaves, doubles = [
            [t.detach().to(kind).requires_grad_() for t in (x, w, bias)] for kind in (BF16, torch.float64)
        ]
        pre = torch.nn.functional.linear(*doubles)
        gate, up = pre.chunk(2, -1) if split == "halves" else (pre[:, 0::2], pre[:, 1::2])
        right = torch.nn.functional.silu(gate) * up
        grad_pre, *grads = torch.autograd.grad(right, (pre, *doubles), grad.double())
        off = grad_pre.abs() * 2**-6 + 2**-16
        out = T.gated_linear(*leaves, split=split)
        out.backward(grad)
        found = [
            (out.detach(), right.detach(), 2**-16),
            (T.gated_linear(x, w, bias, split=split), right.detach(), 2**-16),
        ]
        bounds = (off @ w.double().abs(), off.t() @ x.double().abs(), off.sum(0))
        found += zip((leaf.grad for leaf in leaves), grads, bounds, strict=True)
        for ours, exactly, bound in found:
            assert ((ours.double() - exactly).abs() <= bound + 2**-8 * (exactly.abs() + bound)).all()


@pytest.mark.parametrize("shape", [(64, 72, 80), (33, 17, 65), (7, 256, 256), (600, 528, 72)])
def test_a_gate_of_two_weights_has_the_bits_of_one_that_holds_both(shape: tuple[int, int, int]) -> None:
    """Its gradients too, but for that of x, a sum of two products that is rounded once more."""
    m, n, k = shape
    x, grad = whole(m, k) / 32, whole(m, n, seed=3)
    weights = [whole(n, k, seed=seed) for seed in (1, 2)]
    leaves = [t.clone().requires_grad_() for t in (x, *weights)]
    one = [t.clone().requires_grad_() for t in (x, torch.cat(weights))]
    out, same = T.gated_linear(leaves[0], leaves[1:]), T.gated_linear(*one)
    assert torch.equal(out, same)
    with torch.no_grad():
        assert torch.equal(T.gated_linear(x, weights), T.gated_linear(x, torch.cat(weights)))
    out.backward(grad)
    same.backward(grad)
    assert torch.equal(torch.cat([leaf.grad for leaf in leaves[1:]]), one[1].grad)
    off = (leaves[0].grad - one[0].grad).double().norm()
    assert off <= 2**-7 * one[0].grad.double().norm()


@pytest.mark.parametrize("split", ["halves", "interleaved"])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_the_gradient_of_gate_and_up_is_one_launch_and_as_exact_as_torchs(activation: str, split: str) -> None:
    from tilewright.frontends.torch import gate_gradient, gradients, products

    generator = torch.Generator("cuda").manual_seed(0)
    grad, pre = (torch.randn(2, 300, n, device="cuda", generator=generator).to(BF16) for n in (1032, 2064))
    with torch.no_grad():
        ours = gate_gradient.of_gate(grad, pre, activation, split)
    assert ours is not None
    theirs, right = (
        products.joined(*gradients._gate_gradients(activation, g, *products.parted(p, split)), split)
        for g, p in ((grad, pre), (grad.double(), pre.double()))
    )
    off, allowed = ((each.double() - right).norm() for each in (ours, theirs))
    assert off <= allowed
    assert ((ours.double() - right).abs() <= 2**-8 * right.abs() + 2**-13).all()  # |grad|, |up| below 6


def test_opcheck_is_clean_on_the_gpu() -> None:
    """B133."""
    ops = torch.ops.tilewright
    for a in (whole(40, 64), whole(64, 40).t(), whole(0, 64), whole(80, 128)[::2, ::2]):
        w, bias = whole(48, 64, seed=1).requires_grad_(), whole(48, seed=2)
        torch.library.opcheck(ops.linear.default, (a, w, bias, None, "gelu"))
        torch.library.opcheck(ops.matmul.default, (a, w.t()))
        torch.library.opcheck(ops.matmul_out.default, (a, w.detach().t(), whole(a.shape[0], 48)))
        torch.library.opcheck(ops.addmm.default, (bias, a, w.t(), 0.5, 2.0))


class Block(torch.nn.Module):
    """Linear layers as a transformer's MLP has them."""

    def __init__(self, width: int = 256, inner: int = 512) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, inner, device="cuda", dtype=BF16)
        self.down = torch.nn.Linear(inner, width, bias=False, device="cuda", dtype=BF16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def gradients(model: torch.nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    out = model(x)
    out.float().square().mean().backward()
    return [out.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_patched_model_compiled_by_inductor_is_the_eager_one_within_rounding(mode: str) -> None:
    """B134, B136: and one graph for every number of rows."""
    torch.manual_seed(0)
    model = Block()
    assert T.patch(model).replaced == ("up", "down")
    torch._dynamo.reset()
    dynamic = mode == "default"
    compiled = torch.compile(model, fullgraph=True, mode=None if dynamic else mode, dynamic=dynamic)
    for rows in range(64, 84) if dynamic else (64, 64, 64):
        x = torch.randn(rows, 256, device="cuda", dtype=BF16)
        with torch._dynamo.config.patch(error_on_recompile=rows > 64):
            found = [t.clone() for t in gradients(compiled, x)]
        for ours, theirs in zip(found, gradients(model, x), strict=True):
            assert (ours - theirs).abs().max() <= 0.03 * theirs.abs().max()


class Swiglu(torch.nn.Module):
    def __init__(self, width: int = 256, inner: int = 512) -> None:
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("kind", [Swiglu, "gelu"])
def test_a_fused_module_is_as_near_to_float64_as_torch_eager_compiled_and_captured(kind: Any) -> None:
    torch.manual_seed(0)
    sizes = (256, 512)
    plain = (
        Swiglu()
        if kind is Swiglu
        else torch.nn.Sequential(torch.nn.Linear(*sizes), torch.nn.GELU(), torch.nn.Linear(*sizes[::-1]))
    )
    plain = plain.to("cuda", BF16)
    model, double = copy.deepcopy(plain), copy.deepcopy(plain).double()
    assert len(T.patch(model).fused) == 1
    x = torch.randn(300, 256, device="cuda", dtype=BF16)
    right, theirs = gradients(double, x.double()), gradients(plain, x)

    def assert_near(found: list[Tensor]) -> None:
        for ours, other, exactly in zip(found, theirs, right, strict=True):
            off, allowed = ((each.double() - exactly).norm() for each in (ours, other))
            assert off <= 1.1 * allowed + 2**-9 * exactly.norm()

    assert_near(gradients(model, x))
    torch._dynamo.reset()
    assert_near(gradients(torch.compile(model, fullgraph=True), x))
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        model(x)
        with torch.cuda.graph(graph):
            out = model(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(out, model(x))


def test_models_of_transformers_are_fused_and_give_the_same_logits() -> None:
    """Tiny ones of random weights; the report names the MLP of each layer."""
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 128,
    }  # fmt: skip
    for name in ("Llama", "Qwen2", "Mistral", "Phi3"):
        more = {"pad_token_id": 0} if name == "Phi3" else {}
        config = getattr(transformers, f"{name}Config")(**sizes, num_key_value_heads=2, **more)
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}ForCausalLM")(config).to("cuda", BF16).eval()
        tokens = torch.randint(1, 128, (2, 40), device="cuda")
        with torch.no_grad():
            expected, right = model(tokens).logits, copy.deepcopy(model).float()(tokens).logits
            report = T.patch(model)
            assert [layer for layer, _ in report.fused] == [f"model.layers.{index}.mlp" for index in range(2)]
            found = model(tokens).logits
        off, allowed = ((each.float() - right).norm() for each in (found, expected))
        assert off <= 1.1 * allowed + 2**-9 * right.norm()


def test_deterministic_algorithms_raise_nothing_and_change_no_bit() -> None:
    model, x = Block(), torch.randn(96, 256, device="cuda", dtype=BF16)
    T.patch(model)
    expected = gradients(model, x)
    torch.use_deterministic_algorithms(True)
    try:
        assert all(torch.equal(*pair) for pair in zip(gradients(model, x), expected, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


# -- graphs ------------------------------------------------------------------------------------------------------------

A, B, BIAS = (64, 136), (136, 72), (72,)
ENTRIES: dict[str, Callable[..., Tensor]] = {
    "tilewright.matmul": lambda a, b, bias, out: tilewright.matmul(a, b),
    "tilewright.matmul with out": lambda a, b, bias, out: tilewright.matmul(a, b, out),
    "plan.run": lambda a, b, bias, out: tilewright.plan(a, b).run(a, b),
    "matmul": lambda a, b, bias, out: T.matmul(a, b),
    "matmul with out": lambda a, b, bias, out: T.matmul(a, b, out=out),
    "linear": lambda a, b, bias, out: T.linear(a, b.t(), bias),
    "addmm": lambda a, b, bias, out: T.addmm(bias, a, b),
    "linear with an activation": lambda a, b, bias, out: T.linear(a, b.t(), bias, activation="gelu"),
    "gated_linear": lambda a, b, bias, out: T.gated_linear(a, b.t()),
    "gated_linear of a pair": lambda a, b, bias, out: T.gated_linear(a, (b.t(), b.t())),
    "bmm": lambda a, b, bias, out: T.bmm(a[None], b[None]),
    "an epilogue that zeroes first": lambda a, b, bias, out: tilewright.matmul(
        a, b, epilogue=RowAmax(torch.empty(A[0], device="cuda"))
    ),
    "an operand that is copied": lambda a, b, bias, out: T.matmul(a[:, 1:], b[1:]),
    "no sum": lambda a, b, bias, out: T.matmul(a[:, :0], b[:0]),
}


@pytest.mark.parametrize("is_first", [False, True], ids=["after a warm-up", "at its first use"])
@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_point_is_captured_and_replays_with_the_data_of_then(name: str, is_first: bool) -> None:
    """B114, B115, B118. At a first use the kernel is loaded inside the capture, nothing is measured, nothing waits."""
    a, b, bias, out = whole(*A), whole(*B, seed=1), whole(*BIAS, seed=2), whole(A[0], B[1])
    entry = ENTRIES[name]
    entry(a, b, bias, out)
    if is_first:
        torch.cuda.synchronize()
        tilewright.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = entry(a, b, bias, out)
    for seed in (7, 8):
        a.copy_(whole(*A, seed=seed))
        b.copy_(whole(*B, seed=seed + 10))
        torch.empty(1 << 20, device="cuda").fill_(float("nan"))  # what the capture freed is not this
        graph.replay()
        expected = entry(a, b, bias, torch.empty_like(out))
        assert torch.equal(result, expected)


@pytest.mark.parametrize("kind", [Block, Swiglu])
def test_a_training_step_is_captured(kind: Any) -> None:
    model = kind().to("cuda", BF16)
    T.patch(model)
    x = torch.randn(64, 256, device="cuda", dtype=BF16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            gradients(model, x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(model, x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(*pair) for pair in zip(captured, gradients(model, x), strict=True))


@two_devices
def test_a_capture_on_another_device_than_the_current_one() -> None:
    """B116."""
    a, b = whole(64, 136, device="cuda:1"), whole(136, 72, seed=1, device="cuda:1")
    T.matmul(a, b)
    torch.cuda.synchronize(1)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(1)
    with torch.cuda.graph(graph, stream=stream), torch.cuda.device(0):
        result = T.matmul(a, b)
    graph.replay()
    torch.cuda.synchronize(1)
    assert torch.equal(result, exact(a, b))


# -- streams and devices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [136, 135], ids=["one launch", "with scratch"])
def test_all_work_is_on_the_callers_stream(columns: int) -> None:
    """B119, B121, B128: operands are made late on a side stream; scratch is not given to others meanwhile."""
    side, load = torch.cuda.Stream(), torch.randn(8192, 8192, device="cuda", dtype=BF16)
    x, w = whole(64, columns), whole(72, columns, seed=1)
    expected = exact(x, w.t())
    torch.cuda.synchronize()
    for _ in range(5):
        late = torch.zeros_like(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.matmul(load, load)
            late.copy_(x)
            found = T.linear(late, w)
        for size in (1 << 10, 1 << 16, 1 << 20):  # what the side stream's scratch may have been, were it freed to us
            torch.empty(size, device="cuda", dtype=torch.uint8).fill_(255)
        side.synchronize()
        assert torch.equal(found, expected)


@two_devices
def test_the_same_call_on_one_device_then_another_then_the_first() -> None:
    """B122; and the current device is another than the tensors', and stays."""
    for index in (0, 1, 0):
        device = f"cuda:{index}"
        x, w = whole(64, 136, device=device).requires_grad_(), whole(72, 136, seed=1, device=device).requires_grad_()
        with torch.cuda.device(1 - index):
            out = T.linear(x, w)
            out.backward(whole(64, 72, seed=2, device=device))
            assert torch.cuda.current_device() == 1 - index
        assert out.device.index == index
        assert torch.equal(out, exact(x, w.t()))
        assert torch.equal(w.grad, exact(whole(64, 72, seed=2, device=device).t(), x))


def _in_a_process(code: str, **environment: str) -> str:

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": SOURCE} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PRODUCT = """
import torch, tilewright
a = torch.ones(64, 128, device="cuda", dtype=torch.bfloat16)
assert (tilewright.torch.linear(a, a) == 128).all()
print("right")
"""


def test_a_single_visible_device_is_cuda_0() -> None:
    """B125."""
    last = torch.cuda.device_count() - 1
    assert _in_a_process(PRODUCT, CUDA_VISIBLE_DEVICES=str(last)) == "right\n"


def test_a_child_of_a_process_that_has_only_imported_may_use_the_gpu() -> None:
    child = PRODUCT.replace("\n", "\n    ")
    code = f"""
import os, torch, tilewright
tilewright.torch, tilewright.matmul
child = os.fork()
if child == 0:
    {child}
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    _in_a_process(code)


# -- threads and memory ------------------------------------------------------------------------------------------------


def test_eight_threads_compile_and_call() -> None:
    """Each with products of its own and one that all share, with gradients, on a stream of its own."""
    tilewright.clear()

    def work(index: int) -> bool:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            right = True
            for m in (64, 8 * index + 72):
                x, w = whole(m, 136).requires_grad_(), whole(72, 136, seed=1).requires_grad_()
                out = T.linear(x, w)
                out.backward(whole(m, 72, seed=2))
                right &= torch.equal(out, exact(x, w.t()))
                right &= torch.equal(w.grad, exact(whole(m, 72, seed=2).t(), x))
            return right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def called_again_and_again(with_grad: bool) -> Callable[[int], None]:
    """What calls a patched layer so many times, each with a fresh x; some calls are behind it."""
    layer = torch.nn.Linear(128, 128, device="cuda", dtype=BF16)
    T.patch(layer)
    layer.requires_grad_(with_grad)
    x = whole(64, 128)

    def calls(count: int) -> None:
        for _ in range(count):
            layer(x.clone())
        torch.cuda.synchronize()
        gc.collect()

    calls(20_000)
    return calls


@pytest.mark.parametrize("with_grad", [False, True])
def test_a_hundred_thousand_calls_leave_neither_host_nor_torch_memory_behind(with_grad: bool) -> None:
    """B130: of this process alone."""
    calls = called_again_and_again(with_grad)
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    host_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls(100_000)
    assert torch.cuda.memory_allocated() <= allocated
    assert torch.cuda.memory_reserved() <= reserved
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - host_kib < 8 << 10  # KiB: under 80 bytes a call


@pytest.mark.alone("other workers of pytest-xdist change the device's free memory")
@pytest.mark.parametrize("with_grad", [False, True])
def test_a_hundred_thousand_calls_leave_no_memory_of_the_driver_behind(with_grad: bool) -> None:
    """B130: what torch's allocator does not count is seen in the whole device's free memory."""
    calls = called_again_and_again(with_grad)
    free_bytes, _ = torch.cuda.mem_get_info()
    calls(100_000)
    assert free_bytes - torch.cuda.mem_get_info()[0] < 1 << 20
