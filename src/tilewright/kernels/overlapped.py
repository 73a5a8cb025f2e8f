"""A product of operands that TMA cannot read whose kernel copies them itself, while it multiplies what is copied.

A variant of the copy before the product (repack.py) that is to be measured and is not offered: benchmarks/unaligned.py
builds and times it. Knows nothing of who runs what.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tilewright.backends.base import Argument, IntArgument, IntsArgument, Launch, PointerArgument
from tilewright.backends.steps import Scratch, Step, Work
from tilewright.config import Config
from tilewright.device import Device
from tilewright.errors import ConfigError
from tilewright.jit.source import Binary, Source
from tilewright.kernels import repack
from tilewright.kernels.family import with_operands_named
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import constants_header, unit
from tilewright.problem import Problem

NAME = "overlapped"
CLEAR = "clear"
PROGRESS = "progress"  # what arguments call the words that CTAs tell each other by
STRIP_BYTES = 384  # of a row, copied at once by a warp; three k tiles. Source: realign.cuh
UNIT_ROWS = 20  # that a warp takes at once. Source: realign.cuh
NEXT_BYTES = 128  # before the words of the strips. Source: realign.cuh
PRODUCER_REGISTERS = 56  # a thread: of the copying warps; a consumer keeps 224
ROWS_IN_FLIGHT = 5  # of a copying warp: four registers each; with 6 it spills 24 bytes (NVRTC 13.5, 2026-11-30)


def violations(problem: Problem, config: Config, device: Device) -> tuple[str, ...]:
    """Every reason why this kernel cannot compute the product with the config; () when it can."""
    solid = _solid(problem)
    found = [*config.violations(solid, device)]
    if not problem.repacked:
        found.append("both operands can be read where they lie; there is nothing to copy")
    if problem.batch or (problem.a_major, problem.b_major, problem.out_major) != ("k", "k", "n"):
        found.append("it is for single products of k-contiguous operands with rows of out")
    if problem.epilogue is not None:
        found.append(f"it rounds plain products, without an epilogue {problem.epilogue}")
    if config.cluster != 1 or config.swap or config.slices > 1:
        found.append("it is for single CTAs that share tiles, without swap or slices")
    if not found and config.accumulators + 28 > _consumer_registers(config):
        found.append(
            f"{config.accumulators} accumulators and 28 registers of state exceed the {_consumer_registers(config)} "
            "that the copying warps leave a consumer"
        )
    return tuple(found)


def sources(problem: Problem, config: Config, device: Device) -> tuple[Source, Source, Source]:
    """The units of its kernels: what clears the words of progress, what copies the head, and the product's.

    Raises: ConfigError: what violations() says.
    """
    if found := violations(problem, config, device):
        raise ConfigError(str(config), list(found))
    clear = unit(CLEAR, f"{CLEAR}.cu", CLEAR, {"config.cuh": constants_header({})}, device)
    headers = HOPPER.headers(_solid(problem), config.beside_copies())
    headers["config.cuh"] = _with_constants(headers["config.cuh"], config)
    name = f"{NAME}_{config.tile_m}x{config.tile_n}"
    product = unit(name, f"{NAME}_gemm.cu", f"{NAME}_gemm", headers, device)
    return clear, repack.source(problem, device), product


def work(
    problem: Problem,
    config: Config,
    device: Device,
    num_sms: int | None = None,
    *,
    head: float = 0.0,
    binaries: tuple[Callable[[], Binary], Callable[[], Binary], Callable[[], Binary]],
) -> Work:
    """Its launches in order, and the scratch: the copies, and the words of progress. `binaries` compile sources().

    `head`: the part of k, in whole strips, that is copied by a launch of its own before the product's; 0 for none.
    """
    solid, copied = _solid(problem), problem.repacked
    config = config.beside_copies()
    launch = HOPPER.launch(solid, config, device, num_sms)
    clear = Step(
        name="clear the progress",
        binary=binaries[0],
        launch=Launch(grid=1, block=256, cluster=1, smem_bytes=0),
        arguments=(
            PointerArgument(PROGRESS, progress_bytes(problem)),
            IntArgument("num_words", progress_bytes(problem) // 4, 4),
        ),
    )
    named = with_operands_named(
        HOPPER.arguments(solid, config, launch), {name: repack.scratch_name(name) for name in copied}
    )
    head_strips = min(round(head * _num_strips(problem)), _num_strips(problem))
    copying = _copying(problem, head_strips)
    product = Step(name=NAME, binary=binaries[2], launch=launch, arguments=(*named, *copying))
    heads = (_head(problem, head_strips, device, num_sms, binaries[1]),) if head_strips else ()
    scratch = tuple(Scratch(repack.scratch_name(name), repack.scratch_bytes(problem, name)) for name in copied)
    return Work(
        steps=(clear, *heads, product),
        scratch=(*scratch, Scratch(PROGRESS, progress_bytes(problem))),
    )


def _head(problem: Problem, strips: int, device: Device, num_sms: int | None, binary: Callable[[], Binary]) -> Step:
    """The copy of the first strips alone: of shorter rows, as far apart as those of the whole."""
    part = dataclasses.replace(problem, k=min(problem.k, strips * STRIP_BYTES // problem.dtype.size))
    solid, copied = _solid(problem), problem.repacked
    launch = repack.launch(part, copied, device, num_sms)
    found: list[Argument] = []
    for index, argument in enumerate(repack.arguments(part, copied, launch)):
        name = copied[index // 3 % len(copied)]  # three arguments an operand
        if isinstance(argument, IntsArgument):  # the last of its numbers is the way to the next row of the copy
            pitch_bytes = getattr(solid, f"{name}_pitch") * problem.dtype.size
            found.append(dataclasses.replace(argument, values=(*argument.values[:-1], pitch_bytes)))
        elif isinstance(argument, PointerArgument):
            is_copy = argument.operand == repack.scratch_name(name)
            num_bytes = repack.scratch_bytes(problem, name) if is_copy else problem.extent_bytes[name]
            found.append(dataclasses.replace(argument, num_bytes=num_bytes))
    return Step(name="repack the head", binary=binary, launch=launch, arguments=tuple(found))


def progress_bytes(problem: Problem) -> int:
    """Bytes of the counter and of a word a strip."""
    return NEXT_BYTES + 4 * _num_strips(problem)


def _copying(problem: Problem, head_strips: int) -> tuple[Argument, ...]:
    """The parameters behind those of hopper_gemm; of an operand that is read in place nothing is copied."""
    found: list[Argument] = []
    for name in ("a", "b"):
        found.append(
            PointerArgument(name, problem.extent_bytes[name], granule_bytes=repack.CHUNK_BYTES)
            if name in problem.repacked
            else PointerArgument(name, problem.extent_bytes[name])
        )
    for name in ("a", "b"):
        is_copied = name in problem.repacked
        target = repack.scratch_name(name) if is_copied else name
        num_bytes = repack.scratch_bytes(problem, name) if is_copied else problem.extent_bytes[name]
        found.append(PointerArgument(target, num_bytes))
    solid, size = _solid(problem), problem.dtype.size
    numbers: list[int] = []
    for name in ("a", "b"):
        rows, extent = problem.rows_of(name)
        pitches = (getattr(problem, f"{name}_pitch") * size, getattr(solid, f"{name}_pitch") * size)
        numbers += [rows if name in problem.repacked else 0, extent * size, *pitches]
    return (
        *found,
        PointerArgument(PROGRESS, progress_bytes(problem)),
        IntsArgument("copying", (*numbers, head_strips, _num_strips(problem))),
    )


def _num_strips(problem: Problem) -> int:
    return -(-problem.k * problem.dtype.size // STRIP_BYTES)


def _solid(problem: Problem) -> Problem:
    """What the tiles are of: the product of the copies."""
    return repack.repacked(problem, problem.repacked)


def _consumer_registers(config: Config) -> int:
    """A consumer's registers beside a producer warpgroup that keeps PRODUCER_REGISTERS (Config.registers)."""
    if not config.moves_registers:
        return config.entry_registers
    pool = config.entry_registers * config.threads - PRODUCER_REGISTERS * 128
    return pool // (config.consumers * 128) // 8 * 8


def _with_constants(header: str, config: Config) -> str:
    """config.cuh with the registers of this kernel's roles, and one constant more."""
    lines = []
    for line in header.splitlines():
        if config.moves_registers and " PRODUCER_REGISTERS = " in line:
            line = f"    static constexpr int PRODUCER_REGISTERS = {PRODUCER_REGISTERS};"
        if config.moves_registers and " CONSUMER_REGISTERS = " in line:
            line = f"    static constexpr int CONSUMER_REGISTERS = {_consumer_registers(config)};"
        lines.append(line)
    end = lines.index("};")
    lines.insert(end, f"    static constexpr int ROWS_IN_FLIGHT = {ROWS_IN_FLIGHT};")
    return "\n".join([*lines, ""])
