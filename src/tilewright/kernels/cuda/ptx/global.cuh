// Loads and stores of global memory that C++ has no words for: one wrapper, one instruction, with the PTX ISA's name.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, ld.global.cs.v4: 16 bytes, 16-byte aligned, that are likely to be read once: first to leave the caches.
DEVICE void ld_global_cs_v4_u32(uint64_t address, uint32_t (&words)[4]) {
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(address)
                 : "memory");
}

// PTX ISA, st.global.v4: 16 bytes, 16-byte aligned.
DEVICE void st_global_v4_u32(uint64_t address, const uint32_t (&words)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"l"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

// PTX ISA, st.global.v2: 8 bytes, 8-byte aligned.
DEVICE void st_global_v2_u32(uint64_t address, const uint32_t (&words)[2]) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1]) : "memory");
}

}  // namespace ptx
