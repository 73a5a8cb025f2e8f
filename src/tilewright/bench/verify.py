"""Runs one product on a GPU and checks all of it: with torch where it is there, with bare device memory elsewhere.

With torch the whole road of matmul is taken, out lies in a canary, and every element is checked on the GPU. Without,
the packed call is launched directly and SAMPLED_ROWS rows are checked on the CPU.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilewright.backends.cuda import CudaBackend, backend
from tilewright.backends.memory import Buffer
from tilewright.backends.steps import run_once
from tilewright.check import Check, check, check_exact, sampled_rows
from tilewright.dispatch import plan as make_plan
from tilewright.host_operands import filler, host_operand, host_operands
from tilewright.problem import Problem

if TYPE_CHECKING:
    from tilewright.plan import Plan

# Of a batch whose launch is timed: each is checked in Python by itself, and 14 columns of 1,024 took most of a minute.
SAMPLED_MATRICES = 24
POISON_WORD = 0x7FC07FC0  # NaN as one fp32 or as two bf16 or fp16; of int32 a value that no sum has by chance


def has_torch() -> bool:
    """Whether torch is installed and sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch  # here: this module also serves machines without it

    return bool(torch.cuda.is_available())


def verify(
    problem: Problem,
    *,
    config: Any = None,
    num_sms: int | None = None,
    kind: Literal["normal", "integer"] = "normal",
    out_offset: int = 0,
    seed: int = 0,
    ordinal: int = 0,
    plan: Plan | None = None,
) -> Check:
    """The verdict on one run. `out_offset` moves out off its alignment, in elements.

    `plan`: this plan of the problem in place of the one that `config` and `num_sms` lead to; a rung's, for one.

    Raises: what plan() raises; DriverError: the launch failed. Cost: two float64 products of the size.
    """
    if has_torch():
        return _verify_with_torch(problem, config, num_sms, kind, out_offset, seed, ordinal, plan)
    return verify_without_torch(
        problem, config=config, num_sms=num_sms, kind=kind, seed=seed, ordinal=ordinal, plan=plan
    )


def _verify_with_torch(
    problem: Problem,
    config: Any,
    num_sms: int | None,
    kind: Any,
    out_offset: int,
    seed: int,
    ordinal: int,
    plan: Plan | None,
) -> Check:
    import torch  # see has_torch()

    from tilewright.bench.operands import Canary, inputs

    device = f"cuda:{ordinal}"
    a, b = inputs(problem, kind, seed=seed, device=device)
    canary = Canary.around(problem, offset=out_offset, device=device)
    plan = plan or make_plan(a, b, canary.out, config=config, num_sms=num_sms, inputs=problem.dtype, sums=problem.sums)
    plan.run(a, b, canary.out)
    torch.cuda.synchronize(ordinal)
    if kind == "integer":
        verdict = check_exact(a, b, canary.out)
    else:
        verdict = check(a, b, canary.out, problem.out_dtype, inputs=problem.dtype, sums=problem.sums)
    return dataclasses.replace(verdict, unwritten=canary.unwritten(), damaged=canary.damaged())


def verify_launch(
    problem: Problem,
    operands: tuple[Any, Any, Any],
    launch: Callable[[int], None],
    synchronize: Callable[[], Any],
    *,
    allowed: float = 0.0,
) -> Check:
    """The verdict on launch(0), which multiplies these torch tensors: sampled rows, and every element written.

    Of a long batch SAMPLED_MATRICES matrices are looked at, the first and the last among them; written must be all.

    `allowed`: absolute error beyond the derived bound; see check().
    """
    import torch  # see has_torch()

    a, b, out = operands
    out.fill_(filler(problem.out_dtype))
    launch(0)
    synchronize()
    rows = sampled_rows(problem.m)
    checked = operands
    if len(problem.batch) == 1 and problem.batch[0] > SAMPLED_MATRICES:
        matrices = sampled_rows(problem.batch[0], count=SAMPLED_MATRICES)
        checked = (a[matrices], b[matrices], out[matrices])
    verdict = check(*checked, problem.out_dtype, inputs=problem.dtype, sums=problem.sums, rows=rows, allowed=allowed)
    holding = out == filler(problem.out_dtype) if problem.out_dtype.is_whole else torch.isnan(out)
    return dataclasses.replace(verdict, unwritten=int(holding.sum()))


def verify_without_torch(
    problem: Problem,
    *,
    config: Any = None,
    num_sms: int | None = None,
    kind: Literal["normal", "integer"] = "normal",
    seed: int = 0,
    ordinal: int = 0,
    plan: Plan | None = None,
) -> Check:
    """The same with no torch in the process, which compute-sanitizer would spend its time in. Checks sampled rows."""
    cuda = backend()
    plan = plan or make_plan(problem, device=cuda.device(ordinal), config=config, num_sms=num_sms)
    operands = host_operands(problem, seed, kind)
    a, b = operands[0].view, operands[1].view
    out = host_operand(problem, "out", launched(cuda, plan, operands[0].memory, operands[1].memory, ordinal)).view
    rows = sampled_rows(problem.m)
    if kind == "integer":
        verdict = check_exact(a, b, out, rows=rows)
    else:
        verdict = check(a, b, out, problem.out_dtype, inputs=problem.dtype, sums=problem.sums, rows=rows)
    holding = out == POISON_WORD if problem.out_dtype.is_whole else np.isnan(out.astype(np.float32))
    return dataclasses.replace(verdict, unwritten=int(holding.sum()))


def launched(cuda: CudaBackend, plan: Plan, a: Any, b: Any, ordinal: int) -> Any:
    """The memory of out as the plan's kernel leaves it, poisoned before."""
    problem = plan.problem
    out_bytes = problem.extent_bytes["out"]
    shape = (out_bytes // problem.out_dtype.size,)
    with (
        Buffer.allocate(cuda, a.nbytes, ordinal) as a_memory,
        Buffer.allocate(cuda, b.nbytes, ordinal) as b_memory,
        Buffer.allocate(cuda, out_bytes, ordinal) as out_memory,
    ):
        a_memory.write(a)
        b_memory.write(b)
        out_memory.fill(POISON_WORD)
        addresses = {"a": a_memory.address, "b": b_memory.address, "out": out_memory.address}
        run_once(cuda, plan.work, addresses, ordinal)
        return out_memory.read(shape, problem.out_dtype.numpy)
