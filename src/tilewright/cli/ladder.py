"""`tilewright ladder`: every rung from plain CUDA threads to the production kernel, checked and timed beside cuBLAS.

With no GPU the rungs run in the emulator, at a small size: their numbers, findings and instructions in place of times.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import ceilings, terminal

if TYPE_CHECKING:
    from tilewright.problem import Problem

# Rows, the facts of the machine, and the table that is shown: its columns and its lines.
Answer = tuple[list[dict[str, Any]], dict[str, Any], Sequence[str], list[tuple[str, ...]]]

GPU_SIZE = "8192"
EMULATED_SIZE = "256x512x192"  # two tiles of the largest rung a way, and k longer than a slot


def ladder(
    size: Annotated[
        str | None, typer.Option("--size", metavar="N|MxNxK", help="The product; default 8192, emulated 256x512x192.")
    ] = None,
    rungs: Annotated[
        str,
        typer.Option(
            "--rungs", metavar="v04,v06-v08|all|ampere", help="Rungs to climb; v12: production, a0-a9: Ampere."
        ),
    ] = "all",
    steady: Annotated[
        bool, typer.Option("--steady", help="Time under sustained load too, with watts: 10 s more a rung.")
    ] = False,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Samples of each time; default 5 to 9.")] = None,
    with_ceilings: Annotated[
        bool,
        typer.Option("--ceilings", help="Measure what this card does at most first, for shares of it: a minute more."),
    ] = False,
    counters: Annotated[
        bool, typer.Option("--counters/--no-counters", help="Count bytes and bank conflicts where ncu is: 8 s a rung.")
    ] = True,
    tune_s: Annotated[
        float, typer.Option("--tune-s", min=0.0, help="Seconds to look for cuBLASLt's best algorithm, as a column too.")
    ] = 0.0,
    emulate: Annotated[bool, typer.Option("--emulate", help="Use the emulator, even where a GPU is.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="DIR", parser=terminal.path_of, help="Write the rows, the table and the plot there."
        ),
    ] = None,
) -> None:
    """Climb a ladder, one idea a kernel: Hopper's eleven and the production kernel, or Ampere's ten."""
    from tilewright.bench.ladder import named  # plans and kernels, which --help does not need

    names = named(rungs)
    if into is not None:
        terminal.check_folder("--into", into)
    reason = "--emulate" if emulate else _why_no_gpu()
    problem = _problem(size or (EMULATED_SIZE if reason else GPU_SIZE))
    ceiling_rows: list[dict[str, Any]] = []
    if with_ceilings:
        ceiling_rows = ceilings.rows_here(reason, [problem.dtype.name], rounds)
    if reason:
        rows, facts, columns, lines = _emulated(names, problem, reason)
    else:
        rows, facts, columns, lines = _measured(names, problem, steady, rounds, ceiling_rows, counters, tune_s)
    if ceiling_rows:
        ceilings.show(ceiling_rows, facts, into)
    terminal.print_table(f"{problem}{', emulated' if reason else ''}", columns, lines)
    if into is not None:
        from tilewright.bench.ladder_report import markdown, write

        paths, no_plot = write(rows, facts, markdown(columns, lines), into)
        terminal.note(f"wrote {', '.join(map(str, paths))}")
        if no_plot:
            terminal.note(no_plot)
    # What ncu may not count, or does not know, is no fault of a rung.
    if any(row["status"] != "ok" and row["kind"] != "rung_counters" for row in [*rows, *ceiling_rows]):
        raise typer.Exit(terminal.EXIT_FAILED)


def _problem(size: str) -> Problem:
    """Raises: typer.BadParameter: no size. ShapeError: none that can be computed."""
    from tilewright.packing import packed  # see ladder()

    return packed(*terminal.extents_of(size))


def _why_no_gpu() -> str:
    """The reason why the rungs cannot run on a GPU here; empty when they can."""
    from tilewright.bench.verify import has_torch

    reason = ceilings.why_no_gpu()
    return reason or ("" if has_torch() else "torch with CUDA is not installed, and cuBLAS is timed through it")


@contextlib.contextmanager
def _steps(count: int) -> Iterator[Callable[[str], None]]:
    """A bar of so many steps on standard error; what it gives is told what begins."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:32s}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal.console(stderr=True)) as bar:
        task = bar.add_task("", total=count)
        begun = itertools.count()
        yield lambda text: bar.update(task, description=text, completed=next(begun))
        bar.update(task, description="done", completed=count)


def _measured(
    names: Sequence[str],
    problem: Problem,
    steady: bool,
    rounds: int | None,
    ceiling_rows: Sequence[dict[str, Any]],
    counters: bool,
    tune_s: float,
) -> Answer:
    from tilewright.bench import ladder as measurement  # see ladder()
    from tilewright.bench import ladder_counters
    from tilewright.bench.ceiling_report import tensor_ceilings
    from tilewright.bench.ceilings import committed_rows
    from tilewright.bench.ladder_report import shown

    modes = measurement.MODES if steady else ("burst", "interleaved")
    counts = counters and ladder_counters.is_there()
    steps = any(measurement.rungs_of(names)) + len(modes) + (len(names) if counts else 0)
    with _steps(steps) as progress:
        rows = measurement.measure(names, problem, modes=modes, rounds=rounds, tune_s=tune_s, progress=progress)
        if counts:  # a profiler heats and cools the card in its own way: last
            failed = {row["rung"] for row in rows if row["status"] != "ok"}
            sound = [name for name in names if name not in failed]
            rows += ladder_counters.counted_rows(sound, problem, progress=progress)
    for row in rows:
        if row["status"] != "ok":
            color = typer.colors.YELLOW if row["kind"] == "rung_counters" else typer.colors.RED
            typer.secho(f"{row['rung']}, {row['kind']}: {row['status']} {row.get('why', '')}", fg=color, err=True)
    told = ceilings.facts_here(rows)
    known, card, dtype = ceiling_rows or committed_rows(), told["device"], problem.dtype.name
    found = {each: tensor_ceilings(known, card, dtype, each) for each in measurement.INSTRUCTIONS}
    rows = measurement.with_ceilings(rows, found)
    return rows, told, *shown(rows)


def _emulated(names: Sequence[str], problem: Problem, reason: str) -> Answer:
    from tilewright.bench.ladder_emulated import emulated_rows, table  # see ladder()

    terminal.note(f"in the emulator: {reason}")
    rows = []
    for row in emulated_rows(names, problem):
        terminal.note(f"{row['rung']}: {row['status']}")
        rows.append(row)
    return rows, {"device": "emulator"}, *table(rows)
