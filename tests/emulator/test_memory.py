"""Loads, stores and atomics of threads: values, bounds, alignment, poison, each space."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import UNTOUCHED, execute, kernel, line_of, words

from tilewright.emulator.memory import GlobalMemory, SharedMemory
from tilewright.errors import EmulationError

SHARED = ".shared .align 16 .b8 buffer[256];"
GIVEN = np.arange(256, dtype=np.uint32) * 0x01010101 + 7


@pytest.mark.parametrize("vector", ["", ".v2", ".v4"])
@pytest.mark.parametrize("hints", ["", ".nc", ".nc.L1::no_allocate.L2::128B"])
def test_vector_load_and_store_move_neighbouring_words(vector: str, hints: str) -> None:
    count = int(vector[2:] or 1)
    registers = "{" + ", ".join(f"%r{8 + i}" for i in range(count)) + "}" if count > 1 else "%r8"
    body = f"""
mul.wide.u32 %rd5, %r0, {4 * count};
add.s64 %rd6, %rd0, %rd5;
add.s64 %rd7, %rd1, %rd5;
ld.global{hints}{vector}.u32 {registers}, [%rd6];
st.global{vector}.u32 [%rd7], {registers};
"""
    out, report = execute(kernel(body), GIVEN, out_bytes=128 * count)
    assert (out.view(np.uint32) == GIVEN[: 32 * count]).all()
    assert report.traffic == {"global read": 128 * count, "global written": 128 * count}


def test_narrow_loads_extend_by_their_sign() -> None:
    body = """
ld.global.s8 %r1, [%rd3];
ld.global.u8 %r2, [%rd3];
ld.global.s16 %r3, [%rd3];
add.s32 %r4, %r1, %r2;
add.s32 %r4, %r4, %r3;
st.global.u32 [%rd4], %r4;
"""
    given = np.arange(-16, 16, dtype=np.int32)
    want = given.astype(np.int8).astype(int) + (given & 0xFF) + given.astype(np.int16)
    assert (words(kernel(body), given).view(np.int32) == want).all()


def test_narrow_store_leaves_its_neighbours() -> None:
    out, _ = execute(kernel("cvt.u16.u32 %h1, %r0;\nst.global.u8 [%rd4+1], %h1;"))
    assert (out.reshape(32, 4) == [[UNTOUCHED, i, UNTOUCHED, UNTOUCHED] for i in range(32)]).all()


@pytest.mark.parametrize(
    ("instruction", "says"),
    [
        ("ld.global.u32 %r1, [%rd3+4];", r"4 bytes past the end of buffer 'in' \(128 bytes"),
        ("st.global.u32 [%rd4+4];".replace("]", "], %r0"), r"4 bytes past the end of buffer 'out'"),
        ("ld.global.u32 %r1, [%rd2];", "before buffer 'in'"),
        ("atom.global.add.u32 %r1, [%rd4+4], 1;", "past the end of buffer 'out'"),
    ],
)
def test_access_outside_every_buffer_names_thread_line_and_buffer(instruction: str, says: str) -> None:
    text = kernel(".loc 1 42 0\n" + instruction.replace("], %r0;", "], %r0;")) + '.file 1 "a/b.cu"\n'
    with pytest.raises(EmulationError, match=says) as caught:
        execute(text, GIVEN[:32])
    assert caught.value.rule == "out of bounds"
    assert caught.value.source == "b.cu:42"
    assert caught.value.line == line_of(text, ".loc 1 42") + 1
    assert "thread 31 (warp 0, lane 31)" in str(caught.value) or "thread 0" in str(caught.value)


@pytest.mark.parametrize("instruction", ["ld.global.u32 %r1, [%rd3+2];", "ld.shared.v2.u32 {%r1, %r2}, [%r5+4];"])
def test_misaligned_access_is_an_error(instruction: str) -> None:
    with pytest.raises(EmulationError, match="is not a multiple of the access's") as caught:
        execute(kernel("mov.u32 %r5, buffer;\n" + instruction, SHARED), GIVEN)
    assert caught.value.rule == "misaligned"


@pytest.mark.parametrize("place", ["%r5+256", "%r5+-4", "%r5+300000"])
def test_shared_memory_ends_where_the_launch_says(place: str) -> None:
    with pytest.raises(EmulationError, match="outside the 256 bytes of shared memory"):
        execute(kernel(f"mov.u32 %r5, buffer;\nld.shared.u32 %r1, [{place}];", SHARED))


def test_write_to_a_read_only_array_is_an_error() -> None:
    memory = GlobalMemory()
    values = np.zeros(16, np.uint32)
    values.flags.writeable = False
    address = memory.add("constant", values)
    assert memory.store(np.array([address], np.uint64), 4, np.array([1], np.uint32)) == 0


def test_fresh_shared_memory_is_poison() -> None:
    got = words(kernel("mov.u32 %r5, buffer;\nld.shared.u32 %r1, [%r5];\nst.global.u32 [%rd4], %r1;", SHARED))
    assert (got == 0xFFFFFFFF).all()


def test_poison_comes_back_for_the_next_cta() -> None:
    body = """
