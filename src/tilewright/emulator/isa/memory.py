"""Rows of the table for loads and stores of the threads themselves, in every state space."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import banks
from tilewright.emulator.events import Site
from tilewright.emulator.integers import WINDOW_BYTES, WINDOWS
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import TYPE_BYTES, Instruction, Mem, Name, Operand, Vec
from tilewright.emulator.values import DTYPES

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []

SCOPE = "[.<scope:cta|cluster|gpu|sys>]"
_SPACE = "[.<space:param::entry|param|global|shared::cta|shared::cluster|shared|local|const>]"
_HINTS = (
    "[.<l1:L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate>]"
    "[.<hint:L2::cache_hint>][.<prefetch:L2::64B|L2::128B|L2::256B>]"
)
_VECTOR = "[.<vec:v2|v4>]"
_TYPE = "<type:b8|u8|s8|b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64>"


def _form(pattern: str, emit: Emit, family: str = "memory", **flags: Any) -> None:
    FORMS.append(Form(pattern, emit, family, **flags))


def _semantics(m: Modifiers) -> tuple[str, str]:
    """(semantics, scope) as the observer is told."""
    return m["sem"] or "weak", m["scope"] or ("gpu" if m["sem"] in ("relaxed", "acquire", "release") else "")


def vector(e: Emitter, operand: Operand, form: str) -> tuple[Operand, ...]:
    """The registers of {...} for .v2 and .v4, the operand itself for a form without a vector."""
    items = operand.items if isinstance(operand, Vec) else (operand,)
    needed = int(form[1:] or 1) if form else 1
    if len(items) != needed:
        raise e.error(f"{needed} registers are needed, {len(items)} are given")
    return items


# -- emit ------------------------------------------------------------------------------------------------------------


def _load(e: Emitter, i: Instruction, m: Modifiers) -> None:
    destination, address = i.operands[0], i.operands[1]
    kind = m["type"]
    size = TYPE_BYTES[kind]
    items = vector(e, destination, m["vec"])
    space = m["space"].split("::")[0]
    if space == "param":
        for position, item in enumerate(items):
            if not (isinstance(item, Name) and item.name == "_"):
                e.write(item, kind, _parameter(e, address, position * size, kind))
        return
    place = e.address(address, "u32" if space == "shared" else "u64")
    if space == "shared" and _is_64_bit(address):
        place = e.fresh(f"{e.address(address, 'u64')}.astype(u4)")
    semantics, scope = _semantics(m)
    arguments = (place, str(size), str(len(items)), repr(semantics), repr(scope))
    loaded = e.fresh(e.call(LOADS[space or "generic"], *arguments))
    dtype = DTYPES[kind]
    for position, item in enumerate(items):
        if isinstance(item, Name) and item.name == "_":
            continue
        text = f"{loaded}[{position}]" if len(items) > 1 else loaded
        e.write(item, kind, text if dtype.kind == "u" else f"{text}.view({dtype.kind}{size})")


def _is_64_bit(address: Operand) -> bool:
    return isinstance(address, Mem) and getattr(address.base, "type", "")[1:] == "64"


def _parameter(e: Emitter, address: Operand, more: int, kind: str) -> str:
    if isinstance(address, Mem) and isinstance(address.base, Name):
        name = address.base.name
        return f"{e.hold(load_parameter)}(T, n, {e.site}, {name!r}, {address.offset + more}, {kind!r})"
    place = e.address(address, "u64")
    return e.call(load_parameter_at, f"{place} + np.uint64({more})", repr(kind))


def _store(e: Emitter, i: Instruction, m: Modifiers) -> None:
    address, source = i.operands[0], i.operands[1]
    kind = m["type"]
    size = TYPE_BYTES[kind]
    items = vector(e, source, m["vec"])
    space = m["space"].split("::")[0]
    if space in ("param", "const"):
        raise e.error(f"st.{space} is not in the table", "unsupported")
    place = e.address(address, "u32" if space == "shared" else "u64")
    if space == "shared" and _is_64_bit(address):
        place = e.fresh(f"{e.address(address, 'u64')}.astype(u4)")
    values = [e.read(item, f"u{8 * size}" if kind[0] != "f" else kind, wide=True) for item in items]
    values = [value if kind[0] != "f" else f"{value}.view(u{size})" for value in values]
    semantics, scope = _semantics(m)
    given = values[0] if len(values) == 1 else f"({', '.join(values)})"
    arguments = (place, str(size), str(len(items)), given, repr(semantics), repr(scope))
    e.line(e.call(STORES[space or "generic"], *arguments))


_form(
    f"ld[.<sem:weak|volatile|relaxed|acquire>]{SCOPE}{_SPACE}[.nc][.<cop:ca|cg|cs|lu|cv>]{_HINTS}{_VECTOR}.{_TYPE}",
    _load,
)
_form(f"ldu{_SPACE}{_VECTOR}.{_TYPE}", lambda e, i, m: _load(e, i, {**m, "sem": "", "scope": ""}))
_form(
    f"st[.<sem:weak|volatile|relaxed|release>]{SCOPE}{_SPACE}[.<cop:wb|cg|cs|wt>]{_HINTS}{_VECTOR}.{_TYPE}",
    _store,
    destinations=0,
)
_form("prefetch[.<space:global|local>].<level:L1|L2>", lambda e, i, m: None, destinations=0, unread=1)
_form("prefetchu.L1", lambda e, i, m: None, destinations=0, unread=1)
_form("prefetch[.<space:param|const>].tensormap", lambda e, i, m: None, destinations=0, unread=1)
_form("discard.global.L2", lambda e, i, m: None, destinations=0, unread=2)
_form("applypriority.global.L2::evict_normal", lambda e, i, m: None, destinations=0, unread=2)
_form(
    "createpolicy.fractional.<policy:L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged>[.<other:L2::evict_unchanged|L2::evict_first>].b64",
    lambda e, i, m: e.write(i.operands[0], "b64", "np.zeros(n, np.uint64)"),
    unread=1,
)


# -- run time: parameters --------------------------------------------------------------------------------------------


def load_parameter(team: Team, n: int, site: Site, name: str, offset: int, kind: str) -> Array:
    """A value of the parameter block, the same for all threads."""
    machine = team.machine
    if name not in machine.parameter_offsets:
        raise team.error(site, "syntax", f"{name} is no parameter")
    key = (machine.parameter_offsets[name] + offset, kind, team.width)
    found = machine.parameter_cache.get(key)
    if found is None:
        dtype = DTYPES[kind]
        raw = machine.parameters[key[0] : key[0] + dtype.itemsize]
        if raw.size < dtype.itemsize:
            raise team.error(site, "out of bounds", f"parameter bytes {key[0]} .. are past the end of the block")
        found = np.full(team.width, raw.view(dtype)[0], dtype)
        machine.parameter_cache[key] = found
    return found if n == team.width else found[:n]


def load_parameter_at(team: Team, s: Any, n: int, site: Site, offsets: Array, kind: str) -> Array:
    """ld.param through a register."""
    dtype, block = DTYPES[kind], team.machine.parameters
    if int(offsets.max()) + dtype.itemsize > block.size:
        raise team.error(
            site, "out of bounds", f"parameter bytes {int(offsets.max())} .. are past the end of the block", s
        )
    rows = block[offsets.astype(np.int64)[:, None] + np.arange(dtype.itemsize)]
    return np.ascontiguousarray(rows).view(dtype)[:, 0]


# -- run time: shared, global, local, generic ------------------------------------------------------------------------


def report(
    team: Team, s: Any, site: Site, space: str, addresses: Array, size: int, kind: str, semantics: str, scope: str
) -> None:
    observer = team.machine.observer
    if observer is not None:
        where: Any = space
        how: Any = kind
        places = addresses.astype(np.int64)
        observer.access(site, team.cta.index, team.threads_of(s), where, places, size, how, "generic", semantics, scope)


def _count_banks(team: Team, s: Any, site: Site, addresses: Array, size: int, *, is_load: bool = False) -> None:
    table = team.machine.banks
    if table is not None:
        lanes = team.lanes if s is None else team.lanes[s]
        warps = -(-team.width // 32)
        grid = np.zeros(warps * 32, np.int64)
        active = np.zeros(warps * 32, np.bool_)
        grid[lanes], active[lanes] = addresses, True
        rows = active.reshape(warps, 32).any(axis=1)
        count = banks.access(grid.reshape(warps, 32)[rows], size, active.reshape(warps, 32)[rows], is_load=is_load)
        tally(team, site, count)


def tally(team: Team, site: Site, count: Any) -> None:
    """Adds wavefronts to the report's table."""
    table = team.machine.banks
    if table is not None:
        entry = table.setdefault(site, [0, 0])
        entry[0] += count.wavefronts
        entry[1] += count.ideal


