"""kernels/fitted.py: widths that fill whole waves, legal and compiled clean."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright import device, model
from tilewright.jit.build import build
from tilewright.kernels.fitted import crossing_space, fitted_space, high_space, pingpong_space
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.kernels.repack import repacked
from tilewright.packing import packed
from tilewright.problem import Problem

H200 = device.preset("h200")
LOW = [
    packed(128, 6144, 4096),
    packed(64, 28672, 4096),
    packed(128, 57344, 8192, out_dtype="fp32"),
    packed(256, 8192, 4096, b_major="n"),
    packed(512, 6144, 1000, dtype="fp16"),
]


@pytest.mark.parametrize(
    ("problem", "width", "tiles"),
    [
        (packed(128, 6144, 4096), (64, 96), 128),
        (packed(128, 7168, 2048), (64, 112), 128),
        (packed(128, 10240, 8192), (64, 160), 128),
        (packed(128, 28672, 4096), (128, 224), 128),
        (packed(64, 28672, 4096), (64, 224), 128),
    ],
    ids=str,
)
def test_a_width_is_there_that_fills_a_wave(problem: Problem, width: tuple[int, int], tiles: int) -> None:
    """Those that cuBLASLt's best algorithms have, too (H200, 2026-11-30)."""
    (found,) = [each for each in fitted_space(problem, H200) if (each.tile_m, each.tile_n) == width]
    assert found.num_tiles(problem) == tiles
    assert HOPPER.launch(problem, found, H200).grid == tiles


@pytest.mark.parametrize("problem", LOW, ids=str)
def test_every_config_is_legal_and_its_last_wave_is_nearly_full(problem: Problem) -> None:
    found = list(fitted_space(problem, H200))
    assert found
    assert len(found) == len(set(found))
    assert set(found) <= set(HOPPER.space(problem, H200))
    for config in found:
        assert config.violations(problem, H200) == ()
        waves = config.num_tiles(problem) / H200.num_sms
        assert waves <= 4.0
        assert waves > -(-config.num_tiles(problem) // H200.num_sms) - 0.5


def test_the_model_takes_one_where_the_last_wave_would_be_a_part() -> None:
    for problem in (packed(128, 6144, 4096), packed(128, 10240, 8192), packed(128, 57344, 8192)):
        assert model.best(problem, H200).config in set(fitted_space(problem, H200))


@pytest.mark.parametrize(
    "problem", [packed(4096, 4096, 4096), packed(128, 6144, 4096, batch=(3,)), packed(128, 256, 4096)], ids=str
)
def test_none_is_offered_for_a_high_out_a_batch_or_less_than_a_wave(problem: Problem) -> None:
    assert list(fitted_space(problem, H200)) == []


def test_fewer_sms_than_tile_rows_are_no_error() -> None:
    single = dataclasses.replace(H200, num_sms=1)
    assert {config.num_tiles(packed(512, 200, 4096)) for config in fitted_space(packed(512, 200, 4096), single)} == {4}
    assert list(fitted_space(packed(512, 6144, 4096), single)) == []


@pytest.mark.parametrize(
    ("problem", "tile", "tiles"),
    [
        (packed(1025, 1025, 1025), (64, 152, False), 119),
        (packed(1535, 1535, 1535), (128, 144, True), 132),
        (packed(4096, 2112, 7168), (128, 176, True), 384),
        (packed(512, 28672, 4096), (128, 176, True), 652),
    ],
    ids=str,
)
def test_outs_of_any_height_have_widths_that_fill_few_waves(
    problem: Problem, tile: tuple[int, int, bool], tiles: int
) -> None:
    """Each was the fastest measured or within 3 % of it (H200, 2026-11-30)."""
    (found,) = [each for each in high_space(problem, H200) if (each.tile_m, each.tile_n, each.pingpong) == tile]
    assert found.num_tiles(problem) == tiles
    assert tiles / H200.num_sms > -(-tiles // H200.num_sms) - 0.5
    assert found in set(HOPPER.space(problem, H200))


def test_the_model_takes_one_where_another_width_would_leave_a_wave_half_empty() -> None:
    for problem in (repacked(packed(1025, 1025, 1025, padded=False), ("a", "b")), packed(4096, 2112, 7168)):
        assert model.best(problem, H200).config in set(high_space(problem, H200))


def test_ping_pong_in_many_waves_is_for_the_tuner_alone() -> None:
    large = packed(8192, 6144, 4096)
    found = list(pingpong_space(large, H200))
    assert {(each.tile_n, each.cluster_m) for each in found} == {(176, 1), (176, 2), (144, 1), (144, 2)}
    assert set(found) - set(HOPPER.space(large, H200)) <= set(HOPPER.trials(large, H200))
    assert not any(each.cluster_m > 1 for each in HOPPER.space(large, H200) if each.pingpong)
    for none in (
        packed(512, 512, 512),
        packed(8192, 28672, 4096, out_dtype="fp32"),
        packed(4096, 512, 512, batch=(9,)),
    ):
        assert list(pingpong_space(none, H200)) == []


def test_fours_that_share_what_lies_across_lines_fill_one_wave() -> None:
    """Of an a that does not cross none that share it; none of few rows or columns, of a batch, or of many tiles."""
    cube = packed(1000, 1000, 1000)
    found = list(crossing_space(cube, H200))
    assert {(each.cluster_m, each.cluster_n) for each in found} == {(4, 1), (1, 4)}
    assert set(found) <= set(HOPPER.space(cube, H200))
    for config in found:
        assert config.violations(cube, H200) == ()
        assert HOPPER.launch(cube, config, H200).grid == config.num_tiles(cube) <= 120
    aligned = dataclasses.replace(cube, a_pitch=1024)
    assert {each.computed(aligned).b_pitch for each in crossing_space(aligned, H200) if each.cluster_m > 1} == {1000}
    assert {each.computed(aligned).a_pitch for each in crossing_space(aligned, H200) if each.cluster_n > 1} == {1000}
    for none in (
        packed(1000, 1000, 1024),
        packed(128, 1000, 1000),
        packed(1000, 128, 1000),
        packed(1000, 1000, 1000, batch=(3,)),
        packed(4096, 4096, 4104),
    ):
        assert list(crossing_space(none, H200)) == []


@pytest.mark.parametrize("problem", LOW, ids=str)
def test_the_kernels_compile_without_spills(problem: Problem) -> None:
    for config in (*fitted_space(problem, H200), *high_space(problem, H200)):
        assert build(render(HOPPER, problem, config, H200), refuse=True).resources.stack_bytes == 0


def test_the_fours_compile_without_spills() -> None:
    for config in crossing_space(packed(1000, 1000, 1000), H200):
        assert build(render(HOPPER, packed(1000, 1000, 1000), config, H200), refuse=True).resources.stack_bytes == 0
