"""bench/sweep_report.py: tables, statements and plots of made-up rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.bench import sweep_report
from tilewright.errors import UnsupportedError


def check(variant: str, status: str = "ok", **more: Any) -> dict[str, Any]:
    facts = {"device": "NVIDIA H200", "driver_cuda": "13.0", "nvidia_cublas": "13.1", "compiler": "nvrtc 13.5"}
    facts |= {"date": "2026-11-30", "command": "benchmarks/sweeps.py"}
    return (
        facts | {"kind": "sweep_check", "sweep": "order", "variant": variant, "status": status, "registers": 168} | more
    )


def time(variant: str, mode: str, rate: float, clock: float | None = None) -> dict[str, Any]:
    row = {"kind": "sweep_time", "sweep": "order", "variant": variant, "status": "ok", "mode": mode}
    return row | {"rate_tflops": rate, "clock_mhz": clock}


def counted(variant: str, **values: float | None) -> dict[str, Any]:
    return {"kind": "sweep_counters", "sweep": "order", "variant": variant, "status": "ok"} | values


ROWS = [
    check("row", predicted_tflops=660.0),
    check("groups", predicted_tflops=690.0),
    check("bad", "wrong"),
    time("cublas", "steady", 640.0),
    time("cublas", "steady", 680.0),
    time("row", "steady", 627.0, 1400.0),
    time("groups", "steady", 693.0, 1450.0),
    time("cublas", "burst", 800.0),
    time("row", "burst", 800.0),
    time("groups", "burst", 808.0),
    counted("row", dram_read_bytes=2.6e9, l2_read_bytes=1e10, fill_bytes=None),
    counted("groups", dram_read_bytes=1.2e9, l2_read_bytes=7e9),
    {"kind": "sweep_time", "sweep": "tile", "variant": "row", "status": "ok", "mode": "steady", "rate_tflops": 1.0},
]


def test_a_ratio_is_over_the_median_of_cublas_in_the_same_mode_of_the_same_sweep() -> None:
    row, groups, bad = sweep_report.lines_of(ROWS, "order")
    assert row.ratios == {"steady": 0.95, "burst": 1.0}
    assert groups.ratios["steady"] == 1.05
    assert (bad.status, bad.rates) == ("wrong", {})


def test_the_table_leaves_out_columns_that_nobody_fills() -> None:
    heads, cells = sweep_report.table(sweep_report.lines_of(ROWS, "order"))
    assert heads == [
        "variant", "steady", "of cuBLAS", "burst", "of cuBLAS", "predicted", "MHz", "registers", "DRAM read GB",
        "L2 read GB",
    ]  # fmt: skip
    assert cells[0] == ["row", "627", "0.950", "800", "1.000", "660", "1400", "168", "2.60", "10.00"]
    assert cells[2][:3] == ["bad", "wrong", "-"]


def test_the_statement_names_best_and_worst_and_calls_a_small_difference_none() -> None:
    text = sweep_report.statement(sweep_report.lines_of(ROWS, "order"))
    assert (
        "Steady, *groups* is fastest with 693 TFLOPS (1.050 of cuBLAS), 11% over the slowest, *row* with 627." in text
    )
    assert "Burst, all 2 are within 2%: no difference that single samples show." in text
    assert "*row* reads 2.60 GB from DRAM, *groups* 1.20." in text
    assert text.endswith("Not timed: bad.\n")


def test_the_statement_names_the_equals_of_the_fastest() -> None:
    rows = [check(name) for name in "abc"] + [
        time(name, "steady", rate) for name, rate in zip("abc", (700.0, 695.0, 600.0), strict=True)
    ]
    assert "with 600; within 2% of it: b." in sweep_report.statement(sweep_report.lines_of(rows, "order"))


def test_a_sweep_without_rows_says_so() -> None:
    assert sweep_report.block(ROWS, "stages", "x.svg") == "_Not measured yet._\n"
    assert sweep_report.statement([]) == ""


def test_a_block_is_plot_table_statement_and_origin() -> None:
    text = sweep_report.block(ROWS, "order", "plots/x.svg")
    assert text.startswith("![TFLOPS of each variant](plots/x.svg)\n\n| variant |")
    assert text.endswith(
        "NVIDIA H200, driver for CUDA 13.0, cuBLAS 13.1, nvrtc 13.5, 2026-11-30, `benchmarks/sweeps.py`.\n"
    )


def test_the_terminal_shows_what_did_not_end_well() -> None:
    lines = sweep_report.table_lines([*ROWS, {"kind": "child", "sweep": "order", "status": "exit 3", "why": "ouch"}])
    assert lines[0] == "== order"
    assert lines[-1] == "order  child exit 3: ouch"
    assert sweep_report.table_lines([]) == []


def test_a_plot_carries_the_digest_of_its_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = sweep_report.lines_of(ROWS, "order")
    sweep_report.plot(lines, "order", tmp_path / "plots" / "x.svg")
    text = (tmp_path / "plots" / "x.svg").read_text()
    assert sweep_report.digest(lines) in text
    assert "GB read from DRAM" in text
    assert len(text) < 100_000
    assert sweep_report.digest(lines) != sweep_report.digest(lines[:1])


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"tilewright\[report\]"):
        sweep_report.plot(sweep_report.lines_of(ROWS, "order"), "order", tmp_path / "x.svg")


def test_what_the_emulator_knows_stands_on_the_page_before_anything_is_timed() -> None:
    about = {"sweep": "ampere-distance", "status": "ok", "device": "emulator", "date": "d", "command": "c"}
    known = about | {"kind": "sweep_conflicts", "variant": "distance 2", "emulated_conflicts": 0.0, "registers": 119}
    text = sweep_report.block([known], "ampere-distance", "plot.svg")
    assert text.startswith("| variant |")
    assert "plot.svg" not in text
    assert "_Not measured yet._" in text
    assert "| 2 | 93 | 91 | - | - | - | - |" in text
    assert "Emulated: nvrtc None, d, `c`." in text
    measured = [
        about | {"kind": "sweep_check", "variant": "distance 2", "registers": 120},
        about | {"kind": "sweep_time", "variant": "distance 2", "mode": "burst", "rate_tflops": 300.0},
        about
        | {"kind": "sweep_counters", "variant": "distance 2", "hmma_pct": 61.0, "dram_pct": 15.0, "warps_pct": 24.0},
    ]
    text = sweep_report.block([known, *measured], "ampere-distance", "plot.svg")
    assert "_Not measured yet._" not in text
    assert "| 2 | 93 | 91 | 61.0 | - | - | 15.0 |" in text
    (line,) = sweep_report.lines_of([known, *measured], "ampere-distance")
    assert (line.registers, line.counted["emulated_conflicts"], line.counted["warps_pct"]) == (120, 0.0, 24.0)
    quiet = sweep_report.lines_of([known, *measured[:2]], "ampere-distance")
    assert sweep_report.digest([line]) != sweep_report.digest(quiet)


def test_the_plot_shows_what_was_busy(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    about = {"sweep": "ampere-distance", "status": "ok", "variant": "distance 2"}
    rows = [
        about | {"kind": "sweep_check"},
        about | {"kind": "sweep_time", "mode": "burst", "rate_tflops": 300.0},
        about | {"kind": "sweep_counters", "hmma_pct": 61.0, "dram_pct": 15.0},
    ]
    sweep_report.plot(sweep_report.lines_of(rows, "ampere-distance"), "t", tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    assert "tensor pipe" in text
    assert "shared memory" not in text
