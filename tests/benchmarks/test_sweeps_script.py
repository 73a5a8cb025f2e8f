"""The host logic of benchmarks/sweeps.py: children, budgets, and what becomes of their rows."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.bench import report
from tilewright.bench.counters import Launched
from tilewright.bench.sweeps import ampere_size_sweeps, ampere_sweeps, sweep, sweeps
from tilewright.device import preset

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sweeps.py"
H200 = preset("h200")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_sweeps", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def soon() -> float:
    return time.monotonic() + 1000


def log_of(words: list[str]) -> Path:
    return Path(words[words.index("--log") + 1])


def write(words: list[str], *rows: dict[str, Any], end: str = "") -> None:
    log_of(words).write_text("".join(json.dumps(row) + "\n" for row in rows) + end)


def test_a_sweep_begins_again_without_the_variant_that_ended_it(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], limit_s: float) -> tuple[int | None, str]:
        asked.append(words)
        about = {"kind": "sweep_check", "sweep": "stages"}
        if len(asked) == 1:
            write(
                words, about | {"variant": "2 slots", "status": "ok"}, about | {"variant": "3 slots", "status": "begun"}
            )
            return 3, "HangError: not done"
        write(words, about | {"variant": "2 slots", "status": "ok"})
        return 0, ""

    monkeypatch.setattr(script, "run_limited", run)
    rows = script.time_part([sweep("stages", H200)], soon(), 1)
    assert [(row["variant"], row["status"]) for row in rows] == [("3 slots", "exit 3"), ("2 slots", "ok")]
    assert "HangError" in rows[0]["why"]
    assert asked[1][-2:] == ["--without", "stages/3 slots"]


def test_what_was_measured_before_the_limit_counts(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], limit_s: float) -> tuple[int | None, str]:
        write(words, {"kind": "sweep_time", "sweep": "stages", "variant": "2 slots", "status": "ok"}, end='{"kin')
        return None, "tail"

    monkeypatch.setattr(script, "run_limited", run)
    first, second = script.time_part([sweep("stages", H200)], soon(), 1)
    assert first["status"] == "ok"
    assert (second["kind"], second["why"]) == ("child", "tail")
    assert second["status"].startswith("stopped after")


def test_no_child_begins_without_time_for_its_start(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "run_limited", lambda words, limit_s: pytest.fail("begun"))
    assert script.time_part([sweep("stages", H200)], time.monotonic() + 1, 1) == []


def launched(variant: str, entry: str, status: str = "launched") -> dict[str, Any]:
    return {"kind": "sweep_counters", "sweep": "order", "variant": variant, "status": status, "entry": entry}


def test_counters_go_to_the_launch_of_the_same_place(script: ModuleType) -> None:
    rows = [launched("a", "hopper_gemm"), launched("r", "", "refused"), launched("b", "v10_tma_store")]
    seen = [
        Launched("memset", {}),
        Launched("hopper_gemm", {"dram__bytes_read.sum": 1.0}),
        Launched("v10_tma_store", {"dram__bytes_read.sum": 2.0, "lts__t_sectors_srcunit_tex.sum": 3.0}),
    ]
    found = script.counted([sweep("order", H200)], rows, seen, "ok")
    assert [(row["variant"], row["status"]) for row in found] == [("r", "refused"), ("a", "ok"), ("b", "ok")]
    assert [row["dram_read_bytes"] for row in found[1:]] == [1.0, 2.0]
    assert found[2]["l2_bytes"] == 96.0
    assert found[1]["l2_bytes"] is None


def test_counters_of_other_launches_are_not_taken(script: ModuleType) -> None:
    rows = [launched("a", "hopper_gemm"), launched("b", "v10_tma_store")]
    seen = [Launched("v10_tma_store", {}), Launched("hopper_gemm", {})]
    [row] = script.counted([sweep("order", H200)], rows, seen, "ok")
    assert row["status"] == "partly"
    assert "ncu saw v10_tma_store where hopper_gemm was launched" in row["why"]


def test_a_count_that_ended_early_keeps_what_it_has(script: ModuleType) -> None:
    rows = [launched("a", "hopper_gemm"), launched("b", "hopper_gemm")]
    first, second = script.counted([sweep("order", H200)], rows, [Launched("hopper_gemm", {})], "exit 9")
    assert first["variant"] == "a"
    assert (second["status"], second["why"]) == ("partly", "1 launches: exit 9")


def test_missing_ncu_is_a_row(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    [row] = script.count_part([sweep("order", H200)], soon(), set())
    assert row["status"] == "not run"


def test_the_important_comes_first_and_is_counted_at_once(script: ModuleType) -> None:
    found = [(kind, script.names_of(batch)) for kind, batch in script.steps(sweeps(H200), counting=True)]
    assert found == [
        ("time", "order,cluster,swizzle"),
        ("count", "order,cluster"),
        ("count", "swizzle"),
        ("time", "stages,tile,registers,box,promotion"),
        ("count", "tile"),
    ]
    assert all(kind == "time" for kind, _ in script.steps(sweeps(H200), counting=False))


@pytest.mark.parametrize(
    "chosen", [sweeps(H200), ampere_sweeps(), ampere_size_sweeps()], ids=["hopper", "ampere", "sizes"]
)
def test_all_sweeps_are_expected_to_fit_the_budget(script: ModuleType, chosen: Any) -> None:
    needed = [
        script.expected_s(batch) if kind == "time" else script.counting_s(batch)
        for kind, batch in script.steps(chosen, counting=True)
    ]
    assert sum(needed) <= script.parser().parse_args([]).budget_s == 150


def test_the_last_sweeps_of_a_child_give_way_when_time_is_short(script: ModuleType) -> None:
    batch = list(sweeps(H200))[3:]
    assert script.fitting("time", batch, 1000, 1) == batch
    assert script.fitting("time", batch, script.expected_s(batch[:2]) / script.SLACK, 1) == batch[:2]
    assert script.fitting("time", batch, 1, 1) == []


def test_sweeps_that_had_ended_are_not_begun_again(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], limit_s: float) -> tuple[int | None, str]:
        asked.append(words)
        about = {"kind": "sweep_check", "variant": "v", "status": "ok"}
        if len(asked) == 1:
            write(words, about | {"sweep": "stages"}, about | {"sweep": "registers", "status": "begun"})
            return None, "hangs"
        write(words, *(about | {"sweep": name, "variant": "w"} for name in ("registers", "box")))
        return 0, ""

    monkeypatch.setattr(script, "run_limited", run)
    rows = script.time_part([sweep(name, H200) for name in ("stages", "registers", "box")], soon(), 1)
    assert [(row["sweep"], row["variant"]) for row in rows] == [
        ("stages", "v"), ("registers", "v"), ("registers", "w"), ("box", "w"),
    ]  # fmt: skip
    assert [words[words.index("--sweeps") + 1] for words in asked] == ["stages,registers,box", "registers,box"]
    assert rows[1]["status"].startswith("stopped after")


def test_measured_rows_are_on_disk_after_each_child(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes: list[int] = []

    def time_part(batch: Any, until_s: float, rounds: int) -> list[dict[str, Any]]:
        path = tmp_path / "out" / "sweeps.json"
        sizes.append(len(json.loads(path.read_text())["rows"]) if path.exists() else 0)
        facts = {"kind": "facts", "status": "ok", "device": "NVIDIA H200", "date": "2026-11-30"}
        return [facts, {"kind": "sweep_check", "sweep": batch[0].name, "variant": "v", "status": "ok"}]

    monkeypatch.setattr(script, "time_part", time_part)
    monkeypatch.setattr(script, "emulated_part", lambda name: [])
    words = ["--into", str(tmp_path / "out"), "--sweeps", "swizzle,stages", "--no-counters"]
    assert script.main(words) == 0
    assert sizes == [0, 1]
    rows = report.read_rows([tmp_path / "out" / "sweeps.json"])
    assert [row["sweep"] for row in rows] == ["swizzle", "stages"]
    assert rows[0]["device"] == "NVIDIA H200"
    assert rows[0]["command"].startswith("benchmarks/sweeps.py --into")


def test_the_head_names_the_compiler_and_no_row_a_path_of_the_machine(script: ModuleType) -> None:
    journal = script.Journal(None, "benchmarks/sweeps.py")
    journal.add([{"kind": "sweep_check", "status": "ok", "compiler": "nvrtc 13.5"}])
    journal.add([{"kind": "facts", "status": "ok", "device": "NVIDIA H200"}])
    journal.add([{"kind": "child", "status": "exit 1", "why": f"File {SCRIPT}, line 1"}])
    assert journal.facts == {"compiler": "nvrtc 13.5", "device": "NVIDIA H200"}
    assert journal.rows[-1]["why"] == "File ./benchmarks/sweeps.py, line 1"


def test_a_spent_budget_is_said(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--into", str(tmp_path), "--sweeps", "stages", "--budget-s", "1", "--no-counters"]) == 1
    assert "stages all child no time: time: 1 s left" in capsys.readouterr().out


def test_without_a_gpu_the_child_says_why(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [row] = script.time_part([sweep("registers", H200)], time.monotonic() + 60, 1)
    assert row["status"] == "exit 3"
    assert "Error" in row["why"]


def test_conflicts_come_from_a_child_without_a_gpu(script: ModuleType) -> None:
    rows = script.emulated_part("swizzle")
    assert [row["status"] for row in rows] == ["ok"] * 4
