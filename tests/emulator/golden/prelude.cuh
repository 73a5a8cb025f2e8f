// What every golden kernel shares: types, addresses, bounded waits. Each kernel is `vector(in, out, maps...)`.
#pragma once

using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void vector

struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

DEVICE uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

DEVICE uint32_t mapa(uint32_t address, uint32_t rank) {
    uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

DEVICE uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

// 1 when the phase completed within a bounded number of tries: a wrong byte count must not hang the recording.
DEVICE uint32_t mbarrier_wait(uint32_t barrier, uint32_t parity) {
    for (int tries = 0; tries < 2000; ++tries) {
        uint32_t done;
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
        if (done) return 1;
    }
    return 0;
}

DEVICE void bulk_commit_and_wait() {
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

// A number that differs from neighbour to neighbour in every direction: what shared memory is filled with.
DEVICE uint32_t hashed(uint32_t index) {
    uint32_t x = index * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return x;
}

// -4 .. 4, for sums that every accumulator holds exactly.
DEVICE int32_t small_integer(uint32_t index) { return static_cast<int32_t>(hashed(index) % 9) - 4; }

DEVICE uint16_t f16_bits(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE uint16_t bf16_bits(float value) { return static_cast<uint16_t>(__float_as_uint(value) >> 16); }

// One fp8 number of a float that it holds exactly.
DEVICE uint8_t e4m3_bits(float value) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %1;" : "=h"(pair) : "f"(value));
    return static_cast<uint8_t>(pair);
}

DEVICE uint8_t e5m2_bits(float value) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %1;" : "=h"(pair) : "f"(value));
    return static_cast<uint8_t>(pair);
}
