"""What the Ampere family alone multiplies: int8, fp32 as tf32, and fp16 with fp16 sums; and slices in its choice."""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tilewright
from covering_draw import check_covers, drawn, numbered
from tilewright import device, model
from tilewright.ampere_config import AmpereConfig
from tilewright.backends.emulated import emulated
from tilewright.backends.steps import run_once
from tilewright.check import Check, check, check_exact
from tilewright.config import Config
from tilewright.dtypes import FP16, INT32
from tilewright.epilogue import Bias, Gelu, Relu
from tilewright.errors import ConfigError, DTypeError, EmulationError, UnsupportedError
from tilewright.host_operands import HostOperand, filler, host_operand, host_operands
from tilewright.jit.build import build
from tilewright.kernels.ampere import AMPERE
from tilewright.kernels.render import render
from tilewright.packing import packed
from tilewright.problem import Problem

A100, RTX3090, RTX4090, H200 = (device.preset(name) for name in ("a100", "rtx3090", "rtx4090", "h200"))
KINDS: tuple[dict[str, Any], ...] = ({"dtype": "int8"}, {"dtype": "tf32"}, {"dtype": "fp16", "sums": "fp16"})
MAJORS: tuple[dict[str, Any], ...] = ({}, {"a_major": "m"}, {"b_major": "n"}, {"a_major": "m", "b_major": "n"})


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a run in the emulator left: the verdict, elements between the rows of out that changed, bank conflicts."""

    check: Check
    damaged: int
    conflicts: dict[str, tuple[int, int]]

    @property
    def is_right(self) -> bool:
        return self.check.ok and not self.damaged


def ran(
    problem: Problem,
    config: AmpereConfig | None = None,
    *,
    card: device.Device = A100,
    kind: Any = "integer",
    binary: Any = None,
    num_sms: int | None = None,
    **choices: Any,
) -> Ran:
    """Runs the product with the checks on, which raise, and bank conflicts counted in its own kernel. `binary`: in
    place of the plan's kernel. Operands lie as far from multiples of 16 bytes as the problem says that they do."""
    plan = tilewright.plan(problem, device=card, config=config, num_sms=num_sms)
    operands = [_moved(problem, name, held) for name, held in zip("abo", host_operands(problem, 1, kind), strict=True)]
    a, b, out = operands
    before = out.memory.copy()
    backend = emulated(card, **{"checks": True, "banks": True, **choices})
    work = plan.work
    if binary is not None:
        work = dataclasses.replace(work, steps=(dataclasses.replace(work.steps[0], binary=lambda: binary),))
    reports = []
    addresses = {"a": a.view.ctypes.data, "b": b.view.ctypes.data, "out": out.view.ctypes.data}
    run_once(backend, work, addresses, launched=lambda: reports.append(backend.report))
    found = check_exact(a.view, b.view, out.view)
    if kind == "normal":
        found = check(a.view, b.view, out.view, problem.out_dtype, inputs=problem.dtype)
    written = out.view.copy()
    out.view[...] = filler(problem.out_dtype)
    banks = next(report for report in reports if any("cp.async" in opcode for opcode in report.instructions)).banks
    return Ran(
        dataclasses.replace(found, unwritten=int(np.isnan(written.astype(np.float64)).sum())),
        int((out.memory.view(np.uint8) != before.view(np.uint8)).sum()),
        {f"{site.opcode} {site.source_chain}": count for site, count in banks.items() if count[0] != count[1]},
    )


def _moved(problem: Problem, letter: str, held: HostOperand) -> HostOperand:
    """The operand in memory whose first element lies where the problem says: off 16 bytes by its alignment."""
    name = {"a": "a", "b": "b", "o": "out"}[letter]
    align = getattr(problem, f"{name}_align_bytes")
    raw = np.full(held.memory.nbytes + 64, 0x77, np.uint8)
    start = -raw.ctypes.data % 16 + (align if align < 16 else 0)
    memory: NDArray[Any] = raw[start : start + held.memory.nbytes].view(held.memory.dtype)
    memory[...] = held.memory
    return host_operand(problem, name, memory)


