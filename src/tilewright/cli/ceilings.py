"""`tilewright ceilings`: what wgmma, mma.sync, reads, copies and empty launches reach alone on the very card.

With no GPU the same kernels run in the emulator, at a small size: their sums and bytes are checked in place of times.
`tilewright ladder --ceilings` measures them in the same run as the rungs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import terminal

Rows = list[dict[str, Any]]


def ceilings(
    dtypes: Annotated[
        str, typer.Option("--dtypes", metavar="bf16,fp16", help="The types whose loops are timed, 30 s each.")
    ] = "bf16,fp16",
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Samples of each steady time; default 3.")
    ] = None,
    emulate: Annotated[bool, typer.Option("--emulate", help="Use the emulator, even where a GPU is.")] = False,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", parser=terminal.path_of, help="Write the rows and the table there."),
    ] = None,
) -> None:
    """Measure what this card does at most: tensor cores, memory, launches."""
    from tilewright.dtypes import by_name_of_16_bits  # NumPy, which --help does not need

    names = [by_name_of_16_bits(name).name for name in dtypes.split(",")]
    if into is not None:
        terminal.check_folder("--into", into)
    reason = "--emulate" if emulate else why_no_gpu()
    rows = rows_here(reason, names, rounds)
    show(rows, {"device": "emulator"} if reason else facts_here(rows), into)
    if any(row["status"] != "ok" for row in rows):
        raise typer.Exit(terminal.EXIT_FAILED)


def why_no_gpu() -> str:
    """The reason why Hopper's kernels cannot run on a GPU here; empty when they can."""
    from tilewright.backends.cuda import backend  # the driver bindings
    from tilewright.errors import DriverError, UnsupportedError
    from tilewright.kernels.catalog import check_supported

    try:
        check_supported(backend().device(0), sms=((9, 0),))
    except (DriverError, UnsupportedError) as error:  # another way is taken: the emulator, which says why
        return str(error)
    return ""


def rows_here(reason: str, names: Sequence[str], rounds: int | None) -> Rows:
    """The rows of these types' loops, of memory and launches: measured, or with a reason against it emulated."""
    if reason:
        from tilewright.bench.ceiling_trials import emulated_rows  # the emulator

        terminal.note(f"ceilings in the emulator: {reason}")
        return list(emulated_rows(names))
    from tilewright.bench import ceilings as measurement

    with terminal.console(stderr=True).status("measuring the ceilings of this card"):
        return measurement.measure(names, rounds)


def facts_here(rows: Rows) -> dict[str, Any]:
    """What a file of measured rows says of the machine and of the command."""
    from tilewright.backends.cuda import backend  # see why_no_gpu()
    from tilewright.bench.facts import facts

    compilers = sorted({row["compiler"] for row in rows if row.get("compiler")})
    command = " ".join(["tilewright", *sys.argv[1:]])
    return facts(backend()) | {"compiler": ", ".join(compilers), "command": command}


def show(rows: Rows, facts: dict[str, Any], into: Path | None) -> None:
    """The table, and with a folder ceilings.json and ceilings.md in it."""
    from tilewright.bench.ceiling_report import COLUMNS, cells
    from tilewright.bench.ladder_report import markdown, write_document

    lines = cells(rows)
    terminal.print_table(f"ceilings, {facts['device']}", COLUMNS, lines)
    if into is not None:
        paths = write_document(rows, facts, markdown(COLUMNS, lines), into, "ceilings")
        terminal.note(f"wrote {', '.join(map(str, paths))}")
