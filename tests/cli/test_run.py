"""`tilewright run`, without a GPU and with one that is made up."""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from command_line import call, printed

from fakes import T4
from tilewright import device
from tilewright.backends import cuda
from tilewright.bench import verify
from tilewright.cli import emulate, request
from tilewright.emulated_time import LIMIT_S
from tilewright.errors import DriverError, EmulationError
from tilewright.packing import packed

REAL_BACKEND = cuda.backend  # before a fixture puts another in its place


def test_run_without_a_gpu_executes_in_the_emulator_and_says_so() -> None:
    text = printed("run", "64", "64", "128")
    assert re.search(r"registers +\d+ a thread", text)
    assert re.search(r"spills +0 bytes", text)
    assert "predicted" in text
    assert "executed in the emulator, the PTX above on this CPU: cuInit(0) returned no libcuda.so.1" in text
    assert "whole numbers, exact: right: 4096 elements" in text
    assert "random against float64: right: 4096 elements" in text
    assert "findings: none" in text
    assert "wgmma" in text


def test_run_json_without_a_gpu_holds_the_emulators_verdict_and_no_time() -> None:
    answer = json.loads(printed("run", "64", "128", "72", "--dtype", "float16", "--out-dtype", "bf16", "--json"))
    assert (answer["m"], answer["n"], answer["k"]) == (64, 128, 72)
    assert answer["problem"] == "64x128x72 fp16 -> bf16 TN"
    assert (answer["executed"], answer["executor"]) == (True, "emulator")
    assert "libcuda" in answer["reason"]
    assert all(check["ok"] for check in answer["checks"].values())
    assert answer["emulation"]["findings"] == []
    assert answer["emulation"]["instructions"]
    assert answer["times"] == []
    assert answer["binary"]["arch"] == "sm_90a"
    assert answer["binary"]["spill_load_bytes"] == 0
    assert answer["binary"]["warnings"] == []


def test_run_of_a_large_product_without_a_gpu_executes_nothing_and_says_what_size_would() -> None:
    text = printed("run", "8192", "8192", "8192")
    found = re.search(r"nothing was executed: cuInit.*would take about .* minutes.*try (\d+) (\d+) (\d+)", text)
    assert found is not None, text
    smaller = packed(*map(int, found.groups()))
    plan = request.plan(smaller, device.preset("h200"))
    assert emulate.seconds_of(plan, checks=True) + emulate.seconds_of(plan, checks=False) <= LIMIT_S


def test_run_no_emulate_compiles_alone() -> None:
    answer = json.loads(printed("run", "64", "64", "64", "--no-emulate", "--json"))
    assert (answer["executed"], answer["executor"], answer["checks"]) == (False, None, {})
    assert "--no-emulate" in answer["reason"]


def test_run_emulate_leaves_a_gpu_alone(gpu: SimpleNamespace) -> None:
    answer = json.loads(printed("run", "64", "64", "64", "--emulate", "--no-checks", "--json"))
    assert (answer["executor"], gpu.asked) == ("emulator", [])


