"""Register and shared-memory layouts against the ISA's own sentences, spelled out element by element."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.emulator import fragments, tiled


def rows_and_columns(where: fragments.Map) -> set[tuple[int, int]]:
    return set(zip(where[0].reshape(-1).tolist(), where[1].reshape(-1).tolist(), strict=True))


@pytest.mark.parametrize(
    ("where", "shape"),
    [
        (fragments.mma_a(16, 16, 16), (16, 16)),
        (fragments.mma_a(16, 8, 16), (16, 8)),
        (fragments.mma_a(16, 8, 32), (16, 8)),
        (fragments.mma_a(16, 4, 32), (16, 4)),
        (fragments.mma_a(16, 32, 8), (16, 32)),
        (fragments.mma_a(16, 16, 8), (16, 16)),
        (fragments.mma_a(8, 16, 8), (8, 16)),
        (fragments.mma_a(8, 4, 64), (8, 4)),
        (fragments.mma_a(16, 16, 64), (16, 16)),
        (fragments.mma_b(16, 8, 16), (16, 8)),
        (fragments.mma_b(32, 8, 8), (32, 8)),
        (fragments.mma_b(8, 8, 32), (8, 8)),
        (fragments.mma_b(4, 8, 64), (4, 8)),
        (fragments.mma_c(16, 8), (16, 8)),
        (fragments.mma_c(8, 8), (8, 8)),
        (fragments.wgmma_d(8), (64, 8)),
        (fragments.wgmma_d(256), (64, 256)),
        (fragments.wgmma_a(16), (64, 16)),
        (fragments.wgmma_a(32), (64, 8)),
        (fragments.wgmma_a(8), (64, 32)),
    ],
)
def test_every_element_of_a_matrix_is_held_exactly_once(where: fragments.Map, shape: tuple[int, int]) -> None:
    assert where[0].size == shape[0] * shape[1]
    assert rows_and_columns(where) == {(r, c) for r in range(shape[0]) for c in range(shape[1])}


def test_m16n8k16_fragments_follow_the_isa() -> None:
    a, b, c = fragments.mma_a(16, 16, 16), fragments.mma_b(16, 8, 16), fragments.mma_c(16, 8)
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range(8):
            row = group if i in (0, 1, 4, 5) else group + 8
            column = thread * 2 + (i & 1) + (0 if i < 4 else 8)
            assert (a[0][lane, i], a[1][lane, i]) == (row, column)
        for i in range(4):
            assert (b[0][lane, i], b[1][lane, i]) == (thread * 2 + (i & 1) + (0 if i < 2 else 8), group)
            assert (c[0][lane, i], c[1][lane, i]) == (group if i < 2 else group + 8, thread * 2 + (i & 1))


def test_m16n8k32_and_m16n8k8_tf32_fragments_follow_the_isa() -> None:
    a, b = fragments.mma_a(16, 32, 8), fragments.mma_b(32, 8, 8)
    ta, tb = fragments.mma_a(16, 8, 32), fragments.mma_b(8, 8, 32)
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range(16):
            row = group if i < 4 or 8 <= i < 12 else group + 8
            column = thread * 4 + (i & 3) + (0 if i < 8 else 16)
            assert (a[0][lane, i], a[1][lane, i]) == (row, column)
        for i in range(8):
            assert (b[0][lane, i], b[1][lane, i]) == (thread * 4 + (i & 3) + (0 if i < 4 else 16), group)
        for i in range(4):
            row, column = (group if i in (0, 2) else group + 8), (thread if i < 2 else thread + 4)
            assert (ta[0][lane, i], ta[1][lane, i]) == (row, column)
        for i in range(2):
            assert (tb[0][lane, i], tb[1][lane, i]) == (thread + 4 * i, group)


@pytest.mark.parametrize("n", [8, 24, 256])
def test_wgmma_accumulators_follow_the_isa(n: int) -> None:
    rows, columns = fragments.wgmma_d(n)
    for thread in (0, 1, 5, 31, 32, 70, 127):
        warp, lane = divmod(thread, 32)
        for i in range(n // 2):
            assert rows[thread, i] == 16 * warp + lane // 4 + 8 * (i % 4 >= 2)
            assert columns[thread, i] == 8 * (i // 4) + 2 * (lane % 4) + i % 2


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_gives_row_and_column_by_the_isa(num: int, trans: bool) -> None:
    lane, offset = fragments.ldmatrix_map(num, trans)
    for t in range(32):
        for j in range(num):
            for e in range(2):
                row, column = (2 * (t % 4) + e, t // 4) if trans else (t // 4, 2 * (t % 4) + e)
                assert (lane[t, j, e], offset[t, j, e]) == (8 * j + row, 2 * column)


def test_ldmatrix_of_a_row_major_tile_gives_the_operand_of_mma() -> None:
    tile = np.arange(256).reshape(16, 16)
    lane, offset = fragments.ldmatrix_map(4, False)
    starts = np.array([(r % 8 + 8 * (m % 2)) * 32 + 16 * (m // 2) for m in range(4) for r in range(8)])
    loaded = tile.reshape(-1)[(starts[lane] + offset) // 2].reshape(32, 8)
    assert (loaded == fragments.gather(fragments.mma_a(16, 16, 16), tile)).all()


def test_scatter_undoes_gather() -> None:
    matrix = np.arange(2 * 64 * 24).reshape(2, 64, 24)
    where = fragments.wgmma_d(24)
    assert (fragments.scatter(where, fragments.gather(where, matrix), (64, 24)) == matrix).all()


@pytest.mark.parametrize("shape", [(16, 16, 16), (32, 8, 16), (8, 32, 16)])
def test_wmma_fragments_hold_every_element(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for operand, (rows, columns), count in (("a", (m, k), 16), ("b", (k, n), 16), ("c", (m, n), 8)):
        where = fragments.wmma_map(operand, m, n, k, 16 if operand != "c" else 32)
        assert where[0].shape == (32, count)
        assert rows_and_columns(where) == {(r, c) for r in range(rows) for c in range(columns)}


def test_maps_are_shared_and_cannot_be_written() -> None:
    assert fragments.wgmma_d(64) is fragments.wgmma_d(64)
    with pytest.raises(ValueError, match="read-only"):
        fragments.wgmma_d(64)[0][0, 0] = 1


# -- wgmma operands ----------------------------------------------------------------------------------------------------


def test_descriptor_fields_are_where_the_isa_puts_them() -> None:
    bits = 0x123 | 0x45 << 16 | 0x67 << 32 | 5 << 49 | 2 << 62
    descriptor = fragments.decode_descriptor(bits)
    assert descriptor == fragments.Descriptor(0x1230, 0x450, 0x670, 5, 64)
    assert fragments.encode_descriptor(descriptor) == bits
    assert fragments.descriptor_violations(bits) == ()
    assert "no field" in fragments.descriptor_violations(bits | 1 << 14)[0]
    assert "needs a swizzle" in fragments.descriptor_violations(5 << 49)[0]


def canonical(width: int, size: int, k_major: bool, leading: int, stride: int, r: int, c: int) -> int:
    """The byte of element (r, c) by walking the canonical layout's modes, from the first to the last.

    Source: the table of canonical layouts, in units of 16 bytes: nested (shape):(stride) modes, first fastest.
    """
    chunk = 16 // size
    wide = max(width // 16, 1)
    if k_major:
        major, minor, unit = c, r, 16 * wide  # rows of `wide` chunks, 8 an atom, then the stride
        if width:
            return minor % 8 * unit + minor // 8 * stride + major * size
        return minor % 8 * 16 + minor // 8 * stride + major // chunk * leading + major % chunk * size
    place, line = r, c
    if width:
        inside, panel = place % (chunk * wide), place // (chunk * wide)
        return inside * size + panel * leading + line % 8 * 16 * wide + line // 8 * stride
    return place % chunk * size + place // chunk * stride + line % 8 * 16 + line // 8 * leading


def swizzle_by_table(address: int, width: int) -> int:
    """The chunk's place in its row of `width` bytes, XORed with the row's number within the pattern of 8 x 128 bytes:
    of 128 bytes a row is a line; of 64, two rows share one; of 32, four."""
    if not width:
        return address
    chunks = width // 16
    row, chunk, byte = address // width, address // 16 % chunks, address % 16
    line = row * width // 128
    return row * width + (chunk ^ (line % chunks)) * 16 + byte


@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize("start", [0, 1024, 1024 + 32, 5 * 1024])
def test_operand_addresses_follow_the_canonical_layout_and_the_swizzle_table(
    width: int, k_major: bool, start: int
) -> None:
    leading, stride = 2048, 1024 if width else 256
    bits = fragments.encode_descriptor(fragments.Descriptor(start, leading, stride, 0, width))
    base, offsets = fragments.wgmma_offsets(bits, 64, 16, 16, k_major)
    for r in (0, 1, 7, 8, 9, 31, 63):
        for c in range(16):
            linear = start + canonical(width, 2, k_major, leading, stride, r, c)
            assert base + offsets[r, c] == swizzle_by_table(linear, width), (r, c)


def write_by_tma(matrix: np.ndarray, width: int, target: int) -> np.ndarray:
    """Shared memory (16 KB) after TMA loaded the rows of a matrix, panel by panel of the swizzle's width."""
    size = matrix.itemsize
    inner = (width or 16) // size
    rows, columns = matrix.shape
    source = np.ascontiguousarray(matrix).view(np.uint8).reshape(-1)
    smem = np.full(16384, 0xFF, np.uint8)
    tensor = tiled.TiledMap(
        address=0,
        element={1: "u8", 2: "u16", 4: "u32"}[size],
        extents=(columns, rows),
        pitches_bytes=(columns * size,),
        box=(inner, rows),
        swizzle_bytes=width,
    )
    for panel in range(columns // inner):
        where = tiled.box(tensor, (panel * inner, 0), target + panel * rows * (width or 16))
        loaded = tiled.load(tensor, where, source, 0)
        smem[where.shared_bytes()] = loaded
    return smem


@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_wgmma_reads_k_major_what_tma_wrote(width: int, bits: int) -> None:
    k = fragments.wgmma_k(bits)
    columns = max((width or 32) * 8 // bits, k)
    matrix = np.random.default_rng(width + bits).integers(0, 2**bits - 1, (24, columns)).astype(f"u{bits // 8}")
    target = 2048
    smem = write_by_tma(matrix, width, target)
    for step in range(columns // k):
        start = target + 32 * step if width else target + 2 * step * 24 * 16
        # No swizzle: the core matrices of a panel lie 128 bytes apart, the next 16 bytes of k a panel further.
        leading, stride = (16, 8 * width) if width else (24 * 16, 128)
        descriptor = fragments.encode_descriptor(fragments.Descriptor(start, leading, stride, 0, width))
        got = fragments.wgmma_operand(smem, descriptor, 24, k, bits, True)
        assert (got == matrix[:, step * k : (step + 1) * k]).all()


@pytest.mark.parametrize("width", [0, 32, 64, 128])
def test_wgmma_reads_mn_major_what_tma_wrote(width: int) -> None:
    matrix = np.random.default_rng(width).integers(0, 2**16 - 1, (32, 128)).astype(np.uint16)  # (k, n)
    target = 1024
    smem = write_by_tma(matrix, width, target)
    panel = 32 * (width or 16)  # bytes of 32 rows of k
    for step in range(2):
        start = target + step * 16 * (width or 16)
        # Swizzled: leading is the next panel, stride the next 8 k. Not swizzled they change their roles.
        leading, stride = (panel, 8 * width) if width else (128, panel)
        descriptor = fragments.encode_descriptor(fragments.Descriptor(start, leading, stride, 0, width))
        got = fragments.wgmma_operand(smem, descriptor, 128, 16, 16, False)
        assert (got == matrix[16 * step : 16 * step + 16].T).all()


def test_base_offset_moves_the_pattern_with_a_start_off_its_period() -> None:
    aligned = fragments.encode_descriptor(fragments.Descriptor(1024, 16, 1024, 0, 128))
    moved = fragments.encode_descriptor(fragments.Descriptor(1024 + 3 * 128, 16, 1024, 3, 128))
    first, second = (fragments.wgmma_offsets(d, 64, 16, 16, True) for d in (aligned, moved))
    assert (second[0] + second[1] == first[0] + first[1] + 3 * 128).all()


def test_stages_of_a_ring_share_one_index_array() -> None:
    descriptors = [fragments.encode_descriptor(fragments.Descriptor(1024 * i, 16, 1024, 0, 128)) for i in (1, 9, 17)]
    arrays = [fragments.wgmma_offsets(d, 64, 16, 16, True)[1] for d in descriptors]
    assert arrays[0] is arrays[1] is arrays[2]


def test_operand_outside_shared_memory_is_refused_with_its_addresses() -> None:
    smem = np.zeros(8192, np.uint8)
    descriptor = fragments.encode_descriptor(fragments.Descriptor(1024, 16, 1024, 0, 128))
    with pytest.raises(fragments.OperandRangeError, match=r"0x400 \.\. 0x23ff"):
        fragments.wgmma_operand(smem, descriptor, 64, 16, 16, True)
    with pytest.raises(fragments.OperandRangeError):
        fragments.wgmma_operand(smem, descriptor, 8, 16, 16, True, window_start=2048)


# -- sparsity ----------------------------------------------------------------------------------------------------------


def test_sparse_metadata_names_two_of_four_columns() -> None:
    """m16n8k32 of 16 bits: lane pair by selector, first lane K 0-15; low half row g, high half row g + 8."""
    generator = np.random.default_rng(5)
    valid = np.array([0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110], np.uint32)
    nibbles = generator.choice(valid, (32, 8))
    metadata = (nibbles << (4 * np.arange(8, dtype=np.uint32))).sum(axis=1).astype(np.uint32)
    for selector in (0, 1):
        columns = fragments.sparse_columns(metadata, selector, 32, 16)
        for row in range(16):
            for chunk in range(8):
                lane = row % 8 * 4 + 2 * selector + chunk // 4
                nibble = int(nibbles[lane, chunk % 4 + 4 * (row // 8)])
                assert columns[row, 2 * chunk] == 4 * chunk + nibble % 4
                assert columns[row, 2 * chunk + 1] == 4 * chunk + nibble // 4


def test_sparse_metadata_of_8_bits_is_a_word_a_row() -> None:
    """Of each pair of lanes the first has row g and the second row g + 8, 32 columns a word (recorded on the H200)."""
    generator = np.random.default_rng(7)
    valid = np.array([0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110], np.uint32)
    nibbles = generator.choice(valid, (32, 8))
    metadata = (nibbles << (4 * np.arange(8, dtype=np.uint32))).sum(axis=1).astype(np.uint32)
    whole = fragments.sparse_columns(metadata, 0, 64, 8)
    halves = [fragments.sparse_columns(metadata, selector, 32, 8) for selector in (0, 1)]
    for row in range(16):
        for chunk in range(16):
            lane = row % 8 * 4 + 2 * (chunk // 8) + row // 8
            nibble = int(nibbles[lane, chunk % 8])
            want = [4 * chunk + nibble % 4, 4 * chunk + nibble // 4]
            assert whole[row, 2 * chunk : 2 * chunk + 2].tolist() == want
            half = halves[chunk // 8][row, 2 * (chunk % 8) : 2 * (chunk % 8) + 2]
            assert (half + 32 * (chunk // 8)).tolist() == want


@pytest.mark.parametrize(("k", "bits", "selectors"), [(16, 16, 4), (32, 16, 2), (8, 32, 4), (16, 32, 2), (64, 8, 1)])
def test_sparse_columns_rise_within_their_chunks(k: int, bits: int, selectors: int) -> None:
    metadata = np.full(32, 0x4E4E_4E4E if bits == 32 else 0xE9C8_4D4E, np.uint32)
    chunk = 2 if bits == 32 else 4
    each = chunk // 2
    for selector in range(selectors):
        columns = fragments.sparse_columns(metadata, selector, k, bits).reshape(16, k // chunk, each)
        assert (columns // chunk == np.arange(k // chunk)[:, None]).all()
        assert (np.diff(columns, axis=2) > 0).all()


def test_sparse_expansion_keeps_the_sum_over_k() -> None:
    generator = np.random.default_rng(6)
    metadata = np.full(128, 0xE9C8_4D4E, np.uint32)
    packed = generator.integers(-4, 5, (64, 16))
    columns = fragments.wgmma_sparse_columns(metadata, 0, 32, 16)
    dense = fragments.sparse_expand(packed, columns, 32)
    assert (dense.reshape(64, 8, 4) != 0).sum(axis=2).max() <= 2
    assert (dense.sum(axis=1) == packed.sum(axis=1)).all()
