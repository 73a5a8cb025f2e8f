// out (M, N) = a (M, K) x b (K, N) by mma.sync, persistent, a ring of cp.async; inputs and sums are those that
// products.cuh knows. For compute capability 8.0 and later; nothing here is of Hopper alone.
//
// Tiles. A CTA computes tiles of TILE_M x TILE_N, one after another, in the order of schedule.cuh; warp w of them rows
// WARP_M (w % WARPS_M) .. and columns WARP_N (w / WARPS_M) ..:
//
//            <-------- TILE_N -------->
//          ^ +------------+-----------+
//          | | warp 0     | warp 2    |   of each 16 x 8 of a warp's part lane t holds rows t / 4 and t / 4 + 8,
//   TILE_M | +------------+-----------+   the two columns from 2 (t % 4)
//          | | warp 1     | warp 3    |   (here WARPS_M = 2, WARPS_N = 2)
//          v +------------+-----------+
//
// Roles. All warps do the same: copy their share of a slot, multiply their part of another, store their own rows.
//
// Pipeline: a ring of STAGES slots; a slot is a k tile of a and one of b (tile_copy.cuh). The k tiles of all tiles of
// the CTA are one sequence t = 0, 1, ...: copies run ahead of a tile's end into the next tile, and while a tile is
// stored its successor's first slots are on their way.
//
//   what                when                                      why it is safe
//   copy k tile         beside the multiplications of k tile t,   its slot held k tile t - 1, and the barrier at the
//   t - 1 + STAGES      one group a k tile                        start of t says that every warp is done with that one
//   read k tile t + 1   from within k tile t on: fragments are    wait_group at the start of t: each thread's copies of
//                       loaded ahead (warp_tile.cuh)              t + 1 have landed; then the barrier: everybody's
//
// So STAGES - 2 k tiles are on their way at least while one is multiplied, and one barrier a k tile is all there is.
// With SPLIT_BARRIER it is an mbarrier, on which warps arrive a step of k before they wait for it (class Meeting, and
// the table at LEAVE): there copies run one slot less ahead, and a slot is copied later, by less than a k tile.
//
// Shared memory, in this order: STAGES slots, each a then b (multiples of 1024 bytes), then STORE_WARP_BYTES a warp,
// through which out leaves (warp_store.cuh), then the mbarrier, if there is one, of one arrival a warp. The swizzle
// counts from a slot's start: any base at a multiple of 128.
//
// Gated. Two columns of the product make one of out: columns of b that gate and those that they gate come into a tile
// in turns of 8 (B_FOLD), or, every second one of an n-contiguous b, as they lie (warp_finish.cuh).
//
// Batch. A batch of products is one launch: the walk goes from matrix to matrix (strides.cuh).
//
// Limits, kept by config.violations: THREADS a power of two; TILE_K 64 or 128 bytes; WARP_M a multiple of 16, WARP_N of
// 32; m- or n-contiguous operands in tiles of whole panels of 128 bytes; every thread copies equally many pieces;
// STAGES at least 3; bases, pitches and batch strides of a and b multiples of A_COPY_BYTES and B_COPY_BYTES; fewer than
// 2^30 tiles.

#include "config.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/test_wait.cuh"
#include "schedule.cuh"
#include "strides.cuh"
#include "tile_copy.cuh"
#include "warp_finish.cuh"
#include "warp_store.cuh"
#include "warp_tile.cuh"

constexpr uint32_t STAGE_BYTES = TileA::BYTES + TileB::BYTES;
constexpr uint32_t RING_BYTES = Config::STAGES * STAGE_BYTES;
constexpr uint32_t STORE_BYTES = Config::THREADS / WARP_THREADS * Config::STORE_WARP_BYTES;
static_assert(RING_BYTES + STORE_BYTES + (Config::SPLIT_BARRIER ? 16 : 0) == Config::SMEM_BYTES,
              "config.smem_bytes counts the same");

// What the host tells of a product.
struct Operands {
    const void* a;
    const void* b;
    const void* up;  // the b of what b gates; of any other product not read
    void* out;
    int32_t m, n, k;
};

// The other b of a gate. A template: what is not gated so has no such member.
template <class F>
DEVICE const void* up_of(const F& fused) {
    if constexpr (Config::B_APART) {
        return fused.up;
    } else {
        return nullptr;
    }
}

