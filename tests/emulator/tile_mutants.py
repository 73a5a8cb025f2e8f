"""Bugs of the walk, of narrow tiles, of tiles' places in shared memory, and of staggered row blocks; as in mutants.py.

SILENT are edits that leave the kernel right: the checker must say nothing of them, and each has its reason.
"""

from __future__ import annotations

from gemm import WRONG_NUMBERS, Edit, Mutant
from mutants import CONSUMER, EMPTY_WAIT, EPILOGUE, PRODUCER, RING, SCHEDULE, UNIT, mutant

_PUT = "if (is_first) ring.put_tile(slot, tile);"
_EXPECT = "ptx::mbarrier_arrive_expect_tx(full, Ring::SLOT_BYTES);"
_READ = "const Tile tile = ring.tile_at(state.index);"
_KEPT_STORE = "store(kept.values, from, kept.matrix, kept.m, kept.n);"
_KEPT = "keep_finished(kept, rC[1], to, tile);"
_BLOCK_0 = "store(rC[0], to, tile.matrix(), row_of(tile, 0), tile.n / Fused::FOLD);"
_BLOCK_0_WAIT = "ptx::wgmma_wait_group<1>(); keep_below(rC[0]);"
_BLOCK_1_WAIT = "ptx::wgmma_wait_group<0>(); keep_below(rC[1]);"
_STAGGERED_SLOT = "issue<N, 0, 2, false>(source, rC); ptx::wgmma_commit_group();"
_WARP = "WIDE_RING_BYTES + warp_of_cta() * Config::STORE_WARP_BYTES"
# The place of a consumer's tile is read at the tile's end, when its first slot has been released.
_LATE_READ: tuple[Edit, ...] = (
    (
        CONSUMER,
        "const Tile tile = source.begun_tile(); uint32_t previous",
        "const uint32_t begun = source.state.index; uint32_t previous",
    ),
    (CONSUMER, "fetch_ahead<FusedRows>(to, tile, k_tile); } all_seen();", "} all_seen();"),
    (
        CONSUMER,
        "keep_below(rC[block]); release(source.ring, previous, lane, lane_peer);",
        "keep_below(rC[block]); release(source.ring, previous, lane, lane_peer); "
        "const Tile tile = source.ring.tile_at(begun); __syncwarp();",
    ),
)

