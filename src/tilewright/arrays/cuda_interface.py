"""Arrays of any library that speaks the CUDA array interface, version 2 or 3.

The interface does not say which device holds an array, so a view has UNKNOWN_ORDINAL and the backend asks the driver
about the address. Typestrings: "<f2" is fp16, "<f4" fp32, and "<V2" bf16: the interface has no word for bf16, and this
is how an array of ml_dtypes.bfloat16 spells it.
"""

from __future__ import annotations

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

_SPELLINGS = {"<f2": "float16", "<f4": "float32", "<V2": "bfloat16"}


class CudaInterfaceAdapter(Adapter):
    """Anything with __cuda_array_interface__. Work is enqueued on the stream that the arrays name."""

    library = "the CUDA array interface"
    names_device = False

    @staticmethod
    def owns(kind: type) -> bool:
        return hasattr(kind, "__cuda_array_interface__")

    def describe(self, a: Any, b: Any, out: Any | None) -> Any:
        operands = [("a", a), ("b", b)] if out is None else [("a", a), ("b", b), ("out", out)]
        interfaces = [(name, array.__cuda_array_interface__) for name, array in operands]
        views = [_view(interface, name) for name, interface in interfaces]
        described = describe_views(views[0], views[1], views[2] if len(views) == 3 else None)
        return described._replace(stream=_stream(interfaces))

    def view(self, array: Any, name: str) -> View:
        return _view(array.__cuda_array_interface__, name)


def _view(interface: dict[str, Any], name: str) -> View:
    if interface.get("mask") is not None:
        raise UnsupportedError(
            asked=f"{name} with a mask",
            rule="a product has no missing elements",
            works=f"fill the masked elements of {name}",
        )
    typestring = interface["typestr"]
    dtype = named_dtype(_SPELLINGS.get(typestring, typestring), name)
    address, is_read_only = interface["data"]
    if name == "out" and is_read_only:
        raise read_only(name, "CUDA")
    shape = tuple(interface["shape"])
    strides_bytes = interface.get("strides")
    strides = packed_strides(shape) if strides_bytes is None else element_strides(strides_bytes, dtype, name)
    return View(address or 0, shape, strides, dtype, Location("cuda", UNKNOWN_ORDINAL))


def _stream(interfaces: list[tuple[str, dict[str, Any]]]) -> int:
    """The one stream that orders the arrays: the one they name, or the legacy default stream when none names any.

    Source: the interface's synchronisation rules: work that is enqueued on the stream an array names needs no
    synchronisation with its producer; 1 and 2 are the default streams; 0 is not allowed.
    Raises: UnsupportedError: two streams, which nothing orders, or stream 0.
    """
    named = {interface["stream"]: name for name, interface in interfaces if interface.get("stream") is not None}
    if not named:
        return LEGACY_STREAM
    if len(named) > 1 or 0 in named:
        listed = ", ".join(f"{name} {stream:#x}" for stream, name in named.items())
        raise UnsupportedError(
            asked=f"arrays that name the streams: {listed}",
            rule="the work is enqueued on the one stream that all arrays name; 0 names none",
            works="synchronise the streams, then export the arrays with stream None",
        )
    return int(next(iter(named)))
