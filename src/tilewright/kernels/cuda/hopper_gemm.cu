// out (M, N) = a (M, K) x b (K, N) on Hopper: 16-bit inputs, fp32 accumulation, persistent, warp-specialised.
//
// Tiles. A CTA computes tiles of TILE_M x TILE_N, one after another, in the order of schedule.cuh:
//
//            <------------- TILE_N ------------->
//          ^ +----------------------------------+ ^
//          | | consumer 0                       | | WGMMAS_M x 64 rows; of each 64, warp w holds
//   TILE_M | |                                  | | rows 16 w .. 16 w + 15; of those, lane t holds rows t / 4 and
//          | +----------------------------------+ v t / 4 + 8, of every 8 columns the two from 2 (t % 4)
//          | | consumer 1 (CONSUMERS == 2)      |
//          v +----------------------------------+
//
// With PINGPONG a consumer owns whole tiles instead: the CTA's tiles go to consumers 0, 1, 0, 1, ..., and while one
// stores, the other multiplies. A consumer starts a tile when the other has seen the last full slot of the tile before
// (barriers TURN_OF_0 and TURN_OF_1): its own first wait would else ask for a phase two ahead, and a parity cannot tell
// that from one that has completed.
//
// Halves. Tiles of the last, partial wave are computed as two halves of TILE_M / 2 rows on two SMs (schedule.cuh): a
// consumer then multiplies the first half of its row blocks only.
//
// Roles. Warpgroup 0 is the producer: one lane of its first warp issues every TMA load; the rest idle. Warpgroups
// 1 .. CONSUMERS multiply and store. With two consumers setmaxnreg moves the producer's registers to them.
//
// Pipelines, one ring of STAGES slots, each a tile of a and a tile of b:
//
//   barrier  filled by              completes after                          read by
//   full     TMA (async proxy)      1 arrival (own producer, expect_tx) and  every warp that multiplies the slot: of
//                                   STAGE_BYTES bytes (a half: A_HALF less)  all consumers; PINGPONG: of the tile's
//   empty    consumers' wgmmas      one arrival of each of those warps, of   the producer of the CTA
//            have read the slot     each CTA of the cluster
//
// Cluster of 2. Two CTAs below each other (CLUSTER_M == 2) need the same tile of b, two side by side (CLUSTER_N == 2)
// the same tile of a: each loads one half of it and multicasts it to both. So a slot may be refilled only when the
// consumers of both CTAs have released it: a consumer warp arrives on its own empty barrier and, by mapa, on the
// peer's. A half may land before the own producer has announced its bytes:
// the phase cannot complete before that announcement, since it is also the only arrival. No CTA leaves before every
// arrival on its barriers has been made: all threads end with a cluster barrier.
//
// wgmma. One group in flight: a slot is released when the group after it has been issued and its own has completed.
// Accumulators are never cleared: the first k16 step of a tile has scale-d = 0 (clearing them by ordinary moves made
// ptxas serialise some variants, C7515).
//
// Shared memory, in this order: a[STAGES], b[STAGES] (each a multiple of 1024 bytes, the period of the swizzle), store
// slots (2048 bytes, STORE_SLOTS a consumer warp), full[STAGES], empty[STAGES] (8 bytes each).
//
// Order of k. With K_BACK_AND_FORTH every second tile of a CTA walks k backwards: what the tile before read last is
// still in the L2.
//
// Limits, kept by config.violations and problem.checked: a consumer has whole blocks of 64 rows (HALVES: an even
// number), TILE_N a multiple of 8 (n-contiguous b: of 64) up to 256, TILE_K one 128-byte row; bases and pitches of a and
// b multiples of 16 bytes; at most 2^30 tiles.

#include "config.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/misc.cuh"
#include "ptx/wgmma.cuh"
#include "schedule.cuh"
#include "swizzle.cuh"
#include "wgmma_mma_async.cuh"

constexpr int K_STEPS = Config::TILE_K / 16;                                // wgmmas along k of one slot
constexpr int A_BYTES = Config::TILE_M * SWIZZLE_BYTES;                     // (TILE_M, TILE_K)
constexpr int B_BYTES = Config::TILE_N * SWIZZLE_BYTES;                     // (TILE_N, TILE_K) or its transpose
constexpr int A_HALF = A_BYTES / 2;                                         // (TILE_M / 2, TILE_K)
constexpr int B_PANEL_BYTES = Config::TILE_K * SWIZZLE_BYTES;               // n-contiguous: (TILE_K, 64)
constexpr int B_PANELS = Config::TILE_N / 64;                               // n-contiguous only
// Barriers of the CTA beside __syncthreads: PINGPONG's turns.
enum NamedBarrier { TURN_OF_0 = 1, TURN_OF_1 = 2 };
constexpr int TURN_THREADS = 2 * WARPGROUP_THREADS;  // one consumer waits, the other arrives
constexpr uint16_t CLUSTER_MASK = (1 << Config::CLUSTER) - 1;
constexpr uint32_t CONSUMER_WARPS = Config::CONSUMERS * WARPGROUP_WARPS;

