// Sets words to zero: the progress that CTAs of the next kernel tell each other of (realign.cuh). One CTA.

#include "base.cuh"
#include "ptx/misc.cuh"

extern "C" __global__ void __launch_bounds__(256, 1) clear(uint32_t* words, int32_t num_words) {
    ptx::griddepcontrol_launch_dependents();  // what comes next waits for the end of this before it reads
    for (int32_t word = threadIdx.x; word < num_words; word += 256) words[word] = 0;
}
