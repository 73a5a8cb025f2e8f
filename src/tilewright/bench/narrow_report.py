"""The narrow rows -> the lines of a table, with what today's model would have chosen. Makes no measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import model
from tilewright.bench.floor import floor
from tilewright.device import preset
from tilewright.problem import packed

Row = dict[str, Any]

COLUMNS = ("M, N, K", "cuBLAS", "fastest", "ratio", "share of the floor", "config", "choice", "behind the fastest")
_PRESET = "h200"  # whose rows there are


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a product in the order of m, n, k; "-" where the model's choice was not measured."""
    shapes = sorted({(row["m"], row["n"], row["k"]) for row in rows})
    return [_line([row for row in rows if (row["m"], row["n"], row["k"]) == shape]) for shape in shapes]


def _line(rows: Sequence[Row]) -> tuple[str, ...]:
    baseline = next((row["median_us"] for row in rows if row["candidate"] == "cublas"), None)
    ours = [row for row in rows if row.get("config") and "dependent" not in row["config"]]
    best = min(ours, key=lambda row: float(row["median_us"]))
    first = rows[0]
    problem = packed(first["m"], first["n"], first["k"])
    least = floor(problem, first["mode"], first["device"])
    choice = model.best(problem, preset(_PRESET))
    own = [row for row in ours if row["config"] == str(choice.config) and row["ctas"] == choice.prediction.grid]
    taken = own[0]["median_us"] if own else None
    return (
        f"{problem.m}, {problem.n}, {problem.k}",
        "-" if baseline is None else f"{baseline:.2f}",
        f"{best['median_us']:.2f}",
        "-" if baseline is None else f"**{baseline / best['median_us']:.3f}**",
        "-" if least is None else f"{least.us / best['median_us']:.0%}",
        best["config"],
        "-" if taken is None else f"{taken:.2f}",
        "-" if taken is None else f"{taken / best['median_us'] - 1:.1%}",
    )
