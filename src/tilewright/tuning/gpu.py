"""The tuner's bench on a GPU: operands, checks and times of kernels, with no array library.

Every kernel is checked before it is timed, twice: with whole numbers, which must come out bit for bit, and with normal
data under the derived bound of each element. Checked are up to 192 rows by 4096 columns of up to 64 matrices, the first
and the last of each among them, and all of out for elements that were not written. Timed is what timing.Column times:
cold, rotating operands of normal data, captured.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.backends.cuda import CudaBackend, backend
from tilewright.backends.driver import version_text
from tilewright.backends.memory import Buffer
from tilewright.backends.steps import Work, clear
from tilewright.check import Reference, integer_limit, sampled_rows
from tilewright.dtypes import DType
from tilewright.host_operands import HostOperand, filler, host_operand, range_of
from tilewright.problem import Problem
from tilewright.timing import Candidate, Column, CudaMachine, num_cold_sets
from tilewright.tuning import beside
from tilewright.tuning.child import Job

MAX_OPERAND_BYTES = 16 << 30  # of all sets of one problem; 4x the L2 is reached long before
MAX_SETS = 256
SAMPLED_COLUMNS = 4096
SAMPLED_MATRICES = 64
# Random values are drawn once and repeated: drawing gigabytes takes longer than all the rest. A prime, so that rows of
# no pitch repeat in step.
PERIOD = 4_194_301
POISON = 0x7FC0  # NaN in bf16 and fp16, and twice in a row in fp32; no sum of int32 by chance


@dataclass
class _Set:
    """The memory of one a, b and out, and of an epilogue's arrays by their names; and what its numbers are."""

    a: Buffer
    b: Buffer
    out: Buffer
    beside: dict[str, Buffer]
    numbers: dict[str, int]

    @property
    def addresses(self) -> dict[str, int]:
        own = {name: buffer.address for name, buffer in self.beside.items()}
        return {"a": self.a.address, "b": self.b.address, "out": self.out.address, **own, **self.numbers}

    def free(self) -> None:
        for buffer in (self.a, self.b, self.out, *self.beside.values()):
            buffer.free()


