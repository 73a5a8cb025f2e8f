"""How long a kernel should take, from counts, rates and energy: what matmul chooses by when nothing has been measured.

A family is a generator of candidates; the choice is the cheapest by this model. Every term can be printed. Knows
nothing of plans or drivers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilewright.config import MAX_TILES, STORE_ROWS, WARPGROUP_WARPS, WGMMA_M, Config
from tilewright.device import Device
from tilewright.errors import ConfigError, ShapeError, UnsupportedError
from tilewright.kernels import repack, sums
from tilewright.kernels.catalog import PRODUCTION
from tilewright.kernels.family import Family
from tilewright.order import Reduction, order_for
from tilewright.problem import Problem

# Shared memory gives wgmma 128 bytes a cycle (CUDA programming guide): a 64 x 16 block of a is read in 16 cycles.
_SMEM_BYTES_PER_CYCLE = 128
# What TMA brings into one SM at best: 64 bytes a cycle from the L2.
_FILL_BYTES_PER_CYCLE = 64
# Storing a tile: measured, H200, 2026-11-29, 8192^3: no store at all is 1.5 % faster with 128x256 (131,072
# cycles a tile, 4096 values a warp), 2.4 % with 256x192 (196,608 and 6144).
_STORE_BASE_CYCLES = 500
_STORE_VALUES_PER_CYCLE = 2.5  # a warp
# Of that, hidden where a consumer's row blocks are staggered. A judgement, not a fit: clocks at tile boundaries gave
# 256x192 200,500 cycles a tile at 8192^3, 196,608 of them on the tensor cores (H200, 2026-11-30), before its stores
# went out in one batch.
_STAGGERED_HIDES = 0.6
# First bytes from memory, first wgmmas, last store: from the 2.2 us of the best tiny kernels less the launch.
_RAMP_US = 1.4
# Of the bytes delivered to the SMs, the share that is read from the L2: equal reads that neighbouring CTAs make at
# about the same time are merged, down to this; a cluster's multicast reads half. Fitted to L2 reads over fill, H200,
# 2026-11-29: 128x256 0.59, 256x192 0.67, 256x128 0.70, ping-pong 128x192 0.58, clusters 0.65.
_MERGED_SHARE = 0.3
_MULTICAST_SHARE = 0.5
_BESIDE_MULTICAST_SHARE = 0.87  # of b, where a is multicast (fitted to 0.75 of 128x256 in clusters of 1x2)
_NEIGHBOURS = 8  # CTAs this far apart in the launch do not merge any more (a GPC has 16 to 18 SMs)
# A slot of a narrow tile lands so long after it was asked for: with s slots a k tile takes at least this / (s - 1).
# Fitted, H200, 2026-11-30, 3 slots: a tile of 128 columns after 256x192 takes 74,400 cycles for 64 k tiles (4096^3, by
# clocks at tile boundaries, stores included). By the rates of 8192^3 one of 80 columns takes hardly less than one of
# 96.
_NARROW_LATENCY_CYCLES = 2250
# What a CTA waits for a slot whose bytes come from DRAM, under load: with s stages it takes s - 1 slots in this time.
# The same figure; a judgement for other tiles, of which none was measured on its own.
_LATENCY_CYCLES = 2250
# Adding up a split tile: the last bytes sent, their way, the wait: 0.5 us at the full clock. And what a CTA sends
# through the cluster's network in a cycle. Judgements, neither measured.
_REDUCE_BASE_CYCLES = 900
_REDUCE_BYTES_PER_CYCLE = 32
# From the start of the kernel that adds slices to its first sums: the end of the kernel before it, two ways to the L2
# and back. A judgement, not measured.
_SUMS_LATENCY_US = 0.8
# Walking k back and forth saves of the DRAM reads (measured, H200, 2026-11-29: 8 to 14 %).
_BACK_AND_FORTH_SAVING = 0.11
# Energy: H200, 2026-11-29, fit over 121 cells, residual 13 W. Base in W; tensor cores and the rest of a real kernel in
# pJ a FLOP; delivery into shared memory, L2 and DRAM reads in pJ a byte; all but DRAM at 1.33 GHz and growing with the
# clock as (1 + 0.8 (f - 1.33) / 1.33)^2.
_BASE_W = 115.0
_TENSOR_PJ = 0.53
_REST_PJ = 0.052
_FILL_PJ = 6.9
_L2_PJ = 16.8
_DRAM_PJ = 64.0
_ENERGY_CLOCK_GHZ = 1.33
_LOWEST_CLOCK_GHZ = 0.6
# Candidates within this of the fastest are equal to the model; the first of them in the family's order is taken.
_INDIFFERENCE = 0.005


@dataclass(frozen=True)
class Prediction:
    """What the model expects of one kernel that runs back to back.

    Units: microseconds, GHz, watts. `terms` are the times that each resource would take alone at that clock; `total_us`
    is launch and ramp and the slowest of the rest. `waves` is tiles a CTA before rounding up. `roofline_share` is the
    floor (floor_us) over the total.
    """

    total_us: float
    terms: tuple[tuple[str, float], ...]
    bound: str
    waves: float
    grid: int
    roofline_share: float
    clock_ghz: float
    power_w: float

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {value:.1f}" for name, value in self.terms)
        return (
            f"{self.total_us:.1f} us, bound by {self.bound} ({terms} us), {self.waves:.2f} waves of {self.grid} CTAs, "
            f"{self.clock_ghz:.2f} GHz and {self.power_w:.0f} W, {self.roofline_share:.0%} of the roofline"
        )


@dataclass(frozen=True)
class Choice:
    """The config that the model takes, and why."""

    family: Family
    config: Config
    prediction: Prediction
    why: str
    considered: int


@dataclass(frozen=True)
class Ranked:
    """One of the model's fastest configs. `order` is its place in the families' order, which breaks ties everywhere."""

    family: Family
    config: Config
    prediction: Prediction
    order: int


@dataclass(frozen=True)
class _Work:
    """What one launch has to do, before any clock. Units: cycles of the busiest CTA, bytes of all."""

    tensor_cycles: float
    fill_cycles: float
    store_cycles: float
    fill_bytes: float
    l2_bytes: float
    dram_bytes: float
    flops: float  # with those on the zeros past the edges
    pj_per_flop: float = _TENSOR_PJ + _REST_PJ
    dram_slowdown: float = 1.0

    def times_us(self, device: Device, clock_ghz: float) -> dict[str, float]:
        """Each resource's time alone."""
        cycle_us = 1e-3 / clock_ghz
        return {
            "tensor cores": (self.tensor_cycles + self.store_cycles) * cycle_us,
            "fill": (self.fill_cycles + self.store_cycles) * cycle_us,
            "L2": self.l2_bytes / device.l2_gbps / 1e3,
            "DRAM": self.dram_bytes / device.dram_gbps / 1e3 * self.dram_slowdown,
        }

    def power_w(self, time_us: float, clock_ghz: float) -> float:
        """Watts while it runs in `time_us`."""
        scale = (1 + 0.8 * (clock_ghz - _ENERGY_CLOCK_GHZ) / _ENERGY_CLOCK_GHZ) ** 2
        clocked_pj = self.pj_per_flop * self.flops + _FILL_PJ * self.fill_bytes + _L2_PJ * self.l2_bytes
        return _BASE_W + (scale * clocked_pj + _DRAM_PJ * self.dram_bytes) / time_us / 1e6


