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
// Roles. Warpgroup 0 is the producer: one lane of its first warp issues every TMA load; the rest idle. Warpgroups
// 1 .. CONSUMERS multiply and store. With two consumers setmaxnreg moves the producer's registers to them. The producer
// alone walks the schedule, off the critical path; consumers know how many tiles the CTA has, and read where a tile
// lies from shared memory.
//
// Pipelines: a ring of STAGES slots for wide tiles and one of TAIL_STAGES for narrow ones; a slot is a tile of a and
// one of b.
//
//   barrier  filled by                completes after                          read by
//   full     TMA (async proxy); with  1 arrival (own producer, expect_tx) and  every warp that multiplies the slot: of
//            a tile's first slot the  all bytes of the slot                    all consumers; PINGPONG: of the tile's
//            producer: tile[slot]
//   empty    consumers' wgmmas have   one arrival of each of those warps, of   the producer of the CTA
//            read the slot, and all   each CTA of the cluster
//            lanes tile[slot]
//   stored   nothing: TMA stores of   one arrival of each consumer warp        the producer, before it fills a narrow
//            all wide tiles have                                               slot where store slots of wide tiles
//            read their store slots                                            were, and every warp before it writes a
//                                                                              narrow tile
//
// From wide to narrow. Before a narrow slot is filled for the first time, every wide slot that lies there has been
// released for the last time; slot by slot, so the first narrow ones fly while the last wide ones are read.
//
// Cluster of 2. Two CTAs below each other (CLUSTER_M == 2) need the same tile of b, two side by side (CLUSTER_N == 2)
// the same tile of a: each loads one half of it and multicasts it to both. So a slot may be refilled only when the
// consumers of both CTAs have released it: a consumer warp arrives on its own empty barrier and, by mapa, on the
// peer's. A half may land before the own producer has announced its bytes:
// the phase cannot complete before that announcement, since it is also the only arrival. No CTA leaves before every
// arrival on its barriers has been made: all threads end with a cluster barrier.
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
// Dependent launch. Barriers and maps are made ready while the launch before still runs; then all threads wait for it.
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
constexpr int NARROW_BYTES = (Config::TILE_M + Config::TAIL_N) * SWIZZLE_BYTES;   // of a slot of a narrow tile
constexpr int PANEL_COLUMNS = SWIZZLE_BYTES / 2;                            // of m or n, where these are contiguous
constexpr int PANEL_BYTES = Config::TILE_K * SWIZZLE_BYTES;                 // (TILE_K, PANEL_COLUMNS)
constexpr int BLOCK_BYTES = 64 * SWIZZLE_BYTES;                             // the rows of one wgmma: (64, TILE_K) of a
static_assert(Config::A_K_MAJOR || BLOCK_BYTES == PANEL_BYTES, "64 rows of a: as many bytes whichever is contiguous");
// Barriers of the CTA beside __syncthreads: PINGPONG's turns.
enum NamedBarrier { TURN_OF_0 = 1, TURN_OF_1 = 2 };
constexpr int TURN_THREADS = 2 * WARPGROUP_THREADS;  // one consumer waits, the other arrives
constexpr uint16_t CLUSTER_MASK = (1 << Config::SHARING) - 1;
constexpr uint32_t CONSUMER_WARPS = Config::CONSUMERS * WARPGROUP_WARPS;

constexpr int WIDE_RING_BYTES = Config::STAGES * Config::STAGE_BYTES;
constexpr int NARROW_RING_BYTES = Config::TAIL_STAGES * NARROW_BYTES;
constexpr int WIDE_ROOM = WIDE_RING_BYTES + CONSUMER_WARPS * Config::STORE_WARP_BYTES;
constexpr int NARROW_ROOM = NARROW_RING_BYTES + CONSUMER_WARPS * Config::TAIL_STORE_WARP_BYTES;
constexpr int SLOTS = Config::STAGES + Config::TAIL_STAGES;  // of both rings

