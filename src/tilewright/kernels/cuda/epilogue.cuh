// How a warp's accumulators leave: rounded to the output type, through the warp's own slots of shared memory, to out.
//
// A slot is STORE_ROWS rows of the tile, the part of a 64-row wgmma that one warp holds, and as many of its columns as
// one TMA box takes. Each warp has room for some slots, shared with nobody, so the protocol is warp-wide. As many slots
// as there is room for are a batch:
//
//   step                    who          why
//   wait_group.read 0       lane 0       the TMA stores of the batch before have read their slots (lane 0 issued them)
//   __syncwarp              warp         no lane overwrites a slot before lane 0 knows that
//   write accumulators      warp         ordinary writes; no bank is hit twice in a phase (16-bit out)
//   fence.proxy.async       every lane   its own ordinary writes come before the asynchronous reads
//   __syncwarp              warp         all lanes have fenced
//   TMA stores, commit      lane 0       run on while the warp goes to the next batch and the next tile
//
// On their way the values of a block of 8 columns pass an epilogue, if there is one (fused.cuh), just before they are
// rounded: the one place where that happens, whichever way out they take (Finished).
//
// Where out's base, pitch or row length is no multiple of 16 bytes TMA cannot store it: then the warp reads the batch
// back and stores it row by row (row_store.cuh).
#pragma once

#include "batch.cuh"
#include "config.cuh"
#include "fused.cuh"
#include "place.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/misc.cuh"
#include "rounding.cuh"
#include "row_store.cuh"
#include "swizzle.cuh"
#include "transposed.cuh"

constexpr int STORE_ROWS = 16;  // rows of a 64-row wgmma that one warp holds
constexpr int OUT_SIZE = size_of(Config::OUT_TYPE);

// The columns of a tile that are stored (config.stored_n), those of its slots, and those that are multiplied. Slots are
// as wide as config.store_columns says, so that rows of one below each other lie in different banks, by TMA's swizzle
// or by their length alone.
template <int COLUMNS_, int SLOT_COLUMNS_, int WARP_BYTES, int TILE_COLUMNS_ = COLUMNS_>
struct StoreShape {
    static constexpr int TILE_COLUMNS = TILE_COLUMNS_;
    static constexpr int COLUMNS = COLUMNS_;
    static constexpr int SLOT_COLUMNS = SLOT_COLUMNS_;
    static constexpr int PIECES = COLUMNS / SLOT_COLUMNS;
    static constexpr int ROW_BYTES = SLOT_COLUMNS * OUT_SIZE;
    static constexpr int SLOT_BYTES = STORE_ROWS * ROW_BYTES;
    static constexpr int ROOM = WARP_BYTES / SLOT_BYTES;  // slots
    static constexpr bool ONE_BY_ONE = Config::OUT_TRANSPOSED && !Config::OUT_THROUGH_TMA;
    static constexpr int BATCH = ONE_BY_ONE ? 1 : ROOM < PIECES ? ROOM : PIECES;
    static_assert(COLUMNS % SLOT_COLUMNS == 0, "TMA stores one box after another");
    static_assert(SLOT_COLUMNS % 8 == 0, "a slot holds whole blocks of 8 columns");
    static_assert(BATCH > 0, "config.store_warp_bytes holds one slot");
};
using Wide = StoreShape<Config::STORED_N, Config::STORE_COLUMNS, Config::STORE_WARP_BYTES, Config::TILE_N>;
template <bool EXISTS>
struct NarrowIf {
    using Shape = StoreShape<Config::TAIL_N, Config::TAIL_STORE_COLUMNS, Config::TAIL_STORE_WARP_BYTES>;
};
template <>
struct NarrowIf<false> {
    using Shape = StoreShape<8, 8, (1 << 20)>;  // more bytes than any: no wide tile has this shape too
};
using Narrow = NarrowIf<(Config::TAIL_N > 0)>::Shape;

// What the kernel is told of out. Without TMA a map is four unused bytes.
struct NoTensorMap {
    int32_t unused;
};
template <bool EXISTS>
struct MapIf {
    using type = TensorMap;
};
template <>
struct MapIf<false> {
    using type = NoTensorMap;
};
using OutMap = MapIf<Config::OUT_THROUGH_TMA>::type;
using OutTailMap = MapIf<Config::OUT_THROUGH_TMA && (Config::TAIL_N > 0)>::type;

