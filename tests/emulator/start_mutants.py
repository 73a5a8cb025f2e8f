"""Bugs of the kernel's start: slots that are filled before the CTA meets, and whose they are; and of its end: what a
CTA waits for before it leaves. As in mutants.py.

That a kernel which starts beside the launch before does not start early is a fact of its paths, not of a run: nothing
here has a launch before it (tests/kernels/test_hopper.py).
"""

from __future__ import annotations

from gemm import WRONG_NUMBERS, Mutant
from mutants import END, FENCE, PRODUCER, SCHEDULE, UNIT, mutant

_EARLY_INIT = "init_full<0, EARLY_SLOTS>(ring);"
_LATE_INIT = "if constexpr (EARLY_SLOTS < SLOTS) init_full<EARLY_SLOTS, SLOTS>(ring);"
_START = """
        if constexpr (STARTS_EARLY && ONE_SQUARE_ALONE) {
            if (schedule.is_one_square() && schedule.has_wide(0)) {
                first = schedule.first_of_square(row_scale);
                producer.start(first);
            }
        } else {
            first = schedule.first(row_scale);
            if (STARTS_EARLY && schedule.has_wide(0)) producer.start(first);
        }
"""
_INIT = "ptx::mbarrier_init(ring.full_at(slot), Config::FULL_ARRIVALS);"
_COUNT = "min(STARTED_SLOTS, k_tiles.count)"
_FROM = "i == 0 ? num_started : 0"
_LINES = "at(place - column * walk.square_m, column, 0);"
_IS_SQUARE = "&& walk.square_m * walk.square_n == walk.num_wide;"
_NO_PLACE = "tensor coordinate"  # of a store: what shared memory holds where no tile's place has been written
_OTHERS = "if (threadIdx.x == WARP_THREADS) {"
_GIVEN_BACK = "wait(wide.ring.empty_at(wide.state.index), wide.state.parity);"
_LEFT = ("exit before remote access", "peer exited")
_FILLED_TWICE = ("missing wait", "mbarrier over-arrival", "unordered copies", "operand released early")

