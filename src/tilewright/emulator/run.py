"""The face of the emulator: PTX text and bytes in, bytes and a Report out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.events import Finding, Observer, Site
from tilewright.emulator.integers import WINDOWS
from tilewright.emulator.launch import WARP, WARPGROUP, Geometry
from tilewright.emulator.machine import Machine
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.patterns import Pattern
from tilewright.emulator.schedule import Policy, Schedule
from tilewright.emulator.translate import TABLE, Kernel, kernel_of
from tilewright.errors import EmulationError

Width = Literal["warp", "warpgroup", "cta", "grid"]
WIDTHS: tuple[Width, ...] = ("warp", "warpgroup", "cta", "grid")

SMEM_BASE = 1024  # where a CTA's shared memory starts: Hopper keeps the first 1024 bytes for itself
SMEM_LIMIT = 227 * 1024  # bytes a CTA may have on Hopper
REGISTER_FILE = 65536
MAX_THREADS = 1024
MAX_CLUSTER = 16
MAX_BLOCKS = 1_000_000  # see run(): ten seconds and more. A tile of k = 64 000 in steps of 64 takes some ten thousand
MAX_LOCAL_BYTES = 1 << 28  # of local memory in one vector of several CTAs
MAX_WIDE_CTAS = 64  # in one vector: wider than some thousand threads gains nothing and takes memory
MAX_RESIDENT_CTAS = 256  # at once, where CTAs talk through global memory


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One launch. Units: CTAs, threads a CTA, CTAs a cluster, bytes of dynamic shared memory.

    `registers` a thread at launch, for setmaxnreg; 0: an equal share of the register file.
    """

    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    cluster: int | tuple[int, ...] = 1
    smem_bytes: int = 0
    registers: int = 0


@dataclass(frozen=True)
class Report:
    """What a run found and counted.

    `instructions`: warp instructions by opcode. `traffic`: bytes by what was done. `banks`: by instruction, the
    wavefronts and the fewest possible, where they were asked for; `patterns` what the hardware addresses, by rule.
    """

    findings: tuple[Finding, ...]
    instructions: dict[str, int]
    traffic: dict[str, int]
    banks: dict[Site, tuple[int, int]]
    blocks: int
    width: str
    patterns: tuple[Pattern, ...] = ()

    @property
    def warp_instructions(self) -> int:
        """All of them."""
        return sum(self.instructions.values())

    def then(self, later: Report) -> Report:
        """Both runs as one, for launches that do one thing together; `width` names each that they had."""
        banks = dict(self.banks)
        for site, (wavefronts, ideal) in later.banks.items():
            before = banks.get(site, (0, 0))
            banks[site] = before[0] + wavefronts, before[1] + ideal
        return Report(
            findings=self.findings + later.findings,
            instructions=_added(self.instructions, later.instructions),
            traffic=_added(self.traffic, later.traffic),
            banks=banks,
            blocks=self.blocks + later.blocks,
            width=", ".join(dict.fromkeys((*self.width.split(", "), *later.width.split(", ")))),
            patterns=self.patterns + later.patterns,
        )


