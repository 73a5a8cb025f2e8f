"""The Ampere family: its kernel in the emulator with all checks, its configs' legality and occupancy, its refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
from covering_draw import check_covers, drawn, numbered
from tilewright import device, model
from tilewright.ampere_config import AmpereConfig
from tilewright.backends.emulated import EmulatedBackend, emulated
from tilewright.backends.steps import run_once
from tilewright.config import Config
from tilewright.emulator.run import Report
from tilewright.errors import ConfigError, EmulationError
from tilewright.jit.build import build
from tilewright.kernels import catalog
from tilewright.kernels.ampere import AMPERE
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.occupancy import occupancy
from tilewright.packing import packed
from tilewright.problem import Problem

A100, RTX3090, RTX4090, H200 = (device.preset(name) for name in ("a100", "rtx3090", "rtx4090", "h200"))
AMPERE_CARDS = (A100, RTX3090, RTX4090)
KINDS: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}
SMALL = AmpereConfig(tile_m=64, tile_n=64, stages=3)


def product(
    problem: Problem,
    config: AmpereConfig | None = None,
    *,
    card: str = "a100",
    offsets: tuple[int, int, int] = (0, 0, 0),
    **choices: Any,
) -> tuple[bool, tilewright.Emulator]:
    """(whether every element is right and nothing else was touched, the emulator). Whole numbers: exact in any order;
    what lies between rows is NaN in a and b and must stay 7 in out. `offsets` in elements from a multiple of 16 bytes.
    """
    generator = np.random.default_rng(problem.m)
    views, kept = {}, {}
    for name, offset in zip(("a", "b", "out"), offsets, strict=True):
        kind = KINDS[problem.out_dtype.name if name == "out" else problem.dtype.name]
        shape, strides = problem.strided(name)
        size = np.dtype(kind).itemsize
        memory = np.full(offset + problem.extent_bytes[name] // size + 64, 7 if name == "out" else np.nan, kind)
        skip = (-memory.ctypes.data % 16) // size + offset
        views[name] = np.lib.stride_tricks.as_strided(memory[skip:], shape, [stride * size for stride in strides])
        kept[name] = memory
        views[name][...] = np.nan if name == "out" else generator.integers(-3, 4, shape)
    expected = views["a"].astype(np.float32) @ views["b"].astype(np.float32)
    untouched = int((kept["out"] == 7).sum())
    emulator = tilewright.Emulator(card, limit_s=None, **choices)
    emulator.matmul(views["a"], views["b"], views["out"], config=config)
    is_right = bool((views["out"] == expected.astype(views["out"].dtype)).all())
    written = views["out"].copy()
    views["out"][...] = 0
    return is_right and int((kept["out"] == 7).sum()) == untouched and not np.isnan(written).any(), emulator


def conflicts(report: Report | None) -> dict[str, tuple[int, int]]:
    """What takes more wavefronts of shared memory than it has phases, by opcode and place."""
    assert report is not None
    assert report.banks
    return {
        f"{site.opcode} {site.source_chain}": counts for site, counts in report.banks.items() if counts[0] != counts[1]
    }


# -- numbers, races, bank conflicts ------------------------------------------------------------------------------------

MAJORS: tuple[dict[str, Any], ...] = (
    {},
    {"a_major": "m"},
    {"b_major": "n"},
    {"a_major": "m", "b_major": "n"},
)
FORMS = (
    SMALL,
    SMALL.replace(tile_k=64, stages=4, ahead=1),
    AmpereConfig(tile_m=64, tile_n=128, ahead=3, stages=5),
    AmpereConfig(tile_m=128, tile_n=64, warps_m=4, warps_n=1, stages=3, square=1, group_m=2),
    AmpereConfig(tile_m=64, tile_n=128, tile_k=64, ahead=3, stages=4, split_barrier=True),
    SMALL.replace(warps_n=1, warps_m=1, split_barrier=True),
)


@pytest.mark.parametrize(
    ("majors", "dtypes", "tile_k"),
    [  # half of all, in which any two of the three still meet in every way
        (MAJORS[major], (("bf16", "bf16"), ("fp16", "fp32"))[kind], (32, 64)[(major + kind) % 2])
        for major in range(4)
        for kind in range(2)
    ],
    ids=str,
)
def test_every_layout_and_type_is_exact_without_findings_or_conflicts(
    majors: dict[str, Any], dtypes: tuple[str, str], tile_k: int
) -> None:
    """B085: each swizzle, of 64 and 128 bytes, for each 16-bit type."""
    dtype, out_dtype = dtypes
    problem = packed(72, 72, tile_k * 3 + 8, dtype=dtype, out_dtype=out_dtype, **majors)
    is_right, emulator = product(problem, SMALL.replace(tile_k=tile_k), banks=True)
    assert is_right
    assert emulator.findings == ()
    assert conflicts(emulator.report) == {}


@pytest.mark.parametrize("config", FORMS, ids=str)
@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_every_form_is_exact_under_other_schedules_with_several_tiles_a_cta(
    config: AmpereConfig, schedule: Any
) -> None:
    emulator = tilewright.Emulator("a100", schedule=schedule, seed=3, limit_s=None)
    a = np.random.default_rng(1).integers(-3, 4, (136, 168)).astype(ml_dtypes.bfloat16)
    b = np.random.default_rng(2).integers(-3, 4, (168, 136)).astype(ml_dtypes.bfloat16)
    got = emulator.matmul(a, b, config=config, num_sms=2)
    assert (got == (a.astype(np.float32) @ b.astype(np.float32)).astype(ml_dtypes.bfloat16)).all()
    assert emulator.findings == ()


@pytest.mark.parametrize("k", [1, 8, 31, 32, 33, 64, 95, 96, 97])
def test_k_shorter_and_longer_than_the_ring_is_exact(k: int) -> None:
    """B028: a k of one value, of one k tile, of all stages, and one beside each."""
    is_right, emulator = product(packed(24, 40, k), SMALL)
    assert is_right
    assert emulator.findings == ()


def pitched(problem: Problem, a: int, b: int) -> Problem:
    """The problem with so many elements more between rows of a and of b."""
    return dataclasses.replace(problem, a_pitch=problem.a_pitch + a, b_pitch=problem.b_pitch + b)


@pytest.mark.parametrize("majors", MAJORS[::3], ids=str)
@pytest.mark.parametrize(
    ("a", "b", "offsets", "sizes"),
    [(4, 2, (0, 0, 1), (8, 4)), (0, 0, (4, 2, 3), (8, 4)), (1, 0, (0, 0, 0), (0, 16)), (8, 8, (8, 1, 8), (16, 0))],
    ids=str,
)
def test_rows_and_addresses_off_16_bytes_are_copied_in_narrower_pieces_or_first(
    majors: dict[str, Any], a: int, b: int, offsets: tuple[int, int, int], sizes: tuple[int, int]
) -> None:
    problem = pitched(packed(67, 69, 70, **majors), a, b)
    aligned = [min(offset * 2 & -(offset * 2) or 16, 16) for offset in offsets]
    told = dataclasses.replace(problem, a_align_bytes=aligned[0], b_align_bytes=aligned[1])
    assert (SMALL.copy_bytes(told, "a"), SMALL.copy_bytes(told, "b")) == sizes
    assert SMALL.copied(told) == tuple(name for name, size in zip("ab", sizes, strict=True) if size == 0)
    is_right, emulator = product(problem, SMALL, offsets=offsets)
    assert is_right
    assert emulator.findings == ()


def test_a_plan_copies_an_operand_whose_address_is_less_aligned_than_the_one_that_it_was_made_for() -> None:
    plan = tilewright.plan(pitched(packed(64, 64, 64), 4, 0), device="a100", config=SMALL)
    assert plan.copies is None
    assert [plan.config.needs_bytes(plan.problem, name) for name in "ab"] == [8, 16]
    assert [step.name for step in plan.work_of(("a",)).steps] == ["repack a", "ampere"]


@pytest.mark.parametrize(
    ("m", "n", "k", "majors"), [(2, 4, 3, {}), (1, 705, 705, {"a_major": "m"}), (2, 4, 3, {"a_major": "m"})], ids=str
)
def test_tiny_and_odd_fp16_products_are_exact(m: int, n: int, k: int, majors: dict[str, Any]) -> None:
    """B010: odd sizes that misalign fp16, and a column-major a."""
    is_right, emulator = product(packed(m, n, k, dtype="fp16", padded=False, **majors))
    assert is_right
    assert emulator.findings == ()


@pytest.mark.parametrize("m", [1, 8, 16])
def test_few_rows_are_served(m: int) -> None:
    """B049, in the types that there are."""
    assert product(packed(m, 64, 64))[0]


@pytest.mark.parametrize(
    ("batch", "shared", "config"),
    [((3,), "", SMALL), ((2, 3), "b", SMALL), ((4,), "a", SMALL), ((2, 3), "b", FORMS[4]), ((3,), "a", FORMS[5])],
    ids=str,
)
def test_batches_are_one_launch(batch: tuple[int, ...], shared: Any, config: AmpereConfig) -> None:
    problem = packed(40, 72, 48, batch=batch, shared=shared)
    is_right, emulator = product(problem, config)
    assert is_right
    assert emulator.findings == ()


def test_a_column_major_out_is_the_transposed_product() -> None:
    is_right, emulator = product(packed(72, 40, 48, out_major="m", b_major="n"), SMALL)
    assert is_right
    assert emulator.findings == ()


def test_slices_of_k_are_added_by_the_second_kernel() -> None:
    is_right, emulator = product(packed(40, 72, 256), SMALL.replace(slices=4))
    assert is_right
    assert emulator.findings == ()


def test_the_bits_do_not_depend_on_the_tile_nor_on_the_slot() -> None:
    """order.py counts these fields as indifferent."""
    generator = np.random.default_rng(5)
    a, b = (generator.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((64, 200), (200, 64)))
    found = [
        tilewright.Emulator("a100", exact_sums=True, checks=False, limit_s=None).matmul(a, b, config=config).tobytes()
        for config in (*FORMS, SMALL.replace(prefetch=128), SMALL.replace(ctas=2))
    ]
    assert len(set(found)) == 1


# -- the space: each card's shared memory and registers ----------------------------------------------------------------


def distinct(card: device.Device, problem: Problem) -> Iterator[AmpereConfig]:
    """Each config of the space, as far as it is compiled in."""
    seen = set()
    for config in AMPERE.space(problem, card):
        assert isinstance(config, AmpereConfig)
        if (own := config.replace(group_m=16)) not in seen:
            seen.add(own)
            yield own


LARGE = packed(4096, 4096, 4096)
WIDE = AmpereConfig(tile_m=256, tile_n=192, tile_k=64, warps_m=4, stages=3)  # 192 accumulators a thread


@pytest.mark.parametrize(
    ("card", "config"),
    [
        *((A100, config) for config in distinct(A100, LARGE)),
        *((H200, config) for config in distinct(H200, LARGE) if config.split_barrier and config.tile_k == 64),
    ],
    ids=str,
)
def test_no_config_of_the_space_spills_or_has_bank_conflicts(card: device.Device, config: AmpereConfig) -> None:
    """One tile, checked nowhere else in this size; on 9.0 what an A100 has no shared memory for."""
    problem = packed(config.tile_m, config.tile_n, config.tile_k)
    is_right, emulator = product(problem, config, card="a100" if card is A100 else "h200", banks=True, checks=False)
    assert is_right
    assert conflicts(emulator.report) == {}
    resources = build(render(AMPERE, problem, config, card), refuse=True).resources
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (0, 0, 0)
    assert resources.registers <= config.registers_at_most(card)


def test_each_tile_is_offered_in_the_form_that_leads_where_it_fits() -> None:
    """Measured on an H200; three slots are too few for a split barrier, of other kinds two CTAs were not measured."""
    found = {
        (config.tile_m, config.tile_n, config.tile_k, config.ctas, config.warps): (config.ahead, config.split_barrier)
        for config in distinct(H200, LARGE)
    }
    assert {shape for shape, form in found.items() if form == (3, True)} == {
        (128, 256, 32, 1, 8), (128, 256, 64, 1, 8), (256, 128, 32, 1, 8), (256, 128, 64, 1, 8),
        (192, 128, 32, 1, 8), (192, 128, 64, 1, 8),
    }  # fmt: skip
    assert {shape for shape, form in found.items() if form == (3, False)} == {(128, 128, 64, 2, 4)}
    on_a100 = [config for config in distinct(A100, LARGE) if config.tile_k == 64 and config.tile_n == 256]
    assert [(config.stages, config.ahead, config.split_barrier) for config in on_a100] == [(3, 3, False)]
    assert list(AMPERE.trials(LARGE, H200)) == []
    eight = packed(4096, 4096, 4096, dtype="int8")
    of_eight = {(each.tile_m, each.tile_n) for each in distinct(H200, eight) if each.split_barrier}
    assert of_eight == {(128, 256), (256, 128), (192, 128)}
    assert {(each.ahead, each.split_barrier) for each in distinct(H200, eight)} == {(1, False), (3, True)}
    assert [each.violations(eight, H200) for each in AMPERE.trials(eight, H200)] == [()]


def test_the_config_that_was_measured_the_fastest_but_for_two_percent_is_the_models() -> None:
    """H200, 4096^3: of int8, tf32 and fp16 sums 128x256 in rows of 128 bytes; in rows of 64 it took 15, 11 and 17 %
    more (docs/ampere.md)."""
    for kind in ({"dtype": "int8"}, {"dtype": "tf32"}, {"dtype": "fp16", "sums": "fp16"}):
        problem = packed(4096, 4096, 4096, **kind)
        chosen = model.best(problem, H200).config
        assert (chosen.tile_m, chosen.tile_n, chosen.tile_k * problem.dtype.size) == (128, 256, 128)


@pytest.mark.parametrize("card", [RTX3090, RTX4090, H200], ids=str)
def test_the_largest_registers_fit_on_the_other_cards(card: device.Device) -> None:
    for config in (
        AmpereConfig(tile_m=128, tile_n=256, warps_n=4, stages=3),
        AmpereConfig(warps_n=4, ctas=2, stages=3),
    ):
        if not config.violations(LARGE, card):
            build(render(AMPERE, LARGE, config, card), refuse=True)


CARDS = (A100, RTX3090, RTX4090, H200)
EVERY = 4  # of a config's forms; with the widest of all forms a third of the 512 kernels


@cache
def forms() -> tuple[Problem, ...]:
    """Layouts, types of out, rows of 4 bytes, batches."""
    return (
        *(packed(4096, 4096, 4096, **majors) for majors in MAJORS),
        packed(4095, 4095, 4096, out_dtype="fp32", batch=(2, 3)),
        packed(4095, 4095, 4096, dtype="fp16", padded=False),
        packed(4096, 4096, 4096, batch=(2,)),
        pitched(packed(4095, 4095, 4094, a_major="m", b_major="n"), 2, 2),
    )


@cache
def legal() -> dict[tuple[int, int], list[AmpereConfig]]:
    """By card and form each config that the A100 or the card is offered and that the card can hold, and WIDE."""
    found = {}
    for at, card in enumerate(CARDS):
        for form, problem in enumerate(forms()):
            offered = dict.fromkeys((*distinct(A100, problem), *distinct(card, problem), WIDE))
            found[at, form] = [config for config in offered if not config.violations(problem, card)]
    return found


def test_every_config_and_every_form_are_compiled_for_every_card_and_the_widest_always() -> None:
    found, offered = drawn(legal(), CARDS, forms(), EVERY), legal()
    check_covers(found, offered)
    assert len(found) < sum(map(len, offered.values())) / 3
    wide = numbered(offered)[WIDE]
    assert all((at, form, wide) in found for (at, form), configs in offered.items() if WIDE in configs)


@pytest.mark.slow
@pytest.mark.parametrize("card", range(len(CARDS)), ids=[card.name for card in CARDS])
def test_no_config_of_any_space_spills_in_any_form(card: int) -> None:
    """A draw of them: see the test before."""
    configs = list(numbered(legal()))
    for at, form, number in sorted(drawn(legal(), CARDS, forms(), EVERY)):
        if at == card:
            build(render(AMPERE, forms()[form], configs[number], CARDS[card]), refuse=True)


@pytest.mark.parametrize("card", AMPERE_CARDS, ids=str)
@pytest.mark.parametrize(
    "problem",
    [
        LARGE,
        packed(4095, 4095, 4095, padded=False),
        packed(384, 128, 256, batch=(64,)),
        packed(1, 8, 3),
        packed(8, 50257, 64),
    ],
    ids=str,
)
def test_a_plan_has_a_config_that_fits_the_card(card: device.Device, problem: Problem) -> None:
    plan = tilewright.plan(problem, device=card)
    assert plan.family is AMPERE
    assert plan.launch.smem_bytes <= card.smem_per_cta_bytes
    assert "untuned: the model's choice" in plan.why


def test_configs_past_a_card_are_never_offered_and_refused_by_name_with_what_fits() -> None:
    large = AmpereConfig(tile_m=128, tile_n=256, warps_n=4, stages=4)
    assert large.violations(LARGE, A100) == ()
    (reason,) = large.violations(LARGE, RTX3090)
    assert "114688 bytes of shared memory; NVIDIA RTX 3090 gives a CTA 101376; use 3 stages" in reason
    assert large.replace(stages=3).violations(LARGE, RTX3090) == ()
    (reason,) = AmpereConfig(tile_m=256, tile_n=256, warps_n=4).violations(LARGE, A100)
    assert "256 accumulators a thread" in reason
    assert all(not config.violations(LARGE, card) for card in AMPERE_CARDS for config in AMPERE.space(LARGE, card))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pingpong": True}, "pingpong = True is for the hopper family"),
        ({"consumers": 1}, "consumers = 1 is for the hopper family"),
        ({"warps_m": 3}, "warps_m x warps_n = 3 x 2 are not 1, 2, 4 or 8 warps"),
        ({"tile_m": 40}, "tile_m = 40 is not a multiple of 32"),
        ({"tile_k": 16}, "tile_k = 16 of bf16 is not 32 or 64, rows of 64 or 128 bytes"),
        ({"stages": 2}, "stages = 2 is outside 3 .. 12"),
        ({"ahead": 2}, "ahead = 2 is not one of 1, 3"),
        ({"prefetch": 32}, "prefetch = 32 is not 0, 64, 128 or 256"),
        ({"ctas": 0}, "ctas = 0 is outside 1 .. 8"),
        ({"ctas": 3}, "ctas = 3"),
        ({"warps_n": "2"}, "warps_n = '2' is not a whole number"),
        ({"tile_m": 32, "warps_m": 1, "warps_n": 8, "tile_n": 256}, "not as many pieces of 16 for each of 256 threads"),
    ],
    ids=str,
)
def test_what_the_kernel_is_not_written_for_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    assert any(words in reason for reason in AmpereConfig().replace(**changes).violations(LARGE, A100))


def test_many_narrow_copies_a_thread_take_registers_too() -> None:
    narrow = pitched(LARGE, 2, 2)
    assert AmpereConfig(tile_n=256, warps_n=4, stages=3).violations(narrow, A100) == ()  # 24 copies of 4 bytes
    (reason,) = AmpereConfig().violations(narrow, A100)  # 32
    assert "120 of state are 288; 1 x 128 threads on an SM have 255 each" in reason


def test_a_warp_may_have_64x96_where_rows_lie_along_k_in_whole_pieces_and_nowhere_else() -> None:
    """It needs the last register; a test marked slow compiles what is let pass in each of its forms."""
    wide = WIDE
    assert wide.violations(LARGE, H200) == ()
    assert wide.violations(packed(4095, 4095, 4096, out_dtype="fp32", batch=(2, 3)), H200) == ()
    for problem in (packed(4096, 4096, 4095), packed(4096, 4096, 4096, b_major="n")):
        (reason,) = wide.violations(problem, H200)
        assert "192 accumulators a thread, 40 registers of fragments and 24 of state are 256" in reason
    (reason,) = wide.replace(tile_k=32).violations(LARGE, H200)
    assert "24 of state are 256" in reason
    (reason,) = wide.violations(LARGE, A100)
    assert "bytes of shared memory" in reason
    problem = packed(256, 192, 64)
    is_right, emulator = product(problem, wide, card="h200", banks=True, checks=False)
    assert is_right
    assert conflicts(emulator.report) == {}
    build(render(AMPERE, problem, wide, H200), refuse=True)


def test_copies_may_name_what_the_l2_fetches_around_them() -> None:
    for prefetch in (0, 64, 128, 256):
        config = SMALL.replace(prefetch=prefetch)
        ptx = build(render(AMPERE, LARGE, config, A100)).ptx
        assert ptx.count("cp.async.cg.shared.global") == ptx.count(
            f"cp.async.cg.shared.global.L2::{prefetch}B " if prefetch else "cp.async.cg.shared.global "
        )
        assert (f" prefetch{prefetch}" in str(config)) == (prefetch != 0)
    assert product(packed(40, 72, 48), SMALL.replace(prefetch=128))[0]


def test_a_tile_of_half_a_panel_is_refused_where_m_or_n_is_contiguous() -> None:
    config = AmpereConfig(tile_m=32, tile_n=64)
    assert config.violations(packed(64, 64, 64), A100) == ()
    (reason,) = config.violations(packed(64, 64, 64, a_major="m"), A100)
    assert "tile_m = 32 of m-contiguous a is no multiple of 64" in reason


# CTAs an SM, by hand from the rules of the CUDA programming guide: shared memory with 1 KB a CTA of 164 KB (sm_80), 100
# KB (sm_86, sm_89); registers in units of 256 a warp; 64 and 48 warps; 32, 16 and 24 CTAs.
@pytest.mark.parametrize(
    ("changes", "registers", "a100", "rtx3090", "rtx4090"),
    [
        ({"stages": 4}, 255, 2, 1, 1),  # 65,536 + 8,192 + 1,024 bytes: 74,752; registers 2 of 128 x 256
        ({"stages": 3}, 255, 2, 1, 1),  # 58,368
        ({"stages": 3}, 128, 2, 1, 1),
        ({"tile_m": 64, "tile_n": 64, "stages": 3}, 64, 5, 3, 3),  # 24,576 + 4,096 + 1,024: 29,696
        ({"tile_m": 64, "tile_n": 64, "stages": 3}, 129, 3, 3, 3),  # 136 x 32 x 4 are 17,408 of 65,536
        ({"tile_m": 32, "tile_n": 64, "stages": 3}, 32, 7, 4, 4),  # 18,432 + 4,096 + 1,024: 23,552
    ],
    ids=str,
)
def test_occupancy_is_that_of_the_cuda_rules(
    changes: dict[str, Any], registers: int, a100: int, rtx3090: int, rtx4090: int
) -> None:
    config = AmpereConfig(**changes)
    assert [occupancy(card, config.threads, registers, config.smem_bytes(LARGE)).ctas for card in AMPERE_CARDS] == [
        a100,
        rtx3090,
        rtx4090,
    ]


def test_an_sm_of_few_warps_bounds_small_ctas() -> None:
    """Without the limit of shared memory: 16 CTAs of 4 warps are 64 warps, which an A100 takes and an RTX 3090 not."""
    roomy = [dataclasses.replace(card, smem_per_sm_bytes=1 << 24) for card in AMPERE_CARDS]
    config = AmpereConfig(tile_m=64, tile_n=64, stages=3)
    assert [occupancy(card, config.threads, 32, config.smem_bytes(LARGE)).ctas for card in roomy] == [16, 12, 12]
    config = config.replace(tile_m=16, tile_n=32, warps_m=1, warps_n=1)
    assert [occupancy(card, config.threads, 32, config.smem_bytes(LARGE)).ctas for card in roomy] == [32, 16, 24]


# -- one family a device -----------------------------------------------------------------------------------------------


def test_hopper_is_never_offered_it_and_may_force_it() -> None:
    for problem in (LARGE, packed(384, 128, 256, batch=(64,)), packed(1, 4096, 4096), packed(64, 64, 65536)):
        assert catalog.offered(H200, problem) is HOPPER
        choice = model.best(problem, H200)
        assert choice.family is HOPPER
        assert type(choice.config) is Config
        assert {type(each.config) for each in model.ranked(problem, H200, 1 << 30)} == {Config}
    plan = tilewright.plan(LARGE, device="h200", config=AmpereConfig(tile_n=256, warps_n=4, stages=6))
    assert (plan.family, plan.launch.grid, plan.launch.block) == (AMPERE, 132, 256)
    assert product(packed(40, 72, 48), SMALL, card="h200")[0]


def test_a_config_of_the_other_family_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"uses wgmma .* NVIDIA A100 SXM has 8\.0, which AmpereConfig is for"):
        tilewright.plan(LARGE, device="a100", config=Config())
    with pytest.raises(ConfigError, match=r"ampere family is for compute capability 8\.0, 8\.6, 8\.9, 9\.0"):
        AmpereConfig().check(LARGE, dataclasses.replace(A100, name="T4", sm=(7, 5)))


# -- mutants -----------------------------------------------------------------------------------------------------------

# What is broken: the file, its line, what stands there instead, and words of the finding ("wrong": the numbers).
KERNEL, COPY, TILE = "ampere_gemm.cu", "tile_copy.cuh", "warp_tile.cuh"
WAIT = "ptx::cp_async_wait_group<Config::STAGES - 3>();"
MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "slot read a group too early": (
        KERNEL,
        f"{WAIT}\n                __sync",
        f"{WAIT.replace('3', '2')}\n                __sync",
        "cp.async not waited for",
    ),
    "first slot read before it has landed": (
        KERNEL,
        "    ptx::cp_async_wait_group<FILLED - 1>();\n",
        "",
        "cp.async not waited for",
    ),
    "no barrier after the wait": (KERNEL, "__syncthreads();  // everybody's copies of the next", "// next", "cp.async"),
    "barrier before the wait": (
        KERNEL,
        f"{WAIT}\n                __syncthreads();",
        f"__syncthreads();\n                {WAIT}",
        "cp.async not waited for",
    ),
    "groups are not closed": (KERNEL, "        ptx::cp_async_commit_group();\n", "", "exit with copy in flight"),
    "copies in flight at the end": (KERNEL, "    ptx::cp_async_wait_group<0>();", "", "exit with copy in flight"),
    "the next tile's copies start at this one": (KERNEL, "++tile_index;", "", "wrong"),
    "what lies past k is read": (COPY, "lines > 0 && along > 0 ?", "lines > 0 ?", "past the end of buffer"),
    "rows past the end are read": (COPY, "lines > 0 && along > 0 ?", "along > 0 ?", "past the end of buffer"),
    "what lies past an odd k is read": (COPY, "max(0, min(along, PIECE)) * IN_SIZE", "COPY_BYTES", "past the end"),
    "rows past the end of an odd k are read": (COPY, "lines > 0 ? max", "true ? max", "past the end of buffer"),
    "fragments of the next step": (TILE, "rA[K_STEP % 2][i], b[0]", "rA[(K_STEP + 1) % 2][i], b[0]", "never"),
    "halves of b exchanged": (TILE, "b[2], b[3]", "b[3], b[2]", "wrong"),
    "split: nobody waits for the others": (KERNEL, "if constexpr (UNIT == LEAVE) meeting.leave();", "", "cp.async"),
    "split: arrives before its copies have landed": (
        KERNEL,
        f"{WAIT}\n            meeting.arrive();",
        f"meeting.arrive();\n            {WAIT}",
        "cp.async not waited for",
    ),
    "split: waits a group too few": (
        KERNEL,
        f"{WAIT}\n            meeting",
        f"{WAIT.replace('3', '2')}\n            meeting",
        "cp.async not waited for",
    ),
    "split: a warp is not counted": (
        KERNEL,
        "THREADS / WARP_THREADS); }",
        "THREADS / WARP_THREADS - 1); }",
        "mbarrier.arrive",
    ),
    "split: the parity stays": (KERNEL, "        parity ^= 1;\n", "", "livelock"),
    "split: a slot is copied into before all have left it": (
        KERNEL,
        "(Config::SPLIT_BARRIER ? 2 : 1)",
        "1",
        "data race",
    ),
    "split: the last copies are not closed": (
        KERNEL,
        "if constexpr (Config::SPLIT_BARRIER) ptx::cp_async_commit_group();",
        "",
        "exit with copy in flight",
    ),
}
SPLIT = SMALL.replace(stages=4, split_barrier=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_broken_is_found(name: str) -> None:
    path, old, new, words = MUTANTS[name]
    problem = packed(136, 72, 197 if "odd k" in name else 200)
    config = SPLIT if name.startswith("split") else SMALL
    plan = tilewright.plan(problem, device="a100", config=config, num_sms=2)
    source = render(AMPERE, problem, config, A100)
    texts = {"ampere_gemm.cu": source.text, **dict(source.headers)}
    assert texts[path].count(old) == 1, f"{old!r} is there {texts[path].count(old)} times"
    texts[path] = texts[path].replace(old, new)
    mutant = dataclasses.replace(
        source, text=texts.pop("ampere_gemm.cu"), headers=tuple(sorted(texts.items())), name="mutant"
    )
    found = outcome(build(mutant), plan)
    assert found
    assert words in found


def outcome(binary: Any, plan: tilewright.Plan) -> str:
    """What is found, under any of three schedules: a rule's words, "wrong" numbers, or nothing."""
    problem = plan.problem
    generator = np.random.default_rng(0)
    a, b = (np.full((rows, problem.a_pitch), np.nan, ml_dtypes.bfloat16) for rows in (problem.m, problem.n))
    for matrix in (a, b):
        matrix[:, : problem.k] = generator.integers(-3, 4, (len(matrix), problem.k))
    for schedule in ("lazy", "eager", "random"):
        out = np.full((problem.m, problem.n), np.nan, ml_dtypes.bfloat16)
        backend: EmulatedBackend = emulated("a100", checks=True, schedule=schedule, seed=1)
        work = dataclasses.replace(plan.work, steps=(dataclasses.replace(plan.work.steps[0], binary=lambda: binary),))
        try:
            run_once(backend, work, {"a": a.ctypes.data, "b": b.ctypes.data, "out": out.ctypes.data}, 0)
        except EmulationError as error:
            return f"{error}"
        present = [matrix[:, : problem.k].astype(np.float32) for matrix in (a, b)]
        if (out != (present[0] @ present[1].T).astype(ml_dtypes.bfloat16)).any():
            return "wrong"
    return ""


@pytest.mark.parametrize(("k", "config"), [(197, SMALL), (200, SMALL), (200, SPLIT)], ids=str)
def test_the_kernel_as_it_is_has_none_of_these(k: int, config: AmpereConfig) -> None:
    problem = packed(136, 72, k)
    plan = tilewright.plan(problem, device="a100", config=config, num_sms=2)
    assert outcome(plan.binary, plan) == ""
