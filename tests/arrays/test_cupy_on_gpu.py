"""CuPy's arrays on a GPU: layouts, out, batches, streams, its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.errors import ShapeError, TilewrightError

pytestmark = pytest.mark.gpu

cupy: Any = pytest.importorskip("cupy", reason="CuPy is not installed")


def whole(*shape: int, seed: int = 0) -> Any:
    """Small whole numbers, whose products fp16 and fp32 hold exactly."""
    return cupy.asarray(np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16))


def product(a: Any, b: Any) -> np.ndarray:
    return (cupy.asnumpy(a).astype(np.float32) @ cupy.asnumpy(b).astype(np.float32)).astype(np.float16)


def test_every_layout_and_strided_arrays_are_multiplied_as_they_lie() -> None:
    a, b = whole(257, 136), whole(136, 384, seed=1)
    a_columns, b_columns = cupy.asfortranarray(a), cupy.asfortranarray(b)
    wide = whole(257, 2 * 136 + 8, seed=2)
    for left in (a, a_columns, wide[:, :136]):
        for right in (b, b_columns, whole(136, 400, seed=3)[:, :384]):
            found = tilewright.matmul(left, right)
            assert isinstance(found, cupy.ndarray)
            np.testing.assert_array_equal(cupy.asnumpy(found), product(left, right))


def test_out_is_written_in_place_and_nothing_beside_it() -> None:
    a, b = whole(100, 64), whole(64, 72, seed=1)
    room = cupy.full((102, 80), 7, dtype=cupy.float16)
    out = room[1:101, :72]
    assert tilewright.matmul(a, b, out) is out
    np.testing.assert_array_equal(cupy.asnumpy(out), product(a, b))
    beside = cupy.asnumpy(room)
    assert (beside[0] == 7).all()
    assert (beside[101] == 7).all()
    assert (beside[:, 72:] == 7).all()


def test_a_batch_is_one_product_each() -> None:
    a, b = whole(5, 33, 64), whole(5, 64, 40, seed=1)
    np.testing.assert_array_equal(cupy.asnumpy(tilewright.matmul(a, b)), product(a, b))


def test_a_product_comes_behind_what_the_current_stream_was_given() -> None:
    a, b = whole(512, 512), whole(512, 512, seed=1)
    cupy.cuda.Device().synchronize()
    for _ in range(20):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            late = cupy.zeros_like(a)
            for _ in range(50):
                late *= 0  # the stream has something to do before the values are there
            late += a
            found = tilewright.matmul(late, b)
            copy = cupy.asnumpy(found, stream=stream)
        stream.synchronize()
        np.testing.assert_array_equal(copy, product(a, b))


def test_scratch_and_results_come_from_cupys_pool() -> None:
    pool = cupy.get_default_memory_pool()
    a, b = whole(256, 65536), whole(65536, 256, seed=1)  # slices of k: fp32 scratch
    tilewright.matmul(a, b)
    cupy.cuda.Device().synchronize()
    before = pool.used_bytes()
    for _ in range(10):
        tilewright.matmul(a, b)
    cupy.cuda.Device().synchronize()
    assert pool.used_bytes() == before


def test_what_cannot_be_multiplied_is_refused_by_name() -> None:
    with pytest.raises(ShapeError):
        tilewright.matmul(whole(8, 16), whole(8, 16))
    with pytest.raises(TilewrightError, match="float64"):
        tilewright.matmul(whole(8, 8).astype(cupy.float64), whole(8, 8).astype(cupy.float64))
