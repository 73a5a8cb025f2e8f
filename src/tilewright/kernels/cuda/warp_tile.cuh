// What one warp multiplies: WARP_M x WARP_N of a tile, by ldmatrix and mma.sync from a slot of shared memory.
//
// The work of a k tile is a sequence of units, one for each 32 bytes of k and 16 columns: WARP_M / 16 fragments of a
// times one fragment pair of b are 2 x WARP_M / 16 independent mma.sync. While a unit is multiplied, fragments that
// later units need are loaded:
//
//   unit (step, j)    multiplies a(step) x b(step, j)
//   beside it loads   b of the unit AHEAD units later; of a(step + 1) the share j of WARP_N / 16
//
// a is held twice, for this step and the next, b AHEAD + 1 times. Past the last unit of a slot come those of the next.
//
// Shared memory. Of each step of k a warp reads (WARP_M + WARP_N) x 32 bytes, 128 a cycle, without conflicts: a
// wavefront is eight rows of 16 bytes. 64 x 64 are 32 wavefronts for 32 mma.sync, 1 each; 64 x 96 are 40 for 48, 0.83.
//
// Bytes by k. Where m (n) is contiguous, a register of mma.sync takes 4 values of k of one m, which lie in 4 rows.
// ldmatrix.trans turns pairs of bytes: a lane names the rows of k so that it gets k 4 q and 4 q + 1 of m 2 g and
// 2 g + 1 in one register, k 4 q + 2 and 4 q + 3 in the next, and two prmt sort those by m:
//
//   matrix 0    |k 4q: m m'|k 4q+1: m m'|     prmt 0x6420   |m:  k 4q .. 4q+3|    row g of the fragment: m = 2 g
//   matrix 1    |k 4q+2: m m'|k 4q+3: m m'|   prmt 0x7531   |m': k 4q .. 4q+3|    row g + 8: m' = 2 g + 1
//
// So of each 16 rows (columns) of the tile the even ones are rows 0 .. 7 of the fragment: SPREAD, which warp_store.cuh
// undoes. Four prmt an ldmatrix, beside 8 to 16 mma.sync.
//
// Words by k. ldmatrix.trans has no 32-bit elements. A lane loads its four words of a fragment one by one, of k q and
// q + 4 and of m g and g + 8: 8 words of each of 4 rows, 32 banks. Where k is contiguous ldmatrix brings them.
//
// tf32. mma.sync reads the top 19 bits of a word, which would cut inputs; cvt.rna rounds each word of a fragment before
// its first use: a's once a step, b's once a unit. So many cvt as registers: 32 beside the 32 mma.sync of 64 x 64.
#pragma once

#include "config.cuh"
#include "fragments.cuh"
#include "products.cuh"
#include "ptx/bytes.cuh"
#include "ptx/convert.cuh"
#include "ptx/copy.cuh"
#include "ptx/mma.cuh"
#include "swizzle.cuh"
#include "tile_copy.cuh"

constexpr int STEP_BYTES = 32;                 // of k, of one mma.sync
constexpr int STEP = STEP_BYTES / IN_SIZE;     // values of k
constexpr int K_STEPS = Config::TILE_K / STEP;
constexpr int A_BLOCKS = Config::WARP_M / 16;  // fragments of a: (16, STEP)
constexpr int B_BLOCKS = Config::WARP_N / 16;  // fragment pairs of b: (STEP, 16)
constexpr int UNITS = K_STEPS * B_BLOCKS;      // of a slot
constexpr int B_BUFFERS = Config::AHEAD + 1;
static_assert(UNITS % B_BUFFERS == 0, "a buffer is a constant of the unit, kept by config.violations");
static_assert(Config::AHEAD <= B_BLOCKS, "no unit looks past the next step, kept by config.violations");

// Of bytes by k the row that a lane names of the STEP of k: of matrix lane / 8, the rows whose k are 4 q and 4 q + 1,
// or the two after these.
DEVICE FragmentRow bytes_by_k(int32_t lane) {
    return {lane / 16 * 16 + lane % 8 / 2 * 4 + lane / 8 % 2 * 2 + lane % 2, 0};
}

