"""What is planned with no arrays at all: products and epilogues of arrays that are freshly allocated."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable

from tilewright import dtypes
from tilewright.dtypes import DTypeLike
from tilewright.epilogue_form import REDUCED, ArrayForm, Form, StepForm
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
    array_dtype,
    as_epilogue,
)
from tilewright.errors import LayoutError, ShapeError, UnsupportedError
from tilewright.integers import whole, wholes
from tilewright.problem import AMajor, Major, OutMajor, Problem, checked
from tilewright.tma import TMA_ALIGNMENT_BYTES


def packed(
    m: int,
    n: int,
    k: int,
    *,
    dtype: DTypeLike = "bf16",
    out_dtype: DTypeLike | None = None,
    sums: DTypeLike | None = None,
    a_major: AMajor = "k",
    b_major: Major = "k",
    out_major: OutMajor = "n",
    batch: Iterable[int] = (),
    shared: str = "",
    padded: bool = True,
) -> Problem:
    """The product of freshly allocated matrices: every pitch is the smallest that TMA can read.

    `padded` False: a and b are contiguous, as an array library makes them, whatever TMA reads. `batch`: as many
    products, in arrays of their own; `shared` names what all of them have in common, "a" or "b".

    Raises: ShapeError, LayoutError, DTypeError: see checked().
    """
    m, n, k = (whole(name, extent, ShapeError) for name, extent in (("m", m), ("n", n), ("k", k)))
    in_type = dtypes.by_name(dtype)
    out_type = dtypes.out_choices(in_type)[0] if out_dtype is None else dtypes.by_name(out_dtype)
    if shared not in ("", "a", "b"):
        raise LayoutError(
            asked=f"shared = {shared!r}", rule="it names what all products of a batch share", works="pass 'a' or 'b'"
        )
    step = TMA_ALIGNMENT_BYTES // in_type.size if padded else 1
    a_rows, a_pitch = (m, _round_up(max(k, 1), step)) if a_major == "k" else (k, _round_up(max(m, 1), step))
    b_rows, b_pitch = (n, _round_up(max(k, 1), step)) if b_major == "k" else (k, _round_up(max(n, 1), step))
    out_rows, out_pitch = (m, max(n, 1)) if out_major == "n" else (n, max(m, 1))
    extents = wholes("batch", batch, ShapeError)
    return checked(
        Problem(
            m=m,
            n=n,
            k=k,
            dtype=in_type,
            out_dtype=out_type,
            sums=dtypes.summed_in(in_type, sums),
            a_major=a_major,
            b_major=b_major,
            out_major=out_major,
            a_pitch=a_pitch,
            b_pitch=b_pitch,
            out_pitch=out_pitch,
            batch=extents,
            a_batch=_packed_batch(extents, 0 if shared == "a" else a_rows * a_pitch),
            b_batch=_packed_batch(extents, 0 if shared == "b" else b_rows * b_pitch),
            out_batch=_packed_batch(extents, out_rows * out_pitch),
        )
    )


def packed_named(text: str) -> Problem:
    """The packed product of a text that begins as records.problem_text() begins: batch, sizes, types, and ends with the
    steps of an epilogue where it has one; all else as packed() has it. Worked examples: "16 x 384x128x256 fp16 fp16 TN
    a128 b128 out16", "64x96x32 bf16 bf16 TN a128 b128 out16 then bias(column) gelu(none)"."""
    product, _, steps = text.partition(" then ")
    *batch, rest = product.split(" x ")
    sizes, dtype, out_dtype, *_ = rest.split()
    m, n, k = map(int, sizes.split("x"))
    problem = packed(m, n, k, dtype=dtype, out_dtype=out_dtype, batch=map(int, batch))
    return with_epilogue(problem, epilogue_named(steps, out_dtype)) if steps else problem


