"""benchmarks/irregular.py: what it would run on a GPU, and how it tells of it, with no GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "irregular.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("irregular_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_is_built_is_what_is_loaded(script: ModuleType) -> None:
    units = script.sources()
    names = {unit.entry for unit in units}
    assert {"a0_wmma", "a5_multistage", "a7_register_budget", "ampere_gemm", "hopper_gemm"} <= names
    assert len({unit.digest("") for unit in units}) == len(units)


def test_parts_run_in_children_and_the_file_has_facts_and_rows(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def run_part(part: str, limit_s: float) -> tuple[list[dict[str, object]], dict[str, object] | None]:
        ran.append((part, limit_s))
        hung = {"kind": "child", "part": "time", "status": "stopped after 70 s", "why": "hung"}
        return {
            "facts": ([{"device": "x"}], None),
            "check": ([{"kind": "check", "case": "c", "status": "wrong", "why": "2 elements"}], None),
            "time": ([], hung),
        }[part]

    monkeypatch.setattr(script, "run_part", run_part)
    into = tmp_path / "out" / "irregular.json"
    assert script.main(["--check", "--time", "--into", str(into)]) == 1
    assert [part for part, _ in ran] == ["facts", "check", "time"]
    assert sum(script.LIMITS_S[part] for part in ("check", "time")) <= 120
    content = json.loads(into.read_text())
    assert content["facts"]["command"].startswith("benchmarks/irregular.py --check --time")
    said = capsys.readouterr().out
    assert "wrong: c: 2 elements" in said
    assert "time: stopped after 70 s: hung" in said


def test_with_the_emulator_alone_no_driver_is_asked(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "run_part", lambda *_: ([{"kind": "emulated", "status": "ok", "step": "x"}], None))
    found = script.content(["--emulate"], ["emulate"])
    assert found["facts"]["device"] == "emulator"
    assert found["facts"]["nvidia_cuda_nvrtc"]
