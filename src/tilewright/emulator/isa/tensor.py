"""Rows of the table for matrices in registers: ldmatrix, stmatrix, mma.sync."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import banks, fragments, sums
from tilewright.emulator.events import Site
from tilewright.emulator.isa.memory import tally
from tilewright.emulator.isa.sync import shared_address
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.launch import WARP
from tilewright.emulator.syntax import Instruction, Operand, Vec
from tilewright.emulator.warpgroups import Shape, decoded, has_model

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []


def _form(pattern: str, emit: Emit, family: str, **flags: Any) -> None:
    FORMS.append(Form(pattern, emit, family, **flags))


def items(e: Emitter, operand: Operand, num: int = 0) -> tuple[Operand, ...]:
    """The registers of {...}, or the one register; `num` of them, where it is given."""
    found = operand.items if isinstance(operand, Vec) else (operand,)
    if num and len(found) != num:
        raise e.error(f"{num} registers are needed, {len(found)} are given")
    return found


def tuple_of(names: list[str]) -> str:
    return f"({', '.join(names)},)"


# -- ldmatrix and stmatrix -------------------------------------------------------------------------------------------

_form(
    "ldmatrix.sync.aligned.m8n8.<num:x1|x2|x4>[<trans:.trans>][.<space:shared::cta|shared>].b16",
    lambda e, i, m: _ldmatrix(e, i, m),
    "ldmatrix",
    aligned="warp",
)
_form(
    "stmatrix.sync.aligned.m8n8.<num:x1|x2|x4>[<trans:.trans>][.<space:shared::cta|shared>].b16",
    lambda e, i, m: _stmatrix(e, i, m),
    "ldmatrix",
    aligned="warp",
    destinations=0,
)


def _ldmatrix(e: Emitter, i: Instruction, m: Modifiers) -> None:
    num = int(m["num"][1:])
    given = items(e, i.operands[0], num)
    result = e.fresh(e.call(ldmatrix, shared_address(e, i.operands[1]), str(num), str(bool(m["trans"]))))
    for position, item in enumerate(given):
        e.write(item, "b32", f"{result}[{position}]")


def _stmatrix(e: Emitter, i: Instruction, m: Modifiers) -> None:
    num = int(m["num"][1:])
    given = items(e, i.operands[1], num)
    values = [e.read(item, "b32", wide=True) for item in given]
    place = shared_address(e, i.operands[0])
    e.line(e.call(stmatrix, place, tuple_of(values), str(num), str(bool(m["trans"]))))


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
    return np.asarray(words.transpose(1, 0, 2).reshape(num, n))


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


_form("movmatrix.sync.aligned.m8n8.trans.b16", lambda e, i, m: _movmatrix(e, i), "ldmatrix", aligned="warp")


def _movmatrix(e: Emitter, i: Instruction) -> None:
    e.write(i.operands[0], "b32", e.call(movmatrix, e.read(i.operands[1], "b32", wide=True)))


def movmatrix(team: Team, s: Any, n: int, site: Site, values: Array) -> Array:
    """The 8 x 8 matrix of each warp transposed."""
    if n % WARP:
        raise team.error(site, "partial warp", f"{n} threads are no whole warps")
    matrices = np.ascontiguousarray(np.broadcast_to(values, (n,))).view(np.uint16).reshape(-1, 8, 8)
    return np.ascontiguousarray(matrices.transpose(0, 2, 1)).reshape(-1).view(np.uint32)


# -- mma.sync --------------------------------------------------------------------------------------------------------

_SPARSE_16 = "mma.sp[<ordered:::ordered_metadata>].sync.aligned.<shape:m16n8k16|m16n8k32>.row.col"
_MMA = (
    "mma.sync.aligned.<shape:m16n8k8|m16n8k16>.row.col.<d:f32|f16>.<a:f16>.<b:f16>.<c:f32|f16>",
    "mma.sync.aligned.<shape:m16n8k8|m16n8k16>.row.col.<d:f32>.<a:bf16>.<b:bf16>.<c:f32>",
    "mma.sync.aligned.<shape:m16n8k4|m16n8k8>.row.col.<d:f32>.<a:tf32>.<b:tf32>.<c:f32>",
    "mma.sync.aligned.<shape:m16n8k16|m16n8k32>.row.col[<satfinite:.satfinite>].<d:s32>.<a:s8|u8>.<b:s8|u8>.<c:s32>",
    "mma.sync.aligned.<shape:m16n8k32>.row.col.<d:f32|f16>.<a:e4m3|e5m2>.<b:e4m3|e5m2>.<c:f32|f16>",
    "mma.sync.aligned.<shape:m8n8k16>.row.col[<satfinite:.satfinite>].<d:s32>.<a:s8|u8>.<b:s8|u8>.<c:s32>",
    "mma.sync.aligned.<shape:m8n8k4|m16n8k4|m16n8k8|m16n8k16>.row.col.<d:f64>.<a:f64>.<b:f64>.<c:f64>",
    f"{_SPARSE_16}.<d:f32|f16>.<a:f16>.<b:f16>.<c:f32|f16>",
    f"{_SPARSE_16}.<d:f32>.<a:bf16>.<b:bf16>.<c:f32>",
    "mma.sp[<ordered:::ordered_metadata>].sync.aligned.<shape:m16n8k8|m16n8k16>.row.col.<d:f32>.<a:tf32>.<b:tf32>.<c:f32>",
    "mma.sp[<ordered:::ordered_metadata>].sync.aligned.<shape:m16n8k32|m16n8k64>.row.col[<satfinite:.satfinite>].<d:s32>.<a:s8|u8>.<b:s8|u8>.<c:s32>",
)
for _pattern in _MMA:
    _form(_pattern, lambda e, i, m: _mma(e, i, m), "mma", aligned="warp")  # _mma is defined below
_form(
    "mma.sp[<ordered:::ordered_metadata>].sync.aligned.<shape:m16n8k64>.row.col"
    ".<d:f32|f16>.<a:e4m3|e5m2>.<b:e4m3|e5m2>.<c:f32|f16>",
    lambda e, i, m: _mma(e, i, m),
    "mma",
    aligned="warp",
)

_ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "f64": 64}
_REGISTER = {"f32": "f32", "f64": "f64"}  # of accumulators; of any other type, b32


@cache
def _shape(m: int, n: int, k: int, d: str, a: str, b: str, satfinite: bool, sparse: bool) -> Shape:
    """One value for each kind of product, so that fragments are remembered across instructions."""
    return Shape(m=m, n=n, k=k, d=d, a=a, b=b, bits=_ELEMENT_BITS[a], satfinite=satfinite, sparse=sparse)


def _mma(e: Emitter, i: Instruction, m: Modifiers) -> None:
    sparse = i.opcode.startswith("mma.sp")
    rows, columns, k = (int(part) for part in m["shape"].replace("m", "").replace("n", " ").replace("k", " ").split())
    shape = _shape(rows, columns, k, m["d"], m["a"], m["b"], bool(m.get("satfinite")), sparse)
    groups = []
    stored = k // 2 if sparse else k
    elements = (rows * stored, k * columns, rows * columns)
    for operand, kind, count in zip(i.operands[1:4], (m["a"], m["b"], m["c"]), elements, strict=True):
        register = "f64" if kind == "f64" else "f32" if kind == "f32" and operand is i.operands[3] else "b32"
        given = items(e, operand, _num_registers(count, kind))
        groups.append(tuple_of([e.read(item, register, wide=True) for item in given]))
    extra = ["None", "0"]
    if sparse:
        selector = e.constant_int(i.operands[5])
        extra = [e.read(i.operands[4], "b32", wide=True), str(selector or 0)]
    result = e.fresh(e.call(mma, e.hold(shape), *groups, repr(m["c"]), *extra))
    register = _REGISTER.get(m["d"], "b32")
    for position, item in enumerate(items(e, i.operands[0], _num_registers(rows * columns, m["d"]))):
        e.write(item, register, f"{result}[{position}]")


def _num_registers(elements: int, kind: str) -> int:
    """Registers of a lane for its share of a matrix. Source: PTX ISA, mma: matrix fragments."""
    bits = _ELEMENT_BITS.get(kind, 32)  # f32 and s32 are accumulators alone
    return elements * bits // (WARP * (64 if kind == "f64" else 32))


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


def elements_of(registers: tuple[Array, ...], bits: int, n: int) -> Array:
    """(warps, 32 x elements) of registers (each (n,)), elements in register order, low first."""
    word = np.dtype(np.uint64 if bits == 64 else np.uint32)
    stacked = np.empty((n, len(registers)), word)
    for position, register in enumerate(registers):
        stacked[:, position] = register.view(word)
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
    rows, columns, k, bits = shape.m, shape.n, shape.k, shape.bits
    stored = k // 2 if shape.sparse else k
    warps = n // WARP
    matrices = team.matrices
    left = matrices.get(("a", shape, *map(id, a)))
    if left is None:
        places = _inverse(rows, stored, "a", rows, columns, stored, bits)
        left = matrices.put("a", shape, a, decoded(shape.a, elements_of(a, bits, n)[:, places]))
    right = matrices.get(("b", shape, *map(id, b)))
    if right is None:
        places = _inverse(k, columns, "b", rows, columns, k, bits)
        right = matrices.put("b", shape, b, decoded(shape.b, elements_of(b, bits, n)[:, places]))
    if metadata is not None:
        lanes = metadata.reshape(warps, WARP)
        chosen = [fragments.sparse_columns(lanes[w], selector, k, bits) for w in range(warps)]
        left = np.stack([fragments.sparse_expand(left[w], chosen[w], k) for w in range(warps)])
    addend = matrices.get(("c", shape, *map(id, c)))
    if addend is None:
        places = _inverse(rows, columns, "c", rows, columns, k, bits)
        if c_kind == "f16":
            addend = elements_of(c, 16, n)[:, places].view(np.float16).astype(np.float32)
        else:
            stacked = np.stack(c, axis=1).view({"s32": np.int32, "f32": np.float32, "f64": np.float64}[c_kind])
            addend = stacked.reshape(warps, -1)[:, places]
    result = _batched(shape, left, right, addend, team.machine.exact_sums)
    values = result.reshape(warps, -1)[:, _c_places(rows, columns)].reshape(n, -1)
    if shape.d == "f16":
        halves = np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
        return [halves[:, position] for position in range(halves.shape[1])]
    if shape.d == "s32":
        values = values.view(np.uint32)
    registers = [values[:, position] for position in range(values.shape[1])]
    matrices.put("c", shape, tuple(registers), result)
    return registers


@cache
def _c_places(rows: int, columns: int) -> Array:
    """Index into the flattened matrix of each lane's accumulators, lane after lane."""
    where = fragments.mma_c(rows, columns)
    return np.ascontiguousarray((where[0] * columns + where[1]).reshape(-1))


def _batched(shape: Shape, a: Array, b: Array, c: Array, exact: bool) -> Array:
    if exact and has_model(shape, a, b, c):
        each = zip(a, b, c, strict=True)
        return np.stack(
            [sums.multiply_accumulate(shape.a, left, right, addend, shape.d) for left, right, addend in each]
        )
    product = np.matmul(a, b)
    if shape.d == "s32":
        whole = np.rint(product).astype(np.int64) + c
        whole = np.clip(whole, -(2**31), 2**31 - 1) if shape.satfinite else whole
        return np.asarray(whole.astype(np.int32))
    product += c
    return np.asarray(product)
