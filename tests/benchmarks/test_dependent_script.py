"""benchmarks/dependent.py: what it builds, its checks on pretended plans, and what its table says, with no GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tilewright
from tilewright.bench import suite
from tilewright.device import preset

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "dependent.py"
H200 = preset("h200")
SHAPE = (16, 24, 32)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dependent_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def row(candidate: str, median_us: float, **more: Any) -> dict[str, Any]:
    config = "c dependent" if candidate == "dependent" else "c"
    found = {"kind": "time", "m": 16, "n": 4096, "k": 4096, "candidate": candidate, "median_us": median_us, "ctas": 128}
    return found | {"status": "ok", "config": config, "captured": True} | more


RATIOS = {"ratio_beside": 1.1, "ratio_beside_lower": 1.09, "ratio_beside_upper": 1.12}
ROWS = [row("cublas", 13.8), row("tilewright", 11.0), row("dependent", 10.0, **RATIOS)]


def test_products_are_of_the_suite_and_both_columns_run_one_config_that_fills_an_sm(script: ModuleType) -> None:
    """docs/suite.md says that no SM has room for two CTAs of these, so that one begins where another has ended."""
    assert set(script.SHAPES) <= set(suite.shapes())
    for shape in script.SHAPES:
        shipped, dependent = (
            tilewright.plan(suite.problem_of(shape), device=H200, config=changes) for changes in script.CHANGES.values()
        )
        assert dependent.config == shipped.config.replace(dependent_launch=True)
        assert dependent.launch.is_dependent
        assert not shipped.launch.is_dependent
        assert len(shipped.work.steps) == 1
        assert 2 * shipped.launch.smem_bytes > H200.smem_per_sm_bytes


def test_what_is_built_has_each_kernel_in_both_ways(script: ModuleType) -> None:
    names = [unit.name for unit in script.sources()]
    dependent = [name for name in names if name.endswith("_dependent_launch")]
    assert sorted(names) == sorted([*dependent, *(name.removesuffix("_dependent_launch") for name in dependent)])


class PretendedPlan:
    """A product on CPU tensors; `is_late`: it reads the `a` of its call before, as if it had not waited."""

    def __init__(self, is_late: bool) -> None:
        self.is_late = is_late
        self.before: Any = None

    def run(self, a: Any, b: Any, out: Any) -> None:
        read = self.before if self.is_late and self.before is not None else a
        out.copy_(read.float() @ b.float())
        self.before = a.clone()


@pytest.mark.parametrize("late", ["", "feeding", "product"])
def test_a_launch_that_did_not_wait_for_the_one_before_is_wrong(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    pytest.importorskip("torch")

    def plan(a: Any, b: Any, out: Any, *, config: Any) -> PretendedPlan:
        which = "feeding" if a.shape[-1] == script.FED_K else "product"
        return PretendedPlan(is_late=config is not None and which == late)

    monkeypatch.setattr(tilewright, "plan", plan)
    found = script.check_row(SHAPE, device="cpu", held_bytes=1)
    assert (found["kind"], found["case"], found["calls"]) == ("check", "16x24x32", script.CALLS)
    assert (found["status"], found["differing"]) == (("wrong", script.CALLS) if late else ("ok", 0))
    assert bool(found["why"]) == bool(late)


def test_parts_run_in_children_and_the_file_has_the_facts_once_and_the_rows_of_both(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def rows_of_command(command: list[str], limit_s: float, about: dict[str, Any]) -> Any:
        asked.append((command[1:], limit_s))
        facts = {"kind": "facts", "status": "ok", "device": "NVIDIA H200"}
        check = {"kind": "check", "case": "16x4096x4096", "status": "wrong", "why": "other bits"}
        if about["part"] == "check":
            return [facts, check], None
        return [facts, *ROWS], about | {"status": "stopped after 75 s", "why": "hung"}

    monkeypatch.setattr("tilewright.bench.script.rows_of_command", rows_of_command)
    words = ["--check", "--time", "--into", str(tmp_path / "new" / "dependent.json")]
    assert script.main(words) == 1
    assert [(Path(path), *rest) for (path, *rest), _ in asked] == [
        (SCRIPT, "--child", "check"),
        (SCRIPT, "--child", "time"),
    ]
    assert sum(limit_s for _, limit_s in asked) <= 120
    content = json.loads((tmp_path / "new" / "dependent.json").read_text())
    command = " ".join(["benchmarks/dependent.py", *words])
    assert content["facts"] == {"device": "NVIDIA H200", "command": command}
    assert [each["kind"] for each in content["rows"]] == ["check", "time", "time", "time", "child"]
    wrong, hung, head, line, told = capsys.readouterr().out.splitlines()
    assert wrong == "16x4096x4096: wrong: other bits"
    assert hung == "time: stopped after 75 s: hung"
    assert head.split()[:5] == ["M,", "N,", "K", "cuBLAS", "us"]
    assert " ".join(line.split()) == "16, 4096, 4096 13.80 11.00 10.00 1.00 1.100 1.090 .. 1.120 128 c"
    assert told.startswith("Of 1 products that read what the launch before wrote")


def test_a_column_that_was_refused_is_named_with_its_product(script: ModuleType) -> None:
    refused = {"kind": "time", "m": 16, "n": 4096, "k": 4096, "candidate": "dependent", "status": "refused", "why": "x"}
    assert script.table([*ROWS[:2], refused]) == ["16x4096x4096 dependent: refused: x"]
