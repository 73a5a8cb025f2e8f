"""The polynomial of gelu in kernels/cuda/activations.cuh, derived anew, and how far gelu is off with it.

    python tools/fit_gelu.py [--degree 7] [--last=-1e-6]

For a = |x| the upper tail of the normal distribution is 2^P(a), P a polynomial; gelu is x (1 - 2^P(a)), for x < 0
x 2^P(a). P is fitted so that the largest error of gelu itself is least: a ln2 tail(a) |P(a) - log2 tail(a)|, a Remez
exchange over 0 .. END. Its last coefficient is given, not fitted: below zero it takes 2^P to 0 behind END, and at
infinity, where one of its own choosing would be above zero. Prints coefficients in fp32, the error in exact arithmetic,
and that of a replay in fp32 with an ex2 that is off by 2^-22 either way (PTX ISA). Writes nothing.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import numpy as np

END = 6.0  # behind it the tail is below 1e-9
GRID = np.linspace(0.0, END, 6001)[1:]
EX2_ERROR = 2.0**-22
RELATIVE = 2.0**-21  # of the value, which the bound in epilogue.py has beside an absolute part

tail = np.frompyfunc(lambda a: 0.5 * math.erfc(a / math.sqrt(2.0)), 1, 1)


def fitted(degree: int, last: float) -> Any:
    """Coefficients from the constant on, in fp64. Raises ArithmeticError: the exchange does not settle."""
    tails = tail(GRID).astype(np.float64)
    weight = GRID * tails * math.log(2.0)  # of an error of P in gelu
    wanted = np.log2(tails) - last * GRID**degree
    powers = np.vander(GRID, degree, increasing=True)  # those that are fitted
    chosen = ((1 - np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))) / 2 * (len(GRID) - 1)).astype(int)
    for _ in range(100):
        signs = (-1.0) ** np.arange(degree + 1)
        system = np.column_stack([powers[chosen], signs / weight[chosen]])
        *coefficients, level = np.linalg.solve(system, wanted[chosen])
        error = (powers @ np.array(coefficients) - wanted) * weight
        if np.abs(error).max() < abs(level) * 1.0001:
            return np.array([*coefficients, last])
        chosen = _extrema(error, degree + 1)
    raise ArithmeticError(f"degree {degree}: no alternation after 100 exchanges")


def _extrema(error: Any, count: int) -> Any:
    """`count` places of largest errors of alternating signs, in order."""
    changes = np.flatnonzero(np.diff(np.sign(error))) + 1
    runs = np.split(np.arange(len(error)), changes)
    peaks = [run[np.abs(error[run]).argmax()] for run in runs]
    while len(peaks) > count:  # the smaller end
        peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
    if len(peaks) < count:
        raise ArithmeticError(f"{len(peaks)} extrema, {count} are needed")
    return np.array(peaks)


def replayed(coefficients: Any, x: Any, ex2_error: float) -> Any:
    """gelu of fp32 arguments as the kernel computes it: each fused multiply-add rounded once to fp32."""
    f32 = np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        a = np.abs(x).astype(np.float64)
        power = np.full(x.shape, f32(coefficients[-1]))
        for coefficient in coefficients[-2::-1]:
            power = (power.astype(np.float64) * a + float(f32(coefficient))).astype(f32)
        q = (np.exp2(power.astype(np.float64)) * (1.0 + ex2_error)).astype(f32)
        q[np.abs(q) < np.finfo(f32).tiny] = 0.0  # ftz
        return x * np.where(x < 0, q, f32(1.0) - q)


def excess(coefficients: Any, ex2_error: float) -> tuple[float, float]:
    """(largest error of the replay beyond RELATIVE of the value, where)."""
    powers = np.logspace(1.5, 38, 2000)
    x = np.concatenate([np.linspace(-30.0, 30.0, 1_000_001), powers, -powers]).astype(np.float32)
    exact = x.astype(np.float64) * tail(-x.astype(np.float64)).astype(np.float64)
    beyond = np.abs(replayed(coefficients, x, ex2_error) - exact) - RELATIVE * np.abs(exact)
    worst = int(beyond.argmax())
    return float(beyond[worst]), float(x[worst])


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--degree", type=int, default=7)
    parser.add_argument("--last", type=float, default=-1e-6)
    options = parser.parse_args(words)
    coefficients = fitted(options.degree, options.last)
    for power, coefficient in enumerate(coefficients):
        print(f"a^{power}  {np.float32(coefficient):.9g}f")
    tails = tail(GRID).astype(np.float64)
    exact = GRID * np.abs(2.0 ** np.polynomial.polynomial.polyval(GRID, coefficients) - tails)
    print(f"in exact arithmetic {exact.max():.2e}")
    for error in (-EX2_ERROR, 0.0, EX2_ERROR):
        beyond, x = excess(coefficients, error)
        print(f"in fp32, ex2 off by {error:+.1e}: {beyond:.2e} beyond 2^-21 of the value, at x = {x:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
