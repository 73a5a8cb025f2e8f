// How accumulators reach out without TMA: straight from the registers that wgmma left them in (v02 .. v08).
// Knows the fragment of one wgmma and the edges of out; nothing of shared memory.
#pragma once

#include "config.cuh"
#include "ptx/misc.cuh"

// out (m, n) as ordinary stores see it.
struct OutRows {
    uint16_t* base;  // bf16
    int64_t pitch;   // elements
    int32_t m;
    int32_t n;
};

// Two neighbours of a row of out. PAIRED_STORES: base, pitch and n are even, so a pair is one aligned word and lies
// inside whole or not at all.
DEVICE void store_pair(const OutRows& out, int32_t row, int32_t column, float first, float second) {
    const uint32_t pair = ptx::cvt_rn_bf16x2_f32(second, first);
    uint16_t* target = out.base + row * out.pitch + column;
    if constexpr (Config::PAIRED_STORES) {
        if (column < out.n) *reinterpret_cast<uint32_t*>(target) = pair;
    } else {
        if (column < out.n) target[0] = static_cast<uint16_t>(pair);
        if (column + 1 < out.n) target[1] = static_cast<uint16_t>(pair >> 16);
    }
}

// The accumulators of one wgmma, (64, TILE_N) of out at row `row` and column `column`. Warp w holds rows 16 w .. + 15;
// of every 8 columns lane t holds columns 2 (t % 4) and one more of rows t / 4 and t / 4 + 8. So one store of a warp
// writes 8 pieces of 16 bytes, half of each 32-byte sector: what v09 mends.
DEVICE void store_registers(const OutRows& out, const float (&rC)[Config::TILE_N / 2], int32_t row, int32_t column) {
    const uint32_t warp = threadIdx.x % WARPGROUP_THREADS / WARP_THREADS;
    const uint32_t lane = threadIdx.x % WARP_THREADS;
    const int32_t upper = row + warp * 16 + lane / 4;
    const int32_t first = column + lane % 4 * 2;
#pragma unroll
    for (int block = 0; block < Config::TILE_N / 8; ++block) {  // (16, 8) a warp
        const float* r = &rC[4 * block];
        if (upper < out.m) store_pair(out, upper, first + block * 8, r[0], r[1]);
        if (upper + 8 < out.m) store_pair(out, upper + 8, first + block * 8, r[2], r[3]);
    }
}
