"""The shapes that tilewright is measured on: sizes by group. Knows nothing of how they are measured.

Each is (M, N, K) of out (M, N) = a (M, K) x b (K, N), both inputs k-contiguous (an (N, K) weight as `w.t()`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DTypeLike
from tilewright.errors import UnsupportedError
from tilewright.problem import Major, Problem

Shape = tuple[int, int, int]

_SIZES = re.compile(r"(\d{1,9})x(\d{1,9})x(\d{1,9})")

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


# Sizes one beside the other: is one of them a cliff? Not part of "all"; neighbours.py reads the rows.
SWEEPS: dict[str, tuple[Shape, ...]] = {
    "neighbours": (
        *((4096, n, 4096) for n in range(2040, 2073)),
        *((4096, 4096, k) for k in range(8184, 8201)),
    ),
    "decode": tuple((m, n, 4096) for n in (4096, 6144) for m in range(1, 65)),
}


def shapes() -> tuple[Shape, ...]:
    """Every shape of every group, in the order of the table."""
    return tuple(shape for group in GROUPS.values() for shape in group)


@dataclass(frozen=True)
class Entry:
    """One product to measure: a shape and the group that it stands for."""

    group: str
    shape: Shape

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))


def entries(text: str) -> list[Entry]:
    """What a suite names, each shape once: "all", groups of GROUPS, SWEEPS, MxNxK, joined by commas; or a JSON file.

    The file holds {"group": [[M, N, K], ...], ...}; what is no list, such as a comment, is passed over.
    Raises: UnsupportedError: none of these, or nothing in it.
    """
    if text.endswith(".json"):
        found = _from_file(Path(text))
    else:
        found = [entry for word in text.split(",") for entry in _from_word(word.strip())]
    if not found:
        raise UnsupportedError(asked=f"the suite {text!r}", rule="it names no shape", works="name a group or MxNxK")
    once: dict[Shape, Entry] = {}
    for entry in found:
        once.setdefault(entry.shape, entry)
    return list(once.values())


def _from_word(word: str) -> list[Entry]:
    if word == "all":
        return [Entry(group, shape) for group, own in GROUPS.items() for shape in own]
    if (own := (GROUPS | SWEEPS).get(word)) is not None:
        return [Entry(word, shape) for shape in own]
    sizes = _SIZES.fullmatch(word)
    if sizes is None or "0" in sizes.groups():
        raise UnsupportedError(
            asked=f"the suite {word!r}",
            rule=f"a suite is all, one of {', '.join(GROUPS | SWEEPS)}, sizes MxNxK, or a .json file of groups",
            works="name some of them, joined by commas",
        )
    m, n, k = map(int, sizes.groups())
    return [Entry("named", (m, n, k))]


def _from_file(path: Path) -> list[Entry]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}")
        groups = {group: own for group, own in content.items() if isinstance(own, list)}
        return [Entry(group, _shape(sizes)) for group, own in groups.items() for sizes in own]
    except (OSError, RecursionError, ValueError) as error:
        raise UnsupportedError(
            asked=f"the suite in {path}",
            rule=f'it is no JSON of {{"group": [[M, N, K], ...]}}: {error}',
            works="name an existing file of that form",
        ) from error


def _shape(sizes: Any) -> Shape:
    if not isinstance(sizes, list) or len(sizes) != 3 or not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"{sizes} is no [M, N, K]")
    m, n, k = sizes
    return (m, n, k)


def problem_of(
    shape: Shape, *, dtype: DTypeLike = "bf16", out_dtype: DTypeLike | None = None, b_major: Major = "k"
) -> Problem:
    """The product of contiguous matrices, as they are in a model: rows are padded to nothing.

    Unlike packing.packed(), rows of an odd length stay odd; whether tilewright serves them, its plan says.
    """
    m, n, k = shape
    kind = dtypes.by_name(dtype)
    return Problem(
        m=m,
        n=n,
        k=k,
        dtype=kind,
        out_dtype=kind if out_dtype is None else dtypes.by_name(out_dtype),
        b_major=b_major,
        a_pitch=k,
        b_pitch=k if b_major == "k" else n,
        out_pitch=n,
    )


def problem_columns(problem: Problem) -> dict[str, Any]:
    """The columns that say which problem a row is of."""
    return {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.dtype.name,
        "out_dtype": problem.out_dtype.name,
        "b_major": problem.b_major,
    }
