"""How fast a device multiplies a kind of product, and at what energy, next to 16-bit inputs with fp32 sums.

Knows kinds of inputs and compute capabilities; what a Device does with 16-bit inputs, device.py knows.
"""

from __future__ import annotations

from tilewright import dtypes
from tilewright.device import Device
from tilewright.problem import Problem

# The peak of int8 over that of 16-bit inputs with fp32 sums, dense. Source: data sheets and whitepapers. H200 1979 and
# 989 TOPS and TFLOPS, A100 624 and 312, RTX 3090 284 and 71, RTX 4090 661 and 165: consumer cards have half of the rate
# where sums are fp32. Measured on an H200 (2026-11-29, loops on registers or shared memory): wgmma 8192 and 4096
# operations a cycle of an SM, mma.sync 5454 and 2730.
_INT8 = {(8, 0): 2.0, (8, 6): 4.0, (8, 9): 4.0, (9, 0): 2.0}
# The same of fp16 sums over fp32 sums: RTX 3090 142 and 71 TFLOPS, RTX 4090 330 and 165; others have one rate for both.
_F16_SUMS = {(8, 6): 2.0, (8, 9): 2.0}
_TF32 = 0.5  # of it, by the same sources: 494 and 989, 156 and 312, 35.6 and 71, 82.6 and 165
# mma.sync's share of what wgmma does in a cycle: measured, H200, register-only loops, 2730 of 4096 FLOPs an SM; of int8
# 5454 of 8192, with fp16 sums 2724. Of tf32 it was not measured.
_MMA_SHARE_OF_WGMMA = 2 / 3


def tensor_flops_per_cycle(problem: Problem, device: Device) -> float:
    """FLOPs, or operations on whole numbers, in a cycle of one SM by the fastest way that the device has."""
    return device.tensor_flops_per_cycle * _share(problem, device)


def mma_flops_per_cycle(problem: Problem, device: Device) -> float:
    """The same by mma.sync."""
    return tensor_flops_per_cycle(problem, device) * (_MMA_SHARE_OF_WGMMA if device.sm == (9, 0) else 1.0)


def energy_share(problem: Problem) -> float:
    """Energy of a FLOP over that of 16-bit inputs: as wide as the inputs are. A judgement; not measured."""
    return problem.dtype.size / dtypes.BF16.size


def _share(problem: Problem, device: Device) -> float:
    if problem.dtype is dtypes.INT8:
        return _INT8.get(device.sm, 2.0)
    if problem.sums is dtypes.FP16:
        return _F16_SUMS.get(device.sm, 1.0)
    return _TF32 if problem.dtype is dtypes.TF32 else 1.0
