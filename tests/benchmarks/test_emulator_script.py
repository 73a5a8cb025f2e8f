"""benchmarks/emulator.py on one small product: its rows, its table, and its verdict."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tilewright.config import Config

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "emulator.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_emulator", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("target_s", "is_met"), [(600.0, True), (1e-9, False)])
def test_rows_are_written_and_a_missed_target_is_an_exit_status(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    target_s: float,
    is_met: bool,
) -> None:
    small = Config(tile_m=64, tile_n=16, consumers=1, stages=2)
    monkeypatch.setattr(script, "WORKLOADS", (script.Workload((64, 16, 64), small, target_s),))
    monkeypatch.setattr(script, "MOST_WITH_CHECKS", 1000.0)
    into = tmp_path / "emulator.json"
    assert script.main(["--repeats", "1", "--into", str(into)]) == (0 if is_met else 1)
    assert ("met" if is_met else "missed") in capsys.readouterr().out
    (row,) = json.loads(into.read_text())["rows"]
    assert row["kind"] == "emulator"
    assert row["is_met"] is is_met
    assert 0 < row["plain_cpu_s"] <= row["cold_cpu_s"]
    assert row["checked_times"] > 0
