// WMMA without the toolkit's header: its instructions, one wrapper each, named as the PTX ISA names them. sm_80 and
// later.
//
// A whole warp executes one, with no lane missing. Which element lies in which register of which lane is left open: a
// fragment may be loaded, multiplied, stored, and treated alike in every register, and nothing else. Of m16n16k16 a
// lane holds 8 registers of f16, 4 of bf16, 8 of f32 accumulators. Addresses: 32 bytes aligned. `stride`: elements from
// row to row (of a and d) or from column to column (of b), whole 16 bytes.
#pragma once

#include "base.cuh"

namespace ptx {

// a (16, 16), row-major, from shared memory.
DEVICE void wmma_load_a_m16n16k16_row_bf16(uint32_t (&r)[4], uint32_t address, uint32_t stride) {
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address), "r"(stride)
                 : "memory");
}

DEVICE void wmma_load_a_m16n16k16_row_f16(uint32_t (&r)[8], uint32_t address, uint32_t stride) {
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7])
                 : "r"(address), "r"(stride)
                 : "memory");
}

// b (16, 16), column-major: k contiguous, from shared memory.
DEVICE void wmma_load_b_m16n16k16_col_bf16(uint32_t (&r)[4], uint32_t address, uint32_t stride) {
    asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address), "r"(stride)
                 : "memory");
}

DEVICE void wmma_load_b_m16n16k16_col_f16(uint32_t (&r)[8], uint32_t address, uint32_t stride) {
    asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7])
                 : "r"(address), "r"(stride)
                 : "memory");
}

// d (16, 16) += a x b, fp32. Touches no memory; volatile for the reason that mma.cuh has.
DEVICE void wmma_mma_m16n16k16_row_col_f32_bf16(float (&d)[8], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    asm volatile(
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]));
}

DEVICE void wmma_mma_m16n16k16_row_col_f32_f16(float (&d)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
    asm volatile(
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(b[0]),
          "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));
}

// d (16, 16), row-major, to shared memory.
DEVICE void wmma_store_d_m16n16k16_row_f32(uint32_t address, const float (&d)[8], uint32_t stride) {
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;"
                 ::"r"(address), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]),
                   "f"(d[7]), "r"(stride)
                 : "memory");
}

}  // namespace ptx
