"""bench/script.py: the command line of scripts with parts, by a script that measures nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tilewright.bench.script import main_of_parts


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
