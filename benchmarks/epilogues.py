"""What epilogues cost: each beside the plain kernel at 4096^3, and layers of LLMs beside torch, eager and compiled.

    PYTHONPATH=src python benchmarks/epilogues.py --build DIR         on any machine: cubins of all that follows
    export TILEWRIGHT_PREBUILT=DIR PYTHONPATH=src
    python benchmarks/epilogues.py --check --time --into OUT/epilogues.json
    python benchmarks/epilogues.py --tune          records of the layers, which the next line runs with
    python benchmarks/epilogues.py --layers --into OUT/layers.json

Each part runs in a child process with a time limit. Columns are interleaved, cold, and replayed from CUDA graphs, so
that the host costs nobody anything. "own" is what matmul chooses for the epilogue; "as plain" the plain product's
config where it can run the epilogue: the step itself, without what another choice brings. "ping-pong" is a config that
hides it, for the larger bar. Bars: those of issue 7.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tilewright
from tilewright.ampere_config import AmpereConfig
from tilewright.bench.children import Row
from tilewright.bench.epilogue_report import LAYER_BARS, SIZE, layers_mean
from tilewright.bench.script import facts_of_part, main_of_parts, rows_of_part, rows_of_parts
from tilewright.cli.tune import rows_of as candidate_rows
from tilewright.config import Config
from tilewright.device import preset
from tilewright.epilogue import (
    Add,
    Alpha,
    Aux,
    Beta,
    Bias,
    Epilogue,
    Gated,
    Gelu,
    Relu,
    RowAmax,
    Scale,
    Silu,
    Step,
)
from tilewright.jit.source import Source
from tilewright.packing import packed, with_epilogue
from tilewright.problem import Problem
from tilewright.tuning.candidates import candidates_of
from tilewright.tuning.tune import tune_many

LAYER_SETS = 3  # of operands of a layer, each more than the L2
Arrays = Mapping[str, Any]  # tensors, or names of element types for a plan without any

# Names of element types, in place of arrays.
TYPES: dict[str, str] = {"bias": "bf16", "rows": "fp32", "columns": "fp32", "c": "bf16", "aux": "bf16", "amax": "fp32"}


@dataclass(frozen=True)
class Kind:
    """An epilogue, and the share of the plain kernel's time that it may cost (issue 7); None: no bar was set."""

    make: Callable[[Arrays], Step | Epilogue]
    bar: float | None


SMALL_BAR, BAR = 0.02, 0.05
# Whose epilogues hide behind the other consumer's multiplications, as its stores do.
HIDING = Config(tile_m=128, tile_n=192, stages=5, pingpong=True, store_slots=1, k_back_and_forth=True, group_m=8)

KINDS: dict[str, Kind] = {
    "alpha": Kind(lambda x: Alpha(0.5), SMALL_BAR),
    "bias": Kind(lambda x: Bias(x["bias"]), SMALL_BAR),
    "relu": Kind(lambda x: Relu(), SMALL_BAR),
    "scales": Kind(lambda x: Scale(x["rows"], per="row") | Scale(x["columns"]), SMALL_BAR),
    "gelu": Kind(lambda x: Gelu(), BAR),
    "gelu tanh": Kind(lambda x: Gelu("tanh"), BAR),
    "silu": Kind(lambda x: Silu(), BAR),
    "swiglu halves": Kind(lambda x: Gated("silu", "halves"), BAR),
    "swiglu interleaved": Kind(lambda x: Gated("silu", "interleaved"), BAR),
    "c": Kind(lambda x: Alpha(0.5) | Beta(0.5, x["c"]), BAR),
    "aux": Kind(lambda x: Aux(x["aux"]), BAR),
    "row amax": Kind(lambda x: RowAmax(x["amax"]), None),
    "bias gelu": Kind(lambda x: Bias(x["bias"]) | Gelu(), None),
    "bias residual": Kind(lambda x: Bias(x["bias"]) | Add(x["c"]), None),
}

