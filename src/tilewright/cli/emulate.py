"""`tilewright emulate M N K | FILE`: one kernel in the emulator, its rules checked and its work counted.

Serves the project's kernels and anybody's .ptx or .cu with a launch description (backends/emulated_file.py says what is
in one).
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import request, terminal
from tilewright.cli.request import AMajor, BMajor, OutMajor, Reduction

if TYPE_CHECKING:
    from tilewright.backends.emulated import EmulatedBackend, Finding, Report
    from tilewright.check import Check
    from tilewright.errors import EmulationError
    from tilewright.plan import Plan

ARCH = "sm_90a"  # what a .cu file is compiled for

# Rules of an EmulationError that speak of what was asked, not of what the kernel did.
_REFUSALS = frozenset({"launch", "parameters", "syntax", "unsupported", "missing entry", "buffer"})
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_ENTRY = re.compile(r'extern\s+"C"[^;{(]*?__global__\s+void(?:\s+__\w+__\s*\((?:[^()]|\([^()]*\))*\))*\s+(\w+)\s*\(')


class Schedule(StrEnum):
    """When asynchronous work takes effect."""

    lazy = "lazy"
    eager = "eager"
    random = "random"


class Width(StrEnum):
    """How many threads run as one vector."""

    warp = "warp"
    warpgroup = "warpgroup"
    cta = "cta"
    grid = "grid"


ChecksOption = Annotated[
    bool, typer.Option("--checks/--no-checks", help="Look for races, missing fences and waits; three times as long.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Emulate however long it takes.")]


@dataclass
class Emulation:
    """What a run in the emulator found out. `stopped`: the error that ended it, if one did."""

    title: str
    fewest_bytes: int
    checks: dict[str, Check] = field(default_factory=dict)
    report: Report | None = None
    findings: tuple[Finding, ...] = ()
    stopped: EmulationError | None = None
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether the kernel broke no rule and no number is wrong."""
        return self.stopped is None and not self.findings and all(check.ok for check in self.checks.values())


