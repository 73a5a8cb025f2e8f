"""bench/suite.py: which shapes a word or a file names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.bench import suite
from tilewright.bench.suite import Entry, entries, problem_of
from tilewright.errors import UnsupportedError


def test_all_is_every_shape_once_in_the_order_of_the_table() -> None:
    found = entries("all")
    assert [entry.shape for entry in found] == list(dict.fromkeys(suite.shapes()))
    assert len(found) == 68


def test_sweeps_are_named_alone_and_are_no_part_of_all() -> None:
    assert len(entries("neighbours")) == 33 + 17
    assert len(entries("decode")) == 2 * 64
    assert {entry.group for entry in entries("decode,neighbours")} == {"decode", "neighbours"}
    assert not {entry.group for entry in entries("all")} & set(suite.SWEEPS)


def test_groups_and_sizes_are_joined_by_commas_and_a_shape_keeps_its_first_group() -> None:
    assert entries("tiny, 64x32x16,128x128x128") == [
        Entry("tiny", (128, 128, 128)),
        Entry("tiny", (384, 128, 256)),
        Entry("named", (64, 32, 16)),
    ]


def test_a_file_of_groups_is_read_and_its_comment_is_none(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"comment": "mine", "first": [[1, 2, 3]], "second": [[4, 5, 6], [7, 8, 9]]}))
    assert [(entry.group, str(entry)) for entry in entries(str(file))] == [
        ("first", "1x2x3"),
        ("second", "4x5x6"),
        ("second", "7x8x9"),
    ]


@pytest.mark.parametrize(
    "content",
    ['{"a": [[1, 2]]}', '{"a": [[1, 2, 0]]}', '{"a": [[1, 2, "3"]]}', '{"a": [7]}', "[1]", "[" * 100_000, "{", None],
)
def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "own.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UnsupportedError, match=r"own\.json"):
        entries(str(file))


@pytest.mark.parametrize("text", ["", "squares", "64x32", "0x1x1", "1x2x3x4"])
def test_a_word_that_is_no_suite_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(UnsupportedError, match="square, tiny, odd"):
        entries(text)


def test_a_file_without_shapes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text('{"comment": "nothing"}')
    with pytest.raises(UnsupportedError, match="names no shape"):
        entries(str(file))


def test_a_products_matrices_are_contiguous_also_where_rows_are_odd() -> None:
    problem = problem_of((4097, 4099, 4095), out_dtype="fp32")
    assert (problem.a_pitch, problem.b_pitch, problem.out_pitch) == (4095, 4095, 4099)
    assert problem_of((8, 24, 16), b_major="n").b_pitch == 24
