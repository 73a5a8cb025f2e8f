"""The sweeps of docs/ladder/sweeps.md, measured on a Hopper GPU in less than three minutes.

    PYTHONPATH=src python benchmarks/sweeps.py --build DIR                   on any machine: cubins of all that follows
    TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src python benchmarks/sweeps.py --into OUT [--budget-s 170]
    python tools/publish_rows.py OUT/sweeps.json && python tools/sweep_pages.py

Each sweep runs in a child process with a time limit, the most important first, and so does ncu over it; a child appends
one JSON line a result at once. OUT/sweeps.json is written anew after each child, so what was measured when the budget
ended counts. A variant that hangs or faults costs itself: its sweep begins again without it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.bench import counters
from tilewright.bench.children import rows_of, run_limited
from tilewright.bench.sweeps import PROBLEM, Sweep, sources, sweep, sweeps
from tilewright.device import preset
from tilewright.errors import CompileError

Row = dict[str, Any]

DEVICE = preset("h200")  # whose configs are swept; the parent opens no driver
START_S = 7.0  # a child's own: imports, context, operands, two samples of cuBLAS
VARIANT_S = 1.4  # steady and burst of one variant, with its share of cuBLAS
COUNTING_S, COUNT_S = 7.0, 0.5  # ncu's start, and one launch under it
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


def words_of(kind: str, name: str, log: Path, without: Sequence[str], rounds: int) -> list[str]:
    """A child's command line."""
    words = [sys.executable, str(Path(__file__).resolve()), "--child", kind, "--sweeps", name, "--log", str(log)]
    words += ["--rounds", str(rounds)]
    return words + [word for variant in without for word in ("--without", variant)]


def settled(rows: Sequence[Row], status: str) -> list[Row]:
    """The rows without those that only say "begun"; one that never ended gets the child's status."""
    done = [row for row in rows if row["status"] != "begun"]
    if rows and rows[-1]["status"] == "begun" and status != "ok":
        done.append(rows[-1] | {"status": status})
    return done


def time_part(each: Sweep, until_s: float, rounds: int) -> list[Row]:
    """The checks and times of one sweep; begun again without the variant that ended a child, twice at most."""
    found: list[Row] = []
    without: list[str] = []
    for _ in range(3):
        limit_s = min(SLACK * expected_s(each.without(without), rounds), until_s - time.monotonic())
        if limit_s < START_S:
            break
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "rows.jsonl"
            code, output = run_limited(words_of("time", each.name, log, without, rounds), limit_s)
            rows = rows_of(log)
        status = "ok" if code == 0 else f"stopped after {limit_s:.0f} s" if code is None else f"exit {code}"
        found += settled(rows, status)
        if status == "ok":
            break
        ended_in = rows[-1]["variant"] if rows and rows[-1]["status"] == "begun" else None
        if ended_in is None:
            found.append({"kind": "child", "sweep": each.name, "status": status, "why": output[-1500:]})
            break
        found[-1]["why"] = output[-1500:]
        without.append(ended_in)
        found = [row for row in found if row["kind"] == "facts" or row.get("variant") in without]
    return found


def count_part(each: Sweep, until_s: float, refused: set[str]) -> list[Row]:
    """What ncu counts of each variant, launched once. `refused` are metrics that ncu has turned down."""
    assert each.counters is not None
    about = {"kind": "sweep_counters", "sweep": each.name, "variant": "all"}
    limit_s = min(SLACK * counting_s(each), until_s - time.monotonic())
    with tempfile.TemporaryDirectory() as folder:
        log, answer = Path(folder) / "rows.jsonl", Path(folder) / "ncu.csv"

        def read() -> str:
            return answer.read_text(errors="replace") if answer.exists() else ""

        def run(command: Sequence[str], seconds: float) -> tuple[int | None, str]:
            log.unlink(missing_ok=True)
            answer.unlink(missing_ok=True)
            return run_limited(command, min(seconds, max(until_s - time.monotonic(), 1.0)))

        program = words_of("launch", each.name, log, (), 1)
        try:
            launches, status = counters.profile(
                counters.metrics_of(each.counters), program, str(answer), read, run, limit_s, refused
            )
        except OSError as missing:
            return [about | {"status": "not run", "why": str(missing)}]
        return counted(each, rows_of(log), launches, status)


def counted(each: Sweep, rows: Sequence[Row], launches: Sequence[counters.Launched], status: str) -> list[Row]:
    """The child's rows with what ncu counted of the launch that each one is of: launch i of the child is ncu's i-th."""
    assert each.counters is not None
    own = [row for row in rows if row["status"] == "launched"]
    entries = {row["entry"] for row in own}
    seen = [launch for launch in launches if launch.kernel in entries]
    found = [row for row in rows if row["status"] not in ("launched", "begun") and row["kind"] != "facts"]
    for row, launch in zip(own, seen, strict=False):
        if launch.kernel != row["entry"]:  # from here on the two do not tell of the same launches
            status = f"ncu saw {launch.kernel} where {row['entry']} was launched"
            break
        found.append(row | {"status": "ok"} | counters.columns(each.counters, launch.values))
    if len(seen) < len(own) or not own or status != "ok":
        about = {"kind": "sweep_counters", "sweep": each.name, "variant": "all"}
        found.append(about | {"status": "partly" if seen else "not counted", "why": f"{len(seen)} launches: {status}"})
    return found


