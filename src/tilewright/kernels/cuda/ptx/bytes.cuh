// Bytes of registers. One wrapper, one instruction, named as the PTX ISA names it.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, prmt: byte i of the result is the one of low's 0 .. 3 and high's 4 .. 7 that nibble i of SELECTOR names.
template <uint32_t SELECTOR>
DEVICE uint32_t prmt(uint32_t low, uint32_t high) {
    uint32_t found;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(low), "r"(high), "n"(SELECTOR));
    return found;
}

}  // namespace ptx
