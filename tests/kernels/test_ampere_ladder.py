"""kernels/ampere_ladder.py and its sources: rungs compile clean for four architectures, show their ideas, say no."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from typing import Any

import pytest

from tilewright import device, disassemble
from tilewright.config import Config
from tilewright.errors import ConfigError
from tilewright.jit.build import build, flaws
from tilewright.jit.source import Binary
from tilewright.kernels import catalog
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS, AmpereRung
from tilewright.kernels.ampere_ladder_configs import ElementConfig, SplitConfig
from tilewright.kernels.render import render
from tilewright.occupancy import occupancy, register_budget
from tilewright.packing import packed

CARDS = ("a100", "rtx3090", "rtx4090", "h200")
A100, RTX3090, RTX4090, H200 = map(device.preset, CARDS)
LARGE = packed(4096, 4096, 4096)
BY_NUMBER = {rung.number: rung for rung in AMPERE_RUNGS}
every_rung = pytest.mark.parametrize("rung", AMPERE_RUNGS, ids=lambda rung: rung.name)


@cache
def compiled(number: str, card: str = "a100", **changes: Any) -> Binary:
    rung = BY_NUMBER[number]
    return build(render(rung, LARGE, rung.config.replace(**changes), device.preset(card)))


@cache
def opcodes(number: str, card: str = "a100", **changes: Any) -> Counter[str]:
    """Of the machine code, without the loads of nothing that ptxas sets before LDGSTS (@!PT LDS RZ, [RZ])."""
    lines = disassemble.sass(compiled(number, card, **changes).cubin).splitlines()
    return Counter(disassemble.opcodes("\n".join(line for line in lines if "@!PT" not in line)))


# -- compiled ----------------------------------------------------------------------------------------------------------


@every_rung
@pytest.mark.parametrize("card", CARDS)
def test_every_rung_compiles_clean_within_its_budget(rung: AmpereRung, card: str) -> None:
    """No spill, no stack; registers that the CTAs which the rung asks for have room with."""
    assert rung.config.violations(LARGE, device.preset(card)) == ()
    binary = compiled(rung.number, card)
    assert flaws(binary) == ()
    config = rung.config
    assert isinstance(config, ElementConfig)
    assert binary.resources.registers <= register_budget(device.preset(card), config.threads, config.ctas)


@pytest.mark.parametrize("rung", [BY_NUMBER[number] for number in ("a0", "a1", "a2", "a5", "a6", "a8")], ids=str)
def test_the_machine_code_of_all_architectures_multiplies_loads_and_copies_alike(rung: AmpereRung) -> None:
    """What a card here measures of sm_90 is made of the same instructions as sm_80, 86 and 89 would run."""
    counted = ("HMMA", "LDSM", "LDGSTS", "LDS", "STS", "BAR")
    cards = ("a100", "rtx4090", "h200") if rung.number in ("a1", "a6") else ("a100", "h200")
    found = {card: tuple(opcodes(rung.number, card)[name] for name in counted) for card in cards}
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize(
    ("number", "uses", "lacks"),
    [
        ("a0", {"HMMA", "STS", "LDS"}, {"LDGSTS"}),
        ("a1", {"HMMA", "LDSM", "STS"}, {"LDGSTS", "LDS"}),
        ("a2", {"HMMA", "LDSM", "STS"}, {"LDGSTS", "LDS"}),
        ("a3", {"HMMA", "LDSM", "STS"}, {"LDGSTS", "LDS"}),
        ("a4", {"HMMA", "LDSM", "STS"}, {"LDGSTS", "LDS"}),
        *((f"a{i}", {"HMMA", "LDSM", "LDGSTS"}, {"LDG", "STS", "LDS"}) for i in range(5, 10)),
    ],
)
def test_the_sass_of_a_rung_shows_its_idea_and_not_the_next(number: str, uses: set[str], lacks: set[str]) -> None:
    found = opcodes(number)
    assert uses <= found.keys()
    assert not lacks & found.keys()


def test_a_k_tile_takes_the_instructions_that_its_fragments_come_to() -> None:
    """A warp's 64 x 32: 4 x 4 products of 16 x 8, 4 + 2 ldmatrix a k16 step, two steps. 64 x 64: 4 x 8, and 4 + 4."""
    assert (opcodes("a1")["HMMA"], opcodes("a1")["LDSM"]) == (32, 12)
    assert (opcodes("a5")["HMMA"], opcodes("a5")["LDSM"]) == (32, 12)
    assert (opcodes("a7")["HMMA"], opcodes("a7")["LDSM"]) == (64, 16 + 8)  # and the first step's, before the loop
    assert [opcodes("a1", matrices=matrices)["LDSM"] for matrices in (4, 2, 1)] == [12, 24, 48]


