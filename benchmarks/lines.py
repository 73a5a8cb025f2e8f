"""Sizes that lie side by side on a Hopper GPU, all of one line in the same rounds: is one of them a cliff?

    PYTHONPATH=src python benchmarks/lines.py --build DIR             on any machine: cubins of all that follows
    export TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src
    python benchmarks/lines.py --into OUT/lines.json
    python tools/publish_rows.py OUT/lines.json

Lines are those of the suite's sweeps; `--lines` names sweeps, or single lines by their key, joined by commas. Each size
is a column with the model's choice, whatever is recorded; checked first, then timed interleaved, cold, on the same
memory for all sizes of a line. One child measures line after line; if it ends before, or hangs, the line that it was at
is lost and another child goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tilewright
from tilewright.backends.cuda import backend
from tilewright.bench import lines_report
from tilewright.bench.children import Row, rows_of_command, write_rows
from tilewright.bench.lines_report import KIND
from tilewright.bench.neighbours import Line, lines
from tilewright.bench.suite import SWEEPS, problem_columns, problem_of
from tilewright.device import Device, preset
from tilewright.errors import CompileError, ConfigError, RefusalError, UnsupportedError
from tilewright.plan import Plan
from tilewright.timing import CudaMachine, interleaved

# A child starts in about 6 s; a line is 64 columns x 8 samples x 4 ms = 2 s, and estimated 1 to 3 s for what is before.
START_LIMIT_S, LINE_LIMIT_S = 30.0, 20.0
ROUNDS = 7


def lines_of(text: str) -> list[Line]:
    """The lines that --lines names, each once. Their times are 0: nobody has measured them.

    Raises: UnsupportedError: a word is neither a sweep nor the key of one of its lines.
    """
    known = {name: lines(dict.fromkeys(shapes, 0.0)) for name, shapes in SWEEPS.items()}
    known |= {line.key: [line] for own in list(known.values()) for line in own}
    found: dict[str, Line] = {}
    for word in text.split(","):
        if word not in known:
            raise UnsupportedError(
                asked=f"the line {word!r}", rule="it is no line of the suite", works=", ".join(known)
            )
        found |= {line.key: line for line in known[word]}
    return list(found.values())


def plan_of(size: tuple[int, int, int], device: Device) -> Plan:
    """What is timed: contiguous arrays, the model's choice."""
    return tilewright.plan(problem_of(size), device=device, use_records=False)


def sources(chosen: Iterable[Line]) -> list[Any]:
    """Every unit that is loaded."""
    device = preset("h200")
    units = [unit for line in chosen for size in line.sizes for unit in plan_of(size, device).sources]
    return list({unit.digest("any"): unit for unit in units}.values())


# -- the child: needs a GPU --------------------------------------------------------------------------------------------


def child_rows(chosen: Sequence[Line], rounds: int) -> Iterator[Row]:
    """The machine's facts with the compiler of the kernels, then line after line."""
    from tilewright.bench.facts import facts  # not the parent's

    cuda = backend()
    compiler = plan_of(chosen[0].sizes[0], cuda.device(0)).binary.compiler
    yield {"kind": "facts", "status": "ok"} | facts(cuda) | {"compiler": compiler}
    for line in chosen:
        yield from line_rows(line, rounds)


def line_rows(line: Line, rounds: int = ROUNDS, memory: str = "cuda:0") -> Iterator[Row]:
    """A row a size: its check, and its time among all others. `memory`: torch's name of where operands lie."""
    from tilewright.bench.held import Held

    cuda = backend()
    plans, rows = {}, {}
    for size in line.sizes:
        name = "x".join(map(str, size))
        rows[name] = {"kind": KIND, "line": line.key} | problem_columns(problem_of(size))
        try:
            plan = plan_of(size, cuda.device(0))
            kernels = [step.binary() for step in plan.work.steps]
            rows[name] |= {"config": str(plan.config), "launches": len(kernels)}
            plans[name] = plan
        except (RefusalError, ConfigError, CompileError) as error:
            rows[name] |= {"status": "refused", "why": f"{type(error).__name__}: {error}"}
    if plans:
        held = Held(cuda, [(plan.problem, plan.work) for plan in plans.values()], device=memory)
        with CudaMachine(cuda, 0) as machine:
            columns = []
            for name, plan in plans.items():
                column = held.candidate(name, plan.problem, plan.work, machine.stream)
                verdict = held.check(plan.problem, column)
                columns.append(column)
                rows[name] |= {"status": "ok" if verdict.ok else "wrong", "error_over_bound": verdict.worst}
                rows[name] |= {"num_sets": held.num_sets, "is_cold": held.is_cold}
                rows[name] |= {} if verdict.ok else {"why": str(verdict)}
            for sample in interleaved(machine, columns, rounds=rounds).rows():
                rows[sample["candidate"]] |= sample
    yield from rows.values()


