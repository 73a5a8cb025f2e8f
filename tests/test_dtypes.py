"""dtypes.py: the one table of element types."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from tilewright import dtypes
from tilewright.check import tf32_rounded
from tilewright.errors import DTypeError

FLOATS = [dtype for dtype in dtypes.STORED if not dtype.is_whole]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_roundoff_is_half_the_distance_from_1_to_its_neighbour(dtype: dtypes.DType) -> None:
    one = np.array(1, dtype.numpy)
    halfway, beyond = 1 + dtype.unit_roundoff, 1 + dtype.unit_roundoff * 1.001
    assert np.array(halfway).astype(dtype.numpy) == one  # ties to even
    assert np.array(beyond).astype(dtype.numpy) > one


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_copies_and_pickles_are_the_tables_own(dtype: dtypes.DType) -> None:
    assert copy.deepcopy(dtype) is pickle.loads(pickle.dumps(dtype)) is dtype


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_the_size_is_that_of_the_numpy_type(dtype: dtypes.DType) -> None:
    assert dtype.size == dtype.numpy.itemsize


@pytest.mark.parametrize(
    ("name", "found"), [("torch.bfloat16", dtypes.BF16), ("half", dtypes.FP16), ("fp32", dtypes.FP32)]
)
def test_the_words_of_other_libraries_are_known(name: str, found: dtypes.DType) -> None:
    assert dtypes.by_name(name) is found


def test_an_unknown_name_is_refused_with_what_works() -> None:
    with pytest.raises(DTypeError, match=r"float64.*cast to bfloat16"):
        dtypes.by_name("float64")


def test_the_roundoff_of_tf32_is_half_its_last_bit() -> None:
    """The values in a product; elements are fp32, of which a product keeps 10 bits behind the point."""
    assert tf32_rounded(np.array([1 + 2.0**-11 - 2.0**-23, 1 + 2.0**-11], np.float32)).tolist() == [1, 1 + 2.0**-10]
    assert dtypes.TF32.unit_roundoff == 2.0**-11
    assert dtypes.by_name("tf32") is dtypes.TF32
    assert dtypes.TF32.numpy == np.float32


@pytest.mark.parametrize("dtype", dtypes.STORED, ids=str)
def test_the_dtypes_of_numpy_and_torch_are_known(dtype: dtypes.DType) -> None:
    assert dtypes.by_name(dtype.numpy_type) is dtypes.by_name(dtype.numpy) is dtype
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert dtypes.by_name(getattr(torch, dtype.numpy.name)) is dtype


@pytest.mark.parametrize(
    "other", [5, None, True, float, [], b"bf16", np.float64, np.dtype(">f2"), np.float16(1)], ids=repr
)
def test_what_is_no_dtype_of_the_table_is_refused(other: object) -> None:
    with pytest.raises(DTypeError, match="cast to bfloat16"):
        dtypes.by_name(other)
