// How a warp's accumulators of mma.sync leave: rounded to the output type, or as they are, 16 rows at a time through
// slots of shared memory that are the warp's own, to out.
//
//   step                who     why
//   write 16 rows       warp    ordinary writes, no bank twice in a phase
//   __syncwarp          warp    all lanes have written
//   store rows          lanes   16 bytes each: 8 lanes 128 bytes of a row
//   __syncwarp          warp    all lanes have read, before the next rows are written
//
// Where out's base, pitch or row length is no multiple of 16 bytes, rows are shifted on their way (row_store.cuh).
//
// OUT_TRANSPOSED: out is column-major; a slot has a row for each column, and its 16 values leave as 16 bytes each, or
// one by one. So leaves what is gated, whose halves are columns; any other product is computed as out^T instead.
#pragma once

#include "config.cuh"
#include "fragments.cuh"
#include "fused.cuh"
#include "ptx/bytes.cuh"
#include "ptx/copy.cuh"
#include "ptx/global.cuh"
#include "ptx/misc.cuh"
#include "ptx/shuffle.cuh"
#include "products.cuh"
#include "rounding.cuh"
#include "row_store.cuh"
#include "swizzle.cuh"
#include "tile_copy.cuh"
#include "transposed.cuh"

constexpr int OUT_SIZE = size_of(Config::OUT_TYPE);
// Whether of each 16 rows, or columns, the even ones come first in the fragments (warp_tile.cuh).
constexpr bool SPREAD_ROWS = TileA::HAS_BYTES_BY_K, SPREAD_COLUMNS = TileB::HAS_BYTES_BY_K;
constexpr int STORE_ROWS = 16;                                                // of an mma.sync
constexpr int SLOT_ROW_BYTES = Config::STORE_COLUMNS * OUT_SIZE;
constexpr int SLOT_BYTES = STORE_ROWS * SLOT_ROW_BYTES;
constexpr int WARP_COLUMNS = Config::WARP_N / Fused::FOLD;                    // of out
constexpr int PIECES = WARP_COLUMNS / Config::STORE_COLUMNS;                  // slots beside each other
constexpr int SLOT_BLOCKS = Config::STORE_COLUMNS / 8;                        // of 8 columns
static_assert(PIECES * SLOT_BYTES == Config::STORE_WARP_BYTES, "config.store_warp_bytes counts the same");
static_assert(OUT_SIZE == 2 || SLOT_ROW_BYTES == 128 || Config::OUT_TRANSPOSED,
              "4 bytes are written in blocks of 32 columns");
static_assert(OUT_SIZE == 4 || !IS_WHOLE, "sums of whole numbers leave as they are");

// What the kernel is told of out: one matrix.
struct Out {
    char* base;
    int64_t pitch;  // elements
    int32_t m;
    int32_t n;
};

// Value i of a lane's 4 in (16, 8), as 4 bytes of out: fp32 and int32 sums as they are, fp16 sums exactly.
DEVICE uint32_t value_of(const float (&sums)[4], int i) { return __float_as_uint(sums[i]); }
DEVICE uint32_t value_of(const int32_t (&sums)[4], int i) { return static_cast<uint32_t>(sums[i]); }
DEVICE uint32_t value_of(const uint32_t (&sums)[2], int i) {
    return __float_as_uint(ptx::cvt_f32_f16(static_cast<uint16_t>(sums[i / 2] >> i % 2 * 16)));
}

// Values 2 i and 2 i + 1, as 16-bit values of out.
DEVICE uint32_t pair_of(const float (&sums)[4], int i) { return rounded_pair(sums[2 * i], sums[2 * i + 1]); }
DEVICE uint32_t pair_of(const uint32_t (&sums)[2], int i) { return sums[i]; }

