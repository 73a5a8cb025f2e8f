"""tools/ladder_pages.py: the pages of docs/ladder are fresh, and the code's steps are as small as they say."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.ladder import RUNGS, Rung

ROOT = Path(__file__).parents[2]

# Lines of code added and taken away, beside the head comment: what keeps a rung one idea.
LARGEST_STEP = {
    "v03": 60, "v04": 150, "v05": 30, "v06": 60, "v07": 46, "v08": 35, "v09": 40, "v10": 20, "v11": 15,
    "a1": 120, "a2": 30, "a3": 5, "a4": 15, "a5": 90, "a6": 50, "a7": 5, "a8": 20, "a9": 10,
}  # fmt: skip
TRACKS: dict[str, tuple[Rung, ...]] = {"index.md": RUNGS, "ampere.md": AMPERE_RUNGS}


def row(rung: str, mode: str, rate: float) -> dict[str, Any]:
    return {
        "kind": "rung_time", "status": "ok", "rung": rung, "mode": mode, "rate_tflops": rate, "ratio": 1.01,
        "m": 8192, "n": 8192, "k": 8192, "watts": 700.0,
        "share_of_ceiling": 0.9, "tflops_per_watt": 1.2, "clock_mhz": 1500.0, "registers": 168, "smem_bytes": 230400,
    }  # fmt: skip


def test_every_page_is_what_the_sources_and_the_committed_rows_make(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run tools/ladder_pages.py"


@pytest.mark.parametrize("name", TRACKS)
def test_an_index_leads_to_every_rung_of_its_ladder_and_each_page_to_the_next(name: str) -> None:
    index = (ROOT / "docs" / "ladder" / name).read_text()
    for rung in TRACKS[name]:
        assert f"({rung.number}.md)" in index
        page = (ROOT / "docs" / "ladder" / f"{rung.number}.md").read_text()
        assert f"`src/tilewright/kernels/cuda/{rung.source}`" in page
        for heading in (
            "The idea",
            "The data flow",
            "What changes in the code",
            "Predicted",
            "Measured",
            "What it costs",
        ):
            assert f"## {heading}\n" in page, (rung.name, heading)
        assert re.search(r"## Predicted\n\n\*\*\d+ TFLOPS burst", page), rung.name
        for target in re.findall(r"\]\(([^)#]+)\)", re.sub(r"```.*?```", "", page, flags=re.DOTALL)):
            assert (ROOT / "docs" / "ladder" / target).exists(), target


@pytest.mark.parametrize("number", LARGEST_STEP)
def test_a_step_of_the_ladder_changes_few_lines(tool: ModuleType, number: str) -> None:
    rung = next(rung for rung in (*RUNGS, *AMPERE_RUNGS) if rung.number == number)
    assert 0 < tool.changed_lines(rung) <= LARGEST_STEP[number]


def test_the_entry_s_name_and_the_indent_of_its_parameters_are_no_difference(tool: ModuleType) -> None:
    text = tool.diff(RUNGS[10])
    assert "v11_hilbert" not in text
    assert "-         int32_t group_m) {" in text


def test_measured_rows_fill_the_page_and_the_table(tool: ModuleType) -> None:
    rows = [row("v05_moved_registers", "burst", 701.2), row("v05_moved_registers", "steady", 602.0)]
    rows.append(row("v06_persistent", "burst", 300.0) | {"m": 4096})  # of another size: not on these pages
    filled = {path.name: text for path, text in tool.pages(rows).items()}
    assert "| burst | 701 |" in filled["v05.md"]
    assert "_Not measured yet._" in filled["v06.md"]
    assert "| v05_moved_registers | 701 | 602 | - | 667 |" in filled["index.md"]


def test_each_ladder_is_filled_from_its_own_rows_with_the_columns_that_they_fill(tool: ModuleType) -> None:
    own = [row("a5_multistage", "burst", 411.0), row("cublas", "burst", 810.0) | {"registers": None}]
    filled = {path.name: text for path, text in tool.pages([row("cublas", "burst", 700.0)], own).items()}
    assert "| burst | 411 |" in filled["a5.md"]
    assert "| cublas | 810 |" in filled["ampere.md"]
    assert "| cublas | 700 |" in filled["index.md"]
    [head] = [line for line in filled["ampere.md"].splitlines() if line.startswith("| rung | burst")]
    assert "public" not in head


def test_a_ladder_measured_at_another_size_and_in_one_way_says_so_on_every_page(tool: ModuleType) -> None:
    own = [row("a5_multistage", "burst", 335.0) | {"m": 4096, "n": 4096, "k": 4096}]
    filled = {path.name: text for path, text in tool.pages([], own).items()}
    said = "At 4096 x 4096 x 4096. Not measured yet: interleaved, steady, what ncu counts."
    assert said in filled["a5.md"]
    assert said in filled["ampere.md"]
    assert said not in filled["a6.md"]
    both = {path.name: text for path, text in tool.pages([], [*own, row("a6_double", "burst", 350.0)]).items()}
    assert "4096 x 4096" not in both["ampere.md"].split("<!-- table -->")[1].split("<!-- end")[0]


def test_pages_show_the_size_that_was_measured_in_the_most_ways_and_the_index_the_others_too(tool: ModuleType) -> None:
    small = {"m": 4096, "n": 4096, "k": 4096}
    own = [row("a5_multistage", mode, 335.0) | small for mode in ("burst", "interleaved", "steady")]
    more = [row("a5_multistage", mode, 411.0) | {"device": "NVIDIA H200"} for mode in ("burst", "interleaved")]
    filled = {path.name: text for path, text in tool.pages([], [*more, *own]).items()}
    assert "| burst | 335 |" in filled["a5.md"]
    table, also = (filled["ampere.md"].split(f"<!-- {name} -->")[1].split("<!-- end")[0] for name in ("table", "also"))
    assert "| a5_multistage | 335 | 335 | 335 |" in table
    assert "At 8192 x 8192 x 8192." in also
    assert "| a5_multistage | 411 | - | 411 |" in also
    assert "NVIDIA H200" in also
    assert "411" not in table
    assert tool.also(own) == "_Not measured yet._\n"


def test_what_was_measured_in_every_way_has_no_note(tool: ModuleType) -> None:
    rows = [row("a5_multistage", mode, 335.0) for mode in tool.MODES]
    assert tool.told([*rows, {"kind": "rung_counters", "status": "ok"}]) == ""


def test_a_block_of_an_unknown_name_is_an_error(tool: ModuleType) -> None:
    with pytest.raises(KeyError):
        tool.filled("<!-- strange -->\n<!-- end: strange -->\n", {"diff": ""})
