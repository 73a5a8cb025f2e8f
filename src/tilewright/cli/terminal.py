"""How the command line speaks: exit codes, refusals, warnings, tables.

Results go to standard output, everything else to standard error, so that a pipe gets results alone. Knows nothing of
what the commands do.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from tilewright.errors import TilewrightError, UnsupportedError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_FAILED = 1  # the command ran and its answer is bad: a wrong element, a device that is not usable
EXIT_REFUSED = 2  # what was asked cannot be done; the same code as typer's own usage errors

PIPE_WIDTH = 160  # columns when nobody's terminal sets them: rich's 80 would fold most tables

_NEGATIVE = re.compile(r"-\d+")


class RefusingGroup(TyperGroup):
    """The commands; a TilewrightError of any of them is one red line and exit code 2, a warning one yellow line."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except TilewrightError as error:
                typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
                raise typer.Exit(EXIT_REFUSED) from error


class SizesCommand(TyperCommand):
    """A command whose arguments are sizes: -5 is a size, which Problem refuses with its rule, not an unknown option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(_NEGATIVE.fullmatch(arg) for arg in args)
        return super().parse_args(ctx, args)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    typer.secho(f"warning: {message}", fg=typer.colors.YELLOW, err=True)


def note(text: str) -> None:
    """One line for the person at the terminal; not part of the result."""
    typer.echo(text, err=True)


def console(*, stderr: bool = False) -> Console:
    """A rich console on the stream as it is now; text is printed as it stands, never read as markup."""
    from rich.console import Console  # 40 ms that --version and plain text output do not need

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """One table on standard output; a column whose cells are all numbers is set right."""
    print_sections(title, columns, [("", list(rows))])


def print_sections(title: str, columns: Sequence[str], sections: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> None:
    """One table of several parts, each under its name, in bold, and a rule; a name that is empty is left out."""
    from rich.table import Table  # see console()

    cells = [row for _, rows in sections for row in rows]
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        is_number = bool(cells) and all(re.fullmatch(r"[-+]?[\d.,]*(e[-+]\d+)?%?", row[index]) for row in cells)
        is_label = index == 0 and len(sections) > 1
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=is_label)
    for name, rows in sections:
        table.add_section()
        if name:
            table.add_row(name, style="bold")
        for row in rows:
            table.add_row(*row)
    console().print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and values, one a line, without a frame."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        typer.echo(f"{name:<{width}}  {value}")


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, default=str))


def path_of(text: str | Path) -> Path:
    """The file or folder that an option names, or its default: the parser of every option that is one.

    Raises: typer.BadParameter: no text, which Path would take for the folder that the command runs in.
    """
    if not str(text).strip():
        raise typer.BadParameter(f"{text!r} names no file or folder; '.' is the one that the command runs in")
    return Path(text)


def check_folder(option: str, folder: Path) -> None:
    """Makes the folder that results go to: before hours of measuring, not after.

    Raises: UnsupportedError: it cannot be made, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(option, folder, error, "a folder") from error


def given(context: typer.Context) -> tuple[str, ...]:
    """The options of a command, by their long names, and arguments, by their metavars, that its line gives itself."""
    return tuple(
        next((option for option in each.opts if option.startswith("--")), each.metavar or str(each.name))
        for each in context.command.params
        if getattr(context.get_parameter_source(str(each.name)), "name", "") == "COMMANDLINE"
    )


def check_file(option: str, path: Path) -> None:
    """Makes the file that results are appended to.

    Raises: UnsupportedError: it cannot be opened for that.
    """
    try:
        path.open("a").close()
    except OSError as error:
        raise _unwritable(option, path, error, "a file in an existing folder") from error


def _unwritable(option: str, path: Path, error: OSError, what: str) -> UnsupportedError:
    return UnsupportedError(
        asked=f"{option} {path}",
        rule=f"results are written there, and it cannot be written ({error.strerror or error})",
        works=f"name {what} that you may write",
    )


def extents_of(size: str) -> tuple[int, int, int]:
    """(M, N, K) of --size N or MxNxK.

    Raises: typer.BadParameter: it is neither.
    """
    match = re.fullmatch(r"(\d{1,9})(?:x(\d{1,9})x(\d{1,9}))?", size)
    extents = [int(extent) for extent in match.groups() if extent] if match else []
    if not extents or 0 in extents:
        raise typer.BadParameter(f"{size!r} is no size such as 4096 or 4096x8192x1024", param_hint="--size")
    m, n, k = extents if len(extents) == 3 else extents * 3
    return m, n, k


def count_text(count: int, one: str, many: str) -> str:
    """A number of things, and the word for that many of them."""
    return f"{count} {one if count == 1 else many}"


def bytes_text(count: int) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def age_text(seconds: float) -> str:
    """An age in its largest whole unit."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{int(seconds // length_s)} {unit}"
    return f"{max(int(seconds), 0)} s"
