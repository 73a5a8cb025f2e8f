"""Everything that is measured on a Hopper GPU, in one script: checks, repeats, times, host costs, sanitizers.

    PYTHONPATH=src python benchmarks/h200.py --build DIR              on any machine: cubins of all that follows
    export TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src
    python benchmarks/h200.py --check --repeats --time --host --sanitize --into OUT
    python benchmarks/h200.py --time --tuned --modes interleaved,steady --into OUT
    python benchmarks/h200.py --narrow --limit-s 230 --into OUT      few rows, long k, few tiles: configs beside cuBLAS
    python benchmarks/h200.py --narrow --shapes long --into OUT      of these the few tiles with a long k

Each part runs in a child process with a time limit, so that a kernel that hangs or faults costs its own part only. A
child appends one JSON line a result at once; what it had written when it was stopped counts, and the case that it was
in is named. The full rows go to OUT/<part>.json, a short table to the end of the output.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tilewright
from tilewright.bench import narrow, repeats, report, sanitizers, suite
from tilewright.bench.cases import Case, cases, small_cases
from tilewright.bench.children import rows_of, run_limited
from tilewright.bench.ladder import RungPlan, rungs_of
from tilewright.config import Config, changes_from
from tilewright.device import Device, preset
from tilewright.errors import ConfigError, RefusalError, TilewrightError
from tilewright.packing import packed
from tilewright.problem import Problem

Row = dict[str, Any]

PARTS = ("check", "repeats", "time", "narrow", "host", "sanitize")
OWN_CONFIG = ("tilewright", "cublaslt")  # candidates whose config is not in their name
TIME_SHAPES = "4096x4096x4096,8192x8192x8192"


# -- which configs and problems ---------------------------------------------------------------------------------------


def configs_of(text: str, device: Device) -> list[Config]:
    """ "all": every distinct config of the production space; else configs as key=value,... joined by ";".

    "" is the one config of the defaults. Raises: ConfigError: an unknown key.
    """
    if text != "all":
        return [Config().replace(**changes_from(word for word in part.split(",") if word)) for part in text.split(";")]
    from tilewright.kernels.catalog import PRODUCTION  # here: a child that times needs no space

    problems = (packed(4096, 4096, 4096), packed(4096, 4096, 4096, out_dtype="fp32"))
    found = [config for family in PRODUCTION for problem in problems for config in family.space(problem, device)]
    return list(dict.fromkeys(found))


def named(options: argparse.Namespace, default: str) -> str:
    """The configs that were asked for; "" is an answer too."""
    return default if options.configs is None else str(options.configs)


def shapes_of(text: str) -> list[suite.Shape]:
    """Groups of the suite, or MxNxK, joined by commas; "all" is the whole suite."""
    return [entry.shape for entry in suite.entries(text)]


# -- parts that run in a child ----------------------------------------------------------------------------------------


class Log:
    """A file of JSON lines, each on disk before the next begins."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, row: Row) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def check_child(config: Config, log: Log, *, small: bool, rung: str = "") -> None:
    """Every case of one config, checked. `small`: the sanitizer's few, without torch; `rung`: on that rung."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.verify import verify, verify_without_torch

    device = backend().device(0)
    for case in small_cases(config) if small else cases(config):
        row = described(case, config) | ({"config": rung} if rung else {})
        reasons = config.violations(case.problem, device)
        if reasons:
            log.add(row | {"status": "skipped", "why": "; ".join(reasons)})
            continue
        log.add(row | {"status": "begun"})
        try:
            arguments: Row = {"config": config, "num_sms": case.num_sms, "kind": case.kind}
            for own in rungs_of([rung]):
                plan = RungPlan(own, case.problem, device, backend=backend, num_sms=case.num_sms)
                arguments = {"plan": plan, "kind": case.kind}
            if small:
                verdict = verify_without_torch(case.problem, **arguments)
            else:
                verdict = verify(case.problem, out_offset=case.out_offset, **arguments)
        except TilewrightError as error:
            log.add(row | {"status": "error", "why": f"{type(error).__name__}: {error}"})
            if isinstance(error, ConfigError):
                continue
            raise  # after a fault of the GPU this process can run nothing more
        log.add(row | dataclasses.asdict(verdict) | {"status": "ok" if verdict.ok else "wrong"})


def described(case: Case, config: Config) -> Row:
    """The columns that say which run a row is of."""
    problem = case.problem
    return {
        "kind": "check",
        "config": str(config),
        "case": str(case),
        **suite.problem_columns(problem),
        "out_pitch": problem.out_pitch,
        "out_offset": case.out_offset,
        "out_through_tma": problem.out_through_tma,
        "num_sms": case.num_sms,
        "data": case.kind,
    }


def time_child(options: argparse.Namespace, log: Log) -> None:
    """Every shape in every mode, beside cuBLAS; the model's choice and the configs that were named."""
    from tilewright.bench.compare import compare

    chosen = configs_of(options.configs, preset("h200")) if options.configs not in (None, "all") else []
    search = search_of(options)
    for m, n, k in shapes_of(options.shapes):
        problem = packed(m, n, k, dtype=options.dtype, b_major=options.b_major, padded=not options.contiguous)
        log.add({"kind": "time", "m": m, "n": n, "k": k, "status": "begun"})
        try:
            modes = options.modes.split(",")
            rows = compare(problem, modes=modes, configs=[None, *chosen], rounds=options.rounds, tuned=search)
            for row in rows:
                log.add({"kind": "time", "status": "ok"} | row)
        except TilewrightError as error:
            log.add({"kind": "time", "m": m, "n": n, "k": k, "status": "error", "why": str(error)})


