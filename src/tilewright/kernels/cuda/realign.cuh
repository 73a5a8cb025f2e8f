// Rows that TMA cannot read, copied into rows that it can by warps that have nothing else to do, while the tensor cores
// work on what is copied already. As in repack.cu two aligned words are shifted into a chunk of 16 bytes, but in the
// order in which the product wants them: strip after strip along k, of all rows of both operands. The launch before may
// have copied the first strips, so that the tensor cores are not the faster ones for long.
//
//   unit      UNIT_ROWS x STRIP_BYTES: 20 x 384, three k tiles; a warp takes one after another
//   next      the unit that nobody has taken yet: an atomic counter. So a unit that is taken has a warp that copies it
//             without waiting for anybody, whichever CTAs there are: no CTA needs another one to be there
//   done[s]   units of strip s that are copied
//
//   written by                  handed on                                       read by
//   a warp's lanes, st.global   each lane's proxy fence, __syncwarp, lane 0's   a producer: ld.acquire of done[s] until
//                               release of done[s]                              all are there, proxy fence, TMA load
//
// A row is read in whole 16-byte words, lane i word i, and lane i takes its second word from lane i + 1: so 25 lanes
// read 24 chunks, and no word is read in which no byte of the row lies. next and done are zero when the kernel starts.
#pragma once

#include "config.cuh"
#include "ptx/flag.cuh"
#include "ptx/global.cuh"
#include "ptx/misc.cuh"

constexpr uint32_t CHUNK_BYTES = 16;
constexpr uint32_t STRIP_CHUNKS = 24;  // lanes that write; one more reads
constexpr uint32_t STRIP_BYTES = STRIP_CHUNKS * CHUNK_BYTES;
constexpr int32_t STRIP_K = STRIP_BYTES / 2;  // values
static_assert(STRIP_K % Config::TILE_K == 0, "a k tile lies in one strip");
constexpr uint32_t UNIT_ROWS = 20;
constexpr uint32_t NEXT_BYTES = 128;  // the counter has a line of its own, before done[]

// One operand; num_rows 0: there is nothing to copy. In bytes; target rows at multiples of 128.
struct Rows {
    int64_t num_rows;
    int64_t row_bytes;
    int64_t source_pitch;
    int64_t target_pitch;

    DEVICE uint32_t units() const { return static_cast<uint32_t>((num_rows + UNIT_ROWS - 1) / UNIT_ROWS); }
};

struct Copying {
    Rows a;
    Rows b;
    int64_t first_strip;  // those before it are copied already
    int64_t num_strips;   // all there are

    DEVICE uint32_t units() const { return a.units() + b.units(); }  // of a strip
};

// One warp.
class Realigner {
public:
    DEVICE Realigner(const Copying& the_copying, const void* the_a_source, const void* the_b_source, void* the_a_target,
                     void* the_b_target, void* the_progress)
        : copying(the_copying),
          a_source(reinterpret_cast<uint64_t>(the_a_source)),
          b_source(reinterpret_cast<uint64_t>(the_b_source)),
          a_target(reinterpret_cast<uint64_t>(the_a_target)),
          b_target(reinterpret_cast<uint64_t>(the_b_target)),
          progress(reinterpret_cast<uint64_t>(the_progress)),
          lane(threadIdx.x % WARP_THREADS) {}

    DEVICE void run() const {
        const uint32_t a_units = copying.a.units(), units = copying.units();
        const uint32_t first_strip = static_cast<uint32_t>(copying.first_strip);
        const uint32_t total = units * (static_cast<uint32_t>(copying.num_strips) - first_strip);
        uint32_t unit = ptx::shfl_sync_idx(taken(), 0);
        while (unit < total) {
            const uint32_t following = taken();  // on its way while this one is copied
            const uint32_t strip = first_strip + unit / units, place = unit % units;
            if (place < a_units) {
                copy(copying.a, a_source, a_target, strip, place);
            } else {
                copy(copying.b, b_source, b_target, strip, place - a_units);
            }
            ptx::fence_proxy_async_global();
            __syncwarp();
            if (lane == 0) ptx::red_add_release_gpu_u32(progress + NEXT_BYTES + strip * 4, 1);
            unit = ptx::shfl_sync_idx(following, 0);
        }
    }

private:
    // The next unit, in lane 0.
    DEVICE uint32_t taken() const { return lane == 0 ? ptx::atom_add_relaxed_gpu_u32(progress, 1) : 0; }

