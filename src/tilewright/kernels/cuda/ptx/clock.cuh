// The clocks that a kernel can read: one wrapper, one special register, named as the PTX ISA names it.
// Volatile, so that two readings stay two, and with a memory clobber, so that work between them stays between them.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, special register %clock64: cycles of this SM's own clock.
DEVICE uint64_t clock64() {
    uint64_t cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
    return cycles;
}

// PTX ISA, special register %globaltimer: nanoseconds; the hardware moves it on in steps, so only long times count.
DEVICE uint64_t globaltimer() {
    uint64_t nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
    return nanoseconds;
}

}  // namespace ptx