def config_for(problem: Problem, row_bytes: int = 64, **fields: Any) -> AmpereConfig:
    """The smallest tile that serves its layout."""
    panel = 128 // problem.dtype.size
    tile_m, tile_n = (max(64, panel if major != "k" else 0) for major in (problem.a_major, problem.b_major))
    tiles = {"tile_m": tile_m, "tile_n": tile_n, "tile_k": row_bytes // problem.dtype.size}
    config = AmpereConfig(**tiles, stages=3, warps_n=4 if tile_m == tile_n == 128 else 2)
    changed = config.replace(**fields)
    assert isinstance(changed, AmpereConfig)
    return changed


# -- numbers, races, bank conflicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "majors", "row_bytes", "schedule"),
    [
        (dtype, majors, (64, 128)[(index + kind) % 2], ("random", "lazy", "eager", "random")[index])
        for kind, dtype in enumerate(("int8", "tf32"))
        for index, majors in enumerate(MAJORS)
    ],
    ids=str,
)
def test_every_layout_is_right_without_findings_or_conflicts(
    dtype: str, majors: dict[str, Any], row_bytes: int, schedule: str
) -> None:
    """Edges in every direction, several k tiles, rows in whole pieces.

    Under "random" lanes that skip the store past the last column run apart from those that store, as they may, so the
    next load of the slot comes in two. The lanes of one have no partner among them: such a load is joined (banks.py),
    and rows 2 r and 2 r + 1 of its phases have their two chunks in the same banks. It takes the 4 wavefronts that it
    took before, and 2 would do: counted as conflicts, of no address that could lie better for whole warps.
    """
    size = packed(1, 1, 1, dtype=dtype).dtype.size
    problem = packed(64 + 16 // size, 136, 3 * row_bytes // 2 // size, dtype=dtype, **majors)
    found = ran(problem, config_for(problem, row_bytes), schedule=schedule, seed=3)
    assert found.is_right, found.check
    split = {site for site in found.conflicts if "ld.shared.v4" in site and schedule == "random"}
    assert set(found.conflicts) == split


@pytest.mark.parametrize(
    ("kind", "form", "row_bytes", "schedule"),
    [
        (KINDS[0], {"batch": (2,)}, 64, "random"),
        (KINDS[0], MAJORS[3], 128, "eager"),
        (KINDS[1], MAJORS[1] | {"batch": (2,)}, 64, "lazy"),
        (KINDS[1], MAJORS[2], 128, "random"),
        (KINDS[2], MAJORS[3] | {"batch": (2,)}, 128, "eager"),
        (KINDS[2], {}, 64, "random"),
    ],
    ids=str,
)
def test_a_split_barrier_is_right_with_every_kind(
    kind: dict[str, Any], form: dict[str, Any], row_bytes: int, schedule: str
) -> None:
    """What the tuner tries: two CTAs that walk several tiles, of the batch in copies of 4 bytes, k past the ring."""
    size = packed(1, 1, 1, **kind).dtype.size
    k = 5 * row_bytes // size + (4 if "batch" in form else 16) // size
    problem = packed(64 + 16 // size, 136, k, padded="batch" not in form, **kind, **form)
    columns = config_for(problem).tile_n // 64  # of warps: 64 columns are what three ahead wants
    config = config_for(problem, row_bytes, stages=4, ahead=3, split_barrier=True, warps_n=columns)
    found = ran(problem, config, num_sms=2, schedule=schedule, seed=3, banks=False)
    assert found.is_right, found.check


@pytest.mark.parametrize(
    ("sizes", "steps", "aligned", "majors"),
    [
        ((67, 69, 70), (1, 4), (16, 4, 4), MAJORS[3]),
        ((33, 40, 101), (4, 2), (1, 8, 4), MAJORS[0]),
        ((40, 33, 64), (0, 0), (16, 2, 16), MAJORS[2]),
        ((40, 65, 33), (4, 8), (8, 16, 4), MAJORS[1]),
    ],
    ids=str,
)
def test_odd_sizes_strides_and_addresses_of_int8_are_right(
    sizes: tuple[int, int, int], steps: tuple[int, int], aligned: tuple[int, int, int], majors: dict[str, Any]
) -> None:
    """B010: rows at any byte. Pieces of 4 bytes and more are copied as they lie, others first, into rows of a copy."""
    base = packed(*sizes, dtype="int8", **majors)
    problem = dataclasses.replace(
        base,
        a_pitch=base.a_pitch + steps[0],
        b_pitch=base.b_pitch + steps[1],
        out_pitch=base.out_pitch + 3,
        a_align_bytes=aligned[0],
        b_align_bytes=aligned[1],
        out_align_bytes=aligned[2],
    )
    config = config_for(problem)
    assert config.copied(problem) == tuple(
        name for name, step, align in zip("ab", steps, aligned, strict=False) if step % 4 or align % 4
    )
    assert ran(problem, config).is_right


@pytest.mark.parametrize("majors", MAJORS[::3], ids=str)
def test_odd_sizes_strides_and_addresses_of_tf32_are_right(majors: dict[str, Any]) -> None:
    """B010: rows of fp32 lie at multiples of 4 bytes wherever they are, so none is copied first."""
    base = packed(33, 40, 51, dtype="tf32", padded=False, **majors)
    problem = dataclasses.replace(base, a_pitch=base.a_pitch + 2, a_align_bytes=4, b_align_bytes=8, out_align_bytes=4)
    assert config_for(problem).copied(problem) == ()
    assert ran(problem, config_for(problem)).is_right


def test_fp32_is_rounded_to_the_nearest_tf32_before_it_is_multiplied() -> None:
    """The bound is that of sums of rounded inputs: cut ones are past it, where k is short."""
    for majors in MAJORS[::3]:
        problem = packed(40, 40, 40, dtype="tf32", **majors)
        assert ran(problem, config_for(problem), kind="normal", exact_sums=True).is_right
    source = render(AMPERE, problem, config_for(problem), A100)
    headers = dict(source.headers)
    headers["warp_tile.cuh"] = headers["warp_tile.cuh"].replace("ptx::cvt_rna_tf32_f32(fragment[i])", "fragment[i]")
    cut = build(dataclasses.replace(source, headers=tuple(sorted(headers.items())), name="mutant"))
    assert ran(problem, config_for(problem), kind="normal", exact_sums=True, binary=cut).check.wrong > 400


def test_fp32_arrays_are_multiplied_as_tf32_where_the_caller_says_so_and_nowhere_else() -> None:
    a, b = np.full((16, 8), 1 + 2.0**-12, np.float32), np.eye(8, dtype=np.float32)
    emulator = tilewright.Emulator("a100")
    assert (emulator.matmul(a, b, inputs="tf32") == 1).all()
    plan = emulator.plan(a, b, inputs=tilewright.dtypes.TF32)
    assert (plan.run(a, b) == 1).all()
    assert str(plan.problem) == "16x8x8 tf32 -> fp32 NN"
    with pytest.raises(DTypeError, match=r"inputs of fp32: .* pass inputs='tf32', which rounds each to 11 bits"):
        emulator.matmul(a, b)
    with pytest.raises(DTypeError, match=r"inputs = 'tf32' of fp16 arrays: .* leave inputs out"):
        emulator.matmul(a.astype(np.float16), b.astype(np.float16), inputs="tf32")
    assert (
        emulator.matmul(a, b, inputs="tf32").dtype == np.float32
    )  # unasked; any other out: emulator/test_out_types.py
    with pytest.raises(DTypeError, match="arrays of fp16 with out in fp32"):
        plan.run(a.astype(np.float16), b.astype(np.float16), np.zeros((16, 8), np.float32))


@pytest.mark.parametrize("m", [1, 8, 16])
def test_few_rows_of_int8_are_served(m: int) -> None:
    """B049: other libraries refuse 16 rows or fewer."""
    assert ran(packed(m, 40, 72, dtype="int8")).is_right


SIZES = st.integers(1, 70)


@settings(derandomize=True, max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(m=SIZES, n=SIZES, k=SIZES, dtype=st.sampled_from(["int8", "tf32"]))
def test_any_small_product_is_right(m: int, n: int, k: int, dtype: str) -> None:
    """One layout: few kernels, so that sizes are many."""
    problem = packed(m, n, k, dtype=dtype)
    assert ran(problem, config_for(problem), banks=False).is_right


def test_fp16_sums_are_asked_for_by_name_and_have_a_bound_of_their_own() -> None:
    """k = 320: 20 roundings to fp16. Within their bound, and past that of fp32 sums."""
    generator = np.random.default_rng(3)
    a, b = (generator.standard_normal(shape).astype(np.float16) for shape in ((24, 320), (320, 24)))
    emulator = tilewright.Emulator("a100", exact_sums=True)
    got = emulator.matmul(a, b, sums="fp16")
    assert check(a, b, got, FP16, sums=FP16).ok
    assert check(a, b, got, FP16).wrong > 50
    assert check(a, b, emulator.matmul(a, b), FP16).ok
    assert str(emulator.plan(a, b, sums="fp16").problem) == "24x24x320 fp16 -> fp16 NN sums in fp16"
    for dtype, words in (("bf16", "bf16 inputs with sums in fp16"), ("int8", "int8 inputs with sums in fp16")):
        with pytest.raises(DTypeError, match=words):
            packed(8, 8, 8, dtype=dtype, sums="fp16")
    with pytest.raises(DTypeError, match="fp16 inputs with sums in int32"):
        emulator.matmul(a, b, sums="int32")


@pytest.mark.parametrize(
    ("majors", "out_dtype", "sizes"), [({}, "fp16", (72, 136, 96)), (MAJORS[3], "fp32", (65, 67, 70))], ids=str
)
def test_fp16_sums_leave_as_they_are_or_as_fp32(majors: dict[str, Any], out_dtype: str, sizes: tuple[int, ...]) -> None:
    problem = packed(*sizes, dtype="fp16", sums="fp16", out_dtype=out_dtype, **majors)
    found = ran(problem, config_for(problem))
    assert found.is_right, found.check
    if problem.out_through_tma:  # the ends of other rows meet in banks by design (row_store.cuh), and k has no halves
        assert found.conflicts == {}
        assert ran(problem, config_for(problem, slices=2)).is_right


def test_fp16_sums_take_half_of_the_registers() -> None:
    problem, config = (
        packed(4096, 4096, 4096, dtype="fp16", sums="fp16"),
        AmpereConfig(tile_m=256, tile_n=256, warps_n=4),
    )
    assert config.violations(problem, A100) == ()
    (reason,) = config.violations(packed(4096, 4096, 4096, dtype="fp16"), A100)
    assert "256 accumulators a thread" in reason


def test_sums_of_int8_wrap_past_32_bits_as_those_of_mma_sync_do() -> None:
    """2^17 products of (-128)^2 are 2^31; a CTA of one warp, to be short."""
    k = 2**17
    a, b = np.full((1, k), -128, np.int8), np.full((k, 1), -128, np.int8)
    config = AmpereConfig(tile_m=16, tile_n=32, tile_k=128, stages=3, warps_m=1, warps_n=1)
    got = tilewright.Emulator("a100", checks=False, limit_s=None).matmul(a, b, config=config)
    assert got.tolist() == [[-(2**31)]]
    assert check(a, b, got, INT32).ok


def test_slices_of_int8_are_added_as_whole_numbers() -> None:
    problem = packed(40, 72, 256, dtype="int8")
    assert ran(problem, config_for(problem, slices=4)).is_right


# -- what is chosen ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", [A100, RTX3090, RTX4090, H200], ids=str)
@pytest.mark.parametrize(("kind", "out_dtype"), [*zip(KINDS, ("int32", "fp32", "fp16"), strict=True)])
def test_such_a_product_is_the_ampere_familys_on_every_card(
    card: device.Device, kind: dict[str, Any], out_dtype: str
) -> None:
    problem = packed(4096, 4096, 4096, **kind)
    plan = tilewright.plan(problem, device=card)
    assert plan.family is AMPERE
    assert problem.out_dtype.name == out_dtype
    assert {type(each.config) for each in model.ranked(problem, card, 1 << 30)} == {AmpereConfig}
    assert plan.prediction.roofline_share < 1
    with pytest.raises(ConfigError, match="the hopper family multiplies bf16 and fp16 with fp32 sums"):
        Config(tile_k=128 // problem.dtype.size).check(problem, H200)


@pytest.mark.parametrize(
    ("words", "error", "make"),
    [
        ("a of int8 and b of bf16", DTypeError, lambda of: (of("int8"), of("bf16"), None)),
        ("b of dtype uint8: tilewright multiplies", DTypeError, lambda of: (of("int8"), of("uint8"), None)),
        ("int8 inputs with out in fp16: sums of whole", DTypeError, lambda of: (of("int8"), of("int8"), of("fp16"))),
        ("inputs of int32: inputs are bf16, fp16", DTypeError, lambda of: (of("int32"), of("int32"), None)),
    ],
    ids=["two types", "strange", "out", "int32"],
)
def test_mixed_and_strange_types_are_refused_by_name(words: str, error: type[Exception], make: Any) -> None:
    def of(name: str) -> NDArray[Any]:
        known = {"uint8": np.dtype(np.uint8)}
        return np.zeros((16, 16), known.get(name) or tilewright.dtypes.by_name(name).numpy)

    a, b, out = make(of)
    with pytest.raises(error, match=words):
        tilewright.Emulator("a100").matmul(a, b, out)


def test_epilogues_meet_fp32_sums_and_are_refused_by_name_for_others() -> None:
    a, b = np.ones((16, 8), np.int8), np.ones((8, 16), np.int8)
    works = "multiply without an epilogue and apply its steps with the array library"
    with pytest.raises(UnsupportedError, match=f"int8 inputs with sums in int32: .* on fp32 sums; {works}$"):
        tilewright.Emulator("a100").matmul(a, b, epilogue=Relu())
    with pytest.raises(UnsupportedError, match=f"fp16 inputs with sums in fp16: .* {works}, or leave sums out"):
        tilewright.plan(packed(8, 8, 8, dtype="fp16", sums="fp16"), device=H200, epilogue=Relu())
    with pytest.raises(UnsupportedError, match="int8 inputs with sums in int32"):
        check(a, b, np.zeros((16, 16), np.int32), INT32, epilogue=Relu())
    for vector in (np.ones(16, np.int8), np.ones(16, np.int32)):
        with pytest.raises(DTypeError, match="for bias: arrays of an epilogue are bf16, fp16 or fp32; cast it"):
            tilewright.Emulator("a100").plan(a.astype(np.float16), b.astype(np.float16), epilogue=Bias(vector))
    plan = tilewright.plan(packed(64, 64, 64, dtype="tf32"), device=H200, epilogue=Bias("fp32") | Gelu())
    assert plan.family is AMPERE
    assert str(plan.problem) == "64x64x64 tf32 -> fp32 TN | bias(column) gelu(none)"


def test_a_tf32_product_of_no_k_is_its_epilogue_of_zeros() -> None:
    a, b, bias = np.zeros((40, 0), np.float32), np.zeros((0, 24), np.float32), np.arange(24, dtype=np.float32)
    got = tilewright.Emulator("a100").matmul(a, b, inputs="tf32", epilogue=Bias(bias))
    assert (got == bias).all()


def test_a_k_tile_is_64_or_128_bytes_and_a_tile_whole_panels() -> None:
    problem = packed(256, 256, 256, dtype="int8", a_major="m")
    (reason,) = AmpereConfig().violations(packed(256, 256, 256, dtype="int8"), A100)
    assert reason == "tile_k = 32 of int8 is not 64 or 128, rows of 64 or 128 bytes"
    (reason,) = AmpereConfig(tile_m=64, tile_k=64).violations(problem, A100)
    assert reason == "tile_m = 64 of m-contiguous a is no multiple of 128"


@pytest.mark.parametrize("kind", [{}, *KINDS], ids=str)
@pytest.mark.parametrize("card", [A100, RTX4090], ids=str)
def test_few_tiles_with_a_long_k_are_chosen_in_slices(card: device.Device, kind: dict[str, Any]) -> None:
    plan = tilewright.plan(packed(256, 256, 65536, **kind), device=card)
    assert plan.config.slices >= 8
    assert plan.sums is not None
    assert tilewright.plan(packed(4096, 4096, 4096, **kind), device=card).config.slices == 1
    invariant = tilewright.plan(packed(256, 256, 65536, **kind), device=card, reduction="invariant")
    assert invariant.config.slices == 1


# -- compiled ----------------------------------------------------------------------------------------------------------


CARDS = (A100, RTX3090, RTX4090, H200)
CUT: dict[str, Any] = {"padded": False, "batch": (2, 3)}
EVERY = 8  # of a config's forms, of all kinds; with the widest of all forms a quarter of the 571 kernels


@cache
def forms() -> tuple[Problem, ...]:
    """Of each kind along k or not, in whole rows of a single product or in cut ones of a batch: of these copies are of
    4 bytes."""
    found = []
    for kind in KINDS:
        cut = 4096 - 4 // packed(1, 1, 1, **kind).dtype.size
        found += [packed(cut, cut, cut, **kind, **form) for form in ({}, MAJORS[3], CUT, MAJORS[3] | CUT)]
    return tuple(found)


@cache
def legal() -> dict[tuple[int, int], list[AmpereConfig]]:
    """By card and form each config of the space and of the tuner's trials, with bytes for values along k: so they are
    the same of every kind."""
    found: dict[tuple[int, int], list[AmpereConfig]] = {}
    for at, card in enumerate(CARDS):
        for form, problem in enumerate(forms()):
            size = problem.dtype.size
            offered = itertools.chain(AMPERE.space(problem, card), AMPERE.trials(problem, card))
            own = (each.replace(group_m=16, tile_k=each.tile_k * size) for each in offered)
            found[at, form] = [each for each in dict.fromkeys(own) if isinstance(each, AmpereConfig)]
    return found


def test_every_config_and_every_form_of_every_kind_are_compiled_for_every_card() -> None:
    found = drawn(legal(), CARDS, forms(), EVERY)
    check_covers(found, legal())
    assert len(found) < sum(map(len, legal().values())) / 3.5  # 131 of 571
    assert {config.copy_bytes(form, "a") for form in forms()[2:4] for config in legal()[0, 3]} == {4}


@pytest.mark.slow
@pytest.mark.parametrize("card", range(len(CARDS)), ids=[card.name for card in CARDS])
def test_no_config_of_the_space_of_any_kind_spills_in_any_layout(card: int) -> None:
    """A draw of them: see the test before."""
    configs = list(numbered(legal()))
    for at, form, number in sorted(drawn(legal(), CARDS, forms(), EVERY)):
        if at == card:
            problem = forms()[form]
            config = configs[number].replace(tile_k=configs[number].tile_k // problem.dtype.size)
            build(render(AMPERE, problem, config, CARDS[card]), refuse=True)


# -- mutants -----------------------------------------------------------------------------------------------------------

WORDS = "fragment[LATER_K] = ptx::ld_shared_u32(address + FOUR_ROWS)"
MUTANTS: dict[str, tuple[str, str, str, str, dict[str, Any]]] = {
    "the odd bytes are the even ones": (
        "warp_tile.cuh",
        "0x7531>(fragment[0]",
        "0x6420>(fragment[0]",
        "int8",
        MAJORS[3],
    ),
    "the second pair of k is the first": ("warp_tile.cuh", "lane / 8 % 2 * 2 +", "", "int8", MAJORS[1]),
    "k q + 4 is k q": ("warp_tile.cuh", WORDS, WORDS.replace(" + FOUR_ROWS", ""), "tf32", MAJORS[1]),
    "words of four rows meet in a bank": (
        "tile_copy.cuh",
        "offset ^ (offset >> 2 & 0x60)",
        "offset ^ (offset >> 3 & 0x70)",
        "tf32",
        MAJORS[2],
    ),
    "rows are not put back": (
        "warp_store.cuh",
        "SPREAD_ROWS = TileA::HAS_BYTES_BY_K",
        "SPREAD_ROWS = false",
        "int8",
        MAJORS[1],
    ),
    "columns are not put back": (
        "warp_store.cuh",
        "SPREAD_COLUMNS = TileB::HAS_BYTES_BY_K",
        "SPREAD_COLUMNS = false",
        "int8",
        MAJORS[2],
    ),
    "bytes below each other meet in a bank": (
        "tile_copy.cuh",
        "(offset >> 4 & 0x60)",
        "(offset >> 3 & 0x60)",
        "int8",
        MAJORS[1],
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_broken_is_found(name: str) -> None:
    path, old, new, dtype, majors = MUTANTS[name]
    problem = packed(64, 64, 100, dtype=dtype, **majors)
    config = config_for(problem)
    source = render(AMPERE, problem, config, A100)
    headers = dict(source.headers)
    assert headers[path].count(old) == 1, f"{old!r} is there {headers[path].count(old)} times"
    headers[path] = headers[path].replace(old, new)
    mutant = build(dataclasses.replace(source, headers=tuple(sorted(headers.items())), name="mutant"))
    try:
        found = ran(problem, config, binary=mutant)
    except EmulationError:
        return
    assert not found.is_right or found.conflicts
