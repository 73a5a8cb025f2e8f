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
// Where out's base, pitch or row length is no multiple of 16 bytes TMA cannot store it: then the warp reads the batch
// back and stores it row by row (row_store.cuh).
#pragma once

#include "batch.cuh"
#include "config.cuh"
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
    uint32_t values[OUT_SIZE == 2 ? Config::TILE_N / 4 : 1];
    int32_t m;
    int32_t n;
    uint32_t matrix;
};

// Rounds the first N / 2 values of a fragment.
template <int N>
DEVICE void keep(Kept& kept, const Fragment& rC) {
    static_assert(OUT_SIZE == 2, "STAGGERED is for 16-bit outputs, kept by config.violations");
#pragma unroll
    for (int i = 0; i < N / 4; ++i) kept.values[i] = rounded_pair(rC[2 * i], rC[2 * i + 1]);
}

// Values 2 i and 2 i + 1 of a fragment, rounded.
template <int COUNT>
DEVICE uint32_t pair_of(const float (&rC)[COUNT], int i) {
    return rounded_pair(rC[2 * i], rC[2 * i + 1]);
}
template <int COUNT>
DEVICE uint32_t pair_of(const uint32_t (&rounded)[COUNT], int i) {
    return rounded[i];
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
            const float* r = &rC[4 * (FIRST + block)];
            const uint32_t upper = (lane / 4) * ROW_BYTES + block * 32 + (lane % 4) * 8;
            const uint32_t lower = upper + 8 * ROW_BYTES;
            ptx::st_shared_v2_f32(slot + swizzled<ROW_BYTES>(upper), r[0], r[1]);
            ptx::st_shared_v2_f32(slot + swizzled<ROW_BYTES>(lower), r[2], r[3]);
        }
    } else {
        const uint32_t row_offset = (lane % 16) * ROW_BYTES;  // matrices 0 and 2: rows 0..7; 1 and 3: rows 8..15
#pragma unroll
        for (int block = 0; block + 1 < BLOCKS; block += 2) {  // (16, 16) 16-bit
            const int first = 2 * (FIRST + block);
            const uint32_t pairs[4] = {pair_of(rC, first), pair_of(rC, first + 1), pair_of(rC, first + 2),
                                       pair_of(rC, first + 3)};
            const uint32_t chunk = block + lane / 16;
            ptx::stmatrix_x4(slot + swizzled<ROW_BYTES>(row_offset + chunk * 16), pairs);
        }
        if constexpr (BLOCKS % 2 == 1) {  // (16, 8) 16-bit
            const int first = 2 * (FIRST + BLOCKS - 1);
            const uint32_t pairs[2] = {pair_of(rC, first), pair_of(rC, first + 1)};
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
        write_transposed<BLOCKS>(slot, &rC[4 * FIRST], lane);
    } else {
        uint32_t pairs[2 * BLOCKS];
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; ++i) pairs[i] = pair_of(rC, 2 * FIRST + i);
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