// Writes the accumulators of 16 rows of the warp into its slots.
//
// 4 bytes a value: 8 bytes a lane, 4 rows a phase, and the 32 bytes of a block take a quarter of the banks. Rows 2 r
// and 2 r + 1 would meet, since the swizzle exchanges their halves: so odd ones write the block two further. With
// SPREAD_COLUMNS a lane has 4 columns beside each other of two blocks: 16 bytes, 2 rows a phase, half of the banks.
// SPREAD_ROWS are rows 2 g and 2 g + 1 of lanes in group g; they meet no bank twice either.
template <class D>
DEVICE void write_slots(uint32_t slots, const D (&rC)[2 * (Config::WARP_N / 16)][SUMS], uint32_t lane) {
    const uint32_t row = lane / 4, pair = lane % 4;
    if constexpr (OUT_SIZE == 2) {
#pragma unroll
        for (int block = 0; block < PIECES * SLOT_BLOCKS; ++block) {  // (16, 8) 16-bit
            const uint32_t slot = slots + block / SLOT_BLOCKS * SLOT_BYTES;
            const uint32_t upper = row * SLOT_ROW_BYTES + block % SLOT_BLOCKS * 16 + pair * 4;
            const uint32_t at = slot + swizzled<SLOT_ROW_BYTES>(upper);  // 8 rows below are swizzled alike
            ptx::st_shared_u32(at, pair_of(rC[block], 0));
            ptx::st_shared_u32(at + 8 * SLOT_ROW_BYTES, pair_of(rC[block], 1));
        }
    } else {
        const bool is_odd = row % 2;
        const uint32_t upper = (SPREAD_ROWS ? 2 * row : row) * SLOT_ROW_BYTES;
#pragma unroll
        for (int block = 0; block < PIECES * SLOT_BLOCKS; block += SPREAD_COLUMNS ? 2 : 1) {  // (16, 8), or (16, 16)
            const uint32_t slot = slots + block / SLOT_BLOCKS * SLOT_BYTES;
            const uint32_t own = (block % SLOT_BLOCKS ^ (is_odd ? 2 : 0)) * 32;
            const uint32_t plain = upper + own + pair * (SPREAD_COLUMNS ? 16 : 8);
            uint32_t r[SPREAD_COLUMNS ? 2 : 1][4];
#pragma unroll
            for (int half = 0; half < (SPREAD_COLUMNS ? 2 : 1); ++half) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    r[half][i] = is_odd ? value_of(rC[(block ^ 2) + half], i) : value_of(rC[block + half], i);
                }
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {  // the upper row; the one below it, or 8 below, which is swizzled alike
                const uint32_t at = SPREAD_ROWS ? slot + swizzled<SLOT_ROW_BYTES>(plain + i * SLOT_ROW_BYTES)
                                                : slot + swizzled<SLOT_ROW_BYTES>(plain) + i * 8 * SLOT_ROW_BYTES;
                if constexpr (SPREAD_COLUMNS) {
                    const uint32_t words[4] = {r[0][2 * i], r[1][2 * i], r[0][2 * i + 1], r[1][2 * i + 1]};
                    ptx::st_shared_v4_u32(at, words);
                } else {
                    ptx::st_shared_v2_u32(at, r[0][2 * i], r[0][2 * i + 1]);
                }
            }
        }
    }
}

// Stores what of the 16 rows in the slots lies inside out, in whole chunks of 16 bytes, which out's rows have.
DEVICE void store_chunks(uint32_t slots, const Out& out, int32_t row, int32_t column, uint32_t lane) {
    constexpr int CHUNKS = SLOT_ROW_BYTES / CHUNK_BYTES;  // of a slot's row
    constexpr int ROWS = WARP_THREADS / CHUNKS;           // at once
    const uint32_t own_row = lane / CHUNKS, chunk = lane % CHUNKS;
    const int32_t first = column + static_cast<int32_t>(chunk) * (CHUNK_BYTES / OUT_SIZE);
    const uint64_t base = reinterpret_cast<uint64_t>(out.base) + (row * out.pitch + first) * OUT_SIZE;
#pragma unroll
    for (int pass = 0; pass < STORE_ROWS / ROWS; ++pass) {
        const uint32_t slot_row = pass * ROWS + own_row;
        const uint32_t at = swizzled<SLOT_ROW_BYTES>(slot_row * SLOT_ROW_BYTES + chunk * CHUNK_BYTES);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            uint32_t words[4];
            ptx::ld_shared_v4_u32(slots + piece * SLOT_BYTES + at, words);
            if (row + static_cast<int32_t>(slot_row) < out.m && first + piece * Config::STORE_COLUMNS < out.n) {
                ptx::st_global_v4_u32(base + slot_row * out.pitch * OUT_SIZE + piece * SLOT_ROW_BYTES, words);
            }
        }
    }
}

// The same at any element's address, and rows of any length.
DEVICE void store_shifted(uint32_t slots, const Out& out, int32_t row, int32_t column, uint32_t lane) {
    if (column >= out.n) return;  // the same for every lane
    const OutRows rows{out.base + (row * out.pitch + column) * OUT_SIZE, out.pitch * OUT_SIZE,
                       min(out.m - row, STORE_ROWS), min(out.n - column, WARP_COLUMNS) * OUT_SIZE};
    store_slot_rows<OUT_SIZE, SlotRows<SLOT_ROW_BYTES, PIECES>>(slots, rows, lane);
}

