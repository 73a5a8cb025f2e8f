"""backends/parameters.py: numbers at the limits of what a parameter holds (B056)."""

from __future__ import annotations

from typing import Literal

import pytest

from tilewright.backends.base import IntArgument, IntsArgument, Launch
from tilewright.backends.parameters import Packer, number_bytes
from tilewright.errors import UnsupportedError

LAUNCH = Launch(grid=1, block=128, cluster=1, smem_bytes=0)


@pytest.mark.parametrize("size", [4, 8])
def test_a_number_arrives_as_itself_or_not_at_all(size: Literal[4, 8]) -> None:
    limit = 2 ** (8 * size - 1)
    for value in (-limit, -1, 0, limit - 1):
        assert int.from_bytes(number_bytes("m", value, size), "little", signed=True) == value
    for value in (-limit - 1, limit, 2 * limit, 2 * limit + 5):
        with pytest.raises(UnsupportedError, match=rf"m = {value} as a parameter.*hold {-limit} \.\. {limit - 1}"):
            Packer(LAUNCH, (IntArgument("m", value, size),), lambda _: lambda address: b"")


def test_each_of_several_numbers_is_looked_at() -> None:
    with pytest.raises(UnsupportedError, match="batch = 9223372036854775808"):
        Packer(LAUNCH, (IntsArgument("batch", (1, 2**63)),), lambda _: lambda address: b"")
