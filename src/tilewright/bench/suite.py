"""The shapes that tilewright is measured on: sizes by group. Knows nothing of how they are measured.

Each is (M, N, K) of out (M, N) = a (M, K) x b (K, N), both inputs k-contiguous (an (N, K) weight as `w.t()`).
"""

from __future__ import annotations

Shape = tuple[int, int, int]

GROUPS: dict[str, tuple[Shape, ...]] = {
    "square": (
        (512, 512, 512),
        (1024, 1024, 1024),
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (16384, 16384, 16384),
    ),
    "tiny": (
        (128, 128, 128),
        (384, 128, 256),
    ),
    "odd": (
        (1000, 1000, 1000),
        (4095, 4095, 4095),
        (4096, 4096, 4097),
        (4096, 4096, 4100),
        (4096, 4096, 4104),
        (4097, 4097, 4096),
        (512, 50257, 4096),
    ),
    "llama3_8b": (
        (16, 6144, 4096),
        (64, 6144, 4096),
        (128, 6144, 4096),
        (512, 6144, 4096),
        (2048, 6144, 4096),
        (8192, 6144, 4096),
        (16, 4096, 4096),
        (64, 4096, 4096),
        (128, 4096, 4096),
        (512, 4096, 4096),
        (2048, 4096, 4096),
        (8192, 4096, 4096),
        (16, 28672, 4096),
        (64, 28672, 4096),
        (128, 28672, 4096),
        (512, 28672, 4096),
        (2048, 28672, 4096),
        (8192, 28672, 4096),
        (16, 4096, 14336),
        (64, 4096, 14336),
        (128, 4096, 14336),
        (512, 4096, 14336),
        (2048, 4096, 14336),
        (8192, 4096, 14336),
    ),
    "llama3_70b": (
        (128, 10240, 8192),
        (4096, 10240, 8192),
        (128, 57344, 8192),
        (4096, 57344, 8192),
        (128, 8192, 28672),
        (4096, 8192, 28672),
    ),
    "deepseek_v3": (
        (64, 2112, 7168),
        (128, 2112, 7168),
        (4096, 2112, 7168),
        (64, 24576, 1536),
        (128, 24576, 1536),
        (4096, 24576, 1536),
        (64, 32768, 512),
        (128, 32768, 512),
        (4096, 32768, 512),
        (64, 7168, 16384),
        (128, 7168, 16384),
        (4096, 7168, 16384),
        (64, 4096, 7168),
        (128, 4096, 7168),
        (4096, 4096, 7168),
        (64, 7168, 2048),
        (128, 7168, 2048),
        (4096, 7168, 2048),
    ),
    "lm_head": ((512, 128256, 4096),),
    "large_k": (
        (256, 256, 65536),
        (512, 512, 16384),
    ),
    "tall": (
        (65536, 128, 128),
        (131072, 256, 512),
    ),
}

# What each group stands for, for the tables.
MEANINGS: dict[str, str] = {
    "square": "squares of powers of two",
    "tiny": "one to three tiles: launch and latency",
    "odd": "sizes that are no multiples of tiles, vectors or 16 bytes",
    "llama3_8b": "linear layers of Llama 3 8B, decode to prefill",
    "llama3_70b": "linear layers of Llama 3 70B",
    "deepseek_v3": "linear layers of DeepSeek V3",
    "lm_head": "a language model's head",
    "large_k": "few tiles with a long sum",
    "tall": "many rows, little work a row",
}


def shapes() -> tuple[Shape, ...]:
    """Every shape of every group, in the order of the table."""
    return tuple(shape for group in GROUPS.values() for shape in group)
