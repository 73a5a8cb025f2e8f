"""The ladder measured: the rungs checked in one process, then timed beside cuBLAS in another for each mode.

Makes rows, one a rung and mode; ladder_report.py makes tables and plots of them. A rung that hangs or faults costs its
own row: its check runs as a debug build, whose waits are bounded, in a child with a time limit; the rungs behind it are
checked in a child anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tilewright.backends.base import Backend
from tilewright.bench.children import rows_of_module, write_rows
from tilewright.calls import Ledger
from tilewright.choice import choose
from tilewright.device import Device, preset
from tilewright.errors import UnsupportedError
from tilewright.jit.build import build, build_into
from tilewright.jit.source import Binary, Source
from tilewright.kernels import product
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.ladder import RUNGS, Rung
from tilewright.kernels.ladder_configs import RungConfig
from tilewright.kernels.render import render
from tilewright.occupancy import occupancy
from tilewright.packing import packed
from tilewright.plan import Plan
from tilewright.planning import plan_problem
from tilewright.problem import Problem

Row = dict[str, Any]
Progress = Callable[[str], None]  # told what begins

PRODUCTION = "v12_production"  # the last rung: the production kernel with the choice that matmul makes
TRACKS: dict[str, tuple[str, ...]] = {  # what a word names as a whole
    "all": (*(rung.name for rung in RUNGS), PRODUCTION),
    "ampere": tuple(rung.name for rung in AMPERE_RUNGS),
}
WGMMA, MMA_SYNC = INSTRUCTIONS = ("wgmma", "mma.sync")  # what a ceiling is of
CUBLAS = "cublas"
TUNED = "cublaslt"
MODES = ("burst", "interleaved", "steady")
Kind = Literal["normal", "integer"]

# One tile, edges of tiles, k shorter and longer than every FIFO, odd rows of out, several tiles a CTA.
CHECK_SHAPES = ((64, 64, 64), (129, 257, 72), (300, 511, 1000), (1000, 1000, 17), (2048, 2304, 512))

WAIT_LIMIT = 1 << 22  # tries of one wait in a debug build; the hardware may suspend each for microseconds
CHECKS = 2 * len(CHECK_SHAPES) + 1  # rows of a rung: each of these in two kinds of data, and the problem
CHECK_LIMIT_S = 120.0  # of a child that checks one rung
CHECK_MORE_S = 10.0  # of each further one; a child's start is most of the time of one
TIME_LIMIT_S = 600.0


class RungPlan(Plan):
    """One product on one rung. `wait_limit` bounds its waits, for a debug build."""

    def __init__(
        self,
        rung: Rung,
        problem: Problem,
        device: Device,
        *,
        backend: Callable[[], Backend],
        config: RungConfig | None = None,
        num_sms: int | None = None,
        wait_limit: int = 0,
    ) -> None:
        """Raises: ConfigError: the rung cannot run the problem on the device."""
        super().__init__(
            problem,
            device,
            rung,
            config or rung.choice(problem, device),
            why=rung.idea,
            num_sms=num_sms,
            backend=backend,
            ledger=Ledger(),
        )
        self._wait_limit = wait_limit

    @property
    def binary(self) -> Binary:
        """The compiled kernel. Raises: CompileError: also for a spill or a serialised wgmma."""
        return build(render(self.family, self.problem, self.config, self.device, self._wait_limit), refuse=True)


def named(text: str) -> tuple[str, ...]:
    """Rungs by "v04", "v04_warp_specialized", "v04-v08", joined by commas; "all" is Hopper's ladder and the production
    kernel, "ampere" all of a0 to a9.

    Raises: UnsupportedError: there is no such rung, or a range leads from one ladder to the other.
    """
    names = tuple(name for track in TRACKS.values() for name in track)
    numbers = [name.split("_")[0] for name in names]
    if text in TRACKS:
        return TRACKS[text]
    found: list[int] = []
    for word in text.split(","):
        first, _, last = word.strip().partition("-")
        ends = [numbers.index(end.split("_")[0]) for end in (first, last or first) if end.split("_")[0] in numbers]
        if len(ends) != 2 or len({numbers[end][0] for end in ends}) != 1:
            raise UnsupportedError(
                asked=f"rung {word!r}",
                rule=f"rungs are {', '.join(names)}",
                works="name one as v04, some as v04-v08, or a ladder as all or ampere",
            )
        found += range(ends[0], ends[1] + 1)
    return tuple(names[index] for index in dict.fromkeys(sorted(found)))


def rungs_of(names: Iterable[str]) -> Iterator[Rung]:
    """The rungs among the names, in their order; the production kernel is none."""
    by_name: dict[str, Rung] = {rung.name: rung for rung in (*RUNGS, *AMPERE_RUNGS)}
    return (by_name[name] for name in names if name in by_name)


def rung_plan(
    name: str,
    problem: Problem,
    device: Device,
    backend: Callable[[], Backend],
    *,
    changes: Mapping[str, Any] | None = None,
    num_sms: int | None = None,
) -> RungPlan:
    """The plan of one rung with some fields of its config changed; without changes with what it chooses for the size.

    Raises: UnsupportedError: `name` is no single rung. ConfigError: the rung cannot run the problem with them.
    """
    found = list(rungs_of(named(name)))
    if len(found) != 1:
        raise UnsupportedError(
            asked=f"rung {name!r}",
            rule=f"it names {len(found)} rungs, and one is looked at at a time",
            works="name one, as v04 or a4; v12, the production kernel, is what a product without a rung gets",
        )
    chosen: Any = found[0].choice(problem, device)
    config = chosen.replace(**changes) if changes else None
    return RungPlan(found[0], problem, device, backend=backend, config=config, num_sms=num_sms)


def plans_of(
    names: Sequence[str], problem: Problem, device: Device, backend: Callable[[], Backend], num_sms: int | None = None
) -> dict[str, Plan]:
    """A plan of the problem for each name, the production kernel's with the choice that matmul makes."""
    plans: dict[str, Plan] = {
        rung.name: RungPlan(rung, problem, device, backend=backend, num_sms=num_sms) for rung in rungs_of(names)
    }
    if PRODUCTION in names:
        plans[PRODUCTION] = plan_problem(problem, device, backend=backend, ledger=Ledger(), num_sms=num_sms)
    return plans