struct Shared {
    alignas(ATOM_BYTES) uint8_t a[Config::STAGES][A_BYTES];                                   // (TILE_M, TILE_K), swizzled
    alignas(ATOM_BYTES) uint8_t b[Config::STAGES][B_BYTES];                                   // (TILE_N, TILE_K), swizzled
    alignas(ATOM_BYTES) uint8_t store[CONSUMER_WARPS][Config::STORE_SLOTS][STORE_SLOT_BYTES];  // (16, STORE_COLUMNS)
    alignas(8) uint64_t full[Config::STAGES];
    alignas(8) uint64_t empty[Config::STAGES];
};
static_assert(sizeof(Shared) == Config::SMEM_BYTES, "config.smem_bytes and Shared must agree");
static_assert(A_BYTES + B_BYTES == Config::STAGE_BYTES, "config.stage_bytes and Shared must agree");

// What every role knows of the ring.
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

// Loads this CTA's share of one tile of a into a slot: all of it, or half of its rows for both CTAs side by side. With
// HALVES the box is half a tile, so that a half needs no map of its own.
DEVICE void load_a(uint32_t target, const TensorMap& a_map, const Tile& tile, int32_t k, uint32_t barrier,
                   uint32_t cta_rank) {
    if constexpr (Config::CLUSTER_N > 1) {
        constexpr int SHARE_M = Config::TILE_M / Config::CLUSTER_N;
        ptx::cp_async_bulk_tensor_2d_load_multicast(target + cta_rank * SHARE_M * SWIZZLE_BYTES, a_map, k,
                                                    tile.m + cta_rank * SHARE_M, barrier,
                                                    CLUSTER_MASK);  // (SHARE_M, TILE_K)
    } else {
        ptx::cp_async_bulk_tensor_2d_load(target, a_map, k, tile.m, barrier);  // (TILE_M, TILE_K); HALVES: half of it
        if (Config::HALVES && !tile.half) {
            ptx::cp_async_bulk_tensor_2d_load(target + A_HALF, a_map, k, tile.m + Config::TILE_M / 2, barrier);
        }
    }
}

// Loads this CTA's share of one tile of b into a slot: all of it, or its part of the rows of every atom stack.
DEVICE void load_b(uint32_t target, const TensorMap& b_map, int32_t n, int32_t k, uint32_t barrier, uint32_t cta_rank) {
    constexpr int SHARE_N = Config::TILE_N / Config::CLUSTER_M;  // k-contiguous: rows of n
    constexpr int SHARE_K = Config::TILE_K / Config::CLUSTER_M;  // n-contiguous: rows of k in each panel
    const int32_t rank = static_cast<int32_t>(cta_rank);
    if constexpr (Config::B_K_MAJOR && Config::CLUSTER_M == 1) {
        ptx::cp_async_bulk_tensor_2d_load(target, b_map, k, n, barrier);  // (TILE_N, TILE_K)
    } else if constexpr (Config::B_K_MAJOR) {
        ptx::cp_async_bulk_tensor_2d_load_multicast(target + rank * SHARE_N * SWIZZLE_BYTES, b_map, k, n + rank * SHARE_N,
                                                    barrier, CLUSTER_MASK);  // (SHARE_N, TILE_K)
    } else {
#pragma unroll
        for (int panel = 0; panel < B_PANELS; ++panel) {
            const uint32_t panel_target = target + panel * B_PANEL_BYTES;
            if constexpr (Config::CLUSTER_M == 1) {
                ptx::cp_async_bulk_tensor_2d_load(panel_target, b_map, n + panel * 64, k, barrier);  // (TILE_K, 64)
            } else {
                ptx::cp_async_bulk_tensor_2d_load_multicast(panel_target + rank * SHARE_K * SWIZZLE_BYTES, b_map,
                                                            n + panel * 64, k + rank * SHARE_K, barrier,
                                                            CLUSTER_MASK);  // (SHARE_K, 64)
            }
        }
    }
}

