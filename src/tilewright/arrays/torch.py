"""torch tensors, through attributes that cost tens of nanoseconds each. torch itself is never imported here."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any

from tilewright.arrays.base import ADDRESS_MASK, Adapter, asking, named_dtype
from tilewright.dtypes import STORED, DType
from tilewright.errors import UnsupportedError
from tilewright.tensor import Location, View

_NO_FORWARD_AD = SimpleNamespace(_current_level=-1)  # no level is ever open


class TorchAdapter(Adapter):
    """torch.Tensor and its subclasses that own plain memory."""

    library = "torch"

    def __init__(self) -> None:
        self._torch: Any = sys.modules["torch"]
        spellings = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int8": "int8", "int32": "int32"}
        self._dtypes = {dtype.name: getattr(self._torch, spellings[dtype.name]) for dtype in STORED}
        self._bf16 = self._dtypes["bf16"]
        private = self._torch._C
        # torch's own compiled code calls these three; each has a documented, slower stand-in below.
        self._raw_stream: Callable[[int], int] | None = getattr(private, "_cuda_getCurrentRawStream", None)
        self._current: Callable[[], int] | None = getattr(private, "_cuda_getDevice", None)
        guards = getattr(getattr(private, "_dynamo", None), "guards", None)
        self._empty_strided: Callable[..., Any] | None = getattr(guards, "_empty_strided_cuda", None)
        self.written = getattr(private, "_increment_version", _one_by_one(self._torch))
        self._forward = getattr(getattr(self._torch, "autograd", None), "forward_ad", _NO_FORWARD_AD)
        if not hasattr(self._forward, "_current_level"):  # a torch whose level has another name: each call asks it
            self._forward = SimpleNamespace(_current_level=0, unpack_dual=self._forward.unpack_dual)
        if self._raw_stream is not None:
            self.stream = self._raw_stream  # type: ignore[method-assign]  # the warm path calls the C function itself

    @staticmethod
    def owns(kind: type) -> bool:
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)
        return tensor is not None and issubclass(kind, tensor)

    @staticmethod
    def refusal_of(kind: type) -> tuple[str, str] | None:
        """Classes that give torch's operations a meaning of their own: what their memory holds is not their value."""
        torch = sys.modules["torch"]
        private = getattr(torch, "_C", None)
        for name, works in (
            ("__torch_dispatch__", "pass the plain tensor that it stands for, such as .to_local() of a DTensor"),
            ("__torch_function__", "pass the plain tensor that it stands for, such as x.as_subclass(torch.Tensor)"),
        ):
            plain = (
                inspect.getattr_static(torch.Tensor, name, None),
                getattr(private, f"_disabled{name.removesuffix('__').removeprefix('_')}_impl", None),
            )
            if inspect.getattr_static(kind, name, None) not in plain:
                return f"its class has a {name} of its own, which a kernel does not run", works
        return None

    def describe(self, a: Any, b: Any, out: Any | None) -> tuple[Hashable, tuple[int, ...], int | None]:
        """Cost: 1.5 us with out (measured, 2-core x86 host, 2026-11-30), about half of all that one call costs here.

        A tensor with the negative bit shares its base's address and metadata but not its values, and a dual tensor of
        forward-mode differentiation has its primal's: so both are asked after on each call (0.08 us a bit, and 0.03 for
        the level, on the same host). Not of bf16: torch's public functions set that bit in parts of complex tensors
        alone, which are fp16 and fp32.
        """
        a_dtype, b_dtype = a.dtype, b.dtype
        try:
            if out is None:
                if a.requires_grad or b.requires_grad:
                    self._check_gradients(a, b, None)
                if self._forward._current_level >= 0:
                    self._check_tangents(a, b, None)
                if not (a_dtype is b_dtype is self._bf16) and (a.is_neg() or b.is_neg()):
                    self._view_all(a, b, None)
                key: Hashable = (
                    a.shape, a.stride(), a_dtype, a.get_device(),
                    b.shape, b.stride(), b_dtype, b.get_device(),
                )  # fmt: skip
                return key, (a.data_ptr(), b.data_ptr()), None
            out_dtype = out.dtype
            if a.requires_grad or b.requires_grad or out.requires_grad:
                self._check_gradients(a, b, out)
            if self._forward._current_level >= 0:
                self._check_tangents(a, b, out)
            if not (a_dtype is b_dtype is out_dtype is self._bf16) and (a.is_neg() or b.is_neg() or out.is_neg()):
                self._view_all(a, b, out)
            address = out.data_ptr()
            key = (
                a.shape, a.stride(), a_dtype, a.get_device(),
                b.shape, b.stride(), b_dtype, b.get_device(),
                out.shape, out.stride(), out_dtype, out.get_device(), address & ADDRESS_MASK,
            )  # fmt: skip
            return key, (a.data_ptr(), b.data_ptr(), address), None
        except RuntimeError:  # sparse, nested and wrapped tensors have no strides or no address: view() names them
            self._view_all(a, b, out)
            raise

    def described(self, array: Any, name: str, is_written: bool = False) -> tuple[Hashable, int, int | None]:
        try:
            if array.requires_grad and self._torch.is_grad_enabled():
                raise _records_gradients([name], name)
            if self._forward._current_level >= 0:
                self._check_tangent(name, array)
            dtype = array.dtype
            if dtype is not self._bf16 and array.is_neg():  # as in describe()
                self.view(array, name)
            return (array.shape, array.stride(), dtype, array.get_device()), array.data_ptr(), None
        except RuntimeError:  # as in describe()
            self.view(array, name)
            raise

    def view(self, array: Any, name: str, is_written: bool = False) -> View:
        refusal = self._refusal(array)
        if refusal is not None:
            what, works = refusal
            raise UnsupportedError(
                asked=f"{name}, a {what} tensor", rule="kernels read and write plain strided memory", works=works
            )
        dtype = named_dtype(str(array.dtype), name)
        kind = array.device.type
        if kind not in ("cuda", "cpu"):
            raise UnsupportedError(
                asked=f"{name} on {array.device}",
                rule="kernels run on NVIDIA GPUs",
                works=f"use {asking(name, '.cuda()')}",
            )
        location = Location("cuda", array.get_device()) if kind == "cuda" else Location("host", 0)
        try:
            address = array.data_ptr()
        except RuntimeError as failure:  # torch says that there is no storage, as under vmap or another transform
            raise UnsupportedError(
                asked=f"{name}, a {type(array).__name__} that torch gives no address for",
                rule=str(failure).splitlines()[0],
                works="call matmul outside of torch.func transforms",
            ) from failure
        return View(address, tuple(array.shape), tuple(array.stride()), dtype, location)

    def _refusal(self, array: Any) -> tuple[str, str] | None:
        """What kind of tensor without plain memory this is, and what would work; None for a plain one."""
        torch = self._torch
        if array.is_nested:
            return "nested", "use .to_padded_tensor(0.0)"
        if array.layout != torch.strided:
            return str(array.layout).removeprefix("torch."), "use .to_dense()"
        if array.is_quantized:
            return "quantized", "use .dequantize() and cast to bfloat16 or float16"
        if array.is_meta:
            return "meta", "give it memory on the GPU, such as torch.empty_like(x, device='cuda')"
        if array.is_neg():
            return "lazily negated", "use .resolve_neg()"
        if array._is_zerotensor():
            return "zero", "use .clone()"
        return None

    def _view_all(self, a: Any, b: Any, out: Any | None) -> None:
        """Raises the typed refusal of whichever operand has one."""
        self.view(a, "a")
        self.view(b, "b")
        if out is not None:
            self.view(out, "out")

    def _check_gradients(self, a: Any, b: Any, out: Any | None) -> None:
        if not self._torch.is_grad_enabled():
            return
        wanting = [name for name, x in (("a", a), ("b", b), ("out", out)) if x is not None and x.requires_grad]
        raise _records_gradients(wanting, wanting[0])

    def _check_tangents(self, a: Any, b: Any, out: Any | None) -> None:
        """Raises UnsupportedError for a dual tensor: its tangent would be lost, or an out would keep its old one."""
        for name, array in (("a", a), ("b", b), ("out", out)):
            if array is not None:
                self._check_tangent(name, array)

    def _check_tangent(self, name: str, array: Any) -> None:
        if self._forward.unpack_dual(array).tangent is not None:
            raise UnsupportedError(
                asked=f"{name}, a dual tensor of forward-mode differentiation",
                rule="matmul runs outside of autograd: its result would have no tangent",
                works=f"pass torch.autograd.forward_ad.unpack_dual({name if name.isidentifier() else 'x'}).primal, "
                "or use torch.matmul",
            )

    def stream(self, ordinal: int) -> int:
        """Cost: 0.2 us through the raw getter, 8 us through the stand-in (measured, H200's host, 2026-11-29)."""
        if self._raw_stream is not None:
            return self._raw_stream(ordinal)
        return int(self._torch.cuda.current_stream(ordinal).cuda_stream)

    def current_ordinal(self) -> int:
        return int(self._torch.cuda.current_device() if self._current is None else self._current())

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, ordinal: int) -> tuple[Any, int]:
        """Cost: a quarter of torch.empty's, through the allocator of torch's compiled code (the current device's)."""
        kind = self._dtypes[dtype.name]
        if self._empty_strided is not None and self.current_ordinal() == ordinal:
            array = self._empty_strided(shape, strides, kind)
        else:
            array = self._torch.empty(shape, dtype=kind, device=f"cuda:{ordinal}")
        return array, array.data_ptr()

    def scratch(self, num_bytes: int, ordinal: int) -> tuple[Any, int]:
        """A tensor of the caching allocator, which belongs to the current stream, or inside a capture to the graph.

        Its addresses are multiples of 512 bytes.
        """
        memory = self._torch.empty(num_bytes, dtype=self._torch.uint8, device=f"cuda:{ordinal}")
        return memory, memory.data_ptr()


def _records_gradients(names: list[str], first: str) -> UnsupportedError:
    return UnsupportedError(
        asked=f"a product that records gradients ({' and '.join(names)} requires grad)",
        rule="matmul runs outside of autograd: its result would have no gradient",
        works=f"pass {asking(first, '.detach()')} or call it under torch.no_grad()",
    )


def _one_by_one(torch: Any) -> Callable[[tuple[Any]], None]:
    """torch.autograd.graph.increment_version for a torch whose C function has another name."""

    def written(tensors: tuple[Any]) -> None:
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)

    return written
