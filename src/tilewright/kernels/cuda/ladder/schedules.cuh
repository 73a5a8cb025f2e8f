// Which tile a CTA of a persistent grid works on next, as the rungs ask it: cluster c of C takes tiles c, c + C, ... of
// a walk. CTAs of a cluster stand below each other, so all of them see the same number of tiles (rows past the end are
// computed on zeros and not stored). The production kernel's schedule.cuh knows more: tails, other orders.
#pragma once

#include "config.cuh"
#include "hilbert.cuh"

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

// Along a Hilbert curve: near in time is near in out at every scale, so no height of a group has to be chosen.
class HilbertSchedule {
public:
    DEVICE HilbertSchedule(int32_t m, int32_t n, uint32_t cta_rank)
        : rows((m - 1) / (Config::TILE_M * Config::CLUSTER_M) + 1),
          columns((n - 1) / Config::TILE_N + 1),
          rank(cta_rank),
          index(blockIdx.x / Config::CLUSTER_M) {}

    // The next tile of this CTA, if there is one.
    DEVICE bool next(Tile& tile) {
        if (index >= rows * columns) return false;
        const Cell cell = hilbert_cell(index, rows, columns);
        tile.row = static_cast<int32_t>(cell.row * Config::CLUSTER_M + rank);
        tile.column = cell.column;
        index += gridDim.x / Config::CLUSTER_M;
        return true;
    }

private:
    uint32_t rows;     // in clusters
    uint32_t columns;  // in tiles
    uint32_t rank;
    uint32_t index;
};