// Where a lane's rows of the fragments of one operand lie, for ldmatrix, or of words by k its first word; `IS_A`: of a.
// A warp begins at row `first` of m or n of the tile.
template <class Layout, bool IS_A, int WARP_EXTENT>
class FragmentRows {
    static constexpr bool K_MAJOR = Layout::K_MAJOR;
    static constexpr int ROW_BYTES = Layout::ROW_BYTES;
    // Of panels: chunks of a block of 16, blocks of a panel, and whether those of a warp never go from one panel to the
    // next but at a multiple of that.
    static constexpr int BLOCK_CHUNKS = 16 * IN_SIZE / CHUNK_BYTES;
    static constexpr int BLOCKS = PANEL / 16;
    static constexpr bool IS_EVEN = WARP_EXTENT % PANEL == 0 || PANEL % WARP_EXTENT == 0;

public:
    DEVICE FragmentRows(int32_t the_first, int32_t lane)
        : first(the_first), named(row_of(lane)), byte(Layout::HAS_WORDS_BY_K ? lane / 4 % 4 * 4 : 0) {
        if constexpr (K_MAJOR) {
            own = Layout::swizzled((first + named.row) * ROW_BYTES + named.chunk * CHUNK_BYTES);
        } else {
            own = in_panel(0);
        }
        // Opaque to the compiler, which else computes it anew for every k tile: 14 of 267 instructions of 128x256x64,
        // in a chain right behind the barrier (NVRTC 13.5).
        asm volatile("" : "+r"(own));
    }

    // Of block i of 16 rows of m or n, at k STEP x step: the address in a tile at `tile`, a multiple of 128. The XOR of
    // step or block is below 128, so it may come after the sum: one addition a tile, whatever the steps.
    DEVICE uint32_t at(uint32_t tile, int i, int step) const {
        if constexpr (K_MAJOR) {  // 16 rows below each other are swizzled alike; a step is two chunks, an even number
            return ((tile + own) ^ (step * 2 * CHUNK_BYTES)) + i * 16 * ROW_BYTES;
        } else if constexpr (IS_EVEN) {
            return ((tile + own) ^ (i % BLOCKS * BLOCK_CHUNKS * CHUNK_BYTES)) + step * STEP * ROW_BYTES +
                   i / BLOCKS * Config::TILE_K * ROW_BYTES;
        } else {
            return tile + in_panel(i) + step * STEP * ROW_BYTES;
        }
    }

private:
    DEVICE static FragmentRow row_of(int32_t lane) {
        if constexpr (Layout::HAS_BYTES_BY_K) {
            return bytes_by_k(lane);
        } else if constexpr (Layout::HAS_WORDS_BY_K) {
            return {lane % 4, lane / 16};  // k q; the chunk of m g
        } else {
            return IS_A == K_MAJOR ? rows_first(lane) : chunks_first(lane);
        }
    }
    // Of panels: chunk and row of block i at step 0.
    DEVICE uint32_t in_panel(int i) const {
        const uint32_t chunk = first / 16 * BLOCK_CHUNKS + i * BLOCK_CHUNKS + named.chunk;
        return chunk / 8 * (Config::TILE_K * ROW_BYTES) +
               Layout::swizzled(named.row * ROW_BYTES + chunk % 8 * CHUNK_BYTES + byte);
    }

    const int32_t first;
    const FragmentRow named;
    const uint32_t byte;  // of words by k: where in the chunk
    uint32_t own;  // offset in a tile of what the lane names of block 0 at k 0; bit 4 and up, of words 2 and up
};

// A lane's fragment of words by k: `address` is that of k q and m g; m g + 8 is two chunks further in the swizzle.
template <class Layout, bool IS_A>
DEVICE void load_words(uint32_t (&fragment)[4], uint32_t address) {
    constexpr int LATER_M = IS_A ? 1 : 2, LATER_K = IS_A ? 2 : 1;  // which register is that of m g + 8, of k q + 4
    constexpr uint32_t FOUR_ROWS = 4 * Layout::ROW_BYTES;          // which are swizzled alike
    fragment[0] = ptx::ld_shared_u32(address);
    fragment[LATER_M] = ptx::ld_shared_u32(address ^ 2 * CHUNK_BYTES);
    fragment[LATER_K] = ptx::ld_shared_u32(address + FOUR_ROWS);
    fragment[3] = ptx::ld_shared_u32((address ^ 2 * CHUNK_BYTES) + FOUR_ROWS);
}

// The accumulators and fragments of a warp, and where it reads.
class WarpTile {
public:
    Sum rC[A_BLOCKS][2 * B_BLOCKS][SUMS];  // (WARP_M, WARP_N) over the warp

