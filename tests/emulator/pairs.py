"""Small kernels with one bug each, and what repairs it: a text with a hole, and what fills it either way."""

from __future__ import annotations

from dataclasses import dataclass

SHARED = ".shared .align 1024 .b8 buffer[4096];\n.shared .align 8 .b8 bar[16];"

# %r5: buffer; %r6: this thread's word of it; %r7: bar; %p1: thread 0; %p2: warp 0; %p3: CTA rank 0.
NAMES = """
mov.u32 %r5, buffer;
shl.b32 %r6, %r0, 2;
add.u32 %r6, %r6, %r5;
mov.u32 %r7, bar;
setp.eq.u32 %p1, %r0, 0;
setp.lt.u32 %p2, %r0, 32;
mov.u32 %r8, %cluster_ctarank;
setp.eq.u32 %p3, %r8, 0;
"""
INIT = """
@!%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r7], 1;
fence.mbarrier_init.release.cluster;
READY:
"""
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd0], 256, [%r7];\n"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], {bytes};\n"
CLUSTER = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"


def wait(label: str, parity: int = 0, how: str = "") -> str:
    return f"{label}:\nmbarrier.try_wait.parity{how}.shared::cta.b64 %p9, [%r7], {parity};\n@!%p9 bra {label};\n"


@dataclass(frozen=True)
class Pair:
    """`text` has {} where `broken` or `repaired` stands. `says`: a part of the message or of the repair; `also`: rules
    that the same bug breaks besides."""

    rule: str
    text: str
    broken: str
    repaired: str
    says: str
    block: int = 64
    grid: int = 1
    cluster: int = 1
    also: tuple[str, ...] = ()


def _alone(body: str) -> str:
    """Thread 0 alone."""
    return f"@!%p1 bra DONE;\n{body}\nDONE:\n"


FENCE = "fence.proxy.async.shared::cta;\n"
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r5], 128;\ncp.async.bulk.commit_group;\n"
DRAIN = "cp.async.bulk.wait_group.read 0;\n"
WGMMA = """
and.b32 %r9, %r5, 0x3FFFF;
shr.u32 %r9, %r9, 4;
cvt.u64.u32 %rd6, %r9;
mov.u64 %rd7, 0x0000001000080000; // core matrices 128 bytes apart along k, 256 along m
or.b64 %rd6, %rd6, %rd7;
add.s64 %rd7, %rd6, 128;
wgmma.fence.sync.aligned;
setp.ne.u32 %p4, %r5, %r5;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd6, %rd7, %p4, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
"""
WGMMA_WAIT = "wgmma.wait_group.sync.aligned 0;\n"