class GpuBench:
    """The Bench protocol on one GPU; used as a `with` block."""

    def __init__(self, ordinal: int = 0, cuda: CudaBackend | None = None) -> None:
        """Raises: DriverError, UnsupportedError: no GPU to work on."""
        self._cuda = backend() if cuda is None else cuda
        self._ordinal = ordinal
        self._l2_bytes = self._cuda.device(ordinal).l2_bytes
        self._machine: CudaMachine | None = None  # of the open problem; its stream owns what was captured
        self._values: dict[tuple[str, int, int], NDArray[Any]] = {}
        self._problem: Problem | None = None
        self._sets: list[_Set] = []
        self._whole: _Set | None = None  # operands of whole numbers, for the check alone
        self._references: list[tuple[str, _Set, Reference]] = []
        self._sample: beside.Sample | None = None  # of an epilogue: the steps that the references hold
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._armed: dict[int, Column] = {}
        self._scratch: list[Buffer] = []  # each larger than the one before; captured calls hold their addresses

    def facts(self) -> dict[str, str]:
        """The driver, as a record names it."""
        return {"driver": version_text(self._cuda.driver_version)}

    def open(self, problem: Problem, seed: int) -> int:
        """Operands and references of a problem; how many sets are rotated.

        Raises: DriverError: they do not fit. Cost: about 1 s for 8192^3, most of it references.
        """
        self.close_problem()
        self._problem = problem
        self._machine = CudaMachine(self._cuda, self._ordinal)
        self._machine.__enter__()
        self._rows = sampled_rows(problem.m, seed)
        most = problem.out_n if beside.is_of_whole_rows(problem) else SAMPLED_COLUMNS
        self._columns = sampled(problem.out_n, max(most, 2), seed)
        self._matrices = sampled_matrices(problem.batch, seed)
        limit = max(2, min(MAX_SETS, MAX_OPERAND_BYTES // set_bytes(problem)))
        num_sets = num_cold_sets(set_bytes(problem), self._l2_bytes, limit)
        whole_limit = integer_limit(problem.k, problem.sums)  # 0: no whole numbers have exact sums
        if whole_limit and problem.epilogue is None:  # what steps make of them is none
            self._whole, a, b, _ = self._make_set(problem, seed, whole_limit)
            self._references.append(("whole numbers", self._whole, self._reference(a, b, exact=True)))
        for index in range(num_sets):
            made, a, b, held = self._make_set(problem, seed + index, 0)
            self._sets.append(made)
            if index == 0:
                if problem.epilogue is not None:
                    self._sample = beside.sample(problem, held, self._matrices, self._rows, self._columns)
                self._references.append(("normal data", made, self._reference(a, b, exact=False)))
        with self._cuda.on(self._ordinal):
            self._cuda.call("cuCtxSynchronize")  # a copy from pageable memory returns before it has arrived
        return num_sets

    def check(self, job: Job) -> str:
        """Runs the kernel on both kinds of data. Raises: DriverError: it faulted."""
        for data, operands, reference in self._references:
            if found := self._wrong(job, operands, reference):
                return f"{data}: {found}"
        return ""

    def arm(self, job: Job) -> None:
        """Captures the kernel over all sets."""
        launch = self._launcher(job, self._sets)
        self._armed[job.runner] = Column(self._open_machine(), Candidate(str(job.runner), launch, len(self._sets)))

    def sample(self, runner: int) -> float:
        """Microseconds a call, cold."""
        return self._armed[runner].sample()

    def close_problem(self) -> None:
        """Gives operands and captured calls back."""
        self._armed.clear()
        self._references.clear()
        self._sample = None
        if self._machine is not None:
            machine, self._machine = self._machine, None
            machine.__exit__()
        for made in (*self._sets, *((self._whole,) if self._whole else ()), *self._scratch):
            made.free()
        self._sets, self._whole, self._scratch = [], None, []

    def __enter__(self) -> GpuBench:
        return self

    def __exit__(self, *reason: object) -> None:
        if reason[0] is None:  # after a fault the driver refuses to free, and the end of the process frees it all
            self.close_problem()

    def _open_machine(self) -> CudaMachine:
        assert self._machine is not None  # open() came first: the parent's order
        return self._machine

    def _launcher(self, job: Job, sets: list[_Set]) -> Callable[[int], None]:
        stream, work = self._open_machine().stream, job.work
        scratch = work.scratch_addresses(self._scratch_base(work))
        addresses = [{**each.addresses, **scratch} for each in sets]
        kernels = [self._cuda.load(step.binary(), self._ordinal, step.launch) for step in work.steps]
        calls = [
            [
                self._cuda.pack(kernel, step.launch, step.arguments, named)
                for kernel, step in zip(kernels, work.steps, strict=True)
            ]
            for named in addresses
        ]

        def launch(index: int) -> None:
            if work.cleared:
                clear(self._cuda, work, addresses[index % len(calls)], self._ordinal, stream)
            for call in calls[index % len(calls)]:
                self._cuda.launch(call, stream)

        return launch

    def _scratch_base(self, work: Work) -> int:
        """Memory for the work's scratch, the same for all candidates that it is enough for: they run one by one, on one
        stream. 0 where there is none."""
        if not work.scratch:
            return 0
        if not self._scratch or self._scratch[-1].size_bytes < work.scratch_bytes:
            self._scratch.append(Buffer.allocate(self._cuda, work.scratch_bytes, self._ordinal))
        return self._scratch[-1].address

    def _wrong(self, job: Job, operands: _Set, reference: Reference) -> str:
        """What is wrong with the kernel's out; empty when nothing is."""
        problem, machine = self._problem, self._open_machine()
        assert problem is not None  # as its machine
        launch = self._launcher(job, [operands])
        written = self._sample.written if self._sample is not None else {}
        for buffer in (operands.out, *(operands.beside[name] for name in written), *self._scratch):
            buffer.fill(POISON << 16 | POISON, machine.stream)
        launch(0)
        machine.wait(machine.record())
        for name, (sampled_values, pick) in written.items():
            memory = operands.beside[name].read((operands.beside[name].size_bytes,), np.dtype(np.uint8))
            sampled_values[...] = pick(memory.view(sampled_values.dtype))
        size = problem.out_dtype.size
        bits = operands.out.read((_out_bytes(problem) // size,), np.dtype(f"u{size}"))
        poison = POISON if size == 2 else POISON << 16 | POISON
        out = host_operand(problem, "out", bits).view
        num_written = int(np.count_nonzero(out != poison))
        unwritten = out.size - num_written
        damaged = int(np.count_nonzero(bits != poison)) - num_written if bits.size > out.size else 0
        if unwritten or damaged:
            return f"{unwritten} elements not written, {damaged} damaged between the rows of out"
        verdict = reference.check(
            out[self._matrices][..., self._rows, :][..., self._columns].view(problem.out_dtype.numpy)
        )
        return "" if verdict.ok else str(verdict)

    def _make_set(
        self, problem: Problem, seed: int, limit: int
    ) -> tuple[_Set, NDArray[Any], NDArray[Any], dict[str, NDArray[Any]]]:
        """One set on the GPU, and its a (*batch, m, k) and b (*batch, k, n) here, and the memory of an epilogue's
        arrays. `limit`: of whole numbers; or 0."""
        places = random.Random(seed)
        a = self._operand(problem, "a", limit, places.randrange(PERIOD))
        b = self._operand(problem, "b", limit, places.randrange(PERIOD))
        sizes = (a.memory.nbytes, b.memory.nbytes, _out_bytes(problem))
        buffers = [Buffer.allocate(self._cuda, num_bytes, self._ordinal) for num_bytes in sizes]
        buffers[0].write(a.memory)
        buffers[1].write(b.memory)
        held = beside.memories(
            problem, lambda dtype, count: self._drawn(dtype, limit, places.randrange(PERIOD), count).copy()
        )
        further = {name: Buffer.allocate(self._cuda, memory.nbytes, self._ordinal) for name, memory in held.items()}
        for name, memory in held.items():
            further[name].write(memory)
        made = _Set(buffers[0], buffers[1], buffers[2], further, beside.numbers_of(problem))
        return made, a.view, b.view, held

    def _operand(self, problem: Problem, name: str, limit: int, start: int) -> HostOperand:
        """Values from a place in the repeated ones on; what lies between rows and matrices is the filler."""
        count = problem.extent_bytes[name] // problem.dtype.size
        drawn = host_operand(problem, name, self._drawn(problem.dtype, limit, start, count))
        operand = host_operand(problem, name, np.full_like(drawn.memory, filler(problem.dtype)))
        operand.view[...] = drawn.view
        return operand

    def _drawn(self, dtype: DType, limit: int, start: int, count: int) -> NDArray[Any]:
        """So many values from a place in the repeated ones on."""
        values = self._period(dtype, limit)
        parts = [values[start : start + count]]
        while (missing := count - sum(part.size for part in parts)) > 0:
            parts.append(values[:missing])
        return np.concatenate(parts)

    def _period(self, dtype: DType, limit: int) -> NDArray[Any]:
        key = (dtype.name, limit, PERIOD)
        if key not in self._values:
            generator = np.random.default_rng(limit)
            drawn: NDArray[Any]
            if dtype.is_whole:
                drawn = generator.integers(*range_of(dtype), PERIOD)
            elif limit:
                drawn = generator.integers(-limit, limit + 1, PERIOD).astype(np.float32)
            else:
                drawn = generator.standard_normal(PERIOD, dtype=np.float32)
            self._values[key] = drawn.astype(dtype.numpy)
        return self._values[key]

    def _reference(self, a: NDArray[Any], b: NDArray[Any], *, exact: bool) -> Reference:
        assert self._problem is not None  # open() set it
        problem = self._problem
        columns = beside.product_columns(problem, self._columns)
        operands = a[self._matrices][..., self._rows, :], b[self._matrices][..., columns]
        return Reference(
            *operands,
            problem.out_dtype,
            inputs=problem.dtype,
            sums=problem.sums,
            exact=exact,
            epilogue=None if self._sample is None else self._sample.epilogue,
        )


def _out_bytes(problem: Problem) -> int:
    """Bytes of out, the padding behind its last row included: there too nothing may be written."""
    held = problem.footprints["out"]
    return problem.extent_bytes["out"] + held.pitch_bytes - held.row_bytes


def sampled(count: int, most: int, seed: int) -> list[int]:
    """Up to `most` (2 at least) of 0 .. count - 1 in order: the first, the last, and one of each equal part."""
    if count <= most:
        return list(range(count))
    chosen = random.Random(seed)
    edges = [index * count // most for index in range(most + 1)]
    inner = [chosen.randrange(low, high) for low, high in itertools.pairwise(edges[1:-1])]
    return [0, *inner, count - 1]


def sampled_matrices(batch: tuple[int, ...], seed: int) -> tuple[NDArray[np.intp], ...]:
    """An index of the dimensions of a batch: up to SAMPLED_MATRICES of its matrices, or 2 along each dimension."""
    if not batch:
        return ()
    most = max(2, int(SAMPLED_MATRICES ** (1 / len(batch)) + 1e-9))
    return np.ix_(*(sampled(extent, most, seed) for extent in batch))


def set_bytes(problem: Problem) -> int:
    """Bytes that one a, b and out take, what lies between rows and matrices included, and an epilogue's arrays."""
    extents = problem.extent_bytes
    return extents["a"] + extents["b"] + _out_bytes(problem) + beside.num_bytes(problem)
