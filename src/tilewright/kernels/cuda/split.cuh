// How the CTAs of a cluster add up a tile of which each has multiplied a part of k.
//
// SPLIT_K CTAs share every tile. The one of rank r multiplies k tiles r T / SPLIT_K .. (r + 1) T / SPLIT_K - 1 of T,
// from a ring of its own. The columns of the tile are dealt out: rank r < RECEIVERS adds up and stores STORED_N.
//
//             columns, in shares of STORED_N           Each consumer warp works on the 16 rows it always has, with the
//   rank 0   [   stays     ][ 1 -> rank 1 ] ...        warps of the same number in the other CTAs and with nobody else:
//   rank 1   [ 0 -> rank 0 ][   stays     ] ...        it sends its accumulators of share r to that warp of rank r.
//
//   barrier, one a warp  filled by                    completes after                  read by
//   full                 st.async of this warp's      1 arrival (lane 0, expect_tx)    the warp, if its rank receives
//                        namesakes in the others      and (SPLIT_K - 1) x SHARE_BYTES
//   empty                this warp's namesakes have   one arrival of each of the       the warp, before it sends again
//                        added up what it has sent    RECEIVERS; of no CTA's last tile
//
// st.async writes into another CTA's shared memory and counts its bytes on a barrier there, as TMA does: neither a
// fence nor a release at cluster scope is needed, which costs a MEMBAR.ALL.GPU, and nobody reads another CTA's memory,
// which costs a round trip. Bytes may land before lane 0 has announced them: the phase waits for that arrival. Those of
// the next tile cannot: their senders wait for `empty`. An arrival on `empty` hands no ordinary write over, so it has
// no scope (ptx::mbarrier_arrive_cluster says why); then it orders no read of this CTA before the next writes of
// another, and comes behind the stores of the sums, which need what was read. Sums are made in the order of ranks: the
// same bits in every run.
//
// The end. Of its last tile a CTA gives no room free: nobody sends again, all CTAs of a cluster having the same number
// of tiles. So every arrival on its own `empty` has been waited for by a send, and every byte for it by receive(): it
// may leave when it has stored, and need not hear of the others. What it sent is in flight or there.
//
// Shared memory of this CTA, behind the ring: values[warp][rank][WGMMAS_M][SHARE_BLOCKS][lane] of 16 bytes, which are
// the lane's four values of a block of 8 columns, as wgmma deals them out; full[warp], empty[warp]. A warp's accesses
// to it are 512 bytes on end, so no bank is hit twice in a phase. The place of the own rank is never written.
#pragma once

#include "config.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"
#include "ptx/async.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"

// The k tiles of one CTA.
struct KTiles {
    int32_t first;
    int32_t count;  // at least 1, kept by config.violations
};
DEVICE KTiles k_tiles_of(int32_t num_k_tiles, uint32_t rank) {
    if constexpr (Config::SPLIT_K == 1) return KTiles{0, num_k_tiles};
    const int32_t r = static_cast<int32_t>(rank);
    const int32_t first = r * num_k_tiles / Config::SPLIT_K;  // k < 2^31: fewer than 2^25 tiles
    return KTiles{first, (r + 1) * num_k_tiles / Config::SPLIT_K - first};
}

constexpr int RECEIVERS = Config::TILE_N / Config::STORED_N;
constexpr int SHARE_BLOCKS = Config::STORED_N / 8;                           // of 8 columns
constexpr int BLOCK_OF_WARP_BYTES = WARP_THREADS * 16;                       // (16, 8) fp32
constexpr int SHARE_BYTES = Config::WGMMAS_M * SHARE_BLOCKS * BLOCK_OF_WARP_BYTES;  // from one warp of one rank

struct Partials {
    alignas(16) uint8_t values[Config::CONSUMERS * WARPGROUP_WARPS][Config::SPLIT_K][SHARE_BYTES];
    alignas(8) uint64_t full[Config::CONSUMERS * WARPGROUP_WARPS];
    alignas(8) uint64_t empty[Config::CONSUMERS * WARPGROUP_WARPS];
};
static_assert(Config::SPLIT_K == 1 || sizeof(Partials) == Config::PARTIAL_BYTES,
              "config.partial_bytes and Partials agree");
static_assert(Config::SPLIT_K == 1 || RECEIVERS <= Config::SPLIT_K, "config.stored_n gives each share a CTA");

// One thread, before anybody uses the barriers.
DEVICE void init_partials(const Partials& partials) {
    for (uint32_t warp = 0; warp < Config::CONSUMERS * WARPGROUP_WARPS; ++warp) {
        ptx::mbarrier_init(shared_address(&partials.full[warp]), 1);
        ptx::mbarrier_init(shared_address(&partials.empty[warp]), RECEIVERS);
    }
}

