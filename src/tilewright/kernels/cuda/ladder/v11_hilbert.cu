// out (M, N) = a (M, K) x b (K, N) with tiles taken along a Hilbert curve.
//
// Tiles. A CTA computes tiles of TILE_M x TILE_N (128 x 256), one after another, in the order of its schedule; a
// consumer CONSUMER_M rows of each:
//
//            <-------- TILE_N -------->
//          ^ +------------------------+ ^
//          | | consumer 0             | | 64 rows: warp w holds rows 16 w .. 16 w + 15; of those, lane t holds rows
//   TILE_M | +------------------------+ v t / 4 and t / 4 + 8, of every 8 columns the two from 2 (t % 4)
//          | | consumer 1             |
//          v +------------------------+
//
// Roles. Warpgroup 0 is the producer: its first thread issues every TMA load, the others idle. Warpgroups
// 1 .. CONSUMERS are the consumers: they multiply and store. Each of the 384 threads starts with 168 registers; the
// producer gives back all but PRODUCER_REGISTERS, a consumer takes CONSUMER_REGISTERS: 128 x 40 + 256 x 232 is
// 384 x 168.
//
// Pipelines, one FIFO of STAGES slots (the seed's QSIZE), each a tile of a and a tile of b:
//
//   barrier  filled by            completes after                                  read by
//   full     TMA (async proxy)    1 arrival of the own producer (expect_tx), and   every consumer thread of the CTA
//                                 STAGE_BYTES bytes
//   empty    the slot was read    one arrival of each consumer warp of each CTA    the producer of the CTA
//                                 of the cluster
//
// The FIFO runs on from tile to tile: while the consumers store one, the first slots of the next are filled. Who
// waits knows the parity of the phase it waits for: it changes with each round of the FIFO. A fresh barrier counts as
// having completed a phase of parity 1, so the producer starts there, and no slot needs a first arrival.
//
// wgmma. One group in flight: a slot is released when the group after it has been issued and its own has completed.
//
// Cluster (CLUSTER_M == 2). Two CTAs below each other need the same tile of b: each loads one half of it and multicasts
// it to both. So a slot may be refilled only when the consumers of both CTAs have released it. A half may land before
// the own producer has announced its bytes: the phase cannot complete before that announcement, since it is also the
// only arrival. No CTA leaves before every arrival on its barriers has been made: all threads end with a cluster
// barrier.
//
// Shared memory, in this order: a[STAGES], b[STAGES] (each a multiple of 1024 bytes, the period of the swizzle),
// store slots (STORE_WARP_BYTES a consumer warp), full[STAGES], empty[STAGES] (8 bytes each), the CTA's tiles
// (4 bytes each).
//
// Limits, kept by the rung's violations: bf16, k contiguous in a and b, pitches and bases multiples of 16 bytes;
// TILE_M a multiple of 64 x CONSUMERS, TILE_N of 8 x CLUSTER_M up to 256, TILE_K one 128-byte row; THREADS tiles a CTA.

#include "base.cuh"
#include "config.cuh"
#include "epilogue.cuh"
#include "ladder/schedules.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/misc.cuh"
#include "ptx/wgmma.cuh"
#include "swizzle.cuh"
#include "wgmma_mma_async.cuh"

constexpr int K_STEPS = Config::TILE_K / 16;                          // wgmmas along k of one slot
constexpr int A_BYTES = Config::TILE_M * SWIZZLE_BYTES;               // (TILE_M, TILE_K)
constexpr int B_BYTES = Config::TILE_N * SWIZZLE_BYTES;               // (TILE_N, TILE_K)
constexpr int SHARE_N = Config::TILE_N / Config::CLUSTER_M;           // rows of the tile of b that one CTA loads
constexpr uint16_t CLUSTER_MASK = (1 << Config::CLUSTER_M) - 1;
constexpr uint32_t CONSUMER_WARPS = Config::CONSUMERS * WARPGROUP_WARPS;

