"""How long the emulator takes for a warm run, without and with the checker, and whether that meets the targets.

    PYTHONPATH=src OPENBLAS_NUM_THREADS=1 python benchmarks/emulator.py [--into FILE]

Needs no GPU. Warm: the PTX is compiled, parsed and translated before; that cold part has a column of its own. Modes are
interleaved, and each figure is the median of REPEATS runs in CPU seconds of the process, which a busy machine disturbs
least; wall seconds stand beside. Prints a markdown table; --into writes rows for tools/publish_rows.py. Exits with 1
when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright.backends.emulated import EmulatedBackend, emulated
from tilewright.bench.facts import commit, version_of
from tilewright.config import Config
from tilewright.emulator.translate import kernel_of
from tilewright.errors import TilewrightError
from tilewright.host_operands import HostOperand, host_operands
from tilewright.packing import packed
from tilewright.plan import Plan

REPEATS = 5
MODES: dict[str, dict[str, Any]] = {"plain": {}, "checked": {"checks": True}}
MOST_WITH_CHECKS = 3.0  # times the plain run


@dataclass(frozen=True)
class Workload:
    """One product in one config; `target_s`: CPU seconds that a warm run without the checker may take, 0 for none."""

    extents: tuple[int, int, int]
    config: Config
    target_s: float = 0.0


# 128x128 is the tile of the prototype's figures; 128x256 is the production tile of large sizes; the cluster is the one
# of both tile rows.
WORKLOADS = (
    Workload((256, 256, 512), Config(tile_m=128, tile_n=128), 0.15),
    Workload((512, 512, 512), Config(tile_m=128, tile_n=128), 0.5),
    Workload((512, 512, 512), Config(tile_m=128, tile_n=256)),
    Workload((512, 512, 512), Config(tile_m=128, tile_n=128, cluster_m=2)),
    Workload((512, 512, 512), Config(tile_m=128, tile_n=128, pingpong=True)),
)


def measure(work: Workload, repeats: int) -> dict[str, Any]:
    """One row.

    Raises: EmulationError: the kernel broke a rule.
    """
    backends: dict[str, EmulatedBackend] = {name: emulated(**choices) for name, choices in MODES.items()}
    plan = tilewright.plan(packed(*work.extents), config=work.config, device=backends["plain"].model)
    plan.binary  # noqa: B018  the compiler's time is not the emulator's
    operands = host_operands(plan.problem, seed=0)
    kernel_of.cache_clear()  # two workloads may share their PTX
    cold, _ = timed(plan, backends["plain"], operands)
    timed(plan, backends["checked"], operands)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in MODES}
    for _ in range(repeats):
        for name, backend in backends.items():
            samples[name].append(timed(plan, backend, operands))
    report = backends["plain"].report
    row: dict[str, Any] = {
        "kind": "emulator",
        "shape": "x".join(map(str, work.extents)),
        "config": str(work.config),
        "cold_cpu_s": round(cold, 4),
    }
    for name, pairs in samples.items():
        cpu, wall = zip(*pairs, strict=True)
        row |= {
            f"{name}_cpu_s": round(statistics.median(cpu), 4),
            f"{name}_cpu_least_s": round(min(cpu), 4),
            f"{name}_cpu_most_s": round(max(cpu), 4),
            f"{name}_wall_s": round(statistics.median(wall), 4),
        }
    row["checked_times"] = round(statistics.median(c / p for (p, _), (c, _) in zip(*samples.values(), strict=True)), 2)
    row["warp_instructions"] = report.warp_instructions if report is not None else 0
    row["blocks"] = report.blocks if report is not None else 0
    row["target_s"] = work.target_s
    row["is_met"] = row["checked_times"] <= MOST_WITH_CHECKS and row["plain_cpu_s"] <= (work.target_s or float("inf"))
    return row


def timed(plan: Plan, backend: EmulatedBackend, operands: tuple[HostOperand, ...]) -> tuple[float, float]:
    """CPU and wall seconds of one launch.

    Raises: SystemExit: a product that is not right, whole numbers as it is of.
    """
    a, b, out = (operand.view for operand in operands)
    out[:] = np.nan
    addresses = {"a": a.ctypes.data, "b": b.ctypes.data, "out": out.ctypes.data}
    call = backend.pack(backend.load(plan.binary, 0, plan.launch), plan.launch, plan.arguments, addresses)
    cpu, wall = time.process_time(), time.perf_counter()
    backend.launch(call, 0)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    if not (out == (a.astype(np.float32) @ b.astype(np.float32)).astype(out.dtype)).all():
        raise SystemExit(f"{plan.problem} in {plan.config}: the product is wrong")
    return spent


def facts(repeats: int) -> dict[str, Any]:
    """What the rows must say besides their numbers. `device` is this CPU."""
    return {
        "device": f"emulator on {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", "all"),
        "python": platform.python_version(),
        "numpy": version_of("numpy"),
        "nvidia_cuda_nvrtc": version_of("nvidia-cuda-nvrtc"),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "repeats": repeats,
        "command": " ".join(["benchmarks/emulator.py", *sys.argv[1:]]),
    }


def table(rows: Sequence[dict[str, Any]], told: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        "| shape | config | warp instructions | first run | warm | with checks | times | target |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        spread = [f"{row[f'{mode}_cpu_s']:.3f} ({row[f'{mode}_wall_s']:.3f})" for mode in MODES]
        target = f"{row['target_s']} s, {MOST_WITH_CHECKS:g}x" if row["target_s"] else f"{MOST_WITH_CHECKS:g}x"
        verdict = "met" if row["is_met"] else "missed"
        lines.append(
            f"| {row['shape']} | {row['config']} | {row['warp_instructions']:,} | {row['cold_cpu_s']:.2f} | "
            f"{spread[0]} | {spread[1]} | {row['checked_times']:.1f} | {target}: {verdict} |"
        )
    lines += [
        "",
        f"Seconds of CPU, median of {told['repeats']} (of wall clock in brackets, on {told['cpus']} cores with a load "
        f"of {told['load']}); Python {told['python']}, NumPy {told['numpy']}, {told['date']}, `{told['command']}`.",
    ]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--first", type=int, default=len(WORKLOADS), help="measure only so many of the workloads")
    parser.add_argument("--into", type=Path, help="a file for the rows, named emulator.json to be published")
    options = parser.parse_args(words)
    told = facts(options.repeats)
    rows = [measure(work, options.repeats) for work in WORKLOADS[: options.first]]
    print(table(rows, told))
    if options.into is not None:
        options.into.write_text(json.dumps({"facts": told, "rows": rows}, indent=1))
    return 0 if all(row["is_met"] for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TilewrightError as error:
        sys.exit(str(error))
