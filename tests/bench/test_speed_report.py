"""Rows of timed products -> the lines of two tables."""

from __future__ import annotations

from typing import Any

from tilewright.bench import speed_report

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


def test_time_table_has_one_line_a_candidate_beside_its_baseline() -> None:
    table = speed_report.time_table(ROWS)
    line = "| 4096, 4096, 4096 | bf16 TN | steady | 628 | 650 | **1.036** | 1.036 .. 1.036 | 700 | - | 128x256x64 |"
    assert line in table.splitlines()


def test_power_is_told_of_the_steady_mode_alone() -> None:
    table = speed_report.time_table([timed("cublas", 7.0, None, "burst"), timed("tilewright", 8.0, 1.1, "burst")])
    assert "| **1.100** | 1.100 .. 1.100 | - | - | 128x256x64 |" in table


def test_speed_table_has_one_line_a_problem_with_the_modes_that_were_measured() -> None:
    burst = [FACTS | timed("cublas", 800.0, None, "burst"), FACTS | timed("tilewright", 840.0, 1.05, "burst")]
    other = [row | {"m": 64} for row in burst]
    lines = speed_report.speed_table([*ROWS, *burst, *other]).splitlines()
    assert lines[0] == "| M, N, K | type | burst | steady | config |"
    assert "| 4096, 4096, 4096 | bf16 TN | 800, 840, **1.050** | 628, 650, **1.036** | 128x256x64 |" in lines
    assert "| 64, 4096, 4096 | bf16 TN | 800, 840, **1.050** | - | 128x256x64 |" in lines


def test_a_caption_says_what_a_number_is_and_where_it_comes_from_once() -> None:
    *_, meaning, empty, source = speed_report.time_table([*ROWS, *ROWS]).splitlines()
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
        lines = speed_report.time_table(rows).splitlines()
        assert len([line for line in lines if line.startswith("| 4096")]) == 1
        assert "| **1.036** | 1.036 .. 1.036 | 660 | **0.986** | 0.980 .. 0.990 | 700 | - | 128x256x64 |" in lines[2]
        assert "Tuned is the fastest of cuBLASLt's algorithms" in "".join(lines)
        assert "| 628, 650, **1.036** / 660, **0.986** | 128x256x64 |" in speed_report.speed_table(rows)


def test_a_row_without_the_tuned_baseline_has_gaps_where_others_have_it() -> None:
    other = [row | {"m": 64} for row in ROWS]
    assert "| 1.036 .. 1.036 | - | - | - | 700 |" in speed_report.time_table([*BESIDE_TUNED, *other])


def test_a_timing_that_failed_is_no_line() -> None:
    failed = {"kind": "time", "m": 1, "n": 1, "k": 1, "status": "error", "why": "x"}
    assert speed_report.time_table([*ROWS, failed]) == speed_report.time_table(ROWS)
