"""Configs beside the shipped choice and cuBLAS, at shapes where others were or are faster (docs/suite.md).

    PYTHONPATH=src python benchmarks/candidates.py --build DIR        on any machine: cubins of all that follows
    export TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src
    python benchmarks/candidates.py --check --time --into OUT/candidates.json

`--check`: every form of cluster on a few products, every element of whole numbers and of random ones, then the same
product many times over, whose bits must not change. `--time`: shape after shape, all its columns interleaved and cold,
each checked on sampled rows first; `--shapes` names some of them. Each part is a child with a time limit; a shape that
ends the child of the timing is lost, and another child goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tilewright
from tilewright.bench.children import Row, rows_of_command, write_rows
from tilewright.bench.suite import Shape, entries, problem_of
from tilewright.config import Config
from tilewright.device import Device, preset
from tilewright.errors import UnsupportedError
from tilewright.kernels.family import group_rows
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.narrow import deep
from tilewright.kernels.product import sources as sources_of
from tilewright.packing import packed
from tilewright.problem import Problem

# A child starts in about 6 s; a shape is about 13 columns x 10 samples x 8 ms = 1 s, and as much before, by estimate.
START_LIMIT_S, SHAPE_LIMIT_S, CHECK_LIMIT_S = 30.0, 10.0, 60.0
ROUNDS = 9
REPEATS = 40
SHIPPED, UNTUNED, CUBLAS = "tilewright", "untuned", "cublas"


def tile(tile_m: int, tile_n: int, cluster_m: int = 1, cluster_n: int = 1, **more: Any) -> Config:
    """A config by what matters of it. Without `stages` as many as are of use; with 64 rows one consumer."""
    swap = bool(more.get("swap"))
    told = {"consumers": 1 if tile_m == 64 else 2, "store_slots": 1 if swap else 2, "stages": 0} | more
    return Config(tile_m=tile_m, tile_n=tile_n, cluster_m=cluster_m, cluster_n=cluster_n, **told)


def swapped(tile_m: int, tile_n: int, cluster_m: int = 1, cluster_n: int = 1, **more: Any) -> Config:
    """The same of out transposed: tile_m counts columns of out."""
    return tile(tile_m, tile_n, cluster_m, cluster_n, swap=True, **more)


def pingpong(tile_n: int, cluster_m: int = 1, cluster_n: int = 1) -> Config:
    """128 rows, consumers in turn."""
    return tile(128, tile_n, cluster_m, cluster_n, pingpong=True, store_slots=1, k_back_and_forth=True)


def staggered(tile_n: int, cluster_m: int = 1, cluster_n: int = 1) -> Config:
    """256 rows, stores hidden."""
    return tile(256, tile_n, cluster_m, cluster_n, staggered=True, store_slots=1, k_back_and_forth=True)


# By shape, what its tables of the slowest (docs/suite.md) and cuBLASLt's own best algorithms suggest.
CANDIDATES: dict[Shape, tuple[Config, ...]] = {
    (1000, 1000, 1000): (
        tile(128, 72, 4, 2), tile(128, 72, 2, 2), tile(128, 72, 4, 1), tile(128, 88, 2, 4), tile(64, 144, 4, 1),
        tile(64, 168, 4, 2), tile(128, 72, 4, 2, consumers=1), tile(128, 72, 2, 1), swapped(128, 72, 4, 2),
        swapped(64, 144, 4, 1), tile(64, 144, 2, 1, store_slots=1),
    ),
    (1024, 1024, 1024): (
        tile(128, 80, 4, 2), tile(128, 80, 2, 2), tile(64, 152, 4, 1), tile(128, 88, 2, 4), tile(64, 176, 4, 2),
        tile(64, 128, 1, 2), swapped(128, 80, 4, 2),
    ),
    (128, 7168, 2048): (
        tile(64, 112), tile(64, 112, 2, 1), tile(64, 120, 2, 2), tile(64, 120, 2, 4), tile(128, 64, 1, 4),
        tile(128, 64, 1, 2), swapped(128, 64, 4, 2), swapped(128, 64, 2, 2), swapped(64, 128, 4, 1),
        swapped(128, 64, 1, 2),
    ),
    (128, 4096, 7168): (
        tile(64, 64, 2, 1), tile(64, 72, 2, 2), tile(64, 72, 2, 4), swapped(64, 64, 1, 2), swapped(128, 64, 4, 2),
        swapped(64, 128, 4, 1), tile(128, 128, 1, 2, slices=4, dependent_sums=True),
        tile(64, 72, 1, 4),
        swapped(64, 128, split_k=2), tile(128, 64, split_k=2, store_slots=1),
    ),
    (131072, 256, 512): (
        swapped(128, 160, 2, 1, store_slots=2), swapped(128, 160, store_slots=2), swapped(128, 128, 2, 1),
        swapped(128, 176, 2, 1), pingpong(128), pingpong(128, 1, 2), pingpong(128, 2, 2), staggered(128),
        staggered(128, 1, 2), tile(128, 256, 2, 1), tile(128, 256, 4, 1),
    ),
    (512, 28672, 4096): (
        tile(128, 176), tile(128, 176, 2, 1), tile(128, 176, 4, 1), pingpong(176), pingpong(176, 2, 1),
        tile(128, 176, 2, 2), staggered(176), staggered(176, 2, 1), tile(128, 224, 2, 1), tile(128, 224, 4, 1),
    ),
    (512, 128256, 4096): (
        tile(128, 144, 2, 1), tile(128, 144, 4, 1), pingpong(144, 2, 1), pingpong(176, 2, 1), tile(128, 176, 2, 1),
        staggered(176), staggered(176, 2, 1), staggered(192, 2, 1),
    ),
    (4096, 2112, 7168): (
        tile(128, 176), tile(128, 176, 2, 1), pingpong(176), pingpong(176, 2, 1), tile(128, 176, 2, 2),
        tile(128, 176, 1, 2), pingpong(176, 1, 2), staggered(176),
    ),
    (8192, 28672, 4096): (
        tile(128, 176, 2, 1), pingpong(176, 2, 1), staggered(176), staggered(176, 2, 1), staggered(200, 2, 1),
        staggered(128, 1, 2), staggered(128, 2, 2),
    ),
    (512, 4096, 4096): (
        tile(128, 144, 4, 1), tile(128, 144, 2, 2), tile(128, 144, 4, 2), tile(128, 128, 2, 1), pingpong(128, 2, 1),
        pingpong(144, 4, 1), tile(128, 128, 1, 2),
    ),
    (64, 6144, 4096): (
        tile(64, 80, 1, 4), tile(64, 56, 1, 4), tile(64, 48, 1, 2), swapped(64, 64, 4, 1), swapped(64, 64, 2, 1),
        swapped(128, 32, 2, 2), swapped(128, 32, 4, 2),
    ),
    (64, 7168, 16384): (
        tile(64, 80, 1, 4), tile(64, 64, 1, 4), tile(64, 56, 1, 2), swapped(64, 64, 4, 1), swapped(64, 64, 2, 1),
        swapped(128, 32, 2, 2), swapped(128, 32, 4, 2),
    ),
    (16, 4096, 4096): (
        swapped(64, 16, 2, 1), swapped(64, 16, 4, 1), swapped(128, 8, 2, 2), swapped(128, 16, 2, 1),
        swapped(64, 16, split_k=2), swapped(64, 16, split_k=4), swapped(128, 16, split_k=4),
    ),
    (16, 28672, 4096): (
        swapped(128, 16, 2, 1), swapped(128, 16, 4, 1), swapped(64, 16, 4, 1), swapped(256, 16, 2, 1),
        swapped(256, 16, 4, 1), swapped(128, 8, 2, 2),
    ),
    (32, 6144, 4096): (
        swapped(64, 32, 2, 1), swapped(64, 32, 4, 1), swapped(128, 16, 2, 2),
        swapped(64, 32, split_k=2), tile(64, 56, 1, 4),
    ),
    (128, 128, 128): (
        tile(64, 16, stages=2), tile(64, 16, stages=4), tile(64, 8, stages=2), tile(64, 8, stages=4),
        tile(64, 16, stages=2, store_slots=1), tile(64, 16, 2, 1, stages=2), tile(64, 32, stages=2),
        swapped(64, 16, stages=2), swapped(64, 8, stages=2),
    ),
    (384, 128, 256): (
        tile(64, 16, stages=4), tile(64, 16, stages=4, store_slots=1), tile(64, 16, 2, 1, stages=4),
        tile(64, 16, 1, 2, stages=4), tile(64, 8, stages=4), tile(64, 32, stages=4), swapped(64, 16, stages=4),
        swapped(64, 24, stages=4), tile(64, 16, split_k=2, stages=2),
    ),
    (512, 512, 512): (
        tile(64, 32, stages=8), tile(64, 32, stages=8, store_slots=1), tile(64, 32, 2, 1, stages=8),
        tile(64, 40, 4, 1, stages=8), tile(64, 40, 2, 2, stages=8), tile(64, 32, split_k=2, stages=4),
        tile(64, 64, split_k=2, stages=4), swapped(64, 32, stages=8), tile(128, 32, stages=8),
    ),
}  # fmt: skip

# One of each form of cluster, small enough for every element to be checked; and products: edges of tiles and clusters,
# panels, rows that TMA cannot store, batches, fp32.
CHECKED: tuple[Config, ...] = (
    tile(128, 128, 2, 2, stages=4),
    tile(128, 72, 4, 2, stages=4),
    tile(64, 64, 2, 4, stages=4),
    tile(128, 64, 1, 4, stages=4, pingpong=True, store_slots=1),
    tile(256, 128, 4, 1, stages=3, staggered=True),
    swapped(64, 24, 4, 2, stages=4),
    tile(64, 72, 2, 1, stages=4),
)
PRODUCTS: tuple[Problem, ...] = (
    packed(1000, 1000, 1000),
    packed(1025, 1031, 72),
    packed(2049, 2056, 520, out_dtype="fp32"),
    packed(777, 1032, 264, batch=(3,)),
)
PANELS: tuple[Problem, ...] = (packed(1032, 1096, 520, b_major="n"), packed(1032, 1096, 520, a_major="m", b_major="n"))


def configs_of(shape: Shape, device: Device) -> list[Config]:
    """The shape's candidates, whole: with their stages and the order of their tiles. Those of the shipped choice too.

    Raises: ConfigError: one of them is not legal.
    """
    problem = problem_of(shape)
    found: dict[Config, None] = {}
    for each in CANDIDATES[shape]:
        config = each if each.stages else deep(each.replace(stages=2), problem, device)
        rows, _ = config.tiles(problem)
        across, width = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
        group = group_rows(rows // config.cluster_m, across, width, device.num_sms // config.cluster)
        config = config.replace(group_m=max(1, group))
        config.check(problem, device)
        found[config] = None
    return list(found)


def checked() -> list[tuple[Config, Problem]]:
    """What --check runs: of each form all products that it can compute."""
    device = preset("h200")
    return [
        (config, problem)
        for config in CHECKED
        for problem in (*PRODUCTS, *PANELS)
        if not config.violations(problem.row_major, device)
    ]


def sources(shapes: Iterable[Shape]) -> list[Any]:
    """Every unit that is loaded."""
    device, found = preset("h200"), {}
    for shape in shapes:
        problem = problem_of(shape)
        for records in (True, False):
            plan = tilewright.plan(problem, device=device, use_records=records)
            found.update({unit.digest("any"): unit for unit in plan.sources})
        for config in configs_of(shape, device):
            found.update({unit.digest("any"): unit for unit in sources_of(HOPPER, problem, config, device)})
    for config, problem in checked():
        found.update({unit.digest("any"): unit for unit in sources_of(HOPPER, problem, config, device)})
    return list(found.values())


def named_shapes(text: str) -> list[Shape]:
    """The shapes that --shapes names. Raises: UnsupportedError: there are no candidates of one, or it is no shape."""
    shapes = [entry.shape for entry in entries(text)]
    for shape in shapes:
        if shape not in CANDIDATES:
            raise UnsupportedError(
                asked="x".join(map(str, shape)),
                rule="there are no candidates of this shape",
                works=", ".join("x".join(map(str, each)) for each in CANDIDATES),
            )
    return shapes


# -- the children: need a GPU ------------------------------------------------------------------------------------------


def facts_row() -> Row:
    """What the file says of the machine, and the compiler that made the kernels."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.facts import facts

    cuda = backend()
    shape = next(iter(CANDIDATES))
    compiler = tilewright.plan(problem_of(shape), device=cuda.device(0)).binary.compiler
    return {"kind": "facts", "status": "ok"} | facts(cuda) | {"compiler": compiler}


