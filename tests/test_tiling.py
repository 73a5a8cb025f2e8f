"""tiling.py: what follows from the fields of a config, against independent sums."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tilewright import device
from tilewright.config import Config
from tilewright.legality import SPLITS
from tilewright.packing import packed
from tilewright.problem import Problem
from tilewright.tiling import Tiling, busiest_rows, store_columns

H200 = device.preset("h200")
PROBLEM = packed(4096, 4096, 4096)


def test_the_numbers_name_the_fields_of_a_config_and_no_others() -> None:
    named = {name: kind for name, kind in Tiling.__annotations__.items() if not kind.startswith("ClassVar")}
    assert named == {field.name: field.type for field in dataclasses.fields(Config)}


def test_shared_memory_is_operands_store_slots_and_barriers() -> None:
    operands = 4 * (128 + 256) * 64 * 2
    store = 8 * 2 * 16 * 128  # 8 consumer warps, 2 slots of 16 rows of 128 bytes
    barriers = 2 * 4 * 8
    assert Config().smem_bytes(PROBLEM) == operands + store + 1024  # the barriers' 64 bytes, rounded to 1024
    assert barriers <= 1024


def test_two_consumers_hold_what_the_producer_gave_up() -> None:
    config = Config(consumers=2)
    assert config.entry_registers == 168
    assert config.registers(PROBLEM) == (24, 240)
    assert config.threads * config.entry_registers >= 128 * 24 + 256 * 240


@pytest.mark.parametrize(
    "problem",
    [packed(64, 64, 64, a_major="m", b_major="n"), packed(64, 64, 64, batch=(2,)), packed(64, 64, 64, batch=(2, 2))],
    ids=str,
)
def test_a_producer_of_batches_or_panels_keeps_more(problem: Problem) -> None:
    assert Config().registers(problem) == Config(cluster_m=2).registers(PROBLEM) == (40, 232)


def test_one_consumer_needs_no_transfer_of_registers() -> None:
    config = Config(tile_m=64, consumers=1)
    assert not config.moves_registers
    assert config.registers(PROBLEM) == (config.entry_registers, config.entry_registers) == (255, 255)


def test_an_empty_barrier_expects_one_arrival_per_consumer_warp_of_the_cluster() -> None:
    assert Config(consumers=2).empty_arrivals == 8
    assert Config(consumers=1, tile_m=64, cluster_m=2).empty_arrivals == 8
    assert Config(consumers=2, cluster_m=2).empty_arrivals == 16


def test_an_empty_barrier_expects_those_of_the_cluster_s_row_and_column_and_no_others() -> None:
    assert [Config(cluster_m=m, cluster_n=n).peers for m, n in ((2, 2), (4, 2), (2, 4), (1, 4))] == [3, 5, 5, 4]
    assert Config(consumers=2, cluster_m=4, cluster_n=2).empty_arrivals == 8 * 5
    assert Config(tile_n=64, pingpong=True, cluster_m=2, cluster_n=4).empty_arrivals == 4 * 5


@pytest.mark.parametrize("extent", range(8, 257, 8))
@pytest.mark.parametrize("shares", [1, 2, 4])
def test_the_boxes_of_a_shared_tile_are_whole_atoms_and_leave_no_share_far_behind(extent: int, shares: int) -> None:
    box_rows = Config(tile_n=extent, cluster_m=shares).b_box_rows(PROBLEM)
    assert box_rows % 8 == extent % box_rows == 0
    assert extent / shares <= busiest_rows(extent, shares, box_rows) <= extent / shares + 40
    if extent % (8 * shares) == 0:
        assert box_rows == extent // shares


def test_the_docstring_s_worked_examples_of_shares_hold() -> None:
    found = [
        (rows := Config(tile_n=n, cluster_m=m).b_box_rows(PROBLEM), n // rows)
        for n, m in ((128, 4), (72, 4), (72, 2), (176, 4))
    ]
    assert found == [(32, 4), (24, 3), (24, 3), (16, 11)]
    assert Config(tile_m=256, cluster_n=4).a_box_rows == 64


def test_the_cta_s_of_a_split_release_their_own_slots_alone() -> None:
    config = Config(tile_m=64, tile_n=64, consumers=1, split_k=4)
    assert (config.cluster, config.sharing, config.empty_arrivals) == (4, 1, 4)


@pytest.mark.parametrize(
    ("tile_n", "split_k", "stored_n"),
    [(64, 1, 64), (64, 4, 16), (24, 2, 24), (8, 4, 8), (24, 8, 8), (200, 2, 200), (192, 8, 24), (256, 8, 32)],
)
def test_each_column_of_a_split_tile_is_stored_by_one_cta(tile_n: int, split_k: int, stored_n: int) -> None:
    assert Config(tile_n=tile_n, split_k=split_k).stored_n == stored_n


def test_every_split_has_a_cta_for_each_share() -> None:
    for tile_n in range(8, 257, 8):
        for split_k in SPLITS:
            stored_n = Config(tile_n=tile_n, split_k=split_k).stored_n
            assert tile_n % stored_n == stored_n % 8 == 0
            assert tile_n // stored_n <= split_k


def test_a_split_keeps_room_for_what_its_ctas_send() -> None:
    """4 CTAs send 64 x 16 fp32 each, and 4 warps have two barriers."""
    plain = Config(tile_m=64, tile_n=64, consumers=1)
    split = plain.replace(split_k=4)
    assert split.partial_bytes == 4 * 64 * 16 * 4 + 4 * 16
    stores = plain.store_bytes(PROBLEM) - split.store_bytes(PROBLEM)  # a quarter of the columns is stored
    assert plain.smem_bytes(PROBLEM) - split.smem_bytes(PROBLEM) + split.partial_bytes == stores


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("problem", [packed(24, 4096, 512, a_major="m"), packed(24, 48, 512, out_major="m")], ids=str)
def test_what_is_computed_is_computed_as_it_is(problem: Problem, swap: bool) -> None:
    config = Config(swap=swap)
    computed = config.computed(problem)
    assert config.computed(computed) == computed
    assert (computed.out_major == "m") is swap
    assert computed.footprints["out"] == problem.footprints["out"]
    assert {computed, computed.transposed} == {problem, problem.transposed}


def test_swapped_tiles_stand_on_columns_of_out() -> None:
    config = Config(tile_m=64, tile_n=16, consumers=1, swap=True)
    assert config.tiles(packed(16, 6144, 4096)) == (96, 1)


def test_a_ping_pong_consumer_owns_the_rows_of_the_whole_tile() -> None:
    config = Config(tile_n=192, pingpong=True)
    assert (config.consumer_m, config.wgmmas_m, config.accumulators) == (128, 2, 192)
    assert config.empty_arrivals == 4


@pytest.mark.parametrize(
    ("tile_n", "out_dtype", "columns", "pieces"),
    [
        (256, None, 64, 4), (192, None, 64, 3), (200, None, 200, 1), (176, None, 88, 2), (160, None, 40, 4),
        (120, None, 120, 1), (8, None, 8, 1), (256, "fp32", 32, 8), (200, "fp32", 8, 25), (24, "fp32", 8, 3),
    ],
)  # fmt: skip
def test_a_store_slot_is_the_widest_box_whose_rows_meet_in_no_bank(
    tile_n: int, out_dtype: str | None, columns: int, pieces: int
) -> None:
    problem = packed(64, 64, 64, out_dtype=out_dtype)
    assert store_columns(problem, tile_n) == columns
    assert tile_n == columns * pieces
    row_bytes = columns * problem.out_dtype.size
    assert row_bytes in (32, 64, 128) or row_bytes // 16 % 2 == 1
    assert store_columns(packed(64, 61, 64, out_dtype=out_dtype), tile_n) == columns  # stored by TMA or not


@pytest.mark.parametrize(
    ("extents", "tail_n", "wide", "narrow", "waves"),
    [
        ((8192, 8192, 8192), 80, 1320, 112, (10, 1)),
        ((4096, 4096, 4096), 120, 264, 128, (2, 1)),
        ((4096, 4096, 4096), 0, 352, 0, (3, 0)),
        ((4096, 4096, 4096), 112, 352, 0, (3, 0)),  # 144 narrow tiles are two rounds: no gain over one of wide ones
        ((8448, 8448, 8192), 96, 1452, 0, (11, 0)),  # nothing is left of 11 full waves
        ((256, 192, 64), 96, 1, 0, (1, 0)),  # less than a wave
    ],
)
def test_waves_count_wide_tiles_and_the_narrow_ones_after_them(
    extents: tuple[int, int, int], tail_n: int, wide: int, narrow: int, waves: tuple[int, int]
) -> None:
    config, problem = Config(tile_m=256, tile_n=192, stages=3, tail_n=tail_n), packed(*extents)
    grid = min(132, wide)
    assert config.wide_tiles(problem, grid) == wide
    assert config.narrow_tiles(problem, wide) == narrow
    assert config.waves(problem, grid) == waves


@pytest.mark.parametrize(
    ("fields", "ctas"),
    [
        ({"tile_m": 64, "tile_n": 8, "consumers": 1, "stages": 8, "store_slots": 1, "split_k": 8}, 2),
        ({"tile_m": 64, "tile_n": 8, "consumers": 1, "stages": 16, "store_slots": 1, "split_k": 8}, 1),
        ({"tile_m": 128, "tile_n": 16, "consumers": 2, "stages": 5, "store_slots": 1, "split_k": 2}, 1),
    ],
)
def test_two_ctas_fit_an_sm_where_half_the_memory_serves_and_registers_stay(fields: dict[str, Any], ctas: int) -> None:
    """8 stages of 9 KB; 16; two consumers, who take all registers."""
    assert Config(**fields).ctas_per_sm(packed(8, 4096, 4096), H200) == ctas
