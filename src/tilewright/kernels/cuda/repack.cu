// Copies matrices of 16-bit elements, at any element's address and of any pitch, into rows that TMA can read: at
// multiples of 128 bytes. One operand of a product, or both in one launch.
//
// Chunks. A row of the target is cut into chunks of 16 bytes, the unit of a thread. Chunk c of a row begins at any even
// byte of the source; the two aligned 16-byte words around it hold it, and it is shifted together from them:
//
//   source   ... |- - - - - - a b|c d e f g h - -| ...    two words at multiples of 16 bytes, `shift` = 12
//   target       |a b c d e f g h|                        one
//
// All chunks of a matrix, then those of the next row, matrix and operand, form one sequence. Thread t of T takes those
// numbered t, t + T, t + 2 T, ..., CHUNKS of them at a time: neighbours in a warp are neighbours in a row, and short rows
// leave no lane idle. A thread's place is a number whose digits are the chunk, the row, and the matrix in each dimension
// of the batch; T has such digits too (the host's), so a step is an addition with carries and divides nothing.
//
// What is read. A word is read only if a byte of the operand lies in it, so nothing outside the 16-byte words of the
// operand is touched, and no page that it does not touch. Bytes of a row's last chunk past the row's end, and those
// between rows, mean nothing: TMA clips what lies past an extent.
//
// In flight: 4 CTAs of 256 threads an SM with 4 chunks each are 64 KiB (32 KiB an SM would do for DRAM's latency: 4.8
// TB/s x 0.8 us / 132). Second words are mostly those of the next lane and hit the L1.
//
// Order. The product's kernel runs behind this one on the same stream; the end of a kernel makes its writes visible to the
// TMA loads of the next. One with DEPENDENT_LAUNCH may start as soon as these CTAs leave it room, and waits for their end
// before it touches memory; for any other the early word changes nothing. Limits, kept by kernels/repack.py: rows up to 2^36 bytes, every extent below 2^32, T below 2^31.

#include "base.cuh"
#include "config.cuh"
#include "ptx/global.cuh"
#include "ptx/misc.cuh"

constexpr uint32_t CHUNK_BYTES = 16;

// One operand, its dimensions from the fastest on: chunks of a row, rows, then the batch.
struct Matrices {
    int64_t row_bytes;
    int64_t first;                          // the thread that takes chunk 0
    int64_t extents[Config::DIMS];          // the last may be 0: no operand
    int64_t steps[Config::DIMS];            // the digits of the number of threads
    int64_t source_strides[Config::DIMS];   // bytes
    int64_t target_strides[Config::DIMS];   // bytes, multiples of 16
};

// The place of a chunk. Past the last chunk the last digit is at or past its extent, and stays so.
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

// A chunk on its way: what was read of it, and where it goes.
struct Chunk {
    uint32_t low[4];
    uint32_t high[4];
    uint32_t shift;   // bytes from low's first to the chunk's: 0, 2 .. 14
    uint64_t target;  // 0: none

    DEVICE void load(const Matrices& matrices, const Place& place, uint64_t source_base, uint64_t target_base) {
        target = 0;
        if (!place.is_inside(matrices)) return;
        const uint64_t source = source_base + place.offset(matrices.source_strides);
        const int64_t left = matrices.row_bytes - static_cast<int64_t>(place.at[0]) * CHUNK_BYTES;  // of the row, > 0
        const uint32_t bytes = left < CHUNK_BYTES ? static_cast<uint32_t>(left) : CHUNK_BYTES;
        shift = static_cast<uint32_t>(source) % CHUNK_BYTES;
        target = target_base + place.offset(matrices.target_strides);
        ptx::ld_global_cs_v4_u32(source - shift, low);
#pragma unroll
        for (int i = 0; i < 4; ++i) high[i] = 0;
        if (shift + bytes > CHUNK_BYTES) ptx::ld_global_cs_v4_u32(source - shift + CHUNK_BYTES, high);
    }

    // The 16 bytes from `shift` on: by 8 and 4 bytes in whole words, then by 2 in pairs of words.
    DEVICE void store() const {
        if (target == 0) return;
        const uint32_t words[8] = {low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]};
        uint32_t by_8[6], by_4[5], found[4];
#pragma unroll
        for (int i = 0; i < 6; ++i) by_8[i] = shift & 8 ? words[i + 2] : words[i];
#pragma unroll
        for (int i = 0; i < 5; ++i) by_4[i] = shift & 4 ? by_8[i + 1] : by_8[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) found[i] = ptx::shf_r_wrap(by_4[i], by_4[i + 1], (shift & 2) * 8);
        ptx::st_global_v4_u32(target, found);
    }
};

// This thread's chunks of one operand.
DEVICE void repack_matrices(const Matrices& matrices, const void* source, void* target, uint32_t thread, uint32_t threads) {
    const uint64_t source_base = reinterpret_cast<uint64_t>(source), target_base = reinterpret_cast<uint64_t>(target);
    const uint32_t first = static_cast<uint32_t>(matrices.first);
    Place place(matrices, thread >= first ? thread - first : thread + threads - first);
    while (place.is_inside(matrices)) {
        Chunk chunks[Config::CHUNKS];
#pragma unroll
        for (int i = 0; i < Config::CHUNKS; ++i) {
            chunks[i].load(matrices, place, source_base, target_base);
            place.advance(matrices);
        }
#pragma unroll
        for (int i = 0; i < Config::CHUNKS; ++i) chunks[i].store();
    }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::CTAS_PER_SM)
    repack(const void* source, void* target, const __grid_constant__ Matrices matrices, const void* second_source,
           void* second_target, const __grid_constant__ Matrices second_matrices) {
    ptx::griddepcontrol_launch_dependents();
    const uint32_t thread = blockIdx.x * Config::THREADS + threadIdx.x;
    const uint32_t threads = gridDim.x * Config::THREADS;
    repack_matrices(matrices, source, target, thread, threads);
    repack_matrices(second_matrices, second_source, second_target, thread, threads);
}