def predict(family: Family, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Prediction:
    """The time of one launch among many of the same, at the clock that the power limit leaves.

    Worked example, 8192^3 bf16 on an h200 with 128x256 tiles: 64 x 32 tiles on 132 CTAs are 15.5 waves, so 16 tiles a
    CTA; a tile has 128 k steps of 1024 tensor cycles and 2138 cycles to store: 2.13 million cycles, 1214 us at 1.755
    GHz. That would draw more than 700 W; at 1.34 GHz, which keeps to them, it takes 1590 us.
    """
    if config.slices > 1 and not problem.batch:
        sliced = predict(family, config.sliced(problem), config, device, num_sms)
        return _with_sums(sliced, problem, config, device)
    problem = config.computed(problem)
    launch = family.launch(problem, config, device, num_sms)
    work = _work(problem, config, device, launch.grid)
    fixed_us = device.launch_us + _RAMP_US
    clock_ghz = _clock_ghz(work, device, fixed_us)
    parallel = work.times_us(device, clock_ghz)
    bound = max(parallel, key=lambda name: parallel[name])
    if parallel[bound] < fixed_us:
        bound = "latency"
    total_us = fixed_us + max(parallel.values())
    store_us = work.store_cycles / clock_ghz / 1e3
    return Prediction(
        total_us=total_us,
        terms=(
            ("launch", device.launch_us),
            ("ramp", _RAMP_US),
            ("tensor cores", parallel["tensor cores"] - store_us),
            ("store", store_us),
            ("fill", parallel["fill"] - store_us),
            ("L2", parallel["L2"]),
            ("DRAM", parallel["DRAM"]),
        ),
        bound=bound,
        waves=config.num_tiles(problem) * config.split_k / launch.grid,
        grid=launch.grid,
        roofline_share=floor_us(problem, device) / total_us,
        clock_ghz=clock_ghz,
        power_w=work.power_w(total_us, clock_ghz),
    )


def repack_us(problem: Problem, operands: repack.Operands, device: Device) -> float:
    """Microseconds of the copy of these operands before the product: a launch, and its bytes through DRAM.

    A judgement, not a fit: what is written may stay in the L2 and be read there, and what is read may be there already.
    Worked example: 4095^3 bf16 with odd rows, both operands: 4 x 33.5 MB at the h200's 4665 GB/s are 28.8 us.
    """
    return device.launch_us + sum(repack.moved_bytes(problem, operands)) / device.dram_gbps / 1e3


def sums_us(problem: Problem, config: Config, device: Device) -> float:
    """Microseconds of the kernel that adds the slices, behind the product's: a launch, the first bytes, then all of
    them through the L2.

    Worked example, (256, 256, 65536) bf16 in 32 slices: 8.4 MB read and 0.1 MB written at the h200's 7920 GB/s are 1.1
    us, with 1.5 us before them 2.6.
    """
    return device.launch_us + _SUMS_LATENCY_US + sum(sums.moved_bytes(problem, config)) / device.l2_gbps / 1e3


def _with_sums(sliced: Prediction, problem: Problem, config: Config, device: Device) -> Prediction:
    """The time of the slices' product, and of adding them up."""
    adding_us = sums_us(problem, config, device)
    total_us = sliced.total_us + adding_us
    return dataclasses.replace(
        sliced,
        total_us=total_us,
        terms=(*sliced.terms, ("sums", adding_us)),
        bound=sliced.bound if adding_us < sliced.total_us / 2 else "sums",
        roofline_share=floor_us(problem, device) / total_us,
    )


def floor_us(problem: Problem, device: Device) -> float:
    """Microseconds that no kernel can beat: all tensor cores, the fewest bytes, at the clock that their power leaves.

    From the same clock, rates and energies as every prediction, so that none beats it. Worked example: 8192^3 on an
    h200 takes 1316 us, 836 TFLOPS at 1.55 GHz; a loop of wgmmas that reads no memory sustains 857 (2026-11-29).
    """
    if problem.is_empty:
        return 0.0
    work = _Work(
        tensor_cycles=problem.flops / (device.tensor_flops_per_cycle * device.num_sms),
        fill_cycles=0.0,
        store_cycles=0.0,
        fill_bytes=0.0,
        l2_bytes=0.0,
        dram_bytes=problem.min_bytes,
        flops=problem.flops,
        pj_per_flop=_TENSOR_PJ,
    )
    return max(work.times_us(device, _clock_ghz(work, device, 0.0)).values())


def best(problem: Problem, device: Device, num_sms: int | None = None, reduction: Reduction = "fast") -> Choice:
    """The config to run without tuning; with reduction "invariant" of those that add in the one order (order.py).

    Raises: UnsupportedError: no production family serves the device. ShapeError: more tiles than a schedule counts.
    ConfigError: none of its configs fits the problem.
    """
    candidates = _candidates(problem, device, num_sms, reduction)
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
            f"order within {_INDIFFERENCE:.1%} of it"
        ),
        considered=len(candidates),
    )


