"""wgmma as work: accumulator tiles in flight, the order of a warpgroup's wgmmas, and the products themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import fragments, numerics, sums
from tilewright.emulator.engines import Work, error_at
from tilewright.emulator.events import Site
from tilewright.emulator.values import STORAGE, InFlight

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine
    from tilewright.emulator.team import Fragment, Team

Array = NDArray[Any]


class Tile:
    """Accumulators of one vector's part of a wgmma: rows x n numbers, while wgmmas may write them.

    `slices` are what the registers hold meanwhile; `in_flight` counts wgmmas that nobody has waited for.
    """

    def __init__(self, values: Array, num_registers: int, site: Site) -> None:
        self.values = values
        self.site = site
        self.in_flight = 0
        self.slices = tuple(InFlight(self, index) for index in range(num_registers))


@dataclass(frozen=True, eq=False)
class Shape:
    """What the opcode of a matrix product says. `k`: columns of k; `bits`: of an element of a and b."""

    n: int
    k: int
    d: str
    a: str
    b: str
    bits: int
    satfinite: bool
    sparse: bool
    m: int = 64


@dataclass(eq=False, kw_only=True)
class Wgmma(Work):
    """One wgmma.mma_async of a warpgroup. In warp-wide vectors four of them issue it, each its own 16 rows."""

    shape: Shape
    warpgroup: Warpgroup
    base: int  # flat base of the CTA's window
    a_descriptor: int | None
    b_descriptor: int
    scale_d: bool
    negate: bool
    a_k_major: bool
    b_k_major: bool
    metadata: Array | None = None
    selector: int = 0
    previous: Wgmma | None = None
    parts: dict[int, tuple[Tile, Array | None]] = field(
        default_factory=dict
    )  # first row -> accumulators, A's registers
    rows_issued: int = 0

    def before(self) -> list[Work]:
        return [self.previous] if self.previous is not None and self.previous.state != "done" else []

    def can_run(self) -> bool:
        """Whether every warp has issued it and all before it."""
        return self.rows_issued == 64 and (
            self.previous is None or self.previous.state == "done" or self.previous.can_run()
        )

    def write(self, machine: Machine) -> None:
        self.previous = None
        shape = self.shape
        b = self._operand(machine, self.b_descriptor, shape.n, shape.b, self.b_k_major, "B", shape.k)
        a_full = None
        if self.a_descriptor is not None:
            stored = shape.k // 2 if shape.sparse else shape.k
            a_full = self._operand(machine, self.a_descriptor, 64, shape.a, self.a_k_major, "A", stored)
        for row, (tile, registers) in self.parts.items():
            num_rows = len(tile.values)
            a = a_full[row : row + num_rows] if a_full is not None else registers
            assert a is not None
            if self.metadata is not None:
                columns = fragments.wgmma_sparse_columns(self.metadata, self.selector, shape.k, shape.bits)
                a = fragments.sparse_expand(a, columns[row : row + num_rows], shape.k)
            tile.values = multiplied(
                shape, a, b, tile.values if self.scale_d else None, self.negate, machine.exact_sums
            )
        self.parts = {}  # accumulators live on in their registers

    def _operand(
        self, machine: Machine, descriptor: int, rows: int, kind: str, k_major: bool, name: str, k: int
    ) -> Array:
        shape = self.shape
        smem = machine.smem
        window = smem.data[self.base : self.base + smem.stride]
        try:
            bits = fragments.wgmma_operand(window, descriptor, rows, k, shape.bits, k_major)
        except fragments.OperandRangeError as outside:
            raise error_at(self.site, "out of bounds", f"operand {name}: {outside}", self.cta) from None
        machine.moved("shared read by wgmma", rows * k * shape.bits // 8)
        if machine.patterns is not None:
            machine.patterns.operand(self.site, name, descriptor, rows, k, shape.bits, k_major)
        if machine.observer is not None:
            start, offsets = fragments.wgmma_offsets(descriptor, rows, k, shape.bits, k_major)
            machine.observer.op_read(self, "shared", _chunks(offsets) + (self.base + start), 16)
        return decoded(kind, bits)


_CHUNKS: dict[int, tuple[Array, Array]] = {}  # by id of an array of offsets, which is kept with its chunks


def _chunks(offsets: Array) -> Array:
    """The 16-byte chunks that hold the offsets, each once."""
    found = _CHUNKS.get(id(offsets))
    if found is None:
        if len(_CHUNKS) > 4096:
            _CHUNKS.clear()
        found = _CHUNKS[id(offsets)] = (offsets, (np.unique(offsets // 16) * 16).astype(np.int64))
    return found[1]


def decoded(kind: str, bits: Array) -> Array:
    """Elements of a tensor-core operand as float32, exactly."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "f64":
        return bits.view(np.float64)
    if kind in ("s8", "u8"):
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.float32)
    return np.asarray(numerics.decode(kind, bits))


