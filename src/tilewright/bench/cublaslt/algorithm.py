"""One algorithm of cuBLASLt: the attributes that the library tells, by their names in cublasLt.h.

Source of every number: cublasLt.h of cuBLAS 13.1. A test compares the sizes with the library, where one is installed.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

# cublasLtMatmulAlgoConfigAttributes_t: our name -> (number, type).
ATTRIBUTES: dict[str, tuple[int, Any]] = {
    "id": (0, ctypes.c_int32),
    "tile": (1, ctypes.c_uint32),
    "split_k": (2, ctypes.c_int32),
    "reduction": (3, ctypes.c_uint32),
    "swizzle": (4, ctypes.c_uint32),
    "custom": (5, ctypes.c_uint32),
    "stages": (6, ctypes.c_uint32),
    "inner": (7, ctypes.c_uint16),
    "cluster": (8, ctypes.c_uint16),
}
REDUCTIONS = {0: "none", 1: "in place", 2: "compute type", 4: "output type"}  # cublasLtReductionScheme_t
REDUCED_PRECISION = frozenset({1, 4})  # partial sums may be rounded to out's type before they are added


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm as the library configured it. `blob` is what it knows it by; the rest is what it tells of it."""

    blob: bytes
    attributes: tuple[tuple[str, int], ...]
    workspace_bytes: int = 0
    waves: float = 0.0

    def __getitem__(self, name: str) -> int:
        return dict(self.attributes)[name]

    @property
    def is_reduced_precision(self) -> bool:
        """Whether partial sums are rounded to out's type before they are added."""
        return self["split_k"] != 1 and self["reduction"] in REDUCED_PRECISION

    def facts(self) -> dict[str, Any]:
        """What a row says of it: sizes in words, everything else as the library's number."""
        return dict(self.attributes) | {
            "tile": tile_name(self["tile"]),
            "stages": stages_name(self["stages"]),
            "cluster": cluster_name(self["cluster"]),
            "reduction": REDUCTIONS.get(self["reduction"], str(self["reduction"])),
            "workspace_bytes": self.workspace_bytes,
            "waves": round(self.waves, 3),
        }

    def __str__(self) -> str:
        facts = self.facts()
        words = [f"{facts['tile']} {facts['stages']} cluster {facts['cluster']}", f"id {facts['id']}"]
        words += [f"split-k {facts['split_k']} ({facts['reduction']})"] if facts["split_k"] != 1 else []
        words += [f"{name} {facts[name]}" for name in ("swizzle", "custom", "inner") if facts[name]]
        return " ".join(words)


# cublasLtMatmulTile_t, cublasLtMatmulStages_t and cublasLtClusterShape_t number sizes in families; each is a first few
# of its own and then rows of sizes in order. What is past the end of a table is shown as a number.
_FIRST_TILES = (
    "8x8 8x16 16x8 8x32 16x16 32x8 8x64 16x32 32x16 64x8 32x32 32x64 64x32 32x128 64x64 128x32 64x128 128x64 64x256 "
    "128x128 256x64 64x512 128x256 256x128 512x64 64x96 96x64 96x128 128x160 160x128 192x128 128x192 128x96 32x256 "
    "256x32"
)
_LAST_TILES = "256x512 256x1024 512x512 512x1024"
_CLUSTERS = (
    "1x1 2x1 4x1 1x2 2x2 4x2 1x4 2x4 4x4 8x1 1x8 8x2 2x8 16x1 1x16 3x1 5x1 6x1 7x1 9x1 10x1 11x1 12x1 13x1 14x1 15x1 "
    "3x2 5x2 6x2 7x2 1x3 2x3 3x3 4x3 5x3 3x4 1x5 2x5 3x5 1x6 2x6 1x7 2x7 1x9 1x10 1x11 1x12 1x13 1x14 1x15"
)
_FIRST_CLUSTER = 2
_LATE_STAGES = {
    25: "32x10", 26: "8x4", 27: "16x10", 28: "8x5", 31: "8x3", 32: "8xAUTO", 33: "16xAUTO", 34: "32xAUTO",
    35: "64xAUTO", 36: "128xAUTO", 37: "256xAUTO", 38: "768xAUTO",
}  # fmt: skip


@cache
def tile_names() -> tuple[str, ...]:
    """cublasLtMatmulTile_t from 0 on: rows x columns of D, column-major."""
    names = ["-", *_FIRST_TILES.split()]
    for row_step, column_step, elements in ((8, 64, 768 * 64), (64, 8, 256 * 256)):
        for rows in range(row_step, 768 + 1, row_step):
            columns = range(column_step, min(768, elements // rows) + 1, column_step)
            names += [name for name in (f"{rows}x{each}" for each in columns) if name not in names]
    return (*names, *_LAST_TILES.split())


def tile_name(number: int) -> str:
    """A tile as rows x columns of D."""
    names = tile_names()
    return names[number] if number < len(names) else f"tile {number}"


def stages_name(number: int) -> str:
    """k of one stage x number of stages."""
    if 1 <= number <= 24:
        return f"{16 << (number - 1) // 6}x{(number - 1) % 6 + 1}"
    return _LATE_STAGES.get(number, "-" if number == 0 else f"stages {number}")


def cluster_name(number: int) -> str:
    """CTAs of a cluster, along rows x along columns of D."""
    names = _CLUSTERS.split()
    if _FIRST_CLUSTER <= number < _FIRST_CLUSTER + len(names):
        return names[number - _FIRST_CLUSTER]
    return "auto" if number == 0 else f"cluster {number}"
