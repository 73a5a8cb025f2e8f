// Which tile a CTA works on next. One question: next(tile). A persistent grid: cluster c of C takes tiles c, c + C, ...
// Knows tile counts and the order; nothing of bytes.
#pragma once

#include "config.cuh"

// A tile of out, in tiles.
struct Tile {
    int32_t row;
    int32_t column;
};

// The walk of one CTA. CTAs of a cluster stand below each other: they walk the same columns, CLUSTER_M rows apart, so
// all of them see the same number of tiles (rows past the end are computed on zeros and not stored).
class TileSchedule {
public:
    DEVICE TileSchedule(int32_t m, int32_t n, int32_t group_m, uint32_t cta_rank)
        : rows((m + TILE_ROWS - 1) / TILE_ROWS),
          columns((n + Config::TILE_N - 1) / Config::TILE_N),
          group(group_m),
          rank(cta_rank),
          index(blockIdx.x / Config::CLUSTER_M),
          step(gridDim.x / Config::CLUSTER_M) {}

    // The next tile of this CTA, if there is one.
    DEVICE bool next(Tile& tile) {
        if (index >= rows * columns) return false;
        uint32_t row, column;
        if constexpr (Config::SCHEDULE == Schedule::linear) {
            row = index % rows;  // down a column of tiles, then the next
            column = index / rows;
        } else {
            // Down a column of `group` rows, then the next column, then the next group: the tiles in flight form a
            // patch that is nearly square, which reads the fewest different rows of a and columns of b.
            const uint32_t first = index / (group * columns) * group;
            const uint32_t height = min(group, rows - first);
            const uint32_t within = index % (group * columns);
            row = first + within % height;
            column = within / height;
        }
        tile.row = static_cast<int32_t>(row * Config::CLUSTER_M + rank);
        tile.column = static_cast<int32_t>(column);
        index += step;
        return true;
    }

private:
    static constexpr int32_t TILE_ROWS = Config::TILE_M * Config::CLUSTER_M;  // rows of out that one cluster covers

    uint32_t rows;     // in clusters; rows * columns < 2^31, kept by config.violations
    uint32_t columns;  // in tiles
    uint32_t group;    // 1 .. rows, kept by the host: group * columns < 2^31
    uint32_t rank;
    uint32_t index;
    uint32_t step;
};
