"""work.py: counts and times of one launch, checked by hand. The rows behind the constants: tools/fit_model.py."""

from __future__ import annotations

import pytest

from tilewright import device
from tilewright.config import Config
from tilewright.device import Device
from tilewright.packing import packed
from tilewright.problem import Problem
from tilewright.work import Work, clock_ghz_of, work_of

H200 = device.preset("h200")
DECODE = packed(16, 4096, 4096)
SWAPPED = Config(tile_m=64, tile_n=16, consumers=1, stages=22, store_slots=1, swap=True)


def counted(problem: Problem, config: Config, grid: int, present: Device = H200) -> Work:
    return work_of(config.computed(problem), config, present, grid)


def test_the_docstring_s_worked_example_of_few_rows_holds() -> None:
    """64 k tiles at the chain's 235 cycles: four wgmmas of 20 cycles and 80 rows of 1.4 are less, and so is the time in
    which a CTA is given their bytes, which is more than that of 21 slots on their way."""
    (wave,) = counted(DECODE, SWAPPED, 64).waves
    assert wave.tensor_cycles == 64 * 4 * 20
    assert wave.loop_cycles == 64 * 235
    assert wave.landing_us == pytest.approx(64 * 80 * 128 / 126e3)
    assert wave.landing_us > 64 * 0.98 / 21


def test_the_bytes_of_the_waves_are_all_bytes() -> None:
    config = Config(tile_m=256, tile_n=192, stages=3, store_slots=3, staggered=True, tail_n=120)
    work = counted(packed(4096, 4096, 4096), config, 132)
    assert [wave.count for wave in work.waves] == [2, 1]
    assert sum(wave.count * wave.l2_bytes for wave in work.waves) == pytest.approx(work.l2_bytes)
    assert sum(wave.count * wave.dram_bytes for wave in work.waves) == pytest.approx(work.dram_bytes)


def test_rows_past_the_end_cost_tma_more_than_rows_that_are_there() -> None:
    """64 x 64 on 64 CTAs at n = 4096, k = 14336, H200, 2026-11-30: 64 rows 34.8 us, 16 rows 50.0, one row 57.7."""
    config = Config(tile_m=64, tile_n=64, consumers=1, stages=12)
    times = [counted(packed(rows, 4096, 14336), config, 64).total_us(H200, 1.755) for rows in (64, 32, 16, 1)]
    assert times == sorted(times)
    assert times[-1] > 1.5 * times[0]


def test_few_slots_wait_for_memory() -> None:
    """Each of 64 k tiles takes 0.98 us over the slots in flight."""
    shallow = counted(DECODE, SWAPPED.replace(stages=3), 64)
    assert shallow.times_us(H200, 1.755)["main loop"] == pytest.approx(64 * 0.98 / 2)


def test_a_cta_is_given_no_more_where_its_cluster_loads_for_it() -> None:
    """64x128 at (128, 4096, k) on 64 CTAs: 194 ns a k tile of 24,576 bytes alone, 207 in pairs (H200)."""
    problem, config = packed(128, 4096, 14336), Config(tile_m=64, tile_n=128, consumers=1, stages=8)
    alone, paired = (counted(problem, config.replace(cluster_m=cluster_m), 64).waves[0] for cluster_m in (1, 2))
    assert alone.landing_us == paired.landing_us == pytest.approx(224 * 0.195, rel=0.01)
    assert alone.landing_us > alone.loop_cycles / 1.755e3


def test_a_last_wave_of_few_ctas_takes_its_own_time() -> None:
    """136 tiles on 132 CTAs: the 4 of the second wave have all memory to themselves, and are no faster for it."""
    one, two = (counted(packed(16, 64 * tiles, 4096), SWAPPED, 132) for tiles in (132, 136))
    own_us = 64 * 235 / 1.755e3
    assert two.total_us(H200, 1.755) - one.total_us(H200, 1.755) > 0.9 * own_us


def test_rows_that_cross_lines_cost_tma_more_and_pairs_load_half_of_what_they_share() -> None:
    """4096^3 in 128x256: with a pitch of 4104 the fetch takes longer than the tensor cores, but not in pairs."""
    crossing = packed(4096, 4096, 4104)
    assert crossing.a_pitch * 2 % 128
    config = Config(tile_m=128, tile_n=256)
    aligned, alone, paired = (
        counted(problem, config.replace(cluster_m=cluster_m), 132).waves[0]
        for problem, cluster_m in ((packed(4096, 4096, 4160), 1), (crossing, 1), (crossing, 2))
    )
    assert aligned.loop_cycles == aligned.tensor_cycles == paired.loop_cycles
    assert alone.loop_cycles > 1.2 * alone.tensor_cycles


def test_stores_wait_for_each_other_where_tiles_are_short() -> None:
    """The docstring's example; and of a tile of 128 k tiles hardly any of it shows."""
    config = Config(tile_m=256, tile_n=192, stages=3, store_slots=3, staggered=True)
    short = counted(packed(4096, 32768, 512), config, 132).waves[0]
    loop_us = short.loop_cycles / 1.755e3
    assert loop_us == pytest.approx(7.0, abs=0.05)
    assert short.queue_us(loop_us, H200) == pytest.approx(2.3, abs=0.05)
    long = counted(packed(8192, 8192, 8192), config, 132).waves[0]
    assert long.queue_us(long.loop_cycles / 1.755e3, H200) < 0.2 * short.queue_us(loop_us, H200)
    assert counted(packed(4096, 32768, 512), config, 132).waves[-1].queue_us(loop_us, H200) == 0.0


def test_a_split_tile_s_sum_follows_its_last_k_tile() -> None:
    whole, split = (counted(DECODE, SWAPPED.replace(split_k=split_k), 64 * split_k) for split_k in (1, 2))
    assert split.waves[0].loop_cycles == whole.waves[0].loop_cycles / 2
    assert split.last_store_cycles > whole.last_store_cycles


def test_what_every_cluster_of_a_split_reads_is_merged_and_what_two_read_is_not() -> None:
    """128 rows: in one column of tiles all share a's 128 rows; in two, the pairs that share weights rarely meet."""
    problem, fields = packed(128, 4096, 14336), {"stages": 7, "store_slots": 1, "swap": True, "split_k": 2}
    one = counted(problem, Config(tile_m=64, tile_n=128, consumers=1, **fields), 128)  # type: ignore[arg-type]
    two = counted(problem, Config(tile_m=128, tile_n=64, consumers=2, **fields), 128)  # type: ignore[arg-type]
    assert one.fill_bytes == two.fill_bytes
    assert one.l2_bytes < 0.8 * two.l2_bytes


def test_the_clock_is_the_device_s_where_power_allows() -> None:
    assert clock_ghz_of(counted(DECODE, SWAPPED, 64), H200, 2.0) == H200.clock_ghz
