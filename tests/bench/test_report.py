"""Rows -> tables -> a document's blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.bench import report

FACTS = {"device": "NVIDIA H200", "driver_cuda": "13.0", "torch": "2.11.0", "date": "2026-11-30", "commit": "abc"}
PROBLEM = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", "out_dtype": "bf16", "b_major": "k"}


def timed(candidate: str, rate: float, ratio: float | None) -> dict[str, Any]:
    return {
        "kind": "time",
        **PROBLEM,
        "mode": "steady",
        "candidate": candidate,
        "rate_tflops": rate,
        "ratio": ratio,
        "ratio_lower": ratio,
        "ratio_upper": ratio,
        "watts": 700.4,
        "clock_mhz": None,
        "config": None if ratio is None else "128x256x64",
        "compiler": None if ratio is None else "nvrtc 13.5.37",
    }


ROWS = [FACTS | timed("cublas", 628.0, None), FACTS | timed("tilewright", 650.4, 1.036)]


def test_time_table_has_one_line_a_candidate_beside_its_baseline() -> None:
    table = report.time_table(ROWS)
    line = "| 4096, 4096, 4096 | bf16 TN | steady | 628 | 650 | **1.036** | 1.036 .. 1.036 | 700 | - | 128x256x64 |"
    assert line in table.splitlines()
    assert "NVIDIA H200, driver for CUDA 13.0, torch 2.11.0, nvrtc 13.5.37, 2026-11-30, commit abc" in table


def test_check_table_counts_what_failed() -> None:
    base = FACTS | {"kind": "check", "config": "c", "m": 1, "n": 8, "k": 8, "elements": 8, "data": "integer"}
    rows = [
        base | {"status": "ok", "worst": 0.25},
        base | {"status": "wrong", "worst": 3.0},
        base | {"status": "skipped"},
    ]
    assert "| c | 2 | 1 | 16 | 2 | 1 | 3.000 |" in report.check_table(rows).splitlines()


def test_host_table_has_a_column_a_problem() -> None:
    rows = [FACTS | {"kind": "host", "m": m, "n": 8, "k": 8, "way": "plan.run", "median_us": m / 10} for m in (64, 128)]
    assert "| `plan.run` | 6.4 | 12.8 |" in report.host_table(rows).splitlines()


def test_no_rows_make_a_table_that_says_so() -> None:
    assert {table([]) for table in report.TABLES.values()} == {"_No rows._\n"}


def test_only_what_lies_between_markers_is_replaced() -> None:
    document = "before\n<!-- table: time -->\nold\n<!-- end: time -->\nafter\n"
    filled = report.filled(document, ROWS)
    assert filled.startswith("before\n<!-- table: time -->\n| M, N, K |")
    assert filled.endswith("<!-- end: time -->\nafter\n")
    assert "old" not in filled
    assert report.filled(filled, ROWS) == filled


def test_unknown_table_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'speed' is none of time, check, host"):
        report.filled("<!-- table: speed -->\n<!-- end: speed -->\n", [])


def test_command_brings_a_document_up_to_date_and_check_says_whether_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, rows = tmp_path / "README.md", tmp_path / "rows"
    document.write_text("<!-- table: time -->\n<!-- end: time -->\n")
    rows.mkdir()
    (rows / "time.json").write_text(json.dumps({"facts": FACTS, "rows": [timed("cublas", 1.0, None)]}))
    words = [str(rows), "--into", str(document)]
    assert report.main([*words, "--check"]) == 1
    assert "is not what 1 files of rows make" in capsys.readouterr().err
    assert report.main(words) == 0
    assert report.main([*words, "--check"]) == 0