def emulated_part() -> list[Row]:
    """The bank conflicts of the swizzle sweep by rule and as the emulator counts them; needs no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "rows.jsonl"
        code, output = run_limited(words_of("emulate", "swizzle", log, (), 1), 120.0)
        rows = settled(rows_of(log), "stopped" if code is None else "ok")
    if code != 0:
        rows.append({"kind": "child", "sweep": "swizzle", "status": f"exit {code}", "why": output[-1500:]})
    return rows


def expected_s(each: Sweep, rounds: int = 1) -> float:
    """Seconds that timing one sweep takes."""
    return START_S + VARIANT_S * rounds * len(each.variants)


def counting_s(each: Sweep) -> float:
    """Seconds that counting one sweep takes."""
    return COUNTING_S + COUNT_S * len(each.variants)


def steps(chosen: Sequence[Sweep], *, counting: bool) -> Iterator[tuple[str, Sweep]]:
    """What is done in which order: the sweeps, each counted after it was timed; "tile" is counted last."""
    late = [each for each in chosen if each.counters and each.name == "tile"]
    for each in chosen:
        yield "time", each
        if counting and each.counters and each not in late:
            yield "count", each
    for each in late if counting else ():
        yield "count", each


def measure(options: argparse.Namespace, chosen: Sequence[Sweep], journal: Journal) -> None:
    """Every step that the budget has room for."""
    until_s = time.monotonic() + options.budget_s
    refused: set[str] = set()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        emulated = pool.submit(emulated_part) if any(each.name == "swizzle" for each in chosen) else None
        for kind, each in steps(chosen, counting=not options.no_counters):
            left_s = until_s - time.monotonic()
            needed_s = expected_s(each, options.rounds) if kind == "time" else counting_s(each)
            if left_s < needed_s / SLACK:
                about = {"kind": "child", "sweep": each.name, "variant": "all", "status": "no time"}
                journal.add([about | {"why": f"{kind}: {left_s:.0f} s left"}])
                continue
            started = time.monotonic()
            rows = time_part(each, until_s, options.rounds) if kind == "time" else count_part(each, until_s, refused)
            journal.add(rows)
            print(f"{each.name} {kind}: {len(rows)} rows in {time.monotonic() - started:.0f} s", flush=True)
        if emulated is not None:
            journal.add(emulated.result())


# -- a child ----------------------------------------------------------------------------------------------------------


def child(options: argparse.Namespace) -> int:
    """One sweep's rows to the log, each on disk before the next begins."""
    each = sweep(options.sweeps, DEVICE).without(options.without)

    def add(row: Row) -> None:
        with options.log.open("a") as file:
            file.write(json.dumps(row) + "\n")

    if options.child == "emulate":
        from tilewright.bench.sweep_conflicts import conflict_rows  # the emulator

        for row in conflict_rows(each):
            add(row)
        return 0
    try:
        for row in launched_rows(each) if options.child == "launch" else timed_rows(each, options.rounds):
            add(row)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(3)  # a kernel may still be running: nothing that waits for it may be called on the way out
    return 0


def launched_rows(each: Sweep) -> Iterator[Row]:
    """What a child under ncu does."""
    from tilewright.bench import sweep_launches  # the driver, which the parent never opens

    yield from sweep_launches.launched_rows(each)


def timed_rows(each: Sweep, rounds: int) -> Iterator[Row]:
    """The machine's facts, then the checks and times."""
    from tilewright.backends.cuda import backend  # see launched_rows()
    from tilewright.bench import sweep_rows  # torch
    from tilewright.bench.facts import facts

    yield {"kind": "facts", "status": "ok"} | facts(backend())
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
    options.add_argument("--sweeps", default="all", help="names joined by commas")
    options.add_argument("--budget-s", type=float, default=170.0, help="wall-clock time of all children together")
    options.add_argument("--rounds", type=int, default=1, help="samples of each time")
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
    chosen = sweeps(DEVICE)
    if options.sweeps != "all":
        chosen = tuple(sweep(name, DEVICE) for name in options.sweeps.split(","))
    if options.build:
        return build_part(chosen, options.build)
    command = "benchmarks/sweeps.py " + " ".join(sys.argv[1:] if words is None else words)
    journal = Journal(options.into / "sweeps.json" if options.into else None, command)
    try:
        measure(options, chosen, journal)
    finally:  # also when it is interrupted: the table says what there is
        from tilewright.bench.sweep_report import table_lines

        print(f"{PROBLEM}")
        print("\n".join(table_lines(journal.rows)))
    return 1 if any(row["status"] != "ok" for row in journal.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