struct Shared {
    alignas(ATOM_BYTES) uint8_t operands[WIDE_ROOM > NARROW_ROOM ? WIDE_ROOM : NARROW_ROOM];  // and store slots
    alignas(8) uint64_t full[SLOTS];
    alignas(8) uint64_t empty[SLOTS];
    alignas(sizeof(Tile)) Tile tile[SLOTS];  // that the slot belongs to; written with the first slot of a tile
    alignas(8) uint64_t stored;
};
static_assert(sizeof(Shared) + Config::PARTIAL_BYTES == Config::SMEM_BYTES, "config.smem_bytes and Shared must agree");
static_assert(A_BYTES + B_BYTES == Config::STAGE_BYTES, "config.stage_bytes and Shared must agree");
static_assert(NARROW_BYTES <= WIDE_RING_BYTES, "the first narrow tile begins before the last wide one is stored");

// What every role knows of a ring: SLOTS slots of SLOT_BYTES, a in the first A_BYTES of each.
template <int SLOTS_, int SLOT_BYTES_>
struct RingOf {
    static constexpr int SLOTS = SLOTS_;
    static constexpr int SLOT_BYTES = SLOT_BYTES_;
    uint32_t operands;
    uint32_t full;
    uint32_t empty;
    uint32_t tile;

    // The ring whose barriers and tiles are those from `first` on.
    DEVICE RingOf(const Shared& shared, int first)
        : operands(shared_address(shared.operands)),
          full(shared_address(shared.full) + first * 8),
          empty(shared_address(shared.empty) + first * 8),
          tile(shared_address(shared.tile) + first * sizeof(Tile)) {}

    DEVICE uint32_t a_at(uint32_t slot) const { return operands + slot * SLOT_BYTES; }
    DEVICE uint32_t b_at(uint32_t slot) const { return operands + A_BYTES + slot * SLOT_BYTES; }
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
using WideRing = RingOf<Config::STAGES, Config::STAGE_BYTES>;
using NarrowRing = RingOf<(Config::TAIL_STAGES > 0 ? Config::TAIL_STAGES : 1), NARROW_BYTES>;

// Loads this CTA's share of an operand's tile: EXTENT of its rows (a) or columns (b) from `first` on, times TILE_K.
// With SHARES CTAs each loads one of as many parts for all of them: rows where k is contiguous, else k rows of each
// panel.
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
                load_box_multicast(panel_target + rank * SHARE_K * SWIZZLE_BYTES, map, column, k + rank * SHARE_K,
                                   member, barrier, CLUSTER_MASK);  // (SHARE_K, PANEL_COLUMNS)
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
    DEVICE Producer(const Shared& shared, const TensorMap& the_a_map, const TensorMap& the_b_map,
                    const BTailMap& the_b_tail_map, const Batch& the_batch, const KTiles& the_k_tiles,
                    uint32_t the_rank)
        : wide{WideRing(shared, 0)},
          narrow{NarrowRing(shared, Config::STAGES)},
          stored(shared_address(&shared.stored)),
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
            fill(wide, tile, is_backward(i), [&](uint32_t b, int32_t k, uint32_t full) {
                load_tile<Config::B_K_MAJOR, Config::TILE_N, Config::CLUSTER_M>(b, b_map, tile.n, k, member, full,
                                                                                cta_rank);
            });
        }
        if constexpr (Config::TAIL_N > 0) {
            const uint32_t num_narrow = schedule.num_narrow();
            for (uint32_t i = 0; i < num_narrow; ++i) {
                const Tile tile = schedule.narrow(i);
                fill(narrow, tile, is_backward(num_wide + i), [&](uint32_t b, int32_t k, uint32_t full) {
                    load_tail(b, b_tail_map, tile.n, k, Member{}, full);
                });
            }
        }
    }

