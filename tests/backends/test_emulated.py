"""The emulated backend: what it knows of memory, what it refuses, and that it is a backend like any other."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from tilewright import device, dtypes
from tilewright.backends.base import Backend, IntArgument, Launch, MapArgument, PointerArgument, TensorMap
from tilewright.backends.emulated import EmulatedKernel, aligned_bytes, emulated, host_bytes
from tilewright.errors import EmulationError, LayoutError, UnsupportedError
from tilewright.jit.source import Binary, Resources

COPY = """\
.version 8.7
.target sm_90a
.address_size 64
.visible .entry copy(.param .u32 more, .param .u64 source, .param .u64 target)
{
.reg .b32 %r<8>;
.reg .b64 %rd<8>;
ld.param.u32 %r1, [more];
ld.param.u64 %rd1, [source];
ld.param.u64 %rd2, [target];
mov.u32 %r2, %tid.x;
mul.wide.u32 %rd3, %r2, 4;
add.s64 %rd1, %rd1, %rd3;
add.s64 %rd2, %rd2, %rd3;
ld.global.u32 %r3, [%rd1];
add.u32 %r3, %r3, %r1;
st.global.u32 [%rd2], %r3;
ret;
}
"""
BINARY = Binary(
    digest="",
    name="copy",
    entry="copy",
    arch="sm_90a",
    compiler="none",
    cubin=b"",
    ptx=COPY,
    log="",
    resources=Resources(16, 0, 0, 0, 0, 1),
    warnings=(),
    compile_seconds=0.0,
    from_cache=False,
)
LAUNCH = Launch(grid=1, block=32, cluster=1, smem_bytes=0)
ARGUMENTS = (IntArgument("more", -3, 4), PointerArgument("source"), PointerArgument("target"))


def arrays() -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    source, target = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    return source, target, {"source": source.ctypes.data, "target": target.ctypes.data}


def test_it_speaks_the_protocol_of_backends() -> None:
    backend: Backend = emulated()
    assert backend.device(0) == device.preset("h200")
    with pytest.raises(UnsupportedError, match="the emulator is device 0"):
        backend.device(1)


def test_kernel_runs_on_the_arrays_own_memory_and_is_reported() -> None:
    backend = emulated()
    source, target, addresses = arrays()
    for array in (source, target):
        backend.lend(array.ctypes.data, array.nbytes)
    call = backend.pack(backend.load(BINARY, 0, LAUNCH), LAUNCH, ARGUMENTS, addresses)
    for _ in range(2):
        backend.launch(call, 0)
        assert (target == source - 3).all()
        source += 10
    assert backend.report is not None
    assert backend.report.instructions["add.u32"] == 1
    assert backend.report.traffic == {"global read": 128, "global written": 128}


def test_kernel_that_does_not_end_meets_the_backends_budget() -> None:
    endless = COPY.replace("ret;", "AGAIN:\nbra AGAIN;")
    backend = emulated(max_blocks=100)
    source, target, addresses = arrays()
    for array in (source, target):
        backend.lend(array.ctypes.data, array.nbytes)
    call = backend.pack(backend.load(replace(BINARY, ptx=endless), 0, LAUNCH), LAUNCH, ARGUMENTS, addresses)
    with pytest.raises(EmulationError, match=r"in the last 100 no thread left(.|\n)*CTA 0 warp 0 at bra") as raised:
        backend.launch(call, 0)
    assert raised.value.rule == "step budget"


def test_memory_that_was_not_lent_is_out_of_bounds() -> None:
    backend = emulated()
    source, target, addresses = arrays()
    backend.lend(source.ctypes.data, source.nbytes)
    backend.lend(target.ctypes.data, 64)
    call = backend.pack(backend.load(BINARY, 0, LAUNCH), LAUNCH, ARGUMENTS, addresses)
    with pytest.raises(EmulationError, match="past the end of buffer 'target'"):
        backend.launch(call, 0)
    assert (target[16:] == 0).all()


def test_pointer_without_an_extent_is_refused() -> None:
    _, _, addresses = arrays()
    backend = emulated()
    with pytest.raises(LayoutError, match="must know how many bytes"):
        backend.pack(EmulatedKernel(BINARY), LAUNCH, ARGUMENTS, addresses)


def test_tensor_map_tells_the_extent_of_its_operand() -> None:
    tensor_map = TensorMap(dtype=dtypes.BF16, extents=(40, 10), pitches_bytes=(96,), box=(16, 8), swizzle_bytes=32)
    backend = emulated()
    call = backend.pack(
        EmulatedKernel(BINARY), LAUNCH, (MapArgument("a", tensor_map), PointerArgument("a")), {"a": 1 << 20}
    )
    assert call.buffers == (("a", 1 << 20, 9 * 96 + 80),)
    assert len(call.parameters) == 128 + 8
    with pytest.raises(LayoutError, match="multiple of 16"):
        backend.pack(EmulatedKernel(BINARY), LAUNCH, (MapArgument("a", tensor_map),), {"a": (1 << 20) + 8})


def test_binary_without_ptx_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="has none"):
        emulated().load(replace(BINARY, ptx=""), 0, LAUNCH)


def test_zero_leaves_the_bytes_between_rows() -> None:
    values = np.ones((4, 8), np.uint8)
    emulated().zero(values.ctypes.data, 8, 5, 3, 0, 0)
    assert (values[:3, :5] == 0).all()
    assert values.sum() == 32 - 15


def test_host_bytes_are_the_memory_itself() -> None:
    block = ctypes.create_string_buffer(b"abcd", 4)
    view = host_bytes(ctypes.addressof(block), 4)
    view[1] = ord("x")
    assert block.raw == b"axcd"


def test_clear_forgets_what_was_lent() -> None:
    backend = emulated()
    source, target, addresses = arrays()
    for array in (source, target):
        backend.lend(array.ctypes.data, array.nbytes)
    backend.clear()
    with pytest.raises(LayoutError):
        backend.pack(EmulatedKernel(BINARY), LAUNCH, ARGUMENTS, addresses)


def test_scratch_is_aligned_and_held_until_it_is_given_back() -> None:
    backend = emulated()
    addresses = [backend.allocate(100, 0, 0) for _ in range(5)]
    assert len(set(addresses)) == 5
    assert all(address % 256 == 0 for address in addresses)
    for address in addresses:
        ctypes.memset(address, 0xA5, 100)
        backend.free(address, 0, 0)
    with pytest.raises(KeyError):
        backend.free(addresses[0], 0, 0)


@pytest.mark.parametrize(("head", "length"), [(0, 32), (2, 30), (14, 1), (14, 4)])
def test_a_granule_rounds_an_operands_memory_out_to_whole_words(head: int, length: int) -> None:
    _, address = aligned_bytes(64)
    arguments = (PointerArgument("a", length, granule_bytes=16),)
    call = emulated().pack(EmulatedKernel(BINARY), LAUNCH, arguments, {"a": address + head})
    assert call.buffers == (("a", address, -(-(head + length) // 16) * 16),)
