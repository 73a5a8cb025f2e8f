"""Whether an output agrees with a recorded one: byte for byte, or within a vector's tolerances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golden.vector import Tolerance, Vector

Bytes = NDArray[np.uint8]


def differences(vector: Vector, got: Bytes, want: Bytes) -> list[str]:
    """What is wrong with `got`, in words; empty when it agrees."""
    if got.size != want.size:
        return [f"{got.size} bytes instead of {want.size}"]
    wrong = got != want
    found = []
    for tolerance in vector.tolerances:
        part = slice(tolerance.first * 4, (tolerance.first + tolerance.count) * 4)
        wrong[part] = False
        worst = _excess(tolerance, got[part], want[part])
        if worst:
            found.append(worst)
    places = np.flatnonzero(wrong)
    if places.size:
        first = int(places[0])
        word = first // 4 * 4
        found.append(
            f"{places.size} of {got.size} bytes differ, the first at {first}: word {word // 4} is "
            f"{got[word : word + 4][::-1].tobytes().hex()} instead of {want[word : word + 4][::-1].tobytes().hex()}"
        )
    return found


def _excess(tolerance: Tolerance, got: Bytes, want: Bytes) -> str:
    if tolerance.kind == "any":
        return ""
    kind = np.float16 if tolerance.kind == "absolute16" else np.float32
    a, b = got.view(kind), want.view(kind)
    same = (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        if tolerance.kind == "ulps":
            error = np.abs(_ordered(got.view(np.int32)) - _ordered(want.view(np.int32))).astype(np.float64)
        else:
            error = np.abs(a.astype(np.float64) - b.astype(np.float64))
            if tolerance.kind == "relative":
                error /= np.abs(b.astype(np.float64))
            elif tolerance.kind == "scaled":
                error /= np.maximum(1.0, np.abs(b.astype(np.float64)))
        bad = ~same & ~(error <= tolerance.size)
    if not bad.any():
        return ""
    place = int(np.flatnonzero(bad)[0])
    return (
        f"{int(bad.sum())} numbers from word {tolerance.first} on are off by more than {tolerance.size:g} "
        f"{tolerance.kind}, the first at {place}: {a[place]!r} instead of {b[place]!r}"
    )


def _ordered(bits: NDArray[np.int32]) -> NDArray[np.int64]:
    """Numbers that count floats in order."""
    wide = bits.astype(np.int64)
    return np.where(wide < 0, -(wide & 0x7FFF_FFFF), wide)