mov.u32 %r5, buffer;
ld.shared.u32 %r1, [%r5];
st.shared.u32 [%r5], 3;
mov.u32 %r2, %ctaid.x;
mul.wide.u32 %rd5, %r2, 4;
add.s64 %rd5, %rd1, %rd5;
st.global.u32 [%rd5], %r1;
"""
    out, _ = execute(kernel(body, SHARED), grid=3, out_bytes=12)
    assert (out == 0xFF).all()


def test_generic_addresses_find_their_space() -> None:
    body = """
.local .align 8 .b8 depot[16];
mov.u64 %rd5, depot;
cvta.local.u64 %rd6, %rd5;
st.u32 [%rd6+4], %r0;
ld.local.u32 %r1, [%rd5+4];
mov.u64 %rd7, buffer;
cvta.shared.u64 %rd8, %rd7;
add.s64 %rd8, %rd8, %rd2;
st.u32 [%rd8], %r1;
mov.u32 %r5, buffer;
shl.b32 %r6, %r0, 2;
add.u32 %r6, %r6, %r5;
ld.shared.u32 %r2, [%r6];
ld.u32 %r3, [%rd3];
add.u32 %r2, %r2, %r3;
cvta.to.global.u64 %rd9, %rd4;
st.global.u32 [%rd9], %r2;
"""
    assert (words(kernel(body, SHARED), GIVEN) == GIVEN[:32] + np.arange(32)).all()


def test_module_variable_starts_with_its_values_in_each_launch() -> None:
    module = ".global .align 4 .u32 table[4] = {10, 20, 0x1E, 40};\n.const .align 4 .f32 half = 0f3F000000;"
    body = """
