"""The host's side of slices: what a slice is, where its sums lie, and that every number fits its type."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tilewright
from tilewright import device
from tilewright.backends.base import IntArgument, MapArgument, PointerArgument, StructArgument
from tilewright.config import Config
from tilewright.epilogue import Add, Bias, Gated, RowAmax, Scale, Step
from tilewright.errors import ConfigError
from tilewright.jit.build import build
from tilewright.kernels import product, repack, sums
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.legality import MAX_SLICES, MAX_SLICES_BYTES
from tilewright.model import predict, sums_us
from tilewright.packing import packed, packed_form
from tilewright.problem import Problem
from tilewright.tma import MAX_EXTENT

H200 = device.preset("h200")
SMALL = Config(tile_m=64, tile_n=64, consumers=1, stages=4, store_slots=1)
EIGHT = SMALL.replace(slices=8)


@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
def test_the_kernel_neither_spills_nor_leaves_a_cta_out(out_dtype: str) -> None:
    resources = build(sums.source(packed(64, 64, 4096, out_dtype=out_dtype), H200), refuse=True).resources
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (0, 0, 0)
    assert resources.registers * sums.THREADS * sums.CTAS_PER_SM <= 65536


GATED = dataclasses.replace(
    packed(64, 60, 4096),
    out_pitch=30,
    epilogue=packed_form(
        Bias("fp32") | Scale("bf16", per="row") | Gated("gelu") | Add("bf16") | RowAmax("fp32"), 64, 60
    ),
)


@pytest.mark.parametrize("problem", [packed(64, 64, 4096), GATED], ids=str)
def test_every_thread_waits_for_the_product_before_it_reads_and_reads_what_was_just_written(problem: Problem) -> None:
    """B064, B065. The read-only way (ld.global.nc) may have the line from before the wait."""
    binary = build(sums.source(problem, H200))
    ptx, resources = binary.ptx, binary.resources
    assert (resources.spill_store_bytes, resources.stack_bytes) == (0, 0)
    assert resources.registers * sums.THREADS * sums.CTAS_PER_SM <= 65536
    body = [line.strip() for line in ptx[ptx.index(".entry") :].splitlines()]
    wait = body.index("griddepcontrol.wait;")
    assert not any(re.search(r"\b(ld|st)\.\S*global|^(@\S+\s+)?(bra|ret)\b", line) for line in body[:wait])
    assert "ld.global.nc" not in ptx
    assert "ld.global.cs.v" in ptx


@pytest.mark.parametrize("card", ["h200", "a100"])
@pytest.mark.parametrize("epilogue", [Bias("bf16"), Gated("silu", "interleaved")], ids=str)
def test_an_epilogue_is_that_of_the_sums_and_its_product_keeps_its_slices(card: str, epilogue: Step) -> None:
    problem = packed(256, 256, 65536, b_major="n")
    problem = dataclasses.replace(problem, epilogue=packed_form(epilogue, 256, 256))
    found = tilewright.plan(problem, device=card)
    assert found.config.slices > 1
    assert found.config.sliced(problem).epilogue is None
    first, second = found.work.steps
    assert [isinstance(each, StructArgument) for each in (first.arguments[-1], second.arguments[-1])] == [False, True]
    assert second.launch.grid == min(found.device.num_sms * 4, 16 * 32 // 4 // (1 if problem.out_n == 256 else 2))


@pytest.mark.parametrize("a_major", ["k", "m"])
@pytest.mark.parametrize("b_major", ["k", "n"])
def test_slices_are_a_batch_along_k_with_padded_rows_of_fp32(a_major: str, b_major: str) -> None:
    problem = packed(70, 75, 1024, a_major=a_major, b_major=b_major)  # type: ignore[arg-type]
    found = EIGHT.sliced(problem)
    assert (found.k, found.batch, found.out_dtype.name) == (128, (8,), "fp32")
    assert found.a_batch == (128 if a_major == "k" else 128 * 72,)
    assert found.b_batch == (128 if b_major == "k" else 128 * 80,)
    assert (found.out_pitch, found.out_batch) == (76, (70 * 76,))
    assert found.out_through_tma
    assert found.unreadable == ()
    assert EIGHT.slices_bytes(problem) == 8 * 70 * 76 * 4
    assert (found.extent_bytes["a"], found.extent_bytes["b"]) == (problem.extent_bytes["a"], problem.extent_bytes["b"])


def test_what_is_sliced_or_a_batch_or_whole_is_itself() -> None:
    problem = packed(70, 75, 1024)
    assert SMALL.sliced(problem) is problem
    assert SMALL.slices_bytes(problem) == 0
    sliced = EIGHT.sliced(problem)
    assert EIGHT.sliced(sliced) is sliced
    for config in (EIGHT, EIGHT.replace(swap=True)):
        assert config.computed(config.computed(problem)) == config.computed(problem)
        assert config.num_tiles(problem) == config.num_tiles(config.computed(problem)) == 8 * 2 * 2
        assert config.smem_bytes(problem) == config.smem_bytes(config.computed(problem))


def test_rows_without_padding_are_not_stored_by_tma() -> None:
    """Only scratch may be written behind its rows."""
    problem = packed(70, 75, 128, out_dtype="fp32")
    assert not problem.out_through_tma
    assert not dataclasses.replace(problem, out_pitch=76).out_through_tma
    assert dataclasses.replace(problem, out_pitch=76, out_is_padded=True).out_through_tma


@pytest.mark.parametrize(
    ("config", "problem", "words"),
    [
        (EIGHT, packed(64, 64, 1000), "not parts of whole 16-byte steps; use a k that is a multiple of 64"),
        (EIGHT, packed(64, 64, 1024, batch=(3,)), "for a single product, not for a batch (3,)"),
        (EIGHT.replace(slices=0), packed(64, 64, 1024), f"slices = 0 is outside 1 .. {MAX_SLICES}"),
        (EIGHT.replace(slices=-1), packed(64, 64, 1024), "slices = -1 is outside"),
        (EIGHT.replace(slices=1025), packed(64, 64, 1025 * 8), "slices = 1025 is outside"),
        (EIGHT, packed(8192, 8192, 1024), f"2147483648 bytes of scratch, more than {MAX_SLICES_BYTES}"),
        (SMALL.replace(dependent_sums=True), packed(64, 64, 1024), "dependent_sums = True is for slices"),
        (EIGHT.replace(split_k=4), packed(64, 64, 1024), "split_k = 4 needs a k tile for each CTA; k = 128 has only 2"),
        (EIGHT.replace(tail_n=8), packed(64, 64, 1024), "tail_n = 8 is for a single product"),
        (EIGHT.replace(tile_m=128, staggered=True), packed(64, 64, 1024), "staggered = True keeps rounded"),
    ],
)  # fmt: skip
def test_what_cannot_be_sliced_is_refused_with_numbers(config: Config, problem: Problem, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        config.check(problem, H200)


def test_the_product_writes_slices_and_the_sums_write_out() -> None:
    problem = packed(70, 75, 1024)
    config = EIGHT.replace(dependent_sums=True)
    work = product.work(HOPPER, problem, config, H200, binaries=(lambda: None, lambda: None))  # type: ignore[arg-type, return-value]
    first, second = work.steps
    assert [step.name for step in work.steps] == ["hopper", "sums of 8 slices"]
    assert [(piece.name, piece.num_bytes) for piece in work.scratch] == [(sums.SCRATCH_NAME, 8 * 70 * 76 * 4)]
    written = {each.operand for each in first.arguments if isinstance(each, MapArgument | PointerArgument)}
    assert written == {"a", "b", sums.SCRATCH_NAME}
    assert [each.operand for each in second.arguments if isinstance(each, PointerArgument)] == [
        sums.SCRATCH_NAME,
        "out",
    ]
    assert (first.launch.is_dependent, second.launch.is_dependent) == (False, True)
    assert first.launch.grid == 32
    assert second.launch.grid == math.ceil(70 * 19 / sums.THREADS)
    whole = product.work(HOPPER, problem, SMALL, H200, binaries=(lambda: None,))  # type: ignore[arg-type, return-value]
    assert (len(whole.steps), whole.scratch) == (1, ())


def test_sums_leave_sms_free_where_the_product_does() -> None:
    problem = packed(1024, 1024, 4096)
    assert sums.launch(problem, EIGHT, H200).grid == 132 * sums.CTAS_PER_SM
    assert sums.launch(problem, EIGHT, H200, 5).grid == 5 * sums.CTAS_PER_SM


def test_slices_of_all_numbers_share_a_kernel_with_a_batch_of_fp32_outs() -> None:
    problem = packed(70, 75, 1024)
    kernels = {
        render(HOPPER, problem, SMALL.replace(slices=slices), H200).digest("any") for slices in (2, 4, 8, 16, 32)
    }
    assert len(kernels) == 1
    assert len({sums.source(packed(1, n, 8), H200).digest("any") for n in (1, 8, 63)}) == 1


def test_only_where_sums_depend_on_it_a_product_says_that_they_may_start() -> None:
    problem = packed(70, 75, 1024)
    assert "griddepcontrol" not in build(render(HOPPER, problem, EIGHT, H200)).ptx
    ptx = build(render(HOPPER, problem, EIGHT.replace(dependent_sums=True), H200)).ptx
    assert "griddepcontrol.launch_dependents" in ptx
    assert "griddepcontrol.wait" not in ptx


def test_a_prediction_holds_the_sums_and_its_share_is_of_the_whole_product() -> None:
    problem = packed(256, 256, 65536)
    config = Config(tile_m=128, tile_n=128, stages=6, store_slots=1, slices=32)
    found = predict(HOPPER, problem, config, H200)
    alone = predict(HOPPER, config.sliced(problem), config, H200)
    assert found.terms == (*alone.terms, ("sums", sums_us(problem, config, H200)))
    assert found.total_us == pytest.approx(alone.total_us + sums_us(problem, config, H200))
    assert found.grid == 128
    assert sums_us(problem, config, H200) == pytest.approx(2.6, abs=0.05)
    assert found.roofline_share < 1


extents = st.one_of(st.integers(1, 600), st.integers(1, MAX_EXTENT))


@st.composite
def sliced_products(draw: st.DrawFn) -> tuple[Problem, Config]:
    slices = draw(st.integers(2, MAX_SLICES))
    k = draw(st.integers(1, 40) | st.integers(1, MAX_EXTENT // (8 * MAX_SLICES))) * 8 * slices
    problem = packed(
        draw(extents), draw(extents), k,
        a_major=draw(st.sampled_from(["k", "m"])), b_major=draw(st.sampled_from(["k", "n"])),
        out_major=draw(st.sampled_from(["n", "m"])), out_dtype=draw(st.sampled_from(["bf16", "fp32"])),
    )  # fmt: skip
    problem = dataclasses.replace(problem, out_pitch=problem.out_pitch + draw(st.integers(0, 2**38 - MAX_EXTENT)))
    return problem.row_major, SMALL.replace(slices=slices, swap=draw(st.booleans()))


@settings(max_examples=200, deadline=None)
@given(drawn=sliced_products(), num_sms=st.sampled_from([None, 1, 132]))
def test_every_number_of_a_legal_config_fits(drawn: tuple[Problem, Config], num_sms: int | None) -> None:
    problem, config = drawn
    assume(not config.violations(problem, H200))
    launch = HOPPER.launch(problem, config, H200, num_sms)
    maps = [each for each in HOPPER.arguments(problem, config, launch) if isinstance(each, MapArgument)]
    assert all(each.tensor_map.violations(0) == () for each in maps)
    numbers = {each.name: each.value for each in sums.arguments(problem, config) if isinstance(each, IntArgument)}
    adding = sums.launch(problem, config, H200, num_sms)
    # A thread's chunk is below the chunks and then goes one step, all threads, further: below 2^32.
    assert numbers["num_chunks"] + adding.grid * adding.block < 2**32
    assert numbers["num_chunks"] < 2**31
    assert numbers["num_chunks"] * 16 * config.slices == config.slices_bytes(problem) <= MAX_SLICES_BYTES
    assert numbers["row_chunks"] * 4 - 4 < numbers["extent"] <= numbers["row_chunks"] * 4
    assert config.sliced(problem).out_batch[0] * 4 == numbers["num_chunks"] * 16


def test_a_copied_operand_is_sliced_as_its_copy_lies() -> None:
    problem = packed(65, 66, 4096, a_major="m", padded=False)
    copied = repack.repacked(problem, problem.repacked)
    assert EIGHT.violations(copied, H200) == ()
    assert EIGHT.sliced(copied).a_batch == (512 * copied.a_pitch,)
