// The role of the producer: TMA loads of a and b into slot after slot, tile after tile, ahead of the consumers. The
// protocol that it keeps with them stands at the head of hopper_gemm.cu.
#pragma once

#include "batch.cuh"
#include "cluster.cuh"
#include "config.cuh"
#include "epilogue.cuh"
#include "fused.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ring.cuh"
#include "schedule.cuh"
#include "split.cuh"
#include "swizzle.cuh"

// Of the CTAs that need the same tile of an operand, the number of this one, and a bit for the rank of each.
struct Sharers {
    int32_t index;
    uint16_t mask;
};

// Loads this CTA's share of an operand's tile: EXTENT of its rows (a) or columns (b) from `first` on, times TILE_K.
// With SHARES CTAs each loads a part for all of them: where k is contiguous every SHARES-th box of BOX_ROWS rows, which
// need not be as many for each of them; else as many k rows of each panel. ALONE: this CTA loads them all, for itself.
template <bool K_MAJOR, int EXTENT, int SHARES, int BOX_ROWS, bool ALONE>
DEVICE void load_tile(uint32_t target, const TensorMap& map, int32_t first, int32_t k, const Member& member,
                      uint32_t barrier, const Sharers& sharers) {
    const int32_t rank = sharers.index;
    if constexpr (K_MAJOR && SHARES == 1) {
        load_box(target, map, k, first, member, barrier);  // (EXTENT, TILE_K)
    } else if constexpr (K_MAJOR && ALONE) {
#pragma unroll 1
        for (int row = 0; row < EXTENT; row += BOX_ROWS) {
            load_box(target + row * SWIZZLE_BYTES, map, k, first + row, member, barrier);  // (BOX_ROWS, TILE_K)
        }
    } else if constexpr (K_MAJOR) {
        constexpr int BOXES = EXTENT / BOX_ROWS;
#pragma unroll
        for (int round = 0; round < BOXES; round += SHARES) {
            if (BOXES - round < SHARES && rank >= BOXES - round) break;  // no box of the last round is left for it
            const int32_t row = (round + rank) * BOX_ROWS;
            load_box_multicast(target + row * SWIZZLE_BYTES, map, k, first + row, member, barrier,
                               sharers.mask);  // (BOX_ROWS, TILE_K)
        }
    } else {
        constexpr int SHARE_K = Config::TILE_K / SHARES;
#pragma unroll
        for (int panel = 0; panel < EXTENT / PANEL_COLUMNS; ++panel) {
            const uint32_t panel_target = target + panel * PANEL_BYTES;
            const int32_t column = first + panel * PANEL_COLUMNS;
            if constexpr (SHARES == 1) {
                load_box(panel_target, map, column, k, member, barrier);  // (TILE_K, PANEL_COLUMNS)
            } else if constexpr (ALONE) {
#pragma unroll 1
                for (int row = 0; row < Config::TILE_K; row += SHARE_K) {  // (SHARE_K, PANEL_COLUMNS)
                    load_box(panel_target + row * SWIZZLE_BYTES, map, column, k + row, member, barrier);
                }
            } else {
                load_box_multicast(panel_target + rank * SHARE_K * SWIZZLE_BYTES, map, column, k + rank * SHARE_K,
                                   member, barrier, sharers.mask);  // (SHARE_K, PANEL_COLUMNS)
            }
        }
    }
}

// Loads a narrow tile of b, if the kernel has such tiles.
DEVICE void load_tail(uint32_t target, const TensorMap& map, int32_t n, int32_t k, const Member& member,
                      uint32_t barrier) {
    load_tile<Config::B_K_MAJOR, Config::TAIL_N, 1, Config::TAIL_N, true>(target, map, n, k, member, barrier,
                                                                          Sharers{0, 1});
}
DEVICE void load_tail(uint32_t, const NoTensorMap&, int32_t, int32_t, const Member&, uint32_t) {}

// Loads a tile of b from column `n` of the product on, of a folded out half of it through each map (fused.cuh). The
// other map is that of narrow tiles, which a folded out has not.
template <bool ALONE>
DEVICE void load_columns(uint32_t target, const TensorMap& map, const TensorMap& other, int32_t n, int32_t k,
                         const Member& member, uint32_t barrier, const Sharers& sharers) {
    constexpr int COLUMNS = Config::TILE_N / Fused::FOLD;
    const int32_t first = n / Fused::FOLD;
    load_tile<Config::B_K_MAJOR, COLUMNS, Config::CLUSTER_M, Config::B_BOX_ROWS, ALONE>(target, map, first, k, member,
                                                                                       barrier, sharers);
    if constexpr (Fused::FOLD == 2) {
        load_tile<Config::B_K_MAJOR, COLUMNS, Config::CLUSTER_M, Config::B_BOX_ROWS, ALONE>(
            target + COLUMNS * SWIZZLE_BYTES, other, first, k, member, barrier, sharers);
    }
}
template <bool ALONE>
DEVICE void load_columns(uint32_t target, const TensorMap& map, const NoTensorMap&, int32_t n, int32_t k,
                         const Member& member, uint32_t barrier, const Sharers& sharers) {
    load_tile<Config::B_K_MAJOR, Config::TILE_N, Config::CLUSTER_M, Config::B_BOX_ROWS, ALONE>(target, map, n, k,
                                                                                              member, barrier, sharers);
}
using BTailMap = MapIf<(Config::TAIL_N > 0 || Fused::FOLD == 2)>::type;

// Whether a CTA's tile number `i` is walked with k backwards.
DEVICE bool is_backward(uint32_t i) { return Config::K_BACK_AND_FORTH && i % 2 == 1; }

