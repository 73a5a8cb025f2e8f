"""From a cubin to the machine code that people read: SASS text and how often it uses each opcode.

Knows where the nvidia-cuda-nvdisasm wheel keeps its program. Knows nothing of GEMM, of the compiler or of a driver.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from tilewright.errors import UnsupportedError

WHEEL = "nvidia-cuda-nvdisasm"
PROGRAM = "nvdisasm"
TIME_LIMIT_S = 120  # the largest kernels take under 1 s; a program that hangs must not hang its caller
ELF_MAGIC = b"\x7fELF"

# A line of code: its address in a comment, a predicate or none, the opcode: "/*02a0*/ @!P0 HGMMA.64x256x16.F32 ...".
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)


def nvdisasm() -> Path:
    """The disassembler inside the installed wheel; PATH is not looked at, so that its version fits the compiler's.

    Raises: UnsupportedError: the wheel or its program is not there.
    """
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in (PROGRAM, f"{PROGRAM}.exe"):
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise UnsupportedError(
        asked="SASS of a kernel",
        rule=f"{PROGRAM} comes with the wheel {WHEEL}, which is not installed completely",
        works=f"pip install --force-reinstall '{WHEEL}>=13.0,<14'",
    )


def sass(cubin: bytes) -> str:
    """The code sections of a cubin as text, one instruction a line.

    Raises: UnsupportedError: no disassembler, or one that does not know the cubin's architecture or cannot run here.
    Cost: one temporary file and one child process, 0.4-0.5 s (measured, 2 cores, 2026-11-30, 20 kB cubin).
    """
    if not cubin.startswith(ELF_MAGIC):
        raise UnsupportedError(
            asked=f"SASS of {len(cubin)} bytes that start with {cubin[:4]!r}",
            rule="only a cubin (an ELF file) holds machine code",
            works="pass Binary.cubin, not its PTX",
        )
    program = nvdisasm()
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [str(program), "--print-code", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failed(str(error)) from error
    if done.returncode != 0:
        raise _failed(done.stderr.strip() or f"exit status {done.returncode}")
    return done.stdout


def opcodes(text: str) -> dict[str, int]:
    """How many instructions of `text` have each opcode, without its modifiers; the most frequent first."""
    return dict(Counter(_INSTRUCTION.findall(text)).most_common())


def _failed(reason: str) -> UnsupportedError:
    return UnsupportedError(
        asked="SASS of a kernel",
        rule=f"{PROGRAM} of the wheel {WHEEL} {_version()} failed: {reason}",
        works=f"pip install --upgrade '{WHEEL}>=13.0,<14'",
    )


def _version() -> str:
    try:
        return importlib.metadata.version(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"
