"""Bugs of the sums over a cluster and of transposed stores; as in mutants.py."""

from __future__ import annotations

from gemm import WRONG_NUMBERS, Mutant
from mutants import CONSUMER, EPILOGUE, FENCE, START, UNIT, mutant

SPLIT, TRANSPOSED = "split.cuh", "transposed.cuh"

_EMPTY_WAIT = "wait(empty, parity ^ 1);  // fresh"
_FULL_WAIT = "wait(full, parity);"
_EXPECT = "(Config::SPLIT_K - 1) * SHARE_BYTES);"
_ANNOUNCE = f"ptx::mbarrier_arrive_expect_tx(full, {_EXPECT}"
_KEEPS = "if (receiver == static_cast<int>(rank)) continue;"
_OWN = "own(rC[block], i, part);"
_BYTES = ("deadlock", "copy not waited for", "exit with copy in flight", "unordered copies", "refilled while read")
_RELEASE = "if (lane < Config::SPLIT_K) ptx::mbarrier_arrive_cluster(sender);"
_READ = "__syncwarp();  // all lanes have stored"
_LANES = "lane / 8 % 2 * 8;"

SPLIT_MUTANTS: tuple[Mutant, ...] = (
    # -- sums --------------------------------------------------------------------------------------------------------
    mutant(
        "sent before the last sums are made",
        "split",
        (SPLIT, _EMPTY_WAIT, "// fresh"),
        by="refilled while read",
    ),
    mutant("sums without a wait", "split", (SPLIT, _FULL_WAIT, ""), by="copy not waited for", policy="eager"),
    mutant(
        "a part too few is awaited",
        "split",
        (SPLIT, _EXPECT, "(Config::SPLIT_K - 2) * SHARE_BYTES);"),
        by="copy not waited for",
    ),
    mutant("the own part is awaited too", "split", (SPLIT, _EXPECT, "Config::SPLIT_K * SHARE_BYTES);"), by="deadlock"),
    mutant("room is never given free", "split", (SPLIT, _RELEASE, ""), by="deadlock"),
    mutant(
        "room is given free to the own CTA alone",
        "split",
        (SPLIT, _RELEASE, "if (lane == 0) ptx::mbarrier_arrive(empty);"),
        by="deadlock",
    ),
    mutant(
        "room is given free before it is read",
        "split",
        (SPLIT, _FULL_WAIT, f"{_FULL_WAIT} {_RELEASE.replace('sender', 'ptx::mapa_shared_cluster(empty, lane % 2)')}"),
        (SPLIT, f"{_RELEASE} }}", "}"),
        by="refilled while read",
    ),
    mutant("room is given free before all lanes have stored", "split", (SPLIT, _READ, ""), by="refilled while read"),
    mutant(
        "room is given free after the last tile too",
        "split",
        (CONSUMER, "if (!is_last) reduction.give_room();", "reduction.give_room();"),
        by=("exit before remote access", "peer exited"),
    ),
    mutant(
        "one consumer gives its room free after the last tile too",
        "split of two consumers",
        (CONSUMER, "if (!is_last) reduction.give_room();", "if (!is_last || index == 1) reduction.give_room();"),
        by=("exit before remote access", "peer exited"),
    ),
    mutant(
        "room is given free after the last tile too, by six of eight",
        "split in eight, six store",
        (CONSUMER, "if (!is_last) reduction.give_room();", "reduction.give_room();"),
        by=("exit before remote access", "peer exited"),
    ),
    mutant(
        "no room is given free before the last tile but one",
        "split",
        (CONSUMER, "i + 1 == num_wide, [] {}", "i + 2 >= num_wide, [] {}"),
        by="deadlock",
    ),
    mutant(
        "bytes of the next tile are announced while those of this one are awaited",
        "split",
        (SPLIT, _FULL_WAIT, f"if (lane == 0) {_ANNOUNCE} {_FULL_WAIT}"),
        by=("deadlock", "mbarrier over-arrival", "copy not waited for"),
    ),
    mutant(
        "all ranks send to one place",
        "split in four",
        (SPLIT, "values + rank * SHARE_BYTES, receiver", "values, receiver"),
        by="unordered copies",
    ),
    mutant(
        "every share goes to rank 0",
        "split",
        (SPLIT, "values + rank * SHARE_BYTES, receiver", "values + rank * SHARE_BYTES, 0"),
        by=("copy not waited for", "unordered copies"),
    ),
    mutant(
        "full is counted in the own CTA",
        "split",
        (SPLIT, "ptx::mapa_shared_cluster(full, receiver);", "ptx::mapa_shared_cluster(full, rank);"),
        by="exit with copy in flight",
    ),
    # -- the own share, which stays in its registers -----------------------------------------------------------------
    mutant("the own share is sent too", "split", (SPLIT, _KEEPS, ""), by=_BYTES),
    mutant("the own share is sent too, by six of eight", "split in eight, six store", (SPLIT, _KEEPS, ""), by=_BYTES),
    mutant(
        "the own share is awaited too, by six of eight",
        "split in eight, six store",
        (SPLIT, _EXPECT, "Config::SPLIT_K * SHARE_BYTES);"),
        by="deadlock",
    ),
    mutant(
        "a rank that stores nothing keeps a share",
        "split in four, one stores",
        (SPLIT, _KEEPS, "if (receiver == static_cast<int>(rank) % RECEIVERS) continue;"),
        by="deadlock",
    ),
    mutant(
        "the share of the next rank is kept, not the own",
        "split in four",
        (SPLIT, _KEEPS, "if (receiver == static_cast<int>(rank + 1) % RECEIVERS) continue;"),
        by=("deadlock", WRONG_NUMBERS),
    ),
    mutant(
        "the own share is added twice",
        "split",
        (SPLIT, _OWN, f"{_OWN} for (int value = 0; value < 4; ++value) part[value] += part[value];"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "the own share is not added",
        "split",
        (SPLIT, _OWN, "for (int value = 0; value < 4; ++value) part[value] = 0.0f;"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "the own share is read from its room, where nobody has sent it",
        "split in four",
        (SPLIT, f"if (sender == static_cast<int>(rank)) {{ {_OWN} }} else {{", "{"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "the own share is taken for that of rank 0",
        "split",
        (SPLIT, "if (sender == static_cast<int>(rank)) {", "if (sender == 0) {"),
        by=WRONG_NUMBERS,
    ),
    *(
        mutant(
            f"the own share is {whose}, {case}",
            case,
            (SPLIT, "receiver == 0 || receiver == static_cast<int>(rank) ? r", f"{condition} ? r"),
            by=WRONG_NUMBERS,
        )
        for case in ("split in four", "split in eight, six store")
        for whose, condition in (
            ("the first columns", "receiver == 0"),
            ("the last columns", "true"),
            ("the next rank's", "receiver == 0 || receiver == static_cast<int>(rank + 1)"),
        )
    ),
    *(
        mutant(
            f"the own share is every second block, {case}",
            case,
            (SPLIT, "rC[4 * (receiver * SHARE_BLOCKS + i) + value]", "rC[4 * (receiver + i * RECEIVERS) + value]"),
            by=WRONG_NUMBERS,
        )
        for case in ("split in four", "split in eight, six store")
    ),
    mutant(
        "the own share of every row block is the first one's",
        "split of two row blocks",
        (SPLIT, "own(rC[block], i, part);", "own(rC[0], i, part);"),
        by=WRONG_NUMBERS,
    ),
    # -- phases, parts of k, places ----------------------------------------------------------------------------------
    mutant(
        "only receivers go on to the next phase",
        "split in four, one stores",
        (CONSUMER, "reduction.advance();", "if (reduction.receives()) reduction.advance();"),
        by=("unordered copies", "peer exited"),
    ),
    mutant(
        "empty expects all ranks",
        "split in two, one stores",
        (SPLIT, "&partials.empty[warp]), RECEIVERS);", "&partials.empty[warp]), Config::SPLIT_K);"),
        by="deadlock",
    ),
    mutant(
        "ranks share a k tile",
        "split",
        (
            SPLIT,
            "(r + 1) * num_k_tiles / Config::SPLIT_K - first};",
            "(r + 1) * num_k_tiles / Config::SPLIT_K - first + 1};",
        ),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "every rank walks the first k tiles",
        "split",
        (SPLIT, "return KTiles{first, (r", "return KTiles{0, (r"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "every rank stores the first columns",
        "split",
        (CONSUMER, "tile.n / Fused::FOLD + reduction.first_column()", "tile.n / Fused::FOLD"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "ranks take tiles of their own",
        "split",
        (UNIT, "Config::SPLIT_K > 1 ? 0 : cta_rank);", "cta_rank);"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "warps send to one warp",
        "split",
        (
            SPLIT,
            "values(shared_address(partials.values[warp]) + the_lane * 16)",
            "values(shared_address(partials.values[0]) + the_lane * 16)",
        ),
        by="copy not waited for",
    ),
    mutant(
        "the cluster does not meet at the start",
        "split",
        (UNIT, START, "        __syncthreads();\n    }\n    if constexpr (Config::DEPENDENT_LAUNCH)"),
        by=("mbarrier init order", "mbarrier before init"),
    ),
    mutant(
        "inits of parts not fenced",
        "split",
        (UNIT, f"init_partials(partials); {FENCE}", "init_partials(partials);"),
        by=("mbarrier init order", "mbarrier init fence"),
    ),
    # -- transposed stores -------------------------------------------------------------------------------------------
    mutant(
        "transposed: no proxy fence before the store",
        "swap",
        (EPILOGUE, "    ptx::fence_proxy_async_shared_cta();\n    __syncwarp();\n", "    __syncwarp();\n"),
        by="missing proxy fence",
    ),
    mutant(
        "transposed, predicated: no __syncwarp before slots are read",
        "swap, predicated stores",
        (EPILOGUE, "(lane % STORE_ROWS); __syncwarp();", "(lane % STORE_ROWS);"),
        by="missing __syncwarp",
    ),
    mutant(
        "transposed: matrices in each other's rows",
        "swap",
        (TRANSPOSED, _LANES, "(1 - lane / 8 % 2) * 8;"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "transposed: slots are not swizzled",
        "swap",
        (TRANSPOSED, "swizzled<ROW_BYTES>(column * ROW_BYTES + row * SIZE)", "column * ROW_BYTES + row * SIZE"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "transposed: not transposed",
        "swap",
        (TRANSPOSED, "ptx::stmatrix_x4_trans(", "ptx::stmatrix_x4("),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "transposed: boxes at exchanged coordinates",
        "swap",
        (EPILOGUE, "Config::OUT_TRANSPOSED ? row : first, Config::OUT_TRANSPOSED ? first : row", "first, row"),
        by=(WRONG_NUMBERS, "unordered copies"),
    ),
    mutant(
        "transposed in fp32: the second row's values first",
        "swap in fp32",
        (TRANSPOSED, "lane / 4 + i / 2 % 2 * 8;", "lane / 4 + (1 - i / 2 % 2) * 8;"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "transposed, predicated: rows past the end are written",
        "swap, predicated stores",
        (EPILOGUE, "if (out_row >= out.m || out_column >= out.n) break;", "if (out_column >= out.n) break;"),
        by=("out of bounds", WRONG_NUMBERS),
    ),
)
