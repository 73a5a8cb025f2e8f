"""Which config a product runs with when nobody names one: the record of a measurement, else the model's choice.

Knows when a record still counts. It does when its config is legal; where the kernel's source has changed since it was
measured it is a hint, taken all the same and said to be one. Knows nothing of how records are kept or made.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import model, records, settings
from tilewright.config import Config
from tilewright.device import Device
from tilewright.errors import UnsupportedError
from tilewright.jit.build import source_digest_of
from tilewright.kernels import catalog
from tilewright.kernels.family import Family
from tilewright.kernels.render import render
from tilewright.order import Reduction
from tilewright.problem import Problem
from tilewright.records import Record


@dataclass(frozen=True)
class Chosen:
    """A config and why. `record` is the measurement that it comes from; None where the model chose."""

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
    """The config to run: of record, where there is one and records are wanted, here and by TILEWRIGHT_USE_RECORDS.

    With reduction "invariant" every record and the model choose among the configs that add in the one order (order.py).
    Raises: what model.best() raises; UnsupportedError: a setting is no value of its kind.
    Cost: with a record about 2 ms, of which the look-up is under 50 us and the rest names the kernel's source.
    """
    unusable = ""
    wants_records = use_records and settings.USE_RECORDS.read()
    if wants_records:
        record = records.lookup(problem, device, num_sms, reduction)
        if record is not None:
            family = production(record.family)
            found = reasons_against(record, problem, device, num_sms)
            if family is not None and not found:
                return Chosen(family, record.config, _why(record, family, problem, device), record)
            unusable = f"; the record of {record.date} cannot run any more: {'; '.join(found)}"
    choice = model.best(problem, device, num_sms, reduction)
    return Chosen(choice.family, choice.config, f"untuned: the model's choice: {choice.why}{unusable}", None)


def reasons_against(record: Record, problem: Problem, device: Device, num_sms: int | None) -> tuple[str, ...]:
    """Every reason why the record's config cannot run the problem here; () when it can."""
    if production(record.family) is None:
        return (f"there is no production family {record.family!r}",)
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
