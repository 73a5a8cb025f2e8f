// Ampere's asynchronous copies of each thread, and their groups: one wrapper, one instruction, with the PTX ISA's name.
// sm_80 and later.
//
// A copy is done for the thread that issued it once that thread has waited for its group; for others once they have met
// it at a barrier after that. Its writes are of the generic proxy: no proxy fence.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, cp.async.cg: 16 bytes from global to shared memory, through the L2 alone. Both at a multiple of 16. Of the
// source `present` bytes are read, 0 .. 16, and zeros stand for the rest. PREFETCH: a hint, how many bytes around them
// the L2 may fetch from memory: 64, 128 or 256; 0 says nothing.
template <int PREFETCH = 0>
DEVICE void cp_async_cg_16(uint32_t target, const void* source, uint32_t present) {
    static_assert(PREFETCH == 0 || PREFETCH == 64 || PREFETCH == 128 || PREFETCH == 256, "the hints that there are");
    if constexpr (PREFETCH == 64) {
        asm volatile("cp.async.cg.shared.global.L2::64B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(present)
                     : "memory");
    } else if constexpr (PREFETCH == 128) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(present)
                     : "memory");
    } else if constexpr (PREFETCH == 256) {
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(present)
                     : "memory");
    } else {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(present)
                     : "memory");
    }
}

// PTX ISA, cp.async.ca: 4, 8 or 16 bytes, through the L1 as well. Both at a multiple of BYTES; the rest as above.
template <int BYTES>
DEVICE void cp_async_ca(uint32_t target, const void* source, uint32_t present) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "the sizes of cp.async.ca");
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(target), "l"(source), "n"(BYTES), "r"(present)
                 : "memory");
}

// PTX ISA, cp.async.commit_group: closes the calling thread's group of copies; one without copies counts as well.
DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// PTX ISA, cp.async.wait_group: until all but the calling thread's newest PENDING groups are done.
template <int PENDING>
DEVICE void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace ptx
