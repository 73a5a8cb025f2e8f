"""cuBLASLt through ctypes: a product described, the algorithms that the library offers for it, and their launches.

Knows the library's structs, its numbers and its column-major view, and nothing of time, of torch or of which algorithm
is good. Sizes, enum values and attribute types: cublasLt.h, cublas_api.h and library_types.h of cuBLAS 13.1 (12.x has
the same); a test compares what it can with the library itself, where one is installed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import LayoutError, LibraryError, UnsupportedError

# The libraries that torch's wheels for CUDA 13 and 12 load, by the name that the loader knows them by.
SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")

SUCCESS, NOT_SUPPORTED = 0, 15  # cublasStatus_t
COMPUTE_32F = 68  # cublasComputeType_t: exact products, sums in fp32
DATA_TYPES = {"fp32": 0, "fp16": 2, "bf16": 14}  # cudaDataType_t
DESC_TRANSPOSE_A, DESC_TRANSPOSE_B = 3, 4  # cublasLtMatmulDescAttributes_t, a cublasOperation_t each: 0 N, 1 T
PREF_WORKSPACE_BYTES, PREF_ALIGNMENTS_BYTES = 1, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t; of A, B, C, D
CAP_ALIGNMENTS_BYTES = (16, 17, 18, 19)  # cublasLtMatmulAlgoCapAttributes_t; of A, B, C, D
MAX_ALIGNMENT_BYTES = 256  # the preference's default: what the library expects of a buffer

# cublasLtMatmulAlgoConfigAttributes_t: our name -> (number, type).
ATTRIBUTES: dict[str, tuple[int, Any]] = {
    "id": (0, ctypes.c_int32),
    "tile": (1, ctypes.c_uint32),
    "split_k": (2, ctypes.c_int32),
    "reduction": (3, ctypes.c_uint32),
    "swizzle": (4, ctypes.c_uint32),
    "custom": (5, ctypes.c_uint32),
    "stages": (6, ctypes.c_uint32),
    "inner": (7, ctypes.c_uint16),
    "cluster": (8, ctypes.c_uint16),
}
REDUCTIONS = {0: "none", 1: "in place", 2: "compute type", 4: "output type"}  # cublasLtReductionScheme_t
REDUCED_PRECISION = frozenset({1, 4})  # partial sums may be rounded to out's type before they are added


class AlgorithmBlob(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque, may be copied and kept for the same version of the library."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", AlgorithmBlob),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_HANDLE_OUT = ctypes.POINTER(ctypes.c_void_p)

# Every function that is called: its arguments after cublasLt.h. All but the first three return a cublasStatus_t.
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "cublasLtGetVersion": (_SIZE, ()),
    "cublasLtGetStatusName": (ctypes.c_char_p, (_INT,)),
    "cublasLtGetStatusString": (ctypes.c_char_p, (_INT,)),
    "cublasLtCreate": (_INT, (_HANDLE_OUT,)),
    "cublasLtDestroy": (_INT, (_POINTER,)),
    "cublasLtMatmulDescCreate": (_INT, (_HANDLE_OUT, _INT, _INT)),
    "cublasLtMatmulDescDestroy": (_INT, (_POINTER,)),
    "cublasLtMatmulDescSetAttribute": (_INT, (_POINTER, _INT, _POINTER, _SIZE)),
    "cublasLtMatrixLayoutCreate": (_INT, (_HANDLE_OUT, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64)),
    "cublasLtMatrixLayoutDestroy": (_INT, (_POINTER,)),
    "cublasLtMatmulPreferenceCreate": (_INT, (_HANDLE_OUT,)),
    "cublasLtMatmulPreferenceDestroy": (_INT, (_POINTER,)),
    "cublasLtMatmulPreferenceSetAttribute": (_INT, (_POINTER, _INT, _POINTER, _SIZE)),
    "cublasLtMatmulAlgoGetHeuristic": (
        _INT,
        (*[_POINTER] * 7, _INT, ctypes.POINTER(HeuristicResult), ctypes.POINTER(_INT)),
    ),
    "cublasLtMatmulAlgoCheck": (
        _INT,
        (*[_POINTER] * 6, ctypes.POINTER(AlgorithmBlob), ctypes.POINTER(HeuristicResult)),
    ),
    "cublasLtMatmulAlgoConfigGetAttribute": (
        _INT,
        (ctypes.POINTER(AlgorithmBlob), _INT, _POINTER, _SIZE, ctypes.POINTER(_SIZE)),
    ),
    "cublasLtMatmulAlgoCapGetAttribute": (
        _INT,
        (ctypes.POINTER(AlgorithmBlob), _INT, _POINTER, _SIZE, ctypes.POINTER(_SIZE)),
    ),
    # handle, operation, alpha, A, its layout, B, its layout, beta, C, its layout, D, its layout, algorithm, workspace,
    # its bytes, stream
    "cublasLtMatmul": (_INT, (*[_POINTER] * 12, ctypes.POINTER(AlgorithmBlob), _POINTER, _SIZE, _POINTER)),
}


# -- a product as the library sees it ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Strided:
    """One operand as its owner sees it. Units: strides in elements."""

    rows: int
    columns: int
    row_stride: int
    column_stride: int
    dtype: DType
    align_bytes: int = MAX_ALIGNMENT_BYTES

    @property
    def t(self) -> Strided:
        """The transpose: the same memory."""
        return Strided(
            rows=self.columns,
            columns=self.rows,
            row_stride=self.column_stride,
            column_stride=self.row_stride,
            dtype=self.dtype,
            align_bytes=self.align_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A column-major matrix: `rows` adjacent elements, `columns` of them `pitch` elements apart.

    `is_transposed`: what is multiplied is its transpose.
    """

    rows: int
    columns: int
    pitch: int
    dtype: DType
    align_bytes: int
    is_transposed: bool = False

    def __str__(self) -> str:
        turned = "T" if self.is_transposed else "N"
        return f"{turned} {self.rows}x{self.columns} pitch {self.pitch} {self.dtype} at {self.align_bytes}"

    def resized(self, rows: int, columns: int) -> Matrix:
        """A matrix of another size in the same layout: rows of memory that are as well aligned, or as little."""
        if self.is_transposed:
            rows, columns = columns, rows
        step = max(1, 16 // self.dtype.size)
        pitch = rows if self.pitch % step else -(-rows // step) * step
        return Matrix(
            rows=rows,
            columns=columns,
            pitch=pitch,
            dtype=self.dtype,
            align_bytes=self.align_bytes,
            is_transposed=self.is_transposed,
        )


@dataclass(frozen=True, kw_only=True)
class Product:
    """D (rows, columns) = op(A) (rows, k) x op(B) (k, columns), column-major.

    `is_swapped`: A is the caller's b and B the caller's a: a row-major out is the column-major out^T = b^T x a^T.
    """

    a: Matrix
    b: Matrix
    d: Matrix
    is_swapped: bool

    @property
    def size(self) -> tuple[int, int, int]:
        """(rows, columns, k)."""
        return (self.d.rows, self.d.columns, self.a.rows if self.a.is_transposed else self.a.columns)

    @property
    def key(self) -> str:
        """All that the library's choice depends on, but for the device."""
        return " x ".join(map(str, (self.a, self.b))) + f" = {self.d}"

    def resized(self, rows: int, columns: int, k: int) -> Product:
        """The same layouts at another size."""
        return Product(
            a=self.a.resized(rows, k),
            b=self.b.resized(k, columns),
            d=self.d.resized(rows, columns),
            is_swapped=self.is_swapped,
        )


def product_of(a: Strided, b: Strided, out: Strided) -> Product:
    """out (m, n) = a (m, k) x b (k, n) as the library sees it.

    Raises: LayoutError: a layout that it cannot be told.
    """
    direct = _column_major("out", out)
    if direct.is_transposed or out.column_stride == 1:
        return Product(
            a=_column_major("b", b.t), b=_column_major("a", a.t), d=_column_major("out", out.t), is_swapped=True
        )
    return Product(a=_column_major("a", a), b=_column_major("b", b), d=direct, is_swapped=False)


def _column_major(name: str, view: Strided) -> Matrix:
    for each, is_transposed in ((view, False), (view.t, True)):
        if (each.row_stride == 1 or each.rows == 1) and (each.column_stride >= each.rows or each.columns == 1):
            return Matrix(
                rows=each.rows,
                columns=each.columns,
                pitch=max(each.column_stride, each.rows),
                dtype=each.dtype,
                align_bytes=each.align_bytes,
                is_transposed=is_transposed,
            )
    raise LayoutError(
        asked=f"{name} with strides ({view.row_stride}, {view.column_stride}) in cuBLASLt",
        rule="one dimension of each matrix is contiguous and the other's stride passes it",
        works=f"time a contiguous {name}",
    )


# -- what the library offers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm as the library configured it. `blob` is what it knows it by; the rest is what it tells of it."""

    blob: bytes
    attributes: tuple[tuple[str, int], ...]
    workspace_bytes: int = 0
    waves: float = 0.0

    def __getitem__(self, name: str) -> int:
        return dict(self.attributes)[name]

    @property
    def is_reduced_precision(self) -> bool:
        """Whether partial sums are rounded to out's type before they are added."""
        return self["split_k"] != 1 and self["reduction"] in REDUCED_PRECISION

    def facts(self) -> dict[str, Any]:
        """What a row says of it: sizes in words, everything else as the library's number."""
        return dict(self.attributes) | {
            "tile": tile_name(self["tile"]),
            "stages": stages_name(self["stages"]),
            "cluster": cluster_name(self["cluster"]),
            "reduction": REDUCTIONS.get(self["reduction"], str(self["reduction"])),
            "workspace_bytes": self.workspace_bytes,
            "waves": round(self.waves, 3),
        }

    def __str__(self) -> str:
        facts = self.facts()
        words = [f"{facts['tile']} {facts['stages']} cluster {facts['cluster']}", f"id {facts['id']}"]
        words += [f"split-k {facts['split_k']} ({facts['reduction']})"] if facts["split_k"] != 1 else []
        words += [f"{name} {facts[name]}" for name in ("swizzle", "custom", "inner") if facts[name]]
        return " ".join(words)


# cublasLtMatmulTile_t, cublasLtMatmulStages_t and cublasLtClusterShape_t number sizes in families; each is a first few
# of its own and then rows of sizes in order. What is past the end of a table is shown as a number.
_FIRST_TILES = (
    "8x8 8x16 16x8 8x32 16x16 32x8 8x64 16x32 32x16 64x8 32x32 32x64 64x32 32x128 64x64 128x32 64x128 128x64 64x256 "
    "128x128 256x64 64x512 128x256 256x128 512x64 64x96 96x64 96x128 128x160 160x128 192x128 128x192 128x96 32x256 "
    "256x32"
)
_LAST_TILES = "256x512 256x1024 512x512 512x1024"
_CLUSTERS = (
    "1x1 2x1 4x1 1x2 2x2 4x2 1x4 2x4 4x4 8x1 1x8 8x2 2x8 16x1 1x16 3x1 5x1 6x1 7x1 9x1 10x1 11x1 12x1 13x1 14x1 15x1 "
    "3x2 5x2 6x2 7x2 1x3 2x3 3x3 4x3 5x3 3x4 1x5 2x5 3x5 1x6 2x6 1x7 2x7 1x9 1x10 1x11 1x12 1x13 1x14 1x15"
)
_FIRST_CLUSTER = 2
_LATE_STAGES = {
    25: "32x10", 26: "8x4", 27: "16x10", 28: "8x5", 31: "8x3", 32: "8xAUTO", 33: "16xAUTO", 34: "32xAUTO",
    35: "64xAUTO", 36: "128xAUTO", 37: "256xAUTO", 38: "768xAUTO",
}  # fmt: skip


@cache
def tile_names() -> tuple[str, ...]:
    """cublasLtMatmulTile_t from 0 on: rows x columns of D, column-major."""
    names = ["-", *_FIRST_TILES.split()]
    for row_step, column_step, elements in ((8, 64, 768 * 64), (64, 8, 256 * 256)):
        for rows in range(row_step, 768 + 1, row_step):
            columns = range(column_step, min(768, elements // rows) + 1, column_step)
            names += [name for name in (f"{rows}x{each}" for each in columns) if name not in names]
    return (*names, *_LAST_TILES.split())


def tile_name(number: int) -> str:
    """A tile as rows x columns of D."""
    names = tile_names()
    return names[number] if number < len(names) else f"tile {number}"


def stages_name(number: int) -> str:
    """k of one stage x number of stages."""
    if 1 <= number <= 24:
        return f"{16 << (number - 1) // 6}x{(number - 1) % 6 + 1}"
    return _LATE_STAGES.get(number, "-" if number == 0 else f"stages {number}")


def cluster_name(number: int) -> str:
    """CTAs of a cluster, along rows x along columns of D."""
    names = _CLUSTERS.split()
    if _FIRST_CLUSTER <= number < _FIRST_CLUSTER + len(names):
        return names[number - _FIRST_CLUSTER]
    return "auto" if number == 0 else f"cluster {number}"


# -- the library -------------------------------------------------------------------------------------------------------


class Library:
    """libcublasLt with every call guarded. `loaded` is a ctypes library, or a stand-in with the same functions."""

    def __init__(self, loaded: Any) -> None:
        """Raises: UnsupportedError: a function is missing."""
        self.functions: dict[str, Callable[..., Any]] = {}
        for name, (result, arguments) in SIGNATURES.items():
            try:
                function = getattr(loaded, name)
            except AttributeError as missing:
                raise UnsupportedError(
                    asked=f"{name} of libcublasLt",
                    rule="the tuned baseline is written for cuBLAS 12 and 13",
                    works="update nvidia-cublas",
                ) from missing
            function.restype, function.argtypes = result, arguments
            self.functions[name] = function

    @property
    def version(self) -> str:
        """Such as "13.1.0"."""
        number = int(self.functions["cublasLtGetVersion"]())  # 130100; 120805 is 12.8.5
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def call(self, name: str, *arguments: Any) -> None:
        """Raises: LibraryError: any status but success."""
        status = self.functions[name](*arguments)
        if status != SUCCESS:
            raise LibraryError(name, *self.words(status))

    def words(self, status: int) -> tuple[str, str]:
        """A status by its name and in a sentence."""
        name = self.functions["cublasLtGetStatusName"](status)
        text = self.functions["cublasLtGetStatusString"](status)
        return (name or b"").decode() or str(status), (text or b"").decode() or "no explanation"

    @contextmanager
    def made(self, create: str, *arguments: Any) -> Iterator[Any]:
        """A descriptor or handle of the library, destroyed at the end."""
        handle = ctypes.c_void_p()
        self.call(create, ctypes.byref(handle), *arguments)
        try:
            yield handle
        finally:
            self.functions[create.replace("Create", "Destroy")](handle)  # a status here would hide the first error

    def set(self, function: str, handle: Any, attribute: int, value: Any) -> None:
        """One attribute of a descriptor, of `value`'s own ctypes type."""
        self.call(function, handle, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def algorithm(self, result: HeuristicResult) -> Algorithm:
        """What a heuristic's answer holds."""
        attributes = []
        for name, (number, kind) in ATTRIBUTES.items():
            value, written = kind(), ctypes.c_size_t()
            self.call(
                "cublasLtMatmulAlgoConfigGetAttribute",
                result.algorithm,
                number,
                ctypes.byref(value),
                ctypes.sizeof(value),
                ctypes.byref(written),
            )
            attributes.append((name, int(value.value)))
        return Algorithm(
            blob=bytes(result.algorithm),
            attributes=tuple(attributes),
            workspace_bytes=int(result.workspace_bytes),
            waves=float(result.waves),
        )

    def alignments_bytes(self, blob: AlgorithmBlob) -> tuple[int, ...]:
        """What an algorithm needs of the addresses of A, B, C and D; 1 where the library does not say."""
        found = []
        for number in CAP_ALIGNMENTS_BYTES:
            value, written = ctypes.c_uint32(), ctypes.c_size_t()
            status = self.functions["cublasLtMatmulAlgoCapGetAttribute"](
                blob, number, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written)
            )
            found.append(int(value.value) if status == SUCCESS else 1)
        return tuple(found)


class Session:
    """One product on the current device: its descriptors, made once. Closed by `close()`, or as a `with` block."""

    def __init__(self, library: Library, product: Product, workspace_bytes: int, handle: Any = None) -> None:
        """`handle`: another session's, of the same device. Raises: LibraryError."""
        self.library = library
        self.product = product
        self.workspace_bytes = workspace_bytes
        self._open = ExitStack()
        try:
            self.handle = handle or self._made("cublasLtCreate")
            self._operation = self._made("cublasLtMatmulDescCreate", COMPUTE_32F, DATA_TYPES["fp32"])
            for attribute, matrix in ((DESC_TRANSPOSE_A, product.a), (DESC_TRANSPOSE_B, product.b)):
                turned = ctypes.c_int32(int(matrix.is_transposed))
                library.set("cublasLtMatmulDescSetAttribute", self._operation, attribute, turned)
            self._a, self._b, self._d = (self._layout(matrix) for matrix in (product.a, product.b, product.d))
            self._preference = self._made("cublasLtMatmulPreferenceCreate")
            self._prefer(PREF_WORKSPACE_BYTES, ctypes.c_uint64(workspace_bytes))
            for attribute, needed in zip(PREF_ALIGNMENTS_BYTES, self._alignments_bytes(), strict=True):
                self._prefer(attribute, ctypes.c_uint32(needed))
        except BaseException:
            self.close()
            raise

    def heuristics(self, requested: int) -> list[bytes]:
        """The blobs of the algorithms that the library offers, its first choice first; none where it has none.

        Raises: LibraryError: any other answer.
        """
        results = (HeuristicResult * requested)()
        count = ctypes.c_int()
        status = self.library.functions["cublasLtMatmulAlgoGetHeuristic"](
            self.handle, self._operation, self._a, self._b, self._d, self._d, self._preference, requested, results,
            ctypes.byref(count),
        )  # fmt: skip
        if status == NOT_SUPPORTED:
            return []
        if status != SUCCESS:
            raise LibraryError("cublasLtMatmulAlgoGetHeuristic", *self.library.words(status), str(self.product.size))
        return [bytes(result.algorithm) for result in results[: count.value] if result.state == SUCCESS]

    def checked(self, blob: bytes) -> Algorithm | None:
        """The algorithm with what it needs for this very product; None where it cannot run it.

        The library's own check sees no addresses, so what the algorithm asks of them is compared here.
        """
        algorithm, result = AlgorithmBlob.from_buffer_copy(blob), HeuristicResult()
        status = self.library.functions["cublasLtMatmulAlgoCheck"](
            self.handle, self._operation, self._a, self._b, self._d, self._d, algorithm, ctypes.byref(result)
        )
        if status != SUCCESS or result.state != SUCCESS or result.workspace_bytes > self.workspace_bytes:
            return None
        needed = self.library.alignments_bytes(algorithm)
        if any(need > have for need, have in zip(needed, self._alignments_bytes(), strict=True)):
            return None
        result.algorithm = algorithm  # the check leaves it as it was
        return self.library.algorithm(result)

    def launcher(self, blob: bytes, workspace: int, stream: int) -> Callable[[int, int, int], None]:
        """What enqueues out = a x b by one algorithm, given the caller's addresses of a, b and out.

        Calling it raises LibraryError: the library refused the launch.
        """
        function = self.library.functions["cublasLtMatmul"]
        is_swapped = self.product.is_swapped
        head = (self.handle, self._operation, ctypes.byref(ctypes.c_float(1.0)))
        zero = ctypes.byref(ctypes.c_float(0.0))
        tail = (self._d, AlgorithmBlob.from_buffer_copy(blob), workspace, self.workspace_bytes, stream)

        def launch(a: int, b: int, out: int) -> None:
            left, right = (b, a) if is_swapped else (a, b)
            status = function(*head, left, self._a, right, self._b, zero, out, self._d, out, *tail)
            if status != SUCCESS:
                raise LibraryError("cublasLtMatmul", *self.library.words(status), str(self.product.size))

        return launch

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        self._open.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _made(self, create: str, *arguments: Any) -> Any:
        return self._open.enter_context(self.library.made(create, *arguments))

    def _layout(self, matrix: Matrix) -> Any:
        kind = DATA_TYPES[matrix.dtype.name]
        return self._made("cublasLtMatrixLayoutCreate", kind, matrix.rows, matrix.columns, matrix.pitch)

    def _prefer(self, attribute: int, value: Any) -> None:
        self.library.set("cublasLtMatmulPreferenceSetAttribute", self._preference, attribute, value)

    def _alignments_bytes(self) -> tuple[int, int, int, int]:
        """Of A, B, C and D; C is D."""
        product = self.product
        return (product.a.align_bytes, product.b.align_bytes, product.d.align_bytes, product.d.align_bytes)


def alignment_bytes(*addresses: int) -> int:
    """The largest power of two up to MAX_ALIGNMENT_BYTES that divides them all."""
    together = MAX_ALIGNMENT_BYTES
    for address in addresses:
        together |= address
    return together & -together


@cache
def library() -> Library:
    """The libcublasLt that torch has loaded into this process, else the one that is installed.

    Raises: UnsupportedError: there is none.
    """
    for name in SONAMES:
        try:
            return Library(ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
        except OSError:  # not loaded: the next name, and then the installed one
            continue
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib  # asks the disk: only when asked for

    try:
        path = load_nvidia_dynamic_lib("cublasLt").abs_path
        return Library(ctypes.CDLL(path))
    except (DynamicLibNotFoundError, OSError, RuntimeError) as missing:
        raise UnsupportedError(
            asked="cuBLASLt's algorithms",
            rule=f"none of {', '.join(SONAMES)} is loaded or installed",
            works="install torch with CUDA, or nvidia-cublas",
        ) from missing
