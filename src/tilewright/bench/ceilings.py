"""The ceilings of the very card: what wgmma, mma.sync, reads, copies and empty launches alone reach, checked and timed.

Makes rows, one a ceiling and mode; each says the card, the rate, power and clock. The tensor cores' ceiling is what the
tables of the ladder show the distance to, burst to burst and steady to steady. Runs in a child of its own: measure().
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import dtypes, timing
from tilewright.backends.base import Backend
from tilewright.bench.ceiling_trials import (
    Repeated,
    Trial,
    copy_trial,
    empty_trial,
    random_bytes,
    read_trial,
    tensor_trial,
)
from tilewright.bench.children import rows_of_module, write_rows
from tilewright.bench.report import files_of, read_rows
from tilewright.device import Device, preset
from tilewright.jit.build import build, build_into
from tilewright.jit.source import Source
from tilewright.kernels.ceilings import CHUNK_BYTES, BulkCopy, BulkRead, TensorLoop, tensor_loops

Row = dict[str, Any]

DTYPES = tuple(dtype.name for dtype in dtypes.OF_16_BITS)
LOOP_US = 6000.0  # of one launch of a loop: its operands and sums, some 20 us, are then 0.3 % of it
SUM_K = 8192  # values of k of one sum: accumulators as large as those of a large product
BLOCK_BYTES = 64 << 20  # random bytes that the host makes; longer memory repeats them
READ_BLOCKS, COPY_BLOCKS = 64, 32  # 4 GiB read, 2 GiB copied: 70 and 35 times the L2 of an H200
L2_SHARE = 2  # the resident set is the L2 over this: a line may lie in both halves of it
L2_PASSES = 128  # over that set in one launch, of which the first may come from DRAM
STEADY_ROUNDS = 3
LIMIT_S = 240.0

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"  # of a checkout; an installed package has none


# -- what is measured --------------------------------------------------------------------------------------------------


def loop_trial(loop: TensorLoop, device: Device) -> Trial:
    """The loop on every SM, as long as LOOP_US at the peak rate; of mma.sync, which does not reach it, longer."""
    passes = SUM_K // loop.k
    flops = loop.flops(device.num_sms, 1, passes)
    return tensor_trial(loop, device.num_sms, max(1, round(LOOP_US * device.peak_tflops * 1e6 / flops)), passes)


def memory_trials(device: Device) -> Iterator[Trial]:
    """Reads of DRAM and of the L2, and a copy: one after the other, since each holds gigabytes."""
    block = random_bytes(BLOCK_BYTES)
    yield read_trial("read, DRAM", device.num_sms, Repeated(block, READ_BLOCKS), 1)
    resident = device.l2_bytes // L2_SHARE // CHUNK_BYTES * CHUNK_BYTES
    yield read_trial("read, L2", device.num_sms, Repeated(random_bytes(resident), 1), L2_PASSES)
    yield copy_trial("copy, DRAM", device.num_sms, Repeated(block, COPY_BLOCKS))


def empty_trials(device: Device) -> tuple[Trial, ...]:
    """Nothing, on one warp and on as many threads as a large kernel has."""
    return empty_trial(1, 32), empty_trial(device.num_sms, 384)


def sources(device: Device) -> list[Source]:
    """Every unit that measured_rows() loads, for a machine whose compiler is another or none."""
    loops = (loop for dtype in dtypes.OF_16_BITS for loop in tensor_loops(dtype))
    kernels = (*loops, BulkRead(), BulkCopy(), *(trial.kernel for trial in empty_trials(device)))
    return list({source.digest(""): source for source in (kernel.source(device) for kernel in kernels)}.values())


# -- on the GPU, in a child --------------------------------------------------------------------------------------------


class Loaded:
    """A trial on the GPU: its operands placed, its call packed. A `with` block gives the memory back."""

    def __init__(self, trial: Trial, cuda: Any, ordinal: int = 0) -> None:
        """`cuda` is the CUDA backend. Raises: DriverError: no memory; CompileError: the kernel spills."""
        from tilewright.backends.memory import Buffer  # the driver, which the parent never opens

        self.trial = trial
        self.binary = build(trial.kernel.source(cuda.device(ordinal)), refuse=True)
        self._stack = contextlib.ExitStack()
        self._buffers: dict[str, Any] = {}
        for name, value in trial.operands.items():
            buffer = self._stack.enter_context(Buffer.allocate(cuda, value.nbytes, ordinal))
            self._buffers[name] = buffer
            block, times = (value.block, value.times) if isinstance(value, Repeated) else (value, 1)
            for index in range(times):
                buffer.write(block, index * block.nbytes)
        kernel = cuda.load(self.binary, ordinal, trial.launch)
        addresses = {name: buffer.address for name, buffer in self._buffers.items()}
        self._call = cuda.pack(kernel, trial.launch, trial.arguments, addresses)
        self._cuda: Backend = cuda

    def candidate(self, stream: int) -> timing.Candidate:
        """The trial as the clock takes it, on its stream."""
        return timing.Candidate(self.trial.name, lambda index: self._cuda.launch(self._call, stream))

    def pieces(self, name: str) -> Iterator[NDArray[Any]]:
        """What an operand holds now; see Trial."""
        value = self.trial.operands[name]
        block, times = (value.block, value.times) if isinstance(value, Repeated) else (value, 1)
        for index in range(times):
            yield self._buffers[name].read(block.shape, block.dtype, index * block.nbytes)

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def measured_rows(names: Sequence[str], rounds: int | None = None, *, brief: bool = False) -> Iterator[Row]:
    """The loops of these types, memory, launches: a row a mode, or one that says what was wrong.

    `brief`: one sample of 4 ms in place of each's modes, which tells whether it is right and a loop tight, and no rate.
    Raises: DriverError: the process is of no more use.
    Cost: a loop 3 s of bursts and 2 s x rounds steady; memory 2 s to place and 2 s x rounds steady each.
    """
    from tilewright.backends.cuda import backend  # the driver, which the parent never opens

    cuda = backend()
    device = cuda.device(0)
    loops = [loop for name in names for loop in tensor_loops(dtypes.by_name(name))]
    with timing.CudaMachine(cuda, 0) as machine:
        steady = functools.partial(timing.steady, rounds=rounds or STEADY_ROUNDS)
        once = (functools.partial(timing.interleaved, rounds=1),) if brief else ()
        # One at a time: each is freed before the next is placed.
        for trial in (loop_trial(loop, device) for loop in loops):
            yield from _timed(trial, cuda, machine, device, once or (timing.burst, steady))
        for trial in memory_trials(device):
            yield from _timed(trial, cuda, machine, device, once or (timing.interleaved, steady))
        for trial in empty_trials(device):
            yield from _timed(trial, cuda, machine, device, once or (timing.interleaved, timing.single))


def _timed(
    trial: Trial, cuda: Any, machine: timing.CudaMachine, device: Device, clocks: Iterable[Callable[..., timing.Timing]]
) -> Iterator[Row]:
    with Loaded(trial, cuda) as loaded:
        candidate = loaded.candidate(machine.stream)
        candidate.launch(0)
        machine.idle(0.0)
        why = trial.wrong(loaded.pieces)
        if why:
            yield {"kind": "ceiling", "ceiling": trial.name, "mode": "all", "status": "wrong", "why": why}
            return
        for clock in clocks:
            [sample] = clock(machine, [candidate]).rows()
            machine.idle(0.0)
            ticks = next(loaded.pieces("ticks")) if "ticks" in trial.operands else None
            yield described(trial, sample, device, ticks) | {
                "registers": loaded.binary.resources.registers,
                "smem_bytes": trial.launch.smem_bytes,
                "compiler": loaded.binary.compiler,
            }


def described(trial: Trial, sample: Row, device: Device, ticks: NDArray[Any] | None = None) -> Row:
    """One sample as a row. `ticks`: cycles and nanoseconds of each CTA's loop in the last launch, which is its SM's.

    Units: `kernel_mhz` the clock that the SM counted itself; `ops_per_cycle` operations a cycle an SM.
    """
    kernel = trial.kernel
    row: Row = {
        "kind": "ceiling",
        "status": "ok",
        "ceiling": trial.name,
        "device": device.name,
        "dtype": kernel.dtype.name if isinstance(kernel, TensorLoop) else None,
        "grid": trial.launch.grid,
        "threads": trial.launch.block,
        "flops": trial.flops,
        "moved_bytes": trial.moved_bytes,
        **{name: value for name, value in sample.items() if not name.startswith(("ratio", "baseline", "candidate"))},
        **timing.rates(sample, flops=trial.flops, moved_bytes=trial.moved_bytes),
        "kernel_mhz": None,
        "ops_per_cycle": None,
    }
    if ticks is not None:
        cycles, nanoseconds = (statistics.median(ticks[:, column].astype(np.float64)) for column in (0, 1))
        row["kernel_mhz"] = cycles / nanoseconds * 1e3
        row["ops_per_cycle"] = trial.flops / trial.launch.grid / cycles
    return row


# -- the parent --------------------------------------------------------------------------------------------------------


def measure(names: Sequence[str] = DTYPES, rounds: int | None = None, *, brief: bool = False) -> list[Row]:
    """Every row, from a child; `brief` as in measured_rows(). Opens no driver itself.

    Cost: about 100 s for both types, 30 s of it each.
    """
    words = ["--dtypes", ",".join(names), *([] if rounds is None else ["--rounds", str(rounds)])]
    words += ["--brief"] if brief else []
    about = {"kind": "ceiling", "ceiling": "all", "mode": "all"}
    return rows_of_module("tilewright.bench.ceilings", words, LIMIT_S, about)


def committed_rows(folder: Path = RESULTS) -> list[Row]:
    """The newest rows of each device that the checkout holds; none in an installed package."""
    return read_rows(file for file in files_of([folder]) if file.stem.endswith("_ceilings")) if folder.is_dir() else []


def main(words: Sequence[str] | None = None) -> int:
    """The child's command line; `--build DIR` compiles all that it loads, for a machine whose compiler is another."""
    parser = argparse.ArgumentParser(prog="tilewright.bench.ceilings", description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--brief", action="store_true", help="one short sample of each: right, not how fast")
    parser.add_argument("--build", metavar="DIR", type=Path)
    parser.add_argument("--log", type=Path, default=Path("/dev/stdout"))
    options = parser.parse_args(words)
    if options.build:
        print(f"{len(build_into(sources(preset('h200')), options.build, refuse=True))} kernels in {options.build}")
        return 0
    rows = measured_rows(options.dtypes.split(","), options.rounds, brief=options.brief)
    return write_rows(rows, options.log)


if __name__ == "__main__":
    sys.exit(main())
