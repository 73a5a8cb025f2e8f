"""What a launch of an AmpereConfig has to do, by waves: the plain terms that the model ranks them by.

The counts of the family, in the words of work.py: mma.sync's rate, what passes shared memory, the L2 and DRAM, and
how many CTAs an SM holds. Its own figures are an H200's; none was measured on an Ampere or Ada card.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import dtypes
from tilewright.ampere_config import MMA_M, STEP_BYTES, AmpereConfig
from tilewright.device import Device
from tilewright.problem import Problem
from tilewright.rates import energy_share, mma_flops_per_cycle
from tilewright.work import (
    IN_STEP_DRAM_SHARE,
    LATENCY_US,
    PJ_PER_FLOP,
    SMEM_BYTES_PER_CYCLE,
    STORE_BASE_CYCLES,
    STORE_VALUES_PER_CYCLE,
    Wave,
    Work,
    dram_bytes,
    l2_bytes,
)

# A k tile's way through one CTA, however small: wait, barrier, and of each step the loads and the multiplications that
# follow each other. A judgement: 30 cycles of a barrier, and of a step 33 from ldmatrix and 18 from mma.sync.
_BARRIER_CYCLES = 30
_STEP_CYCLES = 50
# What an mma.sync of a loop takes beyond its 6 cycles of a quarter of an H200's SM, with tf32 its rounding too; what a
# k tile takes beyond them where all warps of a CTA alone on its SM want shared memory at once (docs/ampere.md, "Where
# the cycles go"): of 8 warps of 64x64 by (three or more fragments ahead, split barrier), of others by the rows that
# their warps read. Fitted by hand to 95 times of an H200 (2026-11-30, 4096^3 and 8192^3, every kind of inputs), which
# are 0.97 to 1.17 of the predicted ones, the median 1.05. One warp a scheduler: 256x64 in the ladder's sweep of tiles.
_MMA_N = 8  # columns of one mma.sync (PTX ISA)
_SCHEDULERS = 4  # of an SM
_MMA_CYCLES = 1.8
_TF32_MMA_CYCLES = 3.2
_BESIDE = 1.6  # times as much for each of CTAs side by side, which fill each other's gaps
_ALONE = 2.7  # times as much for the one warp of a scheduler
_FULL_WARPS = 8  # two a scheduler
_GAP_ROWS = 8 * (64 + 64)
_GAP_CYCLES = {(False, False): 210, (False, True): 110, (True, False): 100, (True, True): 60}


def smem_cycles(config: AmpereConfig, problem: Problem) -> float:
    """Cycles of a k tile in which shared memory is busy for one CTA: every warp reads its part, once for all values of
    k of an mma.sync, and the ring is written.

    Worked example: 128x256x32 of 8 warps of 64x64: 8 x 128 rows of 64 bytes are read in 512 cycles, 384 written in 192;
    its mma.sync take 1024 cycles on an A100 and 768 on an h200.
    """
    row_bytes = config.tile_k * problem.dtype.size
    read = config.warps * (config.warp_m + config.warp_n) * row_bytes
    return (read + config.stage_bytes(problem)) / SMEM_BYTES_PER_CYCLE


def loop_cycles(config: AmpereConfig, problem: Problem, device: Device, *, has_neighbours: bool) -> float:
    """Cycles of a k tile in which one CTA multiplies, or cannot although shared memory has time.

    Worked example: 128x256x64 of bf16, ahead 3, split barrier, h200: 256 mma.sync a scheduler, 6 + 1.8 cycles each, and
    60.
    """
    row_bytes = config.tile_k * problem.dtype.size
    mmas = config.tile_m * config.tile_n * row_bytes / (MMA_M * _MMA_N * STEP_BYTES * _SCHEDULERS)
    further = mmas * (_TF32_MMA_CYCLES if problem.dtype is dtypes.TF32 else _MMA_CYCLES)
    if has_neighbours:
        return tensor_cycles(config, problem, device) + further * _BESIDE
    rows = config.warps * (config.warp_m + config.warp_n)
    gap = _GAP_CYCLES[config.ahead >= 3, config.split_barrier] * rows / _GAP_ROWS
    return tensor_cycles(config, problem, device) + further * (1 if config.warps >= _FULL_WARPS else _ALONE) + gap


def tensor_cycles(config: AmpereConfig, problem: Problem, device: Device) -> float:
    """Cycles of a k tile by mma.sync's rate alone."""
    return 2.0 * config.tile_m * config.tile_n * config.tile_k / mma_flops_per_cycle(problem, device)


def ampere_work_of(problem: Problem, config: AmpereConfig, device: Device, grid: int) -> Work:
    """Counts of one launch, by waves. CTAs of one SM share its tensor cores and its shared memory, and each hides the
    others' waits: a tile takes as many times as long, or its own chain of k tiles, whichever is longer.
    """
    tiles = config.num_tiles(problem)
    k_tiles = -(-problem.k // config.tile_k)
    k = k_tiles * config.tile_k
    tensor = tensor_cycles(config, problem, device)
    chain = _BARRIER_CYCLES + config.tile_k * problem.dtype.size / STEP_BYTES * _STEP_CYCLES
    store = STORE_BASE_CYCLES + config.warp_m * config.warp_n / STORE_VALUES_PER_CYCLE
    rows, columns = config.tiles(problem)
    height, width = problem.m / rows, problem.n / columns  # of a tile on average, what is there of it
    row_bytes = k * problem.dtype.size
    a_bytes, b_bytes = tiles * height * row_bytes, tiles * width * row_bytes
    read_bytes = l2_bytes(config, problem, a_bytes, b_bytes)
    moved_bytes = dram_bytes(problem, config, device, grid)

    def wave(many: float, ctas: int) -> Wave:
        """`many` waves of so many CTAs, each of one tile."""
        beside = max(1.0, ctas / device.num_sms)  # CTAs of an SM
        multiplied = loop_cycles(config, problem, device, has_neighbours=beside > 1.0)
        loop = k_tiles * max(beside * multiplied, beside * smem_cycles(config, problem), chain)
        landing_us = k_tiles * LATENCY_US / (config.stages - 2)
        share = ctas / tiles
        shown = store if beside == 1.0 else 0.0  # a neighbour multiplies meanwhile
        return Wave(
            many,
            k_tiles * beside * tensor,
            loop,
            landing_us,
            shown,
            read_bytes * share,
            moved_bytes * share,
        )

    full, rest = divmod(tiles, grid)
    waves = [wave(float(full), grid)] if full else []
    waves += [wave(1.0, rest)] if rest else []
    waves[-1:] = [replace(waves[-1], count=waves[-1].count - 1)] * (waves[-1].count > 1) + [
        replace(waves[-1], count=1.0, store_cycles=0.0)
    ]
    return Work(
        waves=tuple(waves),
        last_store_cycles=store,
        fill_bytes=a_bytes + b_bytes,
        l2_bytes=read_bytes,
        dram_bytes=moved_bytes,
        dram_share=IN_STEP_DRAM_SHARE,
        flops=2.0 * tiles * config.tile_m * config.tile_n * k,
        pj_per_flop=PJ_PER_FLOP * energy_share(problem),
    )
