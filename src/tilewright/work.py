"""What a launch of a config has to do, by waves, and how long each resource takes over it.

The counts (cycles, bytes, FLOPs), the rates and energies behind them, and the clock that the power limit leaves. What
they are used for, ranking configs, model.py knows. A product that is more than one launch of tiles, parts of k with a
sum behind them for one, would be a Work of other waves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.config import Config
from tilewright.device import Device
from tilewright.epilogue_form import Form
from tilewright.fusing import moved_bytes
from tilewright.problem import Problem
from tilewright.tiling import STORE_ROWS, WARPGROUP_WARPS, WGMMA_M, crosses_lines

# Shared memory gives wgmma 128 bytes a cycle (CUDA programming guide): a 64 x 16 block of a is read in 16 cycles.
SMEM_BYTES_PER_CYCLE = 128
# Storing a tile: measured, H200, 2026-11-29, 8192^3: no store at all is 1.5 % faster with 128x256 (131,072
# cycles a tile, 4096 values a warp), 2.4 % with 256x192 (196,608 and 6144).
STORE_BASE_CYCLES = 500
STORE_VALUES_PER_CYCLE = 2.5  # a warp
# Stored without TMA, by the lanes: 16 bytes of a row leave shared memory twice, where TMA reads them once, and go out
# past the same port; with the ends of rows 19 wavefronts for one of 400 bytes, where 8 warps want the port
# (row_store.cuh). That count is 1.3 values a cycle; measured, H200, 2026-11-30, one tile a CTA, nothing hidden, against
# the same config and sizes through TMA: 1023^3 in 64x128 0.56 us more, 2047^3 in 128x256 1.59, which are 1.1 and 0.9.
# Where stores are hidden nothing can be told: of (4097, 4097, 4096) 0.3 % lies between 1.3 and 1.0.
LANE_STORE_VALUES_PER_CYCLE = 1.0
# An epilogue's activation: two approximations a value, of which an SM makes 16 lanes' a cycle, a quarter of it 4 (CUDA
# programming guide, throughput of native arithmetic instructions). What else it computes is less, and beside that; of
# gelu with erf, with one approximation, it is more, 10 of a warp's instructions, which is counted as much. A gate has
# another matrix of sums to read beside them, which is counted as much again: eight configs each of silu's gate at 1024,
# 4096 and 8192 x 28672 x 4096 then take 0.93 to 1.04 of the predicted (H200, 2026-12-01, interleaved), and 8192 rows go
# to ping-pong 128x192, 2704 us for 2838.
_SPECIAL_LANES_PER_CYCLE = 4
_SPECIALS = {"gelu": 2, "silu": 2, "gated": 4}
# All CTAs store at about the same time where a tile takes little longer to multiply than to write: a store then finds
# those of the others before it, by the share of the time that is spent writing, at so much of DRAM's rate. Where the
# other consumer multiplies meanwhile hardly any of it shows. Fitted with those below, mostly to 4096 x 32768 x 512: 191
# to 248 us in eight configs.
_WRITE_DRAM_SHARE = 0.81
_QUEUE = 2.0
_PINGPONG_QUEUE = 0.23
# Of the base and the values, hidden where a consumer's row blocks are staggered; fitted with those below.
_STAGGERED_HIDES = 0.89
# Those without another source: fitted together, H200, 2026-11-30, interleaved and cold, to two thirds of 85 products
# (the suite with eight configs each, and those of few rows, few tiles or a long k with a dozen) and tried on the others
# (tools/fit_model.py): a rounded value each.
# First bytes from memory, first wgmmas, what is left of the last store: 2.0 us with the launch for the tiniest kernels.
RAMP_US = 1.3
# Of that a Hopper kernel is spared which asks for its first bytes before its CTA meets (Config.starts_early). Measured,
# H200, 2026-12-01: 22 tiles of eight short products alone and in pairs, which may not: 0.17 to 0.71 us, median 0.37.
EARLY_US = 0.35
# A ring has room for what is asked for in this time: with s stages a CTA takes s - 1 slots in it (Little's law).
LATENCY_US = 0.98
# A k tile's way through one CTA, however small: wait, four wgmmas that follow each other, release. 134 ns.
_CHAIN_CYCLES = 235
# What one CTA is given at most, its own loads and what its cluster multicasts to it alike. Measured, H200, by slopes
# over k at n = 4096, where CTAs are too few to use up DRAM: 24,576 bytes a k tile in 194 ns (64x128, m = 128), in
# clusters of 2x1, 2x2 and 4x2 in 198 to 209; 20,480 in 166 (128x32, m = 32), 18,432 in 151 (128x16, m = 16): 118 to
# 127 GB/s. 64 bytes a cycle at 1.98 GHz would be that, and a full ring over 1.45 us as well; told apart they are not.
# Mostly out of the L2, 128x64 at 512 x 512 x 16384 got 150. A rate, not cycles: memory keeps its clock where power
# lowers the SMs'.
_CTA_GBPS = 126.0
# What TMA needs for a row of 128 bytes of a tile, and for one past the operand's end, which it fills with zeros: one
# row of a in 64 takes longer than 64 (k = 14336, n = 4096, 64x64 on 64 CTAs: 57.7 and 34.8 us; on 128, with half of k
# each: 42.4 and 31.4). It was fitted to 1.48 without the rate above; beside it less than 1.4 fits as well, but for
# 128x64 at 512 x 512 x 16384, where 192 rows then take less than the wgmmas.
_ROW_CYCLES = 1.4
_ABSENT_ROW_CYCLES = 6.9
# A row whose pitch is no multiple of 128 bytes lies across two lines, and costs as much as so many that do not: 128x256
# at 4096 x 4096 x 4104 takes 247 us, in pairs that share b 195 (as long as at 4096^3).
_CROSSING_ROWS = 2.4
# Of the rate of a read of whole buffers: rows of 128 bytes, each of another DRAM page.
_TILE_DRAM_SHARE = 0.88
# The same where all CTAs walk k in step from its start: every row's bytes that are asked for at a time lie at the same
# place of the row. With a split they lie at two places or more.
IN_STEP_DRAM_SHARE = 0.85
# Of that where a ring is deeper than a batch of matrices of its own is read best with (Config.streamed_stages), as
# measured there: 0.86 to 0.95.
_DEEP_RING_SHARE = 0.94
# Two resources near their limit slow each other down: the p-norm of the times that they take alone. L2 beside DRAM, and
# both beside what a CTA can do.
_MEMORY_NORM = 7.7
_CTA_NORM = 6.1
# Adding up a split tile, a CTA: the last bytes sent, the wait, and what it sends through the cluster's network.
_REDUCE_BASE_CYCLES = 190
_REDUCE_BYTES_PER_CYCLE = 9.8
# Of the bytes delivered to the SMs, the share that is read from the L2: equal reads that neighbouring CTAs make at
# about the same time are merged, down to this. Fitted to L2 reads over fill, H200, 2026-11-29: 128x256 0.59, 256x192
# 0.67, 256x128 0.70, ping-pong 128x192 0.58. In clusters 0.65 were counted, which a share of 0.5 gave for what is
# multicast; the share below is fitted to times, with those above, and gives 0.57: their L2 reads are told too low.
_MERGED_SHARE = 0.3
_MULTICAST_SHARE = 0.36  # of pairs; of fours half of it, a judgement
_BESIDE_MULTICAST_SHARE = 0.87  # of b, where a is multicast (fitted to 0.75 of 128x256 in clusters of 1x2)
_NEIGHBOURS = 8  # CTAs this far apart in the launch do not merge any more (a GPC has 16 to 18 SMs)
# A slot of a narrow tile lands so long after it was asked for: with s slots a k tile takes at least this / (s - 1).
# Fitted, H200, 2026-11-30, 3 slots: a tile of 128 columns after 256x192 takes 74,400 cycles for 64 k tiles (4096^3, by
# clocks at tile boundaries, stores included). By the rates of 8192^3 one of 80 columns takes hardly less than one of
# 96.
_NARROW_LATENCY_CYCLES = 2250
# Walking k back and forth saves of the DRAM reads (measured, H200, 2026-11-29: 8 to 14 %).
_BACK_AND_FORTH_SAVING = 0.11
# Energy: H200, 2026-11-29, fit over 121 cells, residual 13 W. Base in W; tensor cores and the rest of a real kernel in
# pJ a FLOP; delivery into shared memory, L2 and DRAM reads in pJ a byte; all but DRAM at 1.33 GHz and growing with the
# clock as (1 + 0.8 (f - 1.33) / 1.33)^2.
_BASE_W = 115.0
TENSOR_PJ = 0.53
_REST_PJ = 0.052
PJ_PER_FLOP = TENSOR_PJ + _REST_PJ
_FILL_PJ = 6.9
_L2_PJ = 16.8
_DRAM_PJ = 64.0
_ENERGY_CLOCK_GHZ = 1.33
_LOWEST_CLOCK_GHZ = 0.6


@dataclass(frozen=True)
class Wave:
    """Tiles that the CTAs compute at the same time, one each; and `count` such waves one after another.

    Units: cycles of a CTA for its tile; microseconds that its ring waits for memory at least; bytes of all its CTAs.
    """

    count: float
    tensor_cycles: float
    loop_cycles: float  # tensor cores, TMA or the chain of k tiles, whichever is slowest
    landing_us: float
    store_cycles: float  # after the loop, seen by the next tile
    l2_bytes: float
    dram_bytes: float
    out_bytes: float = 0.0
    queue: float = 0.0  # of the time that a store waits for others', how much shows

    def queue_us(self, loop_us: float, device: Device) -> float:
        """Microseconds that its stores wait for each other, behind loops that take `loop_us`.

        Worked example, 4096 x 32768 x 512 in 256x192, 132 tiles: 13 MB are written in 3.4 us, a loop takes 7.0 us at
        1.755 GHz; a third of the time is spent writing, so a store waits for two thirds of 3.4 us: 2.3 us.
        """
        if not self.out_bytes:
            return 0.0
        writing_us = self.out_bytes / (device.dram_gbps * _WRITE_DRAM_SHARE) / 1e3
        return self.queue * writing_us**2 / (loop_us + writing_us)


@dataclass(frozen=True)
class Work:
    """What one launch has to do, before any clock. Units: cycles; bytes of all waves."""

    waves: tuple[Wave, ...]
    last_store_cycles: float  # of a CTA's last tile: nothing hides them
    fill_bytes: float
    l2_bytes: float
    dram_bytes: float
    flops: float  # with those on the zeros past the edges
    dram_share: float = 1.0
    pj_per_flop: float = PJ_PER_FLOP

    def times_us(self, device: Device, clock_ghz: float) -> dict[str, float]:
        """Each resource's time alone."""
        cycle_us = 1e-3 / clock_ghz
        waves = self.waves
        return {
            "tensor cores": sum(wave.count * wave.tensor_cycles for wave in waves) * cycle_us,
            "main loop": sum(wave.count * max(wave.loop_cycles * cycle_us, wave.landing_us) for wave in waves),
            "store": (sum(wave.count * wave.store_cycles for wave in waves) + self.last_store_cycles) * cycle_us,
            "L2": self.l2_bytes / device.l2_gbps / 1e3,
            "DRAM": self.dram_bytes / (device.dram_gbps * self.dram_share) / 1e3,
        }

    def total_us(self, device: Device, clock_ghz: float) -> float:
        """The time of all together: in each wave what is slowest and, near it, the next."""
        cycle_us = 1e-3 / clock_ghz
        total = self.last_store_cycles * cycle_us
        for wave in self.waves:
            loop_us = max(wave.loop_cycles * cycle_us, wave.landing_us)
            own = loop_us + wave.store_cycles * cycle_us + wave.queue_us(loop_us, device)
            l2 = wave.l2_bytes / device.l2_gbps / 1e3
            dram = wave.dram_bytes / (device.dram_gbps * self.dram_share) / 1e3
            memory = (l2**_MEMORY_NORM + dram**_MEMORY_NORM) ** (1 / _MEMORY_NORM)
            total += wave.count * (own**_CTA_NORM + memory**_CTA_NORM) ** (1 / _CTA_NORM)
        return total

    def power_w(self, time_us: float, clock_ghz: float) -> float:
        """Watts while it runs in `time_us`."""
        scale = (1 + 0.8 * (clock_ghz - _ENERGY_CLOCK_GHZ) / _ENERGY_CLOCK_GHZ) ** 2
        clocked_pj = self.pj_per_flop * self.flops + _FILL_PJ * self.fill_bytes + _L2_PJ * self.l2_bytes
        return _BASE_W + (scale * clocked_pj + _DRAM_PJ * self.dram_bytes) / time_us / 1e6


