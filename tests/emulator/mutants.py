"""Bugs planted in the real kernel by text edits, each with the rules of which one at least must report it.

An edit names a file of the unit ("" is hopper_gemm.cu), what stands there and what shall stand there instead. Those of
the walk, of narrow tiles and of staggered row blocks are in tile_mutants.py, those of the start in start_mutants.py.
"""

from __future__ import annotations

from gemm import WRONG_NUMBERS, Edit, Mutant

UNIT, RING, PRODUCER, CONSUMER = "", "ring.cuh", "producer.cuh", "consumer.cuh"
PIPELINE, EPILOGUE, SCHEDULE, SWIZZLE = "pipeline.cuh", "epilogue.cuh", "schedule.cuh", "swizzle.cuh"
ROW_STORE, CLUSTER = "row_store.cuh", "cluster.cuh"
BATCH, WGMMA = "batch.cuh", "wgmma_mma_async.cuh"


def mutant(name: str, case: str, *edits: Edit, by: str | tuple[str, ...], policy: str = "lazy") -> Mutant:
    """A mutant that one of the rules `by` must report."""
    return Mutant(name, case, edits, frozenset((by,) if isinstance(by, str) else by), policy)


_ADDING = '\\n" "}\\n" : "+f"(rC[0])'  # of the wrapper that adds to what is there
_RELEASE = "ptx::mbarrier_arrive_cluster(ptx::mapa_shared_cluster(ring.empty_at(slot), lane_peer))"
_IF_RELEASES = f"if (lane < PEERS) {_RELEASE}"
_ARRIVE = "ptx::mbarrier_arrive(ring.empty_at(slot));"
_FULL_WAIT = "wait(ring.full_at(state.index), state.parity);"
_EXPECT = "ptx::mbarrier_arrive_expect_tx(full, Ring::SLOT_BYTES);"
_SLOT = "issue<N, 0, Config::WGMMAS_M, false>(source, rC);"  # of compute(): after the first
_COMMIT = "ptx::wgmma_commit_group();"
_SLOT_WAIT = f"{_SLOT} {_COMMIT} ptx::wgmma_wait_group<1>();"
_LAST_WAIT = "if constexpr (Config::SPLIT_K > 1) reduction.prepare(); ptx::wgmma_wait_group<0>();"
_READ_WAIT = "if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();"
_BATCH_WAIT = f"{_READ_WAIT} }} __syncwarp(); write_slots"
_STORE_FENCE = "    ptx::fence_proxy_async_shared_cta();\n    __syncwarp();\n"
EMPTY_WAIT = "wait(filling.ring.empty_at(filling.state.index), filling.state.parity);"
FENCE = "ptx::fence_mbarrier_init_release_cluster();"
END = "if constexpr (Config::SHARING > 1) producer.finish();"
START = """
        ptx::barrier_cluster_arrive_relaxed();
        ptx::barrier_cluster_wait_acquire();
    }
    if constexpr (Config::DEPENDENT_LAUNCH)
"""

