"""NaN, infinities, zeros, subnormals and the range of fp16, through the shipped kernel in the emulator (B046, B047).

On a GPU: tests/test_bug_cases_on_gpu.py.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import Any

import numpy as np
import pytest
from products import binary

from fakes import aligned_copy
from special_values import Special, cases, embedded
from tilewright import dtypes
from tilewright.config import Config
from tilewright.emulation import Emulator
from tilewright.errors import LayoutError
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed

CASES = cases()
CONFIGS = {
    "cooperative": Config(tile_m=128, tile_n=64, stages=3, k_back_and_forth=True),
    "one consumer": Config(tile_m=64, tile_n=64, consumers=1, stages=2),
    "pingpong": Config(tile_m=64, tile_n=64, stages=3, pingpong=True),
    "staggered": Config(tile_m=256, tile_n=64, stages=2, store_slots=1, staggered=True),
    "tail": Config(tile_m=64, tile_n=128, consumers=1, stages=2, tail_n=64),
    "below": Config(tile_m=64, tile_n=64, consumers=1, stages=3, cluster_m=2),
}
# Values that spread are at edges, which every layout has its own way to: numbers alone need one.
RUNS = [
    (name, *majors)
    for name in CASES
    for majors in itertools.product(("rows", "columns"), ("rows", "columns"))
    if "NaN" in name or "infinit" in name or majors == ("rows", "columns")
]


def wrong(case: Special, a_major: str, b_major: str, *, is_packed: bool = False, **options: Any) -> int:
    """Elements that are wrong when the operands lie in memory full of NaN; `is_packed`: with no gap between rows."""

    def operand(values: Any, major: str) -> Any:
        base = aligned_copy(embedded(values, major).astype(dtypes.by_name(case.dtype).numpy), order="C")
        rows, columns = values.shape if major == "rows" else values.shape[::-1]
        view = aligned_copy(base[:rows, :columns], order="C") if is_packed else base[:rows, :columns]
        return view if major == "rows" else view.T

    out = np.full((case.a.shape[0], case.b.shape[1]), 7, dtypes.by_name(case.out_dtype).numpy)
    Emulator(checks=False).matmul(operand(case.a, a_major), operand(case.b, b_major), out, **options)
    return case.wrong(out.astype(np.float64))


@pytest.mark.parametrize(("name", "a_major", "b_major"), RUNS)
def test_special_values_come_out_as_ieee_754_has_them(name: str, a_major: str, b_major: str) -> None:
    """Whatever lies past the edges of the operands: what TMA fills in must not make NaN of an infinity."""
    assert wrong(CASES[name], a_major, b_major, num_sms=1) == 0


@pytest.mark.parametrize(("name", "a_major", "b_major"), [run for run in RUNS if " 65" in run[0] or "last" in run[0]])
def test_special_values_in_rows_of_any_pitch_are_right_or_refused(name: str, a_major: str, b_major: str) -> None:
    """Rows one behind the other: what is behind the end of one is the start of the next."""
    with contextlib.suppress(LayoutError):  # where TMA alone reads
        assert wrong(CASES[name], a_major, b_major, is_packed=True, num_sms=1) == 0


@pytest.mark.parametrize("name", ["NaN in a row", "infinity in the last k, 1 of its tile", "infinities of both signs"])
@pytest.mark.parametrize("form", CONFIGS)
def test_nothing_of_a_tile_reaches_the_next_in_any_form(form: str, name: str) -> None:
    """Accumulators are never cleared, slots of shared memory are used again: neither may hand a NaN on."""
    config, case = CONFIGS[form], CASES[name]
    if config.staggered and case.out_dtype == "fp32":
        config = config.replace(staggered=False)
    assert wrong(case, "rows", "columns", config=config, num_sms=config.cluster) == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("form", CONFIGS)
def test_sums_are_fp32_in_every_form(form: str, dtype: str) -> None:
    """B046: no setting makes them shorter, so none can be ignored."""
    for out_dtype in (dtype, "fp32"):
        problem = packed(256, 256, 256, dtype=dtype, out_dtype=out_dtype)
        config = CONFIGS[form].replace(staggered=False) if out_dtype == "fp32" else CONFIGS[form]
        types = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.(\S+)", binary(HOPPER, problem, config).ptx)
        assert set(types) == {f"f32.{'f16.f16' if dtype == 'fp16' else 'bf16.bf16'}"}


def test_ones_past_fp16s_range_overflow_in_out_alone() -> None:
    """B047: 70000 is an infinity of fp16, and a number of fp32."""
    a, b = np.ones((2, 70000), np.float16), np.ones((70000, 8), np.float16)
    emulator = Emulator(checks=False)
    assert np.isposinf(emulator.matmul(a, b)).all()
    out = np.zeros((2, 8), np.float32)
    emulator.matmul(a, b, out)
    assert (out == 70000).all()
