// What an epilogue leaves beside out: the values at some point of it as a matrix, or the largest magnitude of each row.
//
// Largest magnitudes. The bits of numbers without a sign are ordered as the numbers are, NaN above infinity; so an
// atomic maximum of words that were zero before gives the same bits in whatever order it is made. Of a row the four
// lanes that hold it combine first. Where out is computed transposed its rows are columns here: then eight lanes and
// both rows of each combine, block after block.
#pragma once

#include "config.cuh"
#include "fused_arrays.cuh"
#include "place.cuh"
#include "ptx/global.cuh"
#include "ptx/leave.cuh"
#include "ptx/misc.cuh"
#include "ptx/shuffle.cuh"

// Two values rounded to nearest even, the first in the low half.
template <Type TYPE>
DEVICE uint32_t rounded_two(float first, float second) {
    if constexpr (TYPE == Type::bf16) return ptx::cvt_rn_bf16x2_f32(second, first);
    return ptx::cvt_rn_f16x2_f32(second, first);
}

// Two elements, `step` elements apart, of a row with `left` of them.
template <Type TYPE, bool PAIRED>
DEVICE void write_two(int32_t left, uint64_t address, int64_t step, float first, float second) {
    if constexpr (TYPE == Type::fp32) {
        const uint32_t words[2] = {__float_as_uint(first), __float_as_uint(second)};
        if (PAIRED && left > 1) {
            ptx::st_global_v2_u32(address, words);
        } else {
            if (left > 0) ptx::st_global_u32(address, words[0]);
            if (left > 1) ptx::st_global_u32(address + step * 4, words[1]);
        }
    } else {
        const uint32_t pair = rounded_two<TYPE>(first, second);
        if (PAIRED && left > 1) {
            ptx::st_global_u32(address, pair);
        } else {
            if (left > 0) ptx::st_global_u16(address, pair);
            if (left > 1) ptx::st_global_u16(address + step * 2, pair >> 16);
        }
    }
}

// A matrix whose columns are contiguous, or with COLUMN_MAJOR its rows.
template <Type TYPE, bool COLUMN_MAJOR, bool PAIRED, Gate GATE = Gate::none>
class ToMatrix {
public:
    DEVICE ToMatrix(const Array& array, const Place& place)
        : address(array.base + (array.offset(place.member) + place.row * (COLUMN_MAJOR ? 1 : array.pitch) +
                                place.column * static_cast<int64_t>(Columns<GATE>::STEP) *
                                    (COLUMN_MAJOR ? array.pitch : 1)) *
                                   size_of(TYPE)),
          pitch(array.pitch),
          up(Columns<GATE>::up(place)),
          upper_left(place.has_row(0) ? place.left(0) : 0),
          lower_left(place.has_row(1) ? place.left(0) : 0) {}

    DEVICE void write(int block, const float (&values)[4], int part = 0) const {
        constexpr int STEP = Columns<GATE>::STEP;
        const int64_t column = block * 8 * STEP + (part ? static_cast<int64_t>(up) : 0);
        const int64_t step = COLUMN_MAJOR ? STEP * pitch : STEP;
        const uint64_t upper = address + column * (COLUMN_MAJOR ? pitch : 1) * size_of(TYPE);
        const uint64_t lower = upper + 8 * (COLUMN_MAJOR ? 1 : pitch) * size_of(TYPE);
        write_two<TYPE, PAIRED && STEP == 1>(upper_left - 8 * block, upper, step, values[0], values[1]);
        write_two<TYPE, PAIRED && STEP == 1>(lower_left - 8 * block, lower, step, values[2], values[3]);
    }

private:
    const uint64_t address;
    const int64_t pitch;
    const int32_t up;
    const int32_t upper_left;
    const int32_t lower_left;
};

// The same of 16-bit values whose rows begin at multiples of 16 bytes: of four blocks of 8 columns each of four lanes
// stores one, 16 bytes of it, once the four have exchanged their pairs.
template <Type TYPE>
class ToWideMatrix {
public:
    DEVICE ToWideMatrix(const Array& array, const Place& place)
        : address(array.base + (array.offset(place.member) + place.row * array.pitch + own_chunk(place)) * 2),
          eight_rows(8 * array.pitch * 2),
          lane(place.lane),
          upper_left(place.has_row(0) ? place.end - own_chunk(place) : 0),
          lower_left(place.has_row(1) ? place.end - own_chunk(place) : 0) {}

