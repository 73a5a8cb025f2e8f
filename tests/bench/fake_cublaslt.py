"""A libcublasLt of C function pointers made of Python: it multiplies in host memory what its descriptors describe.

The prototypes here are written out from cublasLt.h and not taken from the code under test, so that an argument of
another type or order arrives as nonsense. It refuses what the real library refuses: unknown attributes, wrong sizes of
attributes, handles that are not its own.
"""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

OK, INVALID, NOT_SUPPORTED, EXECUTION_FAILED = 0, 7, 15, 13
NAMES = {
    status: ctypes.create_string_buffer(name)
    for status, name in (
        (OK, b"CUBLAS_STATUS_SUCCESS"),
        (INVALID, b"CUBLAS_STATUS_INVALID_VALUE"),
        (NOT_SUPPORTED, b"CUBLAS_STATUS_NOT_SUPPORTED"),
        (EXECUTION_FAILED, b"CUBLAS_STATUS_EXECUTION_FAILED"),
    )
}
SENTENCE = ctypes.create_string_buffer(b"as the fake was told")
TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
ATTRIBUTE_BYTES = (4, 4, 4, 4, 4, 4, 4, 2, 2)
Size = tuple[int, int, int]


@dataclass(frozen=True)
class FakeAlgorithm:
    """What the fake owns. `config` is ID, TILE, SPLITK, REDUCTION, SWIZZLE, CUSTOM, STAGES, INNER, CLUSTER."""

    number: int
    us: float
    config: tuple[int, ...] = (66, 20, 1, 0, 0, 0, 35, 0, 3)
    workspace_bytes: int = 0
    align_bytes: int = 2
    status: int = OK
    error: float = 0.0  # added to every element of its result
    runs: Callable[[Size], bool] = lambda size: True

    @property
    def blob(self) -> bytes:
        return struct.pack("<8Q", self.number, *[0xA160] * 7)


