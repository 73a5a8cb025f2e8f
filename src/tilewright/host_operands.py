"""Operands in host memory, as NumPy arrays: random or whole numbers, strided as a Problem has them.

Never zeros: they hide unwritten outputs. Whole numbers have no NaN: what must not be read or stay is their largest.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.check import integer_limit, integer_stride
from tilewright.dtypes import DType
from tilewright.problem import Problem

Kind = Literal["normal", "integer"]


class HostOperand(NamedTuple):
    """One operand: all of its memory, from its first element to its last, and the view that the problem has of it."""

    memory: NDArray[Any]
    view: NDArray[Any]


def range_of(dtype: DType) -> tuple[int, int]:
    """The least value of whole numbers, and the one past the largest."""
    half: int = 2 ** (dtype.bits - 1)
    return -half, half


def is_left_out(problem: Problem) -> NDArray[np.bool_]:
    """(m, k): the values of a that are 0, so that sums of whole numbers stay exact (check.integer_stride)."""
    stride = integer_stride(problem.k, problem.sums)
    places: NDArray[np.bool_] = (np.arange(problem.m)[:, None] + np.arange(problem.k)) % stride != 0
    return places


def filler(dtype: DType) -> float:
    """What no element holds by chance: NaN; of int32 its largest. Of int8 its largest, which is as good as any."""
    return range_of(dtype)[1] - 1 if dtype.is_whole else float("nan")


def unwritten(values: NDArray[Any], dtype: DType) -> int:
    """Elements that hold the filler."""
    if dtype.is_whole:
        return int(np.count_nonzero(values == filler(dtype)))
    return int(np.isnan(values.astype(np.float32)).sum())


def host_operand(problem: Problem, name: str, memory: NDArray[Any]) -> HostOperand:
    """The operand "a", "b" or "out" of the problem that lies in this memory."""
    shape, strides = problem.strided(name)
    view = np.lib.stride_tricks.as_strided(memory, shape, [stride * memory.itemsize for stride in strides])
    return HostOperand(memory, view)


def host_operands(problem: Problem, seed: int, kind: Kind = "integer") -> tuple[HostOperand, HostOperand, HostOperand]:
    """a (*batch, m, k), b (*batch, k, n) and out (*batch, m, n); the filler of their type in the padding and in out.

    `kind`: whole numbers whose sums are exact, or a normal distribution; of int8 either is any of its values.
    """
    generator = np.random.default_rng(seed)
    limit = max(integer_limit(problem.k, problem.sums), 1)
    found = []
    for name in ("a", "b", "out"):
        kept = problem.out_dtype if name == "out" else problem.dtype
        dtype = kept.numpy
        memory = np.full(problem.extent_bytes[name] // kept.size, filler(kept), dtype)
        operand = host_operand(problem, name, memory)
        if name != "out":
            shape = operand.view.shape
            if kept.is_whole:
                operand.view[...] = generator.integers(*range_of(kept), shape)
            elif kind == "integer":
                values = generator.integers(-limit, limit + 1, shape)
                if name == "a" and integer_stride(problem.k, problem.sums) > 1:
                    values[..., is_left_out(problem)] = 0
                operand.view[...] = values.astype(dtype)
            else:
                operand.view[...] = generator.standard_normal(shape, dtype=np.float32).astype(dtype)
        found.append(operand)
    return found[0], found[1], found[2]
