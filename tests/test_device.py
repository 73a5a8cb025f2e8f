"""device.py: presets, and a present GPU as a value."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright import device
from tilewright.errors import UnsupportedError


@pytest.mark.parametrize("name", ["h100", "h200", "h20", "a100", "rtx3090", "rtx4090"])
def test_every_preset_can_be_planned_for_without_a_gpu(name: str) -> None:
    found = device.preset(name)
    assert found.num_sms > 0
    assert found.smem_per_cta_bytes < found.smem_per_sm_bytes


def test_only_hopper_compiles_for_the_feature_set_with_wgmma() -> None:
    assert device.preset("h200").arch == "sm_90a"
    assert device.preset("rtx4090").arch == "sm_89"


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match="h200, h100, h20, a100"):
        device.preset("b200")


def present(name: str, sm: tuple[int, int], num_sms: int) -> device.Device:
    return device.from_attributes(
        name=name,
        sm=sm,
        num_sms=num_sms,
        smem_per_cta_bytes=232448,
        smem_per_sm_bytes=233472,
        registers_per_sm=65536,
        l2_bytes=50 << 20,
    )


def test_a_present_gpu_takes_the_rates_of_the_preset_with_its_name() -> None:
    assert present("NVIDIA H200", (9, 0), 132).dram_gbps == device.preset("h200").dram_gbps
    assert present("NVIDIA H100 80GB HBM3", (9, 0), 132).dram_gbps == device.preset("h100").dram_gbps
    assert present("NVIDIA H20", (9, 0), 78).peak_tflops == device.preset("h20").peak_tflops


def test_fewer_sms_lower_the_tensor_rate_in_proportion() -> None:
    """B124: nothing of one device's counts is used for another."""
    full, half = present("NVIDIA H100 PCIe", (9, 0), 132), present("NVIDIA H100 PCIe", (9, 0), 66)
    assert half.peak_tflops == pytest.approx(full.peak_tflops / 2)
    assert (full.num_sms, half.num_sms) == (132, 66)


@pytest.mark.parametrize("sm", [(7, 5), (10, 0), (12, 1)])
def test_a_gpu_of_an_unknown_capability_is_still_a_value(sm: tuple[int, int]) -> None:
    """B131: it is the configs that refuse it, by name."""
    assert present("NVIDIA X", sm, 10).sm == sm


def test_clusters_at_once_are_what_the_driver_counted() -> None:
    """66, 30 and 15, H200, 2026-11-30; never none, however few SMs."""
    h200 = device.preset("h200")
    assert [h200.clusters_at_once(size) for size in (1, 2, 4, 8)] == [132, 66, 30, 15]
    assert dataclasses.replace(h200, num_sms=1).clusters_at_once(8) == 1