def _packed_batch(extents: tuple[int, ...], matrix: int) -> tuple[int, ...]:
    """Strides of a batch of matrices of so many elements, one behind the other."""
    strides: list[int] = []
    for extent in reversed(extents):
        strides.append(matrix)
        matrix *= max(extent, 1)
    return tuple(reversed(strides))


def packed_form(epilogue: Step | Epilogue, m: int, n: int, batch: tuple[int, ...] = ()) -> Form:
    """The form with freshly allocated arrays: for planning with no arrays at all, whose place the names of their
    element types may take, as in Bias("bf16") | Gelu().

    Shapes: m x n is the product, n its columns before gating; vectors are shared by the matrices of a batch.
    """
    steps, columns = [], n
    for step in as_epilogue(epilogue).steps:
        array = None
        if step.kind == "gated" and step.array is not None:
            array_dtype(step.array)
        elif step.array is not None:
            is_row = step.option == "row" or step.kind in REDUCED
            is_vector = is_row or step.option == "column"
            strides = (1, 0) if is_row else (0, 1) if is_vector else (n, 1)
            sizes: list[int] = []
            matrix = m if step.kind in REDUCED else 0 if is_vector else m * n
            for extent in reversed(batch):
                sizes.append(matrix)
                matrix *= extent
            array = ArrayForm(dtype=array_dtype(step.array), strides=strides, batch=tuple(reversed(sizes)))
        if step.kind == "gated":
            n //= 2
        steps.append(StepForm(kind=step.kind, option=step.option, array=array))
    return Form(tuple(steps)).unpaired_where_halves_are_odd(columns)


def with_epilogue(problem: Problem, epilogue: Step | Epilogue) -> Problem:
    """The packed problem with the epilogue of packed arrays; a gated one with a packed out of half as many columns."""
    made = dataclasses.replace(problem, epilogue=packed_form(epilogue, problem.m, problem.n, problem.batch))
    if not made.gates or made.out_major == "m":
        return made
    out_batch = _packed_batch(made.batch, made.m * made.out_n) if made.batch else ()
    return dataclasses.replace(made, out_pitch=max(made.out_n, 1), out_batch=out_batch)


def epilogue_named(text: str, dtype: DTypeLike) -> Epilogue:
    """The epilogue that a text names as records and plans tell it: "bias(column) gelu(none)", or without what is the
    default: "bias gelu". Arrays are of `dtype`, maxima of rows fp32, numbers 0.5.

    Raises: UnsupportedError: no such steps.
    """
    name = dtypes.by_name(dtype).name
    made: dict[str, Callable[..., Step]] = {
        "alpha": lambda: Alpha(0.5),
        "beta": lambda: Beta(0.5, name),
        "bias": lambda per="column": Bias(name, per),
        "scale": lambda per="column": Scale(name, per),
        "relu": Relu,
        "gelu": Gelu,
        "silu": Silu,
        "add": lambda: Add(name),
        "gated": lambda words="silu": Gated(*words.split()),
        "aux": lambda: Aux(name),
        "row-amax": lambda: RowAmax("fp32"),
    }
    steps = []
    found = re.findall(r"([\w-]+)(?:\(([^()]*)\))?", text)
    for kind, option in found:
        if kind not in made or (option and kind in ("alpha", "beta", "relu", "silu", "add", "aux", "row-amax")):
            raise UnsupportedError(
                asked=f"the epilogue {text[:60]!r}",
                rule=f"steps are {', '.join(made)}, some with a word: bias(row), gelu(tanh), gated(silu interleaved)",
                works='pass "bias gelu", "gated(silu)", "alpha beta" or the like',
            )
        steps.append(made[kind](option) if option else made[kind]())
    if not steps or "".join(text.split()) != "".join(
        kind + (f"({word})" if word else "") for kind, word in found
    ).replace(" ", ""):
        raise UnsupportedError(
            asked=f"the epilogue {text[:60]!r}",
            rule="it names steps in their order",
            works='pass "bias gelu" for instance',
        )
    return Epilogue(tuple(steps))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
