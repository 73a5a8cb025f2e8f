"""Rows of the table for matrices in registers: ldmatrix, stmatrix, mma.sync, wmma, wgmma."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import banks, fragments, numerics
from tilewright.emulator.engines import (
    Participant,
    Shape,
    Tile,
    Warpgroup,
    Wgmma,
    decoded,
    materialise,
    multiplied,
    pick,
    tile_from_registers,
)
from tilewright.emulator.events import Site
from tilewright.emulator.isa.memory import tally
from tilewright.emulator.isa.sync import WARP, warp_met
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.ptx import Imm, Instruction, Mem, Name, Operand, Reg, Vec
from tilewright.emulator.values import InFlight

if False:  # for annotations only: translate and machine import this module
    from tilewright.emulator.machine import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []


def _form(pattern: str, emit: Emit, family: str, **flags: Any) -> None:
    FORMS.append(Form(pattern, emit, family, **flags))


def _items(e: Emitter, operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vec) else (operand,)


def _tuple(names: list[str]) -> str:
    return f"({', '.join(names)},)"


def _shared_address(e: Emitter, operand: Operand) -> str:
    wide = isinstance(operand, Mem) and isinstance(operand.base, Reg) and operand.base.type[1:] == "64"
    if not wide:
        return e.address(operand, "u32")
    return e.fresh(f"({e.address(operand, 'u64')} & np.uint64(0xFFFFFFFF)).astype(u4)")


# -- ldmatrix and stmatrix ------------------------------------------------------------------------------------------------

_form("ldmatrix.sync.aligned.m8n8.<num:x1|x2|x4>[<trans:.trans>][.<space:shared::cta|shared>].b16", lambda e, i, m: _ldmatrix(e, i, m), "ldmatrix", aligned="warp")
_form("stmatrix.sync.aligned.m8n8.<num:x1|x2|x4>[<trans:.trans>][.<space:shared::cta|shared>].b16", lambda e, i, m: _stmatrix(e, i, m), "ldmatrix", aligned="warp", destinations=0)


def _ldmatrix(e: Emitter, i: Instruction, m: Modifiers) -> None:
    items = _items(e, i.operands[0])
    num = int(m["num"][1:])
    if len(items) != num:
        raise e.error(f"{num} registers are needed, {len(items)} are given")
    result = e.fresh(e.call(ldmatrix, _shared_address(e, i.operands[1]), str(num), str(bool(m["trans"]))))
    for position, item in enumerate(items):
        e.write(item, "b32", f"{result}[{position}]")


def _stmatrix(e: Emitter, i: Instruction, m: Modifiers) -> None:
    items = _items(e, i.operands[1])
    num = int(m["num"][1:])
    if len(items) != num:
        raise e.error(f"{num} registers are needed, {len(items)} are given")
    values = [e.read(item, "b32", wide=True) for item in items]
    place = _shared_address(e, i.operands[0])
    e.line(e.call(stmatrix, place, _tuple(values), str(num), str(bool(m["trans"]))))


def _row_addresses(team: Team, s: Any, n: int, site: Site, addresses: Array, num: int, kind: Any) -> Array:
    """Flat addresses (warps, 8 num) of the rows that the first lanes of each warp give, told to observer and banks."""
    if n % WARP:
        raise team.error(site, "partial warp", f"{n} threads are no whole warps")
    count = 8 * num
    rows = np.ascontiguousarray(np.broadcast_to(addresses, (n,)).reshape(-1, WARP)[:, :count])
    givers = (team.lanes if s is None else team.lanes[s]).reshape(-1, WARP)[:, :count].reshape(-1)
    flat = team.flat(site, rows.reshape(-1), 16, givers)
    machine = team.machine
    machine.moved(f"shared {'read' if kind == 'read' else 'written'}", 16 * flat.size)
    if machine.observer is not None:
        threads = team.threads[givers]
        machine.observer.access(site, team.cta.index, threads, "shared", flat, 16, kind, "generic", "weak", "")
    flat = flat.reshape(-1, count)
    if machine.banks is not None:
        tally(team, site, banks.matrix(flat))
    return flat


@cache
def _matrix_places(num: int, trans: bool) -> tuple[Array, Array]:
    """(row giver, byte offset) of each element: whole words (num, 32), or halves (num, 2, 32) when transposed."""
    lane, offset = fragments.ldmatrix_map(num, trans)
    if trans:
        return np.ascontiguousarray(lane.transpose(1, 2, 0)), np.ascontiguousarray(offset.transpose(1, 2, 0))
    return np.ascontiguousarray(lane[:, :, 0].T), np.ascontiguousarray(offset[:, :, 0].T)


def ldmatrix(team: Team, s: Any, n: int, site: Site, addresses: Array, num: int, trans: bool) -> Array:
    """Registers (num, n)."""
    rows = _row_addresses(team, s, n, site, addresses, num, "read")
    lane, offset = _matrix_places(num, trans)
    places = rows[:, lane] + offset
    smem = team.machine.smem
    if trans:
        halves = smem.views[2][places // 2].astype(np.uint32)
        words = halves[:, :, 0] | (halves[:, :, 1] << np.uint32(16))
    else:
        words = smem.views[4][places // 4]
    return words.transpose(1, 0, 2).reshape(num, n)


def stmatrix(
    team: Team, s: Any, n: int, site: Site, addresses: Array, values: tuple[Array, ...], num: int, trans: bool
) -> None:
    """Registers (num, n) into rows."""
    rows = _row_addresses(team, s, n, site, addresses, num, "write")
    lane, offset = _matrix_places(num, trans)
    places = rows[:, lane] + offset
    words = np.array(values).reshape(num, -1, WARP).transpose(1, 0, 2)
    smem = team.machine.smem
    team.machine.progress_mark = team.machine.blocks_run
    if trans:
        halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=2).astype(np.uint16)
        smem.views[2][places // 2] = halves
    else:
        smem.views[4][places // 4] = words


# -- mma.sync -----------------------------------------------------------------------------------------------------------

_form("mma.sync.aligned.<shape:m16n8k8|m16n8k16>.row.col.<d:f32|f16>.<a:f16>.<b:f16>.<c:f32|f16>", lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")
_form("mma.sync.aligned.<shape:m16n8k8|m16n8k16>.row.col.<d:f32>.<a:bf16>.<b:bf16>.<c:f32>", lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")
_form("mma.sync.aligned.<shape:m16n8k4|m16n8k8>.row.col.<d:f32>.<a:tf32>.<b:tf32>.<c:f32>", lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")
_form("mma.sync.aligned.<shape:m16n8k16|m16n8k32>.row.col[<satfinite:.satfinite>].<d:s32>.<a:s8|u8>.<b:s8|u8>.<c:s32>", lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")
_form("mma.sync.aligned.<shape:m16n8k32>.row.col.<d:f32|f16>.<a:e4m3|e5m2>.<b:e4m3|e5m2>.<c:f32|f16>", lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")
_SPARSE_16 = "mma.sp[<ordered:::ordered_metadata>].sync.aligned.<shape:m16n8k16|m16n8k32>.row.col"
_form(f"{_SPARSE_16}.<d:f32|f16>.<a:f16>.<b:f16>.<c:f32|f16>", lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")
_form(f"{_SPARSE_16}.<d:f32>.<a:bf16>.<b:bf16>.<c:f32>", lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")
_form("mma.sp[<ordered:::ordered_metadata>].sync.aligned.<shape:m16n8k8|m16n8k16>.row.col.<d:f32>.<a:tf32>.<b:tf32>.<c:f32>", lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")
_form("mma.sp[<ordered:::ordered_metadata>].sync.aligned.<shape:m16n8k32|m16n8k64>.row.col[<satfinite:.satfinite>].<d:s32>.<a:s8|u8>.<b:s8|u8>.<c:s32>", lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")

_ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}


def _mma(e: Emitter, i: Instruction, m: Modifiers) -> None:
    sparse = i.opcode.startswith("mma.sp")
    _, columns, k = (int(part) for part in m["shape"].replace("m", "").replace("n", " ").replace("k", " ").split())
    shape = Shape(
        n=columns, k=k, d=m["d"], a=m["a"], b=m["b"], bits=_ELEMENT_BITS[m["a"]], satfinite=bool(m.get("satfinite")), sparse=sparse
    )
    groups = []
    for operand, kind in zip(i.operands[1:4], (m["a"], m["b"], m["c"]), strict=True):
        register = "f32" if kind == "f32" and operand is i.operands[3] else "b32"
        groups.append(_tuple([e.read(item, register, wide=True) for item in _items(e, operand)]))
    extra = ["None", "0"]
    if sparse:
        selector = e.constant_int(i.operands[5])
        extra = [e.read(i.operands[4], "b32", wide=True), str(selector or 0)]
    result = e.fresh(e.call(mma, e.hold(shape), *groups, repr(m["c"]), *extra))
    register = "f32" if m["d"] == "f32" else "b32"
    for position, item in enumerate(_items(e, i.operands[0])):
        e.write(item, register, f"{result}[{position}]")


@cache
def _inverse(rows: int, columns: int, operand: str, m: int, n: int, k: int, bits: int) -> Array:
    """Index into (lane, element) of each place of a matrix."""
    where = {
        "a": lambda: fragments.mma_a(m, k, bits),
        "b": lambda: fragments.mma_b(k, n, bits),
        "c": lambda: fragments.mma_c(m, n),
    }[operand]()
    elements = where[0].shape[1]
    index = np.empty((rows, columns), np.intp)
    index[where[0], where[1]] = np.arange(WARP * elements).reshape(WARP, elements)
    return index


def _elements(registers: tuple[Array, ...], bits: int, n: int) -> Array:
    """(warps, 32 x elements) of registers (each (n,)), elements in register order, low first."""
    stacked = np.empty((n, len(registers)), np.uint32)
    for position, register in enumerate(registers):
        stacked[:, position] = register.view(np.uint32) if register.dtype.itemsize == 4 else register
    return stacked.view(f"u{bits // 8}").reshape(n // WARP, -1)


def mma(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    shape: Shape,
    a: tuple[Array, ...],
    b: tuple[Array, ...],
    c: tuple[Array, ...],
    c_kind: str,
    metadata: Array | None,
    selector: int,
) -> list[Array]:
    """mma.sync of every warp at once. Returns the registers of d."""
    if n % WARP:
        raise team.error(site, "partial warp", f"{n} threads are no whole warps")
    rows, columns, k, bits = 16, shape.n, shape.k, shape.bits
    stored = k // 2 if shape.sparse else k
    warps = n // WARP
    a_bits = _elements(a, bits, n)[:, _inverse(rows, stored, "a", rows, columns, stored, bits)]
    b_bits = _elements(b, bits, n)[:, _inverse(k, columns, "b", rows, columns, k, bits)]
    left, right = decoded(shape.a, a_bits), decoded(shape.b, b_bits)
    if metadata is not None:
        words = metadata.reshape(warps, WARP)
        left = np.stack(
            [
                fragments.sparse_expand(left[w], fragments.sparse_columns(words[w], selector, k, bits), k)
                for w in range(warps)
            ]
        )
    c_index = _inverse(rows, columns, "c", rows, columns, k, bits)
    if c_kind == "f16":
        addend = _elements(c, 16, n)[:, c_index].view(np.float16).astype(np.float32)
    else:
        stacked = np.stack(c, axis=1).view(np.int32 if c_kind == "s32" else np.float32)
        addend = stacked.reshape(warps, -1)[:, c_index]
    result = multiplied(shape, left, right.transpose(0, 2, 1), addend, False) if warps == 1 and False else _batched(shape, left, right, addend)
    where = fragments.mma_c(rows, columns)
    values = result[:, where[0], where[1]].reshape(n, -1)
    if shape.d == "f16":
        halves = np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
        return [halves[:, position] for position in range(halves.shape[1])]
    if shape.d == "s32":
        values = values.view(np.uint32)
    return [values[:, position] for position in range(values.shape[1])]


def _batched(shape: Shape, a: Array, b: Array, c: Array) -> Array:
    product = np.matmul(a, b)
    if shape.d == "s32":
        whole = np.rint(product).astype(np.int64) + c
        return np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32) if shape.satfinite else whole.astype(np.int32)
    product += c
    return product


# -- wmma ---------------------------------------------------------------------------------------------------------------

_WMMA = "m16n16k16|m32n8k16|m8n32k16"
_form(f"wmma.load.<operand:a|b>.sync.aligned.<layout:row|col>.<shape:{_WMMA}>[.<space:global|shared::cta|shared>].<type:f16|bf16>", lambda e, i, m: _wmma_load(e, i, m), "wmma", aligned="warp")
_form(f"wmma.load.<operand:c>.sync.aligned.<layout:row|col>.<shape:{_WMMA}>[.<space:global|shared::cta|shared>].<type:f16|f32>", lambda e, i, m: _wmma_load(e, i, m), "wmma", aligned="warp")
_form(f"wmma.store.<operand:d>.sync.aligned.<layout:row|col>.<shape:{_WMMA}>[.<space:global|shared::cta|shared>].<type:f16|f32>", lambda e, i, m: _wmma_store(e, i, m), "wmma", aligned="warp", destinations=0)
_form(f"wmma.mma.sync.aligned.<al:row|col>.<bl:row|col>.<shape:{_WMMA}>.<d:f16|f32>.<c:f16|f32>", lambda e, i, m: _wmma_mma(e, i, {**m, "a": "f16"}), "wmma", aligned="warp")
_form(f"wmma.mma.sync.aligned.<al:row|col>.<bl:row|col>.<shape:{_WMMA}>.<d:f32>.<a:bf16>.bf16.<c:f32>", lambda e, i, m: _wmma_mma(e, i, m), "wmma", aligned="warp")


def _sizes(shape: str) -> tuple[int, int, int]:
    m, n, k = (int(part) for part in shape[1:].replace("n", " ").replace("k", " ").split())
    return m, n, k


def _wmma_address(e: Emitter, operand: Operand, m: Modifiers) -> tuple[str, str]:
    space = m["space"].split("::")[0]
    if space == "shared":
        return _shared_address(e, operand), "shared"
    return e.address(operand, "u64"), space or "generic"


def _wmma_load(e: Emitter, i: Instruction, m: Modifiers) -> None:
    place, space = _wmma_address(e, i.operands[1], m)
    items = _items(e, i.operands[0])
    stride = e.read(i.operands[2], "u32") if len(i.operands) > 2 else "None"
    arguments = (place, stride, repr(space), repr(m["operand"]), str(_sizes(m["shape"])), repr(m["type"]), repr(m["layout"]))
    result = e.fresh(e.call(wmma_load, *arguments))
    for position, item in enumerate(items):
        e.write(item, "f32" if m["type"] == "f32" else "b32", f"{result}[{position}]")


def _wmma_store(e: Emitter, i: Instruction, m: Modifiers) -> None:
    place, space = _wmma_address(e, i.operands[0], m)
    kind = "f32" if m["type"] == "f32" else "b32"
    values = _tuple([e.read(item, kind, wide=True) for item in _items(e, i.operands[1])])
    stride = e.read(i.operands[2], "u32") if len(i.operands) > 2 else "None"
    e.line(e.call(wmma_store, place, stride, values, repr(space), str(_sizes(m["shape"])), repr(m["type"]), repr(m["layout"])))


def _wmma_places(
    n: int, addresses: Array, strides: Array | None, operand: str, sizes: tuple[int, int, int], size: int, layout: str
) -> Array:
    """Byte address of each element, (n, elements). The stride counts elements between rows (row) or columns (col)."""
    m, columns, k = sizes
    rows_map, columns_map = fragments.wmma_map(operand, m, columns, k, 8 * size)  # type: ignore[arg-type]
    warps = n // WARP
    first = np.broadcast_to(addresses, (n,)).reshape(warps, WARP)[:, :1, None].astype(np.int64)
    extents = {"a": (m, k), "b": (k, columns), "c": (m, columns), "d": (m, columns)}[operand]
    default = extents[1] if layout == "row" else extents[0]
    stride = np.int64(default) if strides is None else np.broadcast_to(strides, (n,)).reshape(warps, WARP)[:, :1, None].astype(np.int64)
    outer, inner = (rows_map, columns_map) if layout == "row" else (columns_map, rows_map)
    return np.asarray(first + (outer * stride + inner) * size).reshape(n, -1)


def wmma_load(
    team: Team, s: Any, n: int, site: Site, addresses: Array, strides: Array | None, space: str, operand: str,
    sizes: tuple[int, int, int], kind: str, layout: str,
) -> list[Array]:  # fmt: skip
    """wmma.load: registers of the emulator's own choice of layout, which PTX leaves open."""
    from tilewright.emulator.isa.memory import LOADS

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
    team: Team, s: Any, n: int, site: Site, addresses: Array, strides: Array | None, values: tuple[Array, ...], space: str,
    sizes: tuple[int, int, int], kind: str, layout: str,
) -> None:  # fmt: skip
    """wmma.store.d."""
    from tilewright.emulator.isa.memory import STORES

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
    for operand, kind in zip(i.operands[1:4], ("b32", "b32", "f32" if m["c"] == "f32" else "b32"), strict=True):
        groups.append(_tuple([e.read(item, kind, wide=True) for item in _items(e, operand)]))
    result = e.fresh(e.call(wmma_mma, *groups, str(_sizes(m["shape"])), repr(m["a"]), repr(m["c"]), repr(m["d"])))
    for position, item in enumerate(_items(e, i.operands[0])):
        e.write(item, "f32" if m["d"] == "f32" else "b32", f"{result}[{position}]")


