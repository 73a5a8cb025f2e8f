"""mbarriers: counts, bytes, phases, and every way to use one wrongly."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import execute, kernel, words

from tilewright.emulator.barriers import BarrierError, Mbarrier
from tilewright.errors import EmulationError

SHARED = ".shared .align 8 .b8 bar[16];"
INIT = (
    "mov.u32 %r20, bar;\nsetp.ne.u32 %p8, %r0, 0;\n@!%p8 mbarrier.init.shared::cta.b64 [%r20], {count};\nbar.sync 0;\n"
)
WAIT = """
W{n}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r20], {parity};
@!%p9 bra W{n};
"""


def wait(parity: int, n: int = 0) -> str:
    return WAIT.format(parity=parity, n=n)


def test_phase_completes_when_arrivals_and_bytes_are_both_done() -> None:
    barrier = Mbarrier(0, 2)
    barrier.expect(100)
    assert not barrier.arrive(1)
    assert not barrier.arrive(1)
    assert not barrier.complete(60)
    assert barrier.complete(40)
    assert (barrier.phase, barrier.pending, barrier.tx) == (1, 2, 0)


def test_bytes_may_come_before_they_are_announced() -> None:
    barrier = Mbarrier(0, 1)
    assert not barrier.complete(64)
    barrier.expect(64)
    assert barrier.arrive(1)


def test_fresh_barrier_has_completed_parity_one() -> None:
    barrier = Mbarrier(0, 1)
    assert barrier.is_complete(1)
    assert not barrier.is_complete(0)


@pytest.mark.parametrize("count", [0, 1 << 20])
def test_count_outside_its_range_is_refused(count: int) -> None:
    with pytest.raises(BarrierError):
        Mbarrier(0, count)


def test_tx_count_outside_its_range_is_refused() -> None:
    barrier = Mbarrier(0, 1)
    with pytest.raises(BarrierError):
        barrier.expect(1 << 20)


@pytest.mark.parametrize("width", ["warp", "cta"])
@pytest.mark.parametrize("seed", range(4))
def test_waiters_of_every_phase_go_on(width: str, seed: int) -> None:
    """Four rounds in which warp 0 releases warp 1 and back, with try_wait failing now and then."""
    body = (
        INIT.format(count=1) + "add.u32 %r21, %r20, 8;\n@!%p8 mbarrier.init.shared::cta.b64 [%r21], 1;\nbar.sync 0;\n"
    )
    body += "mov.u32 %r22, 0;\nmov.u32 %r23, 0;\nsetp.ge.u32 %p7, %r0, 32;\n"
    body += "and.b32 %r24, %r0, 31;\nsetp.eq.u32 %p6, %r24, 0;\n"
    body += """