private:
    // A ring, and the slot that is filled next.
    template <class Ring>
    struct Filling {
        const Ring ring;
        PipelineState<Ring::SLOTS> state{0, 1};
    };

    // All slots of one tile; `load_columns(target, k, barrier)` loads its part of b.
    template <class Ring, class LoadColumns>
    DEVICE void fill(Filling<Ring>& filling, const Tile& tile, bool backward, LoadColumns load_columns) {
        const Ring& ring = filling.ring;
        const Member member = batch.a_member(batch.member(tile.matrix()));
        for (int32_t k_tile = 0; k_tile < k_tiles.count; ++k_tile) {
            const int32_t k = (k_tiles.first + (backward ? k_tiles.count - 1 - k_tile : k_tile)) * Config::TILE_K;
            const uint32_t slot = filling.state.index;
            const uint32_t full = ring.full_at(slot);
            wait(ring.empty_at(slot), filling.state.parity);
            await_room(filling);
            if (k_tile == 0) ring.put_tile(slot, tile);
            ptx::mbarrier_arrive_expect_tx(full, Ring::SLOT_BYTES);
            load_tile<Config::A_K_MAJOR, Config::TILE_M, Config::CLUSTER_N>(ring.a_at(slot), a_map, tile.m, k, member,
                                                                            full, cta_rank);
            load_columns(ring.b_at(slot), k, full);
            filling.state.advance();
        }
    }

    // Waits until nothing of wide tiles is in the narrow slot at hand any more: before it is filled for the first time,
    // and again every other round, when it does not wait.
    DEVICE void await_room(const Filling<NarrowRing>& filling) const {
        if (filling.state.parity == 0) return;
        const uint32_t begin = filling.state.index * NarrowRing::SLOT_BYTES;
        const uint32_t end = begin + NarrowRing::SLOT_BYTES;
        for (uint32_t slot = begin / WideRing::SLOT_BYTES;
             slot < WideRing::SLOTS && slot * WideRing::SLOT_BYTES < end; ++slot) {
            // the phase that the next filling of the slot would have waited for
            wait(wide.ring.empty_at(slot), wide.state.parity ^ (slot < wide.state.index ? 1 : 0));
        }
        if (end > WIDE_RING_BYTES) wait(stored, 0);
    }
    DEVICE void await_room(const Filling<WideRing>&) const {}

    Filling<WideRing> wide;
    Filling<NarrowRing> narrow;
    const uint32_t stored;  // barrier
    const TensorMap& a_map;
    const TensorMap& b_map;
    const BTailMap& b_tail_map;
    const Batch& batch;
    const KTiles k_tiles;
    const uint32_t cta_rank;
};

// One consumer warp gives a slot back: lane r to the CTA of rank r. Its wgmmas on the slot are complete.
template <class Ring>
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

// What a consumer multiplies from: a ring, its rows of a and b in every slot, and the slot that is read next.
template <class Ring_>
struct Source {
    using Ring = Ring_;
    const Ring ring;
    const uint64_t a;  // descriptor of its first row block in slot 0
    const uint64_t b;
    PipelineState<Ring::SLOTS> state{0, 0};

    DEVICE Source(const Ring& the_ring, uint32_t a_offset)
        : ring(the_ring),
          a(descriptor<Config::A_K_MAJOR>(the_ring.a_at(0) + a_offset)),
          b(descriptor<Config::B_K_MAJOR>(the_ring.b_at(0))) {}

    // Waits for the slot at hand.
    DEVICE void await_slot() const {
        wait(ring.full_at(state.index), state.parity);
        ptx::wgmma_fence();
    }

    // The tile that the slot at hand begins: all lanes have read it before one of them releases the slot.
    DEVICE Tile begun_tile() const {
        const Tile tile = ring.tile_at(state.index);
        __syncwarp();
        return tile;
    }

private:
    template <bool K_MAJOR>
    DEVICE static uint64_t descriptor(uint32_t address) {
        return K_MAJOR ? k_major_descriptor(address) : mn_major_descriptor(address, PANEL_BYTES);
    }
};

