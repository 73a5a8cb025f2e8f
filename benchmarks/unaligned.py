"""Operands and outs off 16 bytes on a Hopper GPU: checked, and timed beside their aligned neighbours and cuBLAS.

    PYTHONPATH=src python benchmarks/unaligned.py --build DIR         on any machine: cubins of all that follows
    export TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src
    python benchmarks/unaligned.py --check --time --pairs --variants --into OUT/unaligned.json

Each part runs in a child process with a time limit. What the table calls the neighbour is the product whose sizes are
rounded to the nearest multiple of 16; `repack` is the copy of the operands alone. `--pairs` times each product and its
neighbour in the same rounds: in `--time`, beside cuBLAS, the two find the card as warm as its cuBLAS leaves it.
`--variants` times other cuts of the copy (chunks in flight a thread, of a strip, CTAs an SM, waves), and the product
behind it with and without dependent_launch, and behind the cut that was the default before.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import tilewright
from tilewright.backends.steps import Step, Work
from tilewright.bench.cases import unaligned_cases
from tilewright.bench.children import Row
from tilewright.bench.script import facts_of_part, main_of_parts, rows_of_part, rows_of_parts
from tilewright.bench.suite import Shape
from tilewright.bench.unaligned_report import neighbour
from tilewright.config import Config
from tilewright.device import preset
from tilewright.kernels import repack
from tilewright.kernels.render import render
from tilewright.packing import packed
from tilewright.problem import Problem

TARGETS: tuple[Shape, ...] = (
    (4095, 4095, 4095),
    (4096, 4096, 4097),
    (4097, 4097, 4096),
    (512, 50257, 4096),
    (2047, 3073, 8192),
)
SWEEP: tuple[Shape, ...] = tuple((size, size, size) for size in (1023, 1025, 1535, 1537, 2047, 2049))
VARIED: tuple[Shape, ...] = (
    (4095, 4095, 4095),
    (4096, 4096, 4097),
    (1023, 1023, 1023),
    (1025, 1025, 1025),
    (1535, 1535, 1535),
    (2047, 2047, 2047),
    (2049, 2049, 2049),
)
BEFORE = repack.Shape(chunks=4, strip=4, ctas_per_sm=4, waves=1)  # what the copies were until repack.SHAPE was chosen
CUTS: tuple[repack.Shape, ...] = (
    repack.SHAPE,  # the first is what runs
    repack.Shape(waves=1),
    BEFORE,
    repack.Shape(chunks=4, strip=4, ctas_per_sm=4, waves=1000),
    repack.Shape(chunks=8, strip=8, ctas_per_sm=2, waves=1),
    repack.Shape(chunks=8, strip=4, ctas_per_sm=2, waves=1),
)
LIMITS_S = {"check": 120.0, "time": 150.0, "pairs": 60.0, "variants": 120.0}
FACTS_LIMIT_S = 60.0


def problems() -> list[Problem]:
    """What is timed: each product of contiguous arrays, and its neighbour."""
    shapes = dict.fromkeys(each for shape in (*TARGETS, *SWEEP) for each in (shape, neighbour(shape)))
    return [packed(*shape, padded=False) for shape in shapes]


def sources() -> Iterable[Any]:
    """Every unit that is loaded."""
    device, found = preset("h200"), {}
    for problem in (*problems(), *(case.problem for case in unaligned_cases(Config()))):
        chosen = tilewright.plan(problem, device=device)
        solid = repack.repacked(problem, problem.repacked)
        is_varied = (problem.m, problem.n, problem.k) in VARIED
        configs = [chosen.config, *([chosen.config.replace(dependent_launch=False)] if is_varied else [])]
        units = [render(chosen.family, solid, config, device) for config in configs]
        cuts = CUTS if is_varied else CUTS[:1]
        units += [repack.source(problem, device, cut) for cut in cuts] if problem.repacked else []
        found.update({unit.digest("any"): unit for unit in units})
    return found.values()


def check_rows() -> Iterator[Row]:
    """Every case with the config that it gets."""
    from tilewright.bench.verify import verify  # torch

    for case in unaligned_cases(Config()):
        verdict = verify(case.problem, kind=case.kind)
        status = "ok" if verdict.ok else "wrong"
        yield {"kind": "check", "case": str(case), "status": status, "worst": verdict.worst, "why": str(verdict)}


def time_rows() -> Iterator[Row]:
    """Interleaved, cold, each column checked first; then the copies alone."""
    from tilewright.bench.compare import compare  # torch

    for problem in problems():
        for row in compare(problem, modes=("interleaved",), checked=True):
            yield {"kind": "time"} | row
        if problem.repacked:
            yield {"kind": "repack", "m": problem.m, "n": problem.n, "k": problem.k} | repack_row(problem)


def repack_row(problem: Problem) -> Row:
    """The time of the copies alone, cold."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.held import Held  # torch
    from tilewright.dispatch import plan as make_plan
    from tilewright.timing import CudaMachine, interleaved

    cuda = backend()
    work = make_plan(problem, device=cuda.device(0)).work
    held = Held(cuda, [(problem, work)])
    copies = dataclasses.replace(work, steps=work.steps[:1])
    with CudaMachine(cuda, 0) as machine:
        (row,) = interleaved(machine, [held.candidate("repack", problem, copies, machine.stream)]).rows()
    return row | {"status": "ok", "num_sets": held.num_sets} | copied_rate(problem, row)