    // A warp. The blocks in their order; what is left of four at last leaves with end().
    DEVICE void write(int block, const float (&values)[4], int = 0) {
        upper[block % 4] = rounded_two<TYPE>(values[0], values[1]);
        lower[block % 4] = rounded_two<TYPE>(values[2], values[3]);
        first = block / 4 * 4;
        if (block % 4 == 3) flush();
    }

    DEVICE void end() {
        if (first >= 0) flush();
    }

private:
    DEVICE void flush() {
        transpose_of_four(upper, lane);
        transpose_of_four(lower, lane);
        store(upper_left - 8 * first, address + first * 16, upper);
        store(lower_left - 8 * first, address + eight_rows + first * 16, lower);
        first = -1;
    }

    DEVICE static void store(int32_t left, uint64_t target, const uint32_t (&words)[4]) {
        if (left >= 8) {
            ptx::st_global_v4_u32(target, words);
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (i < left) ptx::st_global_u16(target + 2 * i, words[i / 2] >> i % 2 * 16);
            }
        }
    }

    const uint64_t address;
    const int64_t eight_rows;
    const uint32_t lane;
    const int32_t upper_left;
    const int32_t lower_left;
    uint32_t upper[4] = {};
    uint32_t lower[4] = {};
    int first = -1;  // block of the four that have not left; -1: none
};

DEVICE uint32_t larger(uint32_t first, uint32_t second) { return first > second ? first : second; }
DEVICE uint32_t magnitude(float value) { return __float_as_uint(value) & 0x7fffffffu; }

// The largest magnitude of each row.
class LargestOfRows {
public:
    DEVICE LargestOfRows(const Array& array, const Place& place)
        : address(array.base + (array.offset(place.member) + place.row) * 4),
          left(place.left(0)),
          stores_upper(place.lane % 4 == 0 && place.has_row(0)),
          stores_lower(place.lane % 4 == 0 && place.has_row(1)) {}

    DEVICE void take(int block, const float (&values)[4], int = 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (left - 8 * block > i) {
                upper = larger(upper, magnitude(values[i]));
                lower = larger(lower, magnitude(values[2 + i]));
            }
        }
    }

    DEVICE void end() {
#pragma unroll
        for (uint32_t mask = 1; mask < 4; mask *= 2) {
            upper = larger(upper, ptx::shfl_sync_bfly(upper, mask));
            lower = larger(lower, ptx::shfl_sync_bfly(lower, mask));
        }
        if (stores_upper) ptx::red_global_max_u32(address, upper);
        if (stores_lower) ptx::red_global_max_u32(address + 8 * 4, lower);
    }

private:
    const uint64_t address;
    const int32_t left;
    const bool stores_upper;
    const bool stores_lower;
    uint32_t upper = 0;
    uint32_t lower = 0;
};

// The largest magnitude of each column: what rows are where out is computed transposed.
class LargestOfColumns {
public:
    DEVICE LargestOfColumns(const Array& array, const Place& place)
        : address(array.base + (array.offset(place.member) + place.column) * 4),
          left(place.left(0)),
          stores(place.lane < 4),
          has_upper(place.has_row(0)),
          has_lower(place.has_row(1)) {}

    // A warp.
    DEVICE void take(int block, const float (&values)[4], int = 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            uint32_t largest = larger(has_upper ? magnitude(values[i]) : 0, has_lower ? magnitude(values[2 + i]) : 0);
#pragma unroll
            for (uint32_t mask = 4; mask < WARP_THREADS; mask *= 2) {
                largest = larger(largest, ptx::shfl_sync_bfly(largest, mask));
            }
            if (stores && left - 8 * block > i) ptx::red_global_max_u32(address + (8 * block + i) * 4, largest);
        }
    }

    DEVICE void end() {}

private:
    const uint64_t address;
    const int32_t left;
    const bool stores;
    const bool has_upper;
    const bool has_lower;
};
