"""Bank conflicts of a sweep with no GPU: by rule for what TMA writes and wgmma reads, counted for what threads do.

What a kernel without TMA does is counted alone.

The kernels run in the emulator at a small size; the rule looks at one box of the operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.backends.base import MapArgument
from tilewright.backends.emulated import emulated, turns_of_a_read
from tilewright.bench.ladder_emulated import emulate
from tilewright.bench.sweeps import Sweep
from tilewright.problem import packed

Row = dict[str, Any]

SMALL = packed(256, 256, 256)  # four tiles of 128 x 128, four slots deep


def conflict_rows(sweep: Sweep) -> Iterator[Row]:
    """One row a variant: turns that a read of wgmma takes, the worse operand's; and the emulator's count of the rest.

    Cost: about a second a variant.
    """
    device = emulated(banks=True)
    for variant in sweep.variants:
        plan = variant.plan(SMALL, device.model, lambda: device)
        found = emulate(plan, device)
        maps = [each.tensor_map for each in plan.arguments if isinstance(each, MapArgument) and each.operand != "out"]
        row = {
            "kind": "sweep_conflicts",
            "sweep": sweep.name,
            "variant": variant.name,
            "problem": str(SMALL),
            "status": found["status"],
            "conflicts": found.get("conflicts"),
        }
        if maps:
            row |= {
                "turns_of_a_read": max(map(turns_of_a_read, maps)),
                "boxes_a_slot": (variant.config.tile_m + variant.config.tile_n)
                * variant.config.tile_k
                // (maps[0].box[0] * maps[0].box[1]),
                "box_row_bytes": maps[0].box[0] * maps[0].dtype.size,
            }
        yield row
