"""Rows of the table for wmma: whole-warp matrices whose place in registers PTX leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import fragments
from tilewright.emulator.events import Site
from tilewright.emulator.isa.memory import LOADS, STORES
from tilewright.emulator.isa.sync import shared_address
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.isa.tensor import elements_of, items, tuple_of
from tilewright.emulator.launch import WARP
from tilewright.emulator.syntax import Instruction, Operand
from tilewright.emulator.warpgroups import decoded

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []


def _form(pattern: str, emit: Emit, family: str, **flags: Any) -> None:
    FORMS.append(Form(pattern, emit, family, **flags))


_WMMA = "m16n16k16|m32n8k16|m8n32k16"
_form(
    f"wmma.load.<operand:a|b>.sync.aligned[.<layout:row|col>].<shape:{_WMMA}>[.<late:row|col>][.<space:global|shared::cta|shared>].<type:f16|bf16>",
    lambda e, i, m: _wmma_load(e, i, m),
    "wmma",
    aligned="warp",
)
_form(
    f"wmma.load.<operand:c>.sync.aligned[.<layout:row|col>].<shape:{_WMMA}>[.<late:row|col>][.<space:global|shared::cta|shared>].<type:f16|f32>",
    lambda e, i, m: _wmma_load(e, i, m),
    "wmma",
    aligned="warp",
)
_form(
    f"wmma.store.<operand:d>.sync.aligned[.<layout:row|col>].<shape:{_WMMA}>[.<late:row|col>][.<space:global|shared::cta|shared>].<type:f16|f32>",
    lambda e, i, m: _wmma_store(e, i, m),
    "wmma",
    aligned="warp",
    destinations=0,
)
_form(
    f"wmma.mma.sync.aligned.<al:row|col>.<bl:row|col>.<shape:{_WMMA}>.<d:f16|f32>.<c:f16|f32>",
    lambda e, i, m: _wmma_mma(e, i, {**m, "a": "f16"}),
    "wmma",
    aligned="warp",
)
_form(
    f"wmma.mma.sync.aligned.<al:row|col>.<bl:row|col>.<shape:{_WMMA}>.<d:f32>.<a:bf16>.bf16.<c:f32>",
    lambda e, i, m: _wmma_mma(e, i, m),
    "wmma",
    aligned="warp",
)


def _sizes(shape: str) -> tuple[int, int, int]:
    m, n, k = (int(part) for part in shape[1:].replace("n", " ").replace("k", " ").split())
    return m, n, k


def _num_registers(operand: str, kind: str, shape: str) -> int:
    """Registers of a lane. Source: PTX ISA, wmma: matrix fragments: f16 a and b take 8 of any shape, bf16 no more than
    they need."""
    m, n, k = _sizes(shape)
    if operand in ("a", "b"):
        return 8 if kind == "f16" else (m if operand == "a" else n) * k * 16 // (WARP * 32)
    return m * n * (32 if kind == "f32" else 16) // (WARP * 32)


def _wmma_address(e: Emitter, operand: Operand, m: Modifiers) -> tuple[str, str]:
    space = m["space"].split("::")[0]
    if space == "shared":
        return shared_address(e, operand), "shared"
    return e.address(operand, "u64"), space or "generic"


def _wmma_load(e: Emitter, i: Instruction, m: Modifiers) -> None:
    place, space = _wmma_address(e, i.operands[1], m)
    given = items(e, i.operands[0], _num_registers(m["operand"], m["type"], m["shape"]))
    stride = e.read(i.operands[2], "u32") if len(i.operands) > 2 else "None"
    arguments = (
        place,
        stride,
        repr(space),
        repr(m["operand"]),
        str(_sizes(m["shape"])),
        repr(m["type"]),
        repr(m["layout"] or m["late"] or "row"),
    )
    result = e.fresh(e.call(wmma_load, *arguments))
    for position, item in enumerate(given):
        e.write(item, "f32" if m["type"] == "f32" else "b32", f"{result}[{position}]")


def _wmma_store(e: Emitter, i: Instruction, m: Modifiers) -> None:
    place, space = _wmma_address(e, i.operands[0], m)
    kind = "f32" if m["type"] == "f32" else "b32"
    given = items(e, i.operands[1], _num_registers("d", m["type"], m["shape"]))
    values = tuple_of([e.read(item, kind, wide=True) for item in given])
    stride = e.read(i.operands[2], "u32") if len(i.operands) > 2 else "None"
    e.line(
        e.call(
            wmma_store,
            place,
            stride,
            values,
            repr(space),
            str(_sizes(m["shape"])),
            repr(m["type"]),
            repr(m["layout"] or m["late"] or "row"),
        )
    )


def _wmma_places(
    n: int, addresses: Array, strides: Array | None, operand: str, sizes: tuple[int, int, int], size: int, layout: str
) -> Array:
    """Byte address of each element, (n, elements). The stride counts elements between rows (row) or columns (col)."""
    m, columns, k = sizes
    rows_map, columns_map = fragments.wmma_map(operand, m, columns, k, 8 * size)
    warps = n // WARP
    first = np.broadcast_to(addresses, (n,)).reshape(warps, WARP)[:, :1, None].astype(np.int64)
    extents = {"a": (m, k), "b": (k, columns), "c": (m, columns), "d": (m, columns)}[operand]
    default = extents[1] if layout == "row" else extents[0]
    stride = (
        np.int64(default)
        if strides is None
        else np.broadcast_to(strides, (n,)).reshape(warps, WARP)[:, :1, None].astype(np.int64)
    )
    outer, inner = (rows_map, columns_map) if layout == "row" else (columns_map, rows_map)
    return np.asarray(first + (outer * stride + inner) * size).reshape(n, -1)


def wmma_load(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    addresses: Array,
    strides: Array | None,
    space: str,
    operand: str,
    sizes: tuple[int, int, int],
    kind: str,
    layout: str,
) -> list[Array]:
    """wmma.load: registers of the emulator's own choice of layout, which PTX leaves open."""
    size = 4 if kind == "f32" else 2
    places = _wmma_places(n, addresses, strides, operand, sizes, size, layout)
    dtype = np.uint32 if space == "shared" else np.uint64
    columns = [
        LOADS[space](team, s, n, site, places[:, position].astype(dtype), size, 1, "weak", "")
        for position in range(places.shape[1])
    ]
    if kind == "f32":
        return [column.view(np.float32) for column in columns]
    return [
        columns[position].astype(np.uint32) | (columns[position + 1].astype(np.uint32) << np.uint32(16))
        for position in range(0, len(columns), 2)
    ]


