// A batch of products whose operands are reached by pointers: where each matrix begins. BATCH_DIMS as in batch.cuh,
// which is for operands that TMA reads. Knows nothing of tiles.
#pragma once

#include "config.cuh"

// What the host tells of a batch, at run time. Extents and strides have the fastest dimension first.
template <int DIMS>
struct StridesOf {
    int64_t num_matrices;    // the product of the extents; all their tiles are fewer than 2^30
    int64_t extents[DIMS];
    int64_t a[DIMS];         // elements; 0 where a is the same matrix all along
    int64_t b[DIMS];
    int64_t out[DIMS];

    // Elements from the first matrix of an operand to that of this number, 0 .. num_matrices-1; `strides`: one of ours.
    DEVICE int64_t offset(const int64_t (&strides)[DIMS], uint32_t number) const {
        int64_t found = 0;
#pragma unroll
        for (int dim = 0; dim < DIMS - 1; ++dim) {
            const uint32_t extent = static_cast<uint32_t>(extents[dim]);
            found += number % extent * strides[dim];
            number /= extent;
        }
        return found + number * strides[DIMS - 1];
    }
};
// A single product: one matrix each.
template <>
struct StridesOf<0> {
    int32_t unused;
    struct None {};
    static constexpr None a{}, b{}, out{};

    DEVICE int64_t offset(const None&, uint32_t) const { return 0; }
};
using Strides = StridesOf<Config::BATCH_DIMS>;
