"""Paths that part and meet, barriers of a CTA, and kernels that do not end."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import execute, kernel, line_of, words

from tilewright.errors import EmulationError

LOOP = """
mov.u32 %r1, 0;
mov.u32 %r2, 0;
AGAIN: add.u32 %r2, %r2, %r1;
add.u32 %r1, %r1, 1;
setp.le.u32 %p1, %r1, %r0;
@%p1 bra AGAIN;
st.global.u32 [%rd4], %r2;
"""

NESTED = """
and.b32 %r1, %r0, 1;
setp.eq.u32 %p1, %r1, 0;
mov.u32 %r2, 100;
@%p1 bra EVEN;
and.b32 %r3, %r0, 2;
setp.eq.u32 %p2, %r3, 0;
@%p2 bra ODD_LOW;
add.u32 %r2, %r2, 1;
bra.uni JOIN;
ODD_LOW: add.u32 %r2, %r2, 2;
bra.uni JOIN;
EVEN: add.u32 %r2, %r2, 3;
JOIN: add.u32 %r2, %r2, %r0;
st.global.u32 [%rd4], %r2;
"""


@pytest.mark.parametrize("width", ["warp", "warpgroup", "cta", "grid"])
@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_lanes_leave_a_loop_when_their_own_count_is_done(width: str, schedule: str) -> None:
    got = words(kernel(LOOP), block=160, width=width, schedule=schedule)
    tid = np.arange(160)
    assert (got == tid * (tid + 1) // 2).all()


@pytest.mark.parametrize("width", ["warp", "cta"])
def test_nested_branches_meet_again(width: str) -> None:
    got = words(kernel(NESTED), block=96, width=width)
    tid = np.arange(96)
    assert (got == 100 + tid + np.where(tid % 2 == 0, 3, np.where(tid & 2, 1, 2))).all()


def test_guarded_store_writes_only_its_lanes() -> None:
    got = words(kernel("setp.lt.u32 %p1, %r0, 5;\n@%p1 st.global.u32 [%rd4], %r0;\n@!%p1 st.global.u32 [%rd4], 9;"))
    assert (got == np.where(np.arange(32) < 5, np.arange(32), 9)).all()


def test_barrier_does_not_wait_for_threads_that_left() -> None:
    body = """
setp.ge.u32 %p1, %r0, 64;
@%p1 bra OUT;
bar.sync 0;
st.global.u32 [%rd4], %r0;
OUT:
"""
    got = words(kernel(body), block=128)
    assert (got[:64] == np.arange(64)).all()


EXCHANGE = """
shl.b32 %r1, %r0, 2;
mov.u32 %r2, buffer;
add.u32 %r3, %r2, %r1;
st.shared.u32 [%r3], %r0;
bar.sync 0;
xor.b32 %r4, %r1, 508;
add.u32 %r4, %r4, %r2;
ld.shared.u32 %r5, [%r4];
st.global.u32 [%rd4], %r5;
"""


@pytest.mark.parametrize("width", ["warp", "warpgroup", "cta"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_barrier_orders_shared_memory_between_warps(width: str, seed: int) -> None:
    text = kernel(EXCHANGE, ".shared .align 16 .b8 buffer[512];")
    got = words(text, block=128, width=width, schedule="random", seed=seed)
    assert (got == 127 - np.arange(128)).all()


def test_grid_wide_vectors_keep_each_ctas_shared_memory_apart() -> None:
    body = EXCHANGE.replace(
        "st.shared.u32 [%r3], %r0",
        "mov.u32 %r9, %ctaid.x;\nshl.b32 %r9, %r9, 8;\nor.b32 %r9, %r9, %r0;\nst.shared.u32 [%r3], %r9",
    ).replace(
        "st.global.u32 [%rd4], %r5",
        "mov.u32 %r8, %ctaid.x;\nmul.wide.u32 %rd5, %r8, 512;\nadd.s64 %rd4, %rd4, %rd5;\nst.global.u32 [%rd4], %r5",
    )
    text = kernel(body, ".shared .align 16 .b8 buffer[512];")
    got = words(text, block=128, grid=3, width="grid").reshape(3, 128)
    assert (got == np.arange(3)[:, None] * 256 + (127 - np.arange(128))).all()


def test_grid_wide_barrier_serves_ctas_that_go_other_ways() -> None:
    """CTA 1 leaves before the barrier, and half of CTA 2; the others meet."""
    body = """
