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
// stored through maps of their own and multiplied by narrower wgmmas.
//
// STAGGERED. With two row blocks a consumer stores one while it multiplies the other (Consumer::compute_staggered).
//
// Roles. Warpgroup 0 is the producer: one lane of its first warp issues every TMA load; the rest idle. Warpgroups
// 1 .. CONSUMERS multiply and store. With two consumers setmaxnreg moves the producer's registers to them. The producer
// alone walks the schedule, off the critical path; consumers know how many tiles the CTA has, and read where a tile lies
// from shared memory.
//
// Pipelines, one ring of STAGES slots, each a tile of a and a tile of b:
//
//   barrier  filled by                completes after                          read by
//   full     TMA (async proxy); with  1 arrival (own producer, expect_tx) and  every warp that multiplies the slot: of
//            a tile's first slot the  STAGE_BYTES bytes; of a narrow tile      all consumers; PINGPONG: of the tile's
//            producer: tile[slot]     NARROW_BYTES
//   empty    consumers' wgmmas have   one arrival of each of those warps, of   the producer of the CTA
//            read the slot, and all   each CTA of the cluster
//            lanes tile[slot]
//
// Cluster of 2. Two CTAs below each other (CLUSTER_M == 2) need the same tile of b, two side by side (CLUSTER_N == 2)
// the same tile of a: each loads one half of it and multicasts it to both. So a slot may be refilled only when the
// consumers of both CTAs have released it: a consumer warp arrives on its own empty barrier and, by mapa, on the
// peer's. A half may land before the own producer has announced its bytes:
// the phase cannot complete before that announcement, since it is also the only arrival. No CTA leaves before every
// arrival on its barriers has been made: all threads end with a cluster barrier.
//
// wgmma. One group in flight: a slot is released when the group after it has been issued and its own has completed.
// Accumulators are never cleared: the first k16 step of a tile adds to nothing (scale-d = 0), and its wrapper only writes
// them. So no accumulator lives from tile to tile: where ptxas had to believe that one might, it serialised wgmmas for
// want of registers (C7511; of 86 kernels with narrow tails 50, and none since).
//
// Shared memory, in this order: a[STAGES], b[STAGES] (each a multiple of 1024 bytes, the period of the swizzle), store
// slots (STORE_WARP_BYTES a consumer warp), full[STAGES], empty[STAGES] (8 bytes each), tile[STAGES] (8; of a batch 16).
//
// Layouts. A slot of a or b is rows of 64 k values where k is contiguous, and where m or n is, panels of 64 of them, each
// 64 rows of k; 128 bytes a row either way, swizzled by TMA and read through the descriptor that says which (swizzle.cuh).
//
// Batch. A batch of products is one launch: the walk goes from matrix to matrix, tensor maps have a dimension more, or
// three, and a tile's matrix travels with it (batch.cuh).
//
// Few rows. With SWAP out is computed transposed: its columns are the rows of the tiles in the picture above, and slots
// are stored with rows and columns exchanged (transposed.cuh; OUT_TRANSPOSED). m and n, a and b are those of out^T.
//
// Split. With SPLIT_K > 1 the CTAs of a cluster multiply parts of k of the same tile and add up (split.cuh).
//
// Dependent launch. Barriers and maps are made ready while the launch before still runs; then every thread waits for it.
//
// Order of k. With K_BACK_AND_FORTH every second tile of a CTA walks k backwards: what the tile before read last is
// still in the L2.
//
// Limits, kept by config.violations and problem.checked: a consumer has whole blocks of 64 rows (STAGGERED: two, and
// at least two slots along k), TILE_N a multiple of 8 (n-contiguous b: of 64) up to 256, TILE_K one 128-byte row; bases
// and pitches of a and b, from matrix to matrix too, multiples of 16 bytes; at most 3 batch dimensions and 2^30 tiles; no
// narrow tail of a batch.

#include "batch.cuh"
#include "config.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/misc.cuh"
#include "ptx/wgmma.cuh"
#include "schedule.cuh"
#include "split.cuh"
#include "swizzle.cuh"
#include "wgmma_mma_async.cuh"

