"""The sweeps' rows -> a table, a statement and a plot a sweep. Makes no measurement."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.bench.ladder_report import markdown
from tilewright.bench.plots import drawing
from tilewright.bench.sweeps import CUBLAS, PROBLEM
from tilewright.bench.tables import NOT_MEASURED

Row = dict[str, Any]

NOISE = 0.02  # single samples: a smaller difference is none

# Column of the rows -> (head, what one unit of it is, digits), in the order of a table: what the emulator or arithmetic
# says stands beside what ncu counts of the same.
_COLUMNS: dict[str, tuple[str, float, int]] = {
    "occupancy_pct": ("theoretical occupancy %", 1, 1),
    "warps_pct": ("achieved occupancy %", 1, 1),
    "boxes_a_slot": ("boxes a slot", 1, 0),
    "turns_of_a_read": ("turns of a read, by rule", 1, 0),
    "conflicts": ("conflicts, emulated", 1, 2),
    "emulated_wavefronts": ("wavefronts, million, emulated", 1e6, 1),
    "wavefronts": ("wavefronts, million, by ncu", 1e6, 1),
    "emulated_conflicts": ("conflicts, million, emulated", 1e6, 2),
    "bank_conflicts": ("conflicts, million, by ncu", 1e6, 2),
    "bank_conflicts_all": ("all conflicts, million, by ncu", 1e6, 2),
    "bank_reads": ("bank reads, million", 1e6, 0),
    "bank_writes": ("bank writes, million", 1e6, 0),
    "tensor_pct": ("tensor instructions, % of peak", 1, 1),
    "hmma_pct": ("tensor pipe busy %", 1, 1),
    "shared_pct": ("shared memory busy %", 1, 1),
    "l2_pct": ("L2 busy %", 1, 1),
    "dram_pct": ("DRAM busy %", 1, 1),
    "dram_read_bytes": ("DRAM read GB", 1e9, 2),
    "dram_written_bytes": ("DRAM written GB", 1e9, 2),
    "l2_read_bytes": ("L2 read GB", 1e9, 2),
    "fill_bytes": ("filled GB", 1e9, 2),
    "cycles": ("million cycles", 1e6, 2),
}

# What the Ampere source text has of an A100 by prefetch distance: per cent of compute, per cent of memory bandwidth.
TEXT_DISTANCES = {"distance 0": (68, 75), "distance 1": (81, 82), "distance 2": (93, 91), "distance 3": (90, 89)}
# Columns of the rows beside them: what was busy of an H200.
_BUSY = {"hmma_pct": "tensor pipe", "shared_pct": "shared memory", "l2_pct": "L2", "dram_pct": "DRAM"}


@dataclass(frozen=True)
class Line:
    """One variant with all that is known of it. Units: TFLOPS; a ratio is over cuBLAS in the same mode and sweep."""

    name: str
    status: str
    rates: Mapping[str, float]
    ratios: Mapping[str, float]
    clock_mhz: float | None
    predicted_tflops: float | None
    registers: int | None
    counted: Mapping[str, float | None]


def lines_of(rows: Sequence[Row], sweep: str) -> list[Line]:
    """The variants of a sweep in the order in which they were checked, or emulated."""
    own = [row for row in rows if row.get("sweep") == sweep]
    checks = {row["variant"]: row for row in own if row["kind"] == "sweep_check"}
    for row in own:  # what the emulator knows of a variant stands there before it was measured
        if row["kind"] == "sweep_conflicts" and row.get("variant"):
            checks.setdefault(row["variant"], row)
    reference = _rates([row for row in own if row["kind"] == "sweep_time" and row["variant"] == CUBLAS])
    found = []
    for name, check in checks.items():
        timed = [row for row in own if row["kind"] == "sweep_time" and row["variant"] == name]
        rates = _rates(timed)
        clocks = [row["clock_mhz"] for row in timed if row["mode"] == "steady" and row.get("clock_mhz")]
        counted: dict[str, float | None] = {}
        for row in own:
            if row.get("variant") == name and row["kind"] in ("sweep_conflicts", "sweep_check", "sweep_counters"):
                counted |= {key: row.get(key) for key in _COLUMNS if row.get(key) is not None}
        found.append(
            Line(
                name=name,
                status=check["status"],
                rates=rates,
                ratios={mode: rate / reference[mode] for mode, rate in rates.items() if mode in reference},
                clock_mhz=statistics.median(clocks) if clocks else None,
                predicted_tflops=check.get("predicted_tflops"),
                registers=check.get("registers"),
                counted=counted,
            )
        )
    return found


def table(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Head and cells; a column that no variant fills is left out."""
    heads = ["variant", "steady", "of cuBLAS", "burst", "of cuBLAS", "predicted", "MHz", "registers"]
    heads += [head for head, _, _ in _COLUMNS.values()]
    cells = []
    for line in lines:
        if line.status != "ok":
            cells.append([line.name, line.status, *["-"] * (len(heads) - 2)])
            continue
        cells.append(
            [
                line.name,
                _text(line.rates.get("steady")),
                _text(line.ratios.get("steady"), 3),
                _text(line.rates.get("burst")),
                _text(line.ratios.get("burst"), 3),
                _text(line.predicted_tflops),
                _text(line.clock_mhz),
                _text(line.registers),
                *(_text(line.counted.get(key), digits, unit) for key, (_, unit, digits) in _COLUMNS.items()),
            ]
        )
    used = [index for index in range(len(heads)) if index < 2 or any(row[index] != "-" for row in cells)]
    return [heads[index] for index in used], [[row[index] for index in used] for row in cells]


