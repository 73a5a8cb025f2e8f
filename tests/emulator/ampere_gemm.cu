// out (M, N) = a (M, K) x b (N, K)^T on Ampere: 16-bit inputs and output, fp32 accumulation, persistent, cp.async ring.
//
// Not shipped: what the emulator's tests run of Ampere's instructions. A CTA of 4 warps computes tiles of 64 x 64, warp w
// rows 32 (w % 2) .. and columns 32 (w / 2) .. of each.
//
//   pipeline  filled by                 full                                empty
//   ring      cp.async of all threads,  wait_group<STAGES - 2> of each      the same __syncthreads, one k tile later:
//             a group a k tile          thread, then __syncthreads          every warp has multiplied the slot
//
// Shared memory: SLOTS slots, each a tile of a and a tile of b in rows of 64 bytes, then nothing: out's tile is staged in
// slot 0 once every warp has multiplied its last slot.
//
// Limits, kept by the caller: bases and row pitches multiples of 16 bytes, N a multiple of 8.

using int32_t = int;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using int64_t = long long;

#define DEVICE __device__ __forceinline__

#ifdef FP16
#define INPUT "f16"
#else
#define INPUT "bf16"
#endif

constexpr int TILE = 64;                     // rows and columns of out
constexpr int TILE_K = 32;                   // one row of 64 bytes
constexpr int STAGES = 3;
constexpr int THREADS = 128;
constexpr int TILE_BYTES = TILE * TILE_K * 2;  // of a; of b as well
constexpr int SLOT_BYTES = 2 * TILE_BYTES;

// PTX ISA, cp.async: 16 bytes, of which `present` are read and the rest are zeros.
DEVICE void cp_async_16(uint32_t target, const void* source, int32_t present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(present) : "memory");
}

DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
DEVICE void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

DEVICE void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." INPUT "." INPUT
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE uint32_t rounded_pair(float first, float second) {
    uint32_t packed;
    asm("cvt.rn." INPUT "x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}

// Where 16-byte chunk `chunk` of a row of 64 bytes lies: eight rows' equal chunks hit eight different bank groups.
DEVICE uint32_t operand_offset(int32_t row, int32_t chunk) { return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4); }

// The same for the staged tile of out, whose rows have 128 bytes.
DEVICE uint32_t staged_offset(int32_t row, int32_t chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

// Issues this thread's part of one tile of a or b: rows first_row .., columns k ...
DEVICE void load(uint32_t target, const uint16_t* matrix, int64_t pitch, int32_t first_row, int32_t rows, int32_t k,
                 int32_t extent_k) {
#pragma unroll 1
    for (int index = threadIdx.x; index < TILE * 4; index += THREADS) {
        const int32_t row = index / 4, chunk = index % 4;
        const int32_t left = (extent_k - k - chunk * 8) * 2;  // bytes of the row from here on
        const int32_t present = first_row + row < rows ? max(0, min(left, 16)) : 0;
        const uint16_t* source = matrix + (present > 0 ? (first_row + row) * pitch + k + chunk * 8 : 0);
        cp_async_16(target + operand_offset(row, chunk), source, present);
    }
}

// Multiplies one slot into the warp's 32 x 32 part.
DEVICE void multiply(float (&rC)[2][4][4], uint32_t slot, int32_t m, int32_t n, int32_t lane) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {  // (32, 32) += (32, 16) x (16, 32)
        uint32_t rA[2][4], rB[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            ldmatrix_x4(rA[i], slot + operand_offset(m + i * 16 + lane % 16, step * 2 + lane / 16));
            ldmatrix_x4(rB[i], slot + TILE_BYTES +
                                   operand_offset(n + i * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) mma_m16n8k16(rC[i][j], rA[i], rB[j / 2][j % 2 * 2], rB[j / 2][j % 2 * 2 + 1]);
        }
    }
}

// Rounds the warp's part into the staged tile of out.
DEVICE void stage(uint8_t* staged, const float (&rC)[2][4][4], int32_t m, int32_t n, int32_t lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t offset = staged_offset(m + i * 16 + half * 8 + lane / 4, n / 8 + j) + lane % 4 * 4;
                *reinterpret_cast<uint32_t*>(staged + offset) = rounded_pair(rC[i][j][2 * half], rC[i][j][2 * half + 1]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ampere_gemm(const uint16_t* a, const uint16_t* b, uint16_t* out, int64_t a_pitch, int64_t b_pitch, int64_t out_pitch,
                int32_t m, int32_t n, int32_t k) {
    extern __shared__ __align__(128) uint8_t dynamic_smem[];
    const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_smem));
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t warp_m = warp % 2 * 32, warp_n = warp / 2 * 32;
    const int32_t rows = (m - 1) / TILE + 1, tiles = rows * ((n - 1) / TILE + 1), num_k_tiles = (k - 1) / TILE_K + 1;

    for (int32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int32_t tile_m = tile % rows * TILE, tile_n = tile / rows * TILE;
        const auto fill = [&](int32_t k_tile) {
            const uint32_t slot = ring + k_tile % STAGES * SLOT_BYTES;
            if (k_tile < num_k_tiles) {
                load(slot, a, a_pitch, tile_m, m, k_tile * TILE_K, k);
                load(slot + TILE_BYTES, b, b_pitch, tile_n, n, k_tile * TILE_K, k);
            }
            cp_async_commit_group();  // an empty one past the end, so that the count of pending groups stays right
        };
        float rC[2][4][4] = {};  // (32, 32) fp32 over the warp
#pragma unroll 1
        for (int32_t k_tile = 0; k_tile < STAGES - 1; ++k_tile) fill(k_tile);
#pragma unroll 1
        for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
            cp_async_wait_group<STAGES - 2>();
            __syncthreads();  // everybody's copies of this slot are there, and everybody has multiplied the one before
            fill(k_tile + STAGES - 1);
            multiply(rC, ring + k_tile % STAGES * SLOT_BYTES, warp_m, warp_n, lane);
        }
        __syncthreads();  // every warp has multiplied its last slot
        stage(dynamic_smem, rC, warp_m, warp_n, lane);
        __syncthreads();  // the tile is staged
#pragma unroll 1
        for (int index = threadIdx.x; index < TILE * 8; index += THREADS) {
            const int32_t row = index / 8, chunk = index % 8;
            if (tile_m + row < m && tile_n + chunk * 8 < n) {
                *reinterpret_cast<uint4*>(out + (tile_m + row) * out_pitch + tile_n + chunk * 8) =
                    *reinterpret_cast<const uint4*>(dynamic_smem + staged_offset(row, chunk));
            }
        }
        __syncthreads();  // the next tile's copies overwrite it
    }
}
