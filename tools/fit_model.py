"""How good the model's choice is where configs were measured side by side, and its constants fitted anew.

    python tools/fit_model.py [ROWS...]            per product: fastest measured, the model's choice, and summaries
    python tools/fit_model.py [ROWS...] --fit 60   seconds of a search for better constants, and how those would choose

ROWS are files of benchmarks/results (rows with m, n, k, config, median_us) or JSON lines of `tilewright tune --into`
(problem, words); default: the newest narrow rows there. A third of the products is held out of every fit. Rows whose
launch was another one than today's (more clusters than run at once) and dependent launches are left out. The last lines
are of the choice among all that the model may choose from, where a choice that nobody measured is a miss. Writes
nothing: constants go into work.py by hand, rounded, with their source.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import model, work
from tilewright.config import Config, changes_from
from tilewright.device import preset
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.repack import repacked
from tilewright.packing import packed
from tilewright.problem import Problem

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
DEVICE = preset("h200")
# What a fit may move, and by which factors from today's value at most: physical quantities, known to that extent.
FREE = {
    "LATENCY_US": 2.0,
    "_CTA_GBPS": 1.2,
    "_CHAIN_CYCLES": 1.3,
    "_ROW_CYCLES": 1.6,
    "_ABSENT_ROW_CYCLES": 1.5,
    "_TILE_DRAM_SHARE": 1.04,
    "IN_STEP_DRAM_SHARE": 1.04,
    "_MULTICAST_SHARE": 1.7,
    "_MEMORY_NORM": 2.0,
    "_CTA_NORM": 2.0,
    "_CROSSING_ROWS": 1.6,
    "_WRITE_DRAM_SHARE": 1.5,
    "_QUEUE": 2.0,
    "_PINGPONG_QUEUE": 3.0,
    "_STAGGERED_HIDES": 1.2,
    "_REDUCE_BASE_CYCLES": 4.0,
    "_REDUCE_BYTES_PER_CYCLE": 3.0,
}
SEED = 1  # of the third that is held out

_CONFIG = re.compile(
    r"(?P<tile_m>\d+)x(?P<tile_n>\d+)x(?P<tile_k>\d+) s(?P<stages>\d+) w(?P<consumers>\d+) "
    r"c(?P<cluster_m>\d+)x(?P<cluster_n>\d+) (?:grouped(?P<group_m>\d+)|(?P<schedule>linear)) o(?P<store_slots>\d+)"
)
_PROBLEM = re.compile(r"(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True)
class Measured:
    """One config of one product. Units: microseconds."""

    config: Config
    us: float


Products = dict[Problem, list[Measured]]


def config_of(text: str) -> Config:
    """The config whose str() the text is. Raises: ValueError: it is none."""
    text = text.removeprefix("tilewright ")
    match = _CONFIG.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no config")
    fields: dict[str, Any] = {
        name: value if name == "schedule" else int(value) for name, value in match.groupdict().items() if value
    }
    for word in text[match.end() :].split():
        name, digits = re.fullmatch(r"([a-z-]+?)(\d*)", word).groups()  # type: ignore[union-attr]
        field = {"squares": "square", "tail": "tail_n", "split": "split_k", "dependent": "dependent_launch"}.get(name)
        fields[field or name.replace("-", "_")] = int(digits) if digits else True
    config = Config(**fields)
    if str(config) != text:
        raise ValueError(f"{text!r} was read as {config}")
    return config


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of either form."""
    text = path.read_text()
    if text.lstrip().startswith('{"facts"') or '"rows":' in text[:4000]:
        yield from json.loads(text)["rows"]
    else:
        yield from (json.loads(line) for line in text.splitlines() if line.strip())


def products(rows: Iterable[dict[str, Any]]) -> Products:
    """Every product with its configs as they would be launched today, the fastest first; those with two or more."""
    found: dict[Problem, dict[Config, float]] = defaultdict(dict)
    for row in rows:
        if not row.get("median_us") or row.get("candidate") == "cublas" or row.get("mode") in ("burst", "steady"):
            continue
        if "words" in row:
            config = Config(**changes_from(row["words"]))  # type: ignore[arg-type]
        elif row.get("config"):
            config = config_of(row["config"])
        else:
            continue
        problem = _problem(row)
        if problem is None or config.dependent_launch or config.violations(problem, DEVICE):
            continue
        grid = HOPPER.launch(problem, config, DEVICE).grid
        if row.get("ctas", grid) == grid:
            found[problem][config] = row["median_us"]
    return {
        problem: sorted((Measured(*each) for each in configs.items()), key=lambda each: each.us)
        for problem, configs in found.items()
        if len(configs) > 1
    }


def _problem(row: dict[str, Any]) -> Problem | None:
    """The row's product, where operands are copied first that of the copies; None where only its text is there and it
    is not a plain bf16 one."""
    if "m" in row:
        given = {name: row[name] for name in ("dtype", "out_dtype", "b_major") if row.get(name)}
        problem = packed(row["m"], row["n"], row["k"], padded=False, **given)
        return repacked(problem, HOPPER.config.copied(problem)).row_major
    match = _PROBLEM.match(str(row.get("problem", "")))
    problem = packed(*map(int, match.groups())) if match else None
    return problem if problem is not None and str(problem) == row["problem"] else None


