"""Rows of the table for arithmetic, logic, comparison, moves: nothing here touches memory or waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import integers, numerics
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import TYPE_BYTES, Imm, Instruction, Name, Operand, Pair, Reg, Vec
from tilewright.emulator.values import DTYPES

if TYPE_CHECKING:  # translate imports this module
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []

_INT = "u16|u32|u64|s16|s32|s64"
_BITS = "b16|b32|b64"
_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _form(pattern: str, emit: Emit, family: str = "integer", **flags: Any) -> None:
    FORMS.append(Form(pattern, emit, family, **flags))


# -- integers --------------------------------------------------------------------------------------------------------


def _unsigned(kind: str) -> str:
    """The type whose NumPy arithmetic wraps the same bits: no view is needed for registers."""
    return kind.replace("s", "u").replace("b", "u") if kind != "pred" else kind


def _binary(template: str, *, unsigned: bool = False) -> Emit:
    def emit(e: Emitter, i: Instruction, m: Modifiers) -> None:
        kind = _unsigned(m["type"]) if unsigned else m["type"]
        a, b = e.reads(i.operands[1:3], (kind, kind))
        e.write(i.operands[0], kind, template.format(a=a, b=b))

    return emit


def _called(function: Any, count: int = 2, *, last: str = "") -> Emit:
    """A function of `integers` on `count` sources of the type; the last one may have a type of its own."""

    def emit(e: Emitter, i: Instruction, m: Modifiers) -> None:
        kinds = (m["type"],) * count if not last else (*(m["type"],) * (count - 1), last)
        values = e.reads(i.operands[1 : 1 + count], kinds)
        e.write(i.operands[0], m["type"], f"{e.hold(function)}({', '.join(values)})")

    return emit


_form(f"add.<type:{_INT}>", _binary("{a} + {b}", unsigned=True))
_form(f"sub.<type:{_INT}>", _binary("{a} - {b}", unsigned=True))
_form("add.sat.<type:s32>", _called(integers.add_saturating))
_form("sub.sat.<type:s32>", _called(integers.subtract_saturating))
_form(f"mul.lo.<type:{_INT}>", _binary("{a} * {b}", unsigned=True))
_form(f"mul.hi.<type:{_INT}>", _called(integers.multiply_high))
_form(f"div.<type:{_INT}>", _called(integers.divide))
_form(f"rem.<type:{_INT}>", _called(integers.remainder))
_form(f"min.<type:{_INT}>", _binary("np.minimum({a}, {b})"))
_form(f"max.<type:{_INT}>", _binary("np.maximum({a}, {b})"))
_form(f"and.<type:{_BITS}|pred>", _binary("{a} & {b}"), "logic")
_form(f"or.<type:{_BITS}|pred>", _binary("{a} | {b}"), "logic")
_form(f"xor.<type:{_BITS}|pred>", _binary("{a} ^ {b}"), "logic")
_form("popc.<type:b32|b64>", lambda e, i, m: _to_u32(e, i, m, "np.bitwise_count({a})"), "logic")
_form("clz.<type:b32|b64>", lambda e, i, m: _to_u32(e, i, m, f"{e.hold(integers.count_leading_zeros)}({{a}})"), "logic")
_form("brev.<type:b32|b64>", _called(integers.reverse_bits, 1), "logic")
_form("lop3.b32", lambda e, i, m: _lop3(e, i), "logic")
_form("sad.<type:u32|s32>", _called(integers.absolute_difference_sum, 3))
_form("dp4a.<a:u32|s32>.<b:u32|s32>", lambda e, i, m: _dot(e, i, m))
_form("dp2a.<half:lo|hi>.<a:u32|s32>.<b:u32|s32>", lambda e, i, m: _dot(e, i, m))


def _unary(template: str, *, unsigned: bool = False) -> Emit:
    def emit(e: Emitter, i: Instruction, m: Modifiers) -> None:
        kind = _unsigned(m["type"]) if unsigned else m["type"]
        a = e.read(i.operands[1], kind, wide=True)
        e.write(i.operands[0], kind, template.format(a=a))

    return emit


_form(f"not.<type:{_BITS}|pred>", _unary("~{a}"), "logic")
_form(f"cnot.<type:{_BITS}>", lambda e, i, m: _cnot(e, i, m), "logic")
_form("neg.<type:s16|s32|s64>", _unary("0 - {a}", unsigned=True))
_form("abs.<type:s16|s32|s64>", _unary("np.abs({a})"))


def _cnot(e: Emitter, i: Instruction, m: Modifiers) -> None:
    a = e.read(i.operands[1], m["type"], wide=True)
    e.write(i.operands[0], m["type"], f"({a} == 0).astype({a}.dtype)")


def _to_u32(e: Emitter, i: Instruction, m: Modifiers, template: str) -> None:
    a = e.read(i.operands[1], m["type"], wide=True)
    e.write(i.operands[0], "u32", f"({template.format(a=a)}).astype(u4)")


def _lop3(e: Emitter, i: Instruction) -> None:
    """Source: PTX ISA, lop3: the table's bit 4a + 2b + c is the result where the three bits are a, b, c."""
    destination, predicate = i.operands[0], None
    if isinstance(destination, Pair):
        raise e.error("lop3 with a predicate is not in the table", "unsupported")
    a, b, c = e.reads(i.operands[1:4], ("b32", "b32", "b32"))
    table = e.constant_int(i.operands[4])
    if table is None or predicate is not None:
        raise e.error("lop3 takes its table as a literal")
    terms = [
        " & ".join(f"{'' if bits & mask else '~'}{name}" for mask, name in ((4, a), (2, b), (1, c)))
        for bits in range(8)
        if table >> bits & 1
    ]
    e.write(i.operands[0], "b32", " | ".join(f"({term})" for term in terms) or f"{a} & 0")


