"""The parameter block of a launch: where each argument lies, and the block filled for one set of addresses.

Knows nothing of the driver: whoever packs hands in the function that encodes a tensor map.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright.backends.base import (
    TENSOR_MAP_ALIGNMENT_BYTES,
    TENSOR_MAP_BYTES,
    Argument,
    IntArgument,
    Launch,
    MapArgument,
    TensorMap,
)

MAX_CACHED_MAPS = 256  # encoded maps kept by one plan, over all its arguments: 32 KiB
POINTER_BYTES = 8


@dataclass(eq=False)
class Packer:
    """The layout of one plan's parameter block, worked out once.

    Shapes: a head of up to 63 bytes so that tensor maps lie on multiples of 64, the parameters in order, each at its
    own alignment, then the array of pointers to them that cuLaunchKernelEx takes.
    `configs` holds what the backend prepared for each stream: it depends on the launch alone, not on addresses.
    """

    launch: Launch
    arguments: tuple[Argument, ...]
    configs: dict[int, Any] = field(default_factory=dict)
    maps: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (argument index, address) -> encoded map

    def __post_init__(self) -> None:
        offset = 0
        self.offsets: list[int] = []
        for argument in self.arguments:
            size, alignment = _size_and_alignment(argument)
            offset = -(-offset // alignment) * alignment
            self.offsets.append(offset)
            offset += size
        self.pointers_offset = -(-offset // POINTER_BYTES) * POINTER_BYTES
        self.block_bytes = TENSOR_MAP_ALIGNMENT_BYTES + self.pointers_offset + POINTER_BYTES * len(self.arguments)

    def fill(self, addresses: dict[str, int], encode: Callable[[TensorMap, int], bytes]) -> tuple[Any, int]:
        """A fresh block with every parameter in it, and the address of its array of pointers.

        Raises: whatever `encode` raises for a map that the hardware would refuse.
        """
        block = ctypes.create_string_buffer(self.block_bytes)
        head = -ctypes.addressof(block) % TENSOR_MAP_ALIGNMENT_BYTES
        base = ctypes.addressof(block) + head
        for index, (argument, offset) in enumerate(zip(self.arguments, self.offsets, strict=True)):
            if isinstance(argument, MapArgument):
                encoded = self._encoded(index, argument, addresses[argument.operand], encode)
                ctypes.memmove(base + offset, encoded, TENSOR_MAP_BYTES)
            elif isinstance(argument, IntArgument):
                wrapped = argument.value % 2 ** (8 * argument.size_bytes)  # two's complement of a negative number
                struct.pack_into("<I" if argument.size_bytes == 4 else "<Q", block, head + offset, wrapped)
            else:
                struct.pack_into("<Q", block, head + offset, addresses[argument.operand])
        pointers = [base + offset for offset in self.offsets]
        struct.pack_into(f"<{len(pointers)}Q", block, head + self.pointers_offset, *pointers)
        return block, base + self.pointers_offset

    def _encoded(
        self, index: int, argument: MapArgument, address: int, encode: Callable[[TensorMap, int], bytes]
    ) -> bytes:
        found = self.maps.get((index, address))
        if found is None:
            found = encode(argument.tensor_map, address)
            if len(self.maps) >= MAX_CACHED_MAPS:
                self.maps.clear()
            self.maps[index, address] = found
        return found


def _size_and_alignment(argument: Argument) -> tuple[int, int]:
    if isinstance(argument, MapArgument):
        return TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT_BYTES
    size = argument.size_bytes if isinstance(argument, IntArgument) else POINTER_BYTES
    return size, size
