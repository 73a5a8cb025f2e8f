"""Operands and outs off 16 bytes on a Hopper GPU: checked, and timed beside their aligned neighbours and cuBLAS.

    PYTHONPATH=src python benchmarks/unaligned.py --build DIR         on any machine: cubins of all that follows
    TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src python benchmarks/unaligned.py --check --time --variants --into OUT.json

Each part runs in a child process with a time limit. What the table calls the neighbour is the product whose sizes are
rounded to the nearest multiple of 16; `repack` is the copy of the operands alone. `--variants` times other cuts of that
copy (chunks in flight a thread, of a strip, CTAs an SM, waves), and the product behind it with and without
dependent_launch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tilewright
from tilewright.backends.steps import Step
from tilewright.bench.cases import unaligned_cases
from tilewright.bench.children import Row, rows_of, run_limited, write_rows
from tilewright.bench.suite import Shape
from tilewright.config import Config
from tilewright.device import preset
from tilewright.kernels import repack
from tilewright.kernels.render import render
from tilewright.problem import Problem, packed

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
    (2047, 2047, 2047),
)
CUTS: tuple[repack.Shape, ...] = (
    repack.SHAPE,  # the first is what runs
    repack.Shape(waves=1),
    repack.Shape(chunks=4, strip=4, ctas_per_sm=4, waves=1),
    repack.Shape(chunks=4, strip=4, ctas_per_sm=4, waves=1000),
    repack.Shape(chunks=8, strip=8, ctas_per_sm=2, waves=1),
    repack.Shape(chunks=8, strip=4, ctas_per_sm=2, waves=1),
)
LIMITS_S = {"check": 120.0, "time": 150.0, "variants": 90.0}


def neighbour(shape: Shape) -> Shape:
    """The product of sizes that are multiples of 16."""
    m, n, k = ((size + 8) // 16 * 16 for size in shape)
    return m, n, k


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
    import torch

    from tilewright.backends.cuda import backend
    from tilewright.bench.operands import operand_sets
    from tilewright.dispatch import plan as make_plan
    from tilewright.timing import Candidate, CudaMachine, interleaved

    cuda = backend()
    num_sets = 4
    sets = operand_sets(problem, num_sets)
    work = make_plan(problem, device=cuda.device(0)).work
    memory = [torch.empty(work.scratch_bytes, dtype=torch.uint8, device="cuda") for _ in range(num_sets)]
    step = work.steps[0]
    kernel = cuda.load(step.binary(), 0, step.launch)
    calls = [
        cuda.pack(
            kernel,
            step.launch,
            step.arguments,
            {"a": a.data_ptr(), "b": b.data_ptr(), **work.scratch_addresses(held.data_ptr())},
        )
        for (a, b, _), held in zip(sets, memory, strict=True)
    ]
    torch.cuda.synchronize()
    with CudaMachine(cuda, 0) as machine:
        launch: Callable[[int], None] = lambda index: cuda.launch(calls[index % num_sets], machine.stream)  # noqa: E731
        (row,) = interleaved(machine, [Candidate("repack", launch, num_sets)]).rows()
    moved = sum(repack.moved_bytes(problem, problem.repacked))
    return row | {"status": "ok", "moved_gbps": moved / row["median_us"] / 1e3}


def variant_rows() -> Iterator[Row]:
    """Of each varied product the copies alone, cut in each way; the whole with and without dependent_launch. Cold."""
    for shape in VARIED:
        for row in varied(packed(*shape, padded=False)):
            yield {"kind": "variant", "m": shape[0], "n": shape[1], "k": shape[2]} | row


def varied(problem: Problem) -> Iterator[Row]:
    """The rows of one product; all candidates interleaved."""
    import torch

    from tilewright.backends.cuda import backend
    from tilewright.bench.operands import operand_sets, set_bytes
    from tilewright.dispatch import plan as make_plan
    from tilewright.jit.build import build
    from tilewright.timing import Candidate, CudaMachine, interleaved

    cuda = backend()
    device = cuda.device(0)
    num_sets = min(32, max(4, 4 * device.l2_bytes // set_bytes(problem)))  # cold, as compare() has them
    sets = operand_sets(problem, num_sets)
    plans = {
        word: make_plan(problem, device=device, config={"dependent_launch": word == "dependent"})
        for word in ("waiting", "dependent")
    }
    work = plans["waiting"].work
    memory = [torch.empty(work.scratch_bytes, dtype=torch.uint8, device="cuda") for _ in range(num_sets)]
    operands = problem.repacked

    def candidate(name: str, steps: Sequence[Step]) -> Candidate:
        kernels = [cuda.load(step.binary(), 0, step.launch) for step in steps]
        calls = [
            [
                cuda.pack(
                    kernel,
                    step.launch,
                    step.arguments,
                    {
                        "a": a.data_ptr(),
                        "b": b.data_ptr(),
                        "out": out.data_ptr(),
                        **work.scratch_addresses(held.data_ptr()),
                    },
                )
                for kernel, step in zip(kernels, steps, strict=True)
            ]
            for (a, b, out), held in zip(sets, memory, strict=True)
        ]

        def launch(index: int) -> None:
            for call in calls[index % num_sets]:
                cuda.launch(call, machine.stream)

        return Candidate(name, launch, num_sets)

    def copies(cut: repack.Shape) -> Step:
        launch = repack.launch(problem, operands, device, shape=cut)
        unit = repack.source(problem, device, cut)
        arguments = repack.arguments(problem, operands, launch, cut)
        return Step(name="repack", binary=lambda: build(unit), launch=launch, arguments=arguments)

    torch.cuda.synchronize()
    with CudaMachine(cuda, 0) as machine:
        candidates = [candidate(f"repack {cut}", (copies(cut),)) for cut in CUTS]
        candidates += [candidate(word, plan.work.steps) for word, plan in plans.items()]
        candidates.append(candidate("product alone", plans["waiting"].work.steps[1:]))
        rows = interleaved(machine, candidates).rows()
    moved = sum(repack.moved_bytes(problem, operands))
    for row in rows:
        rate = {"moved_gbps": moved / row["median_us"] / 1e3} if row["candidate"].startswith("repack") else {}
        yield row | rate | {"status": "ok"}


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
    varied = [row for row in rows if row["kind"] == "variant"]
    lines += [
        f"{row['m']}x{row['n']}x{row['k']} {row['candidate']:60s} {row['median_us']:8.2f} us"
        + (f" {row['moved_gbps']:6.0f} GB/s" if "moved_gbps" in row else "")
        for row in varied
    ]
    return lines


def run_part(part: str) -> list[Row]:
    """The rows of one part, run in a child."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "rows.jsonl"
        code, output = run_limited([sys.executable, __file__, "--child", part, "--log", str(log)], LIMITS_S[part])
        rows = rows_of(log)
    if code != 0:
        status = f"stopped after {LIMITS_S[part]:.0f} s" if code is None else f"exit {code}"
        rows.append({"kind": "child", "part": part, "status": status, "why": output[-2000:]})
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, metavar="DIR", help="compile everything into DIR and end")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--into", type=Path, help="file for the full rows")
    parser.add_argument("--child", choices=tuple(LIMITS_S), help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.build:
        from tilewright.jit.build import build_into

        units = list(sources())
        print(f"{len(units)} kernels")
        build_into(units, options.build)
        return 0
    if options.child:
        return write_rows(
            {"check": check_rows, "time": time_rows, "variants": variant_rows}[options.child](), options.log
        )
    rows = [row for part in LIMITS_S if getattr(options, part) for row in run_part(part)]
    print("\n".join(table(rows)))
    if options.into:
        options.into.write_text(json.dumps(rows, indent=1))
    return 0 if all(row.get("status", "ok") == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