# -- the parent --------------------------------------------------------------------------------------------------------


def run_child(chosen: Sequence[Line], rounds: int) -> tuple[list[Row], Row | None]:
    """The rows of some lines, measured in a child, and how it ended where that was not well."""
    keys = ",".join(line.key for line in chosen)
    words = [sys.executable, __file__, "--child", "--lines", keys, "--rounds", str(rounds)]
    return rows_of_command(words, START_LIMIT_S + LINE_LIMIT_S * len(chosen), {"kind": "child", "line": keys})


def measured(chosen: Sequence[Line], rounds: int) -> list[Row]:
    """The rows of all lines, children's facts and bad ends among them."""
    found: list[Row] = []
    left = list(chosen)
    while left:
        rows, failed = run_child(left, rounds)
        found += rows
        if failed is None:
            break
        if not rows:  # not even facts: no line is to blame, and the next child would do no better
            found.append(failed)
            break
        done = {row["line"] for row in rows if row["kind"] == KIND}
        left = [line for line in left if line.key not in done]
        found.append(failed | {"line": left[0].key} if left else failed)
        left = left[1:]
    return found


def content(words: Sequence[str], chosen: Sequence[Line], rounds: int) -> dict[str, Any]:
    """What --into holds: the machine's facts with this command, and the rows."""
    rows = measured(chosen, rounds)
    told = next((row for row in rows if row["kind"] == "facts"), {})
    facts = {name: value for name, value in told.items() if name not in ("kind", "status")}
    return {
        "facts": facts | {"command": " ".join(["benchmarks/lines.py", *words])},
        "rows": [row for row in rows if row["kind"] != "facts"],
    }


def table(rows: Sequence[Row]) -> list[str]:
    """A line of text for each line of sizes, then what is not as it should be."""
    head, *found = [lines_report.COLUMNS, *lines_report.cells(rows)]
    widths = [max(len(line[index]) for line in (head, *found)) for index in range(len(head))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)) for each in (head, *found)]
    return [*(line.rstrip().replace("**", "") for line in shown), *lines_report.failures(rows)]


def picture(rows: Sequence[Row], facts: Row, path: Path) -> None:
    """Draws what there is, where matplotlib is."""
    if lines_report.measured(rows):
        try:
            lines_report.plot(rows, lines_report.title(facts), path)
        except UnsupportedError as error:  # the rows are written; publish_rows.py draws them elsewhere
            print(error)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, metavar="DIR", help="compile everything into DIR and end")
    parser.add_argument("--lines", default=",".join(SWEEPS), help="sweeps or lines, joined by commas; without it all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--into", type=Path, help="file for facts and rows; the picture lies beside it")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    try:
        chosen = lines_of(options.lines)
    except UnsupportedError as error:
        parser.error(str(error))
    if options.build:
        from tilewright.jit.build import build_into

        units = sources(chosen)
        print(f"{len(units)} kernels")
        build_into(units, options.build, refuse=True)
        return 0
    if options.child:
        return write_rows(child_rows(chosen, options.rounds), options.log)
    found = content(sys.argv[1:] if words is None else words, chosen, options.rounds)
    print("\n".join(table(found["rows"])))
    if options.into:
        options.into.parent.mkdir(parents=True, exist_ok=True)
        options.into.write_text(json.dumps(found, indent=1) + "\n")
        picture(found["rows"], found["facts"], options.into.with_suffix(".svg"))
    return 0 if all(row["status"] == "ok" for row in found["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
