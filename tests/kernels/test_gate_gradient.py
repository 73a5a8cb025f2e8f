"""The kernel of a gate's gradient in the emulator: every element against float64, what lies around it, and mutants."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.backends.emulated import EmulatedBackend, emulated
from tilewright.device import preset
from tilewright.dtypes import BF16, FP16, DType
from tilewright.jit.build import build, flaws
from tilewright.kernels import gate_gradient

DEVICE = preset("h200")
Array = Any
ERF = np.frompyfunc(math.erf, 1, 1)


def silu(x: Array) -> tuple[Array, Array]:
    share = 1 / (1 + np.exp(-x))
    return x * share, share * (1 + x * (1 - share))


def gelu(x: Array) -> tuple[Array, Array]:
    share = 0.5 * (1 + ERF(x / math.sqrt(2)).astype(float))
    return x * share, share + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def gelu_tanh(x: Array) -> tuple[Array, Array]:
    scale = math.sqrt(2 / math.pi)
    tanh = np.tanh(scale * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + tanh), 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * scale * (1 + 3 * 0.044715 * x * x)


def relu(x: Array) -> tuple[Array, Array]:
    return np.maximum(x, 0), (x > 0).astype(float)


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}
# How far a value or a slope may be off in fp32: the values' bounds of epilogue.py, and what a handful of roundings make
# of terms of at most 1.13.
OFF = 2.0**-18


def aligned(shape: tuple[int, ...], dtype: DType, fill: Array | None = None) -> tuple[Array, Array]:
    """(the memory with 64 elements more at both ends, NaN there; the array in it, at a multiple of 16 bytes)."""
    count = math.prod(shape)
    memory = np.full(count + 144, np.nan, dtype.numpy)
    start = 64 + -(memory.ctypes.data // 2) % 8
    view = memory[start : start + count].reshape(shape)
    if fill is not None:
        view[...] = fill
    return memory, view


def run(
    backend: EmulatedBackend,
    activation: str,
    split: str,
    dtype: DType,
    shape: tuple[int, int],
    gap: int = 0,
    text: tuple[str, str] = ("", ""),
) -> tuple[Array, Array, Array, Array]:
    """(grad, pre, gradient, all of the memory that holds it). `text`: what of the kernel is replaced by what."""
    rows, columns = shape
    generator = np.random.default_rng(rows * columns)
    _, wide = aligned((rows, columns + gap), dtype, generator.standard_normal((rows, columns + gap)))
    grad = wide[:, :columns]
    _, pre = aligned((rows, 2 * columns), dtype, 3 * generator.standard_normal((rows, 2 * columns)))
    memory, out = aligned((rows, 2 * columns), dtype)
    source = gate_gradient.source(dtype, activation, split, DEVICE)  # type: ignore[arg-type]
    if text[0]:
        assert text[0] in source.text
        source = dataclasses.replace(source, text=source.text.replace(*text))
    binary = build(source)
    assert not flaws(binary)
    launch = gate_gradient.launch(rows, columns, DEVICE)
    arguments = gate_gradient.arguments(rows, columns, columns + gap, dtype)
    addresses = {"grad": grad.ctypes.data, "pre": pre.ctypes.data, "gradient": out.ctypes.data}
    backend.launch(backend.pack(backend.load(binary, 0, launch), launch, arguments, addresses), 0)
    return grad, pre, out, memory


def wrong(activation: str, split: str, dtype: DType, grad: Array, pre: Array, out: Array) -> int:
    """Elements that are further off than one rounding and fp32's own."""
    g, p = grad.astype(float), pre.astype(float)
    columns = g.shape[1]
    halves = (slice(0, columns), slice(columns, None)) if split == "halves" else (slice(0, None, 2), slice(1, None, 2))
    gate, up = p[:, halves[0]], p[:, halves[1]]
    value, slope = ACTIVATIONS[activation](gate)
    count = 0
    tiny = float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)
    for index, exact, factor in ((0, g * up * slope, abs(g * up)), (1, g * value, abs(g) * np.maximum(abs(gate), 1))):
        off = abs(out[:, halves[index]].astype(float) - exact)
        bound = factor * OFF
        count += int((~(off <= bound + dtype.unit_roundoff * (abs(exact) + bound) + tiny)).sum())
    return count


