"""Sums in float64 that lose nothing: with their error, rounded to odd, or rounded in any mode.

Knows nothing of formats; numerics.py rounds what this gives. Why rounded to odd: there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_LARGEST = float(np.finfo(np.float64).max)


def stops_at_max(mode: str, exact: Array) -> Array:
    """Where a finite value beyond the largest number rounds to that number, not to infinity. Source: IEEE 754, 7.4."""
    if mode == "rz":
        return np.ones(exact.shape, bool)
    if mode == "rm":
        return np.asarray(exact > 0)
    if mode == "rp":
        return np.asarray(exact < 0)
    return np.zeros(exact.shape, bool)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, e): s the nearest to a + b, s + e exactly a + b. Source: Knuth, TAOCP 2, 4.2.2."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def odd_sum(a: Array, b: Array, mode: str = "rn") -> Array:
    """a + b rounded to odd. x - x is -0 when the mode rounds down, else +0. Source: IEEE 754, 6.3."""
    s, error = two_sum(a, b)
    if mode == "rm":
        s = np.where((s == 0) & (a == -b) & (np.signbit(a) != np.signbit(b)), -0.0, s)
    return to_odd(s, error)


def to_odd(nearest: Array, error: Array) -> Array:
    """The nearest float64 to nearest + error, moved to its odd neighbour when error is not zero.

    A zero keeps its sign: an exact result of zero has no error.
    """
    lost = np.isfinite(nearest) & (error != 0) & np.isfinite(error)
    even = (np.asarray(nearest).view(np.uint64) & np.uint64(1)) == 0
    target = np.where(error > 0, np.inf, -np.inf)
    return np.where(lost & even, np.nextafter(nearest, target), nearest)


def directed_sum64(a: Array, b: Array, mode: str) -> Array:
    """a + b rounded to float64 in the mode."""
    s, error = two_sum(a, b)
    if mode == "rn":
        return s
    over = np.isinf(s) & np.isfinite(a) & np.isfinite(b) & stops_at_max(mode, s)
    s = np.where(over, np.copysign(_LARGEST, s), s)
    lost = np.isfinite(s) & np.isfinite(error) & (error != 0)
    below, above = np.nextafter(s, -np.inf), np.nextafter(s, np.inf)
    floor = np.where(lost & (error < 0), below, s)
    ceil = np.where(lost & (error > 0), above, s)
    if mode == "rz":
        return np.where(s > 0, floor, ceil)
    if mode == "rp":
        return ceil
    exact_zero = (s == 0) & ~lost & (np.signbit(a) != np.signbit(b)) & (a == -b)
    return np.where(exact_zero, -0.0, floor)  # as in odd_sum
