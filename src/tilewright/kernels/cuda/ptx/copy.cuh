// TMA loads and stores, bulk groups, stmatrix: one wrapper, one instruction, named as the PTX ISA names it.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, prefetch.tensormap: a hint; one thread.
DEVICE void prefetch_tensormap(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// PTX ISA, cp.async.bulk.tensor, global to shared. One thread. The box at element (x, y), x innermost, lands in shared
// memory in the map's swizzle; elements outside the matrix land as zero; all bytes of the box are then counted on
// `barrier` (complete_tx). x times the element size must be a multiple of 16 bytes (measured, H200: else illegal
// instruction). Writes through the async proxy.
DEVICE void cp_async_bulk_tensor_2d_load(uint32_t target, const TensorMap& map, int32_t x, int32_t y,
                                         uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(target), "l"(&map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}

// The same into each CTA whose rank is a set bit of `cta_mask`: data to the same offset, and the bytes counted on the
// barrier at the same offset, of every one of them.
DEVICE void cp_async_bulk_tensor_2d_load_multicast(uint32_t target, const TensorMap& map, int32_t x, int32_t y,
                                                   uint32_t barrier, uint16_t cta_mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;"
        ::"r"(target), "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(cta_mask)
        : "memory");
}

// The same of a map of rank 3, and of rank 5: the box is one of the matrices that the last coordinates name.
DEVICE void cp_async_bulk_tensor_3d_load(uint32_t target, const TensorMap& map, int32_t x, int32_t y, int32_t z,
                                         uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4}], [%5];"
        ::"r"(target), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
}

DEVICE void cp_async_bulk_tensor_3d_load_multicast(uint32_t target, const TensorMap& map, int32_t x, int32_t y,
                                                   int32_t z, uint32_t barrier, uint16_t cta_mask) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3, %4}], [%5], %6;"
        ::"r"(target), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(cta_mask)
        : "memory");
}

DEVICE void cp_async_bulk_tensor_5d_load(uint32_t target, const TensorMap& map, int32_t x, int32_t y, int32_t z,
                                         int32_t v, int32_t w, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
        ::"r"(target), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(v), "r"(w), "r"(barrier)
        : "memory");
}

DEVICE void cp_async_bulk_tensor_5d_load_multicast(uint32_t target, const TensorMap& map, int32_t x, int32_t y,
                                                   int32_t z, int32_t v, int32_t w, uint32_t barrier,
                                                   uint16_t cta_mask) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;"
        ::"r"(target), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(v), "r"(w), "r"(barrier), "h"(cta_mask)
        : "memory");
}

// PTX ISA, cp.async.bulk.tensor, shared to global. One thread; joins that thread's current bulk group. Elements outside
// the matrix are not written, but an inner extent that is no multiple of 16 bytes is clipped only at the next multiple.
DEVICE void cp_async_bulk_tensor_2d_store(const TensorMap& map, int32_t x, int32_t y, uint32_t source) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(source)
                 : "memory");
}

// The same of a map of rank 3, and of rank 5.
DEVICE void cp_async_bulk_tensor_3d_store(const TensorMap& map, int32_t x, int32_t y, int32_t z, uint32_t source) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(z), "r"(source)
                 : "memory");
}

DEVICE void cp_async_bulk_tensor_5d_store(const TensorMap& map, int32_t x, int32_t y, int32_t z, int32_t v, int32_t w,
                                          uint32_t source) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(z), "r"(v), "r"(w), "r"(source)
                 : "memory");
}

// PTX ISA, cp.async.bulk.commit_group: closes the calling thread's current bulk group.
DEVICE void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// PTX ISA, cp.async.bulk.wait_group.read: until all but the calling thread's newest PENDING groups have read their
// sources, so that these may be written again.
template <int PENDING>
DEVICE void cp_async_bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// PTX ISA, stmatrix: a whole warp. Lane 8 i + j gives the address of row j of matrix i, 16 bytes each; lane t holds of
// each matrix row t / 4, columns 2 (t % 4) and one more. Ordinary writes: a TMA store of them needs the proxy fence.
DEVICE void stmatrix_x4(uint32_t row_address, const uint32_t (&pairs)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(row_address), "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
}

DEVICE void stmatrix_x2(uint32_t row_address, const uint32_t (&pairs)[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                 ::"r"(row_address), "r"(pairs[0]), "r"(pairs[1])
                 : "memory");
}

// The same of the transposed matrices: row j of matrix i is what the lanes hold of its column j.
DEVICE void stmatrix_x4_trans(uint32_t row_address, const uint32_t (&pairs)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(row_address), "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
}

DEVICE void stmatrix_x2_trans(uint32_t row_address, const uint32_t (&pairs)[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 ::"r"(row_address), "r"(pairs[0]), "r"(pairs[1])
                 : "memory");
}

// PTX ISA, st.shared: 4 bytes.
DEVICE void st_shared_f32(uint32_t address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

DEVICE void st_shared_u32(uint32_t address, uint32_t value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// PTX ISA, st.shared.v2: 8 bytes, 8-byte aligned.
DEVICE void st_shared_v2_f32(uint32_t address, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second) : "memory");
}

DEVICE void st_shared_v2_u32(uint32_t address, uint32_t first, uint32_t second) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second) : "memory");
}

// PTX ISA, st.shared.v4: 16 bytes, 16-byte aligned.
DEVICE void st_shared_v4_u32(uint32_t address, const uint32_t (&words)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

// PTX ISA, ld.shared.v2: 8 bytes, 8-byte aligned.
DEVICE void ld_shared_v2_u32(uint32_t address, uint32_t (&words)[2]) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address) : "memory");
}

// PTX ISA, ld.shared.
DEVICE uint16_t ld_shared_u16(uint32_t address) {
    uint16_t value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
    return value;
}

DEVICE uint32_t ld_shared_u32(uint32_t address) {
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

// PTX ISA, ld.shared.v4: 16 bytes, 16-byte aligned; into values[0] .. values[3].
DEVICE void ld_shared_v4_f32(uint32_t address, float* values) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void ld_shared_v4_u32(uint32_t address, uint32_t (&words)[4]) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

}  // namespace ptx