def _dot(e: Emitter, i: Instruction, m: Modifiers) -> None:
    a, b, c = e.reads(i.operands[1:4], (m["a"], m["b"], "s32"))
    dot = {"": integers.dot4, "lo": integers.dot2_low, "hi": integers.dot2_high}[m.get("half", "")]
    e.write(i.operands[0], "s32", f"{e.hold(dot)}({a}, {b}, {c})")


_form("mul.wide.<type:u16|s16|u32|s32>", lambda e, i, m: _wide(e, i, m, False))
_form("mad.wide.<type:u16|s16|u32|s32>", lambda e, i, m: _wide(e, i, m, True))
_form(f"mad.lo.<type:{_INT}>", lambda e, i, m: _mad_low(e, i, m))
_form(f"mad.hi.<type:{_INT}>", lambda e, i, m: _mad_high(e, i, m))


def _wide(e: Emitter, i: Instruction, m: Modifiers, adds: bool) -> None:
    kind = m["type"]
    wider = _WIDER[kind]
    a, b = e.reads(i.operands[1:3], (kind, kind))
    text = f"np.multiply({a}, {b}, dtype={DTYPES[wider].kind}{DTYPES[wider].itemsize})"
    if adds:
        text += f" + {e.read(i.operands[3], wider)}"
    e.write(i.operands[0], wider, text)


