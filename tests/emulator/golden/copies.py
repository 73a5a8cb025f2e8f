"""Golden vectors of copies: TMA loads, stores and reductions, 1-D bulk copies, cp.async.

Barriers lie behind the box in dynamic shared memory: static variables would move its start off the swizzle's period.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from golden.vector import UNTOUCHED, Map, Vector, random, words

ILLEGAL = "CUDA_ERROR_ILLEGAL_INSTRUCTION"
SIZES = {"u8": 1, "f16": 2, "bf16": 2, "f32": 4, "s32": 4, "u32": 4, "tf32": 4, "f64": 8}
SIZES |= {"f32_ftz": 4, "tf32_ftz": 4}


# Float32 whose low 13 bits are under, at and over half of a tf32 unit, with even and odd units, and the special ones.
TF32_TIES = (
    *(0x3F80_0000 | unit << 13 | low for unit in (0, 1, 0x3FF) for low in (0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF)),
    *(0x0000_0001, 0x0000_1000, 0x0000_1001, 0x807F_F000, 0x807F_FFFF),  # subnormal
    *(0x7F7F_F000, 0xFF7F_FFFF, 0x7F80_0000, 0xFF80_0000),  # round to infinity; infinity
    *(0x7F80_0001, 0x7F80_1000, 0x7FC1_2345, 0xFFFF_FFFF),  # NaN
)


def ties(num_bytes: int) -> NDArray[np.uint8]:
    """TF32_TIES again and again, and between them random bits."""
    found = random("tf32_ties").integers(0, 2**32, num_bytes // 4, np.uint32)
    found[::2] = np.resize(np.array(TF32_TIES, np.uint32), found[::2].size)
    return words(found)


def counting(num_bytes: int) -> NDArray[np.uint8]:
    """16-bit numbers 0x0101, 0x0102, ...: each chunk tells where it comes from, and none is zero."""
    return words((np.arange(num_bytes // 2) + 0x0101).astype(np.uint16))


@dataclass(frozen=True)
class Move:
    """A box between a tensor of `extents` elements with `pitches` bytes and shared memory at `target` bytes."""

    element: str
    extents: tuple[int, ...]
    pitches: tuple[int, ...]
    box: tuple[int, ...]
    at: tuple[int, ...]
    swizzle: int = 0
    target: int = 0
    fill_nan: bool = False

    @property
    def tensor_bytes(self) -> int:
        if not self.pitches:
            return -(-self.extents[0] * SIZES[self.element] // 16) * 16
        return self.pitches[-1] * self.extents[-1]

    @property
    def box_bytes(self) -> int:
        return math.prod(self.box) * SIZES[self.element]

    @property
    def window_bytes(self) -> int:
        """Shared memory that is looked at: the box, rounded up, and what lies round it."""
        rows = self.box_bytes // (self.box[0] * SIZES[self.element])
        last = self.target + max(self.box_bytes + 128, rows * self.swizzle)  # a narrow row takes the swizzle's width
        return -(-last // 1024) * 1024

    def map(self, buffer: str, offset_bytes: int = 0) -> Map:
        return Map(
            buffer=buffer,
            element=self.element,
            extents=self.extents,
            pitches_bytes=self.pitches,
            box=self.box,
            swizzle_bytes=self.swizzle,
            fill_nan=self.fill_nan,
            offset_bytes=offset_bytes,
        )

    def coordinates(self, first: int) -> tuple[str, str]:
        """(the PTX text "{%2, %3}", the C++ inputs)."""
        places = ", ".join(f"%{first + i}" for i in range(len(self.at)))
        return f"{{{places}}}", ", ".join(f'"r"({x})' for x in self.at)


def load(name: str, move: Move, *, given: NDArray[np.uint8] | None = None, error: str = "", doubt: str = "") -> Vector:
    """Shared memory after one load into it; then one word, 1 if the announced bytes completed the barrier."""
    rank, window = len(move.box), move.window_bytes
    text, inputs = move.coordinates(3)
    body = f"""
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint32_t t = threadIdx.x, b = shared_address(smem) + {window};
    for (uint32_t i = t; i < {window}; i += 32) smem[i] = 0xCD;
    if (t == 0) mbarrier_init(b, 1);
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {{
        mbarrier_arrive_expect_tx(b, {move.box_bytes});
        asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {text}], [%2];"
                     ::"r"(shared_address(smem) + {move.target}), "l"(&map0), "r"(b), {inputs} : "memory");
    }}
    const uint32_t done = mbarrier_wait(b, 0);
    for (uint32_t i = t; i < {window}; i += 32) out[i] = smem[i];
    if (t == 0) *reinterpret_cast<uint32_t*>(out + {window}) = done;
