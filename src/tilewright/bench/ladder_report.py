"""The ladder's rows -> a table for the terminal and for Markdown, and a plot. Makes no measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.bench.ladder import CUBLAS, INSTRUCTIONS, MODES, PRODUCTION, TRACKS, TUNED, WGMMA
from tilewright.bench.plots import drawing
from tilewright.errors import UnsupportedError
from tilewright.kernels.ladder import RUNGS

Row = dict[str, Any]

COLUMNS = (
    "rung", "burst", "steady", "interleaved", "public", "of cuBLAS, burst", "of cuBLAS, steady",
    *(f"of {instruction}, {mode}" for instruction in INSTRUCTIONS for mode in ("burst", "steady")),
    "W", "TFLOPS/W", "MHz", "registers", "shared KiB", "occupancy %", "achieved %", "tensor pipe %", "bank conflicts",
    "DRAM MB", "L2 MB",
)  # fmt: skip
PUBLIC = {rung.name: rung.public_tflops for rung in RUNGS if rung.public_tflops is not None} | {PRODUCTION: 825.0}
ORDER = tuple(name for track in TRACKS.values() for name in track)


def shown(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and lines, without the columns that no line fills; a mode that was not measured is shown as such."""
    lines = cells(rows)
    used = [i for i, name in enumerate(COLUMNS) if name in MODES or any(line[i] != "-" for line in lines)]
    return tuple(COLUMNS[i] for i in used), [tuple(line[i] for i in used) for line in lines]


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a rung that was timed or failed, in the order of the ladder, cuBLAS and its best last; "-" is not known.

    Units: burst, steady and interleaved in TFLOPS; shares of cuBLAS and of the loop of the rung's instruction in the
    same mode; watts and clock of the steady mode; occupancy in warps of those that an SM can hold, by arithmetic and by
    ncu, and how long the tensor pipe was busy, by ncu; conflicts in extra wavefronts over the fewest that shared
    memory's accesses take, by ncu or else by the emulator; 10^6 bytes that DRAM, and that the L2 for the SMs, read and
    wrote in one launch, by ncu.
    """
    timed = {(row["rung"], row["mode"]): row for row in rows if row["kind"] == "rung_time" and row["status"] == "ok"}
    counted = {row["rung"]: row for row in rows if row["kind"] == "rung_counters" and row["status"] == "ok"}
    conflicts = {row["rung"]: row["conflicts"] for row in rows if row["kind"] == "rung_emulated" and "conflicts" in row}
    conflicts |= {rung: _conflicts(row) for rung, row in counted.items() if _conflicts(row) is not None}
    failed = {row["rung"]: row["status"] for row in rows if row["status"] != "ok" and row["kind"] != "rung_counters"}
    lines = []
    for name in (*ORDER, CUBLAS, TUNED):
        burst, steady, turns = (timed.get((name, mode)) for mode in ("burst", "steady", "interleaved"))
        if not (burst or steady or turns):
            if name in failed:
                lines.append((name, failed[name], *["-"] * (len(COLUMNS) - 2)))
            continue
        any_row = burst or steady or turns
        assert any_row is not None
        lines.append(
            (
                name,
                _number(burst, "rate_tflops"),
                _number(steady, "rate_tflops"),
                _number(turns, "rate_tflops"),
                f"{PUBLIC[name]:.0f}" if name in PUBLIC else "-",
                _number(burst, "ratio", 3),
                _number(steady, "ratio", 3),
                *(_share(row, instruction) for instruction in INSTRUCTIONS for row in (burst, steady)),
                _number(steady, "watts"),
                _number(steady, "tflops_per_watt", 2),
                _number(steady, "clock_mhz"),
                _number(any_row, "registers"),
                "-" if any_row["smem_bytes"] is None else f"{any_row['smem_bytes'] / 1024:.0f}",
                _number(any_row, "occupancy_pct", 1),
                _number(counted.get(name), "warps_pct", 1),
                _number(counted.get(name), "hmma_pct", 1),
                "-" if conflicts.get(name) is None else f"{conflicts[name]:.2f}",
                _megabytes(counted.get(name), "dram_read_bytes", "dram_written_bytes"),
                _megabytes(counted.get(name), "l2_bytes"),
            )
        )
    return lines


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = [columns, ["---"] * len(columns), *lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bars of burst and steady TFLOPS a rung, with cuBLAS and the instructions' loops as lines.

    Raises: UnsupportedError: matplotlib is not installed.
    """
    _, pyplot = drawing(path)

    figure, axes = pyplot.subplots(figsize=(11, 5), layout="constrained")
    timed = {(row["rung"], row["mode"]): row for row in rows if row["kind"] == "rung_time" and row["status"] == "ok"}
    names = [name for name in ORDER if any((name, mode) in timed for mode in ("burst", "steady"))]
    for offset, (mode, color) in enumerate((("burst", "tab:blue"), ("steady", "tab:orange"))):
        heights = [timed[name, mode]["rate_tflops"] if (name, mode) in timed else 0.0 for name in names]
        places = [index + 0.4 * offset - 0.2 for index in range(len(names))]
        bars = axes.bar(places, heights, 0.4, color=color, label=mode)
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
        base = timed.get((CUBLAS, mode))
        if base is not None:
            axes.axhline(base["rate_tflops"], color=color, linestyle="--", linewidth=1, label=f"cuBLAS, {mode}")
        ceilings = {_ceiling_of(row): row.get("ceiling_tflops") for (_, own), row in timed.items() if own == mode}
        for (instruction, ceiling), style in zip(sorted(ceilings.items()), (":", "-."), strict=False):
            if ceiling is not None:
                label = f"{instruction} loop, {mode}"
                axes.axhline(ceiling, color=color, linestyle=style, linewidth=1, label=label)
    axes.set_xticks(range(len(names)), [name.replace("_", " ", 1).replace("_", " ") for name in names], rotation=30)
    axes.set_ylabel("TFLOPS")
    axes.set_title(_title(rows))
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path)
    pyplot.close(figure)


