"""What the emulator counts of a plan's kernel, in the columns that ncu has: of the very launch, or carried over to its
size from small ones.

A kernel does the same for each CTA, for each tile and for each k tile of a tile, wide or narrow, so a count is a sum of
three terms, or of five. As many small launches of the same kernel on one SM or two give them, one more has to agree.
Knows nothing of ncu.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np

from tilewright.backends.emulated import EmulatedBackend, Report, emulated, host_bytes
from tilewright.bench.launched import NAN_WORD, ONES, operand_bytes
from tilewright.calls import Ledger
from tilewright.emulated_time import emulated_s
from tilewright.errors import ConfigError, EmulationError
from tilewright.packing import packed
from tilewright.plan import Plan
from tilewright.problem import Problem

EXACT_S = 10.0  # what a launch may take in the emulator by estimate to be run as it is
WAVEFRONT_BYTES = 128
SLACK = 0.005  # of a count, between what the fourth small launch has and what three say of it

_WAYS = {"ldmatrix": "ldsm", "cp.async": "ldgsts", "ld.shared": "ld", "st.shared": "st", "stmatrix": "stsm"}
_TENSOR = {"mma": ("hmmas", 1), "wmma.mma": ("hmmas", 2), "wgmma.mma_async": ("gmmas", 1)}  # 2: SASS's HMMA is 16x8x16


@dataclass(frozen=True)
class Emulated:
    """Counts by column, and in words of what. `left_out`: columns that small launches do not tell."""

    counts: dict[str, float]
    how: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Extent:
    """How much a launch has to do: CTAs, tiles (of all slices) and k tiles of all of them, and the same of a tail."""

    ctas: int
    tiles: int
    k_tiles: int
    narrow_tiles: int = 0
    narrow_k_tiles: int = 0


def extent_of(plan: Plan) -> Extent:
    """Edges count as whole tiles: the kernel multiplies them so."""
    config, problem = plan.config, plan.problem
    long = -(-problem.k // (config.slices * config.tile_k))
    tiles, narrow = config.num_tiles(problem), 0
    if config.tail_n:
        tiles = config.wide_tiles(problem, plan.launch.grid)
        narrow = config.narrow_tiles(problem, tiles)
    return Extent(plan.launch.grid, tiles, tiles * long, narrow, narrow * long)


def emulated_counts(plan: Plan) -> Emulated:
    """The counts of one launch of the plan's kernel, without copies before it and without the sums of its slices.

    Cost: EXACT_S at most where the launch itself is emulated, else four or six small launches, some seconds.
    """
    device = emulated(plan.device, banks=True)
    if emulated_s(plan.problem, plan.config, plan.launch, family=plan.family.name) <= EXACT_S:
        return Emulated(columns_of(report_of(plan, device)), "this launch")
    try:
        small = [small_plan(plan, problem, device) for problem in small_problems(plan)]
        found = [(extent_of(each), columns_of(report_of(each, device))) for each in small]
    except (ConfigError, EmulationError) as error:  # what cannot be compared is said; ncu's own columns stand
        return Emulated({}, f"not counted: {error}")
    counts, left_out = carried(found, extent_of(plan))
    how = f"carried over from {', '.join(_size(each.problem) for each in small)}"
    if any(each.binary.ptx != plan.binary.ptx for each in small):
        how += ", the kernel for whole rows"
    if _is_cut(plan):
        how += ", edges as whole tiles"
        counts.pop("global_written_bytes", None)  # what lies outside is not written; of reads it is a bound
    return Emulated(counts, how, left_out)


def carried(found: list[tuple[Extent, dict[str, float]]], target: Extent) -> tuple[dict[str, float], tuple[str, ...]]:
    """Counts at the target from those of small launches, of which the last is the proof; and columns that fail it."""
    names = sorted({name for _, counts in found for name in counts})
    rows = np.array([astuple(each) for each, _ in found], float)
    values = np.array([[counts.get(name, 0.0) for name in names] for _, counts in found])
    terms, *_ = np.linalg.lstsq(rows[:-1], values[:-1], rcond=None)
    proof = rows[-1] @ terms
    at_target = np.array(astuple(target), float) @ terms
    sound = np.abs(proof - values[-1]) <= SLACK * np.abs(values[-1]) + 0.5
    kept = {name: float(round(at_target[i])) for i, name in enumerate(names) if sound[i]}
    return kept, tuple(name for i, name in enumerate(names) if not sound[i])


def small_problems(plan: Plan) -> Iterator[Problem]:
    """Whole tiles, each size with one thing more or longer than another, the last for the proof.

    With a tail: three columns of tiles on two SMs, whose odd number leaves narrow tiles: one, or a wide one's width.
    """
    config, problem = plan.config, plan.problem
    rows, columns = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    k = config.stages + 1
    sizes = [(2 * rows, k), (4 * rows, k), (4 * rows, k + 2), (6 * rows, k + 1)]
    extents = [(height, 2 * columns, k_tiles) for height, k_tiles in sizes]
    if config.tail_n:
        one, all_of_it = 2 * columns + config.tail_n, 3 * columns
        extents = [(rows, one, k), (rows, one, k + 2), (rows, all_of_it, k), (rows, all_of_it, k + 2)]
        extents += [(3 * rows, all_of_it, k), (5 * rows, all_of_it, k + 1)]
    for height, width, k_tiles in extents:
        if problem.out_major != ("m" if config.swap else "n"):  # computed transposed
            height, width = width, height
        yield packed(
            height,
            width,
            k_tiles * config.tile_k * config.slices,
            dtype=problem.dtype.name,
            out_dtype=problem.out_dtype.name,
            sums=problem.sums.name,
            a_major=problem.a_major,
            b_major=problem.b_major,
            out_major=problem.out_major,
            batch=tuple(1 for _ in problem.batch),
        )


def small_plan(plan: Plan, problem: Problem, device: EmulatedBackend) -> Plan:
    """The same kernel for another size, on one SM, or as many as its cluster or a tail takes. Raises: ConfigError."""
    return Plan(
        problem,
        plan.device,
        plan.family,
        plan.config,
        why="the same kernel at a small size",
        num_sms=2 if plan.config.tail_n else plan.launch.cluster,
        backend=lambda: device,
        ledger=Ledger(),
    )


def report_of(plan: Plan, device: EmulatedBackend) -> Report:
    """One launch of the plan's kernel alone, on constant operands. Raises: EmulationError."""
    addresses = {}
    for operand, num_bytes in operand_bytes(plan).items():
        addresses[operand] = device.allocate(num_bytes, 0, 0)
        host_bytes(addresses[operand], num_bytes // 4 * 4).view(np.uint32)[:] = (
            ONES if operand in ("a", "b") else NAN_WORD
        )
    try:
        kernel = device.load(plan.binary, 0, plan.launch)
        device.launch(device.pack(kernel, plan.launch, plan.arguments, addresses), 0)
    finally:
        for address in addresses.values():
            device.free(address, 0, 0)
    assert device.report is not None  # launch() has returned
    return device.report


