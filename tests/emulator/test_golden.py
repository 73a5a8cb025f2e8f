"""The emulator against the H200: each golden vector's PTX, run here, must write what the GPU wrote.

Bytes must agree, but for the orders that the ISA leaves open (tensor-core sums of fractions) and for approximations,
which have bounds. Recorded by benchmarks/golden.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden import compare, replay
from golden.vector import Tolerance, Vector, words
from golden.vectors import ALL, BY_NAME

from tilewright.errors import EmulationError

DATA = Path(__file__).parent / "golden" / "data"


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_emulator_writes_what_the_h200_wrote(name: str) -> None:
    vector, file = BY_NAME[name], DATA / f"{name}.npz"
    assert file.exists(), f"{name} has not been recorded: benchmarks/golden.py record, on an H200"
    with np.load(file) as recorded:
        assert str(recorded["digest"]) == vector.digest, f"{name} was changed after it was recorded; record it again"
        if vector.error:
            with pytest.raises(EmulationError):
                replay.replay(vector, recorded["input"])
            return
        got = replay.replay(vector, recorded["input"])
        assert compare.differences(vector, got, recorded["output"]) == []


@pytest.mark.parametrize("name", sorted(name for name in BY_NAME if "_fractions_" in name))
def test_with_exact_sums_tensor_cores_write_the_h200_s_very_bytes(name: str) -> None:
    vector = replace(BY_NAME[name], tolerances=())
    with np.load(DATA / f"{name}.npz") as recorded:
        got = replay.replay(vector, recorded["input"], exact_sums=True)
        assert compare.differences(vector, got, recorded["output"]) == []


def test_names_are_unique_and_outputs_small() -> None:
    assert len(BY_NAME) == len(ALL)
    assert max(vector.output_bytes for vector in ALL) <= 14336
    assert max(vector.input.size for vector in ALL) <= 8192


def test_inputs_are_the_same_each_time() -> None:
    from golden import scalar

    again = {vector.name: vector for vector in (*scalar._integers(), *scalar._floats())}
    for name, vector in again.items():
        assert (vector.input == BY_NAME[name].input).all()
        assert vector.digest == BY_NAME[name].digest


def compared(got: list[float], want: list[float], kind: str, size: float) -> list[str]:
    a, b = (words(np.array(v, np.float32)) for v in (got, want))
    vector = Vector(
        name="x",
        family="x",
        body="",
        input=a,
        output_bytes=a.size,
        tolerances=(Tolerance(0, len(got), kind, size),),
    )
    return compare.differences(vector, a, b)


def test_comparison_allows_what_the_tolerance_says_and_no_more() -> None:
    next_up = float(np.nextafter(np.float32(1), np.float32(2)))
    assert compared([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], "ulps", 0) == []
    assert compared([next_up], [1.0], "ulps", 1) == []
    assert compared([next_up], [1.0], "ulps", 0) != []
    assert compared([-1e-45], [1e-45], "ulps", 2) == []
    assert compared([1.5], [1.0], "absolute", 0.5) == []
    assert compared([1.6], [1.0], "absolute", 0.5) != []
    assert compared([110.0], [100.0], "scaled", 0.11) == []
    assert compared([np.nan], [1.0], "absolute", 9) != []
    assert compared([1.0], [np.inf], "relative", 9) != []
    assert compared([7.0], [1.0], "any", 0) == []


def test_comparison_names_the_first_word_that_differs() -> None:
    vector = Vector(name="x", family="x", body="", input=words([0]), output_bytes=12)
    a, b = np.arange(12, dtype=np.uint8), np.arange(12, dtype=np.uint8)
    b[6] = 99
    assert compare.differences(vector, a, b) == [
        "1 of 12 bytes differ, the first at 6: word 1 is 07060504 instead of 07630504"
    ]
