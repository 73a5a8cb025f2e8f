"""Faults of strides, views and edges that users met in other GEMM libraries, on the whole road but the kernel itself.

The kernel's own runs: emulator/test_bug_cases.py and emulator/test_layouts.py. Cases that name fp8 or int8 wait.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from fakes import FakeCompiler, GpuArray, HostBackend, gpu, product
from tilewright.dispatch import Dispatcher
from tilewright.errors import LayoutError

PATTERN = 77.0


@pytest.fixture
def backend() -> HostBackend:
    return HostBackend()


@pytest.fixture
def dispatcher(backend: HostBackend, monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    return Dispatcher(lambda: backend)


def served(dispatcher: Dispatcher, a: GpuArray, b: GpuArray, out: GpuArray) -> bool:
    """Whether out is the product afterwards."""
    expected = product(a, b)
    dispatcher.matmul(a, b, out)
    return np.array_equal(out.host.astype(np.float64), expected.astype(out.host.dtype).astype(np.float64))


@pytest.mark.parametrize("sliced", ["a", "b", "out", "all"])
def test_b001_slices_of_larger_bases_keep_their_leading_dimension(dispatcher: Dispatcher, sliced: str) -> None:
    def operand(name: str, seed: int) -> GpuArray:
        base = gpu((128, 128), seed=seed) if sliced in (name, "all") else gpu((64, 64), seed=seed)
        return base[:64, :64]

    base = gpu((128, 128), fill=PATTERN)
    out = base[:64, :64] if sliced in ("out", "all") else gpu((64, 64))
    assert served(dispatcher, operand("a", 1), operand("b", 2), out)
    out.host[...] = PATTERN
    assert (base.host == PATTERN).all()


def test_b002_a_padded_weight_is_read_with_its_pitch(dispatcher: Dispatcher) -> None:
    assert served(dispatcher, gpu((64, 64), seed=1), gpu((64, 80), seed=2)[:, :64].t(), gpu((64, 64)))


@pytest.mark.parametrize("moved", ["a", "b", "out", "all"])
def test_b004_a_base_off_by_one_element_is_served(dispatcher: Dispatcher, backend: HostBackend, moved: str) -> None:
    """After the same layout was met at aligned addresses, and before."""

    def operand(name: str, seed: int, is_off: bool) -> GpuArray:
        flat = gpu((64 * 64 + 8,), seed=seed)
        return (flat[1:4097] if is_off and moved in (name, "all") else flat[:4096]).reshape(64, 64)

    for is_off in (True, False, True):
        out = operand("out", 3, is_off)
        backend.counts.clear()
        assert served(dispatcher, operand("a", 1, is_off), operand("b", 2, is_off), out)
        assert backend.counts["launch"] == (2 if is_off and moved != "out" else 1)
    assert not backend.scratch


def test_b005_a_transposed_operand_is_served_whatever_its_rows(dispatcher: Dispatcher) -> None:
    assert served(dispatcher, gpu((64, 72), seed=1).t(), gpu((64, 8), seed=2), gpu((72, 8)))
    assert served(dispatcher, gpu((64, 63), seed=1).t(), gpu((64, 8), seed=2), gpu((63, 8)))


def test_b007_a_pitch_of_1022_bytes_is_served(dispatcher: Dispatcher) -> None:
    assert served(dispatcher, gpu((64, 511), seed=1), gpu((511, 64), seed=2), gpu((64, 64)))


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_b008_bytes_past_a_row_of_out_stay_as_they_are(
    dispatcher: Dispatcher, batch: tuple[int, ...], is_transposed: bool
) -> None:
    base = gpu((*batch, 32, 64), fill=PATTERN)
    out = GpuArray(base.host[..., :61])
    a, b = gpu((*batch, 32, 64), seed=1), gpu((*batch, 64, 64), seed=2)[..., :61]
    if is_transposed:
        a, b, out = b.mT, a.mT, out.mT
    assert served(dispatcher, a, b, out)
    assert (base.host[..., 61:] == PATTERN).all()


def test_b010_column_major_operands_of_odd_sizes_are_served_in_padded_columns(dispatcher: Dispatcher) -> None:
    for m, n, k in ((2, 4, 3), (1, 705, 705)):
        a = gpu((k, -(-m // 8) * 8), seed=1)[:, :m].t()
        assert served(dispatcher, a, gpu((k, -(-n // 8) * 8), seed=2)[:, :n], gpu((m, n)))


def test_b017_a_slice_of_activations_is_no_copy(dispatcher: Dispatcher, backend: HostBackend) -> None:
    x, w = gpu((16, 256), seed=1), gpu((32, 64), seed=2)
    assert served(dispatcher, x[:, ::1][:, 64:128], w.t(), gpu((16, 32)))
    assert backend.counts["launch"] == 1


def test_b019_a_plan_is_refused_exactly_where_the_call_is(dispatcher: Dispatcher) -> None:
    """K of 1017 to 1032, forwards and backwards: whoever asks first is told the same."""
    for k in range(1017, 1033):
        for step in (1, -1):
            a, b = GpuArray(gpu((16, k), seed=1).host[::step]), gpu((k, 16), seed=2)
            verdicts = []
            for ask in (
                lambda a=a, b=b: dispatcher.plan(a, b),
                lambda a=a, b=b: dispatcher.matmul(a, b, gpu((16, 16))),
            ):
                try:
                    ask()
                    verdicts.append("")
                except LayoutError as refusal:
                    verdicts.append(str(refusal))
            assert verdicts[0] == verdicts[1]
            assert bool(verdicts[0]) == (step < 0)


@pytest.mark.parametrize("expanded", ["a", "b", "both"])
def test_b020_an_expanded_batch_is_multiplied_matrix_by_matrix(dispatcher: Dispatcher, expanded: str) -> None:
    def operand(name: str, seed: int) -> GpuArray:
        array = gpu((4, 8, 8), seed=seed).host
        return GpuArray(np.broadcast_to(array[:1], (4, 8, 8)) if expanded in (name, "both") else array)

    assert served(dispatcher, operand("a", 1), operand("b", 2), gpu((4, 8, 8)))


def test_b020_an_out_with_a_stride_of_0_is_refused(dispatcher: Dispatcher) -> None:
    out = GpuArray(np.lib.stride_tricks.as_strided(gpu((8, 8)).host, (4, 8, 8), (0, 16, 2)))
    with pytest.raises(LayoutError, match="place of its own"):
        dispatcher.matmul(gpu((4, 8, 8)), gpu((4, 8, 8)), out)


@pytest.mark.parametrize("shape", [(0, 8, 64), (3, 0, 64), (3, 8, 0)])
def test_b025_a_batch_with_a_size_of_0_launches_nothing(
    dispatcher: Dispatcher, backend: HostBackend, shape: tuple[int, int, int]
) -> None:
    """And leaves zeros where only k is 0; a product after it is served (B026)."""
    out = gpu((*shape[:2], 16), fill=PATTERN)
    dispatcher.matmul(gpu(shape), gpu((shape[0], shape[2], 16)), out)
    assert (out.host == 0).all()
    assert backend.counts["launch"] == 0
    assert served(dispatcher, gpu((3, 8, 64), seed=1), gpu((3, 64, 16), seed=2), gpu((3, 8, 16)))


def test_b025_zeros_leave_the_gaps_between_matrices(dispatcher: Dispatcher) -> None:
    base = gpu((3, 9, 24), fill=PATTERN)
    dispatcher.matmul(gpu((3, 8, 0)), gpu((3, 0, 16)), GpuArray(base.host[:, :8, :16]))
    assert (base.host[:, :8, :16] == 0).all()
    assert (base.host[:, 8:] == PATTERN).all()
    assert (base.host[:, :, 16:] == PATTERN).all()


def test_an_out_between_the_heads_of_its_inputs_is_served_and_one_on_them_refused(dispatcher: Dispatcher) -> None:
    """q, k and out in one packed array of (tokens, 3, heads, 64)."""
    packed: Any = gpu((64, 3, 2, 64), seed=1).host
    q, k, out = (GpuArray(packed[:, part].transpose(1, 0, 2)) for part in range(3))
    assert served(dispatcher, q, k.mT, out)
    with pytest.raises(LayoutError, match="shares memory with a"):
        dispatcher.matmul(q, k.mT, q)
