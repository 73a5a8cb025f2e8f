// The role of the producer: TMA loads of a and b into slot after slot, tile after tile, ahead of the consumers. The
// protocol that it keeps with them stands at the head of hopper_gemm.cu.
#pragma once

#include "batch.cuh"
#include "config.cuh"
#include "epilogue.cuh"
#include "fused.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ring.cuh"
#include "schedule.cuh"
#include "split.cuh"
#include "swizzle.cuh"

constexpr uint16_t CLUSTER_MASK = (1 << Config::SHARING) - 1;

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

// Loads a tile of b from column `n` of the product on, of a folded out half of it through each map (fused.cuh). The
// other map is that of narrow tiles, which a folded out has not.
DEVICE void load_columns(uint32_t target, const TensorMap& map, const TensorMap& other, int32_t n, int32_t k,
                         const Member& member, uint32_t barrier, uint32_t cta_rank) {
    if constexpr (Fused::FOLD == 1) {
        load_tile<Config::B_K_MAJOR, Config::TILE_N, Config::CLUSTER_M>(target, map, n, k, member, barrier, cta_rank);
    } else {
        constexpr int HALF = Config::TILE_N / 2;
        load_tile<Config::B_K_MAJOR, HALF, Config::CLUSTER_M>(target, map, n / 2, k, member, barrier, cta_rank);
        load_tile<Config::B_K_MAJOR, HALF, Config::CLUSTER_M>(target + HALF * SWIZZLE_BYTES, other, n / 2, k, member,
                                                              barrier, cta_rank);
    }
}
DEVICE void load_columns(uint32_t target, const TensorMap& map, const NoTensorMap&, int32_t n, int32_t k,
                         const Member& member, uint32_t barrier, uint32_t cta_rank) {
    load_tile<Config::B_K_MAJOR, Config::TILE_N, Config::CLUSTER_M>(target, map, n, k, member, barrier, cta_rank);
}
using BTailMap = MapIf<(Config::TAIL_N > 0 || Fused::FOLD == 2)>::type;

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
                load_columns(b, b_map, b_tail_map, tile.n, k, member, full, cta_rank);
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
