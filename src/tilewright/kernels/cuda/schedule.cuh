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

// What the host tells of the walk, at run time: another order needs no compile. Down a column of `group_m` rows, then the
// next column, then the next group: the tiles in flight form a patch that is nearly square, which reads the fewest
// different rows of a and columns of b. All rows in one group: down whole columns.
struct Walk {
    int32_t group_m;    // in clusters: 1 .. rows
    int32_t num_whole;  // places before the halves; all of them where there are none
};

// The walk of one CTA. The CTAs of a cluster stand beside each other (CLUSTER_M below each other, CLUSTER_N side by
// side), and all of them see the same number of tiles: those past the end are computed on zeros and not stored.
//
// The tail. A last wave that fills only some of the SMs costs as much as a full one. With HALVES the tiles from
// `num_whole` on are walked as two halves each, on twice as many SMs: the host sets it so that the halves fit one wave.
class TileSchedule {
public:
    DEVICE TileSchedule(int32_t m, int32_t n, const Walk& the_walk, uint32_t cta_rank)
        : walk(the_walk),
          rows((m - 1) / (Config::TILE_M * Config::CLUSTER_M) + 1),
          columns((n - 1) / (Config::TILE_N * Config::CLUSTER_N) + 1),
          rank(cta_rank),
          place(blockIdx.x / Config::CLUSTER) {}

    // Whether next() will give another tile.
    DEVICE bool has_next() const {
        const uint32_t tiles = rows * columns;
        const uint32_t whole = walk.num_whole;
        const uint32_t places = Config::HALVES && whole < tiles ? whole + 2 * (tiles - whole) : tiles;
        return place < places;
    }

    // The next tile of this CTA, if there is one.
    DEVICE bool next(Tile& tile) {
        if (!has_next()) return false;
        uint32_t index = place;
        uint32_t lower = 0;
        tile.half = false;
        if constexpr (Config::HALVES) {
            const uint32_t whole = walk.num_whole;
            tile.half = place >= whole;
            if (tile.half) {
                index = whole + (place - whole) / 2;
                lower = (place - whole) % 2;
            }
        }
        const uint32_t first = index / (walk.group_m * columns) * walk.group_m;
        const uint32_t height = min(static_cast<uint32_t>(walk.group_m), rows - first);
        const uint32_t within = index % (walk.group_m * columns);
        const uint32_t row = (first + within % height) * Config::CLUSTER_M + rank % Config::CLUSTER_M;
        const uint32_t column = within / height * Config::CLUSTER_N + rank / Config::CLUSTER_M;
        tile.m = static_cast<int32_t>(row * Config::TILE_M + lower * (Config::TILE_M / 2));
        tile.n = static_cast<int32_t>(column * Config::TILE_N);
        place += gridDim.x / Config::CLUSTER;
        return true;
    }

private:
    Walk walk;
    uint32_t rows;     // in clusters; rows * columns < 2^30, kept by config.violations
    uint32_t columns;  // in clusters
    uint32_t rank;     // 0 .. CLUSTER-1
    uint32_t place;
};