constexpr int K_STEPS = Config::TILE_K / 16;                                // wgmmas along k of one slot
constexpr int A_BYTES = Config::TILE_M * SWIZZLE_BYTES;                     // (TILE_M, TILE_K) or its transpose
constexpr int B_BYTES = Config::TILE_N * SWIZZLE_BYTES;                     // (TILE_N, TILE_K) or its transpose
constexpr int NARROW_BYTES = (Config::TILE_M + Config::TAIL_N) * SWIZZLE_BYTES;   // of a stage of a narrow tile
constexpr int PANEL_COLUMNS = SWIZZLE_BYTES / 2;                            // of m or n, where these are contiguous
constexpr int PANEL_BYTES = Config::TILE_K * SWIZZLE_BYTES;                 // (TILE_K, PANEL_COLUMNS)
constexpr int BLOCK_BYTES = 64 * SWIZZLE_BYTES;                             // the rows of one wgmma: (64, TILE_K) of a
static_assert(Config::A_K_MAJOR || BLOCK_BYTES == PANEL_BYTES, "64 rows of a are as many bytes whichever is contiguous");
// Barriers of the CTA beside __syncthreads: PINGPONG's turns.
enum NamedBarrier { TURN_OF_0 = 1, TURN_OF_1 = 2 };
constexpr int TURN_THREADS = 2 * WARPGROUP_THREADS;  // one consumer waits, the other arrives
constexpr uint16_t CLUSTER_MASK = (1 << Config::SHARING) - 1;
constexpr uint32_t CONSUMER_WARPS = Config::CONSUMERS * WARPGROUP_WARPS;

struct Shared {
    alignas(ATOM_BYTES) uint8_t a[Config::STAGES][A_BYTES];                                   // (TILE_M, TILE_K), swizzled
    alignas(ATOM_BYTES) uint8_t b[Config::STAGES][B_BYTES];                                   // (TILE_N, TILE_K), swizzled
    alignas(ATOM_BYTES) uint8_t store[CONSUMER_WARPS][Config::STORE_WARP_BYTES];  // slots of (16, STORE_COLUMNS)
    alignas(8) uint64_t full[Config::STAGES];
    alignas(8) uint64_t empty[Config::STAGES];
    alignas(sizeof(Tile)) Tile tile[Config::STAGES];  // that the slot belongs to; written with the first slot of a tile
};
static_assert(sizeof(Shared) + Config::PARTIAL_BYTES == Config::SMEM_BYTES, "config.smem_bytes and Shared must agree");
static_assert(A_BYTES + B_BYTES == Config::STAGE_BYTES, "config.stage_bytes and Shared must agree");

// What every role knows of the ring.
struct Ring {
    uint32_t a;
    uint32_t b;
    uint32_t full;
    uint32_t empty;
    uint32_t tile;

    DEVICE explicit Ring(const Shared& shared)
        : a(shared_address(shared.a)),
          b(shared_address(shared.b)),
          full(shared_address(shared.full)),
          empty(shared_address(shared.empty)),
          tile(shared_address(shared.tile)) {}

    DEVICE uint32_t full_at(uint32_t slot) const { return full + slot * 8; }
    DEVICE uint32_t empty_at(uint32_t slot) const { return empty + slot * 8; }

    // Says whose slot it is, before the full barrier is arrived on; and reads it, after that phase has completed and
    // before the slot is released.
    DEVICE void put_tile(uint32_t slot, const TileOf<false>& value) const {
        ptx::st_shared_v2_u32(tile + slot * 8, static_cast<uint32_t>(value.m), static_cast<uint32_t>(value.n));
    }
    DEVICE void put_tile(uint32_t slot, const TileOf<true>& value) const {
        const uint32_t words[4] = {static_cast<uint32_t>(value.m), static_cast<uint32_t>(value.n), value.number, 0};
        ptx::st_shared_v4_u32(tile + slot * 16, words);
    }
    DEVICE Tile tile_at(uint32_t slot) const {
        constexpr int WORDS = sizeof(Tile) / 4;
        uint32_t words[WORDS];  // m, n and, where there is one, the matrix
        read(tile + slot * sizeof(Tile), words);
        return Tile::at(static_cast<int32_t>(words[0]), static_cast<int32_t>(words[1]), words[WORDS / 2]);
    }

private:
    DEVICE static void read(uint32_t address, uint32_t (&words)[2]) { ptx::ld_shared_v2_u32(address, words); }
    DEVICE static void read(uint32_t address, uint32_t (&words)[4]) { ptx::ld_shared_v4_u32(address, words); }
};

