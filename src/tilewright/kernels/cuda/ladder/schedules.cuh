// Which tile a CTA of a persistent grid works on next, as the rungs ask it: cluster c of C takes tiles c, c + C, ... of
// a walk. CTAs of a cluster stand below each other, so all of them see the same number of tiles (rows past the end are
// computed on zeros and not stored). The production kernel's schedule.cuh knows more: tails, other orders.
#pragma once

#include "config.cuh"
#include "hilbert.cuh"
#include "ptx/misc.cuh"

// A tile of out, in tiles.
struct Tile {
    int32_t row;
    int32_t column;
};

// Down a column of `group` rows, then the next column, then the next group: the tiles in flight form a patch that is
// nearly square, which reads the fewest different rows of a and columns of b.
class GroupedSchedule {
public:
    DEVICE GroupedSchedule(int32_t m, int32_t n, int32_t group_m, uint32_t cta_rank)
        : rows((m - 1) / (Config::TILE_M * Config::CLUSTER_M) + 1),
          columns((n - 1) / Config::TILE_N + 1),
          group(group_m),
          rank(cta_rank),
          index(blockIdx.x / Config::CLUSTER_M) {}

    // The next tile of this CTA, if there is one.
    DEVICE bool next(Tile& tile) {
        if (index >= rows * columns) return false;
        const uint32_t first = index / (group * columns) * group;
        const uint32_t height = min(group, rows - first);
        const uint32_t within = index % (group * columns);
        tile.row = static_cast<int32_t>((first + within % height) * Config::CLUSTER_M + rank);
        tile.column = static_cast<int32_t>(within / height);
        index += gridDim.x / Config::CLUSTER_M;
        return true;
    }

private:
    uint32_t rows;     // in clusters; rows * columns < 2^30, kept by the rung's violations
    uint32_t columns;  // in tiles
    uint32_t group;    // 1 .. rows, kept by the host
    uint32_t rank;
    uint32_t index;
};

// Along a Hilbert curve: near in time is near in out at every scale, so no height of a group has to be chosen. A step
// of the curve is a few hundred instructions, each waiting for the one before: so the CTA's threads compute one tile
// each when it starts, side by side, and to go on is one load from shared memory.
class HilbertSchedule {
public:
    // Rows in clusters and columns of a CTA's tiles, in order; NO_TILE after the last one.
    struct Table {
        uint32_t tiles[Config::THREADS];
    };

    // Every thread of the CTA, before its barrier and once: fills the table.
    DEVICE static void fill(Table& table, int32_t m, int32_t n) {
        const uint32_t rows = (m - 1) / (Config::TILE_M * Config::CLUSTER_M) + 1;
        const uint32_t columns = (n - 1) / Config::TILE_N + 1;
        const uint32_t index = blockIdx.x / Config::CLUSTER_M + threadIdx.x * (gridDim.x / Config::CLUSTER_M);
        uint32_t tile = NO_TILE;
        if (index < rows * columns) {
            const Cell cell = hilbert_cell(index, rows, columns);
            tile = static_cast<uint32_t>(cell.row) << 16 | static_cast<uint32_t>(cell.column);
        }
        table.tiles[threadIdx.x] = tile;
    }

    DEVICE HilbertSchedule(const Table& the_table, uint32_t cta_rank) : table(the_table), rank(cta_rank), place(0) {}

    // The next tile of this CTA, if there is one.
    DEVICE bool next(Tile& tile) { return next_of(place < Config::THREADS ? table.tiles[place] : NO_TILE, tile); }

    // The same for a whole warp: what lane 0 reads, so that ptxas knows that all lanes agree.
    DEVICE bool next_of_warp(Tile& tile) {
        return next_of(ptx::shfl_sync_idx(place < Config::THREADS ? table.tiles[place] : NO_TILE, 0), tile);
    }

private:
    static constexpr uint32_t NO_TILE = 0xFFFFFFFF;

    DEVICE bool next_of(uint32_t found, Tile& tile) {
        if (found == NO_TILE) return false;
        tile.row = static_cast<int32_t>((found >> 16) * Config::CLUSTER_M + rank);
        tile.column = static_cast<int32_t>(found & 0xFFFF);
        place += 1;
        return true;
    }

    const Table& table;
    uint32_t rank;
    uint32_t place;  // 0 .. THREADS; a CTA has no more tiles, kept by the rung's violations and its launch
};
