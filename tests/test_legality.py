"""legality.py: every rule with its sentence, and what is legal is sound."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import device
from tilewright.config import Config
from tilewright.epilogue import Gated
from tilewright.errors import ConfigError
from tilewright.packing import packed, packed_form
from tilewright.problem import Problem

H200 = device.preset("h200")
PROBLEM = packed(4096, 4096, 4096)


def test_the_default_config_is_legal() -> None:
    assert Config().violations(PROBLEM, H200) == ()


def test_a_swap_of_an_m_contiguous_a_wants_whole_panels_of_rows() -> None:
    problem = packed(64, 4096, 4096, a_major="m")
    assert Config(tile_m=64, tile_n=64, consumers=1, swap=True).violations(problem, H200) == ()
    (reason,) = Config(tile_m=64, tile_n=32, consumers=1, swap=True).violations(problem, H200)
    assert "tile_n = 32 of an m-contiguous a is not a multiple of 64" in reason


def test_a_split_has_a_k_tile_for_each_cta() -> None:
    config = Config(tile_m=64, tile_n=64, consumers=1, split_k=8)
    assert config.violations(packed(64, 64, 7 * 64 + 1), H200) == ()
    (reason,) = config.violations(packed(64, 64, 7 * 64), H200)
    assert reason == "split_k = 8 needs a k tile for each CTA; k = 448 has only 7; use split_k = 4"


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
        ({"tile_k": 0, "split_k": 2}, "tile_k = 0 of bf16 is not one 128-byte swizzle row"),
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


def test_a_cluster_without_rows_is_refused_beside_a_gate_too() -> None:
    gated = dataclasses.replace(PROBLEM, epilogue=packed_form(Gated(), 4096, 4096))
    assert "cluster_m x cluster_n = 0 x 1" in Config(cluster_m=0).violations(gated, H200)[0]


def test_check_raises_with_every_reason() -> None:
    with pytest.raises(ConfigError) as refusal:
        Config(tile_n=100, stages=1).check(PROBLEM, H200)
    assert len(refusal.value.violations) == 2


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