// Loads this CTA's share of an operand's tile: EXTENT of its rows (a) or columns (b) from `first` on, times TILE_K. With
// SHARES CTAs each loads one of as many parts for all of them: rows where k is contiguous, else k rows of every panel.
template <bool K_MAJOR, int EXTENT, int SHARES>
DEVICE void load_tile(uint32_t target, const TensorMap& map, int32_t first, int32_t k, const Member& member,
                      uint32_t barrier, uint32_t cta_rank) {
    const int32_t rank = static_cast<int32_t>(cta_rank);
    if constexpr (K_MAJOR && SHARES == 1) {
        load_box(target, map, k, first, member, barrier);  // (EXTENT, TILE_K)
    } else if constexpr (K_MAJOR) {
        constexpr int SHARE = EXTENT / SHARES;
        load_box_multicast(target + rank * SHARE * SWIZZLE_BYTES, map, k, first + rank * SHARE, member, barrier,
                           CLUSTER_MASK);  // (SHARE, TILE_K)
    } else {
        constexpr int SHARE_K = Config::TILE_K / SHARES;
#pragma unroll
        for (int panel = 0; panel < EXTENT / PANEL_COLUMNS; ++panel) {
            const uint32_t panel_target = target + panel * PANEL_BYTES;
            const int32_t column = first + panel * PANEL_COLUMNS;
            if constexpr (SHARES == 1) {
                load_box(panel_target, map, column, k, member, barrier);  // (TILE_K, PANEL_COLUMNS)
            } else {
                load_box_multicast(panel_target + rank * SHARE_K * SWIZZLE_BYTES, map, column, k + rank * SHARE_K, member,
                                   barrier, CLUSTER_MASK);  // (SHARE_K, PANEL_COLUMNS)
            }
        }
    }
}

// Loads a narrow tile of b, if the kernel has such tiles.
DEVICE void load_tail(uint32_t target, const TensorMap& map, int32_t n, int32_t k, const Member& member,
                      uint32_t barrier) {
    load_tile<Config::B_K_MAJOR, Config::TAIL_N, 1>(target, map, n, k, member, barrier, 0);
}
DEVICE void load_tail(uint32_t, const NoTensorMap&, int32_t, int32_t, const Member&, uint32_t) {}
using BTailMap = MapIf<(Config::TAIL_N > 0)>::type;

// Whether a CTA's tile number `i` is walked with k backwards.
DEVICE bool is_backward(uint32_t i) { return Config::K_BACK_AND_FORTH && i % 2 == 1; }

// One lane: fills slot after slot, tile after tile.
class Producer {
public:
    DEVICE Producer(const Ring& the_ring, const TensorMap& the_a_map, const TensorMap& the_b_map,
                    const BTailMap& the_b_tail_map, const Batch& the_batch, const KTiles& the_k_tiles, uint32_t the_rank)
        : ring(the_ring),
          a_map(the_a_map),
          b_map(the_b_map),
          b_tail_map(the_b_tail_map),
          batch(the_batch),
          k_tiles(the_k_tiles),
          cta_rank(the_rank) {}