def sources(names: Sequence[str], problem: Problem, device: Device) -> list[Source]:
    """Every unit that measure() loads, for a machine whose compiler is another or none."""
    found = []
    for rung in rungs_of(names):
        for each in (*(packed(*shape) for shape in CHECK_SHAPES), problem):
            config = rung.choice(each, device)
            _, *adding = product.sources(rung, each, config, device)
            found += [render(rung, each, config, device, WAIT_LIMIT), *adding]
        found.append(render(rung, problem, rung.choice(problem, device), device))
    if PRODUCTION in names:
        choice = choose(problem, device)
        found.append(render(choice.family, problem, choice.config, device))
    return list({source.digest(""): source for source in found}.values())


# -- in a child: needs a GPU -------------------------------------------------------------------------------------------


def check_rows(rung: Rung, problem: Problem) -> Iterator[Row]:
    """The verdicts on one rung: CHECK_SHAPES with whole numbers and with normal data, then the problem itself."""
    from tilewright.backends.cuda import backend  # the driver, which the parent never opens
    from tilewright.bench.verify import verify

    device = backend().device(0)
    small = [packed(*shape) for shape in CHECK_SHAPES]
    kinds: tuple[Kind, ...] = ("integer", "normal")
    runs: list[tuple[Problem, Kind]] = [(each, kind) for each in small for kind in kinds]
    for each, kind in [*runs, (problem, "normal")]:
        plan = RungPlan(rung, each, device, backend=backend, wait_limit=WAIT_LIMIT)
        verdict = verify(each, kind=kind, plan=plan)
        yield {
            "kind": "rung_check",
            "rung": rung.name,
            "problem": str(each),
            "data": kind,
            "status": "ok" if verdict.ok else "wrong",
            **dataclasses.asdict(verdict),
        }