@dataclass
class FakeCublasLt:
    """`offers` says which algorithms the heuristic gives for a size (rows, columns, k), the first choice first."""

    algorithms: list[FakeAlgorithm]
    offers: Callable[[Size], list[int]]
    work: Callable[[str, float], None] = lambda name, us: None
    computes: bool = True
    version: int = 130100
    heuristic_status: Callable[[Size], int] = lambda size: OK
    fails: str = ""  # a function whose every call is INVALID
    counts: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[Size, dict[int, int]]] = field(default_factory=list)
    handles: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        v = c_void_p
        for name, prototype, body in (
            ("cublasLtGetVersion", CFUNCTYPE(c_size_t), lambda: self.version),
            ("cublasLtGetStatusName", CFUNCTYPE(v, c_int), lambda status: ctypes.addressof(NAMES[status])),
            ("cublasLtGetStatusString", CFUNCTYPE(v, c_int), lambda status: ctypes.addressof(SENTENCE)),
            ("cublasLtCreate", CFUNCTYPE(c_int, v), lambda out: self._make(out, kind="context")),
            (
                "cublasLtMatmulDescCreate",
                CFUNCTYPE(c_int, v, c_int, c_int),
                lambda out, compute, scale: self._make(out, kind="operation", compute=compute, scale=scale, set={}),
            ),
            ("cublasLtMatmulDescSetAttribute", CFUNCTYPE(c_int, v, c_int, v, c_size_t), self._set_operation),
            (
                "cublasLtMatrixLayoutCreate",
                CFUNCTYPE(c_int, v, c_int, c_uint64, c_uint64, c_int64),
                lambda out, dtype, rows, columns, pitch: self._make(
                    out, kind="layout", dtype=dtype, rows=rows, columns=columns, pitch=pitch
                ),
            ),
            (
                "cublasLtMatmulPreferenceCreate",
                CFUNCTYPE(c_int, v),
                lambda out: self._make(out, kind="preference", set={}),
            ),
            ("cublasLtMatmulPreferenceSetAttribute", CFUNCTYPE(c_int, v, c_int, v, c_size_t), self._set_preference),
            ("cublasLtMatmulAlgoGetHeuristic", CFUNCTYPE(c_int, v, v, v, v, v, v, v, c_int, v, v), self._heuristic),
            ("cublasLtMatmulAlgoCheck", CFUNCTYPE(c_int, v, v, v, v, v, v, v, v), self._check),
            ("cublasLtMatmulAlgoConfigGetAttribute", CFUNCTYPE(c_int, v, c_int, v, c_size_t, v), self._attribute),
            ("cublasLtMatmulAlgoCapGetAttribute", CFUNCTYPE(c_int, v, c_int, v, c_size_t, v), self._capability),
            (
                "cublasLtMatmul",
                CFUNCTYPE(c_int, v, v, v, v, v, v, v, v, v, v, v, v, v, v, c_size_t, v),
                self._matmul,
            ),
            *(
                (f"cublasLt{what}Destroy", CFUNCTYPE(c_int, v), self._destroy)
                for what in ("", "MatmulDesc", "MatrixLayout", "MatmulPreference")
            ),
        ):
            setattr(self, name, prototype(self._guarded(name, body)))

    def _guarded(self, name: str, body: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            self.counts[name] += 1
            if name == self.fails:
                return INVALID
            try:
                return body(*arguments)
            except KeyError:  # a handle, a type or an algorithm that is not the fake's own
                return INVALID

        return function

    def _make(self, out: int, **what: Any) -> int:
        handle = 0x1000 + 16 * self.counts.total()
        self.handles[handle] = what
        c_void_p.from_address(out).value = handle
        return OK

    def _destroy(self, handle: int) -> int:
        del self.handles[handle]
        return OK

    def _set_operation(self, handle: int, attribute: int, value: int, size: int) -> int:
        if attribute not in (3, 4) or size != 4:
            return INVALID
        self._own(handle, "operation")["set"][attribute] = ctypes.c_int32.from_address(value).value
        return OK

    def _set_preference(self, handle: int, attribute: int, value: int, size: int) -> int:
        kind = {1: c_uint64, 5: ctypes.c_uint32, 6: ctypes.c_uint32, 7: ctypes.c_uint32, 8: ctypes.c_uint32}[attribute]
        if size != ctypes.sizeof(kind):
            return INVALID
        self._own(handle, "preference")["set"][attribute] = kind.from_address(value).value
        return OK

    def _own(self, handle: int, kind: str) -> dict[str, Any]:
        found = self.handles[handle]
        if found["kind"] != kind:
            raise KeyError(kind)
        return found

    def _size(self, operation: int, a: int, b: int, d: int) -> Size:
        turned = self._own(operation, "operation")["set"]
        left, right, out = (self._own(handle, "layout") for handle in (a, b, d))
        rows, k = (left["columns"], left["rows"]) if turned[3] else (left["rows"], left["columns"])
        k_too, columns = (right["columns"], right["rows"]) if turned[4] else (right["rows"], right["columns"])
        if (rows, columns, k) != (out["rows"], out["columns"], k_too):
            raise KeyError("sizes")
        if any(layout["pitch"] < layout["rows"] for layout in (left, right, out)):
            raise KeyError("pitch")
        return rows, columns, k

    def _heuristic(self, context: int, operation: int, a: int, b: int, c: int, d: int, preference: int,
                   requested: int, results: int, count: int) -> int:  # fmt: skip
        self._own(context, "context")
        size = self._size(operation, a, b, d)
        wanted = dict(self._own(preference, "preference")["set"])
        self.asked.append((size, wanted))
        if (status := self.heuristic_status(size)) != OK:
            return status
        by_number = {algorithm.number: algorithm for algorithm in self.algorithms}
        offered = [by_number[number] for number in self.offers(size)]
        offered = [algorithm for algorithm in offered if algorithm.workspace_bytes <= wanted[1]][:requested]
        for index, algorithm in enumerate(offered):
            ctypes.memmove(results + 96 * index, self._result(algorithm), 96)
        c_int.from_address(count).value = len(offered)
        return OK

    @staticmethod
    def _result(algorithm: FakeAlgorithm) -> bytes:
        return algorithm.blob + struct.pack("<QifIIII", algorithm.workspace_bytes, OK, 0.75, 0, 0, 0, 0)

    def _algorithm(self, at: int) -> FakeAlgorithm:
        number, *rest = struct.unpack("<8Q", ctypes.string_at(at, 64))
        if rest != [0xA160] * 7:
            raise KeyError("no algorithm")
        return {algorithm.number: algorithm for algorithm in self.algorithms}[number]

    def _check(self, context: int, operation: int, a: int, b: int, c: int, d: int, at: int, result: int) -> int:
        algorithm = self._algorithm(at)
        if not algorithm.runs(self._size(operation, a, b, d)):
            return NOT_SUPPORTED
        ctypes.memmove(result + 64, self._result(algorithm)[64:], 32)  # the algorithm itself is never updated
        return OK

    def _attribute(self, at: int, number: int, value: int, size: int, written: int) -> int:
        if not 0 <= number < 9 or size != ATTRIBUTE_BYTES[number]:
            return INVALID
        ctypes.memmove(value, self._algorithm(at).config[number].to_bytes(size, "little"), size)
        c_size_t.from_address(written).value = size
        return OK

    def _capability(self, at: int, number: int, value: int, size: int, written: int) -> int:
        if number not in (16, 17, 18, 19) or size != 4:
            return INVALID
        ctypes.c_uint32.from_address(value).value = self._algorithm(at).align_bytes
        return OK

    def _matmul(self, context: int, operation: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
                beta: int, c: int, c_layout: int, d: int, d_layout: int, at: int, workspace: int, workspace_bytes: int,
                stream: int | None) -> int:  # fmt: skip
        algorithm = self._algorithm(at)
        self._own(context, "context")
        self._size(operation, a_layout, b_layout, d_layout)
        scales = [ctypes.c_float.from_address(each).value for each in (alpha, beta)]
        if (c, c_layout) != (d, d_layout) or scales != [1.0, 0.0] or algorithm.workspace_bytes > workspace_bytes:
            return INVALID
        if algorithm.status != OK:
            return algorithm.status
        self.counts[f"ran {algorithm.number}"] += 1
        self.work(str(algorithm.number), algorithm.us)
        if self.computes:
            turned = self._own(operation, "operation")["set"]
            left, right, out = (self._matrix(*each) for each in ((a, a_layout), (b, b_layout), (d, d_layout)))
            left, right = (left.T if turned[3] else left), (right.T if turned[4] else right)
            out[...] = left.astype(np.float32) @ right.astype(np.float32) + algorithm.error
        return OK

    def _matrix(self, address: int, handle: int) -> Any:
        layout = self._own(handle, "layout")
        dtype = TYPES[layout["dtype"]]
        elements = (layout["columns"] - 1) * layout["pitch"] + layout["rows"]
        memory = np.frombuffer((ctypes.c_uint8 * (elements * dtype.itemsize)).from_address(address), np.uint8)
        strides = (dtype.itemsize, layout["pitch"] * dtype.itemsize)
        return np.ndarray((layout["rows"], layout["columns"]), dtype, memory.data, strides=strides)