TILE_MUTANTS: tuple[Mutant, ...] = (
    # -- tiles' places in shared memory ------------------------------------------------------------------------------
    mutant(
        "a tile's place is written after the arrival",
        "tail",
        (PRODUCER, f"{_PUT} {_EXPECT}", f"{_EXPECT} {_PUT}"),
        by="data race",
    ),
    mutant(
        "a tile's place is written before the slot is free",
        "tail",
        (
            PRODUCER,
            EMPTY_WAIT,
            f"if (k_tile == 0) filling.ring.put_tile(filling.state.index, tile); {EMPTY_WAIT}",
        ),
        by="data race",
    ),
    mutant(
        "a tile's place is read before its slot is full",
        "tail",
        (
            CONSUMER,
            "source.await_slot(); issue<N, 0, Config::WGMMAS_M, true>",
            "const Tile tile = source.begun_tile(); source.await_slot(); issue<N, 0, Config::WGMMAS_M, true>",
        ),
        (CONSUMER, "const Tile tile = source.begun_tile(); uint32_t previous", "uint32_t previous"),
        by=("data race", "uninitialised shared memory", WRONG_NUMBERS),
    ),
    mutant("a tile's place is read after the release", "tail", *_LATE_READ, by="data race"),
    mutant(
        "no __syncwarp after a tile's place is read",
        "tail",
        (CONSUMER, f"{_READ} __syncwarp();", _READ),
        by="data race",
    ),
    mutant(
        "no __syncwarp after a tile's place is read, staggered",
        "staggered",
        (CONSUMER, f"{_READ} __syncwarp();", _READ),
        by="data race",
    ),
    mutant(
        "a tile's place is read from slot 0",
        "single",
        (
            RING,
            "read(tile + slot * sizeof(Tile), words);",
            "read(tile, words);",
        ),
        by=("data race", WRONG_NUMBERS),
    ),
    # -- narrow tiles ------------------------------------------------------------------------------------------------
    mutant(
        "a narrow tile expects a wide one's bytes",
        "tail",
        (
            PRODUCER,
            "ptx::mbarrier_arrive_expect_tx(full, Ring::SLOT_BYTES);",
            "ptx::mbarrier_arrive_expect_tx(full, Config::STAGE_BYTES);",
        ),
        by="deadlock",
    ),
    mutant(
        "a wide tile expects a narrow one's bytes",
        "tail",
        (
            PRODUCER,
            "ptx::mbarrier_arrive_expect_tx(full, Ring::SLOT_BYTES);",
            "ptx::mbarrier_arrive_expect_tx(full, NARROW_BYTES);",
        ),
        by=("copy not waited for", "deadlock", "missing wait"),
    ),
    # -- from wide tiles to narrow ones ------------------------------------------------------------------------------
    mutant(
        "narrow slots are filled while wide ones are read",
        "tail",
        (PRODUCER, "wait(wide.ring.empty_at(slot), wide.state.parity ^ (slot < wide.state.index ? 1 : 0));", ""),
        by=("operand released early", "refilled while read", "unordered copies"),
    ),
    mutant(
        "narrow slots wait for the phase before the last of the wide ones",
        "tail",
        (PRODUCER, "wide.state.parity ^ (slot < wide.state.index ? 1 : 0)", "wide.state.parity ^ 1"),
        by=("operand released early", "refilled while read", "unordered copies", "deadlock"),
    ),
    mutant(
        "narrow slots are filled where wide tiles are still stored from",
        "tail",
        (PRODUCER, "if (end > WIDE_RING_BYTES) wait(stored, 0);", ""),
        by=("store source overwritten", "refilled while read", "data race"),
    ),
    mutant(
        "store slots are left before they are read",
        "tail",
        (CONSUMER, "finish_stores(lane); if (lane == 0) ptx::mbarrier_arrive(", "if (lane == 0) ptx::mbarrier_arrive("),
        by=("store source overwritten", "refilled while read", "data race"),
    ),
    mutant(
        "store slots without TMA are left with no proxy fence",
        "tail without TMA",
        (CONSUMER, "ptx::fence_proxy_async_shared_cta(); finish_stores(lane);", "finish_stores(lane);"),
        by="missing proxy fence",
    ),
    mutant(
        "narrow tiles are stored without waiting for the others' wide ones",
        "tail of 256x192",
        (CONSUMER, "wait(shared_address(&shared.stored), 0); return", "return"),
        by=("store source overwritten", "refilled while read", "data race"),
    ),
    mutant(
        "narrow tiles are loaded through the wide map",
        "tail",
        (
            PRODUCER,
            "load_tail(b, b_tail_map, narrow_tile.n, k, Member{}, full);",
            "load_tail(b, b_map, narrow_tile.n, k, Member{}, full);",
        ),
        by=("copy not waited for", "deadlock", "missing wait"),
    ),
    mutant(
        "narrow tiles are stored through the wide map",
        "tail",
        (UNIT, "const OutTail out_tail{out_tail_map,", "const OutTail out_tail{out_map,"),
        by=("unordered global copies", "unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "one wide tile too few",
        "tail",
        (SCHEDULE, "return places_up_to(walk.num_wide);", "return places_up_to(walk.num_wide - 1);"),
        (SCHEDULE, "static_cast<uint32_t>(walk.num_wide);", "static_cast<uint32_t>(walk.num_wide - 1);"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "one wide tile too many",
        "tail",
        (SCHEDULE, "return places_up_to(walk.num_wide);", "return places_up_to(walk.num_wide + 1);"),
        (SCHEDULE, "static_cast<uint32_t>(walk.num_wide);", "static_cast<uint32_t>(walk.num_wide + 1);"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "one narrow tile too few",
        "tail",
        (SCHEDULE, "{ return further * narrow_far + ", "{ return -1 + further * narrow_far + "),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "the producer stops a wide tile early",
        "tail",
        (SCHEDULE, "i * stride < static_cast<uint32_t>(walk.num_wide)", "(i + 1) * stride < walk.num_wide"),
        by="deadlock",
    ),
    mutant(
        "the producer's first tile is its second",
        "tail",
        (UNIT, "first = schedule.first(row_scale)", "first = schedule.wide(1)"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "the further wide tiles are in the first column",
        "tail",
        (
            SCHEDULE,
            "return at(index - rows * columns, columns, matrix);",
            "return at(index - rows * columns, 0, matrix);",
        ),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "narrow tiles begin at the same column in every row",
        "tail of two lengths",
        (SCHEDULE, "(far ? columns + 1 : columns) * Config::TILE_N", "columns * Config::TILE_N"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "consumers leave out the narrow tiles",
        "tail",
        (CONSUMER, "for (uint32_t i = 0; i < num_narrow; ++i) compute(narrow, out_tail, [] {});", ""),
        by=("deadlock", WRONG_NUMBERS),
    ),
    mutant(
        "elements past the last column are stored",
        "tail without TMA",
        (EPILOGUE, "(out.n - first < COLUMNS ? out.n - first : COLUMNS) * OUT_SIZE", "COLUMNS * OUT_SIZE"),
        by=("data race", "out of bounds", "missing __syncwarp"),
    ),
    # -- the walk ----------------------------------------------------------------------------------------------------
    mutant(
        "squares are as high as the group at its end",
        "squares",
        (
            SCHEDULE,
            "part_of(stretch.within, walk.square_m, group.size, stretch.size)",
            "part_of(stretch.within, walk.square_m, walk.group_m, stretch.size)",
        ),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "the last square of a stretch is taken for a whole one",
        "squares",
        (
            SCHEDULE,
            "square.within % square.size, stretch.first + square.within / square.size",
            "square.within % walk.square_m, stretch.first + square.within / walk.square_m",
        ),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "squares of a stretch are as wide as the walk says",
        "squares",
        (SCHEDULE, "group.size, stretch.size);", "group.size, walk.square_n);"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    # -- staggered row blocks ----------------------------------------------------------------------------------------
    mutant(
        "what was kept goes to the place of the tile at hand",
        "staggered",
        (CONSUMER, _KEPT_STORE, "store(kept.values, from, 0, kept.m < from.m ? row_of(tile, 1) : kept.m, tile.n);"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "what was kept goes to the rows of block 0",
        "staggered",
        (CONSUMER, "kept.m = row_of(tile, 1);", "kept.m = row_of(tile, 0);"),
        by="unordered copies",
    ),
    mutant(
        "what was kept goes out before anything was kept",
        "staggered",
        (CONSUMER, "kept.m = out.m;", "kept.m = 0;"),
        by=("uninitialised register", "unordered copies"),
    ),
    mutant(
        "what was kept is not stored at the end",
        "staggered",
        (CONSUMER, "return; } } store(kept.values, out, kept.matrix, kept.m, kept.n); }", "return; } } }"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "what was kept is not stored at the end of a tail",
        "staggered tail",
        (CONSUMER, "store(kept.values, tail, kept.matrix, kept.m, kept.n); return;", "return;"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "a wide block that was kept is stored as a narrow one",
        "staggered tail",
        (CONSUMER, "compute_staggered(narrow, kept, out, tail,", "compute_staggered(narrow, kept, tail, tail,"),
        by=("deadlock", WRONG_NUMBERS),
    ),
    mutant(
        "block 0 is stored before its wgmmas have finished",
        "staggered",
        (
            CONSUMER,
            f"{_BLOCK_0_WAIT} release(source.ring, previous, lane, lane_peer); {_BLOCK_0}",
            f"{_BLOCK_0} {_BLOCK_0_WAIT} release(source.ring, previous, lane, lane_peer);",
        ),
        by="accumulator in flight",
    ),
    mutant(
        "block 0 is waited for as if it were one group behind",
        "staggered",
        (CONSUMER, _BLOCK_0_WAIT, _BLOCK_0_WAIT.replace("<1>", "<2>")),
        by=("accumulator in flight", "operand released early"),
    ),
    mutant(
        "block 1 is kept before its wgmmas have finished",
        "staggered",
        (CONSUMER, _BLOCK_1_WAIT, f"{_KEPT} {_BLOCK_1_WAIT}"),
        (CONSUMER, f"state.advance(); {_KEPT}", "state.advance();"),
        by="accumulator in flight",
    ),
    mutant(
        "the last slot is released with block 1 in flight",
        "staggered",
        (
            CONSUMER,
            f"{_BLOCK_1_WAIT} release(source.ring, source.state.index, lane, lane_peer);",
            f"release(source.ring, source.state.index, lane, lane_peer); {_BLOCK_1_WAIT}",
        ),
        by="operand released early",
    ),
    mutant(
        "the first slot is released when block 0 alone has read it",
        "staggered",
        (CONSUMER, f"{_STAGGERED_SLOT} ptx::wgmma_wait_group<1>();", f"{_STAGGERED_SLOT} ptx::wgmma_wait_group<2>();"),
        by="operand released early",
    ),
    mutant(
        "the slot before the last is released before its wait",
        "staggered pair",
        (
            CONSUMER,
            f"{_BLOCK_0_WAIT} release(source.ring, previous, lane, lane_peer);",
            f"release(source.ring, previous, lane, lane_peer); {_BLOCK_0_WAIT}",
        ),
        by="operand released early",
    ),
    mutant(
        "both blocks' last wgmmas in one group",
        "staggered",
        (
            CONSUMER,
            "issue<N, 0, 1, false>(source, rC); ptx::wgmma_commit_group();",
            "issue<N, 0, 1, false>(source, rC);",
        ),
        by=("accumulator in flight", "operand released early"),
    ),
    mutant(
        "block 1 multiplies block 0's rows",
        "staggered",
        (CONSUMER, "moved(a, block * A_BLOCK + step * A_STEP)", "moved(a, step * A_STEP)"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "no read wait between the two blocks' stores",
        "staggered",
        (
            EPILOGUE,
            "if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>(); } __syncwarp(); write_slots",
            "} __syncwarp(); write_slots",
        ),
        by="store source overwritten",
    ),
    mutant(
        "no fence between the two blocks' stores",
        "staggered",
        (EPILOGUE, "ptx::fence_proxy_async_shared_cta();", ""),
        by="missing proxy fence",
    ),
    mutant(
        "a warp's slots begin in the slots of the one before",
        "many stores",
        (CONSUMER, _WARP, f"{_WARP} - warp * 2048"),
        by=("data race", "store source overwritten"),
    ),
)

# What an edit changes, and why no report is right.
SILENT: dict[Mutant, str] = {
    mutant(
        "block 0 waits for block 1 too",
        "staggered",
        (CONSUMER, _BLOCK_0_WAIT, _BLOCK_0_WAIT.replace("<1>", "<0>")),
        by=(),
    ): ("more is waited for than need be: the stores are no longer hidden, which costs time alone"),
    mutant(
        "warps' numbers not from lane 0",
        "staggered",
        (
            CONSUMER,
            "ptx::shfl_sync_idx(threadIdx.x % WARPGROUP_THREADS / WARP_THREADS, 0)",
            "threadIdx.x % WARPGROUP_THREADS / WARP_THREADS",
        ),
        (UNIT, "ptx::shfl_sync_idx(threadIdx.x / WARP_THREADS, 0)", "threadIdx.x / WARP_THREADS"),
        by=(),
    ): "all lanes have the same number anyway: that they agree is told to ptxas",
    mutant(
        "narrow tiles of n-contiguous b through the wide map",
        "tail of n-contiguous b",
        (
            PRODUCER,
            "load_tail(b, b_tail_map, narrow_tile.n, k, Member{}, full);",
            "load_tail(b, b_map, narrow_tile.n, k, Member{}, full);",
        ),
        by=(),
    ): "both maps load panels of 64 columns",
    mutant(
        "every slot says whose it is",
        "tail",
        (PRODUCER, _PUT, "ring.put_tile(slot, tile);"),
        by=(),
    ): "a tile's first slot is free by then, as is every other; more is written than is read",
    mutant(
        "no wgmma.fence before block 1's first",
        "staggered",
        (CONSUMER, f"{_KEPT_STORE} ptx::wgmma_fence();", _KEPT_STORE),
        by=(),
    ): "no thread has touched the registers of block 1 since the fence of block 0, in PTX's own registers",
}