@%p7 bra SECOND;
FIRST: @%p6 mbarrier.arrive.shared::cta.b64 _, [%r20];
F: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r21], %r22;
@!%p9 bra F;
xor.b32 %r22, %r22, 1;
add.u32 %r23, %r23, 1;
setp.lt.u32 %p5, %r23, 4;
@%p5 bra FIRST;
bra.uni OUT;
SECOND: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r20], %r22;
@!%p9 bra SECOND;
@%p6 mbarrier.arrive.shared::cta.b64 _, [%r21];
xor.b32 %r22, %r22, 1;
add.u32 %r23, %r23, 1;
setp.lt.u32 %p5, %r23, 4;
@%p5 bra SECOND;
OUT: st.global.u32 [%rd4], %r23;
"""
    text = kernel(body, SHARED)
    assert (words(text, block=64, width=width, schedule="random", seed=seed) == 4).all()


def test_arrival_with_bytes_waits_for_complete_tx() -> None:
    body = INIT.format(count=1)
    body += "@!%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 48;\n"
    body += "@!%p8 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r20], 48;\n"
    body += wait(0) + "st.global.u32 [%rd4], 1;"
    assert (words(kernel(body, SHARED)) == 1).all()


def test_missing_bytes_are_a_deadlock_that_tells_the_barriers_state() -> None:
    body = INIT.format(count=2) + "@!%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 48;\n" + wait(0)
    says = r"waits for parity 0 \(phase 0\) of mbarrier\(CTA 0, smem\+0: phase 0, 1 of 2 arrived, tx-count 48 bytes\)"
    with pytest.raises(EmulationError, match=says) as caught:
        execute(kernel(body, SHARED))
    assert caught.value.rule == "deadlock"


BROKEN: dict[str, tuple[str, str]] = {
    "mbarrier over-arrival": ("mbarrier.arrive.shared::cta.b64 _, [%r20], 3;", "3 arrival"),
    "mbarrier before init": ("@!%p8 mbarrier.arrive.shared::cta.b64 _, [%r20+8];", "mbarrier.init has not run"),
    "mbarrier re-init": ("@!%p8 mbarrier.init.shared::cta.b64 [%r20], 2;", "initialises a live mbarrier"),
    "missing wait": (
        "@!%p8 mbarrier.arrive.shared::cta.b64 _, [%r20], 2;\n@!%p8 mbarrier.arrive.shared::cta.b64 _, [%r20];",
        "nobody has waited for",
    ),
    "parity": (wait(2), "parity 2"),
    "mbarrier tx-count": ("@!%p8 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r20], 1048576;", "tx-count becomes"),
    "misaligned": ("@!%p8 mbarrier.arrive.shared::cta.b64 _, [%r20+4];", "not a multiple of"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_rule_is_named(rule: str) -> None:
    body, says = BROKEN[rule]
    with pytest.raises(EmulationError, match=says) as caught:
        execute(kernel(INIT.format(count=2) + body, SHARED), block=32)
    assert caught.value.rule == rule


def test_lapped_waiter_is_reported() -> None:
    """Warp 1 waits for phase 0; warp 0 completes phases 0 and 1 and sees both before warp 1 can run."""
    body = INIT.format(count=1) + "setp.ge.u32 %p7, %r0, 32;\n@%p7 bra LATE;\nsetp.ne.u32 %p6, %r0, 0;\n"
    step = "@!%p6 mbarrier.arrive.shared::cta.b64 _, [%r20];\n"
    body += "bar.sync 1, 32;\n" + step + wait(0, 1) + step + wait(1, 2) + "bra.uni OUT;\nLATE:\n" + wait(0, 3) + "OUT:"
    order = "mov.u32 %r1, 0;\n"
    text = kernel(order + body, SHARED)
    rules = set()
    for seed in range(30):
        try:
            execute(text, block=64, width="warp", schedule="random", seed=seed)
        except EmulationError as error:
            rules.add(error.rule)
    assert rules <= {"lapped waiter", "deadlock"}
    assert "lapped waiter" in rules


def test_test_wait_answers_at_once() -> None:
    body = (
        INIT.format(count=1) + "mbarrier.test_wait.parity.shared::cta.b64 %p9, [%r20], 0;\nselp.u32 %r1, 1, 0, %p9;\n"
    )
    assert (words(kernel(body + "st.global.u32 [%rd4], %r1;", SHARED)) == 0).all()


def test_state_of_an_arrival_waits_for_its_phase() -> None:
    body = INIT.format(count=32)
    body += "mbarrier.arrive.shared::cta.b64 %rd9, [%r20];\nW: mbarrier.try_wait.shared::cta.b64 %p9, [%r20], %rd9;\n"
    body += "@!%p9 bra W;\nst.global.u32 [%rd4], 1;"
    assert (words(kernel(body, SHARED)) == 1).all()


def test_inval_lets_the_bytes_be_used_again() -> None:
    body = INIT.format(count=1)
    body += (
        "@!%p8 mbarrier.inval.shared::cta.b64 [%r20];\n@!%p8 mbarrier.init.shared::cta.b64 [%r20], 32;\nbar.sync 0;\n"
    )
    body += "mbarrier.arrive.shared::cta.b64 _, [%r20];\n" + wait(0) + "st.global.u32 [%rd4], 1;"
    assert (words(kernel(body, SHARED)) == 1).all()


CLUSTER = """
mov.u32 %r20, bar;
setp.ne.u32 %p8, %r0, 0;
@!%p8 mbarrier.init.shared::cta.b64 [%r20], 1;
fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
mov.u32 %r21, %cluster_ctarank;
xor.b32 %r22, %r21, 1;
mapa.shared::cluster.u32 %r23, %r20, %r22;
add.u32 %r25, %r21, 40;
@!%p8 st.shared::cluster.u32 [%r23+8], %r25;
@!%p8 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r23];
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r20], 0;
@!%p9 bra W;
ld.shared.u32 %r24, [%r20+8];
mov.u32 %r26, %ctaid.x;
mad.lo.u32 %r26, %r26, 32, %r0;
mul.wide.u32 %rd5, %r26, 4;
add.s64 %rd5, %rd1, %rd5;
st.global.u32 [%rd5], %r24;
"""
LEAVE = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"


@pytest.mark.parametrize("schedule", ["lazy", "eager", "random"])
def test_cluster_hands_values_to_the_peer_by_remote_arrival(schedule: str) -> None:
    got = words(kernel(CLUSTER + LEAVE, SHARED), grid=4, cluster=2, schedule=schedule).reshape(4, 32)
    assert (got == np.array([[41], [40], [41], [40]])).all()


def test_waiting_on_a_peers_barrier_is_refused() -> None:
    body = CLUSTER.replace("[%r20], 0;\n@!%p9", "[%r23], 0;\n@!%p9")
    with pytest.raises(EmulationError, match="only arrive, expect_tx and complete_tx") as caught:
        execute(kernel(body + LEAVE, SHARED), grid=2, cluster=2, out_bytes=256)
    assert caught.value.rule == "remote mbarrier"


def test_peer_that_has_left_has_no_shared_memory() -> None:
    """CTA 1 leaves at once; CTA 0 writes to it after a barrier of its own."""
    body = """
