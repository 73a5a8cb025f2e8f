"""The configs that a tuning measures, and their kernels: a record's config first, then the model's fastest.

Knows nothing of measuring. Compiling runs on all cores and needs no GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tilewright import model, records, settings
from tilewright.choice import production, reasons_against
from tilewright.config import Config
from tilewright.device import Device
from tilewright.errors import CompileError, UnsupportedError
from tilewright.jit.build import build, source_digest_of
from tilewright.jit.source import Binary
from tilewright.kernels.catalog import offered_family
from tilewright.kernels.family import Family
from tilewright.kernels.product import sources
from tilewright.kernels.repack import repacked
from tilewright.order import Reduction
from tilewright.problem import Problem
from tilewright.tuning.outcome import Status

_TRIALS = 4  # one in so many candidates may be a trial


@dataclass
class Entry:
    """One candidate on its way. `order` is its place in the family's order, and its number in the race."""

    order: int
    family: Family
    config: Config
    predicted_us: float
    digest: str = ""
    binaries: tuple[Binary, ...] = ()
    status: Status = "unfinished"
    why: str = ""
    is_proven: bool = False


def computed_problem(problem: Problem, device: Device) -> Problem:
    """The product that is measured and has the record: of copies, where an operand has to be copied first, since a plan
    asks for the record of what its product's kernel computes. Of that it is itself.

    Gate and up of two arrays are measured as the halves of one: no config is faster for the one than for the other.
    Raises: UnsupportedError: no family serves the device.
    """
    problem = problem.with_gates_in_one
    copied = offered_family(problem, device).config.copied(problem)
    return repacked(problem, copied).row_major


def candidates_of(
    problem: Problem, device: Device, num_sms: int | None, count: int, reduction: Reduction = "fast"
) -> list[Entry]:
    """The config of record first, where there is one that can run, then the model's fastest; all different.

    A quarter of them at most are trials, which the untuned choice leaves out (kernels/trials.py): the model knows them
    least, and what it would have chosen is to be measured beside them.

    A record's config that is not in the family's space comes last in its order.
    Raises: what model.best() raises.
    """
    asked = max(count, 1)
    offered = model.ranked(problem, device, count=asked, num_sms=num_sms, reduction=reduction)
    space = model.ranked(problem, device, count=1 << 30, num_sms=num_sms, reduction=reduction, with_trials=True)
    chosen = [each.config for each in offered]
    trials = [each for each in space[:asked] if each.config not in chosen][: asked // _TRIALS]
    kept = {each.config for each in (*offered[: asked - len(trials)], *trials)}
    found = [
        Entry(each.order, each.family, each.config, each.prediction.total_us) for each in space if each.config in kept
    ]
    plain = dataclasses.replace(problem, epilogue=None)
    hint = records.lookup(problem, device, num_sms, reduction) or records.lookup(plain, device, num_sms, reduction)
    if hint is None or reasons_against(hint, problem, device, num_sms):
        return found
    family = production(hint.family)
    assert family is not None  # else there were reasons against it
    places = {(each.family.name, each.config): each.order for each in space}
    order = places.get((hint.family, hint.config), max(places.values()) + 1)
    predicted = model.predict(family, problem, hint.config, device, num_sms)
    return [Entry(order, family, hint.config, predicted.total_us), *(each for each in found if each.order != order)]


def compile_all(entries: Sequence[Entry], problem: Problem, device: Device) -> None:
    """Gives every candidate its kernels; one that does not compile gets the reason instead."""

    def compile_one(entry: Entry) -> None:
        units = sources(entry.family, problem, entry.config, device)
        entry.digest = source_digest_of(units[0])
        try:
            entry.binaries = tuple(build(each, refuse=True) for each in units)
        except (CompileError, UnsupportedError) as error:
            entry.status = "not compiled"
            entry.why = error.reason if isinstance(error, CompileError) else error.rule

    threads = min(settings.COMPILE_THREADS.read(), len(entries))
    with ThreadPoolExecutor(threads, thread_name_prefix="tilewright-tune") as pool:
        list(pool.map(compile_one, entries))
