"""What one product comes down to: launches in order over named operands, and the memory that they hand on.

Plain values, and the shortest way to run them; knows nothing of GEMM, of drivers, or of who keeps packed calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.backends.base import Argument, Backend, Launch
from tilewright.jit.source import Binary
from tilewright.tensor import Rows

SCRATCH_ALIGNMENT_BYTES = 256  # of each piece of scratch: whole lines of the L2, and what TMA asks for


@dataclass(frozen=True, kw_only=True)
class Step:
    """One launch. `name` says what it does, in explanations; `binary()` compiles when it is first asked."""

    name: str
    binary: Callable[[], Binary]
    launch: Launch
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Built:
    """The `binary` of a Step that is compiled already, so that the step can go to another process."""

    binary: Binary

    def __call__(self) -> Binary:
        return self.binary


@dataclass(frozen=True)
class Scratch:
    """Memory that holds nothing before the first step and nothing that anybody wants after the last. `name` is what the
    steps' arguments call it, as they call a, b and out."""

    name: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Work:
    """Steps in the order of one stream, and their scratch. Most products are one step without any.

    `cleared`: memory that is zeros before the first step, by the name of its operand or scratch; the address of its
    rows is counted from there.
    """

    steps: tuple[Step, ...]
    scratch: tuple[Scratch, ...] = ()
    cleared: tuple[tuple[str, Rows], ...] = ()

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all scratch in one piece that starts at a multiple of the alignment."""
        return sum(_rounded(piece.num_bytes) for piece in self.scratch)

    def scratch_addresses(self, base: int) -> dict[str, int]:
        """Where each piece lies in memory of scratch_bytes at `base`."""
        found = {}
        for piece in self.scratch:
            found[piece.name] = base
            base += _rounded(piece.num_bytes)
        return found


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // SCRATCH_ALIGNMENT_BYTES) * SCRATCH_ALIGNMENT_BYTES


def clear(backend: Backend, work: Work, addresses: dict[str, int], ordinal: int, stream: int) -> None:
    """Enqueues the zeros that the work begins with."""
    for name, rows in work.cleared:
        for matrix in rows._replace(address=addresses[name] + rows.address).matrices():
            backend.zero(matrix.address, matrix.pitch_bytes, matrix.row_bytes, matrix.num_rows, ordinal, stream)


def run_once(
    backend: Backend,
    work: Work,
    addresses: dict[str, int],
    ordinal: int = 0,
    stream: int = 0,
    *,
    launched: Callable[[], None] = lambda: None,
) -> None:
    """Loads, packs and enqueues every step, with scratch of the backend: for checks, where a second call never comes.

    `addresses` are those of a, b and out; `launched()` is called after each launch. Raises: what the backend raises.
    """
    base = backend.allocate(work.scratch_bytes, ordinal, stream) if work.scratch else 0
    try:
        named = {**addresses, **work.scratch_addresses(base)}
        clear(backend, work, named, ordinal, stream)
        for step in work.steps:
            kernel = backend.load(step.binary(), ordinal, step.launch)
            backend.launch(backend.pack(kernel, step.launch, step.arguments, named), stream)
            launched()
    finally:
        if base:
            backend.free(base, ordinal, stream)
