"""`tilewright tune M N K | --suite FILE_OR_GROUP`: measured choices: make them, list them, forget them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import request, terminal
from tilewright.cli.request import AMajor, BMajor, Reduction

if TYPE_CHECKING:
    from tilewright.problem import Problem
    from tilewright.tuning.outcome import Tuned

ORDINAL = 0  # the first GPU that CUDA_VISIBLE_DEVICES leaves


def tune(
    sizes: Annotated[list[str] | None, typer.Argument(metavar="M N K", help="One product.")] = None,
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="FILE|GROUP", help="Products: a group of the suite, all, or a JSON file."),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the records, yours before the shipped ones.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget your records: of the products named, or all of them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before all is forgotten.")] = False,
    dtype: request.DTypeOption = "bf16",
    out_dtype: request.OutDTypeOption = None,
    sums: request.SumsOption = None,
    a_major: request.AMajorOption = AMajor.k,
    b_major: request.BMajorOption = BMajor.k,
    batch: request.BatchOption = None,
    padded: request.PaddedOption = False,
    epilogue: Annotated[
        str | None,
        typer.Option("--epilogue", metavar="STEPS", help='What follows each product: "bias gelu", "gated(silu)" ...'),
    ] = None,
    num_sms: request.NumSmsOption = None,
    reduction: request.ReductionOption = Reduction.fast,
    candidates: Annotated[int, typer.Option("--candidates", min=1, help="Configs of the model that are measured.")] = 8,
    budget_s: Annotated[
        float | None, typer.Option("--budget-s", min=0.0, help="Seconds for all products; default 60 for each.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the winners to your records.")] = True,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="FILE", parser=terminal.path_of, help="Append every candidate's figures, as JSON lines."
        ),
    ] = None,
    build: Annotated[
        Path | None,
        typer.Option(
            "--build",
            metavar="DIR",
            parser=terminal.path_of,
            help="Only compile the candidates, for a machine without a compiler.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="PRESET", help="With --build and --forget: of h200, h100 ...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure the model's best configs on this GPU and remember the fastest for later products."""
    if device is not None and not (build or forget):
        raise typer.BadParameter(
            "what is measured is the GPU present; it goes with --build and --forget", param_hint="--device"
        )
    if list_them:
        _list(as_json)
        return
    types: dict[str, Any] = {"dtype": dtype, "out_dtype": out_dtype, "sums": sums}
    named = _with_epilogue(
        _problems(sizes, suite, types, a_major, b_major, batch, padded), epilogue, out_dtype or dtype
    )
    if forget:
        _forget(named, device, num_sms, reduction, yes)
        return
    if not named:
        raise typer.BadParameter("give M N K, or --suite, --list or --forget")
    if build is not None:
        _build(named, build, device, num_sms, reduction, candidates)
        return
    if into is not None:
        terminal.check_file("--into", into)
    outcomes: list[Tuned] = []
    with _progress_bar(len(named)) as (advance, tell):
        for tuned in _tuned(named, num_sms, reduction, candidates, budget_s, keep, tell):
            outcomes.append(tuned)
            advance()
            if into is not None:
                with into.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows_of(tuned))
    if as_json:
        terminal.print_json([row for tuned in outcomes for row in rows_of(tuned)])
    elif len(outcomes) == 1:
        typer.echo(str(outcomes[0]))
    else:
        _print(outcomes)
    if any(tuned.record is None for tuned in outcomes):
        raise typer.Exit(terminal.EXIT_FAILED)


def rows_of(tuned: Tuned) -> list[dict[str, Any]]:
    """One flat JSON-able row a candidate."""
    return [
        {
            "problem": str(tuned.problem),
            "m": tuned.problem.m,
            "n": tuned.problem.n,
            "k": tuned.problem.k,
            "device": tuned.device.name,
            "decided": tuned.decided,
            "verdict": tuned.verdict,
            "is_record": tuned.record is not None and tuned.record.config == row.config,
            "is_untuned": tuned.untuned == row.config,
            "config": str(row.config),
            "words": list(row.config.words()),
            "family": row.family,
            "status": row.status,
            "why": row.why,
            "predicted_us": row.predicted_us,
            "median_us": row.median_us,
            "spread": row.spread,
            "rounds": row.rounds,
        }
        for row in tuned.rows
    ]


def _problems(
    sizes: list[str] | None,
    suite: str | None,
    types: dict[str, Any],
    a_major: AMajor,
    b_major: BMajor,
    batch: list[int] | None,
    padded: bool,
) -> list[Problem]:
    """The products that the arguments name, in these types, of contiguous arrays unless `padded`; none when they name
    none."""
    from tilewright.bench.suite import entries  # the table of shapes, which --help does not need
    from tilewright.cli.build import sizes_of

    if sizes and suite is not None:
        raise typer.BadParameter("give M N K or --suite, not both")
    shapes = sizes_of(sizes) if sizes else [] if suite is None else [entry.shape for entry in entries(suite)]
    return [
        request.problem(m, n, k, **types, a_major=a_major, b_major=b_major, batch=batch, contiguous=not padded)
        for m, n, k in shapes
    ]


def _with_epilogue(problems: list[Problem], text: str | None, dtype: str) -> list[Problem]:
    """The products, followed by the steps that a text names."""
    if text is None:
        return problems
    from tilewright.packing import epilogue_named, with_epilogue  # see _problems()

    steps = epilogue_named(text, dtype)
    return [with_epilogue(each, steps) for each in problems]


