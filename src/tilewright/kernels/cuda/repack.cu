// Copies matrices of elements of any size, at any byte's address and of any pitch, into rows that TMA can read: at
// multiples of 128 bytes. One operand of a product, or both in one launch.
//
// Chunks. A row of the target is cut into chunks of 16 bytes, the unit of a thread. Chunk c of a row begins at any
// byte of the source; the two aligned 16-byte words around it hold it, and it is shifted together from them:
//
//   source   ... |- - - - - - a b|c d e f g h - -| ...    two words at multiples of 16 bytes, `shift` = 12
//   target       |a b c d e f g h|                        one
//
// Units. Of long rows eight lanes take a strip, 8 x STRIP chunks: the row's address, its shift and its place are found
// once for STRIP chunks of a lane, which lie 128 bytes apart, a line of eight lanes. Rows shorter than that would leave
// lanes idle: there the unit is a chunk and a lane (LONG_ROWS says which; the host decides for each operand). All units
// of a row, then those of the next row and matrix, form one sequence. Group g of G takes those numbered g, g + G,
// g + 2 G, ...: neighbours in a warp are neighbours in a row. A group's place is a number whose digits are the unit,
// the row, and the matrix in each dimension of the batch; G has such digits too (the host's), so a step is an addition
// with carries and divides nothing.
//
// Two operands share out the CTAs, as their chunks are many; no CTA has work of both.
//
// What is read. A word is read only if a byte of the operand lies in it, so nothing outside the 16-byte words of the
// operand is touched, and no page that it does not touch. Bytes of a row's last chunk past the row's end, and those
// between rows, mean nothing: TMA clips what lies past an extent.
//
// In flight: CHUNKS a thread. 6 CTAs of 256 threads an SM with 2 chunks each are 48 KiB (32 KiB an SM would do for
// DRAM's latency: 4.8 TB/s x 0.8 us / 132), less while a thread is between its loads and its stores: then CTAs of the
// next wave load. Second words are mostly those of the next lane and hit the L1.
//
// Order. The product's kernel runs behind this one on the same stream; the end of a kernel makes its writes visible to
// the TMA loads of the next. One with DEPENDENT_LAUNCH may start as soon as these CTAs leave it room, and waits for
// their end before it touches memory; for any other the early word changes nothing. Limits, kept by kernels/repack.py:
// rows up to 2^36 bytes, every extent below 2^32, groups below 2^31.

#include "base.cuh"
#include "config.cuh"
#include "ptx/global.cuh"
#include "ptx/misc.cuh"

constexpr uint32_t CHUNK_BYTES = 16;

// One operand, its dimensions from the fastest on: units of a row, rows, then the batch.
struct Matrices {
    int64_t row_bytes;
    int64_t num_ctas;                       // that copy it; of the second operand 0: there is none
    int64_t has_long_rows;                  // 1: a unit is a strip; 0: a chunk
    int64_t extents[Config::DIMS];
    int64_t steps[Config::DIMS];            // the digits of the number of groups
    int64_t source_strides[Config::DIMS];   // bytes
    int64_t target_strides[Config::DIMS];   // bytes, multiples of 16
};

// The place of a unit. Past the last one the last digit is at or past its extent, and stays so.
struct Place {
    uint32_t at[Config::DIMS];

    DEVICE Place(const Matrices& matrices, uint32_t number) {
#pragma unroll
        for (int dim = 0; dim < Config::DIMS - 1; ++dim) {
            const uint32_t extent = static_cast<uint32_t>(matrices.extents[dim]);
            at[dim] = number % extent;
            number /= extent;
        }
        at[Config::DIMS - 1] = number;
    }

    DEVICE bool is_inside(const Matrices& matrices) const {
        return at[Config::DIMS - 1] < static_cast<uint32_t>(matrices.extents[Config::DIMS - 1]);
    }

    DEVICE void advance(const Matrices& matrices) {
        uint32_t carry = 0;
#pragma unroll
        for (int dim = 0; dim < Config::DIMS - 1; ++dim) {
            const uint32_t extent = static_cast<uint32_t>(matrices.extents[dim]);
            at[dim] += static_cast<uint32_t>(matrices.steps[dim]) + carry;
            carry = at[dim] >= extent ? 1 : 0;
            if (carry) at[dim] -= extent;
        }
        at[Config::DIMS - 1] += static_cast<uint32_t>(matrices.steps[Config::DIMS - 1]) + carry;
    }

    DEVICE uint64_t offset(const int64_t (&strides)[Config::DIMS]) const {
        int64_t bytes = 0;
#pragma unroll
        for (int dim = 0; dim < Config::DIMS; ++dim) bytes += at[dim] * strides[dim];
        return static_cast<uint64_t>(bytes);
    }
};

