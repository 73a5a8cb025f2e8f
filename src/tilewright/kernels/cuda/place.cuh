// Where a lane's values of one wgmma lie in out. Of every block of 8 columns it holds four: two neighbouring columns of
// an upper row, and of the row 8 below.
#pragma once

#include "batch.cuh"

// The matrix with this number of a batch with these extents, the fastest first.
template <int DIMS>
DEVICE MemberOf<DIMS> member_at(const int64_t (&extents)[DIMS], uint32_t number) {
    MemberOf<DIMS> found;
#pragma unroll
    for (int dim = 0; dim < DIMS - 1; ++dim) {
        const uint32_t extent = static_cast<uint32_t>(extents[dim]);
        found.at[dim] = static_cast<int32_t>(number % extent);
        number /= extent;
    }
    found.at[DIMS - 1] = static_cast<int32_t>(number);
    return found;
}

struct Place {
    int32_t row;     // the upper one
    int32_t column;  // the first of the two in the fragment's first block; even
    int32_t m;       // of out
    int32_t n;
    int32_t end;     // column behind the tile's last, or behind out's
    uint32_t lane;
    Member member;  // of a batch

    // Columns from the lane's first one of block `block` to the end; none or fewer are none.
    DEVICE int32_t left(int block) const { return end - column - 8 * block; }
    DEVICE bool has_row(int half) const { return row + 8 * half < m; }
};
