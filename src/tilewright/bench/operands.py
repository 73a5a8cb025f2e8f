"""Operands on a GPU, as torch tensors: random or whole numbers, in the layout of a Problem, out inside a canary.

Never zeros: they hide unwritten outputs and run faster than data does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from tilewright.check import integer_limit
from tilewright.dtypes import DType
from tilewright.problem import Problem

Kind = Literal["normal", "integer"]

TYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

# A NaN in every type of that size, and no value that a product or a memset leaves: 0x7FA5 is NaN in bf16 and in fp16.
_POISON: dict[int, tuple[torch.dtype, int]] = {2: (torch.int16, 0x7FA5), 4: (torch.int32, 0x7FA5A5A5)}

BAND_BYTES = 1 << 16  # canary before and after out: more than a tile's row of any pitch that tests use


@dataclass(frozen=True)
class Canary:
    """An out of any pitch and address inside a larger buffer of poison.

    Shapes: `out` (m, n) with `pitch` elements between rows; between and around its rows lies the canary.
    """

    buffer: torch.Tensor
    bits: torch.Tensor
    out: torch.Tensor
    poison: int

    @classmethod
    def around(
        cls, m: int, n: int, dtype: DType, *, pitch: int | None = None, offset: int = 0, device: str = "cuda"
    ) -> Canary:
        """Units: `pitch` and `offset` in elements; the buffer's base is at least 256-byte aligned, so `offset` is what
        moves out's address off a multiple of 16 bytes."""
        pitch = n if pitch is None else pitch
        integer, poison = _POISON[dtype.size]
        band = BAND_BYTES // dtype.size
        start = band + offset
        bits = torch.full((start + m * pitch + band,), poison, dtype=integer, device=device)
        buffer = bits.view(TYPES[dtype.name])
        return cls(buffer, bits, buffer.as_strided((m, n), (pitch, 1), start), poison)

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
    """a (m, k) and b (k, n) with the pitches and the major of the problem; the padding of their rows is NaN.

    "normal" is normal(0, 1) rounded to the dtype; "integer" is whole numbers whose sums of k products are exact.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    rows_of_b, columns_of_b = (problem.n, problem.k) if problem.b_major == "k" else (problem.k, problem.n)
    a = _matrix(problem.m, problem.k, problem.a_pitch, problem, kind, generator, device)
    b = _matrix(rows_of_b, columns_of_b, problem.b_pitch, problem, kind, generator, device)
    return a, b.t() if problem.b_major == "k" else b


def operand_sets(
    problem: Problem, num_sets: int, *, seed: int = 0, device: str = "cuda"
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(a, b, out) as often as a rotation needs, all of them different data at different addresses."""
    sets = []
    for index in range(num_sets):
        a, b = inputs(problem, seed=seed + index, device=device)
        out = torch.empty((problem.m, problem.out_pitch), dtype=TYPES[problem.out_dtype.name], device=device)
        sets.append((a, b, out[:, : problem.n]))
    return sets


def set_bytes(problem: Problem) -> int:
    """Bytes that one operand set takes."""
    rows_of_b = problem.n if problem.b_major == "k" else problem.k
    inputs_bytes = (problem.m * problem.a_pitch + rows_of_b * problem.b_pitch) * problem.dtype.size
    return inputs_bytes + problem.m * problem.out_pitch * problem.out_dtype.size


def _matrix(
    rows: int, columns: int, pitch: int, problem: Problem, kind: Kind, generator: Any, device: str
) -> torch.Tensor:
    dtype = TYPES[problem.dtype.name]
    full = torch.full((rows, pitch), float("nan"), dtype=dtype, device=device)
    if kind == "integer":
        limit = integer_limit(problem.k)
        values = torch.randint(-limit, limit + 1, (rows, columns), generator=generator, device=device)
    else:
        values = torch.randn((rows, columns), generator=generator, device=device, dtype=torch.float32)
    full[:, :columns] = values.to(dtype)
    return full[:, :columns]
