// What happens to the sums before they are rounded: rendered for one form of epilogue by kernels/fused.py. The copy in
// the source tree is that of a plain product, whose sums are stored as they are.
#pragma once

#include "base.cuh"
#include "place.cuh"

// What the host tells of it.
struct Fused {
    static constexpr bool IS_PLAIN = true;
    static constexpr int FOLD = 1;  // columns of the product that make one of out
    int32_t unused;
};

// Of a plain product never made.
struct FusedRows {
    DEVICE FusedRows(const Fused&, const Place&) {}
    DEVICE void apply(int, float (&)[4], float (&)[4]) {}
    DEVICE void end() {}
};