PAIRS: dict[str, Pair] = {
    "shared words cross warps": Pair(
        "data race",
        "st.shared.u32 [%r6], %r0;\n{}xor.b32 %r9, %r6, 128;\nld.shared.u32 %r1, [%r9];\nst.global.u32 [%rd4], %r1;",
        "",
        "bar.sync 0;\n",
        "a barrier (__syncthreads",
    ),
    "shared words are written again": Pair(
        "data race",
        "st.shared.u32 [%r6], %r0;\nbar.sync 0;\nxor.b32 %r9, %r6, 128;\nld.shared.u32 %r1, [%r9];\n{}"
        "st.shared.u32 [%r6], %r1;",
        "",
        "bar.sync 0;\n",
        "writes bytes smem+",
    ),
    "one barrier for two different sets of warps": Pair(
        "data race",
        "st.shared.u32 [%r6], %r0;\n{}xor.b32 %r9, %r6, 128;\nld.shared.u32 %r1, [%r9];",
        "@%p2 bar.sync 1, 32;\n@!%p2 bar.sync 2, 32;\n",
        "bar.sync 1, 64;\n",
        "nothing that orders",
    ),
    "lanes exchange words": Pair(
        "missing __syncwarp",
        "st.shared.u32 [%r6], %r0;\n{}xor.b32 %r9, %r6, 4;\nld.shared.u32 %r1, [%r9];",
        "",
        "bar.warp.sync 0xffffffff;\n",
        "execute __syncwarp",
    ),
    "a shuffle orders no memory": Pair(
        "missing __syncwarp",
        "st.shared.u32 [%r6], %r0;\n{}xor.b32 %r9, %r6, 4;\nld.shared.u32 %r1, [%r9];",
        "shfl.sync.bfly.b32 %r3, %r0, 1, 31, 0xffffffff;\n",
        "bar.warp.sync 0xffffffff;\n",
        "warp 0 lane",
    ),
    "bulk store of words": Pair(
        "missing proxy fence",
        "st.shared.u32 [%r6], %r0;\n{}bar.sync 0;\n" + _alone(STORE + DRAIN),
        "",
        FENCE,
        "executes fence.proxy.async.shared::cta",
    ),
    "the issuing thread fences after the barrier": Pair(
        "missing proxy fence",
        "st.shared.u32 [%r6], %r0;\n{}" + _alone(STORE + DRAIN),
        "fence.proxy.async.global;\nbar.sync 0;\n",
        "bar.sync 0;\n" + FENCE,
        "in order but with no fence",
    ),
    "global words are loaded by a copy": Pair(
        "missing proxy fence",
        NAMES + INIT + "bar.sync 0;\n" + _alone(
            "st.global.u32 [%rd1], %r0;\n{}" + EXPECT.format(bytes=16)
            + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd1], 16, [%r7];\n"
            + wait("W")
        ),
        "",
        "fence.proxy.async.global;\n",
        "of buffer 'out'",
    ),
    "ordinary writes for the peer": Pair(
        "scope too narrow",
        INIT + CLUSTER + "@!%p1 bra DONE;\n@%p3 bra READER;\nmapa.shared::cluster.u32 %r9, %r5, 0;\n"
        "mapa.shared::cluster.u32 %r10, %r7, 0;\nst.shared::cluster.u32 [%r9], %r0;\n"
        "mbarrier.arrive{}.shared::cluster.b64 _, [%r10];\nbra DONE;\nREADER:\n" + wait("W", how=".acquire.cluster")
        + "ld.shared.u32 %r1, [%r5];\nDONE:\n" + CLUSTER,
        "",
        ".release.cluster",
        "the scope .cluster",
        block=32,
        grid=2,
        cluster=2,
    ),
    "a bulk load is read": Pair(
        "copy not waited for",
        INIT + "bar.sync 0;\n@!%p1 bra LOADED;\n" + EXPECT.format(bytes=256) + LOAD
        + "LOADED:\n{}ld.shared.u32 %r1, [%r6];\n" + wait("END"),
        "",
        wait("W"),
        "wait for the phase of the mbarrier",
    ),
    "cp.async without its wait": Pair(
        "cp.async not waited for",
        "cp.async.ca.shared.global [%r6], [%rd3], 4;\ncp.async.commit_group;\n{}bar.sync 0;\n"
        "ld.shared.u32 %r1, [%r6];\ncp.async.wait_all;",
        "",
        "cp.async.wait_group 0;\n",
        "cp.async.wait_group",
    ),
    "cp.async of other threads without a barrier": Pair(
        "cp.async not waited for",
        "cp.async.ca.shared.global [%r6], [%rd3], 4;\ncp.async.commit_group;\ncp.async.wait_group 0;\n{}"
        "xor.b32 %r9, %r6, 128;\nld.shared.u32 %r1, [%r9];",
        "",
        "bar.sync 0;\n",
        "the cp.async of CTA 0",
    ),
    "cp.async counted by an mbarrier": Pair(
        "cp.async not waited for",
        "@!%p1 bra READY;\nmbarrier.init.shared::cta.b64 [%r7], 64;\nREADY:\nbar.sync 0;\n"
        "cp.async.ca.shared.global [%r6], [%rd3], 4;\ncp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r7];\n{}"
        "xor.b32 %r9, %r6, 128;\nld.shared.u32 %r1, [%r9];\n" + wait("END"),
        "",
        wait("W"),
        "cp.async.mbarrier.arrive",
    ),
    "cp.async refills words that other warps read": Pair(
        "data race",
        "cp.async.ca.shared.global [%r6], [%rd3], 4;\ncp.async.wait_all;\nbar.sync 0;\nxor.b32 %r9, %r6, 128;\n"
        "ld.shared.u32 %r1, [%r9];\n{}cp.async.ca.shared.global [%r6], [%rd3+256], 4;\ncp.async.wait_all;\n",
        "",
        "bar.sync 0;\n",
        "the cp.async of CTA 0",
    ),
    "cp.async is overwritten by its own thread": Pair(
        "cp.async not waited for",
        "cp.async.ca.shared.global [%r6], [%rd3], 4;\ncp.async.commit_group;\n{}st.shared.u32 [%r6], %r0;\n"
        "cp.async.wait_all;\n",
        "",
        "cp.async.wait_group 0;\n",
        "writes bytes smem+",
    ),
    "operands come by cp.async": Pair(
        "missing proxy fence",
        "cp.async.ca.shared.global [%r6], [%rd3], 4;\ncp.async.wait_all;\n{}bar.sync 0;\n" + WGMMA + WGMMA_WAIT,
        "",
        FENCE,
        "which the cp.async of CTA 0",
        block=128,
    ),
    "a relaxed cluster barrier hands on no words": Pair(
        "data race",
        CLUSTER + "mapa.shared::cluster.u32 %r10, %r5, 0;\n@!%p1 bra WRITTEN;\n@%p3 bra WRITTEN;\n"
        "st.shared::cluster.u32 [%r10], %r0;\nWRITTEN:\nbar.sync 0;\nbarrier.cluster.arrive.{}.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;\n@!%p1 bra READ;\n@!%p3 bra READ;\nld.shared.u32 %r1, [%r5];\nREAD:\n"
        + "bar.sync 0;\n" + CLUSTER,
        "relaxed",
        "release",
        "a cluster barrier (arrive.release",
        grid=2,
        cluster=2,
    ),
    "the peer's st.async is read": Pair(
        "copy not waited for",
        INIT + CLUSTER + "@!%p1 bra DONE;\n@%p3 bra READER;\nmapa.shared::cluster.u32 %r9, %r5, 0;\n"
        "mapa.shared::cluster.u32 %r10, %r7, 0;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r9], %r0, [%r10];\nbra DONE;\nREADER:\n"
        + EXPECT.format(bytes=4) + "{}ld.shared.u32 %r1, [%r5];\n" + wait("END") + "DONE:\n" + CLUSTER,
        "",
        wait("W"),
        "the st.async issued by CTA 1",
        block=32,
        grid=2,
        cluster=2,
    ),
    "an operand is written again": Pair(
        "operand released early",
        "bar.sync 0;\n" + WGMMA + "{}st.shared.u32 [%r6], %r0;\n" + WGMMA_WAIT,
        "",
        WGMMA_WAIT + "bar.sync 0;\n",
        "execute wgmma.wait_group",
        block=128,
    ),
    "operands come from ordinary writes": Pair(
        "missing proxy fence",
        "st.shared.u32 [%r6], 0;\n{}bar.sync 0;\n" + WGMMA + WGMMA_WAIT,
        "",
        FENCE,
        "the wgmma issued by CTA 0 warps 0..3 reads",
        block=128,
    ),
    "a store's source is written again": Pair(
        "store source overwritten",
        _alone(STORE + "{}st.shared.u32 [%r5], %r0;\n" + DRAIN),
        "",
        DRAIN,
        "cp.async.bulk.wait_group.read",
    ),
    "another lane cannot know that the source is read": Pair(
        "store source overwritten",
        "@!%p1 bra DONE;\n" + STORE + DRAIN + "DONE:\n{}st.shared.u32 [%r6], %r0;\n",
        "",
        "bar.warp.sync 0xffffffff;\n",
        "then __syncwarp or a barrier",
        block=32,
    ),
    "a copy lands on bytes that are still read": Pair(
        "refilled while read",
        INIT + "bar.sync 0;\nld.shared.u32 %r1, [%r6];\n{}@!%p1 bra LOADED;\n" + EXPECT.format(bytes=256) + LOAD
        + "LOADED:\n" + wait("W"),
        "",
        "bar.sync 0;\n",
        "arrive on a barrier after their last access",
    ),
    "two copies to the same bytes": Pair(
        "unordered copies",
        INIT + "bar.sync 0;\n" + _alone(EXPECT.format(bytes=256) + LOAD + "{}"),
        EXPECT.format(bytes=256).replace(".arrive", "").replace("_, ", "") + LOAD + wait("END"),
        wait("W") + EXPECT.format(bytes=256) + LOAD + wait("END", 1),
        "wait for the first copy",
    ),
    "a store is read back": Pair(
        "unordered global copies",
        _alone("st.shared.u32 [%r5], %r0;\n" + FENCE + STORE + "{}ld.global.u32 %r1, [%rd1];\n" + DRAIN),
        DRAIN,
        DRAIN.replace(".read", ""),
        "without .read",
    ),
    "an mbarrier is used before the barrier": Pair(
        "mbarrier init order",
        INIT + "{}@%p2 bra DONE;\n" + wait("W") + "bra END;\nDONE:\nbar.warp.sync 0xffffffff;\n@!%p1 bra END;\n"
        "mbarrier.arrive.shared::cta.b64 _, [%r7];\nEND:\n",
        "",
        "bar.sync 0;\n",
        "between mbarrier.init and the first use",
    ),
    "an init is not fenced for copies": Pair(
        "mbarrier init fence",
        "@!%p1 bra READY;\nmbarrier.init.shared::cta.b64 [%r7], 1;\n{}READY:\nbar.sync 0;\n"
        "@!%p1 bra LOADED;\n" + EXPECT.format(bytes=256) + LOAD + "LOADED:\n" + wait("W"),
        "",
        "fence.mbarrier_init.release.cluster;\n",
        "fence.mbarrier_init.release.cluster",
    ),
    "data over a live mbarrier": Pair(
        "mbarrier bytes",
        INIT + "bar.sync 0;\n" + _alone("{}st.shared.u32 [%r7], %r0;"),
        "",
        "mbarrier.inval.shared::cta.b64 [%r7];\n",
        "a live mbarrier",
    ),
    "a store is not read before the end": Pair(
        "exit before store read",
        _alone(STORE + "{}"),
        "",
        DRAIN,
        "cp.async.bulk.wait_group.read 0 before it leaves",
    ),
    "a load is not waited for": Pair(
        "exit with copy in flight",
        INIT + "bar.sync 0;\n" + _alone(EXPECT.format(bytes=256) + LOAD + "{}"),
        "",
        wait("W"),
        "may still write its shared memory",
    ),
    "cp.async is not waited for": Pair(
        "exit with copy in flight",
        "cp.async.ca.shared.global [%r6], [%rd3], 4;\n{}",
        "cp.async.commit_group;\n",
        "cp.async.wait_all;\n",
        "the cp.async of",
    ),
    "wgmma is not waited for": Pair(
        "exit with wgmma in flight",
        "bar.sync 0;\n" + WGMMA + "{}",
        "",
        WGMMA_WAIT,
        "wgmma.wait_group 0 before the CTA ends",
        block=128,
    ),
    "the peer may have ended": Pair(
        "exit before remote access",
        INIT + CLUSTER + "@!%p1 bra DONE;\n@%p3 bra DONE;\nmapa.shared::cluster.u32 %r10, %r7, 0;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [%r10];\nDONE:\nbar.sync 0;\n{}",
        "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n",
        CLUSTER,
        "cluster barrier (arrive.release, wait.acquire)",
        grid=2,
        cluster=2,
    ),
    # -- global memory between CTAs ------------------------------------------------------------------------------------
    "a flag without order": Pair(
        "data race",
        _alone("mov.u32 %r9, %ctaid.x;\nsetp.eq.u32 %p5, %r9, 0;\n@!%p5 bra READER;\nst.global.u32 [%rd1], 7;\n"
               "st.{}.gpu.global.u32 [%rd1+64], 1;\nbra DONE;\nREADER:\nld.acquire.gpu.global.u32 %r1, [%rd1+64];\n"
               "setp.ne.u32 %p6, %r1, 1;\n@%p6 bra READER;\nld.global.u32 %r2, [%rd1];"),
        "relaxed",
        "release",
        "st.release",
        grid=2,
    ),
    "a flag that is read without acquire": Pair(
        "data race",
        _alone("mov.u32 %r9, %ctaid.x;\nsetp.eq.u32 %p5, %r9, 0;\n@!%p5 bra READER;\nst.global.u32 [%rd1], 7;\n"
               "membar.gl;\nst.volatile.global.u32 [%rd1+64], 1;\nbra DONE;\nREADER:\n"
               "ld.volatile.global.u32 %r1, [%rd1+64];\nsetp.ne.u32 %p6, %r1, 1;\n@%p6 bra READER;\n{}"
               "ld.global.u32 %r2, [%rd1];"),
        "",
        "membar.gl;\n",
        "at scope .gpu",
        grid=2,
    ),
    "a counter with fences": Pair(
        "data race",
        "mov.u32 %r9, %ctaid.x;\nshl.b32 %r10, %r9, 8;\ncvt.u64.u32 %rd8, %r10;\nadd.s64 %rd9, %rd4, %rd8;\n"
        "st.global.u32 [%rd9], %r0;\n{}" + _alone(
            "membar.gl;\natom.global.add.u32 %r11, [%rd1+1024], 1;\nmembar.gl;\nsetp.eq.u32 %p6, %r11, 0xEEEEEEEE;\n"
            "@%p6 bra DONE;\nld.global.u32 %r2, [%rd1+4];\nld.global.u32 %r2, [%rd1+260];"
        ),
        "",
        "bar.sync 0;\n",
        "of buffer 'out'",
        grid=2,
        also=("missing __syncwarp",),
    ),
    "sums of two CTAs": Pair(
        "data race",
        "{}",
        "ld.global.u32 %r1, [%rd4];\nadd.u32 %r1, %r1, 1;\nst.global.u32 [%rd4], %r1;",
        "red.global.add.u32 [%rd4], 1;",
        "both are atomics",
        grid=2,
    ),
    "an atomic of CTA scope": Pair(
        "scope too narrow",
        "red.relaxed.{}.global.add.u32 [%rd4], 1;",
        "cta",
        "gpu",
        "the scope .gpu",
        grid=2,
    ),
}  # fmt: skip
