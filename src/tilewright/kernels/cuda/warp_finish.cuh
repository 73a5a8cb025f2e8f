// What an epilogue makes of a warp's accumulators of mma.sync, in place, before they are stored (warp_store.cuh).
//
// Gated. Two columns of the product make one of out, and a lane has to have both. Either the tile of b was folded
// (B_FOLD, tile_copy.cuh): of a fragment's 16 columns the first 8 are gates and the others what they gate. Or, where
// n is contiguous and gates are every second column, cp.async cannot part them: then a lane has of each row
//
//   lane             0      1      2      3        c: the gate and what it gates of column c of out
//   first block     0      1      2      3
//   second block    4      5      6      7
//   wanted          0 1    2 3    4 5    6 7      the two columns of a lane in a block of 8
//
// which two exchanges between lanes give: of lanes 2 apart, then of neighbours.
#pragma once

#include "config.cuh"
#include "fused.cuh"
#include "place.cuh"
#include "ptx/shuffle.cuh"
#include "strides.cuh"
#include "warp_store.cuh"

// Where a matrix lies in the batch.
template <int DIMS>
DEVICE MemberOf<DIMS> member_in(const StridesOf<DIMS>& strides, uint32_t number) {
    return member_at(strides.extents, number);
}
DEVICE MemberOf<0> member_in(const StridesOf<0>&, uint32_t) { return {}; }

// Of two lanes whose numbers differ in the bit of `mask` the one without it keeps `first` and the other `second`; each
// gives what it does not keep. Afterwards `first` is what the lane without the bit had, `second` what the other had.
DEVICE void exchange(float& first, float& second, bool has_bit, uint32_t mask) {
    const uint32_t given = __float_as_uint(has_bit ? first : second);
    const float got = __uint_as_float(ptx::shfl_sync_bfly(given, mask));
    first = has_bit ? got : first;
    second = has_bit ? second : got;
}

// Two blocks of 8 columns of which every second gates the next: `first` becomes the gates, `second` what they gate.
DEVICE void part(float (&first)[4], float (&second)[4], uint32_t lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        exchange(first[i], second[i], lane / 2 % 2 == 1, 2);  // lanes 0, 1: of the first block alone; 2, 3: the other
        exchange(first[i], second[i], lane % 2 == 1, 1);      // neighbours
    }
#pragma unroll
    for (int row = 0; row < 4; row += 2) {  // (gate, gated) of one column and of the next
        const float gated = first[row + 1];
        first[row + 1] = second[row];
        second[row] = gated;
    }
}

// The sums of rows row .. row + 15 and of the columns that make those of out from `column` on; of a folded out the
// first half of the blocks is what is left.
template <class Sums>
DEVICE void finish_rows(Sums& rC, const Fused& fused, const Strides& strides, uint32_t matrix, const Out& out,
                        int32_t row, int32_t column, int32_t lane) {
    if (row >= out.m) return;  // the same for every lane
    const Place place{row + lane / 4,
                      column + lane % 4 * 2,
                      out.m,
                      out.n,
                      min(out.n, column + WARP_COLUMNS),
                      static_cast<uint32_t>(lane),
                      member_in(strides, matrix)};
    FusedRows rows(fused, place);
#pragma unroll
    for (int block = 0; block < WARP_COLUMNS / 8; ++block) {
        float up[4];
        if constexpr (Fused::FOLD == 1) {
            rows.apply(block, rC[block], up);
        } else {
            float(&values)[4] = rC[2 * block];
            if constexpr (Config::B_FOLD == 1) part(values, rC[2 * block + 1], lane);
            rows.apply(block, values, rC[2 * block + 1]);
#pragma unroll
            for (int i = 0; i < 4; ++i) rC[block][i] = values[i];
        }
    }
    rows.end();
}