def statement(lines: Sequence[Line]) -> str:
    """What the numbers say, in sentences made of them; a difference within the noise is called none."""
    sentences = []
    for mode in ("steady", "burst"):
        timed = sorted((line for line in lines if mode in line.rates), key=lambda line: -line.rates[mode])
        if len(timed) < 2:
            continue
        best, worst = timed[0], timed[-1]
        if best.rates[mode] < worst.rates[mode] * (1 + NOISE):
            sentences.append(
                f"{mode.capitalize()}, all {len(timed)} are within {NOISE:.0%}: no difference that single samples show."
            )
            continue
        equals = [line.name for line in timed[1:] if line.rates[mode] * (1 + NOISE) > best.rates[mode]]
        beside = f"; within {NOISE:.0%} of it: {', '.join(equals)}" if equals else ""
        gain = best.rates[mode] / worst.rates[mode] - 1
        sentences.append(
            f"{mode.capitalize()}, *{best.name}* is fastest with {best.rates[mode]:.0f} TFLOPS{_over(best, mode)}, "
            f"{gain:.0%} over the slowest, *{worst.name}* with {worst.rates[mode]:.0f}{beside}."
        )
    for key, what in (("dram_read_bytes", "DRAM"), ("l2_read_bytes", "the L2")):
        read = sorted(((line.counted[key] or 0.0, line.name) for line in lines if line.counted.get(key)), reverse=True)
        if len(read) > 1 and read[0][0] > read[-1][0] * (1 + NOISE):
            sentences.append(
                f"*{read[0][1]}* reads {read[0][0] / 1e9:.2f} GB from {what}, *{read[-1][1]}* {read[-1][0] / 1e9:.2f}."
            )
    wrong = [line.name for line in lines if line.status != "ok"]
    if wrong:
        sentences.append(f"Not timed: {', '.join(wrong)}.")
    return " ".join(sentences) + "\n" if sentences else ""


def block(rows: Sequence[Row], sweep: str, picture: str | None) -> str:
    """The measured part of a sweep's section: plot, table, statement, origin."""
    lines = lines_of(rows, sweep)
    if not lines:
        return NOT_MEASURED
    is_timed = any(line.rates for line in lines)
    image = f"![TFLOPS of each variant]({picture})\n\n" if picture and is_timed else ""
    size = size_of(rows, sweep)
    above = (
        f"At {size}.\n\n" if size and size != _size_text(PROBLEM.m, PROBLEM.n, PROBLEM.k, PROBLEM.dtype.name) else ""
    )
    parts = [above + image + markdown(*table(lines)), beside_the_text(lines), statement(lines), origin(rows, sweep)]
    if not is_timed:
        parts.insert(
            1, f"{NOT_MEASURED.strip()} What stands here is arithmetic and the emulator's, at the sweep's size.\n"
        )
    return "\n".join(part for part in parts if part)


def size_of(rows: Iterable[Row], sweep: str) -> str:
    """What a sweep multiplied, as its rows say; "" where none does."""
    for row in rows:
        if row.get("sweep") == sweep and row.get("m"):
            return _size_text(row["m"], row["n"], row["k"], row["dtype"])
    return ""


def beside_the_text(lines: Sequence[Line]) -> str:
    """What was busy at each prefetch distance beside what the source text has of an A100; "" for other sweeps."""
    known = [line for line in lines if line.name in TEXT_DISTANCES]
    if not known:
        return ""
    heads = ["distance", "text: compute %", "text: memory bandwidth %", *(f"{name} busy %" for name in _BUSY.values())]
    cells = [
        [
            line.name.removeprefix("distance "),
            *map(str, TEXT_DISTANCES[line.name]),
            *(_text(line.counted.get(key), 1) for key in _BUSY),
        ]
        for line in known
    ]
    return markdown(heads, cells)


