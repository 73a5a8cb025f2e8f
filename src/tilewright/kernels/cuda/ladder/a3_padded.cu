// out (M, N) = a (M, K) x b (K, N) with padded rows: ldmatrix meets no bank twice.
//
// Tiles. A CTA computes one tile of TILE_M x TILE_N (128 x 128); a warp a part of WARP_M x WARP_N (64 x 32) as mma.sync
// of 16 x 8 x 16. Of each 16 x 8 lane t holds rows t / 4 and t / 4 + 8, columns 2 (t % 4) and one more:
//
//            <-------------- TILE_N -------------->
//          ^ +--------+--------+--------+--------+ ^
//          | | warp 0 | warp 1 | warp 2 | warp 3 | | WARP_M
//   TILE_M | +--------+--------+--------+--------+ v
//          | | warp 4 | warp 5 | warp 6 | warp 7 |
//          v +--------+--------+--------+--------+
//
// Roles. None: every thread loads, multiplies and stores.
//
// Pipelines. None: load, __syncthreads, multiply, __syncthreads.
//
// Shared memory: a (TILE_M, TILE_K) and b (TILE_N, TILE_K) in rows of TILE_K + PADDING values, 10 KiB each.
// Rows of 64 + 16 bytes are 5 chunks, an odd number: chunk c of eight rows below each other lies in eight different
// places modulo 128 bytes, and a matrix of ldmatrix takes one turn. A store of 16 bytes a lane, two rows a quarter of a
// warp, spans 9 places: one is met twice.
//
// Limits, kept by the rung's violations: bf16 or fp16, k contiguous in a and b, pitches and bases multiples of 16
// bytes; PADDING a multiple of 8: rows of 36 or 34 values begin between multiples of 16 bytes, where neither ldmatrix
// nor a store of 16 bytes may begin.

#include "base.cuh"
#include "config.cuh"
#include "fragments.cuh"
#include "ladder/operands.cuh"
#include "ladder/warp_tile.cuh"
#include "ptx/copy.cuh"

constexpr int PITCH = Config::TILE_K + Config::PADDING;               // elements from row to row in shared memory
constexpr int PITCH_BYTES = PITCH * 2;
constexpr int CHUNKS = Config::TILE_K * 2 / CHUNK_BYTES;              // of a row
constexpr int K_STEPS = Config::TILE_K / 16;

struct Shared {
    alignas(128) uint16_t a[Config::TILE_M * PITCH];                  // (TILE_M, TILE_K)
    alignas(128) uint16_t b[Config::TILE_N * PITCH];                  // (TILE_N, TILE_K)
};
static_assert(sizeof(Shared) == Config::SMEM_BYTES, "the rung's smem_bytes and Shared must agree");

// Where 16-byte chunk `chunk` of row `row` lies in a tile.
DEVICE uint32_t offset_of(int32_t row, int32_t chunk) { return row * PITCH_BYTES + chunk * CHUNK_BYTES; }

// (ROWS, TILE_K) of an operand, a chunk a load and a store.
template <int ROWS>
DEVICE void load_chunks(uint32_t tile, const Operand& operand, int32_t first_row, int32_t first_k) {
    static_assert(ROWS * CHUNKS % Config::THREADS == 0, "kept by the rung's violations");
#pragma unroll
    for (int32_t i = 0; i < ROWS * CHUNKS / Config::THREADS; ++i) {
        const int32_t index = i * Config::THREADS + threadIdx.x;
        const int32_t row = index / CHUNKS, chunk = index % CHUNKS;
        uint32_t words[4];
        read_chunk(words, operand, first_row + row, first_k + chunk * 8);
        ptx::st_shared_v4_u32(tile + offset_of(row, chunk), words);
    }
}

// The fragments of one k16 step.
DEVICE void load_fragments(Fragments& fragments, uint32_t a, uint32_t b, int32_t step, const WarpPlace& warp) {
    const auto a_address = [&](int32_t lane) {
        const FragmentRow own = rows_first(lane);
        return a + offset_of(warp.m + own.row, step * 2 + own.chunk);
    };
    const auto b_address = [&](int32_t lane) {
        const FragmentRow own = chunks_first(lane);
        return b + offset_of(warp.n + own.row, step * 2 + own.chunk);
    };
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {                              // (16, 16) of a
        load_matrices(fragments.a[i], warp.lane, [&](int32_t lane) { return a_address(lane) + i * 16 * PITCH_BYTES; });
    }
#pragma unroll
    for (int j = 0; j < BLOCKS_N; ++j) {                              // (16, 16) of b
        load_matrices(fragments.b[j], warp.lane, [&](int32_t lane) { return b_address(lane) + j * 16 * PITCH_BYTES; });
    }
}

// Adds TILE_K products to each of the warp's sums.
DEVICE void multiply(Accumulators& rC, uint32_t a, uint32_t b, const WarpPlace& warp) {
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {                      // (WARP_M, WARP_N) += (WARP_M, 16) x (16, WARP_N)
        Fragments fragments;
        load_fragments(fragments, a, b, step, warp);
        multiply_fragments(rC, fragments);
    }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    a3_padded(const uint16_t* a_base, const uint16_t* b_base, uint8_t* out_base, int64_t a_pitch, int64_t b_pitch,
              int64_t out_pitch, int32_t m, int32_t n, int32_t k) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const Tile tile = tile_of(blockIdx.x, m, n);
    const Operand a = operand_of(a_base, a_pitch, m, k, tile.matrix);
    const Operand b = operand_of(b_base, b_pitch, n, k, tile.matrix);
    const WarpPlace warp = warp_place();
    const int32_t num_k_tiles = (k - 1) / Config::TILE_K + 1;
    Accumulators rC;
    for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
        load_chunks<Config::TILE_M>(shared_address(shared.a), a, tile.row, k_tile * Config::TILE_K);
        load_chunks<Config::TILE_N>(shared_address(shared.b), b, tile.column, k_tile * Config::TILE_K);
        __syncthreads();  // the slot is there
        multiply(rC, shared_address(shared.a), shared_address(shared.b), warp);
        __syncthreads();  // and has been read
    }
    store_accumulators(out_of(out_base, out_pitch, m, n, tile.matrix), rC, tile.row + warp.m, tile.column + warp.n,
                       warp.lane);
}
