"""`tilewright build` and `tilewright cache`: the folders of compiled kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call, no_driver, printed, refused

from tilewright.bench import suite
from tilewright.cli import build as build_command
from tilewright.jit import build, cache


def test_a_built_folder_serves_a_machine_that_cannot_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cubins"
    assert "2 products, 1 distinct kernel, " in printed("build", "tiny", "--into", str(folder), "--threads", "2")
    build.clear()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("TILEWRIGHT_PREBUILT", str(folder))
    monkeypatch.setattr("tilewright.jit.nvrtc.compile_source", no_driver)
    answer = json.loads(printed("run", "128", "128", "128", "--json"))
    assert answer["binary"]["from_cache"] is True


def test_products_that_share_a_kernel_are_compiled_once(tmp_path: Path) -> None:
    fields = (
        "tile_m=128 tile_n=128 consumers=2 stages=4 cluster_m=1 cluster_n=1 tail_n=0 store_slots=2 staggered=False "
        "pingpong=False k_back_and_forth=False swap=False split_k=1"
    )
    fixed = [word for field in fields.split() for word in ("--config", field)]
    answer = json.loads(printed("build", "llama3_70b", "--into", str(tmp_path / "cubins"), "--json", *fixed))
    assert answer["products"] == len(suite.GROUPS["llama3_70b"])
    assert len(answer["kernels"]) == 1


def test_the_kernel_that_adds_slices_is_compiled_with_the_products(tmp_path: Path) -> None:
    words = ("tile_m=64", "tile_n=64", "consumers=1", "stages=4", "split_k=1", "slices=8")
    config = [word for each in words for word in ("--config", each)]
    answer = json.loads(printed("build", "256", "256", "65536", "--into", str(tmp_path / "cubins"), "--json", *config))
    assert sorted(each["name"].split("_")[0] for each in answer["kernels"]) == ["hopper", "sums"]


def test_contiguous_operands_of_odd_rows_need_a_copy_that_is_compiled_too(tmp_path: Path) -> None:
    folder = tmp_path / "cubins"
    answer = json.loads(printed("build", "63", "64", "65", "--contiguous", "--into", str(folder), "--json"))
    assert sorted(each["name"].split("_")[0] for each in answer["kernels"]) == ["hopper", "repack"]


def test_all_means_every_shape_of_the_suite() -> None:
    assert build_command.sizes_of(["all"]) == list(suite.shapes())


def test_a_group_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    assert "square, tiny" in refused("build", "cubes", "--into", str(tmp_path))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = call("build", "64", "64", "64", "--into", str(file / "cubins"))
    assert result.exit_code == 2
    assert "choose a folder that you can write" in result.stderr


def test_the_cache_lists_what_was_compiled(cache_folder: Path) -> None:
    assert f"0 entries, 0 B in {cache_folder}" in printed("cache")
    printed("run", "64", "64", "64")
    assert "hopper_bf16_bf16_tn" in printed("cache", "list")
    listed = json.loads(printed("cache", "list", "--json"))
    assert listed["folder"] == str(cache_folder)
    assert listed["total_bytes"] == sum(entry["size_bytes"] for entry in listed["entries"]) > 0


def test_the_path_of_the_cache_is_printed_alone(cache_folder: Path) -> None:
    assert printed("cache", "path") == f"{cache_folder}\n"


def test_clear_asks_and_a_no_keeps_everything(cache_folder: Path) -> None:
    printed("run", "64", "64", "64")
    result = call("cache", "clear", keys="n\n")
    assert result.exit_code == 1
    assert len(cache.user_cache().entries()) == 1


def test_clearing_what_is_not_there_asks_nothing(cache_folder: Path) -> None:
    assert not cache_folder.exists()
    assert printed("cache", "clear") == "removed 0 entries\n"


def test_clear_with_yes_removes_every_entry() -> None:
    printed("run", "64", "64", "64")
    assert "removed 1 entry" in printed("cache", "clear", "--yes")
    assert cache.user_cache().entries() == []


def test_a_cache_that_cannot_be_written_warns_in_one_line_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(file / "cache"))
    result = call("run", "64", "64", "64", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["binary"]["from_cache"] is False
    (warning,) = result.stderr.splitlines()
    assert warning.startswith("warning: cache folder")


def test_trim_removes_what_is_over_the_limit_and_nothing_without_one(cache_folder: Path) -> None:
    printed("run", "64", "64", "64", "--no-emulate")
    assert printed("cache", "trim") == "removed 0 entries\n"
    assert printed("cache", "trim", "--max-mib", "0") == "removed 1 entry\n"
    assert f"0 entries, 0 B in {cache_folder}" in printed("cache")
