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
// Tail. Instead of a last, partial wave of tiles there may be narrow ones of TAIL_N columns (schedule.cuh), loaded and
// stored through maps of their own and multiplied by narrower wgmmas. They are multiplied faster than a wide ring's few
// slots could be filled, so they have a ring of more and smaller slots, in the same memory (Shared).
//
// STAGGERED. With two row blocks a consumer stores one while it multiplies the other (Consumer::compute_staggered).
//
// Roles. Warpgroup 0 is the producer: one elected lane of its first warp issues every TMA load; the rest idle.
// Warpgroups 1 .. CONSUMERS multiply and store. With two consumers setmaxnreg moves the producer's registers to them.
// The producer alone walks the schedule, off the critical path; consumers know how many tiles the CTA has, and read
// where a tile lies from shared memory.
//
// Start. Memory is far, so the producer's lane asks for it first: it makes the full barriers of the first EARLY_SLOTS
// slots ready and fills them, then the other full ones, while a lane of the next warp makes all others ready, and asks
// for the tensor maps, so that the first lane's way to its first load has no instruction that it can spare. Nobody
// else touches a barrier or a slot before the CTA has met. In a cluster that shares operands a CTA loads these slots
// by itself, since its peers may not have started; so they are fewer. Not early: behind a launch that must have ended.
//
// Pipelines: a ring of STAGES slots for wide tiles and one of TAIL_STAGES for narrow ones; a slot is a tile of a and
// one of b.
//
//   barrier  filled by                completes after                          read by
//   full     TMA (async proxy); with  1 arrival (own producer, expect_tx) and  every warp that multiplies the slot: of
//            a tile's first slot the  all bytes of the slot                    all consumers; PINGPONG: of the tile's
//            producer: tile[slot]
//   empty    consumers' wgmmas have   one arrival of each of those warps, of   the producer of the CTA
//            read the slot, and all   each peer: every CTA that it loads for
//            lanes tile[slot]
//   stored   nothing: TMA stores of   one arrival of each consumer warp        the producer, before it fills a narrow
//            all wide tiles have                                               slot where store slots of wide tiles
//            read their store slots                                            were, and every warp before it writes a
//                                                                              narrow tile
//
// From wide to narrow. Before a narrow slot is filled for the first time, every wide slot that lies there has been
// released for the last time; slot by slot, so the first narrow ones fly while the last wide ones are read.
//
// Cluster. CTAs below each other (a column of CLUSTER_M) need the same tile of b, those side by side (a row of
// CLUSTER_N) the same tile of a; each loads a share of it, in whole swizzle atoms, and multicasts it to all of them.
// With both, a CTA's slot is filled by the CTAs of its row and of its column, and by no other:
//
//   . . b .    the slot of X: shares of a from its row, of b from its column, of both from X itself; these are its
//   a a X a    peers, CLUSTER_M + CLUSTER_N - 1 of them (cluster.cuh)
//
// A producer writes into the slots of all its peers, so it fills a slot only when the consumers of all of them have
// released it: a consumer warp arrives on the empty barriers of its own CTA and, by mapa, of every peer, a lane each.
// No barrier is a phase behind: a peer's next arrival needs its next full slot, and that needs a share of this CTA, or
// where it loads none, of CTAs that waited for all. A share may land before the own producer has announced its bytes:
// the phase cannot complete before that announcement, since it is also the only arrival. Nor can a share of the next
// phase land in this one: its producer has waited for this CTA's consumers. No CTA leaves before every share has
// landed, for which its consumers wait, and every arrival on its barriers has been made, for which its producer does:
// until each slot has been given back once more. A cluster barrier at the end would wait for all CTAs, and for what
// they have stored.
//
// wgmma. One group in flight: a slot is released when the group after it has been issued and its own has completed.
// Accumulators are never cleared: the first k16 step of a tile adds to nothing (scale-d = 0), and its wrapper only
// writes them. So no accumulator lives from tile to tile: where ptxas had to believe that one might, it serialised
// wgmmas for want of registers (C7511; of 86 kernels with narrow tails 50, and none since).
//
// Shared memory, in this order: the ring's slots, each a then b (multiples of 1024 bytes, the period of the swizzle),
// and store slots (STORE_WARP_BYTES a consumer warp); then for both rings full[], empty[] (8 bytes each) and tile[] (8;
// of a batch 16), and stored. The narrow ring and its store slots (TAIL_STORE_WARP_BYTES) lie where the wide ones did:
//
//   wide     | slot 0            | slot 1            | slot 2            | store slots             |
//   narrow   | slot 0        | slot 1        | slot 2        | slot 3        | store slots  |
//
// Layouts. A slot of a or b is rows of 64 k values where k is contiguous, and where m or n is, panels of 64 of them,
// each 64 rows of k; 128 bytes a row either way, swizzled by TMA and read through the descriptor that says which
// (swizzle.cuh).
//
// Batch. A batch of products is one launch: the walk goes from matrix to matrix, tensor maps have a dimension more, or
// three, and a tile's matrix travels with it (batch.cuh).
//
// Few rows. With SWAP out is computed transposed: its columns are the rows of the tiles in the picture above, and slots
// are stored with rows and columns exchanged (transposed.cuh; OUT_TRANSPOSED). m and n, a and b are those of out^T.
//
// Split. With SPLIT_K > 1 the CTAs of a cluster multiply parts of k of the same tile and add up (split.cuh).
//
// Epilogue. What happens to the sums before they are rounded is rendered for each form of it (fused.cuh), and happens
// where they are rounded (epilogue.cuh). Where it folds out, each half of a tile of b comes from a half of b's columns,
// and a lane holds both values that make one of out.
//
// Dependent launch. Made ready beside the launch before, whose end all threads wait for; the next may start beside it.
//
// Order of k. With K_BACK_AND_FORTH every second tile of a CTA walks k backwards: what the tile before read last is
// still in the L2.
//
// Limits, kept by config.violations and problem.checked: a consumer has whole blocks of 64 rows (STAGGERED: two, and
// at least two slots along k), TILE_N a multiple of 8 (n-contiguous b: of 64) up to 256, TILE_K one 128-byte row; bases
// and pitches of a and b, from matrix to matrix too, multiples of 16 bytes; at most 3 batch dimensions and 2^30 tiles;
// no narrow tail of a batch.

