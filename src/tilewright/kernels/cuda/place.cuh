// Where a lane's values of one wgmma lie in out. Of every block of 8 columns it holds four: two neighbouring columns of
// an upper row, and of the row 8 below.
#pragma once

#include "batch.cuh"

struct Place {
    int32_t row;     // the upper one
    int32_t column;  // the first of the two in the fragment's first block; even
    int32_t m;       // of out
    int32_t n;
    uint32_t lane;
    Member member;  // of a batch

    // Columns from the lane's first one of block `block` to the end of out; none or fewer are none.
    DEVICE int32_t left(int block) const { return n - column - 8 * block; }
    DEVICE bool has_row(int half) const { return row + 8 * half < m; }
};
