"""bench/ceilings.py, ceiling_trials.py, ceiling_report.py: what is measured, what a row says, whose ceilings count."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright import device, dtypes, timing
from tilewright.backends.emulated import EmulatedBackend, emulated
from tilewright.backends.nvml import Reading
from tilewright.bench import ceiling_report, ceilings
from tilewright.bench.ceiling_trials import POISON, Repeated, Trial, read_trial, small_trials
from tilewright.kernels.ceilings import TensorLoop, tensor_loops

H200 = device.preset("h200")
SMALL = {trial.name: trial for trial in small_trials()}


def sample(mode: str, us: float, **more: Any) -> dict[str, Any]:
    row = {"candidate": "x", "mode": mode, "median_us": us, "spread": 0.01, "watts": 700.0, "clock_mhz": 1770.0}
    return row | {"ratio": None, "baseline": None} | more


class EmulatedCuda:
    """What Loaded asks of the CUDA backend: kernels by the emulator, memory of the host."""

    def __init__(self) -> None:
        self.emulator: EmulatedBackend = emulated()
        self.memory: dict[int, np.ndarray] = {}
        self.device = self.emulator.device
        self.load, self.pack, self.launch = self.emulator.load, self.emulator.pack, self.emulator.launch

    def on(self, ordinal: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self, name)(*arguments)

    def cuMemAlloc(self, size: int) -> int:  # noqa: N802
        memory = np.zeros(size + 1024, np.uint8)
        address = -(-memory.ctypes.data // 1024) * 1024
        self.memory[address] = memory
        return address

    def cuMemFree(self, address: int) -> None:  # noqa: N802
        del self.memory[address]

    def cuMemcpyHtoD(self, target: int, source: int, size: int) -> None:  # noqa: N802
        np.ctypeslib.ctypes.memmove(target, source, size)

    def cuMemcpyDtoH(self, target: int, source: int, size: int) -> None:  # noqa: N802
        np.ctypeslib.ctypes.memmove(target, source, size)


class Machine:
    """A clock on which every launch takes ten microseconds."""

    stream = 7

    def __init__(self) -> None:
        self.now_us = 0.0

    def record(self) -> float:
        self.now_us += 5.0
        return self.now_us

    def wait(self, event: float) -> None: ...

    def elapsed_us(self, start: float, stop: float) -> float:
        return 2 * (stop - start)

    def capture(self, enqueue: Callable[[], None]) -> tuple[Callable[[], None], bool]:
        return enqueue, False

    def flush_l2(self) -> None: ...

    def idle(self, seconds: float) -> None: ...

    def now_s(self) -> float:
        return self.now_us * 1e-6

    def reading(self, start_s: float, stop_s: float) -> Reading:
        return Reading(watts=500.0)


CLOCKS = (functools.partial(timing.single, rounds=1),)


@pytest.mark.parametrize("trial", SMALL.values(), ids=SMALL)
def test_a_trial_is_placed_checked_timed_and_its_memory_given_back(trial: Trial) -> None:
    cuda = EmulatedCuda()
    [row] = ceilings._timed(trial, cuda, Machine(), H200, CLOCKS)  # type: ignore[arg-type]
    assert (row["kind"], row["status"], row["ceiling"], row["mode"]) == ("ceiling", "ok", trial.name, "single")
    assert (row["median_us"], row["device"]) == (10.0, "NVIDIA H200")
    assert (row["ops_per_cycle"] is not None) == isinstance(trial.kernel, TensorLoop)
    assert row["compiler"].startswith("nvrtc")
    assert json.loads(json.dumps(row)) == row
    assert cuda.memory == {}


def test_a_ceiling_that_is_wrong_is_a_row_and_is_not_timed() -> None:
    trial = SMALL["read, DRAM"]
    broken = dataclasses.replace(trial, arguments=SMALL["read, L2"].arguments)  # reads three times, not once
    [row] = ceilings._timed(broken, EmulatedCuda(), Machine(), H200, CLOCKS)  # type: ignore[arg-type]
    assert (row["status"], row["mode"]) == ("wrong", "all")
    assert "sums of 2 of 2 CTAs" in row["why"]


def test_an_output_that_nobody_wrote_is_found() -> None:
    for trial in SMALL.values():
        if not trial.operands:
            continue

        def untouched(name: str, trial: Trial = trial) -> Iterator[np.ndarray]:
            value = trial.operands[name]
            yield from [value.block] * value.times if isinstance(value, Repeated) else [value]

        assert trial.wrong(untouched), trial.name
        outputs = [value for name, value in trial.operands.items() if name not in ("a", "b", "source")]
        blocks = [value.block if isinstance(value, Repeated) else value for value in outputs]
        assert all((block.view(np.uint8) == POISON).all() for block in blocks)


def test_sums_of_a_repeated_block_count_every_copy() -> None:
    block = np.arange(4 * 16384 // 4, dtype=np.uint32).view(np.uint8)
    trial = read_trial("x", 3, Repeated(block, 5), 2)
    words = block.view(np.uint32).reshape(4, -1).sum(axis=1, dtype=np.uint64)
    expected = [sum(int(words[read % 20 % 4]) for read in range(cta, 40, 3)) % 2**32 for cta in range(3)]

    def sums(off: int) -> Callable[[str], Iterator[np.ndarray]]:
        values = np.array([[total + off] + [0] * 255 for total in expected], np.uint64).astype(np.uint32)
        return lambda name: iter([values])

    assert trial.wrong(sums(0)) == ""
    assert "3 of 3" in trial.wrong(sums(1))


def test_a_loop_lasts_six_milliseconds_on_every_sm_and_its_sums_are_8192_deep() -> None:
    for loop in tensor_loops(dtypes.BF16):
        trial = ceilings.loop_trial(loop, dataclasses.replace(H200, num_sms=4))
        assert trial.launch.grid == 4
        assert trial.flops / 4 * H200.num_sms / H200.peak_tflops * 1e-6 == pytest.approx(6000.0, rel=0.02)
        assert trial.arguments[-1].value * loop.k == 8192  # type: ignore[union-attr]


def test_memory_is_read_and_copied_over_many_times_the_l2_and_the_resident_set_fits_it() -> None:
    small = dataclasses.replace(H200, l2_bytes=1 << 20)
    for trial, passes in zip(ceilings.memory_trials(small), (1, ceilings.L2_PASSES, None), strict=True):
        source = trial.operands["source"]
        if "L2" in trial.name:
            assert source.nbytes * ceilings.L2_SHARE == small.l2_bytes
        else:
            assert source.nbytes > timing.COLD_FACTOR * H200.l2_bytes
        assert trial.moved_bytes == source.nbytes * (passes or 2)


def test_a_row_says_the_clock_that_the_sm_counted_and_operations_a_cycle() -> None:
    trial = SMALL["wgmma bf16 m64n256k16 128x256"]
    ticks = np.array([[1_756_000, 1_000_000], [1_756_000, 1_000_000]], np.uint64)
    row = ceilings.described(trial, sample("steady", 1000.0), H200, ticks)
    assert row["kernel_mhz"] == pytest.approx(1756.0)
    assert row["ops_per_cycle"] == pytest.approx(trial.flops / 2 / 1_756_000)
    assert row["tflops_per_watt"] == pytest.approx(trial.flops * 1e-9 / 700)
    assert not {"candidate", "ratio", "baseline"} & row.keys()


def ceiling_row(name: str, mode: str, rate: float, **more: Any) -> dict[str, Any]:
    row = ceilings.described(SMALL[name], sample(mode, 10.0), H200) | {"rate_tflops": rate}
    return row | more


def test_the_tensor_ceiling_is_the_fastest_loop_of_the_same_card_instruction_type_and_mode() -> None:
    wide, tall = "wgmma bf16 m64n256k16 128x256", "wgmma bf16 m64n192k16 256x192"
    rows = [
        ceiling_row(wide, "burst", 935.0),
        ceiling_row(tall, "burst", 930.0),
        ceiling_row(tall, "steady", 857.0),
        ceiling_row(wide, "steady", 2000.0, device="NVIDIA H100 PCIe"),
        ceiling_row(wide, "steady", 2000.0, status="wrong"),
        ceiling_row("wgmma fp16 m64n256k16 128x256", "steady", 2000.0),
        ceiling_row("mma.sync bf16 m16n8k16 128x256", "steady", 610.0),
        {"kind": "rung_time", "status": "ok"},
    ]
    found = ceiling_report.tensor_ceilings
    assert found(rows, "NVIDIA H200", "bf16", "wgmma") == {"burst": 935.0, "steady": 857.0}
    assert found(rows, "NVIDIA H200", "bf16", "mma.sync") == {"steady": 610.0}
    assert found(rows, "NVIDIA H20", "bf16", "wgmma") == {}


def test_committed_rows_are_the_newest_of_each_card_and_none_where_there_is_no_checkout(tmp_path: Path) -> None:
    for stem, rate in (
        ("h200_2026-11-29_ceilings", 1.0),
        ("h200_2026-11-30_ceilings", 2.0),
        ("h200_2026-11-30_time", 3.0),
    ):
        (tmp_path / f"{stem}.json").write_text(json.dumps({"facts": {"date": "x"}, "rows": [{"rate": rate}]}))
    assert ceilings.committed_rows(tmp_path) == [{"date": "x", "rate": 2.0}]
    assert ceilings.committed_rows(tmp_path / "absent") == []


def test_the_table_shows_rates_in_their_unit_power_of_the_steady_mode_and_what_failed() -> None:
    rows = [
        ceilings.described(SMALL["wgmma bf16 m64n256k16 128x256"], sample("steady", 0.1), H200),
        ceilings.described(SMALL["copy, DRAM"], sample("interleaved", 10.0), H200),
        ceilings.described(SMALL["empty launch 2x32"], sample("single", 2.345), H200),
        {"kind": "ceiling", "ceiling": "all", "mode": "all", "status": "exit 1", "why": "no GPU"},
        {"kind": "ceiling_emulated", "ceiling": "read, L2", "status": "ok", "why": "", "seconds": 0.1},
    ]
    lines = ceiling_report.cells(rows)
    assert [line[3] for line in lines] == ["TFLOPS", "GB/s", "us", "-", "-"]
    assert lines[0][5] == "700"
    assert lines[1][5:8] == ("-", "-", "-")
    assert lines[2][2] == "2.35"
    assert lines[3][2] == "exit 1 no GPU"
    assert lines[4][1:3] == ("emulated", "right")
    assert all(len(line) == len(ceiling_report.COLUMNS) for line in lines)


def test_a_document_s_table_has_a_line_a_ceiling_and_mode_and_its_origin() -> None:
    row = ceilings.described(SMALL["read, L2"], sample("interleaved", 10.0), H200)
    table = ceiling_report.ceilings_table([row | {"date": "2026-11-30"}, {"kind": "time", "status": "ok"}])
    assert table.splitlines()[0] == "| " + " | ".join(ceiling_report.COLUMNS) + " |"
    assert table.splitlines()[2].startswith("| read, L2 | interleaved | 14 | GB/s |")
    assert "NVIDIA H200" in table
    assert "2026-11-30" in table


def test_all_that_a_measurement_loads_can_be_built_elsewhere() -> None:
    entries = [source.entry for source in ceilings.sources(H200)]
    assert sorted(set(entries)) == ["bulk_copy", "bulk_read", "empty_launch", "mma_loop", "tensor_loop"]
    assert (entries.count("tensor_loop"), entries.count("mma_loop")) == (4, 2)
    wanted = {source.digest("") for source in ceilings.sources(H200)}
    small = dataclasses.replace(H200, l2_bytes=1 << 20)
    trials = [*ceilings.memory_trials(small), *ceilings.empty_trials(H200)]
    assert {trial.kernel.source(H200).digest("") for trial in trials} <= wanted


def test_a_child_without_a_gpu_ends_with_its_reason_as_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for brief in (False, True):
        [row] = ceilings.measure(["bf16"], brief=brief)
        assert (row["kind"], row["status"]) == ("ceiling", "exit 1")
        assert "Error: " in row["why"]


def test_a_brief_measurement_takes_one_sample_of_each_in_place_of_its_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(trial: Trial, cuda: Any, machine: Any, device: Any, clocks: Any) -> Iterator[dict[str, Any]]:
        found = [clock if isinstance(clock, functools.partial) else functools.partial(clock) for clock in clocks]
        yield {trial.name: [(clock.func.__name__, clock.keywords.get("rounds")) for clock in found]}

    small = dataclasses.replace(H200, l2_bytes=1 << 20, num_sms=2)
    monkeypatch.setattr(ceilings, "_timed", named)
    monkeypatch.setattr("tilewright.backends.cuda.backend", lambda: SimpleNamespace(device=lambda ordinal: small))
    monkeypatch.setattr(timing, "CudaMachine", lambda cuda, ordinal: contextlib.nullcontext())
    modes = [clocks for row in ceilings.measured_rows(["bf16"], 2) for clocks in row.values()]
    assert modes[0] == [("burst", None), ("steady", 2)]
    assert modes[-1] == [("interleaved", None), ("single", None)]
    brief = [clocks for row in ceilings.measured_rows(["bf16"], brief=True) for clocks in row.values()]
    assert brief == [[("interleaved", 1)]] * len(modes)


@pytest.fixture(scope="module")
def brief_rows() -> list[dict[str, Any]]:
    return ceilings.measure(["bf16"], brief=True)


@pytest.mark.gpu
def test_every_ceiling_is_right_on_the_device(brief_rows: list[dict[str, Any]]) -> None:
    failed = [f"{row['ceiling']}: {row['status']}: {row['why']}" for row in brief_rows if row["status"] != "ok"]
    assert not failed, "\n".join(failed)
    assert len(brief_rows) == len(tensor_loops(dtypes.BF16)) + 3 + 2  # reads and the copy, launches


@pytest.mark.gpu
@pytest.mark.alone("kernels of other workers take turns with the loops, whose clocks go on meanwhile")
def test_the_loops_are_tight_on_the_device(brief_rows: list[dict[str, Any]]) -> None:
    rates = {row["ceiling"]: row["ops_per_cycle"] for row in brief_rows if row["dtype"] == "bf16"}
    assert len(rates) == len(tensor_loops(dtypes.BF16))
    for name, rate in rates.items():
        assert rate > 0.97 * H200.tensor_flops_per_cycle * (2 / 3 if name.startswith("mma.sync") else 1), name
