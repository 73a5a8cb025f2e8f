"""The one table of element types: what each floor of tilewright needs to know about one.

Knows nothing of arrays, kernels or devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import DTypeError


@dataclass(frozen=True)
class DType:
    """One element type.

    Units: bits a element; unit_roundoff is half of the distance from 1 to the next larger value, 0 for whole numbers.
    Source: cxx and ptx spellings from the PTX ISA (fundamental and alternate floating-point types);
    tma_code is the value of CUtensorMapDataType in cuda.h, which has no signed bytes: UINT8 moves them.
    """

    name: str
    bits: int
    numpy_type: Any
    ptx: str
    tma_code: int
    unit_roundoff: float
    is_whole: bool = False  # whole numbers, whose products and sums are exact, modulo 2^bits

    @property
    def size(self) -> int:
        """Bytes an element."""
        return self.bits // 8

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type that stores these elements."""
        dtype: np.dtype[Any] = np.dtype(self.numpy_type)
        return dtype

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        """By name: copies, and what another process unpickles, are the table's own, so that `is` tells them apart."""
        return by_name, (self.name,)

    def __str__(self) -> str:
        return self.name


BF16 = DType(name="bf16", bits=16, numpy_type=ml_dtypes.bfloat16, ptx="bf16", tma_code=9, unit_roundoff=2.0**-8)
FP16 = DType(name="fp16", bits=16, numpy_type=np.float16, ptx="f16", tma_code=6, unit_roundoff=2.0**-11)
FP32 = DType(name="fp32", bits=32, numpy_type=np.float32, ptx="f32", tma_code=7, unit_roundoff=2.0**-24)
INT8 = DType(name="int8", bits=8, numpy_type=np.int8, ptx="s8", tma_code=0, unit_roundoff=0.0, is_whole=True)
INT32 = DType(name="int32", bits=32, numpy_type=np.int32, ptx="s32", tma_code=3, unit_roundoff=0.0, is_whole=True)
# fp32 in memory, of which a product keeps the top 19 bits, rounded: what fp32 arrays are multiplied as where the caller
# says so. Its unit_roundoff is that of the values in a product.
TF32 = DType(name="tf32", bits=32, numpy_type=np.float32, ptx="tf32", tma_code=11, unit_roundoff=2.0**-11)

STORED: tuple[DType, ...] = (BF16, FP16, FP32, INT8, INT32)  # what elements of arrays are
ALL: tuple[DType, ...] = (*STORED, TF32)
INPUTS: tuple[DType, ...] = (BF16, FP16, INT8, TF32)
OF_16_BITS: tuple[DType, ...] = (
    BF16,
    FP16,
)  # what wgmma multiplies here, and the suite and the ceilings are measured in

# The spellings of other libraries, so that an adapter or a command line can pass its own word.
_BY_NAME: dict[str, DType] = {
    "bf16": BF16,
    "bfloat16": BF16,
    "fp16": FP16,
    "float16": FP16,
    "half": FP16,
    "fp32": FP32,
    "float32": FP32,
    "float": FP32,
    "tf32": TF32,
    "int8": INT8,
    "int32": INT32,
}


# By what a caller may name an element type: a DType, its name here, in NumPy or in torch, or one of their own dtypes.
DTypeLike = Any


def by_name(name: DTypeLike) -> DType:
    """The element type called `name` in tilewright, NumPy or torch; or whose own dtype there `name` is.

    Raises: DTypeError: the table has no such type.
    """
    if isinstance(name, DType):
        return name
    found = _BY_NAME.get(_spelling(name).removeprefix("torch."))
    if found is None:
        raise DTypeError(
            asked=f"dtype {_spelling(name)}",
            rule=f"tilewright multiplies {_any_of(INPUTS)}",
            works="cast to bfloat16 or float16 (out: bfloat16, float16 or float32; of int8 int32)",
        )
    return found


def _spelling(name: object) -> str:
    if isinstance(name, str):
        return name
    if isinstance(name, type) and issubclass(name, np.generic):
        name = np.dtype(name)
    if isinstance(name, np.dtype):
        return name.name if name.isnative else name.str
    # torch's dtypes print as "torch.bfloat16"; anything else is shown as it is, and is in no table
    return str(name) if type(name).__module__ == "torch" else repr(name)


def _any_of(types: tuple[DType, ...]) -> str:
    """Their names in a sentence."""
    return " or ".join(filter(None, (", ".join(map(str, types[:-1])), str(types[-1]))))


def by_name_of_16_bits(name: DTypeLike) -> DType:
    """The element type of this name, which is one of OF_16_BITS.

    Raises: DTypeError: it is not.
    """
    found = by_name(name)
    if found not in OF_16_BITS:
        rule = f"this is measured in {_any_of(OF_16_BITS)}"
        raise DTypeError(asked=f"dtype {found}", rule=rule, works="name one of them")
    return found


def inputs_text() -> str:
    """What inputs may be, in a sentence."""
    return _any_of(INPUTS)


def out_choices(dtype: DType, sums: DType | None = None) -> tuple[DType, ...]:
    """Element types that a product of `dtype` inputs, summed in `sums`, can be written in, the one that it has unasked
    first."""
    if dtype.is_whole:
        return (INT32,)
    if sums is FP16:
        return (FP16, FP32)
    return (FP32, *OF_16_BITS) if dtype is TF32 else (dtype, FP32, *(each for each in OF_16_BITS if each is not dtype))


def out_rule(dtype: DType, sums: DType | None = None) -> str:
    """Why these, in a sentence."""
    if dtype.is_whole:
        return "sums of whole numbers are int32"
    if sums is FP16:
        return "sums in fp16 leave as they are, or as fp32, which holds them all"
    return "sums are fp32, and out holds them or is rounded from them to 16 bits"


def out_works(dtype: DType, sums: DType | None = None) -> str:
    """What to do instead."""
    works = f"use an out of {_any_of(out_choices(dtype, sums))}"
    return f"{works}, or leave sums out, which sums in fp32" if sums is FP16 else works


def product_of(stored: DType, inputs: DTypeLike | None) -> DType:
    """What elements of arrays are multiplied as where a caller names `inputs`: as they are, or fp32 as tf32.

    Raises: DTypeError: no such type, or not of these arrays.
    """
    if inputs is None:
        return stored
    wanted = by_name(inputs)
    if wanted is stored or (stored, wanted) == (FP32, TF32):
        return wanted
    raise DTypeError(
        asked=f"inputs = {str(wanted)!r} of {stored} arrays",
        rule="inputs says how the elements of arrays are multiplied: fp32 as tf32, all others as they are",
        works="leave inputs out, or cast a and b",
    )


def sums_of(dtype: DType) -> DType:
    """What products of `dtype` inputs are summed in unless a caller asks for less."""
    return INT32 if dtype.is_whole else FP32


def summed_in(dtype: DType, sums: DTypeLike | None) -> DType:
    """What products of `dtype` inputs are summed in where a caller names `sums`: fp16 of fp16, or what they are anyway.

    Raises: DTypeError: no such type, or not of these inputs.
    """
    usual = sums_of(dtype)
    wanted = usual if sums is None else by_name(sums)
    if wanted is usual or (dtype, wanted) == (FP16, FP16):
        return wanted
    raise DTypeError(
        asked=f"{dtype} inputs with sums in {wanted}",
        rule=f"they are summed in {usual}" + (" or fp16" if dtype is FP16 else "; fp16 inputs alone may be in fp16"),
        works="leave sums out",
    )
