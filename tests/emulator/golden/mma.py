"""Golden vectors of the warp's tensor-core instructions: mma.sync, mma.sp, wmma.

Operands are small integers, so that every sum is exact in any order and the bytes must agree; one vector a number
format has random fractions, with a bound for what the order and the alignment of the sums may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from golden.vector import Tolerance, Vector, random, words
from tilewright.emulator.sums import bound

MAGNITUDE = 8.0  # above sum |a||b| + |c| of every element of the fractions (test_sums.py)

_NUMPY = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "s32": np.dtype(np.int32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


@dataclass(frozen=True)
class Shape:
    """One mma instruction. `registers`: 32-bit words a lane of a, b, c."""

    text: str
    a: str
    b: str
    acc: str
    registers: tuple[int, int, int]
    sparse: bool = False
    selectors: tuple[int, ...] = ()
    fractions: bool = False
    k: int = 0

    def operand(self, generator: np.random.Generator, fmt: str, num: int) -> NDArray[np.uint32]:
        """(registers, 32 lanes) of packed numbers."""
        kind = _NUMPY[fmt]
        count = num * 4 // kind.itemsize
        values: NDArray[Any]
        if self.fractions:
            values = generator.uniform(-1, 1, (32, count))
        elif fmt in ("s8", "u8"):
            values = generator.integers(0 if fmt == "u8" else -128, 256 if fmt == "u8" else 128, (32, count))
        else:
            values = generator.integers(-4, 5, (32, count))
        registers: NDArray[np.uint32] = np.ascontiguousarray(values.astype(kind)).view(np.uint32).reshape(32, num)
        return np.asarray(registers.T)

    def metadata(self, generator: np.random.Generator) -> NDArray[np.uint32]:
        """(1, 32) words of valid nibbles, other ones in every lane, so that the selector shows."""
        valid = (0b0100, 0b1110) if self.a == "tf32" else (0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110)
        nibbles = generator.choice(valid, (8, 32)).astype(np.uint32)
        placed = nibbles << (4 * np.arange(8, dtype=np.uint32))[:, None]
        return np.asarray(np.bitwise_or.reduce(placed, axis=0))[None]


def _call(shape: Shape, selector: int | None) -> str:
    num_a, num_b, num_c = shape.registers
    wide = shape.acc == "f64"
    step = 2 if wide else 1
    kind = "d" if wide else ("f" if shape.acc == "f32" else "r")
    number = iter(range(100))

    def group(count: int) -> str:
        return "{" + ", ".join(f"%{next(number)}" for _ in range(count // step)) + "}"

    places = [group(n) for n in (num_c, num_a, num_b, num_c)]
    tail = f", %{next(number)}, {selector:#x}" if selector is not None else ""
    outs = ", ".join(f'"={kind}"(d[{i}])' for i in range(num_c // step))
    load = "D" if wide else "W"
    side = "d" if wide else "r"
    ins = [f'"{side}"({load}({i}))' for i in range(0, num_a + num_b, step)]
    first_c = num_a + num_b
    read_c = {"d": "D({0})", "f": "__uint_as_float(W({0}))", "r": "W({0})"}[kind]
    ins += [f'"{kind}"({read_c.format(first_c + i)})' for i in range(0, num_c, step)]
    if selector is not None:
        ins.append(f'"r"(W({first_c + num_c}))')
    return f'asm volatile("{shape.text} {", ".join(places)}{tail};" : {outs} : {", ".join(ins)});'


def vector(name: str, shape: Shape, doubt: str = "") -> Vector:
    generator = random(name)
    num_a, num_b, num_c = shape.registers
    given = [
        shape.operand(generator, shape.a, num_a),
        shape.operand(generator, shape.b, num_b),
        shape.operand(generator, shape.acc, num_c),
    ]
    if shape.sparse:
        given.append(shape.metadata(generator))
    cxx = {"f64": "double", "f32": "float"}.get(shape.acc, "uint32_t")
    count = num_c // (2 if shape.acc == "f64" else 1)
    body = [
        "#define W(i) reinterpret_cast<const uint32_t*>(in)[(i) * 32 + threadIdx.x]",
        "#define D(i) __longlong_as_double(W(i) | static_cast<int64_t>(W((i) + 1)) << 32)",
        f"    {cxx} d[{count}];",
        f"    {cxx}* result = reinterpret_cast<{cxx}*>(out);",
    ]
    for place, selector in enumerate(shape.selectors or (None,)):
        body.append("    " + _call(shape, selector))
        body.append(f"    for (int i = 0; i < {count}; ++i) result[({place * count} + i) * 32 + threadIdx.x] = d[i];")
    size = (len(shape.selectors) or 1) * num_c * 32 * 4
    tolerances: tuple[Tolerance, ...] = ()
    if shape.fractions:
        kind = "absolute16" if shape.acc == "f16" else "absolute"
        tolerances = (Tolerance(0, size // 4, kind, bound(shape.a, shape.k, MAGNITUDE, acc=shape.acc)),)
    return Vector(
        name=name,
        family="mma",
        body="\n".join(body),
        input=words(np.concatenate(given)),
        output_bytes=size,
        block=32,
        tolerances=tolerances,
        doubt=doubt,
    )


def _dense(m: int, n: int, k: int, acc: str, a: str, b: str, tail: str = "", fractions: bool = False) -> Shape:
    bits = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64}.get(a, 8)
    regs = (m * k * bits // 1024, k * n * bits // 1024, m * n * {"f16": 16, "f64": 64}.get(acc, 32) // 1024)
    text = f"mma.sync.aligned.m{m}n{n}k{k}.row.col{tail}.{acc}.{a}.{b}.{acc}"
    return Shape(text, a, b, acc, regs, fractions=fractions, k=k)


def _sparse(k: int, acc: str, a: str, selectors: tuple[int, ...]) -> Shape:
    bits = {"f16": 16, "bf16": 16, "tf32": 32}.get(a, 8)
    regs = (16 * k // 2 * bits // 1024, k * 8 * bits // 1024, 128 * (16 if acc == "f16" else 32) // 1024)
    text = f"mma.sp::ordered_metadata.sync.aligned.m16n8k{k}.row.col.{acc}.{a}.{a}.{acc}"
    return Shape(text, a, a, acc, regs, sparse=True, selectors=selectors)


WMMA = """
    const uint32_t* given = reinterpret_cast<const uint32_t*>(in);
    uint32_t a[8], b[8];
    float c[8];
    asm volatile("wmma.load.a.sync.aligned.{LA}.m16n16k16.f16 {{%0, %1, %2, %3, %4, %5, %6, %7}}, [%8], 24;"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]), "=r"(a[4]), "=r"(a[5]), "=r"(a[6]), "=r"(a[7])
                 : "l"(in));
    asm volatile("wmma.load.b.sync.aligned.{LB}.m16n16k16.f16 {{%0, %1, %2, %3, %4, %5, %6, %7}}, [%8], 16;"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]), "=r"(b[4]), "=r"(b[5]), "=r"(b[6]), "=r"(b[7])
                 : "l"(in + 768));
    asm volatile("wmma.load.c.sync.aligned.{LC}.m16n16k16.f32 {{%0, %1, %2, %3, %4, %5, %6, %7}}, [%8], 20;"
                 : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3]), "=f"(c[4]), "=f"(c[5]), "=f"(c[6]), "=f"(c[7])
                 : "l"(in + 1280));
    asm volatile("wmma.mma.sync.aligned.{LA}.{LB}.m16n16k16.f32.f32 {{%0, %1, %2, %3, %4, %5, %6, %7}}, "
                 "{{%8, %9, %10, %11, %12, %13, %14, %15}}, {{%16, %17, %18, %19, %20, %21, %22, %23}}, "
                 "{{%0, %1, %2, %3, %4, %5, %6, %7}};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),
                   "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));
    asm volatile("wmma.store.d.sync.aligned.{LC}.m16n16k16.f32 [%0], {{%1, %2, %3, %4, %5, %6, %7, %8}}, 20;"
                 ::"l"(out), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]), "f"(c[4]), "f"(c[5]), "f"(c[6]), "f"(c[7])
                 : "memory");
    // Which element each register holds is the hardware's own affair; recorded, never compared.
    for (int i = 0; i < 8; ++i) reinterpret_cast<float*>(out + 2048)[32 * i + threadIdx.x] = c[i];
