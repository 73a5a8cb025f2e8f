// The role of a consumer: wgmma on slot after slot, then the tile's accumulators on their way to out (epilogue.cuh).
// The protocol that it keeps with the producer, and consumers with each other, stands at the head of hopper_gemm.cu.
#pragma once

#include "batch.cuh"
#include "cluster.cuh"
#include "config.cuh"
#include "epilogue.cuh"
#include "fused.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/misc.cuh"
#include "ptx/wgmma.cuh"
#include "ring.cuh"
#include "schedule.cuh"
#include "split.cuh"
#include "swizzle.cuh"
#include "wgmma_mma_async.cuh"

constexpr int K_STEPS = Config::TILE_K / 16;  // wgmmas along k of one slot
// Barriers of the CTA beside __syncthreads: PINGPONG's turns.
enum NamedBarrier { TURN_OF_0 = 1, TURN_OF_1 = 2 };
constexpr int TURN_THREADS = 2 * WARPGROUP_THREADS;  // one consumer waits, the other arrives

// k tiles before a tile's last in which the L2 is asked for what its epilogue reads (fused_arrays.cuh): 24,000 cycles
// of 256x192, in which DRAM delivers six times what 132 such tiles read of a 16-bit matrix. c of 4096^3 took 0.6 % more
// with 8, as long with 32 (H200, 2026-12-01); at a tile's start operands would drive it out again.
constexpr int FETCH_K_TILES = 16;