def columns_of(report: Report) -> dict[str, float]:
    """The report in ncu's columns: instructions of warps, wavefronts and conflicts by how shared memory is used, bytes.

    `delivered_bytes`: what TMA brings, to each CTA of a multicast; what threads write beside it fills its wavefronts.
    WMMA's loads are left out: PTX leaves the layout of its fragments open, and ptxas makes them of others.
    """
    found: dict[str, float] = {}

    def add(name: str, count: float) -> None:
        found[name] = found.get(name, 0.0) + count

    for opcode, count in report.instructions.items():
        add("ptx_instructions", count)
        for start, way in _WAYS.items():
            if opcode.startswith(start) and (way != "ldgsts" or (".global" in opcode and ".bulk" not in opcode)):
                add(f"{way}_instructions", count)
        for start, (name, each) in _TENSOR.items():
            if opcode.startswith(f"{start}."):
                add("immas" if ".s8." in opcode else name, count * each)
    for site, (wavefronts, ideal) in report.banks.items():
        for start, way in _WAYS.items():
            if site.opcode.startswith(start):
                add(f"{way}_wavefronts", wavefronts)
                add(f"{way}_conflicts", wavefronts - ideal)
    add("gmma_wavefronts", sum(pattern.wavefronts for pattern in report.patterns))
    add("gmma_conflicts", sum(pattern.wavefronts - pattern.ideal for pattern in report.patterns))
    for name in ("read", "written"):
        add(f"global_{name}_bytes", report.traffic.get(f"global {name}", 0))
    if any(opcode.startswith("cp.async.bulk.tensor") for opcode in report.instructions):
        stored = sum(found.get(f"{way}_wavefronts", 0.0) - found.get(f"{way}_conflicts", 0.0) for way in ("st", "stsm"))
        add("delivered_bytes", report.traffic.get("shared written", 0) - stored * WAVEFRONT_BYTES)
    add("wmma_instructions", sum(count for name, count in report.instructions.items() if name.startswith("wmma.")))
    return found


def _is_cut(plan: Plan) -> bool:
    """Whether the size ends inside tiles."""
    config, problem = plan.config, plan.problem
    rows, columns = (
        (problem.m, problem.n) if problem.out_major == ("m" if config.swap else "n") else (problem.n, problem.m)
    )
    return bool(rows % config.tile_m or columns % config.tile_n or problem.k % (config.tile_k * config.slices))


def _size(problem: Problem) -> str:
    return f"{problem.m}x{problem.n}x{problem.k}"