def check_rows() -> Iterator[Row]:
    """A row a form and product: its verdict on whole numbers and on random ones, and how many repeats differed."""
    import functools

    from tilewright.bench.operands import Canary, inputs  # torch
    from tilewright.bench.repeats import differing
    from tilewright.bench.verify import verify

    yield facts_row()
    for config, problem in checked():
        about = {"kind": "check", "config": str(config), "case": str(problem)}
        yield about | {"status": "begun"}
        verdicts = [verify(problem, config=config, kind=kind) for kind in ("integer", "normal")]
        a, b = inputs(problem, "normal")
        outs = [Canary.around(problem) for _ in range(2)]
        plan = tilewright.plan(a, b, outs[0].out, config=config)
        different = differing(functools.partial(plan.run, a, b), outs[0], outs[1], REPEATS)
        is_right = all(verdict.ok for verdict in verdicts) and not different
        yield about | {
            "status": "ok" if is_right else "wrong",
            "worst": max(verdict.worst for verdict in verdicts),
            "repeats": REPEATS,
            "differing": len(different),
            "why": "" if is_right else "; ".join(map(str, verdicts)),
        }


def time_rows(shapes: Sequence[Shape], rounds: int) -> Iterator[Row]:
    """The machine's facts, then shape after shape a row a column."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.compare import compare  # torch

    yield facts_row()
    device = backend().device(0)
    for shape in shapes:
        started = time.perf_counter()
        rows = compare(
            problem_of(shape),
            configs=(None, *configs_of(shape, device)),
            named={UNTUNED: None},
            rounds=rounds,
            checked=True,
        )
        seconds = round(time.perf_counter() - started, 2)
        yield from ({"kind": "candidate", "status": "ok", "seconds": seconds} | row for row in rows)


# -- the parent --------------------------------------------------------------------------------------------------------


def run_child(part: str, words: Sequence[str], limit_s: float) -> tuple[list[Row], Row | None]:
    """The rows of one child, and how it ended where that was not well."""
    return rows_of_command(
        [sys.executable, __file__, "--child", part, *words], limit_s, {"kind": "child", "part": part}
    )


def check() -> list[Row]:
    """The rows of the checks; what was begun and not ended is told by how the child ended."""
    rows, failed = run_child("check", [], CHECK_LIMIT_S)
    ended = {(row["config"], row["case"]) for row in rows if row["kind"] == "check" and row["status"] != "begun"}
    open_rows = [
        row | {"status": "lost"}
        for row in rows
        if row["kind"] == "check" and row["status"] == "begun" and (row["config"], row["case"]) not in ended
    ]
    found = [row for row in rows if row.get("status") != "begun"] + open_rows
    return found if failed is None else [*found, failed]


def timed(shapes: Sequence[Shape], rounds: int) -> list[Row]:
    """The rows of all shapes, children's bad ends among them."""
    found: list[Row] = []
    left = list(shapes)
    while left:
        words = ["--shapes", ",".join("x".join(map(str, shape)) for shape in left), "--rounds", str(rounds)]
        rows, failed = run_child("time", words, START_LIMIT_S + SHAPE_LIMIT_S * len(left))
        found += rows
        if failed is None:
            break
        done = {(row["m"], row["n"], row["k"]) for row in rows if row["kind"] == "candidate"}
        left = [shape for shape in left if shape not in done]
        found.append(failed | {"shape": "x".join(map(str, left[0]))} if left else failed)
        if not rows:  # not even facts: no shape is to blame, and the next child would do no better
            break
        left = left[1:]
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """The checks in a line; then by shape cuBLAS, the shipped choice, the untuned one, and the candidates by time."""
    checks = [row for row in rows if row["kind"] == "check"]
    wrong = [row for row in checks if row["status"] != "ok"]
    lines = [f"{len(checks) - len(wrong)} of {len(checks)} checks right"] if checks else []
    lines += [f"  {row['status']}: {row['config']} at {row['case']}: {row.get('why', '')}" for row in wrong]
    lines += [
        f"{row['part']} {row.get('shape', '')}: {row['status']}: {row['why']}" for row in rows if row["kind"] == "child"
    ]
    by_shape: dict[Shape, list[Row]] = {}
    for row in rows:
        if row["kind"] == "candidate":
            by_shape.setdefault((row["m"], row["n"], row["k"]), []).append(row)
    for shape, own in by_shape.items():
        times = {row["candidate"]: row["median_us"] for row in own if row.get("median_us")}
        shipped = times.get(SHIPPED)
        lines.append(f"{'x'.join(map(str, shape))}")
        for row in sorted(own, key=lambda row: row.get("median_us") or float("inf")):
            if row.get("median_us") is None:
                lines.append(f"  {'-':>9s}  {row['status']}: {row['candidate']}: {row.get('why', '')}")
                continue
            over = f"{shipped / row['median_us']:.3f}" if shipped else "-"
            ratio = f"{row['ratio']:.3f}" if row.get("ratio") else "1"
            name = row["candidate"] if row["candidate"] == CUBLAS else f"{row['candidate']} {row.get('config') or ''}"
            name = row["candidate"] if row["candidate"].startswith(f"{SHIPPED} ") else name
            lines.append(
                f"  {row['median_us']:9.2f} us  {over} of shipped  {ratio} of cuBLAS  {row['status']} {name.strip()}"
            )
    return lines