"""
    return Vector(
        name=name,
        family="tma",
        body=body,
        input=counting(move.tensor_bytes) if given is None else given,
        output_bytes=window + 16,
        block=32,
        smem_bytes=window + 16,
        maps=(move.map("in"),),
        error=error,
        doubt=doubt,
    )


def store(name: str, move: Move, *, reduce: str = "", error: str = "", doubt: str = "") -> Vector:
    """The output buffer after one box of shared memory was written or added into it. The tensor begins 256 bytes in,
    and what is round it must survive."""
    rank, window = len(move.box), move.window_bytes
    text, inputs = move.coordinates(2)
    instruction = (
        f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{reduce}"
        if reduce
        else (f"cp.async.bulk.tensor.{rank}d.global.shared::cta")
    )
    size = -(-(256 + move.tensor_bytes + 256) // 16) * 16
    numbers = random(name)
    if reduce:
        kind = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32)}.get(
            move.element, np.dtype(np.int32)
        )
        count = window // kind.itemsize
        values = numbers.standard_normal(count) * 8 if kind.kind != "i" else numbers.integers(-(2**31), 2**31, count)
        given = words(values.astype(kind))
        before = values[::-1].astype(kind)
        initial = np.resize(words(before), size)
    else:
        given, initial = counting(window), np.full(size, UNTOUCHED, np.uint8)
    body = f"""
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint32_t t = threadIdx.x;
    for (uint32_t i = t; i < {window}; i += 32) smem[i] = in[i];
    for (uint32_t i = t; i < {size}; i += 32) out[i] = in[{window} + i];
    asm volatile("fence.proxy.async;" ::: "memory");
    __threadfence();
    __syncthreads();
    if (t == 0) {{
        asm volatile("{instruction}.tile.bulk_group [%0, {text}], [%1];"
                     ::"l"(&map0), "r"(shared_address(smem) + {move.target}), {inputs} : "memory");
        bulk_commit_and_wait();
    }}
