// mbarrier, cluster barrier and proxy fence: one wrapper, one instruction, named as the PTX ISA names it.
// Every wrapper touches or orders memory, so every one is volatile with a memory clobber.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, mbarrier.init. One thread, before any other use of the barrier; made visible by a fence and a barrier.
DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// PTX ISA, membar / fence: orders this thread's earlier mbarrier.init before later uses by its cluster and by TMA.
DEVICE void fence_mbarrier_init_release_cluster() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// PTX ISA, membar / fence: this thread's earlier ordinary writes of shared memory come before its later asynchronous
// reads of them (TMA stores, wgmma), its own or those that a barrier hands on.
DEVICE void fence_proxy_async_shared_cta() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// PTX ISA, mbarrier.arrive.expect_tx. One thread: adds `bytes` to what the phase waits for, then arrives once.
DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// PTX ISA, mbarrier.arrive. One arrival on a barrier of the own CTA; releases this thread's earlier accesses.
DEVICE void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// PTX ISA, mbarrier.arrive, with the token of the phase it arrived on: for mbarrier_try_wait.
DEVICE uint64_t mbarrier_arrive_token(uint32_t barrier) {
    uint64_t token;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(barrier) : "memory");
    return token;
}

// PTX ISA, mbarrier.arrive.expect_tx, with the token of the phase it arrived on.
DEVICE uint64_t mbarrier_arrive_expect_tx_token(uint32_t barrier, uint32_t bytes) {
    uint64_t token;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(token)
                 : "r"(barrier), "r"(bytes)
                 : "memory");
    return token;
}

// PTX ISA, mbarrier.arrive on .shared::cluster: one arrival on a barrier of any CTA of the cluster, `mapa` gave its
// address. Without a scope on purpose: `.release.cluster` becomes MEMBAR.ALL.GPU + CCTL.IVALL in the main loop
// (measured, H200, 2026-11-29, 8192^3: 538 against 672 TFLOPS). Sound because such an arrival only frees a slot that
// asynchronous copies and wgmma touch: no ordinary write is handed to the other CTA.
DEVICE void mbarrier_arrive_cluster(uint32_t cluster_barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_barrier) : "memory");
}

// PTX ISA, mbarrier.try_wait.parity: true when the phase of this parity has completed; may suspend the thread for a
// time that the hardware chooses, then return false. Acquires what the arrivals released.
DEVICE bool mbarrier_try_wait_parity(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "selp.b32 %0, 1, 0, complete;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

// PTX ISA, mbarrier.try_wait: the same for the phase of a token, which names the current or the last phase.
DEVICE bool mbarrier_try_wait(uint32_t barrier, uint64_t token) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.shared::cta.b64 complete, [%1], %2;\n"
        "selp.b32 %0, 1, 0, complete;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "l"(token)
        : "memory");
    return done != 0;
}

// PTX ISA, mapa: the .shared::cluster address of the same offset in the CTA of this rank.
DEVICE uint32_t mapa_shared_cluster(uint32_t address, uint32_t cta_rank) {
    uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(cta_rank));  // arithmetic only
    return mapped;
}

// PTX ISA, barrier.sync with an immediate id: whole warps, `threads` in all, arrive and wait. ID: 1 .. 15 (0 is
// __syncthreads).
template <int ID, int THREADS>
DEVICE void barrier_sync() {
    asm volatile("barrier.sync.aligned %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

// PTX ISA, barrier.arrive: the same arrival without waiting.
template <int ID, int THREADS>
DEVICE void barrier_arrive() {
    asm volatile("barrier.arrive.aligned %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

// PTX ISA, barrier.cluster.arrive: every thread of the cluster, whole warps; releases earlier accesses to the cluster.
DEVICE void barrier_cluster_arrive_release() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// The same, ordering nothing but what fence.mbarrier_init has announced: without the MEMBAR.ALL.GPU of a release.
DEVICE void barrier_cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// PTX ISA, barrier.cluster.wait: returns when every thread of the cluster has arrived; exited threads count.
DEVICE void barrier_cluster_wait_acquire() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace ptx
