"""tools/emulator_page.py: docs/emulator.md lists the table of instructions and shows a report as they are."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def test_the_page_is_fresh(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run tools/emulator_page.py"


def test_a_part_that_was_written_by_hand_is_found(tool: ModuleType) -> None:
    text = "<!-- supported -->\nwmma.everything\n<!-- end: supported -->\n"
    made = tool.fresh(text)
    assert made != text
    assert "wgmma.mma_async.sync.aligned." in made
    assert tool.fresh(made) == made


def test_the_report_names_the_line_of_the_race(tool: ModuleType) -> None:
    report = tool.report_text()
    assert report.startswith("```console\n$ tilewright emulate examples/emulate/reverse.cu --launch")
    assert "data race" in report
    assert "reverse.cu:12" in report
    assert "s on this CPU" not in report
