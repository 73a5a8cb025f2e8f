"""bench/ampere_report.py: what is committed of the Ampere family's rows, and the lines of their table."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.bench.ampere_report import COLUMNS, KIND, RUNS, ceiling_tflops, ceilings_told, cells, published
from tilewright.bench.report import TABLES


def timed(candidate: str, median_us: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": "time", "problem": "p", "candidate": candidate, "status": "ok", "median_us": median_us, "spread": 0.02,
        "rate_tflops": 305.0, "ratio": 0.5, "ratio_lower": 0.4, "ratio_upper": 0.6, "dtype": "bf16",
        "mode": "interleaved",
    } | more  # fmt: skip


def loop(mode: str, rate_tflops: float, **more: Any) -> dict[str, Any]:
    """A row of ceilings."""
    row = {"kind": "ceiling", "status": "ok", "ceiling": "mma.sync bf16 m16n8k16 128x256", "device": "NVIDIA H200"}
    return row | {"dtype": "bf16", "mode": mode, "rate_tflops": rate_tflops} | more


CEILINGS = [
    loop("burst", 642.0),
    loop("steady", 610.0),
    loop("steady", 594.0, dtype="fp16"),
    loop("steady", 848.0, ceiling="wgmma bf16 m64n256k16 128x256"),
    loop("steady", 500.0, device="NVIDIA H100 PCIe"),
]


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
    rows += [timed("tilewright a", 8.0), timed("tilewright a", 3.0, problem="q")]
    lines = cells([row | {"device": "NVIDIA H200"} for row in published(rows)], CEILINGS)
    assert all(len(line) == len(COLUMNS) for line in lines)
    assert [line[:3] for line in lines] == [
        ("p", "a", "8.0"),
        ("p", "b", "9.0"),
        ("p", "cuBLAS", "1.0"),
        ("p", "matmul's choice: the Hopper kernel", "2.0"),
        ("q", "a", "3.0"),
    ]
    assert lines[0][3:] == ("305", "0.50", "**0.50**", "0.40 .. 0.60", "2 %")
    assert lines[2][5:7] == ("-", "-")


def test_a_column_without_a_time_has_no_line() -> None:
    row = timed("tilewright a", 1.0)
    del row["median_us"]
    assert cells(published([row])) == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"mode": "burst"}, 642.0),
        ({"mode": "steady"}, 610.0),
        ({}, 610.0),  # interleaved, held to steady
        ({"dtype": "fp16"}, 594.0),
        ({"dtype": "fp16", "mode": "burst"}, None),
        ({"device": "NVIDIA H20"}, None),
        ({"dtype": "fp16", "problem": "1x8x8 fp16 -> fp16 TN sums in fp16"}, 615.0),
        ({"dtype": "int8", "mode": "burst"}, 1270.0),
        ({"dtype": "tf32"}, None),
    ],
)
def test_a_time_is_held_to_the_loop_of_its_card_inputs_sums_and_mode_or_to_none(
    more: dict[str, Any], expected: float | None
) -> None:
    assert ceiling_tflops(timed("tilewright a", 1.0, device="NVIDIA H200") | more, CEILINGS) == expected


def test_what_times_are_held_to_is_told_once_of_each_type_and_mode() -> None:
    rows = [timed("tilewright a", 1.0, device="NVIDIA H200", mode=mode) for mode in ("burst", "steady", "interleaved")]
    assert ceilings_told(rows, CEILINGS) == "bf16 burst 642, bf16 steady 610"
    assert ceilings_told(rows, []) == ""


def test_each_run_has_a_table_of_its_own() -> None:
    rows = [row for kind in RUNS.values() for row in published([timed(f"tilewright {kind}", 1.0)], kind)]
    for kind in RUNS.values():
        text = TABLES[kind](rows)
        assert f"| p | {kind} |" in text
        assert sum(f"| p | {other} |" in text for other in RUNS.values()) == 1
    checks = published([{"kind": "check", "case": "a", "status": "ok"}], RUNS["kinds"])
    assert "1 products right, 0 wrong" in TABLES[RUNS["kinds"]]([*rows, *checks])
    assert "products right" not in TABLES[RUNS["kinds"]](rows)