def copied_rate(problem: Problem, row: Row) -> Row:
    """What the copies read and write in the time of the row."""
    return {"moved_gbps": sum(repack.moved_bytes(problem, problem.repacked)) / row["median_us"] / 1e3}


def pair_rows() -> Iterator[Row]:
    """Each product and its neighbour in the same rounds, cold, and nothing beside them: one temperature for both."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.held import Held  # torch
    from tilewright.dispatch import plan as make_plan
    from tilewright.timing import CudaMachine, interleaved

    cuda = backend()
    for shape in (*TARGETS, *SWEEP):
        pair = {"neighbour": packed(*neighbour(shape), padded=False), "tilewright": packed(*shape, padded=False)}
        works = {name: make_plan(problem, device=cuda.device(0)).work for name, problem in pair.items()}
        held = {name: Held(cuda, [(problem, works[name])]) for name, problem in pair.items()}
        with CudaMachine(cuda, 0) as machine:
            candidates = [
                held[name].candidate(name, problem, works[name], machine.stream) for name, problem in pair.items()
            ]
            rows = interleaved(machine, candidates).rows()
        for row in rows:
            yield {"kind": "pair", "m": shape[0], "n": shape[1], "k": shape[2], "status": "ok"} | row


def variant_rows() -> Iterator[Row]:
    """Of each varied product the copies alone, cut in each way; the whole with and without dependent_launch. Cold."""
    for shape in VARIED:
        for row in varied(packed(*shape, padded=False)):
            yield {"kind": "variant", "m": shape[0], "n": shape[1], "k": shape[2]} | row


def varied(problem: Problem) -> Iterator[Row]:
    """The rows of one product; all candidates interleaved."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.held import Held  # torch
    from tilewright.dispatch import plan as make_plan
    from tilewright.jit.build import build
    from tilewright.timing import CudaMachine, interleaved

    cuda = backend()
    device = cuda.device(0)
    works = {
        word: make_plan(problem, device=device, config={"dependent_launch": word == "dependent"}).work
        for word in ("waiting", "dependent")
    }
    operands = problem.repacked
    scratch = works["waiting"].scratch  # the same for all of them
    held = Held(cuda, [(problem, works["waiting"])])

    def copies(cut: repack.Shape) -> Step:
        launch = repack.launch(problem, operands, device, shape=cut)
        unit = repack.source(problem, device, cut)
        arguments = repack.arguments(problem, operands, launch, cut)
        return Step(name="repack", binary=lambda: build(unit), launch=launch, arguments=arguments)

    steps = {f"repack {cut}": (copies(cut),) for cut in CUTS} | {word: work.steps for word, work in works.items()}
    steps[f"dependent behind {BEFORE}"] = (copies(BEFORE), *works["dependent"].steps[1:])
    steps["product alone"] = works["waiting"].steps[1:]
    with CudaMachine(cuda, 0) as machine:
        candidates = [
            held.candidate(name, problem, Work(steps=own, scratch=scratch), machine.stream)
            for name, own in steps.items()
        ]
        rows = interleaved(machine, candidates).rows()
    for row in rows:
        rate = copied_rate(problem, row) if row["candidate"].startswith("repack") else {}
        yield row | rate | {"status": "ok", "num_sets": held.num_sets}


