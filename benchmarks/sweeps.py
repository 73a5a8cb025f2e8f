"""The sweeps of docs/ladder/sweeps.md, measured on a Hopper GPU in two and a half minutes.

    PYTHONPATH=src python benchmarks/sweeps.py --build DIR                   on any machine: cubins of all that follows
    TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src python benchmarks/sweeps.py --into OUT [--budget-s 150]
    python tools/publish_rows.py OUT/sweeps.json && python tools/sweep_pages.py

With --sweeps ampere those of docs/ladder/ampere_sweeps.md, into OUT/ampere_sweeps.json; with --sweeps ampere-sizes its
last, at sizes of their own, into OUT/ampere_sizes_sweeps.json. With --emulated what needs no GPU: occupancy and bank
conflicts.

Sweeps run in child processes with a time limit, the most important first, several a child since its start takes longer
than some of them; and so does ncu over them. A child appends one JSON line a result at once. OUT/sweeps.json is written
anew after each child, so what was measured when the budget ended counts. A variant that hangs or faults costs itself:
its sweep begins again without it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.bench import counters
from tilewright.bench.children import rows_of, run_limited
from tilewright.bench.sweeps import Sweep, ampere_size_sweeps, ampere_sweeps, sources, sweep, sweeps
from tilewright.device import preset
from tilewright.errors import CompileError

Row = dict[str, Any]

DEVICE = preset("h200")  # whose configs are swept; the parent opens no driver
# In proportions that make 115 s of 6 children with 53 variants, and 3 of ncu with 30 launches (H200, 2026-11-30).
START_S = 5.5  # a child's own: imports, context
OWN_S = 1.2  # a sweep's own: operands, the first and the last samples of cuBLAS
VARIANT_S = 1.05  # steady and burst of one variant, with its share of cuBLAS
COUNTING_S, COUNT_S = 5.5, 0.4  # ncu's start, and one launch under it
# What --sweeps takes as one word, and the file that its rows go to.
TOGETHER: dict[str, tuple[Callable[[], tuple[Sweep, ...]], str]] = {
    "all": (lambda: sweeps(DEVICE), "sweeps.json"),
    "ampere": (ampere_sweeps, "ampere_sweeps.json"),
    "ampere-sizes": (ampere_size_sweeps, "ampere_sizes_sweeps.json"),
}
FIRST = (
    "order",
    "cluster",
    "swizzle",
    "ampere-distance",
    "ampere-banks",
)  # the most important: one child, counted before the others are timed
# Whose bank conflicts the emulator counts meanwhile.
EMULATED = ("swizzle", "ampere-distance", "ampere-banks", "ampere-registers", "ampere-tile")
SLACK = 1.8  # of a time limit over what is expected


@dataclass
class Journal:
    """All rows so far, and the file that holds them."""

    path: Path | None
    command: str
    rows: list[Row] = field(default_factory=list)
    facts: Row = field(default_factory=dict)

    def add(self, rows: Sequence[Row]) -> None:
        """Keeps the rows and writes the file anew. Rows of the kind "facts" become its head."""
        for row in rows:
            if row["kind"] == "facts":
                self.facts |= {name: value for name, value in row.items() if name not in ("kind", "status")}
            else:
                self.rows.append(row | {"why": plain(row["why"])} if "why" in row else row)
                if row.get("compiler"):
                    self.facts.setdefault("compiler", row["compiler"])
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"facts": self.facts | {"command": self.command}, "rows": self.rows}, indent=1)
            partial = self.path.with_suffix(".part")
            partial.write_text(text + "\n")
            partial.replace(self.path)


def plain(text: str) -> str:
    """The text without the paths of this machine: rows are published."""
    for path, word in (
        (Path(__file__).resolve().parent.parent, "."),
        (tempfile.gettempdir(), "TMP"),
        (sys.prefix, "PYTHON"),
    ):
        text = text.replace(str(path), word)
    return text


# -- the parent -------------------------------------------------------------------------------------------------------


def words_of(kind: str, batch: Sequence[Sweep], log: Path, without: Sequence[str], rounds: int) -> list[str]:
    """A child's command line. `without`: variants left out, as SWEEP/VARIANT."""
    words = [sys.executable, str(Path(__file__).resolve()), "--child", kind, "--log", str(log)]
    words += ["--sweeps", names_of(batch), "--rounds", str(rounds)]
    return words + [word for variant in without for word in ("--without", variant)]


