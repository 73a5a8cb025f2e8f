"""The products that show a config right on a device: edges of tiles, of the pipeline, of the grid, of out's layout.

Knows nothing of how they are run or checked.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tilewright.bench.suite import Shape
from tilewright.config import Config
from tilewright.packing import packed
from tilewright.problem import AMajor, Major, Problem

# One config of each form that the production kernel takes, beside the plain one of Config().
FORMS: dict[str, Config] = {
    "staggered": Config(tile_m=256, tile_n=192, stages=3, store_slots=3, staggered=True, k_back_and_forth=True),
    "tail": Config(tile_m=256, tile_n=192, stages=3, group_m=8, store_slots=3, tail_n=128, k_back_and_forth=True),
    "staggered-tail": Config(tile_m=256, tile_n=128, group_m=8, square=4, tail_n=64, staggered=True),
    "pingpong": Config(tile_m=128, tile_n=192, stages=5, store_slots=1, pingpong=True, k_back_and_forth=True),
    "cluster-2x1": Config(tile_m=128, tile_n=256, cluster_m=2, group_m=8, k_back_and_forth=True),
    "cluster-1x2": Config(tile_m=256, tile_n=128, cluster_n=2, group_m=8, k_back_and_forth=True),
    "swap": Config(tile_m=128, tile_n=64, stages=7, store_slots=1, swap=True),
    "split": Config(tile_m=128, tile_n=128, stages=4, store_slots=1, split_k=4),
    "swap-split": Config(tile_m=64, tile_n=64, consumers=1, stages=8, store_slots=1, swap=True, split_k=2),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run. Units: `out_offset` in elements off out's 16-byte alignment; `num_sms` None is all."""

    problem: Problem
    kind: Literal["normal", "integer"] = "normal"
    out_offset: int = 0
    num_sms: int | None = None

    @property
    def shape(self) -> Shape:
        """(M, N, K)."""
        return (self.problem.m, self.problem.n, self.problem.k)

    def __str__(self) -> str:
        words = [str(self.problem), self.kind]
        if self.problem.out_pitch != self.problem.rows_of("out")[1]:
            words.append(f"pitch {self.problem.out_pitch}")
        if self.out_offset:
            words.append(f"offset {self.out_offset}")
        if self.num_sms is not None:
            words.append(f"{self.num_sms} SMs")
        return ", ".join(words)


def shapes(config: Config) -> tuple[Shape, ...]:
    """At least 40 sizes: a tile, one row or column off it, K around the pipeline's length, few tiles, many tiles."""
    tile_m, tile_n, tile_k = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n, config.tile_k
    ring_k = config.stages * tile_k
    found: list[Shape] = [
        (1, 8, 8),
        (1, 1, 1),
        (2, 4, 3),
        (3, 3, 431),
        (35, 79, 19),
        (64, 64, 64),
        (1, 705, 705),
        (65, 128, 128),
        (64, 129, 128),
        (64, 64, 511),
        (63, 64, 64),
        (256, 128, 16),
    ]
    found += [(128 + rows, 256 + columns, 64) for rows in (-1, 0, 1) for columns in (-1, 0, 1)]
    found += [(tile_m + rows, tile_n + columns, 2 * tile_k) for rows in (-1, 1) for columns in (-1, 1)]
    found += [(tile_m, tile_n, k) for k in (1, 8, tile_k - 1, tile_k, tile_k + 1)]
    found += [(tile_m, tile_n, ring_k + k) for k in (-tile_k, -1, 0, 1, tile_k)]
    found += [
        (3 * tile_m, 5 * tile_n, ring_k + tile_k),  # fewer tiles than SMs
        (11 * tile_m + 1, 13 * tile_n - 1, 3 * tile_k),  # more, in no whole number of waves
        (17 * tile_m - 3, 16 * tile_n + 8, 200),
        (1000, 1000, 1000),
        (512, 50257, 256),
        (64, 2112, 7168),
        (16, 4096, 4096),
        (30000, 64, 64),
        (65536, 128, 128),
        (2048, 2048, 2048),
        (4096, 4096, 4104),
        (256, 256, 65536),
    ]
    return tuple(dict.fromkeys(found))


