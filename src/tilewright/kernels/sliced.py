"""Configs of the Hopper family for few tiles and a long k: parts of k as a batch of products, whose sums are added.

A cluster splits k into 8 parts at most, and 8 CTAs of one cluster need a group of SMs to themselves; slices are any
number, of any tile, on any SM, and cost a round of their fp32 sums through the L2 and a second launch. Knows what is
worth a look; what is fastest, the model knows. How many slices, slice_counts() says for the Ampere family as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.config import Config
from tilewright.device import Device
from tilewright.kernels.narrow import deep
from tilewright.legality import MAX_SLICES
from tilewright.problem import Problem
from tilewright.tma import TMA_ALIGNMENT_BYTES

LEAST_K = 4096  # below, what the second launch costs is no part of the whole any more. A judgement
_LEAST_K_TILES = 6  # of a slice: the ring has to fill before it is of use. A judgement
_TILES = ((128, 128, 2), (128, 256, 2), (256, 128, 2), (128, 64, 2), (64, 64, 1))
_SHARED = ((1, 1), (2, 1), (1, 2))  # CTAs that share operands: with few tiles most of what is read is read twice
_SMALLEST_SHARED = 128 * 128  # elements of a tile
_COUNTS = 2  # numbers of slices a tile


def sliced_space(problem: Problem, device: Device) -> Iterator[Config]:
    """Every legal config of these that is worth a look; none for a short k, a batch, or many tiles."""
    if problem.batch or problem.k < LEAST_K:
        return
    for tile_m, tile_n, consumers in _TILES:
        tile = Config(tile_m=tile_m, tile_n=tile_n, consumers=consumers, stages=2, store_slots=1, dependent_sums=True)
        for slices in slice_counts(problem, tile, device):
            alone = deep(tile.replace(slices=slices), problem, device)
            for cluster_m, cluster_n in _SHARED if tile_m * tile_n >= _SMALLEST_SHARED else _SHARED[:1]:
                rows, columns = alone.tiles(problem)
                if rows % cluster_m or columns % cluster_n:
                    continue  # half of a cluster would have nothing to do
                config = alone.replace(cluster_m=cluster_m, cluster_n=cluster_n)
                if not config.violations(problem, device):
                    yield config


def slice_counts(problem: Problem, config: Config, device: Device) -> list[int]:
    """The numbers of slices that fill the SMs best in one wave, the best first: parts of whole k tiles, and not too
    short ones.

    Worked example, (256, 256, 65536) with 128x128 on 132 SMs: 4 tiles are 33 slices, and 32 of 2048 values of k are
    the most that divide it: 128 CTAs.
    """
    tiles = config.num_tiles(problem)
    if tiles * 2 > device.num_sms:
        return []
    most = min(MAX_SLICES, device.num_sms // tiles, problem.k // (config.tile_k * _LEAST_K_TILES))
    step = TMA_ALIGNMENT_BYTES // problem.dtype.size
    found = [slices for slices in range(2, most + 1) if problem.k % (slices * step) == 0]
    return sorted(found, key=lambda slices: (-(-problem.k // slices // config.tile_k), -slices))[:_COUNTS]
