"""tools/same_code.py: which records get a new digest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType

import pytest

from tilewright import choice, device, records
from tilewright.kernels import catalog
from tilewright.packing import packed_named

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def record(tool: ModuleType) -> records.Record:
    return records.record_of((tool.SHIPPED / "h200.jsonl").read_text().splitlines()[0])


def test_the_same_instructions_of_the_text_that_was_measured_renew_a_digest(tool: ModuleType, record: records.Record):
    found, left = tool.renewed([record], {record.key: (record.digest, "code")}, {record.key: ("new", "code")})
    assert (found, left) == ([dataclasses.replace(record, digest="new")], [])


@pytest.mark.parametrize(
    ("old_text", "old_code", "words"), [(None, "other", "other instructions"), ("x", "code", "measured before")]
)
def test_other_instructions_and_another_text_leave_a_hint(
    tool: ModuleType, record: records.Record, old_text: str | None, old_code: str, words: str
):
    before = {record.key: (old_text or record.digest, old_code)}
    found, (sentence,) = tool.renewed([record], before, {record.key: ("new", "code")})
    assert found == [record]
    assert words in sentence


def test_codes_are_of_the_kernel_as_it_is(tool: ModuleType, record: records.Record, tmp_path: Path):
    file = tmp_path / "h200.jsonl"
    file.write_text(record.line() + "\n")
    family, target = catalog.family(record.family), device.preset("h200")
    text = choice.kernel_digest(family, packed_named(record.problem), record.config, target)
    ((key, (digest, instructions)),) = tool.codes(file).items()
    assert (key, digest, len(instructions)) == (record.key, text, 64)
