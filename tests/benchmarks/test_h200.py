"""The host logic of benchmarks/h200.py: what it asks of children and what it makes of their rows."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.bench import check_report, repeats, report, suite
from tilewright.bench.cases import FORMS
from tilewright.config import Config
from tilewright.device import preset
from tilewright.errors import ConfigError
from tilewright.kernels.ladder import RUNGS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "h200.py"


@pytest.fixture(scope="module")
def h200() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_h200", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(h200: ModuleType, *words: str) -> argparse.Namespace:
    return h200.parser().parse_args(words)  # type: ignore[no-any-return]


def test_config_survives_the_way_to_a_child(h200: ModuleType) -> None:
    config = Config(tile_m=256, tile_n=192, stages=3, cluster_m=2, schedule="linear")
    assert h200.configs_of(h200.as_words(config), preset("h200")) == [config]


def test_empty_text_is_the_default_config_and_all_is_the_production_space(h200: ModuleType) -> None:
    assert h200.configs_of("", preset("h200")) == [Config()]
    found = h200.configs_of("all", preset("h200"))
    assert len(found) == len(set(found)) > 10
    assert {config.cluster_m for config in found} == {1, 2}


def test_unknown_key_of_a_config_is_refused_by_name(h200: ModuleType) -> None:
    with pytest.raises(ConfigError, match="tile is no field"):
        h200.configs_of("tile=128", preset("h200"))


def test_shapes_are_sizes_groups_or_all(h200: ModuleType) -> None:
    assert h200.shapes_of("64x32x16,tiny") == [(64, 32, 16), *suite.GROUPS["tiny"]]
    assert h200.shapes_of("all") == list(suite.shapes())


def test_case_that_never_ended_is_named_with_the_childs_end(h200: ModuleType) -> None:
    rows = [{"case": "a", "status": "begun"}, {"case": "a", "status": "ok"}, {"case": "b", "status": "begun"}]
    assert h200.settled(rows, "stopped after 60 s") == [rows[1], {"case": "b", "status": "stopped after 60 s"}]
    assert h200.settled(rows[:2], "ok") == [rows[1]]


def test_child_that_hangs_is_stopped_and_its_rows_are_kept(
    h200: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        "import json, sys, threading\n"
        "with open(sys.argv[sys.argv.index('--log') + 1], 'w') as file:\n"
        "    for row in ({'case': 'a', 'status': 'ok'}, {'case': 'b', 'status': 'begun'}):\n"
        "        file.write(json.dumps(row) + '\\n')\n"
        "threading.Event().wait()\n"
    )
    monkeypatch.setattr(h200, "__file__", str(script))
    rows, status, _ = h200.run_child(["--child", "check"], 1.0)
    assert status == "stopped after 1 s"
    assert rows == [{"case": "a", "status": "ok"}, {"case": "b", "status": "stopped after 1 s"}]


def test_child_that_dies_is_reported_with_its_exit_and_output(
    h200: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text("import os, signal, sys\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGABRT)\n")
    monkeypatch.setattr(h200, "__file__", str(script))
    rows, status, output = h200.run_child(["--child", "check"], 30.0)
    assert (rows, status) == ([], "exit -6")
    assert "last words" in output


def test_checking_part_runs_a_child_a_config_and_names_the_one_that_failed(
    h200: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def child(words: list[str], limit_s: float) -> tuple[list[dict[str, Any]], str, str]:
        asked.append(words)
        return [{"status": "ok", "config": "c", "worst": 0.1}], "ok" if len(asked) == 1 else "exit -11", "trace"

    monkeypatch.setattr(h200, "run_child", child)
    rows = h200.check_part(options(h200, "--configs", "stages=3;stages=4", "--jobs", "1"))
    assert len(asked) == 2
    assert [row["status"] for row in rows] == ["ok", "ok", "exit -11"]
    assert rows[2]["config"] == str(Config(stages=4))


def test_sanitizer_rows_carry_the_tools_own_summary(h200: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def child(words: list[str], limit_s: float, prefix: list[str]) -> tuple[list[dict[str, Any]], str, str]:
        tool = prefix[2]
        last = "RACECHECK SUMMARY: 0 hazards displayed" if tool == "racecheck" else "ERROR SUMMARY: 0 errors"
        return [{"status": "ok"}], "ok", f"========= COMPUTE-SANITIZER\n========= {last}\n"

    monkeypatch.setattr(h200, "run_child", child)
    rows = h200.sanitize_part(options(h200, "--configs", "stages=3"))
    assert [row["tool"] for row in rows] == ["memcheck", "racecheck", "synccheck"]
    assert {row["config"] for row in rows} == {str(Config(stages=3))}
    assert rows[1]["summary"] == "RACECHECK SUMMARY: 0 hazards displayed"
    assert {row["wrong"] for row in rows} == {0}
    assert "0 wrong of 1, 0 reports" in h200.lines_of("sanitize", rows)[1]


def test_every_target_reaches_a_child_that_can_read_it(h200: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, argparse.Namespace]] = []

    def child(words: list[str], limit_s: float, prefix: list[str]) -> tuple[list[dict[str, Any]], str, str]:
        asked.append((prefix[2], h200.parser().parse_args(words)))
        return [], "ok", ""

    monkeypatch.setattr(h200, "run_child", child)
    rows = h200.sanitize_part(options(h200))
    assert len(rows) == len(asked) == (1 + len(FORMS)) * 3 + len(RUNGS)
    assert {given.rung for tool, given in asked if tool == "racecheck"} == {"", *(rung.name for rung in RUNGS)}
    assert not any(given.rung for tool, given in asked if tool != "racecheck")
    configs = [h200.configs_of(given.configs, preset("h200"))[0] for _, given in asked if not given.rung]
    assert set(configs) == {Config(), *FORMS.values()}


def test_a_build_has_the_kernels_of_the_named_parts_and_of_no_other(
    h200: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[Any] = []
    monkeypatch.setattr("tilewright.jit.build.build_into", lambda sources, folder: built.append(sources))
    counts = []
    for part in (["--sanitize"], ["--repeats"], ["--sanitize", "--repeats"], []):
        counts.append(h200.build_part(options(h200, "--build", str(tmp_path), *part)))
    assert [len(sources) for sources in built] == counts
    assert max(counts[:2]) < counts[2] < counts[0] + counts[1] < counts[3]
    assert {source.entry for source in built[0]} == {"hopper_gemm", *(rung.name for rung in RUNGS)}


def test_repeats_run_a_child_a_group_and_one_that_dies_is_a_row(
    h200: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def child(words: list[str], limit_s: float) -> tuple[list[dict[str, Any]], str, str]:
        asked.append(h200.parser().parse_args(words).groups)
        row = {"status": "ok", "case": "8192x8192x8192", "config": "c", "repeats": 100, "differing": 0}
        return [row | {"worst": 0.2, "seconds": 1.0}], "ok" if len(asked) > 1 else "exit -11", "trace"

    monkeypatch.setattr(h200, "run_child", child)
    rows = h200.repeats_part(options(h200))
    assert asked == list(repeats.groups())
    assert [row["status"] for row in rows[:3]] == ["ok", "exit -11", "ok"]
    lines = h200.lines_of("repeats", rows)
    assert "100 repeats, 0 differ" in lines[1]
    assert lines[2].startswith("model")
    assert "exit -11: trace" in lines[2]


def test_missing_sanitizer_is_a_row_and_no_failure_of_the_rest(
    h200: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    [status] = {row["status"].split(":")[0] for row in h200.sanitize_part(options(h200))}
    assert status == "not run"


def check_row(**changes: Any) -> dict[str, Any]:
    row = {"kind": "check", "config": "c", "case": "64x64x64", "m": 64, "n": 64, "k": 64, "data": "integer"}
    row |= {"dtype": "bf16", "out_dtype": "bf16", "b_major": "k"}
    return row | {"status": "ok", "worst": 0.25, "elements": 4096, "wrong": 0} | changes


def test_table_of_checks_shows_what_failed(h200: ModuleType) -> None:
    rows = [check_row(), check_row(status="skipped"), check_row(status="wrong", worst=2.0, wrong=7, case="bad one")]
    lines = h200.lines_of("check", rows)
    assert lines[1].split()[:8] == ["c", "2", "ran", "1", "skipped", "1", "bad,", "worst"]
    assert "wrong: bad one" in lines[2]


def test_the_search_for_the_tuned_baseline_reaches_the_timing_child(
    h200: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def child(words: list[str], limit_s: float) -> tuple[list[dict[str, Any]], str, str]:
        asked.append(words)
        return [], "ok", ""

    monkeypatch.setattr(h200, "run_child", child)
    h200.single_part("time", options(h200, "--tuned", "--tune-s", "5", "--tuned-from", "rows.json"))
    h200.single_part("time", options(h200))
    parsed = h200.parser().parse_args(asked[0])
    assert (parsed.tuned, parsed.tune_s, parsed.tuned_from) == (True, 5.0, Path("rows.json"))
    assert "--tuned" not in asked[1]


def test_a_timed_row_says_how_many_algorithms_were_tried_and_the_ratio_to_the_best(h200: ModuleType) -> None:
    row = {
        "m": 1, "n": 2, "k": 3, "mode": "steady", "median_us": 9.0, "rate_tflops": 600.0, "ratio": 1.05,
        "ratio_lower": 1.0, "ratio_upper": 1.1, "watts": None, "clock_mhz": None, "captured": True, "status": "ok",
        "candidate": "cublaslt", "config": "176x128", "ratio_tuned": 1.0,
        "tuned": {"tried": 40, "offered": 50, "seconds": 19.6},
    }  # fmt: skip
    line = h200.lines_of("time", [row])[1]
    assert "1.000 of tuned" in line
    assert line.endswith("cublaslt 176x128, best of 40 of 50 in 20 s")


def test_table_of_every_part_takes_a_row_of_a_child_that_died(h200: ModuleType) -> None:
    for part in ("time", "host"):
        assert "exit -11" in h200.lines_of(part, [{"kind": "child", "status": "exit -11", "why": "trace"}])[1]


def test_written_rows_are_what_the_report_reads(h200: ModuleType, tmp_path: Path) -> None:
    h200.write(tmp_path, "check", [check_row()], {"device": "NVIDIA H200"})
    [row] = report.read_rows([tmp_path / "check.json"])
    assert (row["device"], row["worst"]) == ("NVIDIA H200", 0.25)
    assert "| c | 1 | 1 | 4,096 | 1 | 0 | 0.250 |" in check_report.check_table([row])
    assert json.loads((tmp_path / "check.json").read_text())["facts"]["command"].startswith("benchmarks/h200.py")


def test_script_says_what_is_missing_where_there_is_no_gpu(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings")
    spec = importlib.util.spec_from_file_location("benchmark_h200_child", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    rows, status, output = module.run_child(["--child", "facts"], 60.0)
    if status == "ok":
        pytest.skip("this machine has a GPU")
    assert rows == []
    assert "DriverError" in output
