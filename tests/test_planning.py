"""What a caller asks of a plan decides its family and config, or is refused in words that say what would do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fakes import T4, arrays
from tilewright import device, model
from tilewright.config import Config
from tilewright.dispatch import Dispatcher
from tilewright.errors import ConfigError, LayoutError, UnsupportedError
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.ladder import RUNGS
from tilewright.packing import packed


def test_the_plan_takes_the_models_choice(unplugged):
    problem, h200 = packed(512, 768, 1024), device.preset("h200")
    choice, plan = model.best(problem, h200), unplugged.plan(problem, device=h200)
    assert (plan.family, plan.config, plan.record, plan.device) == (choice.family, choice.config, None, h200)
    assert plan.why == f"untuned: the model's choice: {choice.why}"
    assert plan.launch == choice.family.launch(problem, choice.config, h200)
    assert plan.arguments == choice.family.arguments(problem, choice.config, plan.launch)
    assert plan.prediction == choice.prediction


def test_changes_by_field_name_change_the_models_choice_and_nothing_else(unplugged):
    problem = packed(4096, 4096, 4096)
    chosen, changed = unplugged.plan(problem), unplugged.plan(problem, config={"group_m": 5})
    assert changed.config == dataclasses.replace(chosen.config, group_m=5)
    assert "group_m" in changed.why


def test_a_whole_config_is_taken_as_it_is(unplugged):
    config = Config(tile_m=128, tile_n=128, stages=3)
    assert unplugged.plan(packed(4096, 4096, 4096), config=config).config == config


def test_an_illegal_config_is_refused_with_every_violation(unplugged):
    problem, h200 = packed(64, 64, 64), device.preset("h200")
    config = Config(tile_m=100, stages=1, store_slots=0)
    with pytest.raises(ConfigError) as refusal:
        unplugged.plan(problem, config=config)
    assert refusal.value.violations == config.violations(problem, h200)
    with pytest.raises(ConfigError, match="tile_q is no field"):
        unplugged.plan(problem, config={"tile_q": 3})


def test_more_shared_memory_than_the_device_gives_is_refused(unplugged):
    with pytest.raises(ConfigError, match="bytes of shared memory"):
        unplugged.plan(packed(64, 64, 64), config=Config(stages=16))


def test_a_device_without_kernels_is_refused_before_any_compile(unplugged, compiler):
    with pytest.raises(UnsupportedError, match="compute capability 7"):
        unplugged.plan(packed(64, 64, 64), device=T4)
    assert compiler.built == []


def test_an_unknown_preset_is_refused_with_the_known_ones(unplugged):
    with pytest.raises(UnsupportedError, match="h200"):
        unplugged.plan(packed(64, 64, 64), device="h900")


@pytest.mark.parametrize("num_sms", [0, -3, 79, 2.0, True])
def test_num_sms_is_bounded_by_the_device(unplugged, num_sms):
    with pytest.raises(ConfigError, match="num_sms"):
        unplugged.plan(packed(64, 64, 64), device="h20", num_sms=num_sms)


def test_num_sms_may_be_any_librarys_whole_number(unplugged):
    plan = unplugged.plan(packed(4096, 4096, 4096), num_sms=np.int64(10))
    assert (plan.num_sms, type(plan.num_sms), plan.launch.grid) == (10, int, 10)


def test_a_cluster_wider_than_num_sms_is_refused(unplugged):
    with pytest.raises(ConfigError, match="fewer than the 2 CTAs"):
        unplugged.plan(packed(4096, 4096, 4096), config=Config(cluster_m=2), num_sms=1)


def test_a_problem_put_together_by_hand_is_checked(unplugged):
    with pytest.raises(LayoutError, match="flip"):
        unplugged.plan(dataclasses.replace(packed(64, 64, 64), a_pitch=-65))


@pytest.mark.parametrize("config", [{"slices": 4}, {"split_k": 2}, {"staggered": True}, Config(tile_m=256, split_k=8)])
def test_no_config_is_judged_where_no_kernel_runs(unplugged, config):
    plan = unplugged.plan(packed(8, 8, 0), config=config)
    assert "no kernel runs" in str(plan.explain())
    with pytest.raises(ConfigError, match="is no field"):
        unplugged.plan(packed(8, 8, 0), config={"tiles": 4})


def test_a_product_behind_copies_waits_as_an_ordinary_launch_when_the_caller_says_so(unplugged):
    problem = packed(4095, 4095, 4095, padded=False)
    plan = unplugged.plan(problem, config={"dependent_launch": False})
    assert not plan.launch.is_dependent
    own = Config(tile_m=128, tile_n=128)
    assert unplugged.plan(problem, config=own).config == own  # a whole config is taken as it is


def test_the_model_cuts_a_long_k_of_few_tiles_and_an_invariant_plan_never_does(unplugged):
    fast, invariant = (
        unplugged.plan(packed(256, 256, 65536), reduction=reduction) for reduction in ("fast", "invariant")
    )
    assert fast.config.slices > 1
    assert invariant.config.slices == 1
    with pytest.raises(ConfigError, match="slices = 4 and not 1: reduction 'invariant'"):
        unplugged.plan(packed(256, 256, 65536), config={"slices": 4, "split_k": 1}, reduction="invariant")


@pytest.mark.parametrize("config", ["tile_n=64", "", ["tile_n"], [("tile_n", 64)], 5, True, {"tile_n"}], ids=repr)
def test_a_config_that_is_none_is_refused_with_one_that_is(unplugged, dispatcher, config):
    for call in (
        lambda: unplugged.plan(packed(64, 64, 64), config=config),
        lambda: dispatcher.matmul(*arrays(64, 64, 64), config=config),
        lambda: dispatcher.plan(*arrays(64, 64, 64), config=config),
    ):
        with pytest.raises(
            ConfigError, match=r"neither a Config nor changes by field name; pass config=\{'tile_n': 192\}"
        ):
            call()


@pytest.mark.parametrize("where", [0, 1, False, 5.0, ["h200"]], ids=repr)
def test_a_device_that_is_none_is_refused_and_an_ordinal_is_none(unplugged, where):
    with pytest.raises(UnsupportedError, match=r"a Device, or for one of the presets h200"):
        unplugged.plan(packed(64, 64, 64), device=where)
    assert unplugged.plan(packed(64, 64, 64), device=None).device == device.preset("h200")


@pytest.mark.parametrize("rung", [RUNGS[3], AMPERE_RUNGS[8]], ids=lambda rung: rung.name)
def test_a_config_of_a_rung_of_the_ladder_is_refused_by_name(dispatcher: Dispatcher, rung) -> None:
    for target in ("h200", "a100"):
        with pytest.raises(ConfigError, match="is for a rung of the ladder; pass a Config or AmpereConfig"):
            dispatcher.plan(packed(256, 256, 256), device=target, config=rung.config)
