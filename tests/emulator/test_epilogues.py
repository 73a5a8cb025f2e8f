"""Epilogues in the emulator: every form of the Hopper kernel, checked, within the derived bound; and mutants."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import Emulator, dtypes
from tilewright.ampere_config import AmpereConfig
from tilewright.check import check
from tilewright.config import Config
from tilewright.epilogue import (
    Add,
    Alpha,
    Aux,
    Beta,
    Bias,
    Epilogue,
    Gated,
    Gelu,
    Relu,
    RowAmax,
    Scale,
    Silu,
    Step,
    as_epilogue,
)
from tilewright.errors import ConfigError, EmulationError, LayoutError
from tilewright.kernels import render

BF16, FP16, FP32 = ml_dtypes.bfloat16, np.float16, np.float32
PATTERN = 3  # of padding that must survive
SMALL = Config(tile_m=64, tile_n=32, consumers=1, stages=2)
AMPERE = AmpereConfig(tile_m=64, tile_n=64, tile_k=32, warps_m=2, warps_n=2, stages=3)
AMPERE_SPLIT = AMPERE.replace(tile_k=64, warps_n=1, stages=4, ahead=3, split_barrier=True)
SLICED = SMALL.replace(tile_n=64, slices=3, dependent_sums=True)
STAGGERED = Config(tile_m=128, tile_n=40, consumers=1, stages=2, staggered=True, store_slots=1)


def values(*shape: int, kind: Any = BF16, seed: int = 1, pitch: int = 0) -> Any:
    """Seeded numbers about 1; with a pitch rows are so far apart, and NaN lies between them."""
    made = np.random.default_rng(seed).standard_normal(shape).astype(FP32).astype(kind)
    if not pitch:
        return made
    held = np.full((*shape[:-1], pitch), np.nan, kind)
    held[..., : shape[-1]] = made
    return held[..., : shape[-1]]


def padded(*shape: int, kind: Any = BF16, gap: int = 0) -> tuple[Any, Any]:
    """(memory, an array in it that holds NaN): rows a gap apart, which hold a pattern."""
    held = np.full((*shape[:-1], shape[-1] + gap), PATTERN, kind)
    array = held[..., : shape[-1]]
    array[...] = np.nan
    return held, array


@dataclass(frozen=True)
class Case:
    """A product of a (*batch, m, k) and b (k, n), or (*batch, k, n), what becomes of it, and how it runs."""

    config: Config
    epilogue: Callable[[], Step | Epilogue]
    m: int = 72
    n: int = 40
    k: int = 72
    batch: tuple[int, ...] = ()
    b_is_batched: bool = False
    b_major: str = "k"
    kind: Any = BF16  # fp32: multiplied as tf32
    out_kind: Any = BF16
    out_is_transposed: bool = False
    num_sms: int = 2
    schedule: Any = "lazy"
    device: str = "h200"


CASES: dict[str, Case] = {
    # of 2 x 2 tiles the last have 8 rows and 7 columns: no pair at the edge, and rows that TMA cannot store
    "single": Case(
        SMALL,
        lambda: (
            Alpha(0.5) | Beta(-0.25, values(72, 39, pitch=43)) | Bias(values(39)) | Scale(values(72), "row") | Gelu()
        ),
        n=39,
    ),
    "two consumers, fp32 out": Case(
        Config(tile_m=128, tile_n=32, stages=2),
        lambda: Bias(values(40, kind=FP16)) | Silu() | Add(values(72, 40, kind=FP32, pitch=44)) | Add(values(40, 72).T),
        out_kind=FP32,
        schedule="eager",
    ),
    "swapped": Case(
        SMALL.replace(swap=True, tile_n=24),
        lambda: Bias(values(40)) | Aux(padded(72, 40, gap=8)[1]) | RowAmax(values(72, kind=FP32)) | Gelu("tanh"),
        schedule="random",
    ),
    "split": Case(
        SMALL.replace(split_k=2),  # a CTA has 16 of the columns: half of what four lanes read at once
        lambda: Scale(values(37, kind=FP32)) | Aux(padded(72, 37, gap=3)[1]) | Add(values(72, 37, pitch=48)) | Relu(),
        n=37,
        num_sms=4,
    ),
    "staggered batch": Case(
        STAGGERED,
        lambda: Scale(values(3, 200), "row") | Bias(values(40)) | Gelu("tanh") | RowAmax(values(3, 200, kind=FP32)),
        m=200,
        batch=(3,),
        b_is_batched=True,
        schedule="random",
    ),
    "staggered, what is read fetched ahead": Case(  # in the last 8 of 10 k tiles, of rows that begin anywhere
        STAGGERED,
        lambda: Add(values(72, 40, kind=FP32, pitch=41)) | Beta(0.5, values(72, 40, pitch=43)) | Silu(),
        k=600,
    ),
    "staggered, what is read fetched ahead of a long k": Case(  # in the last 16 of 17
        STAGGERED,
        lambda: Add(values(72, 40, kind=FP32, pitch=41)) | Beta(0.5, values(72, 40, pitch=43)) | Silu(),
        k=1032,
    ),
    "a narrow tail": Case(
        SMALL.replace(tail_n=8), lambda: Bias(values(88)) | Add(values(192, 88)) | Silu(), m=192, n=88
    ),
    "ping-pong": Case(
        Config(tile_m=64, tile_n=32, stages=2, pingpong=True, store_slots=1),
        lambda: (  # the bias stays where the residual does not take it away again: past the last column
            Bias(np.full(136, 64, BF16), "row")
            | Add(np.full((136, 33), -64, BF16))
            | RowAmax(values(136, kind=FP32))
            | Gelu()
            | Aux(padded(136, 33, gap=1)[1])
        ),
        m=136,
        n=33,
    ),
    "halves": Case(
        SMALL.replace(cluster_m=2, tile_m=64, tile_n=64),
        lambda: Bias(values(70)) | Aux(padded(72, 70, gap=8)[1]) | Gated("silu", "halves") | Add(values(72, 35)),
        n=70,  # so the second half begins at an odd column
        num_sms=2,
    ),
    "interleaved, staggered": Case(
        STAGGERED.replace(tile_n=48, store_slots=1),
        lambda: Bias(values(72)) | Gated("gelu", "interleaved") | RowAmax(values(136, kind=FP32)),
        m=136,
        n=72,
    ),
    "halves of rows of k": Case(
        SMALL.replace(tile_n=128),
        lambda: Gated("gelu_tanh", "halves"),
        n=144,
        b_major="n",
        batch=(2,),
        b_is_batched=True,
    ),
    "Ampere": Case(
        AMPERE,
        lambda: Alpha(0.5) | Beta(-0.25, values(72, 71, pitch=73)) | Bias(values(71)) | Aux(padded(72, 71, gap=1)[1]),
        n=71,
        out_kind=FP32,
        device="a100",
    ),
    "Ampere, a batch": Case(
        AMPERE,
        lambda: Scale(values(3, 72), "row") | Gelu() | Add(values(3, 72, 40)) | RowAmax(values(3, 72, kind=FP32)),
        batch=(3,),
        b_is_batched=True,
        schedule="random",
        device="a100",
    ),
    "Ampere, tf32 on a Hopper GPU": Case(
        AMPERE.replace(tile_k=16),
        lambda: Bias(values(71)) | Relu(),
        n=71,
        b_major="n",
        kind=FP32,
        out_kind=FP32,
    ),
    "Ampere, halves": Case(
        AMPERE,
        lambda: Bias(values(70)) | Aux(padded(72, 70, gap=8)[1]) | Gated("silu", "halves") | Add(values(72, 35)),
        n=70,  # so the second half begins at an odd column
        device="rtx3090",
    ),
    "Ampere, halves of rows of k": Case(
        AMPERE.replace(tile_n=128),
        lambda: Gated("gelu_tanh", "halves") | RowAmax(values(2, 40, kind=FP32)),
        m=40,
        n=140,  # pieces of 4 bytes; fp32 leaves 32 columns at a time
        b_major="n",
        out_kind=FP32,
        batch=(2,),
        b_is_batched=True,
        schedule="eager",
        device="a100",
    ),
    "Ampere, halves, a split barrier": Case(
        AMPERE_SPLIT,
        lambda: Bias(values(70)) | Aux(padded(72, 70, gap=8)[1]) | Gated("silu", "halves") | Add(values(72, 35)),
        n=70,
        k=5 * 64 + 8,  # past the ring
        num_sms=1,  # several tiles a CTA
        schedule="random",
        device="a100",
    ),
    "Ampere, neighbours of rows of k in a batch, a split barrier": Case(
        AMPERE_SPLIT.replace(tile_n=128, warps_n=2),
        lambda: Gated("gelu_tanh", "interleaved") | RowAmax(values(2, 72, kind=FP32)),
        n=140,
        b_major="n",
        out_kind=FP32,
        batch=(2,),
        b_is_batched=True,
        num_sms=1,
        schedule="eager",
    ),
    "Ampere, neighbours in rows of k": Case(
        AMPERE,
        lambda: Bias(values(74)) | Gated("gelu", "interleaved") | Bias(values(72), "row"),
        n=74,
        b_major="n",
        schedule="random",
        device="rtx4090",
    ),
    "Ampere, a column-major out": Case(
        AMPERE,
        lambda: Bias(values(70)) | Scale(values(72), "row") | Gated("silu", "interleaved") | Add(values(72, 35)),
        n=70,
        kind=FP16,
        out_kind=FP16,
        out_is_transposed=True,
        schedule="random",
        device="a100",
    ),
    "Ampere, a ragged column-major out, tf32": Case(
        AMPERE.replace(tile_k=16, tile_n=96, warps_n=1),
        lambda: Gated("relu", "halves") | Beta(0.5, values(71, 37, pitch=39)),
        m=71,
        n=74,
        kind=FP32,
        out_kind=FP32,
        out_is_transposed=True,
    ),
    "slices": Case(
        SLICED,
        lambda: Alpha(0.5) | Beta(-0.25, values(72, 39, pitch=43)) | Scale(values(72), "row") | Aux(padded(72, 39)[1]),
        n=39,
        k=192,
        num_sms=4,
    ),
    "slices, halves": Case(
        SLICED,
        lambda: Bias(values(70)) | Gated("silu", "halves") | RowAmax(values(72, kind=FP32)) | Add(values(72, 35)),
        n=70,
        k=192,
        num_sms=4,
        schedule="random",
    ),
    "slices, Ampere, interleaved to a column-major out": Case(
        AMPERE.replace(slices=2),
        lambda: Aux(padded(72, 70, gap=2)[1]) | Gated("gelu", "interleaved") | Bias(values(72), "row"),
        n=70,
        k=128,
        out_is_transposed=True,
        num_sms=4,
        schedule="eager",
        device="a100",
    ),
    "a column-major out": Case(
        SMALL, lambda: Bias(values(40)) | Add(values(72, 40)) | Scale(values(72), "row"), out_is_transposed=True
    ),
}


def operands(case: Case) -> tuple[Any, Any, Any, Any]:
    """a, b, out, and the memory around out."""
    a = values(*case.batch, case.m, case.k, kind=case.kind, seed=2)
    b_batch = case.batch if case.b_is_batched else ()
    b = values(*b_batch, case.n, case.k, kind=case.kind, seed=3).swapaxes(-1, -2)
    if case.b_major == "n":
        b = np.ascontiguousarray(b)
    columns = case.n // 2 if any(step.kind == "gated" for step in as_epilogue(case.epilogue()).steps) else case.n
    if case.out_is_transposed:
        held, out = padded(columns, case.m, kind=case.out_kind, gap=8)
        return a, b, out.T, held
    held, out = padded(*case.batch, case.m, columns, kind=case.out_kind, gap=8)
    return a, b, out, held


def verdict(case: Case) -> str:
    """ "" when the kernel computes the case right, writes nothing else, and breaks no rule of the memory model."""
    a, b, out, held = operands(case)
    epilogue = as_epilogue(case.epilogue())
    inputs = dtypes.TF32 if case.kind is FP32 else None
    emulator = Emulator(case.device, schedule=case.schedule)
    try:
        emulator.matmul(a, b, out, config=case.config, num_sms=case.num_sms, inputs=inputs, epilogue=epilogue)
    except EmulationError as error:
        return str(error)
    whole = np.broadcast_to(b, (*case.batch, *b.shape[-2:]))
    found = check(a, whole, out, dtypes.by_name(out.dtype), inputs=inputs, epilogue=epilogue)
    out[...] = PATTERN
    for step in epilogue.steps:
        if isinstance(step, Aux):
            step.out[...] = PATTERN
            if not (step.out.base == PATTERN).all():
                return "the padding of aux was written"
    if not (held == PATTERN).all():
        return "the padding of out was written"
    return str(found) if not found.ok else " ".join(map(str, emulator.findings))


@pytest.mark.parametrize("name", CASES)
def test_every_form_of_the_kernel_applies_the_steps_in_order(name: str) -> None:
    assert verdict(CASES[name]) == ""


@pytest.mark.parametrize(
    ("b_major", "split", "out_is_transposed", "out_kind"),
    [
        ("k", "halves", False, BF16),
        ("n", "interleaved", False, FP16),
        ("n", "halves", True, BF16),
        ("k", "interleaved", True, FP32),
    ],
)
def test_whole_gated_tiles_of_the_ampere_family_meet_no_bank_twice(
    b_major: str, split: Any, out_is_transposed: bool, out_kind: Any
) -> None:
    """Slots of 16 columns, an odd row of 8 lanes, and columns of 16 rows; ragged ends are row_store.cuh's."""
    kind = BF16 if out_kind is FP32 else out_kind
    a, b, _, _ = operands(Case(AMPERE, Relu, 64, 64, 64, b_major=b_major, kind=kind, out_kind=out_kind))
    out = np.empty((32, 64), out_kind).T if out_is_transposed else np.empty((64, 32), out_kind)
    emulator = Emulator("a100", checks=False, banks=True)
    emulator.matmul(a, b, out, config=AMPERE, epilogue=Gated("silu", split))
    assert emulator.report is not None
    assert check(a, b, out, dtypes.by_name(out.dtype), epilogue=Gated("silu", split)).ok
    assert not [site for site, (took, needed) in emulator.report.banks.items() if took != needed]


