"""Slices of k where only a GPU can say: the second launch, its scratch, streams and graphs.

Operands are small whole numbers, whose sums are exact, and the reference is float64. The same in the emulator:
emulator/test_sums_kernel.py.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402  torch first: without it this file is skipped
from tilewright.backends.cuda import backend  # noqa: E402
from tilewright.config import Config  # noqa: E402
from tilewright.kernels.sliced import sliced_space  # noqa: E402
from tilewright.packing import packed  # noqa: E402

pytestmark = pytest.mark.gpu

Tensor = Any
PLAIN = Config(tile_m=128, tile_n=128, stages=6, store_slots=1, slices=8)
FORMS = {
    "plain": PLAIN,
    "dependent sums": PLAIN.replace(dependent_sums=True),
    "all dependent": PLAIN.replace(dependent_sums=True, dependent_launch=True),
    "clusters": PLAIN.replace(cluster_m=2),
    "swap": PLAIN.replace(swap=True),
    "split": PLAIN.replace(stages=4, split_k=2),
}


def whole(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Tensor:
    """Whole numbers from -2 to 2."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, device="cuda", dtype=torch.int8).to(dtype)


def exact(a: Tensor, b: Tensor, dtype: Any = torch.bfloat16) -> Tensor:
    return (a.double() @ b.double()).to(dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["tn", "nn", "tt", "nt"])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_form_is_exact_in_every_layout_and_way_out(form: str, layout: str, out_dtype: Any) -> None:
    for m, n in ((256, 256), (255, 257), (1, 8), (130, 3)):
        a = whole(4096, m).t() if layout[1] == "t" else whole(m, 4096)
        b = whole(n, 4096, seed=1).t() if layout[0] == "t" else whole(4096, n, seed=1)
        for gap, is_column_major in ((0, False), (3, False), (8, True), (1, True)):
            rows, columns = (n, m) if is_column_major else (m, n)
            base = torch.full((rows, columns + gap), float("nan"), device="cuda", dtype=out_dtype)
            out = base[:, :columns].t() if is_column_major else base[:, :columns]
            tilewright.matmul(a, b, out, config=FORMS[form])
            assert torch.equal(out, exact(a, b, out_dtype)), (m, n, gap, is_column_major)
            assert torch.isnan(base[:, columns:]).all()


@pytest.mark.parametrize("form", FORMS)
def test_calls_that_follow_each_other_at_once_are_exact_with_scratch_that_they_share(form: str) -> None:
    """Torch gives every call the same scratch: the next product must not write slices that are still being added."""
    pairs = [(whole(256, 8192, seed=index), whole(256, 8192, seed=index + 100).t()) for index in range(32)]
    wanted = [exact(a, b) for a, b in pairs]
    for _ in range(20):
        outs = [torch.full((256, 256), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in pairs]
        for (a, b), out in zip(pairs, outs, strict=True):
            tilewright.matmul(a, b, out, config=FORMS[form])
        assert all(torch.equal(*each) for each in zip(outs, wanted, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_every_run_gives_the_same_bits(form: str) -> None:
    generator = torch.Generator(device="cuda").manual_seed(0)
    a, w = (torch.randn(256, 8192, generator=generator, device="cuda").bfloat16() for _ in range(2))
    first = tilewright.matmul(a, w.t(), config=FORMS[form])
    for _ in range(300):
        assert torch.equal(tilewright.matmul(a, w.t(), config=FORMS[form]), first)


@pytest.mark.parametrize("form", ["plain", "dependent sums"])
def test_a_first_call_inside_a_capture_replays_with_new_data(form: str) -> None:
    """B115. Compiled and loaded before, as a warm-up does; the scratch is the graph's own."""
    a, w, out = whole(256, 8192), whole(256, 8192, seed=1), torch.empty(256, 256, device="cuda", dtype=torch.bfloat16)
    plan = tilewright.plan(a, w.t(), out, config=FORMS[form])
    plan.run(whole(256, 8192), whole(256, 8192).t(), torch.empty_like(out))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(a, w.t(), out)
        doubled = out * 2
    other = [torch.full((1 << 22,), float("nan"), device="cuda") for _ in range(8)]  # what the scratch must not be
    for seed in range(2, 6):
        a.copy_(whole(256, 8192, seed=seed))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, exact(a, w.t()))
        assert torch.equal(doubled, out * 2)
    assert all(torch.isnan(each).all() for each in other)


@pytest.mark.parametrize("form", ["plain", "dependent sums"])
def test_all_of_it_is_on_the_side_stream_behind_a_slow_producer(form: str) -> None:
    """B119, B121: the operand is made late on that stream; meanwhile the main stream takes and fills memory."""
    side, slow = torch.cuda.Stream(), whole(8192, 8192)
    ready, w = whole(256, 8192, seed=3), whole(256, 8192, seed=1)
    wanted = exact(ready, w.t())
    tilewright.matmul(ready, w.t(), config=FORMS[form])
    torch.cuda.synchronize()
    for _ in range(10):
        a = torch.zeros_like(ready)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.matmul(slow, slow)
            a.copy_(ready)
            out = tilewright.matmul(a, w.t(), config=FORMS[form])
        filled = [torch.full((256 * 256 * 8,), float("nan"), device="cuda") for _ in range(8)]
        side.synchronize()
        assert torch.equal(out, wanted)
        assert all(torch.isnan(each).all() for each in filled)


def test_products_on_two_streams_have_scratch_of_their_own() -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    pairs = [(whole(256, 65536, seed=index), whole(256, 65536, seed=index + 9).t()) for index in range(2)]
    wanted = [exact(a, b) for a, b in pairs]
    torch.cuda.synchronize()
    for _ in range(30):
        outs = []
        for stream, (a, b) in zip(streams, pairs, strict=True):
            with torch.cuda.stream(stream):
                outs.append(tilewright.matmul(a, b, config=PLAIN.replace(slices=16)))
        torch.cuda.synchronize()
        assert all(torch.equal(*each) for each in zip(outs, wanted, strict=True))


@pytest.mark.parametrize(("m", "n", "k"), [(256, 256, 65536), (255, 257, 65536), (128, 4096, 14336), (512, 512, 16384)])
def test_every_config_of_the_space_is_exact(m: int, n: int, k: int) -> None:
    a, w = whole(m, k), whole(n, k, seed=1)
    wanted = exact(a, w.t())
    configs = list(sliced_space(packed(m, n, k), backend().device(0)))
    assert configs
    for config in configs:
        for num_sms in (None, 16):
            out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
            tilewright.matmul(a, w.t(), out, config=config, num_sms=num_sms)
            assert torch.equal(out, wanted), (config, num_sms)


def test_operands_that_are_copied_first_are_sliced_too() -> None:
    a, w = whole(250, 8193)[:, 1:], whole(130, 8192 + 3, seed=1)[:, :8192]
    assert torch.equal(tilewright.matmul(a, w.t(), config=PLAIN), exact(a, w.t()))
