"""kernels/overlapped.py in the emulator: copies that run beside the product, and what they must not leave out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from gemm import WRONG_NUMBERS, edited
from products import H200

from tilewright.backends.emulated import emulated
from tilewright.backends.steps import run_once
from tilewright.config import Config
from tilewright.errors import ConfigError, EmulationError
from tilewright.host_operands import host_operands
from tilewright.jit.build import build, flaws
from tilewright.jit.source import Source
from tilewright.kernels import overlapped, repack
from tilewright.problem import Problem, packed

SMALL = Config(tile_m=64, tile_n=64, consumers=1, stages=2)
TWO = Config(tile_m=128, tile_n=64, stages=3)
TAIL = Config(tile_m=256, tile_n=64, stages=2, staggered=True, k_back_and_forth=True, tail_n=24)


def run(
    problem: Problem, config: Config, *, head: float, num_sms: int = 2, units: tuple[Source, ...] = (), **choices: Any
) -> tuple[bool, set[str]]:
    """Whether out is right, element for element, and the rules of what was found."""
    sources = units or overlapped.sources(problem, config, H200)
    binaries: Any = tuple(lambda unit=unit: build(unit) for unit in sources)
    work = overlapped.work(problem, config, H200, num_sms, head=head, binaries=binaries)
    a, b, out = host_operands(problem, 3)
    backend = emulated(H200, checks=True, **choices)
    for each in (a, b, out):
        backend.lend(each.memory.ctypes.data, each.memory.nbytes)
    addresses = {name: each.memory.ctypes.data for name, each in (("a", a), ("b", b), ("out", out))}
    try:
        run_once(backend, work, addresses)
    except EmulationError as error:
        return False, {error.rule}
    expected = (a.view.astype(np.float32) @ b.view.astype(np.float32)).astype(out.view.dtype)
    return bool((out.view == expected).all()), {finding.rule for finding in backend.findings}


@pytest.mark.parametrize(
    ("problem", "config", "head", "num_sms", "schedule"),
    [
        (packed(150, 99, 333, padded=False), TWO, 0.0, 2, "lazy"),  # both operands, every shift, two strips
        (packed(150, 99, 333, padded=False), TWO, 0.0, 2, "eager"),
        (packed(96, 131, 577, padded=False), SMALL, 0.5, 3, "random"),  # strips of a head, several tiles a CTA
        (packed(300, 128, 385, padded=False), TAIL, 0.25, 2, "random"),
        (packed(70, 72, 201, padded=False), SMALL, 1.0, 2, "lazy"),  # nothing is left to copy on the way
        (dataclasses.replace(packed(70, 72, 200), b_pitch=203), SMALL, 0.0, 1, "lazy"),  # of b alone
    ],
    ids=["all on the way", "all on the way, eager", "half", "tail", "all before", "b alone"],
)
def test_a_product_is_exact_however_much_is_copied_on_the_way(
    problem: Problem, config: Config, head: float, num_sms: int, schedule: Any
) -> None:
    assert run(problem, config, head=head, num_sms=num_sms, schedule=schedule, seed=2) == (True, set())


REALIGN, PRODUCER = "realign.cuh", "producer.cuh"
_RELEASE = "if (lane == 0) ptx::red_add_release_gpu_u32(progress + NEXT_BYTES + strip * 4, 1);"
_FENCE = "ptx::fence_proxy_async_global(); __syncwarp();"
# (name, file, what stands there, what shall stand there instead, rules of which one must be reported)
MUTANTS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("strips are not waited for", PRODUCER, "gate.await(k);", "",
     ("data race", "missing proxy fence", "refilled while read")),
    ("one unit is waited for", REALIGN, "ready * 4) < units;", "ready * 4) < 1;",
     ("data race", "missing proxy fence", "refilled while read", WRONG_NUMBERS)),
    ("a unit too many is waited for", REALIGN, "ready * 4) < units;", "ready * 4) < units + 1;",
     ("deadlock", "step budget")),
    ("no proxy fences", "ptx/flag.cuh", "fence.proxy.async.global;", "", ("missing proxy fence",)),
    ("no __syncwarp before the release", REALIGN, _FENCE, "ptx::fence_proxy_async_global();", ("data race",)),
    ("progress is told before the copy", REALIGN, "if (place < a_units) {", f"{_RELEASE} if (place < a_units) {{",
     ("data race", "missing proxy fence", "refilled while read")),
    ("the next lane's words are this lane's", REALIGN, "(lane + 1) % WARP_THREADS", "lane", (WRONG_NUMBERS,)),
    ("the word behind the strip is not read", REALIGN, "lane <= STRIP_CHUNKS && word", "lane < STRIP_CHUNKS && word",
     (WRONG_NUMBERS,)),
    ("rows are read to their end and one word more", REALIGN, "word < begin + rows.row_bytes",
     "word < begin + rows.row_bytes + 16", ("out of bounds",)),
    ("rows past the last", REALIGN, "if (i < left && writes)", "if (writes)",
     ("out of bounds", "data race", WRONG_NUMBERS)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "file", "old", "new", "rules"), MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_a_planted_bug_is_reported(name: str, file: str, old: str, new: str, rules: tuple[str, ...]) -> None:
    problem = packed(41, 27, 205, padded=False)
    clear, head, product = overlapped.sources(problem, SMALL, H200)
    units = (clear, head, edited(product, file, old, new))
    found: set[str] = set()
    for schedule in ("lazy", "random"):
        is_right, rules_found = run(problem, SMALL, head=0.0, units=units, schedule=schedule, seed=1, max_blocks=4_000)
        found |= rules_found | (set() if is_right or rules_found else {WRONG_NUMBERS})
        if found & set(rules):
            break
    assert found & set(rules), found


def test_what_it_does_not_serve_is_refused() -> None:
    for problem, config, sentence in (
        (packed(64, 64, 64), SMALL, "nothing to copy"),
        (packed(64, 64, 65, b_major="n", padded=False), SMALL, "k-contiguous"),
        (packed(64, 64, 65, batch=(2,), padded=False), SMALL, "single products"),
        (packed(128, 64, 65, padded=False), SMALL.replace(cluster_m=2), "single CTAs"),
        (packed(256, 208, 129, padded=False), Config(tile_m=256, tile_n=200, stages=2), "224"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            overlapped.sources(problem, config, H200)


@pytest.mark.parametrize(
    "config",
    [
        Config(tile_m=256, tile_n=192, stages=3, store_slots=3, staggered=True, k_back_and_forth=True, tail_n=120),
        Config(tile_m=128, tile_n=160, stages=5, pingpong=True, k_back_and_forth=True),
        Config(tile_m=64, tile_n=128, stages=8, consumers=1),
    ],
    ids=str,
)
def test_its_kernels_compile_without_spills_and_the_words_agree(config: Config) -> None:
    *_, unit = overlapped.sources(packed(4095, 4095, 4095, padded=False), config, H200)
    assert not flaws(build(unit))
    text = dict(unit.headers)["realign.cuh"]
    assert f"UNIT_ROWS = {overlapped.UNIT_ROWS};" in text
    assert f"NEXT_BYTES = {overlapped.NEXT_BYTES};" in text
    assert f"STRIP_CHUNKS = {overlapped.STRIP_BYTES // repack.CHUNK_BYTES};" in text


def test_of_rows_that_tma_reads_nothing_is_copied() -> None:
    problem = dataclasses.replace(packed(70, 72, 200), b_pitch=203)
    binaries: Any = tuple(lambda unit=unit: build(unit) for unit in overlapped.sources(problem, SMALL, H200))
    work = overlapped.work(problem, SMALL, H200, binaries=binaries)
    assert [piece.name for piece in work.scratch] == [repack.scratch_name("b"), overlapped.PROGRESS]
