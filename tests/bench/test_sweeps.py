"""bench/sweeps.py and sweep_conflicts.py: which variants there are, that all can run, and what differs between them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tilewright.backends.base import IntArgument, MapArgument
from tilewright.backends.emulated import emulated, turns_of_a_read
from tilewright.bench.ladder_emulated import emulate
from tilewright.bench.sweep_conflicts import conflict_rows
from tilewright.bench.sweeps import (
    CUBLAS,
    PROBLEM,
    Sweep,
    ampere_size_sweeps,
    ampere_sweeps,
    described,
    sources,
    sweep,
    sweeps,
)
from tilewright.device import preset
from tilewright.dtypes import BF16
from tilewright.errors import UnsupportedError
from tilewright.jit.build import build, flaws
from tilewright.kernels.catalog import family
from tilewright.packing import packed
from tilewright.plan import Plan
from tilewright.problem import Problem

H200 = preset("h200")
ALL = sweeps(H200)
EVERY = (*ALL, *ampere_sweeps(), *ampere_size_sweeps())
AGAIN = ("ampere-slices-512", "ampere-sums-8192")  # the variants of another at another size


def plan(each: Any, problem: Problem = PROBLEM) -> Plan:
    def no_backend() -> Any:
        raise AssertionError("no test here runs a kernel")

    found = each.plan(problem, H200, no_backend)
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.name)
def test_every_variant_can_run_and_is_named_once(each: Sweep) -> None:
    names = [variant.name for variant in each.variants]
    assert len(set(names)) == len(names) >= 3
    assert CUBLAS not in names
    assert [variant.violations(each.problem, H200) for variant in each.variants] == [()] * len(names)


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.name)
def test_no_two_variants_are_the_same_launch(each: Sweep) -> None:
    plans = [plan(variant, each.problem) for variant in each.variants]
    found = [(found.sources[0].digest(""), found.launch, found.arguments) for found in plans]
    assert all(found.count(launch) == 1 for launch in found)


def test_the_most_important_sweep_is_first() -> None:
    assert [each.name for each in ALL[:4]] == ["order", "cluster", "swizzle", "stages"]


def test_orders_of_one_tile_share_their_kernel_but_for_the_walk_along_k() -> None:
    tall = [variant for variant in ALL[0].variants if variant.name.startswith("256x200")]
    kernels = {variant.source(PROBLEM, H200).digest("") for variant in tall}
    assert len(kernels) == 2
    groups = [{a.name: a.value for a in plan(v).arguments if isinstance(a, IntArgument)}["group_m"] for v in tall]
    assert groups == [1, 4, 8, 11, 12, 16, 32, 8]


def test_clusters_multicast_the_operand_that_their_names_say() -> None:
    for variant in sweep("cluster", H200).variants:
        boxes = {a.operand: a.tensor_map.box[1] for a in plan(variant).arguments if isinstance(a, MapArgument)}
        own = variant.config
        assert boxes["a"] == (own.tile_m // 2 if "a multicast" in variant.name else own.tile_m)
        assert boxes["b"] == (own.tile_n // 2 if "b multicast" in variant.name else own.tile_n)


def test_promotions_differ_in_every_tensor_map_and_in_nothing_else() -> None:
    variants = sweep("promotion", H200).variants
    sizes = [
        {a.tensor_map.l2_promotion_bytes for a in plan(variant).arguments if isinstance(a, MapArgument)}
        for variant in variants
    ]
    assert sizes == [{0}, {64}, {128}, {256}]
    assert len({variant.source(PROBLEM, H200).digest("") for variant in variants}) == 1


def test_a_fifo_has_two_to_eight_slots() -> None:
    slots = {(v.config.tile_n, v.config.stages) for v in sweep("stages", H200).variants}
    assert slots == {(128, stages) for stages in range(2, 8)} | {(96, stages) for stages in range(2, 9)}


def test_every_promised_order_is_there() -> None:
    names = " ".join(variant.name for variant in sweep("order", H200).variants)
    for word in ("row by row", "groups of 4", "groups of 32", "patches of 12 x 11", "column by column", "Hilbert"):
        assert word in names
    assert "k always forwards" in names  # the others walk k back and forth


def test_tiles_are_those_of_the_production_space_and_two_more() -> None:
    tiles = [(variant.config.tile_m, variant.config.tile_n) for variant in sweep("tile", H200).variants]
    assert {(256, 208), (256, 160), (256, 192), (128, 256)} <= set(tiles)
    assert tiles == sorted(tiles, key=lambda tile: -tile[0] * tile[1])


def test_a_kernel_is_compiled_once_for_all_sweeps() -> None:
    found = sources(ALL, H200)
    assert len({source.digest("") for source in found}) == len(found) < sum(len(each.variants) for each in ALL)


def test_slices_of_few_tiles_go_up_to_what_the_rung_takes_itself_and_are_built_with_what_adds_them_up() -> None:
    for each in ampere_size_sweeps()[:2]:
        last = each.variants[-1]
        own = family(last.family).choice(each.problem, H200)  # type: ignore[attr-defined]
        assert last.config == own
        assert 100 < plan(last, each.problem).launch.grid <= H200.num_sms
    assert [source.entry for source in sources(ampere_size_sweeps()[:2], H200)].count("sums") == 1


def test_sweeps_that_are_emulated_once_have_no_variant_of_their_own() -> None:
    configs = {each.name: {(v.family, v.config) for v in each.variants} for each in ampere_size_sweeps()}
    assert configs["ampere-slices-512"] < configs["ampere-slices-256"]
    assert configs["ampere-sums-8192"] == configs["ampere-sums-4096"]


def test_only_the_sweeps_of_sums_are_checked_within_what_fp16_keeps() -> None:
    shorter = [each.name for each in EVERY if each.exact_problem != each.problem]
    assert shorter == ["ampere-sums-4096", "ampere-sums-8192"]


def test_an_unknown_sweep_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnsupportedError, match="order, cluster, swizzle"):
        sweep("tiles", H200)


def test_a_sweep_can_leave_variants_out() -> None:
    each = sweep("stages", H200)
    assert [v.name for v in each.without(["2 slots"]).variants] == [v.name for v in each.variants[1:]]


def test_a_row_names_the_field_that_the_config_s_text_leaves_out() -> None:
    each = sweep("swizzle", H200)
    assert "panel_bytes=32" in described(each, each.variants[1])["words"]


@pytest.mark.slow
@pytest.mark.parametrize("each", [each for each in EVERY if each.name not in AGAIN], ids=lambda each: each.name)
def test_every_variant_compiles_clean_and_is_exact_in_the_emulator(each: Sweep) -> None:
    problem = packed(520, 400, 200)  # several tiles a CTA for some, edges for all, k longer than most FIFOs
    if each in ampere_size_sweeps():  # 64 slices of whole 16 bytes; sums that fp16 keeps
        problem = packed(72, 264, 512 if each.problem.k > each.problem.m else 200, dtype=each.problem.dtype.name)
    for variant in each.variants:
        backend = emulated(checks=True)
        found = variant.plan(problem, H200, lambda backend=backend: backend)
        assert flaws(found.binary) == (), variant.name
        assert emulate(found, backend)["status"] == "ok", variant.name


# -- bank conflicts ----------------------------------------------------------------------------------------------------


def test_no_panel_that_wgmma_can_read_has_a_conflict() -> None:
    rows = list(conflict_rows(sweep("swizzle", H200), at_size=False))
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert [row["turns_of_a_read"] for row in rows] == [1, 1, 1, 1]
    assert [row["boxes_a_slot"] for row in rows] == [16, 8, 4, 2]
    assert [row["conflicts"] for row in rows] == [0.0] * 4


def test_what_padding_and_swizzle_do_to_banks_is_counted() -> None:
    """Rows of 64 bytes: ldmatrix 4 turns, 1 or 2 as padded, 1; 16-byte stores 1, 2, 1. All over the fewest of both."""
    found = {row["variant"]: row["conflicts"] for row in conflict_rows(sweep("ampere-banks", H200), at_size=False)}
    narrow = [value for name, value in found.items() if name.startswith("rows of 64 bytes")]
    wide = [value for name, value in found.items() if name.startswith("rows of 128 bytes")]
    reads, stores = 384, 128  # wavefronts of a k tile without a conflict
    both = reads + stores
    assert narrow == [3 * reads / both, stores / both, (reads + stores) / both, 0.0]
    assert wide == [7 * reads / both, 0.0, reads / both, 0.0]


def test_conflicts_at_the_sweeps_size_and_occupancy_stand_beside_them() -> None:
    each = sweep("ampere-banks", H200)
    (row,) = conflict_rows(dataclasses.replace(each, variants=each.variants[:1]))  # rows of 64 bytes as they are
    k_tiles = 64 * 64 * 256  # of 128 x 128 x 32 at 8192^3
    assert row["emulated_wavefronts"] == k_tiles * (4 * 384 + 128)
    assert row["emulated_conflicts"] == k_tiles * 3 * 384
    assert (row["occupancy_pct"], row["registers"] > 100) == (25.0, True)


def test_the_distance_is_one_less_than_the_slots_and_the_registers_of_all_budgets_hold() -> None:
    assert [variant.config.stages for variant in sweep("ampere-distance", H200).variants] == [1, 2, 3, 4, 5]
    for variant in sweep("ampere-registers", H200).variants:
        assert flaws(build(variant.source(PROBLEM, H200))) == (), variant.name


def test_rows_of_a_whole_line_without_a_swizzle_are_read_in_eight_turns() -> None:
    [box, _] = [a.tensor_map for a in plan(sweep("swizzle", H200).variants[3]).arguments if isinstance(a, MapArgument)]
    assert (box.dtype, box.box, box.swizzle_bytes) == (BF16, (64, 128), 128)
    assert turns_of_a_read(dataclasses.replace(box, swizzle_bytes=0)) == 8
