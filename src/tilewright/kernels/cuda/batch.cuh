// Which matrix of a batch a tile belongs to, and how TMA and pointers reach it. A batch has BATCH_DIMS dimensions
// beside the two of its matrices: 0 (a single matrix: everything here is empty), 1, or 3 (two are three with one of
// extent 1). Knows tensor-map coordinates; nothing of tiles.
#pragma once

#include "config.cuh"
#include "ptx/copy.cuh"

// The place of a matrix in the batch, the dimension that is walked fastest first.
template <int DIMS>
struct MemberOf {
    int32_t at[DIMS];
};
template <>
struct MemberOf<0> {};

// What the host tells of a batch, at run time.
template <int DIMS>
struct BatchOf {
    int64_t num_matrices;       // the product of the extents; all their tiles are fewer than 2^30
    int64_t extents[DIMS];      // the fastest first
    int64_t a_moves[DIMS];      // 1; 0 where a is the same matrix all along: its map has an extent of 1 there
    int64_t b_moves[DIMS];
    int64_t out_strides[DIMS];  // elements

    DEVICE uint32_t count() const { return static_cast<uint32_t>(num_matrices); }

    // The matrix of out with this number, 0 .. num_matrices-1.
    DEVICE MemberOf<DIMS> member(uint32_t number) const {
        MemberOf<DIMS> found;
#pragma unroll
        for (int dim = 0; dim < DIMS - 1; ++dim) {
            const uint32_t extent = static_cast<uint32_t>(extents[dim]);
            found.at[dim] = static_cast<int32_t>(number % extent);
            number /= extent;
        }
        found.at[DIMS - 1] = static_cast<int32_t>(number);
        return found;
    }

    // The matrix of a, and of b, that belongs to a matrix of out.
    DEVICE MemberOf<DIMS> a_member(const MemberOf<DIMS>& member) const { return moved_by(a_moves, member); }
    DEVICE MemberOf<DIMS> b_member(const MemberOf<DIMS>& member) const { return moved_by(b_moves, member); }

    // Elements from the first matrix of out to this one.
    DEVICE int64_t out_offset(const MemberOf<DIMS>& member) const {
        int64_t offset = 0;
#pragma unroll
        for (int dim = 0; dim < DIMS; ++dim) offset += member.at[dim] * out_strides[dim];
        return offset;
    }

private:
    DEVICE static MemberOf<DIMS> moved_by(const int64_t (&moves)[DIMS], const MemberOf<DIMS>& member) {
        MemberOf<DIMS> found;
#pragma unroll
        for (int dim = 0; dim < DIMS; ++dim) found.at[dim] = member.at[dim] * static_cast<int32_t>(moves[dim]);
        return found;
    }
};
template <>
struct BatchOf<0> {
    int32_t unused;

    DEVICE uint32_t count() const { return 1; }
    DEVICE MemberOf<0> member(uint32_t) const { return {}; }
    DEVICE MemberOf<0> a_member(const MemberOf<0>&) const { return {}; }
    DEVICE MemberOf<0> b_member(const MemberOf<0>&) const { return {}; }
    DEVICE int64_t out_offset(const MemberOf<0>&) const { return 0; }
};

using Member = MemberOf<Config::BATCH_DIMS>;
using Batch = BatchOf<Config::BATCH_DIMS>;

// TMA's load of the box at (x, y) of one matrix: the instruction of the map's rank.
DEVICE void load_box(uint32_t target, const TensorMap& map, int32_t x, int32_t y, const MemberOf<0>&,
                     uint32_t barrier) {
    ptx::cp_async_bulk_tensor_2d_load(target, map, x, y, barrier);
}
DEVICE void load_box(uint32_t target, const TensorMap& map, int32_t x, int32_t y, const MemberOf<1>& member,
                     uint32_t barrier) {
    ptx::cp_async_bulk_tensor_3d_load(target, map, x, y, member.at[0], barrier);
}
DEVICE void load_box(uint32_t target, const TensorMap& map, int32_t x, int32_t y, const MemberOf<3>& member,
                     uint32_t barrier) {
    ptx::cp_async_bulk_tensor_5d_load(target, map, x, y, member.at[0], member.at[1], member.at[2], barrier);
}

// The same into every CTA of the mask.
DEVICE void load_box_multicast(uint32_t target, const TensorMap& map, int32_t x, int32_t y, const MemberOf<0>&,
                               uint32_t barrier, uint16_t cta_mask) {
    ptx::cp_async_bulk_tensor_2d_load_multicast(target, map, x, y, barrier, cta_mask);
}
DEVICE void load_box_multicast(uint32_t target, const TensorMap& map, int32_t x, int32_t y, const MemberOf<1>& member,
                               uint32_t barrier, uint16_t cta_mask) {
    ptx::cp_async_bulk_tensor_3d_load_multicast(target, map, x, y, member.at[0], barrier, cta_mask);
}
DEVICE void load_box_multicast(uint32_t target, const TensorMap& map, int32_t x, int32_t y, const MemberOf<3>& member,
                               uint32_t barrier, uint16_t cta_mask) {
    ptx::cp_async_bulk_tensor_5d_load_multicast(target, map, x, y, member.at[0], member.at[1], member.at[2], barrier,
                                                cta_mask);
}

// TMA's store of the box at (x, y) of one matrix.
DEVICE void store_box(const TensorMap& map, int32_t x, int32_t y, const MemberOf<0>&, uint32_t source) {
    ptx::cp_async_bulk_tensor_2d_store(map, x, y, source);
}
DEVICE void store_box(const TensorMap& map, int32_t x, int32_t y, const MemberOf<1>& member, uint32_t source) {
    ptx::cp_async_bulk_tensor_3d_store(map, x, y, member.at[0], source);
}
DEVICE void store_box(const TensorMap& map, int32_t x, int32_t y, const MemberOf<3>& member, uint32_t source) {
    ptx::cp_async_bulk_tensor_5d_store(map, x, y, member.at[0], member.at[1], member.at[2], source);
}
