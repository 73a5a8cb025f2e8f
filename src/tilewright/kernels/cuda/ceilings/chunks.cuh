// A ring of chunks in shared memory, and the request for one: what bulk_read.cu and bulk_copy.cu share.
// Knows nothing of what becomes of a chunk.
#pragma once

#include "base.cuh"
#include "config.cuh"
#include "ptx/barrier.cuh"
#include "ptx/bulk.cuh"

struct Chunks {
    alignas(128) uint8_t slots[Config::SLOTS][Config::CHUNK_BYTES];
    alignas(8) uint64_t full[Config::SLOTS];  // 1 arrival, of who asks, and CHUNK_BYTES bytes
};
static_assert(sizeof(Chunks) == Config::SMEM_BYTES, "kernels/ceilings.py and Chunks must agree");

// One thread, before any other use.
DEVICE void prepare(Chunks& shared) {
    for (int slot = 0; slot < Config::SLOTS; ++slot) ptx::mbarrier_init(shared_address(&shared.full[slot]), 1);
    ptx::fence_mbarrier_init_release_cluster();
}

// One thread: asks for a chunk of `source` into a slot that nobody reads any more.
DEVICE void load(Chunks& shared, const uint8_t* source, uint32_t chunk, uint32_t slot) {
    const uint32_t full = shared_address(&shared.full[slot]);
    ptx::mbarrier_arrive_expect_tx(full, Config::CHUNK_BYTES);
    ptx::cp_async_bulk_load(shared_address(shared.slots[slot]),
                            source + static_cast<uint64_t>(chunk) * Config::CHUNK_BYTES, Config::CHUNK_BYTES, full);
}
