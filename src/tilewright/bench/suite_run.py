"""A suite measured side by side: cuBLAS, the best of cuBLASLt, tilewright untuned and from records, shape by shape.

Rows go to a file of JSON lines, each on disk before the next begins, so that a run that was stopped goes on where it
was. The shapes run in a child process; one that hangs or faults costs itself, and the next child begins after it. Makes
no table and no plot: suite_report.py does.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright import records
from tilewright.bench.children import kill
from tilewright.bench.floor import floor
from tilewright.bench.suite import Entry, problem_of
from tilewright.config import Config, changes_from
from tilewright.device import Device
from tilewright.errors import RefusalError, TilewrightError, UnsupportedError
from tilewright.kernels.catalog import offered_family
from tilewright.kernels.repack import repacked
from tilewright.order import Reduction
from tilewright.problem import Problem

Row = dict[str, Any]
# What earlier tuning found for a problem; None: there is no record.
Records = Callable[[Problem], Config | None]

UNTUNED, RECORDED = "tilewright", "tilewright recorded"  # columns beside those of compare.py
START_S = 40.0  # a child's imports, context and library, before its first shape counts against its own limit
SHAPE_S = 2.0  # one shape without any search: operands, kernels, checks, and four columns interleaved
LEAST_TUNE_S = 0.5
POLL_S = 0.2
ROWS_FILE = "rows.jsonl"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is measured of each shape, and how long it may take.

    Units: `tune_s` seconds of the search for cuBLASLt's best, 0 for none; `budget_s` of the whole run, None for no end;
    `limit_s` of one shape. `tuned_from`: rows whose finalists are raced in place of a search. `records`: a JSON object
    of problem, as it prints, to the KEY=VALUE words of a config, asked in place of what is on record.
    """

    modes: tuple[str, ...] = ("interleaved",)
    rounds: int | None = None
    dtype: str = "bf16"
    b_major: str = "k"
    tune_s: float = 20.0
    limit_s: float = 120.0
    budget_s: float | None = None
    tuned_from: Path | None = None
    records: Path | None = None
    reduction: Reduction = "fast"

    @property
    def identity(self) -> Row:
        """What rows of one run have in common."""
        own = {"modes": list(self.modes), "rounds": self.rounds, "dtype": self.dtype, "b_major": self.b_major}
        return own if self.reduction == "fast" else own | {"reduction": self.reduction}


# -- the file of rows --------------------------------------------------------------------------------------------------


