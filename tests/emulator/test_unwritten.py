"""Registers that nothing has written: every use is a finding at its line, a move or a selection past them is none."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import execute, kernel, line_of, words

from tilewright.errors import EmulationError

# One use of %rU, %fU, %hU, %rdU or %pU, which hold nothing. %r0..%r9, %f0..%f9, %h0, %p0 and %rd0..%rd4 do.
USES = {
    "add": "add.u32 %r20, %rU, 1;",
    "add of itself": "add.u32 %r20, %rU, %rU;",
    "subtraction from a literal": "sub.u32 %r20, 1, %rU;",
    "comparison": "setp.eq.u32 %p9, %rU, %r0;",
    "comparison with itself": "setp.ne.u32 %p9, %rU, %rU;",
    "comparison of floats": "setp.neu.f32 %p9, %f0, %fU;",
    "predicate of a selection": "selp.b32 %r20, 1, 2, %pU;",
    "predicate of logic": "xor.pred %p9, %p0, %pU;",
    "not": "not.pred %p9, %pU;",
    "select by sign": "slct.s32.s32 %r20, 1, 2, %rU;",
    "guard": "@%pU mov.u32 %r20, 1;",
    "cvt": "cvt.u64.u32 %rd9, %rU;",
    "cvt of floats": "cvt.rn.f16.f32 %h9, %fU;",
    "cvt of a half": "cvt.f32.f16 %f20, %hU;",
    "fma": "fma.rn.f32 %f20, %f0, %f1, %fU;",
    "packing": "mov.b64 %rd9, {%r0, %rU};",
    "unpacking": "mov.b64 {%r20, %r21}, %rdU;",
    "load address": "ld.global.u32 %r20, [%rdU];",
    "shared address": "ld.shared.u32 %r20, [%rU+4];",
    "store": "st.global.u32 [%rd4], %rU;",
    "store of a float": "st.shared.f32 [%r9], %fU;",
    "store of a vector": "st.shared.v2.f32 [%r9], {%f0, %fU};",
    "store of a vector to global": "st.global.v4.u32 [%rd1], {%r0, %r1, %rU, %r2};",
    "atomic": "atom.shared.add.u32 %r20, [%r9], %rU;",
    "shuffle": "shfl.sync.bfly.b32 %r20|%p9, %rU, 1, 31, -1;",
    "vote": "vote.sync.ballot.b32 %r20, %pU, -1;",
    "redux": "redux.sync.add.u32 %r20, %rU, -1;",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%rU];",
    "stmatrix": "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r9], {%r0, %rU};",
    "movmatrix": "movmatrix.sync.aligned.m8n8.trans.b16 %r20, %rU;",
    "mma, a": "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
    "{%f20, %f21, %f22, %f23}, {%r0, %rU}, {%r1}, {%f0, %f1, %f2, %f3};",
    "mma, b": "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
    "{%f20, %f21, %f22, %f23}, {%r0, %r1}, {%rU}, {%f0, %f1, %f2, %f3};",
    "mma, c": "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
    "{%f20, %f21, %f22, %f23}, {%r0, %r1}, {%r2}, {%f0, %f1, %fU, %f3};",
    "mma, packed c": "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r20, %r21}, {%r0, %r1}, {%r2}, {%r3, %rU};",
    "cp.async": "cp.async.ca.shared.global [%r9], [%rd1], 4, %rU;",
    "mbarrier": "mbarrier.init.shared.b64 [%r8], %rU;",
}
NAMES = {"%rdU": "%rd20", "%rU": "%r30", "%fU": "%f30", "%hU": "%h12", "%pU": "%p12"}
WRITTEN = "shl.b32 %r9, %r0, 4;\nadd.u32 %r9, %r9, 2048;\nmov.u32 %r8, 1024;\nsetp.eq.u32 %p0, %r0, %r0;\n".join(
    f"mov.u32 %r{i}, {i};\n" for i in range(1, 8)
) + "".join(f"mov.f32 %f{i}, 0f3F800000;\n" for i in range(4))
# Only the lower half of the warp writes them.
HALF = (
    "setp.lt.u32 %p1, %r0, 16;\n@!%p1 bra PAST;\nmov.u32 %r30, 2048;\nmov.f32 %f30, 0f3F800000;\nmov.u64 %rd20, %rd1;\n"
    "setp.lt.u32 %p12, %r0, 99;\nmov.u16 %h12, 0;\nPAST:\n"
)


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_register_that_was_never_written_is_found_at_its_line(use: str) -> None:
    line = USES[use]
    for short, name in NAMES.items():
        line = line.replace(short, name)
    for before, who in (("", r"never written \[CTA 0"), (HALF, r"never written by this thread \[CTA 0, thread 16 ")):
        # a move of one that is empty too, and a selection past it, stand in the same block and are not the fault
        text = kernel(f"{WRITTEN}{before}mov.b32 %r40, %r41;\nselp.b32 %r42, %r0, %r41, %p0;\n{line}")
        with pytest.raises(EmulationError, match=rf"(r30|f30|h12|rd20|p12) is read but was {who}") as caught:
            execute(text, smem_bytes=4096, out_bytes=512)
        assert caught.value.rule == "uninitialised register"
        assert caught.value.line == line_of(text, line)


def test_a_copy_of_an_unwritten_register_is_named_where_it_is_used() -> None:
    for between in ("", "bra.uni NEXT;\nNEXT:\n"):
        text = kernel(f"mov.b32 %r2, %r1;\nmov.b32 %f2, %r2;\n{between}add.f32 %f3, %f2, %f2;")
        with pytest.raises(EmulationError, match="%f2 is read but was never written") as caught:
            execute(text)
        assert caught.value.line == line_of(text, "add.f32")


SELECT = {
    "selp of integers": "selp.b32 %r20, 5, %r30, %p1;",
    "selp of the other side": "setp.ge.u32 %p2, %r0, 16;\nselp.b32 %r20, %r30, 5, %p2;",
    "selp of floats": "selp.f32 %f20, 0f00000005, %f30, %p1;\nmov.b32 %r20, %f20;",
    "selp of floats' bits": "selp.b32 %f20, 0f00000005, %f30, %p1;\nmov.b32 %r20, %f20;",
    "slct": "sub.s32 %r21, 15, %r0;\nslct.s32.s32 %r20, 5, %r30, %r21;",
}


@pytest.mark.parametrize("body", SELECT.values(), ids=SELECT)
def test_a_selection_has_a_value_in_the_lanes_that_take_a_written_side(body: str) -> None:
    """As compilers write `if (first) sum = 0;`: the sum is unwritten only where the first time never came."""
    for way in ("", "bra.uni ON;\nON:\n", "@!%p3 bra END;\n"):  # in one block, in two, and in a part of the warp
        lower = kernel(
            f"setp.lt.u32 %p1, %r0, 16;\nsetp.lt.u32 %p3, %r0, 24;\n{way}{body}\n@!%p1 bra END;\n"
            "st.global.u32 [%rd4], %r20;\nEND:"
        )
        got = words(lower)
        assert (got == np.where(np.arange(32) < 16, 5, 0xEEEEEEEE)).all()
    with pytest.raises(EmulationError, match=r"was never written by this thread \[CTA 0, thread 16 ") as caught:
        execute(kernel(f"setp.lt.u32 %p1, %r0, 16;\n{body}\nst.global.u32 [%rd4], %r20;"))
    assert caught.value.rule == "uninitialised register"


def test_a_move_in_a_part_of_the_warp_leaves_its_lanes_unwritten() -> None:
    """The move is no use there either, and what the lanes held before is gone."""
    body = "mov.u32 %r2, 7;\nsetp.lt.u32 %p1, %r0, 16;\n@%p1 mov.u32 %r2, %r1;\n"
    got = words(kernel(f"{body}@%p1 mov.u32 %r2, 5;\nst.global.u32 [%rd4], %r2;"))
    assert (got == np.where(np.arange(32) < 16, 5, 7)).all()
    with pytest.raises(EmulationError, match=r"%r2 is read but was never written by this thread \[CTA 0, thread 0 "):
        execute(kernel(f"{body}st.global.u32 [%rd4], %r2;"))
