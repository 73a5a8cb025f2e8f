"""Products launched as dependents of the launch before them, beside the same kernels launched plainly, and cuBLAS.

    PYTHONPATH=src python benchmarks/dependent.py --build DIR         on any machine: cubins of all that follows
    export TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src
    python benchmarks/dependent.py --check --time --into OUT/dependent.json      on a Hopper GPU with torch, 30 s
    python tools/publish_rows.py OUT/dependent.json

`--time`: of each product the choice as shipped, and the same config with `dependent_launch`, interleaved with cuBLAS
and cold, each checked on sampled rows first. `--check`: every product behind one that writes its `a`, both launched so,
many calls one behind the other, must have the bits of plain launches. Each part is a child with a time limit.

What is hidden, and what is not. The clock replays graphs of back-to-back calls of one column. There each dependent call
but the first begins beside the end of the one before it, the same product on other operands: once all CTAs of that one
have begun, and wherever an SM has room. So its start is hidden: the launch, barriers made ready, tensor maps fetched,
its first tile found out. Its loads are not: every thread waits (griddepcontrol.wait) until the launch before has ended.
Between two columns lies a flush of the L2, so no call begins beside the end of another column's; within a column all
calls but that first are of one kind, which is what makes the rounds fair.

Why these rows stand apart from the suite's: the column hides its start behind a neighbour's end, which cuBLAS and the
plain column do not do, and in a model it would be behind whichever kernel ran before. Behind one that does not say that
its dependents may begin (griddepcontrol.launch_dependents) less is hidden: they begin when the last of its CTAs has
ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import tilewright
from tilewright.bench.children import Row
from tilewright.bench.dependent_report import COLUMNS, DEPENDENT, SHIPPED, cells, published, told
from tilewright.bench.script import main_of_parts, rows_of_part, rows_of_parts
from tilewright.bench.suite import Shape, problem_of
from tilewright.device import preset
from tilewright.jit.source import Source
from tilewright.problem import Problem

# Of the suite: few rows, whose time is a read of the weight and a start; tiny ones, which are little else; a large one.
SHAPES: tuple[Shape, ...] = (
    *((m, n, 4096) for n in (4096, 6144) for m in (16, 64, 128)),
    (64, 4096, 7168),
    (128, 7168, 2048),
    (64, 24576, 1536),
    (64, 32768, 512),
    (128, 128, 128),
    (384, 128, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (4096, 4096, 4096),
)
CHANGES: dict[str, Mapping[str, Any] | None] = {SHIPPED: None, DEPENDENT: {"dependent_launch": True}}  # of the config

FED_K = 64  # k of the product that writes a: as short as it can be while TMA reads whole lines
CALLS = 16  # pairs of calls one behind the other, each on other values
# Written before them, in about a millisecond: 32 calls of 8 us of host time each are enqueued by then.
HELD_BYTES, HELD_TIMES = 1 << 30, 4

# By estimate: a child starts in 6 s; a product is 3 columns x 10 samples x 8 ms and its operands, half a second.
LIMITS_S = {"check": 45.0, "time": 75.0}


def feeding_of(shape: Shape) -> Problem:
    """The product whose out is the `a` of the shape's."""
    m, _, k = shape
    return problem_of((m, k, FED_K))


def sources() -> list[Source]:
    """Every unit that is loaded."""
    device, found = preset("h200"), {}
    for shape in SHAPES:
        for problem in (problem_of(shape), feeding_of(shape)):
            for changes in CHANGES.values():
                plan = tilewright.plan(problem, device=device, config=changes)
                found.update({unit.digest(""): unit for unit in plan.sources})
    return list(found.values())


# -- the children: need a GPU and torch --------------------------------------------------------------------------------


def facts_row() -> Row:
    """What the file says of the machine, and the compiler that made the kernels."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.facts import facts  # not the parent's

    cuda = backend()
    compiler = tilewright.plan(problem_of(SHAPES[0]), device=cuda.device(0)).binary.compiler
    return {"kind": "facts", "status": "ok"} | facts(cuda) | {"compiler": compiler}


def check_rows() -> Iterator[Row]:
    """The machine's facts, then a row a product."""
    import torch  # not the parent's

    yield facts_row()
    with torch.cuda.stream(torch.cuda.Stream()):  # as calls of the clock; not the default stream, which others wait for
        for shape in SHAPES:
            yield check_row(shape)


