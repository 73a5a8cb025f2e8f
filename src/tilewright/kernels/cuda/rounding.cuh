// fp32 sums -> 16-bit values of out, two at a time. Knows out's type; nothing of where values lie.
#pragma once

#include "config.cuh"
#include "ptx/misc.cuh"

// Two neighbouring values, rounded to nearest even, the first in the low half.
DEVICE uint32_t rounded_pair(float first, float second) {
    if constexpr (Config::OUT_TYPE == Type::bf16) {
        return ptx::cvt_rn_bf16x2_f32(second, first);
    } else {
        return ptx::cvt_rn_f16x2_f32(second, first);
    }
}
