"""`tilewright run M N K`: the main job, from sizes to a checked and timed product.

Plans and compiles anywhere. Where a GPU can run the kernel it runs, all of it is checked, and cuBLAS is timed beside it
when torch is there. Elsewhere the same PTX runs in the emulator when that takes seconds, and all of it is checked; when
it would take longer, the answer says that nothing was executed, and what size would be.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import request, terminal
from tilewright.cli.emulate import (
    ChecksOption,
    Emulation,
    ForceOption,
    check_into,
    document,
    print_mix,
    print_verdict,
    progress_bar,
    seconds_of,
    title,
)
from tilewright.cli.request import AMajor, BMajor, OutMajor, Reduction
from tilewright.cli.show import resource_facts

if TYPE_CHECKING:
    from tilewright.check import Check
    from tilewright.device import Device
    from tilewright.plan import Plan
    from tilewright.problem import Problem
    from tilewright.timing import Mode

ORDINAL = 0  # the first GPU that CUDA_VISIBLE_DEVICES leaves
SHOWN_FAMILIES = 8  # of instructions; `tilewright emulate` shows all


@dataclass
class Answer:
    """What a run found out.

    `reason`: why no GPU executed it; `emulation`: what the emulator said then, if it was asked; `unasked`: why it was
    not; `untimed`: why nothing was timed.
    """

    plan: Plan
    reason: str = ""
    emulation: Emulation | None = None
    unasked: str = ""
    untimed: str = ""
    checks: dict[str, Check] = field(default_factory=dict)
    times: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether no check failed; so also when there was none."""
        emulated_well = self.emulation is None or self.emulation.is_right
        return emulated_well and all(check.ok for check in self.checks.values())

    @property
    def executor(self) -> str | None:
        """Who executed it: "gpu", "emulator" or nobody."""
        if not self.reason:
            return "gpu"
        return None if self.emulation is None else "emulator"