DEVICE void prefetch_map(const TensorMap& map) { ptx::prefetch_tensormap(map); }
DEVICE void prefetch_map(const NoTensorMap&) {}

template <class Map, class Shape_>
struct OutOf {
    using Shape = Shape_;
    const Map& map;
    void* base;
    int64_t pitch;  // elements
    int32_t m;
    int32_t n;
    Member member;  // of a batch: the matrix that is written, for TMA; `base` is its own already
};
using Out = OutOf<OutMap, Wide>;
using OutTail = OutOf<OutTailMap, Narrow>;

// The matrix of a batch of outs that has this number; a single one is its own.
template <class OutOfShape, int DIMS>
DEVICE OutOfShape matrix_of(const OutOfShape& outs, const BatchOf<DIMS>& batch, uint32_t number) {
    const Member member = batch.member(number);
    char* base = static_cast<char*>(outs.base);
    if constexpr (!Config::OUT_THROUGH_TMA) base += batch.out_offset(member) * OUT_SIZE;
    return OutOfShape{outs.map, base, outs.pitch, outs.m, outs.n, member};
}
template <class OutOfShape>
DEVICE const OutOfShape& matrix_of(const OutOfShape& out, const BatchOf<0>&, uint32_t) {
    return out;
}

// A thread's part of one wgmma: of a narrow tile the first TAIL_N / 2 values.
using Fragment = float[Config::TILE_N / 2];

// The same rounded, in half the registers, and where it goes: rows from m, columns from n on, of one matrix of a batch.
struct Kept {
    uint32_t values[OUT_SIZE == 2 ? Config::TILE_N / 4 / Fused::FOLD : 1];
    int32_t m;
    int32_t n;
    uint32_t matrix;
};

// The sums of one wgmma, and what becomes of them: the values of a block of 8 columns are made when they are asked for,
// each once. Of a folded out a block is made of two, one in either half of the tile.
template <int COUNT>
struct Finished {
    const float (&sums)[COUNT];
    FusedRows& rows;

    // The lane's four values of a block.
    struct Four {
        float values[4];
        DEVICE float operator[](int i) const { return values[i]; }
    };
    template <int TILE_COLUMNS>
    DEVICE Four four(int block) const {
        Four found;
#pragma unroll
        for (int i = 0; i < 4; ++i) found.values[i] = sums[4 * block + i];
        float up[4] = {};  // of a folded out
        if constexpr (Fused::FOLD == 2) {
#pragma unroll
            for (int i = 0; i < 4; ++i) up[i] = sums[TILE_COLUMNS / 4 + 4 * block + i];
        }
        rows.apply(block, found.values, up);
        return found;
    }
};

// The lane's four values of a block of 8 columns of one wgmma of a tile of this width.
template <int TILE_COLUMNS, int COUNT>
DEVICE const float* four_of(const float (&rC)[COUNT], int block) {
    return &rC[4 * block];
}
template <int TILE_COLUMNS, int COUNT>
DEVICE typename Finished<COUNT>::Four four_of(const Finished<COUNT>& finished, int block) {
    return finished.template four<TILE_COLUMNS>(block);
}

// The same, rounded: the two of the upper row, and of the lower.
struct Pairs {
    uint32_t upper;
    uint32_t lower;
};
template <int TILE_COLUMNS, class Values>
DEVICE Pairs pairs_of(const Values& values, int block) {
    const auto four = four_of<TILE_COLUMNS>(values, block);
    return Pairs{rounded_pair(four[0], four[1]), rounded_pair(four[2], four[3])};
}
template <int TILE_COLUMNS, int COUNT>
DEVICE Pairs pairs_of(const uint32_t (&rounded)[COUNT], int block) {
    return Pairs{rounded[2 * block], rounded[2 * block + 1]};
}

// Rounds the values of the COLUMNS columns of out that a fragment is.
template <int TILE_COLUMNS, int COLUMNS, class Values>
DEVICE void keep(Kept& kept, const Values& values) {
    static_assert(OUT_SIZE == 2, "STAGGERED is for 16-bit outputs, kept by config.violations");
#pragma unroll
    for (int block = 0; block < COLUMNS / 8; ++block) {
        const Pairs pairs = pairs_of<TILE_COLUMNS>(values, block);
        kept.values[2 * block] = pairs.upper;
        kept.values[2 * block + 1] = pairs.lower;
    }
}

