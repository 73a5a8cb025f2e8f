// How a warp's accumulators leave: rounded to the output type, through the warp's own slots of shared memory, to out.
//
// A slot is STORE_ROWS x STORE_COLUMNS of the tile: 16 rows, the part of a 64-row wgmma that one warp holds, of at most
// 128 bytes. Each warp has STORE_SLOTS of them and shares them with nobody, so the protocol is warp-wide:
//
//   step                          who          why
//   wait_group.read<SLOTS - 1>    lane 0       the TMA store that last read this slot has read it (lane 0 issued it)
//   __syncwarp                    warp         no lane overwrites the slot before lane 0 knows that
//   write accumulators            warp         ordinary writes, swizzled: no bank is hit twice in a phase (16-bit out)
//   fence.proxy.async             every lane   its own ordinary writes come before the asynchronous read
//   __syncwarp                    warp         all lanes have fenced
//   TMA store, commit_group       lane 0       runs on while the warp goes to the next slot and the next tile
//
// Where out's base, pitch or row length is no multiple of 16 bytes TMA cannot store it: then the warp reads the slot
// back row by row and stores predicated elements. Only TMA needs slots of one width, which is then one that divides
// TILE_N; predicated stores fill whole slots of 128 bytes and, at the tile's right edge, a narrower last one.
#pragma once

#include "config.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/misc.cuh"
#include "swizzle.cuh"

constexpr int STORE_ROWS = 16;  // rows of a 64-row wgmma that one warp holds
constexpr int OUT_SIZE = size_of(Config::OUT_TYPE);
constexpr int STORE_ROW_BYTES = Config::STORE_COLUMNS * OUT_SIZE;  // 16, 32, 64 or 128
constexpr int STORE_SLOT_BYTES = STORE_ROWS * 128;                 // the widest; keeps every slot aligned to 1024

// Columns of the slot that begins at a column of the tile.
DEVICE constexpr int slot_columns(int first_column) {
    return Config::TILE_N - first_column < Config::STORE_COLUMNS ? Config::TILE_N - first_column : Config::STORE_COLUMNS;
}
static_assert(!Config::OUT_THROUGH_TMA || Config::TILE_N % Config::STORE_COLUMNS == 0, "TMA stores one box after another");

// What the kernel is told of out. Without TMA the map is four unused bytes.
struct NoTensorMap {
    int32_t unused;
};
template <bool THROUGH_TMA>
struct OutMapOf {
    using type = TensorMap;
};
template <>
struct OutMapOf<false> {
    using type = NoTensorMap;
};
using OutMap = OutMapOf<Config::OUT_THROUGH_TMA>::type;

struct Out {
    const OutMap& map;
    void* base;
    int64_t pitch;  // elements
    int32_t m;
    int32_t n;
};

// Two neighbouring values, rounded to nearest even, the first in the low half.
DEVICE uint32_t rounded_pair(float first, float second) {
    if constexpr (Config::OUT_TYPE == Type::bf16) {
        return ptx::cvt_rn_bf16x2_f32(second, first);
    } else {
        return ptx::cvt_rn_f16x2_f32(second, first);
    }
}

