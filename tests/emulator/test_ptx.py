"""The parser: scopes, labels, source lines, and what it says of text that is not PTX."""

from __future__ import annotations

import re

import numpy as np
import pytest
from snippets import execute, kernel, line_of, words

from tilewright.emulator.ptx import parse
from tilewright.emulator.run import supported
from tilewright.emulator.syntax import Imm, Mem, Reg, Vec
from tilewright.errors import EmulationError


def test_inner_scope_hides_outer_registers_and_labels_repeat() -> None:
    body = """
mov.u32 %r1, 7;
{ .reg .b32 %r1; mov.u32 %r1, 1; bra DONE; mov.u32 %r1, 2; DONE: st.global.u32 [%rd4], %r1; }
{ .reg .pred q; setp.eq.u32 q, %r0, 0; @q bra DONE; add.u32 %r1, %r1, 1; DONE: st.global.u32 [%rd4], %r1; }
"""
    got = words(kernel(body))
    assert got[0] == 7
    assert (got[1:] == 8).all()


def test_loc_gives_each_instruction_its_chain_of_source_lines() -> None:
    text = kernel(
        """
.loc 1 10 0
mov.u32 %r1, 1;
.loc 2 20 5, function_name $L__info_string0, inlined_at 1 10 0
mov.u32 %r2, 2;
.loc 1 30 0
st.global.u32 [%rd4], %r2;
"""
    )
    text += '.file 1 "/somewhere/kernel.cu"\n.file 2 "/somewhere/helper.cuh"\n'
    text += ".section .debug_str { L: .b8 95,0 }\n"
    chains = [instruction.site.source_chain for instruction in parse(text).entries["k"].instructions]
    assert ("kernel.cu:10",) in chains
    assert ("helper.cuh:20", "kernel.cu:10") in chains
    assert ("kernel.cu:30",) in chains


def test_operands_keep_vectors_offsets_and_exact_float_bits() -> None:
    text = kernel("ld.global.v2.u32 {%r1, _}, [%rd3+-8];\nmov.f32 %f1, 0f7FC00001;")
    load, move = parse(text).entries["k"].instructions[-3:-1]
    vector, memory = load.operands
    assert isinstance(vector, Vec)
    assert isinstance(vector.items[0], Reg)
    assert isinstance(memory, Mem)
    assert memory.offset == -8
    assert isinstance(move.operands[1], Imm)
    assert move.operands[1].bits == 0x7FC00001


@pytest.mark.parametrize(
    ("body", "fragment", "says"),
    [
        ("mov.u32 %r1, 1", "ret", "in the operands of mov.u32"),
        ("frobnicate.u32 %r1, 1;", "frobnicate", "not in the table"),
        ("add.u8 %r1, %r2, %r3;", "add.u8", "the table has add."),
        ("bra NOWHERE;", "NOWHERE", "no label"),
        ("mov.u32 %r1, `;", "`", "unexpected character"),
        ("A: mov.u32 %r1, 1;\nA: mov.u32 %r1, 1;", "A: mov", "twice"),
        ("mov.u32 %r1, unheard_of;\nst.global.u32 [%rd4], %r1;", "unheard_of", "no variable"),
        ("mov.u32 %r1, %unheard_of;\nst.global.u32 [%rd4], %r1;", "%unheard_of", "not in the table"),
        ("st.global.u32 [%rd4], %h1;", "%h1", "too small"),
    ],
)
def test_wrong_text_is_an_error_with_its_line(body: str, fragment: str, says: str) -> None:
    text = kernel(body)
    with pytest.raises(EmulationError, match=says) as caught:
        words(text)
    assert caught.value.line - line_of(text, fragment) in (0, 1)


@pytest.mark.parametrize("cut", [".visible .entry k(", ".visible .entry k() { mov.u32", '.version 8.7\n"', "garbage"])
def test_text_that_stops_short_is_an_error(cut: str) -> None:
    with pytest.raises(EmulationError):
        parse(cut)


def test_missing_entry_names_those_that_are_there() -> None:
    with pytest.raises(EmulationError, match="no entry 'k'; the module has other"):
        execute(kernel("").replace("entry k(", "entry other("))


def test_table_lists_every_family_with_patterns() -> None:
    families = {family for family, _ in supported()}
    assert {
        "integer",
        "logic",
        "float",
        "convert",
        "memory",
        "atomics",
        "barrier",
        "mbarrier",
        "fence",
        "warp",
    } <= families
    assert {"ldmatrix", "mma", "wmma", "wgmma", "cp.async", "bulk", "tensor copy", "control"} <= families
    patterns = [pattern for _, pattern in supported()]
    assert len(patterns) == len(set(patterns))


MUTATED = kernel(
    """
.local .align 4 .b8 depot[16];
mov.u32 %r5, buffer;
shl.b32 %r6, %r0, 2;
add.u32 %r6, %r6, %r5;
st.shared.u32 [%r6], %r0;
bar.sync 0;
ld.shared.v2.u32 {%r1, %r2}, [%r5+8];
setp.lt.u32 %p1|%p2, %r0, 7;
@%p1 add.u32 %r1, %r1, %r2;
shfl.sync.bfly.b32 %r3|%p3, %r1, 1, 31, -1;
selp.b32 %r4, %r3, %r1, %p2;
mov.b64 %rd5, {%r4, %r1};
cvt.rn.f32.u32 %f1, %r4;
fma.rn.f32 %f1, %f1, 0f40000000, %f1;
st.global.f32 [%rd4], %f1;
""",
    ".shared .align 16 .b8 buffer[256];",
)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_text_never_ends_in_another_exception(seed: int) -> None:
    """Words deleted, doubled, swapped or replaced at random: it runs, or an EmulationError says why not."""
    rng = np.random.default_rng(seed)
    pieces = re.findall(r"\s+|[\w.%:]+|.", MUTATED)
    spots = [i for i, piece in enumerate(pieces) if not piece.isspace()]
    internal = []
    for _ in range(60):
        damaged = list(pieces)
        spot, other = rng.choice(spots, 2)
        match int(rng.integers(4)):
            case 0:
                damaged[spot] = ""
            case 1:
                damaged[spot] *= 2
            case 2:
                damaged[spot], damaged[other] = damaged[other], damaged[spot]
            case _:
                damaged[spot] = pieces[other]
        try:
            execute("".join(damaged), max_blocks=2000)
        except EmulationError as error:
            internal += [(str(error), "".join(damaged))] if error.rule == "internal" else []
    assert internal == []