def predicted_us(problem: Problem, config: Config) -> float:
    """The model's time."""
    return model.predict(HOPPER, problem, config, DEVICE).total_us


def choices(measured: Products) -> dict[Problem, tuple[float, Measured]]:
    """Of each product how many times slower than the fastest the model's choice among the measured configs is."""
    found = {}
    for problem, configs in measured.items():
        chosen = min(configs, key=lambda each: predicted_us(problem, each.config))
        found[problem] = (chosen.us / configs[0].us, chosen)
    return found


def loss(measured: Products) -> float:
    """Mean squared log error, where what is near the fastest counts most, and a tenth of the mean regret."""
    total = weights = 0.0
    for problem, configs in measured.items():
        for each in configs:
            weight = math.exp(-3 * (each.us / configs[0].us - 1))
            total += weight * math.log(predicted_us(problem, each.config) / each.us) ** 2
            weights += weight
    regret = sum(min(0.3, ratio - 1) for ratio, _ in choices(measured).values()) / len(measured)
    return total / weights + 0.1 * regret


def fitted(measured: Products, seconds: float) -> dict[str, float]:
    """Constants of work.py with a smaller loss, which are then set there: one after the other, in shrinking steps."""
    start = {name: float(getattr(work, name)) for name in FREE}
    found, steps = dict(start), dict.fromkeys(FREE, 0.2)
    lowest, end = loss(measured), time.monotonic() + seconds
    while time.monotonic() < end and max(steps.values()) > 0.01:
        for name, reach in FREE.items():
            for factor in (1 + steps[name], 1 / (1 + steps[name])):
                value = min(start[name] * reach, max(start[name] / reach, found[name] * factor))
                setattr(work, name, value)
                if (here := loss(measured)) < lowest - 1e-7:
                    lowest, found[name] = here, value
                    break
            else:
                steps[name] *= 0.6
            setattr(work, name, found[name])
    return found


def split(measured: Products) -> tuple[Products, Products]:
    """Two thirds to fit and one to try, the same ones every time."""
    order = sorted(measured, key=lambda problem: (problem.m, problem.n, problem.k))
    random.Random(SEED).shuffle(order)
    held = set(order[::3])
    return tuple({each: measured[each] for each in order if (each in held) is part} for part in (False, True))  # type: ignore[return-value]


def lines_of(measured: Products) -> Iterator[str]:
    """A line a product."""
    for problem, (ratio, chosen) in choices(measured).items():
        best, free = measured[problem][0], model.best(problem, DEVICE)
        known = {each.config: each.us for each in measured[problem]}
        untuned = f"{known[free.config]:.1f}" if free.config in known else "not measured"
        yield (
            f"{problem}: {best.us:.2f} us {best.config} | {ratio:.3f} {chosen.us:.2f} us {chosen.config} "
            f"| of all {free.config}, {free.prediction.total_us:.1f} us predicted, {untuned}"
        )


def summary(label: str, measured: Products) -> str:
    """Share within 5 %, and the worst."""
    if not measured:
        return f"{label}: no products"
    found = choices(measured)
    ratios = {problem: ratio for problem, (ratio, _) in found.items()}
    worst = max(ratios, key=lambda problem: ratios[problem])
    near = sum(ratio <= 1.05 for ratio in ratios.values())
    return (
        f"{label}: {near} of {len(ratios)} within 5 %, worst {ratios[worst]:.3f} ({worst}), loss {loss(measured):.5f}"
    )


def untuned(measured: Products) -> dict[Problem, float]:
    """Of each product how many times slower than the fastest the choice from the model's whole space is; infinitely,
    where it was not measured."""
    found = {}
    for problem, configs in measured.items():
        chosen = model.best(problem, DEVICE).config
        us = next((each.us for each in configs if each.config == chosen), math.inf)
        found[problem] = us / configs[0].us
    return found


def untuned_summary(label: str, measured: Products) -> str:
    """Share of untuned() within 5 %, how many were not measured, and the worst of the others."""
    found = untuned(measured)
    known = {problem: ratio for problem, ratio in found.items() if ratio < math.inf}
    near = sum(ratio <= 1.05 for ratio in known.values())
    worst = max(known, key=lambda problem: known[problem], default=None)
    return f"untuned, {label}: {near} of {len(found)} within 5 %, {len(found) - len(known)} not measured" + (
        "" if worst is None else f", worst {known[worst]:.3f} ({worst})"
    )


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=Path, help="files of rows")
    parser.add_argument("--fit", type=float, metavar="SECONDS", help="search for better constants that long")
    options = parser.parse_args(words)
    paths = options.rows or sorted(RESULTS.glob("h200_*_narrow.json"))[-1:]
    measured = products(row for path in paths for row in rows_of(path))
    if not measured:
        print(f"no product with two configs in {', '.join(map(str, paths)) or RESULTS}", file=sys.stderr)
        return 1
    kept, held = split(measured)
    if options.fit:
        print(summary("before, to fit", kept), summary("before, held out", held), sep="\n")
        print(", ".join(f"{name} = {value:.4g}" for name, value in fitted(kept, options.fit).items()))
    else:
        print(*lines_of(measured), sep="\n")
    parts = (("to fit", kept), ("held out", held), ("all", measured))
    print(*(summary(*each) for each in parts), *(untuned_summary(*each) for each in parts), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
