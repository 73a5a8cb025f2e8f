"""Configs of the Hopper family whose width is made for the product: tiles that fill whole waves of a low out.

An out of few tile rows is as many tiles as it has columns of them, and with widths of 64, 128, 192 and 256 the last
wave is seldom full: 128 x 6144 in 64x128 is 96 tiles for 132 SMs. A width of 96 makes 128 of it, each of which reads
less: 16.6 us for 17.6 with k = 4096 (H200, 2026-11-30; in pairs that share the columns 16.9). Knows what is worth a
look; what is fastest, the model knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.config import Config
from tilewright.device import Device
from tilewright.kernels.narrow import deep
from tilewright.legality import WGMMA_MAX_N
from tilewright.problem import Problem
from tilewright.tiling import SWIZZLE_BYTES

_TILES = ((64, 1), (128, 2))  # rows of a tile, consumers
_MOST_ROWS = 4  # tile rows; with more of them the family's tails even the last wave out
MOST_WAVES = 4  # of more the last one is a small part
_NARROWEST = 64  # columns; narrower tiles read more than they multiply


def fitted_space(problem: Problem, device: Device, waves: Iterable[int] = range(1, MOST_WAVES + 1)) -> Iterator[Config]:
    """Every legal config of these that is worth a look, in so many waves; none for a high out, nor for a batch."""
    if problem.batch:
        return
    step = 8 if problem.b_major == "k" else SWIZZLE_BYTES // problem.dtype.size
    for tile_m, consumers in _TILES:
        rows = -(-problem.m // tile_m)
        if rows > _MOST_ROWS:
            continue
        counts = [count * device.num_sms // rows for count in waves]  # of columns of tiles
        widths = {-(-problem.n // (count * step)) * step for count in counts if count}
        for tile_n in sorted(width for width in widths if _NARROWEST <= width <= WGMMA_MAX_N):
            base = Config(tile_m=tile_m, tile_n=tile_n, consumers=consumers, stages=2, group_m=rows)
            config = deep(base, problem, device)
            if not config.violations(problem, device):
                yield config
