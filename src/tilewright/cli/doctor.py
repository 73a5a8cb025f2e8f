"""`tilewright doctor`: what this machine can do, and what to do about each thing that it cannot."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import terminal

if TYPE_CHECKING:
    from tilewright.doctor import Report


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Fail when no GPU here can run the kernels.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Examine driver, GPUs, compiler, packages, cache and settings; exit 0 when kernels can be compiled."""
    from tilewright.doctor import examine  # loads the compiler, which --help does not need

    report = examine()
    if as_json:
        terminal.print_json(dataclasses.asdict(report))
    else:
        _print(report)
    if not report.can_compile or (strict and not report.can_run):
        raise typer.Exit(terminal.EXIT_FAILED)


def _print(report: Report) -> None:
    terminal.print_table(
        "", ("what", "state", "found", "what to do"), [(f.topic, f.state, f.value, f.advice) for f in report.findings]
    )
    terminal.print_table(
        "Settings",
        ("variable", "value", "default", "meaning"),
        [(row.name, row.value, row.default, row.meaning) for row in report.settings],
    )
    typer.echo(f"compiles kernels: {_word(report.can_compile)}; runs them: {_word(report.can_run)}")


def _word(is_so: bool) -> str:
    return "yes" if is_so else "no"
