"""model.py: the choice follows counts that can be checked by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import T4
from tilewright import device, model
from tilewright.config import Config
from tilewright.errors import ShapeError, UnsupportedError
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed
from tilewright.tma import MAX_EXTENT

H200 = device.preset("h200")


def test_the_docstring_s_worked_example_holds() -> None:
    problem = packed(8192, 8192, 8192)
    prediction = model.predict(HOPPER, problem, Config(), H200)
    terms = dict(prediction.terms)
    assert prediction.grid == 132
    assert prediction.waves == pytest.approx(64 * 32 / 132)
    assert terms["tensor cores"] == pytest.approx(16 * 128 * 1024 / prediction.clock_ghz / 1e3)
    assert terms["store"] == pytest.approx(16 * 2138.4 / prediction.clock_ghz / 1e3)
    assert prediction.clock_ghz == pytest.approx(1.34, abs=0.02)
    assert prediction.total_us == pytest.approx(1597, rel=0.01)


def test_the_clock_falls_until_the_power_limit_is_kept() -> None:
    large = model.predict(HOPPER, packed(8192, 8192, 8192), Config(), H200)
    tiny = model.predict(HOPPER, packed(128, 256, 64), Config(), H200)
    assert large.power_w == pytest.approx(H200.power_w, abs=2)
    assert large.clock_ghz < H200.clock_ghz
    assert tiny.clock_ghz == H200.clock_ghz
    assert tiny.power_w < H200.power_w


def test_less_power_means_a_lower_clock_and_more_time() -> None:
    problem = packed(8192, 8192, 8192)
    weak = model.predict(HOPPER, problem, Config(), dataclasses.replace(H200, power_w=500.0))
    assert weak.clock_ghz < model.predict(HOPPER, problem, Config(), H200).clock_ghz


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ({"tile_m": 256, "tile_n": 200, "stages": 3, "staggered": True}, {"tile_m": 256, "tile_n": 200, "stages": 3}),
        ({"tile_m": 256, "tile_n": 200, "stages": 3, "staggered": True}, {"tile_n": 256}),
        ({"tile_n": 192, "stages": 5, "pingpong": True, "store_slots": 1}, {"tile_n": 192}),
        ({"k_back_and_forth": True}, {}),
        ({}, {"tile_n": 128, "stages": 6}),
    ],
)
def test_the_model_orders_8192_cubed_as_measured(faster: dict[str, Any], slower: dict[str, Any]) -> None:
    """Steady TFLOPS, H200, 2026-11-30: 687 and 682; 704, 659; 672, 659; 690, 683 (at 256x192); 659, 638."""
    problem = packed(8192, 8192, 8192)
    fast, slow = (model.predict(HOPPER, problem, Config(**fields), H200) for fields in (faster, slower))
    assert fast.total_us < slow.total_us


@pytest.mark.parametrize("name", ["h200", "h100", "h20"])
@pytest.mark.parametrize("changes", [{}, {"power_w": 300.0}, {"power_w": 5000.0}, {"num_sms": 1}], ids=str)
@pytest.mark.parametrize(
    "extents", [(64,) * 3, (512,) * 3, (4096,) * 3, (1 << 16,) * 3, (16, 1 << 16, 8192), (1 << 20, 64, 64)]
)
def test_no_prediction_beats_the_roofline(name: str, changes: dict[str, Any], extents: tuple[int, int, int]) -> None:
    """Of any device: the H20's sustained rate was once a figure of its own, below what its clock and SMs multiply."""
    present = dataclasses.replace(device.preset(name), **changes)
    assert 0 < model.best(packed(*extents), present).prediction.roofline_share < 1


def test_the_docstring_s_floor_holds() -> None:
    floor_us = model.floor_us(packed(8192, 8192, 8192), H200)
    assert floor_us == pytest.approx(1316, rel=0.002)
    assert model.floor_us(packed(0, 0, 0), H200) == 0


