"""Bank conflicts against a count, bank by bank, with sets; and known patterns with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.emulator import banks, fragments, tiled


def counted_with_sets(addresses: np.ndarray, size: int, active: np.ndarray) -> banks.Count:
    """Each phase asks each bank for so many distinct words; the worst bank decides."""
    lanes = 32 // max(size // 4, 1)
    wavefronts = ideal = 0
    for first in range(0, 32, lanes):
        words = {
            (int(addresses[t]) + byte) // 4
            for t in range(first, first + lanes)
            if active[t]
            for byte in range(0, max(size, 1), 4)
        }
        per_bank = [sum(word % 32 == bank for word in words) for bank in range(32)]
        wavefronts += max(per_bank)
        ideal += -(-len(words) // 32)
    return banks.Count(wavefronts, ideal)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_random_accesses_are_counted_as_sets_count_them(size: int) -> None:
    generator = np.random.default_rng(size)
    for _ in range(20):
        addresses = generator.integers(0, 8192 // size, 32) * size
        active = generator.random(32) < 0.8
        assert banks.access(addresses, size, active) == counted_with_sets(addresses, size, active)


def test_rows_of_words_are_free_and_columns_are_32_way() -> None:
    lanes = np.arange(32)
    assert banks.access(4 * lanes, 4) == banks.Count(1, 1)
    assert banks.access(128 * lanes, 4) == banks.Count(32, 1)
    assert banks.access(np.zeros(32, int), 4) == banks.Count(1, 1)  # a broadcast
    assert banks.access(16 * lanes, 16) == banks.Count(4, 4)
    assert banks.access(8 * lanes, 8) == banks.Count(2, 2)


@pytest.mark.parametrize("size", [8, 16])
def test_a_load_whose_lanes_pair_takes_half_the_phases(size: int) -> None:
    lanes = np.arange(32)
    whole = 32 * size // 128
    for pairs in (lanes // 2, lanes // 4 * 2 + lanes % 2, lanes * 0):  # t ^ 1, t ^ 2, one address
        assert banks.access(size * pairs, size, is_load=True).wavefronts == whole // 2
        assert banks.access(size * pairs, size).wavefronts == whole  # a store brings each register
    for unpaired in (lanes % 16, lanes % 4, np.where(lanes == 5, 0, lanes // 2)):
        assert banks.access(size * unpaired, size, is_load=True).wavefronts == whole
    idle = lanes % 2 == 0
    apart = size * (lanes // 2)
    assert banks.access(apart, size, idle, is_load=True).wavefronts == whole // 2  # the partner is not there
    mixed = np.stack([size * (lanes // 2), size * lanes])
    assert banks.access(mixed, size, is_load=True) == banks.Count(whole // 2 + whole, whole // 2 + whole)


def test_of_a_joined_load_rows_meet_that_were_apart_in_quarter_warps() -> None:
    """Lanes 0 and 1 of each 8 read two chunks of a row of 128 bytes in the 128-byte swizzle; their partners are idle.
    Joined it has half as many phases, each with two rows in the same banks."""
    lane = np.arange(32)
    row, chunk = lane // 8, lane % 8
    addresses = row * 128 + (chunk ^ row) * 16
    active = chunk < 2
    assert banks.access(addresses, 16, active) == banks.Count(4, 4)
    assert banks.access(addresses, 16, active, is_load=True) == banks.Count(4, 2)
    assert banks.access(addresses, 16, is_load=True) == banks.Count(4, 4)


def test_warps_of_one_access_add_up() -> None:
    lanes = np.arange(32)
    both = banks.access(np.stack([4 * lanes, 128 * lanes]), 4)
    assert both == banks.Count(33, 2)
    assert both.conflicts == 31


def test_idle_lanes_cost_nothing() -> None:
    assert banks.access(np.zeros(32, int), 4, np.zeros(32, bool)) == banks.Count(0, 0)


def test_ldmatrix_is_free_along_a_swizzled_tile_and_8_way_along_a_plain_one() -> None:
    rows = np.arange(8)
    assert banks.matrix(128 * rows) == banks.Count(8, 1)
    assert banks.matrix(128 * rows + 16 * rows) == banks.Count(1, 1)
    assert banks.matrix(np.concatenate([16 * rows] * 4)) == banks.Count(4, 4)


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("k_major", [True, False])
def test_swizzled_wgmma_operands_have_no_conflict(width: int, k_major: bool) -> None:
    descriptor = fragments.encode_descriptor(fragments.Descriptor(1024, 4096, 8 * width, 0, width))
    assert banks.judge_wgmma(descriptor, 64, 16, 16, k_major).conflicts == 0


def test_contiguous_core_matrices_have_no_conflict_and_neither_does_the_other_major() -> None:
    descriptor = fragments.encode_descriptor(fragments.Descriptor(1024, 128, 256, 0, 0))
    assert banks.judge_wgmma(descriptor, 64, 16, 16, True).conflicts == 0
    assert banks.judge_wgmma(descriptor, 64, 16, 16, False).conflicts == 0


@pytest.mark.parametrize(("row_elements", "swizzle", "ways"), [(64, 0, 8), (32, 0, 4), (16, 0, 2), (8, 0, 1)])
def test_boxes_without_swizzle_are_reported_with_the_factor(row_elements: int, swizzle: int, ways: int) -> None:
    tensor = tiled.TiledMap(
        address=0, element="bf16", extents=(64, 64), pitches_bytes=(128,), box=(row_elements, 8), swizzle_bytes=swizzle
    )
    found = banks.judge_tma(tensor, "ldmatrix")
    assert (found is None) == (ways == 1)
    if found is not None:
        assert f"{ways} times" in found


@pytest.mark.parametrize("width", [32, 64, 128])
def test_boxes_as_wide_as_their_swizzle_are_silent(width: int) -> None:
    tensor = tiled.TiledMap(
        address=0, element="bf16", extents=(64, 64), pitches_bytes=(128,), box=(width // 2, 8), swizzle_bytes=width
    )
    assert banks.judge_tma(tensor, "ldmatrix") is None
