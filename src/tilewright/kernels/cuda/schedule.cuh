// Which tiles a CTA works on, in which order. A persistent grid: cluster c of C takes the places c, c + C, ... of the
// walk. Knows tile counts and the order; nothing of bytes.
#pragma once

#include "config.cuh"

// Where a tile of out begins, and of a batch of outs, in which matrix.
template <bool OF_BATCH>
struct TileOf {
    int32_t m;        // first row
    int32_t n;        // first column
    uint32_t number;  // of the matrix, 0 .. num_matrices-1
    uint32_t unused;  // makes it 16 bytes, which are stored at once

    DEVICE static TileOf at(int32_t m, int32_t n, uint32_t matrix) { return TileOf{m, n, matrix, 0}; }
    DEVICE uint32_t matrix() const { return number; }
};
template <>
struct TileOf<false> {
    int32_t m;
    int32_t n;

    DEVICE static TileOf at(int32_t m, int32_t n, uint32_t) { return TileOf{m, n}; }
    DEVICE uint32_t matrix() const { return 0; }
};
using Tile = TileOf<(Config::BATCH_DIMS > 0)>;

// What the host tells of the walk, at run time: another order needs no compile.
//
//   group    group_m rows, all columns: walked from left to right, the tiles in flight are a patch that is nearly
//            square, which reads the fewest different rows of a and columns of b (L2, DRAM)
//   square   square_m rows x square_n columns of a group: walked down the columns. Neighbours in the walk are
//            neighbours on the chip (a GPC has 16 or 18 SMs), and their equal reads are merged on their way: of both
//            operands
//
// One square as high as the group and as wide as out: the group is walked down its columns. Where one square is all of
// out a CTA's first tile is found by a multiplication.
struct Walk {
    int32_t group_m;   // in clusters: 1 .. rows
    int32_t square_m;  // in clusters: 1 .. group_m
    int32_t square_n;  // in clusters: 1 .. columns
    int32_t num_wide;  // wide tiles of all matrices, in clusters: all there are, or a multiple of those in flight
};

// The walk of one CTA. The CTAs of a cluster stand beside each other (CLUSTER_M below each other, CLUSTER_N side by
// side), and all of them see the same number of tiles: those past the end are computed on zeros and not stored.
//
// The tail. A last wave that fills only some of the SMs costs as much as a full one. With a TAIL_N the host lets whole
// waves of wide tiles take the left of out, and cuts the rest into narrow tiles that fit one more, shorter wave:
//
//        <--- columns x TILE_N ---><- TILE_N -><---- rest ---->
//      ^ +------------------------+-----------+---+---+--
//      | |                        | one more  |   |   |        `further` rows
//   M  | |  wide                  +---+---+---+---+---+--
//      | |                        |   |   |   narrow, TAIL_N
//      v +------------------------+---+---+---+---+---+--
//
// Narrow tiles are walked along the rows: neighbours share a, the larger of their operands.
//
// A batch is walked matrix after matrix: all tiles of one, then those of the next. It has no tail (config.violations).
class TileSchedule {
public:
    DEVICE TileSchedule(int32_t m, int32_t n, const Walk& the_walk, uint32_t cta_rank)
        : walk(the_walk),
          rows((m - 1) / (Config::TILE_M * Config::CLUSTER_M) + 1),
          columns((n - 1) / (Config::TILE_N * Config::CLUSTER_N) + 1),
          rank(cta_rank),
          place(blockIdx.x / Config::CLUSTER),
          stride(gridDim.x / Config::CLUSTER) {
        if constexpr (Config::TAIL_N > 0) {
            const uint32_t all = columns;
            columns = walk.num_wide / rows;
            further = walk.num_wide - columns * rows;
            if (columns < all) {
                const int32_t rest = n - static_cast<int32_t>(columns) * Config::TILE_N;
                narrow_near = narrow_columns(rest);
                narrow_far = narrow_columns(rest - Config::TILE_N);
            }
        }
    }

    // How many wide tiles this CTA has, and how many narrow ones after them.
    DEVICE uint32_t num_wide() const { return places_up_to(walk.num_wide); }
    DEVICE uint32_t num_narrow() const { return Config::TAIL_N == 0 ? 0 : places_up_to(all_narrow()); }

    // Whether it has a wide tile number i, and a narrow one: the same without a division, which takes 50 cycles.
    DEVICE bool has_wide(uint32_t i) const { return place + i * stride < static_cast<uint32_t>(walk.num_wide); }
    DEVICE bool has_narrow(uint32_t i) const { return place + i * stride < all_narrow(); }