mov.u32 %r9, %ctaid.x;
setp.eq.u32 %p1, %r9, 1;
@%p1 bra OUT;
setp.eq.u32 %p2, %r9, 2;
setp.ge.and.u32 %p3, %r0, 64, %p2;
@%p3 bra OUT;
mov.u32 %r2, buffer;
shl.b32 %r1, %r0, 2;
add.u32 %r3, %r2, %r1;
st.shared.u32 [%r3], %r0;
bar.sync 0;
xor.b32 %r4, %r1, 252;
add.u32 %r4, %r4, %r2;
ld.shared.u32 %r5, [%r4];
mul.wide.u32 %rd5, %r9, 512;
add.s64 %rd4, %rd4, %rd5;
st.global.u32 [%rd4], %r5;
OUT:
"""
    text = kernel(body, ".shared .align 16 .b8 buffer[512];")
    got = words(text, block=128, grid=4, width="grid").reshape(4, 128)
    tid = np.arange(128)
    assert (got[[0, 3]] == (tid ^ 63)).all()
    assert (got[1] == 0xEEEEEEEE).all()
    assert (got[2, :64] == tid[:64] ^ 63).all()
    assert (got[2, 64:] == 0xEEEEEEEE).all()


def test_named_barrier_hands_over_from_arriving_to_waiting_warps() -> None:
    body = """
mov.u32 %r2, buffer;
setp.ge.u32 %p1, %r0, 32;
@%p1 bra READER;
mov.u32 %r3, 77;
st.shared.u32 [%r2], %r3;
bar.arrive 3, 64;
bra.uni OUT;
READER: bar.sync 3, 64;
ld.shared.u32 %r4, [%r2];
st.global.u32 [%rd4], %r4;
OUT:
"""
    got = words(kernel(body, ".shared .align 16 .b8 buffer[16];"), block=64, width="warp", schedule="random", seed=5)
    assert (got[32:] == 77).all()


def test_barrier_that_expects_too_many_is_a_deadlock_that_names_it() -> None:
    text = kernel("bar.sync 2, 96;")
    with pytest.raises(EmulationError, match=r"deadlock.*\n.*CTA 0 warp 0..1 .*barrier 2: 64 of 96 threads") as caught:
        execute(text, block=64)
    assert caught.value.rule == "deadlock"
    assert caught.value.line == line_of(text, "bar.sync 2, 96")


def test_barrier_that_expects_too_few_is_an_over_arrival() -> None:
    body = "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra A;\nbar.arrive 1, 96;\nbar.arrive 1, 96;\nbra.uni B;\n"
    body += "A: bar.sync 1, 96;\nB:"
    with pytest.raises(EmulationError, match=r"128 threads at barrier 1, which expects 96") as caught:
        execute(kernel(body), block=96, width="cta", schedule="lazy")
    assert caught.value.rule == "barrier over-arrival"


@pytest.mark.parametrize(
    ("instruction", "says"),
    [
        ("bar.sync 16;", "barrier 16; a CTA has 0 .. 15"),
        ("bar.sync 1, 33;", "33 threads is no positive multiple of 32"),
    ],
)
def test_barrier_operands_out_of_range_are_errors(instruction: str, says: str) -> None:
    with pytest.raises(EmulationError, match=says):
        execute(kernel(instruction))


def test_half_a_warp_at_an_aligned_instruction_says_who_is_missing() -> None:
    body = """
setp.lt.u32 %p1, %r0, 16;
@%p1 bra LOW;
bar.sync 0;
bra.uni OUT;
LOW: bar.sync 0;
OUT:
"""
    with pytest.raises(EmulationError, match="waits for the other threads of its warp"):
        execute(kernel(body))


def test_endless_kernel_meets_the_step_budget_with_where_it_stands() -> None:
    text = kernel(".loc 1 5 0\nAGAIN: add.u32 %r1, %r0, 1;\nbra.uni AGAIN;") + '.file 1 "k.cu"\n'
    with pytest.raises(
        EmulationError, match=r"has not ended after .*\n.*warp 0 at add.u32 .*k.cu:5.*can run"
    ) as caught:
        execute(text, max_blocks=5000)
    assert caught.value.rule == "step budget"
    assert caught.value.line == line_of(text, "AGAIN:")


def test_polling_for_what_nobody_writes_is_a_deadlock() -> None:
    text = kernel("AGAIN: ld.acquire.gpu.global.u32 %r1, [%rd0];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra AGAIN;")
    with pytest.raises(EmulationError, match="polls for something that nobody will change"):
        execute(text)


@pytest.mark.parametrize("width", ["warp", "cta", "grid"])
@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_ctas_that_talk_through_global_memory_are_resident_together(width: str, schedule: str) -> None:
    body = """