def work_of(problem: Problem, config: Config, device: Device, grid: int) -> Work:
    """Counts of one launch, by waves: a last one that is not full leaves the memory to fewer CTAs, which may be too few
    to use it, and its time is then theirs alone."""
    grid //= config.split_k  # CTAs that share a tile count as one
    tiles = config.wide_tiles(problem, grid)
    shapes = [(config.tile_n, tiles)]  # columns of a tile, tiles in all
    if narrow := config.narrow_tiles(problem, tiles):
        shapes.append((config.tail_n, narrow))
    parts = [_tile(problem, config, device, tile_n) for tile_n, _ in shapes]
    counts = [count for _, count in shapes]
    fill_bytes = sum(count * (part.a_bytes + part.b_bytes) for part, count in zip(parts, counts, strict=True))
    a_bytes = sum(count * part.a_bytes for part, count in zip(parts, counts, strict=True))
    read_bytes = l2_bytes(config, problem, a_bytes, fill_bytes - a_bytes)
    moved_bytes = dram_bytes(problem, config, device, grid)

    waves: list[Wave] = []
    for (part_n, _), part, count in zip(shapes, parts, counts, strict=True):
        full, rest = divmod(count, grid)
        for ctas, many in ((grid, full), (rest, min(rest, 1))):
            if many:
                share = ctas * (part.a_bytes + part.b_bytes) / fill_bytes
                times = (part.tensor_cycles, part.loop_cycles, part.landing_us, part.store_cycles)
                out_bytes = ctas * config.tile_m * part_n * problem.out_dtype.size
                queue = _PINGPONG_QUEUE if config.pingpong else _QUEUE * _waiting(problem, config)
                waves.append(Wave(many, *times, read_bytes * share, moved_bytes * share, out_bytes, queue))
    last = waves.pop()
    if last.count > 1:
        waves.append(replace(last, count=last.count - 1))
    waves.append(replace(last, count=1, store_cycles=0.0, queue=0.0))
    k = -(-problem.k // config.tile_k) * config.tile_k
    return Work(
        waves=tuple(waves),
        last_store_cycles=last.store_cycles + parts[-1].last_store_cycles,
        fill_bytes=fill_bytes,
        l2_bytes=read_bytes,
        dram_bytes=moved_bytes,
        dram_share=_dram_share(problem, config),
        flops=sum(2.0 * count * config.tile_m * tile_n * k for tile_n, count in shapes),
    )


def _waiting(problem: Problem, config: Config) -> float:
    """How much of a store's wait for others is not spent on loads, 0 .. 1: a batch with matrices of its own goes on
    with k tiles of the next tile, as many as the ring holds."""
    if not problem.shares_no_matrix:
        return 1.0
    k_tiles = -(-problem.k // (config.tile_k * config.split_k))
    return max(0.0, 1.0 - (config.stages - 1) / k_tiles)


def _dram_share(problem: Problem, config: Config) -> float:
    """Of the rate at which whole buffers are read, what tiles are read with."""
    share = _TILE_DRAM_SHARE if config.split_k > 1 else IN_STEP_DRAM_SHARE
    is_deep = problem.shares_no_matrix and config.stages > config.streamed_stages(problem)
    return share * (_DEEP_RING_SHARE if is_deep else 1.0)


@dataclass(frozen=True)
class _Tile:
    """What one tile costs its CTA. Units: cycles, microseconds; bytes of those that share it."""

    tensor_cycles: float
    loop_cycles: float
    landing_us: float
    store_cycles: float
    last_store_cycles: float
    a_bytes: float
    b_bytes: float


def _tile(problem: Problem, config: Config, device: Device, tile_n: int) -> _Tile:
    """A tile of the average height, `tile_n` wide.

    Worked example, 64x16 of 16 rows (swap), k = 4096, 22 stages on an h200: 64 k tiles of 4 wgmmas of 20 cycles, 80
    rows of 1.4 cycles, or the chain's 235: 15,040 cycles, 8.6 us; its ring could ask for all of them in 64 x 0.98 / 21
    us, but is given their 655,360 bytes in 5.2.
    """
    rows, columns = config.tiles(problem)
    k_tiles = -(-problem.k // config.tile_k)
    own_k_tiles = -(-k_tiles // config.split_k)  # of the CTA with the most
    row_bytes = k_tiles * config.tile_k * problem.dtype.size
    height = problem.m / rows  # rows of a and b that are there; TMA fills in the others
    width = min(tile_n, problem.n / columns if tile_n == config.tile_n and not config.tail_n else problem.n)
    tensor = (config.tile_k // 16) * (config.tile_m // WGMMA_M) * _wgmma_cycles(problem, tile_n, device)
    absent = config.tile_m + tile_n - height - width
    own_rows = _cost_of_rows(problem, "a", height * config.share(problem, "a"))  # the rest comes by multicast
    own_rows += _cost_of_rows(problem, "b", width * config.share(problem, "b"))
    fetch = own_rows * _ROW_CYCLES + absent * _ABSENT_ROW_CYCLES
    loop = own_k_tiles * max(tensor, fetch, _CHAIN_CYCLES)
    given_us = (height + width) * config.tile_k * problem.dtype.size / _CTA_GBPS / 1e3
    landing_us = own_k_tiles * max(LATENCY_US / (config.stages - 1), given_us)
    if tile_n < config.tile_n:
        in_flight = max(1, config.tail_stages(problem) - 1)
        loop, landing_us = max(loop, k_tiles * _NARROW_LATENCY_CYCLES / in_flight), 0.0
    shown, last = _store_cycles(problem, config, tile_n, loop)
    if config.split_k > 1:
        shown += _REDUCE_BASE_CYCLES + config.tile_m * tile_n * 4 / _REDUCE_BYTES_PER_CYCLE
    return _Tile(own_k_tiles * tensor, loop, landing_us, shown, last, height * row_bytes, width * row_bytes)


def _cost_of_rows(problem: Problem, operand: str, rows: float) -> float:
    """What TMA needs for so many rows of 128 bytes, in rows that each lie in one line."""
    return rows * (_CROSSING_ROWS if crosses_lines(problem, operand) else 1)


def _wgmma_cycles(problem: Problem, tile_n: int, device: Device) -> float:
    """Cycles of one wgmma: what the tensor cores take, or shared memory to feed them."""
    return max(
        2 * WGMMA_M * tile_n * 16 / device.tensor_flops_per_cycle,
        (WGMMA_M + tile_n) * 16 * problem.dtype.size / SMEM_BYTES_PER_CYCLE,
    )


def _store_cycles(problem: Problem, config: Config, tile_n: int, loop_cycles: float) -> tuple[float, float]:
    """Cycles that the store of each tile adds to its multiplications, and that of a CTA's last tile once more."""
    blocks = config.consumer_m // (WARPGROUP_WARPS * STORE_ROWS)
    columns = config.stored_n if config.split_k > 1 else tile_n
    rate = STORE_VALUES_PER_CYCLE if problem.out_through_tma else LANE_STORE_VALUES_PER_CYCLE
    store_cycles = STORE_BASE_CYCLES + blocks * STORE_ROWS * columns / rate
    finish_cycles = 0.0 if problem.epilogue is None else _finish_cycles(problem.epilogue, config, blocks, columns)
    if config.pingpong:  # one consumer stores while the other multiplies; what shows is what multiplying does not cover
        store_cycles += finish_cycles
        return max(0.0, (store_cycles - loop_cycles) / 2), store_cycles
    if config.staggered:  # which hides stores behind a k tile at most: next to nothing of what comes before they begin
        return store_cycles * (1 - _STAGGERED_HIDES) + finish_cycles, 0.0
    return store_cycles + finish_cycles, 0.0


def _finish_cycles(form: Form, config: Config, blocks: int, columns: int) -> float:
    """Cycles that an epilogue takes of a tile's values, while no other consumer multiplies.

    Worked example, gelu in 256x192 staggered: a warp has 2 blocks of 16 x 192 values; two warps share a quarter of the
    SM and its 4 lanes a cycle: 2 x 6144 x 2 / 4 cycles, 6144 beside the 98,304 of the tile's wgmmas at k = 4096.
    """
    specials = sum(_SPECIALS.get(step.kind, 0) for step in form.steps)
    values = blocks * STORE_ROWS * columns / (2 if form.is_gated else 1)
    at_once = 1 if config.pingpong else config.consumers
    return specials * at_once * values / _SPECIAL_LANES_PER_CYCLE


def _patch_rows(config: Config, rows: int) -> int:
    """Tile rows that the tiles in flight stand on."""
    return min(rows, config.group_m * config.cluster_m if config.schedule == "grouped" else rows)


def l2_bytes(config: Config, problem: Problem, a_bytes: float, b_bytes: float) -> float:
    """Bytes read from the L2. Neighbours stand below each other and share b; in a low patch also a.

    CTAs of a cluster that splits k read different bytes, and clusters are neighbours by chance: of those within
    _NEIGHBOURS what is read once is what a draw from all rows, or columns, of tiles finds. Worked example, 128 x 4096
    in splits of 2: 64x128 in swap, 64 rows in one column, reads a 0.98 times and b 0.3 times; 128x64, 32 rows in two
    columns, reads b 0.47 times, and a twice. Measured, k = 14336: 34.6 and 41.6 us.
    """
    rows, columns = config.tiles(problem)
    patch_rows = _patch_rows(config, rows)
    a_share = min(1.0, max(_MERGED_SHARE, patch_rows / _NEIGHBOURS))
    b_share = max(_MERGED_SHARE, 1.0 / patch_rows)
    if config.split_k > 1:
        near = _NEIGHBOURS // config.split_k
        a_share, b_share = (max(_MERGED_SHARE, _distinct(many, near) / near) for many in (rows, columns))
    if config.cluster_m > 1:
        b_share = _MULTICAST_SHARE * 2 / config.cluster_m
    elif config.cluster_n > 1:
        b_share = _BESIDE_MULTICAST_SHARE
    if config.cluster_n > 1:
        a_share = _MULTICAST_SHARE * 2 / config.cluster_n
    return a_bytes * a_share + b_bytes * b_share


def _distinct(many: int, draws: int) -> float:
    """How many different ones of `many` so many draws find on average."""
    return many * (1 - (1 - 1 / many) ** draws)


def clock_ghz_of(work: Work, device: Device, fixed_us: float) -> float:
    """The highest clock, up to the device's, at which the work stays within the power limit. By bisection to 1 MHz."""

    def power_w(clock_ghz: float) -> float:
        return work.power_w(fixed_us + work.total_us(device, clock_ghz), clock_ghz)

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


def dram_bytes(problem: Problem, config: Config, device: Device, grid: int) -> float:
    """Bytes that DRAM moves: out and an epilogue's arrays once, and the operands once, or once a wave where they do not
    stay in the L2.

    Shapes: the tiles in flight are a patch of group_m tile rows by grid / group_m tile columns; of a batch of small
    matrices all tiles of several at once, which are read once.
    """
    operands, out = problem.input_bytes, problem.out_bytes + sum(moved_bytes(problem))
    rows, columns = config.tiles(problem)
    in_flight = max(1.0, grid / (rows * columns)) * (problem.m + problem.n) * problem.k * problem.dtype.size
    if min(operands, in_flight) <= device.l2_bytes // 2:
        return operands + out
    patch_rows = _patch_rows(config, rows)
    patch_columns = min(columns, max(1.0, grid / patch_rows))
    per_wave = (patch_rows * config.tile_m + patch_columns * config.tile_n) * problem.k * problem.dtype.size
    saving = _BACK_AND_FORTH_SAVING if config.k_back_and_forth else 0.0
    return out + max(operands, config.num_tiles(problem) / grid * per_wave * (1 - saving))
