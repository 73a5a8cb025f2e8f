"""What a kernel family is: its source file, its entry, its configs, and what its launch needs.

Knows nothing of compilers or drivers: it hands a Source to the one and arguments to the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar

from tilewright.backends.base import Argument, Launch, MapArgument, PointerArgument, StructArgument
from tilewright.config import Config
from tilewright.device import Device
from tilewright.errors import ConfigError
from tilewright.problem import Problem
from tilewright.tma import MAX_BATCH_DIMS

ConfigT = TypeVar("ConfigT", bound=Config)


class Family(Protocol):
    """One family. `source` is a file of kernels/cuda, `entry` its extern "C" function; `config` the default of its
    configs, which tells what all of them have in common."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def entry(self) -> str: ...
    @property
    def config(self) -> Config: ...

    def space(self, problem: Problem, device: Device) -> Iterator[Config]:
        """Every legal config that is worth a look for the problem on the device."""
        ...

    def trials(self, problem: Problem, device: Device) -> Iterator[Config]:
        """Further legal configs, for a tuner alone: no figures say yet that the model ranks them well."""
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
    """The arguments with other names for some operands; what an epilogue reads and writes keeps its own."""
    return tuple(_named(argument, names) for argument in arguments)


def _named(argument: Any, names: Mapping[str, str]) -> Any:
    if isinstance(argument, StructArgument):
        return dataclasses.replace(argument, parts=tuple(_named(part, names) for part in argument.parts))
    if isinstance(argument, MapArgument | PointerArgument):
        return dataclasses.replace(argument, operand=names.get(argument.operand, argument.operand))
    return argument


def own_config(config: Config, kind: type[ConfigT]) -> ConfigT:
    """The config as the kind that a kernel takes. Raises: ConfigError: a config of another kernel."""
    if not isinstance(config, kind):
        raise ConfigError(str(config), [f"this kernel takes a {kind.__name__}; replace() fields of its own config"])
    return config


def group_rows(rows: int, tile_m: int, tile_n: int, num_ctas: int) -> int:
    """Tile rows of a group of the walk: the tiles in flight are a patch a little wider than high, and groups are alike.

    Worked example, 8192^3 with 256x200 tiles on 132 CTAs: a square patch has sqrt(132 x 200 / 256) = 10.2 rows. Of the
    heights from 0.7 to 1.15 of that, 8 leaves no remainder of the 32 rows: 4 groups of 8. Groups of 10 would leave one
    of 2 rows, whose patch is 2 x 66 tiles.
    Source: measured, H200, 2026-11-30. 256x200 in bursts, groups of 8 and 11: 8192^3 847 and 845 TFLOPS, 16384^3 840
    and 829. 256x192 steady, 8192^3, groups of 11 691, of 12 689, of 10 682.
    """
    square = math.sqrt(num_ctas * tile_n / tile_m)
    heights = range(max(1, math.ceil(0.7 * square)), math.ceil(1.15 * square) + 1)
    if rows <= heights[0]:
        return rows
    return min(heights, key=lambda height: (-rows % height, abs(height - 0.8 * square)))


def batch_dims(problem: Problem) -> int:
    """Batch dimensions of the kernel's tensor maps, BATCH_DIMS: 0, 1, or 3 where there are more than one."""
    return len(problem.batch) if len(problem.batch) < 2 else MAX_BATCH_DIMS


def filled(problem: Problem, values: tuple[int, ...], filler: int) -> tuple[int, ...]:
    """A value for each batch dimension of the kernel, the fastest first."""
    return (*reversed(values), *(filler for _ in range(batch_dims(problem) - len(values))))
