// The mma.sync of the family's inputs: 32 bytes of k of 16 rows and 8 columns, whatever an element is; and the sums
// that a lane holds of them. Knows nothing of where fragments come from.
//
//   inputs        instruction   sums    at overflow
//   bf16, fp16    m16n8k16      fp32    infinity
//   fp16          m16n8k16      fp16    infinity; two a register; every instruction rounds (F16_SUMS)
//   int8          m16n8k32      int32   they wrap, modulo 2^32: without .satfinite (PTX ISA, mma)
//   tf32          m16n8k8       fp32    infinity; inputs are fp32, which warp_tile.cuh rounds: the instruction cuts
#pragma once

#include "config.cuh"
#include "ptx/mma.cuh"

template <bool IS_WHOLE, bool F16_SUMS>
struct SumOf {
    using Type = float;
};
template <>
struct SumOf<true, false> {
    using Type = int32_t;
};
template <>
struct SumOf<false, true> {
    using Type = uint32_t;
};

constexpr bool IS_WHOLE = Config::INPUT == Input::int8;
using Sum = SumOf<IS_WHOLE, Config::F16_SUMS>::Type;
constexpr int SUMS = Config::F16_SUMS ? 2 : 4;  // registers of a lane for its 4 values in (16, 8)
static_assert(!Config::F16_SUMS || Config::INPUT == Input::fp16, "kept by problem.checked");

// d (16, 8) += a (16, 32 bytes) x b (32 bytes, 8); a whole warp. A template, so that only its own instruction is read.
template <class D>
DEVICE void multiply_16x8(D (&d)[SUMS], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (Config::INPUT == Input::bf16) {
        ptx::mma_sync_m16n8k16_f32_bf16(d, a, b0, b1);
    } else if constexpr (Config::F16_SUMS) {
        ptx::mma_sync_m16n8k16_f16_f16(d, a, b0, b1);
    } else if constexpr (Config::INPUT == Input::fp16) {
        ptx::mma_sync_m16n8k16_f32_f16(d, a, b0, b1);
    } else if constexpr (Config::INPUT == Input::tf32) {
        ptx::mma_sync_m16n8k8_f32_tf32(d, a, b0, b1);
    } else {
        ptx::mma_sync_m16n8k32_s32_s8(d, a, b0, b1);
    }
}
