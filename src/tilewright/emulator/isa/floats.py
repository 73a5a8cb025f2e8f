"""Rows of the table for floating-point arithmetic and for conversions between all types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.emulator import arithmetic, integers, numerics
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import TYPE_BYTES, Imm, Instruction, Operand
from tilewright.emulator.values import DTYPES

if TYPE_CHECKING:  # translate imports this module
    from tilewright.emulator.translate import Emitter

FORMS: list[Form] = []

_HALF = "f16x2|bf16x2|f16|bf16"


def _form(pattern: str, emit: Emit, family: str, **flags: Any) -> None:
    FORMS.append(Form(pattern, emit, family, **flags))


# -- conversion ------------------------------------------------------------------------------------------------------

_CVT = "u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f32|f64"
_form(
    f"cvt[.<round:rni|rzi|rmi|rpi|rna|rn|rz|rm|rp>][<ftz:.ftz>][<sat:.sat>].<dst:{_CVT}>.<src:{_CVT}>",
    lambda e, i, m: _cvt(e, i, m),
    "convert",
)
_form(
    "cvt.<round:rn|rz>[<relu:.relu>][<satfinite:.satfinite>].<dst:f16x2|bf16x2>.f32",
    lambda e, i, m: _cvt_pair(e, i, m),
    "convert",
)
_form(
    "cvt.rn.satfinite[<relu:.relu>].<dst:e4m3x2|e5m2x2>.<src:f32|f16x2>", lambda e, i, m: _cvt_fp8(e, i, m), "convert"
)
_form("cvt.rn[<relu:.relu>].f16x2.<src:e4m3x2|e5m2x2>", lambda e, i, m: _cvt_from_fp8(e, i, m), "convert")
_form(
    "cvt.<round:rn|rz>[<relu:.relu>][<satfinite:.satfinite>].<dst:f16|bf16>.<src:f32>",
    lambda e, i, m: _cvt(e, i, m),
    "convert",
)
_form(
    "cvt.<round:rn|rz|rna>[<relu:.relu>][<satfinite:.satfinite>].<dst:tf32>.<src:f32>",
    lambda e, i, m: _cvt(e, i, m),
    "convert",
)


def _value(e: Emitter, operand: Operand, kind: str) -> str:
    """The operand as numbers: 16-bit floats widened to float32."""
    if kind in ("f16", "bf16"):
        return e.fresh(f"{e.hold(numerics.decode)}({kind!r}, {e.read(operand, 'b16', wide=True)})")
    return e.read(operand, kind, wide=True)


def _cvt(e: Emitter, i: Instruction, m: Modifiers) -> None:
    dst, src = m["dst"], m["src"]
    value = _value(e, i.operands[1], src)
    integer = dst[0] in "us" and src[0] in "us"
    if integer and not m.get("sat"):
        if DTYPES[dst] != DTYPES[src]:
            value = f"{value}.astype({DTYPES[dst].kind}{DTYPES[dst].itemsize})"
        _write_wide(e, i.operands[0], dst, value)
        return
    flags = _keywords(m, "sat", "satfinite", "relu", "ftz")
    if dst == "tf32":
        text = f"{e.hold(numerics.encode)}('tf32', {value}, {m['round']!r}{_keywords(m, 'satfinite', 'relu')})"
        e.write(i.operands[0], "b32", text)
        return
    half = dst in ("f16", "bf16")
    function = e.hold(numerics.cvt_bits if half else numerics.cvt)
    _write_wide(
        e, i.operands[0], "b16" if half else dst, f"{function}({dst!r}, {src!r}, {value}, {m['round']!r}{flags})"
    )


def _write_wide(e: Emitter, destination: Operand, kind: str, text: str) -> None:
    """A register wider than the type is filled by the sign or by zeros. Source: PTX ISA, operand size rules of cvt."""
    e.write(destination, kind, text)


def _cvt_pair(e: Emitter, i: Instruction, m: Modifiers) -> None:
    high, low = e.reads(i.operands[1:3], ("f32", "f32"))
    kind = m["dst"].removesuffix("x2")
    if m["round"] == "rn" and not m["relu"] and not m["satfinite"]:
        e.write(i.operands[0], "b32", f"{e.hold(integers.PAIRS[kind])}({high}, {low})")
        return
    flags = "".join(f", {name}=True" for name in ("relu", "satfinite") if m[name])
    text = f"{e.hold(numerics.cvt_packed)}({kind!r}, {high}, {low}, {m['round']!r}{flags})"
    e.write(i.operands[0], "b32", text)


def _cvt_fp8(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind = m["dst"].removesuffix("x2")
    relu = ", relu=True" if m["relu"] else ""
    if m["src"] == "f32":
        high, low = e.reads(i.operands[1:3], ("f32", "f32"))
        text = f"{e.hold(numerics.cvt_packed)}({kind!r}, {high}, {low}, satfinite=True{relu})"
    else:
        halves = f"{e.hold(numerics.unpack)}('f16', {e.read(i.operands[1], 'b32', wide=True)})"
        text = f"{e.hold(numerics.pack_bits)}({e.hold(numerics.encode)}({kind!r}, {halves}, satfinite=True{relu}))"
    e.write(i.operands[0], "b16", text)


def _cvt_from_fp8(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind = m["src"].removesuffix("x2")
    values = f"{e.hold(numerics.unpack)}({kind!r}, {e.read(i.operands[1], 'b16', wide=True)})"
    relu = ", relu=True" if m["relu"] else ""
    e.write(i.operands[0], "b32", f"{e.hold(numerics.pack_bits)}({e.hold(numerics.encode)}('f16', {values}{relu}))")


# -- arithmetic ------------------------------------------------------------------------------------------------------

_form(
    "<op:add|sub|mul>[.<round:rn|rz|rm|rp>][<ftz:.ftz>][<sat:.sat>].<type:f32|f64>",
    lambda e, i, m: _float_binary(e, i, m),
    "float",
)
_form(
    f"<op:add|sub|mul>[.<round:rn>][<ftz:.ftz>][<sat:.sat>].<type:{_HALF}>",
    lambda e, i, m: _half(e, i, m, m["op"], 2),
    "float",
)
_form(
    "<op:fma|mad>.<round:rn|rz|rm|rp>[<ftz:.ftz>][<sat:.sat>].<type:f32|f64>",
    lambda e, i, m: _float_fma(e, i, m),
    "float",
)
_form(
    f"fma.<round:rn>[<ftz:.ftz>][<sat:.sat>][<relu:.relu>].<type:{_HALF}>",
    lambda e, i, m: _half(e, i, m, "fma", 3),
    "float",
)
_form("div.<mode:rn|rz|rm|rp|full|approx>[<ftz:.ftz>].<type:f32|f64>", lambda e, i, m: _float_divide(e, i, m), "float")
_form("<op:rcp|sqrt>.<mode:rn|rz|rm|rp>[<ftz:.ftz>].<type:f32|f64>", lambda e, i, m: _float_root(e, i, m), "float")
_form(
    "<op:ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh>.approx[<ftz:.ftz>].<type:f32>",
    lambda e, i, m: _approximate(e, i, m),
    "float",
)
_form(
    "<op:ex2|tanh>.approx[<ftz:.ftz>].<type:f16x2|bf16x2|f16|bf16>",
    lambda e, i, m: _approximate_half(e, i, m),
    "float",
)
_form(
    "<op:min|max>[<ftz:.ftz>][<nan:.NaN>][<sign:.xorsign.abs>].<type:f32|f64>",
    lambda e, i, m: _extreme(e, i, m),
    "float",
)
_form(
    f"<op:min|max>[<ftz:.ftz>][<nan:.NaN>][<xorsign_abs:.xorsign.abs>].<type:{_HALF}>",
    lambda e, i, m: _half(e, i, m, m["op"], 2),
    "float",
)
_form(f"<op:neg|abs>[<ftz:.ftz>].<type:f32|f64|{_HALF}>", lambda e, i, m: _sign(e, i, m), "float")
_form(
    "copysign.<type:f32|f64>",
    lambda e, i, m: e.write(
        i.operands[0], m["type"], "np.copysign({1}, {0})".format(*e.reads(i.operands[1:3], (m["type"],) * 2))
    ),
    "float",
)
_form(
    "testp.<test:finite|infinite|number|notanumber|normal|subnormal>.<type:f32|f64>",
    lambda e, i, m: e.write(
        i.operands[0],
        "pred",
        f"{e.hold(integers.test_property)}({e.read(i.operands[1], m['type'], wide=True)}, {m['test']!r})",
    ),
    "float",
)


def _keywords(m: Modifiers, *names: str) -> str:
    return "".join(f", {name}=True" for name in names if m.get(name))


def _float_binary(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind = m["type"]
    a, b = e.reads(i.operands[1:3], (kind, kind))
    if kind == "f32" and m["round"] in ("", "rn") and not m["ftz"] and not m["sat"]:
        sign = {"add": "+", "sub": "-", "mul": "*"}[m["op"]]
        e.write(i.operands[0], kind, f"{e.hold(integers.one_nan)}({a} {sign} {b})")
        return
    function = e.hold({"add": arithmetic.add, "sub": arithmetic.sub, "mul": arithmetic.mul}[m["op"]])
    e.write(i.operands[0], kind, f"{function}({kind!r}, {a}, {b}, {m['round'] or 'rn'!r}{_keywords(m, 'ftz', 'sat')})")


def _float_fma(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind = m["type"]
    a, b, c = e.reads(i.operands[1:4], (kind,) * 3)
    if kind == "f32" and m["round"] == "rn" and not m["ftz"] and not m["sat"]:
        e.write(i.operands[0], kind, f"{e.hold(integers.fused_multiply_add)}({a}, {b}, {c})")
        return
    text = f"{e.hold(arithmetic.fma)}({kind!r}, {a}, {b}, {c}, {m['round']!r}{_keywords(m, 'ftz', 'sat')})"
    e.write(i.operands[0], kind, text)


def _half(e: Emitter, i: Instruction, m: Modifiers, op: str, count: int) -> None:
    """f16, bf16 and their pairs: decoded, computed with one rounding, encoded."""
    kind = m["type"].removesuffix("x2")
    pair = m["type"].endswith("x2")
    storage = "b32" if pair else "b16"
    values = e.reads(i.operands[1 : 1 + count], (storage,) * count)
    functions = {"min": arithmetic.minimum, "max": arithmetic.maximum, "fma": arithmetic.fma, "add": arithmetic.add,
                 "sub": arithmetic.sub, "mul": arithmetic.mul}  # fmt: skip
    decode = (
        (lambda v: f"{e.hold(numerics.unpack)}({kind!r}, {v})")
        if pair
        else (lambda v: f"{e.hold(numerics.decode)}({kind!r}, {v})")
    )
    flags = _keywords(m, "ftz", "sat", "relu", "nan", "xorsign_abs")
    result = f"{e.hold(functions[op])}({kind!r}, {', '.join(map(decode, values))}{flags})"
    result = f"{e.hold(numerics.encode)}({kind!r}, {result})"
    e.write(i.operands[0], storage, f"{e.hold(numerics.pack_bits)}({result})" if pair else result)


def _float_divide(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind = m["type"]
    a, b = e.reads(i.operands[1:3], (kind, kind))
    if m["mode"] == "approx":
        text = f"{e.hold(arithmetic.div_approx)}({a}, {b}{_keywords(m, 'ftz')})"
    else:
        mode = "rn" if m["mode"] == "full" else m["mode"]
        text = f"{e.hold(arithmetic.div)}({kind!r}, {a}, {b}, {mode!r}{_keywords(m, 'ftz')})"
    e.write(i.operands[0], kind, text)


def _float_root(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind = m["type"]
    a = e.read(i.operands[1], kind, wide=True)
    arguments = f"{a}, {m['mode']!r}{_keywords(m, 'ftz')}"
    if m["op"] == "rcp":
        text = f"{e.hold(arithmetic.div)}({kind!r}, np.ones_like({a}), {arguments})"
    else:
        text = f"{e.hold(arithmetic.sqrt)}({kind!r}, {arguments})"
    e.write(i.operands[0], kind, text)


def _approximate(e: Emitter, i: Instruction, m: Modifiers) -> None:
    function = getattr(arithmetic, f"{m['op']}_approx")
    a = e.read(i.operands[1], "f32", wide=True)
    e.write(i.operands[0], "f32", f"{e.hold(function)}({a}{_keywords(m, 'ftz')})")


def _approximate_half(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind, pair = m["type"].removesuffix("x2"), m["type"].endswith("x2")
    storage = "b32" if pair else "b16"
    a = e.read(i.operands[1], storage, wide=True)
    values = f"{e.hold(numerics.unpack if pair else numerics.decode)}({kind!r}, {a})"
    function = e.hold(getattr(arithmetic, f"{m['op']}_approx"))
    result = f"{e.hold(numerics.encode)}({kind!r}, {function}({values}{_keywords(m, 'ftz')}, fmt={kind!r}))"
    e.write(i.operands[0], storage, f"{e.hold(numerics.pack_bits)}({result})" if pair else result)


def _extreme(e: Emitter, i: Instruction, m: Modifiers) -> None:
    kind = m["type"]
    values = e.reads(i.operands[1:3], (kind, kind))
    function = e.hold(arithmetic.minimum if m["op"] == "min" else arithmetic.maximum)
    flags = _keywords(m, "ftz", "nan") + (", xorsign_abs=True" if m["sign"] else "")
    e.write(i.operands[0], kind, f"{function}({kind!r}, {', '.join(values)}{flags})")


def _sign(e: Emitter, i: Instruction, m: Modifiers) -> None:
    """neg and abs of a NaN are the one NaN, but for f64, where it stays and becomes quiet (golden vector nan_f64)."""
    kind = m["type"]
    size = TYPE_BYTES[kind]
    top = {"f32": 1 << 31, "f64": 1 << 63, "f16": 1 << 15, "bf16": 1 << 15}.get(kind, 0x80008000)
    a = e.read(i.operands[1], kind, wide=True)
    if m["ftz"]:
        a = e.fresh(_flushed(e, kind, a))
    mask = e.read(Imm(top if m["op"] == "neg" else ~top), f"u{8 * size}")
    bits = e.fresh(f"{a}.view(u{size}) {'^' if m['op'] == 'neg' else '&'} {mask}")
    if kind == "f32":
        e.write(i.operands[0], kind, f"{e.hold(integers.one_nan)}({bits}.view(f4))")
    elif kind == "f64":
        e.write(i.operands[0], kind, f"{e.hold(arithmetic.with_nan_operands)}({bits}.view(f8), {a})")
    else:
        e.write(i.operands[0], f"b{8 * size}", f"{e.hold(integers.one_half_nan)}({bits}, {kind.removesuffix('x2')!r})")


def _flushed(e: Emitter, kind: str, a: str) -> str:
    """The text of a register's value with subnormals as zeros; 16-bit floats stay bits."""
    flush = e.hold(numerics.flush)
    if kind in ("f32", "f64"):
        return f"{flush}({a})"
    fmt = kind.removesuffix("x2")
    decode = e.hold(numerics.unpack if kind != fmt else numerics.decode)
    bits = f"{e.hold(numerics.encode)}({fmt!r}, {flush}({decode}({fmt!r}, {a}), {fmt!r}))"
    return bits if kind == fmt else f"{e.hold(numerics.pack_bits)}({bits})"
