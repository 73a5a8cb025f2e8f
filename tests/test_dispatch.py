"""matmul and plan on a pretended GPU: right numbers for any served layout, typed refusals for all others."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tilewright
from fakes import FakeCompiler, GpuArray, HostBackend, equals, gpu, product
from tilewright import calls, device, errors
from tilewright.config import Config
from tilewright.dispatch import Dispatcher
from tilewright.errors import ConfigError, DTypeError, LayoutError, RefusalError, ShapeError, UnsupportedError
from tilewright.packing import packed

# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("out_dtype", ["same", "other", "fp32"])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (1, 8, 8), (129, 264, 72), (3, 8, 200), (200, 16, 8)])
def test_the_product_is_exact(dispatcher: Dispatcher, m, n, k, dtype, out_dtype, transposed):
    a = gpu((m, k), dtype, seed=1)
    b = gpu((n, k), dtype, seed=2).t() if transposed else gpu((k, n), dtype, seed=2)
    kind = {"same": dtype, "other": {"bf16": "fp16", "fp16": "bf16"}[dtype]}.get(out_dtype, out_dtype)
    out = gpu((m, n), kind, fill=float("nan"))
    assert dispatcher.matmul(a, b, out) is out
    assert equals(out, a, b)


def test_a_given_out_has_the_type_that_is_asked_for_or_the_call_is_refused(dispatcher: Dispatcher):
    a, b = gpu((16, 64), seed=1), gpu((64, 24), seed=2)
    for out_dtype, kind in ((None, "bf16"), ("fp16", "fp16"), (np.float32, "fp32"), ("bf16", "bf16")):
        out = gpu((16, 24), kind, fill=float("nan"))
        assert dispatcher.matmul(a, b, out, out_dtype=out_dtype) is out
        assert equals(out, a, b)
    with pytest.raises(DTypeError, match=r"out of bf16 with out_dtype fp16: .*; leave out_dtype out when out is given"):
        dispatcher.matmul(a, b, gpu((16, 24)), out_dtype="fp16")
    with pytest.raises(DTypeError, match="bf16 inputs with out in int32"):
        dispatcher.matmul(a, b, out_dtype="int32")
    with pytest.raises(DTypeError, match="fp64"):
        dispatcher.matmul(a, b, out_dtype="fp64")


def test_sliced_operands_keep_their_pitches_and_the_rest_of_outs_base_is_untouched(dispatcher: Dispatcher):
    # vllm#55534: packed strides were rebuilt from shapes; each operand alone and all together
    for sliced in ("a", "b", "out", "all"):
        bases = {name: gpu((128, 256), seed=seed) for seed, name in enumerate(("a", "b", "out"))}
        part = {
            name: base[:64, :64] if sliced in (name, "all") else base[:64, :64].contiguous()
            for name, base in bases.items()
        }
        before = bases["out"].host.copy()
        dispatcher.matmul(part["a"], part["b"].t(), part["out"])
        assert equals(part["out"], part["a"], part["b"].t())
        bases["out"].host[:64, :64] = before[:64, :64]
        assert np.array_equal(bases["out"].host, before)


def test_a_weight_narrowed_from_padded_rows_is_read_with_its_pitch(dispatcher: Dispatcher):
    # ROCm aiter#2466, in the types that are here: a wrapper passed K for the pitch
    a, w, out = gpu((16, 64), seed=1), gpu((64, 80), seed=2)[:, :64], gpu((16, 64))
    dispatcher.matmul(a, w.t(), out)
    assert equals(out, a, w.t())


def test_an_address_is_looked_at_again_on_a_layout_that_was_served_before(dispatcher: Dispatcher, backend):
    # FlagGems#4471: strides were fine and the address was not looked at
    flat, w, out = gpu((64 * 64 + 8,), seed=1), gpu((64, 64), seed=2).t(), gpu((64, 64))
    aligned, odd = flat[:4096].reshape(64, 64), flat[1:4097].reshape(64, 64)
    for a, b, launches in ((aligned, w, 1), (odd, w, 2), (aligned, odd.t(), 2), (odd, odd.t(), 2), (aligned, w, 1)):
        backend.counts.clear()
        dispatcher.matmul(a, b, out)
        assert equals(out, a, b)
        assert backend.counts["launch"] == launches


def test_only_the_operand_that_tma_cannot_read_is_copied(dispatcher: Dispatcher):
    def copied(a, b):
        return dispatcher.plan(a, b, gpu((a.host.shape[0], b.host.shape[1]))).work.scratch

    a, b = gpu((15, 20), seed=1), gpu((20, 24), seed=2)
    assert [(piece.name, piece.num_bytes) for piece in copied(a, b)] == [("scratch_a", 15 * 128)]
    assert copied(_padded(a, 24), b) == ()
    assert [piece.name for piece in copied(_padded(a, 24), gpu((20, 10)))] == ["scratch_b"]
    assert [piece.name for piece in copied(a, gpu((10, 20)).t())] == ["scratch_a", "scratch_b"]


def test_a_second_call_at_the_same_addresses_packs_nothing(dispatcher: Dispatcher, backend):
    """The pool gives the same scratch again, as stream-ordered pools do."""
    a, b, out = gpu((15, 21), seed=1), gpu((21, 24), seed=2), gpu((15, 24))
    backend.reuses = True
    for _ in range(3):
        dispatcher.matmul(a, b, out)
        assert equals(out, a, b)
    assert (backend.counts["pack"], backend.counts["load"], backend.counts["launch"]) == (2, 2, 6)
    assert (backend.counts["allocate"], backend.counts["free"]) == (3, 3)


def test_scratch_is_given_back_when_a_launch_fails(dispatcher: Dispatcher, backend, monkeypatch):
    monkeypatch.setattr(backend, "launch", lambda call, stream: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        dispatcher.matmul(gpu((15, 21), seed=1), gpu((21, 24), seed=2), gpu((15, 24)))
    assert not backend.scratch


def test_both_steps_and_the_scratch_are_on_the_stream_of_the_arrays(dispatcher: Dispatcher, backend):
    """B119, B121."""
    seen = []
    allocate, free = backend.allocate, backend.free
    backend.allocate = lambda size, ordinal, stream: seen.append(stream) or allocate(size, ordinal, stream)
    backend.free = lambda address, ordinal, stream: seen.append(stream) or free(address, ordinal, stream)
    a, b, out = (GpuArray(x.host, stream=77) for x in (gpu((15, 21)), gpu((21, 24)), gpu((15, 24))))
    dispatcher.matmul(a, b, out)
    assert seen == [77, 77]
    assert [stream for _, stream in backend.launched] == [77, 77]


# -- slices ------------------------------------------------------------------------------------------------------------

SLICES = {"tile_m": 64, "tile_n": 64, "consumers": 1, "stages": 4, "store_slots": 1, "split_k": 1, "slices": 4}


@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.parametrize(("a_t", "b_t", "out_t"), itertools.product([True, False], repeat=3))
def test_a_product_in_slices_is_exact_in_every_layout(dispatcher: Dispatcher, backend, a_t, b_t, out_t, swap):
    a = gpu((256, 24), seed=1).t() if a_t else gpu((24, 256), seed=1)
    b = gpu((40, 256), seed=2).t() if b_t else gpu((256, 40), seed=2)
    out = gpu((40, 25), fill=float("nan"))[:, :24].t() if out_t else gpu((24, 41), fill=float("nan"))[:, :40]
    dispatcher.matmul(a, b, out, config=SLICES | {"swap": swap})
    assert equals(out, a, b)
    assert np.isnan((out.host.base if out.host.base is not None else out.host).astype(float)).sum() in (40, 24)
    assert (backend.counts["launch"], backend.counts["load"]) == (2, 2)


def test_copies_slices_and_sums_are_one_piece_of_scratch_and_three_launches_on_one_stream(dispatcher, backend):
    """B119, B121."""
    seen = []
    allocate, free = backend.allocate, backend.free
    backend.allocate = lambda size, ordinal, stream: seen.append((size, stream)) or allocate(size, ordinal, stream)
    backend.free = lambda address, ordinal, stream: seen.append(stream) or free(address, ordinal, stream)
    a, b, out = (
        GpuArray(x.host, stream=77) for x in (gpu((15, 257), seed=1)[:, :256], gpu((256, 24), seed=2), gpu((15, 24)))
    )
    dispatcher.matmul(a, b, out, config=SLICES)
    assert equals(out, a, b)
    copies, slices = 15 * 512, 4 * 15 * 24 * 4
    assert seen == [(-(-copies // 256) * 256 + -(-slices // 256) * 256, 77), 77]
    assert [stream for _, stream in backend.launched] == [77] * 3


def test_a_second_call_in_slices_packs_nothing_and_other_addresses_share_the_kernels(dispatcher: Dispatcher, backend):
    a, b, out = gpu((16, 256), seed=1), gpu((256, 24), seed=2), gpu((16, 24))
    backend.reuses = True
    for _ in range(3):
        dispatcher.matmul(a, b, out, config=SLICES)
        assert equals(out, a, b)
    assert (backend.counts["pack"], backend.counts["load"], backend.counts["launch"]) == (2, 2, 6)
    other = gpu((16, 256), seed=3)
    dispatcher.matmul(other, b, out, config=SLICES)
    assert equals(out, other, b)
    assert (backend.counts["pack"], backend.counts["load"], backend.counts["launch"]) == (4, 2, 8)
    assert not backend.scratch


def test_an_empty_product_with_a_config_of_slices_launches_nothing(dispatcher: Dispatcher, backend):
    dispatcher.matmul(gpu((0, 256)), gpu((256, 24)), gpu((0, 24)), config=SLICES)
    assert backend.counts["launch"] == backend.counts["allocate"] == 0


def test_broadcast_operands_are_served_and_a_broadcast_out_is_refused(dispatcher: Dispatcher):
    row, full = gpu((1, 64), seed=1), gpu((64, 64), seed=2)
    column = gpu((64, 1), seed=3)
    for wide in (GpuArray(np.broadcast_to(row.host, (64, 64))), GpuArray(np.broadcast_to(column.host, (64, 64)))):
        for a, b in ((wide, full), (full, wide), (full, wide.t()), (wide, wide)):
            out = gpu((64, 64))
            dispatcher.matmul(a, b, out)
            assert equals(out, a, b)
    with pytest.raises(LayoutError, match="place of its own"):
        dispatcher.matmul(full, full, GpuArray(np.broadcast_to(gpu((1, 64)).host, (64, 64))))


@pytest.mark.parametrize("shift", range(16))
def test_out_may_start_at_any_element_and_have_any_pitch(dispatcher: Dispatcher, shift: int):
    a, b = gpu((5, 16), seed=1), gpu((16, 8), seed=2)
    base = gpu((6, 8 + 16 + 1), fill=-7.0)
    out = base[:5, shift : shift + 8]
    dispatcher.matmul(a, b, out)
    assert equals(out, a, b)
    out.host[...] = -7.0
    assert np.all(base.host == -7.0)


# -- overlap -----------------------------------------------------------------------------------------------------------


def test_out_may_be_other_columns_of_the_matrix_that_a_is_part_of(dispatcher: Dispatcher):
    base, b = gpu((64, 128), seed=1), gpu((64, 64), seed=2)
    a, out = base[:, :64], base[:, 64:128]
    before = a.host.copy()
    dispatcher.matmul(a, b, out)
    assert np.array_equal(a.host, before)
    assert equals(out, a, b)


@pytest.mark.parametrize("columns", [slice(0, 64), slice(32, 96), slice(63, 127)])
def test_out_that_shares_memory_with_a_is_refused(dispatcher: Dispatcher, columns: slice):
    base, b = gpu((64, 128), seed=1), gpu((64, 64), seed=2)
    before = base.host.copy()
    with pytest.raises(LayoutError, match=r"shares memory with a.*a\.clone\(\)"):
        dispatcher.matmul(base[:, :64], b, base[:, columns])
    assert np.array_equal(base.host, before)


def test_out_that_shares_memory_with_b_is_refused_after_the_same_layout_was_served(dispatcher: Dispatcher):
    a, b, out = gpu((64, 64), seed=1), gpu((64, 64), seed=2), gpu((64, 64))
    dispatcher.matmul(a, b, out)
    with pytest.raises(LayoutError, match="shares memory with b"):
        dispatcher.matmul(a, b, b)


# -- nothing to compute ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(0, 8), (8, 0), (0, 0)])
@pytest.mark.parametrize("k", [0, 8])
def test_no_rows_or_no_columns_return_the_empty_out_without_a_launch(
    dispatcher: Dispatcher, backend: HostBackend, compiler: FakeCompiler, m, n, k
):
    out = gpu((m, n))
    assert dispatcher.matmul(gpu((m, k)), gpu((k, n)), out) is out
    assert not backend.counts.keys() & {"load", "launch", "zero"}
    assert compiler.built == []


def test_a_k_of_zero_writes_zeros_between_the_padding_and_launches_nothing(
    dispatcher: Dispatcher, backend: HostBackend
):
    base = gpu((4, 12), fill=7.0)
    for _ in range(2):
        base.host[...] = 7.0
        dispatcher.matmul(gpu((4, 0)), gpu((0, 8)), base[:, :8])
        assert np.all(base.host[:, :8] == 0)
        assert np.all(base.host[:, 8:] == 7.0)
    assert backend.counts["zero"] == 2
    assert not backend.counts.keys() & {"load", "launch"}


def test_a_product_after_an_empty_one_is_right(dispatcher: Dispatcher):
    # sglang#23609: a launch of 0 blocks left an error behind that surfaced in the next call
    dispatcher.matmul(gpu((0, 8)), gpu((8, 8)), gpu((0, 8)))
    a, b, out = gpu((8, 8), seed=1), gpu((8, 8), seed=2), gpu((8, 8))
    dispatcher.matmul(a, b, out)
    assert equals(out, a, b)


def test_empty_operands_of_shapes_that_do_not_fit_are_refused(dispatcher: Dispatcher):
    with pytest.raises(ShapeError):
        dispatcher.matmul(gpu((0, 8)), gpu((0, 8)), gpu((0, 8)))
    with pytest.raises(ShapeError):
        dispatcher.matmul(gpu((4, 0)), gpu((0, 8)), gpu((4, 9)))


# -- refusals, and what they advise ------------------------------------------------------------------------------------


def _padded(x: GpuArray, extent: int) -> GpuArray:
    """`x` in rows padded to `extent` elements, as the refusals advise."""
    rows = gpu((x.host.shape[0], extent), "bf16")
    view = rows[:, : x.host.shape[1]]
    view.host[...] = x.host
    return view


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("m", "n", "k"), [(15, 24, 20), (16, 10, 20), (12, 8, 20), (1, 1, 1), (5, 7, 1), (1, 9, 511)])
def test_rows_of_any_length_are_served_in_all_layouts(dispatcher: Dispatcher, batch, m: int, n: int, k: int):
    """B005, B007, B022: K = 20, and M or N of no multiple of 8 where it is contiguous."""
    for a_is_transposed, b_is_transposed, out_is_transposed in itertools.product((False, True), repeat=3):
        a = gpu((*batch, k, m), seed=1).mT if a_is_transposed else gpu((*batch, m, k), seed=1)
        b = gpu((*batch, n, k), seed=2).mT if b_is_transposed else gpu((*batch, k, n), seed=2)
        out = gpu((*batch, n, m)).mT if out_is_transposed else gpu((*batch, m, n))
        dispatcher.matmul(a, b, out)
        assert equals(out, a, b)


def test_overlapping_rows_are_served(dispatcher: Dispatcher):
    """Sliding windows: torch's unfold, NumPy's sliding_window_view."""
    windows = GpuArray(np.lib.stride_tricks.sliding_window_view(gpu((80,), seed=1).host, 64))
    b, out = gpu((64, 8), seed=2), gpu((17, 8))
    dispatcher.matmul(windows, b, out)
    assert equals(out, windows, b)


def test_an_out_inside_of_a_works_with_the_advised_clone(dispatcher: Dispatcher):
    a, b = gpu((64, 64), seed=1), gpu((64, 64), seed=2)
    copy = a.clone()
    dispatcher.matmul(copy, b, a)
    assert equals(a, copy, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((64,), (64, 8)),
        ((8, 64), (64,)),
        ((64,), (64,)),
        ((3, 8, 64), (64,)),
        ((64,), (3, 64, 8)),
        ((4, 8, 64), (64, 8)),
        ((4, 8, 64), (4, 64, 8)),
        ((4, 1, 64), (4, 64, 8)),
        ((2, 1, 8, 64), (3, 64, 8)),
        ((5, 1, 2, 8, 64), (3, 1, 64, 8)),
    ],
)
def test_shapes_mean_what_they_mean_to_matmul(dispatcher: Dispatcher, backend: HostBackend, a, b):
    x, y = gpu(a, seed=1), gpu(b, seed=2)
    out = gpu(product(x, y).shape)
    dispatcher.matmul(x, y, out)
    assert equals(out, x, y)
    assert backend.counts["launch"] == 1, "one launch for all batches"


def test_an_out_of_another_shape_is_refused_with_the_right_one(dispatcher: Dispatcher):
    with pytest.raises(ShapeError, match=r"pass out with shape \(4, 8, 8\)"):
        dispatcher.matmul(gpu((4, 8, 64)), gpu((64, 8)), gpu((32, 8)))


def test_a_weight_passed_without_its_transpose_is_refused_with_the_advice_that_works(dispatcher: Dispatcher):
    a, w, out = gpu((8, 64), seed=1), gpu((16, 64), seed=2), gpu((8, 16))
    with pytest.raises(ShapeError, match=r"w\.t\(\)"):
        dispatcher.matmul(a, w, out)
    dispatcher.matmul(a, w.t(), out)
    assert equals(out, a, w.t())


@pytest.mark.parametrize("name", ["float64", "uint8", "complex64", "int64"])
def test_other_dtypes_are_refused_by_name(dispatcher: Dispatcher, name: str):
    other = GpuArray(np.zeros((64, 64), name))
    with pytest.raises(DTypeError, match="a of dtype"):
        dispatcher.matmul(other, gpu((64, 64)), gpu((64, 64)))
    with pytest.raises(DTypeError, match="out of dtype"):
        dispatcher.matmul(gpu((64, 64)), gpu((64, 64)), other)


def test_arrays_of_two_libraries_and_strangers_are_refused(dispatcher: Dispatcher, backend: HostBackend):
    host = np.zeros((64, 64), np.float16)
    with pytest.raises(UnsupportedError, match=r"b, a builtins\.list"):
        dispatcher.matmul(gpu((64, 64)), [[1.0]])
    with pytest.raises(UnsupportedError, match="a of numpy and b of the CUDA array interface"):
        dispatcher.matmul(host, gpu((64, 64)))
    with pytest.raises(UnsupportedError, match="without out"):
        dispatcher.matmul(gpu((64, 64)), gpu((64, 64)))
    assert not backend.counts.keys() & {"load", "launch"}


def test_a_refused_call_reaches_neither_compiler_nor_device(
    dispatcher: Dispatcher, backend: HostBackend, compiler: FakeCompiler
):
    good, out = gpu((64, 64)), gpu((64, 64))
    bad = [
        (GpuArray(gpu((64, 128)).host[:, ::2]), good, out),
        (good, gpu((32, 64)), out),
        (good, good, good),
        (good, good, gpu((64, 64), "int32")),
        (good[:, 1:33], good, out),
    ]
    for arrays in bad:
        with pytest.raises(RefusalError):
            dispatcher.matmul(*arrays)
    assert compiler.built == []
    assert not backend.counts.keys() & {"load", "pack", "launch", "zero"}


# -- devices -----------------------------------------------------------------------------------------------------------


def _on(backend: HostBackend, ordinal: int, *arrays: GpuArray) -> tuple[GpuArray, ...]:
    backend.homes.update({array.address: ordinal for array in arrays})
    return arrays


def test_each_device_gets_its_own_kernel_and_grid_and_going_back_works(compiler: FakeCompiler):
    backend = HostBackend(devices=(device.preset("h200"), device.preset("h20")))
    dispatcher = Dispatcher(lambda: backend)
    shape = (2048, 2048)
    first = _on(backend, 0, gpu(shape, seed=1), gpu(shape, seed=2), gpu(shape))
    second = _on(backend, 1, gpu(shape, seed=1), gpu(shape, seed=2), gpu(shape))
    backend.computes = False
    for arrays in (first, second, first):
        dispatcher.matmul(*arrays)
    assert [ordinal for ordinal, _ in backend.launched] == [0, 1, 0]
    assert [kernel.ordinal for kernel in backend.kernels] == [0, 1]
    grids = [dispatcher.plan(*arrays).launch.grid for arrays in (first, second)]
    assert grids[0] > 78 >= grids[1]


def test_arrays_that_do_not_name_their_device_are_asked_after_at_each_call(compiler: FakeCompiler):
    # the interface holds an address alone, and the same layout may lie on another device the next time
    backend = HostBackend(devices=(device.preset("h200"), device.preset("h200")))
    dispatcher = Dispatcher(lambda: backend)
    operands = [gpu((64, 64), seed=1), gpu((64, 64), seed=2), gpu((64, 64))]
    for expected in (0, 1, 1):
        backend.homes = {array.address: expected for array in operands}
        asked = backend.counts["ordinal_of"]
        dispatcher.matmul(*operands)
        assert backend.counts["ordinal_of"] - asked >= len(operands)
        assert backend.launched[-1][0] == expected
    assert backend.counts["load"] == 2


def test_operands_on_two_devices_are_refused(compiler: FakeCompiler):
    backend = HostBackend(devices=(device.preset("h200"),) * 2)
    dispatcher = Dispatcher(lambda: backend)
    a, b, out = gpu((64, 64)), gpu((64, 64)), gpu((64, 64))
    dispatcher.matmul(a, b, out)
    for moved in (b, out):
        backend.homes = {moved.address: 1}
        with pytest.raises(UnsupportedError, match="one device"):
            dispatcher.matmul(a, b, out)


@pytest.mark.parametrize("sm", [(7, 0), (7, 5), (8, 7), (9, 1), (10, 0), (12, 0), (12, 1), (13, 7)])
def test_a_gpu_without_kernels_is_refused_by_name_and_capability_before_any_compile(compiler: FakeCompiler, sm):
    other = device.from_attributes(
        name="Other GPU",
        sm=sm,
        num_sms=100,
        smem_per_cta_bytes=227 << 10,
        smem_per_sm_bytes=228 << 10,
        registers_per_sm=65536,
        l2_bytes=1 << 26,
    )
    dispatcher = Dispatcher(lambda: HostBackend(devices=(other,)))
    for call in (dispatcher.matmul, dispatcher.plan):
        with pytest.raises(UnsupportedError, match=rf"Other GPU with compute capability {sm[0]}\.{sm[1]}"):
            call(gpu((64, 64)), gpu((64, 64)), gpu((64, 64)))
    assert compiler.built == []


# -- streams -----------------------------------------------------------------------------------------------------------


def test_the_stream_that_the_arrays_name_is_launched_on(dispatcher: Dispatcher, backend: HostBackend):
    a, b, out = gpu((8, 8)), gpu((8, 8)), gpu((8, 8))
    dispatcher.matmul(a, b, out)
    out.stream = 0xABC0
    dispatcher.matmul(a, b, out)
    a.stream = 0xABC0
    dispatcher.matmul(a, b, out)
    assert [stream for _, stream in backend.launched] == [1, 0xABC0, 0xABC0]
    b.stream = 2
    with pytest.raises(UnsupportedError, match="streams"):
        dispatcher.matmul(a, b, out)


# -- configs -----------------------------------------------------------------------------------------------------------


def test_a_config_given_as_changes_or_whole_is_the_one_that_runs(dispatcher: Dispatcher, compiler: FakeCompiler):
    a, b, out = gpu((256, 64), seed=1), gpu((64, 256), seed=2), gpu((256, 256))
    whole = Config(tile_m=128, tile_n=128, stages=3)
    dispatcher.matmul(a, b, out, config=whole)
    assert equals(out, a, b)
    dispatcher.matmul(a, b, out, config={"tile_m": 64, "consumers": 1, "tile_n": 64, "stages": 2, "cluster_m": 1})
    assert "128x128x64_s3" in compiler.built[0].name
    assert "64x64x64_s2" in compiler.built[1].name
    assert dispatcher.plan(a, b, out, config=whole).config == whole


def test_an_illegal_config_is_refused_with_every_reason(dispatcher: Dispatcher):
    with pytest.raises(ConfigError) as refusal:
        dispatcher.matmul(gpu((64, 64)), gpu((64, 64)).t(), gpu((64, 64)), config={"tile_n": 100, "stages": 99})
    assert len(refusal.value.violations) == 2


@pytest.mark.parametrize(
    "config",
    [
        {"no_such_field": 1},
        {"stages": True},
        {"stages": 3.0},
        {"stages": float("nan")},
        {"stages": [3]},
        {"stages": -1},
        {"stages": 10**30},
        {"schedule": 3},
        Config(stages=[3]),  # type: ignore[arg-type]
    ],
)
def test_absurd_config_values_are_refused_also_after_a_legal_config_ran(dispatcher: Dispatcher, config):
    arrays = gpu((64, 64)), gpu((64, 64)), gpu((64, 64))
    dispatcher.matmul(*arrays, config={"stages": 3})
    for _ in range(2):
        with pytest.raises(ConfigError):
            dispatcher.matmul(*arrays, config=config)


@pytest.mark.parametrize("num_sms", [0, -1, 133, 1.0, True, "8", float("inf")])
def test_an_impossible_number_of_sms_is_refused(dispatcher: Dispatcher, num_sms):
    arrays = gpu((64, 64)), gpu((64, 64)), gpu((64, 64))
    dispatcher.matmul(*arrays, num_sms=1)
    with pytest.raises(ConfigError, match="num_sms"):
        dispatcher.matmul(*arrays, num_sms=num_sms)


def test_num_sms_bounds_the_grid(dispatcher: Dispatcher):
    big = gpu((4096, 64)), gpu((64, 4096)), gpu((4096, 4096))
    assert dispatcher.plan(*big, num_sms=10).launch.grid <= 10
    assert dispatcher.plan(*big).launch.grid > 100


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_second_call_plans_loads_and_packs_nothing(dispatcher: Dispatcher, backend: HostBackend):
    arrays = gpu((64, 64), seed=1), gpu((64, 64), seed=2), gpu((64, 64))
    dispatcher.matmul(*arrays)
    before = dict(backend.counts)
    dispatcher.matmul(*arrays)
    # arrays that do not name their device: the driver is asked about each
    assert backend.counts - type(backend.counts)(before) == {"launch": 1, "ordinal_of": 3}


def test_new_addresses_of_a_known_layout_are_packed_and_nothing_is_compiled(
    dispatcher: Dispatcher, backend: HostBackend, compiler: FakeCompiler
):
    operands = [(gpu((64, 64), seed=seed), gpu((64, 64), seed=9), gpu((64, 64))) for seed in range(5)]
    for a, b, out in operands:
        dispatcher.matmul(a, b, out)
        assert equals(out, a, b)
    assert (backend.counts["load"], backend.counts["pack"], len(compiler.built)) == (1, 5, 1)


def test_eight_threads_with_four_equal_and_four_other_layouts_compile_each_once_and_side_by_side(monkeypatch):
    together = threading.Barrier(5, timeout=20)  # passed only when five compiles are under way at once

    class SlowCompiler(FakeCompiler):
        def __call__(self, source, *, refuse=False):
            together.wait()
            return super().__call__(source, refuse=refuse)

    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", compiler := SlowCompiler())
    backend = HostBackend()
    dispatcher = Dispatcher(lambda: backend)
    sizes = [64, 64, 64, 64, 72, 80, 88, 96]
    start = threading.Barrier(8)

    def call(size: int) -> bool:
        a, b, out = gpu((size, size), seed=1), gpu((size, size), seed=2), gpu((size, size))
        start.wait()
        for _ in range(20):
            dispatcher.matmul(a, b, out)
        return equals(out, a, b)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, sizes))
    assert backend.counts["load"] == len(compiler.built) == 5
    assert backend.counts["launch"] == 160


def test_a_failed_first_call_does_not_spoil_the_next(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch):
    a, b, out = gpu((64, 64), seed=1), gpu((64, 64), seed=2), gpu((64, 64))
    plan_module = sys.modules["tilewright.plan"]
    good = plan_module.build

    def broken(source, *, refuse):
        raise errors.CompileError(source.name, "no", "log", "nvrtc")

    monkeypatch.setattr(plan_module, "build", broken)
    with pytest.raises(errors.CompileError):
        dispatcher.matmul(a, b, out)
    monkeypatch.setattr(plan_module, "build", good)
    dispatcher.matmul(a, b, out)
    assert equals(out, a, b)


def test_packed_calls_are_bounded_over_all_plans(dispatcher: Dispatcher, backend: HostBackend, monkeypatch):
    monkeypatch.setattr(calls, "MAX_CALLS", 10)
    a, b = gpu((8, 8), seed=1), gpu((8, 8), seed=2)
    outs = [gpu((8, 8)) for _ in range(30)]
    wide = [gpu((8, 8), "fp32") for _ in range(30)]
    for out in (*outs, *wide):
        dispatcher.matmul(a, b, out)
    kept = sum(len(bound.calls) for bound in dispatcher._ledger._bound)
    assert kept <= 10
    assert equals(outs[-1], a, b)


def test_layouts_are_bounded(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calls, "MAX_BOUND", 4)
    for m in range(1, 12):
        dispatcher.matmul(gpu((m, 8)), gpu((8, 8)), gpu((m, 8)))
    assert len(dispatcher._products._bound) == 4


def test_clear_drops_plans_and_handles_and_everything_is_made_anew(dispatcher: Dispatcher, backend: HostBackend):
    a, b, out = gpu((64, 64), seed=1), gpu((64, 64), seed=2), gpu((64, 64))
    plan = dispatcher.plan(a, b, out)
    plan.run(a, b, out)
    dispatcher.matmul(a, b, out)
    dispatcher.clear()
    assert backend.counts["clear"] == 1
    out.host[...] = 0
    dispatcher.matmul(a, b, out)
    assert equals(out, a, b)
    out.host[...] = 0
    plan.run(a, b, out)  # a plan that the caller kept loads its kernel again
    assert equals(out, a, b)


def test_clear_before_any_call_makes_no_backend():
    def never() -> HostBackend:
        raise AssertionError("the backend was made")

    Dispatcher(never).clear()


def test_the_backend_is_made_at_the_first_product_and_not_by_planning_a_problem(compiler: FakeCompiler):
    made: list[HostBackend] = []

    def make() -> HostBackend:
        made.append(HostBackend())
        return made[-1]

    dispatcher = Dispatcher(make)
    dispatcher.plan(packed(64, 64, 64)).explain()
    with pytest.raises(UnsupportedError):
        dispatcher.matmul([[1.0]], [[1.0]])
    assert made == []
    dispatcher.matmul(gpu((8, 8)), gpu((8, 8)), gpu((8, 8)))
    assert len(made) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_starts_anew_even_when_a_lock_was_held(dispatcher: Dispatcher, backend: HostBackend):
    a, b, out = gpu((64, 64), seed=1), gpu((64, 64), seed=2), gpu((64, 64))
    plan = dispatcher.plan(a, b, out)
    dispatcher.matmul(a, b, out)
    locks = [dispatcher._lock, dispatcher._products._lock, dispatcher._ledger._lock, plan._lock]
    locks += [bound.lock for bound in dispatcher._ledger._bound]
    for lock in locks:  # as other threads of the parent may at the moment of the fork
        lock.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends the child if it waits for a lock that nobody holds
        status = 1
        try:
            out.host[...] = 0
            loads = backend.counts["load"]
            dispatcher.matmul(a, b, out)
            plan.run(a, b, out)
            status = 0 if equals(out, a, b) and backend.counts["load"] == loads + 2 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- the doors ---------------------------------------------------------------------------------------------------------


def test_plan_takes_arrays_or_a_problem_and_refuses_a_mixture(dispatcher: Dispatcher):
    a, b, out = gpu((64, 64)), gpu((64, 64)), gpu((64, 64))
    assert dispatcher.plan(a, b, out).problem == packed(64, 64, 64, b_major="n")
    assert dispatcher.plan(a, b, out_dtype="fp32").problem.out_dtype.name == "fp32"
    assert dispatcher.plan(packed(64, 64, 64), device="h100").device.name == "NVIDIA H100 SXM"
    with pytest.raises(UnsupportedError, match="Problem holds"):
        dispatcher.plan(packed(64, 64, 64), b)
    with pytest.raises(UnsupportedError, match="leave device out"):
        dispatcher.plan(a, b, device="h200")
    with pytest.raises(DTypeError):
        dispatcher.plan(a, b, out_dtype="int8")


def test_the_face_names_the_doors_of_the_process():
    from tilewright import dispatch

    assert tilewright.matmul == dispatch.matmul
    assert tilewright.plan == dispatch.plan
    assert tilewright.clear == dispatch.clear
