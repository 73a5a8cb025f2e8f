// Nothing, on as many CTAs and threads as the host asks for: what a launch costs that does no work.
//
// No tiles, no roles, no pipelines, no shared memory, no parameters, no limits.

extern "C" __global__ void empty_launch() {}
