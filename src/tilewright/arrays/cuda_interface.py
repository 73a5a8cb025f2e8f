"""Arrays of any library that speaks the CUDA array interface, version 2 or 3.

The interface does not say which device holds an array, so a view has UNKNOWN_ORDINAL and the backend asks the driver
about the address. Typestrings: "<f2" is fp16, "<f4" fp32, and "<V2" bf16: the interface has no word for bf16, and this
is how an array of ml_dtypes.bfloat16 spells it.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

from tilewright.arrays.base import (
    LEGACY_STREAM,
    UNKNOWN_ORDINAL,
    Adapter,
    describe_views,
    element_strides,
    named_dtype,
    packed_strides,
    read_only,
)
from tilewright.errors import UnsupportedError
from tilewright.tensor import Location, View

_SPELLINGS = {"<f2": "float16", "<f4": "float32", "<V2": "bfloat16", "|i1": "int8", "<i4": "int32"}


class CudaInterfaceAdapter(Adapter):
    """Anything with __cuda_array_interface__. Work is enqueued on the stream that the arrays name."""

    library = "the CUDA array interface"
    names_device = False

    @staticmethod
    def owns(kind: type) -> bool:
        return hasattr(kind, "__cuda_array_interface__")

    def describe(self, a: Any, b: Any, out: Any | None) -> Any:
        operands = [("a", a), ("b", b)] if out is None else [("a", a), ("b", b), ("out", out)]
        interfaces = [(name, _interface_of(array, name)) for name, array in operands]
        views = [_view(interface, name, name == "out") for name, interface in interfaces]
        described = describe_views(views[0], views[1], views[2] if len(views) == 3 else None)
        return described._replace(stream=_stream(interfaces))

    def described(self, array: Any, name: str, is_written: bool = False) -> tuple[Hashable, int, int | None]:
        interface = _interface_of(array, name)
        facts, address, _ = super().described(array, name, is_written)
        return facts, address, _stream([(name, interface)])

    def view(self, array: Any, name: str, is_written: bool = False) -> View:
        return _view(_interface_of(array, name), name, is_written)


def _interface_of(array: Any, name: str) -> dict[str, Any]:
    interface = array.__cuda_array_interface__
    if not isinstance(interface, dict):
        raise _malformed(name, "the whole", interface, "a dict")
    return interface


def _view(interface: dict[str, Any], name: str, is_written: bool) -> View:
    if interface.get("mask") is not None:
        raise UnsupportedError(
            asked=f"{name} with a mask",
            rule="a product has no missing elements",
            works=f"fill the masked elements of {name}",
        )
    typestring = interface.get("typestr")
    if not isinstance(typestring, str):
        raise _malformed(name, "typestr", typestring, "a text such as '<f2'")
    dtype = named_dtype(_SPELLINGS.get(typestring, typestring), name)
    address, is_read_only = _data(interface.get("data"), name)
    if is_written and is_read_only:
        raise read_only(name, "CUDA")
    shape = _whole_numbers(interface.get("shape"), name, "shape")
    if min(shape, default=0) < 0:
        raise _malformed(name, "shape", shape, "a tuple of sizes from 0 up")
    strides_bytes = interface.get("strides")
    if strides_bytes is not None:
        strides_bytes = _whole_numbers(strides_bytes, name, "strides")
        if len(strides_bytes) != len(shape):
            raise _malformed(name, "strides", strides_bytes, f"None, or as many numbers as shape has, {len(shape)}")
    strides = packed_strides(shape) if strides_bytes is None else element_strides(shape, strides_bytes, dtype, name)
    return View(address, shape, strides, dtype, Location("cuda", UNKNOWN_ORDINAL))


def _data(given: Any, name: str) -> tuple[int, bool]:
    """The address, 0 for none, and whether what lies there may only be read."""
    if isinstance(given, tuple) and len(given) == 2:
        address, is_read_only = given
        if address is None or (isinstance(address, int) and 0 <= address < 2**64):
            return address or 0, bool(is_read_only)
    raise _malformed(name, "data", given, "a tuple of an address and whether it may only be read")


def _whole_numbers(given: Any, name: str, field: str) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, given))
    except TypeError:
        raise _malformed(name, field, given, "a tuple of whole numbers") from None


def _malformed(name: str, field: str, given: object, wanted: str) -> UnsupportedError:
    return UnsupportedError(
        asked=f"{name} with a __cuda_array_interface__ in which {field} is {given!r}",
        rule=f"{field} is {wanted} (CUDA array interface, version 3)",
        works=f"export {name} as its library documents, or pass an array that speaks DLPack",
    )


def _stream(interfaces: list[tuple[str, dict[str, Any]]]) -> int:
    """The one stream that orders the arrays: the one they name, or the legacy default stream when none names any.

    Source: the interface's synchronisation rules: work that is enqueued on the stream an array names needs no
    synchronisation with its producer; 1 and 2 are the default streams; 0 is not allowed.
    Raises: UnsupportedError: two streams, which nothing orders, stream 0, or something that is no stream.
    """
    named: dict[int, str] = {}
    for name, interface in interfaces:
        stream = interface.get("stream")
        if isinstance(stream, int) and not isinstance(stream, bool) and 0 <= stream < 2**64:
            named.setdefault(stream, name)
        elif stream is not None:
            raise _malformed(name, "stream", stream, "None, 1, 2 or the address of a stream")
    if not named:
        return LEGACY_STREAM
    if len(named) > 1 or 0 in named:
        listed = ", ".join(f"{name} {stream:#x}" for stream, name in named.items())
        raise UnsupportedError(
            asked=f"arrays that name the streams: {listed}",
            rule="the work is enqueued on the one stream that all arrays name; 0 names none",
            works="synchronise the streams, then export the arrays with stream None",
        )
    return next(iter(named))
