"""Configs of the Hopper family for products that give its large tiles too little to do: few rows or columns, few tiles.

Few rows (decode) are wgmma's narrow side by `swap`, few columns are it anyway; both want a deep ring, since such a
product is read from memory once and multiplied on the way. Few tiles want `split_k`, so that every SM has a part of k.
Knows what is worth a look; what is fastest, the model knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.config import Config
from tilewright.device import Device
from tilewright.legality import MAX_STAGES, SPLITS
from tilewright.problem import Problem
from tilewright.tiling import SWIZZLE_BYTES, WGMMA_M

# From here on the narrow side fills wgmma's 64 rows well enough twice over, and the tiles for large products serve.
_NARROW = 128
# Tiles of the wide side, with one consumer and two: by the model the second reads the narrow side half as often.
_NARROW_TILES = ((64, 1), (128, 2))
# Tiles of products that are few: those whose partial sums leave room for a ring. 128x256 in splits was never among the
# twelve best by the model, nor 128x128 in more than 4 by the clock (H200, 2026-11-30, benchmarks/results, narrow).
_FEW_TILES = ((64, 32, 1), (64, 64, 1), (64, 128, 1), (128, 64, 2), (128, 128, 2))
# Each CTA of a split has so many k tiles at least: with fewer the sums take longer than they save. A judgement.
_LEAST_K_TILES = 4
# Values of a tile that 8 CTAs share, at most: the sum of more takes longer than a split of 4.
_MOST_IN_8 = 64 * 128


def narrow_space(problem: Problem, device: Device) -> Iterator[Config]:
    """Every legal config of these that is worth a look; none for a large product."""
    narrow = dict.fromkeys(_narrow(problem))
    for base in narrow:
        yield from _split(base, SPLITS, problem, device)
        yield from _paired(base, problem, device)
    for base in _few(problem):
        if base not in narrow:
            yield from _split(base, SPLITS[1:], problem, device)  # whole, they are among the family's other tiles


def _narrow(problem: Problem) -> Iterator[Config]:
    """The narrow side in one tile, and where it is more than one wgmma's worth of rows in two."""
    for swap, extent, major in ((True, problem.m, problem.a_major), (False, problem.n, problem.b_major)):
        if extent > _NARROW:
            continue
        step = 8 if major == "k" else SWIZZLE_BYTES // problem.dtype.size
        widths = dict.fromkeys(-(-extent // (step * parts)) * step for parts in (1, 2) if parts == 1 or extent > 64)
        for tile_m, consumers in _NARROW_TILES:
            for tile_n in widths:
                yield Config(tile_m=tile_m, tile_n=tile_n, consumers=consumers, stages=2, store_slots=1, swap=swap)


def _few(problem: Problem) -> Iterator[Config]:
    """Where swap serves, tiles of 64 rows with rows past the end are slower in every case: TMA fills them in one by one
    (measured, 1 to 32 rows, H200, 2026-11-30)."""
    if Config().computed(problem).m <= WGMMA_M // 2:
        return
    for tile_m, tile_n, consumers in _FEW_TILES:
        yield Config(tile_m=tile_m, tile_n=tile_n, consumers=consumers, stages=2, store_slots=1)


def _split(base: Config, splits: tuple[int, ...], problem: Problem, device: Device) -> Iterator[Config]:
    """The config in every split that gives SMs work which they would not have, with as deep a ring as is of use."""
    k_tiles = -(-problem.k // base.tile_k)
    tiles = base.num_tiles(problem)
    for split_k in splits:
        if split_k == 1 and not base.swap and tiles > device.num_sms:
            continue  # the family's other tiles serve
        if split_k > 1 and (tiles > 2 * device.num_sms or k_tiles < _LEAST_K_TILES * split_k):
            continue
        if split_k == SPLITS[-1] and base.tile_m * base.tile_n > _MOST_IN_8:
            continue
        config = deep(base.replace(split_k=split_k), problem, device)
        if not config.violations(problem, device):
            yield config


def _paired(base: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Pairs of CTAs along the wide side that read the narrow one once for both, where every SM has a tile. Of a width
    that does not divide evenly: trials.py."""
    if base.tile_n % 16:
        return
    config = deep(base.replace(cluster_m=2), problem, device)
    if config.num_tiles(problem) >= device.num_sms and not config.violations(problem, device):
        yield config


def deep(config: Config, problem: Problem, device: Device) -> Config:
    """With as many stages as shared memory has room for, but no more than a CTA has k tiles where these are few: every
    stage is two barriers to make ready. In steps of 4, so that products of about one k share their kernel. A config
    that cannot run is left as it is: of 8 columns, half of which are gates, there is no store slot to count."""
    if config.violations(problem, device):
        return config
    room = device.smem_per_cta_bytes - config.smem_bytes(problem)
    per_stage = (config.replace(stages=6).smem_bytes(problem) - config.smem_bytes(problem)) // 4
    fits = min(MAX_STAGES, config.stages + max(0, room) // per_stage)
    while fits > 2 and config.replace(stages=fits).smem_bytes(problem) > device.smem_per_cta_bytes:
        fits -= 1
    needed = -(-config.computed(problem).k // (config.tile_k * config.split_k))
    return config.replace(stages=max(2, min(fits, -(-needed // 4) * 4)))
