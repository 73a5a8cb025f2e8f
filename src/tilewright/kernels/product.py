"""What one product comes down to, once TMA can read its operands: the family's kernel and, where k is cut into slices,
the kernel that adds them up.

Knows nothing of copies before it (repack.py), nor of who compiles or runs what.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.backends.base import Argument, Launch
from tilewright.backends.steps import Scratch, Step, Work
from tilewright.config import Config
from tilewright.device import Device
from tilewright.jit.source import Binary, Source
from tilewright.kernels import sums
from tilewright.kernels.family import Family
from tilewright.kernels.render import render
from tilewright.problem import Problem


def sources(family: Family, problem: Problem, config: Config, device: Device) -> tuple[Source, ...]:
    """The units of all its kernels: the product's, and that of the sums."""
    product = render(family, problem, config, device)
    return (product,) if config.slices == 1 else (product, sums.source(problem, device))


def work(
    family: Family,
    problem: Problem,
    config: Config,
    device: Device,
    num_sms: int | None = None,
    *,
    binaries: tuple[Callable[[], Binary], ...],
    launch: Launch | None = None,
    arguments: tuple[Argument, ...] | None = None,
) -> Work:
    """Its launches in order, and the scratch between them.

    `binaries` compile what sources() names. `launch` and `arguments` of the product's kernel, where whoever asks has
    them under other names.
    """
    launch = family.launch(problem, config, device, num_sms) if launch is None else launch
    arguments = family.arguments(problem, config, launch) if arguments is None else arguments
    product = Step(name=family.name, binary=binaries[0], launch=launch, arguments=arguments)
    if config.slices == 1:
        return Work(steps=(product,))
    adding = Step(
        name=f"{sums.NAME} of {config.slices} slices",
        binary=binaries[1],
        launch=sums.launch(problem, config, device, num_sms),
        arguments=sums.arguments(problem, config),
    )
    return Work(steps=(product, adding), scratch=(Scratch(sums.SCRATCH_NAME, config.slices_bytes(problem)),))