# Each form of the kernels once; gated ones where they serve them.
FORMS: dict[str, Config] = {
    "staggered": Config(tile_m=256, tile_n=192, stages=3, store_slots=1, staggered=True),
    "staggered, a tail": Config(tile_m=256, tile_n=192, stages=3, store_slots=1, staggered=True, tail_n=128),
    "shared": Config(tile_m=128, tile_n=256, stages=3),
    "ping-pong": Config(tile_m=128, tile_n=128, stages=5, pingpong=True, store_slots=1),
    "cluster": Config(tile_m=128, tile_n=128, stages=4, cluster_m=2),
    "one consumer": Config(tile_m=64, tile_n=128, stages=4, consumers=1),
    "swap": Config(tile_m=64, tile_n=64, stages=4, consumers=1, swap=True),
    "split": Config(tile_m=128, tile_n=64, stages=4, split_k=2),
    "slices": Config(tile_m=128, tile_n=64, stages=4, slices=5, dependent_sums=True),
    "ampere": AmpereConfig(tile_m=128, tile_n=128, tile_k=64, stages=3),
}
CHECKED = ((520, 392, 200), (263, 264, 1032), (300, 277, 136))  # m, n, k; the last has rows that TMA cannot store
LIMITS_S = {"check": 200.0, "time": 120.0, "tune": 300.0, "layers": 560.0}
TUNE_S = 250.0  # of it for all layers together
CANDIDATES = 8  # of each layer
FACTS_LIMIT_S = 60.0


@dataclass(frozen=True)
class Layer:
    """One layer of an LLM: x (tokens, k) times a weight (n, k), and what follows, here and in torch."""

    name: str
    n: int
    k: int
    make: Callable[[Arrays], Step | Epilogue]
    tokens: tuple[int, ...] = (1024, 4096, 8192)


LAYERS: tuple[Layer, ...] = (
    Layer("linear bias gelu", 16384, 4096, lambda x: Bias(x["bias"]) | Gelu()),
    Layer("gated up", 28672, 4096, lambda x: Gated("silu", "halves")),  # Llama-3-8B: 2 x 14336
    Layer("linear residual", 4096, 14336, lambda x: Add(x["c"])),
)


def layer_problems() -> Iterator[Problem]:
    """Every layer for each number of tokens."""
    for layer in LAYERS:
        for tokens in layer.tokens:
            yield with_epilogue(packed(tokens, layer.n, layer.k), layer.make(TYPES))


def plans() -> Iterator[tilewright.Plan]:
    """Every plan that is run."""
    device = preset("h200")
    square = packed(SIZE, SIZE, SIZE)
    plain = tilewright.plan(square, device=device)
    yield plain
    for kind in KINDS.values():
        problem = with_epilogue(square, kind.make(TYPES))
        yield tilewright.plan(problem, device=device)
        for config in (plain.config, HIDING):
            if not config.violations(problem, device):
                yield tilewright.plan(problem, device=device, config=config)
    for problem in layer_problems():
        yield tilewright.plan(problem, device=device)
        for entry in candidates_of(problem, device, None, CANDIDATES):
            yield tilewright.plan(problem, device=device, config=entry.config)
    for m, n, k in CHECKED:
        for _, config, kind in checked_cases(m, n, k):
            yield tilewright.plan(with_epilogue(packed(m, n, k), kind.make(TYPES)), device=device, config=config)


def checked_cases(m: int, n: int, k: int) -> Iterator[tuple[str, Config, Kind]]:
    """(name, config, kind) of forms and epilogues that can run a problem: every second pair, each of either often."""
    device = preset("h200")
    for row, (form, config) in enumerate(FORMS.items()):
        for column, (name, kind) in enumerate(KINDS.items()):
            if (row + column) % 2 or (n % 2 and "swiglu" in name):
                continue
            if not config.violations(with_epilogue(packed(m, n, k), kind.make(TYPES)), device):
                yield f"{m}x{n}x{k} {form}, {name}", config, kind


def sources() -> list[Source]:
    """Every unit that is loaded."""
    return list({unit.digest(""): unit for plan in plans() for unit in plan.sources}.values())


# -- children: need a GPU and torch ------------------------------------------------------------------------------------


