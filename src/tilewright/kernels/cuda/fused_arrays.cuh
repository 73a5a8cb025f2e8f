// How the steps of an epilogue meet their arrays: a value for each column of out or for each row, or a matrix, in
// memory of any alignment and, as the form says, any of the element types. Read straight from global memory, where a
// lane's values lie in out (place.cuh); what lies outside is not read.
//
// Sectors. A paired read of one value for each column is 16 or 32 bytes of four lanes, the same for all eight rows; of
// a matrix as many in each of eight rows. So 16-bit values would fill half of a 32-byte sector in each access; where
// rows allow it they are read in chunks of 16 bytes, 64 bytes of each row at once, and exchanged (OfWideMatrix).
//
// Time. All CTAs read a matrix at about the same time, when nothing else is left to do but to wait. So the L2 is asked
// for its rows some k tiles before (fetch_row).
#pragma once

#include "config.cuh"
#include "place.cuh"
#include "ptx/bulk.cuh"
#include "ptx/guarded.cuh"
#include "ptx/misc.cuh"
#include "ptx/shuffle.cuh"

// An array, as the host tells of it: an address, elements between rows or columns, and between matrices.
template <int DIMS>
struct ArrayOf {
    uint64_t base;
    int64_t pitch;
    int64_t strides[DIMS];  // the fastest first

    DEVICE int64_t offset(const MemberOf<DIMS>& member) const {
        int64_t offset = 0;
#pragma unroll
        for (int dim = 0; dim < DIMS; ++dim) offset += member.at[dim] * strides[dim];
        return offset;
    }
};
template <>
struct ArrayOf<0> {
    uint64_t base;
    int64_t pitch;

    DEVICE int64_t offset(const MemberOf<0>&) const { return 0; }
};
using Array = ArrayOf<Config::BATCH_DIMS>;

// A number that every call gives.
struct alignas(8) Number {
    float value;
};

// How columns of the product make columns of out: one each, or two, c and n / 2 + c or 2 c and 2 c + 1.
enum class Gate { none, halves, interleaved };

// The columns of the product that belong to columns of out: STEP apart, and `up` elements further the second of two.
template <Gate GATE>
struct Columns {
    static constexpr int STEP = GATE == Gate::interleaved ? 2 : 1;
    DEVICE static int32_t up(const Place& place) { return GATE == Gate::halves ? place.n : 1; }
};

// The fp32 of the element in the low bits.
template <Type TYPE>
DEVICE float widened(uint32_t bits) {
    if constexpr (TYPE == Type::fp32) return __uint_as_float(bits);
    if constexpr (TYPE == Type::bf16) return __uint_as_float(bits << 16);
    return ptx::cvt_f32_f16(static_cast<uint16_t>(bits));
}

template <Type TYPE>
DEVICE float read_one(bool is_there, uint64_t address) {
    if constexpr (TYPE == Type::fp32) return widened<TYPE>(ptx::ld_global_u32_if(is_there, address));
    return widened<TYPE>(ptx::ld_global_u16_if(is_there, address));
}

// Two elements, `step` elements apart, of a row with `left` of them. PAIRED: beside each other, in one access: the word
// of a last one alone is read whole.
template <Type TYPE, bool PAIRED>
DEVICE void read_two(int32_t left, uint64_t address, int64_t step, float& first, float& second) {
    if constexpr (!PAIRED) {
        first = read_one<TYPE>(left > 0, address);
        second = read_one<TYPE>(left > 1, address + step * size_of(TYPE));
    } else if constexpr (TYPE == Type::fp32) {
        uint32_t words[2];
        ptx::ld_global_v2_u32_if(left > 0, address, words);
        first = __uint_as_float(words[0]);
        second = __uint_as_float(words[1]);
    } else if constexpr (TYPE == Type::bf16) {
        const uint32_t word = ptx::ld_global_u32_if(left > 0, address);
        first = __uint_as_float(word << 16);
        second = __uint_as_float(word & 0xffff0000u);
    } else {
        const uint32_t word = ptx::ld_global_u32_if(left > 0, address);
        first = widened<TYPE>(word & 0xffffu);
        second = widened<TYPE>(word >> 16);
    }
}

// A value for each column.
template <Type TYPE, bool PAIRED, Gate GATE = Gate::none>
class OfColumns {
public:
    DEVICE OfColumns(const Array& array, const Place& place, bool is_read = true)
        : address(array.base +
                  (array.offset(place.member) + place.column * static_cast<int64_t>(Columns<GATE>::STEP)) *
                      size_of(TYPE)),
          up(Columns<GATE>::up(place)),
          left(is_read ? place.left(0) : 0) {}

