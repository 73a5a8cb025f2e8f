"""The Ampere family on a Hopper GPU, where a caller may force it: checked, and timed beside cuBLAS.

    PYTHONPATH=src python benchmarks/ampere.py --build DIR            on any machine: cubins of all that follows
    export TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src
    python benchmarks/ampere.py --check --time --count --into OUT/ampere.json
    python benchmarks/ampere.py --modes --into OUT/ampere_modes.json  the best config, bf16 and fp16, bursts and steady
    python benchmarks/ampere.py --kinds --into OUT/kinds.json         int8, tf32 and fp16 sums beside cuBLAS's
    python benchmarks/ampere.py --forms --into OUT/kinds_forms.json   the same with split barriers and without

Each part runs in a child process with a time limit. On a Hopper GPU mma.sync has a ceiling of its own: the share of it
is printed, by the committed rows of `tilewright ceilings` on such a card. Nothing here was measured on an Ampere or Ada
card.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tilewright
from tilewright.ampere_config import AmpereConfig
from tilewright.bench.ampere_report import OWN, ceiling_tflops
from tilewright.bench.ceilings import committed_rows
from tilewright.bench.children import Row, run_limited
from tilewright.bench.counters import METRICS
from tilewright.bench.script import facts_of_part, main_of_parts, rows_of_part, rows_of_parts
from tilewright.device import preset
from tilewright.jit.source import Source
from tilewright.kernels.ampere import AMPERE
from tilewright.packing import packed
from tilewright.problem import Problem
from tilewright.timing import Mode

SQUARE, LARGE, ODD = packed(4096, 4096, 4096), packed(8192, 8192, 8192), packed(4095, 4095, 4095, padded=False)
BATCH = packed(384, 128, 256, dtype="fp16", batch=(1024,))
TIMED: tuple[Problem, ...] = (SQUARE, LARGE, ODD, BATCH)


@dataclass(frozen=True)
class Variant:
    """A config and what was expected of it before it was measured. Units: TFLOPS at 4096^3 and 8192^3 and, of 4095^3,
    with the copies in narrower pieces or first; microseconds of the batch. None: not timed there."""

    config: AmpereConfig
    square: float | None = None
    large: float | None = None
    odd: float | None = None
    batch_us: float | None = None

    def expected(self, problem: Problem) -> float | None:
        """Of a problem of TIMED, in its unit."""
        return (self.square, self.large, self.odd, self.batch_us)[TIMED.index(problem)]


def _variant(
    tile: tuple[int, int, int], warps: tuple[int, int], stages: int, *expected: float | None, **fields: Any
) -> Variant:
    (tile_m, tile_n, tile_k), (warps_m, warps_n) = tile, warps
    own = AmpereConfig(tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, warps_m=warps_m, warps_n=warps_n, stages=stages)
    config = own.replace(**fields)
    assert isinstance(config, AmpereConfig)
    return Variant(config, *expected)


# Where the expectations come from: docs/ampere.md, "Where the cycles go".
VARIANTS: tuple[Variant, ...] = (
    _variant((128, 256, 64), (2, 4), 4, 433, 439, 352, 175, ahead=3),
    _variant((128, 256, 64), (2, 4), 4, 475, 480, 378, ahead=3, split_barrier=True),
    _variant((128, 256, 64), (2, 4), 4, 452, 457, None, split_barrier=True),
    _variant((128, 256, 64), (2, 4), 4, 390, 393, None),
    _variant((256, 128, 64), (4, 2), 4, 440, 447, 365, ahead=3),
    _variant((256, 128, 64), (4, 2), 4, 475, 482, 378, ahead=3, split_barrier=True),
    _variant((128, 256, 32), (2, 4), 6, 409, 412, 362, ahead=3),
    _variant((128, 256, 32), (2, 4), 6, 460, 465, 390, ahead=3, split_barrier=True),
    _variant((128, 256, 32), (2, 4), 8, 462, 468, None, ahead=3, split_barrier=True),
    _variant((256, 128, 32), (4, 2), 6, 460, 467, 390, ahead=3, split_barrier=True),
    _variant((128, 128, 32), (2, 2), 5, 418, 431, 346, 123, ctas=2),
    _variant((128, 128, 32), (2, 2), 5, 440, 450, 365, 121, ctas=2, ahead=3),
    _variant((128, 128, 32), (2, 2), 6, 440, 450, 365, 121, ctas=2, ahead=3, split_barrier=True),
    _variant((128, 128, 64), (2, 2), 3, 410, 424, 350, 108, ctas=2, ahead=3),
    _variant((128, 128, 64), (2, 2), 3, None, None, None, 108, ctas=2, ahead=3, prefetch=128),
    _variant((128, 128, 64), (2, 4), 6, None, None, None, 115, split_barrier=True),
    _variant((192, 128, 64), (4, 2), 5, 380, 400, None, 105, ahead=3),
    _variant((192, 128, 64), (4, 2), 5, 400, 420, None, 101, ahead=3, split_barrier=True),
    _variant((256, 192, 64), (4, 2), 3, 360, 400, None),
    _variant((64, 128, 32), (1, 2), 4, 385, 390, None, 127, ctas=4, ahead=3),
)
CONFIGS: tuple[AmpereConfig, ...] = tuple(variant.config for variant in VARIANTS)
COUNTED: tuple[AmpereConfig, ...] = (CONFIGS[0], CONFIGS[1])  # by ncu, at 4096^3
# In bursts and steady, and of fp16 interleaved as well, which --time has of bf16: the config that was fastest there.
MODES_CONFIG = CONFIGS[1]
MODES_TIMED: tuple[tuple[Problem, tuple[Mode, ...]], ...] = (
    *((problem, ("burst", "steady")) for problem in (SQUARE, LARGE)),
    *((packed(edge, edge, edge, dtype="fp16"), ("interleaved", "burst", "steady")) for edge in (4096, 8192)),
)
_MAJORS: tuple[dict[str, Any], ...] = (
    {},
    {"a_major": "m"},
    {"b_major": "n"},
    {"a_major": "m", "b_major": "n", "out_major": "m"},
)
# What the family alone multiplies: each kind at 4096^3, in the layout that torch's own product takes, and in the one in
# which fragments are made in another way.
_KINDS: tuple[dict[str, Any], ...] = ({"dtype": "int8"}, {"dtype": "tf32"}, {"dtype": "fp16", "sums": "fp16"})
_OTHER_MAJORS: dict[str, Any] = {"a_major": "m", "b_major": "n"}
KINDS_TIMED: tuple[Problem, ...] = tuple(
    packed(4096, 4096, 4096, **kind, **majors) for kind in _KINDS for majors in ({}, _OTHER_MAJORS)
)
KINDS_CHECKED: tuple[Problem, ...] = tuple(
    packed(*sizes, **kind, **majors, padded=sizes[2] != 135)
    for kind in _KINDS
    for majors in _MAJORS
    for sizes in ((520, 392, 200), (300, 276, 135))
)
_KINDS_SHAPES = (  # tile_m, tile_n, bytes of a row of k, warps, stages, CTAs an SM
    (128, 256, 128, (2, 4), 4, 1),
    (128, 256, 64, (2, 4), 6, 1),
    (256, 128, 128, (4, 2), 4, 1),
    (128, 128, 128, (2, 2), 3, 2),
    (128, 128, 64, (2, 2), 5, 2),
    (128, 128, 64, (2, 4), 5, 1),  # which has registers for narrow copies of any kind
)
FORMS_TIMED: tuple[Problem, ...] = KINDS_TIMED[::2]  # k contiguous in both, of each kind
FORMS_CHECKED: tuple[Problem, ...] = tuple(packed(520, 392, 200, **kind) for kind in _KINDS)
LIMITS_S = {"check": 45.0, "time": 65.0, "count": 36.0}  # under 150 together
LIMITS_APART_S = {"modes": 110.0, "kinds": 120.0, "forms": 60.0}  # each a call of its own
PARTS = (*LIMITS_S, *LIMITS_APART_S)
FACTS_LIMIT_S = 60.0
COUNT_LIMIT_S = 18.0  # of one launch under ncu, which starts in about 5 s and repeats it a dozen times


def checked_problems() -> list[Problem]:
    """Each layout and type of out, with edges in every direction; rows of 16, 8, 4 and 2 bytes; a batch; k = 1."""
    found = [
        packed(520, 392, 200, dtype=dtype, out_dtype=out_dtype, **majors)
        for majors in _MAJORS
        for dtype, out_dtype in (("bf16", "bf16"), ("fp16", "fp32"))
    ]
    found += [packed(300, 276, k, padded=False) for k in (1, 132, 134, 135)]
    return [*found, packed(130, 70, 96, batch=(5,)), packed(1, 705, 705, dtype="fp16", a_major="m", padded=False)]


def plans(problem: Problem) -> Iterator[tilewright.Plan]:
    """A plan of each config that can run the problem."""
    device = preset("h200")
    for config in CONFIGS:
        try:
            yield tilewright.plan(problem, device=device, config=config)
        except tilewright.errors.ConfigError:
            continue  # a tile with fewer pieces than threads; the check says so


def kinds_configs(problem: Problem) -> list[AmpereConfig]:
    """The configs that a product of KINDS_TIMED or KINDS_CHECKED is tried with."""
    found = []
    for tile_m, tile_n, row_bytes, (warps_m, warps_n), stages, ctas in _KINDS_SHAPES:
        tiles = {"tile_m": tile_m, "tile_n": tile_n, "tile_k": row_bytes // problem.dtype.size}
        config = AmpereConfig(**tiles, warps_m=warps_m, warps_n=warps_n, stages=stages, ctas=ctas)
        try:
            tilewright.plan(problem, device=preset("h200"), config=config)
        except tilewright.errors.ConfigError:
            continue  # registers for many narrow copies, for one
        found.append(config)
    return found


def forms_configs(problem: Problem) -> list[AmpereConfig]:
    """What is offered of a product of FORMS_TIMED with a split barrier, each behind its plain form: the same tile and
    as many stages."""
    found = []
    for config in AMPERE.space(problem, preset("h200")):
        if isinstance(config, AmpereConfig) and config.split_barrier and config.slices == 1:
            found += [replace(config, split_barrier=False, ahead=1), config]
    return found


def timed_configs(problem: Problem) -> list[AmpereConfig]:
    """The configs of which something is expected on a problem of TIMED."""
    return [variant.config for variant in VARIANTS if variant.expected(problem) is not None]


def sources(*, kinds_alone: bool = False, forms_alone: bool = False) -> list[Source]:
    """Every unit that is loaded, and the ones of matmul's own choice, which stands beside them; or those of --kinds or
    of --forms alone."""
    device = preset("h200")
    pairs: list[tuple[Problem, AmpereConfig]] = []
    if not kinds_alone:
        for timed, checked in zip(FORMS_TIMED, FORMS_CHECKED, strict=True):
            pairs += [(problem, config) for problem in (timed, checked) for config in forms_configs(timed)]
    if not forms_alone:
        pairs += [(problem, each) for problem in (*KINDS_TIMED, *KINDS_CHECKED) for each in kinds_configs(problem)]
    made = [tilewright.plan(problem, device=device, config=config) for problem, config in pairs]
    if not (kinds_alone or forms_alone):
        for problem in (*checked_problems(), *TIMED):
            made += [*plans(problem), tilewright.plan(problem, device=device)]
        made += [tilewright.plan(problem, device=device, config=MODES_CONFIG) for problem, _ in MODES_TIMED]
    return list({unit.digest(""): unit for plan in made for unit in plan.sources}.values())


def check_rows() -> Iterator[Row]:
    """Every config on every problem: whole numbers exactly; the first one random values against float64 as well, which
    of the others is checked where they are timed."""
    from tilewright.bench.verify import verify  # torch

    for problem in checked_problems():
        for config in CONFIGS:
            for kind in ("normal", "integer") if config is CONFIGS[0] else ("integer",):
                case = {"kind": "check", "case": f"{problem} {config} {kind}"}
                try:
                    verdict = verify(problem, config=config, kind=kind)
                except tilewright.errors.ConfigError as error:
                    yield case | {"status": "refused", "why": str(error)}
                    break
                yield case | {"status": "ok" if verdict.ok else "wrong", "why": str(verdict)}


def time_rows() -> Iterator[Row]:
    """Interleaved, cold, each column checked first: cuBLAS, matmul's own choice, and every config."""
    from tilewright.bench.compare import compare  # torch

    for problem in TIMED:
        for row in compare(problem, modes=("interleaved",), configs=(None, *timed_configs(problem)), checked=True):
            yield {"kind": "time", "problem": str(problem)} | expectation(problem, row) | row


