"""What a kernel is told of an epilogue: its form as the rendered header fused.cuh, and the one parameter that holds its
arrays and numbers.

The header puts steps and arrays together that activations.cuh, fused_arrays.cuh and fused_results.cuh define; a plain
product takes the copy of it in the source tree. Numbers, addresses and pitches are run-time values.
"""

from __future__ import annotations

from tilewright.backends.base import (
    Argument,
    IntArgument,
    NumberArgument,
    PointerArgument,
    StructArgument,
)
from tilewright.epilogue_form import UP, WRITTEN, ArrayForm, Form, StepForm, array_name, number_name
from tilewright.kernels.family import filled
from tilewright.problem import Problem

NAME = "fused"  # of the kernels' parameter


def headers(problem: Problem) -> dict[str, str]:
    """The rendered header by its path; none for a plain product."""
    return {} if problem.epilogue is None else {"fused.cuh": header(problem.epilogue)}


def header(form: Form) -> str:
    """fused.cuh: struct Fused, the parameter, and class FusedRows, what it does to a lane's values."""
    members, readers, starts, lines = [], [], [], []
    ends: list[str] = []
    fetches: list[str] = []
    gate = form.order  # of the steps before the one that gates
    for index, step in enumerate(form.steps):
        if step.kind == "gated":
            if form.split == "apart":
                members.append(f"    const void* {UP};  // the Ampere family's; the Hopper family has a map of it")
            act = step.option.split()[0]  # the functions are called as the words are
            lines += [
                "#pragma unroll",
                f"        for (int i = 0; i < 4; ++i) values[i] = __fmul_rn({act}(values[i]), up[i]);",
            ]
            gate = ""
            continue
        if step.array is not None:
            members.append(f"    Array array{index};  // {step}")
            reader = _reader(step, step.array, gate)
            readers.append(f"    {reader} array{index};")
            factor = f", fused.number{index}.value != 0.0f" if step.kind == "beta" else ""
            starts.append(f"array{index}(fused.array{index}, place{factor})")
            if step.kind not in WRITTEN and step.array.access == "n" and not gate:
                condition = f"if (fused.number{index}.value != 0.0f) " if step.kind == "beta" else ""
                row = f"fetch_row<Type::{step.array.dtype}>(fused.array{index}, member, row, column, end);"
                fetches.append(f"        {condition}{row}")
            if step.kind == "row_amax" or ("Wide" in reader and step.kind == "aux"):
                ends.append(f"array{index}.end();")
        if step.kind in ("alpha", "beta"):
            members.append(f"    Number number{index};  // {step}")
            readers.append(f"    const float number{index};")
            starts.append(f"number{index}(fused.number{index}.value)")
        lines += [
            line if line.startswith("#") else f"        {line}"
            for part, name in _parts(gate)
            for line in _lines(index, step, name, part)
        ]
    start = "\n        : " + ",\n          ".join(starts) if starts else ""
    fused, place = (" fused", " place") if starts else ("", "")  # names of parameters that are used
    block = " block" if any("block" in line for line in lines) else ""
    fold, up = (2, "up") if form.is_gated else (1, "")
    return "\n".join(
        [
            "// Rendered for one form by kernels/fused.py. The copy in the source tree is that of a plain product.",
            "#pragma once",
            "",
            '#include "activations.cuh"',
            '#include "base.cuh"',
            '#include "fused_arrays.cuh"',
            '#include "fused_results.cuh"',
            '#include "place.cuh"',
            "",
            f"// {form}",
            "struct Fused {",
            "    static constexpr bool IS_PLAIN = false;",
            f"    static constexpr int FOLD = {fold};  // columns of the product that make one of out",
            *(members or ["    uint64_t unused;"]),
            "};",
            "",
            "class FusedRows {",
            "public:",
            f"    static constexpr bool FETCHES = {str(bool(fetches)).lower()};",
            "",
            f"    DEVICE FusedRows(const Fused&{fused}, const Place&{place}){start} {{}}",
            "",
            f"    DEVICE void apply(int{block}, float (&values)[4], float (&{up})[4]) {{",
            *lines,
            "    }",
            "",
            *(
                [
                    "    // Of the columns column .. end - 1 of a row of out: what is read for them.",
                    "    DEVICE static void fetch(const Fused& fused, const Member& member, int32_t row,",
                    "                             int32_t column, int32_t end) {",
                    *fetches,
                    "    }",
                    "",
                ]
                if fetches
                else []
            ),
            "    DEVICE void end() {" + (" " + " ".join(ends) + " " if ends else "") + "}",
            *(["", "private:", *readers] if readers else []),
            "};",
            "",
        ]
    )


