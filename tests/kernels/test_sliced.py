"""Which slices are worth a look: for few tiles and a long k, and none elsewhere."""

from __future__ import annotations

import pytest

from tilewright import device
from tilewright.config import Config
from tilewright.jit.build import build
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.kernels.sliced import LEAST_K, slice_counts, sliced_space
from tilewright.packing import packed
from tilewright.problem import Problem

H200 = device.preset("h200")
TILE = Config(tile_m=128, tile_n=128, stages=6, store_slots=1)
LONG = [packed(256, 256, 65536), packed(512, 512, 16384), packed(128, 4096, 14336), packed(255, 257, 65536)]


@pytest.mark.parametrize(
    ("problem", "slices"),
    [
        (packed(256, 256, 65536), [32, 16]),  # 4 tiles: at most 33
        (packed(512, 512, 16384), [8, 4]),  # 16 tiles: at most 8
        (packed(128, 4096, 14336), [4, 2]),  # 32 tiles: at most 4
        (packed(128, 128, 65536), [128, 64]),  # 1 tile: at most 132
        (packed(128, 128, 4096), [8, 4]),  # and at least 6 k tiles a slice: at most 10
        (packed(128, 128, 65536 + 8), [3]),  # 8193 steps of 16 bytes: 3 x 2731
        (packed(4096, 4096, 65536), []),
    ],
    ids=str,
)
def test_slices_fill_one_wave(problem: Problem, slices: list[int]) -> None:
    found = slice_counts(problem, TILE, H200)
    assert found == slices
    assert all(TILE.num_tiles(problem) * count <= H200.num_sms for count in found)


@pytest.mark.parametrize("problem", LONG, ids=str)
def test_every_config_is_legal_and_computes_tiles_on_most_sms(problem: Problem) -> None:
    found = list(sliced_space(problem, H200))
    assert found
    assert len(found) == len(set(found))
    assert all(not config.violations(problem, H200) for config in found)
    assert max(HOPPER.launch(problem, config, H200).grid for config in found) >= 0.7 * H200.num_sms
    assert set(found) <= set(HOPPER.space(problem, H200))
    assert all(config.dependent_sums for config in found)


@pytest.mark.parametrize(
    "problem",
    [
        packed(256, 256, LEAST_K - 64),
        packed(256, 256, 65536, batch=(2,)),
        packed(8192, 8192, 8192),
        packed(256, 256, 65536 + 1),
    ],
    ids=str,
)
def test_none_is_offered_for_a_short_k_a_batch_many_tiles_or_a_k_that_cannot_be_cut(problem: Problem) -> None:
    assert list(sliced_space(problem, H200)) == []


@pytest.mark.parametrize("layout", [("k", "k"), ("m", "n")])
def test_the_kernels_compile_without_spills(layout: tuple[str, str]) -> None:
    """With panels of both operands the producer needs the most registers."""
    problem = packed(256, 256, 65536, a_major=layout[0], b_major=layout[1])  # type: ignore[arg-type]
    configs = {}
    for config in sliced_space(problem, H200):
        source = render(HOPPER, problem, config, H200)
        configs[source.digest("any")] = source
    assert len(configs) >= 5
    for source in configs.values():
        assert build(source, refuse=True).resources.stack_bytes == 0
