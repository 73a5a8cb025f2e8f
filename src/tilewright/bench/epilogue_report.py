"""The rows of benchmarks/epilogues.py -> what is committed of them, and the tables of them. Makes no measurement.

Two parts: what each epilogue adds to the plain kernel, and layers beside torch, eager and compiled. Knows nothing of
how one was timed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.bench.published import published_parts
from tilewright.bench.tables import caption, markdown

Row = dict[str, Any]

KIND = "epilogue"  # of every committed row; `part` says which: check, time, layer, child
SIZE = 4096  # m, n and k of what is timed beside the plain kernel
LAYER_BARS = {"ratio": 1.15, "ratio_compile": 1.05}  # of the geometric means (issue 7): over eager, over compiled

_KEPT = (
    "status", "why", "candidate", "layer", "tokens", "n", "k", "mode", "cost", "bar", "config", "spill", "median_us",
    "lower_us", "upper_us", "spread", "rounds", "ratio", "ratio_lower", "ratio_upper", "ratio_compile", "watts",
    "clock_mhz", "error_over_bound",
)  # fmt: skip


def published(rows: Sequence[Row]) -> list[Row]:
    """The rows as they are committed."""
    return published_parts(rows, KIND, _KEPT)


# -- each beside the plain kernel --------------------------------------------------------------------------------------


def costs_table(rows: Sequence[Row]) -> str:
    """One line an epilogue: what it adds to the plain kernel's time, as matmul chooses and with ping-pong tiles.

    Units: microseconds; a cost is the median over rounds of its time over the plain kernel's, less one, and its
    quartiles are those of the same ratios.
    """
    timed = {row["candidate"]: row for row in rows if row.get("kind") == KIND and "cost" in row}
    plain = next((row for row in rows if row.get("kind") == KIND and row.get("candidate") == "plain"), None)
    lines = []
    for candidate, row in timed.items():
        name, which = candidate.rsplit(", ", 1)
        if which == "own" and plain is not None:
            hiding = timed.get(f"{name}, ping-pong")
            bar = row.get("bar")
            lines.append(
                (
                    name,
                    f"{row['median_us']:.1f}",
                    f"**{_percent(row['cost'])}**",
                    _quartiles(row),
                    "-" if bar is None else f"{100 * bar:.0f} %",
                    "that of plain" if row["config"] == plain["config"] else str(row["config"]),
                    "-" if hiding is None else f"{_percent(hiding['cost'])} ({_quartiles(hiding)})",
                )
            )
    head = ("epilogue", "us", "adds", "quartiles", "bar", "config", "in ping-pong tiles 128x192")
    if plain is None:
        return markdown(head, [])
    checked = [row for row in rows if row.get("kind") == KIND and row.get("part") == "check"]
    told = "".join(
        f" Checked in small sizes, in all forms of the kernels: {row['ok']} products right, {row['wrong']} wrong."
        for row in checked
    )
    meaning = (
        f"{SIZE} x {SIZE} x {SIZE}, bf16, interleaved, operands and arrays cold, replayed from graphs. Beside the "
        f"plain kernel, {plain['median_us']:.1f} us in {plain['config']}, in the same rounds. A bar is what was "
        "allowed; a dash: none was set. A gated out has half of the columns."
    )
    return markdown(head, lines) + caption([plain], meaning + told)


def _quartiles(row: Row) -> str:
    lower, upper = (_percent(1 / row[name] - 1) for name in ("ratio_upper", "ratio_lower"))
    return f"{lower} .. {upper}"


def _percent(share: float) -> str:
    return f"{100 * share + 0.0:.1f} %".replace("-0.0 %", "0.0 %")


# -- layers beside torch -----------------------------------------------------------------------------------------------


def layers_table(rows: Sequence[Row]) -> str:
    """One line a layer and number of tokens: torch eager, torch.compile, and one call of matmul with an epilogue.

    Units: microseconds; ratios are medians over rounds of torch's time over tilewright's of the same round.
    """
    own = [row for row in rows if row.get("kind") == KIND and row.get("part") == "layer" and "median_us" in row]
    times = {(row["layer"], row["tokens"], row["candidate"]): row["median_us"] for row in own}
    lines = []
    for row in (row for row in own if row["candidate"] == "tilewright"):
        compiled = times.get((row["layer"], row["tokens"], "compile"))
        lines.append(
            (
                row["layer"],
                f"{row['tokens']}, {row['n']}, {row['k']}",
                f"{times[row['layer'], row['tokens'], 'eager']:.0f}",
                "-" if compiled is None else f"{compiled:.0f}",
                f"{row['median_us']:.0f}",
                f"**{row['ratio']:.3f}**",
                f"{row['ratio_lower']:.3f} .. {row['ratio_upper']:.3f}",
                f"**{row['ratio_compile']:.3f}**" if "ratio_compile" in row else "-",
                row["config"],
            )
        )
    head = ("layer", "tokens, n, k", "eager us", "compiled us", "tilewright us", "over eager", "quartiles",
            "over compiled", "config")  # fmt: skip
    meaning = "bf16, interleaved, operands cold, all three replayed from graphs, so that no host cost is in them."
    if lines:
        means = {key: layers_mean(own, key) for key in LAYER_BARS}
        meaning += (
            f" Compiled: torch.compile, `max-autotune-no-cudagraphs`. Geometric means of {len(lines)}: "
            f"{means['ratio']:.4f} over eager, for which {LAYER_BARS['ratio']} was asked, and "
            f"{means['ratio_compile']:.4f} over compiled, for which {LAYER_BARS['ratio_compile']} was."
        )
    return markdown(head, lines) + caption(own, meaning)


def layers_mean(rows: Sequence[Row], key: str) -> float:
    """The geometric mean of one ratio over all layers; 0 without any."""
    found = [row[key] for row in rows if row.get("candidate") == "tilewright" and row.get(key)]
    return math.exp(sum(map(math.log, found)) / len(found)) if found else 0.0


TABLES = {"epilogues": costs_table, "layers": layers_table}
