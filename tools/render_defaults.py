"""Writes the default rendered headers into kernels/cuda, so that an editor that opens a kernel finds every name."""

from __future__ import annotations

from pathlib import Path

from tilewright.config import Config
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed

FOLDER = Path(__file__).parent.parent / "src" / "tilewright" / "kernels" / "cuda"


def defaults() -> dict[str, str]:
    """The headers of the default config at 8192^3 bf16 by path."""
    return HOPPER.headers(packed(8192, 8192, 8192), Config())


if __name__ == "__main__":
    for path, text in defaults().items():
        (FOLDER / path).write_text(text, encoding="utf-8")
