"""The Ampere ladder's protocols, broken one line at a time: the emulator finds each, by a rule or by wrong numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tilewright import device
from tilewright.backends.emulated import emulated
from tilewright.bench.ladder import RungPlan
from tilewright.bench.ladder_emulated import emulate
from tilewright.jit.build import build
from tilewright.jit.source import Binary
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.render import render
from tilewright.packing import packed

A100 = device.preset("a100")
BY_NUMBER = {rung.number: rung for rung in AMPERE_RUNGS}

WAIT = "ptx::cp_async_wait_group<(DISTANCE > 0 ? DISTANCE - 1 : 0)>();"
NEXT_WAIT = "ptx::cp_async_wait_group<DISTANCE - 1>();\n                __syncthreads();"

# What is broken: the rung, its line, what stands there instead, and a word of the finding ("wrong": the numbers).
MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "read before everybody has stored": ("a2", "__syncthreads();  // the slot is there", "", "nothing that orders"),
    "stored before everybody has read": ("a2", "__syncthreads();  // and has been read", "", "race"),
    "sums read before the fragment is stored": (
        "a0",
        "__syncwarp();  // the fragment is there",
        "",
        "nothing that orders",
    ),
    "a fragment stored over one that is read": ("a0", "__syncwarp();  // and has been read", "", "nothing that orders"),
    "fragments of a in the order of b": ("a1", "rows_first(lane)", "chunks_first(lane)", "wrong"),
    "stored where nobody looks": (
        "a4",
        "ptx::st_shared_v4_u32(tile + offset_of(row, chunk), words)",
        "ptx::st_shared_v4_u32(tile + row * PITCH_BYTES + chunk * CHUNK_BYTES, words)",
        "wrong",
    ),
    "no wait for the copies": ("a5", WAIT, "", ""),
    "one group too many in flight": ("a5", WAIT, "ptx::cp_async_wait_group<DISTANCE>();", ""),
    "copies waited for, but only the own": ("a5", "__syncthreads();  // the slot is there, and", "//", ""),
    "groups not committed": ("a5", "ptx::cp_async_commit_group();", "", ""),
    "no empty groups past the end of k": (
        "a5",
        "        }\n        ptx::cp_async_commit_group();",
        "            ptx::cp_async_commit_group();\n        }",
        "",
    ),
    "a slot filled while it is read": ("a5", "fill(k_tile + DISTANCE)", "fill(k_tile + DISTANCE + 1)", ""),
    "what lies past the end of k is copied": ("a5", "i * ROW_STEP < source.rows_left ? in_row : 0", "16", ""),
    "fragments of the next slot before its wait": (
        "a6",
        NEXT_WAIT,
        "load(fragments[0], k_tile + 1, 0);\n                " + NEXT_WAIT.replace("load", ""),
        "",
    ),
    "the set that is being loaded is multiplied": ("a6", "fragments[step % 2])", "fragments[(step + 1) % 2])", "wrong"),
    "no barrier before the next slot": ("a6", "__syncthreads();  // the next slot is there", "//", ""),
    "no wait before the next slot": ("a6", NEXT_WAIT, "__syncthreads();", ""),
    "filled before the slot was read": (
        "a6",
        "if (step == 0) fill(k_tile + DISTANCE);",
        "if (step == 0) fill(k_tile + DISTANCE + 1);",
        "",
    ),
    "every slice reads the first part of b": ("a8", "b_base + slice * b_slice", "b_base", "wrong"),
    "every slice writes the same sums": (
        "a8",
        "out_base + slice * out_slice * size_of(Config::OUT_TYPE)",
        "out_base",
        "",
    ),
    "the last group is as high as the others": ("a9", "min(group_m, rows - first)", "group_m", ""),
}
BROKEN = packed(70, 70, 264)  # two tiles a way, k longer than every ring, edges
SCHEDULES = (("lazy", 0), ("random", 1), ("eager", 0), ("random", 2))


class Mutant(RungPlan):
    """A rung with `old` replaced by `new` in its source or in what it includes."""

    old = new = ""

    @property
    def binary(self) -> Binary:
        source = render(self.family, self.problem, self.config, self.device)
        texts = {"": source.text, **dict(source.headers)}
        assert any(self.old in text for text in texts.values())
        texts = {path: text.replace(self.old, self.new) for path, text in texts.items()}
        return build(dataclasses.replace(source, text=texts.pop(""), headers=tuple(texts.items())))


def broken_rows(name: str) -> Iterator[dict[str, Any]]:
    number, old, new, _ = MUTANTS[name]
    rung = BY_NUMBER[number]
    changes = {"tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2} if number != "a9" else {"group_m": 2}
    problem = {"a0": packed(64, 64, 16), "a9": packed(300, 500, 40)}.get(number, BROKEN)
    config = rung.config.replace(**changes)
    config = config.replace(slices=3) if number == "a8" else config
    for schedule, seed in SCHEDULES:
        backend = emulated("a100", checks=True, schedule=schedule, seed=seed)
        plan = Mutant(rung, problem, A100, backend=lambda backend=backend: backend, config=config)
        plan.old, plan.new = old, new
        yield emulate(plan, backend)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_protocol_is_found(name: str) -> None:
    found = next((row for row in broken_rows(name) if row["status"] != "ok"), None)
    assert found is not None, "the mutant survived every schedule"
    assert MUTANTS[name][3] in f"{found['status']} {found.get('why', '')}"


def test_without_its_second_barrier_a_single_slot_is_overwritten() -> None:
    rung = BY_NUMBER["a5"]
    backend = emulated("a100", checks=True)
    config = rung.config.replace(stages=1)
    plan = Mutant(rung, packed(128, 128, 64), A100, backend=lambda: backend, config=config)
    plan.old, plan.new = "__syncthreads();  // and has been read", ";"
    assert "race" in emulate(plan, backend)["why"]
