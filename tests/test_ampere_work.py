"""ampere_work.py: the worked examples of its docstrings, and what of a form the model counts."""

from __future__ import annotations

import pytest

from tilewright import device
from tilewright.ampere_config import AmpereConfig
from tilewright.ampere_work import loop_cycles, smem_cycles
from tilewright.packing import packed

A100, H200 = device.preset("a100"), device.preset("h200")
PROBLEM = packed(4096, 4096, 4096)
WIDE = AmpereConfig(tile_n=256, warps_n=4, stages=6)


def test_the_docstrings_worked_examples_hold() -> None:
    assert smem_cycles(WIDE, PROBLEM) == 512 + 192
    split = WIDE.replace(tile_k=64, stages=4, ahead=3, split_barrier=True)
    assert isinstance(split, AmpereConfig)
    assert loop_cycles(split, PROBLEM, H200, has_neighbours=False) == pytest.approx(256 * 7.8 + 60, rel=1e-3)
    assert loop_cycles(split, PROBLEM, A100, has_neighbours=False) == pytest.approx(256 * 9.8 + 60, rel=1e-3)


def test_what_warps_wait_at_a_barrier_weighs_less_beside_a_longer_row_and_fewer_rows() -> None:
    def gap(**fields: int | bool) -> float:
        config = WIDE.replace(**fields)
        assert isinstance(config, AmpereConfig)
        return loop_cycles(config, PROBLEM, H200, has_neighbours=False) - 7.8 * config.tile_n * config.tile_k / 64

    assert gap() == pytest.approx(gap(tile_k=64), rel=0.01) == pytest.approx(210, rel=0.01)
    assert gap(ahead=3) == pytest.approx(100, rel=0.01)
    assert gap(tile_n=128) == pytest.approx(0.75 * 210, rel=0.01)
