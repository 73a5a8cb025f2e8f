"""The irregular shape of the Ampere source text, 384 x 128 x 256, in batches: from WMMA to the production family.

    PYTHONPATH=src python benchmarks/irregular.py --build DIR          on any machine: cubins of all that follows
    python benchmarks/irregular.py --emulate --into OUT/irregular.json   with no GPU: registers, occupancy, conflicts
    export TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src
    python benchmarks/irregular.py --check --time --into OUT/irregular.json      on a Hopper GPU with torch, 60 s

All matrices of a batch are one launch of each kernel: a CTA a tile in the rungs, a walk from matrix to matrix in the
family. Interleaved with torch.bmm, inputs cold. Each part runs in a child process with a time limit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import tilewright
from tilewright.bench.children import Row
from tilewright.bench.irregular import (
    BATCHES,
    CHOICE,
    COLUMNS,
    EMULATED_COLUMNS,
    STEPS,
    cells,
    checked_problems,
    emulated_cells,
    emulated_rows,
    problem_of,
    published,
)
from tilewright.bench.script import facts_of_part, main_of_parts, rows_of_part, rows_of_parts
from tilewright.device import preset
from tilewright.jit.source import Source

LIMITS_S = {"check": 40.0, "time": 70.0, "emulate": 120.0}
FACTS_LIMIT_S = 60.0


def sources() -> list[Source]:
    """Every unit that is loaded: of the steps, and of matmul's own choice."""
    device = preset("h200")
    found: dict[str, Source] = {}
    for problem in (*checked_problems(), *map(problem_of, BATCHES)):
        plans = [step.plan(problem, device, _no_backend) for step in STEPS]
        if problem in tuple(map(problem_of, BATCHES)):
            plans.append(tilewright.plan(problem, device=device))
        found.update({unit.digest(""): unit for plan in plans for unit in plan.sources})
    return list(found.values())


def _no_backend() -> Any:
    raise AssertionError("nothing is launched while kernels are compiled")


def check_rows() -> Iterator[Row]:
    """Every step on every checked problem: whole numbers, bit for bit."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.verify import verify  # torch

    device = backend().device(0)
    for problem in checked_problems():
        for step in STEPS:
            verdict = verify(problem, kind="integer", plan=step.plan(problem, device, backend))
            case = f"{problem} {step.name}"
            yield {"kind": "check", "case": case, "status": "ok" if verdict.ok else "wrong", "why": str(verdict)}


def time_rows() -> Iterator[Row]:
    """Batch after batch: torch.bmm, matmul's own choice and every step, interleaved, each checked first."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.compare import compare  # torch

    device = backend().device(0)
    for batch in BATCHES:
        problem = problem_of(batch)
        plans = {step.name: step.plan(problem, device, backend) for step in STEPS}
        for row in compare(problem, modes=("interleaved",), configs=(None,), plans=plans, checked=True):
            name = CHOICE if row["candidate"].startswith(CHOICE) else row["candidate"]
            yield row | {"kind": "time", "batch": batch, "step": name}


def facts_rows() -> Iterator[Row]:
    """What the file says of the machine, and the compiler that made the kernels."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.facts import facts

    compiler = tilewright.plan(problem_of(BATCHES[-1]), device=backend().device(0)).binary.compiler
    yield facts(backend()) | {"compiler": compiler}


ROWS = {"check": check_rows, "time": time_rows, "emulate": emulated_rows, "facts": facts_rows}


def table(rows: Sequence[Row]) -> list[str]:
    """The checks in a line, what did not end well, and the tables."""
    kept = published(rows)
    lines = [f"{row['ok']} ok, {row['wrong']} wrong" for row in kept if row["part"] == "check"]
    lines += [f"  wrong: {each['case']}: {each['why']}" for row in kept for each in row.get("failed", [])]
    lines += [
        f"{row.get('step', row['part'])}: {row['status']}: {row.get('why', '')}"
        for row in rows
        if row["kind"] != "check" and row.get("status", "ok") != "ok"
    ]
    for head, body in ((COLUMNS, cells(kept)), (EMULATED_COLUMNS, emulated_cells(kept))):
        if body:
            widths = [max(len(line[index]) for line in (head, *body)) for index in range(len(head))]
            lines += [
                "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *body)
            ]
    return lines


run_part = partial(rows_of_part, __file__)


def content(words: Sequence[str], parts: Sequence[str]) -> dict[str, Any]:
    """What --into holds: the machine's facts with this command, and the rows of the parts."""
    if set(parts) <= {"emulate"}:
        from tilewright.bench.facts import emulator_facts

        facts = emulator_facts()
    else:
        facts = facts_of_part(run_part, FACTS_LIMIT_S)
    rows = rows_of_parts(run_part, parts, LIMITS_S)
    return {"facts": facts | {"command": " ".join(["benchmarks/irregular.py", *words])}, "rows": rows}


def main(words: list[str] | None = None) -> int:
    return main_of_parts(
        words,
        about=__doc__,
        parts=tuple(LIMITS_S),
        rows=ROWS,
        sources=lambda _: sources(),
        content=content,
        table=table,
        refuse=True,
    )


if __name__ == "__main__":
    sys.exit(main())
