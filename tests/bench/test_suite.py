"""The table of shapes, and files of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.bench.suite import GROUPS, named, shapes
from tilewright.errors import UnsupportedError


def test_a_group_and_all_of_them_are_named() -> None:
    assert named("tiny") == GROUPS["tiny"]
    assert named("all") == shapes()


def test_a_file_of_groups_is_read_without_its_comment_and_without_repeats(tmp_path: Path) -> None:
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps({"comment": "of M, N, K", "a": [[1, 2, 3], [4, 5, 6]], "b": [[1, 2, 3]]}))
    assert named(str(file)) == ((1, 2, 3), (4, 5, 6))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": [[1, 2]]}', '{"a": [[1, 2, "3"]]}', '{"a": [7]}', "no json"])
def test_a_file_of_anything_else_is_refused_with_what_works(tmp_path: Path, text: str) -> None:
    file = tmp_path / "shapes.json"
    file.write_text(text)
    with pytest.raises(UnsupportedError, match="square, tiny"):
        named(str(file))


def test_a_name_that_is_neither_group_nor_file_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="cubes"):
        named("cubes")
