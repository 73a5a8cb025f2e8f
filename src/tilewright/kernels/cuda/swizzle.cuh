// Where a 16-byte chunk of a tile lies in shared memory, and how wgmma is told so.
// Knows the 128-, 64- and 32-byte swizzles of TMA and the matrix descriptor; nothing of pipelines.
#pragma once

#include "base.cuh"

constexpr int SWIZZLE_BYTES = 128;  // bytes of a row of an operand tile
constexpr int ATOM_BYTES = 1024;    // 8 such rows: the period of the pattern

// The offset in a tile of rows of ROW_BYTES that a plain offset has under the swizzle of that width: the number of the
// 16-byte chunk is XORed with the number of the 128-byte line, modulo the chunks of a row. Width 16 is no swizzle.
// The tile starts at a multiple of the pattern's period. Source: PTX ISA, tensor swizzle modes. Rows of an odd number
// of chunks need none: chunk c of eight rows below each other lies in eight different quarters of a 128-byte line.
template <int ROW_BYTES>
DEVICE uint32_t swizzled(uint32_t offset) {
    if constexpr (ROW_BYTES % 32 == 16) {
        return offset;
    } else {
        static_assert(ROW_BYTES == 32 || ROW_BYTES == 64 || ROW_BYTES == 128);
        return offset ^ ((offset >> 3) & (ROW_BYTES - 16));
    }
}

// wgmma's descriptor of a 128-byte-swizzled operand that starts at `address` (PTX ISA, matrix descriptor): address,
// leading and stride offsets in 16-byte units at bits 0, 16 and 32; swizzle mode 1 (128 bytes) at bit 62.
DEVICE uint64_t swizzle128_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
    return (static_cast<uint64_t>(1) << 62) | (static_cast<uint64_t>(stride_bytes >> 4) << 32) |
           (static_cast<uint64_t>(leading_bytes >> 4) << 16) | static_cast<uint64_t>((address & 0x3FFFF) >> 4);
}

// An operand with k contiguous: rows of 64 k values, 8 rows an atom, atoms stacked. The leading offset is unused.
DEVICE uint64_t k_major_descriptor(uint32_t address) { return swizzle128_descriptor(address, 16, ATOM_BYTES); }

// An operand with m or n contiguous: panels of 64 of them, each a stack of k rows of 128 bytes. Stride: the next 8 k
// rows. Leading: the next panel; unused by a, of which a wgmma reads one panel.
DEVICE uint64_t mn_major_descriptor(uint32_t address, uint32_t panel_bytes) {
    return swizzle128_descriptor(address, panel_bytes, ATOM_BYTES);
}

// The descriptor of the same operand `units` x 16 bytes on. The address field never carries out of the low word, so the
// high word is a constant of the loop: one 32-bit addition a wgmma instead of a 64-bit one.
DEVICE uint64_t moved(uint64_t descriptor, uint32_t units) {
    return (descriptor & 0xFFFFFFFF00000000) | (static_cast<uint32_t>(descriptor) + units);
}

// What one k16 step adds to a descriptor, in its 16-byte units.
constexpr uint32_t K_MAJOR_STEP = 16 * 2 / 16;               // 16 values along the row; the XOR leaves bits 7..9 alone
constexpr uint32_t MN_MAJOR_STEP = 16 * SWIZZLE_BYTES / 16;  // 16 rows down the panel

// An operand tile with k contiguous, cut into panels of ROW_BYTES of k each: `panel_bytes` from panel to panel, and in
// a panel all rows of the tile below each other. ROW_BYTES 32, 64, 128: one swizzle row; the leading offset is unused.
// ROW_BYTES 16: no swizzle; 8 rows are a core matrix, and the leading offset leads to the next one along k.
// Source: PTX ISA, matrix descriptor: modes 0 (none), 1 (128 bytes), 2 (64), 3 (32).
template <int ROW_BYTES>
DEVICE uint64_t panel_descriptor(uint32_t address, uint32_t panel_bytes) {
    static_assert(ROW_BYTES == 16 || ROW_BYTES == 32 || ROW_BYTES == 64 || ROW_BYTES == 128);
    constexpr uint64_t MODE = ROW_BYTES == 16 ? 0 : ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
    const uint64_t plain = swizzle128_descriptor(address, ROW_BYTES == 16 ? panel_bytes : 16, 8 * ROW_BYTES);
    return (plain & ~(static_cast<uint64_t>(3) << 62)) | (MODE << 62);
}

// What the descriptor of panel_descriptor() needs for k16 step `step` of the tile, in its 16-byte units.
template <int ROW_BYTES>
DEVICE constexpr uint64_t panel_step(int step, int panel_bytes) {
    return (step * 32 / ROW_BYTES * panel_bytes + step * 32 % ROW_BYTES) / 16;
}
