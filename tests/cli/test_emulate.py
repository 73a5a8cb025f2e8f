"""`tilewright emulate`: the project's kernels, the ladder's, and files of others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import call, printed, refused

EXAMPLE = Path(__file__).parents[2] / "examples" / "emulate"
RACE, LAUNCH = str(EXAMPLE / "reverse.cu"), str(EXAMPLE / "reverse.toml")


def test_a_product_is_checked_and_its_tables_are_printed() -> None:
    text = printed("emulate", "64", "64", "128", "--config", "tile_n=64", "--config", "stages=4")
    assert "whole numbers, exact: right: 4096 elements" in text
    assert "findings: none" in text
    assert "schedule lazy, vectors of one warpgroup" in text
    for title in ("Bank conflicts, counted", "Shared memory of TMA and wgmma, by rule", "Work", "Warp instructions"):
        assert title in text
    assert re.search(r"stmatrix\S* +│ copy\.cuh:\d+ < epilogue\.cuh:\d+", text)


def test_json_holds_all_that_is_printed() -> None:
    words = ("--schedule", "random", "--seed", "3", "--width", "warp", "--no-banks", "--json")
    answer = json.loads(printed("emulate", "64", "64", "64", *words))
    assert answer["right"] is True
    assert answer["findings"] == []
    assert answer["checks"]["whole numbers, exact"]["ok"] is True
    assert (answer["width"], answer["banks"], answer["patterns"]) == ("warp", [], [])
    assert answer["work"]["FLOPs, tensor cores"] >= 2 * 64**3
    assert answer["instructions"]
    assert answer["choices"]["seed"] == 3


def test_a_product_with_copies_is_named_and_counted_with_them() -> None:
    answer = json.loads(printed("emulate", "31", "17", "65", "--contiguous", "--json"))
    assert answer["right"] is True
    assert answer["what"].endswith("2 launches: repack a and b, hopper")
    assert answer["work"]["bytes, global written"] > (31 + 17) * 65 * 2


@pytest.mark.parametrize("rung", ["v01", "v04"])
def test_a_rung_of_the_ladder_is_emulated_by_name(rung: str) -> None:
    answer = json.loads(printed("emulate", "64", "64", "64", "--rung", rung, "--no-checks", "--json"))
    assert rung in answer["what"]
    assert answer["right"] is True


def test_several_rungs_are_refused() -> None:
    assert "names 3 rungs" in refused("emulate", "64", "64", "64", "--rung", "v01-v03")


def test_a_product_of_minutes_is_refused_with_a_size_that_works_and_force() -> None:
    assert re.search(r"would take about .*; try \d+x\d+x\d+, .*--force", refused("emulate", "8192", "8192", "8192"))


def test_the_example_with_a_race_is_reported_with_its_lines() -> None:
    result = call("emulate", RACE, "--launch", LAUNCH)
    assert result.exit_code == 1
    read = next(n for n, line in enumerate(Path(RACE).read_text().splitlines(), 1) if "127 - threadIdx" in line)
    assert re.search(rf"data race .*reverse\.cu:{read}", result.stdout)
    assert "__syncthreads" in result.stdout


@pytest.mark.parametrize("schedule", ["lazy", "eager", "random"])
def test_the_repaired_example_is_silent_and_right(tmp_path: Path, schedule: str) -> None:
    fixed = tmp_path / "reverse.cu"
    fixed.write_text(Path(RACE).read_text().replace("// here", "__syncthreads();"))
    printed("emulate", str(fixed), "--launch", LAUNCH, "--save", str(tmp_path), "--schedule", schedule)
    expected = np.arange(512, dtype=np.float32).reshape(4, 128)[:, ::-1].reshape(-1)
    assert (np.load(tmp_path / "x.npy") == expected).all()


def test_a_deadlock_is_the_answer_and_not_a_refusal(tmp_path: Path) -> None:
    stuck = tmp_path / "stuck.cu"
    text = (
        Path(RACE).read_text().replace("// here", 'if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");')
    )
    stuck.write_text(text)
    result = call("emulate", str(stuck), "--launch", LAUNCH)
    assert result.exit_code == 1
    assert "stopped by the rule 'deadlock'" in result.stdout
    answer = json.loads(call("emulate", str(stuck), "--launch", LAUNCH, "--json").stdout)
    assert (answer["right"], answer["rule"]) == (False, "deadlock")


def test_a_kernel_that_does_not_end_meets_the_budget_that_is_given(tmp_path: Path) -> None:
    endless = tmp_path / "endless.cu"
    endless.write_text(Path(RACE).read_text().replace("// here", 'asm volatile("AGAIN: bra AGAIN;");'))
    answer = json.loads(call("emulate", str(endless), "--launch", LAUNCH, "--max-blocks", "50", "--json").stdout)
    assert (answer["rule"], answer["choices"]["max_blocks"]) == ("step budget", 50)


def test_a_ptx_file_runs_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "reverse.ptx"
    from tilewright.cli.emulate import _compiled

    source.write_text(_compiled(Path(RACE), ""))
    monkeypatch.setattr("tilewright.jit.nvrtc.compile_source", None)
    assert call("emulate", str(source), "--launch", LAUNCH).exit_code == 1


def test_headers_beside_the_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "width.cuh").write_text("#define WIDTH 128\n")
    unit = tmp_path / "reverse.cu"
    text = Path(RACE).read_text().replace("// here", "__syncthreads();").replace("tile[128]", "tile[WIDTH]")
    unit.write_text('#include "width.cuh"\n' + text)
    assert "findings: none" in printed("emulate", str(unit), "--launch", LAUNCH)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("64", "64"), "are not three whole numbers|neither M N K"),
        ((RACE,), "give M N K, or one .ptx or .cu file and --launch"),
        (("race.txt", "--launch", LAUNCH), "give M N K, or one .ptx or .cu file and --launch"),
        (("none.cu", "--launch", LAUNCH), "No such file"),
        ((RACE, "--launch", "none.toml"), "No such file"),
        (("64", "64", "64", "--schedule", "late"), "lazy"),
        (("-5", "8", "8"), "m = -5"),
    ],
)
def test_what_cannot_be_emulated_is_refused(words: tuple[str, ...], sentence: str) -> None:
    assert re.search(sentence, refused("emulate", *words))


def test_a_file_with_two_kernels_needs_a_name(tmp_path: Path) -> None:
    unit = tmp_path / "two.cu"
    unit.write_text('extern "C" __global__ void f() {}\nextern "C" __global__ void __launch_bounds__(32) g() {}\n')
    assert "found: f, g" in refused("emulate", str(unit), "--launch", LAUNCH)


def test_text_that_is_no_ptx_is_refused_with_its_line(tmp_path: Path) -> None:
    source = tmp_path / "bad.ptx"
    source.write_text(".version 8.7\n.target sm_90a\n.visible .entry k() { fly %r1; }\n")
    assert "PTX line 3" in refused("emulate", str(source), "--launch", LAUNCH)
