"""What is known of a sweep's variants with no GPU: occupancy by arithmetic, bank conflicts in the emulator.

What threads do is counted, at a small size and carried over to the sweep's; what TMA writes and wgmma reads is judged
by rule, of one box of the operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.backends.base import MapArgument
from tilewright.backends.emulated import emulated, turns_of_a_read
from tilewright.bench.ladder import occupancy_pct
from tilewright.bench.ladder_emulated import emulate
from tilewright.bench.profile_counts import emulated_counts
from tilewright.bench.sweeps import Sweep
from tilewright.packing import packed

Row = dict[str, Any]

SMALL = packed(256, 256, 256)  # four tiles of 128 x 128, four slots deep


def conflict_rows(sweep: Sweep, *, at_size: bool = True) -> Iterator[Row]:
    """One row a variant: turns that a read of wgmma takes, the worse operand's; and the emulator's count of the rest.

    `conflicts` over the fewest wavefronts at SMALL; `emulated_wavefronts` and `emulated_conflicts` of the sweep's own
    size, as ncu counts them there, unless `at_size` is false. Cost: some three seconds a variant, else one.
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
        whole = variant.plan(sweep.problem, device.model, lambda: device)
        counts = emulated_counts(whole).counts if at_size else {}
        for name in ("wavefronts", "conflicts"):
            known = [count for key, count in counts.items() if key.endswith(f"_{name}")]
            row[f"emulated_{name}"] = sum(known) if known else None
        row |= {"registers": whole.binary.resources.registers, "occupancy_pct": occupancy_pct(whole)}
        if maps:
            row |= {
                "turns_of_a_read": max(map(turns_of_a_read, maps)),
                "boxes_a_slot": (variant.config.tile_m + variant.config.tile_n)
                * variant.config.tile_k
                // (maps[0].box[0] * maps[0].box[1]),
                "box_row_bytes": maps[0].box[0] * maps[0].dtype.size,
            }
        yield row
