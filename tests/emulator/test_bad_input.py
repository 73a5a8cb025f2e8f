"""What the emulator says to input that is wrong: an EmulationError with a rule and a line, never another exception.

Here whole kernels are damaged at random, and texts are built to exhaust or to mislead; single wrong instructions are in
test_ptx.py, launches that do not fit and kernels that do not end in test_control.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ampere
import gemm
import numpy as np
import pytest
from snippets import execute, kernel, line_of

from tilewright.config import Config
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.ptx import parse
from tilewright.emulator.run import Grid, run
from tilewright.errors import EmulationError
from tilewright.problem import packed

NUM_DAMAGED = 40  # texts a seed
MAX_BLOCKS = 20_000  # a damaged loop may not end

HOPPER_CASE = gemm.Case(packed(72, 24, 136), Config(tile_m=64, tile_n=16, consumers=1, stages=2), 1)
AMPERE_CASE = ampere.Case(24, 24, 40)
WORDS = ["0", "-1", "99999999999", "{", "}", "[", "]", ";", "@", "!", "|", "_", "%p1", ".reg", "0f7FC00000", '"', "//"]


def hopper(text: str) -> gemm.Outcome:
    return gemm.outcome(HOPPER_CASE, text, max_blocks=MAX_BLOCKS)


def ampere_outcome(text: str) -> gemm.Outcome:
    return ampere.outcome(AMPERE_CASE, text, max_blocks=MAX_BLOCKS)


def damaged(pieces: list[str], rng: np.random.Generator) -> str:
    """One word left out, doubled, swapped with another, replaced, or shortened; sometimes the rest of the text cut."""
    words = [index for index, piece in enumerate(pieces) if not piece.isspace()]
    spot, other = rng.choice(words, 2)
    made = list(pieces)
    match int(rng.integers(7)):
        case 0:
            made[spot] = ""
        case 1:
            made[spot] = f"{made[spot]} {made[spot]}"
        case 2:
            made[spot], made[other] = made[other], made[spot]
        case 3:
            made[spot] = pieces[other]
        case 4:
            made[spot] = str(rng.choice(WORDS))
        case 5:
            made[spot] = made[spot][1:]
        case _:
            del made[spot:]
    return "".join(made)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["hopper", "ampere"])
def test_damaged_kernel_runs_or_says_why_not(name: str, seed: int) -> None:
    text, attempt = {
        "hopper": (gemm.binary(gemm.source(HOPPER_CASE)).ptx, hopper),
        "ampere": (ampere.ptx(), ampere_outcome),
    }[name]
    code = text[: text.index(".section")]  # what follows is text for debuggers
    pieces = re.findall(r"\s+|[\w.%:$]+|.", code)
    rng = np.random.default_rng(seed)
    internal, refused = [], 0
    for _ in range(NUM_DAMAGED):
        made = damaged(pieces, rng)
        result = attempt(made)
        refused += not result.is_silent
        if "internal" in result.rules:
            internal.append(result.error)
    assert internal == []
    assert refused > NUM_DAMAGED // 3


# -- texts that are no PTX ---------------------------------------------------------------------------------------------

GLOBALS = "mov.u64 %rd5, g;"
SHARED = ".shared .align 1024 .b8 buffer[8192];"
BRACES = 5000

TEXTS: dict[str, tuple[str, str]] = {  # (text, a part of the line that is to be named)
    "braces within braces": (kernel("mov.b64 %rd5, " + "{" * BRACES + "%r1" + "}" * BRACES + ";"), "mov.b64"),
    "nots of nots": (kernel("mov.pred %p1, " + "!" * BRACES + "%p2;"), "mov.pred"),
    "brackets within brackets": (kernel("ld.global.u32 %r1, " + "[" * BRACES + "%rd0" + "]" * BRACES + ";"), "ld.gl"),
    "pairs of pairs": (kernel("setp.eq.u32 " + "%p1|" * BRACES + "%p2, %r1, %r2;"), "setp.eq"),
    "a hundred million registers": (kernel(".reg .b32 %x<99999999>;"), "%x<"),
    "fewer than no registers": (kernel(".reg .b32 %x<-3>;"), "%x<"),
    "a global variable of terabytes": (kernel(GLOBALS, ".global .align 4 .b8 g[99999999999999];"), "g[9"),
    "a local variable of terabytes": (
        kernel(".local .align 4 .b8 d[99999999999999];\nmov.u64 %rd5, d;\nst.local.u32 [%rd5], %r0;"),
        "d[9",
    ),
    "a shared variable of less than nothing": (kernel("", ".shared .align 16 .b8 buffer[-5];"), "buffer["),
    "an alignment of 0": (kernel("", ".shared .align 0 .b8 buffer[64];"), ".align 0"),
    "an alignment that is no power of two": (kernel("", ".shared .align 3 .b8 buffer[64];"), ".align 3"),
    "an initial value past its type": (kernel(GLOBALS, ".global .align 4 .u32 g = 1.0e400;"), "1.0e400"),
    "an initial float past its type": (kernel(GLOBALS, f".global .align 4 .f32 g = {'9' * 60};"), "999"),
    "a branch to nowhere": (kernel("bra;"), "bra;"),
    "a branch to two places": (kernel("A: bra A, A;"), "bra A, A"),
    "too few registers of a fragment": (
        kernel("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2},{%r0},{%r0},{%f1,%f2};"),
        "mma.sync",
    ),
    "too few registers of a vector": (kernel("ld.global.v4.u32 {%r1, %r2}, [%rd0];"), "ld.global.v4"),
    "more operands than the instruction has": (kernel("add.u32 %r1, %r0, %r0, %r0, %r0;"), "add.u32 %r1, %r0, %r0,"),
    "a parameter without a type": (kernel("").replace(".param .u64 k_out", ".param k_out"), "k_out)"),
    "a line without its column": (kernel(".loc 1\nmov.u32 %r1, 1;"), ".loc 1"),
    "a word that is no number": (kernel("mov.u32 %r1, 12x4;"), "12x4"),
    "a float of too few digits": (kernel("mov.f32 %f1, 0f12;"), "0f12"),
    "a comment that never ends": (kernel("/* "), "/*"),
    "a string that never ends": (kernel('.pragma "abc'), ".pragma"),
    "a byte of zeros": (kernel("\0"), "\0"),
    "a literal that is no constant": (kernel("cp.async.wait_group %r0;"), "wait_group %r0"),
    "a copy of 5 bytes": (kernel("cp.async.ca.shared.global [%r0], [%rd0], 5;"), "], 5;"),
    "an indirect branch": (kernel("brx.idx %r0, L;"), "brx.idx"),
    "a call": (kernel("call foo;", ".func foo() { ret; }"), "call"),
}
UNMET = {  # not met yet
    "braces within braces", "nots of nots", "brackets within brackets", "pairs of pairs",
    "a hundred million registers", "fewer than no registers",
    "a global variable of terabytes", "a local variable of terabytes", "a shared variable of less than nothing",
    "an alignment of 0", "an alignment that is no power of two",
    "an initial value past its type", "an initial float past its type",
    "a branch to nowhere", "a branch to two places",
    "too few registers of a fragment", "too few registers of a vector", "more operands than the instruction has",
}  # fmt: skip


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_no_ptx_is_refused_at_its_line(name: str, request: pytest.FixtureRequest) -> None:
    text, fragment = TEXTS[name]
    with pytest.raises(EmulationError) as raised:
        execute(text, np.zeros(64, np.uint32), max_blocks=MAX_BLOCKS)
    assert raised.value.rule != "internal"
    assert raised.value.line - line_of(text, fragment) in (0, 1)
