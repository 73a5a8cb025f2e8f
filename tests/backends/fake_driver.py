"""A stand-in for cuda.bindings.driver that remembers what it was asked, for machines with no GPU.

It imitates what the CUDA backend relies on and no more: primary contexts and each thread's stack of them, libraries
that die with a reset, launches that need the right context, what a capture forbids, and any status on demand.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import struct
import threading
from types import SimpleNamespace
from typing import Any


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


# What is prohibited while a stream is being captured, in a thread that has not relaxed its mode.
UNSAFE = ("cuLibraryLoadData", "cuFuncLoad", "cuKernelSetAttribute", "cuDevicePrimaryCtxRetain", "cuMemAlloc")
GLOBAL, RELAXED = "CU_STREAM_CAPTURE_MODE_GLOBAL", "CU_STREAM_CAPTURE_MODE_RELAXED"

OK = CUresult.CUDA_SUCCESS

HOPPER = {"name": "NVIDIA H200", "sm": (9, 0), "num_sms": 132}

_ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": lambda device: device["sm"][0],
    "COMPUTE_CAPABILITY_MINOR": lambda device: device["sm"][1],
    "MULTIPROCESSOR_COUNT": lambda device: device["num_sms"],
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": lambda device: 227 * 1024,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": lambda device: 228 * 1024,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": lambda device: 65536,
    "L2_CACHE_SIZE": lambda device: 60 << 20,
}


class _Names:
    """An enum of the bindings: each name, and each value, is what was asked for."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> str:
        return name

    def __call__(self, value: int) -> tuple[str, int]:
        return (self._kind, value)


class _LaunchConfig:
    def __init__(self) -> None:
        self.attrs: list[Any] = []
        self.numAttrs = 0


class _LaunchAttribute:
    def __init__(self) -> None:
        self.id: Any = None
        self.value = SimpleNamespace(clusterDim=SimpleNamespace(x=0, y=0, z=0))


class _TensorMap:
    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments
        address = arguments[2]
        self._bytes = ctypes.create_string_buffer(struct.pack("<Q", address) * 16, 128)

    def getPtr(self) -> int:  # noqa: N802  the bindings' name
        return ctypes.addressof(self._bytes)


