// Functions of one fp32 number that the hardware approximates: one wrapper, one instruction, named as the PTX ISA names
// it. Subnormal arguments and results are zeros.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, ex2.approx.ftz: 2^x within 2^-22 of itself; 0 of -inf, inf of inf.
DEVICE float ex2_approx_ftz_f32(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));  // arithmetic only
    return power;
}

// PTX ISA, rcp.approx.ftz: 1 / x within an ulp; 0 of inf.
DEVICE float rcp_approx_ftz_f32(float x) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));  // arithmetic only
    return inverse;
}

}  // namespace ptx
