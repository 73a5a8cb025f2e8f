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
#pragma once

#include "config.cuh"
#include "fragments.cuh"
#include "fused.cuh"
#include "place.cuh"
#include "ptx/copy.cuh"
#include "ptx/global.cuh"
#include "ptx/misc.cuh"
#include "products.cuh"
#include "rounding.cuh"
#include "row_store.cuh"
#include "strides.cuh"
#include "swizzle.cuh"
#include "tile_copy.cuh"

constexpr int OUT_SIZE = size_of(Config::OUT_TYPE);
// Whether of each 16 rows, or columns, the even ones come first in the fragments (warp_tile.cuh).
constexpr bool SPREAD_ROWS = TileA::HAS_BYTES_BY_K, SPREAD_COLUMNS = TileB::HAS_BYTES_BY_K;
constexpr int STORE_ROWS = 16;                                                // of an mma.sync
constexpr int SLOT_ROW_BYTES = Config::STORE_COLUMNS * OUT_SIZE;
constexpr int SLOT_BYTES = STORE_ROWS * SLOT_ROW_BYTES;
constexpr int PIECES = Config::WARP_N / Config::STORE_COLUMNS;                // slots beside each other
constexpr int SLOT_BLOCKS = Config::STORE_COLUMNS / 8;                        // of 8 columns
static_assert(PIECES * SLOT_BYTES == Config::STORE_WARP_BYTES, "config.store_warp_bytes counts the same");
static_assert(OUT_SIZE == 2 || SLOT_ROW_BYTES == 128, "4 bytes are written in blocks of 32 columns");
static_assert(OUT_SIZE == 4 || !IS_WHOLE, "sums of whole numbers leave as they are");

// What the kernel is told of out: one matrix.
struct Out {
    char* base;
    int64_t pitch;  // elements
    int32_t m;
    int32_t n;
};

// Where a matrix lies in the batch.
template <int DIMS>
DEVICE MemberOf<DIMS> member_in(const StridesOf<DIMS>& strides, uint32_t number) {
    return member_at(strides.extents, number);
}
DEVICE MemberOf<0> member_in(const StridesOf<0>&, uint32_t) { return {}; }

// What an epilogue makes of the accumulators of 16 rows: of rows row .. and columns from `column` on of a matrix.
template <class Sums>
DEVICE void finish_rows(Sums& rC, const Fused& fused, const Strides& strides, uint32_t matrix, const Out& out,
                        int32_t row, int32_t column, int32_t lane) {
    if (row >= out.m) return;  // the same for every lane
    const Place place{row + lane / 4,
                      column + lane % 4 * 2,
                      out.m,
                      out.n,
                      min(out.n, column + Config::WARP_N),
                      static_cast<uint32_t>(lane),
                      member_in(strides, matrix)};
    FusedRows rows(fused, place);
    float up[4];  // of a folded out, which this kernel has not
#pragma unroll
    for (int block = 0; block < PIECES * SLOT_BLOCKS; ++block) rows.apply(block, rC[block], up);
    rows.end();
}

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
                       min(out.m - row, STORE_ROWS), min(out.n - column, Config::WARP_N) * OUT_SIZE};
    store_slot_rows<OUT_SIZE, SlotRows<SLOT_ROW_BYTES, PIECES>>(slots, rows, lane);
}

// Stores 16 rows of a warp, at rows row .. and columns from `column` on of out.
DEVICE void store_rows(uint32_t slots, const Sum (&rC)[2 * (Config::WARP_N / 16)][SUMS], const Out& out, int32_t row,
                       int32_t column, uint32_t lane) {
    if (row >= out.m) return;  // the same for every lane
    write_slots(slots, rC, lane);
    __syncwarp();
    if constexpr (Config::OUT_IN_CHUNKS) {
        store_chunks(slots, out, row, column, lane);
    } else {
        store_shifted(slots, out, row, column, lane);
    }
    __syncwarp();
}
