// The mma.sync of the kernel's input type: which wrapper stands for it is said here alone. Knows nothing of fragments.
#pragma once

#include "config.cuh"
#include "ptx/mma.cuh"

// d (16, 8) += a (16, 16) x b (16, 8), fp32 sums; a whole warp.
DEVICE void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (Config::IN_TYPE == Type::bf16) {
        ptx::mma_sync_m16n8k16_f32_bf16(d, a, b0, b1);
    } else {
        ptx::mma_sync_m16n8k16_f32_f16(d, a, b0, b1);
    }
}
