// How a warp's accumulators of mma.sync leave: rounded to the output type, 16 rows at a time through slots of shared
// memory that are the warp's own, to out.
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
#include "rounding.cuh"
#include "row_store.cuh"
#include "strides.cuh"
#include "swizzle.cuh"

constexpr int OUT_SIZE = size_of(Config::OUT_TYPE);
constexpr int STORE_ROWS = 16;                                                // of an mma.sync
constexpr int SLOT_ROW_BYTES = Config::STORE_COLUMNS * OUT_SIZE;
constexpr int SLOT_BYTES = STORE_ROWS * SLOT_ROW_BYTES;
constexpr int PIECES = Config::WARP_N / Config::STORE_COLUMNS;                // slots beside each other
constexpr int SLOT_BLOCKS = Config::STORE_COLUMNS / 8;                        // of 8 columns
static_assert(PIECES * SLOT_BYTES == Config::STORE_WARP_BYTES, "config.store_warp_bytes counts the same");
static_assert(OUT_SIZE == 2 || SLOT_ROW_BYTES == 128, "fp32 is written in blocks of 32 columns");

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

// Writes the accumulators of 16 rows of the warp into its slots.
DEVICE void write_slots(uint32_t slots, const float (&rC)[2 * (Config::WARP_N / 16)][4], uint32_t lane) {
    const uint32_t row = lane / 4, pair = lane % 4;
    if constexpr (OUT_SIZE == 2) {
#pragma unroll
        for (int block = 0; block < PIECES * SLOT_BLOCKS; ++block) {  // (16, 8) 16-bit
            const uint32_t slot = slots + block / SLOT_BLOCKS * SLOT_BYTES;
            const uint32_t upper = row * SLOT_ROW_BYTES + block % SLOT_BLOCKS * 16 + pair * 4;
            const uint32_t at = slot + swizzled<SLOT_ROW_BYTES>(upper);  // 8 rows below are swizzled alike
            ptx::st_shared_u32(at, rounded_pair(rC[block][0], rC[block][1]));
            ptx::st_shared_u32(at + 8 * SLOT_ROW_BYTES, rounded_pair(rC[block][2], rC[block][3]));
        }
    } else {
        // 8 bytes a lane, 4 rows a phase, and the 32 bytes of a block take a quarter of the banks. Rows 2 r and 2 r + 1
        // would meet, since the swizzle exchanges their halves: so odd rows write the block two further.
        const bool is_odd = row % 2;
#pragma unroll
        for (int block = 0; block < PIECES * SLOT_BLOCKS; ++block) {  // (16, 8) fp32
            const int other = block ^ 2;
            const uint32_t slot = slots + block / SLOT_BLOCKS * SLOT_BYTES;
            const uint32_t own = (block % SLOT_BLOCKS ^ (is_odd ? 2 : 0)) * 32;
            const uint32_t at = slot + swizzled<SLOT_ROW_BYTES>(row * SLOT_ROW_BYTES + own + pair * 8);
            float r[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) r[i] = is_odd ? rC[other][i] : rC[block][i];
            ptx::st_shared_v2_f32(at, r[0], r[1]);
            ptx::st_shared_v2_f32(at + 8 * SLOT_ROW_BYTES, r[2], r[3]);
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
DEVICE void store_rows(uint32_t slots, const float (&rC)[2 * (Config::WARP_N / 16)][4], const Out& out, int32_t row,
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