def test_more_tiles_than_any_tile_size_brings_down_are_a_shape_error() -> None:
    """No config helps, so none is advised; what is advised works."""
    with pytest.raises(ShapeError, match="split the product along m or n"):
        model.best(packed(MAX_EXTENT, MAX_EXTENT, 64), H200)
    assert model.best(packed(MAX_EXTENT // 2**18, MAX_EXTENT, 64), H200)


def test_a_device_of_one_sm_is_planned_without_clusters() -> None:
    single = dataclasses.replace(H200, num_sms=1)
    assert {config.cluster for config in HOPPER.space(packed(4096, 4096, 4096), single)} == {1}
    assert model.best(packed(4096, 4096, 4096), single).prediction.grid == 1


def test_a_large_square_takes_a_tile_that_fills_the_register_file() -> None:
    config = model.best(packed(8448, 8448, 8192), H200).config
    assert config.tile_m * config.tile_n >= 128 * 192


def test_a_cluster_that_multicasts_and_a_dependent_launch_start_later() -> None:
    """By 0.35 us; a cluster that splits k starts as early as a CTA alone (STARTS_EARLY in hopper_gemm.cu)."""
    config = Config(tile_m=64, tile_n=64, consumers=1, stages=8)
    waits = [{"cluster_m": 2}, {"cluster_n": 2}, {"dependent_launch": True}]
    ramps = [
        dict(model.predict(HOPPER, packed(512, 512, 2048), config.replace(**changes), H200).terms)["ramp"]
        for changes in [{}, {"split_k": 2}, *waits]
    ]
    assert ramps == pytest.approx([0.95, 0.95, 1.3, 1.3, 1.3])


def test_clusters_of_four_are_chosen_where_rows_lie_across_lines_and_nowhere_else() -> None:
    """1000^3, H200, 2026-12-01: 64x144 in 4x1 6.98 us, 64x128 in pairs 7.73; at 1024^3 they are 17 to 30 % slower."""
    config = model.best(packed(1000, 1000, 1000), H200).config
    assert (config.tile_m, config.tile_n, config.cluster_m, config.cluster_n) == (64, 144, 4, 1)
    for aligned in (packed(1024, 1024, 1024), packed(1000, 1000, 1024)):
        assert model.best(aligned, H200).config.sharing < 4


@pytest.mark.parametrize(
    ("sizes", "fastest"),
    [
        ((128, 4096, 4096), "64x64x64 s12 w1 c1x1 grouped2 o2"),  # 12.00 us, in pairs 12.45
        ((64, 24576, 1536), "64x64x64 s13 w1 c1x1 grouped16 o1 swap"),  # 21.37, 128x64 23.13
        ((128, 10240, 8192), "64x160x64 s7 w1 c1x1 grouped2 o2"),  # 45.51, 128x80 47.51
        ((512, 512, 16384), "128x128x64 s6 w2 c1x1 grouped16 o1 slices8 dependent-sums"),  # 17.63, 128x64 17.95
    ],
)
def test_the_choice_is_one_of_the_fastest_measured(sizes: tuple[int, int, int], fastest: str) -> None:
    """H200, 2026-12-01, interleaved: each hangs on EARLY_US, _CTA_GBPS or _ROW_CYCLES."""
    assert str(model.best(packed(*sizes), H200).config) == fastest


def test_few_rows_take_the_narrow_side() -> None:
    config = model.best(packed(16, 6144, 4096), H200).config
    assert (config.swap, config.tile_n) == (True, 16)


def test_fewer_sms_never_make_it_faster() -> None:
    problem = packed(4096, 4096, 4096)
    times = [model.best(problem, H200, num_sms).prediction.total_us for num_sms in (132, 66, 33, 2, 1)]
    assert times == sorted(times)


def test_a_device_without_a_family_is_refused_with_its_capability() -> None:
    with pytest.raises(UnsupportedError, match=r"compute capability 7\.5"):
        model.best(packed(64, 64, 64), T4)


@settings(max_examples=60)
@given(
    m=st.integers(1, 100_000),
    n=st.integers(1, 100_000),
    k=st.integers(1, 100_000),
    b_major=st.sampled_from(["k", "n"]),
    dtype=st.sampled_from(["bf16", "fp16"]),
    out_dtype=st.sampled_from([None, "fp32"]),
)
def test_every_problem_has_a_legal_choice(
    m: int, n: int, k: int, b_major: str, dtype: str, out_dtype: str | None
) -> None:
    problem = packed(m, n, k, b_major=b_major, dtype=dtype, out_dtype=out_dtype)  # type: ignore[arg-type]
    choice = model.best(problem, H200)
    assert choice.config.violations(problem, H200) == ()
    assert choice.prediction.total_us > 0