def settled(rows: Sequence[Row], status: str) -> list[Row]:
    """The rows without those that only say "begun"; one that never ended gets the child's status."""
    done = [row for row in rows if row["status"] != "begun"]
    if rows and rows[-1]["status"] == "begun" and status != "ok":
        done.append(rows[-1] | {"status": status})
    return done


def names_of(batch: Sequence[Sweep]) -> str:
    """The sweeps as --sweeps takes them."""
    return ",".join(each.name for each in batch)


def time_part(batch: Sequence[Sweep], until_s: float, rounds: int) -> list[Row]:
    """The checks and times of some sweeps. A sweep whose variant ended the child begins again without it, and those
    after it begin; twice at most."""
    found: list[Row] = []
    without: list[str] = []
    left = list(batch)
    for _ in range(3):
        limit_s = min(SLACK * expected_s(left, rounds), until_s - time.monotonic())
        if limit_s < START_S:
            break
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "rows.jsonl"
            code, output = run_limited(words_of("time", left, log, without, rounds), limit_s)
            rows = rows_of(log)
        status = "ok" if code == 0 else f"stopped after {limit_s:.0f} s" if code is None else f"exit {code}"
        found += settled(rows, status)
        if status == "ok":
            break
        last = rows[-1] if rows else {"status": "none"}
        if last["status"] != "begun":
            about = {"kind": "child", "sweep": last.get("sweep", left[0].name)}
            found.append(about | {"status": status, "why": output[-1500:]})
            break
        found[-1]["why"] = output[-1500:]
        without.append(f"{last['sweep']}/{last['variant']}")
        found = [row for row in found if row.get("sweep") != last["sweep"] or key_of(row) in without]
        left = left[[each.name for each in left].index(last["sweep"]) :]
    return found


def key_of(row: Row) -> str:
    """The variant that a row is of, as --without takes it."""
    return f"{row['sweep']}/{row.get('variant')}"


def count_part(batch: Sequence[Sweep], until_s: float, refused: set[str]) -> list[Row]:
    """What ncu counts of each variant of sweeps with the same counters, launched once. `refused` are metrics that ncu
    has turned down."""
    asked = batch[0].counters
    assert asked is not None
    limit_s = min(SLACK * counting_s(batch), until_s - time.monotonic())
    with tempfile.TemporaryDirectory() as folder:
        log, answer = Path(folder) / "rows.jsonl", Path(folder) / "ncu.csv"

        def read() -> str:
            return answer.read_text(errors="replace") if answer.exists() else ""

        def run(command: Sequence[str], seconds: float) -> tuple[int | None, str]:
            log.unlink(missing_ok=True)
            answer.unlink(missing_ok=True)
            return run_limited(command, min(seconds, max(until_s - time.monotonic(), 1.0)))

        program = words_of("launch", batch, log, (), 1)
        try:
            launches, status = counters.profile(
                counters.metrics_of(asked), program, str(answer), read, run, limit_s, refused
            )
        except OSError as missing:
            about = {"kind": "sweep_counters", "variant": "all", "status": "not run", "why": str(missing)}
            return [about | {"sweep": each.name} for each in batch]
        return counted(batch, rows_of(log), launches, status)


