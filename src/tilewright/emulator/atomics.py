"""What a read-modify-write makes of an old and a new value, by operation and element type. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import arithmetic, numerics

Array = NDArray[Any]

_BITWISE: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_INTEGER: dict[str, Callable[..., Any]] = {"add": np.add, "min": np.minimum, "max": np.maximum}


_FLOAT: dict[str, Any] = {"add": arithmetic.add, "min": arithmetic.minimum, "max": arithmetic.maximum}


def element_bytes(element: str) -> int:
    """Bytes of a type's value: pairs of halves are one of four."""
    return 4 if element.endswith("x2") else {"f16": 2, "bf16": 2}.get(element) or int(element[1:]) // 8


def reduce_values(op: str, element: str, old: Array, new: Array) -> Array:
    """The values in memory after the operation, as unsigned bits like `old` and `new`.

    `op`: add min max and or xor exch inc dec. Source: PTX ISA, atom and red.
    """
    if op == "exch":
        return new
    if op in _BITWISE:
        return np.asarray(_BITWISE[op](old, new))
    if op == "inc":
        return np.asarray(np.where(old >= new, old.dtype.type(0), old + old.dtype.type(1)))
    if op == "dec":
        return np.where((old == 0) | (old > new), new, old - old.dtype.type(1))
    fmt = element.removesuffix("x2")
    if not numerics.is_float(fmt):
        kind = f"i{old.dtype.itemsize}" if element.startswith("s") else old.dtype
        return np.asarray(_INTEGER[op](old.view(kind), new.view(kind)).view(old.dtype))
    floats: Callable[..., Array] = _FLOAT[op]
    if element.endswith("x2"):
        pairs = numerics.unpack(fmt, old), numerics.unpack(fmt, new)
        return np.asarray(numerics.pack_bits(numerics.encode(fmt, floats(fmt, *pairs))))
    return np.asarray(_bits(fmt, floats(fmt, numerics.decode(fmt, old), numerics.decode(fmt, new)), old.dtype))


def _bits(fmt: str, values: Array, dtype: Any) -> Array:
    return values.view(dtype) if fmt in ("f32", "f64") else numerics.encode(fmt, values)


def reduce_bytes(op: str, element: str, old: Array, new: Array) -> Array:
    """The same on bytes."""
    kind = f"u{element_bytes(element)}"
    return np.ascontiguousarray(reduce_values(op, element, old.copy().view(kind), new.view(kind))).view(np.uint8)
