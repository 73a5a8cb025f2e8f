// Activations of fp32 values. How far each is off, epilogue.py says. Every operation is named, so that the compiler
// fuses none: the same bits in every kernel. Two approximations of the hardware each, and no table; erff of a library
// would take a branch and twice the operations.
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

// x Phi(x). Of |x| the upper tail 1 - Phi is erfc(|x| / sqrt(2)) / 2, by Abramowitz and Stegun 7.1.26: a polynomial of
// t = 1 / (1 + p |x| / sqrt(2)) times exp(-x^2 / 2). For x < 0 that is Phi itself, so nothing cancels there.
DEVICE float gelu(float x) {
    const float t = ptx::rcp_approx_ftz_f32(__fmaf_rn(fabsf(x), 0.231641888f, 1.0f));  // 0.3275911 / sqrt(2)
    const float power = ptx::ex2_approx_ftz_f32(__fmul_rn(__fmul_rn(x, -0.721347520f), x));  // -log2(e) / 2
    float sum = __fmaf_rn(0.530702715f, t, -0.726576014f);  // halves of its coefficients, the highest first
    sum = __fmaf_rn(sum, t, 0.710706871f);
    sum = __fmaf_rn(sum, t, -0.142248368f);
    sum = __fmaf_rn(sum, t, 0.127414796f);
    const float tail = __fmul_rn(__fmul_rn(sum, t), power);
    return __fmul_rn(x, x < 0.0f ? tail : __fadd_rn(1.0f, -tail));
}
