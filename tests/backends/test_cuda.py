"""The CUDA backend against a stand-in driver: what it asks for, and what it makes of each answer."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
import subprocess
import sys
import threading

import pytest
from fake_driver import HOPPER, CUresult, FakeDriver, context

from tilewright.backends import cuda
from tilewright.backends.base import IntArgument, Launch, MapArgument, PointerArgument, TensorMap
from tilewright.backends.cuda import MAX_CACHED_CONFIGS, CudaBackend
from tilewright.backends.parameters import MAX_CACHED_MAPS
from tilewright.dtypes import BF16
from tilewright.errors import DriverError, LayoutError, UnsupportedError
from tilewright.jit.source import Binary, Resources

BINARY = Binary(
    digest="d" * 32,
    name="gemm",
    entry="gemm",
    arch="sm_90a",
    compiler="nvrtc 13.5.37",
    cubin=b"\x7fELF machine code",
    ptx=".version 9.0",
    log="",
    resources=Resources(
        registers=168, spill_store_bytes=0, spill_load_bytes=0, stack_bytes=0, smem_bytes=0, barriers=1
    ),
    warnings=(),
    compile_seconds=0.5,
    from_cache=False,
)
LAUNCH = Launch(grid=132, block=384, cluster=1, smem_bytes=200_000)
MAP = TensorMap(dtype=BF16, extents=(64, 128), pitches_bytes=(128,), box=(64, 64), swizzle_bytes=128)
ARGUMENTS = (
    MapArgument("a", MAP),
    MapArgument("b", MAP),
    IntArgument("out_map", 0, 4),
    PointerArgument("out"),
    IntArgument("out_pitch", 2**40 + 5, 8),
    IntArgument("m", -1, 4),
)
ADDRESSES = {"a": 0x10000, "b": 0x20000, "out": 0x30002}


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def backend(driver: FakeDriver) -> CudaBackend:
    return CudaBackend(driver)


def packed(backend: CudaBackend, ordinal: int = 0, launch: Launch = LAUNCH) -> cuda.Call:
    return backend.pack(backend.load(BINARY, ordinal, launch), launch, ARGUMENTS, ADDRESSES)


def parameter(call: cuda.Call, index: int, size: int) -> bytes:
    pointer = ctypes.c_uint64.from_address(call.parameters + 8 * index).value
    return ctypes.string_at(pointer, size)


# -- the driver itself ---------------------------------------------------------------------------------------------


def test_module_imports_without_loading_the_bindings() -> None:
    code = "import sys, tilewright.backends.cuda; sys.exit(any(name.startswith('cuda.') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_libcuda_is_a_driver_error_that_says_what_to_install(driver: FakeDriver) -> None:
    class NoLibrary:
        def cuInit(self, flags: int) -> None:  # noqa: N802
            raise RuntimeError("libcuda.so.1 not found")

    with pytest.raises(DriverError, match=r"no libcuda.so.1.*install release 580"):
        CudaBackend(NoLibrary())


def test_old_driver_is_refused_with_both_versions_named() -> None:
    with pytest.raises(DriverError, match=r"CUDA up to 12\.8.*CUDA 13\.0, release 580"):
        CudaBackend(FakeDriver(version=12080))


def test_no_device_says_where_to_look(driver: FakeDriver) -> None:
    driver.refuse["cuInit"] = [CUresult.CUDA_ERROR_NO_DEVICE]
    with pytest.raises(DriverError, match="CUDA_VISIBLE_DEVICES") as caught:
        CudaBackend(driver)
    assert caught.value.status == "CUDA_ERROR_NO_DEVICE"


def test_status_becomes_an_error_with_call_status_meaning_and_arguments(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    driver.refuse["cuMemAlloc"] = [CUresult.CUDA_ERROR_OUT_OF_MEMORY]
    with pytest.raises(DriverError) as caught:
        backend.call("cuMemAlloc", 1 << 40)
    assert str(caught.value) == (
        "cuMemAlloc(1099511627776) returned CUDA_ERROR_OUT_OF_MEMORY: out of memory; free device memory, or choose "
        "smaller sizes"
    )


@pytest.mark.parametrize("status", [status for status in CUresult if status])
def test_every_status_of_a_launch_raises_with_its_name(status: CUresult) -> None:
    driver = FakeDriver()
    backend = CudaBackend(driver)
    call = packed(backend)
    driver.make_current(0)
    driver.refuse["cuLaunchKernelEx"] = [status] * 4
    with pytest.raises(DriverError) as caught:
        backend.launch(call, 0)
    assert caught.value.status == status.name
    assert driver.cuCtxGetCurrent()[1] == context(0)


# -- devices -------------------------------------------------------------------------------------------------------


def test_attributes_are_read_once_for_each_device_b124() -> None:
    driver = FakeDriver([HOPPER, HOPPER | {"name": "NVIDIA H20", "num_sms": 78}])
    backend = CudaBackend(driver)
    assert [backend.device(ordinal).num_sms for ordinal in (0, 1, 0, 1)] == [132, 78, 132, 78]
    assert backend.device(1).name == "NVIDIA H20"
    assert len(driver.asked("cuDeviceGetName")) == 2


def test_unknown_ordinal_is_refused_with_the_number_of_devices(backend: CudaBackend) -> None:
    with pytest.raises(UnsupportedError, match="CUDA device 3: this process sees 1"):
        backend.device(3)


def test_uuid_is_spelled_as_nvml_spells_it(backend: CudaBackend) -> None:
    assert backend.uuid(0) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


# -- loading -------------------------------------------------------------------------------------------------------


def test_binary_is_loaded_once_for_plans_that_share_it(driver: FakeDriver, backend: CudaBackend) -> None:
    first, second = backend.load(BINARY, 0, LAUNCH), backend.load(BINARY, 0, LAUNCH)
    assert first is not second
    assert first.module is second.module
    assert len(driver.asked("cuLibraryLoadData")) == 1


def test_first_use_inside_a_capture_loads_the_kernel_whole_and_leaves_the_mode_as_it_was_b115(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    """The launch is captured: nothing is left for the driver to load then."""
    driver.is_capturing = True
    kernel = backend.load(BINARY, 0, LAUNCH)
    backend.launch(backend.pack(kernel, LAUNCH, ARGUMENTS, ADDRESSES), 0x500)
    assert len(driver.launches) == 1
    assert driver.asked("cuThreadExchangeStreamCaptureMode")[-1] == ("CU_STREAM_CAPTURE_MODE_GLOBAL",)
    assert driver.cuCtxGetCurrent()[1] == 0


def test_a_cubin_that_is_refused_inside_a_capture_leaves_the_mode_as_it_was(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    driver.is_capturing, driver.refuse["cuLibraryLoadData"] = True, [CUresult.CUDA_ERROR_INVALID_IMAGE]
    with pytest.raises(DriverError, match="INVALID_IMAGE"):
        backend.load(BINARY, 0, LAUNCH)
    assert driver.asked("cuThreadExchangeStreamCaptureMode")[-1] == ("CU_STREAM_CAPTURE_MODE_GLOBAL",)


def test_shared_memory_limit_only_grows(driver: FakeDriver, backend: CudaBackend) -> None:
    for smem_bytes in (1000, 3000, 2000):
        backend.load(BINARY, 0, dataclasses.replace(LAUNCH, smem_bytes=smem_bytes))
    assert [arguments[1] for arguments in driver.asked("cuKernelSetAttribute")] == [1000, 3000]


@pytest.mark.parametrize("sm", [(10, 0), (8, 9), (9, 1)])
def test_machine_code_of_another_arch_is_refused_before_the_driver_sees_it_b110(sm: tuple[int, int]) -> None:
    driver = FakeDriver([HOPPER | {"name": "NVIDIA X 1", "sm": sm}])
    with pytest.raises(UnsupportedError, match="gemm built for sm_90a on NVIDIA X 1"):
        CudaBackend(driver).load(BINARY, 0, LAUNCH)
    assert not driver.asked("cuLibraryLoadData")


def test_machine_code_without_a_runs_on_later_minor_versions_only() -> None:
    driver = FakeDriver([HOPPER | {"name": "NVIDIA X 1", "sm": (8, 6)}])
    backend = CudaBackend(driver)
    backend.load(dataclasses.replace(BINARY, arch="sm_80"), 0, LAUNCH)
    with pytest.raises(UnsupportedError):
        backend.load(dataclasses.replace(BINARY, arch="sm_89", digest="e"), 0, LAUNCH)


def test_ptx_is_never_given_to_the_driver_b107(driver: FakeDriver, backend: CudaBackend) -> None:
    with pytest.raises(UnsupportedError, match=r"nvrtc 13\.5\.37.*CUDA 13\.0 refuses the PTX of a newer"):
        backend.load(dataclasses.replace(BINARY, cubin=b".version 9.0"), 0, LAUNCH)
    assert not driver.asked("cuLibraryLoadData")


def test_refused_cubin_names_compiler_and_driver(driver: FakeDriver, backend: CudaBackend) -> None:
    driver.refuse["cuLibraryLoadData"] = [CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU]
    with pytest.raises(DriverError, match=r"sm_90a by nvrtc 13\.5\.37, driver for CUDA 13\.0"):
        backend.load(BINARY, 0, LAUNCH)
    backend.load(BINARY, 0, LAUNCH)  # a failed load leaves nothing behind


def test_the_driver_says_which_device_holds_an_address() -> None:
    driver = FakeDriver([HOPPER, HOPPER])
    driver.homes = {0x10000: 1, 0x20000: 0}
    backend = CudaBackend(driver)
    assert [backend.ordinal_of(address) for address in driver.homes] == [1, 0]
    attribute = "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"
    assert driver.asked("cuPointerGetAttribute") == [(attribute, 0x10000), (attribute, 0x20000)]


def test_an_address_that_the_driver_does_not_know_is_an_error_with_the_address(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    driver.refuse["cuPointerGetAttribute"] = [CUresult.CUDA_ERROR_INVALID_VALUE]
    with pytest.raises(DriverError, match=r"cuPointerGetAttribute\(.*, 48\) returned CUDA_ERROR_INVALID_VALUE"):
        backend.ordinal_of(48)


# -- packing -------------------------------------------------------------------------------------------------------


def test_every_argument_lies_where_its_pointer_says(backend: CudaBackend) -> None:
    call = packed(backend)
    assert parameter(call, 0, 128) == struct.pack("<Q", 0x10000) * 16
    assert parameter(call, 1, 128) == struct.pack("<Q", 0x20000) * 16
    assert parameter(call, 2, 4) == struct.pack("<I", 0)
    assert parameter(call, 3, 8) == struct.pack("<Q", 0x30002)
    assert parameter(call, 4, 8) == struct.pack("<Q", 2**40 + 5)
    assert parameter(call, 5, 4) == struct.pack("<i", -1)


def test_tensor_maps_lie_on_multiples_of_64_in_every_call(backend: CudaBackend) -> None:
    kernel = backend.load(BINARY, 0, LAUNCH)
    calls = [backend.pack(kernel, LAUNCH, ARGUMENTS, ADDRESSES) for _ in range(20)]
    for call in calls:
        pointers = [ctypes.c_uint64.from_address(call.parameters + 8 * index).value for index in range(2)]
        assert [pointer % 64 for pointer in pointers] == [0, 0]
    assert len({call.parameters for call in calls}) == 20


def test_tensor_map_is_encoded_with_the_agreed_options(driver: FakeDriver, backend: CudaBackend) -> None:
    packed(backend)
    [arguments, _] = driver.asked("cuTensorMapEncodeTiled")
    assert arguments[:7] == (("dtype", 9), 2, 0x10000, [64, 128], [128], [64, 64], [1, 1])
    assert arguments[7:] == (
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        ("swizzle", 3),
        ("promotion", 2),
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    )


@pytest.mark.parametrize(("size", "code"), [(0, 0), (64, 1), (128, 2), (256, 3)])
def test_l2_promotion_is_encoded_by_the_driver_s_number(size: int, code: int) -> None:
    driver = FakeDriver()
    backend = CudaBackend(driver)
    arguments = (MapArgument("a", dataclasses.replace(MAP, l2_promotion_bytes=size)),)
    backend.pack(backend.load(BINARY, 0, LAUNCH), LAUNCH, arguments, ADDRESSES)
    [encoded] = driver.asked("cuTensorMapEncodeTiled")
    assert encoded[9] == ("promotion", code)


def test_tensor_map_of_a_known_address_is_not_encoded_again(driver: FakeDriver, backend: CudaBackend) -> None:
    kernel = backend.load(BINARY, 0, LAUNCH)
    for _ in range(3):
        backend.pack(kernel, LAUNCH, ARGUMENTS, ADDRESSES)
    assert len(driver.asked("cuTensorMapEncodeTiled")) == 2


def test_table_of_tensor_maps_is_bounded_b130(backend: CudaBackend) -> None:
    kernel = backend.load(BINARY, 0, LAUNCH)
    for index in range(2 * MAX_CACHED_MAPS):
        backend.pack(kernel, LAUNCH, ARGUMENTS, ADDRESSES | {"a": 0x10000 + 16 * index})
    assert kernel.packer is not None
    assert len(kernel.packer.maps) <= MAX_CACHED_MAPS


def test_misaligned_address_is_a_layout_error_and_nothing_is_encoded(driver: FakeDriver, backend: CudaBackend) -> None:
    kernel = backend.load(BINARY, 0, LAUNCH)
    with pytest.raises(LayoutError, match="0x10002 is not a multiple of 16"):
        backend.pack(kernel, LAUNCH, ARGUMENTS, ADDRESSES | {"a": 0x10002})
    assert not driver.asked("cuTensorMapEncodeTiled")


def test_calls_keep_their_own_addresses(backend: CudaBackend) -> None:
    kernel = backend.load(BINARY, 0, LAUNCH)
    first = backend.pack(kernel, LAUNCH, ARGUMENTS, ADDRESSES)
    second = backend.pack(kernel, LAUNCH, ARGUMENTS, ADDRESSES | {"out": 0x40000})
    assert parameter(first, 3, 8) == struct.pack("<Q", 0x30002)
    assert parameter(second, 3, 8) == struct.pack("<Q", 0x40000)


def test_other_arguments_of_one_kernel_get_their_own_block(backend: CudaBackend) -> None:
    kernel = backend.load(BINARY, 0, LAUNCH)
    backend.pack(kernel, LAUNCH, ARGUMENTS, ADDRESSES)
    call = backend.pack(kernel, LAUNCH, (PointerArgument("out"),), ADDRESSES)
    assert parameter(call, 0, 8) == struct.pack("<Q", 0x30002)


# -- launching -----------------------------------------------------------------------------------------------------


def test_launch_has_the_plans_shape_and_no_attribute_without_a_cluster(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    driver.make_current(0)
    backend.launch(packed(backend), 0)
    config = driver.launches[0].config
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (132, 1, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (384, 1, 1)
    assert (config.sharedMemBytes, config.numAttrs) == (200_000, 0)


def test_cluster_is_one_launch_attribute(driver: FakeDriver, backend: CudaBackend) -> None:
    driver.make_current(0)
    backend.launch(packed(backend, launch=dataclasses.replace(LAUNCH, cluster=2)), 0)
    [attribute] = driver.launches[0].config.attrs
    assert attribute.id == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"
    dimension = attribute.value.clusterDim
    assert (dimension.x, dimension.y, dimension.z) == (2, 1, 1)
    assert driver.launches[0].config.numAttrs == 1


def test_a_dependent_launch_is_one_more_attribute(driver: FakeDriver, backend: CudaBackend) -> None:
    driver.make_current(0)
    backend.launch(packed(backend, launch=dataclasses.replace(LAUNCH, cluster=2, is_dependent=True)), 0)
    config = driver.launches[0].config
    assert [attribute.id for attribute in config.attrs] == [
        "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
        "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
    ]
    assert config.attrs[1].value.programmaticStreamSerializationAllowed == 1
    assert config.numAttrs == 2


def test_clusters_that_fit_are_asked_of_the_driver_with_the_launch_s_shape(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    launch = dataclasses.replace(LAUNCH, cluster=8)
    kernel = backend.load(BINARY, 0, launch)
    assert backend.max_clusters(kernel, launch) == 16
    [(_, config)] = driver.asked("cuOccupancyMaxActiveClusters")
    assert config.attrs[0].value.clusterDim.x == 8
    assert config.sharedMemBytes == launch.smem_bytes


def test_warm_launch_makes_one_driver_call_besides_asking_for_the_context(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    driver.make_current(0)
    call = packed(backend)
    backend.launch(call, 0)
    driver.calls.clear()
    backend.launch(call, 0)
    assert [name for name, _ in driver.calls] == ["cuLaunchKernelEx"]


def test_default_stream_never_runs_in_another_devices_context() -> None:
    driver = FakeDriver([HOPPER, HOPPER])
    backend = CudaBackend(driver)
    call = packed(backend, ordinal=1)
    for stream in (0, 1, 2):
        driver.make_current(0)
        backend.launch(call, stream)
        assert driver.launches[-1].device == 1
        assert driver.cuCtxGetCurrent()[1] == context(0)


def test_thread_without_a_context_launches_and_is_left_without_one(driver: FakeDriver, backend: CudaBackend) -> None:
    call = packed(backend)
    driver.make_current(None)
    backend.launch(call, 0)
    assert driver.launches[0].device == 0
    assert driver.cuCtxGetCurrent()[1] == 0


def test_context_is_left_as_it_was_after_a_failed_launch() -> None:
    driver = FakeDriver([HOPPER, HOPPER])
    backend = CudaBackend(driver)
    call = packed(backend, ordinal=1)
    driver.make_current(0)
    driver.refuse["cuLaunchKernelEx"] = [CUresult.CUDA_ERROR_INVALID_VALUE] * 3
    with pytest.raises(DriverError):
        backend.launch(call, 0)
    assert driver.cuCtxGetCurrent()[1] == context(0)


def test_stream_with_a_handle_carries_its_own_context() -> None:
    driver = FakeDriver([HOPPER, HOPPER])
    backend = CudaBackend(driver)
    call = packed(backend, ordinal=1)
    driver.streams[0x5000] = 1
    driver.make_current(0)
    driver.calls.clear()
    backend.launch(call, 0x5000)
    assert driver.launches[0].device == 1
    assert not driver.asked("cuCtxPushCurrent")


def test_same_binary_runs_on_device_0_then_1_then_0_with_each_ones_handle_b122() -> None:
    driver = FakeDriver([HOPPER, HOPPER])
    backend = CudaBackend(driver)
    for ordinal in (0, 1, 0):
        driver.make_current(ordinal)
        backend.launch(packed(backend, ordinal=ordinal), 0)
    assert [launch.device for launch in driver.launches] == [0, 1, 0]
    kernels = [launch.kernel for launch in driver.launches]
    assert kernels[0] == kernels[2] != kernels[1]


def test_two_threads_launching_one_call_on_two_streams_never_mix_them(driver: FakeDriver, backend: CudaBackend) -> None:
    call = packed(backend)
    streams = (0x5000, 0x6000)
    seen: dict[int, set[int]] = {stream: set() for stream in streams}
    start = threading.Barrier(2)
    original = driver.cuLaunchKernelEx
    asked = threading.local()

    def watched(config: object, *rest: int) -> tuple[CUresult]:
        seen[asked.stream].add(config.hStream)  # type: ignore[attr-defined]
        return original(config, *rest)

    backend._launch_kernel = watched

    def work(stream: int) -> None:
        asked.stream = stream
        start.wait()
        for _ in range(500):
            backend.launch(call, stream)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {stream: {stream} for stream in streams}


def test_table_of_streams_is_bounded(backend: CudaBackend) -> None:
    call = packed(backend)
    for index in range(3 * MAX_CACHED_CONFIGS):
        backend.launch(call, 0x5000 + index)
    assert len(call.configs) <= MAX_CACHED_CONFIGS


def test_kernels_are_loaded_again_after_a_device_reset_b127(driver: FakeDriver, backend: CudaBackend) -> None:
    call = packed(backend)
    driver.make_current(0)
    backend.launch(call, 0)
    driver.reset(0)
    backend.launch(call, 0)
    backend.launch(packed(backend), 0)
    assert len(driver.launches) == 3
    assert driver.launches[0].kernel != driver.launches[1].kernel == driver.launches[2].kernel
    assert driver.smem[driver.launches[1].kernel] == LAUNCH.smem_bytes
    assert driver.retained == [1]


def test_every_kernel_of_a_reset_device_comes_back_b127(driver: FakeDriver, backend: CudaBackend) -> None:
    other = dataclasses.replace(BINARY, digest="e" * 32)
    calls = [packed(backend), backend.pack(backend.load(other, 0, LAUNCH), LAUNCH, ARGUMENTS, ADDRESSES)]
    driver.make_current(0)
    driver.reset(0)
    for call in calls:
        backend.launch(call, 0)
    assert len(driver.launches) == 2


def test_failure_without_a_reset_loads_nothing_again_and_leaks_no_context(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    call = packed(backend)
    driver.make_current(0)
    driver.refuse["cuLaunchKernelEx"] = [CUresult.CUDA_ERROR_ILLEGAL_ADDRESS] * 4
    with pytest.raises(DriverError, match="compute-sanitizer"):
        backend.launch(call, 0)
    assert len(driver.asked("cuLibraryLoadData")) == 1
    assert driver.retained == [1]


def test_clear_gives_back_every_library_and_context(driver: FakeDriver, backend: CudaBackend) -> None:
    packed(backend)
    backend.clear()
    assert len(driver.asked("cuLibraryUnload")) == 1
    assert driver.retained == [0]
    driver.make_current(0)
    backend.launch(packed(backend), 0)
    assert len(driver.asked("cuLibraryLoadData")) == 2


# -- zeros ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pitch_bytes", "row_bytes", "num_rows", "calls"),
    [
        (256, 100, 3, [("cuMemsetD2D8Async", (0x1000, 256, 0, 100, 3, 9))]),
        (100, 100, 3, [("cuMemsetD8Async", (0x1000, 0, 300, 9))]),
        (10, 100, 1, [("cuMemsetD8Async", (0x1000, 0, 100, 9))]),
        (2**31, 8, 2, [("cuMemsetD8Async", (0x1000, 0, 8, 9)), ("cuMemsetD8Async", (0x1000 + 2**31, 0, 8, 9))]),
        (256, 0, 3, []),
        (256, 100, 0, []),
    ],
    ids=["pitched", "packed", "one row", "past the driver's pitch", "no columns", "no rows"],
)
def test_zero_touches_rows_only(
    pitch_bytes: int, row_bytes: int, num_rows: int, calls: list[tuple[str, tuple[int, ...]]]
) -> None:
    driver = FakeDriver()
    backend = CudaBackend(driver)
    backend.zero(0x1000, pitch_bytes, row_bytes, num_rows, 0, 9)
    assert [call for call in driver.calls if call[0].startswith("cuMemset")] == calls
    assert not driver.asked("cuLaunchKernelEx")


# -- scratch -------------------------------------------------------------------------------------------------------


def test_scratch_comes_from_the_pool_of_the_stream_in_the_right_context() -> None:
    """B119, B121: nothing of another stream may use it before this one has come to its end."""
    driver = FakeDriver([HOPPER, HOPPER])
    backend = CudaBackend(driver)
    driver.make_current(0)
    stacks: list[list[int]] = []
    driver._cuMemAllocAsync = lambda size, stream: stacks.append(list(driver._stack())) or 0x7000  # type: ignore[attr-defined]
    assert backend.allocate(4096, 1, 9) == 0x7000
    backend.free(0x7000, 1, 9)
    assert driver.asked("cuMemAllocAsync") == [(4096, 9)]
    assert driver.asked("cuMemFreeAsync") == [(0x7000, 9)]
    assert stacks[0][-1] == context(1)
    assert driver._stack() == [context(0)]
