// How an epilogue leaves what it stores beside out: one wrapper, one instruction, named as the PTX ISA names it.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, red.global.max.u32: 4 bytes, 4-byte aligned. Relaxed, at the scope of the GPU.
DEVICE void red_global_max_u32(uint64_t address, uint32_t value) {
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// PTX ISA, st.global.u16 and .u32: 2 and 4 bytes, aligned.
DEVICE void st_global_u16(uint64_t address, uint32_t bits) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(static_cast<uint16_t>(bits)) : "memory");
}
DEVICE void st_global_u32(uint64_t address, uint32_t word) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}

}  // namespace ptx
