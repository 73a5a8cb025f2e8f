"""The shapes that tilewright is measured on: sizes by group. Knows nothing of how they are measured.

Each is (M, N, K) of out (M, N) = a (M, K) x b (K, N), both inputs k-contiguous (an (N, K) weight as `w.t()`).
"""

from __future__ import annotations

import json
from pathlib import Path

from tilewright.errors import UnsupportedError

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


def shapes() -> tuple[Shape, ...]:
    """Every shape of every group, in the order of the table."""
    return tuple(shape for group in GROUPS.values() for shape in group)


def named(text: str) -> tuple[Shape, ...]:
    """The shapes of a group, of every group ("all"), or of a JSON file {"group": [[M, N, K], ...], ...}.

    Raises: UnsupportedError: neither, or a file that holds something else.
    """
    if text == "all":
        return shapes()
    if text in GROUPS:
        return GROUPS[text]
    refusal = UnsupportedError(
        asked=f"shapes of {text!r}",
        rule=f"groups are all, {', '.join(GROUPS)}; a file is JSON, {{group: [[M, N, K], ...]}}",
        works="name a group or such a file",
    )
    try:
        groups = json.loads(Path(text).read_text(encoding="utf-8"))
        found = [tuple(shape) for group in groups.values() if isinstance(group, list) for shape in group]
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise refusal from error
    if not found or not all(len(shape) == 3 and all(type(size) is int for size in shape) for shape in found):
        raise refusal
    return tuple(dict.fromkeys(found))
