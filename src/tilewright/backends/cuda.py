"""The CUDA driver: contexts, loaded kernels, packed calls, launches. The one file that imports the driver bindings.

Knows nothing of GEMM, of arrays or of the compiler. Importing this file touches no driver: the first use does,
through backend(). driver.py guards each call; parameters.py lays out the parameter block. Memory, streams and graphs
for the clock and the command line are in memory.py and stream.py, which reach the driver through `CudaBackend.call`.

State: contexts and loaded kernels, owned by the one CudaBackend of the process; `clear()` gives them back.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright import device as devices
from tilewright.backends.base import (
    L2_PROMOTION_CODES,
    SWIZZLE_CODES,
    TENSOR_MAP_BYTES,
    Argument,
    Launch,
    TensorMap,
)
from tilewright.backends.cubins import check_loadable
from tilewright.backends.driver import Driver, version_text
from tilewright.backends.parameters import Packer
from tilewright.device import Device
from tilewright.errors import DriverError, LayoutError, UnsupportedError
from tilewright.jit.source import Binary

# Handles 0, 1 and 2 name the default stream of whatever context is current (cuda.h: NULL, CU_STREAM_LEGACY,
# CU_STREAM_PER_THREAD). Any other handle belongs to one context, and a CUkernel runs in its stream's context.
LAST_NAMELESS_STREAM = 2

TENSOR_MAP_ADDRESS_BYTES = 16  # an operand's address is a multiple of this: cuTensorMapEncodeTiled
MAX_PITCH_BYTES = 2**31 - 1  # CU_DEVICE_ATTRIBUTE_MAX_PITCH of every current device
MAX_CACHED_CONFIGS = 64  # streams remembered by one plan


@dataclass(eq=False)
class _Context:
    """One device's primary context, retained once. `generation` counts how often it was found re-created."""

    device: Any  # CUdevice
    handle: Any  # CUcontext
    handle_value: int
    id: int
    generation: int = 0


@dataclass(eq=False)
class _Module:
    """One cubin loaded for one device. `handle` changes when the context was destroyed and the cubin loaded again."""

    binary: Binary
    context: _Context
    library: Any  # CUlibrary
    handle: Any  # CUkernel
    smem_bytes: int  # the dynamic shared memory that the entry is allowed so far
    generation: int


@dataclass(eq=False)
class Kernel:
    """A loaded entry point for one plan; remembers the packer of the arguments it was last packed with."""

    module: _Module
    ordinal: int
    packer: Packer | None = None


@dataclass(eq=False, slots=True)
class Call:
    """A launch with every argument in place. Never changed after pack(), so any number of threads may launch it.

    `parameters` is the address of the array of pointers to the parameters; `block` is the memory that holds both.
    """

    module: _Module
    configs: dict[int, Any]  # raw stream -> CUlaunchConfig; shared by the calls of a plan
    launch: Launch
    parameters: int
    block: Any


