// Reads memory as fast as it comes, and adds up every 32-bit word of it: the most that DRAM, or the L2, delivers.
//
// Work. `source` is num_chunks chunks of CHUNK_BYTES, read `passes` times over. CTA c of C takes reads c, c + C, c +
// 2 C, ... of num_chunks x passes; read r is of chunk r modulo num_chunks, so that at any moment the CTAs read
// different chunks next to each other, and no CTA owns one.
//
// Roles. The first thread asks for chunks; all THREADS threads wait for them and add them up, each 16 bytes of every
// THREADS x 16. sums (C, THREADS): modulo 2^32, written once at the end, so that nothing may be left out.
//
// Pipeline, a ring of SLOTS slots of one chunk each:
//
//   barrier        filled by                     completes after                            read by
//   full           cp.async.bulk (async proxy)   1 arrival (the first thread, expect_tx)    all threads
//                                                and CHUNK_BYTES bytes
//   __syncthreads  the slot was read             all threads have read it                   the first thread
//
// Shared memory: Chunks of chunks.cuh.
//
// Limits, kept by kernels/ceilings.py: CHUNK_BYTES a multiple of THREADS x 16, source a multiple of 16, num_chunks x
// passes + C x SLOTS below 2^31.

#include "base.cuh"
#include "ceilings/chunks.cuh"
#include "config.cuh"
#include "pipeline.cuh"
#include "ptx/copy.cuh"

constexpr int VECTORS = Config::CHUNK_BYTES / (Config::THREADS * 16);  // of 16 bytes, a thread and chunk

static_assert(VECTORS * Config::THREADS * 16 == Config::CHUNK_BYTES);

// All threads: this thread's words of a slot.
DEVICE uint32_t sum_of(const Chunks& shared, uint32_t slot) {
    const uint32_t own = shared_address(shared.slots[slot]) + threadIdx.x * 16;
    uint32_t sum = 0;
#pragma unroll
    for (int vector = 0; vector < VECTORS; ++vector) {
        uint32_t words[4];
        ptx::ld_shared_v4_u32(own + vector * Config::THREADS * 16, words);
        sum += words[0] + words[1] + words[2] + words[3];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    bulk_read(const uint8_t* source, uint32_t* sums, int32_t num_chunks, int32_t passes) {
    extern __shared__ __align__(128) uint8_t dynamic_smem[];
    Chunks& shared = *reinterpret_cast<Chunks*>(dynamic_smem);
    const uint32_t num_reads = static_cast<uint32_t>(num_chunks) * passes;
    const bool is_first = threadIdx.x == 0;
    if (is_first) prepare(shared);
    __syncthreads();

    uint32_t ahead = blockIdx.x;                        // the next read to ask for
    for (uint32_t slot = 0; is_first && slot < Config::SLOTS && ahead < num_reads; ++slot, ahead += gridDim.x) {
        load(shared, source, ahead % num_chunks, slot);
    }
    PipelineState<Config::SLOTS> state{0, 0};
    uint32_t sum = 0;
    for (uint32_t read = blockIdx.x; read < num_reads; read += gridDim.x) {
        wait(shared_address(&shared.full[state.index]), state.parity);
        sum += sum_of(shared, state.index);
        __syncthreads();                                // every thread has read the slot
        if (is_first && ahead < num_reads) {
            load(shared, source, ahead % num_chunks, state.index);
            ahead += gridDim.x;
        }
        state.advance();
    }
    sums[blockIdx.x * Config::THREADS + threadIdx.x] = sum;
}