"""


def _wmma(name: str, a: str, b: str, c: str) -> Vector:
    generator = random(name)
    halves = generator.integers(-4, 5, 640).astype(np.float16).view(np.uint16)
    sums = generator.integers(-50, 50, 320).astype(np.float32)
    return Vector(
        name=name,
        family="mma",
        body=WMMA.format(LA=a, LB=b, LC=c),
        input=np.concatenate([words(halves), words(sums)]),
        output_bytes=2048 + 1024,
        block=32,
        tolerances=(Tolerance(512, 256, "any", 0.0),),
    )


_EXACT = {
    "mma_m16n8k8_f16": _dense(16, 8, 8, "f32", "f16", "f16"),
    "mma_m16n8k16_f16": _dense(16, 8, 16, "f32", "f16", "f16"),
    "mma_m16n8k16_f16_acc16": _dense(16, 8, 16, "f16", "f16", "f16"),
    "mma_m16n8k8_bf16": _dense(16, 8, 8, "f32", "bf16", "bf16"),
    "mma_m16n8k16_bf16": _dense(16, 8, 16, "f32", "bf16", "bf16"),
    "mma_m16n8k4_tf32": _dense(16, 8, 4, "f32", "tf32", "tf32"),
    "mma_m16n8k8_tf32": _dense(16, 8, 8, "f32", "tf32", "tf32"),
    "mma_m8n8k16_s8": _dense(8, 8, 16, "s32", "s8", "s8"),
    "mma_m16n8k16_s8": _dense(16, 8, 16, "s32", "s8", "s8"),
    "mma_m16n8k32_s8": _dense(16, 8, 32, "s32", "s8", "s8"),
    "mma_m16n8k32_u8_s8": _dense(16, 8, 32, "s32", "u8", "s8", ".satfinite"),
    "mma_m8n8k4_f64": _dense(8, 8, 4, "f64", "f64", "f64"),
    "mma_m16n8k8_f64": _dense(16, 8, 8, "f64", "f64", "f64"),
    "mma_m16n8k16_f64": _dense(16, 8, 16, "f64", "f64", "f64"),
    "mma_m16n8k32_e4m3": _dense(16, 8, 32, "f32", "e4m3", "e4m3"),
    "mma_m16n8k32_e5m2": _dense(16, 8, 32, "f32", "e5m2", "e4m3"),
}
_FRACTIONS = {
    "mma_fractions_f16": _dense(16, 8, 16, "f32", "f16", "f16", fractions=True),
    "mma_fractions_f16_acc16": _dense(16, 8, 16, "f16", "f16", "f16", fractions=True),
    "mma_fractions_bf16": _dense(16, 8, 16, "f32", "bf16", "bf16", fractions=True),
    "mma_fractions_tf32": _dense(16, 8, 8, "f32", "tf32", "tf32", fractions=True),
}
_SPARSE = {
    "mma_sp_m16n8k16_f16": _sparse(16, "f32", "f16", (0, 1, 2, 3)),
    "mma_sp_m16n8k32_f16": _sparse(32, "f32", "f16", (0, 1)),
    "mma_sp_m16n8k32_bf16": _sparse(32, "f32", "bf16", (0, 1)),
    "mma_sp_m16n8k8_tf32": _sparse(8, "f32", "tf32", (0, 1, 2, 3)),
    "mma_sp_m16n8k16_tf32": _sparse(16, "f32", "tf32", (0, 1)),
    "mma_sp_m16n8k32_s8": _sparse(32, "s32", "s8", (0, 1)),
    "mma_sp_m16n8k64_s8": _sparse(64, "s32", "s8", (0,)),
    "mma_sp_m16n8k64_e4m3": _sparse(64, "f32", "e4m3", (0,)),
    "mma_sp_m16n8k64_e5m2": _sparse(64, "f32", "e5m2", (0,)),
}

VECTORS: list[Vector] = [
    *[vector(name, shape) for name, shape in (_EXACT | _FRACTIONS).items()],
    *[vector(name, shape, "which bits of the metadata belong to which row") for name, shape in _SPARSE.items()],
    _wmma("wmma_row_col", "row", "col", "row"),
    _wmma("wmma_col_row", "col", "row", "col"),
]
