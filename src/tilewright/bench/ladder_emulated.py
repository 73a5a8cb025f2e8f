"""The ladder with no GPU: every rung in the emulator, its numbers exact, its rules checked, its work counted.

Makes rows and a table; times are those of this CPU and say nothing of a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tilewright.backends.emulated import EmulatedBackend, emulated
from tilewright.bench.emulated import families, run_plan
from tilewright.bench.ladder import plans_of
from tilewright.errors import EmulationError
from tilewright.plan import Plan
from tilewright.problem import Problem

Row = dict[str, Any]

NUM_SMS = 4  # few, so that persistent rungs take several tiles each at a small size
COLUMNS = (
    "rung", "verdict", "warp instructions", "wgmma", "mma", "ldmatrix", "fma", "TMA loads", "TMA stores", "cp.async",
    "mbarrier", "global read", "global written", "shared read", "shared written", "bank conflicts", "s",
)  # fmt: skip
KEPT = frozenset(COLUMNS.index(name) for name in ("rung", "verdict", "bank conflicts", "s"))


def emulated_rows(names: Iterable[str], problem: Problem, *, checks: bool = True) -> Iterator[Row]:
    """One row a rung as it ends. `checks`: races and the rest of the memory model too, at twice the time."""
    names = tuple(names)
    device = emulated(checks=checks, banks=True)
    plans = plans_of(names, problem, device.model, lambda: device, NUM_SMS)
    for name, plan in plans.items():
        yield {"kind": "rung_emulated", "rung": name, "problem": str(problem)} | emulate(plan, device)


def emulate(plan: Plan, device: EmulatedBackend, seed: int = 0) -> Row:
    """The verdict on one plan with whole numbers, whose sums are exact, and what the run did."""
    started = time.perf_counter()
    try:
        verdict, report = run_plan(plan, device, seed=seed)
    except EmulationError as error:  # the finding is the row's answer
        return {"status": "finding", "why": str(error), "seconds": time.perf_counter() - started}
    seconds = time.perf_counter() - started
    wavefronts, ideal = (sum(counts) for counts in zip((0, 0), *report.banks.values(), strict=True))
    return {
        "status": "ok" if verdict.ok else "wrong",
        "elements": verdict.elements,
        "wrong": verdict.wrong,
        "warp_instructions": report.warp_instructions,
        "instructions": families(report.instructions),
        "traffic": dict(report.traffic),
        "conflicts": wavefronts / ideal - 1 if ideal else 0.0,
        "seconds": seconds,
    }


def table(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and lines, without the columns of counts that are 0 on every rung: neither ladder has all of them."""
    lines = cells(rows)
    kept = [i for i in range(len(COLUMNS)) if i in KEPT or any(line[i] not in ("0", "-") for line in lines)]
    return tuple(COLUMNS[i] for i in kept), [tuple(line[i] for i in kept) for line in lines]


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a rung. Units: bytes; conflicts in wavefronts of ld.shared, st.shared, ldmatrix and stmatrix over the
    fewest; WMMA's are those of the emulator's own layout of its fragments, which PTX leaves open."""
    lines = []
    for row in rows:
        if "traffic" not in row:
            lines.append((row["rung"], row["why"], *["-"] * (len(COLUMNS) - 3), f"{row['seconds']:.2f}"))
            continue
        count, traffic = row["instructions"], row["traffic"]
        lines.append(
            (
                row["rung"],
                "exact" if row["status"] == "ok" else f"{row['wrong']} wrong",
                f"{row['warp_instructions']}",
                f"{count.get('wgmma', 0)}",
                f"{count.get('mma', 0) + count.get('wmma.mma', 0)}",
                f"{count.get('ldmatrix', 0)}",
                f"{count.get('fma', 0)}",
                f"{count.get('TMA load', 0)}",
                f"{count.get('TMA store', 0)}",
                f"{count.get('cp.async', 0)}",
                f"{count.get('mbarrier', 0)}",
                *(
                    f"{traffic.get(f'{space} {way}', 0)}"
                    for space, way in (
                        ("global", "read"),
                        ("global", "written"),
                        ("shared", "read"),
                        ("shared", "written"),
                    )
                ),
                f"{row['conflicts']:.1%}",
                f"{row['seconds']:.2f}",
            )
        )
    return lines
