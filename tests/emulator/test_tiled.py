"""TMA addressing against loops over elements, the map's encoding, and the driver's rules."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tilewright.emulator import tiled
from tilewright.errors import LayoutError

ADDRESS = 4096


def make(
    element: str, extents: tuple[int, ...], pitches: tuple[int, ...], box: tuple[int, ...], **more: Any
) -> tiled.TiledMap:
    return tiled.TiledMap(address=ADDRESS, element=element, extents=extents, pitches_bytes=pitches, box=box, **more)


CASES = [
    (make("bf16", (37,), (), (16,)), (24,)),
    (make("bf16", (37, 10), (80,), (32, 8), swizzle_bytes=64), (16, 5)),
    (make("bf16", (72, 24), (160,), (64, 8), swizzle_bytes=128), (-16, -3)),
    (make("f32", (13, 6), (64,), (8, 4), swizzle_bytes=32), (8, 4)),
    (make("u8", (100, 9), (112,), (64, 8), swizzle_bytes=64), (48, 2)),
    (make("f16", (24, 5, 4), (48, 256), (16, 4, 3), swizzle_bytes=32), (8, -1, 2)),
    (make("f32", (8, 3, 3, 3), (32, 112, 352), (8, 2, 2, 2)), (0, 2, 1, -1)),
    (make("u8", (32, 2, 3, 2, 2), (32, 64, 208, 432), (16, 2, 2, 2, 2)), (16, 1, -1, 0, 1)),
    (make("f64", (9, 9), (80,), (4, 8), swizzle_bytes=32), (6, 2)),
    (make("bf16", (72, 10), (160,), (64, 4)), (128, 20)),
    (make("f16", (22, 6), (96,), (16, 4), fill_nan=True), (16, 4)),
    (make("bf16", (72, 24), (160,), (24, 8), swizzle_bytes=64), (0, 1)),
    (make("u8", (100, 9), (112,), (16, 8), swizzle_bytes=128), (48, 2)),
]


def elements(tensor: tiled.TiledMap, at: tuple[int, ...]) -> list[tuple[int, int, bool]]:
    """(place in the box, byte offset in the tensor, inside) of every element, by the definition of a tiled box."""
    pitches = (tensor.element_bytes, *tensor.pitches_bytes)
    found = []
    for index in itertools.product(*(range(size) for size in reversed(tensor.box))):
        within = index[::-1]
        place = 0
        for size, i in zip(reversed(tensor.box), index, strict=True):
            place = place * size + i
        coordinates = [x + i for x, i in zip(at, within, strict=True)]
        inside = all(0 <= c < e for c, e in zip(coordinates, tensor.extents, strict=True))
        found.append((place, sum(c * p for c, p in zip(coordinates, pitches, strict=True)), inside))
    return found


def swizzled_by_table(address: int, width: int) -> int:
    chunks = width // 16
    if not chunks:
        return address
    return address - address % width + ((address // 16 % chunks) ^ (address // 128 % chunks)) * 16 + address % 16


def tensor_bytes(tensor: tiled.TiledMap) -> int:
    return (
        (tensor.pitches_bytes[-1] * tensor.extents[-1])
        if tensor.pitches_bytes
        else 16 * (-(-tensor.row_bytes // 16) + 8)
    )


@pytest.mark.parametrize(("tensor", "at"), CASES)
def test_load_brings_every_element_to_its_swizzled_place_and_fills_the_rest(
    tensor: tiled.TiledMap, at: tuple[int, ...]
) -> None:
    source = np.random.default_rng(1).integers(1, 255, 256 + tensor_bytes(tensor)).astype(np.uint8)
    start = ADDRESS - 256  # the buffer begins before the tensor
    shared = 2048 + 384
    where = tiled.box(tensor, at, shared)
    smem = np.full(16384, 0xCD, np.uint8)
    smem[where.shared_bytes()] = tiled.load(tensor, where, source, start)
    want = np.full(16384, 0xCD, np.uint8)
    size = tensor.element_bytes
    fill = np.resize(np.array([0xF7, 0x7F] if tensor.fill_nan else [0], np.uint8), size)
    for place, offset, inside in elements(tensor, at):
        row, column = divmod(place * size, tensor.row_bytes)
        pitch = tensor.swizzle_bytes or tensor.row_bytes  # a row narrower than the swizzle takes all its width
        target = swizzled_by_table(shared + row * pitch + column, tensor.swizzle_bytes)
        want[target : target + size] = source[256 + offset : 256 + offset + size] if inside else fill
    assert (smem == want).all()


@pytest.mark.parametrize(("tensor", "at"), CASES)
def test_chunks_and_bytes_of_a_box_agree(tensor: tiled.TiledMap, at: tuple[int, ...]) -> None:
    where = tiled.box(tensor, at, 1024)
    offsets, inside = where.global_bytes()
    size = tensor.element_bytes
    for place, offset, within in elements(tensor, at):
        row, column = divmod(place * size, tensor.row_bytes)
        assert offsets[row, column] == offset
        assert inside[row, column] == within
    starts, length = where.load_ranges()
    covered = {s + i for s in starts.tolist() for i in range(length)}
    assert covered == set(offsets[inside].tolist())


@pytest.mark.parametrize(("tensor", "at"), CASES)
def test_store_writes_what_is_inside_up_to_the_next_16_byte_boundary(
    tensor: tiled.TiledMap, at: tuple[int, ...]
) -> None:
    tensor = dataclasses.replace(tensor, fill_nan=False)
    generator = np.random.default_rng(2)
    rows = generator.integers(0, 200, (tensor.box_bytes // tensor.row_bytes, tensor.row_bytes)).astype(np.uint8)
    target = np.full(tensor_bytes(tensor) + 256, 0xA5, np.uint8)
    want = target.copy()
    where = tiled.box(tensor, at, 1024)
    tiled.store(tensor, where, rows, target, ADDRESS)
    size, extent = tensor.element_bytes, tensor.extents[0]
    rounded = -(-extent * size // 16) * 16 // size
    padded = dataclasses.replace(tensor, extents=(rounded, *tensor.extents[1:]))
    for place, offset, inside in elements(padded, at):
        if inside:
            want[offset : offset + size] = rows.reshape(-1)[place * size : (place + 1) * size]
    assert (target == want).all()


def test_every_byte_of_the_box_counts_for_the_barrier_outside_ones_too() -> None:
    tensor = make("bf16", (8, 1), (16,), (64, 8), swizzle_bytes=128)
    assert tensor.box_bytes == 64 * 8 * 2


def test_inner_coordinate_inside_a_chunk_is_refused() -> None:
    tensor = make("bf16", (72, 24), (160,), (64, 8), swizzle_bytes=128)
    for x in (1, 7, -4):
        with pytest.raises(tiled.InnerCoordinateError, match="multiple of 16 bytes"):
            tiled.box(tensor, (x, 0), 1024)
    tiled.box(tensor, (8, 0), 1024)


def test_store_must_not_start_before_the_tensor_and_a_load_may() -> None:
    tensor = make("bf16", (72, 24), (160,), (64, 8), swizzle_bytes=128)
    for at in ((-16, 0), (0, -1), (-8, -3)):
        tiled.box(tensor, at, 1024)
        with pytest.raises(tiled.StoreCoordinateError, match="must not start before 0"):
            tiled.box(tensor, at, 1024, stores=True)
    tiled.box(tensor, (64, 23), 1024, stores=True)


def test_narrow_rows_take_more_shared_memory_than_they_announce() -> None:
    tensor = make("bf16", (72, 24), (160,), (8, 12), swizzle_bytes=128)
    assert (tensor.box_bytes, tensor.shared_bytes) == (8 * 12 * 2, 12 * 128)
    where = tiled.box(tensor, (0, 0), 1024)
    assert where.shared.min() >= 1024
    assert where.shared.max() < 1024 + tensor.shared_bytes
    dense = make("bf16", (72, 24), (160,), (8, 12))
    assert dense.shared_bytes == dense.box_bytes


def test_tf32_map_rounds_to_nearest_even_and_knows_one_nan() -> None:
    given = np.array([0x3F80_0FFF, 0x3F80_1000, 0x3F80_3000, 0x3F80_1001, 0x7FC1_2345, 0xFF80_0000, 1, 0x807F_FFFF])
    source = given.astype(np.uint32).view(np.uint8)
    want = [0x3F80_0000, 0x3F80_0000, 0x3F80_4000, 0x3F80_2000, 0x7FFF_E000, 0xFF80_0000, 0, 0x8080_0000]
    for element in ("tf32", "tf32_ftz"):
        tensor = make(element, (8, 1), (32,), (8, 1))
        got = tiled.load(tensor, tiled.box(tensor, (0, 0), 1024), source, ADDRESS)
        assert got.view(np.uint32)[0].tolist() == want


def test_ftz_of_a_map_changes_nothing_that_is_loaded() -> None:
    given = np.array([1, 0x807F_FFFF, 0x7FC1_2345, 0x3F80_0FFF], np.uint32)
    tensor = make("f32_ftz", (4, 1), (16,), (4, 1))
    got = tiled.load(tensor, tiled.box(tensor, (0, 0), 1024), given.view(np.uint8), ADDRESS)
    assert got.view(np.uint32)[0].tolist() == given.tolist()


def test_shared_address_must_be_128_byte_aligned() -> None:
    with pytest.raises(tiled.SharedAddressError, match="128"):
        tiled.box(make("bf16", (72, 24), (160,), (64, 8)), (0, 0), 1024 + 16)


def test_reduction_adds_in_the_elements_format_and_clips_by_chunks_as_a_store_does() -> None:
    tensor = make("f16", (37, 2), (80,), (32, 2), swizzle_bytes=64)
    before = np.full((2, 40), 1.0, np.float16)
    target = before.copy().view(np.uint8).reshape(-1)
    rows = np.full((2, 32), 2.5, np.float16).view(np.uint8)
    tiled.reduce(tensor, tiled.box(tensor, (16, 0), 1024), rows, target, ADDRESS, "add")
    after = target.view(np.float16).reshape(2, 40)
    assert (after[:, 16:40] == 3.5).all()  # the chunk that holds the last element ends at 40
    assert (after[:, :16] == 1).all()
    assert tiled.box(make("f16", (32, 2), (80,), (32, 2)), (0, 0), 1024, stores=True).stored_last == 64


@pytest.mark.parametrize(
    ("op", "want"), [("add", 8), ("min", 3), ("max", 5), ("and", 1), ("or", 7), ("xor", 6), ("inc", 0), ("dec", 3)]
)
def test_integer_reductions(op: str, want: int) -> None:
    tensor = make("u32", (4, 1), (16,), (4, 1))
    target = np.full(4, 5, np.uint32).view(np.uint8)
    rows = np.full((1, 4), 3, np.uint32).view(np.uint8)
    tiled.reduce(tensor, tiled.box(tensor, (0, 0), 1024), rows, target, ADDRESS, op)
    assert target.view(np.uint32).tolist() == [want] * 4


def test_inc_and_dec_wrap_at_the_given_limit() -> None:
    tensor = make("u32", (4, 1), (16,), (4, 1))
    limits = np.array([[3, 3, 3, 0xFFFF_FFFF]], np.uint32).view(np.uint8)
    for op, want in (("inc", [1, 0, 0, 8]), ("dec", [3, 2, 3, 6])):
        target = np.array([0, 3, 4, 7], np.uint32).view(np.uint8)
        tiled.reduce(tensor, tiled.box(tensor, (0, 0), 1024), limits, target, ADDRESS, op)
        assert target.view(np.uint32).tolist() == want


@pytest.mark.parametrize(("tensor", "at"), CASES)
def test_encoding_has_128_bytes_and_comes_back_as_the_same_value(tensor: tiled.TiledMap, at: tuple[int, ...]) -> None:
    raw = tiled.encode(tensor)
    assert len(raw) == 128
    assert tiled.decode(raw) == tensor


def test_changed_or_foreign_bytes_are_not_a_map() -> None:
    raw = bytearray(tiled.encode(CASES[0][0]))
    raw[20] ^= 1
    for bytes_given in (bytes(raw), bytes(128), b"short"):
        with pytest.raises(LayoutError, match="tensor map"):
            tiled.decode(bytes_given)


GOOD = make("bf16", (72, 24), (160,), (64, 8), swizzle_bytes=128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"address": ADDRESS + 8}, "address 0x1008 is not a multiple of 16"),
        ({"pitches_bytes": (150,)}, "pitch of 150 bytes"),
        ({"pitches_bytes": (2**40,)}, "below 2\\^40"),
        ({"box": (257, 8), "swizzle_bytes": 0}, "box size 257"),
        ({"box": (4, 8)}, "inner box of 8 bytes is not a multiple of 16"),
        ({"box": (72, 8)}, "wider than its swizzle of 128"),
        ({"extents": (0, 24)}, "extent 0"),
        ({"extents": (2**32 + 1, 24)}, "outside 1 .. 2\\^32"),
        ({"swizzle_bytes": 96}, "swizzle of 96"),
        ({"element": "e4m3"}, "element type 'e4m3'"),
        ({"element": "u16", "fill_nan": True}, "NaN cannot fill"),
        ({"extents": (1,) * 6}, "rank 6"),
        ({"box": (64,)}, "2 extents need 2 box sizes"),
    ],
)
def test_maps_that_the_driver_would_refuse_are_refused_with_the_number(change: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        tiled.encode(dataclasses.replace(GOOD, **change))


def test_good_map_breaks_no_rule() -> None:
    assert GOOD.violations() == ()
