"""The ladder's protocols, broken one line at a time: the emulator finds each break, by a rule or by wrong numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tilewright import device
from tilewright.backends.emulated import emulated
from tilewright.bench.ladder import RungPlan
from tilewright.bench.ladder_emulated import emulate
from tilewright.jit.build import build
from tilewright.jit.source import Binary
from tilewright.kernels.ladder import RUNGS
from tilewright.kernels.render import render
from tilewright.packing import packed

H200 = device.preset("h200")
PROBLEM = packed(300, 520, 392)  # several tiles a CTA, k longer than every FIFO, edges
SCHEDULES = (("lazy", 0), ("random", 1), ("eager", 0), ("random", 2))

LAST_CLUSTER_BARRIER = """\
    ptx::barrier_cluster_arrive_release();  // every arrival on the peer's barriers has been made
    ptx::barrier_cluster_wait_acquire();
"""
FIRST_CLUSTER_BARRIER = """\
    ptx::barrier_cluster_arrive_release();  // the peer's barriers are initialised, and the peer has started
    ptx::barrier_cluster_wait_acquire();
"""

# What is broken: the rung, its line, what stands there instead, and a word of the finding ("wrong": the numbers).
MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "accumulators read in flight": ("v03", "ptx::wgmma_wait_group<0>();", "", "accumulator"),
    "descriptor of another swizzle": (
        "v03",
        "panel_descriptor<Config::PANEL_BYTES>(shared_address(shared.b)",
        "panel_descriptor<64>(shared_address(shared.b)",
        "wrong",
    ),
    "producer does not wait": (
        "v04",
        "        arrive_and_wait(ring.empty_at(slot));\n",
        "        ptx::mbarrier_arrive(ring.empty_at(slot));\n",
        "nobody has waited for",
    ),
    "slot freed before it was read": (
        "v04",
        "        ptx::wgmma_wait_group<0>();\n        ptx::mbarrier_arrive(ring.empty_at(slot));",
        "        ptx::mbarrier_arrive(ring.empty_at(slot));\n        ptx::wgmma_wait_group<0>();",
        "released early",
    ),
    "too few bytes announced": (
        "v04",
        "mbarrier_arrive_expect_tx(full, Config::STAGE_BYTES)",
        "mbarrier_arrive_expect_tx(full, Config::STAGE_BYTES / 2)",
        "not waited for",
    ),
    "both consumers on the same rows": ("v05", "first_row * SWIZZLE_BYTES", "0", "wrong"),
    "slots not free at first": (
        "v05",
        "for (uint32_t slot = 0; slot < Config::STAGES; ++slot) ptx::mbarrier_arrive(ring.empty_at(slot));",
        "",
        "deadlock",
    ),
    "accumulators added to what was there": ("v06", "(k_tile | step) != 0", "true", "is read but was never written"),
    "producer starts on the consumers' parity": ("v07", "state{0, 1};", "state{0, 0};", "deadlock"),
    "consumers wait for the other parity": (
        "v07",
        "wait(ring.full_at(state.index), state.parity);",
        "wait(ring.full_at(state.index), state.parity ^ 1);",
        "",
    ),
    "every lane arrives": (
        "v07",
        "if (threadIdx.x % WARP_THREADS == 0) ptx::mbarrier_arrive",
        "ptx::mbarrier_arrive",
        "",
    ),
    "the peer is not told": ("v08", "if (lane < Config::CLUSTER_M)", "if (lane < 1)", "deadlock"),
    "a CTA leaves early": ("v08", LAST_CLUSTER_BARRIER, "", "is gone"),
    "slot freed with its group in flight": (
        "v09",
        "if (k_tile > 0) release(ring, previous);\n        previous = state.index;",
        "release(ring, state.index);",
        "",
    ),
    "shared memory ends under a store": ("v10", "    finish_stores(lane);\n", "", "store"),
    "tiles read before they are written": (
        "v11",
        "    HilbertSchedule::fill(shared.table, m, n);\n" + FIRST_CLUSTER_BARRIER,
        FIRST_CLUSTER_BARRIER + "    HilbertSchedule::fill(shared.table, m, n);\n",
        "",
    ),
    "the peer's barriers may not be there": ("v11", FIRST_CLUSTER_BARRIER, "    __syncthreads();\n", "init"),
}


class Mutant(RungPlan):
    """A rung with `old` replaced by `new` in its source."""

    def __init__(self, *arguments: Any, old: str, new: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.change = old, new

    @property
    def binary(self) -> Binary:
        source = render(self.family, self.problem, self.config, self.device)
        assert self.change[0] in source.text
        return build(dataclasses.replace(source, text=source.text.replace(*self.change)))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_protocol_is_found(name: str) -> None:
    number, old, new, word = MUTANTS[name]
    rung = next(rung for rung in RUNGS if rung.number == number)
    row: dict[str, Any] = {}
    for schedule, seed in SCHEDULES:
        backend = emulated(checks=True, schedule=schedule, seed=seed)
        plan = Mutant(rung, PROBLEM, H200, backend=lambda backend=backend: backend, num_sms=4, old=old, new=new)
        row = emulate(plan, backend)
        if row["status"] != "ok":
            break
    assert row["status"] != "ok", "the mutant survived every schedule"
    assert word in f"{row['status']} {row.get('why', '')}"