// The next slot of the ring after the one at this offset.
DEVICE uint32_t after(uint32_t slot) { return slot + STAGE_BYTES == RING_BYTES ? 0 : slot + STAGE_BYTES; }

// The sequence of k tiles as it is copied: tile after tile, past the last one zeros.
class Copies {
public:
    using CopyA = TileCopy<TileA, Config::A_COPY_BYTES, Config::A_IN_PIECES>;
    using CopyB = TileCopy<TileB, Config::B_COPY_BYTES, Config::B_IN_PIECES, Config::B_FOLD>;
    static constexpr int COUNT = CopyA::COUNT + CopyB::COUNT;  // of a thread for one k tile

    DEVICE Copies(const Operands& the_operands, int64_t a_pitch, int64_t b_pitch, const Strides& the_strides,
                  const TileSchedule& the_schedule, uint32_t the_ring)
        : operands(the_operands),
          strides(the_strides),
          schedule(the_schedule),
          ring(the_ring),
          a(a_pitch),
          b(b_pitch * Config::B_STEP, further(the_operands, b_pitch)),
          num_tiles(the_schedule.num_wide()) {
        start_tile();
    }

    // Issues copies FIRST .. END - 1 of the k tile at hand.
    template <int FIRST, int END>
    DEVICE void copy() const {
        constexpr int OF_A = CopyA::COUNT;
        a.template copy<(FIRST < OF_A ? FIRST : OF_A), (END < OF_A ? END : OF_A)>(ring + slot, k_left);
        b.template copy<(FIRST > OF_A ? FIRST - OF_A : 0), (END > OF_A ? END - OF_A : 0)>(ring + slot + TileA::BYTES,
                                                                                        k_left);
    }

    // Closes the group of the k tile at hand and turns to the next.
    DEVICE void advance() {
        ptx::cp_async_commit_group();
        slot = after(slot);
        k_left -= Config::TILE_K;
        if (k_left > 0) {
            a.advance();
            b.advance();
        } else {
            ++tile_index;
            start_tile();
        }
    }

private:
    // Elements of b from a column that gates to the one that it gates: the next, or n / 2 further, or to the other b.
    DEVICE static int64_t further(const Operands& operands, int64_t b_pitch) {
        if constexpr (Config::B_APART) {
            return (static_cast<const char*>(operands.up) - static_cast<const char*>(operands.b)) / IN_SIZE;
        } else {
            return (Config::B_STEP == 2 ? 1 : operands.n / 2) * (Config::B_K_MAJOR ? b_pitch : 1);
        }
    }

    // Turns to the start of tile `tile_index`; past the last, to a k of which nothing is left.
    DEVICE void start_tile() {
        k_left = 0;
        if (tile_index >= num_tiles) return;
        const Tile tile = schedule.wide(tile_index);
        a.start(static_cast<const char*>(operands.a) + strides.offset(strides.a, tile.matrix()) * IN_SIZE, tile.m,
                operands.m);
        b.start(static_cast<const char*>(operands.b) + strides.offset(strides.b, tile.matrix()) * IN_SIZE,
                tile.n / Config::B_FOLD, operands.n / Config::B_FOLD);
        k_left = operands.k;
    }

    const Operands& operands;
    const Strides& strides;
    const TileSchedule& schedule;
    const uint32_t ring;
    CopyA a;
    CopyB b;
    const uint32_t num_tiles;
    uint32_t tile_index = 0;
    uint32_t slot = 0;   // offset in the ring
    int32_t k_left;      // k values from this k tile on; 0 past the last tile
};

// Where the warps of a CTA meet once a k tile: each says that it has come so far, multiplies on, and asks a step later
// whether all have. Warps may be apart by that much, and nobody stands still: at a __syncthreads() all of them do, and
// after it all want shared memory at once.
class Meeting {
public:
    DEVICE Meeting(uint32_t the_barrier, int32_t lane) : barrier(the_barrier), is_speaker(lane == 0) {
        // Opaque to the compiler, which else computes it anew for every k tile (NVRTC 13.5).
        asm volatile("" : "+r"(barrier));
    }

    // One thread of the CTA; before anybody meets, and with a barrier of the CTA behind it.
    DEVICE void init() const { ptx::mbarrier_init(barrier, Config::THREADS / WARP_THREADS); }