// Writes piece PIECE of the accumulators of one wgmma into a slot. Of the 8 columns of block j a lane holds row
// lane / 4 in rC[4 j], rC[4 j + 1] and row lane / 4 + 8 in rC[4 j + 2], rC[4 j + 3].
template <class Shape, int PIECE, class Values>
DEVICE void write_slot(uint32_t slot, const Values& rC, uint32_t lane) {
    constexpr int ROW_BYTES = Shape::ROW_BYTES;
    constexpr int BLOCKS = Shape::SLOT_COLUMNS / 8;  // of 8 columns
    constexpr int FIRST = PIECE * Shape::SLOT_COLUMNS / 8;
    if constexpr (Config::OUT_TYPE == Type::fp32) {
        // 8 bytes a lane; two of the four rows of a phase meet in a bank (2-way), the price of unshuffled registers.
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {  // (16, 8) fp32
            const auto r = four_of<Shape::TILE_COLUMNS>(rC, FIRST + block);
            const uint32_t upper = (lane / 4) * ROW_BYTES + block * 32 + (lane % 4) * 8;
            const uint32_t lower = upper + 8 * ROW_BYTES;
            ptx::st_shared_v2_f32(slot + swizzled<ROW_BYTES>(upper), r[0], r[1]);
            ptx::st_shared_v2_f32(slot + swizzled<ROW_BYTES>(lower), r[2], r[3]);
        }
    } else {
        const uint32_t row_offset = (lane % 16) * ROW_BYTES;  // matrices 0 and 2: rows 0..7; 1 and 3: rows 8..15
#pragma unroll
        for (int block = 0; block + 1 < BLOCKS; block += 2) {  // (16, 16) 16-bit
            const Pairs left = pairs_of<Shape::TILE_COLUMNS>(rC, FIRST + block);
            const Pairs right = pairs_of<Shape::TILE_COLUMNS>(rC, FIRST + block + 1);
            const uint32_t pairs[4] = {left.upper, left.lower, right.upper, right.lower};
            const uint32_t chunk = block + lane / 16;
            ptx::stmatrix_x4(slot + swizzled<ROW_BYTES>(row_offset + chunk * 16), pairs);
        }
        if constexpr (BLOCKS % 2 == 1) {  // (16, 8) 16-bit
            const Pairs last = pairs_of<Shape::TILE_COLUMNS>(rC, FIRST + BLOCKS - 1);
            const uint32_t pairs[2] = {last.upper, last.lower};
            ptx::stmatrix_x2(slot + swizzled<ROW_BYTES>(row_offset + (BLOCKS - 1) * 16), pairs);
        }
    }
}

// The same, a row of the slot for each column.
template <class Shape, int PIECE, class Values>
DEVICE void write_slot_transposed(uint32_t slot, const Values& rC, uint32_t lane) {
    constexpr int BLOCKS = Shape::SLOT_COLUMNS / 8;
    constexpr int FIRST = PIECE * Shape::SLOT_COLUMNS / 8;
    if constexpr (Config::OUT_TYPE == Type::fp32) {
        float values[4 * BLOCKS];
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const auto four = four_of<Shape::TILE_COLUMNS>(rC, FIRST + block);
#pragma unroll
            for (int i = 0; i < 4; ++i) values[4 * block + i] = four[i];
        }
        write_transposed<BLOCKS>(slot, values, lane);
    } else {
        uint32_t pairs[2 * BLOCKS];
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const Pairs two = pairs_of<Shape::TILE_COLUMNS>(rC, FIRST + block);
            pairs[2 * block] = two.upper;
            pairs[2 * block + 1] = two.lower;
        }
        write_transposed<BLOCKS>(slot, pairs, lane);
    }
}

// Writes pieces PIECE .. END - 1 of the accumulators into the slots from `slot` on.
template <class Shape, int PIECE, int END, class Values>
DEVICE void write_slots(uint32_t slot, const Values& rC, uint32_t lane) {
    if constexpr (PIECE < END) {
        if constexpr (Config::OUT_TRANSPOSED) {
            write_slot_transposed<Shape, PIECE>(slot, rC, lane);
        } else {
            write_slot<Shape, PIECE>(slot, rC, lane);
        }
        write_slots<Shape, PIECE + 1, END>(slot + Shape::SLOT_BYTES, rC, lane);
    }
}