def modes_rows() -> Iterator[Row]:
    """MODES_CONFIG beside cuBLAS, checked first, a measurement a mode. Cost: 17 s a problem, and its operands."""
    from tilewright.bench.compare import compare  # torch

    for problem, mode in ((problem, mode) for problem, modes in MODES_TIMED for mode in modes):
        rounds = None if mode == "interleaved" else 3
        for row in compare(problem, modes=(mode,), configs=(MODES_CONFIG,), rounds=rounds, checked=True):
            yield {"kind": "time", "problem": f"{problem}, {mode}"} | row


def kinds_rows() -> Iterator[Row]:
    """Every kind, layout and config checked: whole numbers exactly, normal data by its bound. Then timed as time_rows()
    does, beside torch._int_mm, torch.matmul allowed to use tf32, and torch.matmul allowed to sum in fp16."""
    from tilewright.bench.compare import compare  # torch
    from tilewright.bench.verify import verify

    for problem in KINDS_CHECKED:
        for index, config in enumerate(kinds_configs(problem)):
            for kind in ("normal", "integer") if index == 0 else ("integer",):
                verdict = verify(problem, config=config, kind=kind)
                status = "ok" if verdict.ok else "wrong"
                yield {"kind": "check", "case": f"{problem} {config} {kind}", "status": status, "why": str(verdict)}
    for problem in KINDS_TIMED:
        for row in compare(problem, modes=("interleaved",), configs=kinds_configs(problem), checked=True):
            yield {"kind": "time", "problem": str(problem)} | row


