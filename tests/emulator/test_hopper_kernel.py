"""The shipped Hopper kernel in the emulator: right numbers for every shape of its loops, under every schedule."""

from __future__ import annotations

import pytest
from products import H200, binary, multiply, product

from tilewright.backends.emulated import emulated
from tilewright.config import Config
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.errors import EmulationError
from tilewright.kernels.hopper import HOPPER
from tilewright.problem import packed

SMALL = Config(tile_m=128, tile_n=128)
SCHEDULES = [("lazy", 0), ("eager", 0), ("random", 1), ("random", 2), ("random", 3)]

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


@pytest.mark.parametrize("seed", range(3))
def test_warps_that_run_on_their_own_come_to_the_same_bytes(seed: int) -> None:
    problem, config, num_sms = CASES["several tiles a CTA"]
    wide, narrow = product(problem), product(problem)
    multiply(wide, config, num_sms=num_sms)
    multiply(narrow, config, num_sms=num_sms, width="warp", schedule="random", seed=seed)
    assert wide.out.tobytes() == narrow.out.tobytes()


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
