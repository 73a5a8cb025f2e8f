// The instructions round wgmma.mma_async. The multiplication itself is rendered for the one shape and type of a config
// (wgmma_mma_async.cuh), since each width is an instruction of its own.
#pragma once

#include "base.cuh"

namespace ptx {

// PTX ISA, wgmma.fence: a warpgroup. Orders earlier accesses to accumulators before the wgmmas that follow.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// PTX ISA, wgmma.commit_group: a warpgroup. Closes the current group of wgmmas.
DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// PTX ISA, wgmma.wait_group: a warpgroup. Until all but the newest PENDING groups are done: their accumulators may be
// read, their shared memory may be overwritten.
template <int PENDING>
DEVICE void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

}  // namespace ptx
