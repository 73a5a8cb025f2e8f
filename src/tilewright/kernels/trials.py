"""Configs of the Hopper family that are worth a measurement and that no measurement has put among the others yet.

The untuned choice leaves them out, since the model's constants were fitted without them; the tuner measures those of
them that the model ranks high, and whoever names one gets it. To open the gate for a kind, when figures say that the
model's choice is no worse with it: add its name to MEASURED, and nothing else. Knows what is worth a look; what is
fastest, the model guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.config import Config
from tilewright.device import Device
from tilewright.kernels.family import group_rows
from tilewright.kernels.fitted import MOST_WAVES, fitted_space, pingpong_space
from tilewright.kernels.narrow import deep
from tilewright.problem import Problem
from tilewright.tiling import SWIZZLE_BYTES

# Kinds that the untuned choice takes as well. None has been measured.
MEASURED: frozenset[str] = frozenset()

_CLUSTERS = ((4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
_TILES = ((64, 1), (128, 2))  # rows of a tile, consumers
_NARROWEST, _WIDEST = 48, 176  # columns of a tile in a cluster of 4 or 8
_TINY_WIDTHS = (8, 16, 24, 32)
_TALL = 256  # columns of an out that is tall, at most
_TALL_ROWS = 32  # times as many rows as columns, at least. A judgement
_LARGE = (
    Config(tile_m=128, tile_n=176, stages=5, store_slots=1, k_back_and_forth=True),
    Config(tile_m=256, tile_n=176, stages=3, store_slots=1, staggered=True, k_back_and_forth=True),
)


def trials(problem: Problem, device: Device, *, measured: bool) -> Iterator[Config]:
    """Every legal config of the kinds that MEASURED has, or of the others, each once."""
    found: dict[Config, None] = {}
    for kind, offered in _KINDS.items():
        if (kind in MEASURED) == measured:
            found.update(dict.fromkeys(offered(problem, device)))
    yield from (config for config in found if not config.violations(problem, device))


def _clustered(problem: Problem, device: Device) -> Iterator[Config]:
    """Clusters of 4 and 8 whose tiles all run at once: of each the narrowest width that needs no second wave, as the
    product stands and with `swap`.

    Worked example, 1000^3 on an h200, 128 rows in 4x2: 15 clusters of 8 are 15 columns of 8 tiles, 14 in whole
    clusters, so 72 columns wide: what cuBLASLt's fastest has (docs/suite.md).
    """
    for swap in (False, True):
        for tile_m, consumers in _TILES:
            for cluster_m, cluster_n in _CLUSTERS:
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
    step = 8 if seen.b_major == "k" else SWIZZLE_BYTES // seen.dtype.size
    tile_n = -(-seen.n // (columns * step)) * step
    narrowest = 8 if config.swap else _NARROWEST
    if narrowest <= tile_n <= _WIDEST and -(-seen.n // tile_n) >= config.cluster_n:
        yield deep(config.replace(tile_n=tile_n, group_m=max(1, rows // config.cluster_m)), problem, device)


def _tiny(problem: Problem, device: Device) -> Iterator[Config]:
    """Tiles of 64 x 8 to 64 x 32, as the product stands and with `swap`, of an out that has no more of them than the
    device has SMs: of 128^3 the fastest is swapped 64x8, 2.21 us (H200, 2026-11-30)."""
    for swap in (False, True):
        for tile_n in _TINY_WIDTHS:
            base = Config(tile_m=64, tile_n=tile_n, consumers=1, stages=2, store_slots=1, swap=swap)
            if base.num_tiles(problem) <= device.num_sms:
                yield deep(base, problem, device)


def _uneven(problem: Problem, device: Device) -> Iterator[Config]:
    """Pairs that share widths of an odd number of swizzle atoms: few rows in one tile, whose weights are streamed."""
    rows = -(-problem.m // 8) * 8
    if rows % 16 == 0 or rows > 128:
        return
    for tile_m, consumers in _TILES:
        base = Config(tile_m=tile_m, tile_n=rows, consumers=consumers, stages=2, store_slots=1, swap=True, cluster_m=2)
        config = deep(base, problem, device)
        if config.num_tiles(problem) >= device.num_sms:
            yield config


def _more_waves(problem: Problem, device: Device) -> Iterator[Config]:
    """Widths made for the product in five waves, alone and in pairs: 128x176 for (512, 28672, 4096)."""
    for config in fitted_space(problem, device, waves=(MOST_WAVES + 1,)):
        yield config
        if config.tiles(problem)[0] % 2 == 0:
            yield deep(config.replace(cluster_m=2, group_m=max(1, config.group_m // 2), stages=2), problem, device)


def _tall(problem: Problem, device: Device) -> Iterator[Config]:
    """A tall out with its few columns as wgmma's rows: 160 rows of it a tile, shared by the tiles of all columns."""
    if problem.batch or problem.n > _TALL or problem.m < _TALL_ROWS * problem.n:
        return
    for cluster_m in (1, 2) if problem.n > 128 else (1,):
        for tile_n in (128, 160):
            base = Config(tile_m=128, tile_n=tile_n, stages=2, store_slots=2, swap=True, cluster_m=cluster_m)
            yield deep(base, problem, device)


def _large(problem: Problem, device: Device) -> Iterator[Config]:
    """176 columns, alone and in pairs that share them, where there are tiles for several waves."""
    if problem.batch or problem.out_dtype.size != 2 or problem.k <= SWIZZLE_BYTES // 2:
        return
    for base in _LARGE:
        for cluster_m in (1, 2):
            config = base.replace(cluster_m=cluster_m)
            rows, _ = config.tiles(problem)
            if config.num_tiles(problem) >= 2 * device.num_sms:
                group = group_rows(rows // cluster_m, base.tile_m * cluster_m, base.tile_n, device.num_sms // cluster_m)
                yield config.replace(group_m=group)


_KINDS: dict[str, Callable[[Problem, Device], Iterator[Config]]] = {
    "clustered": _clustered,
    "uneven": _uneven,
    "more waves": _more_waves,
    "tall": _tall,
    "large": _large,
    "ping-pong": pingpong_space,
    "tiny": _tiny,
}
