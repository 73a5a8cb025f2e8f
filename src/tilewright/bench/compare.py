"""tilewright beside cuBLAS (torch.matmul, and the best of cuBLASLt) on one problem, in one run.

Makes rows with times, rates and paired ratios.

Knows nothing of tables or files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from tilewright.backends.cuda import backend
from tilewright.bench import tuned as tuning
from tilewright.bench.operands import operand_sets, set_bytes
from tilewright.bench.tuned import Search
from tilewright.config import Config
from tilewright.dispatch import plan as make_plan
from tilewright.plan import Plan
from tilewright.problem import Problem
from tilewright.timing import Candidate, CudaMachine, Mode, Timing, burst, interleaved, num_cold_sets, steady

MAX_OPERAND_BYTES = 16 << 30  # of all sets of one problem together; 4x the L2 is reached long before
MODES: dict[Mode, Callable[..., Timing]] = {"burst": burst, "interleaved": interleaved, "steady": steady}

BASELINE = "cublas"
TUNED = tuning.NAME


def compare(
    problem: Problem,
    *,
    modes: Sequence[Mode] = ("interleaved",),
    configs: Sequence[Config | dict[str, Any] | None] = (None,),
    num_sms: int | None = None,
    rounds: int | None = None,
    ordinal: int = 0,
    seed: int = 0,
    plans: Mapping[str, Plan] | None = None,
    tuned: bool | Search = False,
) -> list[dict[str, Any]]:
    """One row a mode and column: cuBLAS as torch calls it, and tilewright with each config (None: the model's choice).

    `plans`: more columns by name, each a plan of the problem; the ladder's rungs.
    `tuned`: also the column "cublaslt", the fastest of the library's algorithms, searched for as the Search says; its
    rows hold what was found under "tuned".
    `ratio` is how many times faster than cuBLAS, the median of the rounds' pairs; `ratio_tuned` than the tuned column.
    Raises: what plan() raises for a config that cannot run; what tuned.tune() raises.
    Cost: interleaved about 0.2 s, burst 0.6 s x (rounds + 1), steady 2 s x rounds, each times the columns; and the
    search, 20 s.
    """
    cuda = backend()
    device = cuda.device(ordinal)
    limit = max(2, min(256, MAX_OPERAND_BYTES // set_bytes(problem)))
    num_sets = num_cold_sets(set_bytes(problem), device.l2_bytes, limit)
    with ExitStack() as stack, CudaMachine(cuda, ordinal) as machine, torch.cuda.device(ordinal):
        sets = operand_sets(problem, num_sets, seed=seed, device=f"cuda:{ordinal}")
        torch.cuda.synchronize()  # operands were made on another stream
        columns = [Candidate(BASELINE, _cublas(sets), num_sets)]
        details: dict[str, dict[str, Any]] = {BASELINE: {"config": None, "compiler": None}}
        for config in configs:
            plan = make_plan(*sets[0], config=config, num_sms=num_sms)
            name = "tilewright" if config is None else f"tilewright {plan.config}"
            columns.append(Candidate(name, _tilewright(plan, sets), num_sets))
            details[name] = {"config": str(plan.config), "compiler": plan.binary.compiler}
        for name, plan in (plans or {}).items():
            columns.append(Candidate(name, _tilewright(plan, sets), num_sets))
            details[name] = {"config": str(plan.config), "compiler": plan.binary.compiler}
        with torch.cuda.stream(torch.cuda.ExternalStream(machine.stream, device=f"cuda:{ordinal}")):
            if tuned:
                search = tuned if isinstance(tuned, Search) else Search()
                best = stack.enter_context(tuning.tune(problem, sets, machine, machine.stream, search=search))
                columns.append(best.candidate)
                facts = best.facts()
                details[TUNED] = {"config": str(best.algorithm), "compiler": facts["library"], "tuned": facts}
            rows = []
            for mode in modes:
                extra = {} if rounds is None else {"rounds": rounds}
                rows += _rows(MODES[mode](machine, columns, seed=seed, **extra))
    return [_described(row, problem, num_sets) | details[row["candidate"]] for row in rows]


def _rows(timing: Timing) -> list[dict[str, Any]]:
    """The timing's rows, each with its ratio to the tuned column where there is one."""
    rows = timing.rows()
    if all(row["candidate"] != TUNED for row in rows):
        return rows
    for row in rows:
        ratio = timing.over(row["candidate"], TUNED)
        row |= {"ratio_tuned": ratio.median, "ratio_tuned_lower": ratio.lower, "ratio_tuned_upper": ratio.upper}
    return rows


def _cublas(sets: Sequence[tuple[Any, Any, Any]]) -> Callable[[int], None]:
    def launch(index: int) -> None:
        a, b, out = sets[index % len(sets)]
        torch.matmul(a, b, out=out)

    return launch


def _tilewright(plan: Plan, sets: Sequence[tuple[Any, Any, Any]]) -> Callable[[int], None]:
    def launch(index: int) -> None:
        plan.run(*sets[index % len(sets)])

    return launch


def _described(row: dict[str, Any], problem: Problem, num_sets: int) -> dict[str, Any]:
    """The row with the problem that it timed and the rate that its time means."""
    return {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.dtype.name,
        "out_dtype": problem.out_dtype.name,
        "b_major": problem.b_major,
        "num_sets": num_sets,
        **row,
        "rate_tflops": problem.flops / row["median_us"] * 1e-6,
        "rate_gbps": problem.min_bytes / row["median_us"] * 1e-3,
    }