def cases(config: Config, *, large: bool = True) -> Iterator[Case]:
    """Every run of one config: both dtypes, all layouts, batches, both kinds of out, whole numbers and random ones."""
    for index, (m, n, k) in enumerate(shapes(config)):
        # Rotated, not multiplied out: each shape gets random and exact data, each option meets many shapes.
        dtype = ("bf16", "fp16")[index % 2]
        majors: tuple[Literal["k", "n"], ...] = ("k", "n")
        yield Case(problem=packed(m, n, k, dtype=dtype), kind="integer")
        yield Case(problem=packed(m, n, k, dtype=("fp16", "bf16")[index % 2], b_major="n"))
        yield Case(problem=packed(m, n, k, dtype=dtype, out_dtype="fp32", b_major=majors[index // 2 % 2]))
    middle = (3 * config.tile_m * config.cluster_m + 5, 2 * config.tile_n * config.cluster_n + 24, 5 * config.tile_k)
    for dtype in ("bf16", "fp16"):
        for pitch, offset in ((0, 1), (1, 0), (3, 3), (8, 0), (8, 4), (64, 0)):
            for out_dtype in (dtype, "fp32"):
                yield Case(
                    problem=with_out(packed(*middle, dtype=dtype, out_dtype=out_dtype), pitch, offset),
                    out_offset=offset,
                )
    for num_sms in (config.cluster, max(3, config.cluster + 1)):
        for major in majors:
            yield Case(problem=packed(*middle, b_major=major), kind="integer", num_sms=num_sms)
    yield from layout_cases(config)
    yield from batch_cases(config)
    yield from unaligned_cases(config)
    yield from crossing_cases(config)
    if config.slices > 1:
        yield from sliced_cases(config)
    if large:
        for dtype in ("bf16", "fp16"):
            yield Case(problem=packed(8192, 8192, 8192, dtype=dtype))
        yield Case(problem=packed(8192, 8192, 8192, b_major="n"), kind="integer")
        yield Case(problem=packed(8192, 8192, 8192, a_major="m"))
        yield Case(problem=packed(8192, 8192, 8192, a_major="m", b_major="n"), kind="integer")


def layout_cases(config: Config) -> Iterator[Case]:
    """An m-contiguous a with both majors of b, and out in columns: edges of tiles and of the pipeline, wide pitches."""
    tile_m, tile_n, tile_k = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n, config.tile_k
    sizes = (
        (1, 8, 8),
        (3, 3, 431),
        (64, 64, 511),
        (tile_m, tile_n, tile_k),
        (tile_m - 1, tile_n + 1, tile_k + 1),
        (3 * tile_m + 5, 2 * tile_n + 24, (config.stages + 1) * tile_k - 1),
        (11 * tile_m + 1, 13 * tile_n - 1, 3 * tile_k),
        (1000, 1000, 1000),
    )
    for index, (m, n, k) in enumerate(sizes):
        dtype = ("bf16", "fp16")[index % 2]
        for b_major in ("k", "n"):
            yield Case(problem=packed(m, n, k, dtype=dtype, a_major="m", b_major=b_major), kind="integer")
            yield Case(problem=wide(packed(m, n, k, dtype=dtype, a_major="m", b_major=b_major, out_dtype="fp32")))
            yield Case(problem=packed(m, n, k, dtype=dtype, b_major=b_major, out_major="m"), kind="integer")
            yield Case(problem=wide(packed(m, n, k, dtype=dtype, a_major="m", b_major=b_major, out_major="m")))


def batch_cases(config: Config) -> Iterator[Case]:
    """Batches of one, two and three dimensions in every layout, matrices that several products share, gaps between."""
    tile_m, tile_n, tile_k = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n, config.tile_k
    sizes = ((1, 8, 8), (tile_m + 1, tile_n - 1, tile_k), (64, 72, 3 * tile_k - 8), (2 * tile_m, 2 * tile_n + 8, 200))
    for index, (m, n, k) in enumerate(sizes):
        for a_major, b_major in LAYOUTS:
            dtype = ("bf16", "fp16")[index % 2]
            out_dtype = (dtype, "fp32")[index // 2]
            product = functools.partial(
                packed, m, n, k, dtype=dtype, out_dtype=out_dtype, a_major=a_major, b_major=b_major
            )
            yield Case(problem=product(batch=(5,)), kind="integer")
            yield Case(problem=wide(product(batch=(3, 4))), kind="integer", num_sms=config.cluster)
            yield Case(problem=wide(product(batch=(2, 3, 2))))
            for shared in ("a", "b"):
                yield Case(problem=wide(product(batch=(7,), shared=shared)), kind="integer")
    yield Case(problem=packed(128, 128, 64, batch=(1000,)))
    yield Case(problem=packed(384, 128, 256, batch=(64,)))
    yield Case(problem=packed(4, 8, 64, batch=(3000,)), kind="integer")


def unaligned_cases(config: Config) -> Iterator[Case]:
    """Operands that TMA cannot read where they lie, by pitch, address, or batch; every layout, one of them and both."""
    tile_m, tile_n, tile_k = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n, config.tile_k
    sizes = (
        (1, 1, 1),
        (3, 5, 7),
        (65, 127, 129),
        (tile_m + 1, tile_n - 1, tile_k + 1),
        (3 * tile_m - 1, 2 * tile_n + 1, (config.stages + 1) * tile_k - 1),
        (1023, 1025, 1023),
        (2047, 515, 4097),
    )
    aligned = [(2, 16), (16, 4), (8, 2), (2, 2)]
    for index, (m, n, k) in enumerate(sizes):
        dtype = ("bf16", "fp16")[index % 2]
        for number, (a_major, b_major) in enumerate(LAYOUTS):
            product = functools.partial(packed, m, n, k, dtype=dtype, a_major=a_major, b_major=b_major)
            a_align, b_align = aligned[(index + number) % len(aligned)]
            move = functools.partial(dataclasses.replace, a_align_bytes=a_align, b_align_bytes=b_align)
            yield Case(problem=product(padded=False), kind="integer")
            yield Case(problem=move(product()))
            yield Case(problem=move(product(padded=False, out_major="m")), kind="integer")
            yield Case(problem=product(padded=False, batch=(2, 3), out_dtype="fp32"), kind="integer")
            yield Case(problem=dataclasses.replace(product(batch=(3,)), a_batch=(m * k * 8 + 1,)), kind="integer")
    rows_alike = dataclasses.replace(packed(300, 200, 136), a_pitch=0)
    yield Case(problem=rows_alike, kind="integer")
    yield Case(problem=dataclasses.replace(rows_alike, b_pitch=5), kind="integer")


def crossing_cases(config: Config) -> Iterator[Case]:
    """An out of the 16-bit type that the inputs have not: every layout, out through TMA and by lanes, k of a slice."""
    tile_m, tile_n = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    k = (config.stages + 1) * config.tile_k * config.slices
    for dtype, out_dtype in (("bf16", "fp16"), ("fp16", "bf16")):
        for a_major, b_major in LAYOUTS:
            product = functools.partial(
                packed, dtype=dtype, out_dtype=out_dtype, a_major=a_major, b_major=b_major, k=k, m=2 * tile_m + 5
            )
            yield Case(problem=product(n=2 * tile_n + 24))
            yield Case(problem=wide(product(n=2 * tile_n - 1, batch=() if config.slices > 1 else (2,))), kind="integer")


def sliced_cases(config: Config) -> Iterator[Case]:
    """A k that the config's slices divide, from one step a slice up; every layout and way out, and copied operands."""
    tile_m, tile_n = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    sizes = ((1, 1), (3, 5), (tile_m, tile_n), (tile_m + 1, tile_n - 1), (2 * tile_m - 3, 2 * tile_n + 5), (256, 256))
    parts = (
        8,
        config.tile_k,
        config.tile_k + 8,
        config.stages * config.tile_k,
        (config.stages + 3) * config.tile_k - 8,
    )
    for index, ((m, n), part) in enumerate(itertools.product(sizes, parts)):
        dtype, k = ("bf16", "fp16")[index % 2], part * config.slices
        a_major, b_major = LAYOUTS[index % 4]
        product = functools.partial(packed, m, n, k, dtype=dtype, a_major=a_major, b_major=b_major)
        yield Case(problem=product(), kind="integer")
        yield Case(problem=wide(product(out_major="m")), kind="integer")
        yield Case(problem=wide(product(out_dtype="fp32")))
        yield Case(problem=with_out(product(), 1, 1), out_offset=1, num_sms=config.cluster)
        yield Case(problem=product(padded=False), kind="integer")


LAYOUTS: tuple[tuple[AMajor, Major], ...] = (("k", "k"), ("k", "n"), ("m", "k"), ("m", "n"))


def wide(problem: Problem, out_gap: int = 3) -> Problem:
    """The problem with gaps between its rows and between its matrices, so that no two dimensions are one.

    Units: `out_gap` in elements between rows of out, and between its matrices.
    """
    step = 16 // problem.dtype.size
    a_rows, b_rows, out_rows = (problem.rows_of(name)[0] for name in ("a", "b", "out"))
    a_pitch, b_pitch, out_pitch = problem.a_pitch + step, problem.b_pitch + 2 * step, problem.out_pitch + out_gap

    def gapped(strides: tuple[int, ...], matrix: int, gap: int) -> tuple[int, ...]:
        found: list[int] = []
        for extent, stride in zip(reversed(problem.batch), reversed(strides), strict=True):
            found.append((matrix + gap) * bool(stride))
            matrix = (matrix + gap) * extent
        return tuple(reversed(found))

    return dataclasses.replace(
        problem,
        a_pitch=a_pitch,
        b_pitch=b_pitch,
        out_pitch=out_pitch,
        a_batch=gapped(problem.a_batch, a_rows * a_pitch, step),
        b_batch=gapped(problem.b_batch, b_rows * b_pitch, step),
        out_batch=gapped(problem.out_batch, out_rows * out_pitch, out_gap),
    )


def small_cases(config: Config) -> Iterator[Case]:
    """The few small runs that a sanitizer can finish: one tile, edges, several tiles a CTA, both majors, both outs."""
    tile_m, tile_n = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    out_dtype = None if config.staggered else "fp32"  # which a staggered tile cannot be stored as
    more = (config.split_k - 1) * config.tile_k  # so that every CTA of a split has some of k
    for m, n, k in ((64, 64, 72), (tile_m + 1, tile_n + 8, 3 * config.tile_k), (tile_m, tile_n - 1, 100)):
        k += more
        yield Case(problem=packed(m, n, k), kind="integer")
        yield Case(problem=packed(m, n, k, b_major="n", out_dtype=out_dtype), kind="integer")
    for a_major, b_major in LAYOUTS:
        k = 2 * config.tile_k + 8 + more
        problem = packed(tile_m + 1, tile_n + 8, k, a_major=a_major, b_major=b_major, batch=(2, 2))
        yield Case(problem=wide(problem), kind="integer", num_sms=max(2, config.cluster))
        problem = packed(tile_m, tile_n, 100 + more, a_major=a_major, b_major=b_major, batch=(3,))
        yield Case(problem=problem, kind="integer")
    yield Case(
        problem=packed(3 * tile_m, 2 * tile_n, (config.stages + 1) * config.tile_k + more),
        kind="integer",
        num_sms=max(2, config.cluster),
    )


def with_out(problem: Problem, pad: int, offset: int) -> Problem:
    """The problem with `pad` elements between the rows of out, and out `offset` elements off its alignment."""
    size = problem.out_dtype.size
    misaligned = offset * size % 16
    align = (misaligned & -misaligned) if misaligned else 16
    return dataclasses.replace(problem, out_pitch=problem.n + pad, out_align_bytes=align)
