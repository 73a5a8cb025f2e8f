"""SASS through the wheel's own nvdisasm."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright import disassemble
from tilewright.errors import UnsupportedError

LINES = """\
.text.kern:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/             @!UP0 UTMALDG.2D [UR8], [UR4] ;
.L_x_39:
        /*12a30*/                  HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*12a40*/                  HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        .byte 0xff
"""


def test_opcodes_are_counted_without_predicates_and_modifiers_most_frequent_first() -> None:
    assert list(disassemble.opcodes(LINES).items()) == [("HGMMA", 2), ("LDC", 1), ("BRA", 1), ("UTMALDG", 1)]


def test_the_disassembler_is_the_wheels_own_and_not_found_through_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert disassemble.nvdisasm().is_file()


def test_a_missing_wheel_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(UnsupportedError, match=r"pip install .*nvidia-cuda-nvdisasm"):
        disassemble.sass(b"\x7fELF")


def test_a_wheel_whose_program_was_deleted_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = SimpleNamespace(name="nvdisasm", locate=lambda: tmp_path / "nvdisasm")
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [gone])
    with pytest.raises(UnsupportedError, match=r"not installed completely"):
        disassemble.nvdisasm()


def test_ptx_is_refused_as_no_machine_code() -> None:
    with pytest.raises(UnsupportedError, match=r"pass Binary\.cubin"):
        disassemble.sass(b".version 9.0")


def test_a_damaged_cubin_is_refused_with_the_programs_own_words() -> None:
    with pytest.raises(UnsupportedError, match=r"nvdisasm of the wheel nvidia-cuda-nvdisasm 13\..* failed: .+"):
        disassemble.sass(b"\x7fELF" + bytes(100))


def test_a_program_that_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvdisasm"
    program.write_bytes(b"no program")
    program.chmod(0o755)
    monkeypatch.setattr(disassemble, "nvdisasm", lambda: program)
    with pytest.raises(UnsupportedError, match=r"failed: .*Exec format error"):
        disassemble.sass(b"\x7fELF")
