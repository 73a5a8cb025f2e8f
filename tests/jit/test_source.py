"""The digest sees every input and nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from jit_units import HEADERS, make_source

from tilewright.errors import UnsupportedError
from tilewright.jit.source import Source

CHANGES: dict[str, Any] = {
    "name": "other",
    "text": make_source().text + " ",
    "headers": (HEADERS[0], ("ptx/part.cuh", HEADERS[1][1] + " ")),
    "entry": "other",
    "arch": "sm_90",
    "options": ("-DX",),
}


def test_every_field_of_source_has_a_change_here() -> None:
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Source)}


@pytest.mark.parametrize("field", CHANGES)
def test_changing_a_field_changes_the_digest(source: Source, field: str) -> None:
    assert make_source(**{field: CHANGES[field]}).digest("nvrtc 1") != source.digest("nvrtc 1")


def test_changing_the_compiler_changes_the_digest(source: Source) -> None:
    assert source.digest("nvrtc 13.5.37") != source.digest("nvrtc 13.5.38")


def test_renaming_a_header_changes_the_digest(source: Source) -> None:
    renamed = (HEADERS[0], ("ptx/else.cuh", HEADERS[1][1]))
    assert make_source(headers=renamed).digest("c") != source.digest("c")


def test_the_order_of_headers_does_not_change_the_digest(source: Source) -> None:
    assert make_source(headers=HEADERS[::-1]).digest("c") == source.digest("c")


def test_moving_text_between_neighbouring_fields_changes_the_digest() -> None:
    with_options = make_source(options=("p", "x"), text="y", headers=())
    with_header = make_source(options=(), text="p", headers=(("x", "y"),))
    assert with_options.digest("c") != with_header.digest("c")
    assert make_source(name="ab", entry="c").digest("c") != make_source(name="a", entry="bc").digest("c")


def test_the_digest_is_equal_in_processes_with_other_hash_seeds(
    source: Source, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    code = "from jit_units import make_source; print(make_source().digest('c'))"
    processes = [start_python(code, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [out.strip() for out, _ in outputs] == [source.digest("c")] * 2, outputs


def test_an_include_that_the_source_does_not_hold_is_missing() -> None:
    assert make_source().missing_includes() == ()
    assert make_source(headers=HEADERS[:1]).missing_includes() == ("ptx/part.cuh",)
    assert make_source(headers=()).missing_includes() == ("config.cuh",)


@pytest.mark.parametrize("path", ["/etc/x.cuh", "../x.cuh", "ptx/../../x.cuh", "", "config.cuh"])
def test_a_header_path_that_leaves_the_entry_or_is_there_twice_is_refused(path: str) -> None:
    with pytest.raises(UnsupportedError, match="header path"):
        make_source(headers=(*HEADERS, (path, "")))
