"""The command line: `tilewright run | emulate | show | build | tune | ladder | ceilings | bench | profile | cache |
doctor`.

Each command has its file here; terminal.py has how a refusal, a warning and a table look; request.py has the options
that name one product. The files import typer and the standard library alone at their heads, so that --help and shell
completion are fast: what a command needs beyond that is imported where the command begins.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright import __version__
from tilewright.cli import bench, build, cache, ceilings, doctor, emulate, ladder, profile, run, show, tune
from tilewright.cli.terminal import RefusingGroup, SizesCommand

app = typer.Typer(
    name="tilewright",
    cls=RefusingGroup,
    no_args_is_help=True,
    add_completion=False,  # its --install-completion would write into the user's shell profile
    pretty_exceptions_enable=False,
    help="Matrix multiplication for NVIDIA Hopper GPUs: run it, read its kernels, ship its cubins.",
)
app.command("run", cls=SizesCommand)(run.run)
app.command("emulate", cls=SizesCommand)(emulate.emulate)
app.command("show", cls=SizesCommand)(show.show)
app.command("build", cls=SizesCommand)(build.build)
app.command("tune", cls=SizesCommand)(tune.tune)
app.command("ladder")(ladder.ladder)
app.command("ceilings")(ceilings.ceilings)
app.command("bench")(bench.bench)
app.command("profile", cls=SizesCommand)(profile.profile)
app.add_typer(cache.app, name="cache")
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tilewright {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options before the command."""
