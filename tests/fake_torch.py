"""A module that answers as torch does where the torch adapter asks, with tensors on a pretended GPU.

For machines without torch, and for counting: every access of a tensor is an ordinary Python call in this file.
"""

from __future__ import annotations

import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from fakes import gpu
from tilewright.layout import row_major_strides

_NAMES = ("bfloat16", "float16", "float32", "float64", "int8", "int32", "uint8", "complex64")


class DType:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


class Device:
    def __init__(self, kind: str, index: int) -> None:
        self.type, self.index = kind, index

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


STRIDED = "torch.strided"


class Tensor:
    """One strided tensor; `host` is its memory, as a NumPy view."""

    __torch_dispatch__ = None
    layout = STRIDED
    is_nested = is_quantized = is_meta = False

    def __init__(self, host: np.ndarray, module: ModuleType, kind: str = "cuda", index: int = 0) -> None:
        self.host = host
        self.module = module
        self.dtype = getattr(module, host.dtype.name)
        self.shape = tuple(host.shape)
        self.device = Device(kind, index)
        self.requires_grad = False
        self.negative = False
        self.version = 0

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.host.itemsize for stride in self.host.strides)

    def data_ptr(self) -> int:
        return self.host.ctypes.data if self.host.size else 0

    def get_device(self) -> int:
        return self.device.index if self.device.type == "cuda" else -1

    def is_neg(self) -> bool:
        return self.negative

    def _is_zerotensor(self) -> bool:
        return False

    def t(self) -> Tensor:
        return Tensor(self.host.T, self.module, self.device.type, self.device.index)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.host[index], self.module, self.device.type, self.device.index)


class Parameter(Tensor):
    """As torch.nn.Parameter: a subclass that owns plain memory."""


def make_torch(streams: dict[int, int] | None = None) -> ModuleType:
    """A fresh stand-in. `streams` are the raw current streams by device; `grad_enabled` and `current` may be set."""
    module = ModuleType("torch")
    state: Any = module
    state.Tensor = Tensor
    state.strided = STRIDED
    state.grad_enabled = True
    state.current = 0
    for name in _NAMES:
        setattr(module, name, DType(name))
    state.is_grad_enabled = lambda: state.grad_enabled
    raw = streams or {}

    def increment(tensors: tuple[Tensor]) -> None:
        for tensor in tensors:
            tensor.version += 1

    def empty(shape: tuple[int, ...] | int, dtype: DType, device: str) -> Tensor:
        if dtype.name == "uint8":
            raw = np.full(shape + 512, 0xFF, np.uint8)
            start = -raw.ctypes.data % 512  # as torch's caching allocator aligns
            state.scratch.append(weakref.ref(raw))
            return Tensor(raw[start : start + shape], module, *_parse(device))
        fill = 7.0 if dtype.name == "int32" else float("nan")
        return Tensor(gpu(shape, dtype.name, fill=fill).host, module, *_parse(device))

    def empty_strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Tensor:
        assert strides == row_major_strides(shape)
        return empty(shape, dtype, f"cuda:{state.current}")

    state.empty = empty
    state.scratch = []  # references to what was allocated as bytes
    state._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda ordinal: raw.get(ordinal, 0),
        _cuda_getDevice=lambda: state.current,
        _increment_version=increment,
        _dynamo=SimpleNamespace(guards=SimpleNamespace(_empty_strided_cuda=empty_strided)),
    )
    return module


def _parse(device: str) -> tuple[str, int]:
    kind, _, index = device.partition(":")
    return kind, int(index or 0)
