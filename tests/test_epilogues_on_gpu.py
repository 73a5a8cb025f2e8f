"""Epilogues where only a GPU can say: torch tensors, streams, graphs, atomics, and out itself as c.

Bounds are those of check(); the same steps in the emulator: emulator/test_epilogues.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402  torch first: without it this file is skipped
from tilewright import dtypes  # noqa: E402
from tilewright.ampere_config import AmpereConfig  # noqa: E402
from tilewright.check import check  # noqa: E402
from tilewright.config import Config  # noqa: E402
from tilewright.epilogue import (  # noqa: E402
    Add,
    Alpha,
    Aux,
    Beta,
    Bias,
    Epilogue,
    Gated,
    Gelu,
    Relu,
    RowAmax,
    Scale,
    Silu,
    as_epilogue,
)

pytestmark = pytest.mark.gpu

Tensor = Any
FORMS = {
    "chosen": None,
    "staggered": Config(tile_m=256, tile_n=200, stages=3, store_slots=1, staggered=True),
    "ping-pong": Config(tile_m=128, tile_n=128, stages=5, pingpong=True, store_slots=1),
    "tail": Config(tile_m=256, tile_n=192, stages=3, store_slots=1, staggered=True, tail_n=64),
    "staggered-tail": Config(tile_m=256, tile_n=128, store_slots=1, staggered=True, tail_n=64),
    "swap": Config(tile_m=64, tile_n=64, stages=4, consumers=1, swap=True),
    "split": Config(tile_m=64, tile_n=64, stages=4, consumers=1, split_k=2),
}


def values(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def unwritten(*shape: int, dtype: Any = torch.bfloat16) -> Tensor:
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def is_right(a: Tensor, b: Tensor, out: Tensor, epilogue: Any) -> bool:
    whole = b.expand(*a.shape[:-2], *b.shape[-2:])
    return check(a, whole, out, dtypes.by_name(out.dtype), epilogue=epilogue).ok


STEPS: dict[str, Callable[[int], Epilogue]] = {  # of n columns
    "bias, relu": lambda n: Alpha(0.5) | Bias(values(n, seed=3)) | Relu(),
    "c, bias, gelu": lambda n: Alpha(0.5) | Beta(-0.5, values(777, n, seed=2)) | Bias(values(n, seed=3)) | Gelu(),
    "scale, aux, silu, c": lambda n: (
        Scale(values(777, dtype=torch.float32), "row") | Aux(unwritten(777, n)) | Silu() | Add(values(777, n))
    ),
    "bias, maxima, gelu by tanh": lambda n: (
        Bias(values(n, dtype=torch.float16)) | RowAmax(unwritten(777, dtype=torch.float32)) | Gelu("tanh")
    ),
}
# Beside 200 or 192 accumulators a thread there are no registers for their 60 and more of state.
MAY_BE_REFUSED = {
    (form, name)
    for form in ("staggered", "tail")
    for name in ("c, bias, gelu", "scale, aux, silu, c", "bias, maxima, gelu by tanh")
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [392, 391], ids=["by TMA", "by lanes"])
def test_every_form_applies_the_steps_in_order(form: str, n: int) -> None:
    a, b = values(777, 1032), values(n, 1032, seed=1).t()
    for name, make in STEPS.items():
        epilogue = make(n)
        try:
            out = tilewright.matmul(a, b, config=FORMS[form], epilogue=epilogue)
        except tilewright.errors.ConfigError:
            if (form, name) not in MAY_BE_REFUSED:
                raise
            continue
        assert is_right(a, b, out, epilogue), name


@pytest.mark.parametrize("split", ["halves", "interleaved"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["single", "batch"])
def test_gated_columns_are_those_of_torch(split: str, batch: tuple[int, ...]) -> None:
    a, b = values(*batch, 300, 520), values(1056, 520, seed=1).t()
    epilogue = Bias(values(1056)) | Gated("silu", split) | Add(values(*batch, 300, 528))
    out = tilewright.matmul(a, b, epilogue=epilogue)
    assert out.shape == (*batch, 300, 528)
    assert is_right(a, b, out, epilogue)


@pytest.mark.parametrize("form", ["chosen", "staggered", "ping-pong", "Ampere"])
@pytest.mark.parametrize("is_row_major", [False, True], ids=["k-contiguous", "n-contiguous"])
def test_gate_and_up_of_two_tensors_are_read_where_they_lie(form: str, is_row_major: bool) -> None:
    config = AmpereConfig(tile_m=64, tile_n=128, tile_k=64, stages=4) if form == "Ampere" else FORMS[form]
    if form == "staggered":
        config = Config(tile_m=256, tile_n=192, stages=3, store_slots=1, staggered=True, k_back_and_forth=True)
    shape = (520, 528) if is_row_major else (528, 520)
    a, gate, up = values(777, 520), values(*shape, seed=1), values(*shape, seed=2)
    if not is_row_major:
        gate, up = gate.t(), up.t()
    if is_row_major and form == "staggered":
        config = Config(tile_m=256, tile_n=128, stages=3, store_slots=1, staggered=True)
    pre = unwritten(777, 1056)
    epilogue = Bias(values(1056)) | Aux(pre) | Gated("silu", up=up) | Add(values(777, 528))
    try:
        out = tilewright.matmul(a, gate, config=config, epilogue=epilogue)
    except tilewright.errors.ConfigError:  # of what it holds beside its accumulators
        epilogue = Gated("silu", up=up)
        out = tilewright.matmul(a, gate, config=config, epilogue=epilogue)
    assert is_right(a, gate, out, epilogue)


CROSSED = [("bfloat16", "float16"), ("float16", "bfloat16"), ("float32", "bfloat16"), ("float32", "float16")]
CROSSED_FORMS = {
    **{form: FORMS[form] for form in ("chosen", "staggered-tail", "swap", "split")},
    "slices": Config(tile_m=128, tile_n=128, stages=6, store_slots=1, slices=8, dependent_sums=True),
    "Ampere": AmpereConfig(tile_m=64, tile_n=64, tile_k=64, stages=4),
}


@pytest.mark.parametrize(("dtype", "out_dtype"), CROSSED)
@pytest.mark.parametrize("n", [392, 391], ids=["by TMA", "by lanes"])
def test_an_out_of_another_type_than_the_inputs_is_rounded_once(dtype: str, out_dtype: str, n: int) -> None:
    """With sums past 65504; fp32 is multiplied as tf32, in the config of choice."""
    a, b = (
        values(777, 1024, dtype=getattr(torch, dtype)) * 1000,
        values(n, 1024, seed=1, dtype=getattr(torch, dtype)).t(),
    )
    inputs = dtypes.TF32 if dtype == "float32" else None
    for form, config in CROSSED_FORMS.items():
        if inputs is not None and form != "chosen":
            continue
        for epilogue in (None, Bias(values(n, seed=3)) | Gelu()):
            out = tilewright.matmul(a, b, out_dtype=out_dtype, config=config, inputs=inputs, epilogue=epilogue)
            verdict = check(a, b, out, dtypes.by_name(out_dtype), inputs=inputs, epilogue=epilogue)
            assert verdict.ok, (form, str(verdict))
            assert out.isinf().any() == (out_dtype == "float16")


AMPERE_FORMS = {
    "chosen": None,
    "256x128": AmpereConfig(tile_m=256, tile_n=128, tile_k=64, warps_m=4, stages=3),
    "64x64": AmpereConfig(tile_m=64, tile_n=64, tile_k=32, stages=4, ctas=2),
}
# Beside 128 accumulators and 40 registers of fragments, 88 of state are one more than a thread has.
MAY_BE_REFUSED_OF_AMPERE = {("256x128", "halves", "n")}


@pytest.mark.parametrize("form", AMPERE_FORMS)
@pytest.mark.parametrize("split", ["halves", "interleaved"])
@pytest.mark.parametrize("b_major", ["k", "n"])
@pytest.mark.parametrize("out_major", ["n", "m"])
def test_the_ampere_family_gates_columns_of_any_layout(form: str, split: Any, b_major: str, out_major: str) -> None:
    a = values(2, 301, 520)
    b = values(1060, 520, seed=1).t() if b_major == "k" else values(520, 1060, seed=1)
    out = unwritten(2, 301, 530) if out_major == "n" else unwritten(2, 530, 301).transpose(-1, -2)
    epilogue = Bias(values(1060)) | Gated("silu", split) | Add(values(2, 301, 530))
    try:
        tilewright.matmul(a, b, out, config=AMPERE_FORMS[form], epilogue=epilogue)
    except tilewright.errors.ConfigError:
        if (form, split, b_major) not in MAY_BE_REFUSED_OF_AMPERE:
            raise
        return
    assert is_right(a, b, out, epilogue)


@pytest.mark.parametrize(
    "config",
    [
        Config(tile_m=128, tile_n=128, stages=6, store_slots=1, slices=8, dependent_sums=True),
        AmpereConfig(tile_m=64, tile_n=64, tile_k=64, stages=4, slices=8),
    ],
    ids=["hopper", "ampere"],
)
def test_sums_of_slices_are_finished_run_after_run(config: Config) -> None:
    """Bias and residual are written just before the product: the kernel that adds slices may not read them early."""
    a, b = values(200, 8192), values(8192, 264, seed=1)
    bias, residual, amax = values(264), values(200, 132), unwritten(200, dtype=torch.float32)
    for seed in range(20):
        bias.copy_(values(264, seed=seed))
        residual.copy_(values(200, 132, seed=seed))
        epilogue = Bias(bias) | Gated("gelu", "interleaved" if seed % 2 else "halves") | RowAmax(amax) | Add(residual)
        out = tilewright.matmul(a, b, config=config, epilogue=epilogue)
        assert is_right(a, b, out, epilogue)


def test_c_may_be_out_itself_run_after_run() -> None:
    a, b, out = values(2048, 512), values(2000, 512, seed=1).t(), values(2048, 2000, seed=2)
    for _ in range(3):
        before = out.clone()
        tilewright.matmul(a, b, out, epilogue=Beta(0.5, out))
        assert is_right(a, b, out, Beta(0.5, before))
    poison = unwritten(2048, 2000)
    assert torch.equal(tilewright.matmul(a, b, epilogue=Beta(0.0, poison)), tilewright.matmul(a, b))


def test_every_run_gives_the_same_bits_and_largest_magnitudes() -> None:
    a, b = values(1000, 4096), values(4104, 4096, seed=1).t()
    amax, aux = unwritten(1000, dtype=torch.float32), unwritten(1000, 4104)
    epilogue = Bias(values(4104)) | Aux(aux) | RowAmax(amax) | Gelu()
    first = [x.clone() for x in (tilewright.matmul(a, b, epilogue=epilogue), amax, aux)]
    for _ in range(50):
        out = tilewright.matmul(a, b, epilogue=epilogue)
        assert all(torch.equal(x, y) for x, y in zip((out, amax, aux), first, strict=True))


def test_a_graph_replays_an_epilogue_with_what_its_arrays_hold_then() -> None:
    a, b, bias = values(512, 512), values(520, 512, seed=1).t(), values(520)
    out, amax = unwritten(512, 520), unwritten(512, dtype=torch.float32)
    epilogue = Bias(bias) | RowAmax(amax) | Silu()
    tilewright.matmul(a, b, out, epilogue=epilogue)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tilewright.matmul(a, b, out, epilogue=epilogue)
    for seed in (5, 6):
        bias.copy_(values(520, seed=seed) * 0.1)
        a.copy_(values(512, 512, seed=seed) * 0.1)  # magnitudes shrink: what was there before must not stay
        graph.replay()
        torch.cuda.synchronize()
        assert is_right(a, b, out, epilogue)


def test_without_products_the_epilogue_is_of_zeros() -> None:
    a, b = values(100, 8)[:, :0], values(64, 8).t()[:0]
    epilogue = Bias(values(64)) | Add(values(100, 64))
    assert is_right(a, b, tilewright.matmul(a, b, epilogue=epilogue), epilogue)


def test_arrays_elsewhere_or_with_gradients_are_refused() -> None:
    a, b, bias = values(64, 64), values(64, 64), values(64)
    for wrong in (bias.cpu(), bias.clone().requires_grad_(), bias.cpu().float().numpy()):
        with pytest.raises(tilewright.errors.UnsupportedError):
            tilewright.matmul(a, b, epilogue=Bias(wrong))
    with torch.no_grad():
        weights = bias.clone().requires_grad_()
        assert is_right(a, b, tilewright.matmul(a, b, epilogue=Bias(weights)), Bias(bias))
    assert as_epilogue(Bias(bias)).arrays == (bias,)