    // A whole warp: what its lanes have waited for and read lies behind it.
    DEVICE void arrive() {
        __syncwarp();
        if (is_speaker) ptx::mbarrier_arrive(barrier);
    }
    // Asks whether all have arrived; leave() waits until they have. The answer to ask() comes beside multiplications.
    DEVICE void ask() { is_complete = ptx::mbarrier_test_wait_parity(barrier, parity); }
    DEVICE void leave() {
        while (!is_complete) ask();
        parity ^= 1;
    }

private:
    uint32_t barrier;
    const bool is_speaker;
    bool is_complete = false;
    uint32_t parity = 0;
};

// Units UNIT .. UNITS - 1 of a k tile: multiplications, and a share of the copies beside the first unit of each step of
// k. Not beside each unit: on sm_90 ptxas sets three empty instructions before a copy that stands behind an ldmatrix,
// 12 and not 36 of the 253 of 128x256x64 (NVRTC 13.5). Of narrow copies there are too many: addresses would spill.
constexpr bool IS_NARROW = Config::A_COPY_BYTES < 16 || Config::B_COPY_BYTES < 16;
constexpr int SHARES = IS_NARROW ? UNITS : K_STEPS;
template <int UNIT>
DEVICE void multiply_units(WarpTile& warp_tile, const Copies& copies, uint32_t slot, uint32_t next) {
    if constexpr (UNIT < UNITS) {
        if constexpr (UNIT % (UNITS / SHARES) == 0) {
            constexpr int SHARE = UNIT / (UNITS / SHARES);
            copies.copy<Copies::COUNT * SHARE / SHARES, Copies::COUNT*(SHARE + 1) / SHARES>();
        }
        warp_tile.multiply<UNIT>(slot, next);
        multiply_units<UNIT + 1>(warp_tile, copies, slot, next);
    }
}