// One consumer warp's side of it.
class Reduction {
public:
    using Sums = float[SHARE_BLOCKS * 4];  // a thread's part of STORED_N columns of one wgmma

    // `warp` counts those of all consumers.
    DEVICE Reduction(const Partials& partials, uint32_t warp, uint32_t the_lane, uint32_t cta_rank)
        : values(shared_address(partials.values[warp]) + the_lane * 16),
          full(shared_address(&partials.full[warp])),
          empty(shared_address(&partials.empty[warp])),
          lane(the_lane),
          rank(cta_rank) {}

    // Whether this CTA stores a part of every tile; and its first column there.
    DEVICE bool receives() const { return rank < RECEIVERS; }
    DEVICE int32_t first_column() const { return static_cast<int32_t>(rank) * Config::STORED_N; }

    // Before the sums of a tile are there, so that it costs nothing: the bytes that are awaited are announced, which
    // receive() of the tile before has waited for, and there is room where this one's shares go.
    DEVICE void prepare() const {
        if (receives() && lane == 0) ptx::mbarrier_arrive_expect_tx(full, (Config::SPLIT_K - 1) * SHARE_BYTES);
        wait(empty, parity ^ 1);  // fresh barriers count as having completed parity 1
    }

    // Sends each share of the accumulators of a tile to the CTA that adds it up; its own stays where it is.
    template <class Accumulators>
    DEVICE void send(const Accumulators& rC) const {
#pragma unroll
        for (int receiver = 0; receiver < RECEIVERS; ++receiver) {
            if (receiver == static_cast<int>(rank)) continue;
            const uint32_t target = ptx::mapa_shared_cluster(values + rank * SHARE_BYTES, receiver);
            const uint32_t barrier = ptx::mapa_shared_cluster(full, receiver);
#pragma unroll
            for (int block = 0; block < Config::WGMMAS_M; ++block) {
#pragma unroll
                for (int i = 0; i < SHARE_BLOCKS; ++i) {  // (16, 8) fp32
                    const float* r = &rC[block][4 * (receiver * SHARE_BLOCKS + i)];
                    const uint32_t place = target + (block * SHARE_BLOCKS + i) * BLOCK_OF_WARP_BYTES;
                    ptx::st_async_v4_f32(place, r[0], r[1], r[2], r[3], barrier);
                }
            }
        }
    }

    // Adds up its own share of the accumulators and what the other ranks have sent of it, in the order of ranks.
    template <class Accumulators>
    DEVICE void receive(const Accumulators& rC, Sums (&sums)[Config::WGMMAS_M]) {
        wait(full, parity);
#pragma unroll
        for (int block = 0; block < Config::WGMMAS_M; ++block) {
#pragma unroll
            for (int i = 0; i < SHARE_BLOCKS; ++i) {
                const uint32_t source = values + (block * SHARE_BLOCKS + i) * BLOCK_OF_WARP_BYTES;
                float* sum = &sums[block][4 * i];
#pragma unroll
                for (int sender = 0; sender < Config::SPLIT_K; ++sender) {
                    float part[4];
                    if (sender == static_cast<int>(rank)) {
                        own(rC[block], i, part);
                    } else {
                        ptx::ld_shared_v4_f32(source + sender * SHARE_BYTES, part);
                    }
#pragma unroll
                    for (int value = 0; value < 4; ++value) {
                        sum[value] = sender == 0 ? part[value] : sum[value] + part[value];
                    }
                }
            }
        }
    }

    // Gives the room of what was received free, once the sums are stored. Not before: a sum that has left its register
    // has been loaded, while behind receive() the last loads may still be on their way, and an arrival without a scope
    // does not wait for them.
    DEVICE void give_room() const {
        __syncwarp();  // all lanes have stored
        // modulo: the compiler may compute the address in all lanes, and there is no rank 31
        const uint32_t sender = ptx::mapa_shared_cluster(empty, lane % Config::SPLIT_K);
        if (lane < Config::SPLIT_K) ptx::mbarrier_arrive_cluster(sender);
    }

    // On to the next tile, whether this CTA received or not.
    DEVICE void advance() { parity ^= 1; }

private:
    // Block i of this rank's share: which registers that are is known at run time alone.
    template <class Fragment>
    DEVICE void own(const Fragment& rC, int i, float (&part)[4]) const {
#pragma unroll
        for (int receiver = 0; receiver < RECEIVERS; ++receiver) {
#pragma unroll
            for (int value = 0; value < 4; ++value) {
                const float r = rC[4 * (receiver * SHARE_BLOCKS + i) + value];
                part[value] = receiver == 0 || receiver == static_cast<int>(rank) ? r : part[value];
            }
        }
    }

    const uint32_t values;  // this lane's 16 bytes of the first block from rank 0
    const uint32_t full;
    const uint32_t empty;
    const uint32_t lane;
    const uint32_t rank;
    uint32_t parity = 0;  // of the tile at hand
};
