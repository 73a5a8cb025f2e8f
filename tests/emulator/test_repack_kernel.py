"""The copy of operands that TMA cannot read, and whole products with it: exact, tidy, within the operand's own words.

The emulator knows the operand's bytes, rounded out to 16: a read of any other is an error. Between the rows of a copy,
and around it, lies a pattern. Operands are small whole numbers, so that a product is exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from gemm import WRONG_NUMBERS, edited
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from products import H200

from tilewright import Emulator
from tilewright.backends.emulated import aligned_bytes, emulated
from tilewright.errors import EmulationError
from tilewright.host_operands import host_operand
from tilewright.jit.build import build
from tilewright.jit.source import Source
from tilewright.kernels import repack
from tilewright.packing import packed
from tilewright.problem import AMajor, Major, Problem, checked

PATTERN = 0xA5
GUARD_BYTES = 256
SCHEDULES = ("lazy", "eager", "random")
BOTH = ("a", "b")


@dataclass(frozen=True, eq=False)
class Operand:
    """One operand at `skew` elements from a multiple of 16 bytes, in memory of its own, and its copy in a pattern."""

    view: np.ndarray
    address: int
    kept: tuple[Any, ...]
    copy: np.ndarray
    scratch: np.ndarray
    scratch_address: int


def operand(problem: Problem, name: str, skew: int, seed: int) -> Operand:
    size = problem.dtype.size
    num_bytes = problem.extent_bytes[name]
    memory, address = aligned_bytes(num_bytes + 32)
    address += skew * size
    first = address - memory.ctypes.data
    values = np.random.default_rng(seed).integers(1, 2**16, num_bytes // size, dtype=np.uint16)  # bits, no numbers
    memory[first : first + num_bytes] = values.view(np.uint8)
    view = host_operand(problem, name, memory[first : first + num_bytes].view(np.uint16)).view
    copied = repack.repacked(problem, (name,))
    scratch_bytes = repack.scratch_bytes(problem, name)
    scratch, scratch_address = aligned_bytes(scratch_bytes + 2 * GUARD_BYTES)
    scratch[:] = PATTERN
    scratch_address += GUARD_BYTES
    start = scratch_address - scratch.ctypes.data
    copy = host_operand(copied, name, scratch[start : start + scratch_bytes].view(np.uint16)).view
    return Operand(view, address, (memory,), copy, scratch, scratch_address)


def run_copies(
    problem: Problem, names: tuple[str, ...], skews: tuple[int, int], num_sms: int | None = None,
    unit: Source | None = None, **choices: Any,
) -> list[Operand]:  # fmt: skip
    """Runs the kernel alone with checks, in one wave on `num_sms` SMs or with a CTA for all that there is (None).

    Raises: EmulationError: it broke a rule.
    """
    held = {name: operand(problem, name, skew, seed) for seed, (name, skew) in enumerate(zip(BOTH, skews, strict=True))}
    launch = repack.launch(problem, names, H200, num_sms)
    addresses = {name: each.address for name, each in held.items()}
    addresses |= {repack.scratch_name(name): each.scratch_address for name, each in held.items()}
    backend = emulated(H200, checks=True, **choices)
    kernel = backend.load(build(unit or repack.source(problem, H200)), 0, launch)
    backend.launch(backend.pack(kernel, launch, repack.arguments(problem, names, launch), addresses), 0)
    return [held[name] for name in names]


def is_right(problem: Problem, each: Operand) -> bool:
    """Whether the copy is the operand, and nothing but the last chunks of its rows was written beside it."""
    if not np.array_equal(each.copy, each.view):
        return False
    touched = each.scratch.copy()
    offset = each.scratch_address - each.scratch.ctypes.data
    row_bytes = -(-_row_elements(each) * 2 // 16) * 16
    for row in np.unique(_row_starts(each)):
        touched[offset + row : offset + row + row_bytes] = PATTERN
    return bool((touched == PATTERN).all())


def _row_starts(each: Operand) -> np.ndarray:
    """Offsets of all rows of the copy from its first."""
    strides, contiguous = each.copy.strides, _contiguous(each)
    grids = [
        np.arange(extent) * stride
        for dim, (extent, stride) in enumerate(zip(each.copy.shape, strides, strict=True))
        if dim != contiguous
    ]
    found = np.zeros(1, np.int64)
    for grid in grids:
        found = (found[:, None] + grid[None, :]).reshape(-1)
    return found


def _contiguous(each: Operand) -> int:
    strides = each.copy.strides
    return len(strides) - 1 if strides[-1] == 2 else len(strides) - 2


def _row_elements(each: Operand) -> int:
    return int(each.copy.shape[_contiguous(each)])


@st.composite
def copies(draw: st.DrawFn) -> tuple[Problem, tuple[str, ...], tuple[int, int], int | None, Any, int]:
    """Sizes about a chunk, a line and a grid; pitches from 0 on; every offset; batches, some of shared matrices."""
    random = draw(st.randoms(use_true_random=True))

    def size() -> int:
        return random.choice([1, 2, 7, 8, 9, 15, 63, 64, 65, random.randrange(1, 200), random.randrange(200, 600)])

    m, n, k = size(), size(), size()
    a_major: AMajor = random.choice(["k", "m"])
    b_major: Major = random.choice(["k", "n"])
    batch = random.choice([(), (), (2,), (2, 3), (2, 1, 3)])
    problem = packed(m, n, k, a_major=a_major, b_major=b_major, batch=batch, padded=random.choice([True, False]))
    changes: dict[str, Any] = {}
    for name in BOTH:
        rows, extent = problem.rows_of(name)
        pitch = random.choice([extent, extent + 1, extent + random.randrange(20), 0, random.randrange(extent + 1)])
        changes[f"{name}_pitch"] = pitch
        strides, matrix = [], (rows - 1) * pitch + extent + random.choice([0, 0, 1, 3])
        for count in reversed(batch):
            strides.append(random.choice([matrix, matrix, 0]))
            matrix *= count
        changes[f"{name}_batch"] = tuple(reversed(strides))
    names = random.choice([("a",), ("b",), BOTH, BOTH])
    num_sms = random.choice([1, 2, 132, None])
    skews = (random.randrange(8), random.randrange(8))
    return checked(replace(problem, **changes)), names, skews, num_sms, random.choice(SCHEDULES), random.randrange(100)


@settings(derandomize=True, max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(drawn=copies())
def test_a_copy_is_exact_and_reads_and_writes_nothing_else(drawn: Any) -> None:
    problem, names, skews, num_sms, schedule, seed = drawn
    for each in run_copies(problem, names, skews, num_sms, schedule=schedule, seed=seed):
        assert is_right(problem, each)


@pytest.mark.parametrize("skew", range(8))
def test_every_shift_is_right_also_where_rows_differ_in_it(skew: int) -> None:
    for k in (37, 157, 257, 300):  # chunks; a strip, two and one more; and rows of four shifts
        problem = packed(9, 8, k, padded=False)
        for each in run_copies(problem, BOTH, (skew, 7 - skew)):
            assert is_right(problem, each)


def test_many_rounds_of_few_threads_carry_from_digit_to_digit() -> None:
    """6 CTAs of one SM, and chunks for several rounds each; rows of 3 chunks, matrices of 5 rows."""
    problem = packed(5, 8, 17, batch=(31, 3, 7), padded=False)
    for each in run_copies(problem, BOTH, (1, 3), num_sms=1):
        assert is_right(problem, each)


# -- mutants -----------------------------------------------------------------------------------------------------------

# (name, what stands there, what shall stand there instead, rules of which one must be reported)
MUTANTS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("2 bytes are not shifted", "(shift & 3) * 8", "(shift & 1) * 8", (WRONG_NUMBERS,)),
    ("4 bytes are not shifted", "shift & 4 ?", "shift & 16 ?", (WRONG_NUMBERS,)),
    ("8 bytes are not shifted", "shift & 8 ?", "shift & 16 ?", (WRONG_NUMBERS,)),
    ("words in the wrong order", "shf_r_wrap(by_4[j], by_4[j + 1],", "shf_r_wrap(by_4[j + 1], by_4[j],",
     (WRONG_NUMBERS,)),
    ("the second word always", "if (shift > 0 && here > in_low)", "if (here > 0)", ("out of bounds",)),
    ("the second word never", "if (shift > 0 && here > in_low)", "if (false)", (WRONG_NUMBERS,)),
    ("the second word of whole chunks only", "if (shift > 0 && here > in_low)",
     "if (shift > 0 && here >= 16)", (WRONG_NUMBERS,)),
    ("chunks past the end", "if (!place.is_inside(matrices)) return;", "", ("out of bounds",)),
    ("no carry", "carry = at[dim] >= extent ? 1 : 0;", "carry = 0;", (WRONG_NUMBERS, "out of bounds", "data race")),
    ("unaligned loads", "const uint64_t aligned = source - shift;", "const uint64_t aligned = source;",
     ("misaligned",)),
    ("the second operand's CTAs count from the first's", "blockIdx.x - num_first);", "blockIdx.x);", (WRONG_NUMBERS,)),
    ("every CTA copies the first operand", "if (blockIdx.x < num_first)", "if (true)", (WRONG_NUMBERS, "data race")),
    ("all lanes of a strip take its first chunks", "thread % LANES, source, target);", "0, source, target);",
     (WRONG_NUMBERS,)),
    ("strips overlap", "constexpr uint32_t APART = LANES * CHUNK_BYTES;",
     "constexpr uint32_t APART = LANES * CHUNK_BYTES / 2;", (WRONG_NUMBERS, "data race", "missing __syncwarp")),
    ("a strip goes on past its row", "if (left <= i * static_cast<int32_t>(APART)) continue;", "",
     (WRONG_NUMBERS, "data race", "missing __syncwarp", "uninitialised register")),
    ("strips for short rows", "if (matrices.has_long_rows) {", "if (true) {", (WRONG_NUMBERS, "out of bounds")),
    ("target rows as far apart as the source's", "place.offset(matrices.target_strides)",
     "place.offset(matrices.source_strides)", (WRONG_NUMBERS, "misaligned", "out of bounds")),
)  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "rules"), MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_a_planted_bug_is_reported(name: str, old: str, new: str, rules: tuple[str, ...]) -> None:
    """Both operands on 6 CTAs of one SM, more units than groups, short rows and long; b ends where its memory does."""
    found = set()
    for problem in (packed(700, 301, 37, padded=False), packed(90, 61, 301, padded=False)):
        unit = edited(repack.source(problem, H200), "", old, new)
        try:
            copied = run_copies(problem, BOTH, (1, 6), 1, unit)
        except EmulationError as error:
            found.add(error.rule)
        else:
            if not all(is_right(problem, each) for each in copied):
                found.add(WRONG_NUMBERS)
    assert found & set(rules), found


# -- whole products ----------------------------------------------------------------------------------------------------


@st.composite
def products(draw: st.DrawFn) -> Any:
    random = draw(st.randoms(use_true_random=True))

    def size() -> int:
        return random.choice([1, 3, 8, 31, 64, 65, random.randrange(1, 150)])

    def array(batch: tuple[int, ...], rows: int, columns: int, seed: int) -> np.ndarray:
        pad, skew = random.choice([0, 0, 1, 5]), random.randrange(8)
        memory, address = aligned_bytes((int(np.prod(batch, initial=1)) * rows * (columns + pad) + 8) * 2)
        first = address - memory.ctypes.data + skew * 2
        flat = memory[first:].view(dtype) if (memory.size - first) % 2 == 0 else memory[first:-1].view(dtype)
        held = flat[: int(np.prod(batch, initial=1)) * rows * (columns + pad)].reshape(*batch, rows, columns + pad)
        held[...] = np.random.default_rng(seed).integers(-3, 4, held.shape)
        return held[..., :columns]

    dtype = packed(8, 8, 8, dtype=random.choice(["bf16", "fp16"])).dtype.numpy
    m, n, k = size(), size(), size()
    batch = random.choice([(), (), (2,), (2, 2)])
    a = array(batch, k, m, 1).swapaxes(-1, -2) if random.choice([0, 1]) else array(batch, m, k, 1)
    b = array(batch, n, k, 2).swapaxes(-1, -2) if random.choice([0, 1]) else array(batch, k, n, 2)
    if random.randrange(5) == 0:
        a = np.broadcast_to(a[..., :1, :], a.shape)
    out = array(batch, n, m, 3).swapaxes(-1, -2) if random.choice([0, 1]) else array(batch, m, n, 3)
    return a, b, out, random.choice(SCHEDULES), random.randrange(100)


@settings(derandomize=True, max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(drawn=products())
def test_products_of_any_rows_at_any_address_are_exact_and_touch_nothing_else(drawn: Any) -> None:
    a, b, out, schedule, seed = drawn
    base = out.base
    while base.base is not None:
        base = base.base
    inside = np.zeros(base.nbytes, bool)
    start = out.ctypes.data - base.ctypes.data
    where = np.lib.stride_tricks.as_strided(inside[start:], (*out.shape, 2), (*out.strides, 1))
    where[...] = True
    before = base.view(np.uint8).reshape(-1).copy()
    Emulator("h200", schedule=schedule, seed=seed).matmul(a, b, out)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(out.astype(np.float64), expected.astype(out.dtype).astype(np.float64))
    assert np.array_equal(before[~inside], base.view(np.uint8).reshape(-1)[~inside])
