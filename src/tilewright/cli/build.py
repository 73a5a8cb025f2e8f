"""`tilewright build M N K | SUITE --into DIR`: a folder of cubins for machines that have no compiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import request, terminal
from tilewright.cli.request import AMajor, BMajor, OutMajor, Reduction

if TYPE_CHECKING:
    from tilewright.jit.source import Binary, Source

Sizes = tuple[int, int, int]


def build(
    what: Annotated[
        list[str], typer.Argument(metavar="M N K | SUITE", help="One product, a group of the suite, or all of it.")
    ],
    into: Annotated[
        Path,
        typer.Option("--into", metavar="DIR", parser=terminal.path_of, help="Folder of the cubins; made when absent."),
    ],
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Compiles at the same time.")] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compile the kernels of some products into a folder that TILEWRIGHT_PREBUILT serves, with no GPU needed."""
    from tilewright.jit.build import source_digest_of  # loads the compiler's rooms, which --help does not need

    shapes = sizes_of(what)
    target = request.preset(device)
    sources: dict[str, Source] = {}
    for m, n, k in shapes:
        plan = request.plan(
            request.problem(
                m,
                n,
                k,
                dtype=dtype,
                out_dtype=out_dtype,
                sums=sums,
                a_major=a_major,
                b_major=b_major,
                out_major=out_major,
                batch=batch,
                contiguous=contiguous,
            ),
            target,
            config=config,
            num_sms=num_sms,
            reduction=reduction,
        )
        for source in plan.sources:
            sources[source_digest_of(source)] = source  # sizes are run-time values: many products share a kernel
    binaries = compile_into(list(sources.values()), into, threads)
    size_bytes = sum(len(binary.cubin) for binary in binaries)
    if as_json:
        rows = [{"name": b.name, "arch": b.arch, "compiler": b.compiler, "cubin_bytes": len(b.cubin)} for b in binaries]
        terminal.print_json({"folder": str(into.absolute()), "products": len(shapes), "kernels": rows})
        return
    typer.echo(
        f"{terminal.count_text(len(shapes), 'product', 'products')}, "
        f"{terminal.count_text(len(binaries), 'distinct kernel', 'distinct kernels')}, "
        f"{terminal.bytes_text(size_bytes)} of cubins for {target} in {into}"
    )
    typer.echo(f"serve them with TILEWRIGHT_PREBUILT={into.absolute()}")


def sizes_of(words: list[str]) -> list[Sizes]:
    """The (M, N, K) that the arguments name.

    Raises: typer.BadParameter: neither three whole numbers nor the name of a group.
    """
    from tilewright.bench import suite  # the table of shapes, which --help does not need

    if len(words) == 3:
        try:
            m, n, k = (int(word) for word in words)
        except ValueError:
            raise typer.BadParameter(f"{' '.join(words)} are not three whole numbers M N K") from None
        return [(m, n, k)]
    if len(words) == 1 and words[0] == "all":
        return list(suite.shapes())
    if len(words) == 1 and words[0] in suite.GROUPS:
        return list(suite.GROUPS[words[0]])
    raise typer.BadParameter(f"{' '.join(words)!r} is neither M N K nor one of all, {', '.join(suite.GROUPS)}")


def compile_into(sources: list[Source], into: Path, threads: int | None) -> list[Binary]:
    """The kernels, written to the folder, with a progress bar on standard error."""
    from rich import progress  # see terminal.console()

    from tilewright.jit.build import build_into

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=terminal.console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=len(sources))

        def advance(done: int, total: int, binary: Binary) -> None:
            bar.update(task, completed=done, description=binary.name)

        return build_into(sources, into, threads, advance, refuse=True)