def test_wmma_s_own_copies_are_what_ldmatrix_does_as_well_but_its_sums_go_through_shared_memory() -> None:
    assert opcodes("a0")["LDSM"] == opcodes("a1")["LDSM"]
    assert opcodes("a0")["HMMA"] == opcodes("a1")["HMMA"]
    assert opcodes("a1")["LDS"] == 0 < opcodes("a0")["LDS"]


def test_16_bytes_a_store_are_an_eighth_of_the_stores() -> None:
    assert opcodes("a1")["STS"] == 16  # in a loop of two
    assert opcodes("a2")["STS"] == 4


def test_f16_sums_take_half_the_registers_of_f32_sums() -> None:
    half, full = packed(4096, 4096, 4096, dtype="fp16"), BY_NUMBER["a6"]
    found = [
        build(render(full, half, full.config.replace(f16_sums=sums), A100)).resources.registers
        for sums in (True, False)
    ]
    assert found[1] - found[0] >= 24  # 32 of 64, less what ptxas makes of the room


# -- legality ----------------------------------------------------------------------------------------------------------


@every_rung
def test_a_rung_refuses_what_its_source_does_not_compute(rung: AmpereRung) -> None:
    assert list(rung.space(LARGE, A100)) == [rung.config]
    assert rung.config.violations(packed(64, 64, 64, dtype="fp16"), A100) == ()
    for problem in (
        packed(64, 64, 64, out_dtype="fp32"),
        packed(64, 64, 64, b_major="n"),
    ):
        assert any("TN alone" in reason for reason in rung.config.violations(problem, A100))
    old = dataclasses.replace(A100, sm=(7, 5), name="NVIDIA T4")
    assert any("NVIDIA T4 has 7.5" in reason for reason in rung.config.violations(LARGE, old))


@pytest.mark.parametrize(
    ("number", "change"),
    [
        ("a0", {"stages": 2}), ("a0", {"tile_k": 24}), ("a1", {"matrices": 3}), ("a1", {"warps_m": 0}),
        ("a1", {"tile_m": 272}), ("a1", {"tile_n": 144}), ("a1", {"slices": 2}), ("a2", {"tile_m": 32, "tile_k": 16}),
        ("a3", {"padding": 1}), ("a3", {"padding": -8}), ("a3", {"padding": 72}), ("a5", {"stages": 0}),
        ("a5", {"stages": 9}), ("a6", {"stages": 1}), ("a6", {"tile_k": 16}), ("a6", {"f16_sums": True}),
        ("a7", {"min_ctas": 0}), ("a7", {"min_ctas": 2}), ("a7", {"stages": 8}), ("a8", {"slices": 3}),
        ("a8", {"slices": 0}), ("a9", {"group_m": 0}),
    ],
)  # fmt: skip
def test_a_config_that_the_source_is_not_written_for_is_refused(number: str, change: dict[str, int]) -> None:
    assert BY_NUMBER[number].config.replace(**change).violations(LARGE, A100)


@pytest.mark.parametrize("padding", range(65))
def test_padding_keeps_rows_at_16_bytes_exactly_where_it_is_a_multiple_of_8(padding: int) -> None:
    """Row r begins r (32 + padding) x 2 bytes into the tile: a multiple of 16 for every r where it is for r = 1."""
    config = BY_NUMBER["a3"].config.replace(padding=padding)
    begins = [row * (32 + padding) * 2 % 16 for row in range(128)]
    reasons = config.violations(LARGE, A100)
    assert any("16 bytes" in reason for reason in reasons) == any(begins)
    assert any(begins) == (padding % 8 != 0)


def test_the_seed_s_padding_of_2_or_4_is_refused_with_the_reason_and_what_works() -> None:
    for padding, row_bytes, past in ((2, 68, 4), (4, 72, 8)):
        [reason] = BY_NUMBER["a3"].config.replace(padding=padding).violations(LARGE, A100)
        assert f"rows of {row_bytes} bytes, so that row 1 begins {past} bytes past a multiple of 16" in reason
        assert "pad by 8, or swizzle" in reason


