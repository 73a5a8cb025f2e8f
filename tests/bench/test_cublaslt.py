"""bench/cublaslt/ against a libcublasLt made of Python, and against the library itself where one is installed."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from fake_cublaslt import EXECUTION_FAILED, INVALID, NOT_SUPPORTED, FakeAlgorithm, FakeCublasLt

from tilewright.bench.cublaslt import algorithm as algorithms
from tilewright.bench.cublaslt import library as cublaslt
from tilewright.bench.cublaslt.library import Library, Session
from tilewright.bench.cublaslt.product import Product, Strided, alignment_bytes, product_of
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import LayoutError, LibraryError, UnsupportedError

WORKSPACE = 1 << 20


def fake(*algorithms: FakeAlgorithm, **options: Any) -> FakeCublasLt:
    algorithms = algorithms or (FakeAlgorithm(1, 10.0),)
    numbers = [algorithm.number for algorithm in algorithms]
    return FakeCublasLt(list(algorithms), options.pop("offers", lambda size: numbers), **options)


def matrix(rows: int, columns: int, major: str, pad: int, dtype: DType, seed: int | None) -> tuple[Any, Strided]:
    """A matrix with rows or columns contiguous and `pad` elements between its lines, and how it is described."""
    shape = (rows, columns + pad) if major == "row" else (columns, rows + pad)
    if seed is None:
        lines = np.full(shape, np.nan, dtype.numpy)
    else:
        lines = np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype.numpy)
    view = lines[:, :columns] if major == "row" else lines[:, :rows].T
    strides = (shape[1], 1) if major == "row" else (1, shape[1])
    return view, Strided(rows=rows, columns=columns, row_stride=strides[0], column_stride=strides[1], dtype=dtype)


def small(dtype: DType = BF16, align_bytes: int = 256) -> Product:
    views = [
        Strided(rows=r, columns=c, row_stride=c, column_stride=1, dtype=dtype, align_bytes=align_bytes)
        for r, c in ((8, 16), (16, 24), (8, 24))
    ]
    return product_of(*views)


# -- the library's own numbers -----------------------------------------------------------------------------------------


def test_structs_are_laid_out_as_in_cublaslt_h() -> None:
    assert ctypes.sizeof(cublaslt.AlgorithmBlob) == 64
    result = cublaslt.HeuristicResult
    assert ctypes.sizeof(result) == 96
    offsets = [getattr(result, name).offset for name, _ in result._fields_]
    assert offsets == [0, 64, 72, 76, 80]


def test_attributes_have_the_numbers_and_sizes_of_cublaslt_h() -> None:
    assert {name: (number, ctypes.sizeof(kind)) for name, (number, kind) in algorithms.ATTRIBUTES.items()} == {
        "id": (0, 4),
        "tile": (1, 4),
        "split_k": (2, 4),
        "reduction": (3, 4),
        "swizzle": (4, 4),
        "custom": (5, 4),
        "stages": (6, 4),
        "inner": (7, 2),
        "cluster": (8, 2),
    }


def test_tiles_are_numbered_as_in_cublaslt_h() -> None:
    known = {
        1: "8x8", 20: "128x128", 23: "128x256", 35: "256x32", 36: "8x128", 46: "8x768", 47: "16x64", 117: "64x320",
        201: "176x128", 248: "320x128", 278: "496x64", 279: "504x64", 280: "520x64", 311: "768x64", 312: "64x16",
        393: "128x8", 447: "128x512", 448: "192x8", 513: "256x256", 630: "768x80", 631: "256x512", 634: "512x1024",
    }  # fmt: skip
    assert {number: algorithms.tile_name(number) for number in known} == known
    assert len(algorithms.tile_names()) == len(set(algorithms.tile_names())) == 635
    assert algorithms.tile_name(9999) == "tile 9999"


def test_stages_and_clusters_are_numbered_as_in_cublaslt_h() -> None:
    stages = {1: "16x1", 6: "16x6", 7: "32x1", 18: "64x6", 24: "128x6", 27: "16x10", 35: "64xAUTO", 38: "768xAUTO"}
    assert {number: algorithms.stages_name(number) for number in stages} == stages
    assert [algorithms.stages_name(number) for number in (0, 29, 99)] == ["-", "stages 29", "stages 99"]
    clusters = {0: "auto", 2: "1x1", 3: "2x1", 5: "1x2", 16: "1x16", 17: "3x1", 32: "1x3", 51: "1x15"}
    assert {number: algorithms.cluster_name(number) for number in clusters} == clusters
    assert [algorithms.cluster_name(number) for number in (1, 52)] == ["cluster 1", "cluster 52"]


# -- row-major operands in a column-major library ----------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b", "out"), list(itertools.product(("row", "column"), repeat=3)))
@pytest.mark.parametrize(
    ("m", "n", "k", "pad"), [(5, 7, 9, 0), (5, 7, 9, 3), (1, 7, 9, 1), (5, 1, 9, 1), (5, 7, 1, 2), (1, 1, 1, 0)]
)
def test_every_layout_is_multiplied_as_its_owner_sees_it(
    a: str, b: str, out: str, m: int, n: int, k: int, pad: int
) -> None:
    left, a_view = matrix(m, k, a, pad, FP16, seed=1)
    right, b_view = matrix(k, n, b, pad, FP16, seed=2)
    result, out_view = matrix(m, n, out, pad, FP32, seed=None)
    whole = result.base.copy()
    library = fake()
    with Session(Library(library), product_of(a_view, b_view, out_view), WORKSPACE) as session:
        (blob,) = session.heuristics(8)
        session.launcher(blob, 0, 0)(left.ctypes.data, right.ctypes.data, result.ctypes.data)
    assert (result == left.astype(np.float32) @ right.astype(np.float32)).all()
    assert np.isnan(result.base).sum() == np.isnan(whole).sum() - m * n, "the padding is left alone"


def test_a_row_major_product_is_out_t_equals_b_t_times_a_t() -> None:
    views = {
        "a": Strided(rows=5, columns=9, row_stride=16, column_stride=1, dtype=BF16, align_bytes=16),
        "b": Strided(rows=9, columns=7, row_stride=1, column_stride=11, dtype=BF16, align_bytes=2),
        "out": Strided(rows=5, columns=7, row_stride=8, column_stride=1, dtype=FP32, align_bytes=4),
    }
    product = product_of(*views.values())
    assert product.is_swapped
    assert product.size == (7, 5, 9)
    assert (product.a.rows, product.a.columns, product.a.pitch, product.a.is_transposed) == (9, 7, 11, True)
    assert (product.b.rows, product.b.columns, product.b.pitch, product.b.is_transposed) == (9, 5, 16, False)
    assert (product.d.rows, product.d.columns, product.d.pitch, product.d.is_transposed) == (7, 5, 8, False)
    assert [each.align_bytes for each in (product.a, product.b, product.d)] == [2, 16, 4]
    plain = product_of(views["a"], Strided(rows=9, columns=7, row_stride=7, column_stride=1, dtype=BF16), views["out"])
    assert (plain.a.rows, plain.a.columns, plain.a.pitch, plain.a.is_transposed) == (7, 9, 7, False)


@pytest.mark.parametrize("strides", [(14, 2), (3, 1), (0, 1)])
def test_a_layout_without_a_contiguous_dimension_or_with_overlaps_is_refused(strides: tuple[int, int]) -> None:
    good = Strided(rows=7, columns=7, row_stride=7, column_stride=1, dtype=BF16)
    bad = Strided(rows=7, columns=7, row_stride=strides[0], column_stride=strides[1], dtype=BF16)
    with pytest.raises(LayoutError, match="strides"):
        product_of(good, bad, good)


def test_another_size_keeps_the_layout_and_how_well_its_rows_are_aligned() -> None:
    product = small().resized(100, 50, 33)
    assert product.size == (100, 50, 33)
    assert (product.a.rows, product.a.pitch, product.b.rows, product.b.pitch) == (100, 104, 33, 40)
    odd = Strided(rows=8, columns=17, row_stride=17, column_stride=1, dtype=BF16)
    product = product_of(odd, Strided(rows=17, columns=8, row_stride=8, column_stride=1, dtype=BF16), odd)
    assert product.b.resized(33, 5).pitch == 33
    assert product.d.resized(16, 5).pitch == 16


def test_alignment_is_the_largest_power_of_two_that_divides_every_address() -> None:
    assert alignment_bytes(4096) == 256
    assert alignment_bytes(4096, 4096 + 32) == 32
    assert alignment_bytes(4096, 4098, 4100) == 2


# -- what it asks of the library ---------------------------------------------------------------------------------------


def test_the_heuristic_is_told_the_workspace_and_each_operands_true_alignment() -> None:
    library = fake()
    views = [
        Strided(rows=8, columns=8, row_stride=8, column_stride=1, dtype=BF16, align_bytes=align)
        for align in (16, 2, 128)
    ]
    with Session(Library(library), product_of(*views), WORKSPACE) as session:
        session.heuristics(8)
    assert library.asked == [((8, 8, 8), {1: WORKSPACE, 5: 2, 6: 16, 7: 128, 8: 128})]


@pytest.mark.parametrize(("out_dtype", "number"), [(BF16, 14), (FP32, 0)])
def test_types_and_fp32_accumulation_are_named_by_the_librarys_numbers(out_dtype: DType, number: int) -> None:
    library = fake()
    good = Strided(rows=8, columns=8, row_stride=8, column_stride=1, dtype=BF16)
    out = Strided(rows=8, columns=8, row_stride=8, column_stride=1, dtype=out_dtype)
    with Session(Library(library), product_of(good, good, out), WORKSPACE):
        kinds = [what for what in library.handles.values() if what["kind"] == "layout"]
        (operation,) = [what for what in library.handles.values() if what["kind"] == "operation"]
    assert [what["dtype"] for what in kinds] == [14, 14, number]
    assert (operation["compute"], operation["scale"]) == (68, 0)


def test_an_algorithm_tells_its_attributes_in_words() -> None:
    library = fake(FakeAlgorithm(1, 10.0, config=(66, 201, 4, 2, 1, 5, 35, 4, 5), workspace_bytes=4096))
    with Session(Library(library), small(), WORKSPACE) as session:
        (blob,) = session.heuristics(8)
        algorithm = session.checked(blob)
    assert algorithm is not None
    assert algorithm.blob == library.algorithms[0].blob
    assert algorithm.facts() == {
        "id": 66, "tile": "176x128", "split_k": 4, "reduction": "compute type", "swizzle": 1, "custom": 5,
        "stages": "64xAUTO", "inner": 4, "cluster": "1x2", "workspace_bytes": 4096, "waves": 0.75,
    }  # fmt: skip
    assert str(algorithm) == "176x128 64xAUTO cluster 1x2 id 66 split-k 4 (compute type) swizzle 1 custom 5 inner 4"
    assert not algorithm.is_reduced_precision


def test_a_product_that_no_heuristic_knows_is_offered_nothing() -> None:
    library = fake(heuristic_status=lambda size: NOT_SUPPORTED)
    with Session(Library(library), small(), WORKSPACE) as session:
        assert session.heuristics(8) == []


def test_another_status_is_an_error_with_its_name_and_the_product() -> None:
    library = fake(heuristic_status=lambda size: INVALID)
    with (
        Session(Library(library), small(), WORKSPACE) as session,
        pytest.raises(LibraryError, match=r"\(24, 8, 16\).*CUBLAS_STATUS_INVALID_VALUE: as the fake was told"),
    ):
        session.heuristics(8)


def test_a_refused_launch_is_an_error_with_its_name() -> None:
    library = fake(FakeAlgorithm(1, 10.0, status=EXECUTION_FAILED))
    with Session(Library(library), small(), WORKSPACE) as session:
        (blob,) = session.heuristics(8)
        with pytest.raises(LibraryError, match=r"cublasLtMatmul.*EXECUTION_FAILED"):
            session.launcher(blob, 0, 0)(0x100, 0x200, 0x300)


@pytest.mark.parametrize(
    ("algorithm", "passes"),
    [
        (FakeAlgorithm(1, 1.0), True),
        (FakeAlgorithm(1, 1.0, runs=lambda size: size[0] % 128 == 0), False),
        (FakeAlgorithm(1, 1.0, workspace_bytes=WORKSPACE), True),
        (FakeAlgorithm(1, 1.0, workspace_bytes=WORKSPACE + 1), False),
        (FakeAlgorithm(1, 1.0, align_bytes=16), True),
        (FakeAlgorithm(1, 1.0, align_bytes=32), False),
    ],
)
def test_an_algorithm_of_elsewhere_passes_when_size_workspace_and_addresses_suit_it(
    algorithm: FakeAlgorithm, passes: bool
) -> None:
    with Session(Library(fake(algorithm)), small(align_bytes=16), WORKSPACE) as session:
        found = session.checked(algorithm.blob)
    assert (found is not None) == passes
    if found is not None:
        assert (found.blob, found.workspace_bytes) == (algorithm.blob, algorithm.workspace_bytes)


def test_everything_that_was_made_is_destroyed() -> None:
    library = fake()
    with Session(Library(library), small(), WORKSPACE) as outer:
        with Session(Library(library), small().resized(8, 8, 8), WORKSPACE, outer.handle):
            assert len(library.handles) == 1 + 5 + 5
        assert len(library.handles) == 1 + 5
    assert library.handles == {}


@pytest.mark.parametrize(
    "name", ["cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulDescSetAttribute"]
)
def test_a_session_that_cannot_be_made_leaves_nothing_behind(name: str) -> None:
    library = fake(fails=name)
    with pytest.raises(LibraryError, match=name):
        Session(Library(library), small(), WORKSPACE)
    assert library.handles == {}


def test_the_version_is_read_from_the_library() -> None:
    assert Library(fake()).version == "13.1.0"
    assert Library(fake(version=120805)).version == "12.8.5"


def test_a_library_that_lacks_a_function_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="update nvidia-cublas"):
        Library(object())


def test_no_library_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **_: Any) -> Any:
        raise OSError(name)

    monkeypatch.setattr("cuda.pathfinder.load_nvidia_dynamic_lib", missing)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(UnsupportedError, match=r"none of libcublasLt.so.13, .* nvidia-cublas"):
        cublaslt.installed.__wrapped__()


# -- the library itself ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Library:
    try:
        return cublaslt.installed()
    except UnsupportedError as missing:
        pytest.skip(str(missing))


def test_the_real_library_has_attributes_of_these_sizes(real: Library) -> None:
    for number, kind in algorithms.ATTRIBUTES.values():
        needed = ctypes.c_size_t()
        real.call(
            "cublasLtMatmulAlgoConfigGetAttribute", cublaslt.AlgorithmBlob(), number, None, 0, ctypes.byref(needed)
        )
        assert needed.value == ctypes.sizeof(kind)


def test_the_real_library_takes_every_descriptor_without_a_gpu(real: Library) -> None:
    with Session(real, small(align_bytes=2), WORKSPACE, handle=ctypes.c_void_p(1)) as session:
        assert session.product.size == (24, 8, 16)


def test_the_real_library_names_a_status(real: Library) -> None:
    assert real.words(NOT_SUPPORTED)[0] == "CUBLAS_STATUS_NOT_SUPPORTED"
    assert int(real.version.split(".")[0]) in (12, 13)
