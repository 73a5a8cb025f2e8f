"""The scripts of benchmarks/ whose parts are options."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["ampere", "dependent", "epilogues", "irregular", "unaligned"])
def test_a_script_without_a_part_says_its_parts_and_writes_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location(f"the_{name}_script", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    with pytest.raises(SystemExit, match="2"):
        module.main(["--into", str(tmp_path / "rows" / "rows.json")])
    assert "name what to do: --build, --check, --time" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
