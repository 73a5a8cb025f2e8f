"""wgmma and setmaxnreg: values, accumulators in flight, fences, and what a warpgroup must do together."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import execute, kernel, line_of

from tilewright.errors import EmulationError

SHARED = ".shared .align 1024 .b8 a[2048];\n.shared .align 1024 .b8 b[256];"

# A (64, 16) and B (8, 16), k contiguous, no swizzle: core matrices of 8 rows x 16 bytes, 128 bytes each; along k the
# next one lies LBO = 128 bytes on, along rows SBO = 256. Descriptor: start >> 4, LBO >> 4 at 16, SBO >> 4 at 32.
FILL = """
mov.u32 %r10, a;
shl.b32 %r11, %r0, 4;
add.u32 %r12, %r10, %r11;
mul.wide.u32 %rd5, %r0, 16;
add.s64 %rd5, %rd0, %rd5;
ld.global.v4.u32 {%r13, %r14, %r15, %r16}, [%rd5];
st.shared.v4.u32 [%r12], {%r13, %r14, %r15, %r16};
setp.lt.u32 %p1, %r0, 16;
mov.u32 %r17, b;
add.u32 %r18, %r17, %r11;
@%p1 ld.global.v4.u32 {%r13, %r14, %r15, %r16}, [%rd5+2048];
@%p1 st.shared.v4.u32 [%r18], {%r13, %r14, %r15, %r16};
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r19, %r10, 4;
cvt.u64.u32 %rd6, %r19;
or.b64 %rd6, %rd6, 68720001024;
shr.u32 %r20, %r17, 4;
cvt.u64.u32 %rd7, %r20;
or.b64 %rd7, %rd7, 68720001024;
"""
assert 68720001024 == (8 << 16) | (16 << 32)
WGMMA = """wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd6, %rd7, PRED, 1, 1, 0, 0;
"""
STORE = """
mul.wide.u32 %rd8, %r0, 16;
add.s64 %rd8, %rd1, %rd8;
st.global.v4.f32 [%rd8], {%f1, %f2, %f3, %f4};
"""
COMMIT, WAIT, FENCE = (
    f"wgmma.{name}.sync.aligned{arg};\n" for name, arg in (("commit_group", ""), ("wait_group", " 0"), ("fence", ""))
)
PRED = "setp.eq.u32 %p2, %r0, 9999;\nsetp.ne.u32 %p3, %r0, 9999;\n"
FIRST, AGAIN = WGMMA.replace("PRED", "%p2"), WGMMA.replace("PRED", "%p3")


def given() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bytes as core matrices, a (64, 16), b (8, 16)) of small whole numbers."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-8, 9, (rows, 16)).astype(np.float16) for rows in (64, 8))
    cores = [m.reshape(-1, 8, 2, 8).transpose(0, 2, 1, 3).reshape(-1) for m in (a, b)]
    return np.concatenate(cores).view(np.uint8), a, b


def registers(out: np.ndarray) -> np.ndarray:
    """(64, 8) from four accumulators a thread: rows t / 4 (+ 8) of each warp's 16, columns 2 (t % 4) (+ 1)."""
    values = out.view(np.float32).reshape(4, 8, 4, 2, 2)  # warp, t / 4, t % 4, row half, column
    return values.transpose(0, 3, 1, 2, 4).reshape(64, 8)


@pytest.mark.parametrize("schedule", ["lazy", "eager", "random"])
@pytest.mark.parametrize("width", ["warp", "warpgroup"])
@pytest.mark.parametrize("times", [1, 3])
def test_products_add_up_in_the_accumulators(schedule: str, width: str, times: int) -> None:
    data, a, b = given()
    body = FILL + PRED + FENCE + FIRST + AGAIN * (times - 1) + COMMIT + WAIT + STORE
    out, report = execute(kernel(body, SHARED), data, block=128, out_bytes=2048, schedule=schedule, width=width)
    assert report.width == width
    assert (registers(out) == times * (a.astype(np.float64) @ b.astype(np.float64).T)).all()


