"""What tests of the order of summation share: operands in whose sums it shows, and a config for each field."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilewright.config import Config

SMALL = (257, 96, 200)  # m, n, k: parts of tiles, and a last k tile that ends inside a wgmma's 16


@cache
def operands(m: int, n: int, k: int, dtype: str = "bf16") -> tuple[NDArray[Any], NDArray[Any]]:
    """a (m, k) in rows and b (k, n) in columns, of many powers of two: another order shows in most sums."""
    rng = np.random.default_rng(5)
    kind = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}[dtype]

    def spread(shape: tuple[int, int]) -> NDArray[Any]:
        values = rng.standard_normal(shape, dtype=np.float32)
        return (values * np.exp2(rng.integers(-6, 7, shape)).astype(np.float32)).astype(kind)

    return spread((m, k)), spread((n, k)).T


# One config for each field that is said to move no bit, and those of bench/cases.py.
SINGLE = Config(tile_m=64, tile_n=64, consumers=1, stages=4)
FREE: dict[str, Config] = {
    "tile_m": Config(tile_m=128, tile_n=64),
    "tile_n": SINGLE.replace(tile_n=8),
    "tail_n": Config(tile_m=128, tile_n=64, tail_n=24),
    "stages": SINGLE.replace(stages=2),
    "consumers": SINGLE,
    "pingpong": Config(tile_m=64, tile_n=64, pingpong=True),
    "store_slots": SINGLE.replace(store_slots=1),
    "cluster_m": SINGLE.replace(cluster_m=2),
    "cluster_n": SINGLE.replace(cluster_n=2),
    "schedule": SINGLE.replace(schedule="linear"),
    "group_m": SINGLE.replace(group_m=1),
    "square": SINGLE.replace(square=2),
    "swap": SINGLE.replace(swap=True, tile_n=24),
    "dependent_launch": SINGLE.replace(dependent_launch=True),
}
