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
from tilewright.packing import packed

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
    "too many registers of a fragment": (
        kernel("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1, %r2}, [%r0];"),
        "ldmatrix",
    ),
    "too many registers of a product": (
        kernel(
            "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
            " {%f1,%f2,%f3,%f4,%f5},{%r1,%r2},{%r3},{%f1,%f2,%f3,%f4};"
        ),
        "mma.sync",
    ),
    "too many registers of a wmma": (
        kernel("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1,%f2},{%r1},{%r2},{%f1,%f2};"),
        "wmma.mma",
    ),
    "too many registers of a vector": (kernel("st.global.v2.u32 [%rd4], {%r0, %r0, %r0};"), "st.global.v2"),
    "a list where the form has no vector": (kernel("ld.global.u32 {%r1, %r2}, [%rd3];"), "ld.global.u32"),
    "a wider register than the sum": (kernel("add.u32 %r1, %rd0, %r0;"), "add.u32 %r1, %rd0"),
    "a sum in a wider register": (kernel("add.u32 %rd5, %r0, %r0;"), "add.u32 %rd5"),
    "a parameter of less than nothing": (
        kernel("").replace(".param .u64 k_out", ".param .align 8 .b8 k_out[-8]"),
        "k_out[-8]",
    ),
    "more parameters than a launch can have": (
        kernel("").replace(".param .u64 k_out", ".param .align 8 .b8 k_out[40000]"),
        "k_out[40000]",
    ),
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


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", TEXTS)
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


@pytest.mark.parametrize("name", ENTRY_DIRECTIVES)
def test_launch_against_the_entrys_own_directives_is_refused(name: str) -> None:
    directive, launch = ENTRY_DIRECTIVES[name]
    text = kernel("").replace("\n{\n", f"\n{directive}\n{{\n", 1)
    with pytest.raises(EmulationError) as raised:
        execute(text, **launch)
    assert raised.value.rule == "launch"
    assert raised.value.line == line_of(text, ".entry")


@pytest.mark.parametrize(
    ("directive", "launch"),
    [
        (".maxntid 64", {"block": 64}),
        (".reqntid 32", {"block": 32}),
        (".reqnctapercluster 2", {"grid": 4, "cluster": 2}),
        (".explicitcluster", {"grid": 2, "cluster": 2}),
        (".explicitcluster\n.reqnctapercluster 1, 1, 1", {"grid": 2, "cluster": 1}),
        (".maxclusterrank 2", {"grid": 2, "cluster": 2}),
    ],
)
def test_launch_that_the_entrys_directives_allow_runs(directive: str, launch: dict[str, Any]) -> None:
    execute(kernel("").replace("\n{\n", f"\n{directive}\n{{\n", 1), **launch)


def test_launch_that_does_not_fit_and_missing_entry_name_a_line() -> None:
    text = kernel("")
    launches: list[dict[str, Any]] = [{"grid": 3, "cluster": 2}, {"block": 2048}, {"smem_bytes": 1 << 20}, {"grid": 0}]
    for launch in launches:
        with pytest.raises(EmulationError) as raised:
            execute(text, **launch)
        assert raised.value.line == line_of(text, ".entry")
    with pytest.raises(EmulationError, match=r"no entry 'other'; the module has k \(line 5\)") as raised:
        run(text, "other", Grid(grid=1, block=32), [], GlobalMemory())
    assert (raised.value.rule, raised.value.line) == ("missing entry", 5)


# -- members of a warp -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "shfl.sync.idx.b32 %r1, %r0, 0, 31, 0;",
        "elect.sync %r1|%p1, 0;",
        "vote.sync.ballot.b32 %r1, 1, 0xFFFF;",
        "mov.u32 %r2, 1;\nredux.sync.add.u32 %r1, %r0, %r2;",
        "match.any.sync.b32 %r1, %r0, 0x7FFFFFFF;",
    ],
)
def test_lane_outside_the_member_mask_that_it_runs_with_is_named(body: str) -> None:
    with pytest.raises(EmulationError, match=r"does not have this lane .*lane \d+") as raised:
        execute(kernel(body))
    assert raised.value.rule == "member mask"


def test_lanes_in_the_member_mask_run() -> None:
    execute(kernel("mov.u32 %r2, -1;\nshfl.sync.idx.b32 %r1, %r0, 0, 31, %r2;\nelect.sync %r1|%p1, -1;"))


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


def test_pointer_below_zero_is_told_as_such() -> None:
    with pytest.raises(EmulationError, match="as a signed number it is -8 "):
        execute(kernel("mov.u64 %rd5, -8;\nld.global.u64 %rd6, [%rd5];"))


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


COUNTED = """
mov.u32 %r1, 0;
AGAIN:
{store}
add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, 64;
@%p1 bra AGAIN;
"""
NEXT_PAGE = "st.global.u32 [%rd4], %r0;\nadd.s64 %rd4, %rd4, 4096;"


def test_budget_begins_anew_with_each_page_that_is_written_first() -> None:
    choices: dict[str, Any] = {"out_bytes": 65 * 4096, "max_blocks": 16, "schedule": "random"}  # short turns
    execute(kernel(COUNTED.format(store=NEXT_PAGE)), **choices)
    with pytest.raises(EmulationError, match="in the last 16 no thread left and no new page") as raised:
        execute(kernel(COUNTED.format(store="st.global.u32 [%rd4], %r1;")), **choices)
    assert raised.value.rule == "step budget"


def test_budget_grows_with_the_warps_that_share_it() -> None:
    loop = kernel(COUNTED.format(store=""))
    choices: dict[str, Any] = {"block": 1024, "width": "warp", "schedule": "random"}
    execute(loop, max_blocks=1500, **choices)  # 32 warps of 66 blocks each, all at once
    with pytest.raises(EmulationError, match="has not ended"):
        execute(loop, max_blocks=20, **choices)