def test_accumulators_start_from_the_registers_when_scale_d_is_true() -> None:
    data, a, b = given()
    start = "".join(f"cvt.rn.f32.u32 %f{i}, %r0;\n" for i in range(1, 5))
    out, _ = execute(
        kernel(FILL + PRED + start + FENCE + AGAIN + COMMIT + WAIT + STORE, SHARED), data, block=128, out_bytes=2048
    )
    thread = registers(np.repeat(np.arange(128, dtype=np.float32), 4).view(np.uint8))
    assert (registers(out) == thread + a.astype(np.float64) @ b.astype(np.float64).T).all()


def test_a_from_registers_gives_the_same_product() -> None:
    data, a, b = given()
    lanes = np.arange(128)
    row, column = 16 * (lanes // 32) + lanes % 32 // 4, 2 * (lanes % 4)
    words = np.stack(
        [
            np.ascontiguousarray(np.stack([a[row + r, column + c], a[row + r, column + c + 1]], axis=1)).view(
                np.uint32
            )[:, 0]
            for c in (0, 8)
            for r in (0, 8)
        ],
        axis=1,
    )
    text = FILL + "add.s64 %rd9, %rd5, 2304;\nld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd9];\n" + PRED + FENCE
    text += (
        FIRST.replace("%rd6, %rd7", "{%r1, %r2, %r3, %r4}, %rd7").replace("1, 1, 0, 0", "1, 1, 0")
        + COMMIT
        + WAIT
        + STORE
    )
    source = np.concatenate([data, words.reshape(-1).view(np.uint8)])
    out, _ = execute(kernel(text, SHARED), source, block=128, out_bytes=2048)
    assert (registers(out) == a.astype(np.float64) @ b.astype(np.float64).T).all()


BROKEN: dict[str, str] = {
    "accumulator in flight": PRED + FENCE + FIRST + COMMIT + STORE + WAIT,
    "missing wgmma.fence": PRED + FIRST + COMMIT + WAIT + STORE,
    "uninitialised register": PRED + FENCE + AGAIN + COMMIT + WAIT + STORE,
    "wgmma operands differ": PRED + "add.s64 %rd7, %rd7, %rd2;\n" + FENCE + FIRST + COMMIT + WAIT,
    "partial warpgroup": PRED + "setp.lt.u32 %p4, %r0, 64;\n@%p4 bra OUT;\n" + FENCE + FIRST + COMMIT + WAIT + "OUT:\n",
    "out of bounds": PRED + "add.s64 %rd7, %rd7, 4096;\n" + FENCE + FIRST + COMMIT + WAIT,
}


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_rule_is_named(rule: str) -> None:
    with pytest.raises(EmulationError) as caught:
        execute(kernel(FILL + BROKEN[rule], SHARED), given()[0], block=128, out_bytes=2048)
    assert caught.value.rule in (rule, "deadlock" if rule == "partial warpgroup" else rule)


@pytest.mark.parametrize("start", ["", "mov.f32 %f1, 0f00000000;\n"], ids=["fresh", "written before"])
@pytest.mark.parametrize("apart", ["", "bra.uni NEXT;\nNEXT:\n"], ids=["one block", "two blocks"])
def test_a_read_of_what_was_never_written_is_told_from_one_of_an_accumulator_in_flight(start: str, apart: str) -> None:
    """Both in a block whose wgmma goes on with accumulators that are in flight."""
    text = FILL + PRED + start + FENCE + FIRST + apart + AGAIN + COMMIT
    for use, rule, name in (
        ("add.f32 %f9, %f8, %f8;\n", "uninitialised register", "%f8"),
        ("add.f32 %f9, %f1, %f1;\n", "accumulator in flight", "%f1"),
    ):
        with pytest.raises(EmulationError, match=name) as caught:
            execute(kernel(text + use + WAIT + STORE, SHARED), given()[0], block=128, out_bytes=2048)
        assert caught.value.rule == rule


@pytest.mark.parametrize("half", [False, True], ids=["by no thread", "by half of them"])
def test_operands_of_a_wgmma_that_were_never_written_are_named(half: bool) -> None:
    """Of A in registers, where the accumulators need no value, and of accumulators that are added to."""
    by_hand = FIRST.replace("%rd6, %rd7", "{%r1, %r2, %r3, %r4}, %rd7").replace("1, 1, 0, 0", "1, 1, 0")
    zeros = "".join(f"mov.f32 %f{i}, 0f00000000;\n" for i in range(1, 9) if i != 3)
    for before, write, wgmma, name in (
        ("mov.b32 %r1, 0;\nmov.b32 %r2, 0;\nmov.b32 %r4, 0;\n", "mov.b32 %r3, 0;\n", by_hand, "%r3"),
        (zeros, "mov.f32 %f3, 0f00000000;\n", AGAIN, "%f3"),
    ):
        before += f"setp.ge.u32 %p4, %r0, 64;\n@%p4 bra ON;\n{write}ON:\n" if half else ""
        text = kernel(FILL + PRED + before + FENCE + wgmma + COMMIT + WAIT, SHARED)
        who = r"never written by this thread \[CTA 0, thread 64 " if half else r"never written \[CTA 0\]"
        with pytest.raises(EmulationError, match=f"{name} is read but was {who}") as caught:
            execute(text, given()[0], block=128, out_bytes=2048)
        assert (caught.value.rule, caught.value.line) == ("uninitialised register", line_of(text, "wgmma.mma_async"))


def test_accumulators_of_which_one_is_another_register_are_reported() -> None:
    text = FILL + PRED + "mov.b32 %f5, %r0;\n" + FENCE + FIRST + AGAIN.replace("%f2,", "%f5,") + COMMIT + WAIT + STORE
    with pytest.raises(EmulationError, match=r"%f1 is an accumulator of .* in another place") as caught:
        execute(kernel(text, SHARED), given()[0], block=128, out_bytes=2048)
    assert caught.value.rule == "accumulator in flight"


def test_accumulators_written_after_the_fence_are_reported() -> None:
    data, _, _ = given()
    use = FENCE + FIRST + COMMIT + WAIT + "add.f32 %f1, %f1, %f1;\n" + AGAIN + COMMIT + WAIT + STORE
    with pytest.raises(EmulationError, match="a fence must stand between"):
        execute(kernel(FILL + PRED + use, SHARED), data, block=128, out_bytes=2048)
    repaired = use.replace("%f1, %f1, %f1;\n", "%f1, %f1, %f1;\n" + FENCE)
    execute(kernel(FILL + PRED + repaired, SHARED), data, block=128, out_bytes=2048)


def test_a_register_written_before_the_wait_is_reported() -> None:
    text = FILL + "".join(f"mov.u32 %r{i}, %r0;\n" for i in range(1, 5)) + PRED + FENCE
    text += FIRST.replace("%rd6, %rd7", "{%r1, %r2, %r3, %r4}, %rd7").replace("1, 1, 0, 0", "1, 1, 0")
    broken = text + COMMIT + "add.u32 %r2, %r0, 1;\n" + WAIT + "st.global.u32 [%rd4], %r2;\n"
    with pytest.raises(EmulationError, match="%r2 of A was written before") as caught:
        execute(kernel(broken, SHARED), given()[0], block=128, out_bytes=2048)
    assert caught.value.rule == "operand overwritten in flight"


MOVES = """
setp.ge.u32 %p1, %r0, 128;
@%p1 bra CONSUMER;
setmaxnreg.dec.sync.aligned.u32 {producer};
bra.uni OUT;
CONSUMER: setmaxnreg.inc.sync.aligned.u32 {consumer};
OUT: st.global.u32 [%rd4], 1;
"""


@pytest.mark.parametrize("width", ["warp", "warpgroup"])
def test_registers_given_up_let_the_others_take_them(width: str) -> None:
    text = kernel(MOVES.format(producer=24, consumer=240))
    out, _ = execute(text, block=384, registers=168, out_bytes=4 * 384, schedule="random", width=width)
    assert (out.view(np.uint32) == 1).all()


def test_more_registers_than_the_pool_has_is_a_deadlock() -> None:
    with pytest.raises(EmulationError, match="registers; the CTA's pool has 4096 to spare") as caught:
        execute(kernel(MOVES.format(producer=80, consumer=224)), block=384, registers=168, out_bytes=4 * 384)
    assert caught.value.rule == "deadlock"


@pytest.mark.parametrize(("producer", "consumer"), [(20, 240), (28, 240), (24, 300), (200, 240), (24, 160)])
def test_register_counts_against_the_rules_are_errors(producer: int, consumer: int) -> None:
    with pytest.raises(EmulationError) as caught:
        execute(kernel(MOVES.format(producer=producer, consumer=consumer)), block=384, registers=168, out_bytes=4 * 384)
    assert caught.value.rule in ("setmaxnreg", "deadlock")