def content(words: Sequence[str], rows: Sequence[Row]) -> dict[str, Any]:
    """What --into holds: the machine's facts with this command, and the rows."""
    told = next((row for row in rows if row["kind"] == "facts"), {})
    facts = {name: value for name, value in told.items() if name not in ("kind", "status")}
    return {
        "facts": facts | {"command": " ".join(["benchmarks/candidates.py", *words])},
        "rows": [row for row in rows if row["kind"] != "facts"],
    }


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, metavar="DIR", help="compile everything into DIR and end")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--shapes", help="MxNxK joined by commas; without it all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--into", type=Path, help="file for facts and rows")
    parser.add_argument("--child", choices=("check", "time"), help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    try:
        shapes = named_shapes(options.shapes) if options.shapes else list(CANDIDATES)
    except UnsupportedError as error:
        parser.error(str(error))
    if options.build:
        from tilewright.jit.build import build_into

        units = sources(shapes)
        print(f"{len(units)} kernels")
        build_into(units, options.build, refuse=True)
        return 0
    if options.child:
        return write_rows(check_rows() if options.child == "check" else time_rows(shapes, options.rounds), options.log)
    rows = check() if options.check else []
    rows += timed(shapes, options.rounds) if options.time else []
    print("\n".join(table(rows)))
    if options.into:
        options.into.parent.mkdir(parents=True, exist_ok=True)
        options.into.write_text(json.dumps(content(sys.argv[1:] if words is None else words, rows), indent=1) + "\n")
    return 0 if all(row["status"] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