struct Shared {
    alignas(ATOM_BYTES) uint8_t a[Config::STAGES][A_BYTES];           // (TILE_M, TILE_K), swizzled
    alignas(ATOM_BYTES) uint8_t b[Config::STAGES][B_BYTES];           // (TILE_N, TILE_K), swizzled
    alignas(ATOM_BYTES) uint8_t store[CONSUMER_WARPS][Config::STORE_WARP_BYTES];  // slots of (16, STORE_COLUMNS)
    alignas(8) uint64_t full[Config::STAGES];
    alignas(8) uint64_t empty[Config::STAGES];
    HilbertSchedule::Table table;
};
static_assert(sizeof(Shared) == Config::SMEM_BYTES, "the rung's smem_bytes and Shared must agree");
static_assert(A_BYTES + B_BYTES == Config::STAGE_BYTES);

// What every role knows of the FIFO.
struct Ring {
    uint32_t a;
    uint32_t b;
    uint32_t full;
    uint32_t empty;

    DEVICE explicit Ring(const Shared& shared)
        : a(shared_address(shared.a)),
          b(shared_address(shared.b)),
          full(shared_address(shared.full)),
          empty(shared_address(shared.empty)) {}

    DEVICE uint32_t full_at(uint32_t slot) const { return full + slot * 8; }
    DEVICE uint32_t empty_at(uint32_t slot) const { return empty + slot * 8; }
};

using Accumulators = float[Config::WGMMAS_M][Config::TILE_N / 2];

// One thread: fills slot after slot, tile after tile; its share of b in both CTAs.
DEVICE void producer(const Ring& ring, const TensorMap& a_map, const TensorMap& b_map, HilbertSchedule schedule,
                     int32_t num_k_tiles, uint32_t cta_rank) {
    const int32_t share = static_cast<int32_t>(cta_rank) * SHARE_N;   // first row of the tile of b
    PipelineState<Config::STAGES> state{0, 1};
    Tile tile;
    while (schedule.next(tile)) {
        const int32_t m = tile.row * Config::TILE_M;
        const int32_t n = tile.column * Config::TILE_N;
        for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
            const int32_t k = k_tile * Config::TILE_K;
            const uint32_t full = ring.full_at(state.index);
            wait(ring.empty_at(state.index), state.parity);
            ptx::mbarrier_arrive_expect_tx(full, Config::STAGE_BYTES);
            ptx::cp_async_bulk_tensor_2d_load(ring.a + state.index * A_BYTES, a_map, k, m, full);  // (TILE_M, TILE_K)
            const uint32_t b_share = ring.b + state.index * B_BYTES + share * SWIZZLE_BYTES;        // (SHARE_N, TILE_K)
            ptx::cp_async_bulk_tensor_2d_load_multicast(b_share, b_map, k, n + share, full, CLUSTER_MASK);
            state.advance();
        }
    }
}

// The calling warp is done with a slot: tells the producers of all CTAs that fill it.
DEVICE void release(const Ring& ring, uint32_t slot) {
    const uint32_t lane = threadIdx.x % WARP_THREADS;
    if (lane < Config::CLUSTER_M) ptx::mbarrier_arrive_cluster(ptx::mapa_shared_cluster(ring.empty_at(slot), lane));
}

// The accumulators of one consumer's rows of a tile, from all of k.
DEVICE void multiply(const Ring& ring, PipelineState<Config::STAGES>& state, Accumulators& rC, uint32_t a_offset,
                     int32_t num_k_tiles) {
    constexpr uint32_t A_BLOCK = 64 * SWIZZLE_BYTES / 16;             // 64 rows further, in the descriptor's units
    const uint64_t a_base = k_major_descriptor(ring.a + a_offset);
    const uint64_t b_base = k_major_descriptor(ring.b);
    uint32_t previous = 0;
    for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
        const uint64_t a = moved(a_base, state.index * (A_BYTES / 16));  // (CONSUMER_M, TILE_K)
        const uint64_t b = moved(b_base, state.index * (B_BYTES / 16));  // (TILE_N, TILE_K)
        wait(ring.full_at(state.index), state.parity);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step) {
#pragma unroll
            for (int block = 0; block < Config::WGMMAS_M; ++block) {  // (64, TILE_N) += (64, 16) x (16, TILE_N)
                ptx::wgmma_mma_async(rC[block], moved(a, block * A_BLOCK + step * K_MAJOR_STEP),
                                     moved(b, step * K_MAJOR_STEP), (k_tile | step) != 0);
            }
        }
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<1>();
        if (k_tile > 0) release(ring, previous);
        previous = state.index;
        state.advance();
    }
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int block = 0; block < Config::WGMMAS_M; ++block) keep_below(rC[block]);
    release(ring, previous);
}

