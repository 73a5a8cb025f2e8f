"""JAX arrays, outside of jit. JAX itself is never imported here.

A JAX array does not change and is ordered by streams of XLA's own, which nobody outside can enqueue on. So inputs come
through DLPack, which makes the legacy default stream wait for whatever still writes them; the result is a fresh array
that no one has seen, filled there; and the call returns when it is written, because JAX could not be told to wait.
"""

from __future__ import annotations

import sys
from typing import Any

from tilewright.arrays.dlpack import DLPackAdapter
from tilewright.dtypes import DType
from tilewright.errors import LayoutError, UnsupportedError
from tilewright.tensor import View


class JaxAdapter(DLPackAdapter):
    """jax.Array; and the tracers of jit, grad and vmap, which are refused."""

    library = "jax"
    waits = True

    def __init__(self) -> None:
        self._jax: Any = sys.modules["jax"]

    @staticmethod
    def owns(kind: type) -> bool:
        array = getattr(sys.modules.get("jax"), "Array", None)
        return array is not None and (issubclass(kind, array) or issubclass(kind, _tracer()))

    @staticmethod
    def refusal_of(kind: type) -> tuple[str, str] | None:
        if not issubclass(kind, _tracer()):
            return None
        return (
            "under jax.jit, grad and vmap it stands for numbers that are not there yet",
            "call tilewright on arrays, outside of what JAX traces; inside use jax.numpy.matmul",
        )

    def view(self, array: Any, name: str, is_written: bool = False) -> View:
        if is_written:
            raise LayoutError(
                asked=f"{name}, a JAX array",
                rule="JAX arrays do not change",
                works="leave out out: a fresh array is returned" if name == "out" else "leave that step out",
            )
        if len(array.devices()) != 1:
            raise UnsupportedError(
                asked=f"{name} on {len(array.devices())} devices",
                rule="a product runs on the one device that holds its operands",
                works="pass one shard of it, x.addressable_data(0), or jax.device_put(x, device)",
            )
        return super().view(array, name, is_written)

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, ordinal: int) -> tuple[Any, int]:
        device = next(each for each in self._jax.local_devices(backend="cuda") if each.local_hardware_id == ordinal)
        array = self._jax.numpy.empty(shape, dtype=dtype.numpy, device=device).block_until_ready()
        return array, int(array.unsafe_buffer_pointer()) if 0 not in shape else 0


def _tracer() -> type:
    tracer: type = sys.modules["jax"].core.Tracer
    return tracer