#include "batch.cuh"
#include "config.cuh"
#include "consumer.cuh"
#include "epilogue.cuh"
#include "fused.cuh"
#include "producer.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/misc.cuh"
#include "ring.cuh"
#include "schedule.cuh"
#include "split.cuh"

// Whether the first loads need not wait until the CTA has met: no launch before has to have ended.
constexpr bool STARTS_EARLY = STARTED_SLOTS > 0 && !Config::DEPENDENT_LAUNCH;

// Whether only a walk of one square starts early, as all are whose tiles run at once. What finds any other's first tile
// would lie between the entry and the first load, which waits for the instructions before it: 40 cycles for 128 bytes
// of them (H200, 2026-12-01; 512^3 3.38 -> 3.28 us). With batches and tails every walk is of that other kind.
constexpr bool ONE_SQUARE_ALONE = Config::BATCH_DIMS == 0 && Config::TAIL_N == 0;

// Makes full barriers FIRST .. END - 1 ready, for TMA and for the peers too.
template <uint32_t FIRST, uint32_t END>
DEVICE void init_full(const WideRing& ring) {
    for (uint32_t slot = FIRST; slot < END; ++slot) ptx::mbarrier_init(ring.full_at(slot), Config::FULL_ARRIVALS);
    ptx::fence_mbarrier_init_release_cluster();
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    hopper_gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                const __grid_constant__ BTailMap b_tail_map, const __grid_constant__ OutMap out_map,
                const __grid_constant__ OutTailMap out_tail_map, void* out_base, int64_t out_pitch, int32_t m,
                int32_t n, int32_t k, int32_t group_m, int32_t square_m, int32_t square_n, int32_t num_wide,
                const __grid_constant__ Batch batch, const __grid_constant__ Fused fused, int32_t row_scale) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const uint32_t cta_rank = Config::CLUSTER == 1 ? 0 : ptx::cluster_ctarank();

    const Partials& partials = *reinterpret_cast<const Partials*>(dynamic_smem + sizeof(Shared));  // with SPLIT_K > 1

    // From lane 0: so ptxas knows that all lanes agree, and keeps what follows from it in uniform registers.
    const uint32_t warp = ptx::shfl_sync_idx(threadIdx.x / WARP_THREADS, 0);

    const TileSchedule schedule(m, n, Walk{group_m, square_m, square_n, num_wide}, Config::SPLIT_K > 1 ? 0 : cta_rank);
    const KTiles k_tiles = k_tiles_of((k - 1) / Config::TILE_K + 1, cta_rank);
    Producer producer(shared, a_map, b_map, b_tail_map, batch, k_tiles, cta_rank);
    Tile first{};  // of the producer

    const WideRing ring(shared, 0);  // and, behind its own, the barriers of the narrow one
    if (warp == 0 && ptx::elect_sync()) {
        init_full<0, EARLY_SLOTS>(ring);
        if constexpr (STARTS_EARLY && ONE_SQUARE_ALONE) {
            if (schedule.is_one_square() && schedule.has_wide(0)) {
                first = schedule.first_of_square(row_scale);
                producer.start(first);
            }
        } else {
            first = schedule.first(row_scale);
            if (STARTS_EARLY && schedule.has_wide(0)) producer.start(first);
        }
        if constexpr (EARLY_SLOTS < SLOTS) init_full<EARLY_SLOTS, SLOTS>(ring);
        prefetch_map(out_map);
    }
    __syncwarp();
    if (threadIdx.x == WARP_THREADS) {
        ptx::prefetch_tensormap(a_map);
        ptx::prefetch_tensormap(b_map);
        for (uint32_t slot = 0; slot < SLOTS; ++slot) ptx::mbarrier_init(ring.empty_at(slot), Config::EMPTY_ARRIVALS);
        if constexpr (Config::TAIL_N > 0) ptx::mbarrier_init(shared_address(&shared.stored), CONSUMER_WARPS);
        if constexpr (Config::SPLIT_K > 1) init_partials(partials);
        ptx::fence_mbarrier_init_release_cluster();
    }
    if constexpr (Config::LAUNCHES_DEPENDENTS) ptx::griddepcontrol_launch_dependents();
    if constexpr (Config::CLUSTER == 1) {
        __syncthreads();
    } else {  // the peers' barriers are initialised, as the fence has said to all, and the peers have started
        ptx::barrier_cluster_arrive_relaxed();
        ptx::barrier_cluster_wait_acquire();
    }

    if constexpr (Config::DEPENDENT_LAUNCH) ptx::griddepcontrol_wait();  // no operand and no out is touched before

    const uint32_t warpgroup = warp / WARPGROUP_WARPS;
    if (warpgroup == 0) {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
        if (warp == 0 && ptx::elect_sync()) {
            producer.run(schedule, first, !(STARTS_EARLY && ONE_SQUARE_ALONE) || producer.has_started());
            if constexpr (Config::SHARING > 1) producer.finish();
        }
        __syncwarp();
    } else {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
        const int32_t columns = n / Fused::FOLD;
        const Out out{out_map, out_base, out_pitch, m, columns, Member{}};
        const OutTail out_tail{out_tail_map, out_base, out_pitch, m, columns, Member{}};
        Consumer(shared, out, out_tail, batch, fused, partials, k_tiles.count, warpgroup - 1, cta_rank)
            .run(schedule.num_wide(), schedule.num_narrow());
    }
}
