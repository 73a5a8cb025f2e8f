"""A GEMM of Ampere's instructions (cp.async ring, ldmatrix, mma.sync): right and silent, and reported when damaged.

Generated mutants leave out, one after another, every instruction that synchronises, copies or moves a fragment; planted
ones alter a count, a slot, a swizzle or an edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from ampere import TEXT, Case, edited, launch, outcome, ptx
from gemm import WRONG_NUMBERS
from left_out import left_out

SCHEDULES = [("lazy", 0), ("eager", 0), ("random", 1), ("random", 2), ("random", 3)]

# Two tiles a CTA, with edges; seven k tiles in three slots, so that the last one multiplied is where out is staged.
EDGES = Case(72, 72, 200, ctas=2)
CASES = {
    "edges, several tiles a CTA": EDGES,
    "fp16": Case(64, 72, 104, ctas=2, dtype="fp16"),
    "k shorter than the pipeline": Case(40, 24, 24),
    "k of exactly one slot more than the pipeline": Case(64, 64, 96),
    "more CTAs than tiles": Case(64, 8, 72, ctas=3),
}


@pytest.mark.parametrize("case", CASES)
def test_no_finding_under_any_schedule(case: str) -> None:
    for policy, seed in SCHEDULES:
        result = outcome(CASES[case], ptx(CASES[case].dtype), schedule=policy, seed=seed)
        assert result.is_silent, f"{policy} {seed}: {result}"


@pytest.mark.parametrize("seed", [4, 5])
def test_no_finding_warp_by_warp(seed: int) -> None:
    result = outcome(EDGES, ptx(), schedule="random", seed=seed, width="warp")
    assert result.is_silent, str(result)


@pytest.mark.parametrize("width", ["warp", "cta", "grid"])
def test_numbers_are_right_in_vectors_of_every_width(width: str) -> None:
    is_right, report = launch(EDGES, ptx(), width=width)
    assert is_right
    assert report.width == width


def test_no_access_to_shared_memory_meets_a_bank_twice() -> None:
    """The ring's XOR of 2 bits over rows of 64 bytes and the staged tile's of 3 bits over rows of 128."""
    _, report = launch(EDGES, ptx(), banks=True)
    assert {site.opcode.split(".")[0] for site in report.banks} == {"cp", "ldmatrix", "st", "ld"}
    assert all(wavefronts == ideal for wavefronts, ideal in report.banks.values())


# What reports each opcode when it is left out: one rule of these at least.
RULES_OF: dict[str, set[str]] = {
    "cp.async.cg.shared.global": {WRONG_NUMBERS},  # shared memory starts as NaNs
    "cp.async.commit_group": {"cp.async not waited for"},
    "cp.async.wait_group": {"cp.async not waited for"},
    # The last one keeps the staged tile from the next tile's copies: each warp refills the very bytes that it reads.
    "bar.sync": {"data race", "missing __syncwarp"},
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16": {"uninitialised register"},
    "st.shared.u32": {WRONG_NUMBERS},
    "ld.shared.v4.u32": {"uninitialised register"},
    "st.global.v4.u32": {WRONG_NUMBERS},
}


def test_every_instruction_that_synchronises_or_copies_is_missed_when_left_out() -> None:
    unreported, num = [], 0
    for mutant in left_out(ptx(), ("cp.async", "bar.", "ldmatrix", "st.", "ld.shared")):
        num += 1
        result = outcome(EDGES, mutant.ptx)
        if not result.rules & RULES_OF[mutant.opcode]:
            unreported.append(f"{mutant.opcode} at line {mutant.line}: {result}")
    assert unreported == []
    assert num >= 30


@dataclass(frozen=True)
class Planted:
    """An edit of the CUDA text, and the rules of which one at least must report it."""

    old: str
    new: str
    rules: set[str]


PLANTED: dict[str, Planted] = {
    "waits for one group too few": Planted(
        "cp_async_wait_group<STAGES - 2>();", "cp_async_wait_group<STAGES - 1>();", {"cp.async not waited for"}
    ),
    "no commit past the end": Planted(
        "}\n            cp_async_commit_group();  //", "cp_async_commit_group(); }\n//", {"cp.async not waited for"}
    ),
    "waits after the barrier": Planted(
        "cp_async_wait_group<STAGES - 2>();\n            __syncthreads();",
        "__syncthreads();\n            cp_async_wait_group<STAGES - 2>();",
        {"cp.async not waited for"},
    ),
    "fills the slot that is multiplied": Planted(
        "fill(k_tile + STAGES - 1);", "fill(k_tile + STAGES);", {"cp.async not waited for", "data race"}
    ),
    "slots are filled once": Planted(
        "            fill(k_tile + STAGES - 1);\n            multiply",
        "            multiply",
        {WRONG_NUMBERS, "cp.async not waited for"},
    ),
    "multiplies the next slot": Planted(
        "multiply(rC, ring + k_tile % STAGES", "multiply(rC, ring + (k_tile + 1) % STAGES", {"cp.async not waited for"}
    ),
    "a warp barrier where the CTA must meet": Planted(
        "__syncthreads();  // the tile is staged", "__syncwarp();", {"data race"}
    ),
    "the reader's swizzle differs": Planted(
        "operand_offset(m + i * 16 + lane % 16, step * 2 + lane / 16)",
        "(m + i * 16 + lane % 16) * 64 + (step * 2 + lane / 16) * 16",
        {WRONG_NUMBERS},
    ),
    "k does not advance": Planted("step * 2 + lane / 16)", "lane / 16)", {WRONG_NUMBERS}),
    "matrices of b in the wrong order": Planted(
        "lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2", "lane % 16, step * 2 + lane / 16", {WRONG_NUMBERS}
    ),
    "k's edge is not cut": Planted("max(0, min(left, 16)) : 0", "16 : 0", {"out of bounds"}),
    "rows past the end are read": Planted(
        "first_row + row < rows ? max(0, min(left, 16)) : 0",
        "max(0, min(left, 16))",
        {"out of bounds"},
    ),
    "columns past the end are written": Planted(
        "tile_m + row < m && tile_n + chunk * 8 < n", "tile_m + row < m", {"data race", "out of bounds"}
    ),
    "every CTA takes the next tile": Planted("tile += gridDim.x", "tile += 1", {"data race"}),
    "accumulators are not cleared": Planted(
        "float rC[2][4][4] = {};", "float rC[2][4][4];", {"uninitialised register"}
    ),
    "four bytes off": Planted("target + operand_offset(row, chunk)", "target + 4", {"misaligned"}),
    "a slot too many": Planted(
        "const uint32_t slot = ring + k_tile % STAGES",
        "const uint32_t slot = ring + k_tile % (STAGES + 1)",
        {"out of bounds"},
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_is_reported_with_its_rule(name: str) -> None:
    planted = PLANTED[name]
    text = edited(planted.old, planted.new)
    assert text != TEXT
    result = outcome(EDGES, ptx(text=text))
    assert result.rules & planted.rules, str(result)