def _added(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """The counts of both."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in (*first, *second)}


def run(
    ptx: str,
    entry: str,
    launch: Grid,
    params: bytes | list[Any],
    memory: GlobalMemory,
    *,
    schedule: Policy = "lazy",
    seed: int = 0,
    width: Width | None = None,
    checks: bool = False,
    observer: Observer | None = None,
    banks: bool = False,
    exact_sums: bool = False,
    smem_base: int = SMEM_BASE,
    max_blocks: int = MAX_BLOCKS,
    resident: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Runs every CTA of the launch on this CPU. `memory`'s buffers are read and written in place.

    `params`: the parameter block, or one value a parameter (int, float, bytes). `width`: threads in one vector; wider
    is faster and the default, "warp" interleaves most. `resident`: clusters at once; by default one after another,
    unless the kernel may talk through global memory. `smem_base`: shifted by 16-byte steps it finds kernels that rely
    on its alignment. `exact_sums`: tensor cores round as the H200's do (sums.py), not as float32 sums do. `max_blocks`:
    a run is taken for endless when it has run that many blocks of instructions, for each 16 resident vectors or fewer,
    in which no thread left and no page of global memory was written for the first time.

    Raises: EmulationError: malformed PTX, an instruction that is not in the table, a launch that does not fit, or a
    rule that the kernel broke.
    """
    kernel = kernel_of(ptx, entry)
    geometry = _geometry(kernel, launch)
    if checks and observer is None:
        from tilewright.emulator.checks import Checker  # here: runs without checks need not load it

        observer = Checker()
    chosen = _width(kernel, geometry, width, alone=observer is None and schedule != "random")
    clusters = geometry.num_ctas // geometry.cluster_size
    machine = Machine(
        kernel,
        geometry,
        _parameters(kernel, params),
        _with_variables(kernel, memory),
        schedule=Schedule(schedule, seed),
        width=chosen,
        observer=observer,
        smem_base=smem_base,
        max_blocks=max_blocks,
        count_banks=banks,
        exact_sums=exact_sums,
        resident_clusters=_resident(kernel, geometry, clusters, chosen, resident),
        progress=progress,
    )
    try:
        machine.run()
    except EmulationError as error:
        error.findings = tuple(getattr(observer, "findings", ()))
        raise
    instructions: dict[str, int] = {}
    for block in kernel.blocks:
        warps = machine.block_warps[block.index]
        if warps:
            for opcode, count in block.counts.items():
                instructions[opcode] = instructions.get(opcode, 0) + count * warps
    findings = tuple(getattr(observer, "findings", ()))
    tallies = {site: (wavefronts, ideal) for site, (wavefronts, ideal) in (machine.banks or {}).items()}
    patterns = tuple(machine.patterns.rows.values()) if machine.patterns is not None else ()
    return Report(findings, instructions, machine.traffic, tallies, machine.blocks_run, chosen, patterns)


def supported() -> list[tuple[str, str]]:
    """(family, pattern) of every row of the instruction table, for the documentation."""
    return [(form.family, form.pattern) for form in TABLE.forms]


def pack(kernel_parameters: list[tuple[str, int, int, str]], values: list[Any], *, line: int = 0) -> bytes:
    """The parameter block of values in order. `line`: of the entry, for errors.

    Raises: EmulationError: too many, too few, or a value of the wrong size.
    """
    if len(values) != len(kernel_parameters):
        raise EmulationError(
            f"{len(values)} parameters where the entry has {len(kernel_parameters)}", rule="parameters", line=line
        )
    size = max([offset + length for _, offset, length, _ in kernel_parameters], default=0)
    block = bytearray(size)
    for (name, offset, length, kind), value in zip(kernel_parameters, values, strict=True):
        if isinstance(value, (bytes, bytearray)):
            raw = bytes(value)
        elif kind in ("f32", "f64"):
            raw = np.array([value], f"f{length}").tobytes()
        else:
            raw = (int(value) % (1 << (8 * length))).to_bytes(length, "little")
        if len(raw) != length:
            message = f"parameter {name} has {length} bytes, {len(raw)} are given"
            raise EmulationError(message, rule="parameters", line=line)
        block[offset : offset + length] = raw
    return bytes(block)


def _parameters(kernel: Kernel, params: bytes | list[Any]) -> bytes:
    entry = kernel.entry
    if not isinstance(params, (bytes, bytearray)):
        return pack(entry.parameters, params, line=entry.line)
    if len(params) < entry.parameter_bytes:
        raise EmulationError(
            f"{len(params)} bytes of parameters where {entry.name} has {entry.parameter_bytes}",
            rule="parameters",
            line=entry.line,
        )
    return bytes(params)


def _refusal(kernel: Kernel, message: str) -> EmulationError:
    return EmulationError(message, rule="launch", line=kernel.entry.line)


def _triple(kernel: Kernel, value: int | tuple[int, ...], what: str) -> tuple[int, int, int]:
    parts = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(parts) <= 3 or any(part < 1 for part in parts):
        raise _refusal(kernel, f"{what} {value} is not one to three positive numbers")
    padded = (*parts, 1, 1)
    return padded[0], padded[1], padded[2]


def _geometry(kernel: Kernel, launch: Grid) -> Geometry:
    grid, block = _triple(kernel, launch.grid, "grid"), _triple(kernel, launch.block, "block")
    cluster = _triple(kernel, launch.cluster, "cluster")
    geometry = Geometry(grid=grid, block=block, cluster=cluster, smem_bytes=launch.smem_bytes, registers=0)
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise _refusal(kernel, f"grid {grid} is no multiple of cluster {cluster}")
    if geometry.cluster_size > MAX_CLUSTER:
        raise _refusal(kernel, f"cluster {cluster} has more than {MAX_CLUSTER} CTAs")
    if geometry.threads > MAX_THREADS:
        raise _refusal(kernel, f"{geometry.threads} threads a CTA where {MAX_THREADS} are the limit")
    total = kernel.shared_layout.static_bytes + launch.smem_bytes
    if launch.smem_bytes < 0 or total > SMEM_LIMIT:
        raise _refusal(kernel, f"{total} bytes of shared memory a CTA where {SMEM_LIMIT} are the limit")
    _check_directives(kernel, geometry)
    registers = launch.registers or min(REGISTER_FILE // geometry.threads // 8 * 8, 255)
    return replace(geometry, registers=registers)


def _check_directives(kernel: Kernel, geometry: Geometry) -> None:
    """What the entry says of its launches. Source: PTX ISA, performance-tuning and cluster dimension directives."""
    said, name = kernel.entry.directives, kernel.entry.name
    block, cluster = geometry.block, geometry.cluster
    for directive, given in ((".reqntid", block), (".reqnctapercluster", cluster)):
        wanted = (*said.get(directive, given), 1, 1)[:3]
        if wanted != given:
            raise _refusal(kernel, f"{directive} {wanted} of {name}, which is launched with {given}")
    limit = prod(said.get(".maxntid", (MAX_THREADS,)))
    if geometry.threads > limit:
        raise _refusal(kernel, f"{geometry.threads} threads a CTA where {name} allows {limit}")
    largest = said.get(".maxclusterrank", (MAX_CLUSTER,))[0]
    if geometry.cluster_size > largest:
        raise _refusal(kernel, f"{geometry.cluster_size} CTAs a cluster where {name} allows {largest}")
    if ".explicitcluster" in said and ".reqnctapercluster" not in said and geometry.cluster_size == 1:
        raise _refusal(kernel, f".explicitcluster of {name}, which is launched without a cluster; say its size")


def _width(kernel: Kernel, geometry: Geometry, width: Width | None, alone: bool) -> str:
    """The width asked for, or the widest that the instructions allow. `alone`: nobody watches or interleaves."""
    if width is not None and width not in WIDTHS:
        raise _refusal(kernel, f"width {width!r} is none of {', '.join(WIDTHS)}")
    chosen: str = width or "grid"
    if kernel.uses("wgmma.") or kernel.uses("setmaxnreg"):
        chosen = chosen if chosen == "warp" else "warpgroup"
    if chosen == "warpgroup" and geometry.threads % WARPGROUP and kernel.uses("wgmma."):
        raise _refusal(kernel, f"wgmma in CTAs of {geometry.threads} threads, no multiple of {WARPGROUP}")
    talks = geometry.cluster_size > 1 or any(kernel.uses(prefix) for prefix in _TALKS)
    if chosen == "grid" and (not alone or talks or geometry.threads % WARP or geometry.num_ctas == 1):
        chosen = "cta"
    return chosen


# Opcodes whose handlers serve one CTA at a time.
_TALKS = ("mbarrier.", "cp.async.bulk", "barrier.cluster", "mapa", "st.async", "elect", "getctarank")


def _resident(kernel: Kernel, geometry: Geometry, clusters: int, width: str, asked: int | None) -> int:
    if asked is not None:
        return max(1, min(asked, clusters))
    waits = any(
        opcode.startswith(("atom", "ld.acquire", "ld.volatile", "ld.relaxed")) and ".shared" not in opcode
        for opcode in kernel.opcodes
    )
    if waits:
        return min(clusters, max(1, MAX_RESIDENT_CTAS // geometry.cluster_size))
    if width != "grid":
        return 1
    local_bytes = sum(variable.size for variable in kernel.entry.variables if variable.space == "local")
    return min(clusters, MAX_WIDE_CTAS, max(1, MAX_LOCAL_BYTES // max(local_bytes * geometry.threads, 1)))


def _with_variables(kernel: Kernel, memory: GlobalMemory) -> GlobalMemory:
    """The launch's buffers and the module's own variables, each launch with fresh ones."""
    used = {v.name for v in kernel.program.variables if v.space in ("global", "const")} & kernel.names
    if not used:
        return memory
    joined = GlobalMemory()
    joined.buffers, joined.starts = list(memory.buffers), list(memory.starts)
    address = WINDOWS["shared"] >> 1
    for variable in kernel.program.variables:
        if variable.name in used:
            data: NDArray[np.uint8] = np.zeros(max(variable.size, 1), np.uint8)
            data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
            joined.add(variable.name, data, address)
            address += -(-data.size // 4096) * 4096 + 4096
    return joined
