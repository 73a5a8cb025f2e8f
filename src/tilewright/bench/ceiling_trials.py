"""Each ceiling at one size: its launch, its operands, and what must have come out of it.

Makes plain values of NumPy arrays: ceilings.py runs them on a GPU, emulated_rows() in the emulator. Operands are
random, never zeros, which a card reads and multiplies at less power.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.backends.base import Argument, Launch
from tilewright.backends.emulated import EmulatedBackend, emulated
from tilewright.check import accumulation_factor, check_exact, integer_limit
from tilewright.dtypes import OF_16_BITS, DType, by_name
from tilewright.errors import EmulationError
from tilewright.jit.build import build
from tilewright.kernels.ceilings import TICKS, BulkCopy, BulkRead, Ceiling, EmptyLaunch, TensorLoop, tensor_loops

Row = dict[str, Any]
Kind = Literal["normal", "integer"]

POISON = 0xA5  # of every byte of an output before the launch: no fp32 sum, and no word of a random source for long
SUM_WORDS = 2**32  # bulk_read's sums are modulo this


@dataclass(frozen=True)
class Repeated:
    """`times` copies of a block, one after the other, which the host holds once."""

    block: NDArray[Any]
    times: int

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return self.block.nbytes * self.times


Operand = NDArray[Any] | Repeated

# What the operands hold after a launch, in pieces: an array as one, a Repeated block by block.
Pieces = Callable[[str], Iterator[NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One launch. `wrong` says what is wrong with what it left, or "".

    Units: `flops` operations and `moved_bytes` bytes of one launch, read and written bytes both counted.
    """

    kernel: Ceiling
    name: str
    launch: Launch
    arguments: tuple[Argument, ...]
    operands: Mapping[str, Operand]
    wrong: Callable[[Pieces], str]
    flops: int = 0
    moved_bytes: int = 0


def tensor_trial(loop: TensorLoop, num_ctas: int, num_sums: int, passes: int, kind: Kind = "normal") -> Trial:
    """The loop on normal data, or on whole numbers whose sums are exact.

    Shapes: a (num_ctas x tile_m, k), b (tile_n, k), out (num_ctas x tile_m, tile_n) fp32.
    """
    tile_m, tile_n, _ = loop.shape
    rows = num_ctas * tile_m
    generator = np.random.default_rng(0)
    a, b = (_values(generator, (extent, loop.k), loop.dtype, kind, loop.k * passes) for extent in (rows, tile_n))

    def wrong(pieces: Pieces) -> str:
        [out], [ticks] = pieces("out"), pieces("ticks")
        if not (ticks[:, 0].astype(np.int64) >= 0).all():
            return "a CTA's clock was not written"
        if kind == "integer":
            verdict = check_exact(a.astype(np.float64) * passes, b.T, out)
            return "" if verdict.ok else str(verdict)
        a64, b64 = a.astype(np.float64), b.astype(np.float64).T
        bound = accumulation_factor(loop.k * passes) * passes * (abs(a64) @ abs(b64))
        count = int((~(abs(out - passes * (a64 @ b64)) <= bound)).sum())
        return f"{count} of {out.size} sums are past their bound" if count else ""

    return Trial(
        kernel=loop,
        name=loop.name,
        launch=loop.launch(num_ctas),
        arguments=loop.arguments(num_ctas, num_sums, passes),
        operands={
            "a": a,
            "b": b,
            "out": _poisoned((rows, tile_n), np.float32),
            "ticks": _poisoned((num_ctas, TICKS), np.uint64),
        },
        wrong=wrong,
        flops=loop.flops(num_ctas, num_sums, passes),
    )