// Sends COUNT written pieces from PIECE on to out, at rows row .. and the tile's columns from `column` on: by TMA,
// which clips what lies outside.
template <class Shape, int PIECE, int COUNT, class OutOfShape>
DEVICE void send_slots(const TensorMap& map, const OutOfShape& out, uint32_t slot, int32_t row, int32_t column,
                       uint32_t lane) {
    ptx::fence_proxy_async_shared_cta();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int32_t first = column + (PIECE + i) * Shape::SLOT_COLUMNS;
            store_box(map, Config::OUT_TRANSPOSED ? row : first, Config::OUT_TRANSPOSED ? first : row, out.member,
                      slot + i * Shape::SLOT_BYTES);
        }
        ptx::cp_async_bulk_commit_group();
    }
}

// The same by ordinary stores: what of the pieces lies inside out.
template <class Shape, int PIECE, int COUNT, class OutOfShape>
DEVICE void send_slots(const NoTensorMap&, const OutOfShape& out, uint32_t slot, int32_t row, int32_t column,
                       uint32_t lane) {
    constexpr int COLUMNS = COUNT * Shape::SLOT_COLUMNS;
    __syncwarp();
    const int32_t first = column + PIECE * Shape::SLOT_COLUMNS;
    const OutRows rows{static_cast<char*>(out.base) + (row * out.pitch + first) * OUT_SIZE, out.pitch * OUT_SIZE,
                       out.m - row < STORE_ROWS ? out.m - row : STORE_ROWS,
                       (out.n - first < COLUMNS ? out.n - first : COLUMNS) * OUT_SIZE};
    store_slot_rows<OUT_SIZE, SlotRows<Shape::ROW_BYTES, COUNT>>(slot, rows, lane);
}

// The same of a transposed slot: two columns at a time, of 16 neighbours in out each.
template <class Shape, int PIECE, class OutOfShape>
DEVICE void send_slot_transposed(const OutOfShape& out, uint32_t slot, int32_t row, int32_t column, uint32_t lane) {
    constexpr int COLUMNS = Shape::SLOT_COLUMNS;
    const int32_t out_row = row + static_cast<int32_t>(lane % STORE_ROWS);
    __syncwarp();
#pragma unroll 1
    for (int c = static_cast<int>(lane / STORE_ROWS); c < COLUMNS; c += WARP_THREADS / STORE_ROWS) {
        const int32_t out_column = column + PIECE * Shape::SLOT_COLUMNS + c;
        if (out_row >= out.m || out_column >= out.n) break;
        const uint32_t source = slot + transposed_offset<OUT_SIZE>(lane % STORE_ROWS, c);
        const int64_t element = out_column * out.pitch + out_row;
        if constexpr (OUT_SIZE == 4) {
            static_cast<uint32_t*>(out.base)[element] = ptx::ld_shared_u32(source);
        } else {
            static_cast<uint16_t*>(out.base)[element] = ptx::ld_shared_u16(source);
        }
    }
}

// Stores one warp's part of one wgmma: rows row .. row + 15 of out, and the tile's columns from `column` on.
template <int PIECE = 0, class Values, class OutOfShape>
DEVICE void store_rows(uint32_t slots, const Values& rC, const OutOfShape& out, int32_t row, int32_t column,
                       uint32_t lane) {
    using Shape = typename OutOfShape::Shape;
    if constexpr (PIECE < Shape::PIECES) {
        constexpr int LEFT = Shape::PIECES - PIECE;
        constexpr int COUNT = LEFT < Shape::BATCH ? LEFT : Shape::BATCH;
        if (column + PIECE * Shape::SLOT_COLUMNS >= out.n) return;  // the same for every lane
        if constexpr (Config::OUT_THROUGH_TMA) {
            if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
        }
        __syncwarp();
        write_slots<Shape, PIECE, PIECE + COUNT>(slots, rC, lane);
        if constexpr (Shape::ONE_BY_ONE) {
            send_slot_transposed<Shape, PIECE>(out, slots, row, column, lane);
        } else {
            send_slots<Shape, PIECE, COUNT>(out.map, out, slots, row, column, lane);
        }
        store_rows<PIECE + COUNT>(slots, rC, out, row, column, lane);
    }
}

// Before the CTA ends, and its shared memory with it: lane 0 waits until every store it issued has read its slot.
DEVICE void finish_stores(uint32_t lane) {
    if constexpr (Config::OUT_THROUGH_TMA) {
        if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
    }
    __syncwarp();
}
