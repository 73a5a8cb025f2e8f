// Multiplies what lies in registers over and over by mma.sync: the most that it gets from this card's tensor cores.
//
// Work. CTA c holds rows c x TILE_M .. of a (C x TILE_M, 16) and all of b (TILE_N, 16), and computes num_sums times
//
//     out (C x TILE_M, TILE_N) fp32 = passes x (a x b^T)
//
// Each sum begins anew from 0, as the tiles of a real product do, so that passes x 16 is the k whose sums the
// accumulators hold. The last sum is written. ticks (C, 2): cycles and nanoseconds that the CTA's loop took.
//
// Tiles. WARPS_M x WARPS_N warps, each with FRAGMENTS_M x 16 rows and FRAGMENTS_N x 8 columns. A warp holds its rows of
// a and of b as ptx/mma.cuh says which lane has what: read once, straight from global memory.
//
// Nothing else is in the loop: no load, no barrier, no shared memory. Of two mma.sync one behind the other none needs
// the other's sum, and all but every FRAGMENTS_N-th have another b and the same a.
//
// Limits, kept by kernels/ceilings.py: 16-bit types, a and b at multiples of 4 bytes, no gap between rows.

#include "base.cuh"
#include "config.cuh"
#include "multiply.cuh"
#include "ptx/clock.cuh"

constexpr int WARP_ROWS = Config::FRAGMENTS_M * 16;
constexpr int WARP_COLUMNS = Config::FRAGMENTS_N * 8;
constexpr int ROW_WORDS = 8;                                        // 16 values of k

static_assert(Config::TILE_M == Config::WARPS_M * WARP_ROWS && Config::TILE_N == Config::WARPS_N * WARP_COLUMNS);

using Accumulators = float[Config::FRAGMENTS_M][Config::FRAGMENTS_N][4];  // (WARP_ROWS, WARP_COLUMNS) over the warp

// A warp: every sum, leaving the last one in rC.
DEVICE void multiply_again(const uint32_t (&rA)[Config::FRAGMENTS_M][4], const uint32_t (&rB)[Config::FRAGMENTS_N][2],
                           Accumulators& rC, int32_t num_sums, int32_t passes) {
    for (int32_t sum = 0; sum < num_sums; ++sum) {
#pragma unroll
        for (int i = 0; i < Config::FRAGMENTS_M; ++i) {
#pragma unroll
            for (int j = 0; j < Config::FRAGMENTS_N; ++j) {
#pragma unroll
                for (int value = 0; value < 4; ++value) rC[i][j][value] = 0.0f;
            }
        }
#pragma unroll 1
        for (int32_t pass = 0; pass < passes; ++pass) {
#pragma unroll
            for (int i = 0; i < Config::FRAGMENTS_M; ++i) {
#pragma unroll
                for (int j = 0; j < Config::FRAGMENTS_N; ++j) {     // (16, 8) += (16, 16) x (16, 8)
                    multiply_16x8x16(rC[i][j], rA[i], rB[j][0], rB[j][1]);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    mma_loop(const uint32_t* a, const uint32_t* b, float* out, uint64_t* ticks, int32_t num_sums, int32_t passes) {
    const uint32_t warp = threadIdx.x / WARP_THREADS, lane = threadIdx.x % WARP_THREADS;
    const uint32_t group = lane / 4, place = lane % 4;
    const uint32_t first_row = blockIdx.x * Config::TILE_M + warp / Config::WARPS_N * WARP_ROWS + group;
    const uint32_t first_column = warp % Config::WARPS_N * WARP_COLUMNS;

    uint32_t rA[Config::FRAGMENTS_M][4], rB[Config::FRAGMENTS_N][2];
#pragma unroll
    for (int i = 0; i < Config::FRAGMENTS_M; ++i) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {                      // 8 rows below, 8 values of k on
            rA[i][part] = a[(first_row + i * 16 + part % 2 * 8) * ROW_WORDS + part / 2 * 4 + place];
        }
    }
#pragma unroll
    for (int j = 0; j < Config::FRAGMENTS_N; ++j) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            rB[j][part] = b[(first_column + j * 8 + group) * ROW_WORDS + part * 4 + place];
        }
    }
    __syncthreads();                                                // no warp's loads beside another one's loop

    const uint64_t start_cycles = ptx::clock64(), start_ns = ptx::globaltimer();
    Accumulators rC;
    multiply_again(rA, rB, rC, num_sums, passes);
    __syncthreads();                                                // the slowest warp's loop counts
    const uint64_t cycles = ptx::clock64() - start_cycles, nanoseconds = ptx::globaltimer() - start_ns;
#pragma unroll
    for (int i = 0; i < Config::FRAGMENTS_M; ++i) {
#pragma unroll
        for (int j = 0; j < Config::FRAGMENTS_N; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint64_t row = first_row + i * 16 + half * 8;
                *reinterpret_cast<float2*>(out + row * Config::TILE_N + first_column + j * 8 + place * 2) =
                    make_float2(rC[i][j][2 * half], rC[i][j][2 * half + 1]);
            }
        }
    }
    if (threadIdx.x == 0) {
        ticks[2 * blockIdx.x] = cycles;
        ticks[2 * blockIdx.x + 1] = nanoseconds;
    }
}