def wmma_store(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    addresses: Array,
    strides: Array | None,
    values: tuple[Array, ...],
    space: str,
    sizes: tuple[int, int, int],
    kind: str,
    layout: str,
) -> None:
    """wmma.store.d."""
    size = 4 if kind == "f32" else 2
    places = _wmma_places(n, addresses, strides, "d", sizes, size, layout)
    dtype = np.uint32 if space == "shared" else np.uint64
    for position in range(places.shape[1]):
        if kind == "f32":
            value = values[position].view(np.uint32)
        else:
            value = ((values[position // 2] >> np.uint32(16 * (position % 2))) & np.uint32(0xFFFF)).astype(np.uint16)
        STORES[space](team, s, n, site, places[:, position].astype(dtype), size, 1, value, "weak", "")


def _wmma_mma(e: Emitter, i: Instruction, m: Modifiers) -> None:
    groups = []
    for operand, place, kind in zip(i.operands[1:4], "abc", (m["a"], m["a"], m["c"]), strict=True):
        given = items(e, operand, _num_registers(place, kind, m["shape"]))
        register = "f32" if kind == "f32" else "b32"
        groups.append(tuple_of([e.read(item, register, wide=True) for item in given]))
    result = e.fresh(e.call(wmma_mma, *groups, str(_sizes(m["shape"])), repr(m["a"]), repr(m["c"]), repr(m["d"])))
    for position, item in enumerate(items(e, i.operands[0], _num_registers("d", m["d"], m["shape"]))):
        e.write(item, "f32" if m["d"] == "f32" else "b32", f"{result}[{position}]")


def wmma_mma(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    a: tuple[Array, ...],
    b: tuple[Array, ...],
    c: tuple[Array, ...],
    sizes: tuple[int, int, int],
    kind: str,
    c_kind: str,
    d_kind: str,
) -> list[Array]:
    """wmma.mma."""
    m, columns, k = sizes
    warps = n // WARP

    def matrix(registers: tuple[Array, ...], operand: Any, stored: str, shape: tuple[int, int]) -> Array:
        where = fragments.wmma_map(operand, m, columns, k, 32 if stored == "f32" else 16)
        if stored == "f32":
            values = np.stack(registers, axis=1).reshape(warps, WARP, -1)
        else:
            values = decoded(stored, elements_of(registers, 16, n)).reshape(warps, WARP, -1)
        held = values.shape[-1]  # of bf16 each element once, of f16 twice
        return fragments.scatter((where[0][:, :held], where[1][:, :held]), values, shape)

    product = np.matmul(matrix(a, "a", kind, (m, k)), matrix(b, "b", kind, (k, columns)))
    product += matrix(c, "c", c_kind, (m, columns))
    values = fragments.gather(fragments.wmma_map("d", m, columns, k, 32), product).reshape(n, -1)
    if d_kind == "f32":
        return [np.ascontiguousarray(values[:, position]) for position in range(values.shape[1])]
    halves = np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
    return [halves[:, position] for position in range(halves.shape[1])]