    DEVICE WarpTile(int32_t warp, int32_t lane)
        : a_rows(warp % Config::WARPS_M * Config::WARP_M, lane),
          b_rows(warp / Config::WARPS_M * Config::WARP_N, lane) {}

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < A_BLOCKS; ++i) {
#pragma unroll
            for (int j = 0; j < 2 * B_BLOCKS; ++j) {
#pragma unroll
                for (int value = 0; value < SUMS; ++value) rC[i][j][value] = 0;
            }
        }
    }

    // What the first unit of a slot needs, and the loads that those before it would have made.
    DEVICE void load_first(uint32_t slot) {
#pragma unroll
        for (int i = 0; i < A_BLOCKS; ++i) load_a(slot, 0, i);
#pragma unroll
        for (int unit = 0; unit < Config::AHEAD; ++unit) load_b(slot, unit);
    }

    // Multiplies unit UNIT of the slot at `slot`, and loads beside it; `next` is the slot after it.
    template <int UNIT>
    DEVICE void multiply(uint32_t slot, uint32_t next) {
        constexpr int K_STEP = UNIT / B_BLOCKS, J = UNIT % B_BLOCKS;
        load_b(UNIT + Config::AHEAD < UNITS ? slot : next, UNIT + Config::AHEAD);
#pragma unroll
        for (int i = A_BLOCKS * J / B_BLOCKS; i < A_BLOCKS * (J + 1) / B_BLOCKS; ++i) {
            load_a(K_STEP + 1 < K_STEPS ? slot : next, K_STEP + 1, i);
        }
        if constexpr (J == 0) {
#pragma unroll
            for (int i = 0; i < A_BLOCKS; ++i) prepare<TileA, true>(rA[K_STEP % 2][i]);
        }
        prepare<TileB, false>(rB[UNIT % B_BUFFERS]);
        const uint32_t(&b)[4] = rB[UNIT % B_BUFFERS];
#pragma unroll
        for (int i = 0; i < A_BLOCKS; ++i) {  // (WARP_M, 16) += (WARP_M, STEP) x (STEP, 16)
            multiply_16x8(rC[i][2 * J], rA[K_STEP % 2][i], b[0], b[1]);
            multiply_16x8(rC[i][2 * J + 1], rA[K_STEP % 2][i], b[2], b[3]);
        }
    }

private:
    // A fragment as it is multiplied, from what was loaded: bytes by k are sorted, fp32 is rounded.
    template <class Layout, bool IS_A>
    DEVICE static void prepare(uint32_t (&fragment)[4]) {
        if constexpr (Config::INPUT == Input::tf32) {
#pragma unroll
            for (int i = 0; i < 4; ++i) fragment[i] = ptx::cvt_rna_tf32_f32(fragment[i]);
        } else if constexpr (Layout::HAS_BYTES_BY_K) {
            const uint32_t even = ptx::prmt<0x6420>(fragment[0], fragment[1]);
            const uint32_t odd = ptx::prmt<0x7531>(fragment[0], fragment[1]);
            const uint32_t later_even = ptx::prmt<0x6420>(fragment[2], fragment[3]);
            const uint32_t later_odd = ptx::prmt<0x7531>(fragment[2], fragment[3]);
            fragment[0] = even;
            fragment[IS_A ? 1 : 2] = odd;
            fragment[IS_A ? 2 : 1] = later_even;
            fragment[3] = later_odd;
        }
    }

    // Block i of a, of step `step`; past the last step those of the next slot.
    DEVICE void load_a(uint32_t slot, int step, int i) {
        const uint32_t address = a_rows.at(slot, i, step % K_STEPS);
        if constexpr (TileA::HAS_WORDS_BY_K) {
            load_words<TileA, true>(rA[step % 2][i], address);
        } else if constexpr (TileA::K_MAJOR) {
            ptx::ldmatrix_x4(rA[step % 2][i], address);
        } else {
            ptx::ldmatrix_x4_trans(rA[step % 2][i], address);
        }
    }

    // What unit `unit` needs of b; past the last unit those of the next slot.
    DEVICE void load_b(uint32_t slot, int unit) {
        const uint32_t address = b_rows.at(slot + TileA::BYTES, unit % B_BLOCKS, unit / B_BLOCKS % K_STEPS);
        if constexpr (TileB::HAS_WORDS_BY_K) {
            load_words<TileB, false>(rB[unit % B_BUFFERS], address);
        } else if constexpr (TileB::K_MAJOR) {
            ptx::ldmatrix_x4(rB[unit % B_BUFFERS], address);
        } else {
            ptx::ldmatrix_x4_trans(rB[unit % B_BUFFERS], address);
        }
    }

    uint32_t rA[2][A_BLOCKS][4];   // (WARP_M, STEP) of this step and the next
    uint32_t rB[B_BUFFERS][4];     // (STEP, 16) each
    FragmentRows<TileA, true, Config::WARP_M> a_rows;
    FragmentRows<TileB, false, Config::WARP_N> b_rows;
};
static_assert(K_STEPS % 2 == 0, "a's buffers are those of the step in every slot; rows of k are 64 or 128 bytes");
