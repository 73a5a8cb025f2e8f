"""Configs of the Hopper family whose width is made for the product: tiles that fill whole waves.

An out of few tile rows is as many tiles as it has columns of them, and with widths of 64, 128, 192 and 256 the last
wave is seldom full: 128 x 6144 in 64x128 is 96 tiles for 132 SMs. A width of 96 makes 128 of it, each of which reads
less: 16.6 us for 17.6 with k = 4096 (H200, 2026-11-30; in pairs that share the columns 16.9). So it is with few waves
of a higher out: 1025^3 of copies took 11.5 us in 64x192 and 8.4 in 64x152, 119 tiles; 512 x 28672 x 4096 took 187 in
256x192 with a tail and 176 in ping-pong 128x176, 4.94 waves (the same day). So it is with clusters of four and eight,
which want one wave. Knows what is worth a look; what is fastest, the model knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tilewright.config import Config
from tilewright.device import Device
from tilewright.kernels.family import group_rows
from tilewright.kernels.narrow import deep
from tilewright.legality import WGMMA_MAX_N
from tilewright.problem import Problem
from tilewright.tiling import SWIZZLE_BYTES, crosses_lines

_TILES = ((64, 1), (128, 2))  # rows of a tile, consumers
_MOST_ROWS = 4  # tile rows; with more of them the family's tails even the last wave out
MOST_WAVES = 4  # of more the last one is a small part
_NARROWEST = 64  # columns; narrower tiles read more than they multiply
_PINGPONG = Config(tile_m=128, tile_n=128, stages=2, pingpong=True, store_slots=1, k_back_and_forth=True)
PINGPONG_WIDTHS = (
    96,
    192,
)  # columns: with fewer the tensor cores wait for shared memory, for more there is no register
PINGPONG_WAVES = 5
_CLUSTERED_NARROWEST, _CLUSTERED_WIDEST = 48, 176  # columns of a tile in a cluster of 4 or 8, without swap
_CLUSTERS = ((4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
_FEW = 128  # rows or columns of an out: with so few nobody has measured clusters where rows lie across lines
_MANY_WAVES_WIDTHS = (128, 144, 160, 176, 192)  # boxes of a store slot are 16 columns or more wide


def fitted_space(problem: Problem, device: Device, waves: Iterable[int] = range(1, MOST_WAVES + 1)) -> Iterator[Config]:
    """Every legal config of these that is worth a look, in so many waves; none for a high out, nor for a batch."""
    if problem.batch:
        return
    for tile_m, consumers in _TILES:
        rows = -(-problem.m // tile_m)
        if rows > _MOST_ROWS:
            continue
        for tile_n in _widths(problem, device, tile_m, waves, _NARROWEST, WGMMA_MAX_N):
            base = Config(tile_m=tile_m, tile_n=tile_n, consumers=consumers, stages=2, group_m=rows)
            yield from _whole(base, problem, device)


def high_space(problem: Problem, device: Device) -> Iterator[Config]:
    """The same of outs of any height: 64 rows a tile in one wave, where an out is not low, and ping-pong in up to five.

    Worked example, 1025^3: 17 rows of 64x152 in 7 columns are 119 tiles; (4096, 2112, 7168): 32 rows of 128x176 in 12
    columns, 384 tiles in three waves.
    """
    if problem.batch:
        return
    if problem.m > 64 * _MOST_ROWS:
        for tile_n in _widths(problem, device, 64, (1,), _NARROWEST, WGMMA_MAX_N):
            yield from _whole(Config(tile_m=64, tile_n=tile_n, consumers=1, stages=2), problem, device)
    for tile_n in _widths(problem, device, _PINGPONG.tile_m, range(1, PINGPONG_WAVES + 1), *PINGPONG_WIDTHS):
        yield from _whole(_PINGPONG.replace(tile_n=tile_n), problem, device)


def pingpong_space(problem: Problem, device: Device) -> Iterator[Config]:
    """Ping-pong in many waves: the two of five widths that should take the least time, waves x (width + 8), where 8
    columns stand for what a tile costs beside its multiplications; alone and in pairs that share the columns.

    Worked example, (8192, 6144, 4096) on 132 SMs: 17 waves of 176 columns, 21 of 144. Measured, H200, 2026-11-30,
    interleaved: 591 us in 128x176, 602 in 128x144, 607 in 256x192 staggered with a tail; where the card does nothing
    else, at 8192^3, 128x176 takes 3 to 4 % longer than 256x200 staggered.
    """
    if problem.batch or problem.out_dtype.size != 2:
        return
    rows = -(-problem.m // _PINGPONG.tile_m)
    costs: dict[int, int] = {}
    for tile_n in (width for width in _MANY_WAVES_WIDTHS if width % _step(problem) == 0):
        waves = -(-rows * -(-problem.n // tile_n) // device.num_sms)
        if waves > PINGPONG_WAVES:
            costs[tile_n] = waves * (tile_n + 8)
    for tile_n in sorted(costs, key=lambda width: costs[width])[:2]:
        for cluster_m in (1, 2) if rows % 2 == 0 else (1,):
            yield from _whole(_PINGPONG.replace(tile_n=tile_n, cluster_m=cluster_m), problem, device)


def crossing_space(problem: Problem, device: Device) -> Iterator[Config]:
    """Clusters of 4 that share an operand whose rows lie across two lines: such a row costs TMA as much as 2.4 others
    (work.py), and each CTA asks for a quarter of them. None that share both: at 1000^3 they are 4 to 13 % behind,
    where the model has most of them ahead, by up to 11 %.

    Measured, H200, 2026-12-01, 1000^3, rows of 2000 bytes: 64x144 in 4x1 6.98 us, 128x88 in 1x4 7.27, 64x128 in pairs
    7.73 and alone 9.23. With rows in one line pairs and clusters lose (1024^3: 5.90 alone, 6.29 in pairs, 7.10 in 2x2).
    """
    if min(problem.m, problem.n) <= _FEW:
        return
    for config in clustered_space(problem, device, ((4, 1), (1, 4))):
        if crosses_lines(config.computed(problem), "b" if config.cluster_m > 1 else "a"):
            yield config


def clustered_space(
    problem: Problem, device: Device, clusters: Sequence[tuple[int, int]] = _CLUSTERS
) -> Iterator[Config]:
    """Clusters of 4 and 8 whose tiles all run at once: of each the narrowest width that needs no second wave, as the
    product stands and with `swap`.

    Worked example, 1000^3 on an h200, 128 rows in 4x2: 15 clusters of 8 are 15 columns of 8 tiles, 14 in whole
    clusters, so 72 columns wide: what cuBLASLt's fastest has (docs/suite.md).
    """
    for swap in (False, True):
        for tile_m, consumers in _TILES:
            for cluster_m, cluster_n in clusters:
                config = Config(
                    tile_m=tile_m,
                    tile_n=8,
                    consumers=consumers,
                    cluster_m=cluster_m,
                    cluster_n=cluster_n,
                    stages=2,
                    swap=swap,
                    store_slots=1,
                )
                yield from _in_one_wave(config, problem, device)


def _in_one_wave(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """The config in the width that makes one wave, if that is one; rows and columns of tiles fill their clusters."""
    seen = config.computed(problem)
    rows = -(-seen.m // config.tile_m)
    if problem.batch or rows % config.cluster_m:
        return
    columns = device.clusters_at_once(config.cluster) * config.cluster // rows // config.cluster_n * config.cluster_n
    if not columns:
        return
    tile_n = -(-seen.n // (columns * _step(seen))) * _step(seen)
    narrowest = 8 if config.swap else _CLUSTERED_NARROWEST
    if narrowest <= tile_n <= _CLUSTERED_WIDEST and -(-seen.n // tile_n) >= config.cluster_n:
        config = deep(config.replace(tile_n=tile_n, group_m=max(1, rows // config.cluster_m)), problem, device)
        if not config.violations(problem, device):
            yield config


def _step(problem: Problem) -> int:
    """Columns of which a tile's width is a multiple."""
    return 8 if problem.b_major == "k" else SWIZZLE_BYTES // problem.dtype.size


def _widths(
    problem: Problem, device: Device, tile_m: int, waves: Iterable[int], narrowest: int, widest: int
) -> list[int]:
    """The narrowest widths with which the tiles are so many waves, those that are neither too narrow nor too wide."""
    step = _step(problem)
    rows = -(-problem.m // tile_m)
    counts = [count * device.num_sms // rows for count in waves]  # of columns of tiles
    widths = {-(-problem.n // (count * step)) * step for count in counts if count}
    return sorted(width for width in widths if narrowest <= width <= widest)


def _whole(base: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """The config with its stages and, where it has none yet, its groups; nothing where it is not legal."""
    rows, _ = base.tiles(problem)
    if base.group_m == Config().group_m:
        ctas = device.num_sms // base.cluster_m
        base = base.replace(group_m=group_rows(rows // base.cluster_m, base.tile_m * base.cluster_m, base.tile_n, ctas))
    config = deep(base, problem, device)
    if not config.violations(problem, device):
        yield config
