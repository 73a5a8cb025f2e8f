"""tools/flaws.py: which kernels it compiles, and that it tells a flawed one."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import pytest

from tilewright.jit.build import build
from tilewright.jit.source import Source


def test_the_kernels_are_of_every_layout_and_of_every_form_that_is_offered(tool: ModuleType) -> None:
    names = {source.name for source in tool.units(tool.problems(False))}
    assert {name.split("_")[3] for name in names} == {"tn", "nn", "nt", "tt"}
    for form in ("staggered", "pingpong", "swap", "split2", "tail", "c2x1"):
        assert any(form in name for name in names), form
    assert all(problem.batch or problem.out_dtype.name != "bf16" or problem.out_major == "m"
               for problem in tool.problems(True))  # fmt: skip


def test_a_flawed_kernel_is_named_and_ends_it_with_1(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tool.units([next(tool.problems(False))])[0]
    binary = build(source)
    spilled = dataclasses.replace(binary.resources, spill_store_bytes=8, spill_load_bytes=8)

    def compiled(unit: Source) -> object:
        return dataclasses.replace(binary, name="the flawed", resources=spilled) if unit is source else binary

    monkeypatch.setattr(tool, "units", lambda _: [source, dataclasses.replace(source, name="another")])
    monkeypatch.setattr(tool, "build", compiled)
    assert tool.main([]) == 1
    told = capsys.readouterr().out
    assert "the flawed: registers spill (8 bytes stored" in told
    assert "1 of 2 kernels are flawed" in told
    monkeypatch.setattr(tool, "build", lambda _: binary)
    assert tool.main(["--most", "1"]) == 0