class CudaBackend:
    """The Backend protocol on a CUDA driver. `module` is cuda.bindings.driver, or a stand-in."""

    name = "cuda"

    def __init__(self, module: Any) -> None:
        """Raises: DriverError: no driver, one that is too old, or one that refuses to start."""
        self.driver = Driver(module)
        self.call = self.driver.call
        self._lock = threading.RLock()
        self._devices: dict[int, Device] = {}
        self._contexts: dict[int, _Context] = {}
        self._modules: dict[tuple[str, int], _Module] = {}
        # Bound once: the warm path looks nothing up in the bindings.
        self._launch_kernel = module.cuLaunchKernelEx
        self._get_current = module.cuCtxGetCurrent

    @property
    def driver_version(self) -> int:
        """The newest CUDA that the driver serves, as 1000 x major + 10 x minor."""
        return self.driver.version

    # -- devices and contexts ----------------------------------------------------------------------------------------

    def num_devices(self) -> int:
        """GPUs that this process may use."""
        return int(self.call("cuDeviceGetCount"))

    def device(self, ordinal: int) -> Device:
        """The device with this ordinal, as a value.

        Raises: UnsupportedError: no such ordinal. Cost: the first call for an ordinal asks the driver.
        """
        found = self._devices.get(ordinal)
        if found is None:
            found = self._devices[ordinal] = self._read_device(ordinal)
        return found

    def _read_device(self, ordinal: int) -> Device:
        handle = self._device_handle(ordinal)
        attributes = self.driver.module.CUdevice_attribute

        def read(word: str) -> int:
            return int(self.call("cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{word}"), handle))

        name = self.call("cuDeviceGetName", 128, handle)
        return devices.from_attributes(
            name=name.split(b"\0")[0].decode(),
            sm=(read("COMPUTE_CAPABILITY_MAJOR"), read("COMPUTE_CAPABILITY_MINOR")),
            num_sms=read("MULTIPROCESSOR_COUNT"),
            smem_per_cta_bytes=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            smem_per_sm_bytes=read("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            registers_per_sm=read("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            l2_bytes=read("L2_CACHE_SIZE"),
        )

    def uuid(self, ordinal: int) -> str:
        """The name under which NVML and nvidia-smi know the device: their own index ignores CUDA_VISIBLE_DEVICES."""
        raw = bytes(self.call("cuDeviceGetUuid", self._device_handle(ordinal)).bytes).hex()
        return f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"

    def ordinal_of(self, address: int) -> int:
        """The device that holds the memory at an address, for arrays that do not say it (CUDA array interface).

        Raises: DriverError: no memory that the driver knows.
        """
        attribute = self.driver.module.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self.call("cuPointerGetAttribute", attribute, address))

    def is_capturing(self, stream: int, ordinal: int) -> bool:
        """Whether what is enqueued on the raw stream goes into a graph that is being captured."""
        with self.on(ordinal):
            return int(self.call("cuStreamIsCapturing", stream)) != 0

    def _device_handle(self, ordinal: int) -> Any:
        count = self.num_devices()
        if not 0 <= ordinal < count:
            raise UnsupportedError(
                asked=f"CUDA device {ordinal}",
                rule=f"this process sees {count} of them",
                works=f"use an ordinal below {count}, or set CUDA_VISIBLE_DEVICES to show more",
            )
        return self.call("cuDeviceGet", ordinal)

    def _context(self, ordinal: int) -> _Context:
        found = self._contexts.get(ordinal)
        if found is not None:
            return found
        with self._lock:
            if ordinal not in self._contexts:
                device = self._device_handle(ordinal)
                with self._relaxed():
                    handle = self.call("cuDevicePrimaryCtxRetain", device)
                context_id = int(self.call("cuCtxGetId", handle))
                self._contexts[ordinal] = _Context(device, handle, int(handle), context_id)
            return self._contexts[ordinal]

    @contextlib.contextmanager
    def _relaxed(self) -> Iterator[None]:
        """Inside the block this thread may load kernels although a stream is being captured, here or in another thread.

        Nothing that is loaded belongs to a graph, so a capture loses nothing by it.
        Source: CUDA driver API, cuThreadExchangeStreamCaptureMode: others prohibit calls that a capture cannot see.
        """
        relaxed = self.driver.module.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", before)

    @contextlib.contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        """Makes the device's primary context current inside the block, and leaves the thread's choice as it was.

        Pushed and popped, never set: it would change torch's current device in a thread that had no context.
        """
        with self._inside(self._context(ordinal)):
            yield

    @contextlib.contextmanager
    def _inside(self, context: _Context) -> Iterator[None]:
        if int(self.call("cuCtxGetCurrent")) == context.handle_value:
            yield
            return
        self.call("cuCtxPushCurrent", context.handle)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent")

    # -- kernels -----------------------------------------------------------------------------------------------------

    def load(self, binary: Binary, ordinal: int, launch: Launch) -> Kernel:
        """A kernel that can be launched on the device. Plans with one binary share what is loaded.

        Raises: UnsupportedError: machine code for another device, or none. DriverError: the driver refused it.
        """
        check_loadable(binary, self.device(ordinal), self.driver.version)
        with self._lock:
            module = self._modules.get((binary.digest, ordinal))
            if module is None:
                context = self._context(ordinal)
                module = _Module(binary, context, None, None, 0, context.generation)
                with self._relaxed():
                    self._fill(module)
                self._modules[binary.digest, ordinal] = module
            if launch.smem_bytes > module.smem_bytes:
                with self._relaxed():
                    self._allow_smem(module, launch.smem_bytes)
        return Kernel(module, ordinal)

    def _fill(self, module: _Module) -> None:
        """Loads the cubin, into the module's context too: left to the driver, that would be done by the first launch,
        where it may wait for the device, and inside a capture is not allowed."""
        cubin = module.binary.cubin
        status, library = self.driver.module.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)
        if status:
            fact = f"cubin for {module.binary.arch} by {module.binary.compiler}"
            fact += f", driver for CUDA {version_text(self.driver.version)}"
            raise self.driver.error("cuLibraryLoadData", status, (cubin,), fact)
        module.library = library
        module.handle = self.call("cuLibraryGetKernel", library, module.binary.entry.encode())
        with self._inside(module.context):
            self.call("cuFuncLoad", self.call("cuKernelGetFunction", module.handle))
        module.generation = module.context.generation

    def _allow_smem(self, module: _Module, smem_bytes: int) -> None:
        limit = self.driver.module.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuKernelSetAttribute", limit, smem_bytes, module.handle, module.context.device)
        module.smem_bytes = smem_bytes

    # -- calls -------------------------------------------------------------------------------------------------------

    def pack(self, kernel: Kernel, launch: Launch, arguments: tuple[Argument, ...], addresses: dict[str, int]) -> Call:
        """A Call: the launch with every argument in place, reusable for as long as the addresses hold.

        Raises: LayoutError: a tensor map that the hardware would refuse.
        """
        packer = kernel.packer
        if packer is None or packer.arguments is not arguments or packer.launch is not launch:
            packer = kernel.packer = Packer(launch, arguments, functools.partial(self._encoder, kernel.ordinal))
        block, parameters = packer.fill(addresses)
        return Call(kernel.module, packer.configs, launch, parameters, block)

    def _encoder(self, ordinal: int, tensor_map: TensorMap) -> Callable[[int], bytes]:
        """What encodes the map at an address. Raises, when called: LayoutError: the hardware would refuse it there."""
        d = self.driver.module
        kind = d.CUtensorMapDataType(tensor_map.dtype.tma_code)
        rank = len(tensor_map.extents)
        shape = (
            [d.cuuint64_t(extent) for extent in tensor_map.extents],
            [d.cuuint64_t(pitch) for pitch in tensor_map.pitches_bytes],
            [d.cuuint32_t(size) for size in tensor_map.box],
            [d.cuuint32_t(1)] * rank,  # element strides: every element
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            d.CUtensorMapSwizzle(SWIZZLE_CODES.get(tensor_map.swizzle_bytes, 0)),
            d.CUtensorMapL2promotion(L2_PROMOTION_CODES.get(tensor_map.l2_promotion_bytes, 0)),
            d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,  # elements outside read as zero, not NaN
        )
        is_legal = not tensor_map.violations(0)

        def encode(address: int) -> bytes:
            if not is_legal or address % TENSOR_MAP_ADDRESS_BYTES:
                raise LayoutError(
                    asked=f"a tensor map over {tensor_map.extents} {tensor_map.dtype} at {address:#x}",
                    rule="; ".join(tensor_map.violations(address)),
                    works="copy the operand into freshly allocated rows padded to 16 bytes",
                )
            with self.on(ordinal):  # without a current context the driver answers INVALID_CONTEXT (580.159, H200)
                encoded = self.call("cuTensorMapEncodeTiled", kind, rank, address, *shape)
            return ctypes.string_at(encoded.getPtr(), TENSOR_MAP_BYTES)

        return encode

    def launch(self, call: Call, stream: int) -> None:
        """Enqueue the call on the raw stream. Returns before it has run.

        Cost: one dict look-up, and for a nameless stream one question to the driver, over the bare cuLaunchKernelEx.
        """
        module = call.module
        config = call.configs.get(stream)
        if config is None:
            config = self._config(call, stream)
        # The default stream is the current context's, which may be another device's: a launch there would run on the
        # wrong GPU and succeed. Handles above 2 carry their context.
        if (stream > LAST_NAMELESS_STREAM or int(self._get_current()[1]) == module.context.handle_value) and not (
            self._launch_kernel(config, module.handle, call.parameters, 0)[0]
        ):
            return
        self._launch_slowly(call, config)

    def bare_launch(self, call: Call, stream: int) -> Callable[[], Any]:
        """cuLaunchKernelEx on a call that launch() has launched on this stream, and nothing else: what host costs are
        compared with. Its status is not looked at."""
        handle, parameters = call.module.handle, call.parameters
        return functools.partial(self._launch_kernel, call.configs[stream], handle, parameters, 0)

    def _launch_slowly(self, call: Call, config: Any) -> None:
        """The launch when another context is current, or after a refusal.

        Tried in the right context, and once more with the kernel loaded again if that context turns out to have been
        destroyed and re-created (cudaDeviceReset). A launch that returned an error has enqueued nothing.
        """
        handle = call.module.handle
        status = self._launch_in_context(call, config)
        if status and self._revive(call.module, handle):
            status = self._launch_in_context(call, config)
        if status:
            raise self.driver.error("cuLaunchKernelEx", status, (call.launch, call.module.binary.name))

    def _launch_in_context(self, call: Call, config: Any) -> Any:
        """The status of pushing the context, or of the launch in it."""
        context = call.module.context
        status, current = self._get_current()
        if not status and int(current) == context.handle_value:
            return self._launch_kernel(config, call.module.handle, call.parameters, 0)[0]
        status = self.driver.module.cuCtxPushCurrent(context.handle)[0]
        if status:
            return status
        try:
            return self._launch_kernel(config, call.module.handle, call.parameters, 0)[0]
        finally:
            self.call("cuCtxPopCurrent")

    def _revive(self, module: _Module, failed: Any) -> bool:
        """Loads a kernel again if its context is not the one it was loaded beside. Whether a new launch may succeed.

        The old library is not unloaded: another thread may be in the middle of a launch of it.
        """
        context = module.context
        with self._lock:
            if module.handle is not failed:
                return True  # another thread met the same failure first
            status, fresh = self.driver.module.cuDevicePrimaryCtxRetain(context.device)
            if status:
                return False
            status, fresh_id = self.driver.module.cuCtxGetId(fresh)
            if status:
                return False
            if fresh_id == context.id:
                self.call("cuDevicePrimaryCtxRelease", context.device)  # the first retain still counts
            else:
                context.handle, context.handle_value, context.id = fresh, int(fresh), int(fresh_id)
                context.generation += 1
            if module.generation == context.generation:
                return False
            smem_bytes = module.smem_bytes
            with self._relaxed():
                self._fill(module)
                self._allow_smem(module, smem_bytes)
            return True

    def max_clusters(self, kernel: Kernel, launch: Launch) -> int:
        """How many clusters of the launch the device holds at once: the SMs of one lie in one group of the chip."""
        with self.on(kernel.ordinal):
            function = self.call("cuKernelGetFunction", kernel.module.handle)
            return int(self.call("cuOccupancyMaxActiveClusters", function, self._shape(launch, 0)))

    def _config(self, call: Call, stream: int) -> Any:
        """The launch shape on one stream; written once and only read afterwards, so threads may share it."""
        config = self._shape(call.launch, stream)
        if len(call.configs) >= MAX_CACHED_CONFIGS:
            call.configs.clear()
        call.configs[stream] = config
        return config

    def _shape(self, launch: Launch, stream: int) -> Any:
        """A CUlaunchConfig."""
        d = self.driver.module
        config = d.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
        config.sharedMemBytes = launch.smem_bytes
        config.hStream = d.CUstream(stream)
        attributes = []
        if launch.cluster > 1:
            attribute = d.CUlaunchAttribute()
            attribute.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x = launch.cluster
            attribute.value.clusterDim.y = 1
            attribute.value.clusterDim.z = 1
            attributes.append(attribute)
        if launch.is_dependent:
            attribute = d.CUlaunchAttribute()
            attribute.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def zero(self, address: int, pitch_bytes: int, row_bytes: int, num_rows: int, ordinal: int, stream: int) -> None:
        """Enqueue zeros into num_rows rows. No kernel of ours is launched; bytes between the rows are not touched."""
        if row_bytes == 0 or num_rows == 0:
            return
        with self.on(ordinal):
            if pitch_bytes == row_bytes or num_rows == 1:
                self.call("cuMemsetD8Async", address, 0, row_bytes * num_rows, stream)
            elif pitch_bytes <= MAX_PITCH_BYTES:
                self.call("cuMemsetD2D8Async", address, pitch_bytes, 0, row_bytes, num_rows, stream)
            else:
                for row in range(num_rows):
                    self.call("cuMemsetD8Async", address + row * pitch_bytes, 0, row_bytes, stream)

    def allocate(self, num_bytes: int, ordinal: int, stream: int) -> int:
        """Memory from the device's stream-ordered pool: whoever used it before on this stream is done when work that is
        enqueued from here on begins. Inside a capture it becomes the graph's own.

        Raises: DriverError: the device has not that much left.
        """
        with self.on(ordinal):
            return int(self.call("cuMemAllocAsync", num_bytes, stream))

    def free(self, address: int, ordinal: int, stream: int) -> None:
        """Give the memory back behind what is enqueued on the stream."""
        with self.on(ordinal):
            self.call("cuMemFreeAsync", address, stream)

    def wait(self, stream: int, ordinal: int) -> None:
        """Block this thread until the raw stream has come to its end. Raises: DriverError: work on it failed."""
        with self.on(ordinal):
            self.call("cuStreamSynchronize", stream)

    def clear(self) -> None:
        """Unload every kernel and give every context back. Kernels and calls made before are dead."""
        with self._lock:
            for module in self._modules.values():
                self.driver.module.cuLibraryUnload(module.library)  # status ignored: its context may be dead
            for context in self._contexts.values():
                self.driver.module.cuDevicePrimaryCtxRelease(context.device)
            self._modules.clear()
            self._contexts.clear()
            self._devices.clear()


_backend: CudaBackend | None = None
_backend_lock = threading.Lock()


def backend() -> CudaBackend:
    """The process's CUDA backend, made on first use.

    Raises: DriverError: the bindings or the driver are missing, the driver is too old, or it refuses to start.
    """
    global _backend
    if _backend is None:
        with _backend_lock:
            if _backend is None:
                _backend = CudaBackend(_bindings())
    return _backend


def _bindings() -> Any:
    try:
        from cuda.bindings import driver  # here: importing this module must work where the bindings are absent
    except ImportError as missing:
        raise DriverError(
            call="import cuda.bindings.driver",
            status="ImportError",
            explanation=f"the Python bindings of the CUDA driver are not there ({missing}); install cuda-bindings 13",
        ) from missing
    return driver


def _forget_after_fork() -> None:
    """A child has its parent's handles but no driver state: it starts anew, and the driver says whether it may."""
    global _backend, _backend_lock
    _backend = None
    _backend_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
