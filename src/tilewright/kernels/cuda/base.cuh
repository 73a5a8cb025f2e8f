// Fixed-width types, the tensor map as a kernel parameter, and shared-memory addresses.
// Knows nothing of matrix products. No toolkit header is included anywhere below this folder.
#pragma once

using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

#define DEVICE __device__ __forceinline__

// Element types that a Config names.
enum class Type { bf16, fp16, fp32 };

DEVICE constexpr int size_of(Type type) { return type == Type::fp32 ? 4 : 2; }

constexpr int WARP_THREADS = 32;
constexpr int WARPGROUP_WARPS = 4;
constexpr int WARPGROUP_THREADS = 128;

// CUtensorMap: 128 opaque bytes that only TMA reads. 64-byte alignment: CUDA driver API, cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

// The 32-bit address of shared memory that PTX takes as .shared::cta, and as .shared::cluster of the own CTA.
DEVICE uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
