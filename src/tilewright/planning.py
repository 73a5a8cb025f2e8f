"""From a problem and what its caller asks to a Plan: the words checked, then the family and the config.

Knows whose config it is: the caller's, whole or field by field, or else that of choice.py. What a Plan makes of it,
plan.py knows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.backends.base import Backend, HostBackend
from tilewright.calls import Ledger
from tilewright.choice import choose
from tilewright.config import Config
from tilewright.device import Device
from tilewright.errors import ConfigError, UnsupportedError
from tilewright.kernel_problem import has_no_sums, kernel_problem
from tilewright.kernels import catalog
from tilewright.order import Reduction, checked_reduction, order_for, order_of
from tilewright.plan import Plan, host_backend
from tilewright.problem import Problem, checked

ConfigChanges = Config | Mapping[str, Any]


def checked_changes(config: Any) -> ConfigChanges | None:
    """`config` itself, when it is something by which a Config is chosen.

    Raises: ConfigError: neither a Config, nor a mapping of field names, nor None.
    """
    if config is None or isinstance(config, Config | Mapping):
        return config
    shown = repr(config)
    found = f"config = {shown[:60]}{'...' if len(shown) > 60 else ''} is neither a Config nor changes by field name"
    raise ConfigError("of this call", [f"{found}; pass config={{'tile_n': 192}}"])


def checked_flag(name: str, value: object) -> bool:
    """`value` as True or False.

    Raises: UnsupportedError: it is neither, such as an array of several elements.
    """
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError):  # NumPy's, torch's: says which argument it is
        raise UnsupportedError(
            asked=f"{name} = {repr(value)[:60]}", rule="it is True or False", works=f"pass {name}=True"
        ) from None


def checked_num_sms(num_sms: object, device: Device) -> int | None:
    """`num_sms` as an int, of whichever library's integers it is; None for all.

    Raises: ConfigError: it is no number of SMs that the device has.
    """
    if num_sms is None:
        return None
    try:
        number = 0 if isinstance(num_sms, bool) else operator.index(num_sms)  # type: ignore[arg-type]
    except TypeError:  # what has no __index__
        number = 0
    if not 1 <= number <= device.num_sms:
        reason = f"num_sms = {num_sms!r} is not a whole number from 1 to the {device.num_sms} SMs of {device.name}"
        raise ConfigError("of this launch", [reason])
    return int(number)


def plan_problem(
    problem: Problem,
    device: Device,
    *,
    backend: Callable[[], Backend],
    ledger: Ledger,
    host: Callable[[], HostBackend] = host_backend,
    config: ConfigChanges | None = None,
    num_sms: int | None = None,
    use_records: bool = True,
    reduction: Reduction = "fast",
) -> Plan:
    """The plan of a problem on a device.

    `config` is a Config, or changes by field name to the choice of record, where there is one, or else the model's.
    `num_sms` leaves the other SMs free. `use_records` False: the model alone chooses. `reduction` "invariant": the bits
    of a row depend on no other row, nor on how many there are.
    Raises: UnsupportedError: a device without kernels, or no such reduction. ConfigError: every reason why the config
    cannot run, or that it does not add in the invariant order.
    """
    checked(problem)
    reduction = checked_reduction(reduction)
    config = checked_changes(config)
    num_sms = checked_num_sms(num_sms, device)
    offered = catalog.offered_family(problem, device)
    copied = () if problem.is_empty else (config if isinstance(config, Config) else offered.config).copied(problem)
    solid = kernel_problem(problem, copied)
    if isinstance(config, Config):
        family, chosen, why, record = catalog.family_of(config), config, "the caller's config", None
    else:
        choice = choose(solid, device, num_sms, use_records=use_records and not problem.is_empty, reduction=reduction)
        family, chosen, why, record = choice.family, choice.config, choice.why, choice.record
        if copied:
            chosen = chosen.beside_copies()  # a caller's word comes after ours
        if config:
            chosen = chosen.replace(**{str(name): value for name, value in config.items()})
            why, record = f"the caller's {', '.join(map(str, config))}; the rest: {why}", None
    if problem.is_empty and not has_no_sums(problem):
        # no kernel runs, so no config is judged: 0 has no parts, nor two k tiles
        choice = choose(solid, device, num_sms, use_records=False, reduction=reduction)
        family, chosen = choice.family, choice.config
    _check_order(chosen, reduction)
    if num_sms is not None and not chosen.violations(solid, device) and num_sms < chosen.cluster:
        raise ConfigError(str(chosen), [f"num_sms = {num_sms} is fewer than the {chosen.cluster} CTAs of a cluster"])
    return Plan(
        problem,
        device,
        family,
        chosen,
        why=why,
        num_sms=num_sms,
        backend=backend,
        ledger=ledger,
        host=host,
        record=record,
        use_records=use_records,
        reduction=reduction,
    )


def _check_order(config: Config, reduction: Reduction) -> None:
    """Raises ConfigError for a caller's config that adds in another order than the reduction asks for."""
    wanted, found = order_for(reduction), order_of(config)
    if wanted is not None and found != wanted:
        differing = ", ".join(
            f"{name} = {value!r} and not {allowed!r}"
            for (name, value), (_, allowed) in zip(found.values, wanted.values, strict=True)
            if value != allowed
        )
        reason = f"{differing}: reduction {reduction!r} adds in one order for all shapes; leave that field out"
        raise ConfigError(str(config), [reason])