class FakeDriver:
    """`calls` holds (function, arguments) in order; `refuse` maps a function to the statuses of its next calls."""

    CUdevice_attribute = _Names("attribute")
    CUfunction_attribute = _Names("function attribute")
    CUpointer_attribute = _Names("pointer attribute")
    CUtensorMapDataType = _Names("dtype")
    CUtensorMapInterleave = _Names("interleave")
    CUtensorMapSwizzle = _Names("swizzle")
    CUtensorMapL2promotion = _Names("promotion")
    CUtensorMapFloatOOBfill = _Names("fill")
    CUlaunchAttributeID = _Names("launch attribute")
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = _Names("capture")
    CUlaunchConfig = _LaunchConfig
    CUlaunchAttribute = _LaunchAttribute
    CUstream = int
    cuuint64_t = int
    cuuint32_t = int

    def __init__(self, devices: list[dict[str, Any]] | None = None, version: int = 13000) -> None:
        self.devices = [HOPPER] if devices is None else devices
        self.version = version
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.refuse: dict[str, list[CUresult]] = {}
        self.launches: list[SimpleNamespace] = []
        self.retained = [0] * len(self.devices)
        self.context_ids = list(range(1, len(self.devices) + 1))
        self.streams: dict[int, int] = {}  # stream -> device
        self.kernels: dict[int, int] = {}  # kernel -> the generation that it was loaded in
        self.generation = 0
        self.smem: dict[int, int] = {}
        self.memory: dict[int, Any] = {}
        self.homes: dict[int, int] = {}  # address -> device
        self.clock_ms = 0.0
        self.is_capturing = False  # some stream of the process, in the mode that torch.cuda.graph asks for
        self.finished: set[int] = set()  # kernels whose code is on the device
        self._threads = threading.local()
        self._next = itertools.count(0x10000)

    # -- what tests do to it -----------------------------------------------------------------------------------------

    def reset(self, ordinal: int) -> None:
        """cudaDeviceReset, and the runtime making the primary context again with the same handle."""
        self.context_ids[ordinal] += 1000
        self.generation += 1
        self.retained[ordinal] = 0

    def make_current(self, ordinal: int | None) -> None:
        """What cudaSetDevice does to this thread; None: a thread that never touched CUDA."""
        self._threads.stack = [] if ordinal is None else [context(ordinal)]

    def asked(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of one function."""
        return [arguments for called, arguments in self.calls if called == name]

    # -- functions that answer for themselves ------------------------------------------------------------------------

    def _stack(self) -> list[int]:
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        return self._threads.stack

    def cuGetErrorString(self, status: CUresult) -> tuple[CUresult, bytes]:  # noqa: N802
        return OK, status.name.removeprefix("CUDA_ERROR_").lower().replace("_", " ").encode()

    def cuCtxGetCurrent(self) -> tuple[CUresult, int]:  # noqa: N802
        return OK, (self._stack() or [0])[-1]

    def cuLaunchKernelEx(self, config: Any, kernel: int, parameters: int, extra: int) -> tuple[CUresult]:  # noqa: N802
        self.calls.append(("cuLaunchKernelEx", (config, kernel, parameters, extra)))
        if status := self._refused("cuLaunchKernelEx"):
            return (status,)
        if config.hStream > 2:
            device = self.streams.get(config.hStream, 0)
        elif not self._stack():
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        else:
            device = self._stack()[-1] - context(0)
        if self.kernels.get(kernel) != self.generation:
            return (CUresult.CUDA_ERROR_INVALID_HANDLE,)
        if self.is_capturing and kernel not in self.finished:  # it would be loaded now
            return (CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
        self.launches.append(
            SimpleNamespace(device=device, stream=config.hStream, kernel=kernel, config=config, parameters=parameters)
        )
        return (OK,)

    # -- everything else ---------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        answer = getattr(self, f"_{name}", None)

        def function(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            if status := self._refused(name):
                return (status, None)
            result = answer(*arguments) if answer is not None else ()
            return (OK, *result) if isinstance(result, tuple) else (OK, result)

        return function

    def _refused(self, name: str) -> CUresult | None:
        if self.is_capturing and name in UNSAFE and self._mode() != RELAXED:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        statuses = self.refuse.get(name)
        return statuses.pop(0) if statuses else None

    def _cuInit(self, flags: int) -> tuple[()]:  # noqa: N802
        return ()

    def _cuDriverGetVersion(self) -> int:  # noqa: N802
        return self.version

    def _cuDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def _cuDeviceGet(self, ordinal: int) -> int:  # noqa: N802
        return ordinal

    def _cuDeviceGetName(self, size: int, device: int) -> bytes:  # noqa: N802
        return self.devices[device]["name"].encode().ljust(size, b"\0")

    def _cuDeviceGetUuid(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(bytes=bytes(range(device, device + 16)))

    def _cuDeviceGetAttribute(self, attribute: str, device: int) -> int:  # noqa: N802
        return _ATTRIBUTES[attribute.removeprefix("CU_DEVICE_ATTRIBUTE_")](self.devices[device])

    def _cuDevicePrimaryCtxRetain(self, device: int) -> int:  # noqa: N802
        self.retained[device] += 1
        return context(device)

    def _cuDevicePrimaryCtxRelease(self, device: int) -> tuple[()]:  # noqa: N802
        self.retained[device] -= 1
        return ()

    def _mode(self) -> str:
        return getattr(self._threads, "mode", GLOBAL)

    def _cuThreadExchangeStreamCaptureMode(self, mode: str) -> str:  # noqa: N802
        before, self._threads.mode = self._mode(), mode
        return before

    def _cuFuncLoad(self, function: int) -> tuple[()]:  # noqa: N802
        self.finished.add(function)
        return ()

    def _cuKernelGetFunction(self, kernel: int) -> int:  # noqa: N802
        return kernel

    def _cuOccupancyMaxActiveClusters(self, function: int, config: Any) -> int:  # noqa: N802
        return 16

    def _cuCtxGetId(self, handle: int) -> int:  # noqa: N802
        return self.context_ids[handle - context(0)]

    def _cuCtxPushCurrent(self, handle: int) -> tuple[()]:  # noqa: N802
        self._stack().append(handle)
        return ()

    def _cuCtxPopCurrent(self) -> int:  # noqa: N802
        return self._stack().pop()

    def _cuLibraryLoadData(self, *arguments: Any) -> int:  # noqa: N802
        return next(self._next)

    def _cuLibraryGetKernel(self, library: int, name: bytes) -> int:  # noqa: N802
        kernel = next(self._next)
        self.kernels[kernel] = self.generation
        return kernel

    def _cuKernelSetAttribute(self, attribute: str, value: int, kernel: int, device: int) -> tuple[()]:  # noqa: N802
        self.smem[kernel] = value
        return ()

    def _cuPointerGetAttribute(self, attribute: str, address: int) -> int:  # noqa: N802
        return self.homes[address]

    def _cuTensorMapEncodeTiled(self, *arguments: Any) -> _TensorMap:  # noqa: N802
        return _TensorMap(arguments)

    def _cuMemAlloc(self, size: int) -> int:  # noqa: N802
        block = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(block) // 256) * 256  # aligned as the driver aligns
        self.memory[address] = block
        return address

    def _cuMemFree(self, address: int) -> tuple[()]:  # noqa: N802
        del self.memory[address]
        return ()

    def _cuMemcpyHtoD(self, target: int, source: int, size: int) -> tuple[()]:  # noqa: N802
        ctypes.memmove(target, source, size)
        return ()

    def _cuMemcpyDtoH(self, target: int, source: int, size: int) -> tuple[()]:  # noqa: N802
        ctypes.memmove(target, source, size)
        return ()

    def _cuMemsetD32Async(self, address: int, value: int, count: int, stream: int) -> tuple[()]:  # noqa: N802
        ctypes.memmove(address, struct.pack("<I", value) * count, 4 * count)
        return ()

    def _cuMemsetD8Async(self, address: int, value: int, count: int, stream: int) -> tuple[()]:  # noqa: N802
        if address in self.memory or any(base <= address < base + len(block) for base, block in self.memory.items()):
            ctypes.memset(address, value, count)
        return ()

    def _cuStreamCreate(self, flags: int) -> int:  # noqa: N802
        stream = next(self._next)
        self.streams[stream] = self._stack()[-1] - context(0)
        return stream

    def _cuStreamEndCapture(self, stream: int) -> int:  # noqa: N802
        return next(self._next)

    def _cuGraphInstantiate(self, graph: int, flags: int) -> int:  # noqa: N802
        return next(self._next)

    def _cuEventCreate(self, flags: int) -> int:  # noqa: N802
        return next(self._next)

    def _cuEventElapsedTime(self, start: int, stop: int) -> float:  # noqa: N802
        return 1.5


def context(ordinal: int) -> int:
    """The handle of a device's primary context."""
    return 0x700 + ordinal
