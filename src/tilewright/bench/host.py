"""What a call costs the host before it returns: tilewright's three ways, torch's two, and a bare launch.

Knows nothing of how long the GPU takes: problems are small enough that it waits for the host.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import Any

import torch

from tilewright.backends.cuda import backend
from tilewright.bench.operands import operand_sets
from tilewright.dispatch import matmul
from tilewright.dispatch import plan as make_plan
from tilewright.packing import packed
from tilewright.problem import Problem
from tilewright.timing import host_cost_us, quartiles

PROBLEMS: tuple[Problem, ...] = (packed(128, 128, 128), packed(384, 128, 256), packed(1024, 1024, 1024))
BARE = "bare cuLaunchKernelEx"


def host_rows(
    problem: Problem, *, rounds: int = 11, repeats: int = 3, calls: int = 100, ordinal: int = 0
) -> list[dict[str, Any]]:
    """One row a way of calling: median microseconds over shuffled rounds, quartiles, and what it adds to a bare launch.

    Cost: rounds x ways x (repeats + 1) x calls x about 10 us.
    """
    with torch.cuda.device(ordinal), torch.no_grad():
        ways = _ways(problem, ordinal)
        times: dict[str, list[float]] = {name: [] for name in ways}
        order = random.Random(0)
        names = list(ways)
        for round_index in range(rounds + 1):
            for name in order.sample(names, len(names)):
                cost_us = host_cost_us(ways[name], torch.cuda.synchronize, repeats=repeats, calls=calls)
                if round_index:
                    times[name].append(cost_us)
    bare = statistics.median(times[BARE])
    rows = []
    for name, us in times.items():
        lower, median, upper = quartiles(us)
        rows.append(
            {
                "m": problem.m,
                "n": problem.n,
                "k": problem.k,
                "way": name,
                "median_us": median,
                "lower_us": lower,
                "upper_us": upper,
                "over_bare_us": median - bare,
                "rounds": len(us),
            }
        )
    return rows


def _ways(problem: Problem, ordinal: int) -> dict[str, Callable[[], Any]]:
    cuda = backend()
    [(a, b, out)] = operand_sets(problem, 1, device=f"cuda:{ordinal}")
    plan = make_plan(a, b, out)
    kernel = cuda.load(plan.binary, ordinal, plan.launch)
    addresses = {"a": a.data_ptr(), "b": b.data_ptr(), "out": out.data_ptr()}
    call = cuda.pack(kernel, plan.launch, plan.arguments, addresses)
    stream = torch.cuda.current_stream().cuda_stream
    cuda.launch(call, stream)  # prepares the stream's launch shape, which the bare launch uses
    return {
        "tilewright.matmul(out=)": lambda: matmul(a, b, out=out),
        "tilewright.matmul": lambda: matmul(a, b),
        "plan.run": lambda: plan.run(a, b, out),
        "backend.launch": lambda: cuda.launch(call, stream),
        BARE: cuda.bare_launch(call, stream),
        "torch.matmul(out=)": lambda: torch.matmul(a, b, out=out),
        "torch.matmul": lambda: torch.matmul(a, b),
    }
