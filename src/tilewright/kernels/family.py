"""What a kernel family is: its source file, its entry, its configs, and what its launch needs.

Knows nothing of compilers or drivers: it hands a Source to the one and arguments to the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Protocol

from tilewright.backends.base import Argument, IntArgument, IntsArgument, Launch
from tilewright.config import Config
from tilewright.device import Device
from tilewright.problem import Problem


class Family(Protocol):
    """One family. `source` is a file of kernels/cuda, `entry` its extern "C" function."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def entry(self) -> str: ...

    def space(self, problem: Problem, device: Device) -> Iterator[Config]:
        """Every legal config that is worth a look for the problem on the device."""
        ...

    def headers(self, problem: Problem, config: Config, wait_limit: int = 0) -> dict[str, str]:
        """The rendered headers by path: the constants, and the wrappers of exactly this shape and type."""
        ...

    def launch(self, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Launch:
        """Grid, block, cluster and shared memory of one launch on `num_sms` SMs (default: all)."""
        ...

    def arguments(self, problem: Problem, config: Config, launch: Launch) -> tuple[Argument, ...]:
        """The kernel's parameters in order, for a launch of this grid."""
        ...


def with_inputs_exchanged(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """The arguments of a kernel for the transposed product, operands named as the product itself has them."""
    return with_operands_named(arguments, {"a": "b", "b": "a"})


def with_operands_named(arguments: tuple[Argument, ...], names: Mapping[str, str]) -> tuple[Argument, ...]:
    """The arguments with other names for some operands."""
    return tuple(
        argument
        if isinstance(argument, IntArgument | IntsArgument)
        else dataclasses.replace(argument, operand=names.get(argument.operand, argument.operand))
        for argument in arguments
    )
