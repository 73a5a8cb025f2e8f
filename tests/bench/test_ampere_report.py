"""bench/ampere_report.py: what is committed of the Ampere family's rows, and the lines of their table."""

from __future__ import annotations

from typing import Any

from tilewright.bench.ampere_report import COLUMNS, KIND, RUNS, ceiling_tflops, cells, published
from tilewright.bench.report import TABLES


def timed(candidate: str, median_us: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": "time", "problem": "p", "candidate": candidate, "status": "ok", "median_us": median_us, "spread": 0.02,
        "rate_tflops": 307.5, "ratio": 0.5, "ratio_lower": 0.4, "ratio_upper": 0.6,
    } | more  # fmt: skip


def test_checks_are_committed_as_one_row_that_names_the_wrong_ones() -> None:
    rows = [{"kind": "check", "case": case, "status": case} for case in ("ok", "ok", "refused", "wrong")]
    (row,) = published(rows)
    assert (row["kind"], row["part"], row["status"]) == (KIND, "check", "wrong")
    assert (row["ok"], row["refused"], row["wrong"]) == (2, 1, 1)
    assert [failed["case"] for failed in row["failed"]] == ["wrong"]
    assert published(rows[:3])[0]["status"] == "ok"


def test_what_was_counted_is_committed_whole() -> None:
    (row,) = published([{"kind": "count", "config": "c", "status": "ok", "hmma_pct": 61.5, "cycles": None}])
    assert row == {"kind": KIND, "part": "count", "config": "c", "status": "ok", "hmma_pct": 61.5}


def test_no_committed_row_is_one_that_another_table_reads() -> None:
    assert {row["kind"] for row in published([timed("cublas", 1.0), {"kind": "child", "part": "time"}])} == {KIND}


def test_the_family_s_configs_come_first_the_fastest_before_the_others() -> None:
    rows = [timed("cublas", 1.0, ratio=None), timed("tilewright", 2.0), timed("tilewright b", 9.0)]
    lines = cells(published([*rows, timed("tilewright a", 8.0), timed("tilewright a", 3.0, problem="q")]))
    assert all(len(line) == len(COLUMNS) for line in lines)
    assert [line[:3] for line in lines] == [
        ("p", "a", "8.0"),
        ("p", "b", "9.0"),
        ("p", "cuBLAS", "1.0"),
        ("p", "matmul's choice: the Hopper kernel", "2.0"),
        ("q", "a", "3.0"),
    ]
    assert lines[0][3:] == ("308", "0.50", "**0.50**", "0.40 .. 0.60", "2 %")
    assert lines[2][5:7] == ("-", "-")


def test_a_column_without_a_time_has_no_line() -> None:
    row = timed("tilewright a", 1.0)
    del row["median_us"]
    assert cells(published([row])) == []


def test_each_kind_has_the_ceiling_that_was_measured_of_it_or_none() -> None:
    assert [ceiling_tflops({"dtype": dtype}) for dtype in ("bf16", "int8", "tf32")] == [615, 1270, None]


def test_each_run_has_a_table_of_its_own() -> None:
    rows = [row for kind in RUNS.values() for row in published([timed(f"tilewright {kind}", 1.0)], kind)]
    for kind in RUNS.values():
        text = TABLES[kind](rows)
        assert f"| p | {kind} |" in text
        assert sum(f"| p | {other} |" in text for other in RUNS.values()) == 1
    checks = published([{"kind": "check", "case": "a", "status": "ok"}], RUNS["kinds"])
    assert "1 products right, 0 wrong" in TABLES[RUNS["kinds"]]([*rows, *checks])
    assert "products right" not in TABLES[RUNS["kinds"]](rows)