def arrays(m: int, n: int, generator: Any, out_n: int = 0) -> dict[str, Any]:
    """The arrays of every kind, about 1; those that are written hold NaN."""
    import torch

    def made(*shape: int, dtype: Any) -> Any:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    nan = float("nan")
    return {
        "bias": made(n, dtype=torch.bfloat16),
        "rows": made(m, dtype=torch.float32),
        "columns": made(n, dtype=torch.float32),
        "c": made(m, out_n or n, dtype=torch.bfloat16),
        "aux": torch.full((m, n), nan, device="cuda", dtype=torch.bfloat16),
        "amax": torch.full((m,), nan, device="cuda", dtype=torch.float32),
    }


def operands(m: int, n: int, k: int, generator: Any) -> tuple[Any, Any]:
    """a (m, k), and b (k, n) as the transpose of a weight."""
    import torch

    a = torch.randn(m, k, generator=generator, device="cuda").bfloat16()
    return a, torch.randn(n, k, generator=generator, device="cuda").bfloat16().t()


def check_rows() -> Iterator[Row]:
    """Epilogues in all forms of the kernel, against float64 within the derived bound, what they store beside out as
    well; twice, for the same bits."""
    import torch

    from tilewright.check import check
    from tilewright.dtypes import BF16

    generator = torch.Generator(device="cuda").manual_seed(0)
    for m, n, k in CHECKED:
        a, b = operands(m, n, k, generator)
        for case, config, kind in checked_cases(m, n, k):
            epilogue = kind.make(arrays(m, n, generator))
            first, second = (tilewright.matmul(a, b, config=config, epilogue=epilogue) for _ in range(2))
            verdict = check(a, b, first, BF16, epilogue=epilogue)
            is_same = torch.equal(first.view(torch.int16), second.view(torch.int16))
            status = "ok" if verdict.ok and is_same else "wrong"
            why = str(verdict) if is_same else f"{verdict}; two runs differ"
            yield {"kind": "check", "case": case, "status": status, "why": why}


