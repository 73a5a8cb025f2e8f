// out (M, N) = a (M, K) x b (K, N) with two sets of fragments: one is loaded, one multiplied.
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
// Pipelines, one ring of STAGES slots, each a tile of a and a tile of b. A k tile is copied DISTANCE = STAGES - 1 of
// them before it is multiplied:
//
//   pipeline  filled by                  full                                 empty
//   ring      cp.async of all threads,   wait_group<DISTANCE - 1> of each     the same __syncthreads, one k tile later:
//             a group a k tile           thread, then __syncthreads           every warp has multiplied the slot
//   fragments ldmatrix of each warp,     in order: registers are written      in order: mma.sync has read them
//             a set a k16 step           before they are read
//
//   DISTANCE 2, TILE_K 32:    copy  0   1   2   3   4   ...       the first fragments of a k tile are loaded while the
//                             load         0 0 1 1 2 2 ...        last ones of the one before are multiplied; so the
//                             mul            0 0 1 1 2 ...        wait and the __syncthreads come a step earlier
//
// Past the end of k groups are empty, so that the count of those in flight stays right.
//
// Shared memory: STAGES slots of 16 KiB, each a (TILE_M, TILE_K) and b (TILE_N, TILE_K) in rows of TILE_K values,
// swizzled: the number of a chunk is XORed with that of its 128-byte line, modulo the chunks of a row. Of rows of 64
// bytes, in units of 16:
//
//   line 0  | row 0: 0 1 2 3 | row 1: 0 1 2 3 |
//   line 1  | row 2: 1 0 3 2 | row 3: 1 0 3 2 |     chunk c of eight rows below each other lies in eight different
//   line 2  | row 4: 2 3 0 1 | row 5: 2 3 0 1 |     places, and so do the chunks of any two rows that are neighbours:
//   line 3  | row 6: 3 2 1 0 | row 7: 3 2 1 0 |     ldmatrix and copies of 16 bytes take the fewest turns
//
// Limits, kept by the rung's violations: bf16 or fp16, k contiguous in a and b, pitches and bases multiples of 16
// bytes; TILE_K 32 or 64: rows of 64 or 128 bytes; STAGES 2 or more; compute capability 8.0 and later.

#include "base.cuh"
#include "config.cuh"
#include "fragments.cuh"
#include "ladder/operands.cuh"
#include "ladder/warp_tile.cuh"
#include "ptx/cp_async.cuh"
#include "swizzle.cuh"

constexpr int PITCH = Config::TILE_K;                                 // elements from row to row in shared memory
constexpr int PITCH_BYTES = PITCH * 2;
constexpr int CHUNKS = Config::TILE_K * 2 / CHUNK_BYTES;              // of a row
constexpr int ROW_STEP = Config::THREADS / CHUNKS;                    // rows that all threads copy at once
constexpr int K_STEPS = Config::TILE_K / 16;
constexpr int DISTANCE = Config::STAGES - 1;                          // k tiles between a copy and its use

struct Slot {
    alignas(ATOM_BYTES) uint16_t a[Config::TILE_M * PITCH];           // (TILE_M, TILE_K), swizzled
    alignas(ATOM_BYTES) uint16_t b[Config::TILE_N * PITCH];           // (TILE_N, TILE_K), swizzled
};

struct Shared {
    Slot slots[Config::STAGES];
};
static_assert(K_STEPS % 2 == 0 && DISTANCE > 0, "kept by the rung's violations");
static_assert(Config::TILE_M % ROW_STEP == 0 && Config::TILE_N % ROW_STEP == 0 && ROW_STEP % 8 == 0,
              "kept by the rung's violations: the pattern repeats after 8 rows");
static_assert(sizeof(Shared) == Config::SMEM_BYTES, "the rung's smem_bytes and Shared must agree");

// Where 16-byte chunk `chunk` of row `row` lies in a tile. The pattern repeats after 8 rows: 16 below are 16 below.
DEVICE uint32_t offset_of(int32_t row, int32_t chunk) {
    return swizzled<PITCH_BYTES>(row * PITCH_BYTES + chunk * CHUNK_BYTES);
}

