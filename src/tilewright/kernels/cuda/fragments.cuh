// Where the fragments of mma.sync lie in a tile of shared memory: which row and which 16 bytes of it a lane names to
// ldmatrix, so that the registers come out in the order that mma.sync takes. Knows nothing of pipelines or types.
//
// An ldmatrix_x4 reads 16 rows of 32 bytes, as four matrices of 8 rows of 16 bytes; a lane names one such row:
//
//                  chunk 0   chunk 1                 chunk 0   chunk 1
//     rows 0..7   lanes 0.. lanes 16..   rows 0..7   lanes 0.. lanes 8..
//     rows 8..15  lanes 8.. lanes 24..   rows 8..15  lanes 16.. lanes 24..
//                 rows_first()                       chunks_first()
//
//   operand                            tile in shared memory   order           ldmatrix   registers
//   a (16, 16), k contiguous           rows of m               rows_first      x4         a[0] .. a[3]
//   b (16, 16), k contiguous           rows of n               chunks_first    x4         b0 b1, twice
//   a (16, 16), m contiguous           rows of k               chunks_first    x4.trans   a[0] .. a[3]
//   b (16, 16), n contiguous           rows of k               rows_first      x4.trans   b0 b1, twice
//
// Of b the first two registers are those of columns 0 .. 7, the other two of columns 8 .. 15.
//
// Bank conflicts. The eight rows of a matrix are one pass over the 32 banks if their 16-byte chunks lie in eight
// different places modulo 128 bytes. Below each other with a pitch of P chunks they do if P is odd (padding by 8
// values: 64 + 16 = 80 bytes, 128 + 16 = 144), or if they are swizzled (swizzle.cuh): chunk ^ row's line.
#pragma once

#include "base.cuh"

constexpr int CHUNK_BYTES = 16;  // of a row that a lane names to ldmatrix; also the widest copy of a thread

// A row and a chunk of 16 bytes of it, of the 16 rows of 2 chunks that an x4 reads.
struct FragmentRow {
    int32_t row;    // 0 .. 15
    int32_t chunk;  // 0 .. 1
};

DEVICE FragmentRow rows_first(int32_t lane) { return {lane % 16, lane / 16}; }
DEVICE FragmentRow chunks_first(int32_t lane) { return {lane / 16 * 8 + lane % 8, lane / 8 % 2}; }

// The accumulators of a lane, d[2 i] and d[2 i + 1]: row and first column in their (16, 8).
DEVICE int32_t accumulator_row(int32_t lane, int32_t i) { return lane / 4 + i * 8; }
DEVICE int32_t accumulator_column(int32_t lane) { return lane % 4 * 2; }
