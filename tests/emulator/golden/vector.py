"""What a golden vector is: a small kernel, its input bytes, its launch, and how closely outputs must agree.

A kernel is `vector(const uint8_t* in, uint8_t* out, const __grid_constant__ TensorMap map0, ...)`. `out` starts as
0xA5, so that what a kernel must not touch is part of the vector.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ENTRY = "vector"
ARCH = "sm_90a"
UNTOUCHED = 0xA5
PRELUDE = Path(__file__).with_name("prelude.cuh")


@dataclass(frozen=True, kw_only=True)
class Map:
    """A tensor map over `in` or `out`, `offset_bytes` into it. Shapes as in tilewright.emulator.tiled.TiledMap."""

    buffer: str
    element: str
    extents: tuple[int, ...]
    pitches_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    fill_nan: bool = False
    offset_bytes: int = 0


@dataclass(frozen=True)
class Tolerance:
    """How far words `first` .. `first + count - 1` of the output may be off. `kind`: "ulps" (of f32), "absolute",
    "relative" or "scaled" (by the number, if above 1) of f32 words, "absolute16" of f16 halves, "any" for no check."""

    first: int
    count: int
    kind: str
    size: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Vector:
    """One golden vector. Units: CTAs, threads, CTAs a cluster, bytes.

    `error`: the status name that the launch must end with; "" when it must succeed. `doubt`: what of the emulator's
    model this vector settles.
    """

    name: str
    family: str
    body: str
    input: NDArray[np.uint8]
    output_bytes: int
    grid: int = 1
    block: int = 128
    cluster: int = 1
    smem_bytes: int = 0
    maps: tuple[Map, ...] = ()
    tolerances: tuple[Tolerance, ...] = field(default=())
    error: str = ""
    doubt: str = ""

    @functools.cached_property
    def source(self) -> str:
        """The whole unit, but for the prelude."""
        parameters = "".join(f", const __grid_constant__ TensorMap map{i}" for i in range(len(self.maps)))
        return f'#include "prelude.cuh"\n\nKERNEL(const uint8_t* in, uint8_t* out{parameters}) {{\n{self.body}\n}}\n'

    @functools.cached_property
    def digest(self) -> str:
        """What a recording belongs to: the kernel's text, its input and its launch."""
        parts = (self.source, PRELUDE.read_text(), self.grid, self.block, self.cluster, self.smem_bytes, self.maps)
        sha = hashlib.sha256("\0".join(map(str, parts)).encode())
        sha.update(self.input.tobytes())
        return sha.hexdigest()[:16]


def words(values: Sequence[int] | NDArray[np.generic]) -> NDArray[np.uint8]:
    """Any array as bytes."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1)


def random(name: str) -> np.random.Generator:
    """Seeded by the vector's name, so that adding a vector changes no other."""
    return np.random.default_rng(list(name.encode()))


# -- lane by lane: each thread works on its own input words ------------------------------------------------------------

_WORDS_OF = {"r": 1, "f": 1, "h": 1, "l": 2, "d": 2}
_CXX = {"r": "uint32_t", "f": "float", "h": "uint16_t", "l": "uint64_t", "d": "double"}
_READ = {
    "r": "W({0})",
    "f": "__uint_as_float(W({0}))",
    "h": "static_cast<uint16_t>(W({0}))",
    "l": "L({0})",
    "d": "__longlong_as_double(static_cast<int64_t>(L({0})))",
}
_WRITE = {
    "r": "O({0}, d);",
    "f": "O({0}, __float_as_uint(d));",
    "h": "O({0}, d);",
    "l": "O({0}, d); O({0} + 1, d >> 32);",
    "d": "{{ uint64_t b = __double_as_longlong(d); O({0}, b); O({0} + 1, b >> 32); }}",
}


@dataclass(frozen=True)
class Op:
    """One instruction: PTX name, constraint of the result, constraints and input words of the operands.

    `text` replaces the instruction where it is more than "name d, a, b;"; `tail` follows the operands.
    """

    name: str
    result: str
    operands: str
    slots: tuple[int, ...] = (0, 1, 2)
    tail: str = ""
    text: str = ""

    def cxx(self, place: int) -> str:
        numbers = ", ".join(f"%{i}" for i in range(len(self.operands) + 1))
        text = self.text or f"{self.name} {numbers}{self.tail};"
        inputs = ", ".join(
            f'"{kind}"({_READ[kind].format(slot)})' for kind, slot in zip(self.operands, self.slots, strict=False)
        )
        write = _WRITE[self.result].format(place)
        return f'    {{ {_CXX[self.result]} d; asm volatile("{text}" : "={self.result}"(d) : {inputs}); {write} }}'


def predicate(name: str, kind: str, slots: tuple[int, ...] = (0, 1)) -> Op:
    """A setp as 0 or 1."""
    return Op(name, "r", kind * 2, slots, text=f"{{.reg .pred p; {name} p, %1, %2; selp.u32 %0, 1, 0, p;}}")


def lanewise(
    name: str,
    ops: Sequence[Op],
    slots: NDArray[np.uint32],
    *,
    family: str = "scalar",
    tolerance: dict[str, tuple[str, float]] | None = None,
    doubt: str = "",
) -> Vector:
    """A vector of `ops`, each applied by every thread to its words.

    Shapes: input (slots, threads), output (places, threads), 32-bit words.
    """
    threads = slots.shape[1]
    place, body, tolerances = 0, [], []
    for op in ops:
        body.append(op.cxx(place))
        width = _WORDS_OF[op.result]
        for prefix, (kind, size) in (tolerance or {}).items():
            if op.name.startswith(prefix):
                tolerances.append(Tolerance(place * threads, width * threads, kind, size))
        place += width
    text = [
        f"#define W(i) reinterpret_cast<const uint32_t*>(in)[(i) * {threads} + threadIdx.x]",
        "#define L(i) (static_cast<uint64_t>(W(i)) | static_cast<uint64_t>(W((i) + 1)) << 32)",
        f"#define O(i, v) reinterpret_cast<uint32_t*>(out)[(i) * {threads} + threadIdx.x] = static_cast<uint32_t>(v)",
        *body,
    ]
    return Vector(
        name=name,
        family=family,
        body="\n".join(text),
        input=words(slots),
        output_bytes=place * threads * 4,
        block=threads,
        tolerances=tuple(tolerances),
        doubt=doubt,
    )
