"""Operands in host memory, as NumPy arrays: random or whole numbers, strided as a Problem has them.

Never zeros: they hide unwritten outputs.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.check import integer_limit
from tilewright.problem import Problem

Kind = Literal["normal", "integer"]


class HostOperand(NamedTuple):
    """One operand: all of its memory, from its first element to its last, and the view that the problem has of it."""

    memory: NDArray[Any]
    view: NDArray[Any]


def host_operand(problem: Problem, name: str, memory: NDArray[Any]) -> HostOperand:
    """The operand "a", "b" or "out" of the problem that lies in this memory."""
    shape, strides = problem.strided(name)
    view = np.lib.stride_tricks.as_strided(memory, shape, [stride * memory.itemsize for stride in strides])
    return HostOperand(memory, view)


def host_operands(problem: Problem, seed: int, kind: Kind = "integer") -> tuple[HostOperand, HostOperand, HostOperand]:
    """a (*batch, m, k), b (*batch, k, n) and out (*batch, m, n); NaN in the padding and in out.

    `kind`: whole numbers whose sums are exact, or a normal distribution.
    """
    generator = np.random.default_rng(seed)
    limit = integer_limit(problem.k)
    found = []
    for name in ("a", "b", "out"):
        dtype = (problem.out_dtype if name == "out" else problem.dtype).numpy
        memory = np.full(problem.extent_bytes[name] // np.dtype(dtype).itemsize, np.nan, dtype)
        operand = host_operand(problem, name, memory)
        if name != "out":
            shape = operand.view.shape
            if kind == "integer":
                values = generator.integers(-limit, limit + 1, shape).astype(np.float32)
            else:
                values = generator.standard_normal(shape, dtype=np.float32)
            operand.view[...] = values.astype(dtype)
        found.append(operand)
    return found[0], found[1], found[2]