// Slots that are filled before the CTA meets. One is 2 to 5 % of the time of few tiles, four are up to 6 % more of the
// smallest (H200, 2026-11-30: 512^3 3.82, 3.62, 3.41 us): TMA takes 140 cycles for a slot, and meeting 300.
constexpr int32_t EARLY_SLOTS = Config::STAGES < 4 ? Config::STAGES : 4;

// Of a cluster that shares operands fewer: alone, a CTA loads all of a slot itself, which takes TMA as much longer, and
// the L2. With two consumers none: such products have many tiles.
constexpr int32_t STARTED_SLOTS = Config::SHARING == 1 ? EARLY_SLOTS : Config::CONSUMERS == 1 ? 2 : 0;

// One lane, elected: ptxas then knows that no other issues loads beside it, and makes no loop over lanes of each load
// (80 cycles a turn). Fills slot after slot, tile after tile.
class Producer {
    // What loads the part of b of a wide tile.
    template <bool ALONE>
    DEVICE auto columns_of(const Tile& tile, const Member& member) const {
        return [this, n = tile.n, member](uint32_t b, int32_t k, uint32_t full) {
            load_columns<ALONE>(b, b_map, b_tail_map, n, k, member, full, b_sharers);
        };
    }

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
          a_sharers{static_cast<int32_t>(column_in_cluster(the_rank)), mask_of_row(the_rank)},
          b_sharers{static_cast<int32_t>(row_in_cluster(the_rank)), mask_of_column(the_rank)} {}

    // Fills the first slots of all, whose full barriers are ready: before anybody else is. So it writes into no peer's
    // slots; a peer's next share for such a slot waits for this CTA's consumers, as for any.
    DEVICE void start(const Tile& first) {
        const Member member = batch.member(first.matrix());
        const auto columns = columns_of<true>(first, batch.b_member(member));
#pragma unroll 1
        for (; num_started < min(STARTED_SLOTS, k_tiles.count); ++num_started) {
            fill_slot<true>(wide, first, num_started, num_started == 0, batch.a_member(member), columns);
        }
    }

    // Everything else. `first`: wide tile number 0, if it is known by then.
    DEVICE void run(const TileSchedule& schedule, const Tile& first, bool first_is_known) {
        uint32_t i = 0;
        for (; schedule.has_wide(i); ++i) {
            const Tile tile = i == 0 && first_is_known ? first : schedule.wide(i);
            fill(wide, tile, is_backward(i), i == 0 ? num_started : 0,
                 columns_of<false>(tile, batch.b_member(batch.member(tile.matrix()))));
        }
        if constexpr (Config::TAIL_N > 0) {
            for (uint32_t j = 0; schedule.has_narrow(j); ++j) {
                const Tile narrow_tile = schedule.narrow(j);
                fill(narrow, narrow_tile, is_backward(i + j), 0, [&](uint32_t b, int32_t k, uint32_t full) {
                    load_tail(b, b_tail_map, narrow_tile.n, k, Member{}, full);
                });
            }
        }
    }

    // Before the CTA ends, and its shared memory with it: every slot has been given back for the last time, so all
    // arrivals of the peers have been made.
    DEVICE void finish() {
        for (int slot = 0; slot < Config::STAGES; ++slot) {
            wait(wide.ring.empty_at(wide.state.index), wide.state.parity);
            wide.state.advance();
        }
    }

    // Whether start() has been called.
    DEVICE bool has_started() const { return num_started > 0; }

private:
    // A ring, and the slot that is filled next.
    template <class Ring>
    struct Filling {
        const Ring ring;
        PipelineState<Ring::SLOTS> state{0, 1};
    };

    // The slots of one tile from its k tile `from` on; `load_columns(target, k, barrier)` loads its part of b.
    template <class Ring, class LoadColumns>
    DEVICE void fill(Filling<Ring>& filling, const Tile& tile, bool backward, int32_t from, LoadColumns load_columns) {
        const Member member = batch.a_member(batch.member(tile.matrix()));
        for (int32_t k_tile = from; k_tile < k_tiles.count; ++k_tile) {
            wait(filling.ring.empty_at(filling.state.index), filling.state.parity);
            await_room(filling);
            fill_slot<false>(filling, tile, backward ? k_tiles.count - 1 - k_tile : k_tile, k_tile == 0, member,
                             load_columns);
        }
    }

    // The slot at hand, in which there is room: k tile `k_tile` of this CTA's, and with a tile's first whose it is.
    template <bool ALONE, class Ring, class LoadColumns>
    DEVICE void fill_slot(Filling<Ring>& filling, const Tile& tile, int32_t k_tile, bool is_first, const Member& member,
                          LoadColumns load_columns) {
        const Ring& ring = filling.ring;
        const int32_t k = (k_tiles.first + k_tile) * Config::TILE_K;
        const uint32_t slot = filling.state.index;
        const uint32_t full = ring.full_at(slot);
        if (is_first) ring.put_tile(slot, tile);
        ptx::mbarrier_arrive_expect_tx(full, Ring::SLOT_BYTES);
        load_tile<Config::A_K_MAJOR, Config::TILE_M, Config::CLUSTER_N, Config::A_BOX_ROWS, ALONE>(
            ring.a_at(slot), a_map, tile.m, k, member, full, a_sharers);
        load_columns(ring.b_at(slot), k, full);
        filling.state.advance();
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
    int32_t num_started = 0;  // k tiles of the first tile that start() has loaded
    const uint32_t stored;  // barrier
    const TensorMap& a_map;
    const TensorMap& b_map;
    const BTailMap& b_tail_map;
    const Batch& batch;
    const KTiles k_tiles;
    const Sharers a_sharers;  // this CTA's row of the cluster
    const Sharers b_sharers;  // its column
};
