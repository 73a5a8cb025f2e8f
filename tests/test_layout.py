"""Which strides make which Problem, and which addresses may be used."""

from __future__ import annotations

import pytest

from tilewright import dtypes
from tilewright.errors import DTypeError, LayoutError, ShapeError, UnsupportedError
from tilewright.layout import alignment_of, check_addresses, copied, problem_of
from tilewright.packing import packed
from tilewright.tensor import Location, View

GPU = Location("cuda", 0)


def view(shape, strides, *, dtype=dtypes.BF16, address=4096, location=GPU) -> View:
    return View(address, shape, strides, dtype, location)


A = view((64, 128), (128, 1))
B = view((128, 32), (1, 128))  # k contiguous: a weight's w.t()
A_FP32 = view((64, 128), (128, 1), dtype=dtypes.FP32)
B_FP32 = view((128, 32), (1, 128), dtype=dtypes.FP32)


def test_packed_arrays_make_the_packed_problem():
    assert problem_of(A, B, view((64, 32), (32, 1))) == packed(64, 32, 128)


def test_a_row_major_b_is_n_contiguous():
    assert problem_of(A, view((128, 32), (32, 1))) == packed(64, 32, 128, b_major="n")


def test_pitches_come_from_strides_not_from_shapes():
    problem = problem_of(
        view((64, 128), (256, 1)), view((128, 32), (1, 192)), view((64, 32), (33, 1), address=4096 + 2)
    )
    assert (problem.a_pitch, problem.b_pitch, problem.out_pitch, problem.out_align_bytes) == (256, 192, 33, 2)


@pytest.mark.parametrize("stride", [0, 1, 7, 128, -5])
def test_the_row_stride_of_a_single_row_means_nothing(stride):
    problem = problem_of(view((1, 100), (stride, 1)), view((100, 8), (1, 104)), view((1, 8), (stride, 1)))
    assert (problem.a_pitch, problem.out_pitch) == (104, 8)


@pytest.mark.parametrize(("strides", "major", "pitch"), [((1, 3), "k", 104), ((8, 1), "k", 104), ((16, 5), "n", 16)])
def test_a_single_column_of_b_may_have_any_column_stride(strides, major, pitch):
    # strides (8, 1) are those of a padded row-major b and of a packed column at once only when k is contiguous in none
    problem = problem_of(view((4, 100), (104, 1)), view((100, 1), strides))
    assert problem.b_major == ("n" if strides == (8, 1) else major)
    assert problem.b_pitch == (8 if strides == (8, 1) else pitch)


def test_a_single_row_of_b_may_have_any_row_stride():
    problem = problem_of(view((4, 1), (8, 5)), view((1, 32), (7, 1)))
    assert (problem.b_major, problem.b_pitch, problem.a_pitch) == ("n", 32, 8)


def test_a_k_of_one_reads_b_along_k_where_its_columns_are_padded():
    problem = problem_of(view((4, 1), (8, 1)), view((1, 5), (3, 16)))
    assert (problem.b_major, problem.b_pitch) == ("k", 16)


def test_out_may_have_any_pitch_and_any_element_address():
    for pitch, address in ((32, 4096), (33, 4098), (40, 4100), (1000, 4104)):
        problem = problem_of(A, B, view((64, 32), (pitch, 1), address=address))
        assert (problem.out_pitch, problem.out_align_bytes) == (pitch, alignment_of(address))


@pytest.mark.parametrize(
    ("kind", "words", "arrays"),
    [
        (ShapeError, "without dimensions", (view((), ()), B)),
        (ShapeError, "without dimensions", (A, view((), ()))),
        (ShapeError, r"batches \(2,\) and \(3,\) are broadcast",
         (view((2, 64, 128), (8192, 128, 1)), view((3, 128, 32), (4096, 32, 1)))),
        (ShapeError, "128 columns of a meet the 64 rows of b", (A, view((64,), (1,)))),
        (ShapeError, "128 columns of a meet the 64 rows of b", (A, view((7, 64, 32), (2048, 32, 1)))),
        (ShapeError, "128 columns of a meet the 64 rows of b", (A, view((64, 32), (1, 64)))),
        (ShapeError, r"the product is \(64, 32\)", (A, B, view((32, 64), (64, 1)))),
        (ShapeError, r"the product is \(64, 32\)", (A, B, view((2048,), (1,)))),
        (ShapeError, r"the product is \(64,\)", (A, view((128,), (1,)), view((64, 1), (1, 1)))),
        (UnsupportedError, "cuda:1", (A, view((128, 32), (1, 128), location=Location("cuda", 1)))),
        (UnsupportedError, "the CPU", (A, B, view((64, 32), (32, 1), location=Location("host", 0)))),
        (DTypeError, "a of bf16 and b of fp16", (A, view((128, 32), (1, 128), dtype=dtypes.FP16))),
        (DTypeError, "fp32", (A_FP32, B_FP32)),
        (DTypeError, "bf16 inputs with out in int8", (A, B, view((64, 32), (32, 1), dtype=dtypes.INT8))),
        (LayoutError, "k or m is contiguous", (view((64, 128), (256, 2)), B)),
        (LayoutError, "k or n is contiguous", (A, view((128, 32), (64, 2)))),
        (LayoutError, "flip", (view((64, 128), (-128, 1)), B)),
        (LayoutError, "flip", (A, view((128, 32), (1, -128)))),
        (LayoutError, "2\\^40", (view((64, 128), (2**39, 1)), B)),
        (LayoutError, "rows of out are contiguous or its columns", (A, B, view((64, 32), (64, 2)))),
        (LayoutError, "place of its own", (A, B, view((64, 32), (0, 1)))),
        (LayoutError, "place of its own", (A, B, view((64, 32), (31, 1)))),
        (LayoutError, "multiples of 2 bytes", (A, B, view((64, 32), (32, 1), address=4097))),
    ],
)  # fmt: skip
def test_what_no_kernel_serves_is_refused_with_its_numbers(kind, words, arrays):
    with pytest.raises(kind, match=words):
        problem_of(*arrays)


