"""The backend protocol over the emulator: the PTX of the same build that a device would load runs on this CPU.

The Addresses are those of host memory; a kernel may touch no byte outside the operands that
its call names. An operand's extent comes from its tensor maps, from its pointer argument where that says it, or from
`lend`. Launches run at once and in full: streams do not exist here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import device as devices
from tilewright.backends.base import (
    Argument,
    IntArgument,
    IntsArgument,
    Launch,
    MapArgument,
    PointerArgument,
    StructArgument,
    TensorMap,
)
from tilewright.backends.parameters import number_bytes
from tilewright.device import Device
from tilewright.emulator import tiled
from tilewright.emulator.banks import matrix
from tilewright.emulator.events import Finding as Finding
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import MAX_BLOCKS as MAX_BLOCKS
from tilewright.emulator.run import Grid, run
from tilewright.emulator.run import Report as Report
from tilewright.emulator.run import Width as Width
from tilewright.emulator.schedule import Policy as Policy
from tilewright.errors import EmulationError, LayoutError, UnsupportedError
from tilewright.jit.source import Binary

_ELEMENTS: dict[str, str] = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}  # DType names as tiled spells them


@dataclass(frozen=True)
class EmulatedKernel:
    """A loaded entry: the PTX is parsed and translated at its first launch, once in a process."""

    binary: Binary


@dataclass(frozen=True)
class EmulatedCall:
    """A launch with its parameters and the memory that it may touch."""

    kernel: EmulatedKernel
    launch: Launch
    parameters: bytes
    buffers: tuple[tuple[str, int, int], ...]  # (operand, address, bytes)


@dataclass(kw_only=True)
class EmulatedBackend:
    """A GPU of the kind `model` on this CPU.

    `report` is of the last launch, None when that was stopped by an error; `findings` are its findings in either case.
    `limit_s`: see HostBackend; launch() itself refuses nothing. `max_blocks`: run() says when a run is
    taken for endless. `exact_sums`: see run().
    """

    model: Device
    schedule: Policy = "lazy"
    seed: int = 0
    width: Width | None = None
    checks: bool = False
    banks: bool = False
    progress: Callable[[int, int], None] | None = None
    limit_s: float | None = None
    max_blocks: int = MAX_BLOCKS
    exact_sums: bool = False
    name: str = "emulated"
    report: Report | None = None
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        self._lent: dict[int, int] = {}  # one step each, so no lock, which a forked child could find held
        self._allocated: dict[int, NDArray[np.uint8]] = {}  # by the address that was given out

    def device(self, ordinal: int) -> Device:
        """The emulated device."""
        if ordinal != 0:
            raise UnsupportedError(asked=f"device {ordinal}", rule="the emulator is device 0", works="use ordinal 0")
        return self.model

    def ordinal_of(self, address: int) -> int:
        """Every address is the emulator's."""
        return 0

    def lend(self, address: int, num_bytes: int) -> None:
        """Says how many bytes from an address a kernel may touch, for operands whose arguments do not."""
        self._lent[address] = num_bytes

    def load(self, binary: Binary, ordinal: int, launch: Launch) -> EmulatedKernel:
        """A kernel that can be launched here.

        Raises: UnsupportedError: the binary has no PTX.
        """
        if not binary.ptx:
            raise UnsupportedError(
                asked=f"{binary.name} in the emulator",
                rule="it runs PTX, and this binary has none",
                works="build it anew",
            )
        return EmulatedKernel(binary)

    def pack(
        self, kernel: EmulatedKernel, launch: Launch, arguments: tuple[Argument, ...], addresses: dict[str, int]
    ) -> EmulatedCall:
        """The launch with every argument in place.

        Raises: LayoutError: a tensor map that the hardware would refuse, or an operand whose extent nothing tells.
        """
        block = bytearray()
        extents: dict[str, int] = {}
        granules: dict[str, int] = {}
        for argument in arguments:
            raw, alignment = _packed(argument, addresses)
            block += bytes(-len(block) % alignment) + raw
            for part in argument.parts if isinstance(argument, StructArgument) else (argument,):
                if isinstance(part, MapArgument | PointerArgument):
                    extents[part.operand] = max(extents.get(part.operand, 0), _extent_bytes(part))
                if isinstance(part, PointerArgument):
                    granules[part.operand] = max(granules.get(part.operand, 1), part.granule_bytes)
        buffers = []
        for operand, num_bytes in extents.items():
            address = addresses[operand]
            known = max(num_bytes, self._lent.get(address, 0))
            if not known:
                raise LayoutError(
                    asked=f"{operand} at {address:#x} in the emulator",
                    rule="the emulator must know how many bytes a kernel may touch, and no argument says it",
                    works="call the backend's lend(address, num_bytes) before",
                )
            granule = granules.get(operand, 1)
            head = address % granule
            buffers.append((operand, address - head, -(-(head + known) // granule) * granule))
        return EmulatedCall(kernel, launch, bytes(block), _disjoint(buffers))

    def launch(self, call: EmulatedCall, stream: int) -> None:
        """Runs the call to its end.

        Raises: EmulationError: a rule that the kernel broke, or the first finding of the checks; with all findings.
        """
        self.report, self.findings = None, ()
        try:
            self.report = self._run(call)
        except EmulationError as error:
            self.findings = tuple(found for found in error.findings if isinstance(found, Finding))
            raise
        self.findings = self.report.findings
        if self.findings:
            first, more = self.findings[0], len(self.findings) - 1
            text = f"{first}" + (f"\n  (and {more} more findings)" if more else "")
            raise EmulationError(text, rule=first.rule, line=first.site.line, source=first.site.source)

    def _run(self, call: EmulatedCall) -> Report:
        memory = GlobalMemory()
        for operand, address, num_bytes in call.buffers:
            memory.add(operand, host_bytes(address, num_bytes), address)
        shape, binary = call.launch, call.kernel.binary
        return run(
            binary.ptx,
            binary.entry,
            Grid(
                grid=shape.grid,
                block=shape.block,
                cluster=shape.cluster,
                smem_bytes=shape.smem_bytes,
                registers=_registers(binary, shape.block),
            ),
            call.parameters,
            memory,
            schedule=self.schedule,
            seed=self.seed,
            width=self.width,
            checks=self.checks,
            banks=self.banks,
            max_blocks=self.max_blocks,
            exact_sums=self.exact_sums,
            progress=self.progress,
        )

    def zero(self, address: int, pitch_bytes: int, row_bytes: int, num_rows: int, ordinal: int, stream: int) -> None:
        """Zeros into num_rows rows; bytes between them are not touched."""
        for row in range(num_rows if row_bytes else 0):
            ctypes.memset(address + row * pitch_bytes, 0, row_bytes)

    def allocate(self, num_bytes: int, ordinal: int, stream: int) -> int:
        """Host memory with nothing in it, at a multiple of 256 bytes."""
        memory, address = aligned_bytes(num_bytes)
        self._allocated[address] = memory
        return address

    def free(self, address: int, ordinal: int, stream: int) -> None:
        """Gives the memory back: launches have run when they return."""
        del self._allocated[address]

    def wait(self, stream: int, ordinal: int) -> None:
        """Nothing: launches have run when they return."""

    def clear(self) -> None:
        """Forgets what was lent."""
        self._lent.clear()


def emulated(model: str | Device = "h200", **choices: Any) -> EmulatedBackend:
    """An emulated device, by itself or by its name in device.PRESETS."""
    return EmulatedBackend(model=model if isinstance(model, Device) else devices.preset(model), **choices)


def aligned_bytes(num_bytes: int) -> tuple[NDArray[np.uint8], int]:
    """Memory of this process and where `num_bytes` of it start at a multiple of 256; the array keeps it alive."""
    memory = np.empty(num_bytes + 256, np.uint8)
    return memory, memory.ctypes.data + -memory.ctypes.data % 256


def host_bytes(address: int, num_bytes: int) -> NDArray[np.uint8]:
    """Memory of this process as an array. Whoever owns it keeps it alive meanwhile."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))


def _disjoint(buffers: list[tuple[str, int, int]]) -> tuple[tuple[str, int, int], ...]:
    """The buffers by address; those that share memory, as a and b of a product with itself do, as one."""
    found: list[tuple[str, int, int]] = []
    for name, address, num_bytes in sorted(buffers, key=lambda buffer: buffer[1]):
        if found and address < found[-1][1] + found[-1][2]:
            names, start, length = found[-1]
            found[-1] = (f"{names}, {name}", start, max(length, address + num_bytes - start))
        else:
            found.append((name, address, num_bytes))
    return tuple(found)


def turns_of_a_read(tensor_map: TensorMap) -> int:
    """Turns that the banks of shared memory take for what wgmma reads at once of a box: 16 bytes of each of 8 rows.

    1 is no conflict. By rule, from a box that starts at a multiple of 1024.
    """
    box = _tiled(tensor_map, 0)
    found = matrix(tiled.shared_chunks(8, box.row_bytes, box.swizzle_bytes, 0).T)
    return found.wavefronts // found.ideal


def _registers(binary: Binary, threads: int) -> int:
    """Registers a thread at launch: what ptxas gave, which for setmaxnreg kernels is the most that the block allows."""
    return max(binary.resources.registers, 24) if binary.resources.registers else 0


def _packed(argument: Argument, addresses: dict[str, int]) -> tuple[bytes, int]:
    """(bytes, alignment) of one parameter."""
    if isinstance(argument, MapArgument):
        address = addresses[argument.operand] + argument.offset_bytes
        return tiled.encode(_tiled(argument.tensor_map, address)), 64
    if isinstance(argument, IntArgument):
        size = argument.size_bytes
        return number_bytes(argument.name, argument.value, size), size
    if isinstance(argument, IntsArgument):
        return b"".join(number_bytes(argument.name, value, 8) for value in argument.values), 8
    if isinstance(argument, StructArgument):
        parts = (
            number_bytes(part.name, part.value, 8)
            if isinstance(part, IntArgument)
            else addresses[part.operand].to_bytes(8, "little")
            for part in argument.parts
        )
        return b"".join(parts), 8
    return addresses[argument.operand].to_bytes(8, "little"), 8


def _tiled(tensor_map: TensorMap, address: int) -> tiled.TiledMap:
    return tiled.TiledMap(
        address=address,
        element=_ELEMENTS[tensor_map.dtype.name],
        extents=tensor_map.extents,
        pitches_bytes=tensor_map.pitches_bytes,
        box=tensor_map.box,
        swizzle_bytes=tensor_map.swizzle_bytes,
    )


def _extent_bytes(argument: MapArgument | PointerArgument) -> int:
    """Bytes from the operand's address that the argument says are its own; 0 where it does not say."""
    if isinstance(argument, MapArgument):
        tensor_map = argument.tensor_map
        whole = tensor_map.extents[0] * tensor_map.dtype.size
        for extent, pitch in zip(tensor_map.extents[1:], tensor_map.pitches_bytes, strict=True):
            whole += (extent - 1) * pitch
        return argument.offset_bytes + whole
    if isinstance(argument, PointerArgument):
        return argument.num_bytes
    return 0
