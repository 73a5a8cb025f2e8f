"""bench/sweep_rows.py and sweep_launches.py against simulated machines: which rows come, in which order."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tilewright.backends.nvml import Reading
from tilewright.bench import operands, sweep_launches, sweep_rows
from tilewright.bench.sweeps import CUBLAS, Sweep, sweep
from tilewright.device import preset
from tilewright.errors import ConfigError, DriverError
from tilewright.packing import packed

H200 = preset("h200")
SMALL = packed(64, 128, 32)


class Machine:
    """Every call takes one microsecond of a simulated clock."""

    def __init__(self, *_: object) -> None:
        self.now_us = 0.0
        self.stream = 5
        self.log: list[str] = []

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record(self) -> float:
        self.now_us += 1
        return self.now_us

    def wait(self, event: float) -> None:
        pass

    def elapsed_us(self, start: float, stop: float) -> float:
        return stop - start

    def capture(self, enqueue: Any) -> tuple[Any, bool]:
        enqueue()

        def replay() -> None:
            self.now_us += 100

        return replay, True

    def flush_l2(self) -> None:
        raise AssertionError("no mode of a sweep flushes")

    def idle(self, seconds: float) -> None:
        self.log.append("idle")

    def now_s(self) -> float:
        return self.now_us * 1e-6

    def reading(self, start_s: float, stop_s: float) -> Reading:
        return Reading()


class Product:
    """A plan whose kernel is torch's, with `damage` added to one element."""

    family = SimpleNamespace(name="hopper")
    launch = SimpleNamespace(smem_bytes=1000, grid=132)
    binary = SimpleNamespace(
        resources=SimpleNamespace(registers=168, smem_bytes=0), compiler="nvrtc", entry="hopper_gemm"
    )
    prediction = SimpleNamespace(total_us=1500.0, clock_ghz=1.3)

    problem = SMALL
    work = SimpleNamespace(scratch=(SimpleNamespace(name="scratch_slices", num_bytes=4096),))
    arguments = ("a",)

    def __init__(self, damage: float = 0.0) -> None:
        self.damage = damage

    def run(self, a: Any, b: Any, out: Any) -> None:
        torch.matmul(a, b, out=out)
        out[3, 5] += self.damage


