"""benchmarks/candidates.py: legal configs for the shapes it names, what it builds, and what its table says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.device import preset
from tilewright.kernels.hopper import HOPPER
from tilewright.legality import CLUSTERS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "candidates.py"
H200 = preset("h200")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("candidates_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidates_script"] = module
    spec.loader.exec_module(module)
    return module


def row(candidate: str, time_us: float | None, **more: Any) -> dict[str, Any]:
    return (
        {"kind": "candidate", "m": 8, "n": 8, "k": 8, "candidate": candidate, "status": "ok"}
        | ({} if time_us is None else {"median_us": time_us, "ratio": 10.0 / time_us})
        | more
    )


def test_every_candidate_is_legal_and_all_of_a_shape_are_different(script: ModuleType) -> None:
    for shape, given in script.CANDIDATES.items():
        found = script.configs_of(shape, H200)
        assert 5 <= len(found) == len(given) <= 12, shape
        for config in found:
            assert HOPPER.launch(script.problem_of(shape), config, H200).grid % config.cluster == 0


def test_every_form_of_cluster_is_checked_on_edges_panels_and_batches(script: ModuleType) -> None:
    pairs = script.checked()
    assert {(config.cluster_m, config.cluster_n) for config, _ in pairs} >= set(CLUSTERS) - {(1, 1), (1, 2)}
    for wanted in (lambda p: p.batch, lambda p: p.b_major == "n", lambda p: p.a_major == "m", lambda p: p.n % 8):
        assert any(wanted(problem) and config.shares_both for config, problem in pairs)


def test_what_is_built_has_the_shipped_choice_the_model_s_and_all_candidates(script: ModuleType) -> None:
    shape = (16, 28672, 4096)
    names = {unit.name for unit in script.sources([shape])}
    assert sum("_c4x1_" in name for name in names) >= 3
    checks = {(str(config), str(problem)) for config, problem in script.checked()}
    assert len(names) > len(script.configs_of(shape, H200)) + len({config for config, _ in checks})


def test_a_shape_without_candidates_is_refused(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(["--shapes", "9x9x9"])
    assert ended.value.code == 2
    assert "there are no candidates of this shape" in " ".join(capsys.readouterr().err.split())


def test_the_table_has_the_fastest_first_beside_the_shipped_choice(script: ModuleType) -> None:
    rows = [
        row("cublas", 10.0),
        row("tilewright", 8.0, config="shipped one"),
        row("tilewright 64x64", 5.0, config="64x64"),
        row("tilewright 128x64", None, status="refused", why="no"),
    ]
    assert script.table(rows) == [
        "8x8x8",
        "       5.00 us  1.600 of shipped  2.000 of cuBLAS  ok tilewright 64x64",
        "       8.00 us  1.000 of shipped  1.250 of cuBLAS  ok tilewright shipped one",
        "      10.00 us  0.800 of shipped  1.000 of cuBLAS  ok cublas",
        "          -  refused: tilewright 128x64: no",
    ]


def test_a_check_that_was_begun_and_never_ended_is_lost(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"kind": "check", "config": "c", "case": "p"}
    failed = {"kind": "child", "part": "check", "status": "exit 1", "why": "a fault"}
    rows = [about | {"status": "begun"}, about | {"status": "ok"}, about | {"case": "q", "status": "begun"}]
    monkeypatch.setattr(script, "run_child", lambda *_: (rows, failed))
    assert [row["status"] for row in script.check()] == ["ok", "lost", "exit 1"]
    assert script.table(script.check())[0] == "1 of 2 checks right"


def test_a_shape_that_ends_its_child_is_lost_and_the_next_goes_on(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One file, with the machine's facts and the rows of all children."""
    asked = []

    def run_child(part: str, words: list[str], limit_s: float) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        asked.append(words[1])
        facts = {"kind": "facts", "status": "ok", "device": "NVIDIA H200"}
        if len(asked) == 1:
            m, n, k = map(int, words[1].split(",")[0].split("x"))
            done = row("tilewright", 8.0) | {"m": m, "n": n, "k": k}
            return [facts, done], {"kind": "child", "part": part, "status": "exit -11", "why": "a fault"}
        return [facts], None

    monkeypatch.setattr(script, "run_child", run_child)
    into = tmp_path / "new" / "candidates.json"
    assert script.main(["--time", "--shapes", "1000x1000x1000,512x512x512,128x128x128", "--into", str(into)]) == 1
    assert asked == ["1000x1000x1000,512x512x512,128x128x128", "128x128x128"]
    content = json.loads(into.read_text())
    assert content["facts"]["device"] == "NVIDIA H200"
    assert [(each["kind"], each.get("shape")) for each in content["rows"]] == [
        ("candidate", None), ("child", "512x512x512")
    ]  # fmt: skip
    assert list(into.parent.iterdir()) == [into]
