// Stores that count their bytes on a barrier, in any CTA of the cluster: one wrapper, one instruction, with the PTX
// ISA's name.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, st.async: each thread. 16 bytes to .shared::cluster, 16-byte aligned, then counted (complete_tx) on
// `barrier`, in the same CTA as they. The bytes are there for whoever has waited for the barrier's phase; nothing else
// orders them.
DEVICE void st_async_v4_f32(uint32_t cluster_target, float first, float second, float third, float fourth,
                            uint32_t cluster_barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
        ::"r"(cluster_target), "f"(first), "f"(second), "f"(third), "f"(fourth), "r"(cluster_barrier)
        : "memory");
}

}  // namespace ptx
