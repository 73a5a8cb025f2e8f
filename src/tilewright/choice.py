"""Which config a product runs with when nobody names one: the record of a measurement, else the model's choice.

Knows when a record still counts. It does when its config is legal; where the kernel's source has changed since it was
measured it is a hint, taken all the same and said to be one. And when a record of other rows does: where they make as
many tiles a CTA. Knows nothing of how records are kept or made.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

from tilewright import model, records, settings
from tilewright.config import Config
from tilewright.device import Device
from tilewright.errors import UnsupportedError
from tilewright.jit.build import source_digest_of
from tilewright.kernels import catalog
from tilewright.kernels.family import Family
from tilewright.kernels.render import render
from tilewright.model import Prediction
from tilewright.order import Reduction
from tilewright.problem import Problem
from tilewright.records import Record

# A record of other rows is taken where the model puts its config within this of its own choice: the model is as far off
# by itself (the goal that is set for it; a judgement, until the suite says how far).
NEIGHBOUR_TOLERANCE = 0.05
# ... and so much further behind than at the record's own rows, where rows past the edge cost a little. A judgement.
NEIGHBOUR_SLACK = 0.01


@dataclass(frozen=True)
class Chosen:
    """A config and why. `record` is the measurement that it comes from, of this product or of one with other rows; None
    where the model chose."""

    family: Family
    config: Config
    why: str
    record: Record | None


def choose(
    problem: Problem,
    device: Device,
    num_sms: int | None = None,
    *,
    use_records: bool = True,
    reduction: Reduction = "fast",
) -> Chosen:
    """The config to run: of record, where there is one and records are wanted, here and by TILEWRIGHT_USE_RECORDS; with
    an epilogue of one that was tuned with it, else of the plain product, where that can run it.

    With reduction "invariant" every record and the model choose among the configs that add in the one order (order.py).
    Raises: what model.best() raises; UnsupportedError: a setting is no value of its kind.
    Cost: with a record about 2 ms, of which the look-up is under 50 us and the rest names the kernel's source.
    """
    unusable = ""
    wants_records = use_records and settings.USE_RECORDS.read()
    for measured in _measured_as(problem) if wants_records else ():
        record = records.lookup(measured, device, num_sms, reduction)
        if record is not None:
            family = production(record.family)
            found = reasons_against(record, problem, device, num_sms)
            if family is not None and not found:
                return Chosen(family, record.config, _why(record, family, measured, device), record)
            unusable = f"; the record of {record.date} cannot run any more: {'; '.join(found)}"
    choice = model.best(problem, device, num_sms, reduction)
    if wants_records and (neighbour := _from_a_neighbour(problem, device, num_sms, reduction, choice.prediction)):
        return neighbour
    return Chosen(choice.family, choice.config, f"untuned: the model's choice: {choice.why}{unusable}", None)


def _measured_as(problem: Problem) -> tuple[Problem, ...]:
    """Products whose records count for this one, the nearest first: itself, and without its epilogue. A gated one with
    a column-major out is no row-major product, as the plain one is."""
    problem = problem.with_gates_in_one
    if problem.epilogue is None:
        return (problem,)
    plain = dataclasses.replace(problem, epilogue=None)
    return (problem, plain) if not problem.gates or problem.out_major == "n" else (problem,)


def _from_a_neighbour(
    problem: Problem, device: Device, num_sms: int | None, reduction: Reduction, best: Prediction
) -> Chosen | None:
    """The config of a record of other rows, where it can run here, keeps as many CTAs as busy here as there, and the
    model does not see it clearly behind its own choice, nor further behind than there, where it was measured to be
    ahead: what a record says is that the model is wrong by so much. Of the two nearest, the nearer that does.

    Cost: of a candidate the model's choice at its own rows once more, about 10 ms.
    """
    known = [records.neighbours(each, device, num_sms, reduction) for each in _measured_as(problem)]
    for m, record in itertools.chain.from_iterable(known):
        family = production(record.family)
        there = dataclasses.replace(problem.row_major, m=m)
        if family is None or reasons_against(record, problem, device, num_sms):
            continue
        here_and_there = {_waves(family, record.config, each, device, num_sms) for each in (problem, there)}
        if len(here_and_there) > 1:
            continue
        predicted = model.predict(family, problem, record.config, device, num_sms)
        here = predicted.total_us / best.total_us
        if here > 1 + NEIGHBOUR_TOLERANCE:
            continue
        if here <= max(1.0, _behind(family, record.config, there, device, num_sms, reduction)) + NEIGHBOUR_SLACK:
            why = (
                f"from the record of m = {m}, in as many tiles a CTA: {_measured(record, device)}; "
                f"the model puts it at {here:.2f} of its own choice's time here"
            )
            return Chosen(family, record.config, why, record)
    return None


def _behind(
    family: Family, config: Config, problem: Problem, device: Device, num_sms: int | None, reduction: Reduction
) -> float:
    """How many times as long as its own choice the model expects the config to take."""
    best = model.best(problem, device, num_sms, reduction).prediction
    return model.predict(family, problem, config, device, num_sms).total_us / best.total_us


def _waves(
    family: Family, config: Config, problem: Problem, device: Device, num_sms: int | None
) -> tuple[int, int, int]:
    """What makes the times of two launches alike: their CTAs, and the tiles of the busiest, wide and narrow."""
    grid = family.launch(problem, config, device, num_sms).grid
    return grid, *config.waves(problem, grid)


def reasons_against(record: Record, problem: Problem, device: Device, num_sms: int | None) -> tuple[str, ...]:
    """Every reason why the record's config cannot run the problem here; () when it can."""
    family = production(record.family)
    if family is None:
        return (f"there is no production family {record.family!r}",)
    if family is not catalog.offered(device, problem):
        return (f"the {family.name} family is not the one that {problem} is offered on {device.name}",)
    found = record.config.violations(problem, device)
    if not found and num_sms is not None and record.config.cluster > num_sms:
        found = (f"num_sms = {num_sms} is fewer than the {record.config.cluster} CTAs of a cluster",)
    return found


def production(name: str) -> Family | None:
    """The production family of this name, or None."""
    try:
        found = catalog.family(name)
    except UnsupportedError:
        return None
    return found if found in catalog.PRODUCTION else None


def kernel_digest(family: Family, problem: Problem, config: Config, device: Device) -> str:
    """The identity of a kernel's source, whichever compiler builds it. Cost: 1.6 ms, 2-core x86-64, 2026-11-30."""
    return source_digest_of(render(family, problem, config, device))


def is_stale(record: Record, family: Family, problem: Problem, device: Device) -> bool:
    """Whether the kernel's source is another than the one that was measured."""
    return kernel_digest(family, problem, record.config, device) != record.digest


def _measured(record: Record, device: Device) -> str:
    return (
        f"measured {record.measured_us:.1f} us on {device.name}, {record.date} "
        f"({record.regime}, {record.rounds} rounds, spread {record.spread:.1%})"
    )


def _why(record: Record, family: Family, problem: Problem, device: Device) -> str:
    measured = _measured(record, device)
    if is_stale(record, family, problem, device):
        return f"from records, a hint only: the kernel has changed since: {measured}"
    return f"from records: {measured}"