def narrow_child(options: argparse.Namespace, log: Log) -> None:
    """Every shape of bench/narrow.py with its candidates; one that fails costs itself."""
    from tilewright.backends.cuda import backend

    for row in narrow.cluster_rows(backend()):
        log.add({"kind": "narrow", "status": "ok"} | row)
    for problem in narrow.problems(narrow_shapes(options)):
        log.add({"kind": "narrow", "m": problem.m, "n": problem.n, "k": problem.k, "status": "begun"})
        try:
            rows = narrow.rows_of(problem, preset("h200"), options.rounds)  # the configs that were built
        except RefusalError as error:
            rows = [{"m": problem.m, "n": problem.n, "k": problem.k, "status": "error", "why": str(error)}]
        for row in rows:
            log.add({"kind": "narrow", "status": "ok"} | row)


def narrow_shapes(options: argparse.Namespace) -> Sequence[suite.Shape] | None:
    """The shapes that were named; "long" is bench/narrow.py's name for its own. None: all of that file's."""
    if options.shapes == TIME_SHAPES:
        return None
    return narrow.LONG if options.shapes == "long" else shapes_of(options.shapes)


def search_of(options: argparse.Namespace) -> Any:
    """How the best of cuBLASLt's algorithms is looked for; False: not at all."""
    if not options.tuned:
        return False
    from tilewright.bench.tuned import Search, saved_of  # torch

    files = [] if options.tuned_from is None else [options.tuned_from]
    return Search(seconds=options.tune_s, saved=saved_of(report.read_rows(files)))


def host_child(log: Log) -> None:
    """What each way of calling costs the host."""
    from tilewright.bench.host import PROBLEMS, host_rows

    for problem in PROBLEMS:
        for row in host_rows(problem):
            log.add({"kind": "host", "status": "ok"} | row)


# -- the parent -------------------------------------------------------------------------------------------------------


def run_child(words: Sequence[str], limit_s: float, prefix: Sequence[str] = ()) -> tuple[list[Row], str, str]:
    """The rows that a child wrote, how it ended ("ok", "exit -11", "stopped after 60 s"), and its output."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "rows.jsonl"
        code, output = run_limited([*prefix, sys.executable, __file__, *words, "--log", str(log)], limit_s)
        status = "ok" if code == 0 else f"stopped after {limit_s:.0f} s" if code is None else f"exit {code}"
        return settled(rows_of(log), status), status, output


def settled(rows: Iterable[Row], status: str) -> list[Row]:
    """The rows without those that only say "begun"; one that never ended becomes a row with the child's status."""
    done: list[Row] = []
    open_row: Row | None = None
    for row in rows:
        if row["status"] == "begun":
            open_row = row
            continue
        open_row = None
        done.append(row)
    if open_row is not None and status != "ok":
        done.append(open_row | {"status": status})
    return done


