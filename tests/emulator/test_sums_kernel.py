"""The sums of slices, and whole products with them: exact, in the order of the slices, and touching nothing else.

The kernel alone gets slices of random numbers and must give, bit for bit, what additions in their order give. Around
the slices and around out lies a pattern, and what fills the rows of slices up is NaN. Products are of small whole
numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gemm import WRONG_NUMBERS, edited
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from products import H200

from tilewright import Emulator
from tilewright.backends.emulated import aligned_bytes, emulated
from tilewright.backends.steps import Built
from tilewright.config import Config
from tilewright.device import Device
from tilewright.errors import EmulationError
from tilewright.host_operands import host_operand
from tilewright.jit.build import build
from tilewright.jit.source import Source
from tilewright.kernels import product, sums
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed
from tilewright.problem import Problem

PATTERN = 0xA5
GUARD_BYTES = 256
SCHEDULES = ("lazy", "eager", "random")
SMALL = Config(tile_m=64, tile_n=64, consumers=1, stages=3, store_slots=1)


def slices_of(problem: Problem, config: Config, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Memory of random slices between guards, the slices in it (slices, rows, extent), and their address. Values are of
    very different sizes, so that sums in another order differ."""
    num_bytes = config.slices_bytes(problem)
    memory, address = aligned_bytes(num_bytes + 2 * GUARD_BYTES)
    memory[:] = PATTERN
    address += GUARD_BYTES
    start = address - memory.ctypes.data
    rows, extent = problem.rows_of("out")
    held = memory[start : start + num_bytes].view(np.float32).reshape(config.slices, rows, -1)
    held[...] = np.nan
    rng = np.random.default_rng(seed)
    held[..., :extent] = rng.standard_normal((config.slices, rows, extent)) * 2.0 ** rng.integers(-12, 13, (1, rows, 1))
    return memory, held[..., :extent], address


def expected(slices: np.ndarray, problem: Problem) -> np.ndarray:
    total = slices[0].copy()
    for each in slices[1:]:
        total = total + each  # float32, to nearest
    return total.astype(problem.out_dtype.numpy)


def add(
    problem: Problem, config: Config, skew: int = 0, seed: int = 0, device: Device = H200, unit: Source | None = None,
    **choices: Any,
) -> bool:  # fmt: skip
    """Runs the kernel alone with checks, out `skew` elements from a multiple of 16 bytes. Whether it did what it must
    and nothing else. Raises: EmulationError: it broke a rule."""
    scratch, slices, address = slices_of(problem, config, seed)
    wanted, before = expected(slices, problem), scratch.copy()
    num_bytes = problem.extent_bytes["out"]
    memory, out = aligned_bytes(num_bytes + 2 * GUARD_BYTES + 16)
    memory[:] = PATTERN
    out += GUARD_BYTES + skew * problem.out_dtype.size
    start = out - memory.ctypes.data
    launch = sums.launch(problem, config, device)
    backend = emulated(device, checks=True, **choices)
    kernel = backend.load(build(unit or sums.source(problem, device)), 0, launch)
    addresses = {sums.SCRATCH_NAME: address, "out": out}
    backend.launch(backend.pack(kernel, launch, sums.arguments(problem, config), addresses), 0)
    raw = memory[start : start + num_bytes]
    found = host_operand(problem, "out", raw.view(f"u{problem.out_dtype.size}")).view
    is_right = np.array_equal(found, wanted.view(found.dtype))
    found[...] = np.frombuffer(bytes([PATTERN] * found.itemsize), found.dtype)[0]
    return bool(is_right and (memory == PATTERN).all() and np.array_equal(scratch, before))


@st.composite
def cases(draw: st.DrawFn) -> Any:
    random = draw(st.randoms(use_true_random=True))

    def size() -> int:
        return random.choice([1, 2, 3, 4, 5, 7, 8, 63, 64, 65, random.randrange(1, 200)])

    slices = random.choice([2, 3, 15, 16, 17, 32, 33, random.randrange(2, 100)])
    dtype, out_dtype = random.choice([("bf16", "bf16"), ("fp16", "fp16"), ("bf16", "fp32"), ("fp16", "fp32")])
    problem = packed(size(), size(), 8 * slices, dtype=dtype, out_dtype=out_dtype)
    problem = replace(problem, out_pitch=problem.out_pitch + random.choice([0, 0, 1, 2, 4, 8, random.randrange(20)]))
    device = replace(H200, num_sms=random.choice([1, 2, 132]))
    config, skew, seed = SMALL.replace(slices=slices), random.randrange(8), random.randrange(100)
    return problem, config, skew, seed, device, random.choice(SCHEDULES)