    // ROWS_IN_FLIGHT rows of a unit at a time.
    DEVICE void copy(const Rows& rows, uint64_t source, uint64_t target, uint32_t strip, uint32_t place) const {
        const uint32_t first = place * UNIT_ROWS;
        const int64_t offset = static_cast<int64_t>(strip) * STRIP_BYTES + lane * CHUNK_BYTES;  // of this lane's chunk
        const bool writes = lane < STRIP_CHUNKS && offset < rows.row_bytes;
        int32_t left = static_cast<int32_t>(min(static_cast<uint32_t>(rows.num_rows) - first, UNIT_ROWS));  // rows
        uint64_t row = source + first * rows.source_pitch;
        uint64_t chunk = target + first * rows.target_pitch + offset;
#pragma unroll 1
        for (; left > 0; left -= Config::ROWS_IN_FLIGHT) {
            uint32_t words[Config::ROWS_IN_FLIGHT][4];
#pragma unroll
            for (int i = 0; i < Config::ROWS_IN_FLIGHT; ++i) {
                const uint64_t begin = row + i * rows.source_pitch;
                const uint64_t word = begin / CHUNK_BYTES * CHUNK_BYTES + offset;
                const bool is_there = i < left && lane <= STRIP_CHUNKS && word < begin + rows.row_bytes;
#pragma unroll
                for (int j = 0; j < 4; ++j) words[i][j] = 0;
                if (is_there) ptx::ld_global_cs_v4_u32(word, words[i]);
            }
#pragma unroll
            for (int i = 0; i < Config::ROWS_IN_FLIGHT; ++i) {
                uint32_t found[4];
                shifted(words[i], static_cast<uint32_t>(row) % CHUNK_BYTES, found);
                if (i < left && writes) ptx::st_global_v4_u32(chunk, found);
                row += rows.source_pitch;
                chunk += rows.target_pitch;
            }
        }
    }

    // The 16 bytes from `shift` on of this lane's words and the next lane's.
    DEVICE void shifted(const uint32_t (&words)[4], uint32_t shift, uint32_t (&found)[4]) const {
        uint32_t both[8], by_8[6], by_4[5];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            both[j] = words[j];
            both[4 + j] = ptx::shfl_sync_idx(words[j], (lane + 1) % WARP_THREADS);
        }
#pragma unroll
        for (int j = 0; j < 6; ++j) by_8[j] = shift & 8 ? both[j + 2] : both[j];
#pragma unroll
        for (int j = 0; j < 5; ++j) by_4[j] = shift & 4 ? by_8[j + 1] : by_8[j];
#pragma unroll
        for (int j = 0; j < 4; ++j) found[j] = ptx::shf_r_wrap(by_4[j], by_4[j + 1], (shift & 2) * 8);
    }

    const Copying& copying;
    const uint64_t a_source;
    const uint64_t b_source;
    const uint64_t a_target;
    const uint64_t b_target;
    const uint64_t progress;
    const uint32_t lane;
};

// What a producer passes before it loads a k tile: its strip is copied, of all rows. One lane.
class StripGate {
public:
    DEVICE StripGate(const Copying& copying, const void* progress)
        : done(reinterpret_cast<uint64_t>(progress) + NEXT_BYTES),
          units(copying.units()),
          ready(static_cast<uint32_t>(copying.first_strip)) {}

    DEVICE void await(int32_t k) {
        const uint32_t strip = static_cast<uint32_t>(k / STRIP_K);
        if (strip < ready) return;
        for (; ready <= strip; ++ready) {
            for (uint32_t tries = 0; ptx::ld_acquire_gpu_u32(done + ready * 4) < units; ++tries) {
                if (Config::WAIT_LIMIT > 0 && tries == Config::WAIT_LIMIT) ptx::trap();
            }
        }
        ptx::fence_proxy_async_global();
    }

private:
    const uint64_t done;
    const uint32_t units;
    uint32_t ready;  // strips that are known to be copied
};
