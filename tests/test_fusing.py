"""fusing.py: how an epilogue's arrays are reached once batches are folded, and which are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright import dtypes
from tilewright.epilogue_form import ArrayForm, Form, StepForm
from tilewright.errors import DTypeError, LayoutError, ShapeError, UnsupportedError
from tilewright.fusing import Fusing, check_fused, folded_shape
from tilewright.layout import problem_of, row_major_strides
from tilewright.problem import Problem
from tilewright.tensor import Location, View

HOST = Location("host", 0)


def view(
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    dtype: Any = dtypes.BF16,
    address: int = 1 << 20,
    location: Location = HOST,
) -> View:
    return View(address, shape, row_major_strides(shape) if strides is None else strides, dtype, location)


def problem(
    a: tuple[int, ...], b: tuple[int, ...], *steps: tuple[str, str, View | None], out: View | None = None
) -> Problem:
    fusing = Fusing(tuple((kind, option) for kind, option, _ in steps), tuple(v for _, _, v in steps if v is not None))
    return problem_of(view(a), view(b), out, None, fusing=fusing)


def array(found: Problem) -> ArrayForm:
    assert found.epilogue is not None
    return found.epilogue.arrays[0][2]


def test_vectors_and_matrices_are_reached_by_their_strides() -> None:
    for step, access, pitch in (
        (("bias", "column", view((32,))), "columns", 0),
        (("bias", "row", view((64,))), "rows", 0),
        (("beta", "", view((64, 32), (40, 1))), "n", 40),
        (("beta", "", view((64, 32), (1, 70))), "m", 70),
        (("add", "", view((64, 32), (0, 1))), "columns", 0),  # expanded: the same row for all
    ):
        found = array(problem((64, 128), (128, 32), step))
        assert (found.access, found.pitch) == (access, pitch)


def test_arrays_without_elements_have_any_strides() -> None:
    for batch in ((), (2,), (0,)):
        rows = 8 if batch == (0,) else 0
        for kind, option, shape in (("aux", "", (rows, 4)), ("add", "", (rows, 4)), ("bias", "row", (rows,))):
            given = view((*batch, *shape), (0,) * (len(batch) + len(shape)))
            assert array(problem((*batch, rows, 16), (*batch, 16, 4), (kind, option, given)))


def test_a_column_major_out_exchanges_rows_and_columns_of_the_kernels_problem() -> None:
    out = view((64, 32), (1, 64))
    found = problem((64, 128), (128, 32), ("bias", "column", view((32,))), out=out)
    assert array(found).access == "columns"
    assert array(found.row_major).access == "rows"


def test_pairs_are_read_where_addresses_and_pitches_are_even() -> None:
    for c, is_paired in (
        (view((64, 32)), True),
        (view((64, 32), (33, 1)), False),
        (view((64, 32), address=(1 << 20) + 2), False),
        (view((64, 32), dtype=dtypes.FP32, address=(1 << 20) + 8), True),
        (view((64, 32), dtype=dtypes.FP32, address=(1 << 20) + 4), False),
    ):
        assert array(problem((64, 128), (128, 32), ("add", "", c))).is_paired == is_paired


@pytest.mark.parametrize(("n", "is_paired"), [(72, True), (70, False)])
def test_before_a_gate_whose_second_half_begins_at_an_odd_column_nothing_is_taken_in_pairs(
    n: int, is_paired: bool
) -> None:
    steps = (("bias", "column", view((n,))), ("gated", "silu halves", None), ("bias", "column", view((n // 2,))))
    form = problem((64, 128), (128, n), *steps).epilogue
    assert form is not None
    assert [array.is_paired for _, _, array in form.arrays] == [is_paired, True]
    interleaved = (steps[0], ("gated", "silu interleaved", None))
    assert array(problem((64, 128), (128, n), *interleaved)).is_paired


def test_a_batch_is_folded_into_rows_where_the_arrays_can_go_along() -> None:
    a, b = (3, 64, 128), (128, 32)
    shared = problem(a, b, ("bias", "column", view((32,))))
    assert (shared.m, shared.batch) == (192, ())
    own = problem(a, b, ("scale", "row", view((3, 64))))
    assert (own.m, own.batch, array(own).access) == (192, (), "rows")
    matrices = problem(a, b, ("add", "", view((3, 64, 32))))
    assert (matrices.m, array(matrices).pitch) == (192, 32)
    repeated = problem(a, b, ("scale", "row", view((64,))))
    assert (repeated.m, repeated.batch, array(repeated).batch) == (64, (3,), (0,))
    apart = problem(a, b, ("add", "", view((3, 64, 32), (4096, 32, 1))))
    assert (apart.m, apart.batch, array(apart).batch) == (64, (3,), (4096,))


def test_single_rows_of_a_batch_stay_apart_where_their_values_do() -> None:
    shared = problem((3, 1, 64), (64, 40), ("bias", "row", view((1,))))
    apart = problem((3, 1, 64), (64, 40), ("row_amax", "", view((3, 1), (8, 1), dtypes.FP32)))
    assert (shared.batch, array(shared).batch) == ((3,), (0,))
    assert (apart.batch, array(apart).batch) == ((3,), (8,))
    assert problem((3, 1, 64), (64, 40), ("bias", "row", view((3, 1)))).batch == ()


@pytest.mark.parametrize("step", [("bias", "row"), ("scale", "row"), ("row_amax", "")], ids=lambda step: step[0])
def test_single_columns_of_a_batch_stay_apart_where_each_row_of_each_has_a_value(step: tuple[str, str]) -> None:
    a, b = (1, 5, 64), (3, 64, 1)
    own = problem(a, b, (*step, view((3, 5), dtype=dtypes.FP32)))
    assert (own.n, own.batch, array(own).batch) == (1, (3,), (5,))
    single = problem((1, 1, 64), b, (*step, view((3, 1), dtype=dtypes.FP32)))  # its rows lie as columns would
    assert (single.n, single.batch, array(single).batch) == (1, (3,), (1,))


def test_single_columns_of_a_batch_become_one_matrix_where_its_rows_share_their_values() -> None:
    shared = problem((1, 1, 64), (3, 64, 1), ("bias", "row", view((1,))))
    matrix = problem((1, 1, 64), (3, 64, 1), ("add", "", view((3, 1, 1))))
    assert (shared.n, shared.batch, matrix.n, matrix.batch) == (3, (), 3, ())


def test_gates_keep_their_columns_when_a_batch_could_become_columns() -> None:
    a, b = view((64, 128)), view((3, 128, 32), (32, 96, 1))
    out = view((3, 64, 16), (16, 48, 1))
    fusing = Fusing((("gated", "silu halves"),), ())
    found = problem_of(a, b, out, None, fusing=fusing)
    assert (found.n, found.out_n, found.batch) == (32, 16, (3,))
    assert problem_of(a, b, view((3, 64, 32), (32, 96, 1)), None, fusing=Fusing((("relu", ""),), ())).n == 96


def test_a_gated_out_has_half_of_the_columns() -> None:
    found = problem((64, 128), (128, 32), ("gated", "silu halves", None), ("add", "", view((64, 16))))
    assert (found.out_n, found.rows_of("out"), found.out_pitch) == (16, (64, 16), 16)
    assert found.out_bytes == 64 * 16 * 2
    assert folded_shape((3, 64, 32), Fusing((("gated", "silu halves"),), ())) == (3, 64, 16)


CUDA = Location("cuda", 0)


@pytest.mark.parametrize(
    ("steps", "error", "words"),
    [
        ([("bias", "column", view((31,)))], ShapeError, "(32,)"),
        ([("bias", "row", view((32,)))], ShapeError, "(64,)"),
        ([("beta", "", view((32, 64)))], ShapeError, "(64, 32)"),
        ([("row_amax", "", view((32,), dtype=dtypes.FP32))], ShapeError, "(64,)"),
        ([("gated", "silu halves", None), ("bias", "column", view((32,)))], ShapeError, "(16,)"),
        ([("gated", "silu halves", None), ("gated", "silu halves", None)], UnsupportedError, "once"),
        ([("row_amax", "", view((64,)))], DTypeError, "fp32"),
        ([("row_sum", "", view((64,), dtype=dtypes.FP32))], UnsupportedError, "order"),
        ([("bias", "column", view((32,), location=CUDA))], UnsupportedError, "one device"),
        ([("bias", "column", view((32,), (2,)))], LayoutError, "contiguous"),
        ([("add", "", view((64, 32), (64, 2)))], LayoutError, "contiguous"),
        ([("add", "", view((64, 32), (-32, 1)))], LayoutError, "from 0 up"),
        ([("aux", "", view((64, 32), (16, 1)))], LayoutError, "place of its own"),
    ],
)
def test_arrays_that_no_step_takes_are_refused(steps: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as refusal:
        problem((64, 128), (128, 32), *steps)
    assert words in str(refusal.value)


def test_an_array_without_elements_may_be_written() -> None:
    found = problem(
        (0, 64), (64, 40), ("aux", "", view((0, 40), (0, 0))), ("row_amax", "", view((0,), (0,), dtypes.FP32))
    )
    assert found.epilogue is not None


def test_vectors_as_operands_and_odd_columns_to_gate_are_refused() -> None:
    with pytest.raises(ShapeError, match="vector"):
        problem((128,), (128, 32), ("relu", "", None))
    with pytest.raises(ShapeError, match="even number"):
        problem((64, 128), (128, 31), ("gated", "silu halves", None))


A, B, OUT, FREE = 0x10000, 0x20000, 0x30000, 0x40000


@pytest.mark.parametrize(
    ("kind", "address", "is_served"),
    [
        ("beta", OUT, True),
        ("add", OUT, True),
        ("beta", OUT + 64, False),
        ("add", FREE, True),
        ("beta", A, True),  # two that are read
        ("aux", OUT, False),
        ("aux", B, False),
        ("aux", FREE, True),
        ("beta", 0, False),
        ("beta", FREE + 1, False),
        ("beta", FREE + 2, False),  # the plan reads pairs
    ],
)
def test_what_is_written_overlaps_nothing_and_c_may_be_out_itself(kind: str, address: int, is_served: bool) -> None:
    found = problem((64, 128), (128, 32), (kind, "", view((64, 32))))
    if is_served:
        check_fused(found, (A, B, OUT, address))
        return
    with pytest.raises(LayoutError):
        check_fused(found, (A, B, OUT, address))


def test_a_c_of_another_type_or_pitch_is_not_out_itself() -> None:
    for c in (view((64, 32), (40, 1)), view((64, 32), dtype=dtypes.FP32)):
        found = problem((64, 128), (128, 32), ("beta", "", c))
        with pytest.raises(LayoutError, match="shares memory with out"):
            check_fused(found, (A, B, OUT, OUT))


def test_a_plan_serves_arrays_that_are_aligned_further() -> None:
    own = Form((StepForm(kind="add", array=ArrayForm(dtype=dtypes.BF16, strides=(32, 1), align_bytes=4)),))
    (step,) = own.steps
    assert step.array is not None
    for align_bytes, fits in ((4, True), (16, True), (2, False)):
        given = Form((replace(step, array=replace(step.array, align_bytes=align_bytes)),))
        assert own.fits(given) == fits
    assert not own.fits(Form((replace(step, kind="beta"),)))
    assert not own.fits(Form((step, step)))