# What a mutant changes in which case. A file of kernels/cuda, what stands there, and what shall.
MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "row vectors of the next warp's rows": (
        "single", "consumer.cuh", "own_row = row +", "own_row = row + STORE_ROWS +"
    ),
    "what is kept has the rows of the first block": (
        "staggered batch", "consumer.cuh", "tile.matrix()), row_of(tile, 1)", "tile.matrix()), row_of(tile, 0)"
    ),
    "magnitudes past the last column": (
        "ping-pong", "fused_results.cuh", "if (left - 8 * block > i) {\n", "if (true) {\n"
    ),
    "pairs of another lane": ("a narrow tail", "fused_arrays.cuh", "words[i + 2], 2)", "words[i + 2], 1)"),
    "gates gated by themselves": ("halves", "producer.cuh", "SWIZZLE_BYTES, other,", "SWIZZLE_BYTES, map,"),
    "columns that gate in the place of what they gate": (
        "Ampere, halves", "tile_copy.cuh", "part(row()) * further", "(1 - part(row())) * further"
    ),
    "neighbours of the other row": (
        "Ampere, neighbours in rows of k", "warp_finish.cuh", "lane / 2 % 2 == 1, 2)", "lane / 2 % 2 == 1, 4)"
    ),
    "rows of a column that another lane has": (
        "Ampere, a column-major out", "warp_store.cuh", "ptx::prmt<0x3276>", "ptx::prmt<0x5410>"
    ),
    "gates of slices gated by their neighbours": (
        "slices, halves", "fused_sums.cu", "static_cast<uint64_t>(out_n) * 4,", "4,"
    ),
    "the L2 asked for rows below the last": (
        "staggered, what is read fetched ahead", "consumer.cuh", "share && row < to.m", "share"
    ),
    "the L2 asked for rows below the last, of a long k": (
        "staggered, what is read fetched ahead of a long k", "consumer.cuh", "share && row < to.m", "share"
    ),
    "columns of the whole tile": ("split", "consumer.cuh", "+ reduction.first_column());", ");"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_step_that_meets_the_wrong_values_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, file, old, new = MUTANTS[name]
    _mutate(monkeypatch, file, old, new)
    found = verdict(CASES[case])
    assert any(words in found for words in ("past their bound", "data race", "bytes past the end")), found


def _mutate(monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str) -> None:
    """Every kernel that is rendered from here on has the other text; it must be there."""
    files = render.device_code()
    text, found = re.subn(re.escape(old), lambda _: new, files[file])
    assert found, f"{old!r} is not in {file}: the mutant must follow the kernel"
    monkeypatch.setattr(render, "device_code", lambda: {**files, file: text})


def test_with_a_beta_of_zero_c_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """B035: poison in c does not show, and a kernel that reads it is caught. The number is no part of the kernel."""
    a, b = values(72, 72, seed=2), values(40, 72, seed=3).T
    poison = np.full((72, 40), np.nan, BF16)
    emulator = Emulator()

    def product(beta: float, c: Any) -> Any:
        return emulator.matmul(a, b, config=SMALL, num_sms=2, epilogue=Beta(beta, c))

    found = product(0.0, poison)
    assert (found == emulator.matmul(a, b, config=SMALL, num_sms=2)).all()
    assert check(a, b, product(0.5, values(72, 40)), dtypes.BF16, epilogue=Beta(0.5, values(72, 40))).ok
    assert np.isnan(product(1.0, poison)).all()
    _mutate(monkeypatch, "fused_arrays.cuh", "is_read && ", "")
    emulator = Emulator()
    assert np.isnan(product(0.0, poison)).all()


def test_c_may_be_out_itself_and_nothing_else_may_overlap_it() -> None:
    a, b = values(72, 72, seed=2), values(39, 72, seed=3).T
    for config in (SMALL, SLICED):
        out = values(72, 39, pitch=40)
        before = out.copy()
        emulator = Emulator()
        emulator.matmul(a, b, out, config=config, num_sms=2, epilogue=Beta(0.5, out) | Add(out))
        assert check(a, b, out, dtypes.BF16, epilogue=Beta(0.5, before) | Add(before)).ok
    with pytest.raises(LayoutError, match="out itself"):
        emulator.matmul(a, b, out, config=SMALL, num_sms=2, epilogue=Beta(0.5, out[::-1][::-1]) | Bias(out[0]))


def test_without_products_the_epilogue_is_of_zeros() -> None:
    a, b = values(72, 8)[:, :0], values(40, 8).T[:0]
    amax = values(72, kind=FP32)
    epilogue = Bias(values(40)) | RowAmax(amax) | Add(values(72, 40))
    out = Emulator().matmul(a, b, epilogue=epilogue)
    assert check(a, b, out, dtypes.BF16, epilogue=epilogue).ok
    assert (Emulator().matmul(a, b) == 0).all()


def test_the_same_steps_give_the_same_bits_in_every_form() -> None:
    """No operation is fused or left to the compiler: reduction "invariant" holds with an epilogue."""
    a, b = values(136, 72, seed=2), values(40, 72, seed=3).T
    epilogue = Alpha(0.3) | Bias(values(40)) | Gelu() | Scale(values(136), "row") | Add(values(136, 40))
    forms = (SMALL, SMALL.replace(swap=True, tile_n=24), STAGGERED)
    emulator = Emulator(checks=False)
    first, *others = (
        emulator.matmul(a, b, config=config, num_sms=2, reduction="invariant", epilogue=epilogue) for config in forms
    )
    assert all((other.view(np.uint16) == first.view(np.uint16)).all() for other in others)


def test_infinities_and_nan_behave_as_in_the_reference() -> None:
    a, b = values(72, 72, seed=2), values(40, 72, seed=3).T
    a[0, 0], a[1, 0], a[2, 0] = np.inf, -np.inf, np.nan
    epilogue = Relu() | Gelu()
    out = Emulator(checks=False).matmul(a, b, config=SMALL, num_sms=2, epilogue=epilogue)
    assert check(a, b, out, dtypes.BF16, epilogue=epilogue).ok
    assert np.isnan(out[2].astype(np.float32)).all()


def test_configs_that_cannot_are_refused_and_not_chosen() -> None:
    a, b = values(72, 256, seed=2), values(48, 256, seed=3).T
    for config, epilogue, reason in (
        (SMALL.replace(swap=True, tile_n=16), Gated(), "both halves"),
        (SMALL.replace(tile_n=24), Gated(), "multiple of 16"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Emulator().plan(a, b, config=config, epilogue=epilogue)
    n_contiguous = np.ascontiguousarray(b)
    with pytest.raises(ConfigError, match="interleaved"):
        Emulator().plan(a, n_contiguous, config=SMALL.replace(tile_n=128), epilogue=Gated("silu", "interleaved"))
    with pytest.raises(ConfigError, match="contiguous"):
        Emulator().plan(a, b, np.empty((24, 72), BF16).T, config=SMALL, epilogue=Gated())
    plan = Emulator().plan(a, b, epilogue=Bias(values(48)))
    with pytest.raises(LayoutError, match="no epilogue"):
        plan.run(a, b)
    assert check(a, b, plan.run(a, b, epilogue=Bias(values(48))), dtypes.BF16, epilogue=Bias(values(48))).ok


@pytest.mark.parametrize(
    ("config", "c_pitch"),  # rows of c at multiples of 16 bytes, and anywhere
    [(SMALL, 67), (STAGGERED, 64), (SLICED, 67), (AMPERE, 64)],
    ids=["hopper", "staggered", "slices", "ampere"],
)
def test_b023_a_bias_at_an_odd_address_and_a_view_as_c_are_read_together(config: Config, c_pitch: int) -> None:
    """61 columns: whole numbers, so that one value of a neighbour shows; what lies around bias and c is NaN."""
    rng = np.random.default_rng(4)

    def amid(shape: tuple[int, ...], whole: tuple[int, ...], column: int) -> Any:
        held = np.full(whole, np.nan, BF16)
        view = held[..., column : column + shape[-1]]
        view[...] = rng.integers(-8, 9, shape)
        return view

    a, w = (rng.integers(-2, 3, shape).astype(BF16) for shape in ((72, 72), (61, 72)))
    bias, c = amid((61,), (64,), 1), amid((72, 61), (72, c_pitch), c_pitch % 64)
    assert bias.ctypes.data % 4 == 2
    emulator = Emulator("a100" if config is AMPERE else "h200")
    out = emulator.matmul(a, w.T, config=config, num_sms=4, epilogue=Bias(bias) | Beta(2.0, c))
    expected = a.astype(FP32) @ w.T.astype(FP32) + bias.astype(FP32) + 2 * c.astype(FP32)
    assert np.array_equal(out, expected.astype(BF16))
    assert not emulator.findings


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        Config(tile_m=64, tile_n=32, stages=2, pingpong=True),
        STAGGERED.replace(tile_n=32),
    ],
    ids=["shared tiles", "ping-pong", "staggered"],
)
def test_b037_each_tile_that_one_cta_walks_gets_its_own_columns_of_the_bias(config: Config) -> None:
    rng = np.random.default_rng(3)
    a, w = (rng.integers(-2, 3, shape).astype(FP16) for shape in ((128, 72), (96, 72)))
    bias = np.arange(-48, 48, dtype=FP32)  # no two columns alike
    out = Emulator().matmul(a, w.T, config=config, num_sms=1, epilogue=Bias(bias) | Relu())
    assert np.array_equal(out, np.maximum(a.astype(FP32) @ w.T.astype(FP32) + bias, 0).astype(FP16))


@pytest.mark.parametrize("split", ["halves", "interleaved"])
@pytest.mark.parametrize(
    "config",
    [
        SMALL.replace(tile_n=16),
        Config(tile_m=64, tile_n=48, stages=2, pingpong=True, store_slots=1),
        STAGGERED.replace(tile_n=64),
        SMALL.replace(tile_n=96, cluster_m=2, cluster_n=2),
    ],
    ids=["narrow", "ping-pong", "staggered", "cluster of rows and columns"],
)
def test_b038_swiglu_is_within_its_bound_whatever_the_tile(config: Config, split: Any) -> None:
    a, w, epilogue = values(136, 72), values(104, 72, seed=2), Gated("silu", split)
    out = Emulator(schedule="random", seed=1).matmul(a, w.T, config=config, epilogue=epilogue)
    assert out.shape == (136, 52)
    verdict = check(a, w.T, out, dtypes.BF16, epilogue=epilogue)
    assert verdict.ok, verdict