@settings(derandomize=True, max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(drawn=cases())
def test_sums_are_made_in_the_order_of_the_slices_at_any_address_and_nothing_else_is_touched(drawn: Any) -> None:
    problem, config, skew, seed, device, schedule = drawn
    assert add(problem, config, skew, seed, device, schedule=schedule)


@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("skew", range(8))
def test_every_address_of_out_is_right(skew: int, out_dtype: str) -> None:
    assert add(packed(5, 9, 24, out_dtype=out_dtype), SMALL.replace(slices=3), skew)


def test_few_threads_go_round_until_all_chunks_are_added() -> None:
    """4 CTAs of one SM: 512 threads for 97 x 26 chunks."""
    assert add(packed(97, 101, 16), SMALL.replace(slices=2), device=replace(H200, num_sms=1))


def test_zeros_that_are_negative_in_every_slice_stay_negative() -> None:
    problem, config = packed(1, 8, 16, out_dtype="fp32"), SMALL.replace(slices=2)
    _, slices, address = memory = slices_of(problem, config, 0)
    slices[...] = -0.0
    slices[1, 0, 1] = 0.0
    out = np.full((1, 8), np.nan, np.float32)
    launch, backend = sums.launch(problem, config, H200), emulated(H200)
    kernel = backend.load(build(sums.source(problem, H200)), 0, launch)
    addresses = {sums.SCRATCH_NAME: address, "out": out.ctypes.data}
    backend.launch(backend.pack(kernel, launch, sums.arguments(problem, config), addresses), 0)
    assert np.signbit(out[0]).tolist() == [True, False, *[True] * 6]
    assert len(memory) == 3  # the slices' memory lives until here


# -- mutants -----------------------------------------------------------------------------------------------------------

# (name, what stands there, what shall stand there instead, rules of which one must be reported)
MUTANTS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("a slice too many", "if (first + i < num_slices) ptx", "if (first + i <= num_slices) ptx", ("out of bounds",)),
    ("a slice too few", "first + i >= num_slices) break;", "first + i + 1 >= num_slices) break;", (WRONG_NUMBERS,)),
    ("the second slice of each round first", "address + i * slice_bytes, words[i]",
     "address + (i == 0 ? 1 : i == 1 ? 0 : i) * slice_bytes, words[i]",
     (WRONG_NUMBERS,)),
    ("the first sixteen slices again", "address += Config::AT_ONCE * slice_bytes;", "", (WRONG_NUMBERS,)),
    ("slices one chunk apart", "static_cast<uint64_t>(num_chunks) * CHUNK_BYTES;", "CHUNK_BYTES;", (WRONG_NUMBERS,)),
    ("pairs of a sum", "add(sum[j], words[i][j]);", "add(sum[j], words[i][j & 2]);",
     (WRONG_NUMBERS,)),
    ("cut off, not rounded", "{rounded_pair(sum[0], sum[1]),",
     "{__float_as_uint(sum[0]) >> 16 | (__float_as_uint(sum[1]) & 0xffff0000u),", (WRONG_NUMBERS,)),
    ("values in the wrong order", "{rounded_pair(sum[0], sum[1]),", "{rounded_pair(sum[1], sum[0]),",
     (WRONG_NUMBERS,)),
    ("whole stores at any address", "count >= CHUNK && target % (CHUNK * OUT_SIZE) == 0;", "count >= CHUNK;",
     ("misaligned",)),
    ("whole stores past the row", "count >= CHUNK && target % (CHUNK * OUT_SIZE) == 0;",
     "target % (CHUNK * OUT_SIZE) == 0;", (WRONG_NUMBERS, "out of bounds", "data race")),
    ("values past the row", "if (i < count) reinterpret_cast<uint16_t*>", "if (i <= count) reinterpret_cast<uint16_t*>",
     (WRONG_NUMBERS, "out of bounds", "data race")),
    ("rows as long as their chunks", "row * out_pitch + column", "row * (row_chunks * CHUNK) + column",
     (WRONG_NUMBERS, "out of bounds")),
    ("chunks as far apart as values", "(chunk - row * row_chunks) * CHUNK;", "(chunk - row * row_chunks);",
     (WRONG_NUMBERS, "data race", "missing __syncwarp")),
    ("chunks past the end", "chunk < num_chunks; chunk", "chunk <= num_chunks; chunk", ("out of bounds",)),
    ("one round only", "chunk += threads)", "chunk += num_chunks)", (WRONG_NUMBERS,)),
    ("a thread too few in a step", "threads = gridDim.x * Config::THREADS;",
     "threads = gridDim.x * Config::THREADS - 1;", ("data race",)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "rules"), MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_a_planted_bug_is_reported(name: str, old: str, new: str, rules: tuple[str, ...]) -> None:
    """4 CTAs of one SM, more chunks than threads, 18 slices, rows of 101 values 103 apart: places of every kind."""
    problem, device = replace(packed(41, 101, 18 * 8), out_pitch=103), replace(H200, num_sms=1)
    config = SMALL.replace(slices=18)
    assert add(problem, config, device=device)
    unit = edited(sums.source(problem, device), "", old, new)
    found = set()
    try:
        if not add(problem, config, device=device, unit=unit):
            found.add(WRONG_NUMBERS)
    except EmulationError as error:
        found.add(error.rule)
    assert found & set(rules), found


# -- whole products ----------------------------------------------------------------------------------------------------


@st.composite
def products(draw: st.DrawFn) -> Any:
    """Sizes about a tile; every layout; operands that are copied first; every way out; splits, clusters, swaps."""
    random = draw(st.randoms(use_true_random=True))

    def size() -> int:
        return random.choice([1, 3, 8, 31, 64, 65, random.randrange(1, 140)])

    def array(rows: int, columns: int, seed: int, kind: Any) -> np.ndarray:
        pad, skew = random.choice([0, 0, 1, 5]), random.choice([0, 0, 0, 1, 3])
        item = np.dtype(kind).itemsize
        memory, address = aligned_bytes((rows * (columns + pad) + 8) * item)
        first = address - memory.ctypes.data + skew * item
        held = memory[first : first + rows * (columns + pad) * item].view(kind).reshape(rows, columns + pad)
        held[...] = np.random.default_rng(seed).integers(-3, 4, held.shape)
        return held[:, :columns]

    dtype = packed(8, 8, 8, dtype=random.choice(["bf16", "fp16"])).dtype.numpy
    slices = random.choice([2, 2, 3, 4, 7])
    m, n, k = size(), size(), slices * 8 * random.choice([1, 3, 8, 9, 16])
    a = array(k, m, 1, dtype).T if random.choice([0, 1]) else array(m, k, 1, dtype)
    b = array(n, k, 2, dtype).T if random.choice([0, 1]) else array(k, n, 2, dtype)
    kind = random.choice([dtype, dtype, np.float32])
    out = array(n, m, 3, kind).T if random.choice([0, 1]) else array(m, n, 3, kind)
    form: dict[str, Any] = random.choice(
        [{}, {}, {"swap": True}, {"cluster_m": 2}, {"dependent_sums": True}, {"k_back_and_forth": True}]
    )
    if k >= 2 * 64 * slices and not form:
        form = {"split_k": 2}
    return a, b, out, SMALL.replace(slices=slices, **form), random.choice(SCHEDULES), random.randrange(100)


@settings(derandomize=True, max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(drawn=products())
def test_products_in_slices_are_exact_and_touch_nothing_else(drawn: Any) -> None:
    a, b, out, config, schedule, seed = drawn
    base = out.base
    while base.base is not None:
        base = base.base
    inside = np.zeros(base.nbytes, bool)
    start = out.ctypes.data - base.ctypes.data
    np.lib.stride_tricks.as_strided(inside[start:], (*out.shape, out.itemsize), (*out.strides, 1))[...] = True
    before = base.view(np.uint8).reshape(-1).copy()
    Emulator("h200", schedule=schedule, seed=seed).matmul(a, b, out, config=config)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(out.astype(np.float64), wanted.astype(out.dtype).astype(np.float64))
    assert np.array_equal(before[~inside], base.view(np.uint8).reshape(-1)[~inside])


def test_the_products_kernel_writes_its_slices_whole_and_nothing_around_them() -> None:
    """Rows of 75 values of which TMA stores 76; the scratch lies between guards."""
    problem, config = packed(70, 75, 512), SMALL.replace(slices=4)
    units = product.sources(HOPPER, problem, config, H200)
    work = product.work(HOPPER, problem, config, H200, binaries=tuple(Built(build(unit)) for unit in units))
    scratch, slices, address = slices_of(problem, config, 0)
    slices[...] = np.nan
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (rows, 512)).astype(problem.dtype.numpy) for rows in (70, 75))
    backend = emulated(H200, checks=True)
    step, _ = work.steps
    addresses = {"a": a.ctypes.data, "b": b.ctypes.data, sums.SCRATCH_NAME: address}
    backend.launch(backend.pack(backend.load(step.binary(), 0, step.launch), step.launch, step.arguments, addresses), 0)
    of_a, of_b = (each.astype(np.float64).reshape(-1, 4, 128).swapaxes(0, 1) for each in (a, b))
    assert np.array_equal(slices, of_a @ of_b.swapaxes(1, 2))
    assert (scratch[: address - scratch.ctypes.data] == PATTERN).all()
    assert (scratch[address - scratch.ctypes.data + config.slices_bytes(problem) :] == PATTERN).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_product_of_normal_data_has_the_same_bits_in_every_schedule_and_on_any_sms(schedule: Any) -> None:
    rng = np.random.default_rng(0)
    dtype = packed(8, 8, 8).dtype.numpy
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((65, 512), (512, 72)))
    config = SMALL.replace(slices=4)
    first = Emulator("h200").matmul(a, b, config=config)
    for num_sms in (1, 3, None):
        again = Emulator("h200", schedule=schedule, seed=7).matmul(a, b, config=config, num_sms=num_sms)
        assert again.tobytes() == first.tobytes()