// One consumer warp gives a slot back: lane i to peer i, whose rank it holds (cluster.cuh). Its wgmmas on the slot are
// complete.
template <class Ring>
DEVICE void release(const Ring& ring, uint32_t slot, uint32_t lane, uint32_t lane_peer) {
    if constexpr (PEERS == 1) {
        if (lane == 0) ptx::mbarrier_arrive(ring.empty_at(slot));
    } else {
        if (lane < PEERS) ptx::mbarrier_arrive_cluster(ptx::mapa_shared_cluster(ring.empty_at(slot), lane_peer));
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
                    const Fused& the_fused, const Partials& partials, int32_t k_tiles, uint32_t consumer_index,
                    uint32_t cta_rank)
        : shared(the_shared),
          out(the_out),
          out_tail(the_out_tail),
          batch(the_batch),
          fused(the_fused),
          num_k_tiles(k_tiles),
          index(consumer_index),
          warp(ptx::shfl_sync_idx(threadIdx.x % WARPGROUP_THREADS / WARP_THREADS, 0)),
          lane(threadIdx.x % WARP_THREADS),
          lane_peer(peer(lane, cta_rank)),
          reduction(partials, consumer_index * WARPGROUP_WARPS + warp, lane, cta_rank) {}

    DEVICE void run(uint32_t num_wide, uint32_t num_narrow) {
        Source<WideRing> wide(WideRing(shared, 0), first_block() * BLOCK_BYTES);
        if constexpr (Config::STAGGERED) {
            run_staggered(wide, out_tail, num_wide, num_narrow);
        } else if constexpr (Config::PINGPONG) {
            run_in_turns(wide, num_wide);
        } else {
            for (uint32_t i = 0; i < num_wide; ++i) compute(wide, out, i + 1 == num_wide, [] {});
            if constexpr (Config::TAIL_N > 0) {
                if (num_narrow > 0) leave_store_slots();
                Source<NarrowRing> narrow(NarrowRing(shared, Config::STAGES), first_block() * BLOCK_BYTES);
                for (uint32_t i = 0; i < num_narrow; ++i) compute(narrow, out_tail, i + 1 == num_narrow, [] {});
            }
        }
        finish_stores(lane);
    }

private:
    // Row blocks of a tile before this consumer's: with PINGPONG it has them all.
    DEVICE uint32_t first_block() const { return Config::PINGPONG ? 0 : index * Config::WGMMAS_M; }

    // The first of the 16 rows that this warp holds of a row block of its own.
    DEVICE int32_t row_of(const Tile& tile, int block) const {
        return tile.m + (first_block() + block) * 64 + warp * STORE_ROWS;
    }

    // Rows row .. row + 15 of out, of a tile that begins at `column` of it; none of them may lie inside. Where the
    // matrix lies is found out here: before, the accumulators leave no registers for it.
    template <class Values, class OutOfShape>
    DEVICE void store(const Values& values, const OutOfShape& to, uint32_t matrix, int32_t row, int32_t column) {
        const uint32_t slots = store_slots<typename OutOfShape::Shape>();
        if (row < to.m) store_rows(slots, values, matrix_of(to, batch, matrix), row, column, lane);  // (16, TILE_N)
    }

    // The same of sums, by way of the epilogue.
    template <int COUNT, class OutOfShape>
    DEVICE void store(const float (&sums)[COUNT], const OutOfShape& to, uint32_t matrix, int32_t row, int32_t column) {
        const uint32_t slots = store_slots<typename OutOfShape::Shape>();
        if (row >= to.m) return;
        const auto& own = matrix_of(to, batch, matrix);
        if constexpr (Fused::IS_PLAIN) {
            store_rows(slots, sums, own, row, column, lane);  // (16, TILE_N)
        } else {
            FusedRows rows(fused, place_in(own, row, column));
            store_rows(slots, Finished<COUNT>{sums, rows}, own, row, column, lane);
            rows.end();
        }
    }

    // Where this lane's values of rows row .. row + 15 lie, of a tile that begins at `column`.
    template <class OutOfShape>
    DEVICE Place place_in(const OutOfShape& to, int32_t row, int32_t column) const {
        const int32_t own_row = row + static_cast<int32_t>(lane / 4);
        const int32_t own_column = column + static_cast<int32_t>(lane % 4 * 2);
        const int32_t tile_end = column + OutOfShape::Shape::COLUMNS;
        return Place{own_row, own_column, to.m, to.n, tile_end < to.n ? tile_end : to.n, lane, to.member};
    }

    // Rounds what is stored later, after the epilogue.
    template <class OutOfShape>
    DEVICE void keep_finished(Kept& kept, const Fragment& sums, const OutOfShape& to, const Tile& tile) const {
        using Shape = typename OutOfShape::Shape;
        if constexpr (Fused::IS_PLAIN) {
            keep<Shape::TILE_COLUMNS, Shape::COLUMNS>(kept, sums);
        } else {
            FusedRows rows(fused,
                           place_in(matrix_of(to, batch, tile.matrix()), row_of(tile, 1), tile.n / Fused::FOLD));
            keep<Shape::TILE_COLUMNS, Shape::COLUMNS>(kept, Finished<Config::TILE_N / 2>{sums, rows});
            rows.end();
        }
        kept.m = row_of(tile, 1);
        kept.n = tile.n / Fused::FOLD;
        kept.matrix = tile.matrix();
    }

    // In each of the last k tiles but those that a loop leaves out: a share of this warp's rows of what the epilogue
    // will read. Of fewer k tiles than FETCH_K_TILES the last half of that number have twice the share. `Rows` is
    // FusedRows, a parameter so that a plain product's need not have this. With PINGPONG none: the other consumer's
    // multiplications hide that reading, and c of 4096^3 took 3 % longer so (H200, 2026-11-30).
    template <class Rows, class OutOfShape>
    DEVICE void fetch_ahead(const OutOfShape& to, const Tile& tile, int32_t k_tile) const {
        if constexpr (!Fused::IS_PLAIN && Config::SPLIT_K == 1 && !Config::PINGPONG) {
            if constexpr (Rows::FETCHES) {
                constexpr int SHARE = Config::WGMMAS_M * STORE_ROWS / FETCH_K_TILES;  // rows
                static_assert(SHARE > 0, "a row in each of the last k tiles");
                const bool is_short = num_k_tiles < FETCH_K_TILES;
                const int32_t share = is_short ? 2 * SHARE : SHARE;
                const int32_t turn = k_tile + (is_short ? FETCH_K_TILES / 2 : FETCH_K_TILES) - num_k_tiles;
                if (turn < 0 || lane != 0) return;
                const auto& own = matrix_of(to, batch, tile.matrix());
                const int32_t column = tile.n / Fused::FOLD;
                const int32_t tile_end = column + OutOfShape::Shape::COLUMNS;
                const int32_t first = row_of(tile, turn * share / STORE_ROWS) + turn * share % STORE_ROWS;
#pragma unroll 1
                for (int32_t row = first; row < first + share && row < to.m; ++row) {
                    Rows::fetch(fused, own.member, row, column, tile_end < to.n ? tile_end : to.n);
                }
            }
        }
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

    // A whole tile, then its stores: one after the other. `is_last` counts where k is split. `all_seen` is called after
    // the wait for its last full slot.
    template <class From, class OutOfShape, class AllSeen>
    DEVICE void compute(From& source, const OutOfShape& to, bool is_last, AllSeen all_seen) {
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
            release(source.ring, previous, lane, lane_peer);
            previous = source.state.index;
            source.state.advance();
            fetch_ahead<FusedRows>(to, tile, k_tile);
        }
        all_seen();
        if constexpr (Config::SPLIT_K > 1) reduction.prepare();
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int block = 0; block < Config::WGMMAS_M; ++block) keep_below(rC[block]);
        release(source.ring, previous, lane, lane_peer);
        if constexpr (Config::SPLIT_K == 1) {
            store_blocks(rC, to, tile, tile.n / Fused::FOLD);
        } else {
            reduction.send(rC);
            if (reduction.receives()) {
                Reduction::Sums sums[Config::WGMMAS_M];  // (WGMMAS_M x 64, STORED_N) fp32 over the warpgroup
                reduction.receive(rC, sums);
                store_blocks(sums, to, tile, tile.n / Fused::FOLD + reduction.first_column());
                if (!is_last) reduction.give_room();
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
            compute(source, out, false, [&] {
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
        constexpr int N = To::Shape::TILE_COLUMNS;
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
            release(source.ring, previous, lane, lane_peer);
            previous = source.state.index;
            source.state.advance();
            fetch_ahead<FusedRows>(to, tile, k_tile);
        }
        source.await_slot();
        issue<N, 0, 1, false>(source, rC);
        ptx::wgmma_commit_group();
        issue<N, 1, 1, false>(source, rC);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<1>();
        keep_below(rC[0]);
        release(source.ring, previous, lane, lane_peer);
        store(rC[0], to, tile.matrix(), row_of(tile, 0), tile.n / Fused::FOLD);
        ptx::wgmma_wait_group<0>();
        keep_below(rC[1]);
        release(source.ring, source.state.index, lane, lane_peer);
        source.state.advance();
        keep_finished(kept, rC[1], to, tile);
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
    const Fused& fused;
    const int32_t num_k_tiles;
    const uint32_t index;  // 0 .. CONSUMERS-1
    const uint32_t warp;   // of the warpgroup
    const uint32_t lane;
    const uint32_t lane_peer;  // the rank that this lane tells of free slots
    Reduction reduction;
};
