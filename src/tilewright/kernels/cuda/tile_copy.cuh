// How a tile of an operand comes into a slot of shared memory: by cp.async of all threads, zeros where the matrix ends.
//
// A tile lies in shared memory in rows: where k is contiguous, a row of TILE_K k values for each of its EXTENT rows of
// m or n; where m or n is, panels of 128 bytes of them, each TILE_K rows of k. Either way 16-byte chunks are swizzled:
// 8 chunks that are read at once lie in 8 different eighths of 128 bytes, and so do 8 beside each other, which a
// quarter of a warp writes at once. Read at once are
//
//   where k is contiguous, and of panels of 16 bits     8 rows below each other                  swizzle.cuh's pattern
//   of panels of bytes (warp_tile.cuh)                  rows r, r + 1, r + 4, r + 5 .. r + 13    chunk ^ bits 0, 2, 3
//   of panels of 32 bits                                2 chunks of each of 4 rows               chunk ^ 2 (row % 4)
//
// A thread copies pieces of COPY_BYTES, always the same piece of a row, of every PASS_ROWS-th row. COPY_BYTES is the
// largest of 16, 8 and 4 that divides the operand's address, pitch and batch strides: 16 go past the L1 (.cg), the
// others through it (.ca). What the rows do not have is read as zeros: past the end of k, so that no product is added
// that is not there; rows of m or n past the end, whose results nobody stores. IN_PIECES: rows end where a piece does,
// so that each is there whole or not at all. Else a piece may be cut, which costs about 5 instructions a copy.
//
// FOLD 2: rows of the tile (of m or n) are made of two parts of the matrix, `further` bytes apart, in turns of 8: rows
// 16 j .. 16 j + 7 are rows 8 j .. of the first part, 16 j + 8 .. 16 j + 15 the same of the second. So fragments, which
// are 16 rows, hold both in the same lane. Pieces are at most 8 elements and passes powers of two, so that what a pass
// adds to a thread's row and part is the same for every thread.
#pragma once

#include "config.cuh"
#include "ptx/cp_async.cuh"
#include "swizzle.cuh"

constexpr int IN_SIZE = size_of(Config::INPUT);         // bytes of an element of a and b
constexpr int PANEL_ROW_BYTES = 128;
constexpr int PANEL = PANEL_ROW_BYTES / IN_SIZE;        // elements of a row of a panel

// How one operand's tile lies in a slot.
template <bool K_MAJOR_, int EXTENT_>
struct TileLayout {
    static constexpr bool K_MAJOR = K_MAJOR_;
    static constexpr int EXTENT = EXTENT_;  // rows of m or n
    static constexpr int ROW_BYTES = K_MAJOR ? Config::TILE_K * IN_SIZE : PANEL_ROW_BYTES;
    static constexpr int ROWS = EXTENT * Config::TILE_K * IN_SIZE / ROW_BYTES;
    static constexpr int BYTES = ROWS * ROW_BYTES;
    static constexpr bool HAS_BYTES_BY_K = !K_MAJOR && IN_SIZE == 1;
    static constexpr bool HAS_WORDS_BY_K = !K_MAJOR && IN_SIZE == 4;
    static constexpr int PERIOD = HAS_BYTES_BY_K ? 2 * ATOM_BYTES : ATOM_BYTES;  // of the swizzle, or a multiple
    static_assert(ROW_BYTES == 64 || ROW_BYTES == 128, "TILE_K's bytes, kept by config.violations");
    static_assert(K_MAJOR || EXTENT % PANEL == 0, "whole panels, kept by config.violations");

    // Where the byte at a plain offset lies.
    DEVICE static uint32_t swizzled(uint32_t offset) {
        if constexpr (HAS_BYTES_BY_K) {  // bits 0, 2 and 3 of the row, which are 7, 9 and 10 of the offset
            return offset ^ ((offset >> 3 & 0x10) | (offset >> 4 & 0x60));
        } else if constexpr (HAS_WORDS_BY_K) {  // bits 0 and 1 of the row, which are 7 and 8 of the offset
            return offset ^ (offset >> 2 & 0x60);
        } else {
            return ::swizzled<ROW_BYTES>(offset);
        }
    }
};
using TileA = TileLayout<Config::A_K_MAJOR, Config::TILE_M>;
using TileB = TileLayout<Config::B_K_MAJOR, Config::TILE_N>;

// One thread's part in copying the tiles of one operand, k tile after k tile.
template <class Layout, int COPY_BYTES, bool IN_PIECES, int FOLD = 1>
class TileCopy {
    static constexpr int PIECES = Layout::ROW_BYTES / COPY_BYTES;       // of a row
    static constexpr int PASS_ROWS = Config::THREADS / PIECES;          // rows that all threads copy at once
    static constexpr int PIECE = COPY_BYTES / IN_SIZE;                  // elements
    static constexpr int TURN = 8;                                      // rows of a part, in a folded tile
    static constexpr bool IS_ALIKE = PASS_ROWS * Layout::ROW_BYTES % Layout::PERIOD == 0;  // passes are swizzled alike
    static_assert(Config::THREADS % PIECES == 0 && Layout::ROWS % PASS_ROWS == 0, "kept by config.violations");
    static_assert(Layout::K_MAJOR || PASS_ROWS % Config::TILE_K == 0 || Config::TILE_K % PASS_ROWS == 0,
                  "threads are a power of two");
    static_assert(FOLD == 1 || PIECE <= TURN, "a piece is of one part");

public:
    static constexpr int COUNT = Layout::ROWS / PASS_ROWS;  // copies of a thread

