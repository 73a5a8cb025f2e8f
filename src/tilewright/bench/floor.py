"""The fastest that a product can be on a card: its tensor cores alone, or its bytes read once by one that only reads.

Figures were measured on one H200 with loops that do nothing else (2026-11-29); of other cards nothing is known.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from tilewright.problem import Problem

Bound = Literal["compute", "memory"]

DEVICE = "NVIDIA H200"
# TFLOPS of a loop of wgmmas alone on normal data. Interleaved lies between the two, and is held to the lower.
CEILINGS_TFLOPS = {"burst": 935.0, "interleaved": 857.0, "steady": 857.0}
# (MiB, us) of cp.async.bulk reads of cold memory by every SM, in a graph; the first is what an empty launch and one
# read take. Between two, the time is linear.
READS_US = (
    (0.0, 1.2), (4.0, 2.50), (8.0, 3.82), (16.0, 5.65), (32.0, 9.36), (64.0, 16.51), (128.0, 30.87), (256.0, 59.71),
    (4096.0, 916.6),
)  # fmt: skip


@dataclass(frozen=True)
class Floor:
    """Microseconds that no kernel can beat, and what sets them."""

    us: float
    bound: Bound


def floor(problem: Problem, mode: str, device: str) -> Floor | None:
    """The floor of a product in one mode; None on a card that was not measured."""
    if device != DEVICE:
        return None
    compute_us = problem.flops / CEILINGS_TFLOPS[mode] * 1e-6
    memory_us = read_us(problem.min_bytes)
    return Floor(compute_us, "compute") if compute_us >= memory_us else Floor(memory_us, "memory")


def read_us(num_bytes: int) -> float:
    """Microseconds to read so many cold bytes; past the table at the rate of its last stretch."""
    mib = num_bytes / (1 << 20)
    stretches = list(itertools.pairwise(READS_US))
    (low, low_us), (high, high_us) = next((each for each in stretches if mib <= each[1][0]), stretches[-1])
    return low_us + (mib - low) / (high - low) * (high_us - low_us)
