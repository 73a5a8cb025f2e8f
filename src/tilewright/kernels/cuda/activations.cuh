// Activations of fp32 values. How far each is off, epilogue.py says. Every operation is named, so that the compiler
// fuses none: the same bits in every kernel. One or two approximations of the hardware each, and no table; erff of a
// library would take a branch and twice the operations.
#pragma once

#include "base.cuh"
#include "ptx/approximate.cuh"

DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }  // NaN is not less: it stays

// x / (1 + 2^exponent).
DEVICE float gated_by(float x, float exponent) {
    return __fmul_rn(x, ptx::rcp_approx_ftz_f32(__fadd_rn(1.0f, ptx::ex2_approx_ftz_f32(exponent))));
}

DEVICE float silu(float x) { return gated_by(x, __fmul_rn(x, -1.44269504f)); }  // -log2(e)

// x (1 + tanh(y)) / 2 = x / (1 + exp(-2 y)) with y = sqrt(2 / pi) (x + 0.044715 x^3).
DEVICE float gelu_tanh(float x) {
    constexpr float LINEAR = -2.30220819f;  // -2 log2(e) sqrt(2 / pi)
    constexpr float CUBIC = -0.102943240f;  // 0.044715 times that
    return gated_by(x, __fmul_rn(x, __fmaf_rn(__fmul_rn(x, x), CUBIC, LINEAR)));
}

// Phi(x). The upper tail 1 - Phi of a = |x| is 2^P(a), the polynomial of tools/fit_gelu.py, whose last coefficient is
// below zero: where a is large or infinite the tail is 0. For x < 0 it is Phi itself, so nothing cancels there.
DEVICE float normal_share(float x) {
    const float a = fabsf(x);
    float exponent = __fmaf_rn(a, -9.99999997e-07f, 4.39175892e-05f);
    exponent = __fmaf_rn(a, exponent, -0.000814924017f);
    exponent = __fmaf_rn(a, exponent, 0.00817680266f);
    exponent = __fmaf_rn(a, exponent, -0.0535184741f);
    exponent = __fmaf_rn(a, exponent, -0.458710819f);
    exponent = __fmaf_rn(a, exponent, -1.1512171f);
    exponent = __fmaf_rn(a, exponent, -0.999991834f);
    const float tail = ptx::ex2_approx_ftz_f32(exponent);
    return x < 0.0f ? tail : __fadd_rn(1.0f, -tail);
}

DEVICE float gelu(float x) { return __fmul_rn(x, normal_share(x)); }