def counted(
    batch: Sequence[Sweep], rows: Sequence[Row], launches: Sequence[counters.Launched], status: str
) -> list[Row]:
    """The child's rows with what ncu counted of the launch that each one is of: launch i of the child is ncu's i-th."""
    asked = batch[0].counters
    assert asked is not None
    own = [row for row in rows if row["status"] == "launched"]
    entries = {row["entry"] for row in own}
    seen = [launch for launch in launches if launch.kernel in entries]
    found = [row for row in rows if row["status"] not in ("launched", "begun") and row["kind"] != "facts"]
    for row, launch in zip(own, seen, strict=False):
        if launch.kernel != row["entry"]:  # from here on the two do not tell of the same launches
            status = f"ncu saw {launch.kernel} where {row['entry']} was launched"
            break
        found.append(row | {"status": "ok"} | counters.columns(asked, launch.values))
    have = [key_of(row) for row in found]
    if len(seen) < len(own) or not own or status != "ok":
        about = {
            "kind": "sweep_counters",
            "variant": "all",
            "status": "partly" if seen else "not counted",
            "why": f"{len(seen)} launches: {status}",
        }
        short = [each for each in batch if any(f"{each.name}/{variant.name}" not in have for variant in each.variants)]
        found += [about | {"sweep": each.name} for each in short]
    return found


def emulated_part(name: str) -> list[Row]:
    """The bank conflicts of a sweep by rule and as the emulator counts them; needs no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "rows.jsonl"
        code, output = run_limited(words_of("emulate", [sweep(name, DEVICE)], log, (), 1), 120.0)
        rows = settled(rows_of(log), "stopped" if code is None else "ok")
    if code != 0:
        rows.append({"kind": "child", "sweep": name, "status": f"exit {code}", "why": output[-1500:]})
    return rows


def expected_s(batch: Sequence[Sweep], rounds: int = 1) -> float:
    """Seconds that timing some sweeps in one child takes."""
    return START_S + sum(OWN_S + VARIANT_S * rounds * len(each.variants) for each in batch)


def counting_s(batch: Sequence[Sweep]) -> float:
    """Seconds that counting some sweeps in one child takes."""
    return COUNTING_S + sum(COUNT_S * len(each.variants) for each in batch)


def steps(chosen: Sequence[Sweep], *, counting: bool) -> Iterator[tuple[str, list[Sweep]]]:
    """What is done in which order: the FIRST are timed, then counted, then the others; a batch is one child."""
    for batch in ([each for each in chosen if each.name in FIRST], [each for each in chosen if each.name not in FIRST]):
        if batch:
            yield "time", batch
        for asked in dict.fromkeys(each.counters for each in batch if each.counters and counting):
            yield "count", [each for each in batch if each.counters == asked]


def fitting(kind: str, batch: Sequence[Sweep], left_s: float, rounds: int) -> list[Sweep]:
    """The first sweeps of the batch that the time that is left has room for."""
    found = list(batch)
    while found and left_s < (expected_s(found, rounds) if kind == "time" else counting_s(found)) / SLACK:
        found.pop()
    return found


def measure(options: argparse.Namespace, chosen: Sequence[Sweep], journal: Journal) -> None:
    """Every step that the budget has room for."""
    until_s = time.monotonic() + options.budget_s
    refused: set[str] = set()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        emulated = [pool.submit(emulated_part, each.name) for each in chosen if each.name in EMULATED]
        for kind, batch in steps(chosen, counting=not options.no_counters):
            left_s = until_s - time.monotonic()
            fits = fitting(kind, batch, left_s, options.rounds)
            for each in batch[len(fits) :]:
                about = {"kind": "child", "sweep": each.name, "variant": "all", "status": "no time"}
                journal.add([about | {"why": f"{kind}: {left_s:.0f} s left"}])
            if not fits:
                continue
            started = time.monotonic()
            rows = time_part(fits, until_s, options.rounds) if kind == "time" else count_part(fits, until_s, refused)
            journal.add(rows)
            print(f"{names_of(fits)} {kind}: {len(rows)} rows in {time.monotonic() - started:.0f} s", flush=True)
        for each in emulated:
            journal.add(each.result())


def emulate(chosen: Sequence[Sweep], journal: Journal) -> None:
    """What needs no GPU."""
    from tilewright.bench.facts import emulator_facts

    journal.facts |= emulator_facts()
    for each in chosen:
        if each.name in EMULATED:
            journal.add(emulated_part(each.name))


# -- a child ----------------------------------------------------------------------------------------------------------


def child(options: argparse.Namespace) -> int:
    """The rows of some sweeps to the log, each on disk before the next begins."""
    batch = [
        each.without(key.partition("/")[2] for key in options.without if key.startswith(f"{each.name}/"))
        for each in (sweep(name, DEVICE) for name in options.sweeps.split(","))
    ]

    def add(row: Row) -> None:
        with options.log.open("a") as file:
            file.write(json.dumps(row) + "\n")

    if options.child == "emulate":
        from tilewright.bench.sweep_conflicts import conflict_rows  # the emulator

        for each in batch:
            for row in conflict_rows(each):
                add(row)
        return 0
    try:
        for row in launched_rows(batch) if options.child == "launch" else timed_rows(batch, options.rounds):
            add(row)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(3)  # a kernel may still be running: nothing that waits for it may be called on the way out
    return 0


def launched_rows(batch: Sequence[Sweep]) -> Iterator[Row]:
    """What a child under ncu does."""
    from tilewright.bench import sweep_launches  # the driver, which the parent never opens

    for each in batch:
        yield from sweep_launches.launched_rows(each)


def timed_rows(batch: Sequence[Sweep], rounds: int) -> Iterator[Row]:
    """The machine's facts, then the checks and times."""
    from tilewright.backends.cuda import backend  # see launched_rows()
    from tilewright.bench import sweep_rows  # torch
    from tilewright.bench.facts import facts

    yield {"kind": "facts", "status": "ok"} | facts(backend())
    for each in batch:
        yield from sweep_rows.measured_rows(each, rounds)


