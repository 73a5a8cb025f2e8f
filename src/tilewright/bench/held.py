"""Operands that stay on a GPU while columns are timed on them, and columns whose calls are packed ahead of time.

Memory is held once for all products: flat random values, of which a product of contiguous matrices takes the first, as
many as it has. So columns of different sizes differ in nothing else: they read the same bytes at the same addresses.
Knows nothing of which products these are, nor whose turn it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tilewright.backends.base import Argument, Launch
from tilewright.backends.steps import Work
from tilewright.bench.operands import TYPES, set_bytes
from tilewright.bench.verify import verify_launch
from tilewright.check import Check
from tilewright.device import Device
from tilewright.jit.source import Binary
from tilewright.problem import Problem
from tilewright.timing import COLD_FACTOR, Candidate, num_cold_sets

MAX_SETS = 64  # that calls take in turn; 1023^3 is cold with 42
MAX_HELD_BYTES = 40 << 30  # of all sets with their scratch: any Hopper card has room for them beside the clock's own


class Launcher(Protocol):
    """What this asks of a backend: the CUDA one, or a test's."""

    def device(self, ordinal: int) -> Device: ...

    def load(self, binary: Binary, ordinal: int, launch: Launch) -> Any: ...

    def pack(self, kernel: Any, launch: Launch, arguments: tuple[Argument, ...], addresses: dict[str, int]) -> Any: ...

    def launch(self, call: Any, stream: int) -> None: ...


@dataclass(frozen=True)
class _Set:
    """Flat memory of one set: of each operand as many elements as the largest product has, and bytes of scratch."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    scratch: torch.Tensor

    def views(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """a (m, k), b (k, n), out (m, n) of one product, each from the first element on."""
        a, b, out = (getattr(self, name).as_strided(*problem.strided(name)) for name in ("a", "b", "out"))
        return a, b, out


class Held:
    """Cold operands of some products, one set of memory behind the other, with scratch for their work."""

    def __init__(
        self, cuda: Launcher, products: Sequence[tuple[Problem, Work]], *, seed: int = 0, device: str = "cuda:0"
    ) -> None:
        """As many sets as keep the smallest product cold, MAX_SETS and MAX_HELD_BYTES at most; `is_cold` says whether
        that was enough. Each is other random values, normal(0, 1).

        Shapes: products of one dtype and out_dtype whose matrices have no gaps, at aligned addresses.
        Raises: ValueError: they differ in type, or there is none. Cost: seconds for tens of GB.
        """
        problems = [problem for problem, _ in products]
        if len({(problem.dtype, problem.out_dtype) for problem in problems}) != 1:
            raise ValueError(f"{len(problems)} products do not share one dtype and out_dtype")
        self.cuda = cuda
        self._is_gpu = device.startswith("cuda")
        largest = {name: max(problem.extent_bytes[name] for problem in problems) for name in ("a", "b", "out")}
        scratch_bytes = max(1, *(work.scratch_bytes for _, work in products))
        smallest_bytes, l2_bytes = min(map(set_bytes, problems)), cuda.device(0).l2_bytes
        limit = min(MAX_SETS, MAX_HELD_BYTES // (sum(largest.values()) + scratch_bytes))
        self.num_sets = num_cold_sets(smallest_bytes, l2_bytes, limit)
        self.is_cold = self.num_sets * smallest_bytes > COLD_FACTOR * l2_bytes
        generator = torch.Generator(device=device).manual_seed(seed)
        dtype, out_dtype = problems[0].dtype, problems[0].out_dtype

        def drawn(name: str) -> torch.Tensor:
            values = torch.randn(largest[name] // dtype.size, generator=generator, device=device, dtype=torch.float32)
            return values.to(TYPES[dtype.name])

        self._sets = [
            _Set(
                drawn("a"),
                drawn("b"),
                torch.empty(largest["out"] // out_dtype.size, dtype=TYPES[out_dtype.name], device=device),
                torch.empty(scratch_bytes, dtype=torch.uint8, device=device),
            )
            for _ in range(self.num_sets)
        ]
        self.synchronize()  # they were drawn on another stream than the candidates'

    def synchronize(self) -> None:
        """Waits until all streams are done."""
        if self._is_gpu:
            torch.cuda.synchronize()

    def candidate(self, name: str, problem: Problem, work: Work, stream: int) -> Candidate:
        """A product's steps one behind the other on the raw stream, on the next set each time.

        Cost: its kernels are compiled, or read from a cache, and loaded; every set's calls are packed.
        """
        kernels = [self.cuda.load(step.binary(), 0, step.launch) for step in work.steps]
        calls = [
            [
                self.cuda.pack(kernel, step.launch, step.arguments, addresses)
                for kernel, step in zip(kernels, work.steps, strict=True)
            ]
            for addresses in (self._addresses(each, problem, work) for each in self._sets)
        ]

        def launch(index: int) -> None:
            for call in calls[index % self.num_sets]:
                self.cuda.launch(call, stream)

        return Candidate(name, launch, self.num_sets)

    def _addresses(self, held: _Set, problem: Problem, work: Work) -> dict[str, int]:
        own = zip(("a", "b", "out"), (view.data_ptr() for view in held.views(problem)), strict=True)
        return dict(itertools.chain(own, work.scratch_addresses(held.scratch.data_ptr()).items()))

    def check(self, problem: Problem, candidate: Candidate) -> Check:
        """The verdict on one call of a candidate of this product: sampled rows, and every element written."""

        def launch(index: int) -> None:
            self.synchronize()  # out is filled with NaN on another stream
            candidate.launch(index)

        return verify_launch(problem, self._sets[0].views(problem), launch, self.synchronize)
