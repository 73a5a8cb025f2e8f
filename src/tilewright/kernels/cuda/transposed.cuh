// How a warp's accumulators leave where out is column-major as it is computed (config.swap): the slots of epilogue.cuh,
// with rows and columns exchanged.
//
// A slot has a row for each column of the tile, SLOT_COLUMNS of them, of the 16 values that the warp holds of that
// column: neighbours in out. 32 bytes of 16-bit values or 64 of fp32, under TMA's swizzle of that width.
#pragma once

#include "config.cuh"
#include "ptx/copy.cuh"
#include "swizzle.cuh"

// The offset of value `row` of column `column` in a slot of 16 rows of values of SIZE bytes.
template <int SIZE>
DEVICE uint32_t transposed_offset(uint32_t row, uint32_t column) {
    constexpr int ROW_BYTES = 16 * SIZE;
    return swizzled<ROW_BYTES>(column * ROW_BYTES + row * SIZE);
}

// Writes BLOCKS blocks of 8 columns, rounded to pairs: of block j pairs[2 j] holds the lane's two of rows 0..7, and
// pairs[2 j + 1] of rows 8..15. Eight rows of 16 bytes a phase lie in eight quarters of two lines, so no bank
// is hit twice.
template <int BLOCKS>
DEVICE void write_transposed(uint32_t slot, const uint32_t (&pairs)[2 * BLOCKS], uint32_t lane) {
    const uint32_t upper = lane / 8 % 2 * 8;             // matrices 0 and 2: rows 0..7; 1 and 3: rows 8..15
    const uint32_t column = lane / 16 * 8 + lane % 8;    // matrices 0 and 1: one block; 2 and 3: the next
#pragma unroll
    for (int block = 0; block + 1 < BLOCKS; block += 2) {  // (16, 16) 16-bit
        const uint32_t four[4] = {pairs[2 * block], pairs[2 * block + 1], pairs[2 * block + 2], pairs[2 * block + 3]};
        ptx::stmatrix_x4_trans(slot + transposed_offset<2>(upper, block * 8 + column), four);
    }
    if constexpr (BLOCKS % 2 == 1) {  // (16, 8) 16-bit; lanes 16..31 give no address that is used
        const uint32_t two[2] = {pairs[2 * BLOCKS - 2], pairs[2 * BLOCKS - 1]};
        ptx::stmatrix_x2_trans(slot + transposed_offset<2>(upper, (BLOCKS - 1) * 8 + lane % 8), two);
    }
}

// The same of fp32: 4 bytes a lane. Of a phase's 4 columns and 8 rows two words meet in a bank (2-way), since every
// lane stores the even column of its two first.
template <int BLOCKS>
DEVICE void write_transposed(uint32_t slot, const float* rC, uint32_t lane) {
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS; ++i) {
        const uint32_t row = lane / 4 + i / 2 % 2 * 8;
        const uint32_t column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        ptx::st_shared_f32(slot + transposed_offset<4>(row, column), rC[i]);
    }
}
