"""`tilewright profile`: what Nsight Compute counts of one kernel, beside what the emulator counts of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import request, terminal
from tilewright.cli.request import AMajor, BMajor, OutMajor, Reduction

if TYPE_CHECKING:
    from tilewright.bench.profile import Asked

DEFAULT_SIZE = "4096"


def profile(
    context: typer.Context,
    what: Annotated[list[str] | None, typer.Argument(metavar="[M N K]", help="One product; or --size.")] = None,
    size: Annotated[str | None, typer.Option("--size", metavar="N|MxNxK", help="The product; default 4096.")] = None,
    rung: Annotated[
        str | None, typer.Option("--rung", metavar="a4", help="This kernel of a ladder, not the production one.")
    ] = None,
    family: Annotated[
        str | None, typer.Option("--family", metavar="ampere", help="The Ampere kernel, on a Hopper GPU too.")
    ] = None,
    dtype: request.DTypeOption = "bf16",
    out_dtype: request.OutDTypeOption = None,
    sums: request.SumsOption = None,
    a_major: request.AMajorOption = AMajor.k,
    b_major: request.BMajorOption = BMajor.k,
    out_major: request.OutMajorOption = OutMajor.n,
    batch: request.BatchOption = None,
    contiguous: request.ContiguousOption = False,
    config: request.ConfigOption = None,
    device: request.DeviceOption = None,
    num_sms: request.NumSmsOption = None,
    reduction: request.ReductionOption = Reduction.fast,
    emulated: Annotated[bool, typer.Option("--emulated", help="The emulator's counts alone: no GPU, no ncu.")] = False,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            parser=terminal.path_of,
            help="Compare what was counted before: ncu's .csv, or a .json of --into.",
        ),
    ] = None,
    limit_s: Annotated[float, typer.Option("--limit-s", min=1.0, help="Seconds for ncu and its child.")] = 120.0,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FILE", parser=terminal.path_of, help="Write the rows there, as JSON."),
    ] = None,
) -> None:
    """Count one kernel with ncu, beside the emulator's counts of it. Exit 1 where the two disagree."""
    from tilewright.bench import profile as measurement  # plans and kernels, which --help does not need
    from tilewright.bench import profile_report

    if emulated and from_file is not None:
        raise typer.BadParameter("it goes without --from: one is the emulator alone", param_hint="--emulated")
    if into is not None:
        terminal.check_file("--into", into)
    is_rows = from_file is not None and from_file.suffix == ".json"
    given = terminal.given(context)
    if is_rows and (meaningless := [each for each in given if each not in ("--from", "--into")]):
        raise typer.BadParameter(
            f"rows say themselves what was profiled; leave out {', '.join(meaningless)}", param_hint="--from"
        )
    if "--limit-s" in given and (emulated or from_file is not None):
        raise typer.BadParameter("it is ncu's, which does not run with --emulated or --from", param_hint="--limit-s")
    if rung and family:
        raise typer.BadParameter("a rung is a kernel by itself; it goes without --family", param_hint="--rung")
    if is_rows:
        assert from_file is not None
        rows = measurement.rows_of_file(_text(from_file), from_file.name)
    else:
        m, n, k = _extents(what, size)
        asked = measurement.Asked(
            m=m,
            n=n,
            k=k,
            dtype=dtype,
            out_dtype=out_dtype,
            sums=sums,
            a_major=a_major.value,
            b_major=b_major.value,
            out_major=out_major.value,
            batch=tuple(batch or ()),
            contiguous=contiguous,
            rung=rung,
            family=family,
            config=tuple(config or ()),
            num_sms=num_sms,
            reduction=reduction.value,
        )
        rows = [_row(asked, emulated, from_file, device or request.DEFAULT_PRESET, limit_s)]
    terminal.note("counting in the emulator")
    answers = [profile_report.answered(row) for row in rows]
    if into is not None:
        facts = answers[0].get("facts") or {"device": "emulator"}
        into.write_text(json.dumps({"facts": facts, "rows": answers}, indent=1) + "\n")
    for row in answers:
        _print(row)
    if any(each["verdict"] == profile_report.DISAGREE for row in answers for each in row["compared"]):
        raise typer.Exit(terminal.EXIT_FAILED)


def _row(asked: Asked, emulated: bool, from_file: Path | None, device: str, limit_s: float) -> dict[str, Any]:
    """One row without the emulator's part."""
    from tilewright.bench import profile as measurement  # see profile()

    request.preset(device)
    if emulated:
        return measurement.emulated_row(asked, device)
    if from_file is not None:
        return measurement.row_of_csv(asked, _text(from_file), from_file.name, device)
    return measurement.profiled(asked, device, limit_s=limit_s)


def _extents(what: list[str] | None, size: str | None) -> tuple[int, int, int]:
    """Raises: typer.BadParameter: no size, or two."""
    if what and size:
        raise typer.BadParameter("it goes without M N K", param_hint="--size")
    if what:
        try:
            m, n, k = (int(word) for word in what)
        except ValueError:
            raise typer.BadParameter(f"{' '.join(what)} are not three whole numbers M N K") from None
        return m, n, k
    return terminal.extents_of(size or DEFAULT_SIZE)


def _text(path: Path) -> str:
    from tilewright.errors import UnsupportedError  # see profile()

    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:  # adds what was wanted of it
        raise UnsupportedError(
            asked=f"reading {path}", rule=str(error.strerror or error), works="name ncu's CSV or a JSON file of rows"
        ) from error


def _print(row: dict[str, Any]) -> None:
    from tilewright.bench import profile_report  # see profile()

    about = row["told"]
    typer.echo(
        f"{about['plan']}; {about['grid']} CTAs of {about['block']} threads, {about['registers']} registers each"
    )
    typer.echo(f"emulated: {row['how']}")
    if row["left_out"]:
        typer.echo(f"not carried over, since small launches differ: {', '.join(row['left_out'])}")
    if not row["counted"]:
        cells = profile_report.emulated_cells(row)
        terminal.print_table("By the emulator", profile_report.EMULATED_COLUMNS, cells)
        return
    terminal.print_table("Beside the emulator", profile_report.COLUMNS, profile_report.cells(row))
    if lines := profile_report.said_cells(row["counted"]):
        terminal.print_table("By ncu alone", profile_report.SAID_COLUMNS, lines)
    if lines := profile_report.stall_cells(row["counted"]):
        terminal.print_table("Stalls, by ncu", profile_report.STALL_COLUMNS, lines)
