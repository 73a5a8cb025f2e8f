"""Asynchronous copies and their groups: cp.async, runs of bytes, boxes of tensors, under every schedule."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from snippets import UNTOUCHED, execute, kernel, words

from tilewright.emulator import tiled
from tilewright.emulator.checks import Checker
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.errors import EmulationError

SHARED = ".shared .align 128 .b8 buffer[2048];\n.shared .align 8 .b8 bar[16];"
GIVEN = np.arange(512, dtype=np.uint32) + 1000
SCHEDULES = ["lazy", "eager", "random"]

CP_ASYNC = """
mov.u32 %r5, buffer;
shl.b32 %r6, %r0, 2;
add.u32 %r6, %r6, %r5;
cp.async.ca.shared.global [%r6], [%rd3], 4;
cp.async.commit_group;
cp.async.ca.shared.global [%r6+128], [%rd3+128], 4;
cp.async.commit_group;
{wait}
ld.shared.u32 %r1, [%r6];
ld.shared.u32 %r2, [%r6+128];
{use}
st.global.u32 [%rd4], %r1;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cp_async_is_there_after_its_group_is_waited_for(schedule: str) -> None:
    body = CP_ASYNC.format(wait="cp.async.wait_group 0;", use="add.u32 %r1, %r1, %r2;")
    assert (words(kernel(body, SHARED), GIVEN, schedule=schedule) == GIVEN[:32] + GIVEN[32:64]).all()


def test_lazy_schedule_shows_a_missing_wait_as_poison() -> None:
    got = words(kernel(CP_ASYNC.format(wait="cp.async.wait_group 1;", use="mov.u32 %r1, %r2;"), SHARED), GIVEN)
    assert (got == 0xFFFFFFFF).all()
    got = words(kernel(CP_ASYNC.format(wait="cp.async.wait_group 1;", use=""), SHARED), GIVEN)
    assert (got == GIVEN[:32]).all()


