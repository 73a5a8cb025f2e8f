"""bench/suite_page.py: what is committed of a suite's rows, the documents' tables, and the picture's freshness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilewright.bench import report, suite_page
from tilewright.bench import suite_report as suite

FACTS = {"device": "NVIDIA H200", "date": "2026-12-01", "commit": "abc"}


def column(candidate: str, m: int, median_us: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": "bench", "group": "g", "shape": f"{m}x8x8", "m": m, "n": 8, "k": 8, "mode": "interleaved",
        "candidate": candidate, "status": "ok", "median_us": median_us, "spread": 0.01, "ratio": 10.0 / median_us,
        "ratio_tuned": 8.0 / median_us, "num_sets": 5, "is_cold": True, "data": "normal", "bound": "memory",
        "share_of_floor": 4.0 / median_us, "config": f"config of {candidate}", "compiler": "some", "calls": 7,
    } | more  # fmt: skip


def rows(m: int, own_us: float, recorded_us: float | None = None, **tuned: int) -> list[dict[str, Any]]:
    found = [
        column("cublas", m, 10.0, ratio=None, config=None),
        column("cublaslt", m, 8.0, ratio_tuned=1.0, tuned={"offered": 9, "tried": 9, "blob": "long"} | tuned),
        column("tilewright", m, own_us),
    ]
    if recorded_us is None:
        none = {"status": "no record", "why": "no record"}
        return [*found, {key: found[2][key] for key in ("kind", "group", "shape", "m", "n", "k", "mode")} | none
                | {"candidate": "tilewright recorded"}]  # fmt: skip
    return [*found, column("tilewright recorded", m, recorded_us)]


ROWS = [*rows(1, 5.0, 4.0), *rows(2, 12.5, 12.5 / 1.01), *rows(3, 8.0, tried=3)]


def shipped(size: tuple[int, int, int]) -> str | None:
    return "config of tilewright recorded" if size == (1, 8, 8) else None


KEPT = suite_page.published(ROWS, shipped)


def test_a_record_that_is_not_shipped_keeps_its_time_and_the_models_choice_takes_its_place() -> None:
    dropped = [row for row in KEPT if row["status"] == suite.DROPPED]
    assert [(row["m"], row["candidate"], row["median_us"]) for row in dropped] == [
        (2, "tilewright recorded", float(f"{12.5 / 1.01:.6g}"))
    ]
    of_shape = {shape.size[0]: shape for shape in suite.judged(KEPT)}
    assert [of_shape[m].shipped["candidate"] for m in (1, 2, 3)] == ["tilewright recorded", "tilewright", "tilewright"]  # type: ignore[index]
    assert suite.left_out(list(of_shape.values())) == []
    assert not suite.is_bad(list(of_shape.values()))


def test_a_dropped_record_still_judges_the_models_choice() -> None:
    assert suite_page.choices(KEPT) == (
        "Of 2 shapes with a record the model's choice has 0.95 of the recorded one's speed or more in 1 (50%); the "
        "worst is 0.800 at 1, 8, 8."
    )


def test_committed_rows_lack_what_no_table_needs_and_keep_how_far_the_search_came() -> None:
    assert not any({"compiler", "calls", "tuned"} & row.keys() for row in KEPT)
    assert [(row["offered"], row["tried"]) for row in KEPT if row["candidate"] == "cublaslt"] == [
        (9, 9),
        (9, 9),
        (9, 3),
    ]
    assert suite_page.searched(KEPT).startswith(" Of 1 of 3 shapes the search ended with its time")
    assert suite_page.searched(suite_page.published(rows(1, 5.0), shipped)) == ""


def test_a_line_has_what_is_shipped_beside_both_baselines_and_whose_choice_it_is() -> None:
    lines = suite_page.cells(KEPT)
    assert [line[1:7] for line in lines] == [
        ("1, 8, 8", "10.00", "8.00", "4.00", "**2.500**", "**2.000**"),
        ("2, 8, 8", "10.00", "8.00", "12.50", "**0.800**", "**0.640**"),
        ("3, 8, 8", "10.00", "8.00", "8.00", "**1.250**", "**1.000**"),
    ]
    assert [line[7:] for line in lines] == [
        ("1.0%", "100%", "40%", "record", "config of tilewright recorded"),
        ("1.0%", "32%", "40%", "model", "config of tilewright"),
        ("1.0%", "50%", "40%", "model", "config of tilewright"),
    ]
    assert all(len(line) == len(suite_page.COLUMNS) for line in lines)


def test_the_mean_is_geometric_over_all_shapes_and_counts_those_below_the_bars() -> None:
    assert suite_page.mean_cells(KEPT) == [
        ("3", "1", "cuBLAS", f"**{(2.5 * 0.8 * 1.25) ** (1 / 3):.3f}**", "0.800", "2, 8, 8", "1", "1"),
        ("3", "1", "cuBLASLt tuned", f"**{(2.0 * 0.64 * 1.0) ** (1 / 3):.3f}**", "0.640", "2, 8, 8", "1", "1"),
    ]
    assert len(suite_page.mean_cells(KEPT)[0]) == len(suite_page.MEAN_COLUMNS)


def test_the_tables_of_documents_see_the_suites_rows_alone_and_no_other_table_sees_them() -> None:
    with_facts = [FACTS | row for row in KEPT]
    shown = {name for name, table in report.TABLES.items() if not table(with_facts).startswith(report.EMPTY)}
    assert shown == {"suite", "suite-mean", "suite-summary", "suite-worst", "suite-worst-tuned"}
    assert report.TABLES["suite"]([FACTS | {"kind": "host"}]) == "_No rows._\n"
    assert (
        suite_page.suite_worst_table(with_facts, "ratio").splitlines()[2].startswith("| 0.800 | 0.640 | 2, 8, 8 | g |")
    )
    assert "tilewright is" not in suite_page.suite_summary_table([])


def test_a_picture_carries_the_name_of_its_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plots" / "suite.svg"
    suite_page.plot(KEPT, picture)
    assert suite_page.digest(KEPT) in picture.read_text()
    faster = suite_page.published([*rows(1, 5.0, 3.9), *ROWS[4:]], shipped)
    assert suite_page.digest(faster) != suite_page.digest(KEPT)