def test_a_card_s_own_shared_memory_and_registers_decide() -> None:
    config = BY_NUMBER["a7"].config
    for card, most in ((A100, 6), (RTX3090, 4), (RTX4090, 4), (H200, 8)):
        legal = [stages for stages in range(2, 9) if not config.replace(stages=stages).violations(LARGE, card)]
        assert legal == list(range(2, most + 1)), card.name
    [reason] = config.replace(stages=5).violations(LARGE, RTX3090)
    assert reason == "122880 bytes of shared memory are more than the 101376 that NVIDIA RTX 3090 gives a CTA"
    [reason] = config.replace(min_ctas=2).violations(LARGE, H200)
    assert "exceed the 128 that a thread of 2 x 256 an SM may have" in reason
    [reason] = config.replace(tile_n=128, warps_m=4, min_ctas=3, stages=2).violations(LARGE, H200)
    assert "exceed the 40" in reason or "exceed the 80" in reason


def test_odd_rows_are_for_a0_and_a1_alone() -> None:
    odd = packed(64, 64, 63, padded=False)
    for rung in AMPERE_RUNGS:
        reasons = rung.config.violations(odd, A100)
        if rung.number in ("a0", "a1"):
            assert reasons == ()
        else:
            assert "a has rows 126 bytes apart" in reasons[0]
            assert "use a0 or a1" in reasons[0]


def test_a_config_of_another_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="MultistageConfig"):
        BY_NUMBER["a5"].headers(LARGE, Config())


def test_what_the_occupancy_of_the_rungs_comes_to() -> None:
    """Of 64 warps on an A100 and an H200, of 48 on the others: registers hold all of them to 8 or 16 warps."""
    found = {}
    for number in ("a4", "a5", "a7"):
        config = BY_NUMBER[number].config
        for card in CARDS:
            registers = compiled(number, card).resources.registers
            each = occupancy(device.preset(card), config.threads, registers, config.smem_bytes(LARGE))
            found[number, card] = (each.warps, each.limit)
    assert {found["a4", card] for card in CARDS} == {(16, "registers")}
    assert [found["a5", card] for card in CARDS] == [
        (16, "registers"), (8, "shared memory"), (8, "shared memory"), (16, "registers"),
    ]  # fmt: skip
    assert {found["a7", card][0] for card in CARDS} == {8}


def test_slices_fill_the_device_where_tiles_are_few_and_only_there() -> None:
    rung = BY_NUMBER["a8"]
    assert rung.choice(LARGE, A100) == rung.config
    few = rung.choice(packed(256, 256, 8192), A100)
    assert few.slices == 32  # 2 tiles, 108 SMs: 54 would do; 8192 in parts of whole 16 bytes, 128 of k at least
    assert rung.launch(packed(256, 256, 8192), few, A100).grid == 64
    assert rung.choice(packed(256, 256, 100), A100).slices == 1
    assert isinstance(few, SplitConfig)


def test_dispatch_sees_no_rung_and_the_catalog_knows_all() -> None:
    assert not set(catalog.PRODUCTION) & set(catalog.AMPERE_LADDER)
    for rung in AMPERE_RUNGS:
        assert catalog.family(rung.name) is rung


@every_rung
def test_matrices_of_a_batch_lie_below_each_other_and_their_k_is_not_cut(rung: AmpereRung) -> None:
    problem = packed(64, 64, 64, batch=(2,))
    refused = rung.config.violations(problem, A100)
    if rung.config.SLICED:
        assert "one matrix at a time" in " ".join(refused)
        return
    assert refused == ()
    assert rung.launch(problem, rung.config, A100).grid == 2
    for gap in ({"a_batch": (0,)}, {"b_batch": (64 * 64 + 8,)}, {"out_batch": (2 * 64 * 64,)}):
        apart = dataclasses.replace(problem, **gap)
        assert "below each other" in " ".join(rung.config.violations(apart, A100))
    assert "below each other" in " ".join(rung.config.violations(packed(64, 64, 64, batch=(2, 3)), A100))


def test_only_a5_leaves_rows_as_they_are() -> None:
    problem = packed(64, 64, 64)
    for rung in AMPERE_RUNGS:
        if hasattr(rung.config, "swizzled"):
            config = rung.config.replace(swizzled=False)
            assert bool(config.violations(problem, A100)) is (rung.number != "a5")
            assert "unswizzled" in str(config)