def wmma_mma(
    team: Team, s: Any, n: int, site: Site, a: tuple[Array, ...], b: tuple[Array, ...], c: tuple[Array, ...],
    sizes: tuple[int, int, int], kind: str, c_kind: str, d_kind: str,
) -> list[Array]:  # fmt: skip
    """wmma.mma."""
    m, columns, k = sizes
    warps = n // WARP

    def matrix(registers: tuple[Array, ...], operand: Any, stored: str, shape: tuple[int, int]) -> Array:
        where = fragments.wmma_map(operand, m, columns, k, 32 if stored == "f32" else 16)
        if stored == "f32":
            values = np.stack(registers, axis=1).reshape(warps, WARP, -1)
        else:
            values = decoded(stored, _elements(registers, 16, n)).reshape(warps, WARP, -1)
        return fragments.scatter(where, values, shape)

    product = np.matmul(matrix(a, "a", kind, (m, k)), matrix(b, "b", kind, (k, columns)))
    product += matrix(c, "c", c_kind, (m, columns))
    values = fragments.gather(fragments.wmma_map("d", m, columns, k, 32), product).reshape(n, -1)
    if d_kind == "f32":
        return [np.ascontiguousarray(values[:, position]) for position in range(values.shape[1])]
    halves = np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
    return [halves[:, position] for position in range(halves.shape[1])]