def check_part(options: argparse.Namespace) -> list[Row]:
    """All configs, `jobs` children at a time."""

    def one(config: Config) -> list[Row]:
        words = ["--child", "check", "--configs", as_words(config)]
        rows, status, output = run_child(words, options.limit_s)
        if status != "ok":
            rows.append({"kind": "child", "config": str(config), "status": status, "why": output[-2000:]})
        return rows

    # The parent touches no driver: the preset names the same configs, and each child asks the GPU itself.
    configs = configs_of(named(options, "all"), preset("h200"))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        return [row for rows in pool.map(one, configs) for row in rows]


def single_part(part: str, options: argparse.Namespace) -> list[Row]:
    """A part that needs the GPU for itself: one child."""
    words = ["--child", part, "--shapes", options.shapes, "--modes", options.modes, "--dtype", options.dtype]
    words += ["--b-major", options.b_major, *(["--contiguous"] if options.contiguous else [])]
    words += [] if options.configs is None else ["--configs", options.configs]
    words += [] if options.rounds is None else ["--rounds", str(options.rounds)]
    words += ["--tuned", "--tune-s", str(options.tune_s)] if options.tuned else []
    words += [] if options.tuned_from is None else ["--tuned-from", str(options.tuned_from)]
    rows, status, output = run_child(words, options.limit_s)
    if status != "ok":
        rows.append({"kind": "child", "status": status, "why": output[-2000:]})
    return rows


def repeats_part(options: argparse.Namespace) -> list[Row]:
    """Every group of products in a child of its own."""
    found: list[Row] = []
    for group in options.groups.split(",") if options.groups else repeats.groups():
        rows, status, output = run_child(["--child", "repeats", "--groups", group], options.limit_s)
        if status != "ok":
            rows.append({"kind": "child", "group": group, "status": status, "why": output[-2000:]})
        found += rows
    return found


def sanitize_part(options: argparse.Namespace) -> list[Row]:
    """Each tool over the small cases of each target, or of the configs that were named: what it said, with its text."""
    named_ones = [] if options.configs is None else configs_of(options.configs, preset("h200"))
    rows = []
    for target in [sanitizers.Target(config=config) for config in named_ones] or sanitizers.targets():
        for tool in target.tools:
            started = time.perf_counter()
            words = ["--child", "sanitize", *target.words()]
            try:
                results, status, output = run_child(words, options.limit_s, sanitizers.prefix(tool))
            except OSError as missing:
                results, status, output = [], f"not run: {missing}", ""
            rows.append(sanitizers.row_of(target, tool, status, results, output, time.perf_counter() - started))
    return rows


def as_words(config: Config) -> str:
    """The config as configs_of() reads it."""
    return ",".join(config.words())


def build_part(options: argparse.Namespace) -> int:
    """Every cubin that the named parts load, or with none named all parts, into the folder; returns how many."""
    from tilewright.choice import choose
    from tilewright.jit.build import build_into
    from tilewright.kernels import repack
    from tilewright.kernels.catalog import family
    from tilewright.kernels.product import sources as sources_of

    device = preset("h200")
    wanted: dict[str, Any] = {}

    def want(problem: Problem, config: Config) -> None:
        if not config.violations(problem, device):
            sources = list(sources_of(family("hopper"), problem, config, device))
            sources += [repack.source(problem, device)] if problem.repacked else []
            for source in sources:
                wanted.setdefault(source.digest("any"), source)

    parts = {part for part in PARTS if getattr(options, part)} or set(PARTS)
    want(packed(4096, 4096, 4096), choose(packed(4096, 4096, 4096), device).config)  # the facts' own
    if "check" in parts:
        for config in {*configs_of(named(options, "all"), device), Config()}:
            for case in (*cases(config), *small_cases(config)):
                want(case.problem, config)
    if parts & {"time", "host"}:
        for shape in [*shapes_of(options.shapes), *suite.shapes(), (128, 128, 128), (1024, 1024, 1024)]:
            for major in ("k", "n"):
                problem = packed(*shape, dtype=options.dtype, b_major=major, padded=not options.contiguous)
                want(problem, tilewright.plan(problem, device=device).config)
    for problem, config in narrow.kernels(device, narrow_shapes(options)) if "narrow" in parts else ():
        want(problem, config)
    for source in repeats.sources(device) if "repeats" in parts else ():
        wanted.setdefault(source.digest("any"), source)
    for source in sanitizers.sources(device) if "sanitize" in parts else ():
        wanted.setdefault(source.digest("any"), source)
    print(f"{len(wanted)} kernels")
    build_into(list(wanted.values()), options.build)
    return len(wanted)


