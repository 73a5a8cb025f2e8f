"""Families by name, and which one a product is offered on a device. Dispatch sees production families only."""

from __future__ import annotations

from tilewright.config import Config
from tilewright.device import PRESETS, Device, preset
from tilewright.errors import ConfigError, UnsupportedError
from tilewright.kernels.ampere import AMPERE
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.family import Family
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.ladder import RUNGS
from tilewright.problem import Problem

PRODUCTION: tuple[Family, ...] = (HOPPER, AMPERE)
LADDER: tuple[Family, ...] = RUNGS
AMPERE_LADDER: tuple[Family, ...] = AMPERE_RUNGS

# The one family that a choice is made from, by compute capability: of products that hopper_gemm.cu computes, and of the
# others, among them gated ones that TMA cannot part or store. What a caller may force besides, violations() says.
_OFFERED: dict[tuple[int, int], tuple[Family, Family]] = {
    (9, 0): (HOPPER, AMPERE),
    (8, 0): (AMPERE, AMPERE),
    (8, 6): (AMPERE, AMPERE),
    (8, 9): (AMPERE, AMPERE),
}
SUPPORTED_SMS: tuple[tuple[int, int], ...] = tuple(sorted(_OFFERED))

_BY_NAME: dict[str, Family] = {family.name: family for family in (*PRODUCTION, *LADDER, *AMPERE_LADDER)}


def family(name: str) -> Family:
    """The family called `name`.

    Raises: UnsupportedError: there is none.
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise UnsupportedError(
            asked=f"kernel family {name!r}", rule=f"families are {', '.join(_BY_NAME)}", works="name one of them"
        )
    return found


def offered(device: Device, problem: Problem) -> Family | None:
    """The production family of a product on a device; None where there is none."""
    if device.sm not in _OFFERED:
        return None
    of_hopper, of_others = _OFFERED[device.sm]
    return of_hopper if problem.is_for_wgmma and not problem.gate_refusals else of_others


def check_supported(device: Device, sms: tuple[tuple[int, int], ...] = SUPPORTED_SMS) -> None:
    """Raises UnsupportedError: a device of none of these compute capabilities, before anything is compiled for it."""
    if device.sm not in sms:
        served = ", ".join(f"{major}.{minor}" for major, minor in sms)
        raise UnsupportedError(
            asked=f"{device.name} with compute capability {device.sm[0]}.{device.sm[1]}",
            rule=f"kernels are written for compute capability {served}",
            works=f"use such a GPU ({_cards(sms)} for instance), or torch.matmul on this device",
        )


def offered_family(problem: Problem, device: Device) -> Family:
    """The family that the product is offered on the device. Raises: what check_supported() raises."""
    check_supported(device)
    found = offered(device, problem)
    assert found is not None  # else it was refused
    return found


def _cards(sms: tuple[tuple[int, int], ...]) -> str:
    """The presets of these compute capabilities, by their short names."""
    return ", ".join(name for name in PRESETS if preset(name).sm in sms)


def family_of(config: Config) -> Family:
    """The production family that a config is for.

    Raises: ConfigError: it is for a rung of the ladder.
    """
    for found in PRODUCTION:
        if type(config) is type(found.config):
            return found
    kinds = " or ".join(type(each.config).__name__ for each in PRODUCTION)
    raise ConfigError(str(config), [f"a {type(config).__name__} is for a rung of the ladder; pass a {kinds}"])
