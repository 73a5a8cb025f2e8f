// out (M, N) = a (M, K) x b (K, N) with WMMA, the tensor cores' first interface: 16-bit inputs, fp32 sums.
//
// Tiles. A CTA computes one tile of TILE_M x TILE_N (128 x 128); a warp a part of WARP_M x WARP_N (64 x 32) as
// fragments of 16 x 16, of which WMMA does not say which lane holds which element:
//
//            <-------------- TILE_N -------------->
//          ^ +--------+--------+--------+--------+ ^
//          | | warp 0 | warp 1 | warp 2 | warp 3 | | WARP_M
//   TILE_M | +--------+--------+--------+--------+ v
//          | | warp 4 | warp 5 | warp 6 | warp 7 |
//          v +--------+--------+--------+--------+
//
// Roles. None: every thread loads, multiplies and stores.
//
// Pipelines. None: load, __syncthreads, multiply, __syncthreads.
//
// Shared memory: a (TILE_M, TILE_K) and b (TILE_N, TILE_K) in rows of TILE_K values, 8 KiB each; a fragment of fp32
// sums for each warp, 1 KiB, through which out leaves: only so its elements can be told apart.
//
// Limits, kept by the rung's violations: bf16 or fp16, k contiguous in a and b; any base, any pitch.

#include "base.cuh"
#include "config.cuh"
#include "ladder/operands.cuh"
#include "ladder/warp_tile.cuh"
#include "ptx/wmma.cuh"

constexpr int PITCH = Config::TILE_K;                                 // elements from row to row in shared memory
constexpr int K_STEPS = Config::TILE_K / 16;
constexpr int FRAGMENT = 16;                                          // rows and columns
constexpr int WARPS = Config::THREADS / WARP_THREADS;

struct Shared {
    alignas(128) uint16_t a[Config::TILE_M * PITCH];                  // (TILE_M, TILE_K)
    alignas(128) uint16_t b[Config::TILE_N * PITCH];                  // (TILE_N, TILE_K)
    alignas(128) float staged[WARPS][FRAGMENT * FRAGMENT];            // (16, 16) of each warp
};
static_assert(sizeof(Shared) == Config::SMEM_BYTES, "the rung's smem_bytes and Shared must agree");

// WMMA of one input type: f16 takes twice the registers of bf16.
template <Type TYPE>
struct Wmma {
    using Inputs = uint32_t[8];
    DEVICE static void load_a(Inputs& r, uint32_t address) { ptx::wmma_load_a_m16n16k16_row_f16(r, address, PITCH); }
    DEVICE static void load_b(Inputs& r, uint32_t address) { ptx::wmma_load_b_m16n16k16_col_f16(r, address, PITCH); }
    DEVICE static void add(float (&d)[8], const Inputs& a, const Inputs& b) {
        ptx::wmma_mma_m16n16k16_row_col_f32_f16(d, a, b);
    }
};

template <>
struct Wmma<Type::bf16> {
    using Inputs = uint32_t[4];
    DEVICE static void load_a(Inputs& r, uint32_t address) { ptx::wmma_load_a_m16n16k16_row_bf16(r, address, PITCH); }
    DEVICE static void load_b(Inputs& r, uint32_t address) { ptx::wmma_load_b_m16n16k16_col_bf16(r, address, PITCH); }
    DEVICE static void add(float (&d)[8], const Inputs& a, const Inputs& b) {
        ptx::wmma_mma_m16n16k16_row_col_f32_bf16(d, a, b);
    }
};
using Mma = Wmma<Config::IN_TYPE>;
using WmmaSums = float[BLOCKS_M][BLOCKS_N][8];                        // (WARP_M, WARP_N) over the warp

// Adds TILE_K products to each of the warp's sums.
DEVICE void multiply(WmmaSums& rC, uint32_t a, uint32_t b, const WarpPlace& warp) {
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {                      // (WARP_M, WARP_N) += (WARP_M, 16) x (16, WARP_N)
        Mma::Inputs rA[BLOCKS_M], rB[BLOCKS_N];
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) Mma::load_a(rA[i], a + ((warp.m + i * 16) * PITCH + step * 16) * 2);
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j) Mma::load_b(rB[j], b + ((warp.n + j * 16) * PITCH + step * 16) * 2);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) {
#pragma unroll
            for (int j = 0; j < BLOCKS_N; ++j) Mma::add(rC[i][j], rA[i], rB[j]);
        }
    }
}

// The warp's sums, a fragment at a time through shared memory: a lane takes 8 neighbours of half a row.
DEVICE void store(const Out& out, const WmmaSums& rC, float* staged, int32_t row, int32_t column, int32_t lane) {
    const int32_t own_row = lane / 2, own_column = lane % 2 * 8;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j) {
            ptx::wmma_store_d_m16n16k16_row_f32(shared_address(staged), rC[i][j], FRAGMENT);
            __syncwarp();  // the fragment is there
            const float* values = staged + own_row * FRAGMENT + own_column;
#pragma unroll
            for (int at = 0; at < 8; at += 2) {
                if (row + i * 16 + own_row < out.m) {
                    store_pair(out, row + i * 16 + own_row, column + j * 16 + own_column + at, values[at],
                               values[at + 1]);
                }
            }
            __syncwarp();  // and has been read
        }
    }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    a0_wmma(const uint16_t* a_base, const uint16_t* b_base, uint8_t* out_base, int64_t a_pitch, int64_t b_pitch,
            int64_t out_pitch, int32_t m, int32_t n, int32_t k) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const Tile tile = tile_of(blockIdx.x, m, n);
    const Operand a = operand_of(a_base, a_pitch, m, k, tile.matrix);
    const Operand b = operand_of(b_base, b_pitch, n, k, tile.matrix);
    const WarpPlace warp = warp_place();
    const int32_t num_k_tiles = (k - 1) / Config::TILE_K + 1;
    WmmaSums rC = {};
    for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
        load_elements<Config::TILE_M>(shared.a, PITCH, a, tile.row, k_tile * Config::TILE_K);
        load_elements<Config::TILE_N>(shared.b, PITCH, b, tile.column, k_tile * Config::TILE_K);
        __syncthreads();  // the slot is there
        multiply(rC, shared_address(shared.a), shared_address(shared.b), warp);
        __syncthreads();  // and has been read
    }
    store(out_of(out_base, out_pitch, m, n, tile.matrix), rC, shared.staged[threadIdx.x / WARP_THREADS],
          tile.row + warp.m, tile.column + warp.n, warp.lane);
}
