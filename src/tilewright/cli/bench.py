"""`tilewright bench SUITE`: a suite of shapes beside cuBLAS and the best of cuBLASLt, in one run, resumable.

Needs a Hopper GPU and torch; `--show` makes the tables of rows that were measured elsewhere, anywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import request, terminal
from tilewright.cli.request import Reduction

if TYPE_CHECKING:
    from tilewright.bench.suite import Entry
    from tilewright.bench.suite_run import Options

DEFAULT_FOLDER = Path("bench-results")


def bench(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            help="all; or some of square, tiny, odd, llama3_8b, llama3_70b, deepseek_v3, lm_head, large_k, tall, the "
            "sweeps neighbours and decode, and MxNxK, joined by commas; or a .json file of groups.",
        ),
    ] = "all",
    into: Annotated[
        Path,
        typer.Option(
            "--into",
            metavar="DIR",
            parser=terminal.path_of,
            help="Rows, table and plots; a run that was stopped goes on there.",
        ),
    ] = DEFAULT_FOLDER,
    modes: Annotated[
        str, typer.Option("--modes", help="burst, interleaved, steady, joined by commas.")
    ] = "interleaved",
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Samples of each time; default 5 to 9.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="bf16 or fp16.")] = "bf16",
    b_major: Annotated[str, typer.Option("--b-major", help="k: b is a weight's transpose; n: row-major.")] = "k",
    tune_s: Annotated[
        float, typer.Option("--tune-s", min=0.0, help="Seconds a shape to look for cuBLASLt's best; 0: leave it out.")
    ] = 20.0,
    tuned_from: Annotated[
        Path | None,
        typer.Option(
            "--tuned-from", metavar="FILE", parser=terminal.path_of, help="Race the finalists of these rows; no search."
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records",
            metavar="FILE",
            parser=terminal.path_of,
            help="JSON of problem to config words; default your records.",
        ),
    ] = None,
    reduction: request.ReductionOption = Reduction.fast,
    time_budget: Annotated[
        float | None, typer.Option("--time-budget", min=1.0, metavar="S", help="Seconds of the run; searches shrink.")
    ] = None,
    limit_s: Annotated[float, typer.Option("--limit-s", min=1.0, help="Time limit of one shape.")] = 120.0,
    show: Annotated[
        Path | None,
        typer.Option(
            "--show", metavar="FILE", parser=terminal.path_of, help="Measure nothing: report the rows of this file."
        ),
    ] = None,
) -> None:
    """Measure a suite of shapes beside cuBLAS and the best of cuBLASLt."""
    from tilewright.bench.suite_run import Options  # numpy, which --help does not need

    if show is not None:
        _show(show)
        return
    options = Options(
        modes=_modes(modes),
        rounds=rounds,
        dtype=dtype,
        b_major=b_major,
        tune_s=tune_s,
        limit_s=limit_s,
        budget_s=time_budget,
        tuned_from=tuned_from,
        records=records,
        reduction=reduction.value,
    )
    from tilewright.bench import suite_report
    from tilewright.bench.suite import entries, problem_of
    from tilewright.bench.suite_run import ROWS_FILE, Journal, records_in, rows_in
    from tilewright.dtypes import by_name_of_16_bits

    shapes = entries(suite)
    by_name_of_16_bits(dtype)
    problems = [problem_of(entry.shape, dtype=dtype, b_major=b_major) for entry in shapes]  # type: ignore[arg-type]
    if records is not None:  # files are read before a device is asked for
        known = records_in(records)
        for problem in problems:
            known(problem)
    if tuned_from is not None:
        rows_in(tuned_from)
    if (into / ROWS_FILE).exists():
        rows_in(into / ROWS_FILE)
    _check_gpu()
    terminal.check_folder("--into", into)
    journal = Journal.opened(into / ROWS_FILE)
    rows = _measured(shapes, options, journal)
    compilers = sorted({row["compiler"] for row in rows if row.get("compiler")})
    facts = journal.facts | {"compiler": ", ".join(compilers), "command": " ".join(["tilewright", *sys.argv[1:]])}
    paths, no_plot = suite_report.write(rows, facts, into)
    _print(rows)
    terminal.note(f"wrote {', '.join(map(str, [journal.path, *paths]))}")
    if no_plot:
        terminal.note(no_plot)
    if suite_report.is_bad(suite_report.judged(rows)):
        raise typer.Exit(terminal.EXIT_FAILED)


def _modes(text: str) -> tuple[str, ...]:
    from tilewright.bench.suite_report import MODES

    found = tuple(dict.fromkeys(text.split(",")))
    if unknown := [mode for mode in found if mode not in MODES]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(MODES)}", param_hint="--modes")
    return found


def _check_gpu() -> None:
    """Raises: DriverError, UnsupportedError: what is missing to measure here."""
    from tilewright.backends.cuda import backend  # the driver bindings
    from tilewright.bench.verify import has_torch
    from tilewright.errors import UnsupportedError
    from tilewright.kernels.catalog import check_supported

    check_supported(backend().device(0))
    if not has_torch():
        raise UnsupportedError(
            asked="a bench beside cuBLAS",
            rule="cuBLAS is called through torch, and torch with CUDA is not installed",
            works="pip install 'tilewright[torch]', or --show FILE for rows that were measured elsewhere",
        )


def _measured(shapes: list[Entry], options: Options, journal: Any) -> list[dict[str, Any]]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from tilewright.bench.suite_run import Run

    columns = (
        TextColumn("{task.description:22s}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=terminal.console(stderr=True)) as bar:
        task = bar.add_task("starting", total=len(shapes))

        def progress(done: int, text: str) -> None:
            bar.update(task, description=text, completed=done)

        rows = Run(shapes, options, journal, progress).go()
        bar.update(task, description="done", completed=len(shapes))
    return rows


def _show(file: Path) -> None:
    from tilewright.bench.suite_run import rows_in

    _print(rows_in(file))


def _print(rows: list[dict[str, Any]]) -> None:
    from tilewright.bench import suite_report as report

    shapes = report.judged(rows)
    for mode in report.modes_of(shapes):
        terminal.print_sections(mode, report.TERMINAL_COLUMNS, report.table(shapes, mode))
        means = [mean.cells() for mean in report.means(shapes, mode)]
        terminal.print_table(f"{mode}, summary", report.SUMMARY_COLUMNS, means)
        for sentence in filter(None, [*report.caveats(shapes, mode), report.choices(shapes, mode)]):
            typer.echo(sentence)
        if lines := report.neighbour_lines(shapes, mode):
            terminal.print_table(f"{mode}, sizes side by side", report.NEIGHBOUR_COLUMNS, lines)
        for baseline, key in report.OVER:
            if lines := report.worst_lines(shapes, mode, key):
                terminal.print_table(
                    f"{mode}, the {len(lines)} slowest against {baseline}", report.WORST_COLUMNS, lines
                )
    for line in report.left_out(shapes):
        terminal.note(line)
