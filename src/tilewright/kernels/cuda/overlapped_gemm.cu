// out (M, N) = a (M, K) x b (K, N) as in hopper_gemm.cu, of operands whose rows TMA cannot read: three warps of the
// producer's warpgroup, which idle there, copy them on the way (realign.cuh), ahead of the loads.
//
// Tiles, pipelines, shared memory and limits are those of hopper_gemm.cu. Roles besides:
//
//   warp 0        one lane: the producer; it waits for a strip of k before it loads the first tile of it (StripGate)
//   warps 1 .. 3  realign: unit after unit of both operands, in the order of k, until none is left (Realigner)
//
// Single products, k contiguous in both operands, no clusters, splits or epilogues: kept by kernels/overlapped.py. The
// launch before this one has cleared `progress`.

#include "batch.cuh"
#include "config.cuh"
#include "consumer.cuh"
#include "epilogue.cuh"
#include "fused.cuh"
#include "producer.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/misc.cuh"
#include "realign.cuh"
#include "ring.cuh"
#include "schedule.cuh"
#include "split.cuh"

static_assert(Config::CLUSTER == 1 && Config::BATCH_DIMS == 0, "single CTAs, a single product");

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    overlapped_gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                    const __grid_constant__ BTailMap b_tail_map, const __grid_constant__ OutMap out_map,
                    const __grid_constant__ OutTailMap out_tail_map, void* out_base, int64_t out_pitch, int32_t m,
                    int32_t n, int32_t k, int32_t group_m, int32_t square_m, int32_t square_n, int32_t num_wide,
                    const __grid_constant__ Batch batch, const __grid_constant__ Fused fused, const void* a_source,
                    const void* b_source, void* a_target, void* b_target, void* progress,
                    const __grid_constant__ Copying copying) {
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_smem);
    const Partials& partials = *reinterpret_cast<const Partials*>(dynamic_smem + sizeof(Shared));  // none

    if (threadIdx.x == 0) {
        ptx::prefetch_tensormap(a_map);
        ptx::prefetch_tensormap(b_map);
        prefetch_map(out_map);
    }
    if (threadIdx.x == WARP_THREADS) {
        const WideRing ring(shared, 0);  // and, behind its own, the barriers of the narrow one
        for (uint32_t slot = 0; slot < SLOTS; ++slot) {
            ptx::mbarrier_init(ring.full_at(slot), Config::FULL_ARRIVALS);
            ptx::mbarrier_init(ring.empty_at(slot), Config::EMPTY_ARRIVALS);
        }
        if constexpr (Config::TAIL_N > 0) ptx::mbarrier_init(shared_address(&shared.stored), CONSUMER_WARPS);
        ptx::fence_mbarrier_init_release_cluster();
    }
    __syncthreads();
    if constexpr (Config::DEPENDENT_LAUNCH) ptx::griddepcontrol_wait();  // `progress` is zero, and out is free

    const TileSchedule schedule(m, n, Walk{group_m, square_m, square_n, num_wide}, 0);
    const KTiles k_tiles = k_tiles_of((k - 1) / Config::TILE_K + 1, 0);
    const uint32_t warpgroup = ptx::shfl_sync_idx(threadIdx.x / WARPGROUP_THREADS, 0);
    if (warpgroup == 0) {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            Producer(shared, a_map, b_map, b_tail_map, batch, k_tiles, 0, StripGate(copying, progress)).run(schedule);
        } else if (threadIdx.x >= WARP_THREADS) {
            Realigner(copying, a_source, b_source, a_target, b_target, progress).run();
        }
        __syncwarp();
    } else {
        if constexpr (Config::MOVES_REGISTERS) ptx::setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
        const Out out{out_map, out_base, out_pitch, m, n, Member{}};
        const OutTail out_tail{out_tail_map, out_base, out_pitch, m, n, Member{}};
        Consumer(shared, out, out_tail, batch, fused, partials, k_tiles.count, warpgroup - 1, 0)
            .run(schedule.num_wide(), schedule.num_narrow());
    }
}