START_MUTANTS: tuple[Mutant, ...] = (
    # -- barriers ----------------------------------------------------------------------------------------------------
    mutant(
        "early slots are filled before their barriers are ready",
        "single",
        (UNIT, f"{_EARLY_INIT} {_START}", f"{_START} {_EARLY_INIT}"),
        by="mbarrier before init",
    ),
    mutant(
        "an early slot more than barriers that are ready",
        "deep ring",
        (PRODUCER, _COUNT, "min(STARTED_SLOTS + 1, k_tiles.count)"),
        by="mbarrier before init",
    ),
    mutant(
        "an early slot more than the ring has",
        "single",
        (PRODUCER, _COUNT, "min(STARTED_SLOTS + 1, k_tiles.count)"),
        by=_FILLED_TWICE,
    ),
    mutant(
        "early slots of a ring of two are three",
        "staggered pair, long k",
        (PRODUCER, _COUNT, "min(3, k_tiles.count)"),
        by=_FILLED_TWICE,
    ),
    mutant(
        "inits of early full barriers not fenced",
        "deep ring",
        (UNIT, _EARLY_INIT, f"for (uint32_t slot = 0; slot < EARLY_SLOTS; ++slot) {_INIT}"),
        by="mbarrier init fence",
    ),
    mutant(
        "inits of later full barriers not fenced",
        "deep ring",
        (UNIT, _LATE_INIT, f"for (uint32_t slot = EARLY_SLOTS; slot < SLOTS; ++slot) {_INIT}"),
        by="mbarrier init fence",
    ),
    mutant(
        "no fence of any full barrier, split",
        "split",
        (UNIT, f"{_INIT} {FENCE}", _INIT),
        by="mbarrier init fence",
    ),
    mutant(
        "later full barriers are not made ready",
        "deep ring",
        (UNIT, _LATE_INIT, ""),
        by="mbarrier before init",
    ),
    mutant(
        "early full barriers are made ready by the warp that makes the others",
        "single",
        (UNIT, _EARLY_INIT, ""),
        (UNIT, _OTHERS, f"{_OTHERS} {_EARLY_INIT}"),
        by=("mbarrier before init", "mbarrier init order"),
    ),
    mutant(
        "the last early full barrier is made ready again, behind its load",
        "deep ring",
        (UNIT, _LATE_INIT, "init_full<EARLY_SLOTS - 1, SLOTS>(ring);"),
        by="mbarrier re-init",
    ),
    mutant(
        "full barriers of the narrow ring are not made ready",
        "tail",
        (UNIT, _LATE_INIT, "init_full<EARLY_SLOTS, Config::STAGES>(ring);"),
        by="mbarrier before init",
    ),
    mutant(
        "a split's own barriers are made ready behind the fence",
        "split",
        (UNIT, f"init_partials(partials); {FENCE}", f"{{}} {FENCE} init_partials(partials);"),
        by=("mbarrier init order", "mbarrier before init"),
    ),
    # -- clusters ----------------------------------------------------------------------------------------------------
    mutant(
        "a cluster's first slots are loaded for the peers too",
        "cluster of uneven shares",
        (PRODUCER, "columns_of<true>(first", "columns_of<false>(first"),
        (PRODUCER, "fill_slot<true>(wide", "fill_slot<false>(wide"),
        by=("mbarrier init order", "mbarrier before init"),
    ),
    mutant(
        "alone, a CTA loads the first box of b alone",
        "cluster of uneven shares",
        (PRODUCER, "row < EXTENT; row += BOX_ROWS", "row < BOX_ROWS; row += BOX_ROWS"),
        by="deadlock",
    ),
    mutant(
        "alone, a CTA loads the first share of a panel again and again",
        "cluster of panels",
        (PRODUCER, "map, column, k + row, member, barrier);", "map, column, k, member, barrier);"),
        by=WRONG_NUMBERS,
    ),
    # -- what is filled ----------------------------------------------------------------------------------------------
    mutant(
        "what was filled early is filled again",
        "single",
        (PRODUCER, _FROM, "0"),
        by=("deadlock", "missing wait", _NO_PLACE, WRONG_NUMBERS),
    ),
    mutant(
        "every tile begins where the early slots of the first end",
        "single",
        (PRODUCER, _FROM, "num_started"),
        by="deadlock",
    ),
    mutant(
        "the ring begins again after the early slots",
        "single",
        (
            UNIT,
            "producer.run(schedule, first,",
            "Producer(shared, a_map, b_map, b_tail_map, batch, k_tiles, cta_rank).run(schedule, first,",
        ),
        by=_FILLED_TWICE,
    ),
    mutant(
        "as many early slots as may be, however short k is",
        "squares",
        (PRODUCER, _COUNT, "STARTED_SLOTS"),
        by=("deadlock", "data race", "copy not waited for", _NO_PLACE, WRONG_NUMBERS),
    ),
    mutant(
        "an early slot does not say whose it is",
        "single",
        (PRODUCER, "num_started == 0, batch", "false, batch"),
        by=("data race", _NO_PLACE, WRONG_NUMBERS),
    ),
    mutant(
        "early slots hold the first k tile",
        "single",
        (
            PRODUCER,
            "fill_slot<true>(wide, first, num_started, num_started == 0,",
            "fill_slot<true>(wide, first, 0, num_started == 0,",
        ),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "early slots of a batch that shares a move on",
        "a CTA a matrix",
        (PRODUCER, "num_started == 0, batch.a_member(member), columns", "num_started == 0, member, columns"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "a CTA without a tile starts",
        "an idle CTA",
        (UNIT, "schedule.is_one_square() && schedule.has_wide(0)", "schedule.is_one_square()"),
        by=("exit with copy in flight", "data race"),
    ),
    mutant(
        "every rank of a split starts with the first one's k tiles",
        "split",
        (UNIT, "batch, k_tiles, cta_rank);", "batch, k_tiles_of((k - 1) / Config::TILE_K + 1, 0), cta_rank);"),
        by=WRONG_NUMBERS,
    ),
    mutant(
        "a rank of a split starts with as many slots as all of k has",
        "split in four",
        (PRODUCER, _COUNT, "min(STARTED_SLOTS, Config::SPLIT_K * k_tiles.count)"),
        by=("deadlock", "data race", "copy not waited for", _NO_PLACE, WRONG_NUMBERS),
    ),
    mutant(
        "the first narrow tile begins where the early slots of the first wide one end",
        "tail",
        (PRODUCER, "is_backward(i + j), 0, [&]", "is_backward(i + j), j == 0 ? num_started : 0, [&]"),
        by="deadlock",
    ),
    # -- the first tile ----------------------------------------------------------------------------------------------
    mutant(
        "the first tile as if out were one square",
        "squares",
        (SCHEDULE, _IS_SQUARE, ";"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "of a batch the first tile as if one matrix were all",
        "a CTA a matrix",
        (SCHEDULE, f"Config::BATCH_DIMS == 0 && Config::TAIL_N == 0 {_IS_SQUARE}", "true;"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "the first tile with rows and columns exchanged",
        "single",
        (SCHEDULE, _LINES, "at(column, place - column * walk.square_m, 0);"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "the first tile's column is of twice the places",
        "single",
        (SCHEDULE, "__umulhi(4 * place", "__umulhi(8 * place"),
        by=("unordered copies", "out of bounds", WRONG_NUMBERS, "deadlock"),
    ),
    mutant(
        "the first tile is taken for known where nothing has been loaded early",
        "squares",
        (PRODUCER, "i == 0 && first_is_known ? first", "i == 0 ? first"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    # -- the end -----------------------------------------------------------------------------------------------------
    mutant(
        "only CTAs below each other wait until their slots are given back",
        "cluster side by side",
        (UNIT, END, END.replace("SHARING", "CLUSTER_M")),
        by=_LEFT,
    ),
    mutant(
        "a CTA waits as often for one slot as it has slots",
        "cluster",
        (PRODUCER, f"{_GIVEN_BACK} wide.state.advance(); }}", f"{_GIVEN_BACK} }}"),
        by=_LEFT,
    ),
    mutant(
        "a CTA waits for the phases before its slots' last",
        "cluster",
        (PRODUCER, _GIVEN_BACK, _GIVEN_BACK.replace("parity)", "parity ^ 1)")),
        by=_LEFT,
    ),
    mutant(
        "a CTA without a tile waits for slots that nobody fills",
        "an idle cluster",
        (PRODUCER, f"{_GIVEN_BACK} wide.state.advance(); }}", "wait(wide.ring.empty_at(slot), 0); }"),
        by="deadlock",
    ),
)
