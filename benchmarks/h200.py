"""Everything that is measured on a Hopper GPU, in one script: checks, times, host costs, sanitizers.

    PYTHONPATH=src python benchmarks/h200.py --build DIR              on any machine: cubins of all that follows
    TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src python benchmarks/h200.py --check --time --host --sanitize --into OUT

Each part runs in a child process with a time limit, so that a kernel that hangs or faults costs its own part only. A
child appends one JSON line a result at once; what it had written when it was stopped counts, and the case that it was
in is named. The full rows go to OUT/<part>.json, a short table to the end of the output.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tilewright.bench import suite
from tilewright.bench.cases import Case, cases, small_cases
from tilewright.config import Config, changes_from
from tilewright.device import Device, preset
from tilewright.errors import ConfigError, TilewrightError
from tilewright.problem import Problem, packed

Row = dict[str, Any]

PARTS = ("check", "time", "host", "sanitize")
TOOLS = ("memcheck", "racecheck", "synccheck")
TIME_SHAPES = "4096x4096x4096,8192x8192x8192"
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: .*")


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
    found: list[suite.Shape] = []
    for word in text.split(","):
        if word == "all":
            found += suite.shapes()
        elif word in suite.GROUPS:
            found += suite.GROUPS[word]
        else:
            m, n, k = map(int, word.split("x"))
            found.append((m, n, k))
    return found


# -- parts that run in a child ----------------------------------------------------------------------------------------


class Log:
    """A file of JSON lines, each on disk before the next begins."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, row: Row) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def check_child(config: Config, log: Log, *, small: bool) -> None:
    """Every case of one config, checked. `small`: the sanitizer's few, without torch."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.verify import verify, verify_without_torch

    device = backend().device(0)
    for case in small_cases(config) if small else cases(config):
        row = described(case, config)
        reasons = config.violations(case.problem, device)
        if reasons:
            log.add(row | {"status": "skipped", "why": "; ".join(reasons)})
            continue
        log.add(row | {"status": "begun"})
        try:
            arguments: Row = {"config": config, "num_sms": case.num_sms, "kind": case.kind}
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
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.dtype.name,
        "out_dtype": problem.out_dtype.name,
        "b_major": problem.b_major,
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
    for m, n, k in shapes_of(options.shapes):
        problem = packed(m, n, k, dtype=options.dtype, b_major=options.b_major)
        log.add({"kind": "time", "m": m, "n": n, "k": k, "status": "begun"})
        try:
            for row in compare(problem, modes=options.modes.split(","), configs=[None, *chosen], rounds=options.rounds):
                log.add({"kind": "time", "status": "ok"} | row)
        except TilewrightError as error:
            log.add({"kind": "time", "m": m, "n": n, "k": k, "status": "error", "why": str(error)})


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
        command = [*prefix, sys.executable, __file__, *words, "--log", str(log)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = child.communicate(timeout=limit_s)
            status = "ok" if child.returncode == 0 else f"exit {child.returncode}"
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
            status = f"stopped after {limit_s:.0f} s"
        lines = log.read_text().splitlines() if log.exists() else []
    return settled([json.loads(line) for line in lines], status), status, output


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
    words += ["--b-major", options.b_major]
    words += [] if options.configs is None else ["--configs", options.configs]
    words += [] if options.rounds is None else ["--rounds", str(options.rounds)]
    rows, status, output = run_child(words, options.limit_s)
    if status != "ok":
        rows.append({"kind": "child", "status": status, "why": output[-2000:]})
    return rows


def sanitize_part(options: argparse.Namespace) -> list[Row]:
    """Each tool over the small cases of each config: its own summary, and the first lines of its reports."""
    rows = []
    for config in configs_of(named(options, ""), preset("h200")):
        for tool in TOOLS:
            started = time.perf_counter()
            prefix = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
            words = ["--child", "sanitize", "--configs", as_words(config)]
            try:
                results, status, output = run_child(words, options.limit_s, prefix)
            except OSError as missing:
                results, status, output = [], f"not run: {missing}", ""
            rows.append(
                {
                    "kind": "sanitize",
                    "tool": tool,
                    "config": str(config),
                    "status": status,
                    "summary": summary_of(output),
                    "products": len(results),
                    "wrong": sum(row["status"] not in ("ok", "skipped") for row in results),
                    "seconds": round(time.perf_counter() - started, 1),
                    "report": [line for line in output.splitlines() if line.startswith("=========")][:60],
                }
            )
    return rows


def summary_of(output: str) -> str:
    """The tool's last word, or that it had none."""
    found = SUMMARY.findall(output)
    return found[-1] if found else "no summary: " + output.strip()[-200:]


