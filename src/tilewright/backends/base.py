"""The protocol between plans and the machine that runs them, and the plain values that cross it.

Knows nothing of GEMM, of the driver's API or of the emulator. TensorMap carries the driver's own rules, so that a map
that cuTensorMapEncodeTiled would refuse is refused with no driver present.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tilewright.device import Device
from tilewright.dtypes import DType
from tilewright.jit.source import Binary

# Bytes of the swizzle's row; the values of CUtensorMapSwizzle follow the order of the keys.
SWIZZLE_CODES: dict[int, int] = {0: 0, 32: 1, 64: 2, 128: 3}

# Bytes that the L2 fetches where TMA asks for fewer; the values of CUtensorMapL2promotion follow the order of the keys.
L2_PROMOTION_CODES: dict[int, int] = {0: 0, 64: 1, 128: 2, 256: 3}

TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """How TMA sees one matrix, but for its address.

    Shapes: `extents` and `box` in elements, innermost first; `pitches_bytes` one for each dimension but
    the innermost.
    `swizzle_bytes` is 0, 32, 64 or 128; `l2_promotion_bytes` 0 (none), 64, 128 or 256. Elements outside the extents
    read as zero and are not written.
    Source of the rules: CUDA driver API, cuTensorMapEncodeTiled.
    """

    dtype: DType
    extents: tuple[int, ...]
    pitches_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int
    l2_promotion_bytes: int = 128

    def violations(self, address: int = 0) -> tuple[str, ...]:
        """Every rule of the driver that this map breaks at `address`, in words with numbers."""
        found = []
        rank = len(self.extents)
        if not 1 <= rank <= 5:
            found.append(f"rank {rank} is outside 1 .. 5")
        if len(self.box) != rank or len(self.pitches_bytes) != rank - 1:
            found.append(f"{rank} extents need {rank} box sizes and {rank - 1} pitches")
        if self.swizzle_bytes not in SWIZZLE_CODES:
            found.append(f"swizzle of {self.swizzle_bytes} bytes is not one of {', '.join(map(str, SWIZZLE_CODES))}")
        if self.l2_promotion_bytes not in L2_PROMOTION_CODES:
            allowed = ", ".join(map(str, L2_PROMOTION_CODES))
            found.append(f"L2 promotion of {self.l2_promotion_bytes} bytes is not one of {allowed}")
        found += [f"extent {e} is outside 1 .. 2^32" for e in self.extents if not 1 <= e <= 2**32]
        found += [f"box size {b} is outside 1 .. 256" for b in self.box if not 1 <= b <= 256]
        found += [
            f"pitch of {p} bytes is not a multiple of 16 below 2^40"
            for p in self.pitches_bytes
            if p % 16 or not 0 < p < 2**40
        ]
        inner_bytes = self.box[0] * self.dtype.size if self.box else 0
        if inner_bytes % 16:
            found.append(f"inner box of {inner_bytes} bytes is not a multiple of 16")
        if self.swizzle_bytes and inner_bytes > self.swizzle_bytes:
            found.append(f"inner box of {inner_bytes} bytes is wider than its swizzle of {self.swizzle_bytes}")
        if address % 16:
            found.append(f"address {address:#x} is not a multiple of 16")
        return tuple(found)


@dataclass(frozen=True)
class MapArgument:
    """A tensor map by value (const __grid_constant__), over the operand called `operand`, `offset_bytes` into it."""

    operand: str
    tensor_map: TensorMap
    offset_bytes: int = 0


@dataclass(frozen=True)
class PointerArgument:
    """The address of the operand called `operand`, 8 bytes. `num_bytes` from there are the operand's; 0: not said.

    The kernel reads whole words of `granule_bytes`, at multiples of that, in which a byte of the operand lies.
    """

    operand: str
    num_bytes: int = 0
    granule_bytes: int = 1


@dataclass(frozen=True)
class IntArgument:
    """A number that every call of the plan passes unchanged."""

    name: str
    value: int
    size_bytes: Literal[4, 8]


@dataclass(frozen=True)
class IntsArgument:
    """Numbers of 8 bytes, one behind the other, that every call of the plan passes unchanged: a struct by value."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class NumberArgument:
    """A number of 8 bytes that each call names as it names addresses: the bits of an fp32 for one."""

    operand: str


@dataclass(frozen=True)
class StructArgument:
    """A struct by value of parts of 8 bytes, one behind the other."""

    name: str
    parts: tuple[PointerArgument | IntArgument | NumberArgument, ...]


Argument = MapArgument | PointerArgument | IntArgument | IntsArgument | StructArgument


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The shape of one launch.

    Units: CTAs, threads a CTA, CTAs a cluster, bytes of dynamic shared memory. `is_dependent`: it may start before the
    launch ahead of it in the stream has ended, and its kernel waits for that one itself (griddepcontrol.wait).
    """

    grid: int
    block: int
    cluster: int
    smem_bytes: int
    is_dependent: bool = False


class Backend(Protocol):
    """What a plan asks of a machine.

    `Kernel` and `Call` are the backend's own handles: a loaded entry point, and a launch with all its arguments packed.
    """

    name: str

    def device(self, ordinal: int) -> Device:
        """The device with this ordinal, as a value. Cached for each ordinal."""
        ...

    def ordinal_of(self, address: int) -> int:
        """The device that holds the memory at an address, for arrays that do not say it.

        Raises: DriverError: no memory that the backend knows.
        """
        ...

    def load(self, binary: Binary, ordinal: int, launch: Launch) -> Any:
        """A kernel that can be launched on the device.

        Raises: UnsupportedError: the binary's architecture is not the device's. DriverError: the driver refused it.
        """
        ...

    def pack(self, kernel: Any, launch: Launch, arguments: tuple[Argument, ...], addresses: dict[str, int]) -> Any:
        """A Call: the launch with every argument in place, reusable for as long as the addresses hold.

        Raises: LayoutError: a tensor map that the hardware would refuse.
        """
        ...

    def launch(self, call: Any, stream: int) -> None:
        """Enqueue the call on the raw stream. Returns before it has run."""
        ...

    def zero(self, address: int, pitch_bytes: int, row_bytes: int, num_rows: int, ordinal: int, stream: int) -> None:
        """Enqueue zeros into num_rows rows. No kernel is launched."""
        ...

    def allocate(self, num_bytes: int, ordinal: int, stream: int) -> int:
        """The address of memory for work that is enqueued on the raw stream from here on, until free(). At a multiple
        of 256 bytes.

        Raises: DriverError: the device has not that much left.
        """
        ...

    def free(self, address: int, ordinal: int, stream: int) -> None:
        """Give the memory back once all work enqueued on the stream so far has run. Returns before."""
        ...

    def wait(self, stream: int, ordinal: int) -> None:
        """Block this thread until everything enqueued on the raw stream of the device so far has run.

        Raises: DriverError: some of it failed, or the stream is being captured.
        """
        ...

    def clear(self) -> None:
        """Drop every handle. Plans reload theirs."""
        ...


class HostBackend(Backend, Protocol):
    """A backend over this process's own memory, thousands of times slower than a GPU.

    `limit_s` is the longest work that it takes on, in estimated seconds; None: any. `checks`: launches are checked as
    they run, which takes longer.
    """

    limit_s: float | None
    checks: bool
