// Words of global memory through which CTAs tell each other what is done: one wrapper, one instruction, with the PTX
// ISA's name.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, atom.add: the value before. Orders nothing.
DEVICE uint32_t atom_add_relaxed_gpu_u32(uint64_t address, uint32_t value) {
    uint32_t before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(value) : "memory");
    return before;
}

// PTX ISA, red.add with release: whoever acquires the word sees what this thread has written, or has been handed.
DEVICE void red_add_release_gpu_u32(uint64_t address, uint32_t value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// PTX ISA, ld.acquire.
DEVICE uint32_t ld_acquire_gpu_u32(uint64_t address) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

// PTX ISA, fence.proxy.async: orders this thread's ordinary accesses of global memory, and those that it has learnt of,
// with asynchronous ones (TMA).
DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace ptx
