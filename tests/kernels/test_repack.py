"""The host's side of the copy: where it lies, what its kernel is told, and that every number fits its type."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import device
from tilewright.backends.base import IntsArgument, MapArgument, PointerArgument
from tilewright.jit.build import build
from tilewright.kernels import repack
from tilewright.kernels.hopper import HOPPER
from tilewright.model import best, repack_us
from tilewright.packing import packed
from tilewright.problem import Problem, checked
from tilewright.tma import MAX_EXTENT

H200 = device.preset("h200")


@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_kernel_neither_spills_nor_leaves_a_cta_out(batch: tuple[int, ...]) -> None:
    resources = build(repack.source(packed(65, 65, 65, padded=False, batch=batch), H200)).resources
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (0, 0, 0)
    assert resources.registers * repack.THREADS * repack.SHAPE.ctas_per_sm <= 65536


def test_a_copy_has_rows_of_whole_lines_and_matrices_one_behind_the_other() -> None:
    problem = packed(5, 7, 67, padded=False, batch=(2, 3), shared="b")
    found = repack.repacked(problem, ("a", "b"))
    assert (found.a_pitch, found.b_pitch) == (128, 128)
    assert (found.a_batch, found.b_batch) == ((3 * 5 * 128, 5 * 128), (0, 0))
    assert repack.scratch_bytes(problem, "a") == 6 * 5 * 256
    assert repack.scratch_bytes(problem, "b") == 7 * 256
    assert found.unreadable == found.repacked == ()
    assert dataclasses.replace(found, a_pitch=67, b_pitch=67, a_batch=(1005, 335), b_batch=(0, 0)) == problem


def test_what_is_not_copied_stays_as_it_is() -> None:
    problem = packed(5, 7, 64)
    assert repack.repacked(problem, ()) == problem
    assert repack.repacked(dataclasses.replace(problem, a_pitch=65), ("a",)).b_pitch == 64


def test_the_pitch_of_a_single_row_becomes_one_that_a_tensor_map_takes() -> None:
    found = repack.repacked(packed(1, 8, 67, padded=False), ("b",))
    assert found.a_pitch == 72
    assert checked(found).unreadable == ()


def test_few_chunks_take_few_ctas_many_take_one_each_and_named_sms_take_one_wave() -> None:
    def grid(m: int, num_sms: int | None = None) -> int:
        return repack.launch(packed(m, 8, 67, padded=False), ("a",), H200, num_sms).grid

    assert grid(1) == 1
    assert grid(2 * 512 // 16) == 2  # 9 chunks a row, a strip of 16; 512 chunks a CTA
    assert grid(10**6) == 10**6 * 16 // 512
    assert grid(10**8) == 132 * repack.SHAPE.ctas_per_sm * repack.SHAPE.waves
    assert grid(10**6, 5) == 5 * repack.SHAPE.ctas_per_sm
    assert grid(1, 5) == 1


def test_two_operands_share_the_ctas_as_their_chunks_are_many_and_neither_is_left_out() -> None:
    def shares(m: int, n: int, num_sms: int | None = None) -> tuple[int, int]:
        problem = packed(m, n, 1023, padded=False)
        launch = repack.launch(problem, ("a", "b"), H200, num_sms)
        numbers = [
            each.values for each in repack.arguments(problem, ("a", "b"), launch) if isinstance(each, IntsArgument)
        ]
        assert sum(each[1] for each in numbers) == launch.grid
        return numbers[0][1], numbers[1][1]

    assert shares(1023, 1023) == (256, 256)  # 1023 rows of 128 chunks, 512 chunks a CTA: all at once
    assert shares(100_000, 100_000) == (25_000, 25_000)
    assert shares(100_000, 100_000, 132) == (396, 396)
    assert shares(100_000, 1, 132) == (791, 1)
    assert shares(1, 100_000, 1) == (1, 5)


@pytest.mark.parametrize(
    ("k", "is_long"), [(1023, True), (1025, True), (4097, True), (64, True), (56, False), (136, True), (9, False)]
)
def test_rows_are_cut_into_strips_where_half_of_their_chunks_are_there(k: int, is_long: bool) -> None:
    problem = packed(64, 64, k, padded=False)
    (numbers,) = (
        each.values[:4]
        for each in repack.arguments(problem, ("a",), repack.launch(problem, ("a",), H200))[:3]
        if isinstance(each, IntsArgument)
    )
    chunks = -(-2 * k // 16)
    assert numbers[2:] == (int(is_long), -(-chunks // 16) if is_long else chunks)


def test_bytes_of_rows_that_are_all_the_same_are_read_once() -> None:
    problem = packed(4095, 4095, 4095, padded=False)
    assert repack.moved_bytes(problem, ("a", "b")) == (2 * 4095 * 8190, 2 * 4095 * 8190)
    assert repack.moved_bytes(dataclasses.replace(problem, a_pitch=0), ("a",)) == (8190, 4095 * 8190)
    assert repack_us(problem, ("a", "b"), H200) == pytest.approx(28.75 / 0.84 + 1.4 + H200.launch_us, rel=0.001)


extents = st.one_of(st.integers(1, 600), st.integers(1, MAX_EXTENT))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    batch = tuple(draw(st.lists(st.integers(1, 70_000), max_size=3)))
    problem = packed(
        draw(extents), draw(extents), draw(extents),
        a_major=draw(st.sampled_from(["k", "m"])), b_major=draw(st.sampled_from(["k", "n"])),
    )  # fmt: skip
    strides = st.integers(0, 2**38)
    return dataclasses.replace(
        problem,
        a_pitch=draw(strides),
        b_pitch=draw(strides),
        batch=batch,
        a_batch=tuple(draw(strides) for _ in batch),
        b_batch=tuple(draw(strides) for _ in batch),
        out_batch=tuple(0 for _ in batch),
    )


@settings(max_examples=200)
@given(problem=problems(), num_sms=st.sampled_from([None, 1, 2, 132]))
def test_every_number_fits_what_the_kernel_holds_it_in(problem: Problem, num_sms: int | None) -> None:
    """Digits of a place are uint32, offsets int64; a step is the number of groups in those digits."""
    launch = repack.launch(problem, ("a", "b"), H200, num_sms)
    arguments = repack.arguments(problem, ("a", "b"), launch)
    assert launch.grid * launch.block < 2**31
    for source, target, numbers in zip(*(arguments[start::3] for start in range(3)), strict=True):
        assert isinstance(source, PointerArgument)
        assert isinstance(target, PointerArgument)
        assert isinstance(numbers, IntsArgument)
        assert source.granule_bytes == 16
        assert target.num_bytes == repack.scratch_bytes(problem, source.operand)
        row_bytes, num_ctas, is_long, *rest = numbers.values
        unit_bytes = 16 * repack.SHAPE.strip_chunks if is_long else 16
        groups = num_ctas * launch.block // (repack.STRIP_LANES if is_long else 1)
        dims = len(rest) // 4
        extents, steps, sources, targets = (rest[dims * i : dims * (i + 1)] for i in range(4))
        assert 1 <= num_ctas < launch.grid
        assert all(1 <= extent < 2**32 for extent in extents)
        assert all(0 <= step < extent for step, extent in zip(steps[:-1], extents, strict=False))
        assert sum(step * math.prod(extents[:dim]) for dim, step in enumerate(steps)) == groups
        # A group begins below `groups`, and goes up to CHUNKS steps past the end before it looks again.
        assert max(extents[-1] + repack.SHAPE.chunks * (steps[-1] + 1), groups) < 2**32
        assert all(stride % 16 == 0 for stride in targets)
        last_unit = -(-row_bytes // 16) * 16 - (extents[0] - 1) * unit_bytes  # bytes of it that are written
        assert 0 < last_unit <= unit_bytes
        furthest = sum((extent - 1) * stride for extent, stride in zip(extents, targets, strict=True))
        assert furthest + last_unit <= target.num_bytes
        read = sum((extent - 1) * stride for extent, stride in zip(extents[1:], sources[1:], strict=True))
        assert read + row_bytes == source.num_bytes


def test_the_products_maps_are_of_the_copies_whatever_the_operands_were() -> None:
    for problem in (
        packed(65, 66, 67, padded=False),
        packed(65, 66, 67, padded=False, batch=(2, 3)),
        dataclasses.replace(packed(65, 64, 64), a_pitch=0, b_pitch=3),
        packed(1, 1, 1, padded=False),
    ):
        copied = repack.repacked(problem, problem.repacked)
        config = best(copied, H200).config
        launch = HOPPER.launch(copied, config, H200)
        maps = [each for each in HOPPER.arguments(copied, config, launch) if isinstance(each, MapArgument)]
        assert all(each.tensor_map.violations(0) == () for each in maps)
