"""benchmarks/unaligned.py: what it builds and what its table says, on rows that nobody measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.packing import packed

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "unaligned.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unaligned_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["unaligned_script"] = module
    spec.loader.exec_module(module)
    return module


def row(shape: tuple[int, int, int], candidate: str, time_us: float, **more: Any) -> dict[str, Any]:
    m, n, k = shape
    return {"kind": "time", "m": m, "n": n, "k": k, "candidate": candidate, "median_us": time_us, "status": "ok",
            "config": "some"} | more  # fmt: skip


def test_every_neighbour_is_read_and_stored_by_tma(script: ModuleType) -> None:
    problems = script.problems()
    aligned = [problem for problem in problems if all(size % 16 == 0 for size in (problem.m, problem.n, problem.k))]
    assert all(not problem.repacked and problem.out_through_tma for problem in aligned)
    others = [problem for problem in problems if problem not in aligned]
    assert len(others) == len(script.TARGETS) + len(script.SWEEP)
    assert all(problem.repacked or not problem.out_through_tma for problem in others)


def test_a_line_holds_the_ratio_to_the_neighbour_and_to_cublas(script: ModuleType) -> None:
    shape, beside = (4095, 4095, 4095), (4096, 4096, 4096)
    rows = [row(shape, "tilewright", 220.0), row(shape, "cublas", 1100.0), row(beside, "tilewright", 200.0)]
    rows.append(row(shape, "repack", 30.0, kind="repack", moved_gbps=4000.0))
    head, line, *rest = script.table(rows)
    assert head.split()[:3] == ["m", "x", "n"]
    assert line.split()[:7] == ["4095x4095x4095", "220.0", "30.0", "4000", "200.0", "1.100", "1100.0"]
    assert "5.00x" in line
    assert all("no time" in other for other in rest)


def test_wrong_cases_and_children_that_died_are_named(script: ModuleType) -> None:
    rows = [
        {"kind": "check", "case": "one", "status": "ok", "why": ""},
        {"kind": "check", "case": "two", "status": "wrong", "why": "3 of 4"},
        {"kind": "child", "part": "check", "status": "exit -11", "why": "a fault"},
    ]
    assert script.table(rows) == ["1 of 2 cases right", "  wrong: two: 3 of 4", "check: exit -11: a fault"]


def test_what_is_varied_is_copied_and_each_way_to_copy_is_built_once(script: ModuleType) -> None:
    assert all(packed(*shape, padded=False).repacked for shape in script.VARIED)
    assert set(script.VARIED) <= {*script.TARGETS, *script.SWEEP}
    names = [unit.name for unit in script.sources()]
    cuts = {(cut.chunks, cut.strip, cut.ctas_per_sm) for cut in script.CUTS}
    assert names.count("repack") == len(cuts)
    assert sum("dependent" in name for name in names) > len(script.VARIED)


def test_a_line_of_a_variant_has_its_time_and_of_a_copy_its_rate(script: ModuleType) -> None:
    shape = (1023, 1023, 1023)
    rows = [
        row(shape, "repack 4 chunks", 4.0, kind="variant", moved_gbps=2100.0),
        row(shape, "dependent", 14.0, kind="variant"),
    ]
    first, second = (line.split() for line in script.table(rows))
    assert first == ["1023x1023x1023", "repack", "4", "chunks", "4.00", "us", "2100", "GB/s"]
    assert second == ["1023x1023x1023", "dependent", "14.00", "us"]


def test_a_pair_has_its_ratio_and_its_quartiles_the_right_way_round(script: ModuleType) -> None:
    pair = [
        row((4095, 4095, 4095), "neighbour", 180.0, kind="pair", ratio=None),
        row((4095, 4095, 4095), "tilewright", 200.0, kind="pair", ratio=0.8, ratio_lower=0.625, ratio_upper=1.0),
    ]
    assert script.table(pair) == ["4095x4095x4095 1.250 times the neighbour [1.000 1.600] in one round"]


def test_what_is_written_has_facts_with_the_command_and_the_rows_of_every_part_in_order(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_part(part: str, _limit_s: float) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        if part == "facts":
            return [{"device": "NVIDIA H200", "compiler": "nvrtc 13"}], None
        failed = {"kind": "child", "part": part, "status": "exit 1", "why": "a fault"} if part == "variants" else None
        return [{"kind": part, "case": "one", "status": "ok", "why": ""}], failed

    monkeypatch.setattr(script, "run_part", run_part)
    monkeypatch.setattr(script, "table", lambda rows: [str(len(rows))])
    words = ["--variants", "--check", "--into", str(tmp_path / "new" / "unaligned.json")]
    assert script.main(words) == 1
    content = json.loads((tmp_path / "new" / "unaligned.json").read_text())
    command = " ".join(["benchmarks/unaligned.py", *words])
    assert content["facts"] == {"device": "NVIDIA H200", "compiler": "nvrtc 13", "command": command}
    assert [row["kind"] for row in content["rows"]] == ["check", "variants", "child"]


def test_a_machine_that_cannot_be_asked_is_told_in_the_facts(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {"kind": "child", "part": "facts", "status": "exit 1", "why": "no driver"}
    monkeypatch.setattr(script, "run_part", lambda *_: ([], failed))
    facts = script.content(["--check"], [])["facts"]
    assert facts == {"status": "exit 1", "why": "no driver", "command": "benchmarks/unaligned.py --check"}
