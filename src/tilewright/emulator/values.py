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


class Partial:
    """An array of which some lanes were never written."""

    __slots__ = ("array", "unwritten")

    def __init__(self, array: NDArray[Any], unwritten: NDArray[np.bool_]) -> None:
        self.array = array
        self.unwritten = unwritten

    def __getitem__(self, selection: Any) -> Any:
        if self.unwritten[selection].any():
            raise UnusableError
        return self.array[selection]


class InFlight:
    """One register of an accumulator tile that a wgmma may still write. May be moved; any use of its value raises."""

    __slots__ = ("index", "tile")

    def __init__(self, tile: Any, index: int) -> None:
        self.tile = tile
        self.index = index

    def __getitem__(self, selection: Any) -> Any:
        raise UnusableError


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


def blend(old: Any, selection: Any, new: NDArray[Any], width: int) -> Any:
    """The register after a write of the selected lanes: a new value, since others may hold the old one."""
    if old.__class__ is np.ndarray:
        array = old.copy()
        array[selection] = new
        return array
    if old is None:
        array = np.zeros(width, new.dtype)
        unwritten = np.ones(width, np.bool_)
    elif isinstance(old, Partial):
        array, unwritten = old.array.copy(), old.unwritten.copy()
    else:  # an accumulator in flight: the other lanes stay unusable
        array = np.zeros(width, new.dtype)
        unwritten = np.ones(width, np.bool_)
    array[selection] = new
    unwritten[selection] = False
    return Partial(array, unwritten) if unwritten.any() else array