    DEVICE void run(const TileSchedule& schedule) {
        const uint32_t num_wide = schedule.num_wide();
        for (uint32_t i = 0; i < num_wide; ++i) {
            const Tile tile = schedule.wide(i);
            const Member member = batch.b_member(batch.member(tile.matrix()));
            fill(tile, is_backward(i), Config::STAGE_BYTES, [&](uint32_t b, int32_t k, uint32_t full) {
                load_tile<Config::B_K_MAJOR, Config::TILE_N, Config::CLUSTER_M>(b, b_map, tile.n, k, member, full, cta_rank);
            });
        }
        if constexpr (Config::TAIL_N > 0) {
            const uint32_t num_narrow = schedule.num_narrow();
            for (uint32_t i = 0; i < num_narrow; ++i) {
                const Tile tile = schedule.narrow(i);
                fill(tile, is_backward(num_wide + i), NARROW_BYTES, [&](uint32_t b, int32_t k, uint32_t full) {
                    load_tail(b, b_tail_map, tile.n, k, Member{}, full);
                });
            }
        }
    }

private:
    // All slots of one tile, each of `bytes`; `load_columns(target, k, barrier)` loads its part of b.
    template <class LoadColumns>
    DEVICE void fill(const Tile& tile, bool backward, uint32_t bytes, LoadColumns load_columns) {
        const Member member = batch.a_member(batch.member(tile.matrix()));
        for (int32_t k_tile = 0; k_tile < k_tiles.count; ++k_tile) {
            const int32_t k = (k_tiles.first + (backward ? k_tiles.count - 1 - k_tile : k_tile)) * Config::TILE_K;
            const uint32_t full = ring.full_at(state.index);
            wait(ring.empty_at(state.index), state.parity);
            if (k_tile == 0) ring.put_tile(state.index, tile);
            ptx::mbarrier_arrive_expect_tx(full, bytes);
            load_tile<Config::A_K_MAJOR, Config::TILE_M, Config::CLUSTER_N>(ring.a + state.index * A_BYTES, a_map, tile.m, k,
                                                                            member, full, cta_rank);
            load_columns(ring.b + state.index * B_BYTES, k, full);
            state.advance();
        }
    }

    const Ring& ring;
    const TensorMap& a_map;
    const TensorMap& b_map;
    const BTailMap& b_tail_map;
    const Batch& batch;
    const KTiles k_tiles;
    const uint32_t cta_rank;
    PipelineState<Config::STAGES> state{0, 1};
};

// One consumer warp gives a slot back: lane r to the CTA of rank r. Its wgmmas on the slot are complete.
DEVICE void release(const Ring& ring, uint32_t slot, uint32_t lane) {
    if constexpr (Config::SHARING == 1) {
        if (lane == 0) ptx::mbarrier_arrive(ring.empty_at(slot));
    } else {
        if (lane < Config::SHARING) ptx::mbarrier_arrive_cluster(ptx::mapa_shared_cluster(ring.empty_at(slot), lane));
    }
}

using Accumulators = Fragment[Config::WGMMAS_M];

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

// What a consumer multiplies from: its rows of a, and b, in every slot.
struct Operands {
    uint64_t a;  // descriptor of its first row block in slot 0
    uint64_t b;

    DEVICE Operands(const Ring& ring, uint32_t a_offset)
        : a(descriptor<Config::A_K_MAJOR>(ring.a + a_offset)), b(descriptor<Config::B_K_MAJOR>(ring.b)) {}

private:
    template <bool K_MAJOR>
    DEVICE static uint64_t descriptor(uint32_t address) {
        return K_MAJOR ? k_major_descriptor(address) : mn_major_descriptor(address, PANEL_BYTES);
    }
};

// Issues the wgmmas of row blocks FIRST .. FIRST + COUNT - 1 on a slot, to be committed; N wide, in the first accumulators
// of rC. `STARTS`: of a tile, so there is nothing to add to.
template <int N, int FIRST, int COUNT, bool STARTS>
DEVICE void issue(const Operands& operands, uint32_t slot, Accumulators& rC) {
    constexpr uint32_t A_STEP = Config::A_K_MAJOR ? K_MAJOR_STEP : MN_MAJOR_STEP;
    constexpr uint32_t B_STEP = Config::B_K_MAJOR ? K_MAJOR_STEP : MN_MAJOR_STEP;
    constexpr uint32_t A_BLOCK = BLOCK_BYTES / 16;                // the next 64 rows, in the descriptor's units
    const uint64_t a = moved(operands.a, slot * (A_BYTES / 16));  // (WGMMAS_M x 64, TILE_K)
    const uint64_t b = moved(operands.b, slot * (B_BYTES / 16));  // (N, TILE_K)
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
#pragma unroll
        for (int block = FIRST; block < FIRST + COUNT; ++block) {  // (64, N) += (64, 16) x (16, N)
            const uint64_t a_step = moved(a, block * A_BLOCK + step * A_STEP);
            const uint64_t b_step = moved(b, step * B_STEP);
            if (STARTS && step == 0) {
                ptx::wgmma_mma_async_first<N>(rC[block], a_step, b_step);
            } else {
                ptx::wgmma_mma_async<N>(rC[block], a_step, b_step, true);
            }
        }
    }
}

