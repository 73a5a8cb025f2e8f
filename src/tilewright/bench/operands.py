"""Operands on a GPU, as torch tensors: random or whole numbers, in the layout of a Problem, out inside a canary.

Never zeros: they hide unwritten outputs and run faster than data does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from tilewright.check import integer_limit, integer_stride
from tilewright.host_operands import filler, is_left_out, range_of
from tilewright.problem import Problem
from tilewright.tma import TMA_ALIGNMENT_BYTES

Kind = Literal["normal", "integer"]

TYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "int8": torch.int8,
    "int32": torch.int32,
    "tf32": torch.float32,
}

# A NaN in every floating type of that size, and no value that a product or a memset leaves: 0x7FA5 is NaN in bf16 and
# in fp16.
_POISON: dict[int, tuple[torch.dtype, int]] = {2: (torch.int16, 0x7FA5), 4: (torch.int32, 0x7FA5A5A5)}

BAND_BYTES = 1 << 16  # canary before and after out: more than a tile's row of any pitch that tests use


@dataclass(frozen=True)
class Canary:
    """An out of any strides and address inside a larger buffer of poison.

    Shapes: `out` (*batch, m, n) as the problem has it; between and around its rows lies the canary.
    """

    buffer: torch.Tensor
    bits: torch.Tensor
    out: torch.Tensor
    poison: int

    @classmethod
    def around(cls, problem: Problem, *, offset: int = 0, device: str = "cuda") -> Canary:
        """Units: `offset` in elements; the buffer's base is at least 256-byte aligned, so `offset` is what moves out's
        address off a multiple of 16 bytes."""
        dtype = problem.out_dtype
        integer, poison = _POISON[dtype.size]
        band = BAND_BYTES // dtype.size
        start = band + offset
        extent = problem.extent_bytes["out"] // dtype.size
        bits = torch.full((start + extent + band,), poison, dtype=integer, device=device)
        buffer = bits.view(TYPES[dtype.name])
        return cls(buffer, bits, buffer.as_strided(*problem.strided("out"), start), poison)

    def unwritten(self) -> int:
        """Elements of out that still hold the poison."""
        return int((self._window() == self.poison).sum())

    def damaged(self) -> int:
        """Elements around out that no longer do."""
        everything = int((self.bits != self.poison).sum())
        return everything - int((self._window() != self.poison).sum())

    def _window(self) -> torch.Tensor:
        return self.bits.as_strided(self.out.shape, self.out.stride(), self.out.storage_offset())


def inputs(
    problem: Problem, kind: Kind = "normal", *, seed: int = 0, device: str = "cuda"
) -> tuple[torch.Tensor, torch.Tensor]:
    """a (*batch, m, k) and b (*batch, k, n), strided and aligned as the problem has them; their rows' padding is the
    filler of host_operands.

    "normal" is normal(0, 1) rounded to the dtype; "integer" is whole numbers whose sums of k products are exact; of
    int8 either is any of its values.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    return _matrices("a", problem, kind, generator, device), _matrices("b", problem, kind, generator, device)


def operand_sets(
    problem: Problem, num_sets: int, *, seed: int = 0, device: str = "cuda"
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(a, b, out) as often as a rotation needs, all of them different data at different addresses."""
    sets = []
    for index in range(num_sets):
        a, b = inputs(problem, seed=seed + index, device=device)
        elements = problem.extent_bytes["out"] // problem.out_dtype.size
        out = torch.empty(elements, dtype=TYPES[problem.out_dtype.name], device=device)
        sets.append((a, b, out.as_strided(*problem.strided("out"))))
    return sets


def set_bytes(problem: Problem) -> int:
    """Bytes that one operand set takes."""
    return sum(problem.extent_bytes.values())


def _matrices(name: str, problem: Problem, kind: Kind, generator: Any, device: str) -> torch.Tensor:
    dtype = TYPES[problem.dtype.name]
    shape, strides = problem.strided(name)
    align_bytes = getattr(problem, f"{name}_align_bytes")
    first = align_bytes // problem.dtype.size if align_bytes < TMA_ALIGNMENT_BYTES else 0  # of memory that is aligned
    elements = first + problem.extent_bytes[name] // problem.dtype.size
    view = torch.full((elements,), filler(problem.dtype), dtype=dtype, device=device).as_strided(shape, strides, first)
    # Matrices that are one and the same get their values once, in the order of memory.
    own = view[tuple(slice(None) if stride else slice(1) for stride in strides)]
    transposed = strides[-1] != 1
    if problem.dtype.is_whole:
        shape = _memory_shape(own, transposed)
        values = torch.randint(*range_of(problem.dtype), shape, generator=generator, device=device)
    elif kind == "integer":
        limit = max(integer_limit(problem.k, problem.sums), 1)
        values = torch.randint(-limit, limit + 1, _memory_shape(own, transposed), generator=generator, device=device)
    else:
        values = torch.randn(_memory_shape(own, transposed), generator=generator, device=device, dtype=torch.float32)
    own.copy_(values.mT if transposed else values)
    if kind == "integer" and name == "a" and integer_stride(problem.k, problem.sums) > 1:
        own[..., torch.from_numpy(is_left_out(problem)).to(device)] = 0
    return view


def _memory_shape(view: torch.Tensor, transposed: bool) -> tuple[int, ...]:
    """Extents in the order in which they lie in memory, but for the batch."""
    return tuple(view.mT.shape if transposed else view.shape)