def run(
    m: request.M,
    n: request.N,
    k: request.K,
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
    steady: Annotated[bool, typer.Option("--steady", help="Time under sustained load too: 20 s more.")] = False,
    emulate: Annotated[
        bool | None,
        typer.Option(
            "--emulate/--no-emulate",
            help="Use the emulator even where a GPU is; or never. Default: where none can run.",
        ),
    ] = None,
    checks: ChecksOption = True,
    force: ForceOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Multiply: plan, compile, run, check against float64 and time against cuBLAS."""
    target, reason = _target(device)
    if emulate and not reason:
        reason = "--emulate was given"
    problem = request.problem(
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
    )
    plan = request.plan(problem, target, config=config, num_sms=num_sms, reduction=reduction)
    answer = Answer(plan, reason)
    plan.binary  # noqa: B018  compiles: the answer on a machine without a GPU, and not part of any time below
    if reason:
        _emulate(answer, wanted=emulate is not False, checks=checks, force=force)
    else:
        try:
            _execute(answer, num_sms, steady)
        except (MemoryError, RuntimeError) as error:
            if not _ran_out_of_memory(error):
                raise
            raise _too_large(problem) from error
    if as_json:
        terminal.print_json(_document(answer))
    else:
        _print(answer, checked=checks)
    if not answer.is_right:
        raise typer.Exit(terminal.EXIT_FAILED)


def _target(name: str | None) -> tuple[Device, str]:
    """The device to plan for, and why nothing can be executed on it; no reason means that it is present and served."""
    from tilewright.backends.cuda import backend  # the driver bindings, which --help does not need
    from tilewright.errors import DriverError, UnsupportedError
    from tilewright.kernels.catalog import check_supported

    preset = request.preset(name)
    if name is not None:
        return preset, f"--device asks for {preset.name}, which is not looked for here"
    try:
        present = backend().device(ORDINAL)
        check_supported(present)
    except (DriverError, UnsupportedError) as error:  # another way is taken: compile for the preset, say why
        return preset, str(error)
    return present, ""


def _execute(answer: Answer, num_sms: int | None, steady: bool) -> None:
    """Runs and checks the product, then times it."""
    from tilewright.bench.verify import has_torch, verify  # may import torch: seconds

    problem, config = answer.plan.problem, answer.plan.config
    terminal.note(f"checking {problem} on {answer.plan.device} ...")
    answer.checks = {
        "random against float64": verify(problem, config=config, num_sms=num_sms, kind="normal"),
        "whole numbers, exact": verify(problem, config=config, num_sms=num_sms, kind="integer"),
    }
    if not has_torch():
        answer.untimed = "torch with CUDA is not installed: only a sample of rows was checked, and nothing was timed"
        return
    if not answer.is_right:
        answer.untimed = "the product is wrong: a time would mean nothing"
        return
    from tilewright.bench.compare import compare  # torch itself

    modes: tuple[Mode, ...] = ("burst", "interleaved", "steady") if steady else ("burst", "interleaved")
    terminal.note(f"timing against cuBLAS ({', '.join(modes)}) ...")
    beside = () if answer.plan.reduction == "fast" else (None,)  # what it costs: matmul's own choice
    answer.times = compare(problem, modes=modes, configs=(config, *beside), num_sms=num_sms)


def _emulate(answer: Answer, *, wanted: bool, checks: bool, force: bool) -> None:
    """Runs and checks the product in the emulator, twice: whole numbers with the checks, then a normal distribution."""
    from tilewright.backends.emulated import emulated  # plans and kernels, which --help does not need
    from tilewright.emulated_time import LIMIT_S, affordable, duration_text

    plan = answer.plan
    if not wanted:
        answer.unasked = "--no-emulate was given"
        return
    seconds = seconds_of(plan, checks=checks) + seconds_of(plan, checks=False)
    if seconds > LIMIT_S and not force:
        smaller = affordable(
            plan.problem, lambda each: plan.emulated_s(each, checks=checks) + plan.emulated_s(each), LIMIT_S
        )
        sizes = "" if smaller is None else f"try {smaller.m} {smaller.n} {smaller.k}, or "
        answer.unasked = (
            f"the emulator would take about {duration_text(seconds)}, and {duration_text(LIMIT_S)} are the limit; "
            f"{sizes}allow it with --force"
        )
        return
    answer.emulation = Emulation(title(plan), plan.problem.min_bytes)
    with progress_bar(2 * plan.launch.grid) as advance:
        runs = (("whole numbers, exact", "integer", checks), ("random against float64", "normal", False))
        for name, kind, with_checks in runs:
            backend = emulated(plan.device, checks=with_checks, progress=advance)
            check_into(answer.emulation, plan, backend, name, kind)
            if not answer.emulation.is_right:
                return


def _ran_out_of_memory(error: Exception) -> bool:
    """By name: torch's class is known only where torch may be imported."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _too_large(problem: Problem) -> Exception:
    from tilewright.errors import UnsupportedError  # see _target()

    return UnsupportedError(
        asked=f"running {problem}",
        rule=f"operands of {terminal.bytes_text(problem.min_bytes)} and their float64 reference do not fit in memory",
        works="give smaller sizes, or --device to compile only",
    )


def _print(answer: Answer, *, checked: bool) -> None:
    typer.echo(str(answer.plan.explain()))
    typer.echo("")
    terminal.print_facts(resource_facts(answer.plan.binary))
    typer.echo("")
    if answer.emulation is not None:
        typer.secho(f"executed in the emulator, the PTX above on this CPU: {answer.reason}", fg=typer.colors.YELLOW)
        print_verdict(answer.emulation, checked=checked)
        if answer.emulation.report is not None:
            print_mix(answer.emulation.report, SHOWN_FAMILIES)
        typer.echo(f"{answer.emulation.seconds:.1f} s of emulation, which say nothing of a GPU's time")
        return
    if answer.reason:
        typer.secho(f"compiled; nothing was executed: {answer.reason}; {answer.unasked}", fg=typer.colors.YELLOW)
        return
    for name, check in answer.checks.items():
        typer.secho(f"{name}: {check}", fg=typer.colors.GREEN if check.ok else typer.colors.RED)
    if answer.times:
        terminal.print_table("", TIME_COLUMNS, [_time_cells(row) for row in answer.times])
    if answer.untimed:
        typer.secho(f"not timed: {answer.untimed}", fg=typer.colors.YELLOW)


TIME_COLUMNS = ("time", "who", "us", "spread", "TFLOPS", "over cuBLAS", "W", "MHz")


def _time_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One row of bench.compare as cells."""
    ratio, watts, clock = row["ratio"], row["watts"], row["clock_mhz"]
    return (
        row["mode"],
        row["candidate"],
        f"{row['median_us']:.1f}",
        f"{row['spread']:.1%}",
        f"{row['rate_tflops']:.0f}",
        "" if ratio is None else f"{ratio:.3f}",
        "" if watts is None else f"{watts:.0f}",
        "" if clock is None else f"{clock:.0f}",
    )


def _document(answer: Answer) -> dict[str, Any]:
    """The answer as JSON. Without a GPU there is a reason and no time; `executed` says whether the emulator ran it."""
    plan, binary = answer.plan, answer.plan.binary
    checks = answer.checks if answer.emulation is None else answer.emulation.checks
    return {
        "problem": str(plan.problem),
        "m": plan.problem.m,
        "n": plan.problem.n,
        "k": plan.problem.k,
        "device": str(plan.device),
        "family": plan.family.name,
        "config": dataclasses.asdict(plan.config),
        "why": plan.why,
        "reduction": plan.reduction,
        "record": None if plan.record is None else dataclasses.asdict(plan.record),
        "prediction": dataclasses.asdict(plan.prediction),
        "binary": {
            "name": binary.name,
            "arch": binary.arch,
            "compiler": binary.compiler,
            "from_cache": binary.from_cache,
            "compile_seconds": binary.compile_seconds,
            "cubin_bytes": len(binary.cubin),
            **dataclasses.asdict(binary.resources),
            "warnings": list(binary.warnings),
        },
        "executed": answer.executor is not None,
        "executor": answer.executor,
        "reason": "; ".join(filter(None, (answer.reason, answer.unasked))) or None,
        "checks": {name: {"ok": check.ok, **dataclasses.asdict(check)} for name, check in checks.items()},
        "emulation": None if answer.emulation is None else document(answer.emulation),
        "times": answer.times,
        "untimed": answer.untimed or None,
    }