def forms_rows() -> Iterator[Row]:
    """Both forms of every tile with every kind: whole numbers exactly, then timed as kinds_rows() does."""
    from tilewright.bench.compare import compare  # torch
    from tilewright.bench.verify import verify

    for timed, checked in zip(FORMS_TIMED, FORMS_CHECKED, strict=True):
        for config in forms_configs(timed):
            verdict = verify(checked, config=config, kind="integer")
            status = "ok" if verdict.ok else "wrong"
            yield {"kind": "check", "case": f"{checked} {config} integer", "status": status, "why": str(verdict)}
        for row in compare(timed, modes=("interleaved",), configs=forms_configs(timed), checked=True):
            yield {"kind": "time", "problem": str(timed)} | row


def expectation(problem: Problem, row: Row) -> Row:
    """What was expected of a row's column, in TFLOPS; nothing of cuBLAS and of matmul's own choice."""
    for variant in VARIANTS:
        value = variant.expected(problem)
        if value is not None and row["candidate"] == f"{OWN}{variant.config}":
            return {"expected_tflops": value if problem is not BATCH else problem.flops / value / 1e6}
    return {}


def count_rows() -> Iterator[Row]:
    """What ncu counts of one launch of each of COUNTED at 4096^3, and where its warps wait."""
    from tilewright.bench import counters

    for config in COUNTED:
        about: Row = {"kind": "count", "problem": str(SQUARE), "config": str(config)}

        def program(log: Path, index: int = CONFIGS.index(config)) -> list[str]:
            return [sys.executable, __file__, "--child", f"launch{index}", "--log", str(log)]

        try:
            yield about | counters.of_child("issue", program, run_limited, COUNT_LIMIT_S, set()).columns("issue")
        except OSError as missing:
            yield about | {"status": "not counted", "why": str(missing)}