def ranked(
    problem: Problem, device: Device, count: int, num_sms: int | None = None, reduction: Reduction = "fast"
) -> list[Ranked]:
    """The `count` fastest configs by the model, fastest first, all different; equals in the family's order.

    Raises: what best() raises.
    """
    found: dict[tuple[str, Config], Ranked] = {}
    for order, (family, config, prediction) in enumerate(_candidates(problem, device, num_sms, reduction)):
        found.setdefault((family.name, config), Ranked(family, config, prediction, order))
    return sorted(found.values(), key=lambda each: each.prediction.total_us)[:count]


def _candidates(
    problem: Problem, device: Device, num_sms: int | None, reduction: Reduction
) -> list[tuple[Family, Config, Prediction]]:
    """Every config of every family that fits, in the families' order. Raises: what best() raises.

    Where one order of summation is asked for, each config is given it, and those that are not legal then are left out.
    """
    found = [
        (family, config, predict(family, problem, config, device, num_sms))
        for family in PRODUCTION
        for config in _space(family, problem, device, reduction)
        if num_sms is None or config.cluster <= num_sms
    ]
    if not found:
        raise _no_candidate(problem, device)
    return found


def _space(family: Family, problem: Problem, device: Device, reduction: Reduction) -> Iterator[Config]:
    """What the family offers; with one order of summation what of it, given that order, is legal, each once."""
    order = order_for(reduction)
    if order is None:
        yield from family.space(problem, device)
        return
    given = dict.fromkeys(order.of(offered) for offered in family.space(problem, device))
    yield from (config for config in given if not config.violations(problem, device))


