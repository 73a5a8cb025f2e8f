"""Whole numbers as callers give them, of whichever library, as Python's ints."""

from __future__ import annotations

import operator

from tilewright.errors import RefusalError, ShapeError


def whole(name: str, value: object, refusal: type[RefusalError]) -> int:
    """`value` as an int, of whichever library's integers it is.

    Raises: `refusal`: no whole number, a truth value, or one past 64 bits.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # whatever has no __index__ is refused below
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        shown = repr(value)
        raise refusal(
            asked=f"{name} = {shown[:40]}{'...' if len(shown) > 40 else ''}, a {type(value).__name__}",
            rule="sizes, pitches and alignments are whole numbers",
            works=f"pass {name} as an int",
        )
    if number.bit_length() > 63:  # not shown: Python refuses to print thousands of digits
        raise refusal(
            asked=f"{name}, a number of {number.bit_length()} bits",
            rule="sizes and pitches are 64-bit numbers",
            works="split the product along that dimension" if refusal is ShapeError else f"pass a smaller {name}",
        )
    return number


def wholes(name: str, values: object, refusal: type[RefusalError]) -> tuple[int, ...]:
    """Each of `values` as an int.

    Raises: `refusal`: no sequence, or a value that is no whole number.
    """
    try:
        found: tuple[object, ...] = tuple(values)  # type: ignore[arg-type]  # what cannot be walked is refused below
    except TypeError:
        raise refusal(
            asked=f"{name} = {values!r}", rule="it has a number for each dimension", works=f"pass {name} as a tuple"
        ) from None
    return tuple(whole(name, value, refusal) for value in found)