def test_wait_by_some_lanes_finishes_only_their_copies() -> None:
    wait = "setp.lt.u32 %p1, %r0, 8;\n@%p1 cp.async.wait_all;"
    got = words(kernel(CP_ASYNC.format(wait=wait, use=""), SHARED), GIVEN)
    assert (got[:8] == GIVEN[:8]).all()
    assert (got[8:] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("length", [0, 1, 3, 4, 16])
def test_cp_async_fills_past_its_source_size_with_zeros(length: int) -> None:
    body = f"""
mov.u32 %r5, buffer;
shl.b32 %r6, %r0, 4;
add.u32 %r6, %r6, %r5;
mul.wide.u32 %rd5, %r0, 16;
add.s64 %rd6, %rd0, %rd5;
add.s64 %rd7, %rd1, %rd5;
cp.async.cg.shared.global [%r6], [%rd6], 16, {length};
cp.async.wait_all;
ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r6];
st.global.v4.u32 [%rd7], {{%r1, %r2, %r3, %r4}};
"""
    out, _ = execute(kernel(body, SHARED), GIVEN, out_bytes=512)
    want = GIVEN[:128].view(np.uint8).reshape(32, 16).copy()
    want[:, length:] = 0
    assert (out.reshape(32, 16) == want).all()


@pytest.mark.parametrize("length", [0, 4, 16])
def test_what_cp_async_does_not_copy_is_not_read(length: int) -> None:
    """A copy of nothing may name any address: there another thread may write meanwhile."""
    body = f"""
mov.u32 %r5, buffer;
shl.b32 %r6, %r0, 4;
add.u32 %r6, %r6, %r5;
mul.wide.u32 %rd5, %r0, 16;
add.s64 %rd7, %rd1, %rd5;
cp.async.cg.shared.global [%r6], [%rd7], 16, {length};
cp.async.commit_group;
mov.u32 %r1, 7;
st.global.u32 [%rd7+8], %r1;
"""
    checker = Checker()
    with contextlib.suppress(EmulationError):
        execute(kernel(body, SHARED), GIVEN, out_bytes=512, observer=checker)
    assert ("cp.async not waited for" in {finding.rule for finding in checker.findings}) == (length > 8)


def test_cp_async_arrives_on_an_mbarrier_when_done() -> None:
    body = """
mov.u32 %r5, buffer;
mov.u32 %r7, bar;
setp.ne.u32 %p8, %r0, 0;
@!%p8 mbarrier.init.shared::cta.b64 [%r7], 32;
bar.sync 0;
shl.b32 %r6, %r0, 2;
add.u32 %r6, %r6, %r5;
cp.async.ca.shared.global [%r6], [%rd3], 4;
cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r7];
W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r7], 0;
@!%p9 bra W;
ld.shared.u32 %r1, [%r6];
st.global.u32 [%rd4], %r1;
"""
    for schedule in SCHEDULES:
        assert (words(kernel(body, SHARED), GIVEN, schedule=schedule) == GIVEN[:32]).all()


BULK = """
mov.u32 %r5, buffer;
mov.u32 %r7, bar;
setp.ne.u32 %p8, %r0, 0;
@%p8 bra WAITING;
mbarrier.init.shared::cta.b64 [%r7], 1;
fence.proxy.async.shared::cta;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd0], 128, [%r7];
WAITING: bar.warp.sync -1;
W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r7], 0;
@!%p9 bra W;
shl.b32 %r6, %r0, 2;
add.u32 %r6, %r6, %r5;
ld.shared.u32 %r1, [%r6];
add.u32 %r1, %r1, 1;
st.shared.u32 [%r6], %r1;
fence.proxy.async.shared::cta;
bar.warp.sync -1;
@%p8 bra OUT;
cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r5], 128;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
OUT:
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bulk_copy_goes_in_and_out(schedule: str) -> None:
    assert (words(kernel(BULK, SHARED), GIVEN, schedule=schedule) == GIVEN[:32] + 1).all()


def test_bulk_reduction_adds_to_what_is_there() -> None:
    body = BULK.replace(
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1]",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1]",
    )
    got = words(kernel("st.global.u32 [%rd4], 5;\nbar.warp.sync -1;\n" + body, SHARED), GIVEN)
    assert (got == GIVEN[:32] + 6).all()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[%rd0], 128, [%r7]", "[%rd0], 120, [%r7]", "multiples of 16"),
        ("[%rd0], 128, [%r7]", "[%rd0+1984], 128, [%r7]", "past the end of buffer 'in'"),
        ("[%rd1], [%r5], 128", "[%rd1+16], [%r5], 128", "past the end of buffer 'out'"),
        ("[%r5], [%rd0], 128, [%r7]", "[%r5+1984], [%rd0], 128, [%r7]", "end past shared memory"),
    ],
)
def test_bulk_copy_out_of_bounds_is_an_error(old: str, new: str, says: str) -> None:
    assert old in BULK
    with pytest.raises(EmulationError, match=says):
        words(kernel(BULK.replace(old, new), SHARED), GIVEN)


MAP_FRAME = """\
.version 8.7
.target sm_90a
.address_size 64
.shared .align 1024 .b8 buffer[2048];
.shared .align 8 .b8 bar[16];
.visible .entry k(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128])
{{
.reg .pred %p<4>;
.reg .b16 %h<4>;
.reg .b32 %r<32>;
.reg .b64 %rd<16>;
mov.b64 %rd1, source;
cvta.param.u64 %rd1, %rd1;
mov.b64 %rd2, target;
cvta.param.u64 %rd2, %rd2;
mov.u32 %r0, %tid.x;
mov.u32 %r1, buffer;
mov.u32 %r2, bar;
mov.u32 %r9, %cluster_ctarank;
{body}
ret;
}}
"""

TENSOR = """
setp.ne.u32 %p1, %r0, 0;
@%p1 bra WAITING;
mbarrier.init.shared::cta.b64 [%r2], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {bytes};
{join}
cp.async.bulk.tensor.{dim}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {{{load}}}], [%r2];
WAITING: bar.warp.sync -1;
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
@!%p2 bra W;
@%p1 bra OUT;
cp.async.bulk.tensor.{dim}d.global.shared::cta.tile.bulk_group [%rd2, {{{store}}}], [%r1];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
OUT:
"""


def copy_box(
    source: np.ndarray, target: np.ndarray, box: tuple[int, ...], load: tuple[int, ...], store: tuple[int, ...],
    swizzle: int, schedule: str,
) -> None:  # fmt: skip
    memory = GlobalMemory()

    def encoded(name: str, array: np.ndarray) -> bytes:
        address = memory.add(name, array)
        pitches = tuple(array.strides[axis] for axis in range(array.ndim - 2, -1, -1))
        return tiled.encode(
            tiled.TiledMap(
                address=address,
                element="u16",
                extents=array.shape[::-1],
                pitches_bytes=pitches,
                box=box,
                swizzle_bytes=swizzle,
            )
        )

    maps = [encoded("source", source), encoded("target", target)]
    body = TENSOR.format(
        bytes=2 * int(np.prod(box)),
        dim=source.ndim,
        load=", ".join(map(str, load)),
        store=", ".join(map(str, store)),
        join="",
    )
    run(MAP_FRAME.format(body=body), "k", Grid(grid=1, block=32), maps, memory, schedule=schedule)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_tensor_box_arrives_whole_under_every_swizzle(schedule: str, swizzle: int) -> None:
    """The same swizzle in and out cancels; rows and columns outside the source read as zeros."""
    rng = np.random.default_rng(1)
    source = rng.integers(1, 60000, (21, 40), np.uint16)
    target = np.zeros((16, 16), np.uint16)
    copy_box(source, target, (16, 16), (32, 10), (0, 0), swizzle, schedule)
    want = np.zeros((16, 16), np.uint16)
    want[:11, :8] = source[10:, 32:]
    assert (target == want).all()


def test_tensor_box_may_start_before_its_tensor() -> None:
    source = np.arange(1, 8 * 16 + 1, dtype=np.uint16).reshape(8, 16)
    target = np.zeros((8, 16), np.uint16)
    copy_box(source, target, (16, 8), (-8, -3), (0, 0), 0, "lazy")
    want = np.zeros((8, 16), np.uint16)
    want[3:, 8:] = source[:5, :8]
    assert (target == want).all()


@pytest.mark.parametrize("rank", [1, 3, 4, 5])
def test_tensor_of_any_rank_is_copied(rank: int) -> None:
    shape = (2, 2, 3, 4, 16)[-rank:]
    source = np.arange(int(np.prod(shape)), dtype=np.uint16).reshape(shape)
    target = np.zeros(shape, np.uint16)
    copy_box(source, target, shape[::-1], (0,) * rank, (0,) * rank, 0, "random")
    assert (target == source).all()


def test_tensor_store_clips_rows_outside() -> None:
    source = np.arange(16 * 16, dtype=np.uint16).reshape(16, 16)
    target = np.full((10, 16), 9, np.uint16)
    copy_box(source, target, (16, 16), (0, 0), (0, 4), 0, "lazy")
    assert (target[:4] == 9).all()
    assert (target[4:] == source[:6]).all()


def test_box_that_starts_inside_a_chunk_is_the_hardwares_illegal_instruction() -> None:
    source = np.zeros((16, 16), np.uint16)
    with pytest.raises(EmulationError, match="multiple of 16 bytes") as caught:
        copy_box(source, source.copy(), (16, 16), (3, 0), (0, 0), 0, "lazy")
    assert caught.value.rule == "tensor coordinate"


MULTICAST = """
setp.ne.u32 %p1, %r0, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r2], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
READY: bar.warp.sync -1;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
setp.ne.or.u32 %p3, %r9, 0, %p1;
mov.u16 %h1, {mask};
@%p3 bra WAITING;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
    [%r1], [%rd1, {{0, 0}}], [%r2], %h1;
