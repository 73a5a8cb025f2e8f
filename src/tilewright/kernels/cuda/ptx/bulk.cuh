// Copies of runs of bytes, with no tensor map: one wrapper, one instruction, named as the PTX ISA names it.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, cp.async.bulk, global to shared. One thread. `bytes`, source and target are multiples of 16; all bytes are
// then counted on `barrier` (complete_tx). Writes through the async proxy.
DEVICE void cp_async_bulk_load(uint32_t target, const uint8_t* source, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(target), "l"(source), "r"(bytes), "r"(barrier)
                 : "memory");
}

// PTX ISA, cp.async.bulk, shared to global. One thread; joins that thread's current bulk group. Multiples of 16 again.
DEVICE void cp_async_bulk_store(uint8_t* target, uint32_t source, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(target), "r"(source), "r"(bytes)
                 : "memory");
}

// PTX ISA, cp.async.bulk.prefetch.L2. One thread; a hint. `source` and `bytes` are multiples of 16.
DEVICE void cp_async_bulk_prefetch_l2(uint64_t source, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

}  // namespace ptx
