"""Where kernels run: the CUDA driver now, the emulator beside it. A backend knows nothing of GEMM."""