def _mad_low(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind = _unsigned(m["type"])
    a, b, c = e.reads(i.operands[1:4], (kind, kind, kind))
    e.write(i.operands[0], kind, f"{a} * {b} + {c}")


def _mad_high(e: Emitter, i: Instruction, m: Modifiers) -> None:
    a, b, c = e.reads(i.operands[1:4], (m["type"],) * 3)
    e.write(i.operands[0], m["type"], f"{e.hold(integers.multiply_high)}({a}, {b}) + {c}")


# -- shifts and fields -----------------------------------------------------------------------------------------------

_form(f"shl.<type:{_BITS}>", lambda e, i, m: _shift(e, i, m["type"], "<<"), "logic")
_form(f"shr.<type:{_BITS}|{_INT}>", lambda e, i, m: _shift(e, i, m["type"], ">>"), "logic")
_form("shf.<side:l|r>.<mode:clamp|wrap>.b32", lambda e, i, m: _funnel(e, i, m), "logic")
_form("bfe.<type:u32|u64|s32|s64>", lambda e, i, m: _field(e, i, m["type"], False), "logic")
_form("bfi.<type:b32|b64>", lambda e, i, m: _field(e, i, m["type"], True), "logic")
_form("bfind[<shift:.shiftamt>].<type:u32|u64|s32|s64>", lambda e, i, m: _find(e, i, m), "logic")
_form("prmt.b32[.<mode:f4e|b4e|rc8|ecl|ecr|rc16>]", lambda e, i, m: _permute(e, i, m), "logic")


_form("bmsk.<mode:clamp|wrap>.b32", lambda e, i, m: _mask(e, i, m), "logic")
_form("szext.<mode:clamp|wrap>.<type:u32|s32>", lambda e, i, m: _extend(e, i, m), "logic")


def _mask(e: Emitter, i: Instruction, m: Modifiers) -> None:
    a, b = e.reads(i.operands[1:3], ("u32", "u32"))
    e.write(i.operands[0], "u32", f"{e.hold(integers.bit_mask)}({a}, {b}, {m['mode'] == 'wrap'})")


def _extend(e: Emitter, i: Instruction, m: Modifiers) -> None:
    a, b = e.reads(i.operands[1:3], (m["type"], "u32"))
    e.write(i.operands[0], m["type"], f"{e.hold(integers.extend)}({a}, {b}, {m['mode'] == 'wrap'})")


def _shift(e: Emitter, i: Instruction, kind: str, sign: str) -> None:
    """Amounts past the width clamp. Source: PTX ISA, shl and shr."""
    width = 8 * TYPE_BYTES[kind]
    amount = e.constant_int(i.operands[2])
    kind = kind.replace("b", "u") if sign == ">>" else _unsigned(kind)
    a = e.read(i.operands[1], kind, wide=isinstance(i.operands[2], Imm))
    if amount is not None and 0 <= amount < width:
        b = e.read(Imm(amount), kind)
        e.write(i.operands[0], kind, f"{a} {sign} {b}")
        return
    b = e.read(i.operands[2], "u32")
    function = integers.shift_left if sign == "<<" else integers.shift_right
    e.write(i.operands[0], kind, f"{e.hold(function)}({a}, {b})")


def _funnel(e: Emitter, i: Instruction, m: Modifiers) -> None:
    a, b, c = e.reads(i.operands[1:4], ("u32", "u32", "u32"))
    call = f"{e.hold(integers.funnel_shift)}({a}, {b}, {c}, {m['side'] == 'l'}, {m['mode'] == 'wrap'})"
    e.write(i.operands[0], "u32", call)


def _field(e: Emitter, i: Instruction, kind: str, inserts: bool) -> None:
    sources = i.operands[1:]
    if inserts:
        a, b, position, length = e.reads(sources, (_unsigned(kind), _unsigned(kind), "u32", "u32"))
        e.write(i.operands[0], _unsigned(kind), f"{e.hold(integers.insert_field)}({a}, {b}, {position}, {length})")
    else:
        a, position, length = e.reads(sources, (kind, "u32", "u32"))
        e.write(i.operands[0], kind, f"{e.hold(integers.extract_field)}({a}, {position}, {length})")


def _find(e: Emitter, i: Instruction, m: Modifiers) -> None:
    a = e.read(i.operands[1], m["type"], wide=True)
    e.write(i.operands[0], "u32", f"{e.hold(integers.find_leading_bit)}({a}, {bool(m['shift'])})")


def _permute(e: Emitter, i: Instruction, m: Modifiers) -> None:
    a, b, c = e.reads(i.operands[1:4], ("u32", "u32", "u32"))
    e.write(i.operands[0], "u32", f"{e.hold(integers.permute_bytes)}({a}, {b}, {c}, {m['mode']!r})")


# -- comparison and selection ----------------------------------------------------------------------------------------

_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
            "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
_UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
_ANY_COMPARE = "|".join([*_UNORDERED, "num", "nan", *_COMPARE])
_ANY_TYPE = f"{_BITS}|{_INT}|f32|f64|f16x2|bf16x2|f16|bf16"

_form(
    f"setp.<cmp:{_ANY_COMPARE}>[.<bool:and|or|xor>][<ftz:.ftz>].<type:{_ANY_TYPE}>",
    lambda e, i, m: _setp(e, i, m),
    "compare",
)
_form(
    f"set.<cmp:{_ANY_COMPARE}>[<ftz:.ftz>].<dst:u32|s32|f32>.<type:{_ANY_TYPE}>",
    lambda e, i, m: _set(e, i, m),
    "compare",
)
_form(f"selp.<type:{_BITS}|{_INT}|f32|f64>", lambda e, i, m: _selp(e, i, m), "compare")
_form("slct.<type:b32|u32|s32|f32|b64|u64|s64>.<by:s32|f32>", lambda e, i, m: _slct(e, i, m), "compare")


def _comparison(e: Emitter, operands: tuple[Operand, ...], m: Modifiers) -> str:
    kind, compare = m["type"], m["cmp"]
    if kind.startswith(("f16", "bf16")):
        if kind.endswith("x2"):
            raise e.error("comparing pairs of halves is not in the table", "unsupported")
        a, b = (e.fresh(f"{e.hold(numerics.decode)}({kind!r}, {v})") for v in e.reads(operands, ("b16", "b16")))
    else:
        a, b = e.reads(operands, (kind, kind))
        if m.get("ftz"):
            a, b = (e.fresh(f"{e.hold(numerics.flush)}({v})") for v in (a, b))
    is_float = "f" in kind
    if compare in ("num", "nan"):
        text = f"(({a} == {a}) & ({b} == {b}))"
        return e.fresh(text if compare == "num" else f"~{text}")
    if compare in _UNORDERED:
        return e.fresh(f"({a} {_UNORDERED[compare]} {b}) | ({a} != {a}) | ({b} != {b})")
    if compare == "ne" and is_float:  # ordered: false where one is NaN
        return e.fresh(f"({a} != {b}) & ({a} == {a}) & ({b} == {b})")
    return e.fresh(f"{a} {_COMPARE[compare]} {b}")


def _setp(e: Emitter, i: Instruction, m: Modifiers) -> None:
    result = _comparison(e, i.operands[1:3], m)
    other = None
    destination = i.operands[0]
    if m["bool"]:
        c = e.read(i.operands[3], "pred")
        sign = {"and": "&", "or": "|", "xor": "^"}[m["bool"]]
        if isinstance(destination, Pair):
            other = e.fresh(f"~{result} {sign} {c}")
        result = e.fresh(f"{result} {sign} {c}")
    if isinstance(destination, Pair):
        e.write(destination.first, "pred", result)
        e.write(destination.second, "pred", other or f"~{result}")
    else:
        e.write(destination, "pred", result)


def _set(e: Emitter, i: Instruction, m: Modifiers) -> None:
    result = _comparison(e, i.operands[1:3], m)
    if m["dst"] == "f32":
        e.write(i.operands[0], "f32", f"{result}.astype(f4)")
    else:
        e.write(i.operands[0], "u32", f"0 - {result}.astype(u4)")


def _selp(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind = _unsigned(m["type"])
    a, b = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
    e.write(i.operands[0], kind, f"where({e.read(i.operands[3], 'pred')}, {a}, {b})")


def _slct(e: Emitter, i: Instruction, m: Modifiers) -> None:
    a, b, c = e.reads(i.operands[1:4], (m["type"], m["type"], m["by"]))
    e.write(i.operands[0], m["type"], f"where({c} >= 0, {a}, {b})")


# -- moves -----------------------------------------------------------------------------------------------------------

_form(
    "mov.<type:pred|b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64|f16|bf16|f16x2|bf16x2>",
    lambda e, i, m: _mov(e, i, m),
    "move",
)
_form(
    "cvta[<to:.to>].<space:global|shared::cta|shared::cluster|shared|local|const|param>.<type:u32|u64>",
    lambda e, i, m: _cvta(e, i, m),
    "move",
)
_form("isspacep.<space:global|shared::cta|shared::cluster|shared|local>", lambda e, i, m: _isspacep(e, i, m), "move")
_form("mapa[.<space:shared::cluster|shared>].<type:u32|u64>", lambda e, i, m: _mapa(e, i, m), "move")
_form("getctarank[.<space:shared::cluster|shared>].<type:u32|u64>", lambda e, i, m: _getctarank(e, i, m), "move")


def _mov(e: Emitter, i: Instruction, m: Modifiers) -> None:
    destination, source = i.operands
    if isinstance(destination, Vec):
        parts = len(destination.items)
        part = f"b{8 * TYPE_BYTES[m['type']] // parts}"
        value = e.read(source, _unsigned(m["type"]), wide=True)
        for position, item in enumerate(destination.items):
            if isinstance(item, Name) and item.name == "_":
                continue
            shifted = f"({value} >> {position * int(part[1:])})" if position else value
            e.write(item, part, f"{shifted}.astype(u{int(part[1:]) // 8})")
        return
    if isinstance(source, Vec):
        parts = len(source.items)
        whole = _unsigned(m["type"])
        bits = 8 * TYPE_BYTES[m["type"]] // parts
        values = e.reads(source.items, (f"u{bits}",) * parts)
        terms = [
            f"({value}.astype(u{TYPE_BYTES[whole]}) << {position * bits})"
            if position
            else f"{value}.astype(u{TYPE_BYTES[whole]})"
            for position, value in enumerate(values)
        ]
        e.write(destination, whole, " | ".join(terms))
        return
    kind = m["type"]
    if isinstance(source, Reg) and isinstance(destination, Reg) and DTYPES[source.type].itemsize == TYPE_BYTES[kind]:
        kind = source.type  # the value travels as it lies: it may be one that must not be looked at
        if kind in ("f16x2", "bf16x2"):
            kind = "b32"
    e.write(destination, kind, e.read(source, kind, wide=True))


def _cvta(e: Emitter, i: Instruction, m: Modifiers) -> None:
    function = e.hold(integers.window)
    space = m["space"].split("::")[0]
    value = e.read(i.operands[1], m["type"], wide=True)
    sign = "-" if m["to"] else "+"
    if space in ("global", "const"):
        e.write(i.operands[0], m["type"], value)
    else:
        e.write(i.operands[0], m["type"], f"{value} {sign} {function}({space!r})")


def _isspacep(e: Emitter, i: Instruction, m: Modifiers) -> None:
    value = e.read(i.operands[1], "u64", wide=True)
    e.write(i.operands[0], "pred", f"{e.hold(integers.is_in_space)}({value}, {m['space'].split('::')[0]!r})")


def _mapa(e: Emitter, i: Instruction, m: Modifiers) -> None:
    address = e.read(i.operands[1], m["type"], wide=True)
    rank = e.read(i.operands[2], "u32")
    e.write(i.operands[0], m["type"], e.call(map_to_cta, address, rank, str(not m["space"])))


def _getctarank(e: Emitter, i: Instruction, m: Modifiers) -> None:
    address = e.read(i.operands[1], m["type"], wide=True)
    e.write(i.operands[0], "u32", e.call(rank_of_address, address))


def map_to_cta(team: Any, s: Any, n: int, site: Any, address: Array, rank: Array, generic: bool) -> Array:
    """The address of the same offset in the CTA of this rank. Source: PTX ISA, mapa."""
    if (rank >= team.cluster_size).any():
        raise team.error(site, "cluster", f"mapa to CTA rank {int(rank.max())} of a cluster of {team.cluster_size}")
    offset = address & address.dtype.type(0xFFFFFF)
    mapped = offset | ((rank.astype(address.dtype) + address.dtype.type(1)) << address.dtype.type(24))
    return np.broadcast_to(mapped + integers.window("shared") if generic else mapped, (n,))


def rank_of_address(team: Any, s: Any, n: int, site: Any, address: Array) -> Array:
    """%cluster_ctarank of the CTA that the address belongs to."""
    high = (address >> address.dtype.type(24)).astype(np.uint32) & np.uint32(0xFF)
    own = team.special_register("%cluster_ctarank", site)
    return np.asarray(np.where(high == 0, own if s is None else own[s], high - np.uint32(1)))
