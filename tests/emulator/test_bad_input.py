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
    "a million registers": (kernel(".reg .b32 %x<1000000>;"), "%x<"),
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
        kernel(
            "mov.f32 %f1, 0f00000000;\n"
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2},{%r0,%r0},{%r0},{%f1,%f1};"
        ),
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
NOT_YET = {  # each a fault of the emulator: to be taken off this list when it is repaired
    "braces within braces",
    "nots of nots",
    "brackets within brackets",
    "pairs of pairs",
    "a million registers",
    "fewer than no registers",
    "a global variable of terabytes",
    "a local variable of terabytes",
    "a shared variable of less than nothing",
    "an alignment of 0",
    "an alignment that is no power of two",
    "an initial value past its type",
    "an initial float past its type",
    "too few registers of a fragment",
    "too few registers of a vector",
    "more operands than the instruction has",
}


def marked(names: Any) -> list[Any]:
    refused_later = pytest.mark.xfail(strict=True, reason="the emulator does not refuse it yet")
    return [pytest.param(name, marks=[refused_later] if name in NOT_YET else []) for name in names]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", marked(TEXTS))
def test_text_that_is_no_ptx_is_refused_at_its_line(name: str) -> None:
    text, fragment = TEXTS[name]
    with pytest.raises(EmulationError) as raised:
        execute(text, np.zeros(64, np.uint32), max_blocks=MAX_BLOCKS)
    assert raised.value.rule != "internal"
    assert raised.value.line - line_of(text, fragment) in (0, 1)


# -- launches that the entry does not allow ----------------------------------------------------------------------------

ENTRY_DIRECTIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "more threads than maxntid": (".maxntid 32, 1, 1", {"block": 64}),
    "other threads than reqntid": (".reqntid 64, 1, 1", {"block": 32}),
    "another cluster than reqnctapercluster (B083)": (".reqnctapercluster 2, 1, 1", {"grid": 2, "cluster": 1}),
    "no cluster where explicitcluster asks for one": (".explicitcluster", {"grid": 2, "cluster": 1}),
}
NOT_YET |= set(ENTRY_DIRECTIVES) - {"more threads than maxntid"}


@pytest.mark.parametrize("name", marked(ENTRY_DIRECTIVES))
def test_launch_against_the_entrys_own_directives_is_refused(name: str) -> None:
    directive, launch = ENTRY_DIRECTIVES[name]
    text = kernel("").replace("\n{\n", f"\n{directive}\n{{\n", 1)
    with pytest.raises(EmulationError) as raised:
        execute(text, **launch)
    assert raised.value.rule == "launch"


# -- parameters and pointers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "says"),
    [
        (bytes(8), "8 bytes of parameters where k has 16"),
        (b"", "0 bytes of parameters where k has 16"),
        ([0], "1 parameters where the entry has 2"),
        ([0, bytes(4)], "parameter k_out has 8 bytes, 4 are given"),
        ([0, bytes(16)], "parameter k_out has 8 bytes, 16 are given"),
    ],
)
def test_parameters_of_the_wrong_size_are_refused(params: Any, says: str) -> None:
    with pytest.raises(EmulationError, match=says) as raised:
        run(kernel(""), "k", Grid(grid=1, block=32), params, GlobalMemory())
    assert raised.value.rule == "parameters"


def changed(index: int, change: Callable[[int], int]) -> EmulationError:
    """The error of the Ampere kernel with one parameter changed: a, b, out, three pitches, m, n, k."""
    memory = GlobalMemory()
    a, b, out = (np.zeros((64, 64), np.uint16) for _ in range(3))
    values = [memory.add(name, array) for name, array in (("a", a), ("b", b), ("out", out))]
    values += [64, 64, 64, 64, 64, 64]
    values[index] = change(values[index])
    launch = Grid(grid=1, block=ampere.THREADS, smem_bytes=ampere.SMEM_BYTES)
    with pytest.raises(EmulationError) as raised:
        run(ampere.ptx(), ampere.ENTRY, launch, values, memory, max_blocks=MAX_BLOCKS)
    return raised.value


@pytest.mark.parametrize(
    ("index", "change", "rule", "opcode"),
    [
        (0, lambda a: a + 2, "misaligned", "cp.async"),
        (0, lambda a: 0, "out of bounds", "cp.async"),
        (1, lambda b: b + 4096, "out of bounds", "cp.async"),
        (2, lambda out: out + 8, "misaligned", "st.global"),
        (2, lambda out: 1 << 63, "out of bounds", "st.global"),
        (2, lambda out: out + 16, "out of bounds", "st.global"),
        (3, lambda pitch: 68, "misaligned", "cp.async"),
        (4, lambda pitch: 72, "out of bounds", "cp.async"),
        (5, lambda pitch: -64, "out of bounds", "st.global"),
        (6, lambda m: 65, "out of bounds", "cp.async"),
        (8, lambda k: 4096, "out of bounds", "cp.async"),
    ],
)
def test_wrong_pointer_pitch_or_size_is_named_where_it_is_used(
    index: int, change: Callable[[int], int], rule: str, opcode: str
) -> None:
    error = changed(index, change)
    assert error.rule == rule
    assert opcode in ampere.ptx().split("\n")[error.line - 1]
    assert error.source.startswith("unit.cu:")


# -- kernels that do not end -------------------------------------------------------------------------------------------


@pytest.mark.timeout(30)
@pytest.mark.parametrize("width", ["warp", "cta"])
def test_kernel_that_stays_at_its_tile_meets_the_budget_with_where_each_warp_stands(width: str) -> None:
    text = ampere.ptx(text=ampere.edited("tile += gridDim.x", "tile += 0"))
    with pytest.raises(EmulationError, match="has not ended after") as raised:
        ampere.launch(AMPERE_CASE, text, max_blocks=2000, width=width)
    assert raised.value.rule == "step budget"
    stands = re.findall(r"CTA 0 warp (\d)(?:\.\.(\d))? at \S+ at PTX line \d+", str(raised.value))
    warps = {warp for first, last in stands for warp in range(int(first), int(last or first) + 1)}
    assert warps == {0, 1, 2, 3}, str(raised.value)


@pytest.mark.timeout(30)
def test_kernel_whose_producer_never_loads_is_a_deadlock_with_the_barriers_state() -> None:
    text = gemm.binary(gemm.source(HOPPER_CASE)).ptx
    result = hopper(re.sub(r"mbarrier\.arrive\.expect_tx[^;]*;", "", text))
    assert result.rules == {"deadlock"}
    assert re.search(
        r"waits for parity 0 \(phase 0\) of mbarrier\(CTA 0, smem\+\d+: phase 0, 0 of 1 arrived", result.error
    )
