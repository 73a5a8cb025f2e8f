"""bench/sanitizers.py: what is run under which tool, and that every report is kept with its text."""

from __future__ import annotations

from tilewright import device
from tilewright.bench import sanitizers
from tilewright.bench.cases import FORMS
from tilewright.config import Config
from tilewright.kernels.ladder import RUNGS

H200 = device.preset("h200")

RACES = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at v03_tuned_tma+0x520 in unit.cu:71
=========     and Read access at v03_tuned_tma+0x7a0 in unit.cu:88 [16 hazards]
=========
the program says something
========= Warning: Race reported between Read access at v03_tuned_tma+0x100
=========     and Write access at v03_tuned_tma+0x200 [4 hazards]
=========
========= Error: Race reported between Write access at v03_tuned_tma+0x520 in unit.cu:71
=========     and Read access at v03_tuned_tma+0x7a0 in unit.cu:88 [32 hazards]
=========
========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)
"""

INVALID = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at hopper_gemm+0x90 in unit.cu:10
=========     by thread (0,0,0) in block (1,0,0)
=========
========= ERROR SUMMARY: 1 error
"""


def test_all_forms_run_under_every_tool_and_every_rung_under_racecheck() -> None:
    targets = list(sanitizers.targets())
    assert [target.config for target in targets if not target.rung] == [Config(), *FORMS.values()]
    assert {target.tools for target in targets if not target.rung} == {("memcheck", "racecheck", "synccheck")}
    assert [target.rung for target in targets if target.rung] == [rung.name for rung in RUNGS]
    assert {target.tools for target in targets if target.rung} == {("racecheck",)}


def test_every_target_has_small_products_several_tiles_a_cta_among_them() -> None:
    for target in sanitizers.targets():
        cases = target.cases(H200)
        assert len(cases) >= 4, target.name
        assert cases[-1].num_sms == (2 if target.rung else max(2, target.config.cluster))
        assert max(case.problem.m * case.problem.n * case.problem.k for case in cases) < 2**29


def test_every_kernel_can_be_built_elsewhere() -> None:
    entries = {source.entry for source in sanitizers.sources(H200)}
    assert entries == {"hopper_gemm", *(rung.name for rung in RUNGS)}


def test_different_reports_are_kept_once_each_with_text_and_count() -> None:
    reports = sanitizers.reports_of(RACES)
    assert [report["count"] for report in reports] == [2, 1]
    assert reports[0]["text"].splitlines() == [
        "Error: Race reported between Write access at v03_tuned_tma+0x520 in unit.cu:71",
        "and Read access at v03_tuned_tma+0x7a0 in unit.cu:88 [16 hazards]",
    ]
    assert reports[1]["text"].startswith("Warning: Race")
    [report] = sanitizers.reports_of(INVALID)
    assert report["text"].splitlines()[-1] == "by thread (0,0,0) in block (1,0,0)"
    assert sanitizers.reports_of("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []


def test_a_row_says_the_verdict_of_the_tool_and_of_the_products() -> None:
    target = sanitizers.Target(config=RUNGS[2].config, rung=RUNGS[2].name)
    results = [{"status": "ok"}, {"status": "wrong"}, {"status": "skipped"}]
    row = sanitizers.row_of(target, "racecheck", "exit 9", results, RACES, 1.234)
    assert (row["config"], row["status"], row["products"], row["wrong"]) == (RUNGS[2].name, "exit 9", 2, 1)
    assert row["summary"].startswith("RACECHECK SUMMARY: 3 hazards")
    assert len(row["reports"]) == 2
    assert sanitizers.row_of(target, "racecheck", "ok", [], "Segmentation fault", 0.0)["summary"].startswith(
        "no summary"
    )
