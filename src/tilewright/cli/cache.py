"""`tilewright cache list | path | trim | clear`: the folder of compiled kernels."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import terminal

if TYPE_CHECKING:
    from tilewright.jit.cache import Cache

app = typer.Typer(
    invoke_without_command=True, help="The folder of compiled kernels: list it, find it, trim it, empty it."
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.callback()
def cache(context: typer.Context) -> None:
    """Lists the entries when no command is named."""
    if context.invoked_subcommand is None:
        list_entries()


@app.command("list")
def list_entries(as_json: JsonOption = False) -> None:
    """List the entries, the newest first, with size and age."""
    folder = _user_cache()
    entries = sorted(folder.entries(), key=lambda entry: entry.created_seconds, reverse=True)
    if as_json:
        listed = [dataclasses.asdict(entry) for entry in entries]
        terminal.print_json({"folder": _path(folder), "total_bytes": folder.total_bytes(), "entries": listed})
        return
    now = time.time()
    rows = [
        (
            entry.name,
            entry.arch,
            entry.compiler,
            terminal.bytes_text(entry.size_bytes),
            terminal.age_text(now - entry.created_seconds),
            entry.key[:12],
        )
        for entry in entries
    ]
    if rows:
        terminal.print_table("", ("kernel", "target", "compiler", "size", "age", "key"), rows)
    size = terminal.bytes_text(folder.total_bytes())
    typer.echo(f"{_entries(len(entries))}, {size} in {_path(folder) or 'no folder'}")


@app.command("path")
def path() -> None:
    """Print the folder, and nothing when this user has none."""
    typer.echo(_path(_user_cache()) or "")


@app.command("trim")
def trim(
    max_mib: Annotated[float | None, typer.Option(min=0.0, help="Keep at most so many MiB.")] = None,
    max_days: Annotated[float | None, typer.Option(min=0.0, help="Keep nothing older.")] = None,
) -> None:
    """Remove the oldest entries until the rest is small and young enough."""
    removed = _user_cache().trim(
        max_bytes=None if max_mib is None else int(max_mib * 2**20),
        max_age_seconds=None if max_days is None else max_days * 86400,
    )
    typer.echo(f"removed {_entries(removed)}")


@app.command("clear")
def clear(yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Remove every entry; other files in the folder stay."""
    folder = _user_cache()
    size_bytes, count = folder.total_bytes(), len(folder.entries())
    if count and not yes:
        typer.confirm(f"Remove {_entries(count)} ({terminal.bytes_text(size_bytes)}) from {_path(folder)}?", abort=True)
    removed = folder.clear()
    left = len(folder.entries())
    typer.echo(f"removed {_entries(removed - left)}")
    if left:
        terminal.note(f"{_entries(left)} could not be removed from {_path(folder)}: it cannot be written")
        raise typer.Exit(terminal.EXIT_FAILED)


def _entries(count: int) -> str:
    return terminal.count_text(count, "entry", "entries")


def _user_cache() -> Cache:
    from tilewright.jit.cache import user_cache  # hashing and JSON, which --help does not need

    return user_cache()


def _path(folder: Cache) -> str | None:
    return None if folder.root is None else str(folder.root)
