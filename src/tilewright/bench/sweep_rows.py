"""One sweep on a GPU: every variant checked exactly, then timed steady and in a burst beside cuBLAS. Rows as they come.

A sweep looks for differences of several per cent over many variants, so each sample is short and there is one of each:
differences under two per cent are not shown by it. cuBLAS is timed again after every few variants. Steady comes first,
so the card is warm when the bursts begin. Knows nothing of files; the caller keeps the rows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tilewright.backends.cuda import CudaBackend, backend
from tilewright.bench.ladder import occupancy_pct
from tilewright.bench.operands import TYPES, inputs, operand_sets, set_bytes
from tilewright.bench.sweeps import CUBLAS, Sweep, described
from tilewright.device import Device
from tilewright.errors import CompileError, ConfigError
from tilewright.kernels.catalog import AMPERE_LADDER
from tilewright.plan import Plan
from tilewright.problem import Problem
from tilewright.timing import Candidate, CudaMachine, burst, num_cold_sets, steady

Row = dict[str, Any]

STEADY_S = 0.6  # of one variant; the card stays at its power limit from one variant to the next
REFERENCE_EVERY = 6  # variants between two samples of cuBLAS
HANG_S = 3.0  # a product of 8192^3 takes 2 to 60 ms, one of two tiles and a k of 65536 some 1.5


class HangError(Exception):
    """A kernel that did not end: its process can run nothing more."""


def measured_rows(sweep: Sweep, rounds: int = 1) -> Iterator[Row]:
    """The rows of one sweep: the verdict of each variant, then its times. A row "begun" comes before what may hang.

    Raises: HangError, DriverError: the process is of no more use.
    Cost: 5 s to start, a variant 0.7 s steady and 0.5 s burst, each `rounds` times.
    """
    cuda = backend()
    device = cuda.device(0)
    plans: dict[str, Plan] = {}
    check = Exact(sweep.exact_problem)
    for variant in sweep.variants:
        row = described(sweep, variant) | {"kind": "sweep_check"}
        yield row | {"status": "begun"}
        try:
            plan = variant.plan(sweep.problem, device, backend)
            wrong = check.wrong_elements(plan)
        except (ConfigError, CompileError) as error:  # any other ends the process: it has met a fault of the GPU
            yield row | {"status": "refused", "why": f"{type(error).__name__}: {error}"[:600]}
            continue
        yield row | facts_of(plan, sweep.problem) | {"status": "wrong" if wrong else "ok", "wrong": wrong}
        if not wrong:
            plans[variant.name] = plan
    del check
    torch.cuda.empty_cache()
    yield from timed_rows(cuda, sweep, plans, rounds)


def facts_of(plan: Plan, problem: Problem) -> Row:
    """What is known of a variant before it runs. The model speaks of the production kernel alone."""
    binary = plan.binary
    row: Row = {
        "registers": binary.resources.registers,
        "smem_bytes": plan.launch.smem_bytes + binary.resources.smem_bytes,
        "compiler": binary.compiler,
        "grid": plan.launch.grid,
    }
    if plan.family in AMPERE_LADDER:
        row["occupancy_pct"] = occupancy_pct(plan)
    if plan.family.name == "hopper":
        prediction = plan.prediction
        row |= {
            "predicted_tflops": problem.flops / prediction.total_us * 1e-6,
            "predicted_clock_ghz": prediction.clock_ghz,
        }
    return row


class Exact:
    """Whole numbers whose sums are exact in any order, and their product: a right kernel writes these very numbers."""

    def __init__(self, problem: Problem) -> None:
        self.a, self.b = inputs(problem, "integer", device="cuda:0")
        self.expected = (self.a.double() @ self.b.double()).to(TYPES[problem.out_dtype.name])
        self.out = torch.empty_like(self.expected)
        torch.cuda.synchronize()

    def wrong_elements(self, plan: Plan) -> int:
        """Elements that differ, those that were not written among them. Raises: HangError: the kernel does not end."""
        self.out.fill_(float("nan"))
        torch.cuda.synchronize()
        plan.run(self.a, self.b, self.out)
        wait(torch.cuda.current_stream().query)
        torch.cuda.synchronize()
        return int((self.out != self.expected).sum())  # NaN, where nothing was written, differs from all


def wait(is_done: Callable[[], bool], limit_s: float = HANG_S) -> None:
    """Until it says so. Raises: HangError: not within the limit."""
    end = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > end:
            raise HangError(f"not done after {limit_s:.0f} s")
        time.sleep(0.001)


def timed_rows(cuda: CudaBackend, sweep: Sweep, plans: dict[str, Plan], rounds: int) -> Iterator[Row]:
    """Steady, then burst, a row a sample; cuBLAS first, last, and after every few variants."""
    by_name = {variant.name: variant for variant in sweep.variants}
    with CudaMachine(cuda, 0) as machine, torch.cuda.device(0):
        num_sets = num_cold_sets(set_bytes(sweep.problem), cuda.device(0).l2_bytes)  # of 8192^3 two, 384 MiB each
        sets = operand_sets(sweep.problem, num_sets, device="cuda:0")
        torch.cuda.synchronize()  # operands were made on another stream
        columns = {name: Candidate(name, _running(plan, sets), num_sets) for name, plan in plans.items()}
        columns[CUBLAS] = Candidate(CUBLAS, _cublas(sets), num_sets)
        with torch.cuda.stream(torch.cuda.ExternalStream(machine.stream, device="cuda:0")):
            steady(machine, [columns[CUBLAS]], rounds=1, seconds=STEADY_S)  # the card gets warm
            for mode in ("steady", "burst"):
                for place, name in enumerate(turns(list(plans), rounds, between=mode == "steady")):
                    if mode == "steady":
                        timing = steady(machine, [columns[name]], rounds=1, seconds=STEADY_S)
                    else:
                        timing = burst(machine, [columns[name]], rounds=1, warm_rounds=0)
                    [sample] = timing.rows()
                    about = described(sweep, by_name[name]) if name in by_name else reference(sweep)
                    yield timed(about, sample, place, cuda.device(0), sweep.problem)


def turns(names: Sequence[str], rounds: int, *, between: bool = True, seed: int = 0) -> list[str]:
    """Who is timed when: the variants in an order of chance, anew each round; cuBLAS first, after each round and, with
    `between`, after every few variants."""
    order = random.Random(seed)
    found = [CUBLAS]
    for _ in range(rounds):
        shuffled = order.sample(list(names), len(names))
        step = REFERENCE_EVERY if between else max(len(shuffled), 1)
        for start in range(0, len(shuffled), step):
            found += [*shuffled[start : start + step], CUBLAS]
    return found


def reference(sweep: Sweep) -> Row:
    """The columns of a sample of cuBLAS."""
    return described(sweep, sweep.variants[0]) | {"variant": CUBLAS, "family": CUBLAS, "config": None, "words": []}


def timed(about: Row, sample: Row, place: int, device: Device, problem: Problem) -> Row:
    """One sample as a row. The watts of so short a sample are those of its neighbours too: they are left out."""
    kept = ("mode", "median_us", "calls", "captured", "clock_mhz", "temperature_c", "limits")
    own = ("sweep", "variant", "family", "config", "m", "n", "k", "dtype", "out_dtype", "b_major")
    return {name: about[name] for name in own} | {
        "kind": "sweep_time",
        "status": "ok",
        "place": place,
        "device": device.name,
        **{name: sample.get(name) for name in kept},
        "rate_tflops": problem.flops / sample["median_us"] * 1e-6,
    }


def _running(plan: Plan, sets: Sequence[tuple[Any, Any, Any]]) -> Callable[[int], None]:
    def launch(index: int) -> None:
        plan.run(*sets[index % len(sets)])

    return launch


def _cublas(sets: Sequence[tuple[Any, Any, Any]]) -> Callable[[int], None]:
    def launch(index: int) -> None:
        a, b, out = sets[index % len(sets)]
        torch.matmul(a, b, out=out)

    return launch
