"""What dispatch asks of an array library, and what all adapters share.

Knows nothing of any library. An adapter reads metadata, names the stream that orders the arrays, and allocates; it
never copies, moves or launches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.epilogue_form import array_dtypes_rule
from tilewright.errors import DTypeError, LayoutError, UnsupportedError
from tilewright.tensor import View

# The legacy default stream by its driver handle (cuda.h, CU_STREAM_LEGACY): what DLPack and the CUDA array interface
# mean by stream 1, and the order that an array without a stream of its own is in.
LEGACY_STREAM = 1

# The ordinal of a CUDA array that does not say which device holds it; the backend asks the driver about its address.
UNKNOWN_ORDINAL = -1

ADDRESS_MASK = 15  # the bits of out's address that decide how out may be written


class Described(NamedTuple):
    """All that one call depends on.

    `key` holds every fact but the addresses of a and b: shapes, strides, dtypes, devices, the low bits of out's
    address. `addresses` are those of a, b and, when there is one, out. `stream` is the raw stream that the arrays
    themselves name, None when Adapter.stream knows it.
    """

    key: Hashable
    addresses: tuple[int, ...]
    stream: int | None


class Adapter(ABC):
    """One array library, or one protocol that many of them speak."""

    library: str
    names_device: bool = True  # whether a view's location is complete without the driver's help
    written: Callable[[tuple[Any]], None] | None = (
        None  # tells the library that an array was written, if it wants to know
    )
    waits: bool = False  # whether a call returns only when out is written: the library cannot be told to wait for it
    is_emulated: bool = False  # whether its arrays in host memory are multiplied by the emulator; else they are refused

    @staticmethod
    @abstractmethod
    def owns(kind: type) -> bool:
        """Whether arrays of this type are this adapter's. Reads sys.modules; imports nothing."""

    @staticmethod
    def refusal_of(kind: type) -> tuple[str, str] | None:
        """Why no array of a type that this adapter owns is served, and what works; None: each is looked at by itself.

        Asked before the type is remembered, so that a refused type never reaches the warm path.
        """
        return None

    @abstractmethod
    def view(self, array: Any, name: str, is_written: bool = False) -> View:
        """The metadata of the operand that sentences call `name`; one that is written has to allow it.

        Raises: UnsupportedError, DTypeError, LayoutError: an array that is no plain strided memory of a known type.
        """

    def describe(self, a: Any, b: Any, out: Any | None) -> tuple[Hashable, tuple[int, ...], int | None]:
        """The fields of Described, as a bare tuple: this runs on every call.

        Raises: what view() raises.
        """
        written = None if out is None else self.view(out, "out", is_written=True)
        return describe_views(self.view(a, "a"), self.view(b, "b"), written)

    def described(self, array: Any, name: str, is_written: bool = False) -> tuple[Hashable, int, int | None]:
        """(facts, address, stream) of one more array of a call, as describe() has them of a, b and out.

        Raises: what describe() raises.
        """
        view = self.view(array, name, is_written)
        return _facts(view), view.address, None

    def stream(self, ordinal: int) -> int:
        """The raw stream on which the library enqueues work for the device now."""
        return LEGACY_STREAM

    def current_ordinal(self) -> int:
        """The library's current device."""
        return 0

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, ordinal: int) -> tuple[Any, int]:
        """A fresh row-major array on the device, and its address. `strides`: those of such an array, in elements.

        Raises: UnsupportedError: the library has no allocator that is known here.
        """
        raise UnsupportedError(
            asked=f"a product of {self.library} arrays without out",
            rule="out can be allocated for torch, CuPy and JAX arrays only",
            works=f"pass out, an array of {dtype} with shape {shape}",
        )

    def scratch(self, num_bytes: int, ordinal: int) -> tuple[Any, int] | None:
        """Memory from the library's allocator for work on its current stream of the device, and its address, a multiple
        of 256. It may be given to others of that stream as soon as the first of the two is dropped.

        None: the library has no allocator that is known here; the backend allocates.
        """
        return None


def describe_views(a: View, b: View, out: View | None) -> Described:
    """The description of a call on arrays that name no stream."""
    key: tuple[Hashable, ...] = (*_facts(a), *_facts(b))
    if out is None:
        return Described(key, (a.address, b.address), None)
    key = (*key, *_facts(out), out.address & ADDRESS_MASK)
    return Described(key, (a.address, b.address, out.address), None)


def _facts(view: View) -> tuple[Hashable, ...]:
    return view.shape, view.strides, view.dtype.name, view.location


def named_dtype(spelling: str, name: str) -> DType:
    """The element type that a library calls `spelling`.

    Raises: DTypeError: with the operand's name.
    """
    try:
        return dtypes.by_name(spelling)
    except DTypeError as refusal:  # adds which operand it is
        rule, works = refusal.rule, refusal.works
        if name not in ("a", "b", "out"):
            rule, works = array_dtypes_rule(), "cast it to one of them"
        raise DTypeError(asked=f"{name} of {refusal.asked}", rule=rule, works=works) from None


def numpy_dtype(dtype: np.dtype[Any], name: str) -> DType:
    """The element type of an array that spells it as NumPy does.

    Raises: DTypeError: another type, or another byte order.
    """
    if not dtype.isnative:
        raise DTypeError(
            asked=f"{name} of dtype {dtype.str}",
            rule="elements are read in the machine's byte order",
            works="convert it: x.astype(x.dtype.newbyteorder('='))",
        )
    return named_dtype(dtype.name, name)


def element_strides(shape: Sequence[int], strides_bytes: Sequence[int], dtype: DType, name: str) -> tuple[int, ...]:
    """Strides in elements; one that reaches no second element means nothing and may be any number.

    Raises: LayoutError: a stride that ends inside an element.
    """
    for extent, stride in zip(shape, strides_bytes, strict=True):
        if stride % dtype.size and extent > 1 and 0 not in shape:
            raise LayoutError(
                asked=f"{name} with a stride of {stride} bytes",
                rule=f"elements of {dtype} lie {dtype.size} bytes apart, or a multiple of that",
                works=f"copy {name} into an array of its own",
            )
    return tuple(stride // dtype.size for stride in strides_bytes)


def packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a row-major array, which protocols leave out."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * max(extent, 1))
    return tuple(reversed(strides))[: len(shape)]


def read_only(name: str, library: str) -> LayoutError:
    """The refusal of an array that is written, and that its library says may not be."""
    return LayoutError(
        asked=f"{name}, a read-only {library} array",
        rule="the call writes into it",
        works="pass a writable array",
    )


def asking(name: str, request: str) -> str:
    """What is asked of an operand, in a sentence: of a "a.cuda()", of others ".cuda() of the array of bias"."""
    return f"{name}{request}" if name.isidentifier() else f"{request} of {name}"
