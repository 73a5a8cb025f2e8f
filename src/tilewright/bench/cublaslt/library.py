"""libcublasLt through ctypes: every call guarded, and a product with its algorithms asked for, checked and launched.

Knows nothing of time, of torch or of which algorithm is good. Sizes, enum values and attribute types: cublasLt.h,
cublas_api.h and library_types.h of cuBLAS 13.1; those of 12.8 are the same. A test compares what it can with the
library itself, where one is installed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from tilewright.bench.cublaslt.algorithm import ATTRIBUTES, Algorithm
from tilewright.bench.cublaslt.product import Matrix, Product
from tilewright.errors import LibraryError, UnsupportedError

# The libraries that torch's wheels for CUDA 13 and 12 load, by the name that the loader knows them by.
SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")

SUCCESS, NOT_SUPPORTED = 0, 15  # cublasStatus_t
COMPUTE_32F = 68  # cublasComputeType_t: exact products, sums in fp32
DATA_TYPES = {"fp32": 0, "fp16": 2, "bf16": 14}  # cudaDataType_t
DESC_TRANSPOSE_A, DESC_TRANSPOSE_B = 3, 4  # cublasLtMatmulDescAttributes_t, a cublasOperation_t each: 0 N, 1 T
PREF_WORKSPACE_BYTES, PREF_ALIGNMENTS_BYTES = 1, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t; of A, B, C, D
CAP_ALIGNMENTS_BYTES = (16, 17, 18, 19)  # cublasLtMatmulAlgoCapAttributes_t; of A, B, C, D


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


@cache
def installed() -> Library:
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
