"""How long the emulator takes for a kernel on one core, from counts: so that a product of hours is refused, not begun.

Knows the shape of the work alone; the figures are of one machine and good to a factor of two on another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tilewright.ampere_config import AmpereConfig
from tilewright.backends.base import Launch
from tilewright.config import Config
from tilewright.errors import UnsupportedError
from tilewright.problem import Problem
from tilewright.tiling import WGMMA_M

LIMIT_S = 20.0  # what matmul on NumPy arrays and `tilewright run` take on without being asked twice
SMALLEST = 64  # no size is advised below it

# Seconds. Source: process time, one thread, 2-core x86-64 that others used as well, Python 3.11, NumPy 2.4, 2026-11-30,
# over hopper configs of 64x8 to 128x256 at 64^3 to 512 x 512 x 2048; the fit is within 30 % of each.
_FIRST_S = 0.2  # parsing and translating
_CTA_S = 0.5e-3
_TILE_BLOCK_S, _TILE_BLOCK_COLUMN_S = 0.4e-3, 4e-6  # 64 rows of a tile stored, and each column of them
_SLOT_S = 0.25e-3  # the producer's part of one step along k
_SLOT_BLOCK_S, _SLOT_BLOCK_COLUMN_S = 0.35e-3, 0.6e-6  # the four wgmmas of 64 rows, and each column of them
_SENT_BLOCK_S = 1.6e-3  # of a split: 8 columns of 64 rows, of which each thread of a consumer sends 16 bytes
_SUM_S = 12e-9  # a byte of slices that are added up: 6 ns, and 64 with the checker
_ARRIVAL_S = 60e-6  # each thread that arrives on a barrier of its own accord: v02 to v06
_MULTIPLY_ADD_S = 50e-9  # of one thread: v01
_CHECKS = 3.2  # times as long with the checker
# The ampere family, without and with the checker: an element of a tile; a k tile of each CTA; and without it, where all
# CTAs run as one vector, a k tile of that. Source: as above, 32x64 to 128x256 tiles, with the checker at 256^3 to
# 512 x 512 x 128, without it up to 1024 x 1024 x 2048 and 2048 x 2048 x 512; the fit is within a factor of two.
_MMA_ELEMENT_S = (0.3e-6, 5e-6)
_MMA_SLOT_S = (0.5e-3, 2e-3)
_MMA_STEP_S = (3e-3, 0.0)
_LONE_ARRIVALS = ("v02", "v03", "v04", "v05", "v06")


def emulated_s(
    problem: Problem, config: Config, launch: Launch, *, family: str = "hopper", checks: bool = False
) -> float:
    """Seconds that one launch takes, and what adds its slices up.

    Source: the constants above.
    """
    adding = _SUM_S * config.slices_bytes(problem)
    problem = config.sliced(problem)
    num_tiles = config.num_tiles(problem)
    num_slots = num_tiles * -(-problem.k // config.tile_k)
    blocks = -(-config.tile_m // WGMMA_M)
    if family == AmpereConfig.family:
        steps = -(-problem.k // config.tile_k) * -(-num_tiles // launch.grid)
        own = num_tiles * config.tile_m * config.tile_n * _MMA_ELEMENT_S[checks]
        own += num_slots * _MMA_SLOT_S[checks] + steps * _MMA_STEP_S[checks]
        return _FIRST_S + own + adding * (_CHECKS if checks else 1.0)
    if family.startswith("v01"):
        work = num_slots * config.tile_m * config.tile_n * config.tile_k * _MULTIPLY_ADD_S
    else:
        tile = blocks * (_TILE_BLOCK_S + config.tile_n * _TILE_BLOCK_COLUMN_S)
        slot = _SLOT_S + blocks * (_SLOT_BLOCK_S + config.tile_n * _SLOT_BLOCK_COLUMN_S)
        if family.startswith(_LONE_ARRIVALS):
            slot += launch.block * _ARRIVAL_S
        sent = num_tiles * config.split_k * blocks * (config.tile_n // 8) if config.split_k > 1 else 0
        work = sent * _SENT_BLOCK_S + launch.grid * _CTA_S + num_tiles * tile + num_slots * slot
    return _FIRST_S + (work + adding) * (_CHECKS if checks else 1.0)


def affordable(problem: Problem, seconds_of: Callable[[Problem], float], limit_s: float) -> Problem | None:
    """The product itself or the nearest smaller one that takes no longer than the limit: its largest sizes are halved,
    as often as it takes, down to SMALLEST. None: there is none.
    """
    while seconds_of(problem) > limit_s:
        sizes = {"m": problem.m, "n": problem.n, "k": problem.k}
        name = max(sizes, key=lambda each: sizes[each])
        if sizes[name] <= SMALLEST:
            return None
        power = 1 << (sizes[name] - 1).bit_length() - 1  # the largest power of two below the size
        sizes[name] = max(power, SMALLEST)
        problem = dataclasses.replace(problem, m=sizes["m"], n=sizes["n"], k=sizes["k"])  # it fits the old pitches
    return problem


def too_long(
    problem: Problem,
    seconds: float,
    limit_s: float,
    smaller: Problem | None,
    allowing: str = "tilewright.Emulator(limit_s=None)",
) -> UnsupportedError:
    """The refusal of a product that would take the emulator `seconds`; `allowing` is how to run it all the same."""
    advice = "" if smaller is None else f"try {smaller.m}x{smaller.n}x{smaller.k}, or "
    return UnsupportedError(
        asked=f"{problem} in the emulator",
        rule=f"it would take about {duration_text(seconds)} on this CPU, and the limit is {duration_text(limit_s)}",
        works=f"{advice}use a GPU, or allow it: {allowing}",
    )


def duration_text(seconds: float) -> str:
    """A duration in the unit that suits it."""
    for unit, length_s in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