// One consumer warpgroup: tile after tile, multiply and store.
class Consumer {
public:
    DEVICE Consumer(const Ring& the_ring, Shared& shared, const Out& the_out, const OutTail& the_out_tail,
                    const Batch& the_batch, const Partials& partials, int32_t k_tiles, uint32_t consumer_index,
                    uint32_t cta_rank)
        : ring(the_ring),
          out(the_out),
          out_tail(the_out_tail),
          batch(the_batch),
          num_k_tiles(k_tiles),
          index(consumer_index),
          warp(ptx::shfl_sync_idx(threadIdx.x % WARPGROUP_THREADS / WARP_THREADS, 0)),
          lane(threadIdx.x % WARP_THREADS),
          slots(shared_address(shared.store[consumer_index * WARPGROUP_WARPS + warp])),
          operands(the_ring, first_block() * BLOCK_BYTES),
          reduction(partials, consumer_index * WARPGROUP_WARPS + warp, lane, cta_rank) {}

    DEVICE void run(uint32_t num_wide, uint32_t num_narrow) {
        if constexpr (Config::STAGGERED) {
            run_staggered(out_tail, num_wide, num_narrow);
        } else if constexpr (Config::PINGPONG) {
            run_in_turns(num_wide);
        } else {
            for (uint32_t i = 0; i < num_wide; ++i) compute(out, [] {});
            if constexpr (Config::TAIL_N > 0) {
                for (uint32_t i = 0; i < num_narrow; ++i) compute(out_tail, [] {});
            }
        }
        if constexpr (Config::SPLIT_K > 1) reduction.finish();
        finish_stores(lane);
    }

private:
    // Row blocks of a tile before this consumer's: with PINGPONG it has them all.
    DEVICE uint32_t first_block() const { return Config::PINGPONG ? 0 : index * Config::WGMMAS_M; }

    // The first of the 16 rows that this warp holds of a row block of its own.
    DEVICE int32_t row_of(const Tile& tile, int block) const {
        return tile.m + (first_block() + block) * 64 + warp * STORE_ROWS;
    }

    // Rows row .. row + 15 of a tile that begins at `column`; none of them may lie inside out. Where the matrix lies is found
    // out here: before, the accumulators leave no registers for it.
    template <class Values, class OutOfShape>
    DEVICE void store(const Values& values, const OutOfShape& to, uint32_t matrix, int32_t row, int32_t column) {
        if (row < to.m) store_rows(slots, values, matrix_of(to, batch, matrix), row, column, lane);  // (16, TILE_N)
    }

    // Waits for the slot at hand.
    DEVICE void await_slot() {
        wait(ring.full_at(state.index), state.parity);
        ptx::wgmma_fence();
    }

    // The tile that the slot at hand begins: all lanes have read it before one of them releases the slot.
    DEVICE Tile begun_tile() {
        const Tile tile = ring.tile_at(state.index);
        __syncwarp();
        return tile;
    }

