// Activations of fp32 values with their slopes, for gradients. A value has the bits of activations.cuh's; a slope is
// off by a few roundings of its terms, each at most 1.13 (gelu's largest slope). Every operation is named.
#pragma once

#include "activations.cuh"

enum class Activation { relu, gelu, gelu_tanh, silu };

struct ValueAndSlope {
    float value, slope;
};

// Of x s(x), s = 1 / (1 + 2^exponent): s + x s (1 - s) times the slope of -exponent in units of e.
DEVICE ValueAndSlope of_gated(float x, float exponent, float inner_slope) {
    const float share = ptx::rcp_approx_ftz_f32(__fadd_rn(1.0f, ptx::ex2_approx_ftz_f32(exponent)));
    const float value = __fmul_rn(x, share);
    return {value, __fmaf_rn(value, __fmul_rn(inner_slope, __fadd_rn(1.0f, -share)), share)};  // 0 before it grows
}

template <Activation ACTIVATION>
DEVICE ValueAndSlope with_slope(float x) {
    if constexpr (ACTIVATION == Activation::relu) {
        return {relu(x), x <= 0.0f ? 0.0f : 1.0f};  // NaN is not: its gradient stays, as torch's
    } else if constexpr (ACTIVATION == Activation::silu) {
        return of_gated(x, __fmul_rn(x, -1.44269504f), 1.0f);
    } else if constexpr (ACTIVATION == Activation::gelu_tanh) {
        constexpr float LINEAR = -2.30220819f, CUBIC = -0.102943240f;  // as gelu_tanh() has them
        const float square = __fmul_rn(x, x);
        // 2 sqrt(2 / pi) (1 + 3 x 0.044715 x^2)
        const float inner_slope = __fmaf_rn(square, 0.214064449f, 1.59576912f);
        return of_gated(x, __fmul_rn(x, __fmaf_rn(square, CUBIC, LINEAR)), inner_slope);
    } else {
        const float share = normal_share(x);
        const float exponent = __fmul_rn(__fmul_rn(x, x), -0.721347520f);  // -x^2 / 2, of 2
        const float density = __fmul_rn(ptx::ex2_approx_ftz_f32(exponent), 0.398942280f);
        return {__fmul_rn(x, share), __fmaf_rn(x, density, share)};
    }
}
