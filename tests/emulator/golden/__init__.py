"""Golden vectors: small kernels whose outputs were recorded on an H200, for the emulator to reproduce."""