def few() -> Sweep:
    """The sweep of stages, 2 to 7 slots of the rung's own tile, at a small size."""
    each = dataclasses.replace(sweep("stages", H200), problem=SMALL)
    return each.without(variant.name for variant in each.variants if " of " in variant.name)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """The sweep of stages at a small size on the CPU."""
    cuda = SimpleNamespace(device=lambda ordinal: H200)
    monkeypatch.setattr(sweep_rows, "backend", lambda: cuda)
    monkeypatch.setattr(sweep_rows, "CudaMachine", Machine)
    monkeypatch.setattr(
        sweep_rows, "inputs", lambda problem, kind, device: operands.inputs(problem, kind, device="cpu")
    )
    monkeypatch.setattr(
        sweep_rows, "operand_sets", lambda problem, count, device: operands.operand_sets(problem, count, device="cpu")
    )
    stand_ins = {
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "current_stream": lambda: SimpleNamespace(query=lambda: True),
        "device": lambda ordinal: contextlib.nullcontext(),
        "stream": lambda stream: contextlib.nullcontext(),
        "ExternalStream": lambda stream, device: None,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return few()


def plans(monkeypatch: pytest.MonkeyPatch, **made: Any) -> None:
    """What plan() makes of the variants by their number of slots; a right product of those that are not named."""

    def plan(variant: Any, problem: Any, device: Any, backend: Any) -> Any:
        found = made.get(f"s{variant.config.stages}", Product())
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("tilewright.bench.sweeps.Variant.plan", plan)


def test_every_variant_is_checked_and_timed_in_both_modes(small: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    plans(monkeypatch)
    rows = list(sweep_rows.measured_rows(small))
    checks = [row for row in rows if row["kind"] == "sweep_check"]
    assert [row["status"] for row in checks] == ["begun", "ok"] * 6
    assert checks[1]["predicted_tflops"] == SMALL.flops / 1500 * 1e-6
    for mode in ("steady", "burst"):
        timed = [row["variant"] for row in rows if row["kind"] == "sweep_time" and row["mode"] == mode]
        assert sorted(timed) == sorted([*(v.name for v in small.variants), CUBLAS, CUBLAS])
        assert (timed[0], timed[-1]) == (CUBLAS, CUBLAS)
    assert all(row["rate_tflops"] > 0 for row in rows if row["kind"] == "sweep_time")


def test_a_sweep_with_a_problem_of_its_own_is_checked_and_timed_with_it(
    small: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fp16, k past the 2047 products of 1 that are exact in fp16: what the sums of one variant keep, all must have."""
    plans(monkeypatch)
    own = packed(64, 128, 4096, dtype="fp16")
    each = dataclasses.replace(sweep("ampere-sums-4096", H200), problem=own)
    monkeypatch.setattr("tilewright.bench.sweep_rows.facts_of", lambda plan, problem: {"told": problem})
    rows = list(sweep_rows.measured_rows(each))
    assert [row["status"] for row in rows if row["kind"] == "sweep_check"] == ["begun", "ok"] * 4
    assert all(row["told"] == own for row in rows if "told" in row)
    assert {(row["m"], row["n"], row["k"], row["dtype"]) for row in rows} == {(64, 128, 4096, "fp16")}
    [burst, *_] = [row for row in rows if row.get("mode") == "burst"]
    assert burst["rate_tflops"] == own.flops / burst["median_us"] * 1e-6
    exact = sweep_rows.Exact(each.exact_problem)
    assert exact.expected.dtype == torch.float16
    assert float(abs(exact.a.double()).sum(dim=1).max()) < 2048  # of b the largest is 1
    assert float(abs(exact.b).max()) == 1


def test_a_wrong_variant_is_not_timed(small: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    plans(monkeypatch, s2=Product(damage=1.0), s3=Product(damage=float("nan")))
    rows = list(sweep_rows.measured_rows(small))
    assert [row["wrong"] for row in rows if row["status"] == "wrong"] == [1, 1]
    assert {row["variant"] for row in rows if row["kind"] == "sweep_time"} == {
        CUBLAS, "4 slots", "5 slots", "6 slots", "7 slots",
    }  # fmt: skip


def test_a_variant_that_cannot_run_is_a_row(small: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    plans(monkeypatch, s7=ConfigError("c", ["too much shared memory"]))
    [row] = [row for row in sweep_rows.measured_rows(small) if row["status"] == "refused"]
    assert "too much shared memory" in row["why"]


def test_a_fault_ends_the_process_in_the_variant_that_was_begun(small: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    plans(monkeypatch, s3=DriverError(call="cuLaunchKernelEx", status="CUDA_ERROR_ILLEGAL_ADDRESS", explanation="x"))
    found = sweep_rows.measured_rows(small)
    rows = [next(found) for _ in range(3)]
    with pytest.raises(DriverError):
        next(found)
    assert (rows[-1]["variant"], rows[-1]["status"]) == ("3 slots", "begun")


def test_a_kernel_that_does_not_end_is_given_up() -> None:
    with pytest.raises(sweep_rows.HangError, match="not done after 0 s"):
        sweep_rows.wait(lambda: False, limit_s=0.0)
    sweep_rows.wait(lambda: True, limit_s=0.0)


def test_cublas_is_timed_first_last_and_in_between() -> None:
    names = [str(index) for index in range(14)]
    found = sweep_rows.turns(names, 1)
    assert [index for index, name in enumerate(found) if name == CUBLAS] == [0, 7, 14, 17]
    assert sorted(set(found) - {CUBLAS}) == sorted(names)
    assert found == sweep_rows.turns(names, 1)
    burst = sweep_rows.turns(names, 2, between=False)
    assert [index for index, name in enumerate(burst) if name == CUBLAS] == [0, 15, 30]
    assert burst[1:15] != burst[16:30]
    assert sweep_rows.turns([], 1) == [CUBLAS]


class Driver:
    """A backend that launches nothing, and memory that is none."""

    def __init__(self) -> None:
        self.launched: list[Any] = []

    def device(self, ordinal: int) -> Any:
        return H200

    def load(self, binary: Any, ordinal: int, launch: Any) -> str:
        return str(binary.entry)

    def pack(self, kernel: str, launch: Any, arguments: Any, addresses: dict[str, int]) -> tuple[Any, ...]:
        assert sorted(addresses) == ["a", "b", "out", "scratch_slices"]
        return kernel, arguments

    def launch(self, call: Any, stream: int) -> None:
        self.launched.append(call)

    def on(self, ordinal: int) -> Any:
        return contextlib.nullcontext()

    def call(self, name: str, *arguments: Any) -> int:
        return 4096


def test_each_variant_is_launched_once_for_the_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(sweep_launches, "backend", lambda: driver)
    monkeypatch.setattr("tilewright.backends.cuda.backend", lambda: driver)  # that of launched()
    plans(monkeypatch, s2=ConfigError("c", ["no"]))
    rows = list(sweep_launches.launched_rows(few()))
    assert [row["status"] for row in rows] == ["refused", *["launched"] * 5]
    assert driver.launched == [("hopper_gemm", ("a",))] * 5
    assert {row["entry"] for row in rows[1:]} == {"hopper_gemm"}
