"""Rows of checked products -> one a config -> tables."""

from __future__ import annotations

from typing import Any

from tilewright.bench import check_report

FACTS = {"device": "NVIDIA H200", "commit": "abc"}
PROBLEM = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", "out_dtype": "bf16", "b_major": "k"}


def product(status: str, **columns: Any) -> dict[str, Any]:
    row = {"kind": "check", "config": "c", **PROBLEM, "elements": 8, "data": "integer", "status": status}
    return row | {"wrong": 0, "unwritten": 0, "damaged": 0, "worst": 0.0} | columns


def test_check_tables_count_what_failed() -> None:
    rows = [
        product("ok", worst=0.25),
        product("wrong", worst=3.0, wrong=2, data="normal"),
        product("skipped"),
        product("error", why="ConfigError: one SM"),
        product("ok", config="d", m=1),
    ]
    assert "| c | 2 | 1 | 16 | 1 | 1 | 3.000 |" in check_report.check_table(rows).splitlines()
    assert "| 2 | 3 | 2 | 24 | 2 | 1 | 3.000 |" in check_report.checked_table(rows).splitlines()


def test_a_product_that_ended_in_an_error_is_wrong_and_named() -> None:
    (row,) = check_report.condensed([product("ok"), product("error", why="DriverError: gone", case="4096x4096x4096")])
    assert (row["products"], row["not_ok"]) == (2, 1)
    (failed,) = row["failed"]
    assert (failed["case"], failed["why"]) == ("4096x4096x4096", "DriverError: gone")


def test_condensed_rows_keep_every_size_and_make_the_same_tables() -> None:
    rows = [FACTS | product("ok", m=m, worst=m / 8) for m in (1, 2, 2)] + [FACTS | product("skipped", why="odd")]
    small = check_report.condensed(rows)
    (row,) = small
    assert row["shapes"] == [[1, 4096, 4096], [2, 4096, 4096]]
    assert row["refused"] == {"odd": 1}
    assert check_report.condensed(small) == small
    for table in (check_report.check_table, check_report.checked_table):
        assert table(small) == table(rows)
