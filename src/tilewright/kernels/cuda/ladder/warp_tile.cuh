// A warp's part of a CTA's tile, as mma.sync computes it: which part, its sums, its fragments by ldmatrix, its way out
// (a1 .. a9). Knows the registers of mma.sync and the edges of out; nothing of where a tile's rows lie.
#pragma once

#include "base.cuh"
#include "config.cuh"
#include "fragments.cuh"
#include "ladder/operands.cuh"
#include "multiply.cuh"
#include "ptx/mma.cuh"
#include "ptx/misc.cuh"
#include "rounding.cuh"

constexpr int WARP_M = Config::TILE_M / Config::WARPS_M;
constexpr int WARP_N = Config::TILE_N / Config::WARPS_N;
constexpr int BLOCKS_M = WARP_M / 16;  // of 16 rows: an a fragment of mma.sync
constexpr int BLOCKS_N = WARP_N / 16;  // of 16 columns: two b fragments, which one ldmatrix_x4 brings
static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "kept by the rung's violations");

// Where the calling warp's part begins in the CTA's tile.
struct WarpPlace {
    int32_t m;     // multiple of WARP_M
    int32_t n;     // multiple of WARP_N
    int32_t lane;  // 0 .. 31
};

DEVICE WarpPlace warp_place() {
    const int32_t warp = threadIdx.x / WARP_THREADS;
    return {warp / Config::WARPS_N * WARP_M, warp % Config::WARPS_N * WARP_N,
            static_cast<int32_t>(threadIdx.x % WARP_THREADS)};
}

// -- sums -------------------------------------------------------------------------------------------------------------

// What a lane holds of (16, 8): rows lane / 4 and lane / 4 + 8, of each the columns 2 (lane % 4) and one more.
template <bool IS_F16>
struct Sums {
    float r[4] = {};
    DEVICE float of(int32_t half, int32_t i) const { return r[half * 2 + i]; }
    DEVICE void add(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        multiply_16x8x16(r, a, b0, b1);
    }
};

// The same with f16 sums, two a register: half the registers, and 11 bits of the sum are kept after every 16 of k.
template <>
struct Sums<true> {
    uint32_t r[2] = {};
    DEVICE float of(int32_t half, int32_t i) const {
        return ptx::cvt_f32_f16(static_cast<uint16_t>(r[half] >> i * 16));
    }
    DEVICE void add(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        ptx::mma_sync_m16n8k16_f16_f16(r, a, b0, b1);
    }
};

using Accumulators = Sums<Config::F16_SUMS>[BLOCKS_M][2 * BLOCKS_N];  // (WARP_M, WARP_N) over the warp

// -- fragments --------------------------------------------------------------------------------------------------------

// All that a warp multiplies at once: (WARP_M, 16) of a and (16, WARP_N) of b.
struct Fragments {
    uint32_t a[BLOCKS_M][4];
    uint32_t b[BLOCKS_N][4];
};

// 16 rows of 32 bytes from shared memory, by one ldmatrix of 4 matrices, two of 2 or four of 1. `address` says where
// the row and chunk lie that a lane names; lane 8 i + j of the x4 names row j of matrix i.
template <class Address>
DEVICE void load_matrices(uint32_t (&r)[4], int32_t lane, const Address& address) {
    if constexpr (Config::LDMATRIX == 4) {
        ptx::ldmatrix_x4(r, address(lane));
    } else if constexpr (Config::LDMATRIX == 2) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            uint32_t pair[2];
            ptx::ldmatrix_x2(pair, address(lane % 16 + i * 8));
            r[i] = pair[0], r[i + 1] = pair[1];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t one[1];
            ptx::ldmatrix_x1(one, address(lane % 8 + i * 8));
            r[i] = one[0];
        }
    }
}

// One k16 step: every a fragment meets every b fragment.
DEVICE void multiply_fragments(Accumulators& rC, const Fragments& fragments) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * BLOCKS_N; ++j) {
            rC[i][j].add(fragments.a[i], fragments.b[j / 2][j % 2 * 2], fragments.b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

// -- the way out ------------------------------------------------------------------------------------------------------

// Two neighbours of a row of out. PAIRED_STORES: base, pitch and n are such that a pair is one aligned word, or two of
// fp32, and lies inside whole or not at all.
DEVICE void store_pair(const Out& out, int32_t row, int32_t column, float first, float second) {
    constexpr int SIZE = size_of(Config::OUT_TYPE);
    uint8_t* target = out.base + (row * out.pitch + column) * SIZE;
    if constexpr (Config::OUT_TYPE == Type::fp32) {
        float* values = reinterpret_cast<float*>(target);
        if constexpr (Config::PAIRED_STORES) {
            if (column < out.n) *reinterpret_cast<float2*>(values) = float2{first, second};
        } else {
            if (column < out.n) values[0] = first;
            if (column + 1 < out.n) values[1] = second;
        }
    } else {
        const uint32_t pair = rounded_pair(first, second);
        uint16_t* values = reinterpret_cast<uint16_t*>(target);
        if constexpr (Config::PAIRED_STORES) {
            if (column < out.n) *reinterpret_cast<uint32_t*>(values) = pair;
        } else {
            if (column < out.n) values[0] = static_cast<uint16_t>(pair);
            if (column + 1 < out.n) values[1] = static_cast<uint16_t>(pair >> 16);
        }
    }
}

// The warp's sums, straight from the registers: mma.sync says which lane holds what.
DEVICE void store_accumulators(const Out& out, const Accumulators& rC, int32_t row, int32_t column, int32_t lane) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t own_row = row + i * 16 + accumulator_row(lane, half);
            if (own_row >= out.m) continue;
#pragma unroll
            for (int j = 0; j < 2 * BLOCKS_N; ++j) {
                store_pair(out, own_row, column + j * 8 + accumulator_column(lane), rC[i][j].of(half, 0),
                           rC[i][j].of(half, 1));
            }
        }
    }
}