def launch_rows(index: int) -> Iterator[Row]:
    """In a child under ncu, which would wait for torch: one launch on constant operands."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.launched import launched

    plan = tilewright.plan(SQUARE, device=backend().device(0), config=CONFIGS[index])
    launched(plan)
    yield {"status": "launched", "entry": plan.binary.entry}


def facts_rows() -> Iterator[Row]:
    """What the file says of the machine, and the compiler that made the kernels."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.facts import facts

    compiler = tilewright.plan(TIMED[0], device=backend().device(0)).binary.compiler
    yield facts(backend()) | {"compiler": compiler}


ROWS = {
    "check": check_rows,
    "time": time_rows,
    "count": count_rows,
    "modes": modes_rows,
    "kinds": kinds_rows,
    "forms": forms_rows,
    "facts": facts_rows,
} | {f"launch{index}": partial(launch_rows, index) for index in range(len(CONFIGS))}


def table(rows: list[Row]) -> list[str]:
    """The checks in a line, then a line a column, the fastest of each problem first."""
    checks = [row for row in rows if row["kind"] == "check"]
    counts = {status: sum(row["status"] == status for row in checks) for status in ("ok", "refused", "wrong")}
    lines = [", ".join(f"{count} {status}" for status, count in counts.items())] if checks else []
    lines += [f"  wrong: {row['case']}: {row['why']}" for row in checks if row["status"] == "wrong"]
    lines += [f"{row['part']}: {row['status']}: {row['why']}" for row in rows if row["kind"] == "child"]
    timed, ceilings = [row for row in rows if row["kind"] == "time"], committed_rows()
    for problem in dict.fromkeys(row["problem"] for row in timed):
        own = [row for row in timed if row["problem"] == problem]
        lines.append(f"\n{problem}")
        lines += [f"  {row['candidate']}: {row['status']}" for row in own if "median_us" not in row]
        for row in sorted((row for row in own if "median_us" in row), key=lambda row: row["median_us"]):
            rate, ratio = row["rate_tflops"], row.get("ratio")
            ceiling = ceiling_tflops(row, ceilings)
            share = "" if ceiling is None else f"{rate / ceiling:6.3f} of mma.sync"
            hoped = f" (expected {row['expected_tflops']:.0f})" if "expected_tflops" in row else ""
            beside = "" if ratio is None else f" {ratio:6.3f}x cuBLAS"
            lines.append(
                f"  {row['candidate']:64s} {row['median_us']:9.1f} us {rate:7.1f} TFLOPS {share}{beside} "
                f"{row['status']}{hoped}"
            )
    for row in (row for row in rows if row["kind"] == "count"):
        lines.append(f"\n{row['problem']} {row['config']} by ncu: {row['status']} {row.get('why', '')}")
        lines += [f"  {name:28s} {row[name]:16.4g}" for name in METRICS["issue"] if row.get(name) is not None]
    return lines


run_part = partial(rows_of_part, __file__)


def content(words: Sequence[str], parts: Sequence[str]) -> dict[str, Any]:
    """What --into holds: the machine's facts with this command, and the rows of the parts."""
    facts = facts_of_part(run_part, FACTS_LIMIT_S)
    measured = rows_of_parts(run_part, parts, LIMITS_S | LIMITS_APART_S)
    rows = [row | {"device": facts.get("device")} for row in measured]
    return {"facts": facts | {"command": " ".join(["benchmarks/ampere.py", *words])}, "rows": rows}


def main(words: list[str] | None = None) -> int:
    return main_of_parts(
        words,
        about=__doc__,
        parts=PARTS,
        rows=ROWS,
        sources=lambda options: sources(kinds_alone=options.kinds, forms_alone=options.forms),
        content=content,
        table=table,
        fine=("ok", "refused", "not counted"),
    )


if __name__ == "__main__":
    sys.exit(main())