@pytest.mark.parametrize("split", ["halves", "interleaved"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_element_is_rounded_once_and_nothing_else_is_written(activation: str, split: str) -> None:
    for dtype, shape, gap in ((BF16, (9, 40), 0), (FP16, (3, 8), 24), (BF16, (1, 136), 8)):
        grad, pre, out, memory = run(emulated("h200"), activation, split, dtype, shape, gap)
        assert wrong(activation, split, dtype, grad, pre, out) == 0
        assert int(np.isnan(memory.astype(np.float32)).sum()) == memory.size - out.size


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gates_far_out_have_slopes_of_nothing_and_one(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where squares of them are past any number of bf16, and their products with slopes that are 0."""
    far = np.array([1e14, -1e14, 1e18, -1e18, 60, -60, 0, 1], np.float32).astype(ml_dtypes.bfloat16)
    monkeypatch.setattr(np.random, "default_rng", lambda seed: Constant(far))
    _, _, out, _ = run(emulated("h200"), activation, "halves", BF16, (2, 8))
    assert not np.isnan(out.astype(np.float32)).any()
    of_gate, wide = out[0, :8].astype(float), far.astype(float)  # grad is a third of far, gate and up are far
    assert np.abs(of_gate[[1, 3, 5]]).max() < 1e-15
    assert np.allclose(of_gate[[0, 2, 4]], wide[[0, 2, 4]] ** 2 / 3, rtol=2**-6)


class Constant:
    """A generator of the same row again and again."""

    def __init__(self, row: Array) -> None:
        self.row = row.astype(np.float32)

    def standard_normal(self, shape: tuple[int, int]) -> Array:
        return np.tile(self.row, (shape[0], shape[1] // 8)) / 3


def test_a_thread_takes_more_chunks_than_one_where_ctas_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_gradient, "WAVES", 1)
    monkeypatch.setattr(gate_gradient, "CTAS_PER_SM", 1)
    small = dataclasses.replace(DEVICE, num_sms=1)
    monkeypatch.setattr(f"{__name__}.DEVICE", small)
    grad, pre, out, _ = run(emulated("h200"), "silu", "halves", BF16, (70, 64))
    assert gate_gradient.num_chunks(70, 64) > gate_gradient.THREADS
    assert wrong("silu", "halves", BF16, grad, pre, out) == 0


MUTANTS = {
    "the other piece": ("static_cast<uint64_t>(row_chunks) * 16)", "0)"),
    "a row too far": ("(pre) + row * pitch", "(pre) + (row + 1) * pitch"),
    "the last chunk": ("index < num_chunks", "index < num_chunks - 1"),
    "the value for the slope": ("__fmul_rn(of_value, found.slope)", "__fmul_rn(of_value, found.value)"),
    "gate for up": ("__fmul_rn(of_out[i], up[i])", "__fmul_rn(of_out[i], gate[i])"),
    "grad's pitch": ("row * grad_pitch", "row * pitch"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    from tilewright.errors import EmulationError

    try:
        grad, pre, out, _ = run(emulated("h200"), "silu", "halves", BF16, (9, 40), text=MUTANTS[name])
    except EmulationError:
        return
    assert wrong("silu", "halves", BF16, grad, pre, out) > 0


def test_what_is_no_whole_chunk_or_too_many_is_not_served() -> None:
    assert gate_gradient.is_served(4096, 14336)
    assert not gate_gradient.is_served(4096, 14332)
    assert not gate_gradient.is_served(0, 8)
    assert not gate_gradient.is_served(2**31, 8)
