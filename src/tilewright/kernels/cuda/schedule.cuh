// Which tile a CTA works on next. One question: next(tile). A persistent grid: cluster c of C takes the places
// c, c + C, ... of the walk. Knows tile counts and the order; nothing of bytes.
#pragma once

#include "config.cuh"

// A tile of out. `half`: only its upper TILE_M / 2 rows are computed.
struct Tile {
    int32_t m;  // first row
    int32_t n;  // first column
    bool half;
};

// The walk of one CTA. CTAs of a cluster stand below each other: they walk the same columns, TILE_M rows apart, so all
// of them see the same number of tiles (rows past the end are computed on zeros and not stored).
//
// The tail. A last wave that fills only some of the SMs costs as much as a full one. With HALVES the tiles from
// `num_whole` on are walked as two halves each, on twice as many SMs: the host sets it so that the halves fit one wave.
class TileSchedule {
public:
    DEVICE TileSchedule(int32_t m, int32_t n, int32_t group_m, int32_t num_whole, uint32_t cta_rank)
        : rows((m + TILE_ROWS - 1) / TILE_ROWS),
          columns((n + Config::TILE_N - 1) / Config::TILE_N),
          group(group_m),
          whole(num_whole),
          rank(cta_rank),
          place(blockIdx.x / Config::CLUSTER_M),
          step(gridDim.x / Config::CLUSTER_M) {}

    // The next tile of this CTA, if there is one.
    DEVICE bool next(Tile& tile) {
        if (!has_next()) return false;
        uint32_t index = place;
        uint32_t lower = 0;
        tile.half = false;
        if constexpr (Config::HALVES) {
            tile.half = place >= whole;
            if (tile.half) {
                index = whole + (place - whole) / 2;
                lower = (place - whole) % 2;
            }
        }
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
        tile.m = static_cast<int32_t>((row * Config::CLUSTER_M + rank) * Config::TILE_M + lower * (Config::TILE_M / 2));
        tile.n = static_cast<int32_t>(column * Config::TILE_N);
        place += step;
        return true;
    }

    // Whether next() will give another tile.
    DEVICE bool has_next() const {
        const uint32_t tiles = rows * columns;
        const uint32_t places = Config::HALVES && whole < tiles ? whole + 2 * (tiles - whole) : tiles;
        return place < places;
    }

private:
    static constexpr int32_t TILE_ROWS = Config::TILE_M * Config::CLUSTER_M;  // rows of out that one cluster covers

    uint32_t rows;     // in clusters; rows * columns < 2^30, kept by config.violations
    uint32_t columns;  // in tiles
    uint32_t group;    // 1 .. rows, kept by the host: group * columns < 2^30
    uint32_t whole;    // places before the halves; all of them where there are none
    uint32_t rank;
    uint32_t place;
    uint32_t step;
};
