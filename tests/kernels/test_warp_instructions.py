"""ptx/mma.cuh, ptx/cp_async.cuh, ptx/wmma.cuh and fragments.cuh alone, run from their own PTX against NumPy."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright import device
from tilewright.emulator.checks import Checker
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.jit import nvrtc
from tilewright.jit.source import Source
from tilewright.kernels.render import device_code

A100 = device.preset("a100")
BYTES = 4096  # of in, all of which the probe brings into shared memory, and of out
Array = NDArray[Any]

# One warp. Products: a at 0, b at 1024, each with k contiguous; the same transposed at 2048 and 3072.
PROBE = """
#include "fragments.cuh"
#include "ptx/copy.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/wmma.cuh"

template <int NUM>
DEVICE void put(uint8_t* out, const uint32_t (&r)[NUM]) {
    for (int i = 0; i < NUM; ++i) reinterpret_cast<uint32_t*>(out)[threadIdx.x * NUM + i] = r[i];
}

template <class Element, int NUM>
DEVICE void put_sums(uint8_t* out, const Element (&d)[NUM], int32_t column, int32_t columns) {
    for (int i = 0; i < NUM; ++i) {
        const int32_t row = accumulator_row(threadIdx.x, i / 2);
        const int32_t at = row * columns + column + accumulator_column(threadIdx.x) + i % 2;
        reinterpret_cast<Element*>(out)[at] = d[i];
    }
}

DEVICE uint32_t address_of(uint32_t tile, FragmentRow place) { return tile + place.row * 32 + place.chunk * 16; }

template <bool IS_BF16>
DEVICE void product(uint8_t* out, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    for (int half = 0; half < 2; ++half) {
        float d[4] = {};
        if (IS_BF16) {
            ptx::mma_sync_m16n8k16_f32_bf16(d, a, b[2 * half], b[2 * half + 1]);
        } else {
            ptx::mma_sync_m16n8k16_f32_f16(d, a, b[2 * half], b[2 * half + 1]);
        }
        put_sums(out, d, half * 8, 16);
    }
}

