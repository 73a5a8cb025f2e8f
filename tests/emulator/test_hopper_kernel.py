"""The shipped Hopper kernel in the emulator: right numbers for every shape of its loops, under every schedule."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from products import H200, binary, multiply, product

from tilewright.backends.emulated import emulated
from tilewright.config import Config
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.errors import EmulationError
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.narrow import narrow_space
from tilewright.packing import packed
from tilewright.problem import Problem

SMALL = Config(tile_m=128, tile_n=128)
SCHEDULES = [("lazy", 0), ("eager", 0), ("random", 1)]

# (what the shape reaches, problem, config, SMs)
CASES = {
    "one tile": (packed(128, 128, 64), SMALL, None),
    "one row and column less": (packed(127, 127, 63), SMALL, None),
    "one row and column more": (packed(129, 129, 65), SMALL, None),
    "k shorter than the pipeline": (packed(128, 128, 128), SMALL, None),
    "k of pipeline and two tiles": (packed(128, 128, 6 * 64), SMALL, None),
    "several tiles a CTA": (packed(384, 264, 136), SMALL, 2),
    "one CTA": (packed(256, 256, 72), SMALL, 1),
    "b with n contiguous": (packed(200, 136, 200, b_major="n"), SMALL, 2),
    "out in fp32": (packed(136, 136, 128, out_dtype="fp32"), SMALL, 2),
    "fp16": (packed(136, 136, 128, dtype="fp16"), SMALL, 2),
    "rows that TMA cannot store": (packed(130, 131, 128), SMALL, 2),
    "fp32 rows that TMA cannot store": (packed(130, 131, 128, out_dtype="fp32"), SMALL, 2),
    "narrower last slots of an odd width": (packed(130, 283, 64), Config(tile_n=152, stages=2), 2),
    "one slot narrower than a line": (packed(70, 45, 72), Config(tile_m=64, tile_n=24, consumers=1, stages=2), 1),
    "fp32 in slots of 32, 32 and 8": (
        packed(66, 131, 64, out_dtype="fp32"),
        Config(tile_m=64, tile_n=72, consumers=1, stages=2),
        2,
    ),
    "cluster": (packed(256, 128, 320), SMALL.replace(cluster_m=2), 2),
    "cluster with a row of tiles too many": (packed(384, 256, 136), SMALL.replace(cluster_m=2), 4),
    "cluster with n contiguous": (packed(256, 192, 136, b_major="n"), SMALL.replace(cluster_m=2), 4),
    "one consumer": (packed(130, 72, 200), Config(tile_m=64, tile_n=64, consumers=1), 2),
    "narrowest tile": (packed(70, 20, 200), Config(tile_m=64, tile_n=8, consumers=1, stages=2), 2),
    "widest tile": (packed(264, 392, 200), Config(tile_m=256, tile_n=192, stages=3), 1),
    "linear schedule": (packed(384, 264, 136), SMALL.replace(schedule="linear"), 2),
    "one store slot": (packed(256, 256, 72), SMALL.replace(store_slots=1), 1),
}

STAGGERED = Config(tile_m=256, stages=3, staggered=True)
NARROW = Config(tile_m=64, tile_n=16, consumers=1, stages=2, group_m=4)

# The same, of what Config.tail_n, staggered and square bring.
FORMS = {
    "staggered 256x192, k of two slots": (packed(300, 192, 65), STAGGERED.replace(tile_n=192, store_slots=3), 1),
    "staggered 256x128, a kept block past the last row": (packed(385, 128, 128), STAGGERED.replace(tile_n=128), 1),
    "staggered 256x200": (packed(136, 208, 200), STAGGERED.replace(tile_n=200, store_slots=1), 1),
    "staggered 256x200, a tail of 72": (
        packed(136, 536, 72),
        STAGGERED.replace(tile_n=200, store_slots=1, tail_n=72),
        2,
    ),
    "staggered 256x192, a tail of 120, one further row": (
        packed(257, 296, 72),
        STAGGERED.replace(tile_n=192, tail_n=120),
        3,
    ),
    "staggered 256x128 of n-contiguous b, a tail of 64": (
        packed(136, 384, 72, b_major="n"),
        STAGGERED.replace(tile_n=128, tail_n=64),
        2,
    ),
    "staggered rows that TMA cannot store, a tail of 40": (
        packed(131, 171, 72),
        Config(tile_n=64, stages=2, consumers=1, tail_n=40, staggered=True),
        4,
    ),
    "staggered fp16, k backwards on every second tile": (
        packed(200, 136, 136, dtype="fp16"),
        Config(tile_n=72, stages=2, consumers=1, staggered=True, k_back_and_forth=True),
        1,
    ),
    "a tail of 120, k of one slot": (packed(128, 536, 64), Config(tile_n=200, stages=2, tail_n=120), 2),
    "a tail of 64, n contiguous": (packed(128, 384, 136, b_major="n"), SMALL.replace(tail_n=64), 2),
    "a tail in fp32, several narrow tiles a CTA": (
        packed(192, 216, 72, out_dtype="fp32"),
        SMALL.replace(tile_m=64, consumers=1, tile_n=72, tail_n=8),
        5,
    ),
    "a tail of fp32 rows that TMA cannot store": (
        packed(130, 211, 72, out_dtype="fp32"),
        SMALL.replace(tile_n=72, tail_n=40),
        4,
    ),
    "a tail whose slot is larger than a wide tile's": (
        packed(64, 280, 64),
        Config(tile_m=64, tile_n=128, stages=2, consumers=1, store_slots=1, tail_n=120),
        2,
    ),
    "a tail that is not worth it": (packed(384, 384, 72), SMALL.replace(tail_n=120), 5),
    "staggered cluster, squares": (
        packed(640, 200, 72),
        Config(tile_n=64, stages=2, consumers=1, staggered=True, cluster_m=2, group_m=2, square=2),
        4,
    ),
    "squares of 2 in groups of 3, ping-pong": (
        packed(4 * 64, 5 * 32, 72),
        Config(tile_m=64, tile_n=32, stages=2, pingpong=True, group_m=3, square=2),
        3,
    ),
    "squares of 3 in groups of 4": (packed(7 * 64, 4 * 16, 64), NARROW.replace(square=3), 3),
    "squares of 4 in groups of 4, a tail": (packed(6 * 64, 6 * 16, 64), NARROW.replace(square=4, tail_n=8), 5),
    "squares wider than out": (packed(3 * 64, 2 * 16, 72), NARROW.replace(square=9), 1),
}


@pytest.mark.parametrize(("policy", "seed"), SCHEDULES)
@pytest.mark.parametrize("case", CASES)
def test_every_element_is_within_its_bound(case: str, policy: str, seed: int) -> None:
    problem, config, num_sms = CASES[case]
    given = product(problem)
    multiply(given, config, num_sms=num_sms, schedule=policy, seed=seed)
    assert given.excess() <= 1
    assert (given.out[:, problem.n :] == 3).all()


@pytest.mark.parametrize(
    "case", ["k of pipeline and two tiles", "several tiles a CTA", "cluster", "b with n contiguous"]
)
def test_small_whole_numbers_are_exact(case: str) -> None:
    problem, config, num_sms = CASES[case]
    given = product(problem, whole=True, seed=5)
    multiply(given, config, num_sms=num_sms)
    assert (given.result() == (given.a @ given.b).astype(problem.out_dtype.numpy)).all()


@pytest.mark.parametrize("case", FORMS)
def test_every_form_is_exact_and_silent_under_three_schedules(case: str) -> None:
    problem, config, num_sms = FORMS[case]
    config.check(problem, H200)
    for policy, seed in SCHEDULES:
        given = product(problem, whole=True)
        backend = multiply(given, config, num_sms=num_sms, schedule=policy, seed=seed, checks=True)
        assert (given.result() == (given.a @ given.b).astype(problem.out_dtype.numpy)).all(), policy
        assert (given.out[:, problem.n :] == 3).all()
        assert backend.findings == ()


def test_forms_with_a_tail_have_one() -> None:
    """Widths of 8 to 120, rows that are further than others and none, CTAs with several narrow tiles."""
    found = {}
    for case, (problem, config, num_sms) in FORMS.items():
        if config.tail_n:
            grid = HOPPER.launch(problem, config, H200, num_sms).grid
            wide = config.wide_tiles(problem, grid)
            rows, _ = config.tiles(problem)
            found[case] = (config.narrow_tiles(problem, wide), wide % rows, config.waves(problem, grid)[1])
    assert found.pop("a tail that is not worth it") == (0, 0, 0)
    assert all(narrow for narrow, _, _ in found.values()), found
    assert {bool(further) for _, further, _ in found.values()} == {True, False}
    assert any(waves > 1 for _, _, waves in found.values())


@pytest.mark.parametrize("seed", range(3))
def test_warps_that_run_on_their_own_come_to_the_same_bytes(seed: int) -> None:
    problem, config, num_sms = CASES["several tiles a CTA"]
    wide, narrow = product(problem), product(problem)
    multiply(wide, config, num_sms=num_sms)
    multiply(narrow, config, num_sms=num_sms, width="warp", schedule="random", seed=seed)
    assert wide.out.tobytes() == narrow.out.tobytes()


@pytest.mark.parametrize("tile_n", [200, 192, 128, 40])
def test_stores_without_tma_read_their_slots_without_a_bank_conflict(tile_n: int) -> None:
    """Slots as wide as a row of the tile (200, 40), or of 128 bytes; the ends of 16 rows are read up to 4-way."""
    given = product(packed(70, 2 * tile_n - 3, 64))
    backend = multiply(given, Config(tile_m=128, tile_n=tile_n, stages=2, store_slots=1), banks=True)
    assert given.excess() <= 1
    assert backend.report is not None
    found = [(site.opcode, count) for site, count in backend.report.banks.items()]
    chunks = [count for opcode, count in found if opcode == "ld.shared.v4.u32"]
    ends = [count for opcode, count in found if opcode == "ld.shared.u16"]
    assert chunks
    assert all(wavefronts == ideal for wavefronts, ideal in chunks)
    assert ends
    assert all(wavefronts <= 4 * ideal for wavefronts, ideal in ends)


@pytest.mark.parametrize(
    ("problem", "num_sms"),
    [
        (packed(17, 131, 2 * 512 + 24), 8),
        (packed(100, 72, 1100, out_dtype="fp32"), 16),
        (packed(200, 1, 600), 4),
    ],
    ids=str,
)
def test_every_narrow_config_is_exact_whoever_chooses_it(problem: Problem, num_sms: int) -> None:
    """B059, B089: each config forced by hand, of one row or column too; B061: more tiles than clusters."""
    for index, config in enumerate(narrow_space(problem, H200)):
        if config.cluster > num_sms:
            continue
        policy, seed = SCHEDULES[index % 3]
        given = product(problem, whole=True)
        multiply(given, config, num_sms=num_sms, schedule=policy, seed=seed)
        assert (given.result() == (given.a @ given.b).astype(problem.out_dtype.numpy)).all(), str(config)
        assert (given.out[:, problem.n :] == 3).all()


@pytest.mark.parametrize("num_sms", [2, 4, 6, 8])
def test_a_split_is_the_same_bits_on_any_number_of_sms(num_sms: int) -> None:
    """B061, B062: sums are made in the order of ranks, and no tile waits for one that has not begun."""
    problem, config = packed(150, 40, 700), Config(tile_m=64, tile_n=16, consumers=1, stages=2, split_k=2)
    first, again = product(problem), product(problem)
    multiply(first, config, num_sms=num_sms)
    multiply(again, config, num_sms=2, schedule="random", seed=num_sms)
    assert first.out.tobytes() == again.out.tobytes()
    assert first.excess() <= 1


@pytest.mark.parametrize(("split_k", "tile_n"), [(2, 24), (4, 64), (8, 96)])
def test_a_split_is_the_sum_of_its_parts_of_k_in_the_order_of_ranks(split_k: int, tile_n: int) -> None:
    """Bit for bit, whichever share stays in its registers: of one CTA of two, of all four, of six of eight."""
    m, n, k = 72, tile_n, 600
    whole = Config(tile_m=64, tile_n=tile_n, consumers=1, stages=2)
    given = product(packed(m, n, k, out_dtype="fp32"))
    multiply(given, whole.replace(split_k=split_k), num_sms=split_k, checks=True)
    ends = [min(k, rank * -(-k // 64) // split_k * 64) for rank in range(split_k + 1)]
    parts = []
    for first, end in pairwise(ends):
        part = product(packed(m, n, end - first, out_dtype="fp32"))
        part.a_rows[:], part.b_rows[:] = given.a_rows[:, first:end], given.b_rows[:, first:end]
        multiply(part, whole)
        parts.append(part.out.copy())
    assert reduce(np.add, parts).tobytes() == given.out.tobytes()
    assert split_k == 2 or reduce(np.add, parts[::-1]).tobytes() != given.out.tobytes()


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_no_more_slots_are_filled_before_the_cta_meets_than_the_ring_or_k_has(stages: int) -> None:
    """Two tiles, so that the ring goes on where the first tile's early slots end, in whatever slot that is."""
    config = Config(tile_m=64, tile_n=16, consumers=1, stages=stages)
    for k_tiles in (1, 2, 3, 4, 5, 7):
        given = product(packed(128, 16, k_tiles * 64 - 8), whole=True)
        backend = multiply(given, config, num_sms=1, checks=True, schedule="random", seed=k_tiles)
        assert (given.result() == (given.a @ given.b).astype(given.problem.out_dtype.numpy)).all(), k_tiles
        assert backend.findings == ()


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "num_sms"), [((300, 264, 200), (1, 2, 4)), ((261, 257, 96), (4, 1, 2))])
def test_every_config_worth_a_look_is_right(shape: tuple[int, int, int], num_sms: tuple[int, ...]) -> None:
    """Rows that TMA stores and rows that it cannot; each config on two numbers of SMs."""
    problem = packed(*shape)
    for index, config in enumerate(HOPPER.space(problem, H200)):
        given = product(problem)
        multiply(given, config, num_sms=num_sms[index % 3])
        assert given.excess() <= 1, str(config)


def test_shared_memory_at_another_place_is_caught_before_numbers_go_wrong() -> None:
    """The kernel lives off a 1024-byte alignment, which PTX promises for its array: 16 bytes on is the emulator's own
    fault to make, and TMA's rule to report."""
    problem, config, _ = CASES["one tile"]
    given = product(problem)
    backend = emulated()
    launch = HOPPER.launch(problem, config, H200)
    kernel = backend.load(binary(HOPPER, problem, config), 0, launch)
    addresses = {name: array.ctypes.data for name, array in zip(("a", "b", "out"), given.rows, strict=True)}
    for array in given.rows:
        backend.lend(array.ctypes.data, array.nbytes)
    call = backend.pack(kernel, launch, HOPPER.arguments(problem, config, launch), addresses)
    memory = GlobalMemory()
    for (name, address, _), array in zip(call.buffers, given.rows, strict=True):
        memory.add(name, array, address)
    shape = Grid(grid=1, block=launch.block, smem_bytes=launch.smem_bytes)
    with pytest.raises(EmulationError, match="is not a multiple of 128"):
        run(kernel.binary.ptx, kernel.binary.entry, shape, call.parameters, memory, smem_base=1024 + 16)
