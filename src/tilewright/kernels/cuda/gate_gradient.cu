// The gradient of a gate, out = activation(gate) up, element by element:
//
//   gradient of gate = grad up activation'(gate)        gradient of up = grad activation(gate)
//
// Chunks. A thread takes 8 columns of one row, 16 bytes of grad, at a time, and of gate and up, which lie in one matrix
// as the gated product had them, 32 bytes: in halves two pieces of 16, n columns apart, or interleaved one of 32, gate
// and up in turns. Its own result goes to the same places of another such matrix.
//
//   grad      row | ........ |                            (m, n)    pitch `grad_pitch` bytes
//   pre       row | ........ |         | ........ |       (m, 2 n)  contiguous: gate and up, rounded
//   gradient  row | ........ |         | ........ |       (m, 2 n)  contiguous
//
// Each element is rounded once, from fp32. All chunks of a row, then those of the next, form one sequence; CTA b of G
// takes chunks b THREADS + thread, and so on in steps of G THREADS. Neighbours in a warp are neighbours in a row, so
// every access of a warp is 512 bytes side by side. Nothing is read twice: loads and stores go past the L1.
//
// Limits, kept by kernels/gate_gradient.py: n a multiple of 8, all rows at multiples of 16 bytes, chunks below 2^31.

#include "base.cuh"
#include "config.cuh"
#include "ptx/global.cuh"
#include "ptx/misc.cuh"
#include "rounding.cuh"
#include "slopes.cuh"

constexpr int COLUMNS = 8;  // of a chunk

DEVICE void widen(const uint32_t (&words)[4], float (&values)[COLUMNS]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (Config::OUT_TYPE == Type::bf16) {
            values[2 * i] = __uint_as_float(words[i] << 16);
            values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        } else {
            values[2 * i] = ptx::cvt_f32_f16(static_cast<uint16_t>(words[i]));
            values[2 * i + 1] = ptx::cvt_f32_f16(static_cast<uint16_t>(words[i] >> 16));
        }
    }
}

DEVICE void round_all(const float (&values)[COLUMNS], uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = rounded_pair(values[2 * i], values[2 * i + 1]);
}

// Where the two pieces of a chunk lie in a row of pre, in bytes: gate and up, or each the turns of four columns.
DEVICE uint64_t first_piece(uint64_t row, int32_t chunk) {
    return row + static_cast<uint64_t>(chunk) * (Config::IS_INTERLEAVED ? 32 : 16);
}
DEVICE uint64_t second_piece(uint64_t row, int32_t chunk, int32_t row_chunks) {
    return first_piece(row, chunk) + (Config::IS_INTERLEAVED ? 16 : static_cast<uint64_t>(row_chunks) * 16);
}

// Two pieces as gate and up of the chunk's columns, and back: turns are taken apart where columns are interleaved.
DEVICE void part(float (&first)[COLUMNS], float (&second)[COLUMNS]) {
    if constexpr (Config::IS_INTERLEAVED) {
        float turns[2 * COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) turns[i] = first[i], turns[COLUMNS + i] = second[i];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) first[i] = turns[2 * i], second[i] = turns[2 * i + 1];
    }
}
DEVICE void join(float (&first)[COLUMNS], float (&second)[COLUMNS]) {
    if constexpr (Config::IS_INTERLEAVED) {
        float turns[2 * COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) turns[2 * i] = first[i], turns[2 * i + 1] = second[i];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) first[i] = turns[i], second[i] = turns[COLUMNS + i];
    }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    gate_gradient(const void* grad, const void* pre, void* gradient, int64_t grad_pitch, int32_t row_chunks,
                  int32_t num_chunks) {
    const uint64_t pitch = static_cast<uint64_t>(row_chunks) * 32;
    const int32_t step = gridDim.x * Config::THREADS;
    for (int32_t index = blockIdx.x * Config::THREADS + threadIdx.x; index < num_chunks; index += step) {
        const int32_t row = index / row_chunks, chunk = index % row_chunks;
        const uint64_t pre_row = reinterpret_cast<uint64_t>(pre) + row * pitch;
        const uint64_t out_row = reinterpret_cast<uint64_t>(gradient) + row * pitch;
        uint32_t words[3][4];
        ptx::ld_global_cs_v4_u32(reinterpret_cast<uint64_t>(grad) + row * grad_pitch + chunk * int64_t{16}, words[0]);
        ptx::ld_global_cs_v4_u32(first_piece(pre_row, chunk), words[1]);
        ptx::ld_global_cs_v4_u32(second_piece(pre_row, chunk, row_chunks), words[2]);
        float of_out[COLUMNS], gate[COLUMNS], up[COLUMNS];
        widen(words[0], of_out), widen(words[1], gate), widen(words[2], up);
        part(gate, up);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            const ValueAndSlope found = with_slope<Config::ACTIVATION>(gate[i]);
            const float of_value = __fmul_rn(of_out[i], up[i]);
            // A slope of relu's is a choice: where it is 0 so is the gradient, whatever comes from behind.
            const bool is_cut = Config::ACTIVATION == Activation::relu && found.slope == 0.0f;
            gate[i] = is_cut ? 0.0f : __fmul_rn(of_value, found.slope);
            up[i] = __fmul_rn(of_out[i], found.value);
        }
        join(gate, up);
        round_all(gate, words[1]), round_all(up, words[2]);
        ptx::st_global_v4_u32(first_piece(out_row, chunk), words[1]);
        ptx::st_global_v4_u32(second_piece(out_row, chunk, row_chunks), words[2]);
    }
}
