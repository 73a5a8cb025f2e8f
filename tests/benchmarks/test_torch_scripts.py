"""benchmarks/host.py and benchmarks/model.py: that they run, with nothing launched and with NumPy's products."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fast_host import multiplied_by_numpy  # noqa: E402

ROOT = Path(__file__).parents[2]


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which model.py adds
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(capsys: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_host_prints_a_row_for_each_way_and_a_ratio_for_each_bar(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    host = script("host", monkeypatch)
    monkeypatch.setattr(host, "host_cost_us", lambda call, synchronize, **_: call() is None or 10.0)
    assert host.main(["--stub", "--rounds", "1", "--into", str(tmp_path / "torch_host.json")]) == 0
    rows = {row["way"]: row for row in printed(capsys)}
    content = json.loads((tmp_path / "torch_host.json").read_text())
    assert content["rows"] == list(rows.values())
    assert content["facts"]["command"].startswith("benchmarks/host.py --stub")
    assert {name for name, row in rows.items() if "bar" in row} == host.BARS.keys()
    assert all(theirs in rows for theirs, _ in host.BARS.values())


def test_a_ratio_is_ours_over_torchs(monkeypatch: Any) -> None:
    host = script("host", monkeypatch)
    costs = {"torch.mm": 10.0, "tilewright.matmul": 12.6}
    monkeypatch.setattr(host, "host_cost_us", lambda call, *_, **__: costs[call()])
    rows = list(host.rows({name: (lambda name=name: name) for name in costs}, lambda: None, 1))
    assert rows[1] == {
        "way": "tilewright.matmul",
        "median_us": 12.6,
        "over": "torch.mm",
        "ratio": 1.26,
        "bar": 1.25,
    }


def test_model_prints_times_and_losses_that_agree(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    backend = multiplied_by_numpy(monkeypatch)
    model = script("model", monkeypatch)
    assert (
        model.main(
            ["--tiny", "--eager", "--rounds", "1", "--steps", "4", "--into", str(into := tmp_path / "model.json")]
        )
        == 0
    )
    *rows, last = printed(capsys)
    assert json.loads(into.read_text())["rows"] == [*rows, last]
    assert [row["pass"] for row in rows if row["part"] == "block"] == ["forward and backward", "forward"]
    assert all(row["apart"] < 0.1 for row in rows if row["part"] == "block")
    assert last["apart"]["tilewright eager"] < 0.01
    assert backend.counts["fused"] > 0  # gates
