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


def product(status: str, **columns: Any) -> dict[str, Any]:
    row = {"kind": "check", "config": "c", **PROBLEM, "elements": 8, "data": "integer", "status": status}
    return row | {"wrong": 0, "unwritten": 0, "damaged": 0, "worst": 0.0} | columns


def test_time_table_has_one_line_a_candidate_beside_its_baseline() -> None:
    table = report.time_table(ROWS)
    line = "| 4096, 4096, 4096 | bf16 TN | steady | 628 | 650 | **1.036** | 1.036 .. 1.036 | 700 | - | 128x256x64 |"
    assert line in table.splitlines()


def test_power_is_told_of_the_steady_mode_alone() -> None:
    table = report.time_table([timed("cublas", 7.0, None, "burst"), timed("tilewright", 8.0, 1.1, "burst")])
    assert "| **1.100** | 1.100 .. 1.100 | - | - | 128x256x64 |" in table


def test_speed_table_has_one_line_a_problem_with_the_modes_that_were_measured() -> None:
    burst = [FACTS | timed("cublas", 800.0, None, "burst"), FACTS | timed("tilewright", 840.0, 1.05, "burst")]
    other = [row | {"m": 64} for row in burst]
    lines = report.speed_table([*ROWS, *burst, *other]).splitlines()
    assert lines[0] == "| M, N, K | type | burst | steady | config |"
    assert "| 4096, 4096, 4096 | bf16 TN | 800, 840, **1.050** | 628, 650, **1.036** | 128x256x64 |" in lines
    assert "| 64, 4096, 4096 | bf16 TN | 800, 840, **1.050** | - | 128x256x64 |" in lines


def test_a_caption_says_what_a_number_is_and_where_it_comes_from_once() -> None:
    *_, meaning, empty, source = report.time_table([*ROWS, *ROWS]).splitlines()
    assert "median over rounds of cuBLAS's time over tilewright's" in meaning
    assert source == (
        "NVIDIA H200, driver for CUDA 13.0, torch 2.11.0, nvrtc 13.5.37, 2026-11-30, commit abc, "
        "`benchmarks/h200.py --time`."
    )
    assert empty == ""


TUNED = FACTS | timed("cublaslt", 660.0, 1.051) | {"config": "176x128", "tuned": {"tried": 40}, "ratio_tuned": 1.0}
BESIDE_TUNED = [
    ROWS[0],
    TUNED,
    ROWS[1] | {"ratio_tuned": 0.986, "ratio_tuned_lower": 0.98, "ratio_tuned_upper": 0.99},
]


def test_the_tuned_baseline_is_beside_tilewright_and_no_line_of_its_own() -> None:
    for rows in (BESIDE_TUNED, list(reversed(BESIDE_TUNED))):
        lines = report.time_table(rows).splitlines()
        assert len([line for line in lines if line.startswith("| 4096")]) == 1
        assert "| **1.036** | 1.036 .. 1.036 | 660 | **0.986** | 0.980 .. 0.990 | 700 | - | 128x256x64 |" in lines[2]
        assert "Tuned is the fastest of cuBLASLt's algorithms" in "".join(lines)
        assert "| 628, 650, **1.036** / 660, **0.986** | 128x256x64 |" in report.speed_table(rows)


def test_a_row_without_the_tuned_baseline_has_gaps_where_others_have_it() -> None:
    other = [row | {"m": 64} for row in ROWS]
    assert "| 1.036 .. 1.036 | - | - | - | 700 |" in report.time_table([*BESIDE_TUNED, *other])


def test_a_timing_that_failed_is_no_line() -> None:
    failed = {"kind": "time", "m": 1, "n": 1, "k": 1, "status": "error", "why": "x"}
    assert report.time_table([*ROWS, failed]) == report.time_table(ROWS)


def test_check_tables_count_what_failed() -> None:
    rows = [
        product("ok", worst=0.25),
        product("wrong", worst=3.0, wrong=2, data="normal"),
        product("skipped"),
        product("error", why="ConfigError: one SM"),
        product("ok", config="d", m=1),
    ]
    assert "| c | 2 | 1 | 16 | 1 | 1 | 3.000 |" in report.check_table(rows).splitlines()
    assert "| 2 | 3 | 2 | 24 | 2 | 1 | 3.000 |" in report.checked_table(rows).splitlines()


def test_a_product_that_ended_in_an_error_is_wrong_and_named() -> None:
    (row,) = report.condensed([product("ok"), product("error", why="DriverError: gone", case="4096x4096x4096")])
    assert (row["products"], row["not_ok"]) == (2, 1)
    (failed,) = row["failed"]
    assert (failed["case"], failed["why"]) == ("4096x4096x4096", "DriverError: gone")


def test_condensed_rows_keep_every_size_and_make_the_same_tables() -> None:
    rows = [FACTS | product("ok", m=m, worst=m / 8) for m in (1, 2, 2)] + [FACTS | product("skipped", why="odd")]
    small = report.condensed(rows)
    (row,) = small
    assert row["shapes"] == [[1, 4096, 4096], [2, 4096, 4096]]
    assert row["refused"] == {"odd": 1}
    assert report.condensed(small) == small
    for table in (report.check_table, report.checked_table):
        assert table(small) == table(rows)


def test_of_a_folder_the_newest_file_of_each_device_and_part_counts(tmp_path: Path) -> None:
    names = ("h200_2026-11-29_time", "h200_2026-11-30_time", "h100_2026-01-02_time", "h200_2026-01-01_host", "plain")
    for name in names:
        (tmp_path / f"{name}.json").touch()
    found = [path.stem for path in report.files_of([tmp_path, tmp_path / "x.json"])]
    assert found == ["h100_2026-01-02_time", "h200_2026-01-01_host", "h200_2026-11-30_time", "plain", "x"]


def test_host_table_has_a_column_a_problem() -> None:
    rows = [FACTS | {"kind": "host", "m": m, "n": 8, "k": 8, "way": "plan.run", "median_us": m / 10} for m in (64, 128)]
    assert "| `plan.run` | 6.4 | 12.8 |" in report.host_table(rows).splitlines()


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
    with pytest.raises(ValueError, match="'colour' is none of speed, time, check, checked, host"):
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
