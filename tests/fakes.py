"""A GPU made of host memory: arrays that say they are on it, and a backend that multiplies there with NumPy.

Arrays speak the CUDA array interface and spell their copies as torch does, so that a refusal's advice can be followed
word for word. The backend reads nothing but what a driver would be given: arguments, addresses and the kernel's name.
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import device, dtypes
from tilewright.backends.base import (
    Argument,
    IntArgument,
    IntsArgument,
    Launch,
    MapArgument,
    PointerArgument,
    TensorMap,
)
from tilewright.device import Device
from tilewright.jit.source import Binary, Resources, Source

# A card that no kernel is written for: mma.sync and cp.async are compute capability 8.0's and later.
T4 = dataclasses.replace(device.preset("a100"), name="NVIDIA T4", sm=(7, 5))

_TYPESTRINGS = {"bfloat16": "<V2", "float16": "<f2", "float32": "<f4"}


class GpuArray:
    """An array on the pretended GPU. `host` is the NumPy view of its memory."""

    def __init__(self, host: np.ndarray, *, stream: int | None = None, read_only: bool = False) -> None:
        self.host = host
        self.stream = stream
        self.read_only = read_only

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.host.shape,
            "strides": self.host.strides,
            "typestr": _TYPESTRINGS.get(self.host.dtype.name, self.host.dtype.str),
            "data": (self.host.ctypes.data, self.read_only),
            "version": 3,
            "stream": self.stream,
        }

    @property
    def address(self) -> int:
        return self.host.ctypes.data

    def __getitem__(self, index: Any) -> GpuArray:
        return GpuArray(self.host[index])

    def t(self) -> GpuArray:
        return GpuArray(self.host.T)

    def reshape(self, *shape: int) -> GpuArray:
        return GpuArray(self.host.reshape(*shape))

    def clone(self) -> GpuArray:
        return GpuArray(aligned_copy(self.host, order="K"))

    def contiguous(self) -> GpuArray:
        """As torch's: the array itself where it is contiguous."""
        return self if self.host.flags.c_contiguous else GpuArray(aligned_copy(self.host, order="C"))

    @property
    def mT(self) -> GpuArray:  # noqa: N802  # torch's name
        return GpuArray(np.swapaxes(self.host, -1, -2))

    def swapaxes(self, first: int, second: int) -> GpuArray:
        """As NumPy's and CuPy's."""
        return GpuArray(np.swapaxes(self.host, first, second))

    @property
    def T(self) -> GpuArray:  # noqa: N802  # NumPy's and CuPy's name
        return self.t()

    def copy(self, order: str = "C") -> GpuArray:
        """As NumPy's and CuPy's."""
        return GpuArray(aligned_copy(self.host, order=order))


def gpu(shape: tuple[int, ...], dtype: str = "bf16", *, seed: int | None = None, fill: float = 0.0) -> GpuArray:
    """A row-major array at a multiple of 256 bytes, as device allocators give: seeded small integers, or `fill`."""
    kind = dtypes.by_name(dtype).numpy
    values = np.full(shape, fill) if seed is None else np.random.default_rng(seed).integers(-4, 5, shape)
    return GpuArray(aligned_copy(values.astype(kind), order="C"))


def product(a: GpuArray, b: GpuArray) -> np.ndarray:
    """The exact product of small integers, in float64."""
    return a.host.astype(np.float64) @ b.host.astype(np.float64)


def arrays(m: int, n: int, k: int, out_dtype: str = "bf16") -> tuple[GpuArray, GpuArray, GpuArray]:
    """(a, b, out) of a product in bf16 with a k-contiguous b; out is NaN all over."""
    return gpu((m, k), seed=1), gpu((n, k), seed=2).t(), gpu((m, n), out_dtype, fill=float("nan"))


def equals(out: GpuArray, a: GpuArray, b: GpuArray) -> bool:
    """Whether out is the product, rounded once: operands are small integers, so every partial sum is exact."""
    return np.array_equal(out.host, product(a, b).astype(out.host.dtype))