// One consumer warpgroup: tile after tile, multiplies and stores.
DEVICE void consumer(const Ring& ring, Shared& shared, const Out& out, HilbertSchedule schedule, int32_t num_k_tiles,
                     uint32_t consumer_index) {
    const uint32_t warp = ptx::shfl_sync_idx(threadIdx.x % WARPGROUP_THREADS / WARP_THREADS, 0);
    const uint32_t lane = threadIdx.x % WARP_THREADS;
    const uint32_t slots = shared_address(shared.store[consumer_index * WARPGROUP_WARPS + warp]);
    const uint32_t first_row = consumer_index * Config::CONSUMER_M;   // of the tile
    PipelineState<Config::STAGES> state{0, 0};
    Tile tile;
    while (schedule.next_of_warp(tile)) {
        Accumulators rC;                                              // (CONSUMER_M, TILE_N) fp32 over the warpgroup
        multiply(ring, state, rC, first_row * SWIZZLE_BYTES, num_k_tiles);
        const int32_t m = tile.row * Config::TILE_M + first_row + warp * STORE_ROWS;
        const int32_t n = tile.column * Config::TILE_N;
#pragma unroll
        for (int block = 0; block < Config::WGMMAS_M; ++block) {      // (16, TILE_N) a warp
            if (m + block * 64 < out.m) store_rows(slots, rC[block], out, m + block * 64, n, lane);
        }
    }
    finish_stores(lane);
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    v11_hilbert(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                const __grid_constant__ OutMap out_map, uint16_t* out_base, int64_t out_pitch, int32_t m, int32_t n,
                int32_t k) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const Ring ring(shared);
    const uint32_t cta_rank = ptx::cluster_ctarank();
    if (threadIdx.x == 0) {
        for (uint32_t slot = 0; slot < Config::STAGES; ++slot) {
            ptx::mbarrier_init(ring.full_at(slot), Config::FULL_ARRIVALS);
            ptx::mbarrier_init(ring.empty_at(slot), Config::EMPTY_ARRIVALS);
        }
        ptx::fence_mbarrier_init_release_cluster();
        ptx::prefetch_tensormap(a_map);
        ptx::prefetch_tensormap(b_map);
    }
    HilbertSchedule::fill(shared.table, m, n);
    ptx::barrier_cluster_arrive_release();  // the peer's barriers are initialised, and the peer has started
    ptx::barrier_cluster_wait_acquire();

    const HilbertSchedule schedule(shared.table, cta_rank);
    const int32_t num_k_tiles = (k - 1) / Config::TILE_K + 1;
    // From lane 0: so ptxas knows that all lanes agree, and keeps what follows from it in uniform registers.
    const uint32_t warpgroup = ptx::shfl_sync_idx(threadIdx.x / WARPGROUP_THREADS, 0);
    if (warpgroup == 0) {
        ptx::setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) producer(ring, a_map, b_map, schedule, num_k_tiles, cta_rank);
    } else {
        ptx::setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
        const Out out{out_map, out_base, out_pitch, m, n};
        consumer(ring, shared, out, schedule, num_k_tiles, warpgroup - 1);
    }
    __syncwarp();                           // the barrier takes whole warps
    ptx::barrier_cluster_arrive_release();  // every arrival on the peer's barriers has been made
    ptx::barrier_cluster_wait_acquire();
}
