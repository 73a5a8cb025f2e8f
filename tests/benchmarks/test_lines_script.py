"""benchmarks/lines.py: what it builds, lines measured on a pretended GPU, and what is left when a child ends."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fakes import FakeCompiler, HostBackend
from simulated_machine import SimulatedMachine
from tilewright.bench.neighbours import Line
from tilewright.device import preset
from tilewright.errors import CompileError

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "lines.py"
KEYS = ["4096x2040..2072x4096", "4096x4096x8184..8200", "1..64x4096x4096", "1..64x6144x4096"]
SIZES = ((16, 64, 95), (16, 64, 96), (16, 64, 97))  # the first and the last are copied first
LINE = Line(2, SIZES, (0.0,) * 3)


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lines_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lines_script"] = module
    spec.loader.exec_module(module)
    return module


def row(line: str, size: tuple[int, int, int] = (1, 2, 3), **more: Any) -> dict[str, Any]:
    m, n, k = size
    return {"kind": "line", "line": line, "m": m, "n": n, "k": k, "status": "ok"} | more


# -- which lines -------------------------------------------------------------------------------------------------------


def test_lines_are_those_of_the_suites_sweeps_by_sweep_or_by_key_each_once(script: ModuleType) -> None:
    assert [line.key for line in script.lines_of("neighbours,decode")] == KEYS
    assert [line.key for line in script.lines_of(f"{KEYS[2]},neighbours,{KEYS[2]}")] == [KEYS[2], *KEYS[:2]]


def test_an_unknown_line_is_refused_with_those_that_there_are(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(["--lines", "1..9x1x1"])
    assert ended.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "the line '1..9x1x1'" in message
    assert all(key in message for key in KEYS)


def test_what_is_built_is_each_kernel_of_a_line_once_with_its_copies(script: ModuleType) -> None:
    assert [unit.name.split("_")[0] for unit in script.sources([LINE])] == ["repack", "hopper", "hopper"]  # dependent


# -- a line on a pretended GPU -----------------------------------------------------------------------------------------


class Launches(HostBackend):
    """A GPU in host memory where each launch takes 100 us of simulated time; all that counts is captured."""

    clock: SimulatedMachine

    def launch(self, call: Any, stream: int) -> None:
        if self.clock._capturing is None:
            super().launch(call, stream)
        self.clock.work(call.kernel.name, 100.0)(0)


@pytest.fixture
def cuda(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Launches:
    pytest.importorskip("torch")
    cuda = Launches(devices=(dataclasses.replace(preset("h200"), l2_bytes=8 << 10),))
    cuda.clock = SimulatedMachine()
    cuda.clock.stream = 7  # type: ignore[attr-defined]

    @contextmanager
    def opened(*_: Any) -> Iterator[SimulatedMachine]:
        yield cuda.clock

    monkeypatch.setattr(script, "backend", lambda: cuda)
    monkeypatch.setattr(script, "CudaMachine", opened)
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    return cuda


def test_each_size_is_checked_and_timed_in_one_measurement(script: ModuleType, cuda: Launches) -> None:
    rows = list(script.line_rows(LINE, rounds=3, memory="cpu"))
    assert [(row["m"], row["n"], row["k"]) for row in rows] == list(SIZES)
    assert [(row["status"], row["launches"]) for row in rows] == [("ok", 2), ("ok", 1), ("ok", 2)]
    assert [row["median_us"] for row in rows] == [200.0, 100.0, 200.0]
    assert {(row["kind"], row["line"], row["rounds"], row["is_cold"]) for row in rows} == {
        ("line", "16x64x95..97", 3, True)
    }
    assert all(0 < row["error_over_bound"] <= 1 for row in rows)
    assert cuda.clock.log.count("flush") == 3 * (1 + 3)  # all columns in each round, one of which is thrown away
    assert json.loads(json.dumps(rows)) == rows


def test_a_wrong_size_says_so_and_has_its_time(
    script: ModuleType, cuda: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "computes", False)
    rows = list(script.line_rows(LINE, rounds=1, memory="cpu"))
    assert {row["status"] for row in rows} == {"wrong"}
    assert all("1024 not written" in row["why"] and row["median_us"] > 0 for row in rows)


def test_a_size_that_does_not_compile_costs_itself(
    script: ModuleType, cuda: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = FakeCompiler()

    def build(source: Any, *, refuse: bool = False) -> Any:
        if source.name.startswith("repack"):
            raise CompileError("repack", "it spills", "", "")
        return compiler(source, refuse=refuse)

    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", build)
    first, second, third = script.line_rows(LINE, rounds=1, memory="cpu")
    assert (first["status"], second["status"], third["status"]) == ("refused", "ok", "refused")
    assert first["why"].startswith("CompileError: ")
    assert "median_us" not in first


# -- the parent --------------------------------------------------------------------------------------------------------


def test_a_line_that_ends_its_child_is_left_and_the_next_child_goes_on_behind_it(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = script.lines_of("neighbours,decode")
    asked: list[list[str]] = []

    def run_child(left: list[Line], _rounds: int) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        asked.append([line.key for line in left])
        if len(left) == 4:
            return [row(KEYS[0])], {"kind": "child", "line": "all", "status": "exit -11", "why": "a fault"}
        return [row(line.key) for line in left], None

    monkeypatch.setattr(script, "run_child", run_child)
    rows = script.measured(chosen, 7)
    assert asked == [KEYS, KEYS[2:]]
    assert [(each["kind"], each["line"]) for each in rows] == [
        ("line", KEYS[0]), ("child", KEYS[1]), ("line", KEYS[2]), ("line", KEYS[3])
    ]  # fmt: skip


def test_a_child_that_does_not_begin_ends_the_run_and_one_that_fails_in_every_line_too(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {"kind": "child", "line": "all", "status": "exit 1", "why": "no driver"}
    chosen, facts = script.lines_of("decode"), {"kind": "facts", "status": "ok"}
    monkeypatch.setattr(script, "run_child", lambda left, _: ([], failed))
    assert script.measured(chosen, 7) == [failed]
    monkeypatch.setattr(script, "run_child", lambda left, _: ([facts], failed))
    assert [each["line"] for each in script.measured(chosen, 7) if each["kind"] == "child"] == KEYS[2:]


def test_a_child_that_fails_behind_its_last_line_is_told_and_not_begun_again(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {"kind": "child", "line": "both", "status": "exit 1", "why": "x"}
    monkeypatch.setattr(script, "run_child", lambda left, _: ([row(line.key) for line in left], failed))
    assert [each["line"] for each in script.measured(script.lines_of("decode"), 7)] == [*KEYS[2:], "both"]


def test_a_childs_command_line_is_one_that_the_script_reads(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[tuple[list[str], float]] = []

    def rows_of_command(command: list[str], limit_s: float, about: dict[str, Any]) -> Any:
        commands.append((command, limit_s))
        return [], None

    monkeypatch.setattr(script, "rows_of_command", rows_of_command)
    script.run_child(script.lines_of("decode"), 5)
    ((_, path, *words), limit_s), *_ = commands
    assert Path(path) == SCRIPT
    assert limit_s == script.START_LIMIT_S + 2 * script.LINE_LIMIT_S
    asked: list[Any] = []
    monkeypatch.setattr(script, "child_rows", lambda *given: asked.append(given) or [])
    assert script.main([*words, "--log", str(tmp_path / "log")]) == 0
    assert [([line.key for line in chosen], rounds) for chosen, rounds in asked] == [(KEYS[2:], 5)]


def test_what_is_written_has_facts_with_the_command_the_rows_and_a_picture(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    facts = {"kind": "facts", "status": "ok", "device": "NVIDIA H200", "date": "2026-12-01"}
    times = {"lower_us": 9.0, "upper_us": 11.0, "spread": 0.2, "config": "c"}
    rows = [row("l", (m, 8, 8), median_us=10.0 if m != 2 else 15.0, **times) for m in (1, 2, 3)]
    failed = {"kind": "child", "line": KEYS[0], "status": "exit 1", "why": "a fault"}
    monkeypatch.setattr(script, "measured", lambda chosen, rounds: [facts, *rows, failed])
    words = ["--lines", "decode", "--into", str(tmp_path / "new" / "lines.json")]
    assert script.main(words) == 1
    content = json.loads((tmp_path / "new" / "lines.json").read_text())
    assert content["facts"] == {"device": "NVIDIA H200", "date": "2026-12-01"} | {
        "command": " ".join(["benchmarks/lines.py", *words])
    }
    assert content["rows"] == [*rows, failed]
    head, line, last = capsys.readouterr().out.splitlines()
    assert head.startswith("M, N, K")
    assert line.split()[:10] == ["1", "..", "3,", "8,", "8", "3", "10.0", "..", "15.0", "1.500"]
    assert last == f"{KEYS[0]}: exit 1: a fault"
    assert "<svg" in (tmp_path / "new" / "lines.svg").read_text()
