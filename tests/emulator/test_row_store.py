"""row_store.cuh alone, run from its own PTX: rows of slots, to any element's address, each value and nothing else."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from products import H200

from tilewright.emulator.checks import Checker
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.jit import nvrtc
from tilewright.jit.source import Source
from tilewright.kernels.render import device_code

ROWS = 16
# (bytes of a row of a slot, slots, bytes of an element): every swizzle and none, half warps, whole ones and two rounds
SHAPES = (
    (400, 1, 2),
    (128, 4, 2),
    (128, 1, 2),
    (64, 3, 2),
    (16, 1, 2),
    (208, 2, 2),
    (128, 5, 4),
    (32, 8, 4),
    (64, 1, 4),
)

# One warp: fills the slots with the number of each element, 1 .. 65535, then stores them.
PROBE = """
#include "row_store.cuh"
extern "C" __global__ void probe(char* out, int64_t pitch_bytes, int32_t num_rows, int32_t row_bytes) {
    using Slots = SlotRows<OWN_ROW_BYTES, OWN_SLOTS>;
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    const uint32_t slots = shared_address(dynamic_smem), lane = threadIdx.x;
    constexpr uint32_t WORDS = Slots::CHUNKS * 4;
    for (uint32_t i = lane; i < 16 * WORDS; i += 32) {
        const uint32_t row = i / WORDS, at = i % WORDS * 4, first = i * (4 / OWN_SIZE) + 1;
        const uint32_t value = OWN_SIZE == 4 ? first : first % 65536 | (first + 1) % 65536 << 16;
        asm volatile("st.shared.u32 [%0], %1;"
                     :: "r"(slots + Slots::below(Slots::column(at), Slots::step(row))), "r"(value) : "memory");
    }
    __syncwarp();
    store_slot_rows<OWN_SIZE, Slots>(slots, OutRows{out, pitch_bytes, num_rows, row_bytes}, lane);
}
"""


@cache
def ptx(shape: tuple[int, int, int]) -> str:
    names = zip(("OWN_ROW_BYTES", "OWN_SLOTS", "OWN_SIZE"), shape, strict=True)
    text = "".join(f"#define {name} {value}\n" for name, value in names) + PROBE
    headers = tuple(sorted(device_code().items()))
    unit = Source(name="probe", text=text, headers=headers, entry="probe", arch=H200.arch)
    return nvrtc.compile_source(unit, "").ptx


def stored(shape: tuple[int, int, int], phase: int, pitch: int, num_rows: int, columns: int) -> tuple[bool, list[str]]:
    """Whether out holds what it must, and findings. Units: elements; out begins `phase` of them past 16 bytes."""
    slot_row_bytes, slots, size = shape
    dtype = np.uint16 if size == 2 else np.uint32
    own = np.arange(1, ROWS * slots * slot_row_bytes // size + 1).astype(dtype).reshape(ROWS, -1)
    held = np.full(phase + ROWS * pitch + 64, 0xEEEE, dtype)
    expected = held.copy()
    for row in range(num_rows):
        expected[phase + row * pitch :][:columns] = own[row, :columns]
    memory, checker = GlobalMemory(), Checker()
    base = memory.add("out", held.view(np.uint8)) + phase * size
    grid = Grid(grid=1, block=32, cluster=1, smem_bytes=ROWS * slots * slot_row_bytes, registers=64)
    run(ptx(shape), "probe", grid, [base, pitch * size, num_rows, columns * size], memory, observer=checker)
    return np.array_equal(held, expected), [str(finding) for finding in checker.findings]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_phase_of_whole_rows_is_exact(shape: tuple[int, int, int]) -> None:
    columns = shape[0] * shape[1] // shape[2]
    for phase in range(16 // shape[2]):
        assert stored(shape, phase, columns + 1, ROWS, columns) == (True, [])  # each row another phase
        assert stored(shape, phase, columns + 16, ROWS, columns) == (True, [])  # all the same


@settings(derandomize=True, max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(random=st.randoms(use_true_random=True))
def test_parts_of_slots_are_exact_and_touch_nothing_else(random: np.random.Generator) -> None:
    """Columns from one on, shorter than a chunk too; 1 to 16 rows; rows that lie next to each other, and far apart."""
    shape = random.choice(SHAPES)
    most = shape[0] * shape[1] // shape[2]
    columns = random.choice([1, 2, 3, 7, 8, 9, 15, 16, 17, most - 1, most])
    columns = min(columns, most)
    pitch = columns + random.choice([0, 1, 2, 3, 5, 8, 100])
    num_rows = random.choice([1, 7, 8, 9, 15, 16])
    assert stored(shape, random.randrange(16 // shape[2]), pitch, num_rows, columns) == (True, [])