// One lane: fills slot after slot, tile after tile.
DEVICE void producer(const Ring& ring, const TensorMap& a_map, const TensorMap& b_map, TileSchedule schedule,
                     int32_t num_k_tiles, uint32_t cta_rank) {
    PipelineState<Config::STAGES> state{0, 1};
    Tile tile;
    bool backward = false;
    while (schedule.next(tile)) {
        for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
            const int32_t k = (backward ? num_k_tiles - 1 - k_tile : k_tile) * Config::TILE_K;
            const uint32_t full = ring.full_at(state.index);
            wait(ring.empty_at(state.index), state.parity);
            ptx::mbarrier_arrive_expect_tx(full, tile.half ? Config::STAGE_BYTES - A_HALF : Config::STAGE_BYTES);
            load_a(ring.a + state.index * A_BYTES, a_map, tile, k, full, cta_rank);
            load_b(ring.b + state.index * B_BYTES, b_map, tile.n, k, full, cta_rank);
            state.advance();
        }
        if constexpr (Config::K_BACK_AND_FORTH) backward = !backward;
    }
}

// One consumer warp gives a slot back: lane r to the CTA of rank r. Its wgmmas on the slot are complete.
DEVICE void release(const Ring& ring, uint32_t slot, uint32_t lane) {
    if constexpr (Config::CLUSTER == 1) {
        if (lane == 0) ptx::mbarrier_arrive(ring.empty_at(slot));
    } else {
        if (lane < Config::CLUSTER) ptx::mbarrier_arrive_cluster(ptx::mapa_shared_cluster(ring.empty_at(slot), lane));
    }
}

using Accumulators = float[Config::WGMMAS_M][Config::TILE_N / 2];

// PINGPONG: waits until it is this consumer's turn to multiply.
DEVICE void await_turn(uint32_t consumer_index) {
    if (consumer_index == 0) {
        ptx::barrier_sync<TURN_OF_0, TURN_THREADS>();
    } else {
        ptx::barrier_sync<TURN_OF_1, TURN_THREADS>();
    }
}

// PINGPONG: this consumer has seen its last full slot; the other may start.
DEVICE void pass_turn(uint32_t consumer_index) {
    if (consumer_index == 0) {
        ptx::barrier_arrive<TURN_OF_1, TURN_THREADS>();
    } else {
        ptx::barrier_arrive<TURN_OF_0, TURN_THREADS>();
    }
}

// A consumer: multiplies slots along k into the first BLOCKS row blocks of rC, leaving the last slot released and no
// wgmma in flight. Calls `all_seen` once it has waited for its last full slot.
template <int BLOCKS, class AllSeen>
DEVICE void multiply(const Ring& ring, PipelineState<Config::STAGES>& state, Accumulators& rC, uint32_t a_offset,
                     int32_t num_k_tiles, uint32_t lane, AllSeen all_seen) {
    constexpr uint32_t B_STEP = Config::B_K_MAJOR ? K_MAJOR_STEP : N_MAJOR_STEP;
    constexpr uint32_t A_BLOCK = 64 * SWIZZLE_BYTES / 16;  // the next 64 rows, in the descriptor's units
    const uint64_t a_base = k_major_descriptor(ring.a + a_offset);
    const uint64_t b_base = Config::B_K_MAJOR ? k_major_descriptor(ring.b) : n_major_descriptor(ring.b, B_PANEL_BYTES);
    uint32_t previous = 0;
    for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
        const uint64_t a = moved(a_base, state.index * (A_BYTES / 16));  // (BLOCKS x 64, TILE_K)
        const uint64_t b = moved(b_base, state.index * (B_BYTES / 16));  // (TILE_N, TILE_K)
        wait(ring.full_at(state.index), state.parity);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step) {
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) {  // (64, TILE_N) += (64, 16) x (16, TILE_N)
                ptx::wgmma_mma_async(rC[block], moved(a, block * A_BLOCK + step * K_MAJOR_STEP),
                                     moved(b, step * B_STEP), (k_tile | step) != 0);
            }
        }
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<1>();
        if (k_tile > 0) release(ring, previous, lane);
        previous = state.index;
        state.advance();
    }
    all_seen();
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) keep_below(rC[block]);
    release(ring, previous, lane);
}