// Writes the slot that begins at column FIRST_COLUMN of the accumulators of one wgmma. Of the 8 columns of block j a
// lane holds row lane / 4 in rC[4 j], rC[4 j + 1] and row lane / 4 + 8 in rC[4 j + 2], rC[4 j + 3].
template <int FIRST_COLUMN>
DEVICE void write_slot(uint32_t slot, const float (&rC)[Config::TILE_N / 2], uint32_t lane) {
    constexpr int BLOCKS = slot_columns(FIRST_COLUMN) / 8;  // of 8 columns
    constexpr int FIRST = FIRST_COLUMN / 8;
    if constexpr (Config::OUT_TYPE == Type::fp32) {
        // 8 bytes a lane; two of the four rows of a phase meet in a bank (2-way), the price of unshuffled registers.
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {  // (16, 8) fp32
            const float* r = &rC[4 * (FIRST + block)];
            const uint32_t upper = (lane / 4) * STORE_ROW_BYTES + block * 32 + (lane % 4) * 8;
            const uint32_t lower = upper + 8 * STORE_ROW_BYTES;
            ptx::st_shared_v2_f32(slot + swizzled<STORE_ROW_BYTES>(upper), r[0], r[1]);
            ptx::st_shared_v2_f32(slot + swizzled<STORE_ROW_BYTES>(lower), r[2], r[3]);
        }
    } else {
        const uint32_t row_offset = (lane % 16) * STORE_ROW_BYTES;  // matrices 0 and 2: rows 0..7; 1 and 3: rows 8..15
#pragma unroll
        for (int block = 0; block + 1 < BLOCKS; block += 2) {  // (16, 16) 16-bit
            const float* r = &rC[4 * (FIRST + block)];
            const uint32_t pairs[4] = {rounded_pair(r[0], r[1]), rounded_pair(r[2], r[3]), rounded_pair(r[4], r[5]),
                                       rounded_pair(r[6], r[7])};
            const uint32_t chunk = block + lane / 16;
            ptx::stmatrix_x4(slot + swizzled<STORE_ROW_BYTES>(row_offset + chunk * 16), pairs);
        }
        if constexpr (BLOCKS % 2 == 1) {  // (16, 8) 16-bit
            const float* r = &rC[4 * (FIRST + BLOCKS - 1)];
            const uint32_t pairs[2] = {rounded_pair(r[0], r[1]), rounded_pair(r[2], r[3])};
            ptx::stmatrix_x2(slot + swizzled<STORE_ROW_BYTES>(row_offset + (BLOCKS - 1) * 16), pairs);
        }
    }
}

// Sends a written slot to out, at rows row .. and columns column ..: by TMA, which clips what lies outside.
template <int COLUMNS>
DEVICE void send_slot(const TensorMap& map, const Out&, uint32_t slot, int32_t row, int32_t column, uint32_t lane) {
    ptx::fence_proxy_async_shared_cta();
    __syncwarp();
    if (lane == 0) {
        ptx::cp_async_bulk_tensor_2d_store(map, column, row, slot);
        ptx::cp_async_bulk_commit_group();
    }
}

// The same element by element: those that lie inside out.
template <int COLUMNS>
DEVICE void send_slot(const NoTensorMap&, const Out& out, uint32_t slot, int32_t row, int32_t column, uint32_t lane) {
    __syncwarp();
#pragma unroll 1
    for (int r = 0; r < STORE_ROWS && row + r < out.m; ++r) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c += WARP_THREADS) {
            const int within = c + static_cast<int>(lane);
            if (within >= COLUMNS || column + within >= out.n) continue;
            const uint32_t source = slot + swizzled<STORE_ROW_BYTES>(r * STORE_ROW_BYTES + within * OUT_SIZE);
            const int64_t element = (row + r) * out.pitch + column + within;
            if constexpr (OUT_SIZE == 4) {
                static_cast<uint32_t*>(out.base)[element] = ptx::ld_shared_u32(source);
            } else {
                static_cast<uint16_t*>(out.base)[element] = ptx::ld_shared_u16(source);
            }
        }
    }
}

// Stores one warp's part of one wgmma: rows row .. row + 15 of out, columns column .. column + TILE_N - 1.
// `slot` counts on from call to call, 0 .. STORE_SLOTS-1.
template <int FIRST_COLUMN = 0>
DEVICE void store_rows(uint32_t slots, uint32_t& slot, const float (&rC)[Config::TILE_N / 2], const Out& out, int32_t row,
                       int32_t column, uint32_t lane) {
    if constexpr (FIRST_COLUMN < Config::TILE_N) {
        if (column + FIRST_COLUMN >= out.n) return;  // the same for every lane
        const uint32_t target = slots + slot * STORE_SLOT_BYTES;
        if constexpr (Config::OUT_THROUGH_TMA) {
            if (lane == 0) ptx::cp_async_bulk_wait_group_read<Config::STORE_SLOTS - 1>();
        }
        __syncwarp();
        write_slot<FIRST_COLUMN>(target, rC, lane);
        send_slot<slot_columns(FIRST_COLUMN)>(out.map, out, target, row, column + FIRST_COLUMN, lane);
        slot = slot + 1 == Config::STORE_SLOTS ? 0 : slot + 1;
        store_rows<FIRST_COLUMN + Config::STORE_COLUMNS>(slots, slot, rC, out, row, column, lane);
    }
}

// Before the CTA ends: lane 0 waits until every store it issued has read its slot, since shared memory ends with the CTA.
DEVICE void finish_stores(uint32_t lane) {
    if constexpr (Config::OUT_THROUGH_TMA) {
        if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
    }
    __syncwarp();
}
