// Matrices of a warp: ldmatrix and mma.sync, one wrapper, one instruction, named as the PTX ISA names it.
//
// All of them are .aligned: a whole warp executes one, with no lane missing. `volatile` keeps each where it stands, so
// that no compiler moves one into a branch that some lanes do not take; mma.sync itself touches no memory.
#pragma once

#include "base.cuh"

namespace ptx {

// -- ldmatrix: sm_75 and later. 8 x 8 matrices of 16-bit values from shared memory ------------------------------------
// Lane 8 i + j gives the address of row j of matrix i, 16 bytes at a multiple of 16; lanes past the last matrix give
// addresses that nobody reads. Lane t gets of each matrix row t / 4, columns 2 (t % 4) and one more, in one register;
// with .trans of the transposed matrix.

DEVICE void ldmatrix_x1(uint32_t (&r)[1], uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row_address) : "memory");
}

DEVICE void ldmatrix_x2(uint32_t (&r)[2], uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row_address)
                 : "memory");
}

DEVICE void ldmatrix_x4(uint32_t (&r)[4], uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address)
                 : "memory");
}

DEVICE void ldmatrix_x1_trans(uint32_t (&r)[1], uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(row_address)
                 : "memory");
}

DEVICE void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row_address)
                 : "memory");
}

DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address)
                 : "memory");
}

// -- mma.sync: sm_80 and later. d (16, 8) += a (16, K) x b (K, 8) ----------------------------------------------------
// Lane t is in group g = t / 4 at place q = t % 4. a is row-major, b column-major: in a register k is contiguous.
//   16-bit: a[0] row g, k 2 q and 2 q + 1; a[1] row g + 8; a[2], a[3] the same at k + 8. b0: column g, k 2 q and
//           2 q + 1; b1 at k + 8.
//   tf32:   a[0] row g, k q; a[1] row g + 8; a[2], a[3] at k + 4. b0: column g, k q; b1 at k + 4. fp32 bits, of which
//           the low 13 are not read.
//   s8:     a[0] row g, k 4 q .. 4 q + 3; a[1] row g + 8; a[2], a[3] at k + 16. b0: column g, k 4 q ..; b1 at k + 16.
//   d:      d[0], d[1] row g, columns 2 q and 2 q + 1; d[2], d[3] row g + 8. f16 accumulators: two a register.

DEVICE void mma_sync_m16n8k16_f32_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void mma_sync_m16n8k16_f32_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void mma_sync_m16n8k16_f16_f16(uint32_t (&d)[2], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void mma_sync_m16n8k8_f32_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void mma_sync_m16n8k32_s32_s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace ptx
