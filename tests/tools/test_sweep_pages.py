"""tools/sweep_pages.py: the page of sweeps is what the committed rows make, and every sweep has its section."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.bench.sweeps import ampere_size_sweeps, ampere_sweeps, sweeps
from tilewright.device import preset

ROOT = Path(__file__).parents[2]
NAMES = [each.name for each in sweeps(preset("h200"))]
AMPERE_NAMES = [each.name for each in ampere_sweeps()]


def rows() -> list[dict[str, Any]]:
    about = {"sweep": "stages", "variant": "2 slots", "status": "ok", "registers": 168}
    return [about | {"kind": "sweep_check"}, about | {"kind": "sweep_time", "mode": "steady", "rate_tflops": 400.0}]


def test_page_and_plots_are_what_the_committed_rows_make(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run tools/sweep_pages.py"


@pytest.mark.parametrize(("file", "names"), [("sweeps.md", NAMES), ("ampere_sweeps.md", AMPERE_NAMES)])
def test_every_sweep_has_a_section_with_question_prediction_and_block_in_order(file: str, names: list[str]) -> None:
    page = (ROOT / "docs" / "ladder" / file).read_text()
    places = []
    for name in names:
        start = page.index(f"\n## {name.removeprefix('ampere-').capitalize()}\n")
        places += [start, page.index("**Predicted.**", start), page.index(f"<!-- sweep: {name} -->", start)]
    assert places == sorted(places)


def test_sweeps_of_one_question_share_a_section_and_each_says_its_size(tool: ModuleType) -> None:
    page = (ROOT / "docs" / "ladder" / "ampere_sweeps.md").read_text()
    for each in ampere_size_sweeps():
        start = page.index(f"\n## {each.name.split('-')[1].capitalize()}\n")
        assert start < page.index("**Predicted.**", start) < page.index(f"<!-- sweep: {each.name} -->", start)
    about = {"sweep": "ampere-sums-4096", "m": 4096, "n": 4096, "k": 4096, "dtype": "fp16"}
    filled = tool.filled(page, [row | about for row in rows()])
    section = filled[filled.index("<!-- sweep: ampere-sums-4096 -->") :]
    assert section.splitlines()[1] == "At 4096 x 4096 x 4096, fp16."
    of_all = {"sweep": "stages", "m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"}
    assert "At 8192" not in tool.filled((ROOT / "docs/ladder/sweeps.md").read_text(), [row | of_all for row in rows()])


def test_rows_fill_their_section_alone(tool: ModuleType) -> None:
    page = tool.filled((ROOT / "docs" / "ladder" / "sweeps.md").read_text(), rows())
    section = page[page.index("<!-- sweep: stages -->") : page.index("<!-- end: stages -->")]
    assert "![TFLOPS of each variant](plots/sweep_stages.svg)" in section
    assert "| 2 slots | 400 | 168 |" in section
    assert page.count("_Not measured yet._") == len(NAMES) - 1


def test_a_block_of_no_sweep_is_an_error(tool: ModuleType) -> None:
    with pytest.raises(KeyError):
        tool.filled("<!-- sweep: strange -->\n<!-- end: strange -->\n", [])


def test_a_plot_is_stale_when_it_is_missing_or_shows_other_numbers(tool: ModuleType, tmp_path: Path) -> None:
    [(name, path)] = tool.stale_plots(rows(), tmp_path)
    assert (name, path.name) == ("stages", "sweep_stages.svg")
    path.write_text("another digest")
    assert tool.stale_plots(rows(), tmp_path) == [(name, path)]
    path.write_text(f"<svg>{tool.digest(tool.lines_of(rows(), 'stages'))}</svg>")
    assert tool.stale_plots(rows(), tmp_path) == []


def test_page_and_plot_are_written_and_then_fresh(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    page, source = tmp_path / "sweeps.md", tmp_path / "rows.json"
    page.write_text("<!-- sweep: stages -->\n<!-- end: stages -->\n")
    source.write_text(json.dumps({"facts": {"device": "x"}, "rows": rows()}))
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "PAGES", (page,))
    monkeypatch.setattr(tool, "PLOTS", tmp_path / "plots")
    assert tool.main(["--check", str(source)]) == 1
    assert tool.main([str(source)]) == 0
    assert tool.main(["--check", str(source)]) == 0


def test_only_the_newest_rows_of_sweeps_count(tool: ModuleType, tmp_path: Path) -> None:
    for name in ("h200_2026-11-30_sweeps", "h200_2026-12-01_sweeps", "h200_2026-12-02_time"):
        (tmp_path / f"{name}.json").write_text("{}")
    assert [path.name for path in tool.committed(tmp_path)] == ["h200_2026-12-01_sweeps.json"]