WAITING: bar.warp.sync -1;
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
@!%p2 bra W;
shl.b32 %r10, %r9, 4;
@%p1 bra OUT;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {{0, %r10}}], [%r1];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
OUT: bar.warp.sync -1;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
"""


def multicast(mask: int, schedule: str) -> tuple[np.ndarray, np.ndarray]:
    source = np.arange(256, dtype=np.uint16).reshape(16, 16)
    target = np.zeros((32, 16), np.uint16)
    memory = GlobalMemory()
    maps = [
        tiled.encode(
            tiled.TiledMap(
                address=memory.add(name, array),
                element="u16",
                extents=array.shape[::-1],
                pitches_bytes=(32,),
                box=(16, 16),
            )
        )
        for name, array in (("source", source), ("target", target))
    ]
    text = MAP_FRAME.format(body=MULTICAST.format(mask=mask))
    run(text, "k", Grid(grid=2, block=32, cluster=2), maps, memory, schedule=schedule)  # type: ignore[arg-type]
    return source, target


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_multicast_reaches_every_cta_of_the_mask(schedule: str) -> None:
    source, target = multicast(3, schedule)
    assert (target == np.concatenate([source, source])).all()


def test_multicast_that_leaves_a_cta_out_is_a_deadlock() -> None:
    with pytest.raises(EmulationError, match=r"CTA 1 warp 0 .*tx-count 512 bytes") as caught:
        multicast(1, "lazy")
    assert caught.value.rule == "deadlock"


def test_multicast_mask_past_the_cluster_is_an_error() -> None:
    with pytest.raises(EmulationError, match="multicast mask 0x0005 in a cluster of 2") as caught:
        multicast(5, "lazy")
    assert caught.value.rule == "multicast mask"


def test_bytes_that_are_no_tensor_map_are_refused() -> None:
    memory = GlobalMemory()
    memory.add("x", np.zeros(4, np.uint8))
    body = TENSOR.format(bytes=512, dim=2, load="0, 0", store="0, 0", join="")
    with pytest.raises(EmulationError, match="no map that this emulator encoded"):
        run(MAP_FRAME.format(body=body), "k", Grid(grid=1, block=32), [bytes(128), bytes(128)], memory)


def test_store_still_pending_at_the_end_is_done() -> None:
    body = BULK.replace("cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;")
    got = words(kernel(body, SHARED), GIVEN)
    assert (got == GIVEN[:32] + 1).all()
    assert not (got.view(np.uint8) == UNTOUCHED).all()


@pytest.mark.parametrize(
    ("operands", "rule"),
    [
        ("[%rd0+16], 32", ""),
        ("[%rd0+8], 32", "misaligned"),
        ("[%rd0], 24", "misaligned"),
        ("[%rd0+2032], 32", "out of bounds"),
    ],
)
def test_a_prefetch_of_a_run_names_whole_chunks_of_a_buffer(operands: str, rule: str) -> None:
    """What it asks for is not seen; that it may ask for it is."""
    text = kernel(f"setp.eq.u32 %p1, %r0, 0;\n@%p1 cp.async.bulk.prefetch.L2.global {operands};")
    if not rule:
        execute(text, GIVEN)
        return
    with pytest.raises(EmulationError) as caught:
        execute(text, GIVEN)
    assert caught.value.rule == rule
