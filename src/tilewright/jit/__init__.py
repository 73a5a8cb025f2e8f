"""Source -> NVRTC -> Binary, with a cache on disk. Knows nothing of GEMM, of present devices or of kernels."""