MUTANTS: tuple[Mutant, ...] = (
    # -- the ring ----------------------------------------------------------------------------------------------------
    mutant("no full wait", "single", (CONSUMER, _FULL_WAIT, ""), by="copy not waited for", policy="eager"),
    mutant("no full wait, cluster", "cluster", (CONSUMER, _FULL_WAIT, ""), by="copy not waited for", policy="eager"),
    mutant("no empty wait", "single", (PRODUCER, EMPTY_WAIT, ""), by=("missing wait", "mbarrier over-arrival")),
    mutant(
        "released before its wgmmas have finished",
        "single",
        (CONSUMER, _SLOT_WAIT, _SLOT_WAIT.replace("<1>", "<2>")),
        by="operand released early",
    ),
    mutant(
        "released before its wgmmas have finished, cluster",
        "cluster",
        (CONSUMER, _SLOT_WAIT, _SLOT_WAIT.replace("<1>", "<2>")),
        by="operand released early",
    ),
    mutant(
        "the newest slot is released",
        "single",
        (
            CONSUMER,
            f"{_SLOT_WAIT} release(source.ring, previous, lane, lane_peer);",
            f"{_SLOT_WAIT} release(source.ring, source.state.index, lane, lane_peer);",
        ),
        by=("operand released early", "deadlock", "mbarrier over-arrival"),
    ),
    mutant(
        "the last slot is released before its wait",
        "single",
        (CONSUMER, _LAST_WAIT, f"release(source.ring, previous, lane, lane_peer); {_LAST_WAIT}"),
        (
            CONSUMER,
            "keep_below(rC[block]);\n    release(source.ring, previous, lane, lane_peer);",
            "keep_below(rC[block]);",
        ),
        by="operand released early",
    ),
    mutant(
        "no wait before the epilogue",
        "single",
        (CONSUMER, _LAST_WAIT, "if constexpr (Config::SPLIT_K > 1) reduction.prepare();"),
        by="accumulator in flight",
    ),
    mutant(
        "no commit",
        "single",
        (CONSUMER, f"{_SLOT} {_COMMIT}", _SLOT),
        by=("operand released early", "accumulator in flight"),
    ),
    mutant(
        "no wgmma fence",
        "single",
        (CONSUMER, f"{_FULL_WAIT} ptx::wgmma_fence();", _FULL_WAIT),
        by="missing wgmma.fence",
    ),
    mutant(
        "expects too many bytes",
        "single",
        (PRODUCER, _EXPECT, _EXPECT.replace("SLOT_BYTES", "SLOT_BYTES + 16")),
        by="deadlock",
    ),
    mutant(
        "expects too few bytes",
        "single",
        (PRODUCER, _EXPECT, _EXPECT.replace("SLOT_BYTES", "SLOT_BYTES - 16")),
        by=("deadlock", "copy not waited for"),
    ),
    mutant(
        "empty expects one arrival less",
        "single",
        (UNIT, "Config::EMPTY_ARRIVALS);", "Config::EMPTY_ARRIVALS - 1);"),
        by=("operand released early", "mbarrier over-arrival", "missing wait"),
    ),
    mutant(
        "empty expects one arrival more",
        "single",
        (UNIT, "Config::EMPTY_ARRIVALS);", "Config::EMPTY_ARRIVALS + 1);"),
        by="deadlock",
    ),
    mutant(
        "full expects two arrivals",
        "single",
        (UNIT, "Config::FULL_ARRIVALS);", "Config::FULL_ARRIVALS + 1);"),
        by="deadlock",
    ),
    mutant(
        "the producer's first parity is 0",
        "single",
        (PRODUCER, "state{0, 1};", "state{0, 0};"),
        by=("missing wait", "mbarrier over-arrival"),
    ),
    mutant(
        "the producer's first parity is 0, cluster",
        "cluster",
        (PRODUCER, "state{0, 1};", "state{0, 0};"),
        by="deadlock",
    ),
    mutant(
        "the consumers' first parity is 1",
        "single",
        (CONSUMER, "state{0, 0};", "state{0, 1};"),
        by="copy not waited for",
        policy="random",
    ),
    mutant(
        "advance does not flip the parity",
        "single",
        (PIPELINE, "            parity ^= 1;\n", ""),
        by=("copy not waited for", "deadlock", "missing wait", "mbarrier over-arrival"),
    ),
    mutant(
        "the release by lane 0 is dropped",
        "single",
        (CONSUMER, f"if (lane == 0) {_ARRIVE}", f"if (lane == 33) {_ARRIVE}"),
        by="deadlock",
    ),
    mutant(
        "every lane releases",
        "single",
        (CONSUMER, f"if (lane == 0) {_ARRIVE}", f"if (lane < 2) {_ARRIVE}"),
        by=("mbarrier over-arrival", "operand released early", "missing wait"),
    ),
    # -- the cluster -------------------------------------------------------------------------------------------------
    mutant(
        "multicast reaches only rank 0",
        "cluster",
        (CLUSTER, "FIRST_COLUMN = (1u << Config::CLUSTER_M) - 1;", "FIRST_COLUMN = 1;"),
        by="deadlock",
    ),
    mutant(
        "released only to the own CTA",
        "cluster",
        (
            CONSUMER,
            _IF_RELEASES,
            "if (lane < 2) ptx::mbarrier_arrive(ring.empty_at(slot))",
        ),
        by=("operand released early",),
    ),
    mutant(
        "remote arrivals dropped",
        "cluster",
        (
            CONSUMER,
            _IF_RELEASES,
            "if (lane == 0) ptx::mbarrier_arrive(ring.empty_at(slot))",
        ),
        by="deadlock",
    ),
    mutant(
        "remote arrivals dropped, count fitted",
        "cluster",
        (
            CONSUMER,
            _IF_RELEASES,
            "if (lane == 0) ptx::mbarrier_arrive(ring.empty_at(slot))",
        ),
        (UNIT, "Config::EMPTY_ARRIVALS);", "Config::EMPTY_ARRIVALS / 2);"),
        by="operand released early",
    ),
    mutant(
        "a CTA ends before its slots are given back",
        "cluster",
        (UNIT, END, ""),
        by=("exit before remote access", "peer exited"),
    ),
    mutant(
        "a CTA ends before its last slot is given back",
        "cluster",
        (PRODUCER, "slot < Config::STAGES; ++slot", "slot < Config::STAGES - 1; ++slot"),
        by=("exit before remote access", "peer exited"),
    ),
    mutant(
        "__syncthreads instead of the cluster barrier",
        "cluster",
        (UNIT, START, "        __syncthreads();\n    }\n    if constexpr (Config::DEPENDENT_LAUNCH)"),
        by="mbarrier init order",
    ),
    mutant(
        "no barrier after init, cluster",
        "cluster",
        (UNIT, START, "    }\n    if constexpr (Config::DEPENDENT_LAUNCH)"),
        by=("mbarrier init order", "mbarrier before init"),
    ),
    mutant(
        "no barrier after init",
        "single",
        (
            UNIT,
            "    if constexpr (Config::CLUSTER == 1) {\n        __syncthreads();",
            "    if constexpr (Config::CLUSTER == 1) {",
        ),
        by=("mbarrier init order", "mbarrier before init"),
    ),
    mutant(
        "inits of full barriers not fenced",
        "single",
        (UNIT, f"Config::FULL_ARRIVALS); {FENCE}", "Config::FULL_ARRIVALS);"),
        by="mbarrier init fence",
    ),
    mutant(
        "inits of empty barriers not fenced, cluster",
        "cluster",
        (UNIT, f"init_partials(partials); {FENCE}", "init_partials(partials);"),
        by="mbarrier init order",
    ),
    mutant(
        "each CTA multicasts all of b to the wrong place",
        "cluster",
        (PRODUCER, "target + row * SWIZZLE_BYTES, map", "target, map"),
        by=("unordered copies",),
    ),
    # -- ping-pong ---------------------------------------------------------------------------------------------------
    mutant(
        "no turns",
        "ping-pong",
        (CONSUMER, "if (i > 0) await_turn(index);", ""),
        (CONSUMER, "if (i + 1 < num_tiles) pass_turn(index);", ""),
        by=(
            "operand released early",
            "mbarrier over-arrival",
            "missing wait",
            "deadlock",
            "copy not waited for",
            WRONG_NUMBERS,
        ),
    ),
    mutant(
        "a turn is never passed", "ping-pong", (CONSUMER, "if (i + 1 < num_tiles) pass_turn(index);", ""), by="deadlock"
    ),
    mutant(
        "the turn is passed to oneself",
        "ping-pong",
        (
            CONSUMER,
            "ptx::barrier_arrive<TURN_OF_1, TURN_THREADS>();\n    } else {\n        ptx::barrier_arrive<TURN_OF_0",
            "ptx::barrier_arrive<TURN_OF_0, TURN_THREADS>();\n    } else {\n        ptx::barrier_arrive<TURN_OF_1",
        ),
        by=("missing wait", "deadlock", "barrier over-arrival"),
    ),
    mutant(
        "skipped slots are not skipped",
        "ping-pong",
        (CONSUMER, "                source.state.skip(num_k_tiles);\n", ""),
        by=("operand released early", "mbarrier over-arrival", "missing wait", "deadlock", WRONG_NUMBERS),
    ),
    # -- the epilogue ------------------------------------------------------------------------------------------------
    mutant(
        "no proxy fence before the store",
        "single",
        (EPILOGUE, _STORE_FENCE, "    __syncwarp();\n"),
        by="missing proxy fence",
    ),
    mutant(
        "no __syncwarp before the store",
        "single",
        (EPILOGUE, _STORE_FENCE, "    ptx::fence_proxy_async_shared_cta();\n"),
        by="missing __syncwarp",
    ),
    mutant(
        "only lane 0 fences, before __syncwarp",
        "single",
        (EPILOGUE, _STORE_FENCE, "    if (lane == 0) ptx::fence_proxy_async_shared_cta();\n    __syncwarp();\n"),
        by="missing proxy fence",
    ),
    mutant(
        "slots are written before they are read",
        "many stores",
        (EPILOGUE, _BATCH_WAIT, "} __syncwarp(); write_slots"),
        by="store source overwritten",
    ),
    mutant(
        "two batches without a wait",
        "many stores",
        (EPILOGUE, _BATCH_WAIT, _BATCH_WAIT.replace("<0>", "<1>")),
        by="store source overwritten",
    ),
    mutant(
        "no __syncwarp after the read wait",
        "many stores",
        (EPILOGUE, _BATCH_WAIT, f"{_READ_WAIT} }} write_slots"),
        by="store source overwritten",
    ),
    mutant(
        "another lane waits for the store",
        "many stores",
        (EPILOGUE, _BATCH_WAIT, _BATCH_WAIT.replace("lane == 0", "lane == 1")),
        by="store source overwritten",
    ),
    mutant(
        "stores are not committed",
        "many stores",
        (EPILOGUE, "        ptx::cp_async_bulk_commit_group();\n", ""),
        by=("store source overwritten", "exit before store read"),
    ),
    mutant(
        "stores are not awaited at the end",
        "single",
        (EPILOGUE, f"{_READ_WAIT} }} __syncwarp(); }}", "} __syncwarp(); }"),
        by="exit before store read",
    ),
    mutant(
        "predicated: no __syncwarp before slots are read",
        "predicated stores",
        (EPILOGUE, "__syncwarp(); const int32_t first = column", "const int32_t first = column"),
        by="missing __syncwarp",
    ),
    mutant(
        "predicated: halves in the wrong order",
        "predicated stores",
        (
            ROW_STORE,
            "ptx::shf_l_wrap(words[3 - WORDS + i], last, half_bits)",
            "ptx::shf_l_wrap(last, words[3 - WORDS + i], half_bits)",
        ),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "predicated: no half word is shifted",
        "predicated stores",
        (ROW_STORE, "phase % 4 * 8;", "0;"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "predicated: whole words are shifted the other way",
        "predicated stores",
        (ROW_STORE, "} else if (phase < 8) {", "} else if (phase >= 8 && phase < 12) {"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "predicated: chunks of out begin where the row does",
        "predicated stores",
        (ROW_STORE, "static_cast<int32_t>(number * 16 - phase);", "static_cast<int32_t>(number * 16);"),
        by="misaligned",
    ),
    mutant(
        "predicated: the chunk before a row is whole",
        "predicated stores",
        (
            ROW_STORE,
            "if (static_cast<uint32_t>(at) > static_cast<uint32_t>(out.row_bytes - 16)) continue;",
            "if (at > out.row_bytes - 16) continue;",
        ),
        by=("missing __syncwarp", "data race", "out of bounds"),
    ),
    mutant(
        "predicated: the last chunk of a row is whole",
        "staggered without TMA",
        (
            ROW_STORE,
            "static_cast<uint32_t>(out.row_bytes - 16)) continue;",
            "static_cast<uint32_t>(out.row_bytes - 2)) continue;",
        ),
        by=("missing __syncwarp", "data race", "out of bounds"),
    ),
    mutant(
        "predicated: rows past the last one of out, the lower eight",
        "staggered without TMA",
        (ROW_STORE, "if (ROWS == 2 && row + 8 < out.num_rows)", "if (ROWS == 2)"),
        (ROW_STORE, "if (row + static_cast<int32_t>(own_row) < out.num_rows)", ""),
        by=("data race", "out of bounds", WRONG_NUMBERS),
    ),
    mutant(
        "predicated: no ragged ends",
        "predicated stores",
        (ROW_STORE, "store_ragged_ends<SIZE, Slots>(slots, out, lane); }", "}"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "predicated: the ends on the right in the order of those on the left",
        "predicated stores",
        (ROW_STORE, "begin + (is_right ? count & 8 : count & 2);", "begin + (count & 2);"),
        by=("misaligned", "data race", WRONG_NUMBERS),
    ),
    mutant(
        "predicated: short rows are stored by whole chunks",
        "predicated stores, short rows",
        (ROW_STORE, "if (out.row_bytes < 16) {", "if (false) {"),
        by=("data race", "out of bounds", "misaligned", WRONG_NUMBERS),
    ),
    mutant(
        "predicated: rows longer than a warp to the 32nd chunk alone",
        "fp32 out without TMA, long rows",
        (ROW_STORE, "first < Slots::CHUNKS; first += LANES", "first < 1; first += LANES"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "predicated: rows of slots without their swizzle",
        "predicated stores",
        (ROW_STORE, "return swizzled<SLOT_ROW_BYTES>(row * SLOT_ROW_BYTES);", "return row * SLOT_ROW_BYTES;"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "predicated: no __syncwarp before slots are written",
        "predicated stores, slot by slot",
        (EPILOGUE, "} __syncwarp(); write_slots", "} write_slots"),
        by="missing __syncwarp",
    ),
    mutant(
        "warps share one slot",
        "single",
        (
            CONSUMER,
            "WIDE_RING_BYTES + warp_of_cta() * Config::STORE_WARP_BYTES",
            "WIDE_RING_BYTES + index * WARPGROUP_WARPS * Config::STORE_WARP_BYTES",
        ),
        by=("data race", "store source overwritten"),
    ),
    mutant(
        "both consumers store the same rows",
        "single",
        (CONSUMER, "tile.m + (first_block() + block) * 64", "tile.m + block * 64"),
        by="unordered copies",
    ),
    # -- descriptors and layouts: numbers ----------------------------------------------------------------------------
    mutant(
        "k advances twice as far",
        "single",
        (
            CONSUMER,
            "moved(a, block * A_BLOCK + step * A_STEP)",
            "moved(a, block * A_BLOCK + step * 2 * A_STEP)",
        ),
        by=(WRONG_NUMBERS, "operand released early"),
    ),
    mutant("b does not advance along k", "single", (CONSUMER, "moved(b, step * B_STEP)", "b"), by=WRONG_NUMBERS),
    mutant(
        "accumulators are never reset",
        "single",
        (
            CONSUMER,
            "wgmma_mma_async_first<N>(rC[block], a_step, b_step);",
            "wgmma_mma_async<N>(rC[block], a_step, b_step, true);",
        ),
        by=("uninitialised register", WRONG_NUMBERS),
    ),
    mutant(
        "a waits on the wrong slot",
        "single",
        (CONSUMER, _FULL_WAIT, "wait(ring.full_at(0), state.parity);"),
        by="copy not waited for",
        policy="eager",
    ),
    mutant(
        "tiles are computed by two CTAs",
        "single",
        (
            SCHEDULE,
            "uint32_t index = place + i * stride; uint32_t matrix",
            "uint32_t index = place + i; uint32_t matrix",
        ),
        by="unordered copies",
    ),
    mutant(
        "slots are not swizzled",
        "single",
        (EPILOGUE, "swizzled<ROW_BYTES>(row_offset + chunk * 16)", "(row_offset + chunk * 16)"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "stride of the descriptor is half",
        "single",
        (
            SWIZZLE,
            "swizzle128_descriptor(address, 16, ATOM_BYTES)",
            "swizzle128_descriptor(address, 16, ATOM_BYTES / 2)",
        ),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "no swizzle in the descriptor",
        "single",
        (SWIZZLE, "return (static_cast<uint64_t>(1) << 62) |", "return"),
        by=(WRONG_NUMBERS, "copy not waited for"),
    ),
    mutant(
        "leading offset of n-contiguous b is wrong",
        "n-major wide",
        (
            SWIZZLE,
            "swizzle128_descriptor(address, panel_bytes, ATOM_BYTES)",
            "swizzle128_descriptor(address, panel_bytes / 2, ATOM_BYTES)",
        ),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "a turn counts one warp too many",
        "ping-pong",
        (CONSUMER, "TURN_THREADS = 2 * WARPGROUP_THREADS;", "TURN_THREADS = 2 * WARPGROUP_THREADS + 32;"),
        by="deadlock",
    ),
    mutant(
        "more registers than the CTA has",
        "single",
        (UNIT, "setmaxnreg_inc<Config::CONSUMER_REGISTERS>", "setmaxnreg_inc<Config::CONSUMER_REGISTERS + 8>"),
        by="deadlock",
    ),
    mutant(
        "registers are taken before they are given",
        "single",
        (
            UNIT,
            "ptx::setmaxnreg_dec<Config::PRODUCER_REGISTERS>()",
            "ptx::setmaxnreg_inc<Config::CONSUMER_REGISTERS>()",
        ),
        by="deadlock",
    ),
    mutant(
        "the peer's empty barriers at an odd offset",
        "cluster",
        (
            CONSUMER,
            "ptx::mapa_shared_cluster(ring.empty_at(slot), lane_peer)",
            "ptx::mapa_shared_cluster(ring.empty_at(slot) + 8 * lane, lane_peer)",
        ),
        by=("mbarrier before init", "mbarrier over-arrival", "missing wait", "deadlock"),
    ),
    mutant(
        "b's rows of the peer are loaded",
        "cluster",
        (PRODUCER, "k, first + row, member", "k, first + BOX_ROWS - row, member"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "each CTA waits for its own slots only at the start",
        "cluster",
        (PRODUCER, EMPTY_WAIT, f"if (k_tile < 4) {EMPTY_WAIT}"),
        by=("missing wait", "mbarrier over-arrival", "operand released early"),
    ),
    # -- an m-contiguous a -------------------------------------------------------------------------------------------
    mutant(
        "m-contiguous a moves along k as if k were contiguous",
        "m-major",
        (CONSUMER, "A_STEP = Config::A_K_MAJOR ? K_MAJOR_STEP : MN_MAJOR_STEP", "A_STEP = K_MAJOR_STEP"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "m-contiguous a is not transposed",
        "m-major",
        (WGMMA, f"scale_d, 1, 1, 1, 0;{_ADDING}", f"scale_d, 1, 1, 0, 0;{_ADDING}"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "all panels land on the first",
        "m-major",
        (PRODUCER, "target + panel * PANEL_BYTES;", "target;"),
        by=("unordered copies", "uninitialised shared memory", WRONG_NUMBERS),
    ),
    mutant(
        "every panel holds the first columns",
        "m-major",
        (PRODUCER, "first + panel * PANEL_COLUMNS;", "first;"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "a panel is forgotten",
        "m-major",
        (PRODUCER, "panel < EXTENT / PANEL_COLUMNS; ++panel", "panel < EXTENT / PANEL_COLUMNS - 1; ++panel"),
        by="deadlock",
    ),
    mutant(
        "each CTA loads the peer's rows of k",
        "m-major cluster",
        (PRODUCER, "column, k + rank * SHARE_K", "column, k + (1 - rank) * SHARE_K"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "both CTAs' rows of k land in one place",
        "m-major cluster",
        (PRODUCER, "panel_target + rank * SHARE_K * SWIZZLE_BYTES", "panel_target"),
        by="unordered copies",
    ),
    # -- batches -----------------------------------------------------------------------------------------------------
    mutant(
        "only the first matrix is walked",
        "batch",
        (SCHEDULE, "places_up_to(walk.num_wide); }", "places_up_to(min(walk.num_wide, rows * columns)); }"),
        (
            SCHEDULE,
            "i * stride < static_cast<uint32_t>(walk.num_wide)",
            "i * stride < min(static_cast<uint32_t>(walk.num_wide), rows * columns)",
        ),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "tiles are counted on from matrix to matrix",
        "batch",
        (SCHEDULE, "index -= matrix * rows * columns;", ""),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "inputs are always the first matrix",
        "batch",
        (BATCH, "member.at[dim] * static_cast<int32_t>(moves[dim])", "0 * static_cast<int32_t>(moves[dim])"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "a shared matrix moves on",
        "batch shares a",
        (BATCH, "member.at[dim] * static_cast<int32_t>(moves[dim])", "member.at[dim]"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "b is read where a is",
        "batch shares a",
        (PRODUCER, "batch.b_member(batch.member(tile.matrix()))", "batch.a_member(batch.member(tile.matrix()))"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "all matrices are stored into the first",
        "batch",
        (EPILOGUE, "row, out.member, slot", "row, Member{}, slot"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "a matrix's number is not divided by the extents passed",
        "batch of three dimensions",
        (BATCH, "            number /= extent;\n", ""),
        by=("out of bounds", WRONG_NUMBERS),
    ),
    mutant(
        "offsets in bytes where elements are meant",
        "batch, predicated stores",
        (EPILOGUE, "batch.out_offset(member) * OUT_SIZE", "batch.out_offset(member)"),
        by=("misaligned", WRONG_NUMBERS),
    ),
    mutant(
        "a cluster's CTAs work on different matrices",
        "batch in clusters",
        (
            SCHEDULE,
            "index -= matrix * rows * columns;",
            "index -= matrix * rows * columns;\n            matrix = (matrix + rank) % 3;",
        ),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "the matrix of a tile is not handed over",
        "batch",
        (RING, "static_cast<uint32_t>(value.n), value.number, 0}", "static_cast<uint32_t>(value.n), 0, 0}"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "what was kept goes to the matrix at hand",
        "batch staggered",
        (
            CONSUMER,
            "store(kept.values, from, kept.matrix, kept.m, kept.n);",
            "store(kept.values, from, tile.matrix(), kept.m, kept.n);",
        ),
        by=("unordered copies", WRONG_NUMBERS),
    ),
)
