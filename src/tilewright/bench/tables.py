"""Lines of cells -> a Markdown table and its caption: what the numbers are, and where they come from.

Knows the facts that rows carry of their origin, and nothing of what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

# What a caption says of a row's origin: names of the facts that a file of rows has.
ORIGIN = (
    "device", "driver_cuda", "torch", "nvidia_cublas", "compiler", "nvidia_cuda_nvrtc", "date", "commit", "command",
)  # fmt: skip

NO_ROWS = "_No rows._\n"
NOT_MEASURED = "_Not measured yet._\n"  # of a page that stands before its rows do


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The table; a sentence where there are no lines."""
    if not lines:
        return NO_ROWS
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in rows)


def caption(rows: Sequence[Row], meaning: str) -> str:
    """What the numbers are, and where they come from: device, versions, day, command; nothing for no rows."""
    sources = dict.fromkeys(_source(row) for row in rows)
    return f"\n{meaning}\n" * bool(rows) + "".join(f"\n{source}\n" for source in sources)


def _source(row: Row) -> str:
    parts = [
        row.get("device"),
        f"driver for CUDA {row['driver_cuda']}" if row.get("driver_cuda") else None,
        f"torch {row['torch']}" if row.get("torch") else None,
        f"cuBLAS {row['nvidia_cublas']}" if row.get("nvidia_cublas") else None,
        row.get("compiler") or f"nvrtc {row.get('nvidia_cuda_nvrtc')}",
        row.get("date"),
        f"commit {row['commit']}" if row.get("commit") else None,
        f"`{row['command']}`" if row.get("command") else None,
    ]
    return ", ".join(str(part) for part in parts if part) + "."


def layout_of(row: Row) -> str:
    """The types and the layout of b that a row's product has: "bf16 TN", k-contiguous, "bf16 -> fp32 NN", row-major."""
    layout = {"k": "TN", "n": "NN"}[row["b_major"]]
    out = "" if row["out_dtype"] == row["dtype"] else f" -> {row['out_dtype']}"
    return f"{row['dtype']}{out} {layout}"
