"""bench/unaligned_report.py: what is committed of the rows, and a line a product."""

from __future__ import annotations

from typing import Any

from tilewright.bench import unaligned_report
from tilewright.bench.check_report import check_table
from tilewright.bench.speed_report import speed_table, time_table

SHAPE, BESIDE = (1023, 1023, 1023), (1024, 1024, 1024)
FACTS = {"device": "NVIDIA H200", "date": "2026-11-30", "commit": "abc"}


def row(kind: str, shape: tuple[int, int, int], candidate: str, median_us: float, **fields: Any) -> dict[str, Any]:
    m, n, k = shape
    common = {"m": m, "n": n, "k": k, "candidate": candidate, "median_us": median_us, "status": "ok"}
    return {"kind": kind} | common | {"config": "some", "temperature_c": 40.0} | fields


TIMES = [
    row("time", SHAPE, "cublas", 30.0, config=None),
    row("time", SHAPE, "tilewright", 10.0),
    row("time", BESIDE, "cublas", 5.0, config=None),
    row("time", BESIDE, "tilewright", 8.0),
]
CHECKS = [
    {"kind": "check", "case": "one", "status": "ok", "worst": 0.25, "why": "right"},
    {"kind": "check", "case": "two", "status": "wrong", "worst": 1.5, "why": "3 of 4"},
]


def lines(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    found = unaligned_report.cells(unaligned_report.published(rows))
    return [dict(zip(unaligned_report.COLUMNS, line, strict=True)) for line in found]


def test_a_line_has_the_copies_the_neighbour_and_cublas() -> None:
    (line,) = lines([*TIMES, row("repack", SHAPE, "repack", 3.5)])
    assert line == {
        "M, N, K": "1023, 1023, 1023", "tilewright": "10.0", "of that copies": "3.5", "aligned neighbour": "8.0",
        "times the neighbour": "**1.25**", "cuBLAS": "30.0", "over cuBLAS": "**3.00**", "config": "some",
    }  # fmt: skip


def test_a_product_without_copies_has_none_and_one_without_its_neighbour_no_line() -> None:
    assert lines(TIMES)[0]["of that copies"] == "-"
    assert lines(TIMES[:2]) == []


def test_pairs_go_before_two_medians_and_the_first_variant_before_the_copies_of_another_run() -> None:
    pairs = [
        row("pair", SHAPE, "neighbour", 8.0, ratio=None),
        row("pair", SHAPE, "tilewright", 9.9, ratio=0.8, config=None),
    ]
    variants = [row("variant", SHAPE, "repack 2 chunks", 4.0), row("variant", SHAPE, "repack 4 chunks", 5.0)]
    (line,) = lines([*TIMES, *pairs, row("repack", SHAPE, "repack", 3.5), *variants])
    assert (line["times the neighbour"], line["of that copies"]) == ("**1.25**", "4.0")
    (product,) = unaligned_report.products(unaligned_report.published([*TIMES, *pairs]))
    assert product.is_paired
    assert not unaligned_report.products(unaligned_report.published(TIMES))[0].is_paired


def test_checks_become_one_row_that_names_what_is_wrong() -> None:
    (found,) = unaligned_report.published(CHECKS)
    assert (found["part"], found["cases"], found["not_ok"], found["worst"]) == ("check", 2, 1, 1.5)
    assert found["failed"] == CHECKS[1:]
    assert found["status"] == "wrong"
    assert unaligned_report.checked([found]) == " 1 of 2 cases are right."
    assert unaligned_report.checked([]) == ""


def test_no_committed_row_is_taken_for_one_of_another_table() -> None:
    """Other tables are made of all files' rows together: of these they must see none."""
    rows = [FACTS | found for found in unaligned_report.published([*CHECKS, *TIMES])]
    assert {found["kind"] for found in rows} == {unaligned_report.KIND}
    assert "temperature_c" not in rows[1]
    assert check_table(rows) == time_table(rows) == speed_table(rows) == "_No rows._\n"
    table = unaligned_report.unaligned_table(rows)
    assert "| 1023, 1023, 1023 | 10.0 | - | 8.0 | **1.25** |" in table
    assert "of two medians" in table
    assert "1 of 2 cases are right." in table
