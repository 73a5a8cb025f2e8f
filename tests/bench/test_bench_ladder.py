"""bench/ladder.py, ladder_report.py and ladder_emulated.py: which rungs, what a row says, tables, files, children."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import device
from tilewright.bench import ladder, ladder_emulated, ladder_report
from tilewright.errors import DriverError, UnsupportedError
from tilewright.host_operands import host_operands
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.ladder import RUNGS
from tilewright.packing import packed

H200 = device.preset("h200")
NAMES = [rung.name for rung in RUNGS]


def timed(rung: str, mode: str, rate: float, **more: Any) -> dict[str, Any]:
    base = {
        "m": 512, "n": 512, "k": 512, "dtype": "bf16", "mode": mode, "candidate": rung, "rate_tflops": rate,
        "ratio": 0.9, "tflops_per_watt": None,
        "watts": 690.0 if mode == "steady" else None, "clock_mhz": 1400.0,
    }  # fmt: skip
    return ladder.described(base, rung, "NVIDIA H200", None) | more


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("v04", NAMES[3:4]),
        ("v04_warp_specialized", NAMES[3:4]),
        ("v06-v08,v01", [NAMES[0], *NAMES[5:8]]),
        ("v11-v12", [NAMES[10], ladder.PRODUCTION]),
        ("all", [*NAMES, ladder.PRODUCTION]),
        ("a3-a5,v02", [NAMES[1], "a3_padded", "a4_swizzled", "a5_multistage"]),
        ("ampere", [rung.name for rung in AMPERE_RUNGS]),
    ],
)
def test_rungs_are_named_by_number_name_or_range(text: str, found: list[str]) -> None:
    assert list(ladder.named(text)) == found


@pytest.mark.parametrize("text", ["v13", "", "v04-v99", "warp", "v10-a2", "a10"])
def test_a_rung_that_is_not_there_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(UnsupportedError, match="v01_simt, v02"):
        ladder.named(text)


def test_a_share_is_of_the_ceiling_of_the_same_instruction_and_mode_and_empty_where_there_is_none() -> None:
    rows = [timed("v04_warp_specialized", mode, 450.0) for mode in ("burst", "steady", "interleaved")]
    rows.append({"kind": "rung_check", "rung": "v04_warp_specialized", "status": "ok"})
    rows += [timed(name, "burst", 450.0) for name in ("a5_multistage", ladder.PRODUCTION, ladder.CUBLAS)]
    ceilings = {"wgmma": {"burst": 900.0, "steady": 500.0}, "mma.sync": {"burst": 600.0}}
    found = ladder.with_ceilings(rows, ceilings)
    assert [row.get("share_of_ceiling") for row in found] == [0.5, 0.9, None, None, 0.75, 0.5, 0.5]
    assert [row["ceiling_tflops"] for row in found[:3]] == [900.0, 500.0, None]
    assert "ceiling_tflops" not in found[3]
    columns = ladder_report.COLUMNS.index("of wgmma, burst"), ladder_report.COLUMNS.index("of mma.sync, burst")
    shown = {line[0]: [line[column] for column in columns] for line in ladder_report.cells(found)}
    assert shown["v04_warp_specialized"] == shown[ladder.CUBLAS] == ["0.500", "-"]
    assert shown["a5_multistage"] == ["-", "0.750"]
    assert [row["share_of_ceiling"] for row in ladder.with_ceilings(rows, {})[:3]] == [None] * 3


def test_a_row_of_a_plan_says_its_registers_and_shared_memory_the_production_kernel_s_too() -> None:
    plans = ladder.plans_of([NAMES[0], ladder.PRODUCTION], packed(8192, 8192, 8192), H200, no_backend)
    row = {"mode": "burst", "rate_tflops": 1.0}
    simt, production = (ladder.described(row, name, "NVIDIA H200", plan) for name, plan in plans.items())
    assert simt["smem_bytes"] == plans[NAMES[0]].binary.resources.smem_bytes > 0  # static
    assert production["registers"] == 168
    assert production["smem_bytes"] == plans[ladder.PRODUCTION].launch.smem_bytes > 100_000


def test_the_table_has_a_line_a_rung_in_order_failures_among_them_and_cublas_last() -> None:
    rows = [
        timed(ladder.CUBLAS, "burst", 810.0, ratio=None),
        timed("v05_moved_registers", "burst", 700.0),
        timed("v03_tuned_tma", "steady", 400.0),
        {"kind": "rung_check", "rung": "v04_warp_specialized", "status": "stopped after 120 s", "why": ""},
        {"kind": "rung_emulated", "rung": "v05_moved_registers", "status": "ok", "conflicts": 0.25},
    ]
    lines = ladder_report.cells(rows)
    assert [line[0] for line in lines] == [NAMES[2], NAMES[3], NAMES[4], ladder.CUBLAS]
    assert lines[1][1] == "stopped after 120 s"
    assert lines[2][1] == "700"
    column = ladder_report.COLUMNS.index("bank conflicts")
    assert [line[column] for line in lines] == ["-", "-", "0.25", "-"]
    assert all(len(line) == len(ladder_report.COLUMNS) for line in lines)


def test_what_ncu_counted_is_in_the_line_of_its_rung_and_a_refusal_is_no_failure() -> None:
    name, other = NAMES[2:4]
    counted = {"kind": "rung_counters", "rung": name, "status": "ok", "dram_read_bytes": 1.1e9, "l2_bytes": 8e9}
    counted |= {"dram_written_bytes": 1e8, "wavefronts": 300.0, "bank_conflicts": 100.0}
    refused = {"kind": "rung_counters", "rung": other, "status": "not counted", "why": "ERR_NVGPUCTRPERM"}
    emulated_row = {"kind": "rung_emulated", "rung": name, "status": "ok", "conflicts": 0.25}
    lines = ladder_report.cells([timed(name, "burst", 1.0), timed(other, "burst", 2.0), counted, refused, emulated_row])
    assert lines[0][-3:] == ("0.50", "1200", "8000")
    assert lines[1][:2] == (other, "2")
    assert lines[1][-3:] == ("-", "-", "-")
    only = ladder_report.cells([timed(name, "burst", 1.0), counted | {"wavefronts": 0.0, "dram_read_bytes": None}])
    assert only[0][-3:] == ("-", "-", "8000")


def test_rows_table_and_plot_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [timed(name, mode, 100.0) for name in NAMES[:3] for mode in ("burst", "steady")]
    paths, no_plot = ladder_report.write(rows, {"device": "x"}, "table\n", tmp_path / "out")
    assert [path.name for path in paths] == ["ladder.json", "ladder.md", "ladder.svg"]
    assert no_plot == ""
    assert json.loads(paths[0].read_text()) == {"facts": {"device": "x"}, "rows": rows}
    assert paths[2].stat().st_size > 1000


def test_a_run_of_the_ampere_ladder_alone_has_files_of_its_own(tmp_path: Path) -> None:
    rows = [{"kind": "rung_emulated", "rung": "a5_multistage", "status": "ok"}]
    paths, _ = ladder_report.write(rows, {}, "table\n", tmp_path)
    assert [path.name for path in paths] == ["ampere_ladder.json", "ampere_ladder.md"]
    paths, _ = ladder_report.write([*rows, {"kind": "rung_emulated", "rung": NAMES[0]}], {}, "table\n", tmp_path)
    assert [path.name for path in paths] == ["ladder.json", "ladder.md"]


def test_the_emulated_table_leaves_out_what_no_rung_does() -> None:
    problem = packed(64, 64, 64)
    for name, there, missing in (("a5_multistage", "cp.async", "wgmma"), (NAMES[1], "wgmma", "ldmatrix")):
        columns, lines = ladder_emulated.table(list(ladder_emulated.emulated_rows([name], problem)))
        assert there in columns
        assert missing not in columns
        assert len(lines[0]) == len(columns)
        assert (columns[0], columns[-1], lines[0][1]) == ("rung", "s", "exact")


def test_what_adds_slices_up_is_built_with_the_rung_that_makes_them() -> None:
    entries = [source.entry for source in ladder.sources(["a8_split_k"], packed(8192, 8192, 8192), H200)]
    assert set(entries) == {"a8_split_k", "sums"}


def test_without_matplotlib_the_rows_are_written_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    paths, no_plot = ladder_report.write([timed(NAMES[0], "burst", 1.0)], {}, "table\n", tmp_path)
    assert [path.name for path in paths] == ["ladder.json", "ladder.md"]
    assert "tilewright[report]" in no_plot


def test_a_check_that_dies_is_a_row_and_its_rung_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def child(words: list[str], limit_s: float, about: dict[str, Any]) -> list[dict[str, Any]]:
        asked.append(list(words))
        if words[0] == "--time":
            return [about | {"status": "ok"}]
        found = []
        for name in words[1].split(","):
            verdicts = [{"kind": "rung_check", "rung": name, "problem": "p", "status": "ok"}] * ladder.CHECKS
            if name == "v02_tensor_cores":
                return [*found, *verdicts[:3], about | {"status": "stopped after 120 s"}]
            found += verdicts
        return found

    monkeypatch.setattr(ladder, "child", child)
    said: list[str] = []
    names = ladder.named("v01-v03,v12")
    rows = ladder.measure(names, packed(64, 64, 64), modes=("burst", "steady"), progress=said.append)
    assert [row["rung"] for row in rows if row["status"] == "stopped after 120 s"] == ["v02_tensor_cores"]
    checks = [words[1] for words in asked if words[0] == "--check"]
    assert checks == ["v01_simt,v02_tensor_cores,v03_tuned_tma", "v03_tuned_tma"]
    assert [words[1] for words in asked if words[0] == "--time"] == [f"v01_simt,v03_tuned_tma,{ladder.PRODUCTION}"] * 2
    assert said[-2:] == ["timing burst", "timing steady"]


def test_the_best_of_cublaslt_is_looked_for_once_and_its_finalists_are_raced_in_the_other_modes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []

    def child(words: list[str], limit_s: float, about: dict[str, Any]) -> list[dict[str, Any]]:
        asked.append(list(words))
        if "--tuned-from" in words:
            saved = json.loads(Path(words[words.index("--tuned-from") + 1]).read_text())
            assert saved[0]["tuned"] == "of burst"
        return [about | {"status": "ok", "tuned": f"of {about['mode']}"}] if "mode" in about else []

    monkeypatch.setattr(ladder, "child", child)
    ladder.measure((ladder.PRODUCTION,), packed(64, 64, 64), modes=("burst", "steady"), tune_s=20.0)
    first, second = asked
    assert first[first.index("--tune-s") + 1] == second[second.index("--tune-s") + 1] == "20.0"
    assert "--tuned-from" in second
    assert "--tuned-from" not in first
    asked.clear()
    ladder.measure((ladder.PRODUCTION,), packed(64, 64, 64), modes=("burst",))
    assert "--tune-s" not in asked[0]


def test_the_table_shows_the_best_of_cublaslt_after_cublas() -> None:
    rows = [timed(ladder.TUNED, "steady", 681.0), timed(ladder.CUBLAS, "steady", 661.0, ratio=None)]
    assert [(line[0], line[2]) for line in ladder_report.cells(rows)] == [("cublas", "661"), ("cublaslt", "681")]


def test_a_child_without_a_gpu_ends_with_its_reason_as_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (row,) = ladder.child(
        ["--check", "v04", "64", "64", "64"], 60, {"kind": "rung_check", "rung": "v04_warp_specialized"}
    )
    assert row["status"] == "exit 1"
    assert row["rung"] == "v04_warp_specialized"
    assert "Error: " in row["why"]


def no_backend() -> Any:
    raise DriverError("none", "none", "none", "0")


def test_a_plan_of_a_rung_is_a_plan() -> None:
    plan = ladder.RungPlan(RUNGS[3], packed(512, 512, 512), H200, backend=no_backend)
    assert plan.binary.entry == "v04_warp_specialized"
    assert plan.launch.grid == 16
    debug = ladder.RungPlan(RUNGS[3], packed(512, 512, 512), H200, backend=no_backend, wait_limit=9)
    assert "trap;" in debug.binary.ptx


def test_all_that_a_measurement_loads_can_be_built_elsewhere() -> None:
    problem = packed(256, 256, 256)
    sources = ladder.sources(ladder.named("v01,v10"), problem, H200)
    assert {source.entry for source in sources} == {"v01_simt", "v10_tma_store"}
    wanted = {source.digest("") for source in sources}
    for rung in (RUNGS[0], RUNGS[9]):
        for shape in ladder.CHECK_SHAPES:
            plan = ladder.render(rung, packed(*shape), rung.config, H200, ladder.WAIT_LIMIT)
            assert plan.digest("") in wanted
        assert ladder.render(rung, problem, rung.config, H200).digest("") in wanted


def test_emulated_rows_say_what_a_rung_did() -> None:
    names = ladder.named("v03,v10,v12")
    rows = list(ladder_emulated.emulated_rows(names, packed(256, 512, 128)))
    assert [(row["rung"], row["status"]) for row in rows] == [(name, "ok") for name in names]
    assert rows[1]["instructions"]["TMA store"] > 0
    assert "TMA store" not in rows[0]["instructions"]
    # TMA brings each operand of a tile once: multicast halves what is read of b, not what is written.
    assert rows[0]["traffic"]["shared written"] == 2 * 4 * 2 * (128 + 128) * 64 * 2
    assert all(len(line) == len(ladder_emulated.COLUMNS) for line in ladder_emulated.cells(rows))


def test_a_finding_is_a_row_too() -> None:
    line = ladder_emulated.cells([{"rung": "v04", "status": "finding", "why": "a race", "seconds": 0.1}])
    assert line[0][1] == "a race"


def test_operands_on_the_host_are_poisoned_where_no_kernel_may_look() -> None:
    a, b, out = host_operands(packed(5, 6, 9), seed=0)
    assert a.memory.shape == (4 * 16 + 9,)
    assert np.isnan(a.memory[: 4 * 16].reshape(4, 16)[:, 9:].astype(np.float32)).all()
    assert not np.isnan(b.view.astype(np.float32)).any()
    assert np.isnan(out.memory.astype(np.float32)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [*RUNGS, *AMPERE_RUNGS], ids=lambda rung: rung.name)
def test_a_rung_is_right_on_the_device(rung: Any) -> None:
    rows = ladder.child(["--check", rung.name, "1024", "1024", "1024"], 120, {"kind": "rung_check", "rung": rung.name})
    failed = [f"{row['status']}: {row.get('why', row)}" for row in rows if row["status"] != "ok"]
    assert not failed, "\n".join(failed)
    assert len(rows) == 2 * len(ladder.CHECK_SHAPES) + 1