extern "C" __global__ void probe(const uint8_t* in, uint8_t* out, int32_t mode) {
    __shared__ alignas(128) uint8_t held[4096];
    const uint32_t smem = shared_address(held);
    const int32_t lane = threadIdx.x;
    if (mode == 1) {  // every size of copy, `lane` % 17 of its bytes
        for (int at = lane * 16; at < 4096; at += 512) *reinterpret_cast<uint4*>(held + at) = uint4{7, 7, 7, 7};
        __syncwarp();
        const uint32_t present = lane % 17;
        ptx::cp_async_cg_16(smem + lane * 16, in + lane * 16, present);
        ptx::cp_async_ca<16>(smem + 512 + lane * 16, in + 512 + lane * 16, present);
        ptx::cp_async_ca<8>(smem + 1024 + lane * 8, in + 1024 + lane * 8, present % 9);
        ptx::cp_async_ca<4>(smem + 1280 + lane * 4, in + 1280 + lane * 4, present % 5);
    } else {
        for (int at = lane * 16; at < 4096; at += 512) ptx::cp_async_cg_16(smem + at, in + at, 16);
    }
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<0>();
    __syncwarp();
    const FragmentRow tall = rows_first(lane), wide = chunks_first(lane);
    uint32_t a[4], b[4];
    switch (mode) {
        case 1:
            for (int at = lane * 16; at < 4096; at += 512) {
                *reinterpret_cast<uint4*>(out + at) = *reinterpret_cast<const uint4*>(held + at);
            }
            break;
        case 2: {  // matrices in order, one after the other
            uint32_t x1[1], x2[2], x4[4];
            ptx::ldmatrix_x1(x1, smem + lane * 16);
            ptx::ldmatrix_x2(x2, smem + lane * 16);
            ptx::ldmatrix_x4(x4, smem + lane * 16);
            put(out, x1), put(out + 128, x2), put(out + 384, x4);
            ptx::ldmatrix_x1_trans(x1, smem + lane * 16);
            ptx::ldmatrix_x2_trans(x2, smem + lane * 16);
            ptx::ldmatrix_x4_trans(x4, smem + lane * 16);
            put(out + 1024, x1), put(out + 1152, x2), put(out + 1408, x4);
            break;
        }
        case 3:
        case 4: {
            ptx::ldmatrix_x4(a, address_of(smem, tall));
            ptx::ldmatrix_x4(b, address_of(smem + 1024, wide));
            mode == 3 ? product<true>(out, a, b) : product<false>(out, a, b);
            ptx::ldmatrix_x4_trans(a, address_of(smem + 2048, wide));
            ptx::ldmatrix_x4_trans(b, address_of(smem + 3072, tall));
            mode == 3 ? product<true>(out + 1024, a, b) : product<false>(out + 1024, a, b);
            break;
        }
        case 5: {
            ptx::ldmatrix_x4(a, address_of(smem, tall));
            ptx::ldmatrix_x4(b, address_of(smem + 1024, wide));
            uint32_t d[2] = {};
            ptx::mma_sync_m16n8k16_f16_f16(d, a, b[0], b[1]);
            for (int i = 0; i < 2; ++i) {
                const int32_t at = accumulator_row(lane, i) * 8 + accumulator_column(lane);
                *reinterpret_cast<uint32_t*>(out + at * 2) = d[i];
            }
            break;
        }
        case 6:    // tf32: rows of 8 k, 32 bytes; s8: rows of 32 k, 32 bytes: the same words for both
        case 7: {
            const int32_t group = lane / 4, place = lane % 4;
            for (int i = 0; i < 4; ++i) {
                a[i] = ptx::ld_shared_u32(smem + (group + i % 2 * 8) * 32 + place * 4 + i / 2 * 16);
            }
            for (int i = 0; i < 2; ++i) b[i] = ptx::ld_shared_u32(smem + 1024 + group * 32 + place * 4 + i * 16);
            float d[4] = {};
            int32_t whole[4] = {};
            if (mode == 6) {
                ptx::mma_sync_m16n8k8_f32_tf32(d, a, b[0], b[1]);
                put_sums(out, d, 0, 8);
            } else {
                ptx::mma_sync_m16n8k32_s32_s8(whole, a, b[0], b[1]);
                put_sums(out, whole, 0, 8);
            }
            break;
        }
        case 8: {
            float d[8] = {};
            ptx::wmma_load_a_m16n16k16_row_bf16(a, smem, 16);
            ptx::wmma_load_b_m16n16k16_col_bf16(b, smem + 1024, 16);
            ptx::wmma_mma_m16n16k16_row_col_f32_bf16(d, a, b);
            ptx::wmma_store_d_m16n16k16_row_f32(smem + 2048, d, 16);
            break;
        }
        case 9: {
            float d[8] = {};
            uint32_t a8[8], b8[8];
            ptx::wmma_load_a_m16n16k16_row_f16(a8, smem, 16);
            ptx::wmma_load_b_m16n16k16_col_f16(b8, smem + 1024, 16);
            ptx::wmma_mma_m16n16k16_row_col_f32_f16(d, a8, b8);
            ptx::wmma_store_d_m16n16k16_row_f32(smem + 2048, d, 16);
            break;
        }
    }
    if (mode >= 8) {
        __syncwarp();
        for (int at = lane * 4; at < 1024; at += 128) {
            *reinterpret_cast<uint32_t*>(out + at) = *reinterpret_cast<const uint32_t*>(held + 2048 + at);
        }
    }
}
"""


@cache
def ptx() -> str:
    headers = tuple(sorted(device_code().items()))
    return nvrtc.compile_source(Source("probe", PROBE, headers, "probe", A100.arch), "").ptx


def probed(mode: int, given: Array) -> NDArray[np.uint8]:
    """What one warp wrote, run with the checker, which must find nothing."""
    source = np.zeros(BYTES, np.uint8)
    source[: given.nbytes] = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
    out, memory, checker = np.full(BYTES, 0xEE, np.uint8), GlobalMemory(), Checker()
    values = [memory.add("in", source), memory.add("out", out), mode]
    run(ptx(), "probe", Grid(grid=1, block=32, cluster=1, smem_bytes=0, registers=64), values, memory, observer=checker)
    assert checker.findings == []
    return out


def operands(a: Array, b: Array) -> NDArray[np.uint8]:
    """a (m, k) and b (n, k), then both transposed, 1024 bytes each."""
    held = np.zeros(BYTES, np.uint8)
    for index, matrix in enumerate((a, b, a.T, b.T)):
        flat = np.ascontiguousarray(matrix).reshape(-1).view(np.uint8)
        held[1024 * index :][: flat.size] = flat
    return held


def whole_numbers(rows: int, k: int, dtype: Any) -> Array:
    return np.random.default_rng(rows + k).integers(-7, 8, (rows, k)).astype(dtype)


def expected(a: Array, b: Array) -> Array:
    return a.astype(np.float32) @ b.astype(np.float32).T


def test_a_copy_brings_what_is_present_and_zeros_for_the_rest_and_touches_nothing_else() -> None:
    given = np.random.default_rng(0).integers(1, 256, BYTES).astype(np.uint8)
    found = probed(1, given)
    wanted = np.full(BYTES, 0, np.uint8)
    wanted[::4] = 7
    for first, size in ((0, 16), (512, 16), (1024, 8), (1280, 4)):
        for lane in range(32):
            at, present = first + lane * size, lane % 17 % (size + 1)
            wanted[at : at + size] = 0
            wanted[at : at + present] = given[at : at + present]
    assert (found == wanted).all()


def test_ldmatrix_deals_words_of_rows_out_and_transposed_words_of_columns() -> None:
    given = np.arange(32 * 8, dtype=np.uint16)  # four matrices of 8 rows of 8, in order
    found = probed(2, given).view(np.uint16)
    matrices, at = given.reshape(4, 8, 8), 0
    for order in (matrices, matrices.transpose(0, 2, 1)):
        for num in (1, 2, 4):
            words = order[:num].reshape(num, 8, 4, 2).transpose(1, 2, 0, 3)  # (row, place, register, half)
            assert (found[at : at + 64 * num] == words.reshape(-1)).all()
            at += 64 * num
        at = 512


@pytest.mark.parametrize(("mode", "dtype"), [(3, ml_dtypes.bfloat16), (4, np.float16)])
def test_mma_of_fragments_by_ldmatrix_is_exact_whichever_way_the_operands_are_stored(mode: int, dtype: Any) -> None:
    a, b = whole_numbers(16, 16, dtype), whole_numbers(16, 16, dtype) + dtype(1)
    found = probed(mode, operands(a, b)).view(np.float32).reshape(-1, 16, 16)
    assert (found[0] == expected(a, b)).all()
    assert (found[1] == expected(a, b)).all()


def test_mma_with_f16_accumulators_is_exact() -> None:
    a, b = whole_numbers(16, 16, np.float16), whole_numbers(8, 16, np.float16)
    found = probed(5, operands(a, b))[:256].view(np.float16).reshape(16, 8)
    assert (found == expected(a, b)).all()


@pytest.mark.parametrize(("mode", "k", "dtype", "sums"), [(6, 8, np.float32, np.float32), (7, 32, np.int8, np.int32)])
def test_mma_of_tf32_and_of_s8_is_exact(mode: int, k: int, dtype: Any, sums: Any) -> None:
    a, b = whole_numbers(16, k, dtype), whole_numbers(8, k, dtype)
    found = probed(mode, operands(a, b))[:512].view(sums).reshape(16, 8)
    assert (found == expected(a, b)).all()


@pytest.mark.parametrize(("mode", "dtype"), [(8, ml_dtypes.bfloat16), (9, np.float16)])
def test_wmma_is_exact(mode: int, dtype: Any) -> None:
    a, b = whole_numbers(16, 16, dtype), whole_numbers(16, 16, dtype) + dtype(1)
    found = probed(mode, operands(a, b))[:1024].view(np.float32).reshape(16, 16)
    assert (found == expected(a, b)).all()
