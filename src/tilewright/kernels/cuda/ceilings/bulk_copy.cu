// Copies memory through shared memory, and does nothing else: the most that DRAM reads and writes at once.
//
// Work. `source` and `target` are num_chunks chunks of CHUNK_BYTES. CTA c of C copies chunks c, c + C, c + 2 C, ...
//
// Roles. One thread asks for everything: loads, and the stores of what has landed. The bytes meet no register.
//
// Pipeline, a ring of SLOTS slots of one chunk each. PENDING of them may be on their way out, the others are being
// filled: the slot of the chunk PENDING before this one is filled anew.
//
//   barrier     filled by                     completes after                           read by
//   full        cp.async.bulk (async proxy)   1 arrival (the thread itself, expect_tx)  the thread, then
//                                             and CHUNK_BYTES bytes                     cp.async.bulk (async proxy)
//   bulk group  the store of one slot         its source has been read                  the thread
//
// No proxy fence: what is stored was written through the async proxy as well, and the wait for `full` orders the two.
//
// Shared memory: Chunks of chunks.cuh.
//
// Limits, kept by kernels/ceilings.py: source and target multiples of 16, num_chunks + C x SLOTS below 2^31.

#include "base.cuh"
#include "ceilings/chunks.cuh"
#include "config.cuh"
#include "pipeline.cuh"
#include "ptx/bulk.cuh"
#include "ptx/copy.cuh"

constexpr uint32_t AHEAD = Config::SLOTS - Config::PENDING;  // chunks that are being loaded

static_assert(0 < Config::PENDING && Config::PENDING < Config::SLOTS);

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    bulk_copy(const uint8_t* source, uint8_t* target, int32_t num_chunks) {
    extern __shared__ __align__(128) uint8_t dynamic_smem[];
    Chunks& shared = *reinterpret_cast<Chunks*>(dynamic_smem);
    if (threadIdx.x != 0) return;
    prepare(shared);
    const uint32_t count = num_chunks;

    uint32_t ahead = blockIdx.x;                        // the next chunk to load
    PipelineState<Config::SLOTS> filling{0, 0};         // and its slot
    for (; filling.index < AHEAD && ahead < count; ahead += gridDim.x, filling.advance()) {
        load(shared, source, ahead, filling.index);
    }
    PipelineState<Config::SLOTS> state{0, 0};
    for (uint32_t chunk = blockIdx.x; chunk < count; chunk += gridDim.x, state.advance()) {
        wait(shared_address(&shared.full[state.index]), state.parity);
        ptx::cp_async_bulk_store(target + static_cast<uint64_t>(chunk) * Config::CHUNK_BYTES,
                                 shared_address(shared.slots[state.index]), Config::CHUNK_BYTES);
        ptx::cp_async_bulk_commit_group();
        if (ahead < count) {
            ptx::cp_async_bulk_wait_group_read<Config::PENDING>();  // the slot's last chunk has left it
            load(shared, source, ahead, filling.index);
            ahead += gridDim.x;
            filling.advance();
        }
    }
    ptx::cp_async_bulk_wait_group_read<0>();            // the slots go with this thread
}
