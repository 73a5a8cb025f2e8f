"""Golden vectors of scalar instructions: integers, bits, floats, conversions, approximations.

Operands are the cross product of special values (zeros, subnormals, halfway cases, infinities, NaN) and random bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from golden.vector import Op, Vector, lanewise, predicate, random
from tilewright.emulator.arithmetic import APPROX_ULPS

THREADS = 128

F32 = (
    0x0000_0000,  # 0
    0x8000_0000,  # -0
    0x3F80_0000,  # 1
    0xBF80_0001,  # just below -1
    0x0000_0001,  # smallest subnormal
    0x807F_FFFF,  # largest subnormal, negative
    0x7F7F_FFFF,  # largest
    0x7F80_0000,  # infinity
    0xFF80_0000,  # -infinity
    0x7FC1_2345,  # NaN with a payload
    0x4B80_0001,  # 2^24 + 2
)
# Halfway cases and limits of the narrower formats, for conversions.
F32_CVT = (
    *F32,
    0x3F80_8000,  # 1 + 2^-8: a tie of bf16, to even below
    0x3F81_8000,  # a tie of bf16, to even above
    0x3F80_1000,  # a tie of f16 and tf32
    0x3F80_3000,
    0x477F_E000,  # 65504
    0x477F_F000,  # 65520: ties to infinity in f16
    0x7F7F_8000,  # ties to infinity in bf16
    0x3300_0000,  # 2^-25: a tie between 0 and the smallest f16
    0x3380_0000,  # 2^-24
    0x387F_E000,  # an f16 subnormal
    0x43E0_0000,  # 448
    0x43E8_0000,  # 464: a tie above 448
    0x43F0_0000,  # 480
    0x4760_0000,  # 57344
    0x4770_0000,  # 61440
    0x3B00_0000,  # 2^-9: smallest e4m3
    0x3A80_0000,  # 2^-10: a tie between 0 and it
    0x3780_0000,  # 2^-16: smallest e5m2
    0xFFFF_FFFF,  # NaN, all bits
    0x3F00_0000,  # 0.5
    0x3FC0_0000,  # 1.5
    0x4020_0000,  # 2.5
    0xC020_0000,  # -2.5
    0x4EFF_FFFF,  # just below 2^31
    0x4F00_0000,  # 2^31
    0xCF00_0001,  # below -2^31
    0x4F80_0000,  # 2^32
    0x5F00_0000,  # 2^63
    0x42FE_FFFF,  # 127.5
    0xC300_8000,  # -128.5
    0x4380_0000,  # 256
)
S32 = (0, 1, 0xFFFF_FFFF, 0x7FFF_FFFF, 0x8000_0000, 31, 32, 33, 0x1234_5678, 0x0000_FF80, 0x00FF_00FF)
F16 = (0x0000, 0x8000, 0x3C00, 0xBC01, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E55, 0x3555)
BF16 = (0x0000, 0x8000, 0x3F80, 0xBF81, 0x0001, 0x807F, 0x7F7F, 0x7F80, 0xFF80, 0x7FD5, 0x3EAB)
F64 = (
    0x0000_0000_0000_0000,
    0x8000_0000_0000_0000,
    0x3FF0_0000_0000_0000,
    0xBFF0_0000_0000_0001,
    0x0000_0000_0000_0001,
    0x7FEF_FFFF_FFFF_FFFF,
    0x7FF0_0000_0000_0000,
    0x7FF8_0000_0000_1234,
    0x3FF0_0000_1000_0000,  # 1 + 2^-24: a tie of f32
    0x36A0_0000_0000_0000,  # 2^-149
    0x43E0_0000_0000_0000,  # 2^63
)


def crossed(name: str, specials: Sequence[int], num_slots: int, *, floats: bool = True) -> NDArray[np.uint32]:
    """(num_slots, 128): slots 0 and 1 run over the pairs of 11 specials (121), then random; others random, of which a
    quarter special. Random floats have like magnitudes, so that sums cancel."""
    generator = random(name)
    pool = np.array(specials[:11], np.uint32)
    slots = generator.integers(0, 2**32, (num_slots, THREADS), np.uint32)
    if floats:
        slots = (slots & np.uint32(0x80FF_FFFF)) | np.uint32(0x3F00_0000)
    pairs = np.stack(np.meshgrid(pool, pool), axis=0).reshape(2, -1)
    slots[: min(2, num_slots), : pairs.shape[1]] = pairs[:num_slots]
    for slot in range(2, num_slots):
        chosen = generator.random(THREADS) < 0.25
        slots[slot, chosen] = generator.choice(pool, chosen.sum())
    return slots


def listed(name: str, specials: Sequence[int], num_slots: int = 1) -> NDArray[np.uint32]:
    """(num_slots, 128): every special, then random bit patterns; each slot in another order."""
    generator = random(name)
    slots = generator.integers(0, 2**32, (num_slots, THREADS), np.uint32)
    for slot in range(num_slots):
        order = np.roll(np.array(specials, np.uint32), 7 * slot)
        slots[slot, : len(order)] = order
    return slots


def paired(name: str, specials: Sequence[int], num_slots: int) -> NDArray[np.uint32]:
    """(num_slots, 128) of packed 16-bit specials: the low halves crossed, the high halves the same in another order."""
    low = crossed(name, specials, num_slots, floats=False) & np.uint32(0xFFFF)
    high = np.roll(low, 5, axis=1)
    return low | high << np.uint32(16)


def doubles(name: str, num: int) -> NDArray[np.uint32]:
    """(2 num, 128): `num` f64 operands as low and high words."""
    generator = random(name)
    pool = np.array(F64, np.uint64)
    values = generator.integers(0, 2**52, (num, THREADS), np.uint64) | np.uint64(0x3FF0_0000_0000_0000)
    pairs = np.stack(np.meshgrid(pool, pool), axis=0).reshape(2, -1)
    values[: min(num, 2), : pairs.shape[1]] = pairs[:num]
    return (
        np.stack([values & np.uint64(0xFFFF_FFFF), values >> np.uint64(32)], axis=1)
        .reshape(-1, THREADS)
        .astype(np.uint32)
    )


# NaN of every sign, payload and kind, and what makes one.
F64_NAN = (
    0x7FF8_0000_0000_1234,
    0xFFF9_2345_6789_ABCD,
    0x7FFF_FFFF_FFFF_FFFF,
    0x7FF0_0000_0000_0001,  # signalling, all of its payload in the low bits
    0xFFF4_0000_2000_5678,  # signalling
    0x7FF0_0000_0000_0000,  # infinity
    0xFFF0_0000_0000_0000,
    0x0000_0000_0000_0000,
    0xBFF8_0000_0000_0000,  # -1.5
)
F32_NAN = (0x7FC1_2345, 0xFFFF_FFFF, 0xFFC0_0000, 0x7F80_0001, 0xFFA0_2345, 0x7FBF_E000, 0x7F80_0000, 0x3F80_0000)
F16_NAN = (0x7E55, 0xFFFF, 0x7C01, 0xFD23, 0x7C00, 0x3C00)
BF16_NAN = (0x7FD5, 0xFFFF, 0x7F81, 0xFFA3, 0x7F80, 0x3F80)
# Factors whose products lie by the smallest normal number.
F32_EDGE = (0x3F7F_FFFF, 0x3F80_0000, 0x3F80_0001, 0x3F00_0001, 0x0080_0000, 0x8080_0001, 0x007F_FFFF, 0x0100_0000)
F16_EDGE = (0x3BFF, 0x3C00, 0x3C01, 0xB801, 0x0400, 0x8401, 0x03FF, 0x0800)


def chosen(name: str, pool: Sequence[int], num: int, bits: int = 32) -> NDArray[np.uint32]:
    """(num words of `bits`, 128): numbers out of the pool, in every pair first; f64 as low and high words."""
    generator = random(name)
    values = generator.choice(np.array(pool, np.uint64), (num, THREADS))
    pairs = np.stack(np.meshgrid(pool, pool), axis=0).reshape(2, -1)[:, :THREADS].astype(np.uint64)
    values[: min(num, 2), : pairs.shape[1]] = pairs[:num]
    if bits == 32:
        return values.astype(np.uint32)
    halves = np.stack([values & np.uint64(0xFFFF_FFFF), values >> np.uint64(32)], axis=1)
    return halves.reshape(-1, THREADS).astype(np.uint32)


def _integers() -> list[Vector]:
    arithmetic = [
        *[Op(f"{op}.{t}", "r", "rr") for op in ("min", "max", "mul.hi", "mul.lo") for t in ("s32", "u32")],
        *[Op(f"{op}.s32", "r", "rr") for op in ("add", "sub")],
        *[Op(f"mad.{part}.{t}", "r", "rrr") for part in ("lo", "hi") for t in ("s32", "u32")],
        *[Op(f"{op}.s32", "r", "r") for op in ("abs", "neg")],
        *[Op(f"sad.{t}", "r", "rrr") for t in ("s32", "u32")],
        *[Op(f"{op}.{t}", "l", "rr") for op in ("mul.wide",) for t in ("s32", "u32")],
        Op("add.sat.s32", "r", "rr"),
        Op("sub.sat.s32", "r", "rr"),
        *[Op(f"dp4a.{a}.{b}", "r", "rrr") for a in ("u32", "s32") for b in ("u32", "s32")],
    ]
    wide = [
        *[Op(f"{op}.s64", "l", "ll", (0, 2)) for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max")],
        Op("mul.hi.u64", "l", "ll", (0, 2)),
        *[Op(f"{op}.b64", "l", "lr", (0, 4)) for op in ("shl",)],
        *[Op(f"shr.{t}", "l", "lr", (0, 4)) for t in ("s64", "u64")],
        Op("mad.wide.s32", "l", "rrl", (0, 4, 2)),
    ]
    divided = [*[Op(f"{op}.{t}", "r", "rr") for op in ("div", "rem") for t in ("s32", "u32")]]
    words = crossed("int_arithmetic", S32, 5, floats=False)
    divisors = words.copy()
    divisors[1] |= np.uint32(1)  # a divisor of zero is undefined
    divisors[0] &= np.uint32(0x7FFF_FFFF)  # so is -2^31 / -1
    return [
        lanewise("int_arithmetic", arithmetic, words),
        lanewise("int64_arithmetic", wide, words),
        lanewise("int_division", divided, divisors),
    ]


def _bits() -> list[Vector]:
    words = crossed("bits", S32, 4, floats=False)
    logic = [
        *[Op(f"{op}.b32", "r", "rr") for op in ("and", "or", "xor")],
        Op("not.b32", "r", "r"),
        Op("cnot.b32", "r", "r"),
        Op("shl.b32", "r", "rr"),
        *[Op(f"shr.{t}", "r", "rr") for t in ("s32", "u32")],
        *[Op(f"{op}.b32", "r", "r") for op in ("popc", "clz", "brev")],
        *[Op(f"bfind{s}.{t}", "r", "r") for s in ("", ".shiftamt") for t in ("s32", "u32")],
        *[Op(f"shf.{way}.{mode}.b32", "r", "rrr", (0, 2, 1)) for way in "lr" for mode in ("wrap", "clamp")],
        *[
            Op(f"lop3.b32 {lut:#x}", "r", "rrr", text=f"lop3.b32 %0, %1, %2, %3, {lut:#x};")
            for lut in (0x96, 0xE8, 0xCA, 0x1D)
        ],
        Op("szext.wrap.s32", "r", "rr"),
        Op("bmsk.clamp.b32", "r", "rr"),
    ]
    positions = words.copy()
    positions[1] = random("bits_fields").integers(0, 40, THREADS)
    positions[2] = random("bits_lengths").integers(0, 40, THREADS)
    fields = [
        *[Op(f"bfe.{t}", "r", "rrr") for t in ("s32", "u32")],
        Op("bfi.b32", "r", "rrrr", (0, 3, 1, 2)),
        *[
            Op(f"prmt.b32{mode}", "r", "rrr", (0, 3, 1), text=f"prmt.b32{mode} %0, %1, %2, %3;")
            for mode in (".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
        ],
        Op("prmt.b32", "r", "rrr", (0, 3, 4)),
    ]
    selectors = np.concatenate([positions, random("bits_prmt").integers(0, 2**16, (1, THREADS)).astype(np.uint32)])
    return [lanewise("bits_logic", logic, words), lanewise("bits_fields", fields, selectors)]


def _floats() -> list[Vector]:
    words = crossed("f32", F32, 3)
    modes = ("rn", "rz", "rm", "rp")
    sums = [
        *[Op(f"{op}.{m}{z}.f32", "f", "ff") for op in ("add", "sub", "mul") for m in modes for z in ("", ".ftz")][:20],
        Op("add.rn.sat.f32", "f", "ff"),
    ]
    fused = [
        *[Op(f"fma.{m}{z}.f32", "f", "fff") for m in modes for z in ("", ".ftz")],
        Op("fma.rn.sat.f32", "f", "fff"),
    ]
    divided = [
        *[Op(f"div.{m}.f32", "f", "ff") for m in modes],
        *[Op(f"{op}.{m}.f32", "f", "f") for op in ("rcp", "sqrt") for m in modes],
    ]
    compared = [
        *[predicate(f"setp.{c}.f32", "f") for c in ("eq", "ne", "lt", "le", "gt", "ge")],
        *[predicate(f"setp.{c}.f32", "f") for c in ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")],
        predicate("setp.lt.ftz.f32", "f"),
        *[Op(f"{op}{s}.f32", "f", "ff") for op in ("min", "max") for s in ("", ".ftz", ".NaN", ".xorsign.abs")],
        *[Op(f"{op}.f32", "f", "f") for op in ("abs", "neg")],
        Op("copysign.f32", "f", "ff"),
    ]
    wide = [
        *[Op(f"{op}.{m}.f64", "d", "dd", (0, 2)) for op in ("add", "mul") for m in modes],
        *[Op(f"fma.{m}.f64", "d", "ddd", (0, 2, 4)) for m in modes],
        *[Op(f"{op}.f64", "d", "dd", (0, 2)) for op in ("min", "max")],
    ]
    return [
        lanewise("f32_sums", sums, words),
        lanewise("f32_fma", fused, words),
        lanewise("f32_division", divided, words),
        lanewise("f32_compare", compared, words),
        lanewise("f64_sums", wide[:8], doubles("f64_arithmetic", 3), doubt="NaN payloads of f64 arithmetic"),
        lanewise("f64_fma", wide[8:], doubles("f64_arithmetic", 3), doubt="NaN payloads of f64 arithmetic"),
    ]


def _halves() -> list[Vector]:
    def ops(kind: str, extra: Sequence[Op]) -> list[Op]:
        return [
            *[Op(f"{op}.{kind}", "r", "rr") for op in ("add.rn", "sub.rn", "mul.rn")],
            *[Op(f"fma.rn{s}.{kind}", "r", "rrr") for s in ("", ".relu")],
            *[Op(f"{op}{s}.{kind}", "r", "rr") for op in ("min", "max") for s in ("", ".NaN", ".xorsign.abs")],
            *[Op(f"{op}.{kind}", "r", "r") for op in ("abs", "neg")],
            *extra,
        ]

    f16 = [Op(f"{op}.rn{s}.f16x2", "r", "rr") for op in ("add", "mul") for s in (".ftz", ".sat")]
    return [
        lanewise("f16x2_arithmetic", ops("f16x2", [*f16, Op("fma.rn.sat.f16x2", "r", "rrr")]), paired("f16x2", F16, 3)),
        lanewise("bf16x2_arithmetic", ops("bf16x2", []), paired("bf16x2", BF16, 3)),
    ]


def _conversions() -> list[Vector]:
    words = listed("cvt", F32_CVT, 2)
    narrow = [
        *[
            Op(f"cvt.{m}{r}.{t}.f32", "r", "ff")
            for t in ("f16x2", "bf16x2")
            for m in ("rn", "rz")
            for r in ("", ".relu")
        ],
        *[Op(f"cvt.{m}.f16.f32", "h", "f") for m in ("rn", "rz", "rm", "rp", "rn.ftz", "rn.sat")],
        *[Op(f"cvt.{m}.bf16.f32", "h", "f") for m in ("rn", "rz", "rn.relu")],
        *[Op(f"cvt.{m}.tf32.f32", "r", "f") for m in ("rna", "rn", "rz", "rn.relu")],
    ]
    fp8 = [
        *[Op(f"cvt.rn.satfinite{r}.{t}.f32", "h", "ff") for t in ("e4m3x2", "e5m2x2") for r in ("", ".relu")],
        *[Op(f"cvt.rn.satfinite{r}.{t}.f16x2", "h", "r") for t in ("e4m3x2", "e5m2x2") for r in ("", ".relu")],
        *[Op(f"cvt.rn{r}.f16x2.{t}", "r", "h") for t in ("e4m3x2", "e5m2x2") for r in ("", ".relu")],
    ]
    all_fp8 = listed("cvt_fp8", F32_CVT, 2)
    to_integer = [
        *[Op(f"cvt.{m}.{t}.f32", "r", "f") for m in ("rni", "rzi", "rmi", "rpi") for t in ("s32", "u32")],
        *[Op(f"cvt.rzi.{t}.f32", "h", "f") for t in ("s16", "u16")],
        *[Op(f"cvt.rzi.{t}.f32", "l", "f") for t in ("s64", "u64")],
        Op("cvt.rpi.ftz.s32.f32", "r", "f"),
        *[Op(f"cvt.{m}.f32.f32", "f", "f") for m in ("rni", "rzi", "rmi", "rpi")],
        Op("cvt.sat.f32.f32", "f", "f"),
    ]
    from_integer = [
        *[Op(f"cvt.{m}.f32.{t}", "f", "r") for m in ("rn", "rz", "rm", "rp") for t in ("s32", "u32")],
        *[Op(f"cvt.{m}.f32.{t}", "f", "l") for m in ("rn", "rm") for t in ("s64", "u64")],
        *[Op(f"cvt.rn.f16.{t}", "h", "r") for t in ("s32", "u32")],
        Op("cvt.rn.f64.s64", "d", "l"),
        Op("cvt.sat.s16.s32", "h", "r"),
        Op("cvt.sat.u16.s32", "h", "r"),
        Op("cvt.s64.s32", "l", "r"),
        Op("cvt.sat.u32.s64", "r", "l"),
        Op("cvt.sat.s8.s32", "r", "r", text="cvt.sat.s8.s32 %0, %1;"),
        Op("cvt.s32.s8", "r", "r", text="cvt.s32.s8 %0, %1;"),
    ]
    f16_words = paired("cvt_f16", F16, 1)
    widen = [
        Op("cvt.f32.f16", "f", "h"),
        Op("cvt.f32.bf16", "f", "h"),
        Op("cvt.f64.f32", "d", "f"),
        *[Op(f"cvt.{m}.s32.f16", "r", "h") for m in ("rni", "rzi")],
        Op("cvt.rmi.f16.f16", "h", "h"),
    ]
    from_double = [
        *[Op(f"cvt.{m}.f32.f64", "f", "d") for m in ("rn", "rz", "rm", "rp", "rn.ftz")],
        *[
            Op(f"cvt.{m}.{t}.f64", r, "d")
            for m in ("rni", "rzi")
            for t, r in (("s32", "r"), ("u32", "r"), ("s64", "l"))
        ],
        Op("cvt.rn.f16.f64", "h", "d"),
    ]
    return [
        lanewise("cvt_narrow", narrow, words),
        lanewise("cvt_fp8", fp8, all_fp8),
        lanewise("cvt_float_to_integer", to_integer, words),
        lanewise("cvt_integer", from_integer, crossed("cvt_integer", S32, 2, floats=False)),
        lanewise("cvt_widen", widen, f16_words, doubt="NaN payloads through cvt.f32.f16 and cvt.f32.bf16"),
        lanewise("cvt_f64", from_double, doubles("cvt_f64", 1)),
    ]


def _approximations() -> list[Vector]:
    name = "approximations"
    words = listed(name, F32, 2)
    spread = random(name).uniform(-8, 8, (2, THREADS - len(F32))).astype(np.float32).view(np.uint32)
    words[:, len(F32) :] = spread
    # Slot 2: sine and cosine promise nothing beyond 2 pi.
    angles = random("angles").uniform(-6, 6, THREADS).astype(np.float32).view(np.uint32)
    angles[:4] = (0x0000_0000, 0x8000_0000, 0x7F80_0000, 0x7FC1_2345)
    words = np.concatenate([words, angles[None]])
    ops = [
        *[Op(f"{op}.approx{z}.f32", "f", "f") for op in ("ex2", "rcp", "sqrt", "rsqrt", "lg2") for z in ("", ".ftz")],
        *[Op(f"{op}.approx.f32", "f", "f", (2,)) for op in ("sin", "cos")],
        Op("tanh.approx.f32", "f", "f"),
        Op("div.approx.f32", "f", "ff"),
        Op("div.full.f32", "f", "ff"),
    ]
    kinds = {"lg2": "scaled", "sin": "absolute", "cos": "absolute", "tanh": "relative"}
    tolerance = {op: (kinds.get(op, "ulps"), size) for op, size in APPROX_ULPS.items()}
    return [lanewise(name, ops, words, tolerance=tolerance)]


def _nans() -> list[Vector]:
    """Which NaN comes out, where the ISA leaves it open."""
    f64 = [
        *[Op(f"{op}.rn.f64", "d", "dd", (0, 2)) for op in ("add", "sub", "mul", "div")],
        Op("fma.rn.f64", "d", "ddd", (0, 2, 4)),
        *[Op(f"{op}.f64", "d", "dd", (0, 2)) for op in ("min", "max")],
        *[Op(f"{op}.f64", "d", "d", (0,)) for op in ("abs", "neg")],
        *[Op(f"{op}.rn.f64", "d", "d", (0,)) for op in ("rcp", "sqrt")],
        Op("cvt.rni.f64.f64", "d", "d", (0,)),
    ]
    narrowed = [
        Op(f"cvt.{m}.{t}.f64", r, "d") for m, t, r in (("rn", "f32", "f"), ("rz", "f32", "f"), ("rn", "f16", "h"))
    ]
    single = [
        Op("cvt.f64.f32", "d", "f"),
        *[Op(f"cvt.{m}.tf32.f32", "r", "f") for m in ("rna", "rn", "rz")],
        *[Op(f"cvt.rn{s}.{t}.f32", "h", "f") for t in ("f16", "bf16") for s in ("", ".relu")],
        *[Op(f"{op}.f32", "f", "f") for op in ("abs", "neg", "abs.ftz", "neg.ftz")],
        Op("cvt.rni.f32.f32", "f", "f"),
    ]
    halves = [
        Op("cvt.f32.f16", "f", "h"),
        Op("cvt.f64.f16", "d", "h"),
        *[Op(f"{op}.f16", "h", "h") for op in ("abs", "neg")],
        Op("cvt.f32.bf16", "f", "h", (1,)),
        *[Op(f"{op}.bf16", "h", "h", (1,)) for op in ("abs", "neg")],
    ]
    by_half = np.concatenate([chosen("nan_f16", F16_NAN, 1), chosen("nan_bf16", BF16_NAN, 1)])
    doubt = "which NaN comes out, of which sign and payload"
    return [
        lanewise("nan_f64", f64, chosen("nan_f64", F64_NAN, 3, 64), doubt=doubt),
        lanewise("nan_cvt_f64", narrowed, chosen("nan_cvt_f64", F64_NAN, 1, 64), doubt=doubt),
        lanewise("nan_f32", single, chosen("nan_f32", F32_NAN, 1), doubt=doubt),
        lanewise("nan_halves", halves, by_half, doubt=doubt),
    ]


def _edges() -> list[Vector]:
    """Flushing by the smallest normal number: before or after the rounding; f64 quotients in every mode."""
    f32 = [
        *[Op(f"mul.{m}.ftz.f32", "f", "ff") for m in ("rn", "rz", "rp", "rm")],
        *[Op(f"fma.{m}.ftz.f32", "f", "fff") for m in ("rn", "rp")],
        *[Op(f"{op}.rn.ftz.f32", "f", "ff") for op in ("add", "div")],
        *[Op(f"{op}.ftz.f32", "f", "f") for op in ("abs", "neg")],
    ]
    f16 = [
        *[Op(f"{op}.rn.ftz.f16", "h", "hh") for op in ("add", "sub", "mul")],
        Op("fma.rn.ftz.f16", "h", "hhh"),
        Op("fma.rn.ftz.relu.f16", "h", "hhh"),
        *[Op(f"{op}.ftz.f16", "h", "hh") for op in ("min", "max")],
        *[Op(f"{op}.ftz.f16", "h", "h") for op in ("abs", "neg")],
    ]
    divided = [
        *[Op(f"div.{m}.f64", "d", "dd", (0, 2)) for m in ("rn", "rz", "rm", "rp")],
        *[Op(f"{op}.{m}.f64", "d", "d", (0,)) for op in ("rcp", "sqrt") for m in ("rn", "rm")],
    ]
    numbers = [bits for bits in F64 if bits != 0x7FF8_0000_0000_1234]
    return [
        lanewise("edge_f32_ftz", f32, chosen("edge_f32_ftz", F32_EDGE, 3), doubt="whether .ftz looks before it rounds"),
        lanewise("edge_f16_ftz", f16, chosen("edge_f16_ftz", F16_EDGE, 3), doubt="whether .ftz looks before it rounds"),
        lanewise("f64_division", divided, chosen("f64_division", numbers, 2, 64)),
    ]


VECTORS: list[Vector] = [
    *_integers(),
    *_bits(),
    *_floats(),
    *_halves(),
    *_conversions(),
    *_approximations(),
    *_nans(),
    *_edges(),
]
