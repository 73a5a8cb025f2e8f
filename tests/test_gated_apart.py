"""Gates whose gate and up are two arrays: read where they lie, by both families, and refused where they do not fit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.ampere_config import AmpereConfig
from tilewright.check import check
from tilewright.config import Config
from tilewright.dtypes import BF16
from tilewright.emulation import Emulator
from tilewright.epilogue import Add, Aux, Bias, Epilogue, Gated, Step
from tilewright.errors import ConfigError, DTypeError, LayoutError, ShapeError, UnsupportedError
from tilewright.packing import packed

bf16 = ml_dtypes.bfloat16
Array = Any


def normal(*shape: int, seed: int) -> Array:
    """bf16 at a multiple of 16 bytes, with a line before and behind it that no kernel may read."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(bf16)
    memory = np.full(values.size + 128, np.nan, bf16)
    start = 64 + -(memory.ctypes.data // 2) % 8
    view = memory[start : start + values.size].reshape(shape)
    view[...] = values
    return view


def operands(m: int, n: int, k: int, b_major: str = "k") -> tuple[Array, Array, Array]:
    a = normal(m, k, seed=0)
    gate, up = (normal(n, k, seed=seed).T if b_major == "k" else normal(k, n, seed=seed) for seed in (1, 2))
    return a, gate, up


def assert_right(emulator: Emulator, a: Array, gate: Array, epilogue: Epilogue | Step, config: Any = None) -> Array:
    out = np.full((*a.shape[:-1], gate.shape[-1]), np.nan, bf16)
    found = emulator.matmul(a, gate, out, epilogue=epilogue, config=config)
    assert found is out
    verdict = check(a, gate, out, BF16, epilogue=epilogue)
    assert verdict.ok, verdict
    return out


SIZES = [(72, 64, 72, "k"), (136, 96, 200, "n"), (5, 24, 16, "k"), (33, 136, 64, "n"), (8, 16, 0, "k"), (3, 8, 8, "n")]


@pytest.mark.parametrize("device", ["h200", "a100"])
@pytest.mark.parametrize(("m", "n", "k", "b_major"), SIZES)
def test_gate_and_up_are_read_where_they_lie(device: str, m: int, n: int, k: int, b_major: str) -> None:
    a, gate, up = operands(m, n, k, b_major)
    if k == 0:  # zeros are gated as well
        assert not assert_right(Emulator(device), a, gate, Gated("silu", up=up)).astype(np.float32).any()
        return
    out = assert_right(Emulator(device), a, gate, Gated("silu", up=up))
    whole = np.ascontiguousarray(np.concatenate((gate, up), 1).T).T
    halves = np.empty_like(out)
    Emulator(device).matmul(a, whole, halves, epilogue=Gated("silu"))
    assert (out == halves).all()


@pytest.mark.parametrize("device", ["h200", "a100"])
def test_steps_before_the_gate_meet_both_side_by_side(device: str) -> None:
    a, gate, up = operands(40, 24, 72)
    pre, rest = np.full((40, 48), np.nan, bf16), normal(40, 24, seed=4)
    assert_right(Emulator(device), a, gate, Bias(normal(48, seed=3)) | Aux(pre) | Gated("gelu", up=up) | Add(rest))
    assert not np.isnan(pre.astype(np.float32)).any()


FORMS = {
    "ping-pong": Config(tile_m=128, tile_n=128, stages=5, pingpong=True, store_slots=1),
    "staggered": Config(tile_m=256, tile_n=192, stages=3, store_slots=1, staggered=True),
    "cluster": Config(tile_m=128, tile_n=128, stages=4, cluster_m=2),
    "ampere": AmpereConfig(tile_m=64, tile_n=128, warps_m=2, warps_n=2),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_kernels_finds_both(form: str) -> None:
    a, gate, up = operands(263, 136, 136)
    assert_right(Emulator("h200"), a, gate, Gated("silu", up=up), FORMS[form])


def test_a_batch_shares_both_or_has_its_own() -> None:
    a, gate, up = normal(2, 9, 16, seed=0), normal(2, 24, 16, seed=1), normal(2, 24, 16, seed=2)
    whole = Gated("silu", up=up.transpose(0, 2, 1))
    assert_right(Emulator("h200"), a, gate.transpose(0, 2, 1), whole)
    out = Emulator("h200").matmul(a, gate[0].T, epilogue=Gated("silu", up=up[1].T))
    for index in range(2):
        assert check(a[index], gate[0].T, out[index], BF16, epilogue=Gated("silu", up=up[1].T)).ok


def test_a_plan_serves_any_pair_that_lies_alike() -> None:
    emulator = Emulator("h200")
    a, gate, up = operands(16, 24, 32)
    plan = emulator.plan(a, gate, epilogue=Gated("silu", up=up))
    other, out = normal(24, 32, seed=8).T, np.full((16, 24), np.nan, bf16)
    plan.run(a, up, out, epilogue=Gated("silu", up=other))
    assert check(a, up, out, BF16, epilogue=Gated("silu", up=other)).ok
    with pytest.raises(LayoutError, match="the epilogue gated"):
        plan.run(a, np.concatenate((gate, up), 1), out, epilogue=Gated("silu"))


def off_by(bytes_past: int, *shape: int) -> Array:
    memory = np.zeros(int(np.prod(shape)) + 64, bf16)
    start = -(memory.ctypes.data // 2) % 8 + bytes_past // 2
    return memory[start : start + int(np.prod(shape))].reshape(shape)


A, GATE = off_by(0, 16, 32), off_by(0, 24, 32)
REFUSED = {
    "another shape": (GATE.T, off_by(0, 16, 32).T, ShapeError, "pass an up of b's shape"),
    "another type": (GATE.T, np.zeros((24, 32), np.float16).T, DTypeError, "both have one type"),
    "other strides": (GATE.T, off_by(0, 32, 24), LayoutError, "both have the same strides"),
    "an up between 16 bytes": (GATE.T, off_by(2, 24, 32).T, LayoutError, "multiples of 16 bytes on"),
    "a b between 16 bytes": (off_by(2, 24, 32).T, GATE.T, LayoutError, "b at address .* multiples of 16 bytes on"),
    "rows between 16 bytes": (off_by(0, 32, 20), off_by(0, 32, 20), LayoutError, "pass one b with both side by side"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_pair_that_cannot_be_read_where_it_lies_is_refused(case: str) -> None:
    b, up, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        Emulator("h200").matmul(A, b, epilogue=Gated("silu", up=up))


def test_interleaved_and_a_pair_exclude_each_other() -> None:
    with pytest.raises(UnsupportedError, match="leave split or up out"):
        Gated("silu", "interleaved", up=GATE)


def test_what_is_written_may_not_be_the_other_b() -> None:
    memory = off_by(0, 32, 32)
    with pytest.raises(LayoutError, match="shares memory with the up"):
        Emulator("h200").matmul(memory[:16], GATE.T, memory[:16, :24], epilogue=Gated("silu", up=memory[:24].T))
    aux = off_by(0, 16, 48)
    up = aux.reshape(-1)[: 24 * 32].reshape(24, 32).T
    with pytest.raises(LayoutError, match="shares memory with up"):
        Emulator("h200").matmul(A, GATE.T, epilogue=Aux(aux) | Gated("silu", up=up))


def test_slices_of_two_arrays_are_refused_and_never_chosen() -> None:
    import tilewright

    few = packed(64, 256, 65536)
    pair = tilewright.plan(few, device="h200", epilogue=Gated("silu", up="bf16"))
    assert pair.config.slices == 1
    assert tilewright.plan(few, device="h200", epilogue=Gated("silu")).config.slices > 1
    with pytest.raises(ConfigError, match="gate and up in two arrays"):
        tilewright.plan(few, device="h200", epilogue=Gated("silu", up="bf16"), config=Config(tile_n=64, slices=4))


def test_a_problem_of_a_pair_counts_the_columns_of_both() -> None:
    import tilewright

    apart, halves = (
        tilewright.plan(packed(4096, 28672, 4096), device="h200", epilogue=gate).problem
        for gate in (Gated("silu", up="bf16"), Gated("silu"))
    )
    assert (apart.out_n, apart.flops, apart.min_bytes) == (halves.out_n, halves.flops, halves.min_bytes)
    assert apart.strided("b")[0] == (4096, 14336)
    assert 2 * apart.extent_bytes["b"] == halves.extent_bytes["b"]
