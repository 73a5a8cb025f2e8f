"""The same product a hundred times over: every run must leave the very bits of the first, wherever it writes.

A race that a check of one run does not meet shows as a run that differs. Large and ragged sizes, every form of the
production kernel and every rung; one group of them is one child's work. Only repeated_rows() needs torch and a GPU.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright import model
from tilewright.backends.base import Backend
from tilewright.bench.cases import FORMS
from tilewright.bench.ladder import RungPlan, rungs_of
from tilewright.bench.suite import problem_columns
from tilewright.calls import Ledger
from tilewright.config import Config
from tilewright.device import Device
from tilewright.jit.source import Source
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.ladder import RUNGS, Rung
from tilewright.kernels.render import render
from tilewright.packing import packed
from tilewright.plan import Plan
from tilewright.planning import plan_problem
from tilewright.problem import Problem

Row = dict[str, Any]

REPEATS = 100  # runs that are compared with the first

# Whole tiles; then edges of tiles in m, n and k with rows of out of whole 16 bytes (stored by TMA); then an odd n,
# whose rows are stored element by element; then one row, or one column, more than whole tiles.
LARGE = (8192, 8192, 8192)
RAGGED, ODD = (8191, 8184, 8190), (8191, 8185, 8190)
ONE_ROW_MORE, ONE_COLUMN_MORE = (4097, 4096, 4096), (4096, 4097, 4096)


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """One product that is repeated.

    `config` None: the model's choice, whatever is recorded; `rung`: on this rung of the ladder instead.
    """

    problem: Problem
    config: Config | None = None
    rung: Rung | None = None
    num_sms: int | None = None

    def violations(self, device: Device) -> tuple[str, ...]:
        """Every reason why it cannot run on the device."""
        if self.rung is not None:
            return self.rung.config.violations(self.problem, device)
        return () if self.config is None else self.config.violations(self.problem, device)

    def plan(self, device: Device, backend: Callable[[], Backend]) -> Plan:
        """The plan that is run. Raises: ConfigError: it cannot run on the device."""
        if self.rung is not None:
            return RungPlan(self.rung, self.problem, device, backend=backend, num_sms=self.num_sms)
        return plan_problem(
            self.problem,
            device,
            backend=backend,
            ledger=Ledger(),
            config=self.config,
            num_sms=self.num_sms,
            use_records=False,
        )

    def source(self, device: Device) -> Source:
        """What its kernel is compiled from."""
        if self.rung is not None:
            return render(self.rung, self.problem, self.rung.config, device)
        return render(HOPPER, self.problem, self.config or model.best(self.problem, device).config, device)

    def described(self) -> Row:
        """The columns that say which product a row is of."""
        problem = self.problem
        return {
            "kind": "repeats",
            "case": str(problem) + ("" if self.num_sms is None else f", {self.num_sms} SMs"),
            "config": str(self.config) if self.config else self.rung.name if self.rung else "the model's choice",
            **problem_columns(problem),
            "out_through_tma": problem.out_through_tma,
        }


def groups() -> dict[str, tuple[Repeat, ...]]:
    """What one child repeats, by name: the model's choices, each form, the ladder."""
    found = {"model": tuple(_of_the_model())}
    found |= {name: tuple(_of_a_form(config)) for name, config in FORMS.items()}
    found["split-short"] = tuple(_of_short_splits())
    return found | {"ladder": tuple(_of_the_ladder())}


def sources(device: Device) -> list[Source]:
    """Every unit that the children load, for a machine whose compiler is another or none."""
    return [each.source(device) for group in groups().values() for each in group if not each.violations(device)]


def _of_the_model() -> Iterator[Repeat]:
    for shape in (LARGE, RAGGED, ODD, ONE_ROW_MORE, ONE_COLUMN_MORE):
        yield Repeat(problem=packed(*shape))
    yield Repeat(problem=packed(*LARGE, dtype="fp16"))
    yield Repeat(problem=packed(*LARGE, b_major="n"))
    yield Repeat(problem=packed(*LARGE, out_dtype="fp32"))
    yield Repeat(problem=packed(*ODD, b_major="n", out_dtype="fp32"))
    yield Repeat(problem=packed(4096, 32768, 512))