def time_rows(
    names: Sequence[str],
    problem: Problem,
    modes: Sequence[str],
    rounds: int | None,
    tune_s: float = 0.0,
    tuned_from: Path | None = None,
) -> Iterator[Row]:
    """One row a mode and column, cuBLAS first.

    `tune_s`: seconds to look for the best of cuBLASLt's algorithms, a column of its own; 0 is not at all. `tuned_from`:
    earlier rows, whose finalists are raced again.
    """
    from tilewright.backends.cuda import backend  # see check_rows()
    from tilewright.bench.compare import compare  # torch
    from tilewright.bench.tuned import Search, saved_of

    device = backend().device(0)
    plans = plans_of(names, problem, device, backend)
    earlier = [] if tuned_from is None else json.loads(tuned_from.read_text())
    search = Search(seconds=tune_s, saved=saved_of(earlier))
    for mode in modes:
        rows = compare(
            problem,
            modes=(mode,),  # type: ignore[arg-type]
            configs=(),
            rounds=rounds,
            plans=plans,
            tuned=search if tune_s else False,
        )
        search = dataclasses.replace(search, saved={**search.saved, **saved_of(rows)})
        for row in rows:
            yield described(row, row["candidate"], device.name, plans.get(row["candidate"]))


def described(row: Row, name: str, device: str, plan: Plan | None) -> Row:
    """One row of compare() with what the ladder's table asks for; `plan` None: cuBLAS, of which no more is known."""
    resources = plan.binary.resources if plan else None
    return {
        "kind": "rung_time",
        "status": "ok",
        **row,
        "rung": name,
        "device": device,
        "registers": resources.registers if resources else None,
        "smem_bytes": plan.launch.smem_bytes + resources.smem_bytes if plan and resources else None,
        "occupancy_pct": occupancy_pct(plan) if plan and name in TRACKS["ampere"] else None,
    }


def occupancy_pct(plan: Plan) -> float:
    """The theoretical occupancy of a plan's kernel, as a percentage of the warps that an SM can hold."""
    resources = plan.binary.resources
    smem_bytes = plan.launch.smem_bytes + resources.smem_bytes
    return 100 * occupancy(plan.device, plan.launch.block, resources.registers, smem_bytes).share


def instruction_of(rung: str) -> str:
    """The instruction whose ceiling a rung is held to; cuBLAS and the production kernel use wgmma."""
    return MMA_SYNC if rung in TRACKS["ampere"] else WGMMA