def _parts(gate: str) -> tuple[tuple[int, str], ...]:
    """(number, name) of the values that a step meets: before they are gated both halves."""
    return ((0, "values"), (1, "up")) if gate else ((0, "values"),)


def _lines(index: int, step: StepForm, name: str, part: int) -> list[str]:
    """The statements of one step on four values."""
    at = f"block, {part}" if part else "block"
    if step.kind == "alpha":
        return [f"multiply({name}, number{index});"]
    if step.kind == "beta":
        return [f"add_multiple({name}, number{index}, array{index}, {at});"]
    if step.kind in ("bias", "add"):
        return [f"add({name}, array{index}, {at});"]
    if step.kind == "scale":
        return [f"multiply({name}, array{index}, {at});"]
    if step.kind == "aux":
        return [f"array{index}.write(block, {name}{', 1' if part else ''});"]
    if step.kind == "row_amax":
        return [f"array{index}.take(block, {name}{', 1' if part else ''});"]
    act = "gelu_tanh" if step.option == "tanh" else step.kind
    return ["#pragma unroll", f"for (int i = 0; i < 4; ++i) {name}[i] = {act}({name}[i]);"]


def _reader(step: StepForm, array: ArrayForm, gate: str) -> str:
    """The class through which a step meets its array. `gate`: how its columns are gated later."""
    split = f", Gate::{gate}" if gate else ""
    kind, paired = f"Type::{array.dtype}", str(array.is_paired).lower()
    if step.kind == "row_amax":
        return "LargestOfRows" if array.access == "rows" else "LargestOfColumns"
    if step.kind == "aux" and array.is_wide and not gate:
        return f"ToWideMatrix<{kind}>"
    if step.kind == "aux":
        return f"ToMatrix<{kind}, {str(array.access in ('m', 'rows')).lower()}, {paired}{split}>"
    if array.access == "columns":
        return f"OfColumns<{kind}, {paired}{split}>"
    if array.access == "rows":
        return f"OfRows<{kind}>"
    if array.is_wide and not gate:
        return f"OfWideMatrix<{kind}>"
    if array.access == "n":
        return f"OfMatrix<{kind}, {paired}{split}>"
    return f"OfColumnMajor<{kind}{split}>"


def argument(problem: Problem) -> Argument:
    """The parameter `fused`, of a problem as it is computed."""
    form = problem.epilogue
    if form is None:
        return IntArgument(NAME, 0, 4)
    parts: list[PointerArgument | IntArgument | NumberArgument] = []
    width = problem.n
    for index, step in enumerate(form.steps):
        if step.array is not None:
            name = array_name(index)
            parts.append(
                PointerArgument(
                    name,
                    extent_bytes(problem, step.array, width),
                    granule_bytes=16 if step.array.is_wide else step.array.dtype.size * (1 + step.array.is_paired),
                )
            )
            parts.append(IntArgument(f"{name}_pitch", step.array.pitch, 8))
            parts += [IntArgument(f"{name}_stride", stride, 8) for stride in filled(problem, step.array.batch, 0)]
        if step.kind in ("alpha", "beta"):
            parts.append(NumberArgument(number_name(index)))
        if step.kind == "gated":
            width //= 2
            if form.split == "apart":
                parts.append(PointerArgument(UP, problem.extent_bytes["b"], granule_bytes=16))
    return StructArgument(NAME, tuple(parts) or (IntArgument("unused", 0, 8),))


def extent_bytes(problem: Problem, array: ArrayForm, width: int) -> int:
    """Bytes from the first element of an array to the end of its last, of matrices `width` columns wide."""
    steps = zip((problem.m, width, *problem.batch), (*array.strides, *array.batch), strict=True)
    return (sum((extent - 1) * stride for extent, stride in steps) + 1) * array.dtype.size