# -- wgmma --------------------------------------------------------------------------------------------------------------

_N = "|".join(f"m64n{n}" for n in range(256, 0, -8))
_FLAGS: dict[str, Any] = {"aligned": "warpgroup", "updates": True}
_form(f"wgmma.mma_async.sync.aligned.<shape:{_N}>k16.<d:f32|f16>.<a:f16>.<b:f16>", lambda e, i, m: _wgmma(e, i, m, 16), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sync.aligned.<shape:{_N}>k16.<d:f32>.<a:bf16>.<b:bf16>", lambda e, i, m: _wgmma(e, i, m, 16), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sync.aligned.<shape:{_N}>k8.<d:f32>.<a:tf32>.<b:tf32>", lambda e, i, m: _wgmma(e, i, m, 32), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sync.aligned.<shape:{_N}>k32.<d:f32|f16>.<a:e4m3|e5m2>.<b:e4m3|e5m2>", lambda e, i, m: _wgmma(e, i, m, 8), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sync.aligned.<shape:{_N}>k32[<satfinite:.satfinite>].<d:s32>.<a:s8|u8>.<b:s8|u8>", lambda e, i, m: _wgmma(e, i, m, 8), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sync.aligned.<shape:{_N}>k32.<d:s32>.<a:s8|u8>.<b:s8|u8><satfinite:.satfinite>", lambda e, i, m: _wgmma(e, i, m, 8), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k32.<d:f32|f16>.<a:f16>.<b:f16>", lambda e, i, m: _wgmma(e, i, m, 16), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k32.<d:f32>.<a:bf16>.<b:bf16>", lambda e, i, m: _wgmma(e, i, m, 16), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k16.<d:f32>.<a:tf32>.<b:tf32>", lambda e, i, m: _wgmma(e, i, m, 32), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k64.<d:f32|f16>.<a:e4m3|e5m2>.<b:e4m3|e5m2>", lambda e, i, m: _wgmma(e, i, m, 8), "wgmma", **_FLAGS)
_form(f"wgmma.mma_async.sp.sync.aligned.<shape:{_N}>k64[<satfinite:.satfinite>].<d:s32>.<a:s8|u8>.<b:s8|u8>", lambda e, i, m: _wgmma(e, i, m, 8), "wgmma", **_FLAGS)
_form("wgmma.fence.sync.aligned", lambda e, i, m: _wgmma_fence(e), "wgmma", aligned="warpgroup", destinations=0)
_form("wgmma.commit_group.sync.aligned", lambda e, i, m: e.line(e.call(wgmma_commit)), "wgmma", aligned="warpgroup", destinations=0)
_form("wgmma.wait_group.sync.aligned", lambda e, i, m: _wgmma_wait(e, i), "wgmma", aligned="warpgroup", starts=True, destinations=0)


def _wgmma_fence(e: Emitter) -> None:
    e.flush()
    e.line(e.call(wgmma_fence))


def _wgmma_wait(e: Emitter, i: Instruction) -> None:
    pending = e.constant_int(i.operands[0])
    if pending is None or not 0 <= pending <= 7:
        raise e.error("wgmma.wait_group takes a literal from 0 to 7")
    e.reload()
    e.line(f"if {e.call(wgmma_wait, str(pending))}: return PARKED")


def _wgmma(e: Emitter, i: Instruction, m: Modifiers, bits: int) -> None:
    """Operands: d, a, b, [metadata, selector,] scale-d [, negate a, negate b [, transpose a, transpose b]]."""
    sparse = ".sp." in i.opcode
    n = int(m["shape"].partition("n")[2])
    if (m["d"] == "s32" and n not in (8, 24) and n % 16) or n > 256:
        raise e.error(f"n = {n} is no size of an integer wgmma", "unsupported")
    k = 256 // bits * (2 if sparse else 1)
    shape = Shape(n=n, k=k, d=m["d"], a=m["a"], b=m["b"], bits=bits, satfinite=bool(m.get("satfinite")), sparse=sparse)
    d_items = _items(e, i.operands[0])
    count = n // 4 if m["d"] == "f16" else n // 2
    if len(d_items) != count or not all(isinstance(item, Reg) for item in d_items):
        raise e.error(f"d takes {count} registers, {len(d_items)} are given")
    d_registers = tuple(item.index for item in d_items if isinstance(item, Reg))
    from_registers = isinstance(i.operands[1], Vec)
    rest = list(i.operands[3:])
    metadata, selector = "None", 0
    if sparse:
        metadata = e.read(rest.pop(0), "b32", wide=True)
        selector = e.constant_int(rest.pop(0)) or 0
    scale = rest.pop(0)
    scale_d = str(bool(e.constant_int(scale))) if isinstance(scale, Imm) else e.read(scale, "pred")
    literals = [e.constant_int(operand) for operand in rest]
    if None in literals:
        raise e.error("the signs and transposes of wgmma are literals")
    negate = len(literals) >= 2 and (literals[0] == -1) != (literals[1] == -1)
    transposes = literals[2:]
    a_k_major = from_registers or not (transposes and transposes[0])
    b_k_major = not (transposes and transposes[-1])
    if from_registers:
        a_names = [e.read(item, "b32", wide=True) for item in _items(e, i.operands[1])]
        a_registers = tuple(item.index for item in _items(e, i.operands[1]) if isinstance(item, Reg))
        a = _tuple(a_names)
    else:
        a, a_registers = e.read(i.operands[1], "b64", wide=True), ()
    b = e.read(i.operands[2], "b64", wide=True)
    e.flush()
    form = WgmmaForm(shape, d_registers, a_registers, pick(d_registers), negate, a_k_major, b_k_major, selector)
    e.line(e.call(wgmma_issue, e.hold(form), a, b, scale_d, metadata))
    for index in d_registers:
        e.locals.pop(index, None)


class WgmmaForm:
    """What one wgmma instruction says, worked out once."""

    def __init__(
        self, shape: Shape, d: tuple[int, ...], a: tuple[int, ...], picks: Any, negate: bool, a_k_major: bool, b_k_major: bool, selector: int
    ) -> None:
        self.shape = shape
        self.d = d
        self.a = a
        self.pick = picks
        self.negate = negate
        self.a_k_major = a_k_major
        self.b_k_major = b_k_major
        self.selector = selector


def _participant(team: Team, s: Any, n: int, site: Site) -> Participant:
    if s is not None or team.width not in (WARP, 4 * WARP):
        raise team.error(site, "partial warpgroup", f"{n} threads where a whole warpgroup of 128 must take part")
    if team.wgmma is None:
        first = int(team.threads[0])
        table = team.cta.warpgroups
        group = table.setdefault(first // 128, Warpgroup())
        team.wgmma = Participant(group, first % 128 // 2, team.width // 2)
    found: Participant = team.wgmma
    return found


def wgmma_fence(team: Team, s: Any, n: int, site: Site) -> None:
    """Remembers what the registers hold: a wgmma may use them as long as they still do."""
    _participant(team, s, n, site)
    team.fenced = list(team.registers)
    if team.machine.observer is not None:
        team.machine.observer.wgmma_fence(site, team.cta.index, team.threads_of(s))


def _one(team: Team, site: Site, values: Array, name: str) -> int:
    if len(values) > 1 and values.tobytes() != values[:1].tobytes() * len(values):
        raise team.error(site, "wgmma operands differ", f"{name} differs between threads of the warpgroup")
    return int(values[0])


def wgmma_issue(
    team: Team, s: Any, n: int, site: Site, form: WgmmaForm, a: Any, b: Array, scale_d: Any, metadata: Array | None
) -> None:
    """wgmma.mma_async by one vector: a whole warpgroup, or one of its warps."""
    member = _participant(team, s, n, site)
    shape, registers = form.shape, team.registers
    scale = bool(_one(team, site, scale_d, "scale-d")) if isinstance(scale_d, np.ndarray) else bool(scale_d)
    b_descriptor = _one(team, site, b, "the descriptor of B")
    from_registers = isinstance(a, tuple)
    a_descriptor = None if from_registers else _one(team, site, a, "the descriptor of A")
    _check_descriptors(team, site, a_descriptor, b_descriptor)
    _check_fenced(team, site, form, scale)
    tile = _tile(team, site, form, scale, member.num_rows)
    operand = _a_from_registers(a, shape, member.num_rows) if from_registers else None
    group = member.warpgroup
    position = member.issued
    member.issued += 1
    if position == len(group.ops):
        previous = group.ops[-1] if group.ops else None
        work = Wgmma(
            kind="wgmma",
            site=site,
            cta=team.cta.index,
            threads=np.arange(128, dtype=np.int64) + int(team.threads[0]) // 128 * 128,
            number=team.machine.engine.number(),
            shape=shape,
            warpgroup=group,
            base=team.cta.base,
            a_descriptor=a_descriptor,
            b_descriptor=b_descriptor,
            scale_d=scale,
            negate=form.negate,
            a_k_major=form.a_k_major,
            b_k_major=form.b_k_major,
            selector=form.selector,
            previous=previous if previous is not None and previous.state != "done" else None,
        )
        if metadata is not None:
            work.metadata = np.zeros(128, np.uint32)
        group.ops.append(work)
    else:
        work = group.ops[position]
        same = (work.site, work.a_descriptor, work.b_descriptor, work.scale_d) == (site, a_descriptor, b_descriptor, scale)
        if not same:
            raise team.error(site, "wgmma operands differ", f"the warps of the warpgroup disagree: another issued {work.site}")
    if work.metadata is not None and metadata is not None:
        work.metadata[member.first_row * 2 : member.first_row * 2 + n] = metadata
    tile.in_flight += 1
    work.parts[member.first_row] = (tile, operand)
    work.rows_issued += member.num_rows
    member.tiles.append((tile, form, registers_of(team, form)))
    for index, value in zip(form.d, tile.slices, strict=True):
        registers[index] = value
    if work.rows_issued == 64:
        team.machine.engine.issue(work)
        waiters, group.waiters = group.waiters, []
        for fragment in waiters:
            team.machine.wake(fragment)


def registers_of(team: Team, form: WgmmaForm) -> tuple[Any, ...]:
    """What A's registers hold now."""
    return tuple(team.registers[index] for index in form.a)


def _check_descriptors(team: Team, site: Site, a: int | None, b: int) -> None:
    for name, bits in (("A", a), ("B", b)):
        if bits is not None and bits not in _GOOD_DESCRIPTORS:
            found = fragments.descriptor_violations(bits)
            if found:
                raise team.error(site, "wgmma descriptor", f"the descriptor of {name}, {bits:#018x}: {'; '.join(found)}")
            if len(_GOOD_DESCRIPTORS) > 65536:
                _GOOD_DESCRIPTORS.clear()
            _GOOD_DESCRIPTORS.add(bits)


_GOOD_DESCRIPTORS: set[int] = set()


def _check_fenced(team: Team, site: Site, form: WgmmaForm, scale: bool) -> None:
    """Registers must hold what they held at the last wgmma.fence, or accumulators of earlier wgmmas."""
    fenced = team.fenced
    if fenced is None:
        raise team.error(site, "missing wgmma.fence", "no wgmma.fence stands before the first wgmma")
    for index in (*form.d, *form.a):
        value = team.registers[index]
        if value is not fenced[index] and not isinstance(value, InFlight) and (value is not None):
            name = team.machine.kernel.entry.registers[index].name
            raise team.error(
                site, "missing wgmma.fence", f"{name} was written after the last wgmma.fence; a fence must stand between"
            )


def _tile(team: Team, site: Site, form: WgmmaForm, scale: bool, num_rows: int) -> Tile:
    """The accumulators: those in flight already in the same registers, or new ones from the registers' values."""
    shape = form.shape
    held = form.pick(team.registers) if len(form.d) > 1 else (team.registers[form.d[0]],)
    first = held[0]
    if isinstance(first, InFlight) and first.tile.slices == held:
        first.tile.site = site
        found: Tile = first.tile
        return found
    names = team.machine.kernel.entry.registers
    for index, value in zip(form.d, held, strict=True):
        if isinstance(value, InFlight) and value.tile.in_flight:
            message = f"{names[index].name} is an accumulator of {value.tile.site} in another place; wait for it first"
            raise team.error(site, "accumulator in flight", message)
        if scale and value.__class__ is not np.ndarray:
            raise team.error(site, "uninitialised register", f"{names[index].name} is accumulated on but was never written")
    if scale:
        values = tile_from_registers(shape, list(held), num_rows)
    else:
        values = np.zeros((num_rows, shape.n), np.int32 if shape.d == "s32" else np.float32)
    return Tile(values, len(form.d), site)


def _a_from_registers(registers: tuple[Array, ...], shape: Shape, num_rows: int) -> Array:
    """A of one vector, (rows, k) float32."""
    rows, columns = fragments.wgmma_a(shape.bits)
    lanes = num_rows * 2
    stacked = np.stack(registers, axis=1)
    elements = decoded(shape.a, np.ascontiguousarray(stacked).view(f"u{shape.bits // 8}"))
    matrix = np.empty((num_rows, fragments.wgmma_k(shape.bits)), np.float32)
    matrix[rows[:lanes], columns[:lanes]] = elements
    return matrix


def wgmma_commit(team: Team, s: Any, n: int, site: Site) -> None:
    """wgmma.commit_group: everything issued since the last one."""
    member = _participant(team, s, n, site)
    first = member.group_ends[-1] if member.group_ends else 0
    member.group_ends.append(member.issued)
    ops = member.warpgroup.ops[first : member.issued]
    number = len(member.group_ends) - 1
    for op in ops:
        op.group = number
    if team.machine.observer is not None:
        team.machine.observer.commit(site, team.cta.index, team.threads_of(s), "wgmma", number, tuple(ops))


def wgmma_wait(team: Team, s: Any, n: int, site: Site, pending: int) -> bool:
    """wgmma.wait_group. True: parked, since another warp has not issued its part yet."""
    member = _participant(team, s, n, site)
    groups = len(member.group_ends) - pending
    through = member.group_ends[groups - 1] if groups > 0 else 0
    ops = member.warpgroup.ops[member.waited : through]
    machine = team.machine
    for op in ops:
        if not op.can_run():
            parked = team.park(team.current.block, lambda: f"waits for other warps to issue {op.site}")
            member.warpgroup.waiters.append(parked)
            return True
    for position, op in enumerate(ops, start=member.waited):
        machine.engine.finish(op)
        tile, form, a_values = member.tiles[position]
        for index, value in zip(form.a, a_values, strict=True):
            if team.registers[index] is not value:
                name = machine.kernel.entry.registers[index].name
                raise team.error(op.site, "operand overwritten in flight", f"{name} of A was written before wgmma.wait_group at {site}")
        tile.in_flight -= 1
        if tile.in_flight == 0:
            materialise(team, tile, form.shape)
        member.tiles[position] = (None, None, ())
    member.waited = max(member.waited, through)
    if machine.observer is not None:
        machine.observer.wait_group(site, team.cta.index, team.threads_of(s), "wgmma", tuple(ops), False)
    return False


__all__ = ["FORMS", "Name", "numerics"]