def test_an_out_dtype_that_contradicts_out_is_refused():
    with pytest.raises(DTypeError, match="out_dtype"):
        problem_of(A, B, view((64, 32), (32, 1)), dtypes.FP32)


@pytest.mark.parametrize("shape", [(0, 32, 128), (64, 0, 128), (64, 32, 0)])
def test_strides_of_operands_without_elements_mean_nothing(shape):
    m, n, k = shape
    problem = problem_of(view((m, k), (0, 3), address=0), view((k, n), (0, 0), address=0))
    assert (problem.m, problem.n, problem.k) == shape
    assert problem.is_empty


def test_the_out_of_an_empty_k_is_still_checked():
    with pytest.raises(LayoutError, match="place of its own"):
        problem_of(view((64, 0), (1, 1)), view((0, 32), (32, 1)), view((64, 32), (0, 1)))


PROBLEM = packed(64, 32, 128)
FAR = 1 << 20


def test_distinct_aligned_addresses_pass():
    check_addresses(PROBLEM, FAR, 2 * FAR, 3 * FAR)


@pytest.mark.parametrize(
    ("a", "b", "out", "words"),
    [
        (
            FAR + 1,
            2 * FAR,
            3 * FAR,
            "a at address 0x100001: elements of bf16 lie at multiples of 2 bytes; pass a.clone",
        ),
        (FAR, 2 * FAR + 7, 3 * FAR, "b at address 0x200007: elements"),
        (FAR, 2 * FAR, 3 * FAR + 8, "made for an out at a multiple of 16"),
        (0, 2 * FAR, 3 * FAR, "a at address 0"),
        (FAR, 2 * FAR, FAR + 64 * 128 * 2 - 16, "shares memory with a"),
        (FAR, 2 * FAR, 2 * FAR, "shares memory with b"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused_by_operand(a, b, out, words):
    with pytest.raises(LayoutError, match=words):
        check_addresses(PROBLEM, a, b, out)


@pytest.mark.parametrize(
    ("a", "b", "major", "pitch", "unreadable"),
    [
        (view((64, 128), (129, 1)), B, "k", 129, ("a",)),
        (A, view((128, 32), (1, 129)), "k", 128, ("b",)),
        (view((64, 128), (0, 1)), B, "k", 0, ("a",)),  # x.expand of one row
        (view((64, 128), (64, 1)), B, "k", 64, ("a",)),  # sliding windows: rows that overlap
        (view((64, 128), (1, 67)), view((128, 32), (33, 1)), "m", 67, ("a", "b")),
        (view((64, 128), (1, 0)), B, "m", 0, ("a",)),  # x.expand of one column
        (view((64, 1), (3, 5)), view((1, 32), (1, 1)), "k", 3, ("a",)),  # a strided column: rows of one element
        (view((1, 127), (1, 1)), view((127, 32), (1, 128)), "k", 128, ()),  # a single row has no pitch
    ],
)
def test_what_tma_cannot_read_is_marked_for_a_copy(a, b, major, pitch, unreadable):
    found = problem_of(a, b)
    assert (found.a_major, found.a_pitch, found.unreadable) == (major, pitch, unreadable)


def test_of_two_contiguous_dimensions_the_one_that_tma_reads_is_taken():
    found = problem_of(view((1, 127), (127, 1)), view((127, 1), (1, 1)))
    assert (found.b_major, found.unreadable) == ("k", ())
    found = problem_of(view((64, 1), (1, 7)), view((1, 32), (32, 1)))
    assert (found.a_major, found.unreadable) == ("m", ())


@pytest.mark.parametrize(("a", "b", "first"), [(0, 0, ()), (2, 0, ("a",)), (0, 8, ("b",)), (14, 6, ("a", "b"))])
def test_an_address_off_what_the_kernel_needs_is_copied_first(a, b, first):
    assert copied((16, 16), FAR + a, 2 * FAR + b) == first
    assert copied((2, 8), FAR + a, 2 * FAR + b) == tuple(name for name in first if name == "b" and b == 6)
    assert set(copied((0, 16), FAR + a, 2 * FAR + b)) == {"a", *first}


@pytest.mark.parametrize("k", [128, 127])
def test_a_batch_is_folded_into_rows_where_that_costs_no_copy(k):
    """127: rows are copied with and without the fold, so it is made; one matrix of more rows is faster than a batch."""
    found = problem_of(view((3, 8, k), (8 * k, k, 1)), view((k, 32), (1, 128)))
    assert (found.m, found.batch) == (24, ())
    single = problem_of(view((3, 1, k), (k, 1, 1)), view((k, 32), (1, 128)))
    assert (single.m, single.batch) == (3, ())


def test_a_and_b_may_be_the_same_memory():
    check_addresses(packed(64, 64, 128), FAR, FAR, 3 * FAR)


def test_out_right_behind_a_is_no_overlap():
    check_addresses(PROBLEM, FAR, 2 * FAR, FAR + 64 * 128 * 2)


@pytest.mark.parametrize(("address", "alignment"), [(0, 16), (2, 2), (4, 4), (8, 8), (16, 16), (4096, 16), (24, 8)])
def test_alignment_is_the_largest_power_of_two_up_to_16(address, alignment):
    assert alignment_of(address) == alignment
