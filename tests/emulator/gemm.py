"""Runs of the real Hopper kernel in the emulator, whole or mutated: source, operands, launch, and what came out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tilewright import device
from tilewright.backends.base import IntArgument, IntsArgument, MapArgument
from tilewright.bench.cases import wide
from tilewright.config import Config
from tilewright.emulator import tiled
from tilewright.emulator.checks import Checker
from tilewright.emulator.events import Finding
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.errors import EmulationError
from tilewright.host_operands import host_operands
from tilewright.jit import nvrtc
from tilewright.jit.source import Binary, Source
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.packing import packed
from tilewright.problem import Problem

DEVICE = device.preset("h200")
WRONG_NUMBERS = "wrong numbers"

_ELEMENTS = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}


@dataclass(frozen=True)
class Case:
    """One config on one problem with a number of SMs: several tiles a CTA, k longer than the ring and with a tail.

    `idle`: clusters more than there are tiles for, which the host never launches: they have nothing to do.
    """

    problem: Problem
    config: Config
    num_sms: int
    idle: int = 0


def _config(**changes: Any) -> Config:
    return Config(**{"tile_m": 128, "tile_n": 64, "stages": 3, **changes})


_SMALL = _config(tile_m=64, tile_n=32, consumers=1)

CASES: dict[str, Case] = {
    "single": Case(packed(256, 128, 320), _config(), 2),
    "one consumer": Case(packed(128, 64, 320), _config(tile_m=64, tile_n=32, consumers=1), 1),
    # more slots than are filled before the CTA meets, and k longer than the ring
    "deep ring": Case(packed(128, 32, 456), _SMALL.replace(stages=6), 1),
    "cluster": Case(packed(512, 64, 320), _config(cluster_m=2), 2),
    "cluster side by side": Case(packed(256, 256, 320), _config(cluster_n=2), 2),
    # 3 x 3 clusters' worth of tiles rounded up to 2 x 2, all of them one cluster's
    "cluster of rows and columns": Case(packed(150, 70, 264), _SMALL.replace(cluster_m=2, cluster_n=2), 4),
    # 9 atoms of b: 3 boxes for 4 CTAs
    "cluster of uneven shares": Case(packed(200, 230, 200), _SMALL.replace(tile_n=72, cluster_m=4, cluster_n=2), 8),
    "cluster of panels": Case(
        packed(128, 500, 136, a_major="m", b_major="n"), _SMALL.replace(tile_n=64, cluster_m=2, cluster_n=4), 8
    ),
    "cluster, ping-pong": Case(
        packed(70, 300, 136), _config(tile_m=64, tile_n=40, pingpong=True, store_slots=1, cluster_n=4), 4
    ),
    "ping-pong": Case(packed(192, 128, 200), _config(tile_m=64, pingpong=True, store_slots=1), 2),
    # 3 x 3 tiles on 2 CTAs: 8 wide ones, then 3 narrow ones in the last row
    "tail": Case(packed(192, 88, 192), _SMALL.replace(tail_n=8), 2),
    # 3 x 4 tiles on 7 CTAs: of the 7 wide ones three are in row 0, which has 1 narrow one, and the others have 4
    "tail of two lengths": Case(packed(192, 104, 72), _SMALL.replace(tail_n=8), 7),
    # as the space offers it: 4 narrow slots and their store slots where 3 wide ones and theirs are; fewer k tiles than
    # narrow slots, since the last of these waits for the stores as well
    "tail of 256x192": Case(
        packed(512, 576, 136), Config(tile_m=256, tile_n=192, stages=3, store_slots=3, tail_n=120, staggered=True), 4
    ),
    "tail of n-contiguous b": Case(
        packed(64, 384, 136, b_major="n"), _config(consumers=1, tile_m=64, tile_n=128, tail_n=64), 2
    ),
    "tail without TMA": Case(packed(200, 179, 136), _config(tail_n=24), 4),
    "tail in fp32": Case(packed(256, 184, 72, out_dtype="fp32"), _config(tail_n=24), 4),
    # one consumer of two row blocks; as many k tiles as slots, so that every tile begins in the same slot
    "staggered": Case(packed(128, 80, 192), _config(consumers=1, tile_n=40, staggered=True, store_slots=1), 1),
    # two consumers, k of two slots, and the last row: one block, and the next past the end
    "staggered pair": Case(packed(385, 128, 65), _config(tile_m=256, stages=2, staggered=True), 1),
    "staggered pair, long k": Case(packed(256, 64, 200), _config(tile_m=256, stages=2, staggered=True), 1),
    "staggered tail": Case(packed(384, 88, 200), _config(consumers=1, tile_n=32, tail_n=8, staggered=True), 2),
    "staggered cluster": Case(packed(512, 128, 200), _config(consumers=1, cluster_m=2, staggered=True), 2),
    "staggered cluster side by side": Case(packed(129, 256, 200), _config(consumers=1, cluster_n=2, staggered=True), 2),
    "squares": Case(packed(4 * 64, 5 * 16, 72), _config(consumers=1, tile_m=64, tile_n=16, group_m=3, square=2), 3),
    "back and forth": Case(packed(256, 64, 328), _config(k_back_and_forth=True), 1),
    "n-major": Case(packed(128, 128, 200, b_major="n"), _config(), 1),
    "n-major wide": Case(packed(128, 128, 200, b_major="n"), _config(tile_n=128), 1),
    "n-major cluster": Case(packed(256, 64, 200, b_major="n"), _config(cluster_m=2), 2),
    "m-major": Case(packed(256, 64, 200, a_major="m"), _config(tile_m=256), 1),
    "m-major staggered": Case(
        packed(512, 64, 200, a_major="m", b_major="n"), _config(tile_m=256, store_slots=1, staggered=True), 1
    ),
    "batch staggered": Case(packed(256, 64, 136, batch=(3,)), _config(tile_m=256, store_slots=1, staggered=True), 1),
    "m-major cluster": Case(packed(256, 128, 200, a_major="m"), _config(cluster_n=2), 2),
    "batch": Case(packed(128, 128, 200, batch=(3,)), _config(), 2),
    "batch of three dimensions": Case(wide(packed(129, 64, 136, batch=(2, 2, 3)), out_gap=8), _config(), 2),
    "batch shares a": Case(packed(128, 64, 136, batch=(3,), shared="a"), _config(), 2),
    "a CTA a matrix": Case(packed(64, 32, 136, batch=(3,), shared="a"), _SMALL, 3),
    "batch, predicated stores": Case(wide(packed(129, 67, 136, batch=(2, 2))), _config(store_slots=1), 2),
    "batch in clusters": Case(packed(256, 64, 136, b_major="n", batch=(3,)), _config(cluster_m=2), 2),
    "fp32 out": Case(packed(128, 64, 200, out_dtype="fp32"), _config(), 1),
    "predicated stores": Case(packed(65, 131, 136), _config(tile_n=128), 1),
    "predicated stores, slot by slot": Case(packed(65, 131, 136), _config(tile_n=128, store_slots=1), 1),
    "staggered without TMA": Case(
        packed(127, 77, 192), _config(consumers=1, tile_n=56, staggered=True, store_slots=1), 1
    ),
    # the last tile has 5 columns: 10 bytes, fewer than one chunk
    "predicated stores, short rows": Case(packed(65, 69, 136), _config(), 1),
    # 128 columns of fp32 at once are 32 chunks of 16 bytes, which lie in 33 of out; 160 are 40
    "fp32 out without TMA, long rows": Case(
        packed(70, 163, 136, out_dtype="fp32"), _config(tile_n=160, stages=2, store_slots=5), 1
    ),
    "fp32 out without TMA": Case(packed(65, 131, 136, out_dtype="fp32"), _config(store_slots=2), 1),
    # 3 tiles of rows of b; of 24 rows of a the last 4 are past the end
    "swap": Case(packed(20, 136, 200), _SMALL.replace(swap=True, tile_n=24), 2),
    "swap of two consumers": Case(packed(20, 264, 200), _config(swap=True, tile_n=24), 2),
    "swap, predicated stores": Case(packed(20, 131, 200), _SMALL.replace(swap=True, tile_n=24), 2),
    "swap in fp32": Case(packed(20, 136, 200, out_dtype="fp32"), _SMALL.replace(swap=True, tile_n=16), 2),
    "swap in fp32, predicated": Case(packed(20, 131, 200, out_dtype="fp32"), _SMALL.replace(swap=True, tile_n=24), 2),
    # 2 x 2 tiles on 2 clusters of 2, k of 6 slots, the last ragged, dealt out as 3 and 3
    "split": Case(packed(136, 24, 328), _SMALL.replace(split_k=2, tile_n=16), 4),
    "split in four, one stores": Case(packed(136, 8, 328), _SMALL.replace(split_k=4, tile_n=8), 4),
    # two blocks of 8 columns a share: of four CTAs, and of six of eight, the others send all that they have
    "split in four": Case(packed(72, 72, 328), _SMALL.replace(split_k=4, tile_n=64), 4),
    "split in eight, six store": Case(packed(64, 96, 600), _SMALL.replace(split_k=8, tile_n=96, stages=2), 8),
    "split in two, one stores": Case(packed(72, 48, 328), _SMALL.replace(split_k=2, tile_n=24), 2),
    "split of two row blocks": Case(packed(136, 40, 328), _SMALL.replace(split_k=2, tile_m=128), 2),
    "split of two consumers": Case(
        packed(136, 40, 328, out_dtype="fp32"), _config(split_k=2, tile_n=16, k_back_and_forth=True), 2
    ),
    "split of a batch": Case(packed(72, 24, 200, batch=(3,)), _SMALL.replace(split_k=2, tile_n=16), 4),
    "swap, split in eight": Case(packed(60, 72, 8 * 64), _SMALL.replace(swap=True, split_k=8, tile_n=64), 8),
    "swap, split, predicated batch": Case(
        wide(packed(21, 67, 136, batch=(2, 2))),
        _SMALL.replace(swap=True, split_k=2, tile_n=24, dependent_launch=True),
        2,
    ),
    # as "one consumer", "cluster" and "split", whose kernels these are
    "an idle CTA": Case(packed(64, 32, 72), _SMALL, 1, idle=1),
    "an idle cluster": Case(packed(256, 64, 136), _config(cluster_m=2), 2, idle=1),
    "an idle split": Case(packed(64, 16, 136), _SMALL.replace(split_k=2, tile_n=16), 2, idle=1),
    "many stores": Case(packed(64, 384, 200), _config(tile_m=64, tile_n=192, consumers=1), 1),
}


def source(case: Case) -> Source:
    """The unmutated unit."""
    return render(HOPPER, case.problem, case.config, DEVICE)


def edited(unit: Source, file: str, old: str, new: str) -> Source:
    """The unit with `old` replaced in its text ("") or in one header; it must be there once, in whatever white space.

    Raises: ValueError: it is not.
    """
    text = unit.text if not file else dict(unit.headers)[file]
    pattern = r"\s+".join(re.escape(word) for word in old.split())
    text, found = re.subn(pattern, lambda _: new.strip(), text)
    if found != 1:
        where = file or "the unit"
        raise ValueError(f"{old!r} is {found} times in {where}, not once: the mutant must follow the kernel")
    if not file:
        return replace(unit, text=text)
    return replace(unit, headers=tuple((name, text if name == file else body) for name, body in unit.headers))


Edit = tuple[str, str, str]  # file, what stands there, what shall stand there


@dataclass(frozen=True)
class Mutant:
    """`rules`: any of them is the right report. `case`: a key of CASES."""

    name: str
    case: str
    edits: tuple[Edit, ...]
    rules: frozenset[str]
    policy: str = "lazy"

    @property
    def on(self) -> Case:
        return CASES[self.case]

    def unit(self) -> Source:
        """The mutated unit. Raises: ValueError: the kernel has changed and an edit no longer fits."""
        unit = source(self.on)
        for edit in self.edits:
            unit = edited(unit, *edit)
        return unit


@cache
def binary(unit: Source) -> Binary:
    """Compiled once in a session."""
    return nvrtc.compile_source(unit, "")


@dataclass(frozen=True)
class Outcome:
    """What a run told: rules of the findings or of the error that stopped it, and whether the numbers are right."""

    rules: frozenset[str]
    findings: tuple[Finding, ...]
    error: str

    @property
    def is_silent(self) -> bool:
        return not self.rules

    def __str__(self) -> str:
        return "\n".join([", ".join(sorted(self.rules)) or "silent", *map(str, self.findings), self.error])


def outcome(case: Case, ptx: str, **choices: Any) -> Outcome:
    """One run with checks: small-integer operands, so that the product is exact in any order."""
    problem, config = case.problem, case.config
    a, b, out = host_operands(problem, seed=0)
    expected = a.view.astype(np.float32) @ b.view.astype(np.float32)
    memory = GlobalMemory()
    addresses = {name: memory.add(name, x.memory) for name, x in (("a", a), ("b", b), ("out", out))}
    launch = HOPPER.launch(problem, config, DEVICE, case.num_sms)
    grid = Grid(
        grid=launch.grid + case.idle * launch.cluster,
        block=launch.block,
        cluster=launch.cluster,
        smem_bytes=launch.smem_bytes,
        registers=config.entry_registers,
    )
    values: list[Any] = []
    for argument in HOPPER.arguments(problem, config, launch):
        if isinstance(argument, MapArgument):
            values.append(_map(argument, addresses[argument.operand]))
        elif isinstance(argument, IntsArgument):
            values.append(np.array(argument.values, np.int64).tobytes())
        else:
            values.append(argument.value if isinstance(argument, IntArgument) else addresses[argument.operand])
    checker = Checker()
    try:
        run(ptx, HOPPER.entry, grid, values, memory, observer=checker, **choices)
    except EmulationError as error:
        rules = {finding.rule for finding in checker.findings}
        return Outcome(frozenset(rules | {error.rule}), tuple(checker.findings), str(error))
    rules = {finding.rule for finding in checker.findings}
    if not np.array_equal(out.view, expected.astype(out.view.dtype)):
        rules.add(WRONG_NUMBERS)
    return Outcome(frozenset(rules), tuple(checker.findings), "")


def _map(argument: MapArgument, address: int) -> bytes:
    tensor_map = argument.tensor_map
    return tiled.encode(
        tiled.TiledMap(
            address=address,
            element=_ELEMENTS[tensor_map.dtype.name],
            extents=tensor_map.extents,
            pitches_bytes=tensor_map.pitches_bytes,
            box=tensor_map.box,
            swizzle_bytes=tensor_map.swizzle_bytes,
        )
    )