def multiplied(shape: Shape, a: Array, b: Array, c: Array | None, negate: bool, exact: bool) -> Array:
    """a (rows, k) x b (n, k) transposed + c in the accumulators' type: float32, float32 holding f16, or int32.
    `exact`: with the hardware's own roundings."""
    if exact and has_model(shape, a, b, c):
        return sums.multiply_accumulate(shape.a, -a if negate else a, b.T, c, shape.d)
    product = a @ b.T
    if shape.d == "s32":
        whole = np.rint(product).astype(np.int64)  # exact: |sum| < 2^24
        if c is not None:
            whole += c
        if shape.satfinite:
            whole = np.clip(whole, -(2**31), 2**31 - 1)
        return np.asarray(whole.astype(np.int32))
    if negate:
        product = -product
    if c is not None:
        product += c
    return product if shape.d == "f32" else product.astype(np.float16).astype(np.float32)


def has_model(shape: Shape, a: Array, b: Array, c: Array | None) -> bool:
    """Whether sums.py knows what the hardware makes of it."""
    finite = all(values is None or bool(np.isfinite(values).all()) for values in (a, b, c))
    return finite and shape.d in ("f32", "f16")


@dataclass(eq=False)
class Warpgroup:
    """The wgmmas of one warpgroup in order. Positions count from the CTA's start."""

    ops: list[Wgmma] = field(default_factory=list)
    waiters: list[Fragment] = field(default_factory=list)


@dataclass(eq=False)
class Participant:
    """One vector's view of its warpgroup: how much it has issued, committed and waited for."""

    warpgroup: Warpgroup
    first_row: int
    num_rows: int
    issued: int = 0
    waited: int = 0
    group_ends: list[int] = field(default_factory=list)
    tiles: list[Any] = field(default_factory=list)


def accumulators(n: int, kind: str, num_rows: int) -> tuple[Array, Array]:
    """(rows, columns) of the accumulators of one vector, each (registers x elements a register, lanes)."""
    rows, columns = fragments.wgmma_d(n)
    lanes = num_rows * 2
    return np.ascontiguousarray(rows[:lanes].T), np.ascontiguousarray(columns[:lanes].T)


_PLACES: dict[tuple[int, int], Array] = {}


def flat_places(n: int, num_rows: int) -> Array:
    """Index of each accumulator in the flattened tile, (elements, lanes)."""
    found = _PLACES.get((n, num_rows))
    if found is None:
        rows, columns = accumulators(n, "f32", num_rows)
        found = _PLACES[n, num_rows] = rows * n + columns
    return found


def tile_from_registers(shape: Shape, values: list[Array], num_rows: int) -> Array:
    """The tile that registers hold."""
    places = flat_places(shape.n, num_rows)
    stacked = np.stack(values)
    if shape.d == "f16":
        halves = np.ascontiguousarray(stacked).view(np.uint16).reshape(len(values), -1, 2)
        elements = np.ascontiguousarray(halves.transpose(0, 2, 1)).reshape(len(values) * 2, -1)
        stacked = elements.view(np.float16).astype(np.float32)
    elif shape.d == "s32":
        stacked = stacked.view(np.int32)
    tile = np.empty(num_rows * shape.n, stacked.dtype)
    tile[places] = stacked
    return tile.reshape(num_rows, shape.n)


def registers_from_tile(shape: Shape, tile: Array) -> list[Array]:
    """The registers that hold a tile: arrays of lanes, float32 or 32 bits."""
    elements = tile.reshape(-1)[flat_places(shape.n, len(tile))]
    if shape.d == "f16":
        bits = elements.astype(np.float16).view(np.uint16).astype(np.uint32)
        return list(bits[0::2] | (bits[1::2] << 16))
    return list(elements)


def materialise(team: Team, tile: Tile, shape: Shape) -> None:
    """The accumulators become ordinary register values, wherever moves have taken them."""
    values = registers_from_tile(shape, tile.values)
    registers = team.machine.kernel.entry.registers
    fenced, team.fenced_ids = team.fenced, None
    for index, value in enumerate(team.registers):
        if value.__class__ is InFlight and value.tile is tile:
            ready = values[value.index]
            stored = STORAGE[registers[index].type]
            ready = ready if ready.dtype == stored else ready.view(stored)
            if fenced is not None and index not in team.machine.kernel.used_outside_wgmma:
                fenced[index] = ready  # no thread touches it between two wgmmas: no fence is needed
            team.registers[index] = ready


def pick(registers: tuple[int, ...]) -> itemgetter[Any]:
    """A function that takes these registers out of a file at once."""
    return itemgetter(*registers)
