"""occupancy.py: what an SM has room for."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright import device
from tilewright.errors import UnsupportedError
from tilewright.occupancy import Occupancy, occupancy, register_budget

A100, RTX3090, RTX4090, H200 = map(device.preset, ("a100", "rtx3090", "rtx4090", "h200"))


@pytest.mark.parametrize(("registers", "share"), [(32, 1.0), (64, 0.5), (96, 0.3125), (128, 0.25), (255, 0.125)])
@pytest.mark.parametrize("gpu", [A100, H200], ids=str)
def test_registers_a_thread_set_the_share_of_64_warps(gpu: device.Device, registers: int, share: float) -> None:
    """65,536 registers of 2,048 threads. CTAs of one warp waste none of them, CTAs of 8 some; of 96, 20 warps of 21."""
    found = occupancy(gpu, threads=32 if registers == 32 else 128, registers=registers, smem_bytes=0)
    if registers == 32:
        assert found == Occupancy(ctas=32, warps=32, max_warps=64, limit="CTA places")
        found = occupancy(gpu, threads=256, registers=registers, smem_bytes=0)
    assert found.share == share


def test_the_cards_of_48_warps_have_a_larger_share_of_fewer() -> None:
    for gpu in (RTX3090, RTX4090):
        assert occupancy(gpu, 256, 128, 0).share == 16 / 48
        assert occupancy(gpu, 256, 32, 0) == Occupancy(ctas=6, warps=48, max_warps=48, limit="warps")


def test_shared_memory_counts_with_the_kilobyte_that_the_system_takes() -> None:
    assert occupancy(A100, 256, 64, 164 * 1024 // 2).ctas == 1
    two = occupancy(A100, 256, 64, 164 * 1024 // 2 - 1024)
    assert (two.ctas, two.limit) == (2, "shared memory")
    assert str(two) == "2 CTAs, 16 of 64 warps (25.0%), by shared memory"


@pytest.mark.parametrize(
    ("threads", "ctas", "budget"),
    [(256, 1, 255), (256, 2, 128), (256, 3, 80), (128, 3, 168), (64, 5, 168), (64, 4, 255)],
)
def test_a_budget_is_what_so_many_ctas_leave_a_thread(threads: int, ctas: int, budget: int) -> None:
    assert register_budget(A100, threads, ctas) == budget
    assert occupancy(A100, threads, budget, 0).ctas >= ctas
    if budget < 255:  # the next step
        assert occupancy(A100, threads, budget + 8, 0).ctas < ctas


def test_a_capability_without_known_limits_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"12\.0"):
        occupancy(dataclasses.replace(A100, sm=(12, 0)), 128, 128, 0)