# -- tables and files -------------------------------------------------------------------------------------------------


def lines_of(part: str, rows: Sequence[Row]) -> list[str]:
    """The short table of one part."""
    lines = [f"== {part}: {len(rows)} rows"]
    if part == "check":
        for config in dict.fromkeys(row["config"] for row in rows):
            own = [row for row in rows if row["config"] == config]
            ran = [row for row in own if row["status"] in ("ok", "wrong")]
            bad = [row for row in own if row["status"] not in ("ok", "skipped")]
            worst = max((row["worst"] for row in ran), default=0.0)
            skipped = sum(row["status"] == "skipped" for row in own)
            lines.append(f"{config:44s} {len(ran):4d} ran {skipped:3d} skipped {len(bad):3d} bad, worst {worst:.3f}")
            lines += [f"    {row['status']}: {row.get('case', '')} {_why(row)}" for row in bad[:4]]
    elif part == "narrow":
        lines += narrow.lines_of(rows)
    elif part == "time":
        for row in rows:
            if row["status"] != "ok":
                lines.append(f"{row.get('m')}x{row.get('n')}x{row.get('k')} {row['status']}: {_why(row)}")
                continue
            ratio = (
                ""
                if row["ratio"] is None
                else f"{row['ratio']:.3f} [{row['ratio_lower']:.3f} {row['ratio_upper']:.3f}]"
            )
            power = "" if row["watts"] is None else f"{row['watts']:.0f} W {row['clock_mhz'] or 0:.0f} MHz"
            size = f"{row['m']}x{row['n']}x{row['k']}"
            name = f"{row['candidate']} {row['config'] or ''}" if row["candidate"] in OWN_CONFIG else row["candidate"]
            if tuned := row.get("tuned"):
                name += f", best of {tuned['tried']} of {tuned['offered']} in {tuned['seconds']:.0f} s"
            over_tuned = f"{row['ratio_tuned']:.3f} of tuned " if "ratio_tuned" in row else ""
            graph = "" if row["captured"] else " (not captured)"
            lines.append(
                f"{size:18s} {row['mode']:11s} {row['median_us']:9.1f} us {row['rate_tflops']:6.0f} TFLOPS "
                f"{ratio:22s} {over_tuned}{power:14s} {name}{graph}"
            )
    elif part == "host":
        lines += [
            f"{row['m']}x{row['n']}x{row['k']:<6d} {row['way']:26s} {row['median_us']:6.2f} us "
            f"[{row['lower_us']:.2f} {row['upper_us']:.2f}] {row['over_bare_us']:+.2f}"
            if row["status"] == "ok"
            else f"{row['status']}: {_why(row)}"
            for row in rows
        ]
    elif part == "repeats":
        lines += [
            f"{row['case']:40s} {row['config']:52s} {row['repeats']} repeats, {row['differing']} differ, "
            f"worst {row['worst']:.3f}, {row['seconds']:.1f} s"
            if "differing" in row
            else f"{row.get('case', row.get('group'))} {row.get('config', '')} {row['status']}: {_why(row)}"
            for row in rows
        ]
    else:
        lines += [
            f"{row['tool']:10s} {row['config']:60s} {row['status']}: {row['summary']}, {row['wrong']} wrong of "
            f"{row['products']}, {len(row['reports'])} reports, {row['seconds']} s"
            for row in rows
        ]
    return lines


def _why(row: Row) -> str:
    return str(
        row.get("why") or {key: row.get(key) for key in ("wrong", "worst", "first_wrong", "unwritten", "damaged")}
    )[-400:]


