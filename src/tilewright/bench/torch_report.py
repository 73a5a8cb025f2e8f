"""The rows of benchmarks/host.py and benchmarks/model.py -> what is committed of them, and the tables of them.

What calls from PyTorch cost the host, and a decoder block and a training run, each beside torch. Makes no measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.bench.tables import caption, markdown

Row = dict[str, Any]

HOST, MODEL = "torch_host", "model"  # the kinds of committed rows, and the names of their files


def published(kind: str, rows: Sequence[Row]) -> list[Row]:
    """The rows as they are committed: all that was printed, under a kind that no other table reads."""
    return [{"kind": kind} | row for row in rows]


def host_table(rows: Sequence[Row]) -> str:
    """One line a way of ours: its microseconds before the call returns beside those of torch's way, and the bar."""
    own = {row["way"]: row for row in rows if row.get("kind") == HOST and "way" in row}
    lines = [
        (
            f"`{way}`" if "." in way and " " not in way else way,
            f"{row['median_us']:.1f}",
            row["over"],
            f"{own[row['over']]['median_us']:.1f}",
            f"**{row['ratio']:.2f}**",
            f"{row['bar']:.2f}",
        )
        for way, row in own.items()
        if "over" in row
    ]
    meaning = (
        "Microseconds before the call returns, of 128 x 128 x 128 in bf16, medians of shuffled rounds. A ratio is the "
        "median over rounds of ours over torch's of the same round."
    )
    for row in (row for row in rows if row.get("kind") == HOST and "calls" in row):
        meaning += (
            f" {row['calls']:,} calls more left {row['host_kib']} KiB in the process's peak memory and "
            f"{row['device_bytes']} bytes of the device's behind."
        )
    head = ("call", "us", "torch's", "us", "ratio", "bar")
    return markdown(head, lines) + caption(list(own.values()), meaning)


def block_table(rows: Sequence[Row]) -> str:
    """One line a mode and pass of the decoder block: both times, the ratio and its range over rounds, both peaks."""
    own = [row for row in rows if row.get("kind") == MODEL and row["part"] == "block"]
    lines = [
        (
            row["mode"],
            row["pass"],
            f"{row['torch_ms']:.3f}",
            f"{row['tilewright_ms']:.3f}",
            f"**{row['ratio']:.3f}**",
            f"{row['least']:.3f} .. {row['most']:.3f}",
            f"{row['torch_peak_mib']:,}, {row['tilewright_peak_mib']:,}",
            f"{row['apart']:.3f}",
        )
        for row in own
    ]
    meaning = (
        "A decoder block of Llama 3 8B, 2 x 2048 tokens, bf16, milliseconds. A ratio is the median over rounds of "
        "torch's time over tilewright's of the same round, the range that of all rounds. Peaks are of both models "
        "together. Apart: the largest difference of an element of the output or of a gradient, over the root mean "
        "square of its tensor."
    )
    head = ("mode", "pass", "torch ms", "tilewright ms", "ratio", "range", "peaks, MiB", "apart")
    return markdown(head, lines) + caption(own, meaning)


def training_table(rows: Sequence[Row]) -> str:
    """One line a training run: its time a step, its first and last loss, and how far its losses are from torch's."""
    own = [row for row in rows if row.get("kind") == MODEL and row["part"] == "training"]
    apart: dict[str, float] = next((row["apart"] for row in own if "apart" in row), {})
    off: dict[str, float] = next((row["off"] for row in own if "off" in row), {})
    runs = [row for row in own if "losses" in row]
    lines = [
        (
            row["run"],
            f"{row['ms_a_step']:.2f}",
            f"{row['losses'][0]:.5f}",
            f"{row['losses'][-1]:.5f}",
            f"{apart[row['run']]:.2e}" if row["run"] in apart else "-",
            f"{off[row['run']]:.2e}" if row["run"] in off else "-",
            f"{row['peak_mib']:,}",
        )
        for row in runs
    ]
    steps = len(runs[0]["losses"]) if runs else 0
    meaning = (
        f"Two MLPs of Llama 3 8B with residuals, 4096 rows, bf16, {steps} steps of AdamW from the same weights, one "
        "run each. Apart: the largest relative distance of a loss from torch's eager one of the same step. Another "
        "order: of torch's rows, so the same sums in another order. Float32 inside: the same weights and optimizer in "
        "bf16, activations, sums and gradients in float32; off is the distance from its losses. Each peak holds what "
        "else was alive: both models of a pair, and the gradients of the one that ran before."
    )
    head = ("run", "ms a step", "first loss", "last loss", "apart", "off", "peak, MiB")
    return markdown(head, lines) + caption(runs, meaning)


TABLES = {"torch-host": host_table, "model-block": block_table, "model-training": training_table}
