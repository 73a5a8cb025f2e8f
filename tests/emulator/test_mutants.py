"""The checker on the shipped Hopper kernel: silent as it is, and not with any of its protocol's instructions changed.

Planted bugs are edits of the CUDA text (mutants.py); generated ones leave out, one after another, every instruction of
the compiled PTX that synchronises or copies. What may stay silent is listed with its reason.
"""

from __future__ import annotations

import re

import pytest
from cluster_mutants import CLUSTER_MUTANTS
from gemm import CASES, Mutant, binary, outcome, source
from mutants import MUTANTS
from split_mutants import SPLIT_MUTANTS
from start_mutants import START_MUTANTS
from tile_mutants import SILENT, TILE_MUTANTS

SCHEDULES = [("lazy", 0), ("eager", 0), ("random", 1)]

PROTOCOL = (
    "mbarrier.",
    "fence.",
    "bar.",
    "barrier.",
    "wgmma.fence",
    "wgmma.commit",
    "wgmma.wait",
    "cp.async.bulk",
    "st.async",
    "setmaxnreg",
)
_AT_THE_END = "no lane hands anything to another after it"
_REGISTERS = "PTX has no register count of its own: what more registers a warpgroup uses, only ptxas knows"
_PLACE_READ = "one after a tile's place is read, which is written again only when a later warp barrier has been passed"
_FENCED = "no thread touches accumulators between two wgmmas of a tile: that of the first slot is enough"
_STARTED = "one after the elected lane's start, before all of the CTA meet"
_INIT_FENCE = "fence.mbarrier_init.release.cluster"
_GIVEN_BACK = "the producer's last wait covers those for slots that the same warps gave back before"
_EMPTY_INIT = "no copy and no other CTA signals an empty barrier, so that the CTA meets is enough"
# By case: opcodes that may be left out with no report, how many of them, and why no report is right.
EQUIVALENT: dict[str, dict[str, tuple[int, str]]] = {
    "cluster": {
        "mbarrier.try_wait.parity.shared::cta.b64": (2, _GIVEN_BACK),
        "bar.warp.sync": (4, f"{_STARTED}; {_PLACE_READ}; two where {_AT_THE_END}"),
        "wgmma.fence.sync.aligned": (1, _FENCED),
        "setmaxnreg.inc.sync.aligned.u32": (1, _REGISTERS),
    },
    "ping-pong": {
        _INIT_FENCE: (1, _EMPTY_INIT),
        "bar.warp.sync": (4, f"{_STARTED}; {_PLACE_READ}; two where {_AT_THE_END}"),
        "wgmma.fence.sync.aligned": (1, _FENCED),
        "setmaxnreg.inc.sync.aligned.u32": (1, _REGISTERS),
    },
    "staggered": {
        _INIT_FENCE: (1, _EMPTY_INIT),
        "bar.warp.sync": (3, f"{_STARTED}; two where {_AT_THE_END}"),
        "wgmma.commit_group.sync.aligned": (1, "block 0's first group is waited for with block 1's, never alone"),
        "wgmma.fence.sync.aligned": (3, _FENCED),
    },
    "split": {
        "bar.warp.sync": (3, f"{_STARTED}; two where {_AT_THE_END}"),
        "wgmma.fence.sync.aligned": (1, _FENCED),
    },
    "swap": {
        _INIT_FENCE: (1, _EMPTY_INIT),
        "bar.warp.sync": (4, f"{_STARTED}; {_PLACE_READ}; two where {_AT_THE_END}"),
        "wgmma.fence.sync.aligned": (1, _FENCED),
    },
    "predicated stores": {
        _INIT_FENCE: (1, _EMPTY_INIT),
        "bar.warp.sync": (
            4,
            f"{_STARTED}; one before the first slot is written, after that of the tile's place; "
            f"two where {_AT_THE_END}",
        ),
        "wgmma.fence.sync.aligned": (1, _FENCED),
        "setmaxnreg.inc.sync.aligned.u32": (1, _REGISTERS),
    },
}


@pytest.mark.parametrize(("policy", "seed"), SCHEDULES)
@pytest.mark.parametrize("case", CASES)
def test_shipped_kernel_has_no_finding(case: str, policy: str, seed: int) -> None:
    result = outcome(CASES[case], binary(source(CASES[case])).ptx, schedule=policy, seed=seed)
    assert result.is_silent, str(result)


@pytest.mark.parametrize("case", ["single", "cluster", "ping-pong", "predicated stores", "split"])
def test_shipped_kernel_has_no_finding_warp_by_warp(case: str) -> None:
    result = outcome(CASES[case], binary(source(CASES[case])).ptx, schedule="random", seed=4, width="warp")
    assert result.is_silent, str(result)


@pytest.mark.parametrize(
    "mutant",
    MUTANTS + START_MUTANTS + TILE_MUTANTS + SPLIT_MUTANTS + CLUSTER_MUTANTS,
    ids=lambda mutant: mutant.name,
)
def test_planted_bug_is_reported_with_its_rule(mutant: Mutant) -> None:
    result = outcome(mutant.on, binary(mutant.unit()).ptx, schedule=mutant.policy, seed=1)
    assert result.rules & mutant.rules, str(result)


@pytest.mark.parametrize("mutant", SILENT, ids=lambda mutant: mutant.name)
def test_an_edit_that_leaves_the_kernel_right_is_not_reported(mutant: Mutant) -> None:
    result = outcome(mutant.on, binary(mutant.unit()).ptx)
    assert result.is_silent, f"{SILENT[mutant]}: {result}"


@pytest.mark.parametrize("case", EQUIVALENT)
def test_every_instruction_of_the_protocol_is_missed_when_left_out(case: str) -> None:
    silent: dict[str, int] = {}
    lines = binary(source(CASES[case])).ptx.split("\n")
    for number, line in enumerate(lines):
        found = re.match(r"\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)", line)
        if found is None or not found[1].startswith(PROTOCOL):
            continue
        kept = lines.copy()
        kept[number] = _left_out(line)
        if outcome(CASES[case], "\n".join(kept)).is_silent:
            silent[found[1]] = silent.get(found[1], 0) + 1
    assert silent == {opcode: count for opcode, (count, _) in EQUIVALENT[case].items()}


def _left_out(line: str) -> str:
    """Nothing; a try_wait that always succeeds."""
    tried = re.search(r"mbarrier\.try_wait\S*\s+(\w+),", line)
    return f"setp.eq.u32 {tried[1]}, 0, 0;" if tried else ""