    // A whole tile, then its stores: one after the other. `all_seen` is called once its last full slot has been waited for.
    template <class OutOfShape, class AllSeen>
    DEVICE void compute(const OutOfShape& to, AllSeen all_seen) {
        Accumulators rC;  // (WGMMAS_M x 64, N) fp32 over the warpgroup
        constexpr int N = OutOfShape::Shape::TILE_COLUMNS;
        await_slot();
        issue<N, 0, Config::WGMMAS_M, true>(operands, state.index, rC);
        ptx::wgmma_commit_group();
        const Tile tile = begun_tile();
        uint32_t previous = state.index;
        state.advance();
        for (int32_t k_tile = 1; k_tile < num_k_tiles; ++k_tile) {
            await_slot();
            issue<N, 0, Config::WGMMAS_M, false>(operands, state.index, rC);
            ptx::wgmma_commit_group();
            ptx::wgmma_wait_group<1>();
            release(ring, previous, lane);
            previous = state.index;
            state.advance();
        }
        all_seen();
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int block = 0; block < Config::WGMMAS_M; ++block) keep_below(rC[block]);
        release(ring, previous, lane);
        if constexpr (Config::SPLIT_K == 1) {
            store_blocks(rC, to, tile, tile.n);
        } else {
            reduction.send(rC);
            if (reduction.receives()) {
                Reduction::Sums sums[Config::WGMMAS_M];  // (WGMMAS_M x 64, STORED_N) fp32 over the warpgroup
                reduction.receive(sums);
                store_blocks(sums, to, tile, tile.n + reduction.first_column());
            }
            reduction.advance();
        }
    }

    // All row blocks of a tile, columns from `column` on.
    template <class Blocks, class OutOfShape>
    DEVICE void store_blocks(const Blocks& blocks, const OutOfShape& to, const Tile& tile, int32_t column) {
#pragma unroll
        for (int block = 0; block < Config::WGMMAS_M; ++block) {
            store(blocks[block], to, tile.matrix(), row_of(tile, block), column);
        }
    }

    // PINGPONG: every second tile.
    DEVICE void run_in_turns(uint32_t num_tiles) {
        for (uint32_t i = 0; i < num_tiles; ++i) {
            if (i % Config::CONSUMERS != index) {
                state.skip(num_k_tiles);
                continue;
            }
            if (i > 0) await_turn(index);
            compute(out, [&] {
                if (i + 1 < num_tiles) pass_turn(index);
            });
        }
    }

    // STAGGERED: a tile of two row blocks, with the stores hidden. Block 0 runs ahead of block 1 by one slot at both ends:
    // the block 1 of the tile before is stored while the block 0 of this one is multiplied, and block 0 while block 1 is.
    //
    //   tensor cores | block 0, first slot | block 1, first | both, slot after slot | block 0, last | block 1, last |
    //   warps        | store `kept`        |                |                       |               | store block 0 |
    //
    // Block 1 is kept, rounded: registers that wgmma has written may not be read while another wgmma is in flight across
    // a loop (ptxas would wait for all, C7517). At least two slots. What was kept goes to `from`, this tile to `to`.
    template <class From, class To>
    DEVICE void compute_staggered(Kept& kept, const From& from, const To& to) {
        constexpr int N = To::Shape::COLUMNS;
        Accumulators rC;  // (2 x 64, N) fp32 over the warpgroup
        await_slot();
        issue<N, 0, 1, true>(operands, state.index, rC);
        ptx::wgmma_commit_group();
        const Tile tile = begun_tile();
        store(kept.values, from, kept.matrix, kept.m, kept.n);
        ptx::wgmma_fence();
        issue<N, 1, 1, true>(operands, state.index, rC);
        ptx::wgmma_commit_group();
        uint32_t previous = state.index;
        state.advance();
        for (int32_t k_tile = 2; k_tile < num_k_tiles; ++k_tile) {
            await_slot();
            issue<N, 0, 2, false>(operands, state.index, rC);
            ptx::wgmma_commit_group();
            ptx::wgmma_wait_group<1>();
            release(ring, previous, lane);
            previous = state.index;
            state.advance();
        }
        await_slot();
        issue<N, 0, 1, false>(operands, state.index, rC);
        ptx::wgmma_commit_group();
        issue<N, 1, 1, false>(operands, state.index, rC);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<1>();
        keep_below(rC[0]);
        release(ring, previous, lane);
        store(rC[0], to, tile.matrix(), row_of(tile, 0), tile.n);
        ptx::wgmma_wait_group<0>();
        keep_below(rC[1]);
        release(ring, state.index, lane);
        state.advance();
        keep<N>(kept, rC[1]);
        kept.m = row_of(tile, 1);
        kept.n = tile.n;
        kept.matrix = tile.matrix();
    }

    // All tiles. A template, so that it need not be there for an fp32 out.
    template <class Tail>
    DEVICE void run_staggered(const Tail& tail, uint32_t num_wide, uint32_t num_narrow) {
        Kept kept;
        kept.m = out.m;  // past the end: nothing is kept yet
        kept.n = 0;
        kept.matrix = 0;
        for (uint32_t i = 0; i < num_wide; ++i) compute_staggered(kept, out, out);
        if constexpr (Config::TAIL_N > 0) {
            if (num_narrow > 0) {
                compute_staggered(kept, out, tail);
                for (uint32_t i = 1; i < num_narrow; ++i) compute_staggered(kept, tail, tail);
                store(kept.values, tail, kept.matrix, kept.m, kept.n);
                return;
            }
        }
        store(kept.values, out, kept.matrix, kept.m, kept.n);
    }

    const Ring& ring;
    const Out& out;
    const OutTail& out_tail;
    const Batch& batch;
    const int32_t num_k_tiles;
    const uint32_t index;  // 0 .. CONSUMERS-1
    const uint32_t warp;   // of the warpgroup
    const uint32_t lane;
    const uint32_t slots;  // this warp's store slots
    const Operands operands;
    Reduction reduction;
    PipelineState<Config::STAGES> state{0, 0};
};

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    hopper_gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                const __grid_constant__ BTailMap b_tail_map, const __grid_constant__ OutMap out_map,
                const __grid_constant__ OutTailMap out_tail_map, void* out_base, int64_t out_pitch, int32_t m, int32_t n, int32_t k,
                int32_t group_m, int32_t square_m, int32_t square_n, int32_t num_wide,
                const __grid_constant__ Batch batch) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const Ring ring(shared);
    const uint32_t cta_rank = Config::CLUSTER == 1 ? 0 : ptx::cluster_ctarank();

    const Partials& partials = *reinterpret_cast<const Partials*>(dynamic_smem + sizeof(Shared));  // with SPLIT_K > 1

    // Maps come first, since memory is far; the barriers meanwhile, by another warp.
    if (threadIdx.x == 0) {
        ptx::prefetch_tensormap(a_map);
        ptx::prefetch_tensormap(b_map);
        prefetch_map(out_map);
    }
    if (threadIdx.x == WARP_THREADS) {
        for (uint32_t slot = 0; slot < Config::STAGES; ++slot) {
            ptx::mbarrier_init(ring.full_at(slot), Config::FULL_ARRIVALS);
            ptx::mbarrier_init(ring.empty_at(slot), Config::EMPTY_ARRIVALS);
        }
        if constexpr (Config::SPLIT_K > 1) init_partials(partials);
        ptx::fence_mbarrier_init_release_cluster();
    }
    if constexpr (Config::DEPENDENT_LAUNCH) ptx::griddepcontrol_launch_dependents();
    if constexpr (Config::CLUSTER == 1) {
        __syncthreads();
    } else {  // the peers' barriers are initialised, as the fence has said to all, and the peers have started
        ptx::barrier_cluster_arrive_relaxed();
        ptx::barrier_cluster_wait_acquire();
    }

    if constexpr (Config::DEPENDENT_LAUNCH) ptx::griddepcontrol_wait();  // no operand and no out is touched before

    const TileSchedule schedule(m, n, Walk{group_m, square_m, square_n, num_wide}, Config::SPLIT_K > 1 ? 0 : cta_rank);
    const KTiles k_tiles = k_tiles_of((k - 1) / Config::TILE_K + 1, cta_rank);
    // From lane 0: so ptxas knows that all lanes agree, and keeps what follows from it in uniform registers.
    const uint32_t warpgroup = ptx::shfl_sync_idx(threadIdx.x / WARPGROUP_THREADS, 0);
    if (warpgroup == 0) {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) Producer(ring, a_map, b_map, b_tail_map, batch, k_tiles, cta_rank).run(schedule);
        __syncwarp();
    } else {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
        const Out out{out_map, out_base, out_pitch, m, n, Member{}};
        const OutTail out_tail{out_tail_map, out_base, out_pitch, m, n, Member{}};
        Consumer(ring, shared, out, out_tail, batch, partials, k_tiles.count, warpgroup - 1, cta_rank)
            .run(schedule.num_wide(), schedule.num_narrow());
    }
    if constexpr (Config::SHARING > 1) {  // every arrival on the peer's barriers has been made
        ptx::barrier_cluster_arrive_release();
        ptx::barrier_cluster_wait_acquire();
    }
}
