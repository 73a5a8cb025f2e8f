"""bench/children.py: a child ends with its limit, its rows are kept, and how it ended is a row."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright.bench import children
from tilewright.errors import DriverError


def test_a_child_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        f"open({str(pids)!r}, 'w').write(str(child.pid))\n"
        "print('said', flush=True)\n"
        "child.wait()\n"
    )
    code_, output = children.run_limited([sys.executable, "-c", code], 2.0)
    assert code_ is None
    assert output == "said\n"
    try:
        grandchild = os.pidfd_open(int(pids.read_text()))
    except ProcessLookupError:
        return  # gone, and buried by its new parent
    assert select.select([grandchild], [], [], 30.0)[0], "it outlived its parent"  # readable once it has ended
    os.close(grandchild)


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        children.run_limited(["no-such-program"], 1.0)


def test_a_cut_off_line_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"a": 1}\n{"b": ')
    assert children.rows_of(tmp_path / "log") == [{"a": 1}]
    assert children.rows_of(tmp_path / "none") == []


def test_rows_of_a_child_are_kept_and_its_bad_end_is_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: dict[int | None, str] = {0: "", 3: "exit 3", -11: "exit -11", None: "stopped after 7 s"}
    left = list(ends)

    def run(command: list[str], limit_s: float) -> tuple[int | None, str]:
        assert command[:4] == [sys.executable, "-m", "a.module", "word"]
        Path(command[-1]).write_text('{"status": "ok"}\n')
        return left.pop(0), "x" * 5000 + "last words"

    monkeypatch.setattr(children, "run_limited", run)
    for status in ends.values():
        rows = children.rows_of_module("a.module", ["word"], 7.0, {"kind": "k"})
        assert rows[0] == {"status": "ok"}
        assert [(row["kind"], row["status"]) for row in rows[1:]] == ([("k", status)] if status else [])
        assert all(row["why"].endswith("last words") and len(row["why"]) == children.KEPT_OUTPUT for row in rows[1:])


def test_a_typed_error_ends_the_rows_of_a_child_and_is_printed(tmp_path: Path, capsys: Any) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"a": 1}
        raise DriverError("cuInit", "gone", "nothing", "0")

    assert children.write_rows(rows(), tmp_path / "log") == 1
    assert [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()] == [{"a": 1}]
    assert capsys.readouterr().out.startswith("DriverError: ")
    assert children.write_rows(iter([{"b": 2}]), tmp_path / "log") == 0
    assert children.rows_of(tmp_path / "log") == [{"a": 1}, {"b": 2}]
