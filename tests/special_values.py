"""Products of values out of the ordinary: NaN, infinities, zeros with a sign, subnormals, sums past fp16's range.

Every partial sum of a case is exact in fp32 in any order, so that what float64 makes of it, rounded once to out's type,
is the only right answer; the sign of a zero is left open. What runs them says where: emulator and GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import dtypes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Special:
    """Shapes: a (m, k), b (k, n), float32 values that the types hold exactly. `dtype` is that of the inputs."""

    a: Array
    b: Array
    dtype: str = "bf16"
    out_dtype: str = "bf16"

    @property
    def expected(self) -> Array:
        """IEEE 754's answer in out's type: summed term by term, so that nothing is skipped because it is a zero."""
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.einsum("mk,kn->mn", self.a.astype(np.float64), self.b.astype(np.float64))
            return total.astype(dtypes.by_name(self.out_dtype).numpy).astype(np.float64)

    def wrong(self, out: Array) -> int:
        """Elements of out, as float64, that are not as expected."""
        same = (out == self.expected) | (np.isnan(out) & np.isnan(self.expected))
        return int((~same).sum())


def _whole(rows: int, columns: int, seed: int) -> Array:
    """Small whole numbers, none of them zero: an infinity times one is an infinity."""
    rng = np.random.default_rng(seed)
    return (rng.integers(1, 4, (rows, columns)) * rng.choice([-1, 1], (rows, columns))).astype(np.float32)


def cases() -> dict[str, Special]:
    """By what is special. m and n reach past one tile of the tests' configs, k ends inside a k tile."""
    found: dict[str, Special] = {}

    def add(name: str, m: int, n: int, k: int, **types: str) -> tuple[Array, Array]:
        a, b = _whole(m, k, 1), _whole(k, n, 2)
        found[name] = Special(a, b, **types)
        return a, b

    a, b = add("NaN in a row", 136, 72, 200)  # four k tiles: one for each CTA of a split in four
    a[70, 5] = np.nan
    a, b = add("NaN at the start of a row of 65", 136, 72, 65)  # what lies behind the row before
    a[70, 0] = np.nan
    a, b = add("NaN in a column", 136, 72, 136)
    b[130, 9] = np.nan
    a, b = add("infinity in the last k, 1 of its tile", 136, 72, 65)
    a[:, -1], b[-1, ::2] = np.inf, 2
    a, b = add("infinity in the last k, 63 of its tile", 136, 72, 127, dtype="fp16", out_dtype="fp32")
    b[-1, :], a[::3, -1] = -np.inf, 0
    a, b = add("infinity times infinity in the last k", 136, 72, 73)
    a[:, -1] = b[-1, :] = np.inf
    a, b = add("infinity in the last row and column", 129, 65, 72)
    a[-1, :] = b[:, -1] = np.inf
    a, b = add("infinities of both signs", 136, 72, 136, out_dtype="fp32")
    a[3, [0, 100]] = a[4, 0] = np.inf
    a, b = add("zeros of both signs", 136, 72, 72)
    a[:8], b[:, :8] = -0.0, 0.0
    a, b = add("a sum past fp16's range, and back", 136, 72, 136, dtype="fp16", out_dtype="fp16")
    a[:], b[:] = 0, 256
    a[:, [0, 64, 100]], a[:, [1, 65, 135]], a[:, 17] = 256, -256, 1  # 3 x 65536 in the middle, 256 in the end
    a, b = add("an fp16 out past its range", 136, 72, 8, dtype="fp16", out_dtype="fp16")
    a[:], b[:] = 0, 256
    a[:, 0], a[:, 1], a[::2, 2] = 255, 0.875, 0.0625  # 65504 is the largest number; 65520 and more round to infinity
    a, b = add("the same in fp32", 136, 72, 8, dtype="fp16", out_dtype="fp32")
    a[:], b[:] = 256, 256
    a, b = add("subnormal bf16 inputs", 136, 72, 72)
    a *= np.float32(2.0**-133)
    b *= np.float32(2.0**20)
    a, b = add("subnormal fp16 inputs", 136, 72, 72, dtype="fp16", out_dtype="fp32")
    a *= np.float32(2.0**-24)
    a, b = add("a subnormal fp16 out", 136, 72, 72, dtype="fp16", out_dtype="fp16")
    a *= np.float32(2.0**-12)
    b *= np.float32(2.0**-12)
    a, b = add("a subnormal bf16 out", 136, 72, 8)
    a *= np.float32(2.0**-66)
    b *= np.float32(2.0**-66)
    a, b = add("a subnormal fp32 out", 136, 72, 72, out_dtype="fp32")
    a *= np.float32(2.0**-70)
    b *= np.float32(2.0**-70)
    return found


def embedded(values: Array, major: str) -> Array:
    """A larger float32 array whose first rows and columns are `values`, or, `major` "rows" aside, their transpose.

    Around them lies NaN: columns up to a multiple of 8, and 8 more, then a row.
    """
    held = values if major == "rows" else values.T
    rows, columns = held.shape
    base = np.full((rows + 1, -(-columns // 8) * 8 + 8), np.nan, np.float32)
    base[:rows, :columns] = held
    return base
