"""Whoever changes a refused config as its violations advise, word for word, comes to a legal one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import pytest

from tilewright import device
from tilewright.ampere_config import AmpereConfig
from tilewright.config import Config
from tilewright.packing import packed
from tilewright.problem import Problem

MAX_STEPS = 3  # of advice, one after another
EXTENTS = (32, 64, 128, 192, 256)
VALUES = {
    "tile_m": (-64, 16, 32, 100, 256, 320),
    "tile_n": (0, 16, 64, 100, 192, 264),
    "tile_k": (0, 16, 32, 48, 64, 96, 128, 256),
    "stages": (0, 2, 5, 8, 12, 13, 33),
    "warps_m": (0, 1, 3, 4, 8),
    "warps_n": (1, 4, 8),
    "ahead": (0, 2, 3, 8),
    "prefetch": (1, 64),
    "split_barrier": (True,),
    "ctas": (0, 2, 3, 4, 8, 9),
    "consumers": (0, 1, 2),
    "store_slots": (0, 1, 8),
    "pingpong": (True,),
    "split_k": (2, 3, 8),
}
PROBLEMS = {
    "bf16": packed(4096, 4096, 4096),
    "rows of 4 bytes": packed(1000, 998, 102, padded=False),
    "fp32 out": packed(300, 300, 128, out_dtype="fp32"),
    "fp16 sums": packed(512, 512, 512, dtype="fp16", sums="fp16"),
    "tf32": packed(512, 512, 512, dtype="tf32"),
    "row-major b": packed(512, 512, 512, b_major="n"),
}


def advised(config: Config, sentence: str) -> Iterator[Config]:
    """Every config that the sentence tells to use; none where it tells of no other."""
    if found := re.match(r"(\w+) = .* is outside (\d+) \.\. (\d+)$", sentence):
        yield config.replace(**{found[1]: int(found[2])})
    if found := re.match(r"(tile_\w) = .* is not a multiple of (\d+)", sentence):
        yield from (config.replace(**{found[1]: extent}) for extent in range(int(found[2]), 257, int(found[2])))
    if found := re.match(r"(\w+) = \S+ (?:of \w+ )?is not (?:one of )?(\d[\d, or]*)", sentence):
        yield from (config.replace(**{found[1]: int(value)}) for value in re.findall(r"\d+", found[2]))
    if sentence.endswith("leave it out"):
        name = sentence.split()[0]
        yield config.replace(**{name: getattr(type(config)(), name)})
    if sentence.startswith("warps_m x warps_n"):
        yield from (config.replace(warps_m=rows, warps_n=columns) for rows in (1, 2, 4) for columns in (1, 2))
    _, use, works = sentence.rpartition("; use ")
    if not use:
        return
    yield from (config.replace(**{name: int(value)}) for name, value in re.findall(r"(\w+) = (\d+)", works))
    yield from (config.replace(stages=int(stages)) for stages in re.findall(r"(\d+) stages", works))
    yield from (config.replace(tile_k=int(value)) for value in re.findall(r"^\d+$", works))
    for name in ("tile_m", "tile_n"):
        if "smaller tile" in works or f"larger {name}" in works:
            is_smaller = "smaller tile" in works
            yield from (
                config.replace(**{name: extent})
                for extent in EXTENTS
                if (extent < getattr(config, name)) is is_smaller and extent != getattr(config, name)
            )
    if "fewer stages" in works:
        yield config.replace(stages=config.stages - 1)
    if "2 consumers" in works:
        yield config.replace(consumers=2)
    if "no pingpong" in works:
        yield config.replace(pingpong=False)
    for name in ("warps_m", "warps_n") if isinstance(config, AmpereConfig) else ():
        if "more warps" in works:
            yield config.replace(**{name: 2 * getattr(config, name)})
        if "fewer warps" in works:
            yield config.replace(**{name: max(getattr(config, name) // 2, 1)})


def leads_to_a_legal_one(config: Config, problem: Problem, on: device.Device, steps: int = MAX_STEPS) -> bool:
    found = config.violations(problem, on)
    return not found or (
        steps > 0 and any(leads_to_a_legal_one(each, problem, on, steps - 1) for each in advised(config, found[0]))
    )


@pytest.mark.parametrize(
    ("kind", "name"), [(AmpereConfig, "a100"), (AmpereConfig, "rtx3090"), (AmpereConfig, "h200"), (Config, "h200")]
)
def test_what_a_violation_advises_leads_to_a_legal_config(kind: type[Config], name: str) -> None:
    on, num_refused = device.preset(name), 0
    for problem in PROBLEMS.values():
        if kind is Config and not problem.is_for_wgmma:
            continue
        for field in dataclasses.fields(kind):
            for value in VALUES.get(field.name, ()):
                config = kind().replace(**{field.name: value})
                num_refused += bool(config.violations(problem, on))
                assert leads_to_a_legal_one(config, problem, on), config.violations(problem, on)
    assert num_refused > 40


@pytest.mark.parametrize(
    ("config", "name", "sentences"),
    [
        (AmpereConfig(tile_k=128), "a100", ["tile_k = 128 of bf16 is not 32 or 64, rows of 64 or 128 bytes"]),
        (AmpereConfig(tile_k=64), "rtx3090", ["use a smaller tile or tile_k = 32"]),
        (AmpereConfig(stages=12, split_barrier=True), "a100", ["use 9 stages"]),
        (AmpereConfig(ctas=3, tile_m=64), "rtx3090", ["takes 1; use ctas = 1"]),
        (AmpereConfig(ctas=2, tile_m=64), "rtx3090", ["takes 1; use ctas = 1, or 3 stages"]),
        (AmpereConfig(ctas=3), "h200", ["have 168 each; use ctas = 2, a smaller tile or more warps"]),
        (AmpereConfig(tile_m=256), "h200", ["have 255 each; use a smaller tile or more warps"]),
        (Config(stages=8), "h200", ["gives a CTA 232448; use 4 stages"]),
        (Config(split_k=2), "h200", ["gives a CTA 232448; use a smaller tile"]),
    ],
    ids=str,
)
def test_the_advice_of_a_budget_is_in_numbers_and_of_a_k_tile_that_is_none_nothing_else_is_said(
    config: Config, name: str, sentences: list[str]
) -> None:
    found = config.violations(PROBLEMS["bf16"], device.preset(name))
    assert len(found) == len(sentences)
    assert all(each.endswith(sentence) for each, sentence in zip(found, sentences, strict=True)), found
