"""What a register may hold: arrays, nothing yet, an array with unwritten lanes, an accumulator in flight.

Knows how each is stored and which may be used; nothing of instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PARKED = -1  # what a block returns when its threads wait, and
EXITED = -2  # when they have left

# The NumPy type in which an instruction of each PTX type computes. 16-bit floats travel as their bits.
DTYPES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype("?"),
    **{f"{p}{8 * b}": np.dtype(f"{k}{b}") for p, k in (("b", "u"), ("u", "u"), ("s", "i")) for b in (1, 2, 4, 8)},
    "f16": np.dtype("u2"),
    "bf16": np.dtype("u2"),
    "f16x2": np.dtype("u4"),
    "bf16x2": np.dtype("u4"),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
}
# The type in which a register of each declared type lies in the file.
STORAGE: dict[str, np.dtype[Any]] = {
    kind: dtype if dtype.kind in "bf" else np.dtype(f"u{dtype.itemsize}") for kind, dtype in DTYPES.items()
}


class UnusableError(Exception):
    """A register was read that holds no value. The machine says which and where."""


class Unusable:
    """What stands in a register without a value. It may be moved and selected; whatever computes with it raises.

    NumPy would take any other object for an array of one reference and go on: `None == array` is False everywhere.
    """

    __slots__ = ()
    __iter__ = None  # __getitem__ alone would make it a sequence
    __hash__ = object.__hash__

    def view(self, dtype: np.dtype[Any]) -> Any:
        """The same as another type of its size."""
        raise UnusableError

    def __getitem__(self, selection: Any) -> Any:
        raise UnusableError

    def __eq__(self, other: object) -> bool:
        raise UnusableError

    def __bool__(self) -> bool:
        raise UnusableError

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        raise UnusableError

    def __array_ufunc__(self, function: Any, method: str, *arguments: Any, **options: Any) -> Any:
        raise UnusableError

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function is np.where and len(arguments) == 3:
            return selected(*arguments)
        raise UnusableError


class Unwritten(Unusable):
    """What a register holds that no thread of the vector has written. UNWRITTEN is the only one."""

    __slots__ = ()

    def view(self, dtype: np.dtype[Any]) -> Unwritten:
        return self

    def __getitem__(self, selection: Any) -> Unwritten:
        return self


UNWRITTEN = Unwritten()


class Partial(Unusable):
    """An array of which some lanes were never written."""

    __slots__ = ("array", "unwritten")

    def __init__(self, array: NDArray[Any], unwritten: NDArray[np.bool_]) -> None:
        self.array = array
        self.unwritten = unwritten

    def view(self, dtype: np.dtype[Any]) -> Partial:
        return Partial(self.array.view(dtype), self.unwritten)

    def __getitem__(self, selection: Any) -> Any:
        return joined(self.array[selection], self.unwritten[selection])


class InFlight(Unusable):
    """One register of an accumulator tile that a wgmma may still write. May be moved; any use of its value raises."""

    __slots__ = ("index", "tile")

    def __init__(self, tile: Any, index: int) -> None:
        self.tile = tile
        self.index = index


class Matrices:
    """Matrices that registers hold, by the identity of the registers' values: the same fragment is often used again.

    Values are kept as long as their matrix, so an identity stands for one value. Arrays in registers never change.
    """

    LIMIT = 128

    def __init__(self) -> None:
        self.held: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def get(self, key: tuple[Any, ...]) -> Any:
        """The matrix of (operand, shape, identities), or None."""
        found = self.held.get(key)
        return None if found is None else found[1]

    def put(self, operand: str, shape: Any, registers: tuple[Any, ...], matrix: Any) -> Any:
        """Remembers a matrix and returns it."""
        if len(self.held) >= self.LIMIT:
            self.held.clear()
        self.held[(operand, shape, *map(id, registers))] = (registers, matrix)
        return matrix


def joined(array: NDArray[Any], unwritten: NDArray[np.bool_]) -> Any:
    """The value of a register of which these lanes were never written."""
    if not unwritten.any():
        return array
    return UNWRITTEN if unwritten.all() else Partial(array, unwritten)


def _parts(value: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """(array, unwritten lanes) of a value; one element each where it is the same in every lane."""
    if isinstance(value, Partial):
        return value.array, value.unwritten
    return (np.zeros(1, dtype), np.True_) if isinstance(value, Unusable) else (value, np.False_)


def _dtype(*values: Any) -> np.dtype[Any]:
    """The type of the first value that has one."""
    arrays = [value.array if isinstance(value, Partial) else value for value in values]
    return next((array.dtype for array in arrays if not isinstance(array, Unusable)), np.dtype(np.uint32))


def selected(chosen: NDArray[np.bool_], first: Any, second: Any) -> Any:
    """np.where of registers that may hold no value: a lane that takes from one that was written has a value."""
    if any(isinstance(value, InFlight) for value in (first, second)) or isinstance(chosen, Unusable):
        raise UnusableError
    dtype = _dtype(first, second)
    (one, no_one), (other, no_other) = _parts(first, dtype), _parts(second, dtype)
    return joined(np.where(chosen, one, other), np.where(chosen, no_one, no_other))


def blend(old: Any, selection: Any, new: Any, width: int) -> Any:
    """The register after a write of the selected lanes: a new value, since others may hold the old one."""
    if old.__class__ is np.ndarray and new.__class__ is np.ndarray:
        array = old.copy()
        array[selection] = new
        return array
    dtype = _dtype(new, old)
    array, unwritten = np.zeros(width, dtype), np.zeros(width, np.bool_)
    array[:], unwritten[:] = _parts(old, dtype)  # an accumulator in flight: the other lanes stay unusable
    array[selection], unwritten[selection] = _parts(new, dtype)
    return joined(array, unwritten)
