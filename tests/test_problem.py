"""problem.py: what is refused before any kernel is thought of, and what may leave through TMA."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tilewright.epilogue import Relu
from tilewright.errors import DTypeError, LayoutError, ShapeError
from tilewright.packing import packed, packed_form
from tilewright.problem import Problem, checked
from tilewright.tma import MAX_EXTENT


@pytest.mark.parametrize("extents", [(-1, 8, 8), (8, -1, 8), (8, 8, -8), (MAX_EXTENT + 1, 8, 8), (8, 8, 2**40)])
def test_sizes_outside_the_coordinate_range_are_refused(extents: tuple[int, int, int]) -> None:
    with pytest.raises(ShapeError, match=str(MAX_EXTENT)):
        packed(*extents)


@pytest.mark.parametrize("name", ["fp64", "uint8", "torch.complex64", "e4m3", ""])
def test_a_dtype_outside_the_table_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(DTypeError, match=name or "dtype"):
        packed(8, 8, 8, dtype=name)


def test_fp32_inputs_are_refused() -> None:
    with pytest.raises(DTypeError, match="inputs are bf16, fp16, int8 or tf32"):
        packed(8, 8, 8, dtype="fp32")


def test_int8_has_an_out_of_int32_and_no_other() -> None:
    assert packed(8, 8, 8, dtype="int8").out_dtype.name == "int32"
    with pytest.raises(DTypeError, match="sums of whole numbers are int32; use an out of int32"):
        packed(8, 8, 8, dtype="int8", out_dtype="fp16")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32"])
def test_an_out_is_of_any_floating_point_type_whatever_the_inputs(dtype: str) -> None:
    for out_dtype in ("bf16", "fp16", "fp32"):
        assert str(packed(8, 8, 8, dtype=dtype, out_dtype=out_dtype)) == f"8x8x8 {dtype} -> {out_dtype} TN"
    with pytest.raises(DTypeError, match=f"{dtype} inputs with out in int32: sums are fp32, .*; use an out of .* or "):
        packed(8, 8, 8, dtype=dtype, out_dtype="int32")


def test_sums_in_fp16_have_no_out_of_bf16() -> None:
    words = r"fp16 inputs with sums in fp16 with out in bf16: .*; use an out of fp16 or fp32, or leave sums out"
    with pytest.raises(DTypeError, match=words):
        packed(8, 8, 8, dtype="fp16", sums="fp16", out_dtype="bf16")
    assert packed(8, 8, 8, dtype="fp16", sums="fp32", out_dtype="bf16").sums.name == "fp32"


@pytest.mark.parametrize(
    ("changes", "unreadable"),
    [
        ({}, ()),
        ({"a_pitch": 65}, ("a",)),
        ({"b_pitch": 68}, ("b",)),
        ({"a_pitch": 32, "b_pitch": 0}, ("a", "b")),
        ({"m": 1, "a_pitch": 65}, ()),  # a single row has no pitch
        ({"k": 0, "a_pitch": 65}, ()),  # nothing is read
        ({"a_align_bytes": 2}, ()),
    ],
)
def test_rows_that_are_no_multiple_of_16_bytes_apart_are_marked_for_a_copy(
    changes: dict[str, int], unreadable: tuple[str, ...]
) -> None:
    assert checked(dataclasses.replace(packed(64, 64, 64), **changes)).unreadable == unreadable


def test_a_base_that_is_expected_off_16_bytes_is_marked_for_a_copy() -> None:
    problem = dataclasses.replace(packed(64, 64, 64), a_align_bytes=8, b_pitch=65)
    assert (problem.repacked, problem.unreadable) == (("a", "b"), ("b",))
    assert problem.row_major.repacked == ("a", "b")
    column_major = dataclasses.replace(packed(64, 64, 64, out_major="m"), a_align_bytes=8)
    assert column_major.row_major.repacked == ("b",)


@pytest.mark.parametrize("name", ["a_batch", "b_batch"])
def test_matrices_that_are_no_multiple_of_16_bytes_apart_are_marked_for_a_copy(name: str) -> None:
    problem = dataclasses.replace(packed(64, 64, 64, batch=(3,)), **{name: (4097,)})
    assert checked(problem).unreadable == (name[0],)


@pytest.mark.parametrize("changes", [{"a_pitch": -64}, {"b_pitch": -1}, {"a_batch": (-4096,)}])
def test_strides_that_run_backwards_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(LayoutError, match="flip"):
        checked(dataclasses.replace(packed(64, 64, 64, batch=(3,)), **changes))  # type: ignore[arg-type]


def test_rows_that_are_all_the_same_occupy_the_memory_of_one() -> None:
    problem = dataclasses.replace(packed(64, 64, 64), a_pitch=0)
    assert problem.footprints["a"] == (1, 128, 128, ())
    assert problem.extent_bytes["a"] == 128


def test_rows_of_out_may_not_overlap() -> None:
    with pytest.raises(LayoutError, match="at least 64"):
        checked(dataclasses.replace(packed(64, 64, 64), out_pitch=63))


def test_a_pitch_of_2_to_the_40_bytes_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"2\^40"):
        checked(dataclasses.replace(packed(64, 64, 64), a_pitch=2**39))


@pytest.mark.parametrize(
    ("changes", "through_tma"),
    [
        ({}, True),
        ({"n": 61, "out_pitch": 64}, False),  # B008: TMA would write on to the next 16 bytes
        ({"n": 64, "out_pitch": 68}, False),
        ({"n": 64, "out_pitch": 72}, True),
        ({"out_align_bytes": 8}, False),
        ({"n": 4, "out_pitch": 8}, False),
    ],
)
def test_out_leaves_through_tma_only_in_multiples_of_16_bytes(changes: dict[str, int], through_tma: bool) -> None:
    problem = dataclasses.replace(packed(64, 64, 64), **changes)
    assert problem.out_through_tma is through_tma


@pytest.mark.parametrize("extents", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0)])
def test_an_empty_product_is_legal_and_says_so(extents: tuple[int, int, int]) -> None:
    """B025, B032."""
    assert packed(*extents).is_empty


SIZES = ("m", "n", "k")
HUGE = pytest.param(10**5000, id="huge")  # Python refuses to print it
PITCHES = ("a_pitch", "b_pitch", "out_pitch")


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16])
def test_whole_numbers_of_other_libraries_are_kept_as_int(kind: type) -> None:
    """A record or a driver's parameter takes an int; np.int32 sizes would overflow in products."""
    found = packed(kind(60000), kind(60000), kind(64))
    assert found == packed(60000, 60000, 64)
    assert found.flops == 2 * 60000 * 60000 * 64
    base = dataclasses.replace(packed(64, 64, 64), **{name: kind(64) for name in (*SIZES, *PITCHES)})
    assert {type(getattr(base, name)) for name in (*SIZES, *PITCHES, "out_align_bytes")} == {int}


