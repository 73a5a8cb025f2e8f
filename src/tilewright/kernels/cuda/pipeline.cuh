// The ring between producer and consumers: a position in it, and a bounded wait.
// Knows mbarriers and parities; nothing of what the slots hold.
#pragma once

#include "config.cuh"
#include "ptx/barrier.cuh"
#include "ptx/misc.cuh"

// A position in a ring of SLOTS slots. `parity` is that of the phase to wait for: consumers start at 0; a producer
// starts at 1, since a fresh barrier counts as having completed a phase of parity 1, so its first round does not wait.
template <int SLOTS>
struct PipelineState {
    uint32_t index;   // 0 .. SLOTS-1
    uint32_t parity;  // 0 or 1

    DEVICE void advance() {
        index += 1;
        if (index == SLOTS) {
            index = 0;
            parity ^= 1;
        }
    }

    // Past `count` slots that another consumer works on.
    DEVICE void skip(uint32_t count) {
        const uint32_t position = index + count;
        index = position % SLOTS;
        parity ^= position / SLOTS & 1;
    }
};

// Until the phase of this parity has completed. With a wait limit (a debug build) a wait that lasts longer traps, so
// that a deadlock ends the grid with an error instead of hanging the device.
DEVICE void wait(uint32_t barrier, uint32_t parity) {
    if constexpr (Config::WAIT_LIMIT == 0) {
        while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
        }
    } else {
        for (uint32_t tries = 0; !ptx::mbarrier_try_wait_parity(barrier, parity); ++tries) {
            if (tries == Config::WAIT_LIMIT) ptx::trap();
        }
    }
}