// A lane's chunks of one unit on their way, LANES chunks apart: what was read of them, and where they go.
template <int STRIP, uint32_t LANES>
struct Chunks {
    static constexpr uint32_t APART = LANES * CHUNK_BYTES;
    uint32_t low[STRIP][4];
    uint32_t high[STRIP][4];
    uint32_t shift;   // bytes from low's first to the chunk's: 0 .. 15; of all chunks, since they are of one row
    int32_t left;     // bytes of the row from the lane's first chunk on, no more than a strip; 0 or less: no chunk
    uint64_t target;  // of the first

    DEVICE void load(const Matrices& matrices, const Place& place, uint32_t lane, uint64_t source_base,
                     uint64_t target_base) {
        left = 0;
        if (!place.is_inside(matrices)) return;
        const uint64_t source = source_base + place.offset(matrices.source_strides) + lane * CHUNK_BYTES;
        const int64_t row_left = matrices.row_bytes - static_cast<int64_t>(place.at[0]) * (STRIP * APART);  // > 0
        left = (row_left < STRIP * APART ? static_cast<int32_t>(row_left) : STRIP * APART) - lane * CHUNK_BYTES;
        shift = static_cast<uint32_t>(source) % CHUNK_BYTES;
        target = target_base + place.offset(matrices.target_strides) + lane * CHUNK_BYTES;
        const uint64_t aligned = source - shift;
        const int32_t in_low = static_cast<int32_t>(CHUNK_BYTES - shift);  // bytes of a chunk
#pragma unroll
        for (int i = 0; i < STRIP; ++i) {
            const int32_t here = left - i * static_cast<int32_t>(APART);
            if (here > 0) ptx::ld_global_cs_v4_u32(aligned + i * APART, low[i]);
        }
#pragma unroll
        for (int i = 0; i < STRIP; ++i) {
            const int32_t here = left - i * static_cast<int32_t>(APART);
#pragma unroll
            for (int word = 0; word < 4; ++word) high[i][word] = 0;
            if (shift > 0 && here > in_low) ptx::ld_global_cs_v4_u32(aligned + i * APART + CHUNK_BYTES, high[i]);
        }
    }

    // The 16 bytes from `shift` on: by 8 and 4 bytes in whole words, then by 1 to 3 in pairs of words.
    DEVICE void store() const {
#pragma unroll
        for (int i = 0; i < STRIP; ++i) {
            if (left <= i * static_cast<int32_t>(APART)) continue;
            const uint32_t words[8] = {low[i][0],  low[i][1],  low[i][2],  low[i][3],
                                       high[i][0], high[i][1], high[i][2], high[i][3]};
            uint32_t by_8[6], by_4[5], found[4];
#pragma unroll
            for (int j = 0; j < 6; ++j) by_8[j] = shift & 8 ? words[j + 2] : words[j];
#pragma unroll
            for (int j = 0; j < 5; ++j) by_4[j] = shift & 4 ? by_8[j + 1] : by_8[j];
#pragma unroll
            for (int j = 0; j < 4; ++j) found[j] = ptx::shf_r_wrap(by_4[j], by_4[j + 1], (shift & 3) * 8);
            ptx::st_global_v4_u32(target + i * APART, found);
        }
    }
};

// This thread's chunks of one operand: STRIP of a unit that LANES lanes share, CHUNKS at a time.
template <int STRIP, uint32_t LANES>
DEVICE void repack_units(const Matrices& matrices, uint64_t source, uint64_t target, uint32_t thread) {
    constexpr int UNITS = Config::CHUNKS / STRIP;
    Place place(matrices, thread / LANES);
    while (place.is_inside(matrices)) {
        Chunks<STRIP, LANES> chunks[UNITS];
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            chunks[i].load(matrices, place, thread % LANES, source, target);
            place.advance(matrices);
        }
#pragma unroll
        for (int i = 0; i < UNITS; ++i) chunks[i].store();
    }
}

// One CTA's part of one operand.
DEVICE void repack_matrices(const Matrices& matrices, const void* source, void* target, uint32_t cta) {
    const uint64_t from = reinterpret_cast<uint64_t>(source), to = reinterpret_cast<uint64_t>(target);
    const uint32_t thread = cta * Config::THREADS + threadIdx.x;
    if (matrices.has_long_rows) {
        repack_units<Config::STRIP, Config::STRIP_LANES>(matrices, from, to, thread);
    } else {
        repack_units<1, 1>(matrices, from, to, thread);
    }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::CTAS_PER_SM)
    repack(const void* source, void* target, const __grid_constant__ Matrices matrices, const void* second_source,
           void* second_target, const __grid_constant__ Matrices second_matrices) {
    ptx::griddepcontrol_launch_dependents();
    const uint32_t num_first = static_cast<uint32_t>(matrices.num_ctas);
    if (blockIdx.x < num_first) {
        repack_matrices(matrices, source, target, blockIdx.x);
    } else {
        repack_matrices(second_matrices, second_source, second_target, blockIdx.x - num_first);
    }
}