def read_trial(name: str, num_ctas: int, source: Repeated, passes: int, kernel: BulkRead | None = None) -> Trial:
    """`source` read `passes` times over, and the sum of what each CTA read."""
    kernel = kernel or BulkRead()
    num_chunks = source.nbytes // kernel.chunk_bytes

    def wrong(pieces: Pieces) -> str:
        [sums] = pieces("sums")
        chunk_sums = source.block.view(np.uint32).reshape(-1, kernel.chunk_bytes // 4).sum(axis=1, dtype=np.uint64)
        reads = np.arange(num_chunks * passes)
        expected = np.zeros(num_ctas, np.uint64)
        np.add.at(expected, reads % num_ctas, chunk_sums[reads % num_chunks % len(chunk_sums)])
        count = int((sums.sum(axis=1, dtype=np.uint64) % SUM_WORDS != expected % SUM_WORDS).sum())
        return f"the sums of {count} of {num_ctas} CTAs are not those of what they read" if count else ""

    return Trial(
        kernel=kernel,
        name=name,
        launch=kernel.launch(num_ctas),
        arguments=kernel.arguments(num_ctas, num_chunks, passes),
        operands={"source": source, "sums": _poisoned((num_ctas, kernel.threads), np.uint32)},
        wrong=wrong,
        moved_bytes=source.nbytes * passes,
    )


def copy_trial(name: str, num_ctas: int, source: Repeated, kernel: BulkCopy | None = None) -> Trial:
    """`source` copied once."""
    kernel = kernel or BulkCopy()

    def wrong(pieces: Pieces) -> str:
        count = sum(not np.array_equal(piece, source.block) for piece in pieces("target"))
        return f"{count} of {source.times} blocks differ from their source" if count else ""

    return Trial(
        kernel=kernel,
        name=name,
        launch=kernel.launch(num_ctas),
        arguments=kernel.arguments(source.nbytes // kernel.chunk_bytes),
        operands={"source": source, "target": Repeated(_poisoned(source.block.shape, np.uint8), source.times)},
        wrong=wrong,
        moved_bytes=2 * source.nbytes,
    )


def empty_trial(num_ctas: int, threads: int) -> Trial:
    """A launch of nothing."""
    kernel = EmptyLaunch(block=threads)
    return Trial(
        kernel=kernel,
        name=f"empty launch {num_ctas}x{threads}",
        launch=kernel.launch(num_ctas),
        arguments=kernel.arguments(),
        operands={},
        wrong=lambda pieces: "",
    )


def random_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Seeded bytes, all values alike likely."""
    return np.random.default_rng(1).integers(0, 256, num_bytes, np.uint8)


def _values(generator: Any, shape: tuple[int, int], dtype: DType, kind: Kind, k: int) -> NDArray[Any]:
    if kind == "normal":
        return np.asarray(generator.standard_normal(shape, dtype=np.float32).astype(dtype.numpy))
    limit = integer_limit(k)
    return np.asarray(generator.integers(-limit, limit + 1, shape).astype(dtype.numpy))


def _poisoned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    found = np.empty(shape, dtype)
    found.view(np.uint8).fill(POISON)
    return found


# -- in the emulator ---------------------------------------------------------------------------------------------------

NUM_CTAS = 2
SMALL_CHUNK_BYTES = 4096
SMALL_SLOTS = 4  # so that a few chunks go round the ring


def small_trials(dtypes: Sequence[DType] = OF_16_BITS) -> tuple[Trial, ...]:
    """Every kind of ceiling at a size that the emulator runs in about a second; each ring is passed more than once."""
    read = BulkRead(slots=SMALL_SLOTS, chunk_bytes=SMALL_CHUNK_BYTES)
    copy = BulkCopy(slots=SMALL_SLOTS, chunk_bytes=SMALL_CHUNK_BYTES, pending=2)
    source = Repeated(random_bytes(11 * SMALL_CHUNK_BYTES), 1)
    loops = [loop for dtype in dtypes for loop in tensor_loops(dtype)]
    return (
        *(tensor_trial(loop, NUM_CTAS, 2, 2, "integer") for loop in loops),
        read_trial("read, DRAM", NUM_CTAS, source, 1, read),
        read_trial("read, L2", NUM_CTAS, source, 3, read),
        copy_trial("copy, DRAM", NUM_CTAS, source, copy),
        empty_trial(NUM_CTAS, 32),
    )


def emulated_rows(names: Sequence[str]) -> Iterator[Row]:
    """One row a ceiling, the loops of these types: whether what it left is right, under the emulator's checks."""
    device = emulated(checks=True)
    for trial in small_trials([by_name(name) for name in names]):
        yield {"kind": "ceiling_emulated", "ceiling": trial.name} | emulate(trial, device)


def emulate(trial: Trial, device: EmulatedBackend) -> Row:
    """One trial in the emulator, in memory of its own."""
    started = time.perf_counter()
    places = {
        name: np.tile(value.block, value.times) if isinstance(value, Repeated) else value.copy()
        for name, value in trial.operands.items()
    }

    def pieces(name: str) -> Iterator[NDArray[Any]]:
        value = trial.operands[name]
        yield from np.split(places[name], value.times) if isinstance(value, Repeated) else [places[name]]

    kernel = device.load(build(trial.kernel.source(device.model), refuse=True), 0, trial.launch)
    addresses = {name: place.ctypes.data for name, place in places.items()}
    try:
        device.launch(device.pack(kernel, trial.launch, trial.arguments, addresses), 0)
    except EmulationError as error:  # the finding is the row's answer
        return {"status": "finding", "why": str(error), "seconds": time.perf_counter() - started}
    why = trial.wrong(pieces)
    return {"status": "wrong" if why else "ok", "why": why, "seconds": time.perf_counter() - started}
