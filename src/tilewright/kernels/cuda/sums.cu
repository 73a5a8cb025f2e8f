// Adds the slices of a product in their order, and rounds once: out = slice 0 + slice 1 + ... (hopper_gemm.cu or
// ampere_gemm.cu made them, each the product of one part of k).
//
// Chunks. A slice is rows of fp32, each at a multiple of 16 bytes, one behind the other without a gap but for the bytes
// behind a row that fill it up; so chunk c of 4 values lies 16 c bytes from the slice's first, whatever its row:
//
//   slice   |row 0: 0 1 2 3|4 5 6 -|row 1: 0 1 2 3|4 5 6 -| ...    a row of 7 values: 2 chunks
//   out     |row 0: 0 1 2 3 4 5 6|  gap  |row 1: ...               any pitch, any element's address
//
// Thread t of T adds chunks t, t + T, t + 2 T, ... of all slices. Neighbours in a warp are neighbours in memory. A
// chunk is one chain of additions from slice 0 up, so the bits of out depend on nothing but the slices.
//
// In flight: 4 CTAs of 128 threads an SM with up to AT_ONCE chunks each are 128 KiB; small outs have fewer threads, and
// want the more chunks of each: (256, 256) is 16,384 chunks, 124 threads an SM, 31 KiB.
//
// Stores. A whole chunk whose place in out is a multiple of its size is one store; others go value by value. What a
// row's last chunk holds behind the row's end means nothing and is not stored.
//
// Order. All threads wait for the product's kernel first (griddepcontrol.wait; no more than a word where the launch is
// no dependent one), and make way at once for whatever depends on this one, which waits for its end in the same way.
// The slices are no constants of this launch, so no load may take the read-only way.
//
// IS_WHOLE: slices and out are int32; sums wrap, as those of mma.sync do, and leave as they are.
//
// Limits, kept by config.violations: slices are 2^30 bytes together, so chunks are counted in 32 bits.

#include "base.cuh"
#include "config.cuh"
#include "ptx/global.cuh"
#include "ptx/misc.cuh"
#include "rounding.cuh"

constexpr uint32_t CHUNK_BYTES = 16;
constexpr uint32_t CHUNK = 4;  // values
constexpr int OUT_SIZE = size_of(Config::OUT_TYPE);

// What slices are added in.
template <bool IS_WHOLE>
struct Either {
    using Type = float;
};
template <>
struct Either<true> {
    using Type = uint32_t;
};

using Sum = Either<Config::IS_WHOLE>::Type;

DEVICE void add(float& sum, uint32_t bits) { sum += __uint_as_float(bits); }
DEVICE void add(uint32_t& sum, uint32_t bits) { sum += bits; }  // int32 modulo 2^32
DEVICE uint32_t bits_of(float sum) { return __float_as_uint(sum); }
DEVICE uint32_t bits_of(uint32_t sum) { return sum; }

// The chunk at `address` of slice 0, added up over all slices.
DEVICE void add_slices(Sum (&sum)[CHUNK], uint64_t address, uint64_t slice_bytes, int32_t num_slices) {
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; ++i) {
        sum[i] = static_cast<Sum>(-0.0f);  // which adds nothing to any number, not even to -0
    }
#pragma unroll 1
    for (int32_t first = 0; first < num_slices; first += Config::AT_ONCE) {
        uint32_t words[Config::AT_ONCE][CHUNK];
#pragma unroll
        for (int32_t i = 0; i < Config::AT_ONCE; ++i) {
            if (first + i < num_slices) ptx::ld_global_cs_v4_u32(address + i * slice_bytes, words[i]);
        }
#pragma unroll
        for (int32_t i = 0; i < Config::AT_ONCE; ++i) {
            if (first + i >= num_slices) break;
#pragma unroll
            for (uint32_t j = 0; j < CHUNK; ++j) add(sum[j], words[i][j]);
        }
        address += Config::AT_ONCE * slice_bytes;
    }
}

// Stores the first `count` values, more than 0, at any element's address.
DEVICE void store(const Sum (&sum)[CHUNK], uint64_t target, uint32_t count) {
    const bool is_whole = count >= CHUNK && target % (CHUNK * OUT_SIZE) == 0;
    if constexpr (Config::OUT_TYPE == Type::fp32) {
        uint32_t words[CHUNK];
#pragma unroll
        for (uint32_t i = 0; i < CHUNK; ++i) words[i] = bits_of(sum[i]);
        if (is_whole) {
            ptx::st_global_v4_u32(target, words);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < CHUNK; ++i) {
                if (i < count) reinterpret_cast<uint32_t*>(target)[i] = words[i];
            }
        }
    } else {
        const uint32_t pairs[2] = {rounded_pair(sum[0], sum[1]), rounded_pair(sum[2], sum[3])};
        if (is_whole) {
            ptx::st_global_v2_u32(target, pairs);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < CHUNK; ++i) {
                const uint32_t bits = pairs[i / 2] >> i % 2 * 16;
                if (i < count) reinterpret_cast<uint16_t*>(target)[i] = static_cast<uint16_t>(bits);
            }
        }
    }
}

// `row_chunks`: chunks of a row; `extent`: values of a row; `out_pitch`: elements from row to row of out.
extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::CTAS_PER_SM)
    sums(const void* slices, void* out, int64_t out_pitch, int32_t num_slices, int32_t num_chunks, int32_t row_chunks,
         int32_t extent) {
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
    const uint64_t slice_bytes = static_cast<uint64_t>(num_chunks) * CHUNK_BYTES;
    const uint32_t threads = gridDim.x * Config::THREADS;
    for (uint32_t chunk = blockIdx.x * Config::THREADS + threadIdx.x; chunk < num_chunks; chunk += threads) {
        Sum sum[CHUNK];
        add_slices(sum, reinterpret_cast<uint64_t>(slices) + static_cast<uint64_t>(chunk) * CHUNK_BYTES, slice_bytes,
                   num_slices);
        const uint32_t row = chunk / row_chunks;
        const uint32_t column = (chunk - row * row_chunks) * CHUNK;
        const uint64_t target = reinterpret_cast<uint64_t>(out) + (row * out_pitch + column) * OUT_SIZE;
        store(sum, target, extent - column);
    }
}
