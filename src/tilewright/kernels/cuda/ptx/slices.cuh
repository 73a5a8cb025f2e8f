// Loads of slices' sums, which are read once: one wrapper, one instruction, with the PTX ISA's name.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, ld.global.cs: 4 bytes, 4-byte aligned, that are likely to be read once: first to leave the caches.
DEVICE uint32_t ld_global_cs_u32(uint64_t address) {
    uint32_t word;
    asm volatile("ld.global.cs.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    return word;
}

// PTX ISA, ld.global.cs.v2: 8 bytes, 8-byte aligned.
DEVICE void ld_global_cs_v2_u32(uint64_t address, uint32_t& first, uint32_t& second) {
    asm volatile("ld.global.cs.v2.u32 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "l"(address) : "memory");
}

}  // namespace ptx
