// The two rings of a CTA, one of wide slots and one of narrow ones, in one place of shared memory: how large they are,
// where a slot's operands, barriers and tile lie. Who waits for whom is told at the head of hopper_gemm.cu.
#pragma once

#include "base.cuh"
#include "config.cuh"
#include "ptx/misc.cuh"
#include "schedule.cuh"
#include "swizzle.cuh"

constexpr int A_BYTES = Config::TILE_M * SWIZZLE_BYTES;                           // (TILE_M, TILE_K) or its transpose
constexpr int B_BYTES = Config::TILE_N * SWIZZLE_BYTES;                           // (TILE_N, TILE_K) or its transpose
constexpr int NARROW_BYTES = (Config::TILE_M + Config::TAIL_N) * SWIZZLE_BYTES;   // of a slot of a narrow tile
constexpr int PANEL_COLUMNS = SWIZZLE_BYTES / 2;              // of m or n, where these are contiguous
constexpr int PANEL_BYTES = Config::TILE_K * SWIZZLE_BYTES;   // (TILE_K, PANEL_COLUMNS)
constexpr int BLOCK_BYTES = 64 * SWIZZLE_BYTES;               // the rows of one wgmma: (64, TILE_K) of a
static_assert(Config::A_K_MAJOR || BLOCK_BYTES == PANEL_BYTES, "64 rows of a: as many bytes whichever is contiguous");
constexpr uint32_t CONSUMER_WARPS = Config::CONSUMERS * WARPGROUP_WARPS;

constexpr int WIDE_RING_BYTES = Config::STAGES * Config::STAGE_BYTES;
constexpr int NARROW_RING_BYTES = Config::TAIL_STAGES * NARROW_BYTES;
constexpr int WIDE_ROOM = WIDE_RING_BYTES + CONSUMER_WARPS * Config::STORE_WARP_BYTES;
constexpr int NARROW_ROOM = NARROW_RING_BYTES + CONSUMER_WARPS * Config::TAIL_STORE_WARP_BYTES;
constexpr int SLOTS = Config::STAGES + Config::TAIL_STAGES;  // of both rings

struct Shared {
    alignas(ATOM_BYTES) uint8_t operands[WIDE_ROOM > NARROW_ROOM ? WIDE_ROOM : NARROW_ROOM];  // and store slots
    alignas(8) uint64_t full[SLOTS];
    alignas(8) uint64_t empty[SLOTS];
    alignas(sizeof(Tile)) Tile tile[SLOTS];  // that the slot belongs to; written with the first slot of a tile
    alignas(8) uint64_t stored;
};
static_assert(sizeof(Shared) + Config::PARTIAL_BYTES == Config::SMEM_BYTES, "config.smem_bytes and Shared must agree");
static_assert(A_BYTES + B_BYTES == Config::STAGE_BYTES, "config.stage_bytes and Shared must agree");
static_assert(NARROW_BYTES <= WIDE_RING_BYTES, "the first narrow tile begins before the last wide one is stored");

// What every role knows of a ring: SLOTS slots of SLOT_BYTES, a in the first A_BYTES of each.
template <int SLOTS_, int SLOT_BYTES_>
struct RingOf {
    static constexpr int SLOTS = SLOTS_;
    static constexpr int SLOT_BYTES = SLOT_BYTES_;
    uint32_t operands;
    uint32_t full;
    uint32_t empty;
    uint32_t tile;

    // The ring whose barriers and tiles are those from `first` on.
    DEVICE RingOf(const Shared& shared, int first)
        : operands(shared_address(shared.operands)),
          full(shared_address(shared.full) + first * 8),
          empty(shared_address(shared.empty) + first * 8),
          tile(shared_address(shared.tile) + first * sizeof(Tile)) {}

    DEVICE uint32_t a_at(uint32_t slot) const { return operands + slot * SLOT_BYTES; }
    DEVICE uint32_t b_at(uint32_t slot) const { return operands + A_BYTES + slot * SLOT_BYTES; }
    DEVICE uint32_t full_at(uint32_t slot) const { return full + slot * 8; }
    DEVICE uint32_t empty_at(uint32_t slot) const { return empty + slot * 8; }

    // Says whose slot it is, before the full barrier is arrived on; and reads it, after that phase has completed and
    // before the slot is released.
    DEVICE void put_tile(uint32_t slot, const TileOf<false>& value) const {
        ptx::st_shared_v2_u32(tile + slot * 8, static_cast<uint32_t>(value.m), static_cast<uint32_t>(value.n));
    }
    DEVICE void put_tile(uint32_t slot, const TileOf<true>& value) const {
        const uint32_t words[4] = {static_cast<uint32_t>(value.m), static_cast<uint32_t>(value.n), value.number, 0};
        ptx::st_shared_v4_u32(tile + slot * 16, words);
    }
    DEVICE Tile tile_at(uint32_t slot) const {
        constexpr int WORDS = sizeof(Tile) / 4;
        uint32_t words[WORDS];  // m, n and, where there is one, the matrix
        read(tile + slot * sizeof(Tile), words);
        return Tile::at(static_cast<int32_t>(words[0]), static_cast<int32_t>(words[1]), words[WORDS / 2]);
    }

private:
    DEVICE static void read(uint32_t address, uint32_t (&words)[2]) { ptx::ld_shared_v2_u32(address, words); }
    DEVICE static void read(uint32_t address, uint32_t (&words)[4]) { ptx::ld_shared_v4_u32(address, words); }
};
using WideRing = RingOf<Config::STAGES, Config::STAGE_BYTES>;
using NarrowRing = RingOf<(Config::TAIL_STAGES > 0 ? Config::TAIL_STAGES : 1), NARROW_BYTES>;