def time_rows() -> Iterator[Row]:
    """The plain kernel, then each epilogue beside it."""
    import torch

    from tilewright.backends.cuda import backend
    from tilewright.timing import Candidate, CudaMachine, interleaved, num_cold_sets

    cuda = backend()
    num_sets = num_cold_sets(3 * SIZE * SIZE * 2, cuda.device(0).l2_bytes)
    generator = torch.Generator(device="cuda").manual_seed(0)
    pairs = [operands(SIZE, SIZE, SIZE, generator) for _ in range(num_sets)]
    held = [arrays(SIZE, SIZE, generator) for _ in range(num_sets)]
    outs = [torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(num_sets)]
    halves = [out[:, : SIZE // 2].contiguous() for out in outs]
    plain = tilewright.plan(*pairs[0], outs[0])
    columns = [Candidate("plain", lambda i: plain.run(*pairs[i % num_sets], outs[i % num_sets]), num_sets)]
    about: dict[str, Row] = {"plain": {"config": str(plain.config), "bar": None}}
    for name, kind in KINDS.items():
        made = [kind.make(each) for each in held]
        targets = halves if "swiglu" in name else outs
        for which, config in (("own", None), ("as plain", plain.config), ("ping-pong", HIDING)):
            if which == "ping-pong" and kind.bar == SMALL_BAR:
                continue
            try:
                plan = tilewright.plan(*pairs[0], targets[0], config=config, epilogue=made[0])
            except tilewright.errors.ConfigError as error:
                yield {"kind": "time", "candidate": f"{name}, {which}", "status": "refused", "why": str(error)}
                continue
            if which == "as plain" and str(plan.config) == about[f"{name}, own"]["config"]:
                continue

            def launch(i: int, plan: Any = plan, made: Any = made, targets: Any = targets) -> None:
                at = i % num_sets
                plan.run(*pairs[at], targets[at], epilogue=made[at])

            columns.append(Candidate(f"{name}, {which}", launch, num_sets))
            about[f"{name}, {which}"] = {"config": str(plan.config), "bar": kind.bar, "spill": _spill(plan)}
    torch.cuda.synchronize()
    with CudaMachine(cuda, 0) as machine, torch.cuda.stream(torch.cuda.ExternalStream(machine.stream)):
        for row in interleaved(machine, columns, rounds=15).rows():
            own = about[row["candidate"]]
            cost = None if row["ratio"] is None else 1 / row["ratio"] - 1
            is_met = own["bar"] is None or cost is None or cost <= own["bar"]
            yield {"kind": "time", "status": "ok" if is_met else "over", "cost": cost} | own | row


def _spill(plan: Any) -> int:
    return int(plan.binary.resources.spill_store_bytes)


def layer_rows() -> Iterator[Row]:
    """Each layer for each number of tokens: torch eager, torch.compile, and one call of matmul, checked."""
    import torch

    from tilewright.backends.cuda import backend
    from tilewright.check import check, sampled_rows
    from tilewright.dtypes import BF16
    from tilewright.timing import Candidate, CudaMachine, interleaved

    functional = torch.nn.functional
    theirs: dict[str, Callable[[Any, Any, Arrays], Any]] = {
        "linear bias gelu": lambda x, w, own: functional.gelu(functional.linear(x, w, own["bias"])),
        "gated up": lambda x, w, own: _swiglu(functional, functional.linear(x, w)),
        "linear residual": lambda x, w, own: own["c"] + functional.linear(x, w),
    }
    cuda = backend()
    generator = torch.Generator(device="cuda").manual_seed(0)
    for layer in LAYERS:
        eager = theirs[layer.name]
        torch._dynamo.reset()
        compiled = torch.compile(eager, mode="max-autotune-no-cudagraphs", dynamic=False)
        for tokens in layer.tokens:
            about: Row = {"kind": "layer", "layer": layer.name, "tokens": tokens, "n": layer.n, "k": layer.k}
            x = [torch.randn(tokens, layer.k, generator=generator, device="cuda").bfloat16() for _ in range(LAYER_SETS)]
            w = [0.02 * torch.randn(layer.n, layer.k, generator=generator, device="cuda") for _ in range(LAYER_SETS)]
            w = [each.bfloat16() for each in w]
            own = [arrays(tokens, layer.n, generator) for _ in range(LAYER_SETS)]
            made = [layer.make(each) for each in own]
            plan = tilewright.plan(x[0], w[0].t(), epilogue=made[0])
            out = plan.run(x[0], w[0].t(), epilogue=made[0])
            verdict = check(x[0], w[0].t(), out, BF16, rows=sampled_rows(tokens), epilogue=made[0])

            def calling(function: Any, x: Any = x, w: Any = w, own: Any = own) -> Callable[[int], None]:
                def launch(i: int) -> None:
                    at = i % LAYER_SETS
                    function(x[at], w[at], own[at])

                return launch

            def fused(i: int, plan: Any = plan, x: Any = x, w: Any = w, made: Any = made) -> None:
                at = i % LAYER_SETS
                plan.run(x[at], w[at].t(), epilogue=made[at])

            columns = [Candidate("eager", calling(eager), LAYER_SETS), Candidate("tilewright", fused, LAYER_SETS)]
            with torch.no_grad():
                try:
                    compiled(x[0], w[0], own[0])
                    columns.insert(1, Candidate("compile", calling(compiled), LAYER_SETS))
                except Exception as error:  # torch's compiler on this machine: its column is left out, and said so
                    yield about | {"candidate": "compile", "status": "refused", "why": repr(error)[:300]}
                torch.cuda.synchronize()
                with CudaMachine(cuda, 0) as machine, torch.cuda.stream(torch.cuda.ExternalStream(machine.stream)):
                    timing = interleaved(machine, columns, rounds=9)
            beside = {"config": str(plan.config), "error_over_bound": verdict.worst}
            for row in timing.rows():
                is_ours = row["candidate"] == "tilewright"
                status = "ok" if verdict.ok or not is_ours else "wrong"
                further = dict(beside) if is_ours else {}
                if is_ours and len(columns) == 3:
                    further["ratio_compile"] = timing.over("tilewright", "compile").median
                yield about | {"status": status} | row | further


def tune_rows() -> Iterator[Row]:
    """Each layer's candidates, the fastest of which becomes a record."""
    for tuned in tune_many(layer_problems(), candidates=CANDIDATES, budget_s=TUNE_S):
        yield from ({"kind": "tune"} | row for row in candidate_rows(tuned))


def _swiglu(functional: Any, both: Any) -> Any:
    gate, up = both.chunk(2, dim=-1)
    return functional.silu(gate) * up


def facts_rows() -> Iterator[Row]:
    """What the file says of the machine, and the compiler that made the kernels."""
    from tilewright.backends.cuda import backend
    from tilewright.bench.facts import facts

    compiler = tilewright.plan(packed(SIZE, SIZE, SIZE), device=backend().device(0)).binary.compiler
    yield facts(backend()) | {"compiler": compiler}


ROWS: dict[str, Callable[[], Iterator[Row]]] = {
    "check": check_rows, "time": time_rows, "tune": tune_rows, "layers": layer_rows, "facts": facts_rows,
}  # fmt: skip


# -- the parent --------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> list[str]:
    """Checks in a line, then a line a column, and the means over the layers."""
    checks = [row for row in rows if row["kind"] == "check"]
    counts = {status: sum(row["status"] == status for row in checks) for status in ("ok", "wrong")}
    lines = [", ".join(f"{count} {status}" for status, count in counts.items())] if checks else []
    lines += [f"  wrong: {row['case']}: {row['why']}" for row in checks if row["status"] == "wrong"]
    lines += [f"{row['part']}: {row['status']}: {row['why']}" for row in rows if row["kind"] == "child"]
    for row in (row for row in rows if row["kind"] == "time"):
        if "median_us" not in row:
            lines.append(f"  {row['candidate']:28s} {row['status']}: {row['why']}")
            continue
        cost = "" if row["cost"] is None else f"{row['cost']:+7.2%}"
        bar = "" if row["bar"] is None else f" of {row['bar']:.0%}"
        lines.append(
            f"  {row['candidate']:28s} {row['median_us']:8.1f} us {cost}{bar} {row['status']}  {row['config']}"
        )
    for row in (row for row in rows if row["kind"] == "tune" and row["status"] != "slower"):
        us = "" if row["median_us"] is None else f"{row['median_us']:9.1f} us"
        lines.append(f"  {row['problem']}: {row['status']} {us} {row['config']} {row['why']}")
    layers = [row for row in rows if row["kind"] == "layer"]
    for row in layers:
        name = f"{row['layer']}, {row['tokens']}"
        if "median_us" not in row:
            lines.append(f"  {name:28s} {row['candidate']}: {row['status']}: {row['why']}")
            continue
        ratio = "" if row["ratio"] is None else f" {row['ratio']:6.3f}x eager"
        ratio += f" {row['ratio_compile']:6.3f}x compile" if "ratio_compile" in row else ""
        lines.append(
            f"  {name:28s} {row['candidate']:10s} {row['median_us']:9.1f} us{ratio} {row['status']} "
            f"{row.get('config', '')}"
        )
    for key, words in (("ratio", "eager"), ("ratio_compile", "compile")):
        if count := sum(bool(row.get(key)) for row in layers if row.get("candidate") == "tilewright"):
            lines.append(f"  geometric mean of {count}: {layers_mean(layers, key):.3f}x {words}, bar {LAYER_BARS[key]}")
    return lines


run_part = partial(rows_of_part, __file__)


def content(words: Sequence[str], parts: Sequence[str]) -> dict[str, Any]:
    """What --into holds: the machine's facts with this command, and the rows of the parts."""
    facts = facts_of_part(run_part, FACTS_LIMIT_S)
    rows = rows_of_parts(run_part, parts, LIMITS_S)
    return {"facts": facts | {"command": " ".join(["benchmarks/epilogues.py", *words])}, "rows": rows}


def main(words: list[str] | None = None) -> int:
    return main_of_parts(
        words,
        about=__doc__,
        parts=tuple(LIMITS_S),
        rows=ROWS,
        sources=lambda _: sources(),
        content=content,
        table=table,
        fine=("ok", "refused", "over"),
    )


if __name__ == "__main__":
    sys.exit(main())