    // `the_further`: elements from a row of the first part to that of the second.
    DEVICE explicit TileCopy(int64_t the_pitch, int64_t the_further = 0)
        : pitch_bytes(the_pitch * IN_SIZE), further(the_further * IN_SIZE) {}

    // Turns to the tile whose first row of m or n is `first`, of a matrix that has `extent` of them, at its start in k;
    // folded: of each part.
    DEVICE void start(const void* matrix, int32_t first, int32_t extent) {
        const char* from = static_cast<const char*>(matrix);
        if constexpr (Layout::K_MAJOR) {
            source = from + (first + folded(row())) * pitch_bytes + part(row()) * further + piece() * COPY_BYTES;
            left = extent - first - folded(row());
        } else {
            const int32_t own_panel = panel(0) * (PANEL / FOLD), own = folded(piece() * PIECE);
            source = from + k_row(0) * pitch_bytes + (first + own_panel + own) * int64_t{IN_SIZE} +
                     part(piece() * PIECE) * further;
            left = extent - first - own_panel - own;
        }
    }

    // Issues copies FIRST .. END - 1 of the k tile at hand, of which `k_left` k values are there, into the one at
    // `target`.
    template <int FIRST, int END>
    DEVICE void copy(uint32_t target, int32_t k_left) const {
#pragma unroll
        for (int i = FIRST; i < END; ++i) {
            const char* from;
            int32_t lines, along;  // that are there: lines from that of pass i on, its elements from the piece on
            if constexpr (Layout::K_MAJOR) {
                from = source + folded(i * PASS_ROWS) * pitch_bytes + part(i * PASS_ROWS) * further;
                lines = left - folded(i * PASS_ROWS), along = k_left - piece() * PIECE;
            } else {
                const int panels = panel_of_pass(i);
                from = source + row_of_pass(i) * pitch_bytes + panels * (PANEL_ROW_BYTES / FOLD);
                lines = k_left - k_row(i), along = left - panels * (PANEL / FOLD);
            }
            const uint32_t at = target + (IS_ALIKE ? place(0) + i * (PASS_ROWS * Layout::ROW_BYTES) : place(i));
            const uint32_t present = present_bytes(lines, along);
            if constexpr (COPY_BYTES == 16) {
                ptx::cp_async_cg_16<Config::PREFETCH>(at, from, present);
            } else {
                ptx::cp_async_ca<COPY_BYTES>(at, from, present);
            }
        }
    }

    // To the next k tile.
    DEVICE void advance() {
        source += Layout::K_MAJOR ? Layout::ROW_BYTES : Config::TILE_K * pitch_bytes;
    }

private:
    // Of a row of the tile: the row of its part, and which part.
    DEVICE static constexpr int folded(int row) { return FOLD == 1 ? row : row / (2 * TURN) * TURN + row % TURN; }
    DEVICE static constexpr int part(int row) { return FOLD == 1 ? 0 : row / TURN % 2; }

    DEVICE static int32_t row() { return static_cast<int32_t>(threadIdx.x) / PIECES; }   // of pass 0
    DEVICE static int32_t piece() { return static_cast<int32_t>(threadIdx.x) % PIECES; }

    // Bytes of a piece that are there, where `lines` lines are and `along` elements of its own. Either may be negative.
    DEVICE static uint32_t present_bytes(int32_t lines, int32_t along) {
        if constexpr (IN_PIECES) {  // a choice between two constants: ptxas makes it a predicate of the copy
            return lines > 0 && along > 0 ? COPY_BYTES : 0;
        } else {
            return lines > 0 ? max(0, min(along, PIECE)) * IN_SIZE : 0;
        }
    }

    // Where this thread's piece of pass i lies in the tile.
    DEVICE static uint32_t place(int i) {
        return Layout::swizzled((row() + i * PASS_ROWS) * Layout::ROW_BYTES + piece() * COPY_BYTES);
    }

    // Of panels: what pass i is ahead of pass 0, in panels and in rows of k, and its row of k.
    DEVICE static constexpr int panel_of_pass(int i) { return i * PASS_ROWS / Config::TILE_K; }
    DEVICE static constexpr int row_of_pass(int i) { return i * PASS_ROWS % Config::TILE_K; }
    DEVICE static int32_t panel(int) { return row() / Config::TILE_K; }
    DEVICE static int32_t k_row(int i) { return row() % Config::TILE_K + row_of_pass(i); }

    const int64_t pitch_bytes;
    const int64_t further;  // bytes
    const char* source;  // this thread's piece of pass 0
    int32_t left;        // rows from pass 0's on, or elements of m or n from this thread's piece on; may be negative
};
