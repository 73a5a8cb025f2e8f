"""What Nsight Compute (`ncu`) counts of each rung: one launch of it in a child of its own, with a time limit.

Makes rows, one a rung; a rung that cannot be counted costs its own row. Opens no driver in the parent, and no torch in
the child, which ncu would wait for.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.bench import counters
from tilewright.bench.children import run_limited, write_rows
from tilewright.bench.ladder import plans_of
from tilewright.packing import packed
from tilewright.problem import Problem

Row = dict[str, Any]
Progress = Callable[[str], None]  # told what begins

LIMIT_S = 45.0  # ncu starts in about 5 s and repeats a launch of up to 30 ms some ten times
KIND = "ladder"  # of counters.METRICS


def is_there() -> bool:
    """Whether this machine has ncu."""
    return shutil.which("ncu") is not None


def counted_rows(
    names: Sequence[str], problem: Problem, *, progress: Progress = lambda text: None, run: counters.Run = run_limited
) -> Iterator[Row]:
    """One row a rung: bytes that DRAM and the L2 moved, and conflicts of shared memory's banks, of one launch.

    A metric that ncu turns down is not asked for again. Cost: about 8 s a rung, LIMIT_S at most.
    """
    refused: set[str] = set()
    for name in names:
        progress(f"counting {name}")
        sizes = {"m": problem.m, "n": problem.n, "k": problem.k}
        yield {"kind": "rung_counters", "rung": name, **sizes} | _counted(name, problem, run, refused)


def _counted(name: str, problem: Problem, run: counters.Run, refused: set[str]) -> Row:
    def program(log: Path) -> list[str]:
        size = map(str, (problem.m, problem.n, problem.k))
        return [sys.executable, "-m", "tilewright.bench.ladder_counters", name, *size, "--log", str(log)]

    try:
        return counters.of_child(KIND, program, run, LIMIT_S, refused).columns(KIND)
    except OSError as missing:
        return {"status": "not counted", "why": str(missing)}


def launched_rows(name: str, problem: Problem) -> Iterator[Row]:
    """In the child: launches the rung's kernel once, on constant operands, without what adds slices up.

    Raises: DriverError, ConfigError, CompileError: it cannot be launched.
    """
    from tilewright.backends.cuda import backend  # the driver, which the parent never opens
    from tilewright.bench.launched import launched

    plan = plans_of([name], problem, backend().device(0), backend)[name]
    launched(plan)
    yield {"rung": name, "entry": plan.binary.entry, "status": "launched"}


def main(words: Sequence[str] | None = None) -> int:
    """The child's command line."""
    parser = argparse.ArgumentParser(prog="tilewright.bench.ladder_counters", description=__doc__.splitlines()[0])
    parser.add_argument("rung")
    parser.add_argument("size", nargs=3, type=int)
    parser.add_argument("--log", type=Path, default=Path("/dev/stdout"))
    options = parser.parse_args(words)
    return write_rows(launched_rows(options.rung, packed(*options.size)), options.log)


if __name__ == "__main__":
    sys.exit(main())
