"""kernels/trials.py: configs that only a tuner looks at: legal, compiled clean, and never the untuned choice."""

from __future__ import annotations

import pytest

from tilewright import device, model
from tilewright.config import Config
from tilewright.jit.build import build
from tilewright.kernels.fitted import crossing_space
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.packing import packed
from tilewright.problem import Problem
from tilewright.tuning.candidates import candidates_of

H200 = device.preset("h200")
CUBE = packed(1000, 1000, 1000)
PRODUCTS = [
    CUBE,
    packed(512, 28672, 4096),
    packed(128, 7168, 2048),
    packed(131072, 256, 512),
    packed(20, 4096, 4096),
    packed(256, 8192, 4096, b_major="n"),
    packed(128, 128, 128),
    packed(1, 1, 1),
]


def offered(problem: Problem) -> set[Config]:
    return set(HOPPER.trials(problem, H200))


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (CUBE, {"tile_m": 128, "tile_n": 72, "cluster_m": 4, "cluster_n": 2, "swap": False}),
        (packed(8192, 28672, 4096), {"tile_m": 128, "tile_n": 176, "cluster_m": 2, "pingpong": True}),
        (packed(128, 7168, 2048), {"tile_m": 64, "tile_n": 120, "cluster_m": 2, "cluster_n": 4}),
        (packed(20, 28672, 4096), {"tile_m": 128, "tile_n": 24, "cluster_m": 2, "swap": True}),
    ],
    ids=str,
)
def test_what_cublaslt_s_best_algorithms_have_is_there_to_be_measured(
    problem: Problem, config: dict[str, int | bool]
) -> None:
    """docs/suite.md, the slowest; their tiles and clusters are named the other way round."""
    found = [each for each in offered(problem) if all(getattr(each, name) == value for name, value in config.items())]
    assert found, config
    assert all(HOPPER.launch(problem, each, H200).grid >= 0.8 * H200.num_sms for each in found)


@pytest.mark.parametrize("problem", PRODUCTS, ids=str)
def test_every_one_is_legal_new_and_not_for_the_untuned_choice(problem: Problem) -> None:
    found = list(HOPPER.trials(problem, H200))
    space = set(HOPPER.space(problem, H200))
    assert len(found) == len(set(found)) <= 24
    assert all(config.violations(problem, H200) == () for config in found)
    assert not set(found) & space
    assert {config for config in space if config.sharing > 2} <= set(crossing_space(problem, H200))
    assert not any(config.cluster_m == 2 and config.tile_n % 16 for config in space)
    assert model.best(problem, H200).config in space


def test_the_tuner_measures_a_few_beside_the_model_s_fastest() -> None:
    cube = packed(1016, 1000, 1000)  # of which there is no record
    entries = candidates_of(cube, H200, None, 8)
    assert len({entry.config for entry in entries}) == 8
    assert len({entry.config for entry in entries} & offered(cube)) == 2
    assert {each.config for each in model.ranked(cube, H200, 6)} <= {entry.config for entry in entries}
    assert len(candidates_of(cube, H200, None, 1)) == 1


def test_a_cluster_is_no_candidate_of_a_batch_or_of_fewer_sms_than_it_has() -> None:
    assert not any(config.sharing > 2 for config in offered(packed(1000, 1000, 1000, batch=(3,))))
    ranked = model.ranked(CUBE, H200, 1 << 30, num_sms=4, with_trials=True)
    assert max(each.config.cluster for each in ranked) == 4


@pytest.mark.parametrize("problem", [CUBE, packed(20, 4096, 4096)], ids=str)
def test_their_kernels_compile_without_spills(problem: Problem) -> None:
    for config in sorted(offered(problem), key=str)[::5]:
        assert build(render(HOPPER, problem, config, H200), refuse=True).resources.stack_bytes == 0
