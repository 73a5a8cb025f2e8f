"""`tilewright show M N K`: one kernel opened up, from the choice of its config to its machine code. Needs no GPU."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import request, terminal
from tilewright.cli.request import AMajor, BMajor, OutMajor, Reduction

if TYPE_CHECKING:
    from tilewright.jit.source import Binary, Source
    from tilewright.plan import Plan

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)".*$', re.MULTILINE)


class What(StrEnum):
    """The layer to show, from the choice down to the machine."""

    explain = "explain"
    config = "config"
    header = "header"
    source = "source"
    ptx = "ptx"
    sass = "sass"
    resources = "resources"


def show(
    m: request.M,
    n: request.N,
    k: request.K,
    what: Annotated[What, typer.Option("--what", help="The layer to show.")] = What.explain,
    instructions: Annotated[
        bool, typer.Option("--instructions", help="With --what sass: a table of opcodes in place of the text.")
    ] = False,
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
) -> None:
    """Print the source, PTX, SASS, resources, config or explanation of the kernel for one product."""
    if instructions and what is not What.sass:
        raise typer.BadParameter(
            f"it counts opcodes of SASS, not of {what.value}; add --what sass", param_hint="--instructions"
        )
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
        request.preset(device),
        config=config,
        num_sms=num_sms,
        reduction=reduction,
    )
    match what:
        case What.explain:
            typer.echo(str(plan.explain()))
        case What.config:
            typer.echo("\n".join(plan.config.words()))
        case What.header:
            typer.echo(rendered_header(source_of(plan)))
        case What.source:
            typer.echo(flattened(source_of(plan)))
        case What.ptx:
            typer.echo(plan.binary.ptx)
        case What.sass:
            _show_sass(plan, instructions)
        case What.resources:
            terminal.print_facts(resource_facts(plan.binary))


def source_of(plan: Plan) -> Source:
    """The unit of the plan's kernel with all that it includes."""
    from tilewright.kernels.render import render  # the kernels' text, which --help does not need

    return render(plan.family, plan.problem, plan.config, plan.device)


def rendered_header(source: Source) -> str:
    """The header that was made for this kernel alone: the constants of its config, its wgmma wrapper."""
    return dict(source.headers)["config.cuh"]


def flattened(source: Source) -> str:
    """The unit as one text: each header stands where it is first included, once, between marks that name it."""
    headers = dict(source.headers)
    seen: set[str] = set()

    def inline(match: re.Match[str]) -> str:
        path = match.group(1)
        if path in seen:
            return f"// {path}: above"
        seen.add(path)
        body = _INCLUDE.sub(inline, headers[path]).replace("#pragma once", "").strip()
        return f"// ==== {path} ====\n{body}\n// ==== end of {path} ===="

    return _INCLUDE.sub(inline, source.text)


def resource_facts(binary: Binary) -> list[tuple[str, str]]:
    """What ptxas reported of a kernel, as names and values."""
    found = binary.resources
    return [
        ("registers", f"{found.registers} a thread"),
        ("spills", f"{found.spill_store_bytes} bytes stored, {found.spill_load_bytes} bytes loaded"),
        ("stack", f"{found.stack_bytes} bytes"),
        ("static shared memory", f"{found.smem_bytes} bytes"),
        ("barriers", f"{found.barriers}"),
        ("warnings", "; ".join(binary.warnings) or "none (no serialised wgmma)"),
        ("cubin", f"{terminal.bytes_text(len(binary.cubin))} for {binary.arch}, {binary.compiler}"),
        ("compiled", "earlier; read from a cache" if binary.from_cache else f"in {binary.compile_seconds:.2f} s"),
    ]


def _show_sass(plan: Plan, instructions: bool) -> None:
    from tilewright import disassemble  # starts a child process; only this layer needs it

    text = disassemble.sass(plan.binary.cubin)
    if instructions:
        rows = [(name, str(count)) for name, count in disassemble.opcodes(text).items()]
        terminal.print_table("", ("opcode", "instructions"), rows)
    else:
        typer.echo(text)
