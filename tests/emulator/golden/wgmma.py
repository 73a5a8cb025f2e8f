"""Golden vectors of wgmma: every operand layout, type, register form, scaling and sparsity.

Shared memory is filled with hashed numbers, so that an element read from anywhere else changes the sums: one vector
fixes a whole layout. All but the `fractions` are integers, exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from golden.vector import Tolerance, Vector, words
from tilewright.emulator.sums import bound

FILLED_BYTES = 32768
# Above sum |a||b| + |c| of every element of the fractions, by the operands' bits (test_sums.py).
MAGNITUDES = {8: 64.0, 16: 32.0, 32: 32.0}
B_START = 16384  # bytes into shared memory

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}
SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}

# The element `i` of shared memory, as unsigned bits.
_INTEGER = {
    "f16": "f16_bits(static_cast<float>(small_integer(i)))",
    "bf16": "bf16_bits(static_cast<float>(small_integer(i)))",
    # The tensor core must drop the low 13 bits.
    "tf32": "__float_as_uint(static_cast<float>(small_integer(i))) | (hashed(i + 7) & 0x1fff)",
    "s8": "hashed(i)",
    "u8": "hashed(i)",
    "e4m3": "e4m3_bits(static_cast<float>(small_integer(i)))",
    "e5m2": "e5m2_bits(static_cast<float>(small_integer(i)))",
}
_UNIFORM = "(static_cast<float>(hashed(i) >> 8) * 0x1p-23f - 1.0f)"  # -1 .. 1
_FRACTION = {
    "f16": f"f16_bits{_UNIFORM}",
    "bf16": f"bf16_bits{_UNIFORM}",
    "tf32": f"__float_as_uint{_UNIFORM}",
    "e4m3": f"e4m3_bits{_UNIFORM}",
    "e5m2": f"e5m2_bits{_UNIFORM}",
}


@dataclass(frozen=True)
class Side:
    """One operand in shared memory. Units: bytes; base_offset in 128-byte lines."""

    swizzle_bytes: int = 128
    leading: int = 16
    stride: int = 1024
    start: int = 0
    base_offset: int = 0
    k_major: bool = True

    def descriptor(self, place: int) -> str:
        fields = (
            (self.leading >> 4) << 16
            | (self.stride >> 4) << 32
            | self.base_offset << 49
            | SWIZZLE_CODES[self.swizzle_bytes] << 62
        )
        return f"({fields:#x}ull | ((shared_address(smem) + {place + self.start}) & 0x3ffff) >> 4)"


K128 = Side()
MN128 = Side(k_major=False, leading=2048, stride=1024)


@dataclass(frozen=True)
class Case:
    """One wgmma. `warps`: how many warps store their accumulators (rows from 0)."""

    a: Side | None = K128  # None: from registers
    b: Side = K128
    types: tuple[str, str] = ("f16", "f16")
    acc: str = "f32"
    n: int = 16
    scale_d: int = 1
    scales: tuple[int, int] = (1, 1)
    warps: int = 4
    fractions: bool = False
    steps: int = 1
    selectors: tuple[int, ...] = field(default=())
    doubt: str = ""

    @property
    def k(self) -> int:
        return 256 // BITS[self.types[0]] * (2 if self.selectors else 1)

    @property
    def registers(self) -> int:
        return self.n // (4 if self.acc == "f16" else 2)


def _instruction(case: Case, selector: int | None) -> str:
    count = case.registers
    kind = "f" if case.acc == "f32" else "r"
    sparse = ".sp" if selector is not None else ""
    outs = "{" + ", ".join(f"%{i}" for i in range(count)) + "}"
    place = count
    if case.a is None:
        a_text = "{" + ", ".join(f"%{place + i}" for i in range(4)) + "}"
        a_inputs = [f'"r"(a[{i}])' for i in range(4)]
    else:
        a_text, a_inputs = f"%{place}", ['"l"(a_descriptor)']
    place += len(a_inputs)
    operands = [outs, a_text, f"%{place}"]
    inputs = [*a_inputs, '"l"(b_descriptor)']
    place += 1
    if selector is not None:
        operands += [f"%{place}", str(selector)]
        inputs.append('"r"(metadata)')
        place += 1
    operands.append("p")
    if case.acc != "s32":
        operands += [str(s) for s in case.scales]
    if BITS[case.types[0]] == 16:
        majors = [case.b] if case.a is None else [case.a, case.b]
        operands += [str(int(not side.k_major)) for side in majors]
    inputs.append('"r"(scale_d)')
    text = (
        f"{{.reg .pred p; setp.ne.b32 p, %{place}, 0; "
        f"wgmma.mma_async{sparse}.sync.aligned.m64n{case.n}k{case.k}.{case.acc}.{case.types[0]}.{case.types[1]} "
        + ", ".join(operands)
        + ";}"
    )
    accumulators = ", ".join(f'"+{kind}"(d[{i}])' for i in range(count))
    return f'asm volatile("{text}" : {accumulators} : {", ".join(inputs)} : "memory");'


def vector(name: str, case: Case) -> Vector:
    bits = BITS[case.types[0]]
    table = _FRACTION if case.fractions else _INTEGER
    number = f"uint{bits}_t"
    cxx = "float" if case.acc == "f32" else "uint32_t"
    start = {
        "f32": "static_cast<float>(small_integer(i))",
        "s32": "static_cast<uint32_t>(small_integer(i))",
        "f16": "f16_bits(small_integer(i)) | f16_bits(small_integer(i + 1)) << 16",
    }[case.acc]
    body = [
        "    extern __shared__ __align__(1024) uint8_t smem[];",
        "    const uint32_t t = threadIdx.x;",
        f"    for (uint32_t i = t; i < {FILLED_BYTES} * 8 / {bits}; i += 128) {{",
        f"        const bool first = i < {B_START} * 8 / {bits};",
        f"        reinterpret_cast<{number}*>(smem)[i] = first ? {table[case.types[0]]} : {table[case.types[1]]};",
        "    }",
        "    fence_proxy_async();",
        "    __syncthreads();",
        "    const uint32_t scale_d = " + str(case.scale_d) + ";",
    ]
    if case.a is None:
        body.append("    uint32_t a[4];")
        body.append("    for (uint32_t j = 0; j < 4; ++j) a[j] = reinterpret_cast<uint32_t*>(smem)[(j * 128 + t) * 3];")
    if case.selectors:
        # Nibbles out of the valid ones; other ones in every lane.
        valid = (
            "0xE4u >> (hashed(t * 8 + j + 9000) % 2 * 4)"
            if bits == 32
            else "0xEDC984u >> (hashed(t * 8 + j + 9000) % 6 * 4)"
        )
        body.append("    uint32_t metadata = 0;")
        body.append(f"    for (uint32_t j = 0; j < 8; ++j) metadata |= (({valid}) & 15) << (4 * j);")
    for place, selector in enumerate(case.selectors or (None,)):
        body.append("    {")
        body.append(f"    {cxx} d[{case.registers}];")
        body.append(f"    for (uint32_t j = 0; j < {case.registers}; ++j) {{")
        body.append(f"        const uint32_t i = {20000 + 5000 * place} + j * 128 + t;")
        body.append(f"        d[j] = {start};")
        body.append("    }")
        body.append('    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");')
        for step in range(case.steps):
            if case.a is not None:
                a = replace(case.a, start=case.a.start + 32 * step).descriptor(0)
                body.append(f"    const uint64_t a_descriptor{step} = {a};")
            b = replace(case.b, start=case.b.start + 32 * step).descriptor(B_START)
            body.append(f"    const uint64_t b_descriptor{step} = {b};")
            text = _instruction(case, selector)
            for side in "ab":
                text = text.replace(f"{side}_descriptor", f"{side}_descriptor{step}")
            body.append("    " + text)
        body.append(
            '    asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");'
        )
        body.append(
            f"    if (t < {32 * case.warps}) for (uint32_t j = 0; j < {case.registers}; ++j) "
            f"reinterpret_cast<{cxx}*>(out)[({place * case.registers} + j) * {32 * case.warps} + t] = d[j];"
        )
        body.append("    }")
    size = case.registers * 32 * case.warps * 4 * (len(case.selectors) or 1)
    tolerances: tuple[Tolerance, ...] = ()
    if case.fractions:
        kind = "absolute16" if case.acc == "f16" else "absolute"
        size_of_one = bound(case.types[0], case.k, MAGNITUDES[bits], steps=case.steps, acc=case.acc)
        tolerances = (Tolerance(0, size // 4, kind, size_of_one),)
    return Vector(
        name=name,
        family="wgmma",
        body="\n".join(body),
        input=words([0] * 16),
        output_bytes=size,
        smem_bytes=FILLED_BYTES,
        tolerances=tolerances,
        doubt=case.doubt,
    )


def _k_major(width: int, rows_apart: int = 1) -> Side:
    if width == 0:  # two core matrices along k, 128 bytes each
        return Side(0, leading=128 * rows_apart, stride=256 * rows_apart)
    return Side(width, stride=8 * width * rows_apart)


def _mn_major(width: int) -> Side:
    if width == 0:
        return Side(0, k_major=False, leading=2048, stride=128)
    return Side(width, k_major=False, leading=16 * width, stride=8 * width)


_BASE = "what the base offset does when the pattern starts off its period"
_META = "which bits of the metadata belong to which row"

CASES: dict[str, Case] = {
    **{f"wgmma_k_major_{w}": Case(a=_k_major(w), b=_k_major(w, 2)) for w in (128, 64, 32, 0)},
    **{f"wgmma_mn_major_{w}": Case(a=_mn_major(w), b=_mn_major(w), n=64, warps=1) for w in (128, 64, 32, 0)},
    **{f"wgmma_mn_major_a_{w}": Case(a=_mn_major(w), b=K128, types=("bf16", "bf16")) for w in (128, 32)},
    "wgmma_mn_major_panels": Case(b=MN128, n=128, warps=1),
    "wgmma_k_step": Case(a=Side(start=32), b=Side(start=96)),
    "wgmma_row_offset": Case(a=Side(start=2 * 1024), b=Side(start=1024), n=24),
    "wgmma_base_offset_3": Case(a=Side(start=3 * 128, base_offset=3), b=K128, doubt=_BASE),
    "wgmma_base_offset_0": Case(a=Side(start=3 * 128), b=K128, doubt=_BASE),
    "wgmma_bf16": Case(types=("bf16", "bf16"), n=8),
    "wgmma_f16_acc16": Case(acc="f16", n=24),
    "wgmma_tf32": Case(types=("tf32", "tf32")),
    "wgmma_tf32_no_swizzle": Case(a=_k_major(0), b=_k_major(0), types=("tf32", "tf32")),
    "wgmma_s8": Case(types=("s8", "s8"), acc="s32"),
    "wgmma_u8_s8": Case(types=("u8", "s8"), acc="s32", n=24),
    "wgmma_e4m3": Case(types=("e4m3", "e4m3")),
    "wgmma_e5m2_e4m3": Case(types=("e5m2", "e4m3")),
    "wgmma_e4m3_acc16": Case(types=("e4m3", "e5m2"), acc="f16"),
    "wgmma_rs_f16": Case(a=None, b=MN128),
    "wgmma_rs_bf16": Case(a=None, b=K128, types=("bf16", "bf16"), n=32, warps=2),
    "wgmma_rs_tf32": Case(a=None, types=("tf32", "tf32")),
    "wgmma_rs_s8": Case(a=None, types=("s8", "s8"), acc="s32"),
    "wgmma_rs_e4m3": Case(a=None, types=("e4m3", "e4m3")),
    "wgmma_scale_d_0": Case(scale_d=0),
    "wgmma_negate_a": Case(scales=(-1, 1)),
    "wgmma_negate_both": Case(scales=(-1, -1), acc="f16"),
    **{
        f"wgmma_fractions_{t}": Case(types=(t, t), fractions=True, steps=4)
        for t in ("f16", "bf16", "tf32", "e4m3", "e5m2")
    },
    "wgmma_fractions_f16_acc16": Case(acc="f16", fractions=True, steps=4),
    "wgmma_sp_f16": Case(b=MN128, selectors=(0, 1), n=8, doubt=_META),
    "wgmma_sp_bf16_k_major": Case(types=("bf16", "bf16"), selectors=(0, 1), n=8, doubt=_META),
    "wgmma_sp_tf32": Case(types=("tf32", "tf32"), selectors=(0, 1), n=8, doubt=_META),
    "wgmma_sp_s8": Case(types=("s8", "s8"), acc="s32", selectors=(0,), n=8, doubt=_META),
    "wgmma_sp_e4m3": Case(types=("e4m3", "e4m3"), selectors=(0,), n=8, doubt=_META),
    "wgmma_sp_e5m2": Case(types=("e5m2", "e4m3"), selectors=(0,), n=8, doubt=_META),
    "wgmma_sp_rs_f16": Case(a=None, selectors=(0, 1), n=8, doubt=_META),
}

VECTORS: list[Vector] = [vector(name, case) for name, case in CASES.items()]
