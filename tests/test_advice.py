"""Whoever does what a refusal advises, word for word, is served: thousands of views of every stride and address."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fakes import T4, FakeCompiler, GpuArray, HostBackend, gpu, product
from tilewright.dispatch import Dispatcher, plan
from tilewright.errors import LayoutError, TilewrightError
from tilewright.packing import packed

EXTENTS = (1, 1, 2, 5, 8, 16, 20, 24, 30)
MAX_REFUSALS = 6  # of one call: strides and address of a and of b, and an overlap with each

_PASS = re.compile(r"pass ([^ ,]+) \(NumPy and CuPy: ([^ ,]+)\)(?:, or pass an out of its own)?")


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    backend = HostBackend()
    return Dispatcher(lambda: backend)


def followed(advice: str, operands: dict[str, GpuArray], spelling: int) -> str:
    """Does what the advice says, to the operand whose name it gives back. `spelling`: 1 torch's, 2 NumPy's."""
    said = _PASS.fullmatch(advice)
    assert said is not None, f"nobody can follow: {advice}"
    expression = said[spelling]
    operands[expression[0]] = eval(expression, {}, operands)
    return expression[0]


def served(dispatcher: Dispatcher, a: GpuArray, b: GpuArray, out: GpuArray, spelling: int) -> list[str]:
    """Calls matmul and follows its advice until it is served; gives the operands that were copied, in their order."""
    operands, copied = {"a": a, "b": b}, []
    expected = product(a, b)
    for _ in range(MAX_REFUSALS):
        try:
            dispatcher.matmul(operands["a"], operands["b"], out)
        except LayoutError as refusal:
            copied.append(followed(refusal.works, operands, spelling))
            continue
        assert np.array_equal(out.host.astype(np.float64), expected.astype(out.host.dtype).astype(np.float64))
        return copied
    raise AssertionError(f"still refused after {copied}: {a.host.strides} {b.host.strides}")


def drawn(rng: random.Random, shape: tuple[int, int]) -> GpuArray:
    """A view of these extents into memory of its own: flipped, broadcast, padded, transposed, off its alignment."""
    choices = (1, 1, 8, 16, 24, 40, *shape, shape[1] + 1, 0, -8, -1)
    strides = [rng.choice(choices), rng.choice(choices)]
    if rng.random() < 0.7:
        strides[rng.randrange(2)] = 1
    flat = gpu((8192,), seed=rng.randrange(99)).host
    start = 4096 + rng.choice((0, 0, 0, 1, 8))
    return GpuArray(np.lib.stride_tricks.as_strided(flat[start:], shape, [2 * stride for stride in strides]))


@pytest.mark.parametrize("spelling", [1, 2], ids=["torch", "numpy"])
def test_a_literal_follower_is_served_and_copies_no_operand_twice(dispatcher: Dispatcher, spelling: int) -> None:
    """B022: what a refusal suggests is never refused in turn."""
    rng = random.Random(spelling)
    num_refused = 0
    for _ in range(1000):
        m, n, k = (rng.choice(EXTENTS) for _ in range(3))
        copied = served(dispatcher, drawn(rng, (m, k)), drawn(rng, (k, n)), gpu((m, n), "fp32"), spelling)
        assert len(set(copied)) == len(copied), "an advised copy was refused in turn"
        num_refused += len(copied)
    assert num_refused > 400


@pytest.mark.parametrize("spelling", [1, 2], ids=["torch", "numpy"])
@pytest.mark.parametrize("extent", [100, 96, 64])
@pytest.mark.parametrize("which", ["a", "b", "w"])
def test_an_out_inside_of_an_operand_is_served_after_the_advised_copy(
    dispatcher: Dispatcher, which: str, extent: int, spelling: int
) -> None:
    base = gpu((extent, 208) if which == "b" else (64, 208), seed=3)
    inside = base[:64, :64]
    a, b = gpu((64, 104), seed=1)[:, :extent], gpu((extent, 64), seed=2)
    if which == "a":
        a = base[:64, :extent]
    elif which == "b":
        b = base[:, :64]
    else:
        b = base[:, :extent].t()
    assert served(dispatcher, a, b, GpuArray(inside.host), spelling) == [which if which != "w" else "b"]


@pytest.mark.parametrize("strides", [(1, -8), (2, 3), (-1, 1), (0, 0), (0, 2)])
def test_what_no_copy_reads_is_served_packed(dispatcher: Dispatcher, strides: tuple[int, int]) -> None:
    flat = gpu((2048,), seed=5).host[1024:]
    b = GpuArray(np.lib.stride_tricks.as_strided(flat, (16, 30), [2 * stride for stride in strides]))
    with pytest.raises(LayoutError, match=r"pass b\.contiguous\(\)"):
        dispatcher.matmul(gpu((16, 24))[:, :16], b, gpu((16, 30)))


@pytest.mark.parametrize("strides", [(1, 0), (0, 1), (8, 0), (1, 20), (30, 1), (3, 1), (1, 1)])
def test_what_a_copy_can_read_is_not_refused(dispatcher: Dispatcher, strides: tuple[int, int]) -> None:
    """Broadcast, odd and overlapping rows."""
    flat = gpu((2048,), seed=5).host[1024:]
    k = 1 if strides == (8, 0) else 16
    b = GpuArray(np.lib.stride_tricks.as_strided(flat, (k, 30), [2 * stride for stride in strides]))
    a = gpu((16, 24), seed=1)[:, :k]
    assert served(dispatcher, a, b, gpu((16, 30), "fp32"), 1) == []


# -- what a refusal says -----------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], tuple[Any, ...]], dict[str, Any], tuple[str, ...]]] = {
    "k that does not meet": (
        lambda: (gpu((8, 64)), gpu((32, 16)), gpu((8, 16))), {}, ("a (8, 64)", "b (32, 16)", "64 columns", "32 rows"),
    ),
    "two types": (lambda: (gpu((8, 64)), gpu((64, 16), "fp16"), gpu((8, 16))), {}, ("a of bf16", "b of fp16", "cast")),
    "a type of out": (
        lambda: (gpu((8, 64)), gpu((64, 16)), gpu((8, 16), "int8")), {},
        ("bf16 inputs", "out in int8", "bf16, fp32 or fp16"),
    ),
    "strides": (
        lambda: (GpuArray(gpu((8, 64)).host[:, ::2]), gpu((32, 16)), gpu((8, 16))), {},
        ("a (8, 32) bf16 with strides (64, 2) on cuda:0", "k or m is contiguous", "a.contiguous()"),
    ),
    "a shape of out": (lambda: (gpu((8, 64)), gpu((64, 16)), gpu((16, 8))), {}, ("out (16, 8)", "(8, 16)")),
    "an overlap": (lambda: (gpu((64, 64)),) * 3, {}, ("out that shares memory with a", "a.clone()")),
    "a config": (
        lambda: (gpu((8, 64)), gpu((64, 16)), gpu((8, 16))), {"config": {"tile_n": 260}},
        ("64x260x64", "tile_n = 260", "multiple of 8 from 8 to 256"),
    ),
    "SMs": (
        lambda: (gpu((8, 64)), gpu((64, 16)), gpu((8, 16))), {"num_sms": 133},
        ("num_sms = 133", "132 SMs", "NVIDIA H200"),
    ),
    "a reduction": (
        lambda: (gpu((8, 64)), gpu((64, 16)), gpu((8, 16))), {"reduction": "tree"}, ("'tree'", '"fast"', '"invariant"'),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_names_what_was_asked_the_rule_in_numbers_and_what_would_work(
    dispatcher: Dispatcher, what: str
) -> None:
    """B149: not one sentence that could be about any call."""
    make, choices, facts = REFUSED[what]
    with pytest.raises(TilewrightError) as refusal:
        dispatcher.matmul(*make(), **choices)
    said = str(refusal.value)
    assert [fact for fact in facts if fact not in said] == [], said


def test_a_device_without_kernels_is_refused_with_its_capability_and_those_that_have_some() -> None:
    """B149, of the architecture."""
    with pytest.raises(
        TilewrightError, match=r"T4.* 7\.5.*8\.0, 8\.6, 8\.9, 9\.0.*h200, h100, h20, a100, rtx3090, rtx4090"
    ):
        plan(packed(64, 64, 64), device=T4)
