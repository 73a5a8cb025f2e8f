"""How long a kernel should take, from counts and rates: what matmul chooses by when nothing has been measured.

A family is a generator of candidates; the choice is the cheapest by this model. Every term can be printed. Knows
nothing of plans, drivers or records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.config import WGMMA_M, Config
from tilewright.device import Device
from tilewright.errors import ConfigError, UnsupportedError
from tilewright.kernels.catalog import PRODUCTION
from tilewright.kernels.family import Family
from tilewright.problem import Problem

# Cycles and clocks. The H200's SM clock under a large GEMM, in-kernel: 1.3 to 1.6 GHz (measured, H200, 2026-11-29).
_CLOCK_GHZ = 1.6
# Dense 16-bit FLOPs a cycle an SM (measured, H200, 2026-11-29: the wgmma loop takes exactly these cycles).
_TENSOR_FLOPS_PER_CYCLE = 4096
# Shared memory gives wgmma 128 bytes a cycle (CUDA programming guide): a 64 x 16 block of a is read in 16 cycles.
_SMEM_BYTES_PER_CYCLE = 128
# What TMA brings into one SM at best: 64 bytes a cycle from the L2.
_FILL_BYTES_PER_CYCLE = 64
# Storing a tile: measured, H200, 2026-11-29, 8192^3: no store at all is 1.5 % faster, of 65,536 cycles (128x256).
_EPILOGUE_BASE_CYCLES = 500
_EPILOGUE_VALUES_PER_CYCLE = 64
# First bytes from memory, first wgmmas, last store: from the 2.2 us of the best tiny kernels less the launch.
_RAMP_US = 1.4
# Of the bytes delivered to the SMs, the share that is read from the L2: neighbours' equal reads are merged; under a
# cluster only the multicast is (measured, H200, 2026-11-29: 0.56 to 0.60 and 0.67).
_L2_READ_SHARE = {1: 0.6, 2: 0.67}
# Candidates within this of the fastest are equal to the model; the first of them in the family's order is taken.
_INDIFFERENCE = 0.01


@dataclass(frozen=True)
class Prediction:
    """What the model expects of one kernel.

    Units: microseconds. `terms` are the times that each resource would take alone; `total_us` is launch and ramp and
    the slowest of the rest. `waves` is tiles a CTA before rounding up. `roofline_share` is the floor (FLOPs at the
    sustained tensor rate or fewest bytes at the DRAM rate) over the total.
    """

    total_us: float
    terms: tuple[tuple[str, float], ...]
    bound: str
    waves: float
    grid: int
    roofline_share: float

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {value:.1f}" for name, value in self.terms)
        return (
            f"{self.total_us:.1f} us, bound by {self.bound} ({terms} us), {self.waves:.2f} waves of {self.grid} CTAs, "
            f"{self.roofline_share:.0%} of the roofline"
        )


@dataclass(frozen=True)
class Choice:
    """The config that the model takes, and why."""

    family: Family
    config: Config
    prediction: Prediction
    why: str
    considered: int


def predict(family: Family, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Prediction:
    """The time of one launch.

    Worked example, 8192^3 bf16 on an h200 with 128x256 tiles: 64 x 32 tiles on 132 CTAs are 15.5 waves, so 16 tiles a
    CTA; a tile has 128 k steps of 1024 tensor cycles and 1012 cycles to store: 16 x 132,084 cycles at 1.585 GHz
    (857 TFLOPS over 132 SMs) are 1333 us.
    """
    launch = family.launch(problem, config, device, num_sms)
    rows, columns = config.tiles(problem)
    num_tiles = rows * columns
    waves = num_tiles / launch.grid
    tiles_a_cta = -(-num_tiles // launch.grid)
    k_tiles = -(-problem.k // config.tile_k)

    wgmmas = config.tile_m // WGMMA_M * (config.tile_k // 16)
    instruction_cycles = max(
        2 * WGMMA_M * config.tile_n * 16 / _TENSOR_FLOPS_PER_CYCLE,
        (WGMMA_M + config.tile_n) * 16 * problem.dtype.size / _SMEM_BYTES_PER_CYCLE,
    )
    tensor_ghz = device.tensor_tflops * 1e3 / (device.num_sms * _TENSOR_FLOPS_PER_CYCLE)
    tensor_us = tiles_a_cta * k_tiles * wgmmas * instruction_cycles / tensor_ghz / 1e3
    fill_us = tiles_a_cta * k_tiles * config.stage_bytes(problem) / _FILL_BYTES_PER_CYCLE / _CLOCK_GHZ / 1e3
    store_cycles = _EPILOGUE_BASE_CYCLES + config.tile_m * config.tile_n / _EPILOGUE_VALUES_PER_CYCLE
    store_us = tiles_a_cta * store_cycles / _CLOCK_GHZ / 1e3

    stage_reads = config.tile_m + config.tile_n / config.cluster_m
    fill_bytes = num_tiles * k_tiles * config.tile_k * stage_reads * problem.dtype.size
    l2_us = fill_bytes * _L2_READ_SHARE[config.cluster_m] / device.l2_gbps / 1e3
    dram_us = _dram_bytes(problem, config, device, launch.grid) / device.dram_gbps / 1e3

    parallel = {"tensor cores": tensor_us + store_us, "fill": fill_us + store_us, "L2": l2_us, "DRAM": dram_us}
    bound = max(parallel, key=lambda name: parallel[name])
    fixed_us = device.launch_us + _RAMP_US
    if parallel[bound] < fixed_us:
        bound = "latency"
    total_us = fixed_us + max(parallel.values())
    floor_us = max(problem.flops / device.tensor_tflops / 1e6, problem.min_bytes / device.dram_gbps / 1e3)
    terms = (
        ("launch", device.launch_us),
        ("ramp", _RAMP_US),
        ("tensor cores", tensor_us),
        ("store", store_us),
        ("fill", fill_us),
        ("L2", l2_us),
        ("DRAM", dram_us),
    )
    return Prediction(
        total_us=total_us,
        terms=terms,
        bound=bound,
        waves=waves,
        grid=launch.grid,
        roofline_share=floor_us / total_us,
    )


def best(problem: Problem, device: Device, num_sms: int | None = None) -> Choice:
    """The config to run without tuning.

    Raises: UnsupportedError: no production family serves the device. ConfigError: none of its configs fits the problem.
    """
    candidates: list[tuple[Family, Config, Prediction]] = []
    for family in PRODUCTION:
        for config in family.space(problem, device):
            candidates.append((family, config, predict(family, problem, config, device, num_sms)))
    if not candidates:
        raise _no_candidate(problem, device)
    fastest = min(prediction.total_us for _, _, prediction in candidates)
    family, config, prediction = next(
        choice for choice in candidates if choice[2].total_us <= fastest * (1 + _INDIFFERENCE)
    )
    return Choice(
        family=family,
        config=config,
        prediction=prediction,
        why=(
            f"the model's fastest of {len(candidates)} configs is {fastest:.1f} us; this is the first in the family's "
            f"order within {_INDIFFERENCE:.0%} of it"
        ),
        considered=len(candidates),
    )


def _dram_bytes(problem: Problem, config: Config, device: Device, grid: int) -> float:
    """Bytes that DRAM moves: out once, and the operands once, or once a wave where they do not stay in the L2.

    Shapes: the tiles in flight are a patch of group_m tile rows by grid / group_m tile columns.
    """
    operands = (problem.m + problem.n) * problem.k * problem.dtype.size
    out = problem.m * problem.n * problem.out_dtype.size
    if operands <= device.l2_bytes // 2:
        return operands + out
    rows, columns = config.tiles(problem)
    patch_rows = min(rows, config.group_m * config.cluster_m if config.schedule == "grouped" else rows)
    patch_columns = min(columns, max(1.0, grid / patch_rows))
    waves = rows * columns / grid
    per_wave = (patch_rows * config.tile_m + patch_columns * config.tile_n) * problem.k * problem.dtype.size
    return out + max(operands, waves * per_wave)


def _no_candidate(problem: Problem, device: Device) -> Exception:
    reasons: Iterable[str] = Config().violations(problem, device)
    if device.sm != (9, 0):
        return UnsupportedError(
            asked=f"a product on {device.name} (compute capability {device.sm[0]}.{device.sm[1]})",
            rule="the kernels need compute capability 9.0 (H100, H200, H20)",
            works="run on a Hopper GPU, or plan for one of the presets",
        )
    return ConfigError(str(Config()), list(reasons))
