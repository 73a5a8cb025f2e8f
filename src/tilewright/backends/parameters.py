"""The parameter block of a launch: where each argument lies, and the block filled for one set of addresses.

Knows nothing of the driver: whoever packs hands in the function that encodes a tensor map.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from tilewright.backends.base import (
    TENSOR_MAP_ALIGNMENT_BYTES,
    TENSOR_MAP_BYTES,
    Argument,
    IntArgument,
    IntsArgument,
    Launch,
    MapArgument,
    StructArgument,
    TensorMap,
)
from tilewright.errors import UnsupportedError

MAX_CACHED_MAPS = 256  # encoded maps kept by one plan, over all its arguments: 32 KiB
POINTER_BYTES = 8
_ADDRESS = struct.Struct("<Q")


class Packer:
    """The layout of one plan's parameter block, worked out once.

    Shapes: a head of up to 63 bytes so that tensor maps lie on multiples of 64, the parameters in order, each at its
    own alignment, then the array of pointers to them that cuLaunchKernelEx takes.
    `encoder` turns a tensor map into a function from an address to the map's bytes.
    `configs` holds what the backend prepared for each stream: it depends on the launch alone, not on addresses.
    """

    def __init__(
        self,
        launch: Launch,
        arguments: tuple[Argument, ...],
        encoder: Callable[[TensorMap], Callable[[int], bytes]],
    ) -> None:
        """Raises: UnsupportedError: a number that its parameter does not hold. And whatever `encoder` raises for a map
        that no address could make legal."""
        self.launch = launch
        self.arguments = arguments
        self.configs: dict[int, Any] = {}
        self.maps: dict[tuple[int, int], bytes] = {}  # (offset, address) -> encoded map
        offset = 0
        offsets: list[int] = []
        numbers: list[tuple[int, bytes]] = []
        self._encoders: list[tuple[int, str, int, Callable[[int], bytes]]] = []  # offset, operand, further, encode
        self._addresses: list[tuple[int, str]] = []  # offset, operand or the name of a number
        for argument in arguments:
            size, alignment = _size_and_alignment(argument)
            offset = -(-offset // alignment) * alignment
            offsets.append(offset)
            if isinstance(argument, MapArgument):
                encode = encoder(argument.tensor_map)
                self._encoders.append((offset, argument.operand, argument.offset_bytes, encode))
            elif isinstance(argument, IntArgument):
                numbers.append((offset, number_bytes(argument.name, argument.value, size)))
            elif isinstance(argument, IntsArgument):
                raw = b"".join(number_bytes(argument.name, value, POINTER_BYTES) for value in argument.values)
                numbers.append((offset, raw))
            elif isinstance(argument, StructArgument):
                for index, part in enumerate(argument.parts):
                    at = offset + POINTER_BYTES * index
                    if isinstance(part, IntArgument):
                        numbers.append((at, number_bytes(part.name, part.value, POINTER_BYTES)))
                    else:
                        self._addresses.append((at, part.operand))
            else:
                self._addresses.append((offset, argument.operand))
            offset += size
        self._offsets = offsets
        self._pointers_offset = -(-offset // POINTER_BYTES) * POINTER_BYTES
        self._pointers = struct.Struct(f"<{len(offsets)}Q")
        self._block_type = ctypes.c_char * (
            TENSOR_MAP_ALIGNMENT_BYTES + self._pointers_offset + POINTER_BYTES * len(offsets)
        )
        constant = bytearray(self._pointers_offset)
        for offset, raw in numbers:
            constant[offset : offset + len(raw)] = raw
        self._constant = bytes(constant)

    def fill(self, addresses: dict[str, int]) -> tuple[Any, int]:
        """A fresh block with every parameter in it, and the address of its array of pointers.

        Raises: whatever an encoder raises for an address that the hardware would refuse.
        """
        block = self._block_type()
        start = ctypes.addressof(block)
        head = -start % TENSOR_MAP_ALIGNMENT_BYTES
        base = start + head
        ctypes.memmove(base, self._constant, self._pointers_offset)
        for offset, operand, further, encode in self._encoders:
            address = addresses[operand] + further
            encoded = self.maps.get((offset, address))
            if encoded is None:
                encoded = encode(address)
                if len(self.maps) >= MAX_CACHED_MAPS:
                    self.maps.clear()
                self.maps[offset, address] = encoded
            ctypes.memmove(base + offset, encoded, TENSOR_MAP_BYTES)
        for offset, operand in self._addresses:
            _ADDRESS.pack_into(block, head + offset, addresses[operand])
        self._pointers.pack_into(block, head + self._pointers_offset, *[base + offset for offset in self._offsets])
        return block, base + self._pointers_offset


def number_bytes(name: str, value: int, size: int) -> bytes:
    """A signed number as a kernel reads it.

    Raises: UnsupportedError: one that is too large for it, which must not arrive as another one.
    """
    limit = 2 ** (8 * size - 1)
    if not -limit <= value < limit:
        raise UnsupportedError(
            asked=f"{name} = {value} as a parameter of a kernel",
            rule=f"its {size} bytes hold {-limit} .. {limit - 1}",
            works="split the product along its largest dimension",
        )
    return value.to_bytes(size, "little", signed=True)


def _size_and_alignment(argument: Argument) -> tuple[int, int]:
    if isinstance(argument, MapArgument):
        return TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT_BYTES
    if isinstance(argument, IntsArgument):
        return POINTER_BYTES * len(argument.values), POINTER_BYTES
    if isinstance(argument, StructArgument):
        return POINTER_BYTES * len(argument.parts), POINTER_BYTES
    size = argument.size_bytes if isinstance(argument, IntArgument) else POINTER_BYTES
    return size, size