def write(rows: Sequence[Row], facts: Row, table: str, folder: Path) -> tuple[list[Path], str]:
    """Makes <stem>.json, <stem>.md and, of times, <stem>.svg in the folder: their paths, and why a plot is missing. The
    stem is ladder, or ampere_ladder where no rung is another's."""
    rungs = {row["rung"] for row in rows} - {CUBLAS, TUNED, "all"}
    stem = "ampere_ladder" if rungs and rungs <= set(TRACKS["ampere"]) else "ladder"
    paths = write_document(rows, facts, table, folder, stem)
    if not any(row["kind"] == "rung_time" for row in rows):
        return paths, ""
    picture = folder / f"{stem}.svg"
    try:
        plot(rows, picture)
    except UnsupportedError as error:  # the rows are what a measurement is for; the plot can be drawn later
        return paths, str(error)
    return [*paths, picture], ""


def write_document(rows: Sequence[Row], facts: Row, table: str, folder: Path, stem: str) -> list[Path]:
    """Makes <stem>.json, as report.py reads it, and <stem>.md in the folder: their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    document, text = folder / f"{stem}.json", folder / f"{stem}.md"
    document.write_text(json.dumps({"facts": facts, "rows": list(rows)}, indent=1) + "\n")
    text.write_text(table)
    return [document, text]


def _title(rows: Sequence[Row]) -> str:
    for row in rows:
        if row["kind"] == "rung_time" and row["status"] == "ok":
            return f"The ladder at {row['m']} x {row['n']} x {row['k']}, {row['dtype']}"
    return "The ladder"


def _ceiling_of(row: Row) -> str:
    """The instruction that a row's share is of; a row that does not say is of wgmma."""
    return str(row.get("ceiling_of", WGMMA))


def _share(row: Row | None, instruction: str) -> str:
    return "-" if row is None or _ceiling_of(row) != instruction else _number(row, "share_of_ceiling", 3)


def _conflicts(row: Row) -> float | None:
    """Extra wavefronts over the fewest, of what ncu counted; None: it did not count, or shared memory was not met."""
    wavefronts, extra = row.get("wavefronts"), row.get("bank_conflicts")
    return None if wavefronts is None or extra is None or wavefronts <= extra else extra / (wavefronts - extra)


def _megabytes(row: Row | None, *keys: str) -> str:
    values = [None if row is None else row.get(key) for key in keys]
    return "-" if None in values else f"{sum(value for value in values if value is not None) / 1e6:.0f}"


def _number(row: Row | None, key: str, digits: int = 0) -> str:
    value = None if row is None else row.get(key)
    return "-" if value is None else f"{value:.{digits}f}"
