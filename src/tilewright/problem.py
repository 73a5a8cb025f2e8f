"""What is to be computed: out (m, n) = a (m, k) x b (k, n), or a batch of them, with the layouts of all three.

A Problem holds all that a kernel's choice and code depend on and nothing that changes from call to call: no pointers,
no stream. Its checks are those that hold for every kernel; what one config cannot do is config.violations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.epilogue_form import Form, check_array_dtypes, check_kinds, check_sums
from tilewright.errors import DTypeError, LayoutError, ShapeError
from tilewright.integers import whole, wholes
from tilewright.tma import (
    MAX_BATCH_DIMS,
    MAX_EXTENT,
    MAX_PITCH_BYTES,
    TMA_ALIGNMENT_BYTES,
    batch_refusal,
    pitch_refusal,
    stride_refusal,
)

AMajor = Literal["k", "m"]
Major = Literal["k", "n"]
OutMajor = Literal["n", "m"]
MAJORS: dict[str, tuple[str, str]] = {"a": ("k", "m"), "b": ("k", "n"), "out": ("n", "m")}  # the first as packed

# Letters of a layout, b's and then a's, as cuBLAS calls it for a row-major out: N lies in memory as (rows, columns).
_LETTERS = {("b", "k"): "T", ("b", "n"): "N", ("a", "k"): "N", ("a", "m"): "T"}

ALIGNMENTS_BYTES: tuple[int, ...] = (1, 2, 4, 8, 16)  # of out's address; more than 16 serves nobody


class Footprint(NamedTuple):
    """The memory of one operand, wherever it lies: rows of neighbouring bytes, and the batch's (extent, stride)s.

    Units: bytes. Dimensions along which the operand stays the same are left out, but for those without an element.
    """

    num_rows: int
    row_bytes: int
    pitch_bytes: int
    batch: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One matrix product, or a batch of equal ones.

    Shapes: a (m, k), b (k, n), out (m, n); each major names the dimension that is contiguous: "k" of b is the transpose
    of an (n, k) weight, "n" a plain row-major matrix. `batch` holds the extents of up to 3 further dimensions of all
    three, () for a single product; the last is walked fastest.
    Units: pitches in elements, the distance between rows of the contiguous dimension; `a_batch`, `b_batch` and
    `out_batch` the distance between matrices along each dimension of the batch, 0 where a or b is the same for all. A
    pitch of a or b may be 0 as well: rows that are one and the same.
    `sums`: what products are summed in: fp32, of int8 int32 (which fp32, the default, stands for there); fp16 of fp16
    where less will do: every 16 products round it.
    `out_is_padded`: what lies between the rows of out, and behind the last, up to the next multiple of 16 bytes, may be
    written as well: it is scratch.
    `a_align_bytes`, `b_align_bytes` and `out_align_bytes` are the largest powers of two up to 16 that divide the base
    addresses; a plan serves a and b at any address, and says by these what it expects.
    `epilogue` is the form of what happens to the sums before they are rounded (epilogue_form.py); None: nothing.
    """

    m: int
    n: int
    k: int
    dtype: DType = dtypes.BF16
    out_dtype: DType = dtypes.BF16
    sums: DType = dtypes.FP32
    a_major: AMajor = "k"
    b_major: Major = "k"
    out_major: OutMajor = "n"
    a_pitch: int
    b_pitch: int
    out_pitch: int
    out_align_bytes: int = TMA_ALIGNMENT_BYTES
    batch: tuple[int, ...] = ()
    a_batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] = ()
    out_batch: tuple[int, ...] = ()
    a_align_bytes: int = TMA_ALIGNMENT_BYTES
    b_align_bytes: int = TMA_ALIGNMENT_BYTES
    out_is_padded: bool = False
    epilogue: Form | None = None

    def __post_init__(self) -> None:
        """Keeps what was given in its own type: any whole number as an int, any spelling of an element type as a DType.

        Raises: ShapeError, LayoutError, DTypeError: a value that is none.
        """
        kept: dict[str, object] = {name: whole(name, getattr(self, name), ShapeError) for name in ("m", "n", "k")}
        for name in ("a_pitch", "b_pitch", "out_pitch", "a_align_bytes", "b_align_bytes", "out_align_bytes"):
            kept[name] = whole(name, getattr(self, name), LayoutError)
        for name in ("dtype", "out_dtype", "sums"):
            kept[name] = dtypes.by_name(getattr(self, name))
        if kept["sums"] is dtypes.FP32:
            kept["sums"] = dtypes.sums_of(dtypes.by_name(self.dtype))
        kept["batch"] = wholes("batch", self.batch, ShapeError)
        for name in ("a_batch", "b_batch", "out_batch"):
            kept[name] = wholes(name, getattr(self, name), LayoutError)
        for name, value in kept.items():
            object.__setattr__(self, name, value)
        for name, choices in MAJORS.items():
            if (major := getattr(self, f"{name}_major")) not in choices:
                raise LayoutError(
                    asked=f"{name}_major = {major!r}",
                    rule=f"it names the dimension of {name} that is contiguous",
                    works=f"pass {' or '.join(map(repr, choices))}",
                )
        for name in ("a_batch", "b_batch", "out_batch"):
            if len(strides := getattr(self, name)) != len(self.batch):
                raise LayoutError(
                    asked=f"{name} = {strides} of a batch {self.batch}",
                    rule="each dimension of the batch has one stride",
                    works=f"pass {len(self.batch)} strides",
                )
        for name in ("a", "b", "out"):
            if (align := getattr(self, f"{name}_align_bytes")) not in ALIGNMENTS_BYTES:
                raise LayoutError(
                    asked=f"{name}_align_bytes = {align}",
                    rule=f"it is the largest power of two up to {TMA_ALIGNMENT_BYTES} that divides {name}'s address",
                    works=f"pass one of {', '.join(map(str, ALIGNMENTS_BYTES))}",
                )

    @property
    def out_through_tma(self) -> bool:
        """Whether out can be written by TMA: base, pitch, row bytes and the batch's strides all in multiples of 16.

        A row of any other length would be clipped only at the next 16-byte boundary: bytes past the row would be
        overwritten (PTX ISA, tensor copy; reported as triton#11583), which `out_is_padded` allows.
        """
        size = self.out_dtype.size
        row_bytes = self.rows_of("out")[1] * size
        steps_bytes = (self.out_pitch * size, *(stride * size for stride in self.out_batch))
        return (
            self.out_align_bytes % TMA_ALIGNMENT_BYTES == 0
            and (self.out_is_padded or row_bytes % TMA_ALIGNMENT_BYTES == 0)
            and all(step % TMA_ALIGNMENT_BYTES == 0 and step < MAX_PITCH_BYTES for step in steps_bytes)
        )

    @cached_property
    def unreadable(self) -> tuple[str, ...]:
        """Which of "a" and "b" TMA cannot read where they lie, whatever their addresses: by pitch, overlapping rows or
        batch strides. They are copied first (kernels/repack.py). Kept: each call with new addresses asks for it."""
        return () if self.is_empty else tuple(name for name in ("a", "b") if self._tma_refusal(name))

    @property
    def repacked(self) -> tuple[str, ...]:
        """Those of "a" and "b" that are copied first, with the addresses that the problem expects."""
        if self.is_empty:
            return ()
        return tuple(
            name
            for name in ("a", "b")
            if name in self.unreadable or getattr(self, f"{name}_align_bytes") < TMA_ALIGNMENT_BYTES
        )

    def _tma_refusal(self, operand: str) -> str:
        """The rule of TMA that the rows of an input, or their batch, break; "" for none. A single row has no pitch."""
        rows, extent = self.rows_of(operand)
        if rows > 1 and (rule := pitch_refusal(extent, getattr(self, f"{operand}_pitch"), self.dtype)):
            return rule
        rules = (batch_refusal(stride, self.dtype) for stride in getattr(self, f"{operand}_batch"))
        return next((rule for rule in rules if rule), "")

    @property
    def is_for_wgmma(self) -> bool:
        """Whether it is of the one kind that the Hopper kernel's wgmma multiplies: 16-bit inputs, fp32 sums."""
        return self.dtype in dtypes.OF_16_BITS and self.sums is dtypes.FP32

    @property
    def num_matrices(self) -> int:
        """Products of the batch."""
        return math.prod(self.batch)

    @property
    def is_empty(self) -> bool:
        """Whether the result needs no multiplication: no element, or all zeros because k is 0."""
        return 0 in (self.m, self.n, self.k, *self.batch)

    @property
    def out_n(self) -> int:
        """Columns of out: n, or half of them where an epilogue gates one half by the other."""
        return self.n // 2 if self.gates else self.n

    @property
    def gates(self) -> str:
        """How columns that an epilogue gates lie: "interleaved", "halves", or "apart", the halves in two b; "" where
        none is gated."""
        return "" if self.epilogue is None else self.epilogue.split

    @property
    def b_n(self) -> int:
        """Columns of b: n, or half of them where gate and up are two b that lie alike."""
        return self.n // 2 if self.gates == "apart" else self.n

    @property
    def with_gates_in_one(self) -> Problem:
        """The same product with gate and up as the halves of one b, where they are two."""
        if self.gates != "apart" or self.epilogue is None:
            return self
        pitch = self.b_pitch if self.b_major == "k" else max(self.b_pitch, self.n)
        matrix = tuple(2 * stride for stride in self.b_batch)
        return replace(self, epilogue=self.epilogue.with_gates_in_one, b_pitch=pitch, b_batch=matrix)

    @property
    def gate_refusals(self) -> tuple[str, ...]:
        """Why the Hopper kernel cannot gate these columns, whatever the config; () where it can, or has not to."""
        if not self.gates:
            return ()
        found = []
        if self.out_major == "m":
            found.append("it gates columns of an out whose rows are contiguous")
        if self.b_major == "n" and self.gates == "interleaved":
            found.append(
                "interleaved columns of an n-contiguous b are no rows that TMA reads; use halves, or a k-contiguous b"
            )
        elif self.b_major == "n" and self.gates == "halves" and self.n // 2 * self.dtype.size % TMA_ALIGNMENT_BYTES:
            found.append(
                f"the second half of an n-contiguous b begins {self.n // 2} elements on, which is no multiple of "
                f"{TMA_ALIGNMENT_BYTES} bytes; use a k-contiguous b"
            )
        return tuple(found)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * self.num_matrices

    @property
    def shares_no_matrix(self) -> bool:
        """Whether it is a batch of which each product has an a and a b of its own, as slices of a single one have."""
        return bool(self.batch) and all(self.a_batch) and all(self.b_batch)

    @property
    def input_bytes(self) -> int:
        """Bytes of a and b, those of a matrix that many products share counted once."""
        num_a, num_b = (
            math.prod(extent for extent, stride in zip(self.batch, strides, strict=True) if stride)
            for strides in (self.a_batch, self.b_batch)
        )
        return (num_a * self.m + num_b * self.n) * self.k * self.dtype.size

    @property
    def out_bytes(self) -> int:
        """Bytes of out, without padding."""
        return self.m * self.out_n * self.num_matrices * self.out_dtype.size

    @property
    def min_bytes(self) -> int:
        """The fewest bytes that device memory must move: each operand read once, out written once."""
        return self.input_bytes + self.out_bytes

    def rows_of(self, operand: str) -> tuple[int, int]:
        """(rows, elements of a row) of one matrix of "a", "b" or "out" as it lies in memory."""
        extents = {"m": self.m, "n": self.out_n if operand == "out" else self.b_n, "k": self.k}
        major = getattr(self, f"{operand}_major")
        other = next(name for name in {"a": "mk", "b": "kn", "out": "mn"}[operand] if name != major)
        return extents[other], extents[major]

    def strided(self, operand: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides, in elements, of "a" (*batch, m, k), "b" (*batch, k, n) or "out" (*batch, m, n)."""
        rows, columns = {"a": ("m", "k"), "b": ("k", "n"), "out": ("m", "n")}[operand]
        extents = {"m": self.m, "n": self.out_n if operand == "out" else self.b_n, "k": self.k}
        pitch = getattr(self, f"{operand}_pitch")
        matrix = (pitch, 1) if getattr(self, f"{operand}_major") == columns else (1, pitch)
        return (*self.batch, extents[rows], extents[columns]), (*getattr(self, f"{operand}_batch"), *matrix)

    @cached_property
    def footprints(self) -> dict[str, Footprint]:
        """The memory of a, b and out. Kept: each call with new addresses asks for it."""
        found = {}
        for operand in ("a", "b", "out"):
            rows, extent = self.rows_of(operand)
            size = (self.out_dtype if operand == "out" else self.dtype).size
            batch = zip(self.batch, getattr(self, f"{operand}_batch"), strict=True)
            pitch = getattr(self, f"{operand}_pitch")
            found[operand] = Footprint(
                rows if pitch else min(rows, 1),
                extent * size,
                pitch * size or max(extent * size, 1),
                tuple((count, stride * size) for count, stride in batch if stride or not count),
            )
        return found

    @property
    def extent_bytes(self) -> dict[str, int]:
        """Bytes from the first element of each operand to the end of its last, padding between rows included."""
        return {
            operand: (held.num_rows - 1) * held.pitch_bytes
            + held.row_bytes
            + sum((count - 1) * stride for count, stride in held.batch)
            for operand, held in self.footprints.items()
        }

    @property
    def row_major(self) -> Problem:
        """The same product with a row-major out: what kernels are chosen for. One that gates columns is itself: they
        would be rows."""
        return self if self.out_major == "n" or self.gates else self.transposed

    @property
    def transposed(self) -> Problem:
        """out^T = b^T a^T in the same memory: a and b change places, and "k" stays what is contiguous in either; out's
        rows are then its columns."""
        return replace(
            self,
            m=self.n,
            n=self.m,
            a_major="k" if self.b_major == "k" else "m",
            b_major="k" if self.a_major == "k" else "n",
            out_major="m" if self.out_major == "n" else "n",
            a_pitch=self.b_pitch,
            b_pitch=self.a_pitch,
            a_batch=self.b_batch,
            b_batch=self.a_batch,
            a_align_bytes=self.b_align_bytes,
            b_align_bytes=self.a_align_bytes,
            epilogue=None if self.epilogue is None else self.epilogue.transposed,
        )

    @property
    def layout(self) -> str:
        """TN, NN, TT or NT: b's letter and a's, as cuBLAS has them for a row-major out."""
        return _LETTERS["b", self.b_major] + _LETTERS["a", self.a_major]

    def __str__(self) -> str:
        count = "".join(f"{extent} x " for extent in self.batch)
        columns = " out column-major" if self.out_major == "m" else ""
        sums = "" if self.sums is dtypes.sums_of(self.dtype) else f" sums in {self.sums}"
        epilogue = "" if self.epilogue is None else f" | {self.epilogue}"
        return (
            f"{count}{self.m}x{self.n}x{self.k} {self.dtype} -> {self.out_dtype} {self.layout}{columns}{sums}{epilogue}"
        )


def checked(problem: Problem) -> Problem:
    """`problem` itself, when some kernel could serve it.

    Raises: ShapeError: a size is negative or past the index range. DTypeError: a combination of element types without
    a kernel. LayoutError: a stride that runs backwards or leads past any memory.
    """
    sizes = [("m", problem.m), ("n", problem.n), ("k", problem.k), *(("a batch", extent) for extent in problem.batch)]
    for name, extent in sizes:
        if not 0 <= extent <= MAX_EXTENT:
            raise ShapeError(
                asked=f"{name} = {extent}",
                rule=f"sizes run from 0 to {MAX_EXTENT} (32-bit tensor coordinates)",
                works="split the product along that dimension",
            )
    if len(problem.batch) > MAX_BATCH_DIMS:
        raise ShapeError(
            asked=f"a batch {problem.batch} of {len(problem.batch)} dimensions",
            rule=f"tensor maps have {2 + MAX_BATCH_DIMS} dimensions, {MAX_BATCH_DIMS} of them for the batch",
            works="merge dimensions whose strides fit together, or call matmul for each index of the first one",
        )
    if problem.dtype not in dtypes.INPUTS:
        raise DTypeError(
            asked=f"inputs of {problem.dtype}",
            rule=f"inputs are {dtypes.inputs_text()}",
            works="pass inputs='tf32', which rounds each to 11 bits, or cast a and b"
            if problem.dtype is dtypes.FP32
            else "cast a and b",
        )
    dtypes.summed_in(problem.dtype, problem.sums)
    if problem.out_dtype not in dtypes.out_choices(problem.dtype, problem.sums):
        in_fp16 = " with sums in fp16" if problem.sums is dtypes.FP16 else ""
        raise DTypeError(
            asked=f"{problem.dtype} inputs{in_fp16} with out in {problem.out_dtype}",
            rule=dtypes.out_rule(problem.dtype, problem.sums),
            works=dtypes.out_works(problem.dtype, problem.sums),
        )
    if problem.epilogue is not None:
        _check_epilogue(problem, problem.epilogue)
    if not problem.is_empty:
        _check_input("a", problem)
        _check_input("b", problem)
        _check_apart(problem)
    if 0 not in (problem.m, problem.n, *problem.batch):  # out is written also where k is 0
        _check_out(problem)
    return problem


def _check_epilogue(problem: Problem, form: Form) -> None:
    """Raises the refusal of an epilogue of other sums than fp32, of steps that are not served, of strange arrays; of a
    gated one whose columns do not come in pairs."""
    check_sums(problem.sums)
    check_kinds(step.kind for step in form.steps)
    check_array_dtypes(form)
    if form.is_gated and problem.n % 2:
        raise ShapeError(
            asked=f"a gated epilogue of n = {problem.n} columns",
            rule="half of the columns are gates and half are gated",
            works="pass a b with an even number of columns",
        )


def _check_apart(problem: Problem) -> None:
    """Raises LayoutError: gate and up in two arrays that would have to be copied first."""
    if problem.gates == "apart" and "b" in problem.repacked:
        raise LayoutError(
            asked=f"gate and up in two arrays with {problem.b_pitch} {problem.dtype} elements between rows",
            rule=f"both are read where they lie: they begin, as their rows do, at multiples of {TMA_ALIGNMENT_BYTES} "
            "bytes",
            works="pass one b with both side by side, in halves, which is copied where it has to be",
        )


def _check_input(operand: str, problem: Problem) -> None:
    """Raises LayoutError when no kernel can find the operand's rows or matrices."""
    dtype = problem.dtype
    for what, stride in (
        ("row", getattr(problem, f"{operand}_pitch")),
        *(("batch", stride) for stride in getattr(problem, f"{operand}_batch")),
    ):
        if rule := stride_refusal(what, stride, dtype):
            raise LayoutError(
                asked=f"{operand} with {stride} {dtype} elements between {'rows' if what == 'row' else 'matrices'}",
                rule=rule,
                works=f"copy {operand} into a contiguous array",
            )


def _check_out(problem: Problem) -> None:
    """Raises LayoutError when elements of out share a place, or rows lie further apart than any memory reaches."""
    rows, row_extent = problem.rows_of("out")
    pitch, size = problem.out_pitch, problem.out_dtype.size
    asked = f"out with {pitch} elements between rows of {row_extent}"
    if pitch < row_extent and not problem.batch:
        works = f"give out a row stride of at least {row_extent}"
        raise LayoutError(asked=asked, rule="rows of out must not overlap", works=works)
    if pitch * size >= MAX_PITCH_BYTES:
        works = f"give out a row stride nearer to {row_extent}"
        raise LayoutError(asked=asked, rule="row pitches are below 2^40 bytes", works=works)
    steps = [(pitch, rows), *zip(problem.out_batch, problem.batch, strict=True)]
    span = row_extent  # elements from the first to the end of the last of what the strides so far reach
    for stride, extent in sorted(step for step in steps if step[1] > 1):
        if stride < span:
            raise LayoutError(
                asked=f"out with strides of {', '.join(str(step[0]) for step in steps)} elements between rows of "
                f"{row_extent} and between matrices",
                rule=f"each element of out has a place of its own: what is {stride} apart is {span} long",
                works="pass an out that is contiguous, or a view with gaps of one that is",
            )
        if stride * size >= MAX_PITCH_BYTES:
            raise LayoutError(
                asked=f"out with {stride} elements between matrices",
                rule="batch strides are below 2^40 bytes",
                works="give out a batch stride nearer to the size of its matrices",
            )
        span += (extent - 1) * stride