def emulate(
    what: Annotated[
        list[str], typer.Argument(metavar="M N K | FILE", help="One product, or a .ptx or .cu file with --launch.")
    ],
    launch: Annotated[
        Path | None,
        typer.Option(
            "--launch", metavar="FILE.toml", parser=terminal.path_of, help="How FILE is launched: docs/emulator.md."
        ),
    ] = None,
    rung: Annotated[
        str | None, typer.Option("--rung", metavar="v04", help="This kernel of the ladder, not the production one.")
    ] = None,
    schedule: Annotated[
        Schedule, typer.Option("--schedule", help="When copies and wgmmas take effect.")
    ] = Schedule.lazy,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of --schedule random.")] = 0,
    width: Annotated[Width | None, typer.Option("--width", help="Threads of a vector; default: the widest.")] = None,
    checks: ChecksOption = True,
    banks: Annotated[bool, typer.Option("--banks/--no-banks", help="Count bank conflicts.")] = True,
    max_blocks: Annotated[
        int | None, typer.Option("--max-blocks", min=1, help="Blocks of instructions without progress: endless.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="DIR", parser=terminal.path_of, help="Write FILE's buffers there afterwards, as .npy."
        ),
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
    force: ForceOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a kernel's PTX on this CPU: findings, bank conflicts, bytes moved, instructions. Exit 1 if it is wrong."""
    choices: dict[str, Any] = {
        "checks": checks,
        "schedule": schedule.value,
        "seed": seed,
        "width": None if width is None else width.value,
        "banks": banks,
    }
    if max_blocks is not None:
        choices["max_blocks"] = max_blocks
    if launch is not None or len(what) == 1:
        answer = _file(what, launch, save, choices)
    else:
        from tilewright.cli.build import sizes_of

        if save is not None:
            raise typer.BadParameter("it goes with FILE and --launch", param_hint="--save")

        ((m, n, k),) = sizes_of(what)
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
        target = request.preset(device)
        if rung is None:
            plan = request.plan(problem, target, config=config, num_sms=num_sms, reduction=reduction)
        else:
            plan = _rung_plan(rung, problem, target, config, num_sms)
        answer = _product(plan, choices, force)
    if as_json:
        terminal.print_json(document(answer) | {"choices": choices})
    else:
        _print(answer, choices)
    if not answer.is_right:
        raise typer.Exit(terminal.EXIT_FAILED)


# -- products ----------------------------------------------------------------------------------------------------------


def _rung_plan(name: str, problem: Any, target: Any, config: list[str] | None, num_sms: int | None) -> Plan:
    from tilewright.backends.emulated import emulated  # plans and kernels, which --help does not need
    from tilewright.bench.ladder import PRODUCTION, named, rung_plan
    from tilewright.config import changes_from

    if named(name) == (PRODUCTION,):
        return request.plan(problem, target, config=config, num_sms=num_sms)
    changes = changes_from(config or ())
    return rung_plan(name, problem, target, lambda: emulated(target), changes=changes, num_sms=num_sms)


def _product(plan: Plan, choices: dict[str, Any], force: bool) -> Emulation:
    from tilewright.backends.emulated import emulated  # see _rung_plan()
    from tilewright.emulated_time import LIMIT_S, affordable, too_long

    seconds = seconds_of(plan, checks=choices["checks"])
    if seconds > LIMIT_S and not force:
        smaller = affordable(plan.problem, lambda each: plan.emulated_s(each, checks=choices["checks"]), LIMIT_S)
        raise too_long(plan.problem, seconds, LIMIT_S, smaller, "--force")
    backend = emulated(plan.device, **choices)
    answer = Emulation(title(plan), plan.problem.min_bytes)
    with progress_bar(plan.launch.grid) as advance:
        backend.progress = advance
        check_into(answer, plan, backend, "whole numbers, exact", "integer")
    return answer


def seconds_of(plan: Plan, *, checks: bool) -> float:
    """Seconds that the plan's kernel takes in the emulator."""
    from tilewright.emulated_time import emulated_s  # see _rung_plan()

    return emulated_s(plan.problem, plan.config, plan.launch, family=plan.family.name, checks=checks)


def title(plan: Plan) -> str:
    """What is emulated, in one line."""
    launch = plan.launch
    clusters = f", clusters of {launch.cluster}" if launch.cluster > 1 else ""
    steps = [step.name for step in plan.work.steps]
    launches = f"; {len(steps)} launches: {', '.join(steps)}" if len(steps) > 1 else ""
    return f"{plan}; {launch.grid} CTAs of {launch.block} threads{clusters}{launches}"


def check_into(answer: Emulation, plan: Plan, backend: EmulatedBackend, name: str, kind: Any) -> None:
    """One run of the plan with operands of this kind, noted in the answer under this name."""
    from tilewright.bench.emulated import run_plan  # see _rung_plan()
    from tilewright.errors import EmulationError

    started = time.perf_counter()
    try:
        answer.checks[name], answer.report = run_plan(plan, backend, kind=kind)
    except EmulationError as error:  # the finding is the answer
        answer.stopped = error if backend.report is None else None
        answer.findings = backend.findings
        answer.report = backend.report or answer.report
    answer.seconds += time.perf_counter() - started


@contextmanager
def progress_bar(total: int | None) -> Iterator[Callable[[int, int], None]]:
    """A bar of CTAs on a terminal while they run; gives the function to tell of (done, in all) of each launch.

    `total` of all launches; None: one launch, which says itself how many they are.
    """
    from rich import progress  # see terminal.console()

    columns = (
        progress.TextColumn("emulating"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("CTAs"),
        progress.TimeElapsedColumn(),
    )
    console = terminal.console(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        last = 0

        def advance(done: int, in_all: int) -> None:
            nonlocal last
            if total is None:
                bar.update(task, total=in_all)
            bar.advance(task, done - (last if done > last else 0))  # fewer than before: another launch has begun
            last = done

        yield advance


# -- files -------------------------------------------------------------------------------------------------------------


def _file(what: list[str], launch: Path | None, save: Path | None, choices: dict[str, Any]) -> Emulation:
    from tilewright.backends import emulated_file  # see _rung_plan()
    from tilewright.errors import EmulationError

    if len(what) != 1 or launch is None or not what[0].endswith((".ptx", ".cu")):
        raise typer.BadParameter("give M N K, or one .ptx or .cu file and --launch FILE.toml")
    if save is not None:
        terminal.check_folder("--save", save)
    path = Path(what[0])
    described = emulated_file.read(launch)
    ptx = _text(path) if path.suffix == ".ptx" else _compiled(path, described.entry)
    answer = Emulation(f"{path} as {launch} launches it", described.num_bytes)
    started = time.perf_counter()
    with progress_bar(None) as advance:
        try:
            answer.report = described.run(ptx, progress=advance, **choices)
            answer.findings = answer.report.findings
        except EmulationError as error:
            if error.rule in _REFUSALS:
                raise
            answer.stopped = error
            answer.findings = tuple(error.findings)  # type: ignore[arg-type]
    answer.seconds = time.perf_counter() - started
    if save is not None:
        for written in emulated_file.save(save, described.buffers):
            terminal.note(f"wrote {written}")
    return answer


def _text(path: Path) -> str:
    from tilewright.errors import UnsupportedError  # see _rung_plan()

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # adds what was wanted of it
        raise UnsupportedError(asked=f"reading {path}", rule=str(error), works="name a text file") from error


def _compiled(path: Path, entry: str) -> str:
    """PTX of a .cu file, whose own lines its findings name."""
    from tilewright.errors import UnsupportedError  # see _rung_plan()
    from tilewright.jit.build import build
    from tilewright.jit.source import Source

    text = _text(path)
    if not entry:
        found = _ENTRY.findall(text)
        if len(found) != 1:
            raise UnsupportedError(
                asked=f"the kernel of {path}",
                rule=f'one extern "C" __global__ function was looked for, found: {", ".join(found) or "none"}',
                works='declare it extern "C", one a file, or name it in the launch file: entry = ...',
            )
        (entry,) = found
    headers = tuple(sorted(_headers(path.parent, text).items()))
    return build(Source(path.stem, f'#line 1 "{path.name}"\n{text}', headers, entry, ARCH)).ptx


def _headers(folder: Path, text: str) -> dict[str, str]:
    """Every file that the text includes in quotes, by the path as spelled: relative to the unit's folder."""
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(text)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _text(folder / name)
            waiting += _INCLUDE.findall(found[name])
    return found


# -- the answer --------------------------------------------------------------------------------------------------------


def document(answer: Emulation) -> dict[str, Any]:
    """The answer as JSON."""
    from tilewright.bench import emulated  # see _rung_plan()

    return {
        "what": answer.title,
        "right": answer.is_right,
        "stopped": None if answer.stopped is None else str(answer.stopped),
        "rule": None if answer.stopped is None else answer.stopped.rule,
        "checks": {name: {"ok": check.ok, **dataclasses.asdict(check)} for name, check in answer.checks.items()},
        "seconds": answer.seconds,
        **emulated.document(answer.report, answer.findings, answer.fewest_bytes),
    }


def _print(answer: Emulation, choices: dict[str, Any]) -> None:
    from tilewright.bench import emulated  # see _rung_plan()

    width = f", vectors of one {answer.report.width}" if answer.report is not None else ""
    order = f"random (seed {choices['seed']})" if choices["schedule"] == "random" else choices["schedule"]
    typer.echo(f"{answer.title}\nschedule {order}{width}, {answer.seconds:.2f} s on this CPU")
    print_verdict(answer, checked=choices["checks"])
    report = answer.report
    if report is None:
        return
    if rows := emulated.bank_rows(report):
        terminal.print_table("Bank conflicts, counted", emulated.BANK_COLUMNS, rows)
    if rows := emulated.pattern_rows(report):
        terminal.print_table("Shared memory of TMA and wgmma, by rule", emulated.PATTERN_COLUMNS, rows)
    facts = emulated.work_facts(report, answer.fewest_bytes)
    terminal.print_table("Work", emulated.FACT_COLUMNS, [(name, _number(value)) for name, value in facts.items()])
    print_mix(report)


def print_verdict(answer: Emulation, *, checked: bool) -> None:
    """Numbers and findings."""
    from tilewright.bench import emulated  # see _rung_plan()

    for name, check in answer.checks.items():
        typer.secho(f"{name}: {check}", fg=typer.colors.GREEN if check.ok else typer.colors.RED)
    if answer.stopped is not None:
        typer.secho(f"stopped by the rule {answer.stopped.rule!r}: {answer.stopped.finding}", fg=typer.colors.RED)
        where = ", ".join(filter(None, (answer.stopped.source, f"PTX line {answer.stopped.line}")))
        typer.secho(f"  at {where}", fg=typer.colors.RED)
    if answer.findings:
        terminal.print_table("Findings", emulated.FINDING_COLUMNS, emulated.finding_rows(answer.findings))
    elif answer.stopped is None:
        typer.echo("findings: none" if checked else "findings: not looked for (--no-checks)")


def print_mix(report: Report, longest: int = 1000) -> None:
    """Warp instructions by family, the `longest` most frequent one by one."""
    from tilewright.bench import emulated  # see _rung_plan()

    total = max(report.warp_instructions, 1)
    counts = list(emulated.families(report.instructions).items())
    rest = sum(count for _, count in counts[longest:])
    shown = [*counts[:longest], *([(f"{len(counts) - longest} others", rest)] if rest else [])]
    rows = [(name, str(count), f"{count / total:.1%}") for name, count in shown]
    terminal.print_table("Warp instructions", ("family", "count", "share"), rows)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
