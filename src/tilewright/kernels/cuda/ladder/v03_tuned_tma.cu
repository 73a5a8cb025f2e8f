// out (M, N) = a (M, K) x b (K, N), one after the other as in v02, with a larger tile and boxes of any size.
//
// Tiles. A CTA computes one tile of TILE_M x TILE_N (128 x 128), one wgmma wide and WGMMAS_M high:
//
//            <-- TILE_N -->
//          ^ +------------+ ^
//          | | block 0    | | 64 rows: warp w holds rows 16 w .. 16 w + 15; of those, lane t holds rows t / 4 and
//   TILE_M | +------------+ v t / 4 + 8, of every 8 columns the two from 2 (t % 4)
//          | | block 1    |
//          v +------------+
//
// Roles. None: the first thread asks TMA for a slot, all 128 wait for it, all 128 multiply it. Three CTAs fit an
// SM: while one waits for its slot the others multiply.
//
// Pipelines, one slot, a tile of a and a tile of b:
//
//   barrier        filled by            completes after                            read by
//   full           TMA (async proxy)    1 arrival of each thread (the first with   the warpgroup
//                                       expect_tx) and STAGE_BYTES bytes
//   __syncthreads  the slot was read    all warps have waited for their wgmmas     the first thread
//
// Shared memory: a and b as panels of PANEL_BYTES of k, swizzled over that width: 128 bytes are all of TILE_K,
// as in v02; 64 and 32 bytes take 2 and 4 panels; 16 is no swizzle, 8 panels of core matrices (8 rows x 16 bytes).
// A panel comes in boxes of BOX_ROWS rows. Then full.
//
// Limits, kept by the rung's violations: bf16, k contiguous in a and b, pitches and bases multiples of 16 bytes;
// PANEL_BYTES 16, 32, 64 or 128; BOX_ROWS divides the tile.

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
constexpr int PANEL_K = Config::PANEL_BYTES / 2;        // values of k of one panel
constexpr int PANELS = Config::TILE_K / PANEL_K;
constexpr int A_PANEL = Config::TILE_M * PANEL_K * 2;   // bytes of (TILE_M, PANEL_K)
constexpr int B_PANEL = Config::TILE_N * PANEL_K * 2;   // bytes of (TILE_N, PANEL_K)
constexpr int BOX = Config::BOX_ROWS * PANEL_K * 2;     // bytes of (BOX_ROWS, PANEL_K)

struct Shared {
    alignas(1024) uint8_t a[PANELS][A_PANEL];           // (TILE_M, TILE_K), swizzled panels
    alignas(1024) uint8_t b[PANELS][B_PANEL];           // (TILE_N, TILE_K), swizzled panels
    alignas(8) uint64_t full;
};
static_assert(sizeof(Shared) == Config::SMEM_BYTES, "the rung's smem_bytes and Shared must agree");
static_assert(sizeof(Shared::a) + sizeof(Shared::b) == Config::STAGE_BYTES);

using Accumulators = float[Config::WGMMAS_M][Config::TILE_N / 2];

// One thread: asks for both tiles of one slot.
DEVICE void load(const Shared& shared, const TensorMap& a_map, const TensorMap& b_map, uint32_t full, int32_t m,
                 int32_t n, int32_t k) {
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel) {
        const int32_t x = k + panel * PANEL_K;
#pragma unroll
        for (int box = 0; box < Config::TILE_M / Config::BOX_ROWS; ++box) {  // (BOX_ROWS, PANEL_K)
            ptx::cp_async_bulk_tensor_2d_load(shared_address(shared.a[panel]) + box * BOX, a_map, x,
                                              m + box * Config::BOX_ROWS, full);
        }
#pragma unroll
        for (int box = 0; box < Config::TILE_N / Config::BOX_ROWS; ++box) {  // (BOX_ROWS, PANEL_K)
            ptx::cp_async_bulk_tensor_2d_load(shared_address(shared.b[panel]) + box * BOX, b_map, x,
                                              n + box * Config::BOX_ROWS, full);
        }
    }
}

// The warpgroup: adds the slot's products to the accumulators, and waits until that is done.
DEVICE void multiply(const Shared& shared, Accumulators& rC, bool accumulate) {
    constexpr uint64_t A_BLOCK = 64 * Config::PANEL_BYTES / 16;  // 64 rows further down each panel, in 16-byte units
    const uint64_t a = panel_descriptor<Config::PANEL_BYTES>(shared_address(shared.a), A_PANEL);
    const uint64_t b = panel_descriptor<Config::PANEL_BYTES>(shared_address(shared.b), B_PANEL);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
#pragma unroll
        for (int block = 0; block < Config::WGMMAS_M; ++block) {  // (64, TILE_N) += (64, 16) x (16, TILE_N)
            ptx::wgmma_mma_async(rC[block], a + block * A_BLOCK + panel_step<Config::PANEL_BYTES>(step, A_PANEL),
                                 b + panel_step<Config::PANEL_BYTES>(step, B_PANEL), accumulate || step != 0);
        }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    v03_tuned_tma(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, uint16_t* out_base,
                 int64_t out_pitch, int32_t m, int32_t n, int32_t k) {
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
    Accumulators rC;                                    // (TILE_M, TILE_N) fp32 over the warpgroup
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
#pragma unroll
    for (int block = 0; block < Config::WGMMAS_M; ++block) {
        keep_below(rC[block]);
        store_registers({out_base, out_pitch, m, n}, rC[block], row + block * 64, column);
    }
}
