// Multiplies what lies in shared memory over and over: the most that this card's tensor cores do in cycles and power.
//
// Work. CTA c holds rows c x TILE_M .. of a (C x TILE_M, K) and all of b (TILE_N, K), K = SLOTS x 64, and computes
// num_sums times
//
//     out (C x TILE_M, TILE_N) fp32 = passes x (a x b^T)
//
// Each sum begins anew (scale-d = 0), as the tiles of a real product do, so that passes x K is the k whose sums the
// accumulators hold. The last sum is written. ticks (C, 2): cycles and nanoseconds that the CTA's loop took.
//
// Tiles. CONSUMERS warpgroups of WGMMAS_M x 64 rows below each other, each as wide as TILE_N. Warp w of a warpgroup
// holds rows 16 w .. 16 w + 15 of each 64; of those, lane t holds rows t / 4 and t / 4 + 8, of every 8 columns the two
// from 2 (t % 4).
//
// Roles. All threads multiply; the first one asks TMA for the operands, once.
//
// Pipelines:
//
//   barrier  filled by          completes after                                            read by
//   full     TMA (async proxy)  1 arrival (the first thread, expect_tx) and OPERAND_BYTES  all threads, once
//
// wgmma. One group in flight, a group a slot, as in hopper_gemm.cu; nothing else is in the loop: no barrier, no load.
//
// Shared memory: a[SLOTS], b[SLOTS], rows of 64 values under the 128-byte swizzle; full.
//
// Limits, kept by kernels/ceilings.py: 16-bit types, TILE_M and TILE_N up to 256 (a TMA box), CONSUMERS x WGMMAS_M x 64
// rows, bases and pitches of a and b multiples of 16 bytes.

#include "base.cuh"
#include "config.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/clock.cuh"
#include "ptx/copy.cuh"
#include "ptx/wgmma.cuh"
#include "swizzle.cuh"
#include "wgmma_mma_async.cuh"

constexpr int K_STEPS = Config::TILE_K / 16;                        // wgmmas along k of one slot
constexpr int A_BYTES = Config::TILE_M * SWIZZLE_BYTES;             // (TILE_M, TILE_K)
constexpr int B_BYTES = Config::TILE_N * SWIZZLE_BYTES;             // (TILE_N, TILE_K)
constexpr int OPERAND_BYTES = Config::SLOTS * (A_BYTES + B_BYTES);
constexpr uint32_t A_BLOCK = 64 * SWIZZLE_BYTES / 16;               // the next 64 rows, in the descriptor's units

struct Shared {
    alignas(1024) uint8_t a[Config::SLOTS][A_BYTES];
    alignas(1024) uint8_t b[Config::SLOTS][B_BYTES];
    alignas(8) uint64_t full;
};
static_assert(sizeof(Shared) == Config::SMEM_BYTES, "kernels/ceilings.py and Shared must agree");
static_assert(Config::TILE_M == Config::CONSUMERS * Config::WGMMAS_M * 64);

using Accumulators = float[Config::WGMMAS_M][Config::TILE_N / 2];   // (WGMMAS_M x 64, TILE_N) over the warpgroup

// The first thread: asks for all slots.
DEVICE void load(Shared& shared, const TensorMap& a_map, const TensorMap& b_map) {
    const uint32_t full = shared_address(&shared.full);
    ptx::mbarrier_arrive_expect_tx(full, OPERAND_BYTES);
    for (int slot = 0; slot < Config::SLOTS; ++slot) {
        const int32_t k = slot * Config::TILE_K;
        ptx::cp_async_bulk_tensor_2d_load(shared_address(shared.a[slot]), a_map, k, blockIdx.x * Config::TILE_M, full);
        ptx::cp_async_bulk_tensor_2d_load(shared_address(shared.b[slot]), b_map, k, 0, full);
    }
}

// A warpgroup: every sum, leaving the last one in rC and no wgmma in flight.
DEVICE void multiply(const Shared& shared, Accumulators& rC, uint32_t consumer_index, int32_t num_sums,
                     int32_t passes) {
    const uint64_t a_base = moved(k_major_descriptor(shared_address(shared.a)),
                                  consumer_index * Config::WGMMAS_M * A_BLOCK);
    const uint64_t b_base = k_major_descriptor(shared_address(shared.b));
    for (int32_t sum = 0; sum < num_sums; ++sum) {
        for (int32_t pass = 0; pass < passes; ++pass) {
#pragma unroll
            for (int slot = 0; slot < Config::SLOTS; ++slot) {
                ptx::wgmma_fence();
#pragma unroll
                for (int step = 0; step < K_STEPS; ++step) {
                    const uint32_t a_units = slot * (A_BYTES / 16) + step * K_MAJOR_STEP;
                    const uint32_t b_units = slot * (B_BYTES / 16) + step * K_MAJOR_STEP;
#pragma unroll
                    for (int block = 0; block < Config::WGMMAS_M; ++block) {  // (64, TILE_N) += (64, 16) x (16, TILE_N)
                        ptx::wgmma_mma_async(rC[block], moved(a_base, a_units + block * A_BLOCK),
                                             moved(b_base, b_units), (slot | step) != 0 || pass != 0);
                    }
                }
                ptx::wgmma_commit_group();
                ptx::wgmma_wait_group<1>();
            }
        }
    }
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int block = 0; block < Config::WGMMAS_M; ++block) keep_below(rC[block]);
}

// A warpgroup: its rows of out, 8 bytes a thread and store. Once a launch, so nothing is won by doing it better.
DEVICE void store(float* out, const Accumulators& rC, uint32_t consumer_index) {
    const uint32_t warp = threadIdx.x % WARPGROUP_THREADS / WARP_THREADS;
    const uint32_t lane = threadIdx.x % WARP_THREADS;
    const uint32_t block_row = blockIdx.x * Config::TILE_M + consumer_index * Config::WGMMAS_M * 64;
    const uint32_t first_row = block_row + warp * 16 + lane / 4;
#pragma unroll
    for (int block = 0; block < Config::WGMMAS_M; ++block) {
#pragma unroll
        for (int pair = 0; pair < Config::TILE_N / 4; ++pair) {  // of every 8 columns the upper row, then 8 below
            const uint32_t row = first_row + block * 64 + pair % 2 * 8;
            const uint32_t column = pair / 2 * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(out + static_cast<uint64_t>(row) * Config::TILE_N + column) =
                make_float2(rC[block][2 * pair], rC[block][2 * pair + 1]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    tensor_loop(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float* out,
                uint64_t* ticks, int32_t num_sums, int32_t passes) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const uint32_t full = shared_address(&shared.full);
    const uint32_t consumer_index = threadIdx.x / WARPGROUP_THREADS;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init_release_cluster();
        load(shared, a_map, b_map);
    }
    __syncthreads();                                                // the barrier is there for all
    wait(full, 0);

    const uint64_t start_cycles = ptx::clock64(), start_ns = ptx::globaltimer();
    Accumulators rC;
    multiply(shared, rC, consumer_index, num_sums, passes);
    const uint64_t cycles = ptx::clock64() - start_cycles, nanoseconds = ptx::globaltimer() - start_ns;
    store(out, rC, consumer_index);
    if (threadIdx.x == 0) {
        ticks[2 * blockIdx.x] = cycles;
        ticks[2 * blockIdx.x + 1] = nanoseconds;
    }
}
