// How rows of store slots leave where TMA cannot store them: to any element's address, by ordinary stores of 16 bytes.
//
// A warp has written 16 rows into slots beside each other (epilogue.cuh), each row from a multiple of 16 bytes on. In
// out a row begins `phase` bytes past one, so a 16-byte chunk of out lies across two of the slots:
//
//   slots   |0 1 2 3 4 5 6 7|8 9 ...        |               |      a row of 16-bit values from its first chunk on
//   out     |- - - 0 1 2 3 4|5 6 7 8 9 ...  |               |- -   phase = 6: the row's first value is the fourth
//            ragged          whole chunks, one a lane         ragged
//
// Whole chunks. Lane c loads chunks c - 1 and c of the slots, 16 bytes each, shifts the 16 that belong together out of
// them, and stores them at once. By how many words depends on the phase alone, which is the same for the warp, so that
// is a branch that all lanes take alike and no choice of registers; the half word that is left is a funnel shift. Rows
// 8 apart have the same phase, whatever the pitch, and swizzles repeat after 8 rows: two such rows share addresses and
// branch. Up to 16 chunks long they are stored together, each by half a warp; longer ones after each other.
//
// Ragged ends. A lane an end, 16 rows at once: up to 14 bytes as 2, 4 and 8, each at a multiple of itself. Where rows
// are shorter than a chunk, in the last columns of out, they are stored by elements.
//
// Banks. Of a quarter of a warp, whose 8 chunks make a wavefront, no two meet in a bank where a batch is one slot or
// slots are 128 bytes wide; slots of 64 bytes beside each other meet up to twice, of 32 four times. The ends of a row
// are read by elements, 16 rows below each other: up to 4 ways, in 7 loads a batch.
#pragma once

#include "base.cuh"
#include "ptx/copy.cuh"
#include "ptx/global.cuh"
#include "ptx/misc.cuh"
#include "swizzle.cuh"

// COUNT slots of 16 rows of SLOT_ROW_BYTES beside each other, in TMA's swizzle of that width (swizzle.cuh).
template <int SLOT_ROW_BYTES, int COUNT>
struct SlotRows {
    static constexpr int ROWS = 16;
    static constexpr int CHUNKS = COUNT * SLOT_ROW_BYTES / 16;  // of a row

    // Where byte `at` of row 0 lies.
    DEVICE static uint32_t column(uint32_t at) {
        const uint32_t piece = COUNT == 1 ? 0 : at / SLOT_ROW_BYTES;
        return piece * (ROWS * SLOT_ROW_BYTES) + (at - piece * SLOT_ROW_BYTES);
    }
    // What leads from row 0 to row `row`, by below(): bits that no column has and, swizzled, some that it has.
    DEVICE static uint32_t step(uint32_t row) { return swizzled<SLOT_ROW_BYTES>(row * SLOT_ROW_BYTES); }
    DEVICE static uint32_t below(uint32_t column, uint32_t step) {
        return SLOT_ROW_BYTES % 32 == 16 ? column + step : column ^ step;
    }
    static constexpr uint32_t EIGHT_ROWS = 8 * SLOT_ROW_BYTES;  // further, and in the same swizzle
};

// The rows in out. `base` is the first row's first byte; all rows are row_bytes long.
struct OutRows {
    char* base;
    int64_t pitch_bytes;
    int32_t num_rows;   // 1 .. 16
    int32_t row_bytes;  // more than 0
};

// The bytes of a pointer past a multiple of 16.
DEVICE uint32_t phase_of(const char* address) {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(address)) % 16;
}

// The chunk that begins WORDS words and `half_bits` / 16 half words before the second of two.
template <int SIZE, int WORDS>
DEVICE void shift_out(const uint32_t (&before)[4], const uint32_t (&here)[4], uint32_t half_bits,
                      uint32_t (&chunk)[4]) {
    const uint32_t words[8] = {before[0], before[1], before[2], before[3], here[0], here[1], here[2], here[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t last = words[4 - WORDS + i];
        chunk[i] = SIZE == 4 ? last : ptx::shf_l_wrap(words[3 - WORDS + i], last, half_bits);
    }
}

template <int SIZE, int WORDS, int ROWS>
DEVICE void shift_rows_out(const uint32_t (&before)[ROWS][4], const uint32_t (&here)[ROWS][4], uint32_t half_bits,
                           uint32_t (&chunks)[ROWS][4]) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) shift_out<SIZE, WORDS>(before[i], here[i], half_bits, chunks[i]);
}

