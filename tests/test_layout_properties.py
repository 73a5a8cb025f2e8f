"""Arrays as users have them, drawn wide, against numpy.matmul: through strides, problem, tensor maps and numbers.

What multiplies is fakes.HostBackend, which sees what a driver would; the emulator's tests run the kernel itself.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes import FakeCompiler, GpuArray, HostBackend, gpu
from tilewright import device, dtypes
from tilewright.batching import Matrices, broadcast, simplified
from tilewright.config import Config
from tilewright.dispatch import Dispatcher
from tilewright.errors import LayoutError, ShapeError
from tilewright.kernels.hopper import HOPPER
from tilewright.layout import operands, out_shape, problem_of
from tilewright.packing import packed
from tilewright.tensor import Location, View

PATTERN = 77.0
GPU = Location("cuda", 0)
H200 = device.preset("h200")


@dataclass(frozen=True)
class Drawn:
    """The operands of one call, and the memory around out."""

    a: GpuArray
    b: GpuArray
    out: GpuArray
    around: np.ndarray[Any, Any]


def _in_memory(draw: st.DrawFn, shape: tuple[int, ...], dtype: str, *, aligned: bool) -> tuple[GpuArray, GpuArray]:
    """An array whose dimensions lie in memory in a drawn order, with gaps; and all of its memory.

    `aligned`: rows and matrices start at multiples of 16 bytes.
    """
    rank = len(shape)
    if rank == 0:
        memory = gpu((1,), dtype, fill=PATTERN)
        return GpuArray(memory.host.reshape(())), memory
    inner = draw(st.sampled_from(range(max(rank - 2, 0), rank)))
    order = [*draw(st.permutations([i for i in range(rank) if i != inner])), inner]
    extents = [shape[i] + draw(st.sampled_from((0, 0, 1, 3))) for i in order]
    if aligned:
        extents[-1] = -(-extents[-1] // 8) * 8
    memory = gpu(tuple(extents), dtype, fill=PATTERN)
    view = memory.host[tuple(slice(shape[i]) for i in order)]
    return GpuArray(view.transpose(np.argsort(order))), memory


@st.composite
def calls(draw: st.DrawFn) -> Drawn:
    """Shapes of matmul with up to three batch dimensions, any of them broadcast on either side by absence, by an extent
    of 1 or by a stride of 0, and vectors on either side."""
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    m, n, k = (draw(st.sampled_from((1, 2, 5, 8, 16))) for _ in range(3))

    def operand(rows: int, columns: int) -> GpuArray:
        own = list(batch[draw(st.integers(0, len(batch))) :])
        expanded = list(own)
        for index in range(len(own)):
            kind = draw(st.sampled_from(("whole", "whole", "one", "expanded")))
            if kind != "whole":
                own[index] = 1
            if kind == "one":
                expanded[index] = 1
        array, _ = _in_memory(draw, (*own, rows, columns), "bf16", aligned=True)
        array.host[...] = np.random.default_rng(draw(st.integers(0, 99))).integers(-4, 5, array.host.shape)
        return GpuArray(np.broadcast_to(array.host, (*expanded, rows, columns)))

    vector = draw(st.sampled_from(("", "", "", "", "a", "b", "both")))
    a, b = operand(m, k), operand(k, n)
    if vector in ("a", "both"):
        a = gpu((k,), seed=1)
    if vector in ("b", "both"):
        b = gpu((k,), seed=2)
    shape = np.matmul(a.host.astype(np.float32), b.host.astype(np.float32)).shape
    out, memory = _in_memory(draw, shape, draw(st.sampled_from(("bf16", "fp32"))), aligned=False)
    return Drawn(a, b, out, memory.host)


@pytest.fixture(scope="module")
def backend() -> HostBackend:
    return HostBackend()


@pytest.fixture(scope="module")
def dispatcher(backend: HostBackend) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
        yield Dispatcher(lambda: backend)


@settings(derandomize=True, max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(drawn=calls())
def test_matmul_is_numpys_in_one_launch_and_touches_nothing_else(
    dispatcher: Dispatcher, backend: HostBackend, drawn: Drawn
) -> None:
    expected = np.matmul(drawn.a.host.astype(np.float64), drawn.b.host.astype(np.float64))
    before = backend.counts["launch"]
    dispatcher.matmul(drawn.a, drawn.b, drawn.out)
    assert backend.counts["launch"] == before + 1
    assert np.array_equal(drawn.out.host.astype(np.float64), expected.astype(drawn.out.host.dtype).astype(np.float64))
    drawn.out.host[...] = PATTERN
    assert (drawn.around == PATTERN).all()


def _elements(matrices: Matrices) -> set[tuple[int, ...]]:
    """Offsets of (a, b, out) of every multiplication and addition."""
    found = set()
    for index in np.ndindex(*matrices.batch, matrices.m, matrices.n, matrices.k):
        *member, i, j, p = index
        offsets = [
            sum(x * stride for x, stride in zip(member, strides, strict=True))
            for strides in (matrices.a_batch, matrices.b_batch, matrices.out_batch)
        ]
        found.add(
            (
                offsets[0] + i * matrices.a[0] + p * matrices.a[1],
                offsets[1] + p * matrices.b[0] + j * matrices.b[1],
                offsets[2] + i * matrices.out[0] + j * matrices.out[1],
            )
        )
    return found


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(data=st.data())
def test_fewer_dimensions_are_the_same_multiplications(data: st.DataObject) -> None:
    """Over any strides at all, and whether or not larger matrices are served."""
    batch = tuple(data.draw(st.lists(st.integers(1, 3), max_size=4)))
    m, n, k = (data.draw(st.integers(1, 3)) for _ in range(3))
    stride = st.sampled_from((0, 1, 2, 3, 6, 8, 9, 12, 18, 27, 54))

    def array(rows: int, columns: int) -> Any:
        shape = (*batch, rows, columns)
        return shape, tuple(data.draw(stride) for _ in shape)

    given_matrices = broadcast(array(m, k), array(k, n), array(m, n))
    verdicts = data.draw(st.sampled_from((True, False)))
    held = simplified(given_matrices, lambda _: verdicts)
    assert _elements(held) == _elements(given_matrices)
    assert len(held.dims) <= len(given_matrices.dims)
    assert 1 not in held.batch


# -- what it comes down to ---------------------------------------------------------------------------------------------


def view(shape: tuple[int, ...], strides: tuple[int, ...] | None = None, dtype: Any = dtypes.BF16) -> View:
    if strides is None:
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return View(1 << 30, shape, strides, dtype, GPU)


@pytest.mark.parametrize(
    ("a", "b", "out", "problem"),
    [
        # a linear layer on (batch, tokens, features): one matrix
        (view((4, 128, 64)), view((64, 32)), None, packed(512, 32, 64, b_major="n")),
        (view((2, 4, 8, 64)), view((64, 32)), None, packed(64, 32, 64, b_major="n")),
        (view((4, 1, 64)), view((64, 32)), None, packed(4, 32, 64, b_major="n")),
        (view((4, 128, 64)), view((64,)), None, packed(512, 1, 64)),
        (view((64,)), view((64, 32)), None, packed(1, 32, 64, b_major="n")),
        # every second matrix: no longer rows of one
        (view((4, 8, 64), (1024, 64, 1)), view((64, 32)), None, None),
        # one a times matrices that stand side by side in b and in out
        (view((8, 64)), view((4, 64, 16), (16, 64, 1)), view((4, 8, 16), (16, 64, 1)),
         packed(8, 64, 64, b_major="n")),
        # bmm, and two batch dimensions that are one
        (view((6, 8, 64)), view((6, 64, 16)), None, packed(8, 16, 64, b_major="n", batch=(6,))),
        (view((2, 3, 8, 64)), view((2, 3, 64, 16)), None, packed(8, 16, 64, b_major="n", batch=(6,))),
        # dimensions of 1 with any stride
        (view((1, 6, 8, 64), (7, 512, 64, 1)), view((6, 1, 64, 16), (1024, 5, 16, 1)), None, None),
        # the transpose of all: out in columns
        (view((64, 128), (1, 64)), view((128, 32), (32, 1)), view((64, 32), (1, 64)),
         packed(64, 32, 128, a_major="m", b_major="n", out_major="m")),
    ],
)  # fmt: skip
def test_batches_come_down_to_the_fewest_dimensions(a: View, b: View, out: View | None, problem: Any) -> None:
    found = problem_of(a, b, out)
    if problem is not None:
        assert found == problem
    assert found.num_matrices * found.m * found.n == np.prod(out_shape(a.shape, b.shape))


def test_a_shared_matrix_is_walked_while_it_is_in_the_l2() -> None:
    """Keys that the heads of a group share: the heads are the fastest dimension."""
    q = view((2, 4, 8, 128, 64), (4 * 8 * 128 * 64, 64, 4 * 64, 8 * 4 * 64, 1))
    k = view((2, 4, 8, 64, 128), (4 * 128 * 64, 128 * 64, 0, 1, 64))
    found = problem_of(q, k)
    assert found.batch[-1] == 8
    assert found.b_batch[-1] == 0


@pytest.mark.parametrize("shape", [(0, 4, 8, 64), (3, 4, 0, 64), (2, 3, 5, 7, 0, 8, 64)])
def test_a_batch_without_elements_is_empty_whatever_its_dimensions(shape: tuple[int, ...]) -> None:
    found = problem_of(view(shape), view((64, 16)))
    assert found.is_empty


def test_strides_of_a_batch_without_a_k_mean_nothing() -> None:
    found = problem_of(view((3, 4, 0), (5, 1, 1)), view((3, 0, 8), (1, 3, 1)))
    assert (found.m, found.n, found.k, found.batch) == (12, 8, 0, ())


@pytest.mark.parametrize(
    ("kind", "words", "arrays"),
    [
        (ShapeError, "tensor maps have 5 dimensions", (view((2, 2, 2, 2, 8, 64), (1 << 20, 1 << 18, 1 << 15, 1 << 13,
                                                                                 64, 1)),
                                                       view((2, 2, 2, 2, 64, 8), (8192, 1 << 15, 1 << 20, 1 << 18, 8,
                                                                                  1)))),
        (LayoutError, "flip", (view((3, 8, 64), (-512, 64, 1)), view((3, 64, 8)))),
        (LayoutError, r"2\^40", (view((3, 8, 64), (1 << 39, 64, 1)), view((3, 64, 8)))),
        (LayoutError, "place of its own", (view((3, 8, 64)), view((3, 64, 8)), view((3, 8, 8), (0, 8, 1)))),
        (LayoutError, "place of its own", (view((3, 8, 64)), view((3, 64, 8)), view((3, 8, 8), (32, 8, 1)))),
        (LayoutError, "rows of out are contiguous", (view((2, 8, 64)), view((2, 64, 8)), view((2, 8, 8), (1, 16, 2)))),
    ],
)  # fmt: skip
def test_what_no_map_reaches_is_refused_by_name(kind: Any, words: str, arrays: tuple[View, ...]) -> None:
    with pytest.raises(kind, match=words):
        problem_of(*arrays)


# -- memory beyond 2^31 elements (B050, B052, B053, B056) --------------------------------------------------------------


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(
    m=st.integers(1, 2**20), n=st.integers(1, 2**18), k=st.integers(1, 2**18),
    batch=st.lists(st.integers(2, 2**14), max_size=3), gap=st.integers(0, 2**20), majors=st.tuples(
        st.sampled_from("km"), st.sampled_from("kn"), st.sampled_from("nm")),
)  # fmt: skip
def test_spans_and_maps_of_any_size_are_whole_numbers(
    m: int, n: int, k: int, batch: list[int], gap: int, majors: Any
) -> None:
    """Against Python's integers: nothing on the way is computed in 32 or 64 bits."""
    a_major, b_major, out_major = majors
    problem = packed(m, n, k, a_major=a_major, b_major=b_major, out_major=out_major)
    strides = {}
    for name in ("a", "b", "out"):
        rows, _ = problem.rows_of(name)
        step = rows * getattr(problem, f"{name}_pitch") + 8 * gap
        steps = []
        for extent in reversed(batch):
            steps.append(step)
            step *= extent
        strides[f"{name}_batch"] = tuple(reversed(steps))
    problem = type(problem)(
        **{name: getattr(problem, name) for name in problem.__dataclass_fields__} | {"batch": tuple(batch)} | strides
    )
    for rows, name in zip(operands(problem, 0, 0, 0), ("a", "b", "out"), strict=True):
        shape, steps = problem.strided(name)
        last = sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True))
        size = (problem.out_dtype if name == "out" else problem.dtype).size
        assert rows.end == problem.extent_bytes[name] == (last + 1) * size
    config = Config(tile_m=128, tile_n=64, stages=3)
    if config.violations(problem.row_major, H200):
        return
    launch = HOPPER.launch(problem.row_major, config, H200)
    *_, numbers, _, _ = HOPPER.arguments(problem.row_major, config, launch)
    if batch:
        dims = (len(numbers.values) - 1) // 4
        assert numbers.values[0] == problem.num_matrices < 2**30
        assert numbers.values[-dims:][: len(batch)] == problem.out_batch[::-1]


@pytest.mark.parametrize("stride", [2**31 - 8, 2**31, 2**31 + 8, 2**33])
def test_a_batch_of_matrices_gigabytes_apart_is_planned_with_its_strides(stride: int) -> None:
    found = problem_of(view((40, 64, 64), (stride, 64, 1)), view((40, 64, 8), (stride, 8, 1)))
    assert found.a_batch == found.b_batch == (stride,)
    launch = HOPPER.launch(found, Config(), H200)
    maps = HOPPER.arguments(found, Config(tile_n=64), launch)[:2]
    assert [x.tensor_map.pitches_bytes[1] for x in maps] == [2 * stride, 2 * stride]
    assert all(x.tensor_map.violations() == () for x in maps)


def test_a_tall_product_has_more_tiles_than_a_grid_dimension() -> None:
    """B034: 65537 tile rows; the grid is persistent, so no dimension of it counts them."""
    problem = packed(65536 * 128 + 1, 8, 8)
    launch = HOPPER.launch(problem, Config(tile_m=64, tile_n=8, consumers=1), H200)
    assert launch.grid == 132
    assert Config(tile_m=64, tile_n=8, consumers=1).num_tiles(problem) == 131073
