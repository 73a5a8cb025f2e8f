"""tilewright beside cuBLAS (torch.matmul, and the best of cuBLASLt) on one problem, in one run.

Makes rows with times, rates and paired ratios.

Knows nothing of tables or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from tilewright.backends.cuda import backend
from tilewright.bench import tuned as tuning
from tilewright.bench.operands import operand_sets, set_bytes
from tilewright.bench.suite import problem_columns
from tilewright.bench.tuned import OperandSet, Search, partial_sums
from tilewright.bench.verify import verify_launch
from tilewright.config import Config
from tilewright.dispatch import plan as make_plan
from tilewright.dtypes import FP16, FP32, TF32
from tilewright.errors import CompileError, ConfigError, LibraryError, RefusalError
from tilewright.order import Reduction
from tilewright.plan import Plan
from tilewright.problem import Problem
from tilewright.timing import (
    COLD_FACTOR,
    Candidate,
    CudaMachine,
    Mode,
    Timing,
    burst,
    interleaved,
    num_cold_sets,
    rates,
    steady,
)

MAX_OPERAND_BYTES = 16 << 30  # of all sets of one problem together; 4x the L2 is reached long before
MODES: dict[Mode, Callable[..., Timing]] = {"burst": burst, "interleaved": interleaved, "steady": steady}

BASELINE = "cublas"
TUNED = tuning.NAME
# How a library makes tf32 of fp32 is not told. Cut, both factors of each product of k are off by 2^-10 at most; the
# mean size of a product of normal data is below 1.
LIBRARY_TF32_CUT = 2 * 2.0**-10
LIBRARY_SPLITS = 16  # of k, that torch's cuBLAS may make and add in out's type; its choice is not told


def compare(
    problem: Problem,
    *,
    modes: Sequence[Mode] = ("interleaved",),
    configs: Sequence[Config | dict[str, Any] | None] = (None,),
    num_sms: int | None = None,
    reduction: Reduction = "fast",
    rounds: int | None = None,
    ordinal: int = 0,
    seed: int = 0,
    plans: Mapping[str, Plan] | None = None,
    named: Mapping[str, Config | None] | None = None,
    tuned: bool | Search = False,
    beside: str | None = None,
    checked: bool = False,
) -> list[dict[str, Any]]:
    """One row a mode and column: cuBLAS as torch calls it, and tilewright with each config (None: as matmul chooses).

    `plans`: more columns by name, each a plan of the problem; the ladder's rungs. `named`: more columns by name, each a
    config of the problem (None: the model's choice, whatever is recorded). `reduction`: of all columns but `plans`.
    `tuned`: also the column "cublaslt", the fastest of the library's algorithms, searched for as the Search says; its
    rows hold what was found under "tuned".
    `checked`: every column is checked against float64 first, on sampled rows, and one that cannot run the problem costs
    its own rows: `status` is "ok", "wrong" or "refused", the last with the reason and no time.
    `ratio` is how many times faster than cuBLAS, the median of the rounds' pairs; `ratio_tuned` than the tuned column,
    `ratio_beside` than the column that `beside` names.
    Raises: unless `checked`, what plan() raises for a config that cannot run and what tuned.tune() raises.
    Cost: interleaved about 0.2 s, burst 0.6 s x (rounds + 1), steady 2 s x rounds, each times the columns; and the
    search, 20 s.
    """
    cuda = backend()
    device = cuda.device(ordinal)
    limit = max(2, min(256, MAX_OPERAND_BYTES // set_bytes(problem)))
    num_sets = num_cold_sets(set_bytes(problem), device.l2_bytes, limit)
    is_cold = num_sets * set_bytes(problem) > COLD_FACTOR * device.l2_bytes
    about = {**problem_columns(problem), "num_sets": num_sets, "is_cold": is_cold, "data": "normal"}
    field = _Field(problem, checked)
    with ExitStack() as stack, CudaMachine(cuda, ordinal) as machine, torch.cuda.device(ordinal):
        sets = operand_sets(problem, num_sets, seed=seed, device=f"cuda:{ordinal}")
        torch.cuda.synchronize()  # operands were made on another stream
        field.add(Candidate(BASELINE, _cublas(problem, sets), num_sets), {"config": None, "compiler": None})
        for config in configs:
            with field.refusing("tilewright" if config is None else f"tilewright {config}"):
                plan = make_plan(
                    *sets[0],
                    config=config,
                    num_sms=num_sms,
                    reduction=reduction,
                    inputs=problem.dtype,
                    sums=problem.sums,
                )
                name = "tilewright" if config is None else f"tilewright {plan.config}"
                field.add_plan(name, plan, sets, _shape_of_launch(plan))
        for name, config in (named or {}).items():
            with field.refusing(name):
                choices: dict[str, Any] = {
                    "num_sms": num_sms,
                    "reduction": reduction,
                    "inputs": problem.dtype,
                    "sums": problem.sums,
                }
                plan = make_plan(*sets[0], config=config, use_records=False, **choices)
                field.add_plan(name, plan, sets, _shape_of_launch(plan))
        for name, plan in (plans or {}).items():
            field.add_plan(name, plan, sets, {})
        with torch.cuda.stream(torch.cuda.ExternalStream(machine.stream, device=f"cuda:{ordinal}")):
            if tuned:
                search = tuned if isinstance(tuned, Search) else Search()
                with field.refusing(TUNED):
                    best = stack.enter_context(tuning.tune(problem, sets, machine, machine.stream, search=search))
                    facts = best.facts()
                    details = {"config": str(best.algorithm), "compiler": facts["library"], "tuned": facts}
                    field.add(best.candidate, details)
            if checked:
                field.check(sets[0], torch.cuda.synchronize)
            rows = []
            for mode in modes:
                extra = {} if rounds is None else {"rounds": rounds}
                rows += field.rows(mode, MODES[mode](machine, field.columns, seed=seed, **extra), beside)
    return [about | row for row in rows]


class _Field:
    """The columns of one comparison: what is timed, what is known of each, and which could not be had."""

    def __init__(self, problem: Problem, is_lenient: bool) -> None:
        self.problem = problem
        self.is_lenient = is_lenient
        self.columns: list[Candidate] = []
        self.details: dict[str, dict[str, Any]] = {}
        self.refused: dict[str, str] = {}

    def add(self, column: Candidate, details: dict[str, Any]) -> None:
        self.columns.append(column)
        self.details[column.name] = details

    def add_plan(self, name: str, plan: Plan, sets: Sequence[OperandSet], further: Mapping[str, Any]) -> None:
        details = {"config": str(plan.config), "compiler": plan.binary.compiler, **further}
        self.add(Candidate(name, _tilewright(plan, sets), len(sets)), details)

    @contextmanager
    def refusing(self, name: str) -> Iterator[None]:
        """A column that cannot be had is remembered with its reason; unless lenient, the error goes on."""
        try:
            yield
        except (RefusalError, ConfigError, CompileError, LibraryError) as error:
            if not self.is_lenient:
                raise
            self.refused[name] = f"{type(error).__name__}: {error}"

    def check(self, operands: OperandSet, synchronize: Callable[[], Any]) -> None:
        """Adds the verdict on one call of each column to its details."""
        for column in self.columns:
            kept = _kept_by_cublas(self.problem)
            allowed = partial_sums(kept, LIBRARY_SPLITS if column.name == BASELINE else 0)
            if column.name == BASELINE and self.problem.dtype is TF32:
                allowed += LIBRARY_TF32_CUT * self.problem.k
            if column.name == TUNED:  # tune() checked it, with what its own algorithm may round
                details = self.details[TUNED]
                details |= {"status": "ok", "error_over_bound": details["tuned"]["error_over_bound"]}
                continue
            verdict = verify_launch(self.problem, operands, column.launch, synchronize, allowed=allowed)
            self.details[column.name] |= {
                "status": "ok" if verdict.ok else "wrong",
                "error_over_bound": verdict.worst,
                **({} if verdict.ok else {"why": str(verdict)}),
            }

    def rows(self, mode: Mode, timing: Timing, beside: str | None) -> list[dict[str, Any]]:
        """The timing's rows with rates and details, and a row for each column that was refused."""
        flops, moved_bytes = self.problem.flops, self.problem.min_bytes
        rows = [
            row | self.details[row["candidate"]] | rates(row, flops=flops, moved_bytes=moved_bytes)
            for row in _rows(timing, beside)
        ]
        refused = [
            {"candidate": name, "mode": mode, "status": "refused", "why": why} for name, why in self.refused.items()
        ]
        return rows + refused


def _rows(timing: Timing, beside: str | None) -> list[dict[str, Any]]:
    """The timing's rows, each with its ratios to the tuned column and to the one `beside`, where there are such."""
    rows = timing.rows()
    names = {row["candidate"] for row in rows}
    for key, name in (("ratio_tuned", TUNED), ("ratio_beside", beside)):
        if name is not None and name in names:
            for row in rows:
                ratio = timing.over(row["candidate"], name)
                row |= {key: ratio.median, f"{key}_lower": ratio.lower, f"{key}_upper": ratio.upper}
    return rows


def _kept_by_cublas(problem: Problem) -> Problem:
    """The product with an out that cuBLAS writes: the inputs' type or fp32, of whole numbers int32.

    Source: cublasLtMatmul's table of supported types, the compute types 32F and 32F_FAST_TF32.
    """
    if problem.dtype.is_whole or problem.out_dtype in (problem.dtype, FP32):
        return problem
    return replace(problem, out_dtype=FP32)


def _cublas(problem: Problem, sets: Sequence[OperandSet]) -> Callable[[int], None]:
    """cuBLAS as torch calls it: by default; of fp32 arrays allowed to use tf32, of int8 by _int_mm, and where fp16
    sums are asked for allowed to make such. An out of a type that it does not write is torch's copy of its fp32 sums, a
    second launch."""
    a, _, out = sets[0]
    if (kept := _kept_by_cublas(problem)) is not problem:
        sums = out.float()
        product = _cublas(kept, [(a, b, sums) for a, b, _ in sets])

        def launch(index: int) -> None:
            product(index)
            sets[index % len(sets)][2].copy_(sums)

        return launch
    if problem.dtype is TF32:
        return _calling(sets, _tf32_matmul)
    if problem.dtype.is_whole:  # copies along k, which it takes everywhere; they cost it no time here
        along_k = [(a.contiguous(), b.mT.contiguous().mT, out) for a, b, out in sets]
        return _calling(along_k, lambda a, b, out: torch._int_mm(a, b, out=out))
    if problem.sums is FP16:
        return _calling(sets, _f16_sums_matmul)
    if out.dtype == a.dtype:
        return _calling(sets, lambda a, b, out: torch.matmul(a, b, out=out))
    # matmul refuses an out of another type; these are its kernels with one
    multiply = torch.ops.aten.mm.dtype_out if a.dim() == 2 else torch.ops.aten.bmm.dtype_out
    return _calling(sets, lambda a, b, out: multiply(a, b, out.dtype, out=out))


def _tf32_matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    try:
        torch.matmul(a, b, out=out)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _f16_sums_matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    flags = torch.backends.cuda.matmul
    before, flags.allow_fp16_accumulation = flags.allow_fp16_accumulation, True
    try:
        torch.matmul(a, b, out=out)
    finally:
        flags.allow_fp16_accumulation = before


def _calling(sets: Sequence[OperandSet], product: Callable[..., object]) -> Callable[[int], None]:
    def launch(index: int) -> None:
        product(*sets[index % len(sets)])

    return launch


def _tilewright(plan: Plan, sets: Sequence[OperandSet]) -> Callable[[int], None]:
    return _calling(sets, plan.run)


def _shape_of_launch(plan: Plan) -> dict[str, Any]:
    """How the SMs are filled: CTAs, SMs that there are, tiles a CTA before rounding up."""
    return {"ctas": plan.launch.grid, "num_sms": plan.device.num_sms, "waves": plan.prediction.waves}