def aligned_copy(source: np.ndarray, order: str) -> np.ndarray:
    packed = np.array(source, order=order)
    raw = np.zeros(packed.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    flat = raw[start : start + packed.nbytes].view(packed.dtype)
    copy = np.lib.stride_tricks.as_strided(flat, packed.shape, packed.strides) if packed.size else packed
    copy[...] = source
    return copy


@dataclass
class Kernel:
    name: str
    ordinal: int
    is_alive: bool = True


@dataclass
class Call:
    kernel: Kernel
    launch: Launch
    arguments: tuple[Argument, ...]
    addresses: dict[str, int]


@dataclass
class HostBackend:
    """The Backend protocol in host memory. Counts what it is asked; `computes` turns the arithmetic off."""

    devices: tuple[Device, ...] = (device.preset("h200"),)
    computes: bool = True
    name: str = "host"
    counts: Counter[str] = field(default_factory=Counter)
    launched: list[tuple[int, int]] = field(default_factory=list)  # (ordinal, stream)
    kernels: list[Kernel] = field(default_factory=list)
    homes: dict[int, int] = field(default_factory=dict)  # address -> ordinal, 0 when absent
    lock: threading.Lock = field(default_factory=threading.Lock)
    scratch: dict[int, Any] = field(default_factory=dict)  # allocated and not freed, by address
    reuses: bool = False  # whether what was freed last is given out next, as a pool does
    spare: Any = None

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def device(self, ordinal: int) -> Device:
        self.count("device")
        return self.devices[ordinal]

    def ordinal_of(self, address: int) -> int:
        self.count("ordinal_of")
        return self.homes.get(address, 0)

    def load(self, binary: Binary, ordinal: int, launch: Launch) -> Kernel:
        self.count("load")
        kernel = Kernel(binary.name, ordinal)
        self.kernels.append(kernel)
        return kernel

    def pack(self, kernel: Kernel, launch: Launch, arguments: tuple[Argument, ...], addresses: dict[str, int]) -> Call:
        self.count("pack")
        for argument in arguments:
            if isinstance(argument, MapArgument):
                assert argument.tensor_map.violations(addresses[argument.operand]) == ()
        return Call(kernel, launch, arguments, addresses)

    def launch(self, call: Call, stream: int) -> None:
        assert call.kernel.is_alive, "a call of an unloaded kernel"
        self.count("launch")
        self.launched.append((call.kernel.ordinal, stream))
        if self.computes:
            word = call.kernel.name.split("_")[0]
            {"repack": _repack, "sums": _sums}.get(word, _multiply)(call)

    def zero(self, address: int, pitch_bytes: int, row_bytes: int, num_rows: int, ordinal: int, stream: int) -> None:
        self.count("zero")
        for row in range(num_rows):
            ctypes.memset(address + row * pitch_bytes, 0, row_bytes)

    def allocate(self, num_bytes: int, ordinal: int, stream: int) -> int:
        self.count("allocate")
        memory = self.spare if self.reuses and self.spare is not None else np.zeros(num_bytes + 256, np.uint8)
        address = memory.ctypes.data + -memory.ctypes.data % 256
        self.scratch[address] = memory
        return address

    def free(self, address: int, ordinal: int, stream: int) -> None:
        self.count("free")
        self.spare = self.scratch.pop(address)

    def wait(self, stream: int, ordinal: int) -> None:
        self.count("wait")

    def clear(self) -> None:
        self.count("clear")
        for kernel in self.kernels:
            kernel.is_alive = False
        self.kernels.clear()


@dataclass
class FakeCompiler:
    """Stands in for jit.build.build: a Binary that carries its unit's name."""

    built: list[Source] = field(default_factory=list)

    def __call__(self, source: Source, *, refuse: bool = False) -> Binary:
        has_epilogue = "IS_PLAIN = false" in dict(source.headers).get("fused.cuh", "")
        assert refuse or has_epilogue, "production kernels refuse spills"
        self.built.append(source)
        return Binary(
            digest=source.name,
            name=source.name,
            entry=source.entry,
            arch=source.arch,
            compiler="none",
            cubin=b"\x7fELF",
            ptx="",
            log="",
            resources=Resources(168, 0, 0, 0, 0, 16),
            warnings=(),
            compile_seconds=0.0,
            from_cache=False,
        )


def _repack(call: Call) -> None:
    """The copies that kernel repack would make, through its arguments alone: numbers as struct Matrices has them."""
    for source, target, numbers in zip(*(call.arguments[start::3] for start in range(3)), strict=True):
        row_bytes, num_ctas, _, *rest = numbers.values
        if num_ctas == 0:
            continue
        dims = len(rest) // 4
        extents, _, sources, targets = (rest[dims * i : dims * (i + 1)] for i in range(4))
        for place in np.ndindex(*extents[1:]):
            from_, to = (
                call.addresses[argument.operand] + sum(x * stride for x, stride in zip(place, strides[1:], strict=True))
                for argument, strides in ((source, sources), (target, targets))
            )
            ctypes.memmove(to, from_, row_bytes)


def _sums(call: Call) -> None:
    """What kernel sums would add up, through its arguments alone."""
    out_type = dtypes.by_name(call.kernel.name.split("_")[1])
    slices, out, *rest = call.arguments
    numbers = {each.name: each.value for each in rest}
    rows, row = numbers["num_chunks"] // numbers["row_chunks"], 4 * numbers["row_chunks"]
    shape = (numbers["num_slices"], rows, row)
    found = _memory(call.addresses[slices.operand], shape, (rows * row * 4, row * 4), dtypes.FP32)
    total = found[0]
    for each in found[1:]:
        total = total + each
    extent = numbers["extent"]
    pitch_bytes = numbers["out_pitch"] * out_type.size
    _memory(call.addresses[out.operand], (rows, extent), (pitch_bytes,), out_type)[...] = total[:, :extent]


def _multiply(call: Call) -> None:
    """out = a x b as the kernel called hopper_<in>_<out>_<layout>_... would, through its arguments alone."""
    _, in_name, out_name, layout, *words = call.kernel.name.split("_")
    in_type, out_type = dtypes.by_name(in_name), dtypes.by_name(out_name)
    maps = [x for x in call.arguments if isinstance(x, MapArgument)]
    ints = {x.name: x.value for x in call.arguments if isinstance(x, IntArgument)}
    written = next(x.operand for x in call.arguments if isinstance(x, PointerArgument))  # out, or slices of it
    is_swapped = "swap" in words  # the kernel computes the transposed product, and its a is b
    first, second, m, n = (1, 0, ints["n"], ints["m"]) if is_swapped else (0, 1, ints["m"], ints["n"])
    a, b = (
        _through(x.tensor_map, call.addresses[x.operand], in_type).astype(np.float64)
        for x in (maps[first], maps[second])
    )
    a, b = (a if layout[1] == "n" else a.mT), (b.mT if layout[0] == "t" else b)
    batch = next((x.values for x in call.arguments if isinstance(x, IntsArgument)), (1,))
    dims = (len(batch) - 1) // 4
    extents, *moves, strides = (batch[1 + dims * i : 1 + dims * (i + 1)] for i in range(4))
    a_moves, b_moves = moves[first], moves[second]
    assert batch[0] == np.prod(extents, initial=1)
    for member in np.ndindex(*extents):
        at_a = tuple(reversed([x * move for x, move in zip(member, a_moves, strict=True)]))
        at_b = tuple(reversed([x * move for x, move in zip(member, b_moves, strict=True)]))
        offset = sum(x * stride for x, stride in zip(member, strides, strict=True)) * out_type.size
        address = call.addresses[written] + offset
        out = _memory(address, (m, n), (ints["out_pitch"] * out_type.size,), out_type)
        with np.errstate(over="ignore"):  # past the largest number of fp16
            out[...] = (a[at_a] @ b[at_b]).astype(out_type.numpy)


def _through(tensor_map: TensorMap, address: int, dtype: dtypes.DType) -> np.ndarray:
    """The whole array of a map, its innermost dimension last."""
    return _memory(address, tensor_map.extents[::-1], tensor_map.pitches_bytes[::-1], dtype)


def _memory(address: int, shape: tuple[int, ...], pitches_bytes: tuple[int, ...], dtype: dtypes.DType) -> np.ndarray:
    strides = (*pitches_bytes, dtype.size)
    size_bytes = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + dtype.size
    raw = np.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), np.uint8)
    return np.ndarray(shape, dtype.numpy, raw.data, strides=strides)