// Writes the accumulators of 16 rows of the warp into its slots, a row for each column (transposed.cuh).
//
// 16 bits: lanes of rows 2 r and 2 r + 1 exchange a value, so that one has both rows of column 2 q, the other of column
// 2 q + 1: 8 columns of 16 bytes lie in 8 eighths of 128. 4 bytes: lanes of odd q write their second column first, so
// that of 4 columns two lie in either half of 128 bytes.
template <class D>
DEVICE void write_columns(uint32_t slot, const D (&rC)[2 * (Config::WARP_N / 16)][SUMS], uint32_t lane) {
    const uint32_t row = lane / 4, pair = lane % 4;
#pragma unroll
    for (int block = 0; block < PIECES * SLOT_BLOCKS; ++block) {  // (16, 8)
        if constexpr (OUT_SIZE == 2) {
            const bool is_odd = row % 2;
            const uint32_t column = block * 8 + 2 * pair + row % 2;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t own = pair_of(rC[block], half);
                const uint32_t other = ptx::shfl_sync_bfly(own, 4);
                const uint32_t rows = is_odd ? ptx::prmt<0x3276>(own, other) : ptx::prmt<0x5410>(own, other);
                ptx::st_shared_u32(slot + transposed_offset<2>(row / 2 * 2 + half * 8, column), rows);
            }
        } else {
            const uint32_t is_odd = pair % 2;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t value = is_odd ? value_of(rC[block], i ^ 1) : value_of(rC[block], i);
                const uint32_t column = block * 8 + 2 * pair + (i % 2 ^ is_odd);
                ptx::st_shared_u32(slot + transposed_offset<4>(row + i / 2 * 8, column), value);
            }
        }
    }
}

// Stores what of the columns in the slots lies inside out: chunks of 16 bytes, or values.
DEVICE void store_columns(uint32_t slot, const Out& out, int32_t row, int32_t column, uint32_t lane) {
    constexpr int AT_ONCE = Config::OUT_IN_CHUNKS ? CHUNK_BYTES / OUT_SIZE : 1;  // values of a lane
    constexpr int LANES = STORE_ROWS / AT_ONCE;                                 // of a column
    const int32_t own_row = static_cast<int32_t>(lane) % LANES * AT_ONCE;
    if (row + own_row >= out.m) return;
#pragma unroll 4
    for (int32_t own = static_cast<int32_t>(lane) / LANES; own < WARP_COLUMNS; own += WARP_THREADS / LANES) {
        if (column + own >= out.n) return;
        const uint32_t source = slot + transposed_offset<OUT_SIZE>(own_row, own);
        char* target = out.base + ((column + own) * out.pitch + row + own_row) * OUT_SIZE;
        if constexpr (Config::OUT_IN_CHUNKS) {
            uint32_t words[4];
            ptx::ld_shared_v4_u32(source, words);
            ptx::st_global_v4_u32(reinterpret_cast<uint64_t>(target), words);
        } else if constexpr (OUT_SIZE == 4) {
            *reinterpret_cast<uint32_t*>(target) = ptx::ld_shared_u32(source);
        } else {
            *reinterpret_cast<uint16_t*>(target) = ptx::ld_shared_u16(source);
        }
    }
}

// Stores 16 rows of a warp, at rows row .. and columns from `column` on of out. A template, so that the way that is not
// taken is not read: slots of 16 columns of fp32 are written in columns alone.
template <class D>
DEVICE void store_rows(uint32_t slots, const D (&rC)[2 * (Config::WARP_N / 16)][SUMS], const Out& out, int32_t row,
                       int32_t column, uint32_t lane) {
    if (row >= out.m) return;  // the same for every lane
    if constexpr (Config::OUT_TRANSPOSED) {
        write_columns(slots, rC, lane);
    } else {
        write_slots(slots, rC, lane);
    }
    __syncwarp();
    if constexpr (Config::OUT_TRANSPOSED) {
        store_columns(slots, out, row, column, lane);
    } else if constexpr (Config::OUT_IN_CHUNKS) {
        store_chunks(slots, out, row, column, lane);
    } else {
        store_shifted(slots, out, row, column, lane);
    }
    __syncwarp();
}