and.b32 %r1, %r0, 3;
mov.u64 %rd5, table;
mul.wide.u32 %rd6, %r1, 4;
add.s64 %rd5, %rd5, %rd6;
ld.global.u32 %r2, [%rd5];
st.global.u32 [%rd5], 0;
ld.const.f32 %f1, [half];
cvt.rn.f32.u32 %f2, %r2;
mul.f32 %f2, %f2, %f1;
st.global.f32 [%rd4], %f2;
"""
    for _ in range(2):
        got = words(kernel(body, module)).view(np.float32)
        assert got[:4].tolist() == [5.0, 10.0, 15.0, 20.0]


def test_atomics_on_one_address_give_each_thread_its_turn() -> None:
    body = "atom.global.add.u32 %r1, [%rd0], 2;\nst.global.u32 [%rd4], %r1;"
    assert sorted(words(kernel(body), np.zeros(1, np.uint32)).tolist()) == list(range(0, 64, 2))


@pytest.mark.parametrize(
    ("instruction", "start", "want"),
    [
        ("red.global.max.s32 [%rd1], %r0;", -5, 31),
        ("red.global.min.u32 [%rd1], %r0;", 9, 0),
        ("red.global.and.b32 [%rd1], 6;", 3, 2),
        ("red.global.xor.b32 [%rd1], %r0;", 0, 0),
        ("red.global.add.f32 [%rd1], 0f3F800000;", 0, int(np.array(32, np.float32).view(np.uint32))),
        ("atom.global.inc.u32 %r1, [%rd1], 9;", 0, 2),
        ("atom.global.dec.u32 %r1, [%rd1], 9;", 0, 8),
        ("atom.global.exch.b32 %r1, [%rd1], 77;", 0, 77),
        ("atom.global.cas.b32 %r1, [%rd1], 5, 6;", 5, 6),
        ("red.global.add.noftz.f16x2 [%rd1], 1006648320;", 0, 0x50005000),
    ],
)
def test_atomic_leaves_the_combined_value(instruction: str, start: int, want: int) -> None:
    body = f"setp.ne.u32 %p1, %r0, 0;\n@!%p1 st.global.u32 [%rd1], {start};\nbar.warp.sync -1;\n{instruction}"
    if "f16x2" in instruction:  # 32 x (1.0, 1.0) = (32, 32)
        assert 1006648320 == 0x3C003C00
    out, _ = execute(kernel(body), out_bytes=4)
    assert int(out.view(np.uint32)[0]) == want


def test_shared_atomics_count_every_thread_of_the_cta() -> None:
    body = """
mov.u32 %r5, buffer;
setp.ne.u32 %p1, %r0, 0;
@!%p1 st.shared.u32 [%r5], 0;
bar.sync 0;
red.shared.add.u32 [%r5], 1;
bar.sync 0;
ld.shared.u32 %r1, [%r5];
st.global.u32 [%rd4], %r1;
"""
    assert (words(kernel(body, SHARED), block=96) == 96).all()


def test_overlapping_buffers_are_refused_and_gaps_are_kept() -> None:
    memory = GlobalMemory()
    first = memory.add("a", np.zeros(100, np.uint8))
    second = memory.add("b", np.zeros(100, np.uint8))
    assert second - first >= 4096
    assert first % 512 == second % 512 == 0
    with pytest.raises(EmulationError, match="overlap"):
        memory.add("c", np.zeros(100, np.uint8), first + 50)
    with pytest.raises(EmulationError, match="not C-contiguous"):
        memory.add("d", np.zeros((4, 4), np.uint8)[:, ::2])


def test_unaligned_buffers_still_serve_bytes() -> None:
    memory = GlobalMemory()
    values = np.arange(16, dtype=np.uint8)
    memory.add("odd", values, (1 << 41) + 1)
    got = memory.load(np.array([(1 << 41) + 2, (1 << 41) + 4], np.uint64), 2)
    assert not isinstance(got, int)
    assert got.tolist() == [0x0201, 0x0403]


def test_shared_windows_lie_on_multiples_of_the_swizzle_period() -> None:
    smem = SharedMemory(3, 1024, 5000)
    assert smem.stride % 1024 == 0
    smem.data[:] = 0
    smem.poison(1)
    assert (smem.data.reshape(3, -1) == np.array([[0], [255], [0]])).all()


def test_bank_conflicts_are_counted_where_they_are_asked_for() -> None:
    body = "mov.u32 %r5, buffer;\nshl.b32 %r6, %r0, 7;\nadd.u32 %r6, %r6, %r5;\nst.shared.u32 [%r6], %r0;"
    module = ".shared .align 16 .b8 buffer[4096];"
    _, report = execute(kernel(body, module), banks=True)
    ((wavefronts, ideal),) = report.banks.values()
    assert (wavefronts, ideal) == (32, 1)
    assert execute(kernel(body, module))[1].banks == {}