    // Those of a block, in the order of the lane's four values. `part` 1: of the second column of two.
    DEVICE void read(int block, float (&values)[4], int part = 0) const {
        constexpr int STEP = Columns<GATE>::STEP;
        const int64_t at = block * 8 * STEP + (part ? static_cast<int64_t>(up) : 0);
        read_two<TYPE, PAIRED && STEP == 1>(left - 8 * block, address + at * size_of(TYPE), STEP, values[0],
                                            values[1]);
        values[2] = values[0];
        values[3] = values[1];
    }

private:
    const uint64_t address;
    const int32_t up;
    const int32_t left;
};

// A value for each row; both of the lane's are read at once.
template <Type TYPE>
class OfRows {
public:
    DEVICE OfRows(const Array& array, const Place& place, bool is_read = true) {
        const uint64_t address = array.base + (array.offset(place.member) + place.row) * size_of(TYPE);
        upper = read_one<TYPE>(is_read && place.has_row(0), address);
        lower = read_one<TYPE>(is_read && place.has_row(1), address + 8 * size_of(TYPE));
    }

    DEVICE void read(int, float (&values)[4], int = 0) const {
        values[0] = values[1] = upper;
        values[2] = values[3] = lower;
    }

private:
    float upper;
    float lower;
};

// A matrix whose columns are contiguous; its rows are.
template <Type TYPE, bool PAIRED, Gate GATE = Gate::none>
class OfMatrix {
public:
    DEVICE OfMatrix(const Array& array, const Place& place, bool is_read = true)
        : address(array.base + (array.offset(place.member) + place.row * array.pitch +
                                place.column * static_cast<int64_t>(Columns<GATE>::STEP)) *
                                   size_of(TYPE)),
          eight_rows(8 * array.pitch * size_of(TYPE)),
          up(Columns<GATE>::up(place)),
          upper_left(is_read && place.has_row(0) ? place.left(0) : 0),
          lower_left(is_read && place.has_row(1) ? place.left(0) : 0) {}

    DEVICE void read(int block, float (&values)[4], int part = 0) const {
        constexpr int STEP = Columns<GATE>::STEP;
        const int64_t at = block * 8 * STEP + (part ? static_cast<int64_t>(up) : 0);
        const uint64_t upper = address + at * size_of(TYPE);
        read_two<TYPE, PAIRED && STEP == 1>(upper_left - 8 * block, upper, STEP, values[0], values[1]);
        read_two<TYPE, PAIRED && STEP == 1>(lower_left - 8 * block, upper + eight_rows, STEP, values[2], values[3]);
    }

private:
    const uint64_t address;
    const int64_t eight_rows;
    const int32_t up;
    const int32_t upper_left;
    const int32_t lower_left;
};

