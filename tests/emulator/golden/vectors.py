"""The table of golden vectors: all of them, by name."""

from __future__ import annotations

from golden import copies, mma, scalar, warp, wgmma
from golden.vector import Vector

ALL: tuple[Vector, ...] = tuple(vector for module in (scalar, warp, mma, wgmma, copies) for vector in module.VECTORS)
BY_NAME: dict[str, Vector] = {vector.name: vector for vector in ALL}