// What a thread copies of an operand: one chunk of every ROW_STEP-th row. `next` moves on along k.
struct Source {
    const uint16_t* next;
    int64_t step;       // elements from one of its rows to the next
    int32_t rows_left;  // from its first row on: those below are outside of the matrix
};

DEVICE Source source_of(const Operand& operand, int32_t first_row) {
    const int32_t row = first_row + threadIdx.x / CHUNKS;
    return {operand.base + row * operand.pitch + threadIdx.x % CHUNKS * 8, ROW_STEP * operand.pitch,
            operand.rows - row};
}

// Starts the thread's copies of (ROWS, TILE_K), of whose rows `in_row` bytes of its chunk are inside of the matrix: for
// the rest zeros. Of no byte the source is not read, wherever it points.
template <int ROWS>
DEVICE void copy_chunks(uint32_t tile, Source& source, uint32_t in_row) {
    const uint32_t target = tile + offset_of(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS);
#pragma unroll
    for (int32_t i = 0; i < ROWS / ROW_STEP; ++i) {
        ptx::cp_async_cg_16(target + i * ROW_STEP * PITCH_BYTES, source.next + i * source.step,
                            i * ROW_STEP < source.rows_left ? in_row : 0);
    }
    source.next += Config::TILE_K;
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

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    a6_double_buffered(const uint16_t* a_base, const uint16_t* b_base, uint8_t* out_base, int64_t a_pitch,
                       int64_t b_pitch, int64_t out_pitch, int32_t m, int32_t n, int32_t k) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const Tile tile = tile_of(blockIdx.x, m, n);
    const Operand a = operand_of(a_base, a_pitch, m, k, tile.matrix);
    const Operand b = operand_of(b_base, b_pitch, n, k, tile.matrix);
    const WarpPlace warp = warp_place();
    const int32_t num_k_tiles = (k - 1) / Config::TILE_K + 1;
    Source a_source = source_of(a, tile.row), b_source = source_of(b, tile.column);
    int32_t left = (k - static_cast<int32_t>(threadIdx.x % CHUNKS) * 8) * 2;  // bytes of a row, from the chunk on
    const auto fill = [&](int32_t k_tile) {
        if (k_tile < num_k_tiles) {
            Slot& slot = shared.slots[k_tile % Config::STAGES];
            const uint32_t in_row = max(0, min(left, CHUNK_BYTES));
            copy_chunks<Config::TILE_M>(shared_address(slot.a), a_source, in_row);
            copy_chunks<Config::TILE_N>(shared_address(slot.b), b_source, in_row);
            left -= PITCH_BYTES;
        }
        ptx::cp_async_commit_group();
    };
    Accumulators rC;
#pragma unroll
    for (int32_t k_tile = 0; k_tile < DISTANCE; ++k_tile) fill(k_tile);
    const auto load = [&](Fragments& fragments, int32_t k_tile, int32_t step) {
        const Slot& slot = shared.slots[k_tile % Config::STAGES];
        load_fragments(fragments, shared_address(slot.a), shared_address(slot.b), step, warp);
    };
    Fragments fragments[2];
    ptx::cp_async_wait_group<DISTANCE - 1>();
    __syncthreads();  // the first slot is there
    load(fragments[0], 0, 0);
    for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step) {                  // (WARP_M, WARP_N) += (WARP_M, 16) x (16, WARP_N)
            if (step + 1 < K_STEPS) {
                load(fragments[(step + 1) % 2], k_tile, step + 1);
            } else if (k_tile + 1 < num_k_tiles) {
                ptx::cp_async_wait_group<DISTANCE - 1>();
                __syncthreads();  // the next slot is there, and this one has been read
                load(fragments[0], k_tile + 1, 0);
            }
            if (step == 0) fill(k_tile + DISTANCE);
            multiply_fragments(rC, fragments[step % 2]);
        }
    }
    store_accumulators(out_of(out_base, out_pitch, m, n, tile.matrix), rC, tile.row + warp.m, tile.column + warp.n,
                       warp.lane);
}
