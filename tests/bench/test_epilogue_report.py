"""bench/epilogue_report.py: what is committed of epilogues and layers, and the lines of their tables."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.bench import epilogue_report
from tilewright.bench.epilogue_report import KIND, costs_table, layers_mean, layers_table, published


def timed(candidate: str, cost: float | None, **more: Any) -> dict[str, Any]:
    ratio = None if cost is None else 1 / (1 + cost)
    row = {"kind": "time", "candidate": candidate, "status": "ok", "median_us": 200.0, "config": "c", "cost": cost}
    return row | {"ratio": ratio, "ratio_lower": ratio, "ratio_upper": ratio, "min_us": 1.0} | more


def layer(candidate: str, median_us: float, **more: Any) -> dict[str, Any]:
    row = {"kind": "layer", "layer": "up", "tokens": 8, "n": 32, "k": 16, "candidate": candidate, "status": "ok"}
    return row | {"median_us": median_us} | more


CHECKS = [{"kind": "check", "case": status, "status": status, "why": ""} for status in ("ok", "ok", "wrong")]


def test_checks_are_committed_as_one_row_and_no_row_is_one_that_another_table_reads() -> None:
    rows = published([*CHECKS, timed("plain", None), layer("eager", 9.0), {"kind": "child", "status": "exit 1"}])
    assert {row["kind"] for row in rows} == {KIND}
    assert [row["part"] for row in rows] == ["check", "time", "layer", "child"]
    assert (rows[0]["ok"], rows[0]["wrong"], rows[0]["status"]) == (2, 1, "wrong")
    assert [failed["case"] for failed in rows[0]["failed"]] == ["wrong"]
    assert "min_us" not in rows[1]


def test_a_cost_stands_beside_its_quartiles_its_bar_and_that_in_ping_pong_tiles() -> None:
    rows = [timed("plain", None), timed("c, own", 0.0498, bar=0.05, ratio_lower=1 / 1.06, ratio_upper=1 / 1.04)]
    rows += [timed("c, ping-pong", 0.215, config="p"), timed("relu, own", -0.0002, config="d")]
    rows.append({"kind": "time", "candidate": "swiglu, as plain", "status": "refused", "why": "tail_n"})
    lines = costs_table(published([*CHECKS, *rows])).splitlines()
    assert lines[2:4] == [
        "| c | 200.0 | **5.0 %** | 4.0 % .. 6.0 % | 5 % | that of plain | 21.5 % (21.5 % .. 21.5 %) |",
        "| relu | 200.0 | **0.0 %** | 0.0 % .. 0.0 % | - | d | - |",
    ]
    assert "2 products right, 1 wrong." in lines[5]


def test_a_layer_stands_beside_eager_and_compiled_and_one_that_compiled_nothing_has_a_dash() -> None:
    ours = {"ratio": 1.5, "ratio_lower": 1.4, "ratio_upper": 1.6, "config": "c"}
    rows = published(
        [layer("eager", 9.0), layer("compile", 8.0), layer("tilewright", 6.0, ratio_compile=1.333, **ours)]
    )
    other = published([layer("eager", 6.0, tokens=9), layer("tilewright", 6.0, tokens=9, **ours | {"ratio": 0.96})])
    table = layers_table([*rows, *other])
    assert "| up | 8, 32, 16 | 9 | 8 | 6 | **1.500** | 1.400 .. 1.600 | **1.333** | c |" in table
    assert "| up | 9, 32, 16 | 6 | - | 6 | **0.960** | 1.400 .. 1.600 | - | c |" in table
    assert layers_mean([*rows, *other], "ratio") == pytest.approx(1.2)
    assert "Geometric means of 2: 1.2000 over eager, for which 1.15 was asked" in table


def test_bars_are_those_of_the_issue() -> None:
    assert epilogue_report.LAYER_BARS == {"ratio": 1.15, "ratio_compile": 1.05}
