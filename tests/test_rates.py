"""rates.py: what a kind of product gains over 16-bit inputs with fp32 sums, by the vendor's data sheets."""

from __future__ import annotations

import pytest

from tilewright.device import preset
from tilewright.packing import packed
from tilewright.rates import energy_share, mma_flops_per_cycle, tensor_flops_per_cycle


# TOPS or TFLOPS of 16-bit inputs with fp32 sums and of the kind, dense.
@pytest.mark.parametrize(
    ("card", "kind", "of_16_bits", "of_kind"),
    [
        ("h200", "fp16 sums", 989, 989),
        ("a100", "fp16 sums", 312, 312),
        ("rtx3090", "fp16 sums", 71, 142),
        ("rtx4090", "fp16 sums", 165.2, 330.3),
        ("h200", "int8", 989, 1979),
        ("h200", "tf32", 989, 494.5),
        ("a100", "tf32", 312, 156),
        ("rtx3090", "tf32", 71, 35.6),
        ("rtx4090", "tf32", 165.2, 82.6),
        ("a100", "int8", 312, 624),
        ("rtx3090", "int8", 71, 284),
        ("rtx4090", "int8", 165.2, 660.6),
    ],
)
def test_rates_are_those_of_the_data_sheets(card: str, kind: str, of_16_bits: float, of_kind: float) -> None:
    device = preset(card)
    dtype, *sums = kind.split()
    of = {"dtype": dtype, **({"sums": dtype} if sums else {})}
    rates = [tensor_flops_per_cycle(packed(64, 64, 64, **each), device) for each in ({}, of)]
    assert rates[0] == device.tensor_flops_per_cycle
    assert rates[1] / rates[0] == pytest.approx(of_kind / of_16_bits, rel=0.01)


def test_mma_sync_reaches_on_hopper_what_was_measured_there() -> None:
    """Operations a cycle of an SM, H200, loops on registers: 2730 with 16-bit inputs, 5454 with int8."""
    found = [mma_flops_per_cycle(packed(64, 64, 64, dtype=dtype), preset("h200")) for dtype in ("bf16", "int8")]
    assert found == pytest.approx([2730, 5454], rel=0.002)
    problem = packed(64, 64, 64)
    assert mma_flops_per_cycle(problem, preset("a100")) == tensor_flops_per_cycle(problem, preset("a100"))


def test_the_energy_of_an_operation_is_as_the_inputs_are_wide() -> None:
    assert [energy_share(packed(64, 64, 64, dtype=dtype)) for dtype in ("int8", "fp16", "tf32")] == [0.5, 1, 2]