// Issues the wgmmas of row blocks FIRST .. FIRST + COUNT - 1 on the slot at hand, to be committed; N wide, in the first
// accumulators of rC. `STARTS`: of a tile, so there is nothing to add to.
template <int N, int FIRST, int COUNT, bool STARTS, class From>
DEVICE void issue(const From& source, Accumulators& rC) {
    constexpr uint32_t A_STEP = Config::A_K_MAJOR ? K_MAJOR_STEP : MN_MAJOR_STEP;
    constexpr uint32_t B_STEP = Config::B_K_MAJOR ? K_MAJOR_STEP : MN_MAJOR_STEP;
    constexpr uint32_t A_BLOCK = BLOCK_BYTES / 16;                 // the next 64 rows, in the descriptor's units
    const uint32_t offset = source.state.index * (From::Ring::SLOT_BYTES / 16);
    const uint64_t a = moved(source.a, offset);  // (WGMMAS_M x 64, TILE_K)
    const uint64_t b = moved(source.b, offset);  // (N, TILE_K)
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
    DEVICE Consumer(Shared& the_shared, const Out& the_out, const OutTail& the_out_tail, const Batch& the_batch,
                    const Partials& partials, int32_t k_tiles, uint32_t consumer_index, uint32_t cta_rank)
        : shared(the_shared),
          out(the_out),
          out_tail(the_out_tail),
          batch(the_batch),
          num_k_tiles(k_tiles),
          index(consumer_index),
          warp(ptx::shfl_sync_idx(threadIdx.x % WARPGROUP_THREADS / WARP_THREADS, 0)),
          lane(threadIdx.x % WARP_THREADS),
          reduction(partials, consumer_index * WARPGROUP_WARPS + warp, lane, cta_rank) {}

    DEVICE void run(uint32_t num_wide, uint32_t num_narrow) {
        Source<WideRing> wide(WideRing(shared, 0), first_block() * BLOCK_BYTES);
        if constexpr (Config::STAGGERED) {
            run_staggered(wide, out_tail, num_wide, num_narrow);
        } else if constexpr (Config::PINGPONG) {
            run_in_turns(wide, num_wide);
        } else {
            for (uint32_t i = 0; i < num_wide; ++i) compute(wide, out, [] {});
            if constexpr (Config::TAIL_N > 0) {
                if (num_narrow > 0) leave_store_slots();
                Source<NarrowRing> narrow(NarrowRing(shared, Config::STAGES), first_block() * BLOCK_BYTES);
                for (uint32_t i = 0; i < num_narrow; ++i) compute(narrow, out_tail, [] {});
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

    // Rows row .. row + 15 of a tile that begins at `column`; none of them may lie inside out. Where the matrix lies is
    // found out here: before, the accumulators leave no registers for it.
    template <class Values, class OutOfShape>
    DEVICE void store(const Values& values, const OutOfShape& to, uint32_t matrix, int32_t row, int32_t column) {
        const uint32_t slots = store_slots<typename OutOfShape::Shape>();
        if (row < to.m) store_rows(slots, values, matrix_of(to, batch, matrix), row, column, lane);  // (16, TILE_N)
    }

    // This warp's store slots: for a wide tile, and for a narrow one, once the stores of all wide ones have left them.
    template <class Shape>
    DEVICE uint32_t store_slots() const {
        if constexpr (Config::TAIL_N > 0 && Shape::COLUMNS == Config::TAIL_N) {
            wait(shared_address(&shared.stored), 0);
            return shared_address(shared.operands) + NARROW_RING_BYTES + warp_of_cta() * Config::TAIL_STORE_WARP_BYTES;
        } else {
            return shared_address(shared.operands) + WIDE_RING_BYTES + warp_of_cta() * Config::STORE_WARP_BYTES;
        }
    }
    DEVICE uint32_t warp_of_cta() const { return index * WARPGROUP_WARPS + warp; }  // of the consumers'

    // This warp stores no more wide tiles: its slots have been read, and its own accesses come before the asynchronous
    // ones of the loads that follow there.
    DEVICE void leave_store_slots() const {
        ptx::fence_proxy_async_shared_cta();
        finish_stores(lane);
        if (lane == 0) ptx::mbarrier_arrive(shared_address(&shared.stored));
    }

    // A whole tile, then its stores: one after the other. `all_seen` is called after the wait for its last full slot.
    template <class From, class OutOfShape, class AllSeen>
    DEVICE void compute(From& source, const OutOfShape& to, AllSeen all_seen) {
        Accumulators rC;  // (WGMMAS_M x 64, N) fp32 over the warpgroup
        constexpr int N = OutOfShape::Shape::TILE_COLUMNS;
        source.await_slot();
        issue<N, 0, Config::WGMMAS_M, true>(source, rC);
        ptx::wgmma_commit_group();
        const Tile tile = source.begun_tile();
        uint32_t previous = source.state.index;
        source.state.advance();
        for (int32_t k_tile = 1; k_tile < num_k_tiles; ++k_tile) {
            source.await_slot();
            issue<N, 0, Config::WGMMAS_M, false>(source, rC);
            ptx::wgmma_commit_group();
            ptx::wgmma_wait_group<1>();
            release(source.ring, previous, lane);
            previous = source.state.index;
            source.state.advance();
        }
        all_seen();
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int block = 0; block < Config::WGMMAS_M; ++block) keep_below(rC[block]);
        release(source.ring, previous, lane);
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
    DEVICE void run_in_turns(Source<WideRing>& source, uint32_t num_tiles) {
        for (uint32_t i = 0; i < num_tiles; ++i) {
            if (i % Config::CONSUMERS != index) {
                source.state.skip(num_k_tiles);
                continue;
            }
            if (i > 0) await_turn(index);
            compute(source, out, [&] {
                if (i + 1 < num_tiles) pass_turn(index);
            });
        }
    }

    // STAGGERED: a tile of two row blocks, with the stores hidden. Block 0 runs ahead of block 1 by one slot at both
    // ends: the block 1 of the tile before is stored while the block 0 of this one is multiplied, and block 0 while
    // block 1 is.
    //
    //   tensor cores | block 0, first slot | block 1, first | both, slot after slot | block 0, last | block 1, last |
    //   warps        | store `kept`        |                |                       |               | store block 0 |
    //
    // Block 1 is kept, rounded: registers that wgmma has written may not be read while another wgmma is in flight
    // across a loop (ptxas would wait for all, C7517). At least two slots. What was kept goes to `from`, this tile to
    // `to`; `begun` is called once both blocks multiply.
    template <class Slots, class From, class To, class Begun>
    DEVICE void compute_staggered(Slots& source, Kept& kept, const From& from, const To& to, Begun begun) {
        constexpr int N = To::Shape::COLUMNS;
        Accumulators rC;  // (2 x 64, N) fp32 over the warpgroup
        source.await_slot();
        issue<N, 0, 1, true>(source, rC);
        ptx::wgmma_commit_group();
        const Tile tile = source.begun_tile();
        store(kept.values, from, kept.matrix, kept.m, kept.n);
        ptx::wgmma_fence();
        issue<N, 1, 1, true>(source, rC);
        ptx::wgmma_commit_group();
        begun();
        uint32_t previous = source.state.index;
        source.state.advance();
        for (int32_t k_tile = 2; k_tile < num_k_tiles; ++k_tile) {
            source.await_slot();
            issue<N, 0, 2, false>(source, rC);
            ptx::wgmma_commit_group();
            ptx::wgmma_wait_group<1>();
            release(source.ring, previous, lane);
            previous = source.state.index;
            source.state.advance();
        }
        source.await_slot();
        issue<N, 0, 1, false>(source, rC);
        ptx::wgmma_commit_group();
        issue<N, 1, 1, false>(source, rC);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<1>();
        keep_below(rC[0]);
        release(source.ring, previous, lane);
        store(rC[0], to, tile.matrix(), row_of(tile, 0), tile.n);
        ptx::wgmma_wait_group<0>();
        keep_below(rC[1]);
        release(source.ring, source.state.index, lane);
        source.state.advance();
        keep<N>(kept, rC[1]);
        kept.m = row_of(tile, 1);
        kept.n = tile.n;
        kept.matrix = tile.matrix();
    }

    // All tiles. A template, so that it need not be there for an fp32 out.
    template <class Tail>
    DEVICE void run_staggered(Source<WideRing>& wide, const Tail& tail, uint32_t num_wide, uint32_t num_narrow) {
        Kept kept;
        kept.m = out.m;  // past the end: nothing is kept yet
        kept.n = 0;
        kept.matrix = 0;
        for (uint32_t i = 0; i < num_wide; ++i) compute_staggered(wide, kept, out, out, [] {});
        if constexpr (Config::TAIL_N > 0) {
            if (num_narrow > 0) {
                Source<NarrowRing> narrow(NarrowRing(shared, Config::STAGES), first_block() * BLOCK_BYTES);
                compute_staggered(narrow, kept, out, tail, [this] { leave_store_slots(); });
                for (uint32_t i = 1; i < num_narrow; ++i) compute_staggered(narrow, kept, tail, tail, [] {});
                store(kept.values, tail, kept.matrix, kept.m, kept.n);
                return;
            }
        }
        store(kept.values, out, kept.matrix, kept.m, kept.n);
    }

    const Shared& shared;
    const Out& out;
    const OutTail& out_tail;
    const Batch& batch;
    const int32_t num_k_tiles;
    const uint32_t index;  // 0 .. CONSUMERS-1
    const uint32_t warp;   // of the warpgroup
    const uint32_t lane;
    Reduction reduction;
};

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    hopper_gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                const __grid_constant__ BTailMap b_tail_map, const __grid_constant__ OutMap out_map,
                const __grid_constant__ OutTailMap out_tail_map, void* out_base, int64_t out_pitch, int32_t m,
                int32_t n, int32_t k, int32_t group_m, int32_t square_m, int32_t square_n, int32_t num_wide,
                const __grid_constant__ Batch batch) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const uint32_t cta_rank = Config::CLUSTER == 1 ? 0 : ptx::cluster_ctarank();

    const Partials& partials = *reinterpret_cast<const Partials*>(dynamic_smem + sizeof(Shared));  // with SPLIT_K > 1

    // Maps come first, since memory is far; the barriers meanwhile, by another warp.
    if (threadIdx.x == 0) {
        ptx::prefetch_tensormap(a_map);
        ptx::prefetch_tensormap(b_map);
        prefetch_map(out_map);
    }
    if (threadIdx.x == WARP_THREADS) {
        const WideRing ring(shared, 0);  // and, behind its own, the barriers of the narrow one
        for (uint32_t slot = 0; slot < SLOTS; ++slot) {
            ptx::mbarrier_init(ring.full_at(slot), Config::FULL_ARRIVALS);
            ptx::mbarrier_init(ring.empty_at(slot), Config::EMPTY_ARRIVALS);
        }
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

    const TileSchedule schedule(m, n, Walk{group_m, square_m, square_n, num_wide}, Config::SPLIT_K > 1 ? 0 : cta_rank);
    const KTiles k_tiles = k_tiles_of((k - 1) / Config::TILE_K + 1, cta_rank);
    // From lane 0: so ptxas knows that all lanes agree, and keeps what follows from it in uniform registers.
    const uint32_t warpgroup = ptx::shfl_sync_idx(threadIdx.x / WARPGROUP_THREADS, 0);
    if (warpgroup == 0) {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) Producer(shared, a_map, b_map, b_tail_map, batch, k_tiles, cta_rank).run(schedule);
        __syncwarp();
    } else {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
        const Out out{out_map, out_base, out_pitch, m, n, Member{}};
        const OutTail out_tail{out_tail_map, out_base, out_pitch, m, n, Member{}};
        Consumer(shared, out, out_tail, batch, partials, k_tiles.count, warpgroup - 1, cta_rank)
            .run(schedule.num_wide(), schedule.num_narrow());
    }
    if constexpr (Config::SHARING > 1) {  // every arrival on the peer's barriers has been made
        ptx::barrier_cluster_arrive_release();
        ptx::barrier_cluster_wait_acquire();
    }
}
