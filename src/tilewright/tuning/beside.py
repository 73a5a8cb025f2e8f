"""What an epilogue reads and writes beside a product that is tuned: its arrays in host memory, and the steps on them as
the reference wants them, of the rows and columns that are checked.

Knows forms of steps; nothing of GPUs or kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.dtypes import DType
from tilewright.epilogue_form import REDUCED, WRITTEN, ArrayForm, StepForm, array_name
from tilewright.epilogue_steps import (
    Add,
    Alpha,
    Aux,
    Beta,
    Bias,
    Epilogue,
    Gated,
    Gelu,
    Relu,
    RowAmax,
    Scale,
    Silu,
    Step,
    fp32_bits,
)
from tilewright.errors import UnsupportedError
from tilewright.kernels.fused import extent_bytes
from tilewright.problem import Problem
from tilewright.tensor import Rows

NUMBER = 0.5  # of alpha and beta: no kernel is another for it, and no sum is rounded otherwise
Values = Callable[[DType, int], NDArray[Any]]  # so many random values of a type
Matrices = tuple[NDArray[np.intp], ...]
Pick = Callable[[NDArray[Any]], Any]  # from an array's memory to the values that are checked


@dataclass(frozen=True)
class Sample:
    """An epilogue of some rows and columns of out. `written`: by name the arrays in it that a kernel has written, each
    with where its values lie in the array's memory, to be filled before they are checked."""

    epilogue: Epilogue
    written: dict[str, tuple[NDArray[Any], Pick]] = field(default_factory=dict)


def arrays_of(problem: Problem) -> Iterator[tuple[str, StepForm, ArrayForm, int]]:
    """(name, step, array, columns that it meets) of each."""
    if problem.epilogue is not None:
        width = problem.n
        for index, step in enumerate(problem.epilogue.steps):
            if step.array is not None:
                yield array_name(index), step, step.array, width
            if step.kind == "gated":
                width //= 2


def num_bytes(problem: Problem) -> int:
    """Bytes of all arrays."""
    return sum(extent_bytes(problem, array, width) for _, _, array, width in arrays_of(problem))


def memories(problem: Problem, values: Values) -> dict[str, NDArray[Any]]:
    """The memory of each array by its name: random where a kernel reads it, NaN where it writes."""
    found = {}
    for name, step, array, width in arrays_of(problem):
        count = extent_bytes(problem, array, width) // array.dtype.size
        found[name] = np.full(count, np.nan, array.dtype.numpy) if step.kind in WRITTEN else values(array.dtype, count)
    return found


def cleared(problem: Problem) -> tuple[tuple[str, Rows], ...]:
    """Arrays that are zeros before a kernel adds to them, by their names."""
    found = []
    for name, step, array, width in arrays_of(problem):
        if step.kind in REDUCED:
            size = extent_bytes(problem, array, width)
            found.append((name, Rows(0, 1, size, size)))
    return tuple(found)


def check_tunable(problem: Problem) -> None:
    """Raises: UnsupportedError: maxima of rows of a column-major out, which is computed as its transpose: the reference
    has none of columns."""
    for _, step, array, _ in arrays_of(problem):
        if step.kind in REDUCED and array.access == "columns":
            raise UnsupportedError(
                asked=f"tuning {problem}, of a column-major out",
                rule="values for each row of such an out are those of columns of what is computed",
                works="tune it with a row-major out",
            )


def numbers_of(problem: Problem) -> dict[str, int]:
    """The bits of each number by its name."""
    form = problem.epilogue
    return {} if form is None else {name: fp32_bits(NUMBER) for name in form.numbers}


def product_columns(problem: Problem, columns: list[int]) -> list[int]:
    """The product's columns that make these of out, in the order in which steps before a gate meet them."""
    if not problem.gates:
        return columns
    if problem.gates == "interleaved":
        return [each for column in columns for each in (2 * column, 2 * column + 1)]
    return [*columns, *(column + problem.out_n for column in columns)]


def is_of_whole_rows(problem: Problem) -> bool:
    """Whether all columns of a row make one value, so that none may be left out."""
    return problem.epilogue is not None and any(step.kind in REDUCED for step in problem.epilogue.steps)


def sample(
    problem: Problem, held: dict[str, NDArray[Any]], matrices: Matrices, rows: list[int], columns: list[int]
) -> Sample:
    """The epilogue of these rows and columns of out, of the matrices that are checked. `held`: as memories()."""
    form = problem.epilogue
    assert form is not None  # its caller's to know
    wide = product_columns(problem, columns)
    written: dict[str, tuple[NDArray[Any], Pick]] = {}
    steps: list[Step] = []
    is_before = bool(problem.gates)
    width = problem.n
    for index, step in enumerate(form.steps):
        array: Any = None
        if step.array is not None:
            name = array_name(index)
            pick = _picker(problem, step, width, matrices, rows, wide if is_before else columns)
            array = np.ascontiguousarray(pick(held[name]))
            if step.kind in WRITTEN:
                written[name] = (array, pick)
        steps.append(_step(step, array))
        if step.kind == "gated":
            is_before, width = False, width // 2
    return Sample(Epilogue(tuple(steps)), written)


def _picker(
    problem: Problem, step: StepForm, width: int, matrices: Matrices, rows: list[int], columns: list[int]
) -> Pick:
    """From an array's memory to its values of these rows and columns, as a step of the reference takes them."""
    array = step.array
    assert array is not None
    shape = (*problem.batch, problem.m, width)
    strides = tuple(stride * array.dtype.size for stride in (*array.batch, *array.strides))

    def pick(memory: NDArray[Any]) -> Any:
        view = np.lib.stride_tricks.as_strided(memory, shape, strides)
        if array.access == "columns":
            return view[(0,) * len(problem.batch)][0, columns]
        if array.access == "rows":
            return view[matrices][..., rows, 0]
        return view[matrices][..., rows, :][..., columns]

    return pick


def _step(step: StepForm, array: Any) -> Step:
    """Of a column-major out the word of a vector is that of the transpose."""
    per: Any = "column" if step.array is not None and step.array.access == "columns" else "row"
    words = step.option.split()
    made: dict[str, Callable[[], Step]] = {
        "alpha": lambda: Alpha(NUMBER),
        "beta": lambda: Beta(NUMBER, array),
        "bias": lambda: Bias(array, per),
        "scale": lambda: Scale(array, per),
        "relu": Relu,
        "gelu": lambda: Gelu(step.option),  # type: ignore[arg-type]
        "silu": Silu,
        "add": lambda: Add(array),
        "gated": lambda: Gated(*words),  # type: ignore[arg-type]
        "aux": lambda: Aux(array),
        "row_amax": lambda: RowAmax(array),
    }
    return made[step.kind]()