def facts_rows() -> Iterator[Row]:
    """What the file says of the machine, and the compiler that made the kernels."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.facts import facts

    compiler = tilewright.plan(problems()[0], device=backend().device(0)).binary.compiler
    yield facts(backend()) | {"compiler": compiler}


ROWS = {"check": check_rows, "time": time_rows, "pairs": pair_rows, "variants": variant_rows, "facts": facts_rows}


# -- tables ------------------------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> list[str]:
    """The checks in a line, then a line a product."""
    checks = [row for row in rows if row["kind"] == "check"]
    wrong = [f"  {row['status']}: {row['case']}: {row['why']}" for row in checks if row["status"] != "ok"]
    lines = [f"{len(checks) - len(wrong)} of {len(checks)} cases right", *wrong] if checks else []
    ended = [row for row in rows if row["kind"] == "child"]
    lines += [f"{row['part']}: {row['status']}: {row['why']}" for row in ended]
    times = {
        ((row["m"], row["n"], row["k"]), row.get("candidate")): row for row in rows if row["kind"] in ("time", "repack")
    }
    head = (
        f"{'m x n x k':18s} {'ours us':>9s} {'repack':>8s} {'GB/s':>6s} {'neighbour':>10s} {'ratio':>6s} {'cuBLAS':>9s}"
    )
    for index, shape in enumerate((*TARGETS, *SWEEP) if times else ()):
        ours, cublas = times.get((shape, "tilewright")), times.get((shape, "cublas"))
        beside, copies = times.get((neighbour(shape), "tilewright")), times.get((shape, "repack"))
        lines += [head] if index == 0 else []
        if ours is None or cublas is None or beside is None or "median_us" not in ours:
            lines.append(f"{shape}: no time: {ours or cublas or 'not reached'}")
            continue
        own_us, beside_us = ours["median_us"], beside["median_us"]
        copied = f"{copies['median_us']:8.1f} {copies['moved_gbps']:6.0f}" if copies else f"{'-':>8s} {'-':>6s}"
        lines.append(
            f"{'x'.join(map(str, shape)):18s} {own_us:9.1f} {copied} {beside_us:10.1f} {own_us / beside_us:6.3f} "
            f"{cublas['median_us']:9.1f} {cublas['median_us'] / own_us:6.2f}x  {ours['status']} {ours['config']}"
        )
    lines += [
        f"{row['m']}x{row['n']}x{row['k']} {1 / row['ratio']:.3f} times the neighbour "
        f"[{1 / row['ratio_upper']:.3f} {1 / row['ratio_lower']:.3f}] in one round"
        for row in rows
        if row["kind"] == "pair" and row.get("ratio")
    ]
    varied = [row for row in rows if row["kind"] == "variant"]
    lines += [
        f"{row['m']}x{row['n']}x{row['k']} {row['candidate']:60s} {row['median_us']:8.2f} us"
        + (f" {row['moved_gbps']:6.0f} GB/s" if "moved_gbps" in row else "")
        for row in varied
    ]
    return lines


run_part = partial(rows_of_part, __file__)


def content(words: Sequence[str], parts: Sequence[str]) -> dict[str, Any]:
    """What --into holds: the machine's facts with this command, and the rows of the parts."""
    facts = facts_of_part(run_part, FACTS_LIMIT_S)
    rows = rows_of_parts(run_part, parts, LIMITS_S)
    return {"facts": facts | {"command": " ".join(["benchmarks/unaligned.py", *words])}, "rows": rows}


def main(words: list[str] | None = None) -> int:
    return main_of_parts(
        words,
        about=__doc__,
        parts=tuple(LIMITS_S),
        rows=ROWS,
        sources=lambda _: sources(),
        content=content,
        table=table,
    )


if __name__ == "__main__":
    sys.exit(main())
