"""Rows -> tables -> a document's blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.bench import report

FACTS = {
    "device": "NVIDIA H200",
    "driver_cuda": "13.0",
    "torch": "2.11.0",
    "date": "2026-11-30",
    "commit": "abc",
    "command": "benchmarks/h200.py --time",
}
PROBLEM = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", "out_dtype": "bf16", "b_major": "k"}


def timed(candidate: str, rate: float, ratio: float | None, mode: str = "steady") -> dict[str, Any]:
    return {
        "kind": "time",
        "status": "ok",
        **PROBLEM,
        "mode": mode,
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


def test_of_a_folder_the_newest_file_of_each_device_and_part_counts(tmp_path: Path) -> None:
    names = ("h200_2026-11-29_time", "h200_2026-11-30_time", "h100_2026-01-02_time", "h200_2026-01-01_host", "plain")
    for name in names:
        (tmp_path / f"{name}.json").touch()
    found = [path.stem for path in report.files_of([tmp_path, tmp_path / "x.json"])]
    assert found == ["h100_2026-01-02_time", "h200_2026-01-01_host", "h200_2026-11-30_time", "plain", "x"]


def test_no_rows_make_a_table_that_says_so() -> None:
    assert {table([]) for table in report.TABLES.values()} == set(report.EMPTY)


def test_only_what_lies_between_markers_is_replaced() -> None:
    document = "before\n<!-- table: time -->\nold\n<!-- end: time -->\nafter\n"
    filled = report.filled(document, ROWS)
    assert filled.startswith("before\n<!-- table: time -->\n| M, N, K |")
    assert filled.endswith("<!-- end: time -->\nafter\n")
    assert "old" not in filled
    assert report.filled(filled, ROWS) == filled


def test_unknown_table_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'colour' is none of speed, time, check, checked"):
        report.filled("<!-- table: colour -->\n<!-- end: colour -->\n", [])


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