@pytest.mark.parametrize(
    "value",
    [True, False, np.True_, "64", None, 64.0, 64.5, float("nan"), float("inf"), [64], HUGE],
)
@pytest.mark.parametrize("name", [*SIZES, *PITCHES, "out_align_bytes"])
def test_what_is_no_whole_number_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ShapeError if name in SIZES else LayoutError, match=name):
        dataclasses.replace(packed(64, 64, 64), **{name: value})
    if name in SIZES:
        with pytest.raises(ShapeError, match=name):
            packed(**{**dict.fromkeys(SIZES, 64), name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("major", ["K", "N", "", "tn", None, 1])
def test_b_major_is_k_or_n_and_nothing_else(major: object) -> None:
    with pytest.raises(LayoutError, match="b_major"):
        packed(64, 128, 72, b_major=major)  # type: ignore[arg-type]


@pytest.mark.parametrize("align", [0, 3, -16, 32, 5])
def test_the_alignment_of_out_is_a_power_of_two_up_to_16(align: int) -> None:
    with pytest.raises(LayoutError, match="out_align_bytes"):
        dataclasses.replace(packed(64, 64, 64), out_align_bytes=align)


@pytest.mark.parametrize("align", [1, 2, 4, 8, 16])
def test_each_such_power_is_taken(align: int) -> None:
    assert checked(dataclasses.replace(packed(64, 64, 64), out_align_bytes=align)).out_align_bytes == align


@pytest.mark.parametrize("k", [0, 64])
@pytest.mark.parametrize("pitch", [63, 0, -64, 2**39, 2**62])
def test_a_pitch_of_out_outside_its_range_is_refused_also_where_only_zeros_are_written(k: int, pitch: int) -> None:
    with pytest.raises(LayoutError, match="out with"):
        checked(dataclasses.replace(packed(64, 64, k), out_pitch=pitch))


def test_element_types_may_be_given_by_name() -> None:
    found = dataclasses.replace(packed(64, 64, 64), dtype="fp16", out_dtype=np.float32)
    assert found == packed(64, 64, 64, dtype=np.float16, out_dtype="float32")
    with pytest.raises(DTypeError):
        dataclasses.replace(packed(64, 64, 64), dtype=16)


def test_every_field_is_part_of_equality() -> None:
    """B097: a key that lacks a field would serve one problem with another's kernel."""
    base = packed(64, 64, 64)
    other: dict[str, object] = {
        "m": 65, "n": 72, "k": 72, "dtype": packed(8, 8, 8, dtype="fp16").dtype,
        "out_dtype": packed(8, 8, 8, out_dtype="fp32").out_dtype, "b_major": "n", "sums": "fp16",
        "a_pitch": 72, "b_pitch": 72, "out_pitch": 72, "out_align_bytes": 2, "a_major": "m", "out_major": "m",
        "a_align_bytes": 2, "b_align_bytes": 2, "out_is_padded": True, "epilogue": packed_form(Relu(), 64, 64),
    }  # fmt: skip
    strides = {"batch": (3,), "a_batch": (8,), "b_batch": (8,), "out_batch": (8,)}
    assert other.keys() | strides.keys() == {field.name for field in dataclasses.fields(Problem)}
    for name, value in other.items():
        assert dataclasses.replace(base, **{name: value}) != base, name
    batch = dataclasses.replace(base, batch=(2,), a_batch=(0,), b_batch=(0,), out_batch=(0,))
    for name, value in strides.items():
        assert dataclasses.replace(batch, **{name: value}) != batch, name