def test_run_fails_when_the_emulator_finds_something(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> NoReturn:
        raise EmulationError("somebody waits for ever", rule="deadlock", line=7, source="unit.cu:9")

    monkeypatch.setattr("tilewright.bench.emulated.run_plan", broken)
    result = call("run", "64", "64", "64")
    assert result.exit_code == 1
    assert "stopped by the rule 'deadlock': somebody waits for ever" in result.stdout
    assert "unit.cu:9, PTX line 7" in result.stdout


def test_run_with_an_n_contiguous_b_plans_that_layout() -> None:
    answer = json.loads(printed("run", "64", "64", "64", "--b-major", "n", "--json"))
    assert answer["problem"].endswith("NN")


def test_run_takes_the_config_that_show_config_prints() -> None:
    shown = printed("show", "512", "512", "512", "--what", "config").split()
    wanted = ["store_slots=1" if word.startswith("store_slots=") else word for word in shown]
    changes = [word for pair in wanted for word in ("--config", pair)]
    answer = json.loads(printed("run", "512", "512", "512", "--no-emulate", "--json", *changes))
    assert [f"{key}={value}" for key, value in answer["config"].items()] == wanted


def test_run_for_a_named_device_emulates_it_even_where_there_is_a_gpu(gpu: SimpleNamespace) -> None:
    answer = json.loads(printed("run", "64", "64", "64", "--device", "h100", "--json"))
    assert (answer["executor"], gpu.asked) == ("emulator", [])
    assert "H100" in answer["device"]
    assert "--device" in answer["reason"]


def test_run_on_a_gpu_without_kernels_emulates_one_that_has_them_and_says_why(gpu: SimpleNamespace) -> None:
    gpu.device = T4
    answer = json.loads(printed("run", "64", "64", "64", "--json"))
    assert (answer["executor"], gpu.asked) == ("emulator", [])
    assert "compute capability 7.5" in answer["reason"]


def test_run_on_a_gpu_checks_and_times(gpu: SimpleNamespace) -> None:
    text = printed("run", "64", "64", "64", "--config", "stages=4", "--num-sms", "2")
    assert "random against float64: right" in text
    assert "whole numbers, exact: right" in text
    assert re.search(r"interleaved.*tilewright.*8\.0.*2\.0%.*625.*1\.250", text)
    assert [options.get("kind") for options in gpu.asked] == ["normal", "integer", None]
    assert all(options["num_sms"] == 2 for options in gpu.asked)
    assert gpu.asked[0]["config"].stages == 4
    assert gpu.asked[2]["configs"] == (gpu.asked[0]["config"],)
    assert gpu.asked[2]["modes"] == ("burst", "interleaved")


def test_run_steady_times_all_three_kinds(gpu: SimpleNamespace) -> None:
    answer = json.loads(printed("run", "64", "64", "64", "--steady", "--json"))
    assert {row["mode"] for row in answer["times"]} == {"burst", "interleaved", "steady"}
    assert answer["checks"]["random against float64"]["ok"] is True


def test_run_fails_and_times_nothing_when_an_element_is_wrong(gpu: SimpleNamespace) -> None:
    right, wrong = gpu.checks[0], dataclasses.replace(gpu.checks[1], wrong=3, worst=7.0, first_wrong=(5, 6))
    gpu.checks = [right, wrong]
    result = call("run", "64", "64", "64")
    assert result.exit_code == 1
    assert "WRONG: 3 of 4096 elements" in result.stdout
    assert "not timed: the product is wrong" in result.stdout
    assert len(gpu.asked) == 2


def test_run_without_torch_checks_and_says_that_nothing_was_timed(gpu: SimpleNamespace) -> None:
    gpu.has_torch = False
    text = printed("run", "64", "64", "64")
    assert "right" in text
    assert "not timed: torch" in text


def test_run_that_does_not_fit_in_memory_is_refused(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(problem: Any, **options: Any) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(verify, "verify", full)
    result = call("run", "400000", "400000", "64")
    assert result.exit_code == 2
    assert "do not fit in memory; give smaller sizes" in result.stderr


def test_a_fault_of_ours_is_not_taken_for_a_lack_of_memory(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(problem: Any, **options: Any) -> NoReturn:
        raise RuntimeError("broken")

    monkeypatch.setattr(verify, "verify", broken)
    with pytest.raises(RuntimeError, match="broken"):
        call("run", "64", "64", "64")


@pytest.mark.gpu
def test_run_on_a_real_gpu_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "backend", REAL_BACKEND)
    try:
        REAL_BACKEND()
    except DriverError as error:
        pytest.skip(str(error))
    answer = json.loads(printed("run", "513", "264", "200", "--json"))
    assert answer["executed"]
    assert all(check["ok"] for check in answer["checks"].values())


def test_an_invariant_product_is_timed_beside_matmuls_own_choice(gpu: SimpleNamespace) -> None:
    answer = json.loads(printed("run", "64", "64", "64", "--reduction", "invariant", "--json"))
    assert answer["reduction"] == "invariant"
    own, beside = gpu.asked[-1]["configs"]
    assert dataclasses.asdict(own) == answer["config"]
    assert beside is None
