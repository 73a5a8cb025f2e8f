"""Arithmetic, logic, comparison, moves: each opcode against whole numbers of Python, or NumPy's own rounding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from snippets import execute, kernel

M32, M64 = 2**32 - 1, 2**64 - 1


def signed(value: int, bits: int = 32) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


EDGES = [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 0x0000FFFF, 0x12345678]
PAIRS: NDArray[np.uint32] = np.concatenate(
    [
        np.array([(a, b) for a in EDGES for b in EDGES], np.uint64),
        np.random.default_rng(7).integers(0, 2**32, (128 - len(EDGES) ** 2 % 128 + 128, 2), np.uint64),
    ]
)[:256].astype(np.uint32)


def run_pairs(body: str, pairs: NDArray[np.uint32], width: int = 4) -> NDArray[np.uint8]:
    """`body` turns %r1, %r2 into %r9 (or %rd9 for 8 bytes)."""
    store = "st.global.u32 [%rd4], %r9;" if width == 4 else "add.s64 %rd4, %rd4, %rd2;\nst.global.u64 [%rd4], %rd9;"
    text = kernel(f"add.s64 %rd3, %rd3, %rd2;\nld.global.v2.u32 {{%r1, %r2}}, [%rd3];\n{body}\n{store}")
    out, _ = execute(text, pairs, block=len(pairs), out_bytes=width * len(pairs))
    return out


INTEGER: dict[str, Callable[[int, int], int]] = {
    "add.u32 %r9, %r1, %r2;": lambda a, b: a + b,
    "add.sat.s32 %r9, %r1, %r2;": lambda a, b: max(-(2**31), min(2**31 - 1, signed(a) + signed(b))),
    "sub.s32 %r9, %r1, %r2;": lambda a, b: a - b,
    "sub.sat.s32 %r9, %r1, %r2;": lambda a, b: max(-(2**31), min(2**31 - 1, signed(a) - signed(b))),
    "mul.lo.s32 %r9, %r1, %r2;": lambda a, b: a * b,
    "mul.hi.u32 %r9, %r1, %r2;": lambda a, b: a * b >> 32,
    "mul.hi.s32 %r9, %r1, %r2;": lambda a, b: signed(a) * signed(b) >> 32,
    "mad.lo.u32 %r9, %r1, %r2, 17;": lambda a, b: a * b + 17,
    "mad.hi.s32 %r9, %r1, %r2, -3;": lambda a, b: (signed(a) * signed(b) >> 32) - 3,
    "dp4a.u32.s32 %r9, %r1, %r2, 5;": lambda a, b: (
        5 + sum((a >> 8 * i & 0xFF) * signed(b >> 8 * i & 0xFF, 8) for i in range(4))
    ),
    "dp2a.lo.u32.u32 %r9, %r1, %r2, %r2;": lambda a, b: b + (a & 0xFFFF) * (b & 0xFF) + (a >> 16) * (b >> 8 & 0xFF),
    "dp2a.hi.s32.u32 %r9, %r1, %r2, -7;": lambda a, b: (
        signed(a & 0xFFFF, 16) * (b >> 16 & 0xFF) + signed(a >> 16, 16) * (b >> 24) - 7
    ),
    "dp2a.lo.u32.s32 %r9, %r1, %r2, 1;": lambda a, b: (
        (a & 0xFFFF) * signed(b & 0xFF, 8) + (a >> 16) * signed(b >> 8 & 0xFF, 8) + 1
    ),
    "dp2a.lo.u32.u32 %r9, %r1, 26, 3;": lambda a, b: (a & 0xFFFF) * 26 + 3,
    "div.u32 %r9, %r1, %r2;": lambda a, b: a // b if b else M32,
    "div.s32 %r9, %r1, %r2;": lambda a, b: towards_zero(signed(a), signed(b)) if b else M32,
    "rem.u32 %r9, %r1, %r2;": lambda a, b: a % b if b else a,
    "rem.s32 %r9, %r1, %r2;": lambda a, b: signed(a) - towards_zero(signed(a), signed(b)) * signed(b) if b else a,
    "min.s32 %r9, %r1, %r2;": lambda a, b: min(signed(a), signed(b)),
    "max.u32 %r9, %r1, %r2;": max,
    "abs.s32 %r9, %r1;": lambda a, b: abs(signed(a)),
    "neg.s32 %r9, %r1;": lambda a, b: -a,
    "not.b32 %r9, %r1;": lambda a, b: ~a,
    "cnot.b32 %r9, %r1;": lambda a, b: int(a == 0),
    "and.b32 %r9, %r1, %r2;": lambda a, b: a & b,
    "or.b32 %r9, %r1, %r2;": lambda a, b: a | b,
    "xor.b32 %r9, %r1, %r2;": lambda a, b: a ^ b,
    "shl.b32 %r9, %r1, %r2;": lambda a, b: a << b if b < 32 else 0,
    "shr.u32 %r9, %r1, %r2;": lambda a, b: a >> min(b, 32),
    "shr.s32 %r9, %r1, %r2;": lambda a, b: signed(a) >> min(b, 31),
    "shl.b32 %r9, %r1, 5;": lambda a, b: a << 5,
    "shr.s32 %r9, %r1, 31;": lambda a, b: signed(a) >> 31,
    "shf.l.wrap.b32 %r9, %r1, %r2, 9;": lambda a, b: (b << 32 | a) << 9 >> 32,
    "shf.r.clamp.b32 %r9, %r1, %r2, 40;": lambda a, b: b,
    "shf.r.wrap.b32 %r9, %r1, %r2, 33;": lambda a, b: (b << 32 | a) >> 1,
    "popc.b32 %r9, %r1;": lambda a, b: a.bit_count(),
    "clz.b32 %r9, %r1;": lambda a, b: 32 - a.bit_length(),
    "brev.b32 %r9, %r1;": lambda a, b: int(f"{a:032b}"[::-1], 2),
    "bfind.u32 %r9, %r1;": lambda a, b: a.bit_length() - 1,
    "bfind.s32 %r9, %r1;": lambda a, b: (a if a < 2**31 else ~a & M32).bit_length() - 1,
    "bfe.u32 %r9, %r1, 7, 13;": lambda a, b: a >> 7 & 0x1FFF,
    "bfe.s32 %r9, %r1, 7, 13;": lambda a, b: signed(a >> 7 & 0x1FFF, 13),
    "bfi.b32 %r9, %r1, %r2, 9, 11;": lambda a, b: b & ~(0x7FF << 9) | (a & 0x7FF) << 9,
    "bmsk.clamp.b32 %r9, %r1, %r2;": lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32),
    "lop3.b32 %r9, %r1, %r2, 255, 0x96;": lambda a, b: a ^ b ^ 255,
    "lop3.b32 %r9, %r1, %r2, 255, 0xE8;": lambda a, b: a & b | a & 255 | b & 255,
    "prmt.b32 %r9, %r1, %r2, 0x5410;": lambda a, b: (b & 0xFFFF) << 16 | a & 0xFFFF,
    "sad.u32 %r9, %r1, %r2, 5;": lambda a, b: abs(a - b) + 5,
    "selp.b32 %r9, %r1, %r2, %p1;": lambda a, b: min(a, b),
    "setp.lt.s32 %p2, %r1, %r2;\nselp.u32 %r9, 1, 0, %p2;": lambda a, b: int(signed(a) < signed(b)),
    "setp.hs.u32 %p2|%p3, %r1, %r2;\nselp.u32 %r9, 1, 0, %p3;": lambda a, b: int(a < b),
    "setp.ne.and.u32 %p2, %r1, %r2, %p1;\nselp.u32 %r9, 1, 0, %p2;": lambda a, b: int(a < b),
    "set.eq.u32.u32 %r9, %r1, %r2;": lambda a, b: M32 if a == b else 0,
    "mov.b32 {%h1, %h2}, %r1;\nmov.b32 %r9, {%h2, %h1};": lambda a, b: (a & 0xFFFF) << 16 | a >> 16,
    "cvt.s32.s16 %r9, %r1;": lambda a, b: signed(a & 0xFFFF, 16),
    "cvt.u32.u8 %r9, %r1;": lambda a, b: a & 0xFF,
    "cvt.sat.s32.u32 %r9, %r1;": lambda a, b: min(a, 2**31 - 1),
    "mul.wide.u16 %r9, %h3, %h4;": lambda a, b: (a & 0xFFFF) * (b & 0xFFFF),
}


@pytest.mark.parametrize("instruction", INTEGER)
def test_32_bit_opcode_agrees_with_whole_numbers(instruction: str) -> None:
    setup = "setp.lt.u32 %p1, %r1, %r2;\ncvt.u16.u32 %h3, %r1;\ncvt.u16.u32 %h4, %r2;\n"
    got = run_pairs(setup + instruction, PAIRS).view(np.uint32)
    want = [INTEGER[instruction](int(a), int(b)) & M32 for a, b in PAIRS]
    assert got.tolist() == want


WIDE: dict[str, Callable[[int, int], int]] = {
    "add.s64 %rd9, %rd5, %rd6;": lambda a, b: a + b,
    "mul.lo.s64 %rd9, %rd5, %rd6;": lambda a, b: a * b,
    "mul.hi.u64 %rd9, %rd5, %rd6;": lambda a, b: a * b >> 64,
    "mul.hi.s64 %rd9, %rd5, %rd6;": lambda a, b: signed(a, 64) * signed(b, 64) >> 64,
    "div.s64 %rd9, %rd5, %rd6;": lambda a, b: towards_zero(signed(a, 64), signed(b, 64)) if b else M64,
    "shl.b64 %rd9, %rd5, %r1;": lambda a, b: a << (a & M32) if (a & M32) < 64 else 0,
    "shr.s64 %rd9, %rd5, 3;": lambda a, b: signed(a, 64) >> 3,
    "mad.wide.s32 %rd9, %r1, %r2, %rd5;": lambda a, b: signed(a & M32) * signed(b & M32) + a,
    "mul.wide.u32 %rd9, %r1, %r2;": lambda a, b: (a & M32) * (b & M32),
    "clz.b64 %r9, %rd5;\ncvt.u64.u32 %rd9, %r9;": lambda a, b: 64 - a.bit_length(),
    "bfe.s64 %rd9, %rd5, 20, 30;": lambda a, b: signed(a >> 20 & (1 << 30) - 1, 30),
    "cvt.s64.s32 %rd9, %r1;": lambda a, b: signed(a & M32),
    "mov.b64 {%r7, %r8}, %rd5;\nmov.b64 %rd9, {%r8, %r7};": lambda a, b: (a & M32) << 32 | a >> 32,
}


@pytest.mark.parametrize("instruction", WIDE)
def test_64_bit_opcode_agrees_with_whole_numbers(instruction: str) -> None:
    setup = "mov.b64 %rd5, {%r1, %r2};\nmov.b64 %rd6, {%r2, %r1};\n"
    got = run_pairs(setup + instruction, PAIRS, 8).view(np.uint64)
    whole = [(int(a) | int(b) << 32, int(b) | int(a) << 32) for a, b in PAIRS]
    assert got.tolist() == [WIDE[instruction](a, b) & M64 for a, b in whole]


FLOATS = np.array(
    [0.0, -0.0, 1.0, -1.5, 1e-38, 1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan, 1 + 2**-23, 0.1], np.float32
)
FLOAT_PAIRS = np.array([(a, b) for a in FLOATS for b in FLOATS], np.float32)

FLOAT: dict[str, Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]] = {
    "add.f32 %f9, %f1, %f2;": lambda a, b: a + b,
    "sub.rn.f32 %f9, %f1, %f2;": lambda a, b: a - b,
    "mul.f32 %f9, %f1, %f2;": lambda a, b: a * b,
    "div.rn.f32 %f9, %f1, %f2;": lambda a, b: a / b,
    "sqrt.rn.f32 %f9, %f1;": lambda a, b: np.sqrt(a),
    "neg.f32 %f9, %f1;": lambda a, b: -a,
    "abs.f32 %f9, %f1;": lambda a, b: np.abs(a),
    "copysign.f32 %f9, %f1, %f2;": lambda a, b: np.copysign(b, a),
    "min.f32 %f9, %f1, %f2;": lambda a, b: np.fmin(a, b),
    "max.f32 %f9, %f1, %f2;": lambda a, b: np.fmax(a, b),
    "fma.rn.f32 %f9, %f1, %f2, 0f3F800000;": lambda a, b: (a.astype(np.longdouble) * b + 1).astype(np.float32),
    "selp.f32 %f9, %f1, %f2, %p1;": lambda a, b: np.where(a < b, a, b),
    "setp.neu.f32 %p2, %f1, %f2;\nselp.f32 %f9, %f1, %f2, %p2;": lambda a, b: np.where(a != b, a, b),
    "setp.ne.f32 %p2, %f1, %f2;\nselp.f32 %f9, 0f00000000, %f2, %p2;": lambda a, b: np.where(
        (a != b) & ~np.isnan(a) & ~np.isnan(b), np.float32(0), b
    ),
}


@pytest.mark.parametrize("instruction", FLOAT)
def test_float_opcode_rounds_to_nearest(instruction: str) -> None:
    setup = "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nsetp.lt.f32 %p1, %f1, %f2;\n"
    got = run_pairs(setup + instruction + "\nmov.b32 %r9, %f9;", FLOAT_PAIRS.view(np.uint32)).view(np.float32)
    with np.errstate(all="ignore"):
        want = FLOAT[instruction](FLOAT_PAIRS[:, 0], FLOAT_PAIRS[:, 1])
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    assert equal.all(), FLOAT_PAIRS[~equal][:4]


def test_nan_results_are_the_one_nan_of_ptx() -> None:
    pair = np.array([[np.inf, -np.inf]], np.float32).view(np.uint32)
    body = "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nadd.f32 %f9, %f1, %f2;\nmov.b32 %r9, %f9;"
    assert run_pairs(body, pair).view(np.uint32).tolist() == [0x7FFFFFFF]


def test_fma_on_a_tie_is_rounded_once() -> None:
    """1 + 2^-24 lies half way between two floats; the product's low bits decide, and float64 has dropped them."""
    a, b = np.float32(1 + 2**-12), np.float32(2.0**-24 * (1 + 2**-23))
    pairs = np.array([[a, b]], np.float32).view(np.uint32)
    body = "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nfma.rn.f32 %f9, %f1, %f2, 0f3F800000;\nmov.b32 %r9, %f9;"
    assert run_pairs(body, pairs).view(np.float32)[0] == np.float32(1 + 2.0**-23)


def test_special_registers_tell_threads_where_they_are() -> None:
    body = """
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %ntid.x;
mad.lo.u32 %r3, %r1, %r2, %r0;
mul.wide.u32 %rd5, %r3, 4;
add.s64 %rd4, %rd1, %rd5;
mov.u32 %r4, %nctaid.x;
mov.u32 %r5, %laneid;
mov.u32 %r6, %lanemask_lt;
mad.lo.u32 %r7, %r4, 1000, %r5;
popc.b32 %r6, %r6;
mad.lo.u32 %r7, %r6, 100000, %r7;
st.global.u32 [%rd4], %r7;
"""
    out, _ = execute(kernel(body), grid=3, block=64, out_bytes=4 * 192)
    lane = np.arange(192) % 32
    assert (out.view(np.uint32) == 3000 + lane + 100000 * lane).all()