def _work(problem: Problem, config: Config, device: Device, grid: int) -> _Work:
    rows, _ = config.tiles(problem)
    k_tiles = -(-problem.k // config.tile_k)
    own_k_tiles = -(-k_tiles // config.split_k)  # of the CTA with the most
    grid //= config.split_k  # CTAs that share a tile count as one
    tiles = config.wide_tiles(problem, grid)
    shapes = [(config.tile_n, tiles, -(-tiles // grid))]  # columns of a tile, tiles in all, tiles of the busiest CTA
    if narrow := config.narrow_tiles(problem, tiles):
        shapes.append((config.tail_n, narrow, -(-narrow // grid)))

    tensor_cycles = fill_cycles = store_cycles = a_bytes = b_bytes = flops = 0.0
    for tile_n, count, busiest in shapes:
        wgmmas = own_k_tiles * (config.tile_k // 16) * (config.tile_m // WGMMA_M)
        tile_cycles = wgmmas * _wgmma_cycles(problem, tile_n, device)
        if tile_n < config.tile_n:
            in_flight = max(1, config.tail_stages(problem) - 1)
            tile_cycles = max(tile_cycles, k_tiles * _NARROW_LATENCY_CYCLES / in_flight)
        row_bytes = k_tiles * config.tile_k * problem.dtype.size
        fill = (config.tile_m + tile_n) * row_bytes / config.split_k / _FILL_BYTES_PER_CYCLE
        tensor_cycles += busiest * tile_cycles
        fill_cycles += busiest * fill
        store_cycles += _shown_store_cycles(config, tile_n, busiest, tile_cycles)
        if config.split_k > 1:
            sent = config.tile_m * tile_n * 4 / _REDUCE_BYTES_PER_CYCLE
            store_cycles += busiest * (_REDUCE_BASE_CYCLES + sent)
        a_bytes += count * config.tile_m * row_bytes
        b_bytes += count * tile_n * row_bytes
        flops += 2.0 * count * config.tile_m * tile_n * k_tiles * config.tile_k
    return _Work(
        tensor_cycles=tensor_cycles,
        fill_cycles=fill_cycles,
        store_cycles=store_cycles,
        fill_bytes=a_bytes + b_bytes,
        l2_bytes=_l2_bytes(config, rows, a_bytes, b_bytes),
        dram_bytes=_dram_bytes(problem, config, device, grid),
        flops=flops,
        dram_slowdown=_dram_slowdown(problem, config, device, tiles, grid),
    )


def _dram_slowdown(problem: Problem, config: Config, device: Device, tiles: int, grid: int) -> float:
    """How many times longer reading memory takes than at its full rate: a CTA has the ring's bytes in flight, and where
    too few CTAs work, in the last wave or in all, that is not enough. `grid` counts those that share a tile once.

    Worked example, an h200: 132 CTAs need 20 bytes a cycle each at 1.755 GHz. A ring of 12 slots of 16,384 bytes brings
    80, of which an SM takes 64: 42 CTAs are enough, and 21 read at half the rate.
    """
    in_flight = (config.stages - 1) * config.stage_bytes(problem) / _LATENCY_CYCLES
    of_cta = min(_FILL_BYTES_PER_CYCLE, in_flight)
    wanted = device.dram_gbps / device.clock_ghz  # bytes a cycle
    full, last = divmod(tiles, grid)
    slow = [max(1.0, wanted / (ctas * config.split_k * of_cta)) for ctas in (grid, last or grid)]
    return (full * grid * slow[0] + last * slow[1]) / tiles


def _wgmma_cycles(problem: Problem, tile_n: int, device: Device) -> float:
    """Cycles of one wgmma: what the tensor cores take, or shared memory to feed them."""
    return max(
        2 * WGMMA_M * tile_n * 16 / device.tensor_flops_per_cycle,
        (WGMMA_M + tile_n) * 16 * problem.dtype.size / _SMEM_BYTES_PER_CYCLE,
    )


def _shown_store_cycles(config: Config, tile_n: int, tiles: int, tile_cycles: float) -> float:
    """Cycles that the stores of a CTA's tiles add to its multiplications."""
    blocks = config.consumer_m // (WARPGROUP_WARPS * STORE_ROWS)
    columns = config.stored_n if config.split_k > 1 else tile_n
    store_cycles = _STORE_BASE_CYCLES + blocks * STORE_ROWS * columns / _STORE_VALUES_PER_CYCLE
    if config.pingpong:  # one consumer stores while the other multiplies; what shows is what multiplying does not cover
        return tiles * max(0.0, (store_cycles - tile_cycles) / 2) + store_cycles
    if config.staggered:
        return tiles * store_cycles * (1 - _STAGGERED_HIDES)
    return tiles * store_cycles


def _patch_rows(config: Config, rows: int) -> int:
    """Tile rows that the tiles in flight stand on."""
    return min(rows, config.group_m * config.cluster_m if config.schedule == "grouped" else rows)


def _l2_bytes(config: Config, rows: int, a_bytes: float, b_bytes: float) -> float:
    """Bytes read from the L2. Neighbours stand below each other and share b; in a low patch also a."""
    patch_rows = _patch_rows(config, rows)
    a_share = min(1.0, max(_MERGED_SHARE, patch_rows / _NEIGHBOURS))
    b_share = max(_MERGED_SHARE, 1.0 / patch_rows)
    if config.cluster_m > 1:
        b_share = _MULTICAST_SHARE
    elif config.cluster_n > 1:
        a_share, b_share = _MULTICAST_SHARE, _BESIDE_MULTICAST_SHARE
    return a_bytes * a_share + b_bytes * b_share


def _clock_ghz(work: _Work, device: Device, fixed_us: float) -> float:
    """The highest clock, up to the device's, at which the work stays within the power limit. By bisection to 1 MHz."""

    def power_w(clock_ghz: float) -> float:
        return work.power_w(fixed_us + max(work.times_us(device, clock_ghz).values()), clock_ghz)

    high = device.clock_ghz
    if power_w(high) <= device.power_w:
        return high
    low = _LOWEST_CLOCK_GHZ
    while high - low > 0.001:
        middle = (low + high) / 2
        if power_w(middle) <= device.power_w:
            low = middle
        else:
            high = middle
    return low


def _dram_bytes(problem: Problem, config: Config, device: Device, grid: int) -> float:
    """Bytes that DRAM moves: out once, and the operands once, or once a wave where they do not stay in the L2.

    Shapes: the tiles in flight are a patch of group_m tile rows by grid / group_m tile columns; of a batch of small
    matrices all tiles of several at once, which are read once.
    """
    operands, out = problem.input_bytes, problem.out_bytes
    rows, columns = config.tiles(problem)
    in_flight = max(1.0, grid / (rows * columns)) * (problem.m + problem.n) * problem.k * problem.dtype.size
    if min(operands, in_flight) <= device.l2_bytes // 2:
        return operands + out
    patch_rows = _patch_rows(config, rows)
    patch_columns = min(columns, max(1.0, grid / patch_rows))
    per_wave = (patch_rows * config.tile_m + patch_columns * config.tile_n) * problem.k * problem.dtype.size
    saving = _BACK_AND_FORTH_SAVING if config.k_back_and_forth else 0.0
    return out + max(operands, config.num_tiles(problem) / grid * per_wave * (1 - saving))


def _no_candidate(problem: Problem, device: Device) -> Exception:
    reasons: Iterable[str] = Config().violations(problem, device)
    if device.sm != (9, 0):
        return UnsupportedError(
            asked=f"a product on {device.name} (compute capability {device.sm[0]}.{device.sm[1]})",
            rule="the kernels need compute capability 9.0 (H100, H200, H20)",
            works="run on a Hopper GPU, or plan for one of the presets",
        )
    if Config().has_too_many_tiles(problem):
        return ShapeError(
            asked=f"{problem.num_matrices} x a product of {problem.m} x {problem.n}"
            if problem.batch
            else f"a product of {problem.m} x {problem.n}",
            rule=f"it has {MAX_TILES} tiles or more with every tile of the family, and the schedule counts fewer",
            works="split the product along m or n",
        )
    return ConfigError(str(Config()), list(reasons))