def _of_a_form(config: Config) -> Iterator[Repeat]:
    for shape in (LARGE, RAGGED, ODD, ONE_ROW_MORE, ONE_COLUMN_MORE):
        yield Repeat(problem=packed(*shape), config=config)
    yield Repeat(problem=packed(*RAGGED, b_major="n"), config=config)
    yield Repeat(problem=packed(4097, 8200, 520), config=config)  # k hardly longer than the ring
    yield Repeat(problem=packed(2049, 2056, 1000), config=config, num_sms=8)  # many tiles a CTA


def _of_short_splits() -> Iterator[Repeat]:
    """A CTA has one to five k tiles and dozens of tiles, so that one tile's partial sums follow the last one's closely:
    where 9 runs of 100 differed while the room for them was given free too early (H200, 2026-11-30)."""
    for split_k, consumers in ((2, 2), (4, 2), (8, 2), (2, 1), (4, 1), (8, 1)):
        config = Config(tile_m=64 * consumers, tile_n=128 if split_k < 8 else 64, consumers=consumers)
        config = config.replace(stages=4, store_slots=1, split_k=split_k)
        for shape in ((4097, 8200, 520), (8192, 8192, 512)):
            yield Repeat(problem=packed(*shape), config=config)
            yield Repeat(problem=packed(*shape), config=config.replace(swap=True))


def _of_the_ladder() -> Iterator[Repeat]:
    for rung in rungs_of(rung.name for rung in RUNGS):
        for shape in (LARGE, (4097, 4095, 1000)):
            yield Repeat(problem=packed(*shape), rung=rung)


# -- in a child: needs a GPU -------------------------------------------------------------------------------------------


def repeated_rows(group: str, repeats: int = REPEATS) -> Iterator[Row]:
    """One row a product; a row "begun" comes before what may hang.

    Raises: DriverError: the process is of no more use.
    Cost: 5 s to start, then a product `repeats` times its own time and as much again for poisoning and comparing.
    """
    import torch  # here: the parent reads groups() without it

    from tilewright.backends.cuda import backend
    from tilewright.bench.operands import Canary, inputs
    from tilewright.check import check

    device = backend().device(0)
    for each in groups()[group]:
        row = each.described() | {"group": group}
        if reasons := each.violations(device):
            yield row | {"status": "skipped", "why": "; ".join(reasons)}
            continue
        yield row | {"status": "begun"}
        started = time.perf_counter()
        plan = each.plan(device, backend)
        a, b = inputs(each.problem)
        outs = [Canary.around(each.problem) for _ in range(2)]
        different = differing(functools.partial(plan.run, a, b), outs[0], outs[1], repeats)
        verdict = check(a, b, outs[0].out, each.problem.out_dtype)
        damage = outs[0].unwritten() + outs[0].damaged()
        yield row | {
            "status": "ok" if verdict.ok and not different and not damage else "wrong",
            "config": str(plan.config) if each.rung is None else each.rung.name,
            "compiler": plan.binary.compiler,
            "repeats": repeats,
            "differing": len(different),
            "first_differing": different[0] if different else None,
            "wrong": verdict.wrong,
            "worst": verdict.worst,
            "unwritten_or_damaged": damage,
            "seconds": round(time.perf_counter() - started, 2),
        }
        del a, b, outs
        torch.cuda.empty_cache()


def differing(run: Callable[[Any], Any], first: Any, again: Any, repeats: int) -> list[int]:
    """Which of the repeats, 1 .. repeats, left other bits in or around out than the first run did.

    `first` and `again` are Canaries of one shape, poisoned before each run; compared as whole numbers, so that a NaN
    equals itself and -0 does not equal 0.
    """
    import torch  # see repeated_rows()

    first.bits.fill_(first.poison)
    run(first.out)
    found = []
    for index in range(1, repeats + 1):
        again.bits.fill_(again.poison)
        run(again.out)
        if not torch.equal(again.bits, first.bits):
            found.append(index)
    return found
