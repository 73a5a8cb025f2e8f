"""kernels/ceilings.py and kernels/cuda/ceilings: clean machine code with nothing in the loop, exact in the emulator."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tilewright import device, disassemble, dtypes
from tilewright.backends.emulated import emulated
from tilewright.bench.ceiling_trials import Trial, emulate, small_trials, tensor_trial
from tilewright.jit.build import build, flaws
from tilewright.jit.source import Source
from tilewright.kernels.ceilings import BulkCopy, BulkRead, Ceiling, EmptyLaunch, MmaLoop, WgmmaLoop, wgmma_loops

H200 = device.preset("h200")
LOOPS = [loop for dtype in dtypes.OF_16_BITS for loop in wgmma_loops(dtype)]
KERNELS: list[Ceiling] = [
    *LOOPS,
    *(MmaLoop(dtype=dtype) for dtype in dtypes.OF_16_BITS),
    BulkRead(),
    BulkCopy(),
    EmptyLaunch(),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
every_loop = pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
SCHEDULES = (("lazy", 0), ("random", 1), ("eager", 0), ("random", 2))


@every_kernel
def test_it_compiles_clean_and_fits_one_cta_an_sm(kernel: Ceiling) -> None:
    binary = build(kernel.source(H200))
    assert flaws(binary) == ()
    assert kernel.smem_bytes <= H200.smem_per_cta_bytes
    assert binary.resources.registers * kernel.threads <= H200.registers_per_sm


@pytest.mark.parametrize("kernel", [LOOPS[0], BulkRead(), BulkCopy()], ids=lambda kernel: kernel.name)
def test_a_debug_build_traps_instead_of_waiting_for_ever(kernel: Ceiling) -> None:
    assert "trap;" not in build(kernel.source(H200)).ptx
    debug = build(kernel.source(H200, wait_limit=1000))
    assert "trap;" in debug.ptx
    assert flaws(debug) == ()


@every_loop
def test_between_the_wgmmas_of_a_loop_there_is_no_load_no_barrier_and_no_arithmetic_of_data(loop: WgmmaLoop) -> None:
    lines = [line for line in disassemble.sass(build(loop.source(H200)).cubin).splitlines() if ";" in line]
    places = [index for index, line in enumerate(lines) if "HGMMA" in line]
    body = " ".join(lines[places[0] : places[-1] + 1])
    assert len(places) == loop.slots * (loop.tile_k // 16) * loop.wgmmas_m
    assert f"HGMMA.64x{loop.tile_n}x16.F32" in body
    for word in ("LDS", "LDG", "STS", "SYNCS", "BAR", "FADD", "FFMA", "UTMALDG", "BRA"):
        assert f" {word}" not in body, word
    assert places[-1] - places[0] < 12 * len(places)  # a wgmma takes 96 or 128 cycles of the tensor cores


@pytest.mark.parametrize("dtype", dtypes.OF_16_BITS, ids=str)
def test_between_the_mma_syncs_of_a_loop_there_is_nothing_but_the_count_of_passes(dtype: dtypes.DType) -> None:
    loop = MmaLoop(dtype=dtype)
    lines = [line for line in disassemble.sass(build(loop.source(H200)).cubin).splitlines() if ";" in line]
    places = [index for index, line in enumerate(lines) if "HMMA.16816.F32" in line]
    assert len(places) == loop.fragments_m * loop.fragments_n
    assert places[-1] - places[0] < len(places) + 4
    assert loop.name == f"mma.sync {dtype} m16n8k16 128x256"


def test_the_loops_are_the_widest_instruction_and_that_of_the_largest_production_tile() -> None:
    assert [str(loop.name) for loop in wgmma_loops(dtypes.BF16)] == [
        "wgmma bf16 m64n256k16 128x256",
        "wgmma bf16 m64n192k16 256x192",
    ]
    assert {loop.threads for loop in LOOPS} == {256}
    assert wgmma_loops(dtypes.BF16)[0].flops(132, 2, 32) == 2 * 132 * 128 * 256 * 8192 * 2


@pytest.mark.parametrize("trial", small_trials(), ids=lambda trial: trial.name)
@pytest.mark.parametrize("schedule", ["lazy", "eager", "random"])
def test_every_ceiling_is_exact_in_the_emulator(trial: Trial, schedule: Any) -> None:
    row = emulate(trial, emulated(checks=True, schedule=schedule, seed=1))
    assert row["status"] == "ok", row


def test_sums_of_normal_data_are_within_their_bound() -> None:
    trial = tensor_trial(wgmma_loops(dtypes.BF16)[0], 1, 2, 3)
    assert emulate(trial, emulated())["status"] == "ok"
    wrong = dataclasses.replace(trial, arguments=tensor_trial(wgmma_loops(dtypes.BF16)[0], 1, 2, 2).arguments)
    assert "past their bound" in emulate(wrong, emulated())["why"]


# -- broken protocols --------------------------------------------------------------------------------------------------

# What is broken: the trial, its file or header, the line, what stands there instead, and a word of the finding.
MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "operands are multiplied before they land": ("wgmma", "    wait(full, 0);\n", "", "exit with copy in flight"),
    "too few bytes announced": ("wgmma", "OPERAND_BYTES);", "OPERAND_BYTES / 2);", "exit with copy in flight"),
    "sums are stored with wgmmas in flight": ("wgmma", "ptx::wgmma_wait_group<0>();", "", "is an accumulator"),
    "the first sum begins on nothing": ("wgmma", "(slot | step) != 0 || pass != 0", "true", "never written"),
    "both warpgroups multiply the upper rows": ("wgmma", "consumer_index * Config::WGMMAS_M * A_BLOCK)", "0)", "wrong"),
    "the lower rows of a fragment are the upper ones": ("mma.sync", "part % 2 * 8) * ROW", "0) * ROW", "wrong"),
    "one pass too many a sum": ("mma.sync", "pass < passes", "pass <= passes", "wrong"),
    "a chunk is added up before it lands": (
        "read", "        wait(shared_address(&shared.full[state.index]), state.parity);\n", "", "1 arrival(s) where",
    ),
    "a slot is filled while others read it": (
        "read", "        __syncthreads();                                // every", "// every", "refilled while read",
    ),
    "the ring's parity is forgotten": (
        "read", "        state.advance();\n", "        state.index = (state.index + 1) % Config::SLOTS;\n", "in flight",
    ),
    "a slot is filled while it is stored": (
        "copy", "ptx::cp_async_bulk_wait_group_read<Config::PENDING>();", "", "store source overwritten",
    ),
    "the slots go under a store": ("copy", "ptx::cp_async_bulk_wait_group_read<0>();", "", "exit before store read"),
    "a chunk is stored before it lands": (
        "copy", "        wait(shared_address(&shared.full[state.index]), state.parity);\n", "", "1 arrival(s) where",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_protocol_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, old, new, word = MUTANTS[name]
    trial = next(trial for trial in small_trials() if trial.name.startswith(start))
    whole = type(trial.kernel).source

    def source(kernel: Ceiling, model: Any, wait_limit: int = 0) -> Source:
        found = whole(kernel, model, wait_limit)
        assert old in found.text
        return dataclasses.replace(found, text=found.text.replace(old, new))

    monkeypatch.setattr(type(trial.kernel), "source", source)
    monkeypatch.setattr("tilewright.bench.ceiling_trials.build", lambda unit, refuse: build(unit))
    row: dict[str, Any] = {}
    for schedule, seed in SCHEDULES:
        row = emulate(trial, emulated(checks=True, schedule=schedule, seed=seed))
        if row["status"] != "ok":
            break
    assert row["status"] != "ok", "the mutant survived every schedule"
    assert word in f"{row['status']} {row['why']}"
