// out (M, N) = a (M, K) x b (K, N) on Hopper's own units, one after the other: TMA loads a slot, wgmma multiplies it.
//
// Tiles. A CTA computes one tile of TILE_M x TILE_N (64 x 64), one wgmma high and wide:
//
//            <-- TILE_N -->
//          ^ +------------+ ^
//   TILE_M | | warpgroup  | | warp w holds rows 16 w .. 16 w + 15; of those, lane t holds rows t / 4 and t / 4 + 8, of
//          v +------------+ v every 8 columns the two from 2 (t % 4)
//
// Roles. None: the first thread asks TMA for a slot, all 128 wait for it, all 128 multiply it.
//
// Pipelines, one slot, a tile of a and a tile of b:
//
//   barrier        filled by            completes after                            read by
//   full           TMA (async proxy)    1 arrival of each thread (the first with   the warpgroup
//                                       expect_tx) and STAGE_BYTES bytes
//   __syncthreads  the slot was read    all warps have waited for their wgmmas     the first thread
//
// Shared memory: a and b in rows of 128 bytes, swizzled: one load an operand. Then full.
//
// Limits, kept by the rung's violations: bf16, k contiguous in a and b, pitches and bases multiples of 16 bytes;
// TILE_K one 128-byte row.

#include "base.cuh"
#include "config.cuh"
#include "ladder/stores.cuh"
#include "ladder/token_ring.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/wgmma.cuh"
#include "swizzle.cuh"
#include "wgmma_mma_async.cuh"

constexpr int K_STEPS = Config::TILE_K / 16;            // wgmmas along k of one slot

struct Shared {
    alignas(ATOM_BYTES) uint8_t a[Config::TILE_M * SWIZZLE_BYTES];  // (TILE_M, TILE_K), swizzled
    alignas(ATOM_BYTES) uint8_t b[Config::TILE_N * SWIZZLE_BYTES];  // (TILE_N, TILE_K), swizzled
    alignas(8) uint64_t full;
};
static_assert(sizeof(Shared) == Config::SMEM_BYTES, "the rung's smem_bytes and Shared must agree");
static_assert(sizeof(Shared::a) + sizeof(Shared::b) == Config::STAGE_BYTES);

// One thread: asks for both tiles of one slot.
DEVICE void load(const Shared& shared, const TensorMap& a_map, const TensorMap& b_map, uint32_t full, int32_t m,
                 int32_t n, int32_t k) {
    ptx::cp_async_bulk_tensor_2d_load(shared_address(shared.a), a_map, k, m, full);  // (TILE_M, TILE_K)
    ptx::cp_async_bulk_tensor_2d_load(shared_address(shared.b), b_map, k, n, full);  // (TILE_N, TILE_K)
}

// The warpgroup: adds the slot's products to the accumulators, and waits until that is done.
DEVICE void multiply(const Shared& shared, float (&rC)[Config::TILE_N / 2], bool accumulate) {
    const uint64_t a = k_major_descriptor(shared_address(shared.a));
    const uint64_t b = k_major_descriptor(shared_address(shared.b));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {        // (64, TILE_N) += (64, 16) x (16, TILE_N)
        ptx::wgmma_mma_async(rC, a + step * K_MAJOR_STEP, b + step * K_MAJOR_STEP, accumulate || step != 0);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    v02_tensor_cores(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                     uint16_t* out_base, int64_t out_pitch, int32_t m, int32_t n, int32_t k) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const uint32_t full = shared_address(&shared.full);
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(full, Config::FULL_ARRIVALS);
        ptx::fence_mbarrier_init_release_cluster();
    }
    __syncthreads();

    const int32_t columns = (n - 1) / Config::TILE_N + 1;
    const int32_t row = blockIdx.x / columns * Config::TILE_M;
    const int32_t column = blockIdx.x % columns * Config::TILE_N;
    const int32_t num_k_tiles = (k - 1) / Config::TILE_K + 1;
    float rC[Config::TILE_N / 2];                       // (64, TILE_N) fp32 over the warpgroup
    for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
        if (threadIdx.x == 0) {
            const uint64_t token = ptx::mbarrier_arrive_expect_tx_token(full, Config::STAGE_BYTES);
            load(shared, a_map, b_map, full, row, column, k_tile * Config::TILE_K);
            wait_token(full, token);
        } else {
            arrive_and_wait(full);
        }
        __syncwarp();                                   // wgmma takes whole warps
        multiply(shared, rC, k_tile != 0);
        __syncthreads();                                // every warp's wgmmas have read the slot
    }
    keep_below(rC);
    store_registers({out_base, out_pitch, m, n}, rC, row, column);
}
