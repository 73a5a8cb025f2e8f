"""What the H200's tensor cores make of products and an accumulator, bit for bit.

The ISA leaves order and rounding open; this is what the hardware was seen to do. Knows nothing of registers, layouts or
the machine. The emulator's own products are plain float32 sums, which are faster; this module says how far those may
be off, and settles a doubt about a low bit.

One instruction adds one block: all k products and the accumulator, aligned to the largest of them and cut, not
rounded, to so many bits; the sum is exact, and is cut to the result's precision. A product's place is the sum of its
factors' exponents, so one of 2 or more counts as less. Source: golden vectors *_fractions_*, which this reproduces in
every bit; in kind as Fasi, Higham, Mikaitis and Pranesh, PeerJ Computer Science 7:e330 (2021), found on older chips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.emulator.exact import Array
from tilewright.emulator.numerics import decode, encode

_NOTHING = -(2**20)  # the exponent of zero: below all others


@dataclass(frozen=True)
class Adder:
    """Units: bits after the leading one. `aligned`: what is kept of each term, counted from the largest term's place;
    `result`: what is kept of the sum."""

    aligned: int
    result: int


WIDE = Adder(aligned=25, result=23)  # f16, bf16, tf32
FP8 = Adder(aligned=13, result=13)


def adder(fmt: str) -> Adder:
    """The adder that products of this format go through."""
    return FP8 if fmt in ("e4m3", "e5m2") else WIDE


def multiply_accumulate(fmt: str, a: Array, b: Array, c: Array | None, acc: str = "f32") -> Array:
    """a (m, k) times b (k, n) plus c (m, n) of one mma or wgmma, float32 values. `acc`: f32 or f16, that of c and the
    result; an f16 result is the cut f32 one, rounded to nearest.

    Finite values only. Cost: an array (m, k, n) of float64.
    """
    kept = adder(fmt)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    c = np.zeros((a.shape[0], b.shape[1])) if c is None else np.asarray(c, np.float64)
    terms = np.concatenate([a[:, :, None] * b[None], c[:, None, :]], axis=1)
    places = np.concatenate([_exponent(a)[:, :, None] + _exponent(b)[None], _exponent(c)[:, None, :]], axis=1)
    places = np.where(terms == 0, _NOTHING, places)
    largest = places.max(axis=1, keepdims=True)
    unit = np.ldexp(1.0, np.where(largest == _NOTHING, 0, largest) - kept.aligned)
    total = (np.trunc(terms / unit) * unit).sum(axis=1)  # exact: up to 65 terms of under 2^27 units
    unit = np.ldexp(1.0, _exponent(total) - kept.result)
    cut = decode("f32", encode("f32", np.trunc(total / unit) * unit, "rz"))
    return decode("f16", encode("f16", cut)) if acc == "f16" else cut


def _exponent(values: Array) -> Array:
    """That of the leading bit; of zero 0, as ldexp must not overflow."""
    return np.where(values == 0, 0, np.frexp(values)[1] - 1)


def bound(fmt: str, k: int, magnitude: float, *, steps: int = 1, acc: str = "f32") -> float:
    """How far `steps` instructions of the hardware, one after another, may be from float32 sums in any order.

    `magnitude`: a power of two above sum |a||b| + |c| of every element, so that each term and partial sum is below it.
    Hardware, a step: k + 1 terms each cut by less than a unit of the aligned place, the sum by less than one of the
    result's. float32: k + 1 roundings of half an ulp. f16: each side rounds once a step by half an ulp.
    """
    kept = adder(fmt)
    cut = (k + 1) * magnitude * 2.0 ** -(1 + kept.aligned) + magnitude * 2.0 ** -(1 + kept.result)
    rounded = (k + 1) * magnitude * 2.0**-25
    halves = magnitude * 2.0**-11 if acc == "f16" else 0.0
    return steps * (cut + rounded + halves)
