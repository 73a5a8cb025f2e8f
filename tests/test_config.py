"""config.py: derived numbers against independent sums, and every rule of legality with its sentence."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import device
from tilewright.config import SPLITS, Config, busiest_rows, store_columns
from tilewright.errors import ConfigError
from tilewright.problem import Problem, packed

H200 = device.preset("h200")
PROBLEM = packed(4096, 4096, 4096)


def test_the_default_config_is_legal() -> None:
    assert Config().violations(PROBLEM, H200) == ()


def test_whole_numbers_of_numpy_are_whole_numbers_and_its_others_are_not() -> None:
    config = Config(tile_n=np.int64(192), stages=np.uint8(4), group_m=np.int32(8))
    assert config == Config(tile_n=192, stages=4, group_m=8)
    assert [type(getattr(config, name)) for name in ("tile_n", "stages", "group_m")] == [int] * 3
    assert Config().replace(tile_n=np.int16(192)).violations(PROBLEM, H200) == ()
    assert json.loads(json.dumps(dataclasses.asdict(config)))["tile_n"] == 192
    for wrong in (np.float32(192), np.array([192, 8]), np.bool_(True), True):
        assert "is not a whole number" in Config(tile_n=wrong).violations(PROBLEM, H200)[0]


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


def test_a_swap_of_an_m_contiguous_a_wants_whole_panels_of_rows() -> None:
    problem = packed(64, 4096, 4096, a_major="m")
    assert Config(tile_m=64, tile_n=64, consumers=1, swap=True).violations(problem, H200) == ()
    (reason,) = Config(tile_m=64, tile_n=32, consumers=1, swap=True).violations(problem, H200)
    assert "tile_n = 32 of an m-contiguous a is not a multiple of 64" in reason


def test_a_split_has_a_k_tile_for_each_cta() -> None:
    config = Config(tile_m=64, tile_n=64, consumers=1, split_k=8)
    assert config.violations(packed(64, 64, 7 * 64 + 1), H200) == ()
    (reason,) = config.violations(packed(64, 64, 7 * 64), H200)
    assert reason == "split_k = 8 needs a k tile for each CTA; k = 448 has only 7"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"split_k": 3}, "split_k = 3 is not one of 1, 2, 4, 8, the sizes of a cluster"),
        ({"split_k": 0}, "split_k = 0 is not one of"),
        ({"split_k": 2, "cluster_m": 2}, "split_k = 2 takes the whole cluster; cluster_m x cluster_n = 2 x 1"),
        (
            {"split_k": 2, "tile_n": 128, "pingpong": True},
            "split_k = 2 is for consumers that share wide tiles, not for p",
        ),
        (
            {"swap": True, "tile_n": 128, "tail_n": 64},
            "swap = True is for consumers that share wide tiles, not for tail_n",
        ),
        ({"swap": True, "tile_m": 256, "tile_n": 128, "staggered": True}, "not for staggered"),
        ({"stages": 33}, "stages = 33 is outside 2 .. 32"),
        ({"split_k": 8}, "of partial sums are"),
        ({"consumers": 3}, "consumers = 3 is outside 1 .. 2"),
        ({"tile_m": 64}, "not a multiple of 128 (64 rows a consumer) up to 256"),
        ({"tile_m": 0}, "tile_m = 0"),
        ({"tile_m": 512}, "tile_m = 512"),
        ({"tile_n": 100}, "tile_n = 100 is not a multiple of 8"),
        ({"tile_n": 264}, "tile_n = 264"),
        ({"tile_n": 0}, "tile_n = 0"),
        ({"tile_k": 128}, "use 64"),
        ({"stages": 1}, "stages = 1 is outside 2 .. 32"),
        ({"stages": 5}, "bytes of shared memory; NVIDIA H200 gives a CTA 232448"),
        ({"stages": -4}, "stages = -4"),
        (
            {"cluster_m": 3},
            "cluster_m x cluster_n = 3 x 1 is not one of 1 x 1, 2 x 1, 1 x 2, 4 x 1, 1 x 4, 2 x 2, 4 x 2",
        ),
        ({"schedule": "spiral"}, "schedule = 'spiral' is not one of linear, grouped"),
        ({"group_m": 0}, "group_m = 0"),
        ({"store_slots": 0}, "store_slots = 0"),
        ({"store_slots": 10**30}, "store_slots"),
        ({"tile_m": 256, "tile_n": 256, "stages": 2}, "256 accumulators a thread"),
        ({"tile_m": 128.0}, "tile_m = 128.0 is not a whole number"),
        ({"tile_m": float("nan")}, "tile_m = nan is not a whole number"),
        ({"stages": "four"}, "stages = 'four' is not a whole number"),
        ({"stages": True}, "stages = True is not a whole number"),
        ({"cluster_m": 4, "cluster_n": 4}, "cluster_m x cluster_n = 4 x 4 is not one of"),
        ({"cluster_n": 8}, "cluster_m x cluster_n = 1 x 8 is not one of"),
        ({"pingpong": 1}, "pingpong = 1 is not True or False"),
        ({"pingpong": True, "consumers": 1}, "pingpong = True alternates between 2 consumers, not 1"),
        ({"pingpong": True, "tile_m": 256, "stages": 2}, "512 accumulators a thread"),
        ({"tail_n": 100}, "tail_n = 100 is not 0 or a multiple of 8 below tile_n = 256"),
        ({"tail_n": 256}, "tail_n = 256 is not 0 or a multiple of 8 below tile_n = 256"),
        ({"tail_n": -8}, "tail_n = -8"),
        ({"tail_n": 64, "cluster_m": 2}, "tail_n = 64 is for single CTAs"),
        ({"tail_n": 64, "tile_n": 192, "pingpong": True}, "whose consumers share their tiles"),
        ({"staggered": True}, "have 2 row blocks; not 1"),
        ({"staggered": True, "tile_n": 192, "pingpong": True}, "ping-pong already hides the stores"),
        ({"square": -1}, "square = -1 is outside 0 .. 65536"),
        ({"schedule": 3}, "schedule = 3 is not a word"),
        ({"tile_m": 256, "tile_n": 216, "stages": 2}, "216 accumulators a thread and 28 registers of state"),
    ],
)
def test_each_broken_rule_has_its_sentence_with_numbers(changes: dict[str, object], sentence: str) -> None:
    found = dataclasses.replace(Config(), **changes).violations(PROBLEM, H200)
    assert any(sentence in reason for reason in found), found


def test_a_ping_pong_consumer_owns_the_rows_of_the_whole_tile() -> None:
    config = Config(tile_n=192, pingpong=True)
    assert (config.consumer_m, config.wgmmas_m, config.accumulators) == (128, 2, 192)
    assert config.empty_arrivals == 4


def test_every_reason_is_given_at_once() -> None:
    found = Config(tile_n=100, stages=1, schedule="spiral").violations(PROBLEM, H200)
    assert len(found) == 3


def test_an_n_contiguous_b_needs_whole_panels_of_64_columns() -> None:
    config = Config(tile_n=176)
    assert config.violations(PROBLEM, H200) == ()
    (reason,) = config.violations(packed(4096, 4096, 4096, b_major="n"), H200)
    assert "multiple of 64" in reason


def test_a_tail_of_an_n_contiguous_b_is_whole_panels() -> None:
    config = Config(tile_m=256, tile_n=192, stages=3, tail_n=72)
    assert config.violations(PROBLEM, H200) == ()
    (reason,) = config.violations(packed(4096, 4096, 4096, b_major="n"), H200)
    assert reason == "tail_n = 72 of an n-contiguous b is not a multiple of 64"


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (packed(4096, 4096, 4096, out_dtype="fp32"), "keeps rounded 16-bit values, and out is fp32"),
        (packed(4096, 4096, 64), "needs two k tiles or more; k = 64 is one"),
    ],
)
def test_what_staggered_needs_of_the_problem_is_said(problem: Problem, sentence: str) -> None:
    config = Config(tile_m=256, tile_n=128, staggered=True)
    assert any(sentence in reason for reason in config.violations(problem, H200))


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


@pytest.mark.parametrize("name", ["a100", "rtx3090", "rtx4090"])
def test_a_device_without_wgmma_is_refused_by_name(name: str) -> None:
    (reason,) = Config().violations(PROBLEM, device.preset(name))
    assert "compute capability 9.0" in reason
    assert device.preset(name).name in reason


@pytest.mark.parametrize("sm", [(7, 5), (8, 9), (9, 1), (10, 0), (10, 3), (12, 0), (12, 1), (99, 0)])
def test_only_the_exact_capability_is_accepted(sm: tuple[int, int]) -> None:
    """B131: unknown means no."""
    assert Config().violations(PROBLEM, dataclasses.replace(H200, sm=sm))


def test_more_tiles_than_the_schedule_counts_are_refused() -> None:
    config = Config(tile_m=64, tile_n=8, consumers=1)
    assert any("2^30" in reason for reason in config.violations(packed(2**30, 2**20, 8), H200))


@pytest.mark.parametrize(
    ("n", "advice"), [(2**13, "use a larger tile, such as 256x128"), (2**30, "split the product along m or n")]
)
def test_a_larger_tile_is_advised_only_where_one_is_large_enough(n: int, advice: str) -> None:
    config = Config(tile_m=64, tile_n=8, consumers=1)
    assert any(reason.endswith(advice) for reason in config.violations(packed(2**30, n, 8), H200))


def test_a_cluster_does_not_fit_a_single_sm() -> None:
    single = dataclasses.replace(H200, num_sms=1)
    assert Config().violations(PROBLEM, single) == ()
    (reason,) = Config(cluster_m=2).violations(PROBLEM, single)
    assert "clusters of 2 CTAs do not fit the 1 SMs" in reason


@pytest.mark.parametrize(
    ("problem", "config", "is_legal"),
    [
        (packed(4096, 4096, 4096), Config(tile_m=256, tile_n=208, stages=2), True),
        (packed(4096, 4096, 4096), Config(tile_m=256, tile_n=216, stages=2), False),
        (packed(4096, 4096, 4096, out_dtype="fp32"), Config(tile_m=256, tile_n=208, stages=2), True),
        (packed(4096, 4095, 4096), Config(tile_m=256, tile_n=208, stages=2), True),
        (packed(4096, 4095, 4096), Config(tile_m=256, tile_n=216, stages=2), False),
        (packed(4096, 4095, 4096), Config(tile_m=256, tile_n=200, stages=2, staggered=True), True),
        (packed(4096, 4095, 4096), Config(tile_m=256, tile_n=192, stages=2, cluster_m=2), True),
        (packed(4096, 4095, 4096), Config(tile_m=256, tile_n=208, stages=2, cluster_m=2), False),
        (packed(4096, 4095, 4096), Config(tile_m=128, tile_n=224, stages=2, consumers=1), True),
    ],
)
def test_the_registers_beside_the_accumulators_depend_on_the_way_out(problem, config: Config, is_legal: bool) -> None:
    assert (config.violations(problem, H200) == ()) is is_legal


def test_check_raises_with_every_reason() -> None:
    with pytest.raises(ConfigError) as refusal:
        Config(tile_n=100, stages=1).check(PROBLEM, H200)
    assert len(refusal.value.violations) == 2


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="tile_q is no field; fields are tile_m, tile_n"):
        Config().replace(tile_q=3)


small = st.integers(min_value=-8, max_value=600)


@given(
    config=st.builds(
        Config,
        tile_m=small, tile_n=small, tile_k=small, stages=small, consumers=small, cluster_m=small, group_m=small,
        store_slots=small, split_k=st.sampled_from([1, 1, 2, 3, 8]), swap=st.booleans(),
    )
)  # fmt: skip
def test_legality_never_raises_and_legal_numbers_are_sound(config: Config) -> None:
    if config.violations(PROBLEM, H200):
        return
    assert 0 < config.smem_bytes(PROBLEM) <= H200.smem_per_cta_bytes
    assert config.consumer_m % 64 == 0
    assert config.accumulators == config.wgmmas_m * config.tile_n // 2
    assert config.accumulators < config.registers(PROBLEM)[1]


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
