"""Golden vectors in the emulator: the PTX of the very build that was recorded, the recorded input, the same launch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.compiled import compiled
from golden.vector import ENTRY, UNTOUCHED, Vector
from tilewright.emulator import tiled
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run


def replay(vector: Vector, given: NDArray[np.uint8], **choices: Any) -> NDArray[np.uint8]:
    """What the emulator leaves in `out`. `choices`: run's. Raises: EmulationError: it refuses the kernel, or found a
    fault."""
    memory = GlobalMemory()
    out = np.full(vector.output_bytes, UNTOUCHED, np.uint8)
    addresses = {"in": memory.add("in", given.copy()), "out": memory.add("out", out)}
    maps = [
        tiled.encode(
            tiled.TiledMap(
                address=addresses[spec.buffer] + spec.offset_bytes,
                element=spec.element,
                extents=spec.extents,
                pitches_bytes=spec.pitches_bytes,
                box=spec.box,
                swizzle_bytes=spec.swizzle_bytes,
                fill_nan=spec.fill_nan,
            )
        )
        for spec in vector.maps
    ]
    launch = Grid(grid=vector.grid, block=vector.block, cluster=vector.cluster, smem_bytes=vector.smem_bytes)
    run(compiled(vector).ptx, ENTRY, launch, [addresses["in"], addresses["out"], *maps], memory, **choices)
    return out