def check_row(shape: Shape, device: str = "cuda", held_bytes: int = HELD_BYTES) -> Row:
    """Whether calls that read what the launch before wrote, and overwrite what it read, leave the bits of plain ones.

    Both ways make the same calls: a product writes `a`, the shape's own reads it, and so on with other values, on one
    stream. `device`: torch's name of where operands lie.
    """
    import torch  # see check_rows()

    from tilewright.bench.operands import TYPES, inputs

    product, feeding = problem_of(shape), feeding_of(shape)
    b = inputs(product, device=device)[1]
    y = inputs(feeding, device=device)[1]
    xs = [inputs(feeding, seed=index, device=device)[0] for index in range(CALLS)]
    held = torch.empty(held_bytes, dtype=torch.uint8, device=device)
    kept = {}
    for name, changes in CHANGES.items():
        a = torch.empty((product.m, product.k), dtype=TYPES[product.dtype.name], device=device)
        outs = torch.empty((CALLS, product.m, product.n), dtype=TYPES[product.out_dtype.name], device=device)
        feed = tilewright.plan(xs[0], y, a, config=changes)
        multiply = tilewright.plan(a, b, outs[0], config=changes)
        feed.run(xs[-1], y, a)  # loads both kernels; and no out has its own values before its call
        multiply.run(a, b, outs[0])
        outs.fill_(torch.nan)
        for _ in range(HELD_TIMES):
            held.fill_(0)
        for x, out in zip(xs, outs, strict=True):
            feed.run(x, y, a)
            multiply.run(a, b, out)
        kept[name] = outs.view(torch.int16)  # as whole numbers: a NaN equals itself, and -0 does not equal 0
    differing = [index for index in range(CALLS) if not torch.equal(*(outs[index] for outs in kept.values()))]
    return {
        "kind": "check",
        "case": "x".join(map(str, shape)),
        "status": "wrong" if differing else "ok",
        "calls": CALLS,
        "differing": len(differing),
        "why": f"other bits than plain launches in calls {differing} of {CALLS}" if differing else "",
    }


def time_rows() -> Iterator[Row]:
    """The machine's facts, then product after product a row a column."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.compare import compare  # torch

    yield facts_row()
    device = backend().device(0)
    for shape in SHAPES:
        problem = problem_of(shape)
        chosen = tilewright.plan(problem, device=device).config
        named = {DEPENDENT: chosen.replace(dependent_launch=True)}
        for row in compare(problem, named=named, beside=SHIPPED, checked=True):
            yield {"kind": "time"} | row


ROWS = {"check": check_rows, "time": time_rows}


# -- the parent --------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> list[str]:
    """What is not as it should be, then a line a product, and what the checks say."""
    kept = published(rows)
    lines = [f"{_about(row)}: {row['status']}: {row.get('why', '')}" for row in rows if row["status"] != "ok"]
    if body := cells(kept):
        shown = [COLUMNS, *(tuple(cell.replace("**", "") for cell in line) for line in body)]
        widths = [max(len(line[index]) for line in shown) for index in range(len(COLUMNS))]
        lines += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in shown]
    return [*lines, *([said.strip()] if (said := told(kept)) else [])]


def _about(row: Row) -> str:
    """What of the run a row is about: a check's product, a column of a product, or a child's part."""
    if row["kind"] == "time":
        return f"{row['m']}x{row['n']}x{row['k']} {row['candidate']}"
    return str(row["case"] if row["kind"] == "check" else row["part"])


run_part = partial(rows_of_part, __file__)


def content(words: Sequence[str], parts: Sequence[str]) -> dict[str, Any]:
    """What --into holds: the machine's facts with this command, and the rows of the parts."""
    rows = rows_of_parts(run_part, parts, LIMITS_S)
    machine = next((row for row in rows if row["kind"] == "facts"), {})
    facts = {name: value for name, value in machine.items() if name not in ("kind", "status")}
    return {
        "facts": facts | {"command": " ".join(["benchmarks/dependent.py", *words])},
        "rows": [row for row in rows if row["kind"] != "facts"],
    }


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
