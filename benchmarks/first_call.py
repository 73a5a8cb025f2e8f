"""What a kernel costs a fresh process: built anew, and from the disk cache. Needs no GPU.

    PYTHONPATH=src python benchmarks/first_call.py

Each figure is the median over fresh processes, in milliseconds: importing the package, NumPy among it; planning a
4096 x 4096 x 4096 product; and the Binary, by compiling or from the cache. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

PROCESSES = 9

CHILD = """
import time
moments = [time.perf_counter()]
from tilewright.dispatch import plan
from tilewright.packing import packed
moments.append(time.perf_counter())
made = plan(packed(4096, 4096, 4096), device="h200")
moments.append(time.perf_counter())
binary = made.binary
moments.append(time.perf_counter())
print(binary.from_cache, binary.compiler, *[stop - start for start, stop in zip(moments, moments[1:])], sep=",")
"""


def child(cache: str) -> tuple[bool, str, list[float]]:
    """Whether the binary came from the cache, its compiler, and milliseconds of import, plan and binary."""
    environment = os.environ | {"TILEWRIGHT_CACHE_DIR": cache}
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    from_cache, compiler, *seconds = done.stdout.strip().split(",")
    return from_cache == "True", compiler, [1000 * float(part) for part in seconds]


def main() -> int:
    """0 when every process got its binary the way it should."""
    rows: dict[str, dict[str, float]] = {}
    compilers = set()
    as_meant = True
    with tempfile.TemporaryDirectory() as folder:
        shared = f"{folder}/shared"
        child(shared)  # fills it
        for way, caches in (
            ("compiled", [f"{folder}/{index}" for index in range(PROCESSES)]),
            ("from_cache", [shared] * PROCESSES),
        ):
            runs = [child(cache) for cache in caches]
            as_meant &= all(from_cache == (way == "from_cache") for from_cache, _, _ in runs)
            compilers |= {compiler for _, compiler, _ in runs}
            columns = zip(*(parts for _, _, parts in runs), strict=True)
            names = ("import_ms", "plan_ms", "binary_ms")
            rows[way] = {name: round(statistics.median(values), 1) for name, values in zip(names, columns, strict=True)}
    facts = {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0)), "processes": PROCESSES}
    print(json.dumps(facts | {"compiler": ", ".join(sorted(compilers))} | rows, indent=1))
    return 0 if as_meant else 1


if __name__ == "__main__":
    sys.exit(main())
