"""bench/script.py: the command line of scripts with parts, by a script that measures nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tilewright.bench.script import facts_of_part, main_of_parts, rows_of_part, rows_of_parts


def run(words: Sequence[str], status: str = "ok", **more: Any) -> int:
    return main_of_parts(
        words,
        about="A script.",
        parts=("check", "time"),
        rows={"check": lambda: iter([{"part": "check"}])},
        sources=lambda options: [],
        content=lambda said, parts: {"facts": {"command": " ".join(said)}, "rows": [{"of": parts, "status": status}]},
        table=lambda rows: [f"{len(rows)} rows"],
        **more,
    )


def test_the_parts_that_are_named_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--time", "--into", str(tmp_path / "new" / "rows.json")]
    assert run(words) == 0
    assert capsys.readouterr().out == "1 rows\n"
    written = json.loads((tmp_path / "new" / "rows.json").read_text())
    assert written == {"facts": {"command": " ".join(words)}, "rows": [{"of": ["time"], "status": "ok"}]}


def test_a_row_that_is_not_fine_makes_the_command_fail_and_is_written_all_the_same(tmp_path: Path) -> None:
    assert run(["--check", "--into", str(tmp_path / "rows.json")], status="exit 3") == 1
    assert (tmp_path / "rows.json").exists()
    assert run(["--check"], status="refused", fine=("ok", "refused")) == 0


def test_a_child_writes_its_rows_to_the_log(tmp_path: Path) -> None:
    assert run(["--child", "check", "--log", str(tmp_path / "log")]) == 0
    assert json.loads((tmp_path / "log").read_text()) == {"part": "check"}


def test_a_command_without_a_part_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run([])
    assert "name what to do: --build, --check, --time" in capsys.readouterr().err


def test_a_part_runs_as_a_child_of_its_script_and_says_how_it_ended(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "assert sys.argv[1] == '--child' and sys.argv[3] == '--log'\n"
        "open(sys.argv[4], 'w').write('{\"a\": 1}\\n')\n"
        "sys.exit(3 if sys.argv[2] == 'time' else 0)\n"
    )
    assert rows_of_part(str(script), "check", 20.0) == ([{"a": 1}], None)
    rows, failed = rows_of_part(str(script), "time", 20.0)
    assert rows == [{"a": 1}]
    assert failed is not None
    assert (failed["kind"], failed["part"], failed["status"]) == ("child", "time", "exit 3")


def test_rows_of_parts_end_each_with_how_it_failed_and_facts_fall_back_to_that() -> None:
    failed = {"kind": "child", "part": "time", "status": "exit 3", "why": "hung"}
    ran = []

    def run_one(part: str, limit_s: float) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        ran.append((part, limit_s))
        return [{"of": part}], failed if part == "time" else None

    assert rows_of_parts(run_one, ("check", "time"), {"check": 5.0, "time": 7.0}) == [
        {"of": "check"},
        {"of": "time"},
        failed,
    ]
    assert ran == [("check", 5.0), ("time", 7.0)]
    assert facts_of_part(run_one, 3.0) == {"of": "facts"}
    assert facts_of_part(lambda *_: ([], failed), 3.0) == {"status": "exit 3", "why": "hung"}
    assert facts_of_part(lambda *_: ([], None), 3.0) == {}