mov.u32 %r1, %ctaid.x;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra SECOND;
AGAIN: ld.acquire.gpu.global.u32 %r2, [%rd1+128];
setp.ne.u32 %p2, %r2, 1;
@%p2 bra AGAIN;
ld.global.u32 %r3, [%rd1+132];
st.global.u32 [%rd4], %r3;
bra.uni OUT;
SECOND: mov.u32 %r4, 55;
st.global.u32 [%rd1+132], %r4;
mov.u32 %r5, 1;
st.release.gpu.global.u32 [%rd1+128], %r5;
OUT:
"""
    out, _ = execute(kernel(body), grid=2, out_bytes=136, width=width, schedule=schedule)
    assert (out.view(np.uint32)[:32] == 55).all()


@pytest.mark.parametrize("width", ["warp", "cta"])
def test_thread_that_polls_for_its_neighbour_lets_it_run(width: str) -> None:
    """Threads of one warp, or of one vector, make progress on their own: the lowest block may not starve the others."""
    body = """
setp.eq.u32 %p1, %r0, {writer};
@%p1 bra WRITER;
AGAIN: ld.volatile.global.u32 %r2, [%rd0];
setp.ne.u32 %p2, %r2, 9;
@%p2 bra AGAIN;
bra.uni OUT;
WRITER: st.volatile.global.u32 [%rd0], 9;
OUT: st.global.u32 [%rd4], 1;
"""
    for writer in (3, 40):
        got = words(kernel(body.replace("{writer}", str(writer))), block=64, width=width)
        assert (got == 1).all()


def test_register_that_was_never_written_is_named_when_used() -> None:
    text = kernel("add.u32 %r2, %r1, 1;\nst.global.u32 [%rd4], %r2;")
    with pytest.raises(EmulationError, match="%r1 is read but was never written") as caught:
        execute(text)
    assert caught.value.line == line_of(text, "add.u32 %r2, %r1, 1")


def test_register_written_by_some_lanes_is_unwritten_for_the_others() -> None:
    body = "setp.lt.u32 %p1, %r0, 16;\n@%p1 mov.u32 %r1, 5;\nst.global.u32 [%rd4], %r1;"
    with pytest.raises(EmulationError, match=r"%r1 is read but was never written by this thread \[CTA 0, thread 16"):
        execute(kernel(body))


def test_move_of_an_unwritten_register_is_no_use_of_it() -> None:
    got = words(kernel("mov.u32 %r2, %r1;\nmov.u32 %r2, 4;\nst.global.u32 [%rd4], %r2;"))
    assert (got == 4).all()


def test_trap_is_an_error_with_its_line() -> None:
    text = kernel("trap;")
    with pytest.raises(EmulationError, match="the kernel ended itself") as caught:
        execute(text)
    assert caught.value.line == line_of(text, "trap")


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"block": 0}, "block 0"),
        ({"block": 2000}, "2000 threads a CTA"),
        ({"grid": 3, "cluster": 2}, "no multiple of cluster"),
        ({"smem_bytes": 300_000}, "300000 bytes of shared memory"),
        ({"schedule": "eventually"}, "eventually"),
        ({"width": "galaxy"}, "galaxy"),
        ({"more": (b"1",)}, "3 parameters where the entry has 2"),
    ],
)
def test_launch_that_does_not_fit_is_refused(choices: dict[str, object], says: str) -> None:
    with pytest.raises(EmulationError, match=says):
        execute(kernel(""), **choices)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", ["warp", "cta"])
def test_an_instruction_counts_once_a_warp_however_few_of_its_lanes_take_part(width: str) -> None:
    body = "and.b32 %r1, %r0, 31;\nsetp.eq.u32 %p1, %r1, 7;\nsetp.eq.u32 %p2, %r0, 40;\nsetp.lt.u32 %p3, %r0, 33;\n"
    body += "@%p1 not.b32 %r2, %r0;\n@%p2 popc.b32 %r3, %r0;\n@%p3 clz.b32 %r4, %r0;\n"
    _, report = execute(kernel(body), block=96, width=width)
    counts = report.instructions
    assert (counts["and.b32"], counts["not.b32"], counts["popc.b32"], counts["clz.b32"]) == (3, 3, 1, 2)