// Four lanes beside each other hold four words each: word w of lane q becomes word q of lane w. A warp.
DEVICE void transpose_of_four(uint32_t (&words)[4], uint32_t lane) {
    const bool is_odd = lane % 2 == 1, is_high = lane / 2 % 2 == 1;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {  // of lanes 1 apart: the words off the diagonal of each (2, 2)
        const uint32_t other = ptx::shfl_sync_bfly(is_odd ? words[i] : words[i + 1], 1);
        words[i] = is_odd ? other : words[i];
        words[i + 1] = is_odd ? words[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // of lanes 2 apart: the (2, 2) off the diagonal
        const uint32_t other = ptx::shfl_sync_bfly(is_high ? words[i] : words[i + 2], 2);
        words[i] = is_high ? other : words[i];
        words[i + 2] = is_high ? words[i + 2] : other;
    }
}

// The first column of the lane's own chunk of 8, of the four that the tile begins with.
DEVICE int32_t own_chunk(const Place& place) { return place.column + static_cast<int32_t>(place.lane % 4 * 6); }

// A matrix of 16-bit values whose rows begin at multiples of 16 bytes: each of four lanes reads 16 bytes, a block of 8
// columns of four, and the four exchange pairs. So a row's 64 bytes are one access, where pairs of one block at a time
// would be four of half a sector. A last chunk is read whole.
template <Type TYPE>
class OfWideMatrix {
public:
    DEVICE OfWideMatrix(const Array& array, const Place& place, bool is_read = true)
        : address(array.base + (array.offset(place.member) + place.row * array.pitch + own_chunk(place)) * 2),
          eight_rows(8 * array.pitch * 2),
          lane(place.lane),
          upper_left(is_read && place.has_row(0) ? place.end - own_chunk(place) : 0),
          lower_left(is_read && place.has_row(1) ? place.end - own_chunk(place) : 0) {}

    // A warp; the blocks in their order, from the first on.
    DEVICE void read(int block, float (&values)[4], int = 0) {
        if (block % 4 == 0) {
            ptx::ld_global_v4_u32_if(upper_left - 8 * block > 0, address + block * 16, upper);
            ptx::ld_global_v4_u32_if(lower_left - 8 * block > 0, address + eight_rows + block * 16, lower);
            transpose_of_four(upper, lane);
            transpose_of_four(lower, lane);
        }
        values[0] = widened<TYPE>(upper[block % 4] & 0xffffu);
        values[1] = widened<TYPE>(upper[block % 4] >> 16);
        values[2] = widened<TYPE>(lower[block % 4] & 0xffffu);
        values[3] = widened<TYPE>(lower[block % 4] >> 16);
    }

private:
    const uint64_t address;
    const int64_t eight_rows;
    const uint32_t lane;
    const int32_t upper_left;
    const int32_t lower_left;
    uint32_t upper[4] = {};
    uint32_t lower[4] = {};
};

// A matrix whose rows are contiguous.
template <Type TYPE, Gate GATE = Gate::none>
class OfColumnMajor {
public:
    DEVICE OfColumnMajor(const Array& array, const Place& place, bool is_read = true)
        : address(array.base + (array.offset(place.member) +
                                place.column * static_cast<int64_t>(Columns<GATE>::STEP) * array.pitch + place.row) *
                                   size_of(TYPE)),
          pitch(array.pitch),
          up(Columns<GATE>::up(place)),
          upper_left(is_read && place.has_row(0) ? place.left(0) : 0),
          lower_left(is_read && place.has_row(1) ? place.left(0) : 0) {}

    DEVICE void read(int block, float (&values)[4], int part = 0) const {
        constexpr int STEP = Columns<GATE>::STEP;
        const int64_t column = block * 8 * STEP + (part ? static_cast<int64_t>(up) : 0);
        const uint64_t upper = address + column * pitch * size_of(TYPE);
        read_two<TYPE, false>(upper_left - 8 * block, upper, STEP * pitch, values[0], values[1]);
        read_two<TYPE, false>(lower_left - 8 * block, upper + 8 * size_of(TYPE), STEP * pitch, values[2], values[3]);
    }

private:
    const uint64_t address;
    const int64_t pitch;
    const int32_t up;
    const int32_t upper_left;
    const int32_t lower_left;
};

// Asks the L2 for columns column .. end - 1 of a row of a matrix whose columns are contiguous: for the chunks of 16
// bytes that lie inside. One lane.
template <Type TYPE>
DEVICE void fetch_row(const Array& array, const Member& member, int32_t row, int32_t column, int32_t end) {
    const uint64_t first = array.base + (array.offset(member) + row * array.pitch + column) * size_of(TYPE);
    const int32_t before = static_cast<int32_t>(-first % 16);  // of a chunk that is not whole
    const int32_t bytes = (end - column) * size_of(TYPE) - before;
    if (bytes >= 16) ptx::cp_async_bulk_prefetch_l2(first + before, static_cast<uint32_t>(bytes / 16 * 16));
}

// -- steps on a lane's four values: each operation rounded to nearest, none fused that is not named so ----------------

DEVICE void multiply(float (&values)[4], float factor) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = __fmul_rn(values[i], factor);
}

template <class Read>
DEVICE void multiply(float (&values)[4], Read& array, int block, int part = 0) {
    float factors[4];
    array.read(block, factors, part);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = __fmul_rn(values[i], factors[i]);
}

template <class Read>
DEVICE void add(float (&values)[4], Read& array, int block, int part = 0) {
    float terms[4];
    array.read(block, terms, part);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = __fadd_rn(values[i], terms[i]);
}

// With a factor of 0 the array has not been read: nothing is added.
template <class Read>
DEVICE void add_multiple(float (&values)[4], float factor, Read& array, int block, int part = 0) {
    float terms[4];
    array.read(block, terms, part);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = __fmaf_rn(factor, terms[i], values[i]);
}
