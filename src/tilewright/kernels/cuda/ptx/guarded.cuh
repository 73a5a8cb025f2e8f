// Loads of global memory that happen where a condition holds: one wrapper, one guarded instruction, with the PTX ISA's
// name. Not volatile, without a memory clobber: they read what nobody writes before it has been read here, so the
// compiler may move them up, as far as their addresses let it.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, ld.global.u16: 2 bytes, 2-byte aligned; 0 where the condition does not hold.
DEVICE uint32_t ld_global_u16_if(bool condition, uint64_t address) {
    uint16_t bits;
    asm("{\n"
        ".reg .pred is_read;\n"
        "setp.ne.u32 is_read, %2, 0;\n"
        "mov.u16 %0, 0;\n"
        "@is_read ld.global.u16 %0, [%1];\n"
        "}\n"
        : "=h"(bits)
        : "l"(address), "r"(static_cast<uint32_t>(condition)));
    return bits;
}

// PTX ISA, ld.global.u32: 4 bytes, 4-byte aligned.
DEVICE uint32_t ld_global_u32_if(bool condition, uint64_t address) {
    uint32_t word;
    asm("{\n"
        ".reg .pred is_read;\n"
        "setp.ne.u32 is_read, %2, 0;\n"
        "mov.u32 %0, 0;\n"
        "@is_read ld.global.u32 %0, [%1];\n"
        "}\n"
        : "=r"(word)
        : "l"(address), "r"(static_cast<uint32_t>(condition)));
    return word;
}

// PTX ISA, ld.global.v2.u32: 8 bytes, 8-byte aligned.
DEVICE void ld_global_v2_u32_if(bool condition, uint64_t address, uint32_t (&words)[2]) {
    asm("{\n"
        ".reg .pred is_read;\n"
        "setp.ne.u32 is_read, %3, 0;\n"
        "mov.u32 %0, 0;\n"
        "mov.u32 %1, 0;\n"
        "@is_read ld.global.v2.u32 {%0, %1}, [%2];\n"
        "}\n"
        : "=r"(words[0]), "=r"(words[1])
        : "l"(address), "r"(static_cast<uint32_t>(condition)));
}

// PTX ISA, ld.global.v4.u32: 16 bytes, 16-byte aligned.
DEVICE void ld_global_v4_u32_if(bool condition, uint64_t address, uint32_t (&words)[4]) {
    asm("{\n"
        ".reg .pred is_read;\n"
        "setp.ne.u32 is_read, %5, 0;\n"
        "mov.u32 %0, 0;\n"
        "mov.u32 %1, 0;\n"
        "mov.u32 %2, 0;\n"
        "mov.u32 %3, 0;\n"
        "@is_read ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}\n"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "l"(address), "r"(static_cast<uint32_t>(condition)));
}

}  // namespace ptx