def with_ceilings(rows: Iterable[Row], ceilings: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """The rows, the timed ones with their share of the ceiling of their instruction in the same mode; None: not known.

    Units: TFLOPS by instruction and mode, of the card that the rows are of.
    """

    def one(row: Row) -> Row:
        if row["kind"] != "rung_time" or row["status"] != "ok":
            return row
        instruction = instruction_of(row["rung"])
        ceiling = ceilings.get(instruction, {}).get(row["mode"])
        share = None if ceiling is None else row["rate_tflops"] / ceiling
        return row | {"ceiling_of": instruction, "ceiling_tflops": ceiling, "share_of_ceiling": share}

    return [one(row) for row in rows]


# -- the parent --------------------------------------------------------------------------------------------------------


def measure(
    names: Sequence[str],
    problem: Problem,
    *,
    modes: Sequence[str] = MODES,
    rounds: int | None = None,
    tune_s: float = 0.0,
    progress: Progress = lambda text: None,
) -> list[Row]:
    """Every row: the checks of each rung, and the times of those whose checks passed. Opens no driver itself.

    `tune_s`: seconds to look for the best of cuBLASLt's algorithms, in the first mode; the others race its finalists.

    Cost: 6 s for each child, one of all checks and one a mode; a rung's checks about 1 s at 8192^3; burst 0.6 s x 6,
    interleaved 0.2 s, steady 2 s x 5, each times the columns.
    """
    size = [str(extent) for extent in (problem.m, problem.n, problem.k)]
    rows = checked(names, size, progress)
    failed = {row["rung"] for row in rows if row["status"] != "ok"}
    passed = sorted(name for name in names if name not in failed)
    words = ["--time", ",".join(passed), *size, *([] if rounds is None else ["--rounds", str(rounds)])]
    words += ["--tune-s", str(tune_s)] if tune_s else []
    with tempfile.TemporaryDirectory() as folder:
        tuned_from = Path(folder) / "tuned.json"
        for mode in modes:
            progress(f"timing {mode}")
            more = ["--tuned-from", str(tuned_from)] if tuned_from.exists() else []
            about = {"kind": "rung_time", "rung": "all", "mode": mode}
            found = child([*words, "--modes", mode, *more], TIME_LIMIT_S, about)
            if any("tuned" in row for row in found):
                tuned_from.write_text(json.dumps(found))
            rows += found
    return rows


def checked(names: Sequence[str], size: Sequence[str], progress: Progress = lambda text: None) -> list[Row]:
    """The checks of the rungs among the names, all in one child. Where that ends in the midst of one, this rung's last
    row says how, and the rungs behind it have a child of their own."""
    rows: list[Row] = []
    left = [rung.name for rung in rungs_of(names)]
    while left:
        progress(f"checking {left[0]}" + f" to {left[-1]}" * (len(left) > 1))
        limit_s = CHECK_LIMIT_S + CHECK_MORE_S * (len(left) - 1)
        found = child(["--check", ",".join(left), *size], limit_s, {"kind": "rung_check", "rung": left[0]})
        verdicts = Counter(row["rung"] for row in found if "problem" in row)
        if verdicts.total() == len(found):
            return rows + found
        ended = next((name for name in left if verdicts[name] < CHECKS), left[-1])
        rows += [row if "problem" in row else row | {"rung": ended} for row in found]
        left = left[left.index(ended) + 1 :]
    return rows


def child(words: Sequence[str], limit_s: float, about: Row) -> list[Row]:
    """The rows that this module wrote as a child process; see rows_of_module()."""
    return rows_of_module("tilewright.bench.ladder", words, limit_s, about)


def main(words: Sequence[str] | None = None) -> int:
    """The child's command line: rows to --log, one JSON line each, on disk before the next begins.

    `--build DIR` is for the person who measures where no compiler is: TILEWRIGHT_PREBUILT=DIR makes the rest use it.
    """
    parser = argparse.ArgumentParser(prog="tilewright.bench.ladder", description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", metavar="RUNGS")
    what.add_argument("--time", metavar="RUNGS")
    what.add_argument("--build", metavar="DIR", type=Path, help="compile all that the others load, for another machine")
    parser.add_argument("size", nargs=3, type=int)
    parser.add_argument("--rungs", default="all", help="of --build")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--tune-s", type=float, default=0.0)
    parser.add_argument("--tuned-from", type=Path)
    parser.add_argument("--log", type=Path, default=Path("/dev/stdout"))
    options = parser.parse_args(words)
    problem = packed(*options.size)
    if options.build:
        binaries = build_into(sources(named(options.rungs), problem, preset("h200")), options.build, refuse=True)
        print(f"{len(binaries)} kernels in {options.build}")
        return 0
    if options.check:
        rows: Iterator[Row] = (row for rung in rungs_of(named(options.check)) for row in check_rows(rung, problem))
    else:
        modes = options.modes.split(",")
        rows = time_rows(named(options.time), problem, modes, options.rounds, options.tune_s, options.tuned_from)
    return write_rows(rows, options.log)


if __name__ == "__main__":
    sys.exit(main())
