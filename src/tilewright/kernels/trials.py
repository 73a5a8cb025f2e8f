"""Configs of the Hopper family for the tuner alone, beside those that the untuned choice is made of.

    clustered   clusters of 4 and 8: of 18 products the fastest of one, 1000^3; of others up to 30 % slower. Those of 4
                that share what lies across lines are the untuned choice's as well (kernels/fitted.py)
    uneven      pairs with shares that are no equals: nobody has measured them
    ping-pong   in many waves: ahead where products take turns, behind where a card repeats one (kernels/fitted.py)
    tiny        narrow tiles of an out that has few of them

(H200, 2026-11-30; docs/decisions.md.) The model's constants were fitted without them; the tuner measures those that the
model ranks high, and whoever names one gets it. Knows what is worth a look; what is fastest, the model guesses.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.config import Config
from tilewright.device import Device
from tilewright.kernels.fitted import clustered_space, pingpong_space
from tilewright.kernels.narrow import deep
from tilewright.problem import Problem

_TILES = ((64, 1), (128, 2))  # rows of a tile, consumers
_TINY_WIDTHS = (8, 16, 24, 32)


def trials(problem: Problem, device: Device) -> Iterator[Config]:
    """Every legal config of these, each once."""
    found = dict.fromkeys(config for offered in _KINDS for config in offered(problem, device))
    yield from (config for config in found if not config.violations(problem, device))


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


_KINDS = (clustered_space, _uneven, pingpong_space, _tiny)
