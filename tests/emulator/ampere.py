"""Runs of ampere_gemm.cu in the emulator, whole or damaged: its PTX, operands, the launch, and what came out.

Stands in for an Ampere family until there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gemm import WRONG_NUMBERS, Outcome

from tilewright.emulator.checks import Checker
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, Report, run
from tilewright.errors import EmulationError
from tilewright.jit import nvrtc
from tilewright.jit.source import Source

ENTRY = "ampere_gemm"
TEXT = (Path(__file__).parent / "ampere_gemm.cu").read_text()
TILE, TILE_K, STAGES, THREADS = 64, 32, 3, 128
SMEM_BYTES = STAGES * 2 * TILE * TILE_K * 2
DTYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}


@dataclass(frozen=True)
class Case:
    """One product on a number of CTAs, each of which takes tile after tile."""

    m: int
    n: int
    k: int
    ctas: int = 1
    dtype: str = "bf16"


@cache
def ptx(dtype: str = "bf16", text: str = TEXT) -> str:
    """Compiled once in a session."""
    options = ("-DFP16",) if dtype == "fp16" else ()
    return nvrtc.compile_source(Source(ENTRY, text, (), ENTRY, "sm_80", options), "").ptx


def edited(old: str, new: str) -> str:
    """The kernel's text with `old` replaced, which must be there once."""
    found = TEXT.count(old)
    if found != 1:
        raise ValueError(f"{old!r} is {found} times in ampere_gemm.cu, not once")
    return TEXT.replace(old, new)


def launch(case: Case, text: str, **choices: Any) -> tuple[bool, Report]:
    """(whether every element is right and nothing else was touched, report). Whole numbers: exact in any order."""
    generator = np.random.default_rng(case.m)
    kind = DTYPES[case.dtype]
    pitch = -(-case.k // 8) * 8
    a, b = (np.full((rows, pitch), np.nan, kind) for rows in (case.m, case.n))
    a[:, : case.k] = generator.integers(-3, 4, (case.m, case.k))
    b[:, : case.k] = generator.integers(-3, 4, (case.n, case.k))
    out = np.full((case.m, case.n + 8), 7, kind)
    out[:, : case.n] = np.nan
    memory = GlobalMemory()
    values = [memory.add(name, array) for name, array in (("a", a), ("b", b), ("out", out))]
    values += [pitch, pitch, case.n + 8, case.m, case.n, case.k]
    report = run(text, ENTRY, Grid(grid=case.ctas, block=THREADS, smem_bytes=SMEM_BYTES), values, memory, **choices)
    expected = (a[:, : case.k].astype(np.float32) @ b[:, : case.k].astype(np.float32).T).astype(kind)
    return bool((out[:, : case.n] == expected).all() and (out[:, case.n :] == 7).all()), report


def outcome(case: Case, text: str, **choices: Any) -> Outcome:
    """One run with checks."""
    checker = Checker()
    try:
        is_right, _ = launch(case, text, observer=checker, **choices)
    except EmulationError as error:
        rules = {finding.rule for finding in checker.findings}
        return Outcome(frozenset(rules | {error.rule}), tuple(checker.findings), str(error))
    rules = {finding.rule for finding in checker.findings} | (set() if is_right else {WRONG_NUMBERS})
    return Outcome(frozenset(rules), tuple(checker.findings), "")
