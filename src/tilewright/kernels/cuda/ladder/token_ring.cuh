// Waiting as CUDA's own barriers teach it: a thread arrives, keeps the token of the phase, and waits for that phase.
// So everybody who waits must arrive too, and the barrier counts every thread. v07 does without.
#pragma once

#include "config.cuh"
#include "ptx/barrier.cuh"
#include "ptx/misc.cuh"

// Until the phase of the token has completed. With a wait limit (a debug build) it traps instead of hanging the device.
DEVICE void wait_token(uint32_t barrier, uint64_t token) {
    for (uint32_t tries = 0; !ptx::mbarrier_try_wait(barrier, token); ++tries) {
        if (Config::WAIT_LIMIT > 0 && tries == Config::WAIT_LIMIT) ptx::trap();
    }
}

// One arrival of this thread, and the wait for all the others.
DEVICE void arrive_and_wait(uint32_t barrier) { wait_token(barrier, ptx::mbarrier_arrive_token(barrier)); }

// The slot after this one.
template <int SLOTS>
DEVICE uint32_t next_slot(uint32_t slot) {
    return slot + 1 == SLOTS ? 0 : slot + 1;
}
