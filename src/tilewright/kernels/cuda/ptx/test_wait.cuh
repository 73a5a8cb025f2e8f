// The wait for an mbarrier that compute capability 8.0 has: one wrapper, one instruction. What there is of mbarriers
// beside it stands in barrier.cuh.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, mbarrier.test_wait.parity, sm_80 and later: whether the phase of this parity has completed; never waits.
// Acquires what the arrivals released.
DEVICE bool mbarrier_test_wait_parity(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "selp.b32 %0, 1, 0, complete;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

}  // namespace ptx
