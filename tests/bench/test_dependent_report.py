"""bench/dependent_report.py: what is committed of the rows, and a line a product."""

from __future__ import annotations

from typing import Any

from tilewright.bench import dependent_report, report
from tilewright.bench.tables import NOT_MEASURED

FACTS = {"device": "NVIDIA H200", "date": "2026-11-30", "commit": "abc"}
CONFIG = "64x16x64 s22 w1 c1x1 grouped16 o1 swap split2"


def row(candidate: str, median_us: float, **fields: Any) -> dict[str, Any]:
    common = {"kind": "time", "m": 16, "n": 4096, "k": 4096, "candidate": candidate, "median_us": median_us}
    ours = {} if candidate == "cublas" else {"ctas": 128, "num_sms": 132}
    return common | ours | {"status": "ok", "config": CONFIG, "is_cold": True, "captured": True, "waves": 1.0} | fields


RATIOS = {"ratio_beside": 1.1, "ratio_beside_lower": 1.098, "ratio_beside_upper": 1.104}
TIMES = [
    row("cublas", 13.8, config=None),
    row("tilewright", 11.0, ratio_beside=1.0),
    row("dependent", 10.0, config=f"{CONFIG} dependent", **RATIOS),
]
CHECKS = [
    {"kind": "check", "case": "16x4096x4096", "status": "ok", "differing": 0, "why": ""},
    {"kind": "check", "case": "512x512x512", "status": "wrong", "differing": 2, "why": "other bits"},
]


def lines(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    found = dependent_report.cells(dependent_report.published(rows))
    return [dict(zip(dependent_report.COLUMNS, line, strict=True)) for line in found]


def test_a_line_has_all_three_times_and_the_ratio_of_the_same_rounds() -> None:
    assert lines(TIMES) == [{
        "M, N, K": "16, 4096, 4096", "cuBLAS us": "13.80", "as shipped us": "11.00", "dependent us": "10.00",
        "less us": "1.00", "times as fast": "**1.100**", "quartiles": "1.098 .. 1.104", "CTAs": "128",
        "config": CONFIG,
    }]  # fmt: skip
    assert lines([each | {"is_cold": False} for each in TIMES])[0]["M, N, K"] == "16, 4096, 4096 *"


def test_two_columns_of_different_configs_or_a_column_too_few_make_no_line() -> None:
    other = "64x64x64 s12 w1 c1x1 grouped16 o2"
    assert lines([*TIMES[:2], TIMES[2] | {"config": f"{other} dependent"}]) == []
    assert lines([*TIMES[:2], TIMES[2] | {"config": CONFIG}]) == []  # launched as the other
    assert all(lines([*TIMES[:index], *TIMES[index + 1 :]]) == [] for index in range(3))


def test_the_word_is_found_wherever_a_config_has_it() -> None:
    sliced = [TIMES[0], TIMES[1] | {"config": "64x64x64 slices8"}, TIMES[2] | {"config": "64x64x64 dependent slices8"}]
    assert lines(sliced)[0]["config"] == "64x64x64 slices8"


def test_checks_become_one_row_and_what_they_say_and_lost_graphs_stand_below_the_table() -> None:
    loose = [*TIMES[:2], TIMES[2] | {"captured": False}]
    kept = [FACTS | each for each in dependent_report.published([*CHECKS, *loose])]
    assert [each["part"] for each in kept] == ["check", "time", "time", "time"]
    assert (kept[0]["ok"], kept[0]["wrong"], kept[0]["failed"]) == (1, 1, CHECKS[1:])
    table = dependent_report.table(kept)
    assert "Of 2 products that read what the launch before wrote, launched so one behind the other, 1 have" in table
    assert "1 of 3 times hold the gaps of launches" in table
    assert "gaps" not in dependent_report.table([FACTS | each for each in dependent_report.published(TIMES)])


def test_no_committed_row_is_taken_for_one_of_another_table() -> None:
    kept = [FACTS | each for each in dependent_report.published([*CHECKS, *TIMES])]
    assert all("waves" not in each for each in kept)
    shown = {name for name, table in report.TABLES.items() if not table(kept).startswith(report.EMPTY)}
    assert shown == {"dependent"}
    assert report.TABLES["dependent"]([]) == NOT_MEASURED