@dataclass
class Journal:
    """The rows of a run in their file: facts and options first, then each shape's between "begun" and "done"."""

    path: Path
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def opened(cls, path: Path) -> Journal:
        """The rows that are there already; a last line that was cut off is none."""
        journal = cls(path)
        journal.read()
        return journal

    def add(self, row: Row) -> None:
        """One more row, on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line that a stopped run cut off is ended first
                    file.write(b"\n")
            file.write(json.dumps(row).encode() + b"\n")
        self.rows.append(row)

    def add_shape(self, entry: Entry, rows: Iterable[Row]) -> None:
        """All rows of a shape, which is done with them."""
        for row in [*rows, {"kind": "done", "shape": str(entry)}]:
            self.add(row)

    def read(self) -> None:
        """What another process has added since."""
        self.rows = []
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):
                self.rows.append(json.loads(line))

    @property
    def facts(self) -> Row:
        """Of the machine, without their kind."""
        found = next((row for row in reversed(self.rows) if row["kind"] == "facts"), {})
        return {name: value for name, value in found.items() if name != "kind"}

    @property
    def measured(self) -> list[Row]:
        """The rows of results: of a shape that was measured twice, those of the later time."""
        last: dict[str, list[Row]] = {}
        open_shape = ""
        for row in self.rows:
            if row["kind"] == "begun":
                open_shape = row["shape"]
                last[open_shape] = []
            elif row["kind"] == "bench":
                last.setdefault(row["shape"], []).append(row)
        return [row for rows in last.values() for row in rows]

    def done(self) -> set[str]:
        """Shapes that need not be measured again: they ended, well or not, and were not left out for want of time."""
        return {row["shape"] for row in self.rows if row["kind"] == "done"}

    def begun(self, since: int = 0) -> str | None:
        """The shape that began and has not ended, in the rows from `since` on."""
        for row in reversed(self.rows[since:]):
            if row["kind"] in ("begun", "done"):
                return str(row["shape"]) if row["kind"] == "begun" else None
        return None


# -- the child: needs a GPU --------------------------------------------------------------------------------------------


def measure_shape(entry: Entry, options: Options, tune_s: float, saved: Mapping[str, Any], device: Device) -> list[Row]:
    """The rows of one shape: one a mode and column, in every state that a column can end in."""
    from tilewright.bench.compare import compare  # torch
    from tilewright.bench.tuned import Search

    problem = problem_of(entry.shape, dtype=options.dtype, b_major=options.b_major)  # type: ignore[arg-type]
    recorded = records_of(options.records, device, options.reduction)(problem)
    rows = compare(
        problem,
        modes=options.modes,  # type: ignore[arg-type]
        rounds=options.rounds,
        reduction=options.reduction,
        configs=(),
        named={UNTUNED: None, **({RECORDED: recorded} if recorded else {})},
        tuned=Search(seconds=tune_s, saved=saved) if options.tune_s else False,
        checked=True,
    )
    if recorded is None:
        head = {name: rows[0][name] for name in ("m", "n", "k", "dtype", "out_dtype", "b_major")}
        no_record = {"candidate": RECORDED, "status": "no record", "why": f"no record for {problem}"}
        rows += [head | no_record | {"mode": mode} for mode in options.modes]
    return [described(row, entry, problem, device.name) for row in rows]


def described(row: Row, entry: Entry, problem: Problem, device: str) -> Row:
    """One row of compare() with its group and its distance to the floor."""
    lowest = floor(problem, row["mode"], device)
    us = row.get("median_us")
    return {
        "kind": "bench",
        "group": entry.group,
        "shape": str(entry),
        **row,
        "floor_us": None if lowest is None else lowest.us,
        "bound": None if lowest is None else lowest.bound,
        "share_of_floor": lowest.us / us if lowest is not None and us else None,
    }


def records_of(path: Path | None, device: Device, reduction: Reduction = "fast") -> Records:
    """What a file knows, or with none what is on record for the device (records.py). Raises: what records_in() raises.

    Where operands are copied first the record is that of the copies' product, as a plan asks for it. A record that
    cannot run any more is given all the same: its column is then refused, with the reasons.
    """
    if path is not None:
        return records_in(path)

    def lookup(problem: Problem) -> Config | None:
        copied = offered_family(problem, device).config.copied(problem)
        record = records.lookup(repacked(problem, copied), device, reduction=reduction)
        if record is None:
            return None
        return record.config.beside_copies() if copied else record.config

    return lookup


def records_in(path: Path) -> Records:
    """What a file of configs by problem knows.

    Raises: UnsupportedError: no such file. ConfigError: of what is asked, when it names no config.
    """
    try:
        known = {str(problem): list(words) for problem, words in json.loads(path.read_text()).items()}
    except (OSError, RecursionError, ValueError, AttributeError, TypeError) as error:
        raise UnsupportedError(
            asked=f"records from {path}",
            rule=f"it is no JSON object of problem to KEY=VALUE words ({type(error).__name__})",
            works='write {"8192x8192x8192 bf16 -> bf16 TN": ["tile_m=256", "tile_n=192"]}',
        ) from error

    def lookup(problem: Problem) -> Config | None:
        words = known.get(str(problem))
        return None if words is None else Config().replace(**changes_from(words))

    return lookup


def measure(entries: Sequence[Entry], options: Options, journal: Journal, deadline_s: float | None) -> None:
    """Every shape in turn, into the journal. `deadline_s` is of time.monotonic(): what would pass it is left out."""
    from tilewright.backends.cuda import backend  # the driver, which the parent never opens
    from tilewright.bench.facts import facts
    from tilewright.bench.tuned import saved_of

    device = backend().device(0)
    journal.add({"kind": "facts", **facts(backend())})
    saved = saved_of(rows_in(options.tuned_from)) if options.tuned_from else {}
    parent = os.getppid()
    for index, entry in enumerate(entries):
        if os.getppid() != parent:  # nobody waits for more rows, and the GPU is wanted by others
            return
        tune_s = options.tune_s
        if deadline_s is not None:
            left_s = deadline_s - time.monotonic()
            if left_s < SHAPE_S:
                return
            tune_s = min(tune_s, max(LEAST_TUNE_S, left_s / (len(entries) - index) - SHAPE_S))
        journal.add({"kind": "begun", "shape": str(entry)})
        try:
            rows = measure_shape(entry, options, tune_s, saved, device)
        except TilewrightError as error:
            journal.add_shape(entry, failure(entry, options, "error", f"{type(error).__name__}: {error}"))
            if not isinstance(error, RefusalError):  # perhaps a fault of the GPU: this process may run nothing more
                raise
        else:
            journal.add_shape(entry, rows)


def failure(entry: Entry, options: Options, status: str, why: str) -> list[Row]:
    """The rows of a shape that gave none: one a mode, of no column."""
    m, n, k = entry.shape
    about = {"kind": "bench", "group": entry.group, "shape": str(entry), "m": m, "n": n, "k": k, "candidate": None}
    return [about | {"mode": mode, "status": status, "why": why[-2000:]} for mode in options.modes]


def rows_in(path: Path) -> list[Row]:
    """The rows of a file: JSON lines, or {"facts": ..., "rows": [...]}. Raises: UnsupportedError: neither."""
    try:
        text = path.read_text()
        return Journal.opened(path).measured if path.suffix == ".jsonl" else list(json.loads(text)["rows"])
    except (OSError, RecursionError, ValueError, KeyError, TypeError) as error:
        raise UnsupportedError(
            asked=f"rows from {path}",
            rule=f"a file of rows is JSON lines in .jsonl, or an object with facts and rows ({type(error).__name__})",
            works="name a rows.jsonl or a bench.json that tilewright bench wrote",
        ) from error


# -- the parent --------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A run of a suite: starts children until every shape is done, or the time is over.

    `progress` is told (shapes done, what goes on) whenever that changes. `command` makes a child's command line.
    """

    entries: Sequence[Entry]
    options: Options
    journal: Journal
    progress: Callable[[int, str], None] = lambda done, text: None
    command: Sequence[str] = (sys.executable, "-m", "tilewright.bench.suite_run")
    now_s: Callable[[], float] = time.monotonic

    def go(self) -> list[Row]:
        """All rows, those of an earlier run in the same file among them.

        Raises: UnsupportedError: the file holds rows of another kind of run, or no child could begin.
        """
        self._continue()
        deadline_s = None if self.options.budget_s is None else self.now_s() + self.options.budget_s
        while left := self._left():
            if deadline_s is not None and deadline_s - self.now_s() < SHAPE_S:
                break
            before = len(self.journal.rows)
            status, output = self._child(left, deadline_s)
            self.journal.read()
            hung = self.journal.begun(before)
            if hung is not None:
                entry = next(entry for entry in left if str(entry) == hung)
                self.journal.add_shape(entry, failure(entry, self.options, status, output))
            elif status == "ok":
                break  # what is left was left out for want of time
            elif not any(row["kind"] == "done" for row in self.journal.rows[before:]):
                raise UnsupportedError(
                    asked="a bench of the suite",
                    rule=f"its child process could not begin ({status}): {output.strip()[-600:]}",
                    works="look at `tilewright doctor`",
                )
        why = f"the time of {self.options.budget_s} s was over"  # not in the file: a later run begins with these
        left_out = [row for entry in self._left() for row in failure(entry, self.options, "not run", why)]
        return self.journal.measured + left_out

    def _continue(self) -> None:
        earlier = [row for row in self.journal.rows if row["kind"] == "options"]
        own = {"kind": "options", **self.options.identity}
        if not earlier:
            self.journal.add(own)
        elif earlier[-1] != own:
            changed = [name for name, value in own.items() if earlier[-1].get(name) != value]
            raise UnsupportedError(
                asked=f"more rows in {self.journal.path}",
                rule=f"its run had other {', '.join(changed)}, and rows of two kinds would be compared",
                works="name another folder, or the same options",
            )

    def _left(self) -> list[Entry]:
        done = self.journal.done()
        return [entry for entry in self.entries if str(entry) not in done]

    def _child(self, left: Sequence[Entry], deadline_s: float | None) -> tuple[str, str]:
        """How a child over these shapes ended ("ok", "exit -11", "stopped after 60 s"), and its last output."""
        with tempfile.TemporaryDirectory() as folder:
            request, output = Path(folder) / "request.json", Path(folder) / "output"
            request.write_text(json.dumps(asked(left, self.options)))
            words = [*self.command, "--request", str(request), "--log", str(self.journal.path)]
            if deadline_s is not None:
                words += ["--budget-s", str(max(0.0, deadline_s - self.now_s()))]
            with output.open("w") as sink:
                child = subprocess.Popen(words, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
                try:
                    status = self._watched(child)
                finally:
                    stop(child)
            return status, output.read_text(errors="replace")[-4000:]

    def _watched(self, child: subprocess.Popen[bytes]) -> str:
        """How the child ended; it is stopped when it takes longer over one shape than it may."""
        before = len(self.journal.rows)
        since_s, known, limit_s = self.now_s(), -1, self.options.limit_s + START_S
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(POLL_S)
                return "ok" if code == 0 else f"exit {code}"
            self.journal.read()
            if len(self.journal.rows) != known:
                begun = self.journal.begun(before)
                limit_s = self.options.limit_s + (START_S if begun is None else 0.0)
                known, since_s = len(self.journal.rows), self.now_s()
                self.progress(len(self.entries) - len(self._left()), begun or "starting")
            if self.now_s() - since_s > limit_s:
                return f"stopped after {limit_s:.0f} s"


def stop(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and what it started, if it still runs."""
    if child.poll() is None:
        kill(child)
        child.wait()


def asked(entries: Iterable[Entry], options: Options) -> Row:
    """A child's task as JSON."""
    told = dataclasses.asdict(options)
    return {
        "entries": [[entry.group, *entry.shape] for entry in entries],
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in told.items()},
    }


def understood(request: Row) -> tuple[list[Entry], Options]:
    """What asked() wrote."""
    told = request["options"]
    for name in ("tuned_from", "records"):
        told[name] = None if told[name] is None else Path(told[name])
    entries = [Entry(group, (m, n, k)) for group, m, n, k in request["entries"]]
    return entries, Options(**told | {"modes": tuple(told["modes"])})


def main(words: Sequence[str] | None = None) -> int:
    """The child's command line."""
    parser = argparse.ArgumentParser(prog="tilewright.bench.suite_run", description=__doc__.splitlines()[0])
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--budget-s", type=float)
    given = parser.parse_args(words)
    entries, options = understood(json.loads(given.request.read_text()))
    deadline_s = None if given.budget_s is None else time.monotonic() + given.budget_s
    try:
        measure(entries, options, Journal.opened(given.log), deadline_s)
    except TilewrightError as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