"""
    return Vector(
        name=name,
        family="tma",
        body=body,
        input=np.concatenate([given, initial]),
        output_bytes=size,
        block=32,
        smem_bytes=window,
        maps=(move.map("out", 256),),
        error=error,
        doubt=doubt,
    )


_ROWS = Move("bf16", (64, 24), (160,), (64, 8), (0, 0), 128)
_NARROW = "rows narrower than the swizzle: dense, or each at the swizzle's width"
_INNER = {0: 64, 32: 16, 64: 32, 128: 64}

LOADS: dict[str, tuple[Move, str]] = {
    **{
        f"tma_load_swizzle_{w}": (Move("bf16", (72, 24), (160,), (_INNER[w], 16), (8, 3), w), "")
        for w in (0, 32, 64, 128)
    },
    **{
        f"tma_load_off_period_{w}": (Move("bf16", (72, 24), (160,), (_INNER[w], 12), (8, 3), w, target=384), "")
        for w in (32, 64, 128)
    },
    "tma_load_narrow_64_in_128": (Move("bf16", (72, 24), (160,), (32, 8), (0, 1), 128), _NARROW),
    "tma_load_narrow_16_in_128": (Move("bf16", (72, 24), (160,), (8, 8), (16, 1), 128), _NARROW),
    "tma_load_narrow_48_in_64": (Move("bf16", (72, 24), (160,), (24, 8), (0, 1), 64), _NARROW),
    "tma_load_before": (Move("bf16", (72, 24), (160,), (64, 8), (-16, -3), 128), ""),
    "tma_load_past": (Move("bf16", (72, 10), (160,), (64, 8), (40, 6), 128), ""),
    "tma_load_ragged": (Move("bf16", (37, 10), (80,), (32, 8), (16, 5), 64), ""),
    "tma_load_outside": (Move("bf16", (72, 10), (160,), (64, 4), (128, 20), 0), ""),
    "tma_load_1d": (Move("f32", (100,), (), (64,), (56,)), ""),
    "tma_load_3d": (Move("f16", (24, 5, 4), (48, 256), (16, 4, 3), (8, -1, 2), 32), ""),
    "tma_load_4d": (Move("f32", (8, 3, 3, 3), (32, 112, 352), (8, 2, 2, 2), (0, 2, 1, -1), 32), ""),
    "tma_load_5d": (Move("u8", (32, 2, 3, 2, 2), (32, 64, 208, 432), (16, 2, 2, 2, 2), (16, 1, -1, 0, 1)), ""),
    "tma_load_u8": (Move("u8", (100, 9), (112,), (64, 8), (48, 2), 64), ""),
    "tma_load_f64": (Move("f64", (9, 9), (80,), (4, 8), (6, 2), 32), ""),
    "tma_load_tf32": (Move("tf32", (20, 9), (80,), (16, 8), (4, 2), 64), "whether a tf32 map rounds what it brings"),
    **{
        f"tma_load_fill_nan_{e}": (Move(e, (22, 6), (96,), (16, 4), (16, 4), 0, fill_nan=True), "the NaN that fills")
        for e in ("f16", "bf16", "f32", "tf32")
    },
    "tma_load_fill_nan_f64": (Move("f64", (11, 6), (96,), (8, 4), (6, 4), 0, fill_nan=True), "the NaN that fills"),
    "tma_load_narrow_32_in_64": (Move("f32", (40, 24), (160,), (8, 12), (8, 1), 64, target=640), _NARROW),
    "tma_load_narrow_3d": (Move("f16", (24, 5, 4), (48, 256), (16, 3, 3), (8, -1, 2), 64), _NARROW),
}
_TIES = Move("tf32", (16, 8), (64,), (16, 8), (0, 0), 64)
STORES: dict[str, tuple[Move, str]] = {
    **{
        f"tma_store_swizzle_{w}": (Move("bf16", (72, 24), (160,), (_INNER[w], 16), (8, 3), w), "")
        for w in (0, 32, 64, 128)
    },
    "tma_store_off_period": (Move("bf16", (72, 24), (160,), (64, 12), (8, 3), 128, target=640), ""),
    "tma_store_narrow_64_in_128": (Move("bf16", (72, 24), (160,), (32, 8), (0, 1), 128), _NARROW),
    "tma_store_ragged": (Move("bf16", (37, 10), (112,), (32, 8), (16, 5), 64), "where an extent inside a chunk clips"),
    "tma_store_ragged_f32": (Move("f32", (13, 6), (64,), (16, 8), (0, 2), 64), "where an extent inside a chunk clips"),
    "tma_store_past": (Move("bf16", (72, 10), (160,), (64, 8), (40, 6), 128), ""),
    "tma_store_narrow_16_in_128": (Move("bf16", (72, 24), (160,), (8, 8), (16, 1), 128), _NARROW),
    "tma_store_narrow_32_in_128": (Move("bf16", (72, 24), (160,), (16, 8), (16, 1), 128, target=384), _NARROW),
    "tma_store_narrow_48_in_64": (Move("bf16", (72, 24), (160,), (24, 8), (0, 1), 64), _NARROW),
    "tma_store_1d": (Move("f32", (100,), (), (64,), (56,)), ""),
    "tma_store_3d": (Move("f16", (24, 5, 4), (48, 256), (16, 4, 3), (8, 3, 2), 32), ""),
}
_BEFORE = "whether a store may start before 0"
BEFORE: dict[str, tuple[Move, str]] = {
    "tma_store_before": (Move("bf16", (72, 10), (160,), (64, 8), (-16, -3), 128), ""),
    "tma_store_before_x": (Move("bf16", (72, 10), (160,), (64, 8), (-64, 3), 128), ""),
    "tma_store_before_x_no_swizzle": (Move("bf16", (72, 10), (160,), (64, 8), (-8, 0), 0), ""),
    "tma_store_before_y": (Move("bf16", (72, 10), (160,), (64, 8), (8, -1), 128), ""),
    "tma_reduce_before_y": (Move("f32", (24, 10), (96,), (16, 8), (8, -5), 64), "add"),
}
REDUCTIONS: dict[str, tuple[Move, str]] = {
    "tma_reduce_add_f32": (Move("f32", (24, 10), (96,), (16, 8), (8, 5), 64), "add"),
    "tma_reduce_add_f16": (Move("f16", (37, 6), (80,), (32, 4), (16, 1), 64), "add"),
    "tma_reduce_add_bf16": (Move("bf16", (40, 6), (80,), (32, 4), (8, 1), 64), "add"),
    "tma_reduce_min_s32": (Move("s32", (24, 10), (96,), (16, 8), (8, 5), 64), "min"),
    "tma_reduce_max_f16": (Move("f16", (40, 6), (80,), (32, 4), (8, 1), 64), "max"),
    "tma_reduce_or_u32": (Move("u32", (22, 6), (96,), (16, 4), (8, 1)), "or"),
    "tma_reduce_inc_u32": (Move("u32", (24, 6), (96,), (16, 4), (8, 1), 64), "inc"),
    "tma_reduce_dec_u32": (Move("u32", (24, 6), (96,), (16, 4), (8, 1), 64), "dec"),
    "tma_reduce_narrow_f16": (Move("f16", (40, 12), (80,), (24, 8), (8, 1), 64), "add"),
}

MULTICAST = """
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint32_t t = threadIdx.x, b = shared_address(smem) + 3072, rank = cluster_rank();
    for (uint32_t i = t; i < 3072; i += 32) smem[i] = 0xCD;
    if (t == 0) {
        mbarrier_init(b, 1);
        mbarrier_arrive_expect_tx(b, rank == 0 ? 1024 + 1024 : 1024);
    }
    fence_proxy_async();
    cluster_sync();
    // Rank 1 sends a box to both; rank 0 one to itself alone, by a mask of one bit.
    if (t == 0) {
        const uint32_t target = shared_address(smem) + (rank == 1 ? 1024 : 2048);
        const uint16_t mask = rank == 1 ? 3 : 1;
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
                     ::"r"(target), "l"(&map0), "r"(b), "r"(0), "r"(rank == 1 ? 5 : 11), "h"(mask) : "memory");
    }
    const uint32_t done = mbarrier_wait(b, 0);
    uint8_t* result = out + blockIdx.x * 3088;
    for (uint32_t i = t; i < 3072; i += 32) result[i] = smem[i];
    if (t == 0) *reinterpret_cast<uint32_t*>(result + 3072) = done;
    cluster_sync();