def load_shared(
    team: Team, s: Any, n: int, site: Site, addresses: Array, size: int, count: int, semantics: str, scope: str
) -> Any:
    """ld.shared: elements (n,), or a row of them for each of `count`."""
    whole = size * count
    flat = team.flat(site, addresses, whole, s)
    machine = team.machine
    if machine.observer is not None:
        report(team, s, site, "shared", flat, whole, "read", semantics, scope)
    if machine.banks is not None:
        _count_banks(team, s, site, flat, whole, is_load=True)
    machine.moved("shared read", whole * n)
    view = machine.smem.views[size]
    if count == 1:
        return view[flat // size]
    first = flat // size
    return [view[first + position] for position in range(count)]


def store_shared(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    addresses: Array,
    size: int,
    count: int,
    values: Any,
    semantics: str,
    scope: str,
) -> None:
    """st.shared."""
    whole = size * count
    flat = team.flat(site, addresses, whole, s)
    machine = team.machine
    machine.progress_mark = machine.blocks_run
    if machine.observer is not None:
        report(team, s, site, "shared", flat, whole, "write", semantics, scope)
    if machine.banks is not None:
        _count_banks(team, s, site, flat, whole)
    machine.moved("shared written", whole * n)
    view = machine.smem.views[size]
    first = flat // size
    if count == 1:
        view[first] = values
        return
    for position, value in enumerate(values):
        view[first + position] = value


def check_global(team: Team, s: Any, site: Site, addresses: Array, size: int) -> None:
    if size > 1 and int(np.bitwise_or.reduce(addresses)) & (size - 1):
        bad = int(np.argmax((addresses & np.uint64(size - 1)) != 0))
        raise team.misaligned(site, int(addresses[bad]), size, s, bad)


def outside(team: Team, s: Any, site: Site, addresses: Array, position: int, size: int) -> Exception:
    address = int(addresses[position])
    buffer = team.machine.memory.find(address, address + size)
    if buffer is not None:
        return team.error(site, "read-only", f"writes read-only buffer {buffer.name!r}", s, position)
    where = team.machine.memory.explain(address, size)
    return team.error(site, "out of bounds", f"global address {address:#x} with {size} bytes is {where}", s, position)


def load_global(
    team: Team, s: Any, n: int, site: Site, addresses: Array, size: int, count: int, semantics: str, scope: str
) -> Any:
    """ld.global."""
    whole = size * count
    check_global(team, s, site, addresses, whole)
    machine = team.machine
    loaded = machine.memory.load(addresses, whole)
    if isinstance(loaded, int):
        raise outside(team, s, site, addresses, loaded, whole)
    machine.moved("global read", whole * n)
    if semantics != "weak":
        machine.spin()  # it may poll
    if machine.observer is not None:
        report(team, s, site, "global", addresses, whole, "read", semantics, scope)
    if count == 1:
        return loaded
    parts = loaded.view(f"u{size}").reshape(n, count)
    return [np.ascontiguousarray(parts[:, position]) for position in range(count)]


def store_global(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    addresses: Array,
    size: int,
    count: int,
    values: Any,
    semantics: str,
    scope: str,
) -> None:
    """st.global."""
    whole = size * count
    check_global(team, s, site, addresses, whole)
    machine = team.machine
    if count > 1:
        values = np.stack([np.broadcast_to(value, (n,)) for value in values], axis=1)
        values = values.view(f"u{whole}")[:, 0] if whole <= 8 else values.view(np.uint8)
    bad = machine.memory.store(addresses, whole, np.broadcast_to(values, (n,)) if values.ndim == 1 else values)
    if bad is not None:
        raise outside(team, s, site, addresses, bad, whole)
    machine.progress_mark = machine.blocks_run
    machine.moved("global written", whole * n)
    if machine.observer is not None:
        report(team, s, site, "global", addresses, whole, "write", semantics, scope)


def _local_index(team: Team, s: Any, site: Site, addresses: Array, size: int) -> Array:
    total = team.machine.local_bytes
    if team.local is None:
        team.local = np.full(team.width * max(total, 1), 0xFF, np.uint8)
    if int(addresses.max()) + size > total:
        bad = int(np.argmax(addresses))
        raise team.error(site, "out of bounds", f"local address {int(addresses[bad])} of {total} bytes", s, bad)
    lanes = team.lanes if s is None else team.lanes[s]
    first = addresses.astype(np.int64) + lanes * total
    return np.asarray(first[:, None] + np.arange(size))


def load_local(
    team: Team, s: Any, n: int, site: Site, addresses: Array, size: int, count: int, semantics: str, scope: str
) -> Any:
    """ld.local."""
    index = _local_index(team, s, site, addresses, size * count)
    assert team.local is not None
    parts = np.ascontiguousarray(team.local[index]).view(f"u{size}")
    return parts[:, 0] if count == 1 else [np.ascontiguousarray(parts[:, position]) for position in range(count)]


def store_local(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    addresses: Array,
    size: int,
    count: int,
    values: Any,
    semantics: str,
    scope: str,
) -> None:
    """st.local."""
    index = _local_index(team, s, site, addresses, size * count)
    assert team.local is not None
    columns = [values] if count == 1 else values
    rows = np.stack([np.broadcast_to(value, (n,)) for value in columns], axis=1)
    team.local[index] = np.ascontiguousarray(rows).view(np.uint8).reshape(n, size * count)


def _generic(addresses: Array) -> tuple[str, int]:
    """(space, start of its window) of generic addresses, which must all lie in one."""
    low, high = int(addresses.min()), int(addresses.max())
    for space, start in WINDOWS.items():
        if start <= low and high < start + WINDOW_BYTES:
            return space, start
    return "global", 0


def in_space(team: Team, s: Any, site: Site, addresses: Array) -> tuple[str, Array]:
    space, start = _generic(addresses)
    if space == "global":
        return space, addresses
    inside = addresses - np.uint64(start)
    return space, inside.astype(np.uint32) if space == "shared" else inside


def load_generic(
    team: Team, s: Any, n: int, site: Site, addresses: Array, size: int, count: int, semantics: str, scope: str
) -> Any:
    """ld without a space."""
    space, places = in_space(team, s, site, addresses)
    if space == "param":
        rows = team.machine.parameters[places.astype(np.int64)[:, None] + np.arange(size * count)]
        parts = np.ascontiguousarray(rows).view(f"u{size}")
        return parts[:, 0] if count == 1 else [np.ascontiguousarray(parts[:, position]) for position in range(count)]
    return LOADS[space](team, s, n, site, places, size, count, semantics, scope)


def store_generic(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    addresses: Array,
    size: int,
    count: int,
    values: Any,
    semantics: str,
    scope: str,
) -> None:
    """st without a space."""
    space, places = in_space(team, s, site, addresses)
    if space == "param":
        raise team.error(site, "read-only", "parameters may not be written", s, 0)
    STORES[space](team, s, n, site, places, size, count, values, semantics, scope)


LOADS: dict[str, Callable[..., Any]] = {
    "shared": load_shared,
    "global": load_global,
    "const": load_global,
    "local": load_local,
    "generic": load_generic,
}
STORES: dict[str, Callable[..., None]] = {
    "shared": store_shared,
    "global": store_global,
    "local": store_local,
    "generic": store_generic,
}
