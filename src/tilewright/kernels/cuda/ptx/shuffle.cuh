// How lanes of a warp exchange words: one wrapper, one instruction, named as the PTX ISA names it.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, shfl.sync.bfly: a warp. Each lane gets the value of the lane whose number differs in the bits of `mask`.
DEVICE uint32_t shfl_sync_bfly(uint32_t value, uint32_t mask) {
    uint32_t found;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(found) : "r"(value), "r"(mask));
    return found;
}

}  // namespace ptx
