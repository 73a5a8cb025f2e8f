"""What is swept: for each question of the ladder, the variants of one kernel that answer it.

Knows kernels and configs alone; sweep_rows.py times the variants, counters.py counts what they move, sweep_report.py
makes tables, plots and statements of the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.backends.base import Backend, MapArgument
from tilewright.bench.suite import problem_columns
from tilewright.calls import Ledger
from tilewright.config import Config
from tilewright.device import Device
from tilewright.dtypes import FP16
from tilewright.errors import UnsupportedError
from tilewright.jit.source import Source
from tilewright.kernels import product
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.catalog import family
from tilewright.kernels.family import group_rows
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.ladder import RUNGS, Rung
from tilewright.kernels.render import render
from tilewright.packing import packed
from tilewright.plan import Plan
from tilewright.problem import Problem
from tilewright.tiling import WARP_THREADS

Row = dict[str, Any]

PROBLEM = packed(8192, 8192, 8192)  # what a sweep multiplies that has no problem of its own: bf16, TN
CUBLAS = "cublas"  # the variant that every sweep is timed beside

Counters = Literal["traffic", "banks", "utilisation"]

# The tiles whose order is swept: the one that the model takes at 8192^3, and the ladder's.
_TALL = Config(tile_m=256, tile_n=200, stages=3, group_m=8, store_slots=1, staggered=True, k_back_and_forth=True)
_WIDE = Config(tile_m=128, tile_n=256, stages=4, group_m=16, k_back_and_forth=True)
_GROUPS = (4, 8, 11, 12, 16, 32)
# A group as high as a divisor of the 132 tiles in flight is walked patch after patch, column by column in each.
_PATCHES = {("128x256", 12): ", patches of 12 x 11", ("256x200", 11): ", patches of 11 x 12"}

# Beside the production space: the widest tile that compiles clean with 256 rows, and the next step below 192 columns.
_MORE_TILES = (
    Config(tile_m=256, tile_n=208, stages=3, staggered=True, k_back_and_forth=True),
    Config(tile_m=256, tile_n=160, stages=4, store_slots=1, staggered=True, k_back_and_forth=True),
    Config(tile_m=256, tile_n=192, stages=3, store_slots=3, k_back_and_forth=True),
)
# tile_m, tile_n, warps_m, warps_n, CTAs an SM of the register sweep.
_BUDGETS = (
    (128, 256, 2, 4, 1),
    (128, 128, 2, 2, 2),
    (128, 128, 2, 4, 1),
    (128, 128, 4, 4, 1),
    (64, 128, 2, 4, 2),
    (64, 64, 2, 2, 4),
    (64, 64, 2, 4, 3),
)
# tile_m, tile_n, tile_k, stages, warps_m, warps_n: what fits an H200, and of it what fits the others.
_AMPERE_TILES = (
    (128, 256, 32, 3, 2, 4),
    (128, 256, 32, 4, 2, 4),
    (128, 256, 32, 6, 2, 4),
    (128, 256, 64, 3, 2, 4),
    (128, 256, 64, 4, 2, 4),
    (256, 128, 32, 4, 4, 2),
    (256, 128, 64, 4, 4, 2),
    (128, 128, 32, 4, 2, 2),
    (128, 128, 64, 3, 2, 2),
    (128, 128, 64, 3, 2, 4),
    (256, 64, 64, 4, 4, 1),
)
# Products of few tiles of 128 x 256, 8 and 2, and the slices of k that are tried; the last fill 128 of 132 SMs.
_FEW_TILES = (
    (packed(512, 512, 16384), (1, 2, 4, 8, 16)),
    (packed(256, 256, 65536), (1, 2, 4, 8, 16, 32, 64)),
)
_NARROWEST = 128  # columns of the production tiles that are swept: narrower ones are for other shapes


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One point of a sweep: a kernel family with a config. `l2_promotion_bytes` replaces that of every tensor map."""

    name: str
    family: str
    config: Config
    l2_promotion_bytes: int | None = None

    def violations(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """Every reason why it cannot run the problem on the device."""
        return self.config.violations(problem, device)

    def source(self, problem: Problem, device: Device) -> Source:
        """What its kernel is compiled from."""
        return render(family(self.family), problem, self.config, device)

    def sources(self, problem: Problem, device: Device) -> tuple[Source, ...]:
        """What all that it launches is compiled from: the kernel that adds slices up too."""
        return product.sources(family(self.family), problem, self.config, device)

    def plan(self, problem: Problem, device: Device, backend: Callable[[], Backend]) -> Plan:
        """The plan of the problem with it. Raises: ConfigError: it cannot run that."""
        found = Plan(
            problem,
            device,
            family(self.family),
            self.config,
            why=self.name,
            num_sms=None,
            backend=backend,
            ledger=Ledger(),
        )
        if self.l2_promotion_bytes is not None:
            found.arguments = tuple(
                dataclasses.replace(
                    each,
                    tensor_map=dataclasses.replace(each.tensor_map, l2_promotion_bytes=self.l2_promotion_bytes),
                )
                if isinstance(each, MapArgument)
                else each
                for each in found.arguments
            )
        return found


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One question and the variants that answer it, all of one problem. `counters`: what ncu is asked about them; None:
    nothing."""

    name: str
    question: str
    variants: tuple[Variant, ...]
    counters: Counters | None = None
    problem: Problem = PROBLEM

    @property
    def exact_problem(self) -> Problem:
        """The problem with the shortest sums that a variant has: whole numbers that are exact in them are in all."""
        is_short = any(getattr(variant.config, "f16_sums", False) for variant in self.variants)
        return dataclasses.replace(self.problem, sums=FP16) if is_short else self.problem

    def without(self, names: Iterable[str]) -> Sweep:
        """The sweep but for these variants."""
        left_out = frozenset(names)
        return dataclasses.replace(self, variants=tuple(v for v in self.variants if v.name not in left_out))


def sweeps(device: Device) -> tuple[Sweep, ...]:
    """Every sweep of Hopper's kernels, the most important first."""
    return (
        Sweep(
            name="order",
            question="In which order should the tiles be computed?",
            variants=tuple(_order()),
            counters="traffic",
        ),
        Sweep(
            name="cluster",
            question="Should two CTAs share a tile by multicast, and of which operand?",
            variants=tuple(_clusters(device)),
            counters="traffic",
        ),
        Sweep(
            name="swizzle",
            question="How wide should the swizzled panels be?",
            variants=tuple(_of_rung("v03", "panel_bytes", (16, 32, 64, 128), "{} bytes")),
            counters="banks",
        ),
        Sweep(
            name="stages",
            question="How many slots should the FIFO have (QSIZE)?",
            variants=tuple(_stages()),
        ),
        Sweep(
            name="tile",
            question="Which tile, and which way of sharing it out?",
            variants=tuple(_tiles(device)),
            counters="traffic",
        ),
        Sweep(
            name="registers",
            question="How many registers should the producer keep?",
            variants=tuple(_of_rung("v05", "producer_registers", (24, 32, 40, 56), "{} registers")),
        ),
        Sweep(
            name="box",
            question="How many rows should one TMA box have?",
            variants=tuple(_of_rung("v03", "box_rows", (16, 32, 64, 128), "{} rows")),
        ),
        Sweep(
            name="promotion",
            question="How many bytes should the L2 fetch where TMA asks for fewer?",
            variants=tuple(_promotions()),
        ),
    )


def ampere_sweeps() -> tuple[Sweep, ...]:
    """Every sweep of the Ampere ladder, the most important first: what the rungs' own configs were chosen from."""
    return (
        Sweep(
            name="ampere-distance",
            question="How many k tiles should copies run ahead (prefetch distance)?",
            variants=tuple(_distances()),
            counters="utilisation",
        ),
        Sweep(
            name="ampere-banks",
            question="What do bank conflicts cost: rows as they are, padded, swizzled?",
            variants=tuple(_paddings()),
            counters="utilisation",
        ),
        Sweep(
            name="ampere-registers",
            question="How many registers should a thread have, and so how many warps an SM?",
            variants=tuple(_budgets()),
            counters="utilisation",
        ),
        Sweep(
            name="ampere-tile",
            question="Which tile, how deep, and which ring?",
            variants=tuple(_ampere_tiles()),
            counters="utilisation",
        ),
        Sweep(
            name="ampere-matrices",
            question="How many matrices should one ldmatrix bring?",
            variants=tuple(_of_rung("a4", "matrices", (1, 2, 4), "ldmatrix.x{}")),
            counters="banks",
        ),
        Sweep(
            name="ampere-order",
            question="In which order should the tiles be computed?",
            variants=tuple(_of_rung("a9", "group_m", (1, 2, 4, 8, 11, 16, 64), "groups of {}")),
            counters="traffic",
        ),
    )


def ampere_size_sweeps() -> tuple[Sweep, ...]:
    """Sweeps of the Ampere ladder at sizes of their own: what a8 is for, few tiles with a long k, and sums of fp16."""
    sliced = "How many slices should k be cut into where tiles are few?"
    summed = "What do sums in f16 gain over sums in f32 where mma.sync is as fast with both?"
    return (
        *(
            Sweep(name=f"ampere-slices-{problem.m}", question=sliced, variants=tuple(_slices(counts)), problem=problem)
            for problem, counts in _FEW_TILES
        ),
        *(
            Sweep(
                name=f"ampere-sums-{edge}",
                question=summed,
                variants=tuple(_sums()),
                counters="utilisation",
                problem=packed(edge, edge, edge, dtype="fp16"),
            )
            for edge in (4096, 8192)
        ),
    )


def sweep(name: str, device: Device) -> Sweep:
    """The sweep of that name. Raises: UnsupportedError: there is none."""
    found = {each.name: each for each in (*sweeps(device), *ampere_sweeps(), *ampere_size_sweeps())}
    if name not in found:
        raise UnsupportedError(asked=f"sweep {name!r}", rule=f"sweeps are {', '.join(found)}", works="name one of them")
    return found[name]


def sources(chosen: Iterable[Sweep], device: Device) -> list[Source]:
    """Every distinct unit of the sweeps, for a machine whose compiler is another or none."""
    found = (
        source
        for each in chosen
        for variant in each.variants
        if not variant.violations(each.problem, device)
        for source in variant.sources(each.problem, device)
    )
    return list({source.digest(""): source for source in found}.values())


def described(sweep: Sweep, variant: Variant) -> Row:
    """The columns that say which variant a row is of."""
    return {
        "sweep": sweep.name,
        "variant": variant.name,
        "family": variant.family,
        "config": str(variant.config),
        "words": list(variant.config.words()),
        **problem_columns(sweep.problem),
    }


def _order() -> Iterator[Variant]:
    for base in (_TALL, _WIDE):
        tile = f"{base.tile_m}x{base.tile_n}"
        rows = base.tiles(PROBLEM)[0]
        yield _production(f"{tile} row by row", base.replace(group_m=1))
        for group in _GROUPS:
            if group < rows:
                patch = _PATCHES.get((tile, group), "")
                yield _production(f"{tile} groups of {group}{patch}", base.replace(group_m=group))
        yield _production(f"{tile} column by column", base.replace(schedule="linear"))
        own = base.replace(k_back_and_forth=False)
        yield _production(f"{tile} groups of {own.group_m}, k always forwards", own)
    for number, name in (
        ("v10", "128x256 in pairs, groups of 8 pairs (v10)"),
        ("v11", "128x256 in pairs, Hilbert (v11)"),
    ):
        yield _changed(number, name)


def _clusters(device: Device) -> Iterator[Variant]:
    for base in (_WIDE, _WIDE.replace(tile_m=256, tile_n=128)):
        for rows, columns, what in ((1, 1, "alone"), (2, 1, "2x1, b multicast"), (1, 2, "1x2, a multicast")):
            config = base.replace(cluster_m=rows, cluster_n=columns)
            cluster_rows = config.tiles(PROBLEM)[0] // rows
            group = group_rows(
                cluster_rows, base.tile_m * rows, base.tile_n * columns, device.num_sms // (rows * columns)
            )
            yield _production(f"{base.tile_m}x{base.tile_n} {what}", config.replace(group_m=group))


def _tiles(device: Device) -> Iterator[Variant]:
    found = [config for config in HOPPER.space(PROBLEM, device) if config.cluster == 1 and config.tile_n >= _NARROWEST]
    for config in _MORE_TILES:
        rows = config.tiles(PROBLEM)[0]
        found.append(config.replace(group_m=group_rows(rows, config.tile_m, config.tile_n, device.num_sms)))
    for config in sorted(found, key=lambda each: -each.tile_m * each.tile_n):
        words = (" ping-pong" if config.pingpong else "") + (" staggered" if config.staggered else "")
        words += f", narrow tail of {config.tail_n}" if config.tail_n else ""
        yield _production(f"{config.tile_m}x{config.tile_n}{words}", config)


def _stages() -> Iterator[Variant]:
    rung = _rung("v04")
    for tile_n, most, of in ((128, 7, ""), (96, 8, " of 128x96")):  # what shared memory holds: 7 x 32 KiB, 8 x 28
        for stages in range(2, most + 1):
            config = rung.config.replace(tile_n=tile_n, stages=stages)
            yield Variant(name=f"{stages} slots{of}", family=rung.name, config=config)


def _of_rung(number: str, field: str, values: Iterable[int], spelled: str) -> Iterator[Variant]:
    rung = _rung(number)
    for value in values:
        yield Variant(name=spelled.format(value), family=rung.name, config=rung.config.replace(**{field: value}))


def _promotions() -> Iterator[Variant]:
    rung = _rung("v03")
    for size in (0, 64, 128, 256):
        yield Variant(
            name=f"{size} bytes" if size else "none", family=rung.name, config=rung.config, l2_promotion_bytes=size
        )


def _distances() -> Iterator[Variant]:
    for distance in range(5):
        yield _changed("a5", f"distance {distance}", stages=distance + 1)


def _paddings() -> Iterator[Variant]:
    for tile_k, stretch in ((32, "rows of 64 bytes"), (64, "rows of 128 bytes")):
        yield _changed("a2", f"{stretch}, none", tile_k=tile_k)
        for padding in (8, 16):
            yield _changed("a3", f"{stretch}, padded by {padding}", tile_k=tile_k, padding=padding)
        yield _changed("a4", f"{stretch}, swizzled", tile_k=tile_k)


def _budgets() -> Iterator[Variant]:
    """From few warps with many registers to many with few: none spills, so the part of a warp shrinks with them."""
    for tile_m, tile_n, warps_m, warps_n, ctas in _BUDGETS:
        config = _rung("a7").config.replace(
            tile_m=tile_m, tile_n=tile_n, warps_m=warps_m, warps_n=warps_n, min_ctas=ctas, stages=3
        )
        part = f"{tile_m // warps_m}x{tile_n // warps_n}"
        threads = warps_m * warps_n * WARP_THREADS
        yield Variant(name=f"{part} a warp, {ctas} x {threads} threads", family="a7_register_budget", config=config)


def _ampere_tiles() -> Iterator[Variant]:
    for tile_m, tile_n, tile_k, stages, warps_m, warps_n in _AMPERE_TILES:
        config = _rung("a9").config.replace(
            tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, stages=stages, warps_m=warps_m, warps_n=warps_n
        )
        yield Variant(
            name=f"{tile_m}x{tile_n}x{tile_k}, {stages} slots, {warps_m}x{warps_n} warps",
            family="a9_block_swizzle",
            config=config,
        )


def _slices(counts: Iterable[int]) -> Iterator[Variant]:
    yield _changed("a7", "a7, which has no slices")
    yield _changed("a9", "a9, one slice")
    for slices in counts:
        yield _changed("a8", f"a8, {slices} slice{'s' * (slices > 1)}", slices=slices)


def _sums() -> Iterator[Variant]:
    """a6 with 64 x 32 a warp, its own, and with 64 x 64."""
    for tile_n in (128, 256):
        for f16_sums, name in ((False, "f32"), (True, "f16")):
            yield _changed("a6", f"128x{tile_n}, {name} sums", tile_n=tile_n, f16_sums=f16_sums)


def _rung(number: str) -> Rung:
    return next(rung for rung in (*RUNGS, *AMPERE_RUNGS) if rung.number == number)


def _changed(number: str, name: str, **changes: int) -> Variant:
    rung = _rung(number)
    return Variant(name=name, family=rung.name, config=rung.config.replace(**changes))


def _production(name: str, config: Config) -> Variant:
    return Variant(name=name, family=HOPPER.name, config=config)