# -- compile, print ---------------------------------------------------------------------------------------------------


def build_part(chosen: Sequence[Sweep], folder: Path) -> int:
    """Every cubin that the children load, into the folder; 1 when one of them is not to be had."""
    from tilewright.jit.build import build, build_into

    found = []
    refused = 0
    for source in sources(chosen, DEVICE):
        try:
            build(source, refuse=True)
        except CompileError as error:  # its variant becomes a row "refused"; the others are still wanted
            print(f"{source.name}: {error}", flush=True)
            refused += 1
        else:
            found.append(source)
    build_into(found, folder)
    print(f"{len(found)} kernels in {folder}, {refused} refused")
    return 1 if refused else 0


def parser() -> argparse.ArgumentParser:
    """The options of parent and child."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--into", type=Path, help="folder for sweeps.json")
    options.add_argument("--build", type=Path, metavar="DIR", help="compile everything into DIR and stop; needs no GPU")
    options.add_argument("--sweeps", default="all", help=f"names joined by commas, or {', '.join(TOGETHER)}")
    options.add_argument("--budget-s", type=float, default=150.0, help="wall-clock time of all children together")
    options.add_argument("--rounds", type=int, default=1, help="samples of each time")
    options.add_argument("--emulated", action="store_true", help="only what the emulator counts; needs no GPU")
    options.add_argument("--no-counters", action="store_true", help="do not run ncu")
    options.add_argument("--child", choices=("time", "launch", "emulate"), help=argparse.SUPPRESS)
    options.add_argument("--without", action="append", default=[], help=argparse.SUPPRESS)
    options.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    return options


def main(words: Sequence[str] | None = None) -> int:
    """0 when every sweep ran and every variant is right."""
    options = parser().parse_args(words)
    if options.child:
        return child(options)
    if options.sweeps in TOGETHER:
        made, name = TOGETHER[options.sweeps]
        chosen = made()
    else:
        chosen, name = tuple(sweep(each, DEVICE) for each in options.sweeps.split(",")), "sweeps.json"
    if options.build:
        return build_part(chosen, options.build)
    command = "benchmarks/sweeps.py " + " ".join(sys.argv[1:] if words is None else words)
    journal = Journal(options.into / name if options.into else None, command)
    try:
        if options.emulated:
            emulate(chosen, journal)
        else:
            measure(options, chosen, journal)
    finally:  # also when it is interrupted: the table says what there is
        from tilewright.bench.sweep_report import table_lines

        print("\n".join(table_lines(journal.rows)))
    return 1 if any(row["status"] != "ok" for row in journal.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