def write(folder: Path, part: str, rows: Sequence[Row], facts: Row) -> None:
    """The full rows, as tilewright.bench.report reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    command = "benchmarks/h200.py " + " ".join(sys.argv[1:])
    content = {"facts": facts | {"command": command}, "rows": [{"kind": part} | row for row in rows]}
    (folder / f"{part}.json").write_text(json.dumps(content, indent=1) + "\n")


def facts_child(log: Log) -> None:
    """What every file of rows says about the machine, and the compilers that made the default kernels."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.facts import facts
    from tilewright.dispatch import plan

    compiler = plan(packed(4096, 4096, 4096), device=backend().device(0)).binary.compiler
    log.add({"status": "ok"} | facts(backend()) | {"compiler": compiler})


def parser() -> argparse.ArgumentParser:
    """The options of parent and child."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for part in PARTS:
        options.add_argument(f"--{part}", action="store_true")
    options.add_argument("--into", type=Path, help="folder for the full rows")
    options.add_argument(
        "--build", type=Path, metavar="DIR", help="compile all of the named parts into DIR and stop; no GPU"
    )
    options.add_argument("--configs", help='"all", or key=value,... joined by ";" (check: all, sanitize: its own)')
    options.add_argument("--shapes", default=TIME_SHAPES, help="groups of the suite or MxNxK, joined by commas")
    options.add_argument("--modes", default="burst,interleaved,steady")
    options.add_argument("--rounds", type=int, help="rounds of each timing (default: the mode's own)")
    options.add_argument("--dtype", default="bf16")
    options.add_argument("--b-major", default="k", choices=("k", "n"))
    options.add_argument("--contiguous", action="store_true", help="time arrays without padding, as a model has them")
    options.add_argument("--tuned", action="store_true", help="time the best of cuBLASLt's own algorithms too")
    options.add_argument("--tune-s", type=float, default=20.0, help="seconds that looking for it takes a shape")
    options.add_argument("--tuned-from", type=Path, metavar="TIME.JSON", help="race the finalists of these rows only")
    options.add_argument("--jobs", type=int, default=4, help="checking children at a time")
    options.add_argument("--limit-s", type=float, default=150.0, help="time limit of one child")
    options.add_argument("--groups", default="", help=f"of --repeats: some of {', '.join(repeats.groups())}")
    options.add_argument("--rung", default="", help=argparse.SUPPRESS)
    options.add_argument("--child", choices=(*PARTS, "facts"), help=argparse.SUPPRESS)
    options.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    return options


def child(options: argparse.Namespace) -> None:
    """One part, in this process."""
    log = Log(options.log)
    if options.child in ("check", "sanitize"):
        if options.rung:
            [config] = [rung.config for rung in rungs_of([options.rung])]
        else:
            [config] = configs_of(options.configs, preset("h200"))
        check_child(config, log, small=options.child == "sanitize", rung=options.rung)
    elif options.child == "repeats":
        for row in repeats.repeated_rows(options.groups):
            log.add(row)
    elif options.child == "time":
        time_child(options, log)
    elif options.child == "narrow":
        narrow_child(options, log)
    elif options.child == "host":
        host_child(log)
    else:
        facts_child(log)


def main() -> int:
    """0 when every part ran and everything checked is right."""
    options = parser().parse_args()
    if options.child:
        child(options)
        return 0
    if options.build:
        build_part(options)
        return 0
    fact_rows, status, output = run_child(["--child", "facts"], options.limit_s)
    facts = fact_rows[0] if fact_rows else {"status": status, "why": output[-2000:]}
    facts.pop("status", None) if fact_rows else None
    print(json.dumps(facts, indent=1), flush=True)
    table: list[str] = []
    bad = 0
    for part in PARTS:
        if not getattr(options, part):
            continue
        started = time.perf_counter()
        if part == "check":
            rows = check_part(options)
        elif part in ("repeats", "sanitize"):
            rows = repeats_part(options) if part == "repeats" else sanitize_part(options)
        else:
            rows = single_part(part, options)
        bad += sum(row["status"] not in ("ok", "skipped") for row in rows)
        if options.into:
            write(options.into, part, rows, facts)
        table += [*lines_of(part, rows), f"   {time.perf_counter() - started:.0f} s"]
        print(f"{part} done", flush=True)
    print("\n".join(table))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