def _tuned(
    problems: list[Problem],
    num_sms: int | None,
    reduction: Reduction,
    candidates: int,
    budget_s: float | None,
    keep: bool,
    tell: Callable[[str], None],
) -> Iterator[Tuned]:
    from tilewright.tuning.tune import BUDGET_S, tune_many  # plans and kernels, which --help does not need

    return tune_many(
        problems,
        ordinal=ORDINAL,
        num_sms=num_sms,
        reduction=reduction.value,
        candidates=candidates,
        budget_s=BUDGET_S * len(problems) if budget_s is None else budget_s,
        keep=keep,
        progress=tell,
    )


def _build(
    problems: list[Problem],
    into: Path,
    device: str | None,
    num_sms: int | None,
    reduction: Reduction,
    candidates: int,
) -> None:
    from tilewright.cli.build import compile_into
    from tilewright.jit.build import source_digest_of  # see _tuned()
    from tilewright.kernels.product import sources as sources_of
    from tilewright.tuning.candidates import candidates_of, computed_problem

    target = request.preset(device)
    sources = {}
    for problem in [computed_problem(each, target) for each in problems]:
        for each in candidates_of(problem, target, num_sms, candidates, reduction.value):
            for source in sources_of(each.family, problem, each.config, target):
                sources[source_digest_of(source)] = source
    binaries = compile_into(list(sources.values()), into, None)
    typer.echo(f"{terminal.count_text(len(binaries), 'kernel', 'kernels')} for {target} in {into}")
    typer.echo(f"serve them with TILEWRIGHT_PREBUILT={into.absolute()}")


COLUMNS = ("product", "config", "us", "spread", "decided", "untuned over tuned", "model over measured")


def _print(outcomes: list[Tuned]) -> None:
    """One line a product, and how well the model chose."""
    rows, ratios = [], []
    for tuned in outcomes:
        record, ratio = tuned.record, tuned.untuned_ratio
        if record is None:
            rows.append((str(tuned.problem), tuned.verdict, "", "", tuned.decided, "", ""))
            continue
        if ratio is not None:
            ratios.append(ratio)
        rows.append(
            (
                str(tuned.problem),
                str(record.config),
                f"{record.measured_us:.1f}",
                f"{record.spread:.1%}",
                tuned.decided,
                "" if ratio is None else f"{ratio:.3f}",
                f"{record.predicted_us / record.measured_us:.2f}",
            )
        )
    terminal.print_table("", COLUMNS, rows)
    if ratios:
        within = sum(ratio <= 1.05 for ratio in ratios) / len(ratios)
        typer.echo(f"untuned within 5 % of tuned: {within:.0%} of {len(ratios)}; the worst {max(ratios) - 1:.1%} off")


def _list(as_json: bool) -> None:
    from tilewright import records  # see _tuned()

    own = [("yours", each) for each in records.user().records()]
    covered = {each.key for _, each in own}
    listed = own + [("shipped", each) for each in records.shipped().records() if each.key not in covered]
    if as_json:
        terminal.print_json([{"whose": whose, **json.loads(each.line())} for whose, each in listed])
        return
    rows = [
        (
            whose,
            each.device,
            each.problem,
            each.sms,
            str(each.config),
            f"{each.measured_us:.1f}",
            each.regime,
            each.date,
        )
        for whose, each in listed
    ]
    if rows:
        terminal.print_table("", ("whose", "device", "product", "on", "config", "us", "regime", "date"), rows)
    count = terminal.count_text(len(own), "record", "records")
    typer.echo(f"{count} in {records.user().path or 'no file'}, {len(listed) - len(own)} shipped")


def _forget(problems: list[Problem], device: str | None, num_sms: int | None, reduction: Reduction, yes: bool) -> None:
    from tilewright import records  # see _tuned()
    from tilewright.tuning.candidates import computed_problem

    own = {each.key: each for each in records.user().records()}
    keys, named = list(own), []
    if problems:
        target = request.preset(device) if device is not None else _present()
        computed = [computed_problem(each, target) for each in problems]
        named = [records.key_of(each, target, num_sms, reduction.value) for each in computed]
        keys = [key for key in named if key in own]
    elif own and not yes:
        count = terminal.count_text(len(own), "record", "records")
        typer.confirm(f"Forget {count} in {records.user().path}?", abort=True)
    forgotten = [records.forget(key) for key in keys]
    typer.echo(f"forgot {terminal.count_text(sum(forgotten), 'record', 'records')}")
    if shipped := sum(records.shipped().lookup(key) is not None for key in named):
        count = terminal.count_text(shipped, "shipped record counts", "shipped records count")
        leaves = f"leaves {'it' if shipped == 1 else 'them'} out"
        typer.echo(f"{count} as before; TILEWRIGHT_USE_RECORDS=0 {leaves}")
    if not all(forgotten):
        raise typer.Exit(terminal.EXIT_FAILED)


def _present() -> Any:
    """The GPU that is here, else the default preset: records are most often of one or the other."""
    from tilewright.backends.cuda import backend  # see _tuned()
    from tilewright.errors import DriverError, UnsupportedError

    try:
        return backend().device(ORDINAL)
    except (DriverError, UnsupportedError):  # another way is taken: the records of the preset
        return request.preset(None)


@contextlib.contextmanager
def _progress_bar(total: int) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """A bar on standard error; what advances it by one product, and what tells the step."""
    from rich import progress  # see terminal.console()

    columns = (
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description}", markup=False),
    )
    with progress.Progress(*columns, console=terminal.console(stderr=True)) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda: bar.advance(task), lambda text: bar.update(task, description=text)
