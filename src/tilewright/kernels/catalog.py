"""Families by name. Dispatch sees production families only."""

from __future__ import annotations

from tilewright.errors import UnsupportedError
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.family import Family
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.ladder import RUNGS

PRODUCTION: tuple[Family, ...] = (HOPPER,)
LADDER: tuple[Family, ...] = RUNGS
AMPERE_LADDER: tuple[Family, ...] = AMPERE_RUNGS

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
