// Conversions of values in registers. One wrapper, one instruction, named as the PTX ISA names it.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, cvt: fp32 to tf32, to nearest, ties away from zero: the fp32 bits with the low 13 zero.
DEVICE uint32_t cvt_rna_tf32_f32(uint32_t bits) {
    uint32_t found;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(found) : "f"(__uint_as_float(bits)));
    return found;
}

}  // namespace ptx
