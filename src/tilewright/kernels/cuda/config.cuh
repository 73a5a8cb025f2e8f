// Rendered for one kernel by kernels/render.py. The copy in the source tree is the default, for editors.
#pragma once

#include "base.cuh"

struct Config {
    static constexpr int TILE_M = 128;
    static constexpr int TILE_N = 256;
    static constexpr int TILE_K = 64;
    static constexpr int STAGES = 4;
    static constexpr int CONSUMERS = 2;
    static constexpr int WGMMAS_M = 1;
    static constexpr int CLUSTER_M = 1;
    static constexpr int CLUSTER_N = 1;
    static constexpr int SHARING = 1;
    static constexpr int A_BOX_ROWS = 128;
    static constexpr int B_BOX_ROWS = 256;
    static constexpr int SPLIT_K = 1;
    static constexpr int CLUSTER = 1;
    static constexpr int THREADS = 384;
    static constexpr bool PINGPONG = false;
    static constexpr int TAIL_N = 0;
    static constexpr int TAIL_STAGES = 0;
    static constexpr bool STAGGERED = false;
    static constexpr bool K_BACK_AND_FORTH = false;
    static constexpr bool MOVES_REGISTERS = true;
    static constexpr int PRODUCER_REGISTERS = 24;
    static constexpr int CONSUMER_REGISTERS = 240;
    static constexpr int FULL_ARRIVALS = 1;
    static constexpr int EMPTY_ARRIVALS = 8;
    static constexpr int STAGE_BYTES = 49152;
    static constexpr int STORE_WARP_BYTES = 4096;
    static constexpr int TAIL_STORE_WARP_BYTES = 0;
    static constexpr int STORED_N = 256;
    static constexpr int STORE_COLUMNS = 64;
    static constexpr int TAIL_STORE_COLUMNS = 0;
    static constexpr int PARTIAL_BYTES = 0;
    static constexpr int SMEM_BYTES = 230400;
    static constexpr bool A_K_MAJOR = true;
    static constexpr bool B_K_MAJOR = true;
    static constexpr int BATCH_DIMS = 0;
    static constexpr Type OUT_TYPE = Type::bf16;
    static constexpr bool OUT_THROUGH_TMA = true;
    static constexpr bool OUT_TRANSPOSED = false;
    static constexpr bool DEPENDENT_LAUNCH = false;
    static constexpr bool LAUNCHES_DEPENDENTS = false;
    static constexpr int WAIT_LIMIT = 0;
};