def origin(rows: Iterable[Row], sweep: str) -> str:
    """Where a sweep's numbers come from: device, versions, day, command."""
    found = dict.fromkeys(
        f"{row.get('device')}, driver for CUDA {row.get('driver_cuda')}, cuBLAS {row.get('nvidia_cublas')}, "
        f"{row.get('compiler')}, {row.get('date')}, `{row.get('command')}`.\n"
        for row in rows
        if row.get("sweep") == sweep and row["kind"] == "sweep_check" and row["status"] == "ok"
    )
    found |= dict.fromkeys(
        f"Emulated: nvrtc {row.get('nvidia_cuda_nvrtc')}, {row.get('date')}, `{row.get('command')}`.\n"
        for row in rows
        if row.get("sweep") == sweep and row["kind"] == "sweep_conflicts" and row.get("device") == "emulator"
    )
    return "\n".join(found)


def table_lines(rows: Sequence[Row]) -> list[str]:
    """All sweeps as text for a terminal, and what did not end well."""
    text = []
    for sweep in dict.fromkeys(row["sweep"] for row in rows if row.get("sweep")):
        heads, cells = table(lines_of(rows, sweep))
        widths = [max(len(row[index]) for row in (heads, *cells)) for index in range(len(heads))]
        size = size_of(rows, sweep)
        text.append(f"== {sweep}" + f", {size}" * bool(size))
        text += [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *cells)
        ]
    text += [
        f"{row.get('sweep')} {row.get('variant', '')} {row['kind']} {row['status']}: {str(row.get('why', ''))[-500:]}"
        for row in rows
        if row["status"] != "ok"
    ]
    return text


def digest(lines: Sequence[Line]) -> str:
    """The name of what a plot shows: a plot that carries it is fresh."""
    shown: list[list[Any]] = [
        [line.name, sorted(line.rates.items()), line.counted.get("dram_read_bytes")] for line in lines
    ]
    for row, line in zip(shown, lines, strict=True):
        row += [value for key in _BUSY if (value := line.counted.get(key)) is not None]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def plot(lines: Sequence[Line], title: str, path: Path) -> None:
    """Bars of steady and burst TFLOPS a variant, of the bytes read from DRAM, and of what was busy, where counted. SVG.

    Raises: UnsupportedError: matplotlib is not installed.
    """
    matplotlib, pyplot = drawing(path)

    timed = [line for line in lines if line.rates]
    traffic = [(line.counted.get("dram_read_bytes") or 0.0) / 1e9 for line in timed]
    busy = {key: [line.counted.get(key) or 0.0 for line in timed] for key in _BUSY}
    busy = {key: values for key, values in busy.items() if any(values)}
    panels = 1 + bool(any(traffic)) + bool(busy)
    with matplotlib.rc_context({"svg.hashsalt": "tilewright", "svg.fonttype": "none", "font.size": 8}):
        figure, axes = pyplot.subplots(
            1,
            panels,
            figsize=(4.5 + 3 * panels, 1.2 + 0.3 * len(timed)),
            layout="constrained",
            sharey=True,
            squeeze=False,
        )
        places = range(len(timed))
        for offset, (mode, color) in enumerate((("steady", "tab:orange"), ("burst", "tab:blue"))):
            heights = [line.rates.get(mode, 0.0) for line in timed]
            bars = axes[0][0].barh(
                [place + 0.4 * offset - 0.2 for place in places], heights, 0.4, color=color, label=mode
            )
            axes[0][0].bar_label(bars, fmt="%.0f", fontsize=6)
        axes[0][0].set_yticks(list(places), [line.name for line in timed])
        axes[0][0].set_ylim(len(timed) - 0.4, -0.6)  # the first on top
        axes[0][0].set_xlabel("TFLOPS")
        axes[0][0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=7)
        if any(traffic):
            bars = axes[0][1].barh(list(places), traffic, 0.6, color="tab:gray")
            axes[0][1].bar_label(bars, fmt="%.2f", fontsize=6)
            axes[0][1].set_xlabel("GB read from DRAM")
        for offset, (key, values) in enumerate(busy.items()):
            height = 0.8 / len(busy)
            own = [place - 0.4 + height * (offset + 0.5) for place in places]
            axes[0][-1].barh(own, values, height, label=_BUSY[key])
            axes[0][-1].set_xlabel("% of the time that it was busy")
            axes[0][-1].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=7)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Description": digest(lines)})
        pyplot.close(figure)


def _rates(rows: Iterable[Row]) -> dict[str, float]:
    """The median rate of each mode."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["mode"], []).append(row["rate_tflops"])
    return {mode: statistics.median(rates) for mode, rates in found.items()}


def _size_text(m: int, n: int, k: int, dtype: str) -> str:
    return f"{m} x {n} x {k}, {dtype}"


def _over(line: Line, mode: str) -> str:
    return f" ({line.ratios[mode]:.3f} of cuBLAS)" if mode in line.ratios else ""


def _text(value: float | None, digits: int = 0, unit: float = 1) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"