"""

BULK = """
    __shared__ alignas(128) uint8_t smem[1024];
    __shared__ alignas(8) uint64_t barrier;
    const uint32_t t = threadIdx.x, b = shared_address(&barrier), s = shared_address(smem);
    for (uint32_t i = t; i < 1024; i += 32) smem[i] = 0xCD;
    for (uint32_t i = t; i < 512; i += 32) out[1024 + i] = in[1024 + i];
    if (t == 0) mbarrier_init(b, 1);
    fence_proxy_async();
    __threadfence();
    __syncthreads();
    if (t == 0) {
        mbarrier_arrive_expect_tx(b, 160 + 48);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 160, [%2];"
                     ::"r"(s + 16), "l"(in + 32), "r"(b) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 48, [%2];"
                     ::"r"(s + 512), "l"(in + 304), "r"(b) : "memory");
    }
    const uint32_t done = mbarrier_wait(b, 0);
    if (t == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 640;" ::"l"(out + 16), "r"(s) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 160;"
                     ::"l"(out + 1024), "r"(s + 16) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%0], [%1], 48;"
                     ::"l"(out + 1024 + 256), "r"(s + 512) : "memory");
        bulk_commit_and_wait();
        *reinterpret_cast<uint32_t*>(out + 1536) = done;
    }
