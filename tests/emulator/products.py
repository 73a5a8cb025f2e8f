"""A product on the emulated backend: operands, the launch, and the bound that the result must keep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import device
from tilewright.backends.emulated import EmulatedBackend, emulated
from tilewright.config import Config
from tilewright.jit.build import build
from tilewright.jit.source import Binary
from tilewright.kernels.family import Family
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.problem import Problem

H200 = device.preset("h200")


@lru_cache
def binary(family: Family, problem: Problem, config: Config) -> Binary:
    """The kernel. Cost: the compiler's 0.2 to 0.9 s, once in a cache."""
    return build(render(family, problem, config, H200))


@dataclass(frozen=True, eq=False)
class Product:
    """Operands of one problem: a (m, k), b (k, n) in float64 as they were rounded, out in memory."""

    problem: Problem
    a: NDArray[Any]
    b: NDArray[Any]
    out: NDArray[Any]
    a_rows: NDArray[Any]
    b_rows: NDArray[Any]

    @property
    def rows(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The matrices as they lie in memory, pitch and all."""
        return self.a_rows, self.b_rows, self.out

    def result(self) -> NDArray[np.float64]:
        """out without its padding."""
        return self.out[:, : self.problem.n].astype(np.float64)

    def excess(self) -> float:
        """The largest error as a share of its bound; NaN where an element was not written.

        Bound: every partial sum is rounded once to fp32 in any order, k terms, so (k - 1) x 2^-24 x |a| |b|, doubled
        for products of sums that the bound's first order leaves out; then half an ulp of out (Higham, Accuracy and
        Stability, section 3.1).
        """
        exact = self.a @ self.b
        sums = np.abs(self.a) @ np.abs(self.b) * (self.problem.k * 2.0**-23)
        bound = sums + np.abs(exact) * self.problem.out_dtype.unit_roundoff * (1 + 2.0**-10) + 1e-30
        return float((np.abs(self.result() - exact) / bound).max())


def product(problem: Problem, *, seed: int = 0, whole: bool = False) -> Product:
    """Seeded operands; `whole`: small integers, whose sums are exact in any order. Padding of out is a pattern."""
    rng = np.random.default_rng(seed)

    def rows(shape: tuple[int, int], pitch: int) -> NDArray[Any]:
        values = rng.integers(-4, 5, shape) if whole else rng.standard_normal(shape)
        padded = np.full((shape[0], pitch), np.nan, np.float32)
        padded[:, : shape[1]] = values
        return padded.astype(problem.dtype.numpy)

    a_rows = rows((problem.m, problem.k), problem.a_pitch)
    b_shape = (problem.n, problem.k) if problem.b_major == "k" else (problem.k, problem.n)
    b_rows = rows(b_shape, problem.b_pitch)
    out = np.full((problem.m, problem.out_pitch), np.nan, problem.out_dtype.numpy)
    out[:, problem.n :] = 3
    a = a_rows[:, : problem.k].astype(np.float64)
    b = b_rows[:, : b_shape[1]].astype(np.float64)
    return Product(problem, a, b.T if problem.b_major == "k" else b, out, a_rows, b_rows)


def multiply(
    given: Product, config: Config, *, num_sms: int | None = None, family: Family = HOPPER, **choices: Any
) -> EmulatedBackend:
    """Runs the product on an emulated H200 with the choices of EmulatedBackend."""
    backend = emulated(**choices)
    problem = given.problem
    launch = family.launch(problem, config, H200, num_sms)
    for array in given.rows:
        backend.lend(array.ctypes.data, array.nbytes)
    kernel = backend.load(binary(family, problem, config), 0, launch)  # type: ignore[arg-type]  # families are frozen
    addresses = {name: array.ctypes.data for name, array in zip(("a", "b", "out"), given.rows, strict=True)}
    backend.launch(backend.pack(kernel, launch, family.arguments(problem, config, launch), addresses), 0)
    return backend
