"""bench/lines_report.py: what is committed of the rows, a line of the table for each line of sizes, and the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilewright.bench import lines_report, report

FACTS = {"device": "NVIDIA H200", "date": "2026-12-01", "commit": "abc"}


def row(m: int, median_us: float, line: str = "1..4x8x8", **fields: Any) -> dict[str, Any]:
    times = {"lower_us": median_us - 0.1, "upper_us": median_us + 0.1, "spread": 0.2 / median_us}
    common = {"kind": "line", "line": line, "m": m, "n": 8, "k": 8, "status": "ok", "config": "some"}
    return common | times | {"median_us": median_us, "ratio": 1.0, "baseline": "1x8x8"} | fields


ROWS = [row(1, 10.0), row(2, 16.0, config="other"), row(3, 12.0), row(4, 12.0, status="wrong", why="3 of 4")]


def test_a_line_has_its_times_its_worst_ratios_and_how_many_are_right() -> None:
    (cells,) = lines_report.cells(lines_report.published(ROWS))
    assert dict(zip(enumerate(lines_report.COLUMNS), cells, strict=True)) == {
        (0, "M, N, K"): "1 .. 4, 8, 8", (1, "sizes"): "4", (2, "us"): "10.0 .. 16.0",
        (3, "over an aligned neighbour"): "**1.600**", (4, "at"): "2",
        (5, "over a larger size"): "**1.333**", (6, "at"): "2",
        (7, "largest spread"): "2.0%", (8, "configs"): "2", (9, "right"): "3 of 4",
    }  # fmt: skip


def test_sizes_in_two_lines_and_lines_of_two_devices_keep_their_own_times() -> None:
    other = [row(m, 20.0, line="another") for m in (1, 2, 3)]
    elsewhere = [each | {"device": "NVIDIA H100", "median_us": 5.0} for each in ROWS]
    found = lines_report.measured([*(each | FACTS for each in ROWS), *(each | FACTS for each in other), *elsewhere])
    assert [each.line.times_us for each in found] == [(10.0, 16.0, 12.0, 12.0), (20.0,) * 3, (5.0,) * 4]


def test_a_size_without_a_time_is_in_no_line_and_is_told() -> None:
    refused = {name: value for name, value in row(2, 1.0).items() if name != "median_us"}
    refused |= {"status": "refused", "why": "ConfigError: no"}
    child = {"kind": "child", "line": "all", "status": "exit 1", "why": "a fault"}
    rows = [ROWS[0], refused, *ROWS[2:], child]
    (found,) = lines_report.measured(rows)
    assert found.line.sizes == ((1, 8, 8), (3, 8, 8), (4, 8, 8))
    assert lines_report.failures(rows) == [
        "2x8x8: refused: ConfigError: no", "4x8x8: wrong: 3 of 4", "all: exit 1: a fault"
    ]  # fmt: skip
    assert lines_report.published(rows)[-1] == child


def test_committed_rows_lack_what_means_nothing_and_are_seen_by_no_other_table() -> None:
    kept = lines_report.published(ROWS)
    assert not any({"ratio", "baseline"} & each.keys() for each in kept)
    rows = [FACTS | each for each in kept]
    shown = {name for name, table in report.TABLES.items() if table(rows) not in report.EMPTY}
    assert shown == {"lines"}
    table = lines_report.lines_table(rows)
    assert "| 1 .. 4, 8, 8 | 4 | 10.0 .. 16.0 | **1.600** | 2 |" in table
    assert "commit abc" in table


def test_the_picture_has_a_panel_a_line_and_the_digest_of_its_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "lines.svg"
    rows = [*ROWS, *(row(m, 20.0, line="5..7x8x8") for m in (15, 16, 17))]
    lines_report.plot(rows, lines_report.title(FACTS), path)
    drawn = path.read_text()
    assert all(text in drawn for text in ("1 .. 4, 8, 8", "15 .. 17, 8, 8", "NVIDIA H200, 2026-12-01", "multiple of 8"))
    assert lines_report.digest(rows) in drawn
    assert lines_report.digest(lines_report.published(rows)) == lines_report.digest(rows)
    assert lines_report.digest([*rows[:-1], rows[-1] | {"median_us": 21.0}]) not in drawn
    lines_report.plot(rows, lines_report.title(FACTS), again := tmp_path / "again.svg")
    assert again.read_text() == drawn


def test_nothing_to_draw_is_an_error_and_no_empty_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no line to draw"):
        lines_report.plot([], "", tmp_path / "lines.svg")
    assert not list(tmp_path.iterdir())