// The chunks of out that lie in a row as a whole; rows are at least one chunk long.
template <int SIZE, class Slots>
DEVICE void store_whole_chunks(uint32_t slots, const OutRows& out, uint32_t lane) {
    constexpr bool IS_HALF_WARP = Slots::CHUNKS <= WARP_THREADS / 2;  // that a row takes
    constexpr uint32_t LANES = IS_HALF_WARP ? WARP_THREADS / 2 : WARP_THREADS;
    constexpr int ROWS = IS_HALF_WARP ? 1 : 2;  // of a lane at once
    const uint32_t own_row = IS_HALF_WARP ? lane / LANES * 8 : 0;
    const int64_t eight_rows = 8 * out.pitch_bytes;
#pragma unroll 1
    for (uint32_t first = 0; first < Slots::CHUNKS; first += LANES) {
        const uint32_t number = first + lane % LANES;
        const uint32_t last = number < Slots::CHUNKS ? number : Slots::CHUNKS - 1;  // lanes past the row: what is there
        const uint32_t here_at = Slots::column(last * 16) + own_row / 8 * Slots::EIGHT_ROWS;
        const uint32_t before_at = Slots::column((last > 0 ? last - 1 : 0) * 16) + own_row / 8 * Slots::EIGHT_ROWS;
        char* target = out.base + (own_row ? eight_rows : 0);
#pragma unroll 1
        for (int32_t row = 0; row < 8 && row < out.num_rows; ++row, target += out.pitch_bytes) {
            const uint32_t phase = phase_of(target);  // of all lanes
            const uint32_t step = Slots::step(row);
            uint32_t before[ROWS][4], here[ROWS][4], chunks[ROWS][4];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                ptx::ld_shared_v4_u32(slots + Slots::below(before_at, step) + i * Slots::EIGHT_ROWS, before[i]);
                ptx::ld_shared_v4_u32(slots + Slots::below(here_at, step) + i * Slots::EIGHT_ROWS, here[i]);
            }
            const uint32_t half_bits = phase % 4 * 8;
            if (phase < 4) {
                shift_rows_out<SIZE, 0>(before, here, half_bits, chunks);
            } else if (phase < 8) {
                shift_rows_out<SIZE, 1>(before, here, half_bits, chunks);
            } else if (phase < 12) {
                shift_rows_out<SIZE, 2>(before, here, half_bits, chunks);
            } else {
                shift_rows_out<SIZE, 3>(before, here, half_bits, chunks);
            }
            const int32_t at = static_cast<int32_t>(number * 16 - phase);  // of the row's bytes, where the chunk begins
            if (static_cast<uint32_t>(at) > static_cast<uint32_t>(out.row_bytes - 16)) continue;
            const uint64_t address = reinterpret_cast<uint64_t>(target + at);
            if (row + static_cast<int32_t>(own_row) < out.num_rows) ptx::st_global_v4_u32(address, chunks[0]);
            if (ROWS == 2 && row + 8 < out.num_rows) ptx::st_global_v4_u32(address + eight_rows, chunks[ROWS - 1]);
        }
    }
}

// One element of a row of the slots.
template <int SIZE, class Slots>
DEVICE uint32_t element_at(uint32_t slots, uint32_t step, uint32_t at) {
    const uint32_t address = slots + Slots::below(Slots::column(at), step);
    if constexpr (SIZE == 4) {
        return ptx::ld_shared_u32(address);
    } else {
        return ptx::ld_shared_u16(address);
    }
}

// Four bytes of a row of the slots from any element on.
template <int SIZE, class Slots>
DEVICE uint32_t word_at(uint32_t slots, uint32_t step, uint32_t at) {
    const uint32_t low = element_at<SIZE, Slots>(slots, step, at);
    return SIZE == 4 ? low : low | element_at<SIZE, Slots>(slots, step, at + 2) << 16;
}

// What lies in chunks of out that a row fills in part: before its first whole chunk, and after its last.
template <int SIZE, class Slots>
DEVICE void store_ragged_ends(uint32_t slots, const OutRows& out, uint32_t lane) {
    const int32_t row = lane % Slots::ROWS;
    const bool is_right = lane >= Slots::ROWS;
    if (row >= out.num_rows) return;
    char* target = out.base + row * out.pitch_bytes;
    const uint32_t row_bytes = out.row_bytes, step = Slots::step(row);
    const uint32_t count = (is_right ? phase_of(target) + row_bytes : 0 - phase_of(target)) % 16;  // bytes
    const uint32_t begin = is_right ? row_bytes - count : 0;
    // on the left 2 bytes, then 4, then 8; on the right the other way round
    if (SIZE == 2 && count & 2) {
        const uint32_t at = begin + (is_right ? count & 12 : 0);
        *reinterpret_cast<uint16_t*>(target + at) = static_cast<uint16_t>(element_at<SIZE, Slots>(slots, step, at));
    }
    if (count & 4) {
        const uint32_t at = begin + (is_right ? count & 8 : count & 2);
        *reinterpret_cast<uint32_t*>(target + at) = word_at<SIZE, Slots>(slots, step, at);
    }
    if (count & 8) {
        const uint32_t at = begin + (is_right ? 0 : count & 6);
        const uint32_t words[2] = {word_at<SIZE, Slots>(slots, step, at), word_at<SIZE, Slots>(slots, step, at + 4)};
        ptx::st_global_v2_u32(reinterpret_cast<uint64_t>(target + at), words);
    }
}

// Rows shorter than a chunk: two elements of each at a time.
template <int SIZE, class Slots>
DEVICE void store_short_rows(uint32_t slots, const OutRows& out, uint32_t lane) {
    const int32_t row = lane % Slots::ROWS;
    if (row >= out.num_rows) return;
    char* target = out.base + row * out.pitch_bytes;
#pragma unroll 1
    for (int32_t at = static_cast<int32_t>(lane) / Slots::ROWS * SIZE; at < out.row_bytes; at += 2 * SIZE) {
        const uint32_t value = element_at<SIZE, Slots>(slots, Slots::step(row), at);
        if constexpr (SIZE == 4) {
            *reinterpret_cast<uint32_t*>(target + at) = value;
        } else {
            *reinterpret_cast<uint16_t*>(target + at) = static_cast<uint16_t>(value);
        }
    }
}

// A warp: rows of elements of SIZE bytes. Its lanes' writes to the slots come before, by a __syncwarp.
template <int SIZE, class Slots>
DEVICE void store_slot_rows(uint32_t slots, const OutRows& out, uint32_t lane) {
    if (out.row_bytes < 16) {
        store_short_rows<SIZE, Slots>(slots, out, lane);
    } else {
        store_whole_chunks<SIZE, Slots>(slots, out, lane);
        store_ragged_ends<SIZE, Slots>(slots, out, lane);
    }
}