// The same of a SPLIT_BARRIER. The next slot is read from the last step on, unit LEAVE; a meeting's arrivals are said
// at unit ARRIVE, before it. Copies of a k tile begin at LEAVE and end before the next ARRIVE, beside each other unit.
//
//   unit of k tile t   what                                                     why it is safe
//   ARRIVE             wait_group: own copies of k tile t + 1 have landed;      -
//                      arrive
//   LEAVE              wait for all. From here on k tile t + 1 is read, and     all have arrived in t: so their copies
//                      k tile t - 1 + STAGES copied into the slot of t - 1      of t + 1 are there, and t - 1 is done
constexpr int LEAVE = UNITS - B_BLOCKS;
constexpr int ARRIVE = LEAVE - (K_STEPS > 2 ? B_BLOCKS : B_BLOCKS / 2);
// Units beside which a k tile is copied. Of rows of 128 bytes they end half a step before ARRIVE: with four slots their
// copies have one k tile of time, and with that half step more a simulated SM bears 1,600 cycles (docs/ampere.md).
constexpr int WINDOW = UNITS - LEAVE + ARRIVE - (K_STEPS > 2 ? B_BLOCKS / 2 : 0);
constexpr int SHARE_UNITS = IS_NARROW ? 1 : 2;  // that have one share
template <int UNIT>
DEVICE void copy_share(const Copies& copies) {
    constexpr int PLACE = UNIT >= LEAVE ? UNIT - LEAVE : UNIT + UNITS - LEAVE;
    if constexpr (PLACE < WINDOW && PLACE % SHARE_UNITS == 0) {
        constexpr int END = PLACE + SHARE_UNITS < WINDOW ? PLACE + SHARE_UNITS : WINDOW;
        copies.copy<Copies::COUNT * PLACE / WINDOW, Copies::COUNT * END / WINDOW>();
    }
}
template <int UNIT>
DEVICE void copy_shares(const Copies& copies) {
    if constexpr (UNIT < UNITS) {
        copy_share<UNIT>(copies);
        copy_shares<UNIT + 1>(copies);
    }
}
template <int UNIT>
DEVICE void meet_and_multiply_units(WarpTile& warp_tile, Copies& copies, Meeting& meeting, uint32_t slot,
                                    uint32_t next) {
    if constexpr (UNIT < UNITS) {
        if constexpr (UNIT == ARRIVE) {
            copies.advance();
            ptx::cp_async_wait_group<Config::STAGES - 3>();
            meeting.arrive();
        }
        if constexpr (UNIT == LEAVE - 1) meeting.ask();
        if constexpr (UNIT == LEAVE) meeting.leave();
        copy_share<UNIT>(copies);
        warp_tile.multiply<UNIT>(slot, next);
        meet_and_multiply_units<UNIT + 1>(warp_tile, copies, meeting, slot, next);
    }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::CTAS)
    ampere_gemm(const void* a, const void* b, void* out_base, int64_t a_pitch, int64_t b_pitch, int64_t out_pitch,
                int32_t m, int32_t n, int32_t k, int32_t group_m, int32_t square_m, int32_t square_n, int32_t num_tiles,
                const __grid_constant__ Strides strides, const __grid_constant__ Fused fused) {
    extern __shared__ __align__(128) uint8_t dynamic_smem[];
    const uint32_t ring = shared_address(dynamic_smem);
    const int32_t lane = threadIdx.x % WARP_THREADS, warp = threadIdx.x / WARP_THREADS;
    const uint32_t stores = ring + RING_BYTES + warp * Config::STORE_WARP_BYTES;
    const int32_t warp_m = warp % Config::WARPS_M * Config::WARP_M, warp_n = warp / Config::WARPS_M * Config::WARP_N;

    const TileSchedule schedule(m, n, Walk{group_m, square_m, square_n, num_tiles}, 0);
    const Operands operands{a, b, up_of(fused), out_base, m, n, k};
    Copies copies(operands, a_pitch, b_pitch, strides, schedule, ring);
    WarpTile warp_tile(warp, lane);
    Meeting meeting(ring + RING_BYTES + STORE_BYTES, lane);
    if constexpr (Config::SPLIT_BARRIER) {
        if (threadIdx.x == 0) meeting.init();
    }

    constexpr int FILLED = Config::STAGES - (Config::SPLIT_BARRIER ? 2 : 1);  // slots before the first k tile
#pragma unroll 1
    for (int stage = 0; stage < FILLED; ++stage) {
        copies.copy<0, Copies::COUNT>();
        copies.advance();
    }
    if constexpr (Config::SPLIT_BARRIER) copy_shares<LEAVE>(copies);
    ptx::cp_async_wait_group<FILLED - 1>();
    __syncthreads();  // everybody's copies of the first slot have landed
    uint32_t slot = 0;
    warp_tile.load_first(ring);

    const uint32_t own_tiles = schedule.num_wide();
    const int32_t num_k_tiles = (k - 1) / Config::TILE_K + 1;
#pragma unroll 1
    for (uint32_t i = 0; i < own_tiles; ++i) {
        warp_tile.clear();
#pragma unroll 1
        for (int32_t k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
            const uint32_t next = after(slot);  // past the last k tile: zeros, which nobody multiplies
            if constexpr (Config::SPLIT_BARRIER) {
                meet_and_multiply_units<0>(warp_tile, copies, meeting, ring + slot, ring + next);
            } else {
                ptx::cp_async_wait_group<Config::STAGES - 3>();
                __syncthreads();  // everybody's copies of the next slot have landed, and the one before is done with
                multiply_units<0>(warp_tile, copies, ring + slot, ring + next);
                copies.advance();
            }
            slot = next;
        }
        const Tile tile = schedule.wide(i);
        const int64_t out_offset = strides.offset(strides.out, tile.matrix()) * OUT_SIZE;
        const Out out{static_cast<char*>(out_base) + out_offset, out_pitch, m, n / Fused::FOLD};
#pragma unroll
        for (int block = 0; block < A_BLOCKS; ++block) {
            if constexpr (!Fused::IS_PLAIN) {
                finish_rows(warp_tile.rC[block], fused, strides, tile.matrix(), out, tile.m + warp_m + block * 16,
                            (tile.n + warp_n) / Fused::FOLD, lane);
            }
            store_rows(stores, warp_tile.rC[block], out, tile.m + warp_m + block * 16,
                       (tile.n + warp_n) / Fused::FOLD, lane);
        }
    }
    if constexpr (Config::SPLIT_BARRIER) ptx::cp_async_commit_group();  // the one that the last LEAVE began
    ptx::cp_async_wait_group<0>();  // zeros past the last tile: none may land after the CTA has ended
}