mov.u32 %r20, bar;
mov.u32 %r21, %cluster_ctarank;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
setp.eq.u32 %p1, %r21, 1;
@%p1 bra OUT;
mov.u32 %r1, 0;
AGAIN: add.u32 %r1, %r1, 1;
setp.lt.u32 %p2, %r1, 3000;
@%p2 bra AGAIN;
mapa.shared::cluster.u32 %r23, %r20, 1;
st.shared::cluster.u32 [%r23+8], %r21;
OUT:
"""
    with pytest.raises(EmulationError, match="CTA rank 1 is gone") as caught:
        execute(kernel(body, SHARED), grid=2, cluster=2)
    assert caught.value.rule == "peer exited"


def test_mapa_outside_the_cluster_is_refused() -> None:
    with pytest.raises(EmulationError, match="mapa to CTA rank 2 of a cluster of 2"):
        execute(kernel("mov.u32 %r1, bar;\nmapa.shared::cluster.u32 %r2, %r1, 2;", SHARED), grid=2, cluster=2)


@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_threads_that_wait_by_their_own_tokens_for_one_phase_wait_together(schedule: str) -> None:
    """Tokens differ in the count they hold; a wait that parted by them would run each block once a thread."""
    body = INIT.format(count=128) + "mbarrier.arrive.shared::cta.b64 %rd10, [%r20];\n"
    body += "WAIT: mbarrier.try_wait.shared::cta.b64 %p9, [%r20], %rd10;\n@!%p9 bra WAIT;\n"
    body += "cvt.u32.u64 %r2, %rd10;\nand.b32 %r2, %r2, 1023;\nst.global.u32 [%rd4], %r2;\n"
    out, report = execute(kernel(body, SHARED), out_bytes=512, block=128, width="cta", schedule=schedule, seed=1)
    assert out.view(np.uint32).tolist() == list(range(128, 0, -1))
    assert report.blocks < 32
