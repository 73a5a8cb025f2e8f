"""bench/narrow.py: the shapes, their candidates, and the short table."""

from __future__ import annotations

from tilewright import device
from tilewright.bench.narrow import CANDIDATES, LONG, SLICED, candidates, kernels, lines_of, problems, shapes
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.packing import packed

H200 = device.preset("h200")


def test_every_weight_meets_every_number_of_rows() -> None:
    assert len(set(shapes())) == len(shapes()) == 42
    assert {(1, 4096, 4096), (128, 2112, 7168), (256, 256, 65536), (1024, 1024, 1024)} <= set(shapes())


def test_candidates_are_legal_different_and_few() -> None:
    for problem in problems():
        found = candidates(problem, H200)
        assert len({str(config) for config in found}) == len(found) <= CANDIDATES + 1 + SLICED + 1
        assert all(config.violations(problem, H200) == () for config in found)
        assert any(config.split_k == 1 and not config.swap for config in found)


def test_a_small_out_of_a_long_k_is_measured_in_many_slices_and_once_without_dependent_sums() -> None:
    for problem in problems(LONG[:4]):
        found = candidates(problem, H200)
        assert len([c for c in found if c.slices > 1]) == SLICED + 1
        assert [c.dependent_sums for c in found if c.slices > 1].count(False) == 1
        assert len([c for c in found if c.slices == 1]) >= 8
    assert len([c for c in candidates(packed(128, 4096, 14336), H200) if c.slices > 1]) == 2
    assert not any(c.slices > 1 for c in candidates(packed(512, 512, 512), H200))


def test_only_short_products_are_timed_as_dependent_launches_too() -> None:
    assert [c.dependent_launch for c in candidates(packed(128, 128, 128), H200)].count(True) == 1
    assert not any(c.dependent_launch for c in candidates(packed(16, 28672, 4096), H200))


def test_kernels_are_shared_by_shapes() -> None:
    """Sizes are no part of a kernel: all that is loaded is compiled in a minute or two."""
    units = {render(HOPPER, problem, config, H200).digest("any") for problem, config in kernels(H200)}
    assert len(units) < 150


def test_the_table_names_the_fastest_the_choice_and_whatever_is_wrong() -> None:
    about = {"m": 16, "n": 4096, "k": 4096, "status": "ok"}
    rows = [
        {"candidate": "clusters of 8", "clusters": 16, "ctas": 128, "status": "ok"},
        about | {"candidate": "cublas", "median_us": 12.8},
        about | {"candidate": "slow", "median_us": 11.0, "is_chosen": True},
        about | {"candidate": "fast", "median_us": 9.5},
        about | {"candidate": "good", "median_us": 10.0},
        about | {"candidate": "fast dependent", "median_us": 9.0},
        about | {"candidate": "bad", "status": "wrong", "why": "3 elements"},
    ]
    clusters, line, wrong = lines_of(rows)
    assert clusters == "clusters of 8: 16, 128 CTAs"
    assert line.split(" | ") == [
        "16x4096x4096       cuBLAS 12.80",
        "9.50 fast",
        "10.00 good",
        "chosen 11.00 slow",
        "dependent 9.00",
    ]
    assert wrong == "16x4096x4096 bad wrong: 3 elements"
