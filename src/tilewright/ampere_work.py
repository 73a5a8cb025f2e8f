"""What a launch of an AmpereConfig has to do, by waves: the plain terms that the model ranks them by.

The counts of the family, in the words of work.py: mma.sync's rate, what passes shared memory, the L2 and DRAM, and
how many CTAs an SM holds. None of its figures was measured on an Ampere or Ada card.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ampere_config import STEP_BYTES, AmpereConfig
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


def smem_cycles(config: AmpereConfig, problem: Problem) -> float:
    """Cycles of a k tile in which shared memory is busy for one CTA: every warp reads its part, once for all values of
    k of an mma.sync, and the ring is written.

    Worked example: 128x256x32 of 8 warps of 64x64: 8 x 128 rows of 64 bytes are read in 512 cycles, 384 written in 192;
    its mma.sync take 1024 cycles on an A100 and 768 on an h200.
    """
    row_bytes = config.tile_k * problem.dtype.size
    read = config.warps * (config.warp_m + config.warp_n) * row_bytes
    return (read + config.stage_bytes(problem)) / SMEM_BYTES_PER_CYCLE


def ampere_work_of(problem: Problem, config: AmpereConfig, device: Device, grid: int) -> Work:
    """Counts of one launch, by waves. CTAs of one SM share its tensor cores and its shared memory, and each hides the
    others' waits: a tile takes as many times as long, or its own chain of k tiles, whichever is longer.
    """
    tiles = config.num_tiles(problem)
    k_tiles = -(-problem.k // config.tile_k)
    k = k_tiles * config.tile_k
    tensor = 2.0 * config.tile_m * config.tile_n * config.tile_k / mma_flops_per_cycle(problem, device)
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
        loop = k_tiles * max(beside * tensor, beside * smem_cycles(config, problem), chain)
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
