"""What is planned with no arrays at all: products and epilogues of arrays that are freshly allocated."""

from __future__ import annotations

from tilewright.epilogue_form import REDUCED, ArrayForm, Form, StepForm
from tilewright.epilogue_steps import Epilogue, Step, array_dtype, as_epilogue


def packed_form(epilogue: Step | Epilogue, m: int, n: int, batch: tuple[int, ...] = ()) -> Form:
    """The form with freshly allocated arrays: for planning with no arrays at all, whose place the names of their
    element types may take, as in Bias("bf16") | Gelu().

    Shapes: m x n is the product, n its columns before gating; vectors are shared by the matrices of a batch.
    """
    steps, columns = [], n
    for step in as_epilogue(epilogue).steps:
        array = None
        if step.array is not None:
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
    return Form(tuple(steps)).apart_where_halves_are_odd(columns)
