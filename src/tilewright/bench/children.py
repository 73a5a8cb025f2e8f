"""Child processes with a time limit, and the rows that they write: one JSON line a row, on disk before the next begins.

What measures on a GPU runs in a child, so that a kernel that hangs or faults costs its own part. Knows nothing of what
is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError

Row = dict[str, Any]

KEPT_OUTPUT = 2000  # characters of a child's last words that a row keeps


def run_limited(command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """The exit status of a command, None when it was stopped, and its output. What it started is stopped with it.

    Raises: OSError: there is no such program.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        kill(process)
        output, _ = process.communicate()
        return None, output
    except BaseException:  # Ctrl-C reaches this session alone, not the child's
        kill(process)
        raise
    return process.returncode, output


def kill(process: subprocess.Popen[Any]) -> None:
    """Ends a child that began a session of its own, and what it started. The caller waits for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the child's own session: a profiler and the program under it


def rows_of(log: Path) -> list[Row]:
    """The rows that a child wrote; a last line that was cut off is none."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def rows_of_command(command: Sequence[str], limit_s: float, about: Row) -> tuple[list[Row], Row | None]:
    """The rows that a command wrote as a child, and how it ended, where that was not well.

    `about` is what that row says of itself. The child gets `--log FILE` behind its words.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "rows.jsonl"
        code, output = run_limited([*command, "--log", str(log)], limit_s)
        rows = rows_of(log)
    if code == 0:
        return rows, None
    status = f"stopped after {limit_s:.0f} s" if code is None else f"exit {code}"
    return rows, about | {"status": status, "why": output[-KEPT_OUTPUT:]}


def rows_of_module(module: str, words: Sequence[str], limit_s: float, about: Row) -> list[Row]:
    """The rows that a module of the package wrote as a child; how it ended, where that was not well, is one more."""
    rows, failed = rows_of_command([sys.executable, "-m", module, *words], limit_s, about)
    return rows if failed is None else [*rows, failed]


def write_rows(rows: Iterable[Row], log: Path) -> int:
    """In a child: each row to the log as it comes. 1 when a typed error ended them, which is printed."""
    try:
        for row in rows:
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")
    except TilewrightError as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    return 0
