// The matrices as the Ampere rungs see them, and the tile of a CTA. Knows nothing of shared memory or of instructions.
#pragma once

#include "base.cuh"
#include "config.cuh"

// An operand of 16-bit values with k contiguous: a (m, k) or b (n, k).
struct Operand {
    const uint16_t* base;
    int64_t pitch;  // elements
    int32_t rows;
    int32_t k;
};

struct Out {
    uint8_t* base;  // of Config::OUT_TYPE
    int64_t pitch;  // elements
    int32_t m;
    int32_t n;
};

// Where a tile begins in out, and of which matrix of a batch it is.
struct Tile {
    int32_t row;
    int32_t column;
    int32_t matrix = 0;
};

DEVICE int32_t num_tiles(int32_t m, int32_t n) {
    return ((m - 1) / Config::TILE_M + 1) * ((n - 1) / Config::TILE_N + 1);
}

// Row by row; of a batch one matrix after the other.
DEVICE Tile tile_of(int32_t index, int32_t m, int32_t n) {
    const int32_t columns = (n - 1) / Config::TILE_N + 1;
    const int32_t matrix = Config::BATCHED ? index / num_tiles(m, n) : 0, within = index - matrix * num_tiles(m, n);
    return {within / columns * Config::TILE_M, within % columns * Config::TILE_N, matrix};
}

// The matrices of a batch lie below each other, without a gap: kept by the rung's violations.
DEVICE Operand operand_of(const uint16_t* base, int64_t pitch, int32_t rows, int32_t k, int32_t matrix) {
    return {base + matrix * (rows * pitch), pitch, rows, k};
}

DEVICE Out out_of(uint8_t* base, int64_t pitch, int32_t m, int32_t n, int32_t matrix) {
    return {base + matrix * (m * pitch) * size_of(Config::OUT_TYPE), pitch, m, n};
}

// Down a column of `group_m` rows, then the next column, then the next group; the last group may be lower. 1 .. rows.
DEVICE Tile grouped_tile_of(int32_t index, int32_t m, int32_t n, int32_t group_m) {
    const int32_t rows = (m - 1) / Config::TILE_M + 1, columns = (n - 1) / Config::TILE_N + 1;
    const int32_t first = index / (group_m * columns) * group_m;
    const int32_t height = min(group_m, rows - first), within = index % (group_m * columns);
    return {(first + within % height) * Config::TILE_M, within / height * Config::TILE_N};
}

// (ROWS, TILE_K) of an operand, element by element, in rows of `pitch` elements from `tile` on; zeros outside of the
// matrix. Any base, any pitch.
template <int ROWS>
DEVICE void load_elements(uint16_t* tile, int32_t pitch, const Operand& operand, int32_t first_row, int32_t first_k) {
    static_assert(ROWS * Config::TILE_K % Config::THREADS == 0, "kept by the rung's violations");
#pragma unroll 8
    for (int32_t i = 0; i < ROWS * Config::TILE_K / Config::THREADS; ++i) {
        const int32_t index = i * Config::THREADS + threadIdx.x;
        const int32_t row = index / Config::TILE_K, k = index % Config::TILE_K;
        const bool is_inside = first_row + row < operand.rows && first_k + k < operand.k;
        tile[row * pitch + k] = is_inside ? operand.base[(first_row + row) * operand.pitch + first_k + k] : 0;
    }
}

// The 16 bytes of a row from k on, a multiple of 8; zeros outside of the matrix. Base and pitch: multiples of 16 bytes.
// What lies behind a row is not read: it may be anything, and behind the last row it may not be there.
DEVICE void read_chunk(uint32_t (&words)[4], const Operand& operand, int32_t row, int32_t k) {
    const uint16_t* source = operand.base + row * operand.pitch + k;
    if (row < operand.rows && k + 8 <= operand.k) {
        const uint4 whole = *reinterpret_cast<const uint4*>(source);
        words[0] = whole.x, words[1] = whole.y, words[2] = whole.z, words[3] = whole.w;
    } else {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            const uint32_t low = row < operand.rows && k + 2 * i < operand.k ? source[2 * i] : 0;
            const uint32_t high = row < operand.rows && k + 2 * i + 1 < operand.k ? source[2 * i + 1] : 0;
            words[i] = high << 16 | low;
        }
    }
}
