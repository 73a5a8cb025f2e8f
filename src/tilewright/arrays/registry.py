"""Which adapter serves an array: one dictionary by type, filled at the first sight of each type.

Knows the order in which libraries and protocols are asked; knows nothing of any of them.
"""

from __future__ import annotations

from typing import Any

from tilewright.arrays.base import Adapter
from tilewright.arrays.cuda_interface import CudaInterfaceAdapter
from tilewright.arrays.cupy import CupyAdapter
from tilewright.arrays.dlpack import DLPackAdapter
from tilewright.arrays.jax import JaxAdapter
from tilewright.arrays.numpy import NumpyAdapter
from tilewright.arrays.torch import TorchAdapter
from tilewright.arrays.untraced import tell_torch, untraced
from tilewright.errors import UnsupportedError

# A library's own adapter before the protocols that it speaks as well. DLPack before the CUDA array interface: it says
# which device holds the array, and orders its producer's stream before ours.
_KINDS: tuple[type[Adapter], ...] = (
    TorchAdapter,
    CupyAdapter,
    NumpyAdapter,
    JaxAdapter,
    DLPackAdapter,
    CudaInterfaceAdapter,
)

MAX_TYPES = 256  # a program that makes array classes without end must not fill the dictionary

_instances: dict[type[Adapter], Adapter] = {}

# Read on every call. An entry depends on its type alone, so nothing ever has to be dropped.
BY_TYPE: dict[type, Adapter] = {}


def adapter_of(array: Any, name: str) -> Adapter:
    """The adapter of operand `name`.

    Raises: UnsupportedError: an object of no known library and no known protocol, or of a type that is refused whole.
    """
    found = BY_TYPE.get(type(array))
    return found if found is not None else _met(type(array), name)


@untraced
def _met(kind: type, name: str) -> Adapter:
    """The adapter of a type that is met for the first time."""
    tell_torch()
    for adapter_kind in _KINDS:
        if adapter_kind.owns(kind):
            if (refused := adapter_kind.refusal_of(kind)) is not None:
                rule, works = refused
                raise UnsupportedError(asked=f"{name}, a {kind.__qualname__} tensor", rule=rule, works=works)
            found = _instances.setdefault(adapter_kind, adapter_kind())
            if len(BY_TYPE) >= MAX_TYPES:
                BY_TYPE.clear()
            BY_TYPE[kind] = found
            return found
    raise UnsupportedError(
        asked=f"{name}, a {kind.__module__}.{kind.__qualname__}",
        rule="arrays are those of torch, CuPy, NumPy, JAX, and anything with __dlpack__ or __cuda_array_interface__",
        works="make an array of one of them on the GPU, or a NumPy array for the emulator",
    )


@untraced
def common_adapter(a: Any, b: Any, out: Any | None) -> Adapter:
    """The one adapter of all operands.

    Raises: UnsupportedError: operands of two libraries, whose streams nothing orders.
    """
    adapter = adapter_of(a, "a")
    for name, array in (("b", b), ("out", out)):
        if array is None and name == "out":
            continue
        other = adapter_of(array, name)
        if other is not adapter:
            raise UnsupportedError(
                asked=f"a of {adapter.library} and {name} of {other.library}",
                rule="the operands of one product belong to one library, whose stream orders them",
                works=f"convert {name}, for example with from_dlpack of {adapter.library}",
            )
    return adapter
