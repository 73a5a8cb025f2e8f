"""order.py: what a config's bits depend on, and that an invariant choice depends on nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from fakes import gpu
from tilewright import choice, device, model
from tilewright.ampere_config import AmpereConfig
from tilewright.config import Config
from tilewright.dispatch import Dispatcher
from tilewright.emulation import Emulator
from tilewright.errors import ConfigError, UnsupportedError
from tilewright.order import INDIFFERENT, INVARIANT, checked_reduction, order_for, order_of
from tilewright.packing import packed

H200 = device.preset("h200")
FIELDS = {field.name for field in dataclasses.fields(Config)}
OWN = {field.name for field in dataclasses.fields(AmpereConfig)} - FIELDS


def test_every_name_that_moves_no_bit_is_a_field() -> None:
    assert INDIFFERENT < FIELDS | OWN
    assert OWN < INDIFFERENT


def test_a_field_that_nobody_has_judged_counts_as_part_of_the_order() -> None:
    assert {name for name, _ in INVARIANT.values} == FIELDS - INDIFFERENT


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_two_configs_have_one_order_when_they_differ_in_what_moves_no_bit_alone(name: str) -> None:
    value = getattr(Config(), name)
    changed = not value if isinstance(value, bool) else "linear" if isinstance(value, str) else value + 8
    assert (order_of(Config().replace(**{name: changed})) == INVARIANT) == (name in INDIFFERENT)


def test_a_config_is_given_an_order_and_keeps_the_rest() -> None:
    config = Config(tile_m=256, tile_n=192, stages=3, k_back_and_forth=True)
    assert INVARIANT.of(config) == config.replace(k_back_and_forth=False)
    assert order_of(INVARIANT.of(config)) == INVARIANT


EXTENTS = st.integers(1, 300) | st.sampled_from([1, 8, 64, 1000, 1024, 4096, 4097, 8192, 50257, 131072])


@settings(max_examples=60, deadline=None)
@given(
    m=EXTENTS,
    n=EXTENTS,
    k=EXTENTS,
    batch=st.sampled_from([(), (3,), (2, 5)]),
    majors=st.tuples(st.sampled_from("km"), st.sampled_from("kn"), st.sampled_from("nm")),
    dtypes=st.sampled_from([("bf16", "bf16"), ("fp16", "fp16"), ("bf16", "fp32")]),
    num_sms=st.sampled_from([None, 1, 2, 33, 131]),
)
def test_the_order_of_an_invariant_choice_is_one_for_every_product(
    m: int, n: int, k: int, batch: Any, majors: Any, dtypes: Any, num_sms: int | None
) -> None:
    a, b, out = majors
    problem = packed(m, n, k, dtype=dtypes[0], out_dtype=dtypes[1], a_major=a, b_major=b, out_major=out, batch=batch)
    plan = tilewright.plan(problem, num_sms=num_sms, reduction="invariant")
    assert order_of(plan.config) == INVARIANT
    assert plan.config.violations(problem, H200) == ()
    assert plan.reduction == "invariant"


@pytest.mark.parametrize("kind", [("a100", "bf16", "bf16"), ("h200", "tf32", "fp32"), ("rtx4090", "int8", "int32")])
def test_the_ampere_family_has_invariant_choices_too(kind: tuple[str, str, str]) -> None:
    name, dtype, out_dtype = kind
    problem = packed(200, 136, 264, dtype=dtype, out_dtype=out_dtype)
    plan = tilewright.plan(problem, device=name, reduction="invariant")
    assert isinstance(plan.config, AmpereConfig)
    assert order_of(plan.config) == INVARIANT


def test_the_model_takes_the_fastest_of_those_that_keep_the_order() -> None:
    problem = packed(8192, 8192, 8192)
    fast, invariant = (model.best(problem, H200, None, reduction) for reduction in ("fast", "invariant"))
    assert fast.config.k_back_and_forth
    assert not invariant.config.k_back_and_forth
    ranked = model.ranked(problem, H200, 1 << 30, reduction="invariant")
    assert all(order_of(each.config) == INVARIANT for each in ranked)
    assert len({each.config for each in ranked}) == len(ranked)
    assert fast.prediction.total_us <= invariant.prediction.total_us <= ranked[0].prediction.total_us * 1.005


def test_what_runs_where_there_is_no_other_order_is_the_fast_choice() -> None:
    problem = packed(64, 6144, 4096)
    assert choice.choose(problem, H200, reduction="invariant").config == INVARIANT.of(
        choice.choose(problem, H200).config
    )


# -- what is told, and what is refused ---------------------------------------------------------------------------------


def test_explain_tells_the_price_of_an_invariant_order_and_nothing_of_a_fast_one() -> None:
    problem = packed(8192, 8192, 8192)
    fast = tilewright.plan(problem)
    invariant = tilewright.plan(problem, reduction="invariant")
    told = invariant.explain()
    expected = invariant.prediction.total_us / fast.prediction.total_us
    assert (told.price, told.fast) == (pytest.approx(expected), fast.config)
    assert 1.0 < told.price < 1.1
    (line,) = (line for line in str(told).splitlines() if line.startswith("reduction"))
    assert f"price by the model {told.price:.3f} times the fast choice's time, {fast.config}" in line
    assert "reduction" not in str(fast.explain())


def test_a_price_of_nothing_is_told_as_such() -> None:
    problem = packed(64, 6144, 4096)
    told = tilewright.plan(problem, reduction="invariant").explain()
    assert told.fast == told.config
    assert "costs nothing here" in str(told)


@pytest.mark.parametrize("value", ["", "Fast", "deterministic", None, True, 1, ["fast"], b"invariant"], ids=repr)
def test_what_is_no_reduction_is_refused_by_every_door(value: Any) -> None:
    problem = packed(64, 64, 64)
    a, b = gpu((64, 64)), gpu((64, 64))
    for door in (
        lambda: checked_reduction(value),
        lambda: tilewright.plan(problem, reduction=value),
        lambda: Dispatcher(lambda: None).matmul(a, b, reduction=value),  # type: ignore[arg-type, return-value]
        lambda: Emulator().matmul(a.host, b.host, reduction=value),
    ):
        with pytest.raises(UnsupportedError, match=r"reduction = .*fast.*invariant"):
            door()


def test_a_config_of_another_order_is_refused_with_the_field() -> None:
    problem = packed(512, 512, 512)
    for config in (Config(k_back_and_forth=True), {"k_back_and_forth": True}):
        with pytest.raises(ConfigError, match="k_back_and_forth = True and not False: reduction 'invariant'"):
            tilewright.plan(problem, config=config, reduction="invariant")
    assert tilewright.plan(problem, config={"group_m": 3}, reduction="invariant").config.group_m == 3


def test_fast_asks_for_no_order() -> None:
    assert order_for("fast") is None
    assert order_for("invariant") == INVARIANT
