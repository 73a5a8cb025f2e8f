"""The checker's rules, each with a broken kernel that it reports with that message and a repaired twin that is silent.

Every kernel of pairs.py runs under every schedule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pairs import NAMES, PAIRS, SHARED, Pair
from snippets import execute, kernel, line_of

from tilewright.emulator.events import Finding, Site
from tilewright.emulator.rules import RULES
from tilewright.emulator.shadow import Access, Shadow, States
from tilewright.errors import EmulationError

GIVEN = np.arange(2048, dtype=np.uint32)
SCHEDULES = [("lazy", 0), ("eager", 0), ("random", 1), ("random", 2), ("random", 3)]


def found_in(pair: Pair, filling: str, schedule: str = "lazy", seed: int = 0) -> tuple[Finding, ...]:
    body = pair.text.replace("{}", filling)
    text = kernel(body if body.startswith(NAMES) else NAMES + body, SHARED)
    choices: dict[str, Any] = {"block": pair.block, "grid": pair.grid, "cluster": pair.cluster}
    if pair.grid > pair.cluster:
        choices["resident"] = pair.grid // pair.cluster
    out_bytes = 4096
    return execute(text, GIVEN, out_bytes=out_bytes, checks=True, schedule=schedule, seed=seed, **choices)[1].findings


@pytest.mark.parametrize("name", PAIRS)
def test_broken_kernel_is_reported_with_its_rule_and_repair(name: str) -> None:
    pair = PAIRS[name]
    findings = found_in(pair, pair.broken)
    matching = [finding for finding in findings if finding.rule == pair.rule]
    assert matching, [str(finding) for finding in findings]
    assert any(pair.says in str(finding) for finding in matching), str(matching[0])
    assert {finding.rule for finding in findings} <= {pair.rule, *pair.also}, [str(finding) for finding in findings]
    assert all(finding.site.line > 0 and finding.repair for finding in matching)


@pytest.mark.parametrize("name", PAIRS)
def test_broken_kernel_is_reported_under_every_schedule(name: str) -> None:
    pair = PAIRS[name]
    for schedule, seed in SCHEDULES:
        assert pair.rule in {finding.rule for finding in found_in(pair, pair.broken, schedule, seed)}, (schedule, seed)


@pytest.mark.parametrize("name", PAIRS)
def test_repaired_twin_is_silent_under_every_schedule(name: str) -> None:
    pair = PAIRS[name]
    for schedule, seed in SCHEDULES:
        findings = found_in(pair, pair.repaired, schedule, seed)
        assert not findings, (schedule, seed, str(findings[0]))


def test_every_rule_has_a_pair() -> None:
    assert {pair.rule for pair in PAIRS.values()} == set(RULES)


def test_an_error_of_the_machine_tells_what_was_found_before_it() -> None:
    body = NAMES + "st.shared.u32 [%r6], %r0;\nxor.b32 %r9, %r6, 128;\nld.shared.u32 %r1, [%r9];\nbar.sync 0;\ntrap;"
    with pytest.raises(EmulationError, match="before that, data race") as raised:
        execute(kernel(body, SHARED), GIVEN, block=64, checks=True, width="warp")
    assert raised.value.rule == "trap"
    assert [finding.rule for finding in raised.value.findings if isinstance(finding, Finding)] == ["data race"]


def test_finding_names_both_accesses_and_the_bytes() -> None:
    pair = PAIRS["shared words cross warps"]
    (finding,) = found_in(pair, pair.broken)
    text = NAMES + pair.text.format(pair.broken)
    assert (finding.cta, finding.warp, finding.lane) == (0, 0, 0)
    assert "CTA 0 warp 0 lane 0 reads bytes smem+0..255 of CTA 0, which CTA 0 warp 1 lane 0 writes" in finding.message
    assert finding.site.line == line_of(kernel(text, SHARED), "ld.shared")
    assert finding.other_site is not None
    assert finding.other_site.line == line_of(kernel(text, SHARED), "st.shared")


def test_fences_of_all_threads_before_a_barrier_go_out_with_one_flag() -> None:
    """__threadfence by everybody, __syncthreads, then a relaxed atomic of one thread: the usual counter of CTAs."""
    counter = PAIRS["a counter with fences"].text.replace("DONE;\nmembar.gl;\n", "DONE;\n")
    counter = counter.replace("{}", "membar.gl;\nbar.sync 0;\n")
    for schedule, seed in SCHEDULES:
        text = kernel(NAMES + counter, SHARED)
        choices: dict[str, Any] = {"block": 64, "grid": 2, "resident": 2, "schedule": schedule, "seed": seed}
        assert not execute(text, GIVEN, out_bytes=4096, checks=True, **choices)[1].findings


def test_states_that_nothing_is_in_are_forgotten() -> None:
    states = States()
    shadow = Shadow(0, 64, states)
    site, threads = Site(1, "st.shared"), np.array([0], np.int64)
    for time in range(100):
        starts = np.array([16 * (time % 2)], np.int64)
        shadow.touch(Access(site, 0, threads, time, time, "shared", starts, 16, True), None)
    assert len(states.known) == 101
    last = [states.known[number][0] for number in shadow.numbers[:2].tolist()]
    states.renumber([shadow])
    assert len(states.known) == 3
    assert [states.known[number][0] for number in shadow.numbers[:2].tolist()] == last


def test_one_pair_of_instructions_is_reported_once() -> None:
    pair = PAIRS["shared words cross warps"]
    loop = "mov.u32 %r20, 0;\nAGAIN:\n" + pair.text.format("") + "\nadd.u32 %r20, %r20, 1;\nsetp.lt.u32 %p7, %r20, 5;\n"
    findings = execute(kernel(NAMES + loop + "@%p7 bra AGAIN;", SHARED), GIVEN, block=64, out_bytes=256, checks=True)[
        1
    ].findings
    assert len(findings) == 1


def test_values_are_the_same_with_checks() -> None:
    pair = PAIRS["lanes exchange words"]
    text = kernel(NAMES + pair.text.format(pair.repaired) + "\nst.global.u32 [%rd4], %r1;", SHARED)
    plain, _ = execute(text, GIVEN, block=64, out_bytes=256)
    checked, _ = execute(text, GIVEN, block=64, out_bytes=256, checks=True)
    assert plain.tobytes() == checked.tobytes()
