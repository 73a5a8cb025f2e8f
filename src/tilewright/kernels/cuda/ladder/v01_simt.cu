// out (M, N) = a (M, K) x b (K, N) with ordinary CUDA threads: bf16 inputs, fp32 multiply-adds, no tensor core.
//
// Tiles. A CTA computes one tile of TILE_M x TILE_N; a thread 8 x 8 of it, as four blocks of 4 x 4, so that a warp
// reads 16 neighbouring float4 of b and two of a from shared memory, which meet in no bank:
//
//            <-- 64 --> <-- 64 -->
//          ^ +---------+---------+ ^
//          | | 4x4  .. | 4x4  .. | | thread t: rows 4 (t / 16) .. + 3, here and 64 below,
//   TILE_M | |         |         | | columns 4 (t % 16) .. + 3, here and 64 to the right
//          | +---------+---------+ v
//          | | 4x4  .. | 4x4  .. |
//          v +---------+---------+
//
// Roles. None: every thread loads, multiplies and stores.
//
// Pipelines. None: load, __syncthreads, multiply, __syncthreads. Two CTAs an SM hide a part of each other's waits.
//
// Shared memory, static: a and b as fp32 with k outermost, (TILE_K, 128) each, 16 KiB together.
//
// Limits, kept by the rung's violations: bf16, k contiguous in a and b, pitches and bases multiples of 16 bytes.

#include "base.cuh"
#include "config.cuh"
#include "ptx/misc.cuh"

constexpr int HALF = 64;                                // rows or columns between a thread's blocks
constexpr int THREADS_N = 16;                           // threads along n
constexpr int LOAD_K = 8;                               // bf16 values of one 16-byte load
static_assert(Config::TILE_M == 2 * HALF && Config::TILE_N == 2 * HALF && Config::TILE_K == 2 * LOAD_K);
static_assert(Config::THREADS == THREADS_N * THREADS_N);

struct Shared {
    float a[Config::TILE_K][Config::TILE_M];            // (TILE_K, TILE_M)
    float b[Config::TILE_K][Config::TILE_N];            // (TILE_K, TILE_N)
};

// A bf16 is the upper half of the fp32 of the same value.
DEVICE float widened(uint32_t bits) { return __uint_as_float(bits << 16); }

// LOAD_K values of one row from k on; zeros outside the matrix. The padding behind a row may hold anything.
DEVICE void load_row(float (&values)[LOAD_K], const uint16_t* matrix, int64_t pitch, int32_t row, int32_t rows,
                     int32_t k, int32_t num_k) {
    const uint16_t* source = matrix + row * pitch + k;
    if (row < rows && k + LOAD_K <= num_k) {
        const uint4 words = *reinterpret_cast<const uint4*>(source);
        const uint32_t pairs[LOAD_K / 2] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < LOAD_K; ++i) values[i] = widened(pairs[i / 2] >> (i % 2 * 16) & 0xFFFF);
    } else {
#pragma unroll
        for (int i = 0; i < LOAD_K; ++i) values[i] = row < rows && k + i < num_k ? widened(source[i]) : 0.0f;
    }
}

// Brings the next TILE_K values of k of the tile into shared memory, converted. A warp loads 32 rows, so that its
// writes, which turn rows into columns, fall into 32 banks.
DEVICE void load(Shared& shared, const uint16_t* a, int64_t a_pitch, const uint16_t* b, int64_t b_pitch, int32_t m,
                 int32_t n, int32_t k, int32_t row, int32_t column, int32_t first_k) {
    const int32_t line = threadIdx.x % Config::TILE_M;
    const int32_t part = threadIdx.x / Config::TILE_M * LOAD_K;
    float values[LOAD_K];
    load_row(values, a, a_pitch, row + line, m, first_k + part, k);
#pragma unroll
    for (int i = 0; i < LOAD_K; ++i) shared.a[part + i][line] = values[i];
    load_row(values, b, b_pitch, column + line, n, first_k + part, k);
#pragma unroll
    for (int i = 0; i < LOAD_K; ++i) shared.b[part + i][line] = values[i];
}

// Adds TILE_K products to each of the thread's 64 accumulators: for each k, 16 values read, 64 multiply-adds.
DEVICE void multiply(const Shared& shared, float (&rC)[8][8], int32_t thread_row, int32_t thread_column) {
#pragma unroll
    for (int k = 0; k < Config::TILE_K; ++k) {
        float rA[8], rB[8];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float4 a = *reinterpret_cast<const float4*>(&shared.a[k][half * HALF + thread_row]);
            const float4 b = *reinterpret_cast<const float4*>(&shared.b[k][half * HALF + thread_column]);
            rA[half * 4] = a.x, rA[half * 4 + 1] = a.y, rA[half * 4 + 2] = a.z, rA[half * 4 + 3] = a.w;
            rB[half * 4] = b.x, rB[half * 4 + 1] = b.y, rB[half * 4 + 2] = b.z, rB[half * 4 + 3] = b.w;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int j = 0; j < 8; ++j) rC[i][j] = fmaf(rA[i], rB[j], rC[i][j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, 2)
    v01_simt(const uint16_t* a, const uint16_t* b, uint16_t* out, int64_t a_pitch, int64_t b_pitch, int64_t out_pitch,
             int32_t m, int32_t n, int32_t k) {
    __shared__ Shared shared;
    const int32_t columns = (n - 1) / Config::TILE_N + 1;
    const int32_t row = blockIdx.x / columns * Config::TILE_M;
    const int32_t column = blockIdx.x % columns * Config::TILE_N;
    const int32_t thread_row = threadIdx.x / THREADS_N * 4;
    const int32_t thread_column = threadIdx.x % THREADS_N * 4;
    float rC[8][8] = {};
    for (int32_t first_k = 0; first_k < k; first_k += Config::TILE_K) {
        load(shared, a, a_pitch, b, b_pitch, m, n, k, row, column, first_k);
        __syncthreads();  // the tile is there
        multiply(shared, rC, thread_row, thread_column);
        __syncthreads();  // and has been read
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int32_t out_row = row + i / 4 * HALF + thread_row + i % 4;
        if (out_row >= m) continue;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int32_t out_column = column + j / 4 * HALF + thread_column + j % 4;
            const uint32_t rounded = ptx::cvt_rn_bf16x2_f32(0.0f, rC[i][j]);
            if (out_column < n) out[out_row * out_pitch + out_column] = static_cast<uint16_t>(rounded);
        }
    }
}