// A consumer's part of one tile: the first BLOCKS of its row blocks, multiplied and stored. `part` numbers the parts of
// a tile that consumers share, 0 .. CONSUMERS-1; PINGPONG: always 0.
template <int BLOCKS, class AllSeen>
DEVICE void compute(const Ring& ring, PipelineState<Config::STAGES>& state, const Out& out, const Tile& tile,
                    int32_t num_k_tiles, uint32_t part, uint32_t slots, uint32_t& slot, uint32_t warp, uint32_t lane,
                    AllSeen all_seen) {
    Accumulators rC;  // (BLOCKS x 64, TILE_N) fp32 over the warpgroup
    multiply<BLOCKS>(ring, state, rC, part * BLOCKS * 64 * SWIZZLE_BYTES, num_k_tiles, lane, all_seen);
    const int32_t m = tile.m + part * BLOCKS * 64 + warp * STORE_ROWS;
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
        const int32_t row = m + block * 64;
        if (row < out.m) store_rows(slots, slot, rC[block], out, row, tile.n, lane);  // (16, TILE_N)
    }
}

// One consumer warpgroup: tile after tile, multiply and store.
DEVICE void consumer(const Ring& ring, Shared& shared, const Out& out, TileSchedule schedule, int32_t num_k_tiles,
                     uint32_t consumer_index) {
    const uint32_t warp = threadIdx.x % WARPGROUP_THREADS / WARP_THREADS;
    const uint32_t lane = threadIdx.x % WARP_THREADS;
    const uint32_t slots = shared_address(shared.store[consumer_index * WARPGROUP_WARPS + warp]);
    const uint32_t part = Config::PINGPONG ? 0 : consumer_index;
    PipelineState<Config::STAGES> state{0, 0};
    uint32_t slot = 0;
    uint32_t place = 0;  // of the tile among the CTA's, for PINGPONG
    Tile tile;
    while (schedule.next(tile)) {
        if constexpr (Config::PINGPONG) {
            const bool is_first = place == 0;
            if (place++ % Config::CONSUMERS != consumer_index) {
                state.skip(num_k_tiles);
                continue;
            }
            if (!is_first) await_turn(consumer_index);
        }
        const bool passes_turn = Config::PINGPONG && schedule.has_next();
        const auto all_seen = [&] {
            if (passes_turn) pass_turn(consumer_index);
        };
        if constexpr (Config::HALVES) {
            if (tile.half) {
                compute<Config::WGMMAS_M / 2>(ring, state, out, tile, num_k_tiles, part, slots, slot, warp, lane,
                                               all_seen);
                continue;
            }
        }
        compute<Config::WGMMAS_M>(ring, state, out, tile, num_k_tiles, part, slots, slot, warp, lane, all_seen);
    }
    finish_stores(lane);
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    hopper_gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                const __grid_constant__ OutMap out_map, void* out_base, int64_t out_pitch, int32_t m, int32_t n, int32_t k,
                int32_t group_m, int32_t num_whole) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const Ring ring(shared);
    const uint32_t cta_rank = Config::CLUSTER == 1 ? 0 : ptx::cluster_ctarank();

    if (threadIdx.x == 0) {
        for (uint32_t slot = 0; slot < Config::STAGES; ++slot) {
            ptx::mbarrier_init(ring.full_at(slot), Config::FULL_ARRIVALS);
            ptx::mbarrier_init(ring.empty_at(slot), Config::EMPTY_ARRIVALS);
        }
        ptx::fence_mbarrier_init_release_cluster();
        ptx::prefetch_tensormap(a_map);
        ptx::prefetch_tensormap(b_map);
    }
    if constexpr (Config::CLUSTER == 1) {
        __syncthreads();
    } else {  // the peer's barriers are initialised, and the peer has started
        ptx::barrier_cluster_arrive_release();
        ptx::barrier_cluster_wait_acquire();
    }

    const TileSchedule schedule(m, n, Walk{group_m, num_whole}, cta_rank);
    const int32_t num_k_tiles = (k - 1) / Config::TILE_K + 1;
    if (threadIdx.x < WARPGROUP_THREADS) {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) producer(ring, a_map, b_map, schedule, num_k_tiles, cta_rank);
        __syncwarp();
    } else {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
        const Out out{out_map, out_base, out_pitch, m, n};
        consumer(ring, shared, out, schedule, num_k_tiles, threadIdx.x / WARPGROUP_THREADS - 1);
    }
    if constexpr (Config::CLUSTER > 1) {  // every arrival on the peer's barriers has been made
        ptx::barrier_cluster_arrive_release();
        ptx::barrier_cluster_wait_acquire();
    }
}
