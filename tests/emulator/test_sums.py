"""The model of the tensor cores' sums against every recorded sum of fractions, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import mma, wgmma
from golden.vectors import BY_NAME

from tilewright.emulator import fragments, numerics, sums

DATA = Path(__file__).parent / "golden" / "data"
Step = tuple[np.ndarray, np.ndarray]  # a (m, k), b (k, n)


def elements(fmt: str, registers: np.ndarray) -> np.ndarray:
    """(32 or 128 lanes, elements) of registers (registers, lanes)."""
    values = numerics.unpack(fmt, np.ascontiguousarray(registers.T))
    return values.reshape(len(values), -1)


def mma_case(name: str) -> tuple[list[Step], np.ndarray, np.ndarray]:
    """(the one step, c, the recorded d) of a vector of mma.py."""
    shape = mma._FRACTIONS[name]
    num_a, num_b, num_c = shape.registers
    words = BY_NAME[name].input.view(np.uint32).reshape(-1, 32)
    bits, k = numerics.FORMATS[shape.a].bits, shape.k
    with np.load(DATA / f"{name}.npz") as file:
        recorded = file["output"].view(np.uint32).reshape(num_c, 32)
    a = fragments.scatter(fragments.mma_a(16, k, bits), elements(shape.a, words[:num_a]), (16, k))
    b = fragments.scatter(fragments.mma_b(k, 8, bits), elements(shape.b, words[num_a : num_a + num_b]), (k, 8))
    c, d = (
        fragments.scatter(fragments.mma_c(16, 8), elements(shape.acc, part), (16, 8))
        for part in (words[num_a + num_b :][:num_c], recorded)
    )
    return [(numerics.decode(shape.a, numerics.encode(shape.a, a)), b)], c, d


def hashed(index: np.ndarray) -> np.ndarray:
    """As prelude.cuh has it."""
    x = index.astype(np.uint32) * np.uint32(2654435761)
    x = (x ^ x >> np.uint32(15)) * np.uint32(2246822519)
    return np.asarray(x ^ x >> np.uint32(13))


def shared_memory(fmt: str) -> np.ndarray:
    """What the kernel of a vector of wgmma.py fills shared memory with, as bytes."""
    index = np.arange(wgmma.FILLED_BYTES * 8 // numerics.FORMATS[fmt].bits)
    uniform = (hashed(index) >> np.uint32(8)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    if fmt == "bf16":
        return (uniform.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    if fmt == "tf32":
        return uniform.view(np.uint8)
    return numerics.encode(fmt, uniform, satfinite=fmt != "f16").view(np.uint8)


def wgmma_case(name: str) -> tuple[list[Step], np.ndarray, np.ndarray]:
    """(steps, c, the recorded d) of a vector of wgmma.py."""
    case = wgmma.CASES[name]
    fmt, n = case.types[0], case.n
    bits, smem = numerics.FORMATS[fmt].bits, shared_memory(fmt)

    def operand(start: int, rows: int) -> np.ndarray:
        descriptor = fragments.encode_descriptor(fragments.Descriptor(start, 16, 1024, 0, 128))
        return numerics.decode(fmt, fragments.wgmma_operand(smem, descriptor, rows, case.k, bits, True))

    steps = [(operand(32 * s, 64), operand(wgmma.B_START + 32 * s, n).T) for s in range(case.steps)]
    index = 20000 + np.arange(case.registers) * 128 + np.arange(128)[:, None]
    start = hashed(index).astype(np.int64) % 9 - 4
    with np.load(DATA / f"{name}.npz") as file:
        recorded = file["output"].view(np.uint32).reshape(case.registers, 128)
    if case.acc == "f16":
        start = np.stack([start, hashed(index + 1).astype(np.int64) % 9 - 4], axis=2).reshape(128, -1)
    where = fragments.wgmma_d(n)
    c = fragments.scatter(where, start.astype(np.float32), (64, n))
    return steps, c, fragments.scatter(where, elements(case.acc, recorded), (64, n))


MMA = sorted(mma._FRACTIONS)
WGMMA = sorted(name for name, case in wgmma.CASES.items() if case.fractions)
CASES = [
    *[(name, mma_case, mma._FRACTIONS[name].a, mma._FRACTIONS[name].acc, mma.MAGNITUDE) for name in MMA],
    *[
        (name, wgmma_case, wgmma.CASES[name].types[0], wgmma.CASES[name].acc, wgmma.MAGNITUDES[bits])
        for name in WGMMA
        for bits in (wgmma.BITS[wgmma.CASES[name].types[0]],)
    ],
]


@pytest.mark.parametrize(("name", "case", "fmt", "acc", "magnitude"), CASES, ids=[c[0] for c in CASES])
def test_every_recorded_sum_of_fractions_is_reproduced_in_every_bit(
    name: str, case: Callable[[str], Any], fmt: str, acc: str, magnitude: float
) -> None:
    steps, d, recorded = case(name)
    size = np.abs(d) + sum(np.abs(a).astype(np.float64) @ np.abs(b) for a, b in steps)
    assert size.max() < magnitude  # what the golden vector's tolerance rests on
    plain = d.astype(np.float32)
    for a, b in steps:
        d = sums.multiply_accumulate(fmt, a, b, d, acc)
        plain = plain + a @ b
    assert (d == recorded).all()
    allowed = sums.bound(fmt, steps[0][0].shape[1], magnitude, steps=len(steps), acc=acc)
    assert np.abs(plain - recorded).max() <= allowed


def test_terms_are_cut_and_not_rounded_at_the_largest_terms_place() -> None:
    one, a = np.ones((2, 1), np.float32), np.array([[1.0, 0.0]], np.float32)
    for small, kept in ((2.0**-13, True), (2.0**-13 - 2.0**-20, False)):
        a[0, 1] = small
        got = sums.multiply_accumulate("e4m3", a, one, None)
        assert (got[0, 0] > 1) == kept, small
    a[0] = (1.0, -(2.0**-26))
    assert sums.multiply_accumulate("f16", a, one, None).tolist() == [[1.0]]  # a rounded sum would be 1 - 2^-25 or so


def test_a_product_of_2_or_more_takes_the_place_of_its_factors_exponents() -> None:
    a = np.array([[1.5, 2.0**-13]], np.float32)  # 1.5 x 1.5 is 2.25, in the place of 1
    b = np.array([[1.5], [1.0]], np.float32)
    got = sums.multiply_accumulate("e4m3", a, b, np.array([[-2.25]]))
    assert got.tolist() == [[0.0]]  # here -2.25 itself sets the place: 2
    got = sums.multiply_accumulate("e4m3", a, b, np.array([[-1.25]]))
    assert got.tolist() == [[1.0 + 2.0**-13]]


def test_zeros_sum_to_zero_and_a_missing_accumulator_is_zero() -> None:
    assert sums.multiply_accumulate("f16", np.zeros((2, 4)), np.ones((4, 3)), None).tolist() == [[0.0] * 3] * 2
