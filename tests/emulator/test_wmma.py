"""wmma of bf16, whose fragments have the registers that ptxas takes: 4, 8 or 2 for a, by shape."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from snippets import execute, kernel

K = 16


@pytest.mark.parametrize(("m", "n"), [(16, 16), (32, 8), (8, 32)])
def test_bf16_product_of_whole_numbers_is_exact(m: int, n: int) -> None:
    shape = f"m{m}n{n}k{K}"
    a_registers = ", ".join(f"%r{1 + i}" for i in range(m // 4))
    b_registers = ", ".join(f"%r{20 + i}" for i in range(n // 4))
    accumulators = ", ".join(f"%f{2 + i}" for i in range(8))
    zeros = ", ".join(["%f1"] * 8)
    body = f"""
add.s64 %rd5, %rd0, {m * K * 2};
mov.f32 %f1, 0f00000000;
wmma.load.a.sync.aligned.row.{shape}.global.bf16 {{{a_registers}}}, [%rd0], {K};
wmma.load.b.sync.aligned.row.{shape}.global.bf16 {{{b_registers}}}, [%rd5], {n};
wmma.mma.sync.aligned.row.row.{shape}.f32.bf16.bf16.f32 {{{accumulators}}}, {{{a_registers}}}, {{{b_registers}}}, {{{zeros}}};
wmma.store.d.sync.aligned.row.{shape}.global.f32 [%rd1], {{{accumulators}}}, {n};
"""  # noqa: E501
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, size).astype(ml_dtypes.bfloat16) for size in ((m, K), (K, n)))
    given = np.concatenate([a.reshape(-1), b.reshape(-1)]).view(np.uint16)
    out, _ = execute(kernel(body), given, out_bytes=4 * m * n)
    assert (out.view(np.float32).reshape(m, n) == a.astype(np.float32) @ b.astype(np.float32)).all()
