// How accumulators reach out through shared memory but without TMA (v09): stmatrix into a warp's own slot, then lines
// of 128 bytes, 16 bytes a lane. Where out's rows are no multiples of 16 bytes, word by word as in epilogue.cuh.
#pragma once

#include "epilogue.cuh"
#include "ptx/copy.cuh"

// Sends a written slot to out at rows row .. and columns column ..: 32 of its 16-byte chunks at a time, so that a store
// of the warp writes whole lines, and a phase of the load reads one row of chunks, each in banks of its own.
DEVICE void send_lines(const Out& out, uint32_t slot, int32_t row, int32_t column, uint32_t lane) {
    constexpr int CHUNKS = Wide::ROW_BYTES / 16;                       // of a row
    constexpr int ROWS = WARP_THREADS / CHUNKS;                       // that one store covers
    __syncwarp();
#pragma unroll
    for (int first = 0; first < STORE_ROWS; first += ROWS) {          // (ROWS, STORE_COLUMNS)
        const int r = first + static_cast<int>(lane) / CHUNKS;
        const int chunk = static_cast<int>(lane) % CHUNKS;
        const int32_t n = column + chunk * 8;
        uint32_t words[4];
        ptx::ld_shared_v4_u32(slot + swizzled<Wide::ROW_BYTES>(r * Wide::ROW_BYTES + chunk * 16), words);
        if (r < STORE_ROWS && row + r < out.m && n < out.n) {
            uint16_t* target = static_cast<uint16_t*>(out.base) + (row + r) * out.pitch + n;
            *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

// Stores one warp's part of one wgmma: rows row .. row + 15 of out, columns column .. column + TILE_N - 1. `slot`
// counts on from call to call, 0 .. ROOM-1.
template <int PIECE = 0>
DEVICE void store_lines(uint32_t slots, uint32_t& slot, const Fragment& rC, const Out& out, int32_t row, int32_t column,
                        uint32_t lane) {
    if constexpr (PIECE < Wide::PIECES) {
        const int32_t first = column + PIECE * Wide::SLOT_COLUMNS;
        if (row >= out.m || first >= out.n) return;                   // the same for every lane
        const uint32_t target = slots + slot * Wide::SLOT_BYTES;
        __syncwarp();                                                 // every lane has read what the slot held
        write_slot<Wide, PIECE>(target, rC, lane);
        if constexpr (Config::WHOLE_CHUNKS) {
            send_lines(out, target, row, first, lane);
        } else {
            send_slots<Wide, PIECE, 1>(out.map, out, target, row, column, lane);
        }
        slot = slot + 1 == Wide::ROOM ? 0 : slot + 1;
        store_lines<PIECE + 1>(slots, slot, rC, out, row, column, lane);
    }
}
