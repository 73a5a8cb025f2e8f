// Registers, identity and conversion: one wrapper, one instruction, named as the PTX ISA names it.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, setmaxnreg.dec: a warpgroup gives registers back to the CTA's pool. REGISTERS: 24 .. 256, multiple of 8.
template <int REGISTERS>
DEVICE void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));  // touches no memory
}

// PTX ISA, setmaxnreg.inc: a warpgroup takes registers from the pool, and waits until it holds enough.
template <int REGISTERS>
DEVICE void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));  // touches no memory
}

// PTX ISA, special register %cluster_ctarank: 0 .. CTAs of the cluster - 1.
DEVICE uint32_t cluster_ctarank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));  // constant for the thread
    return rank;
}

// PTX ISA, cvt to packed 16-bit: round to nearest even; `low` in the low half.
DEVICE uint32_t cvt_rn_bf16x2_f32(float high, float low) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));  // arithmetic only
    return packed;
}

DEVICE uint32_t cvt_rn_f16x2_f32(float high, float low) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));  // arithmetic only
    return packed;
}

// PTX ISA, cvt: the fp32 of the same value.
DEVICE float cvt_f32_f16(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));  // arithmetic only
    return value;
}

// PTX ISA, shfl.sync.idx: a warp. Each lane gets the value that lane `lane` holds.
DEVICE uint32_t shfl_sync_idx(uint32_t value, uint32_t lane) {
    uint32_t found;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(found) : "r"(value), "r"(lane));  // no memory
    return found;
}

// PTX ISA, elect.sync: a warp, converged. True in one of its lanes, the same one each time.
DEVICE bool elect_sync() {
    uint32_t is_elected;
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(is_elected));
    return is_elected != 0;  // touches no memory
}

// PTX ISA, shf.r.wrap: the 32 bits from bit `amount` on, modulo 32, of the 64 bits high:low.
DEVICE uint32_t shf_r_wrap(uint32_t low, uint32_t high, uint32_t amount) {
    uint32_t found;
    asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(low), "r"(high), "r"(amount));  // arithmetic only
    return found;
}

// PTX ISA, shf.l.wrap: the upper 32 bits of the 64 bits high:low moved up by `amount`, modulo 32.
DEVICE uint32_t shf_l_wrap(uint32_t low, uint32_t high, uint32_t amount) {
    uint32_t found;
    asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(low), "r"(high), "r"(amount));  // arithmetic only
    return found;
}

// PTX ISA, griddepcontrol.wait: each thread, until the launches that this one depends on have ended and what they wrote
// is visible. Where there are none it does nothing; before compute capability 9.0 there never are, nor the instruction.
DEVICE void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// PTX ISA, griddepcontrol.launch_dependents: a launch that depends on this one may start once every CTA has said so or
// has ended. It orders no memory. Before compute capability 9.0 no launch depends on another in that way.
DEVICE void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// PTX ISA, trap: ends the grid with an error that the host sees.
DEVICE void trap() { asm volatile("trap;" ::: "memory"); }

}  // namespace ptx
