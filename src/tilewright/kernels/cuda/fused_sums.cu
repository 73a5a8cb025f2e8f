// Adds the slices of a product in their order and applies an epilogue to the sums, which are rounded once behind it:
// sums.cu for a product with one. Slices are fp32; out may be of any type, major and address.
//
// Blocks. A warp makes 16 rows and 8 columns of out at a time, in the place that a lane's values have in an mma or a
// wgmma, which is how the steps of an epilogue (fused.cuh) meet their arrays: lane 4 g + q has columns 2 q and 2 q + 1
// of rows g and g + 8. Of a row of a slice it reads
//
//   plain          8 bytes
//   halves         8 bytes of the gates and, n / 2 columns further, 8 of what they gate, or 4 and 4 where n / 2 is odd
//   interleaved    16 bytes: the gate and what it gates of either column
//
// Four lanes beside each other read whole sectors of 32 bytes. The second of two columns may be the slice's padding, or
// of the other half, and lanes past the last row or column read the block's first: none of it is stored. Every sum is
// one chain of additions from slice 0 up, as that of sums.cu.
//
// In flight: AT_ONCE slices of 2 rows of every lane, 64 registers.
//
// Stores. Out is one more array that an epilogue leaves (fused_results.cuh).
//
// Order. As in sums.cu: all threads wait for the product's kernel before anything is read, also of the epilogue.
//
// Limits, kept by config.violations: slices are 2^30 bytes together, so blocks are counted in 32 bits.

#include "base.cuh"
#include "config.cuh"
#include "fused.cuh"
#include "fused_arrays.cuh"
#include "fused_results.cuh"
#include "place.cuh"
#include "ptx/global.cuh"
#include "ptx/misc.cuh"
#include "ptx/slices.cuh"

constexpr int32_t BLOCK_ROWS = 16, BLOCK_COLUMNS = 8;
constexpr int WORDS = 2 * Fused::FOLD;  // of a lane of a row of a slice
static_assert(!Config::IS_INTERLEAVED || Fused::FOLD == 2, "neighbours are gates and what they gate");

// Two neighbouring columns of out, at a multiple of 8 bytes with PAIRED.
template <bool PAIRED>
DEVICE void read_two_sums(uint64_t address, uint32_t& first, uint32_t& second) {
    if constexpr (PAIRED) {
        ptx::ld_global_cs_v2_u32(address, first, second);
    } else {
        first = ptx::ld_global_cs_u32(address);
        second = ptx::ld_global_cs_u32(address + 4);
    }
}

// What a lane needs of a row of a slice; `half_bytes` from a gate to what it gates.
DEVICE void read_row(uint64_t address, uint64_t half_bytes, uint32_t (&words)[WORDS]) {
    if constexpr (Config::IS_INTERLEAVED) {
        uint32_t four[4];
        ptx::ld_global_cs_v4_u32(address, four);
#pragma unroll
        for (int i = 0; i < WORDS; ++i) words[i] = four[i];
    } else {
        read_two_sums<true>(address, words[0], words[1]);
        if constexpr (WORDS == 4) {
            read_two_sums<Config::IS_HALF_EVEN>(address + half_bytes, words[WORDS - 2], words[WORDS - 1]);
        }
    }
}

// The sums of the lane's two rows, whose first values in slice 0 lie at `addresses`.
DEVICE void add_slices(float (&sums)[2][WORDS], const uint64_t (&addresses)[2], uint64_t half_bytes,
                       uint64_t slice_bytes, int32_t num_slices) {
    uint64_t offset = 0;
#pragma unroll
    for (int i = 0; i < 2 * WORDS; ++i) {
        sums[i / WORDS][i % WORDS] = -0.0f;  // which adds nothing to any number, not even to -0
    }
#pragma unroll 1
    for (int32_t first = 0; first < num_slices; first += Config::AT_ONCE) {
        uint32_t words[Config::AT_ONCE][2][WORDS];
#pragma unroll
        for (int32_t i = 0; i < Config::AT_ONCE; ++i) {
            if (first + i >= num_slices) break;
            read_row(addresses[0] + offset + i * slice_bytes, half_bytes, words[i][0]);
            read_row(addresses[1] + offset + i * slice_bytes, half_bytes, words[i][1]);
        }
#pragma unroll
        for (int32_t i = 0; i < Config::AT_ONCE; ++i) {
            if (first + i >= num_slices) break;
#pragma unroll
            for (int j = 0; j < 2 * WORDS; ++j) {
                sums[j / WORDS][j % WORDS] += __uint_as_float(words[i][j / WORDS][j % WORDS]);
            }
        }
        offset += Config::AT_ONCE * slice_bytes;
    }
}

// `slice_pitch`: values from row to row of a slice; m and n are the product's.
extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::CTAS_PER_SM)
    fused_sums(const void* slices, void* out, int64_t out_pitch, int32_t num_slices, int32_t m, int32_t n,
               int32_t slice_pitch, const __grid_constant__ Fused fused) {
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
    const uint32_t lane = threadIdx.x % WARP_THREADS;
    const int32_t out_n = n / Fused::FOLD;
    const uint32_t columns = (out_n - 1) / BLOCK_COLUMNS + 1, rows = (m - 1) / BLOCK_ROWS + 1;  // blocks
    const uint32_t warps = gridDim.x * (Config::THREADS / WARP_THREADS);
    const uint64_t slice_bytes = static_cast<uint64_t>(m) * slice_pitch * 4;
    const Array target{reinterpret_cast<uint64_t>(out), out_pitch};
#pragma unroll 1
    for (uint32_t block = (blockIdx.x * Config::THREADS + threadIdx.x) / WARP_THREADS; block < rows * columns;
         block += warps) {
        const int32_t first = static_cast<int32_t>(block % columns) * BLOCK_COLUMNS;
        const Place place{static_cast<int32_t>(block / columns) * BLOCK_ROWS + static_cast<int32_t>(lane / 4),
                          first + static_cast<int32_t>(lane % 4) * 2,
                          m,
                          out_n,
                          min(out_n, first + BLOCK_COLUMNS),
                          lane,
                          {}};
        uint64_t addresses[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // past the last row or column those of the block's first
            const int64_t row = place.has_row(half) ? place.row + 8 * half : place.row - static_cast<int32_t>(lane / 4);
            const int32_t column = place.left(0) > 0 ? place.column : first;
            const int64_t value = row * slice_pitch + column * (Config::IS_INTERLEAVED ? 2 : 1);
            addresses[half] = reinterpret_cast<uint64_t>(slices) + value * 4;
        }
        float sums[2][WORDS];
        add_slices(sums, addresses, static_cast<uint64_t>(out_n) * 4, slice_bytes, num_slices);
        constexpr int NEXT = Config::IS_INTERLEAVED ? 2 : 1;  // from the lane's first column to its second
        float values[4], up[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            values[i] = sums[i / 2][i % 2 * NEXT];
            if constexpr (Fused::FOLD == 2) up[i] = sums[i / 2][i % 2 * NEXT + (NEXT == 2 ? 1 : 2)];
        }
        FusedRows steps(fused, place);
        steps.apply(0, values, up);
        steps.end();
        __syncwarp();  // where an array is out itself, lanes have read chunks of what others write
        const ToMatrix<Config::OUT_TYPE, Config::OUT_TRANSPOSED, Config::OUT_IS_PAIRED> written(target, place);
        written.write(0, values);
    }
}