"""

CP_ASYNC = """
    __shared__ alignas(128) uint8_t smem[3072];
    const uint32_t t = threadIdx.x, s = shared_address(smem);
    for (uint32_t i = t; i < 3072; i += 32) smem[i] = 0xCD;
    __syncwarp();
    const uint32_t size16 = t % 17, size8 = t % 9, size4 = t % 5;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 ::"r"(s + 16 * t), "l"(in + 16 * (31 - t)) : "memory");
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(s + 512 + 16 * t), "l"(in + 16 * t), "r"(size16) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                 ::"r"(s + 1024 + 16 * t), "l"(in + 16 * t), "r"(16 - size16 % 16) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 ::"r"(s + 1536 + 8 * t), "l"(in + 8 * t), "r"(size8) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 ::"r"(s + 1792 + 4 * t), "l"(in + 4 * t), "r"(size4) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
                 ::"r"(s + 2048 + 8 * t), "l"(in + 8 * t + 256) : "memory");
    asm volatile("{.reg .pred p; setp.eq.u32 p, %2, 0; cp.async.ca.shared.global [%0], [%1], 4, p;}"
                 ::"r"(s + 2304 + 4 * t), "l"(in + 4 * t), "r"(t % 3) : "memory");
    asm volatile("cp.async.commit_group;\\ncp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    for (uint32_t i = t; i < 3072; i += 32) out[i] = smem[i];
"""


def _others() -> list[Vector]:
    rows = Move("bf16", (64, 24), (128,), (64, 8), (0, 0), 128)
    misaligned = Move("bf16", (72, 24), (160,), (64, 8), (1, 0), 128)
    return [
        load("tma_load_misaligned", misaligned, error=ILLEGAL, doubt="the error's name"),
        Vector(
            name="tma_load_multicast",
            family="tma",
            body=MULTICAST,
            input=counting(rows.tensor_bytes),
            output_bytes=2 * 3088,
            grid=2,
            cluster=2,
            block=32,
            smem_bytes=3072 + 16,
            maps=(rows.map("in"),),
        ),
        Vector(name="bulk_1d", family="bulk", body=BULK, input=counting(1536), output_bytes=1552, block=32),
        Vector(name="cp_async", family="bulk", body=CP_ASYNC, input=counting(1024), output_bytes=3072, block=32),
    ]


VECTORS: list[Vector] = [
    *[load(name, move, doubt=doubt) for name, (move, doubt) in LOADS.items()],
    *[store(name, move, doubt=doubt) for name, (move, doubt) in STORES.items()],
    *[store(name, move, reduce=op) for name, (move, op) in REDUCTIONS.items()],
    *[store(name, move, reduce=op, error=ILLEGAL, doubt=_BEFORE) for name, (move, op) in BEFORE.items()],
    *[
        load(
            f"tma_load_rounding_{element}",
            replace(_TIES, element=element),
            given=ties(_TIES.tensor_bytes),
            doubt="how a map rounds and flushes what it brings, and what becomes of NaN",
        )
        for element in ("tf32", "tf32_ftz", "f32_ftz")
    ],
    *_others(),
]