    // Whether the walk is one square that is all of out: a square is no larger than out. Never of a batch, nor with a
    // tail, whose wide tiles may be as many by chance.
    DEVICE bool is_one_square() const {
        return Config::BATCH_DIMS == 0 && Config::TAIL_N == 0 && walk.square_m * walk.square_n == walk.num_wide;
    }

    // This CTA's wide tile number 0 of such a walk. `row_scale` is 2^30 / square_m, rounded up: by it a multiplication
    // is the division, of places below 2^15, whatever square_m is up to 2^30. place / square_m takes 130 cycles, and
    // nothing is loaded before.
    DEVICE Tile first_of_square(int32_t row_scale) const {
        const uint32_t column = __umulhi(4 * place, static_cast<uint32_t>(row_scale));
        return at(place - column * walk.square_m, column, 0);
    }

    // The same of any walk; of others it takes four divisions that wait for each other.
    DEVICE Tile first(int32_t row_scale) const { return is_one_square() ? first_of_square(row_scale) : wide(0); }

    // This CTA's wide tile number i.
    DEVICE Tile wide(uint32_t i) const {
        uint32_t index = place + i * stride;
        uint32_t matrix = 0;
        if constexpr (Config::BATCH_DIMS > 0) {
            matrix = index / (rows * columns);
            index -= matrix * rows * columns;
        }
        if (Config::TAIL_N > 0 && index >= rows * columns) {  // the column of the rows that have one more
            return at(index - rows * columns, columns, matrix);
        }
        const Part group = part_of(index, walk.group_m, rows, columns);
        const Part stretch = part_of(group.within, walk.square_n, columns, group.size);
        const Part square = part_of(stretch.within, walk.square_m, group.size, stretch.size);
        return at(group.first + square.first + square.within % square.size, stretch.first + square.within / square.size,
                  matrix);
    }

    // This CTA's narrow tile number i.
    DEVICE Tile narrow(uint32_t i) const {
        uint32_t index = place + i * stride;
        const bool far = index < further * narrow_far;
        if (!far) index -= further * narrow_far;
        const uint32_t width = far ? narrow_far : narrow_near;
        const uint32_t row = (far ? 0 : further) + index / width;
        const uint32_t left = (far ? columns + 1 : columns) * Config::TILE_N;
        return Tile::at(static_cast<int32_t>(row * Config::TILE_M),
                        static_cast<int32_t>(left + index % width * Config::TAIL_N), 0);
    }

private:
    // A stretch of lines (rows or columns) that is walked before the next, and the index within it.
    struct Part {
        uint32_t first;   // line
        uint32_t size;    // lines; fewer at the end
        uint32_t within;  // index among its tiles
    };

    // The stretch of `step` of `lines` lines, each of `width` tiles, that holds a tile.
    DEVICE static Part part_of(uint32_t index, uint32_t step, uint32_t lines, uint32_t width) {
        const uint32_t tiles = step * width;
        const uint32_t number = index / tiles;
        const uint32_t first = number * step;
        return Part{first, min(step, lines - first), index - number * tiles};
    }

    // Narrow tiles that cover so many columns.
    DEVICE static uint32_t narrow_columns(int32_t width) {
        constexpr int32_t TAIL_N = Config::TAIL_N > 0 ? Config::TAIL_N : 1;
        return width > 0 ? (width - 1) / TAIL_N + 1 : 0;
    }

    // Narrow tiles of all CTAs.
    DEVICE uint32_t all_narrow() const { return further * narrow_far + (rows - further) * narrow_near; }

    // How many of this CTA's places are below `total`.
    DEVICE uint32_t places_up_to(uint32_t total) const { return total > place ? (total - 1 - place) / stride + 1 : 0; }

    // This CTA's tile of the cluster in that row and column of clusters.
    DEVICE Tile at(uint32_t row, uint32_t column, uint32_t matrix) const {
        return Tile::at(static_cast<int32_t>((row * Config::CLUSTER_M + rank % Config::CLUSTER_M) * Config::TILE_M),
                        static_cast<int32_t>((column * Config::CLUSTER_N + rank / Config::CLUSTER_M) * Config::TILE_N),
                        matrix);
    }

    Walk walk;
    uint32_t rows;             // in clusters; all tiles of all matrices are fewer than 2^30, kept by config.violations
    uint32_t columns;          // of wide tiles in every row, in clusters
    uint32_t further = 0;      // rows with one wide tile more
    uint32_t narrow_far = 0;   // narrow tiles of a row that has one wide tile more
    uint32_t narrow_near = 0;  // of another
    uint32_t rank;             // 0 .. CLUSTER-1
    uint32_t place;            // of this cluster's first tile
    uint32_t stride;           // clusters
};
