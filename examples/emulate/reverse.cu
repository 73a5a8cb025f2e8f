// Reverses each block's part of x through shared memory. A barrier is missing between the writes and the reads.
//
//     tilewright emulate examples/emulate/reverse.cu --launch examples/emulate/reverse.toml
//
// names the line that reads too early. Put __syncthreads() where the comment is, and it is silent.

extern "C" __global__ void reverse(float* x) {
    __shared__ float tile[128];
    float* own = x + blockIdx.x * 128;
    tile[threadIdx.x] = own[threadIdx.x];
    // here
    own[threadIdx.x] = tile[127 - threadIdx.x];
}