def as_words(config: Config) -> str:
    """The config as configs_of() reads it."""
    return ",".join(config.words())


def build_part(options: argparse.Namespace) -> int:
    """Every cubin that the other parts load, into the folder; returns how many."""
    from tilewright.choice import choose
    from tilewright.jit.build import build_into
    from tilewright.kernels.catalog import family
    from tilewright.kernels.render import render

    device = preset("h200")
    wanted: dict[str, Any] = {}

    def want(problem: Problem, config: Config) -> None:
        if not config.violations(problem, device):
            source = render(family("hopper"), problem, config, device)
            wanted.setdefault(source.digest("any"), source)

    for config in {*configs_of(named(options, "all"), device), Config()}:
        for case in (*cases(config), *small_cases(config)):
            want(case.problem, config)
    for shape in [*shapes_of(options.shapes), *suite.shapes(), (128, 128, 128), (1024, 1024, 1024)]:
        for major in ("k", "n"):
            problem = packed(*shape, dtype=options.dtype, b_major=major)
            want(problem, choose(problem, device).config)
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
            name = f"{row['candidate']} {row['config'] or ''}" if row["candidate"] == "tilewright" else row["candidate"]
            graph = "" if row["captured"] else " (not captured)"
            lines.append(
                f"{size:18s} {row['mode']:11s} {row['median_us']:9.1f} us {row['rate_tflops']:6.0f} TFLOPS "
                f"{ratio:22s} {power:14s} {name}{graph}"
            )
    elif part == "host":
        lines += [
            f"{row['m']}x{row['n']}x{row['k']:<6d} {row['way']:26s} {row['median_us']:6.2f} us "
            f"[{row['lower_us']:.2f} {row['upper_us']:.2f}] {row['over_bare_us']:+.2f}"
            if row["status"] == "ok"
            else f"{row['status']}: {_why(row)}"
            for row in rows
        ]
    else:
        lines += [
            f"{row['tool']:10s} {row['config']:44s} {row['status']}: {row['summary']}, {row['wrong']} wrong"
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
    options.add_argument("--build", type=Path, metavar="DIR", help="compile everything into DIR and stop; needs no GPU")
    options.add_argument("--configs", help='"all", or key=value,... joined by ";" (check: all, sanitize: the default)')
    options.add_argument("--shapes", default=TIME_SHAPES, help="groups of the suite or MxNxK, joined by commas")
    options.add_argument("--modes", default="burst,interleaved,steady")
    options.add_argument("--rounds", type=int, help="rounds of each timing (default: the mode's own)")
    options.add_argument("--dtype", default="bf16")
    options.add_argument("--b-major", default="k", choices=("k", "n"))
    options.add_argument("--jobs", type=int, default=4, help="checking children at a time")
    options.add_argument("--limit-s", type=float, default=150.0, help="time limit of one child")
    options.add_argument("--child", choices=(*PARTS, "facts"), help=argparse.SUPPRESS)
    options.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    return options


def child(options: argparse.Namespace) -> None:
    """One part, in this process."""
    log = Log(options.log)
    if options.child in ("check", "sanitize"):
        [config] = configs_of(options.configs, preset("h200"))
        check_child(config, log, small=options.child == "sanitize")
    elif options.child == "time":
        time_child(options, log)
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
        elif part == "sanitize":
            rows = sanitize_part(options)
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
