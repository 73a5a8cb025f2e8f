"""tilewright beside cuBLAS (torch.matmul) on one problem, in one run: rows with times, rates and paired ratios.

Knows nothing of tables or files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.backends.cuda import backend
from tilewright.bench.operands import operand_sets, set_bytes
from tilewright.config import Config
from tilewright.dispatch import plan as make_plan
from tilewright.plan import Plan
from tilewright.problem import Problem
from tilewright.timing import Candidate, CudaMachine, Mode, Timing, burst, interleaved, num_cold_sets, rates, steady

MAX_OPERAND_BYTES = 16 << 30  # of all sets of one problem together; 4x the L2 is reached long before
MODES: dict[Mode, Callable[..., Timing]] = {"burst": burst, "interleaved": interleaved, "steady": steady}

BASELINE = "cublas"


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
) -> list[dict[str, Any]]:
    """One row a mode and column: cuBLAS as torch calls it, and tilewright with each config (None: the model's choice).

    `plans`: more columns by name, each a plan of the problem; the ladder's rungs.
    `ratio` is how many times faster than cuBLAS, the median of the rounds' pairs.
    Raises: what plan() raises for a config that cannot run.
    Cost: interleaved about 0.2 s, burst 0.6 s x (rounds + 1), steady 2 s x rounds, each times the columns.
    """
    cuda = backend()
    device = cuda.device(ordinal)
    limit = max(2, min(256, MAX_OPERAND_BYTES // set_bytes(problem)))
    num_sets = num_cold_sets(set_bytes(problem), device.l2_bytes, limit)
    with CudaMachine(cuda, ordinal) as machine, torch.cuda.device(ordinal):
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
            rows = []
            for mode in modes:
                extra = {} if rounds is None else {"rounds": rounds}
                rows += MODES[mode](machine, columns, seed=seed, **extra).rows()
    return [_described(row, problem, num_sets) | details[row["candidate"]] for row in rows]


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
        **rates(row, flops=problem.flops, moved_bytes=problem.min_bytes),
    }
