"""From three views to a Problem, and from a Problem and three addresses to the memory that a call touches.

Every refusal of shapes, strides, addresses and overlaps lives here or in problem.checked; knows nothing of array
libraries, kernels or devices. What a batch comes down to, batching.py knows.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import dtypes
from tilewright.batching import Matrices, broadcast, simplified
from tilewright.dtypes import DType, DTypeLike
from tilewright.errors import DTypeError, LayoutError, ShapeError, UnsupportedError
from tilewright.fusing import Fusing, check_fused, folded_shape, form_of, strides_of
from tilewright.problem import AMajor, Major, OutMajor, Problem, checked
from tilewright.tensor import Rows, View, overlap
from tilewright.tma import TMA_ALIGNMENT_BYTES, batch_refusal, pitch_refusal, stride_refusal


def problem_of(
    a: View,
    b: View,
    out: View | None = None,
    out_dtype: DType | None = None,
    inputs: DTypeLike | None = None,
    sums: DTypeLike | None = None,
    fusing: Fusing | None = None,
) -> Problem:
    """The product of these arrays; without `out`, into a fresh row-major array of `out_dtype` (default: that of a, of
    int8 int32). `inputs`: what elements are multiplied as, fp32 as tf32; `sums`: what products are summed in, of
    fp16 fp16; `fusing`: its epilogue.

    Shapes: those of matmul in torch and NumPy: a (..., m, k), b (..., k, n), out (..., m, n), where batch dimensions
    are broadcast and a vector (k,) on either side is a matrix of one row or column that out then lacks. The stride of a
    dimension of extent 1 reaches no second element and is taken as whatever fits. Batch dimensions that lie in memory
    like more rows of one matrix become that: the Problem has fewer and larger matrices than the arrays.
    Raises: ShapeError, DTypeError, LayoutError, UnsupportedError (two devices): what no kernel serves.
    """
    named = [("a", a), ("b", b)] + ([] if out is None else [("out", out)])
    for name, view in named[1:]:
        if view.location != a.location:
            raise UnsupportedError(
                asked=f"a on {a.location} and {name} on {view.location}",
                rule="the operands of one product lie on one device",
                works=f"move {name} to {a.location}",
            )
    whole = out_shape(a.shape, b.shape)
    shape = folded_shape(whole, fusing)
    _check_dtypes(a, b, out, out_dtype)
    dtype = dtypes.product_of(a.dtype, inputs)
    if out is None:
        out_type, out_align = out_dtype or dtypes.out_choices(dtype)[0], TMA_ALIGNMENT_BYTES
        out_strides = row_major_strides(shape)
    else:
        _check_out(out, shape)
        out_type, out_align, out_strides = out.dtype, alignment_of(out.address), out.strides

    def is_fused_alike(matrices: Matrices) -> bool:
        """Whether columns that make one value are still the same, and arrays of an epilogue still lie as steps read
        them."""
        if fusing is None:
            return True
        try:
            form_of(fusing, matrices)
        except LayoutError:  # one of single rows, say, that lie apart or are the same for all
            return False
        return not fusing.needs_its_columns or matrices.n == given.n

    further = () if fusing is None else strides_of(fusing, whole, len(a.shape), b)
    given = broadcast((a.shape, a.strides), (b.shape, b.strides), (whole, out_strides), further)
    if given.is_empty:  # no element of a or b is read: their strides mean nothing
        held = simplified(given.with_a_like_out(), lambda matrices: _is_written(matrices) and is_fused_alike(matrices))
        held = held.without_inputs()
    else:
        copied = _copied(given, a.dtype)  # a fold must not cost a copy that is not needed without it
        held = simplified(
            given,
            lambda matrices: _is_written(matrices) and _is_read(matrices, a.dtype, copied) and is_fused_alike(matrices),
        )
    form = None if fusing is None else form_of(fusing, held)
    a_major, a_pitch = _a_layout(a, held)
    b_major, b_pitch = _b_layout(b, held)
    out_major, out_pitch = _out_layout(out, replace(held, n=shape[-1]) if shape != whole else held)
    for name, view, strides in (("a", a, held.a_batch), ("b", b, held.b_batch)):
        for stride in strides:
            if rule := stride_refusal("batch", stride, a.dtype):
                raise _refusal(name, view, rule)
    return checked(
        Problem(
            m=held.m,
            n=held.n * (2 if fusing is not None and fusing.is_apart else 1),
            k=held.k,
            dtype=dtype,
            out_dtype=out_type,
            sums=dtypes.summed_in(dtype, sums),
            a_major=a_major,
            b_major=b_major,
            out_major=out_major,
            a_pitch=a_pitch,
            b_pitch=b_pitch,
            out_pitch=out_pitch,
            a_align_bytes=alignment_of(a.address),
            b_align_bytes=alignment_of(b.address),
            out_align_bytes=out_align,
            batch=held.batch,
            a_batch=held.a_batch,
            b_batch=held.b_batch,
            out_batch=held.out_batch,
            epilogue=form,
        )
    )


def out_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of matmul's result, in torch and NumPy alike.

    Raises: ShapeError: a number in place of a vector or matrix, sizes along k that do not meet, batches that do not
    broadcast.
    """
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise ShapeError(
                asked=f"{name} with shape ()",
                rule="a product of matrices has no factor without dimensions",
                works=f"multiply by a number elsewhere, or pass {name}.reshape(1, 1)",
            )
    k, b_rows = a[-1], b[-2] if len(b) > 1 else b[0]
    if k != b_rows:
        works = f"pass b with shape ({k}, n)"
        if len(b) == 2 and b[1] == k:
            works += f"; a weight stored as (n, {k}) goes in as its transpose, w.t()"
        raise ShapeError(
            asked=f"a {a} times b {b}", rule=f"the {k} columns of a meet the {b_rows} rows of b", works=works
        )
    batch: list[int] = []
    a_batch, b_batch = a[:-2], b[:-2]
    for position in range(max(len(a_batch), len(b_batch)), 0, -1):
        extents = {shape[-position] if position <= len(shape) else 1 for shape in (a_batch, b_batch)} - {1}
        if len(extents) > 1:
            raise ShapeError(
                asked=f"a {a} times b {b}",
                rule=f"batches {a_batch} and {b_batch} are broadcast: aligned at their ends, extents are equal or 1",
                works="insert dimensions of 1, for example a[:, None]",
            )
        batch.append(extents.pop() if extents else 1)
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a fresh row-major array."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def alignment_of(address: int) -> int:
    """The largest power of two up to 16 that divides the address."""
    return min(address & -address, TMA_ALIGNMENT_BYTES) if address else TMA_ALIGNMENT_BYTES


def fitting_pitch(row_extent: int, dtype: DType) -> int:
    """Elements between rows that TMA can read: `row_extent` rounded up to 16 bytes."""
    step = TMA_ALIGNMENT_BYTES // dtype.size
    return -(-max(row_extent, 1) // step) * step


def operands(problem: Problem, a: int, b: int, out: int) -> tuple[Rows, Rows, Rows]:
    """The memory of a, b and out at these addresses, padding between rows left out."""

    held = problem.footprints
    return Rows(a, *held["a"]), Rows(b, *held["b"]), Rows(out, *held["out"])


def check_addresses(problem: Problem, a: int, b: int, out: int, *further: int) -> None:
    """Raises LayoutError when no kernel for the problem can read a and b and write out at these addresses, and the
    arrays of its epilogue at `further`."""
    check_out_address(problem, out)
    if further:
        check_fused(problem, (a, b, out, *further))
    if problem.is_empty:  # nothing of a and b is read
        return
    rows = operands(problem, a, b, out)
    _check_has_memory("a", a)
    _check_has_memory("b", b)
    for name, address in (("a", a), ("b", b)):
        if address % problem.dtype.size:
            raise LayoutError(
                asked=f"{name} at address {address:#x}",
                rule=f"elements of {problem.dtype} lie at multiples of {problem.dtype.size} bytes",
                works=_clone_that_works(name, problem),
            )
    for name, memory in (("a", rows[0]), ("b", rows[1])):
        if overlap(rows[2], memory):
            raise LayoutError(
                asked=f"out that shares memory with {name}",
                rule=f"{name} is still read while out is written",
                works=f"{_clone_that_works(name, problem)}, or pass an out of its own",
            )


def copied(needs_bytes: tuple[int, int], a: int, b: int) -> tuple[str, ...]:
    """Which of "a" and "b" are copied before a kernel reads them at these addresses: those at no multiple of the bytes
    that it needs; of 0 at any address (Config.needs_bytes). () for most products."""
    of_a, of_b = needs_bytes
    return (() if of_a and a % of_a == 0 else ("a",)) + (() if of_b and b % of_b == 0 else ("b",))


def check_out_address(problem: Problem, out: int) -> None:
    """Raises LayoutError when the plan of the problem cannot write an out at this address: zeros, where k is 0."""
    _check_has_memory("out", out)
    if out % problem.out_align_bytes:
        raise LayoutError(
            asked=f"out at address {out:#x}, which is {out % problem.out_align_bytes} past a multiple of "
            f"{problem.out_align_bytes} bytes",
            rule=f"this plan was made for an out at a multiple of {problem.out_align_bytes} bytes",
            works="make a plan from this out, or call matmul, which does",
        )


def _check_has_memory(name: str, address: int) -> None:
    if address == 0:
        raise LayoutError(
            asked=f"{name} at address 0", rule="an operand with elements has memory", works=f"allocate {name}"
        )


def _check_dtypes(a: View, b: View, out: View | None, out_dtype: DType | None) -> None:
    if a.dtype != b.dtype:
        raise DTypeError(
            asked=f"a of {a.dtype} and b of {b.dtype}",
            rule="both inputs have one element type",
            works=f"cast b to {a.dtype} or a to {b.dtype}",
        )
    if out is not None and out_dtype is not None and out.dtype != out_dtype:
        raise DTypeError(
            asked=f"out of {out.dtype} with out_dtype {out_dtype}",
            rule="out_dtype names the element type of out",
            works="leave out_dtype out when out is given",
        )


def _check_out(out: View, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        raise ShapeError(asked=f"out {out.shape}", rule=f"the product is {shape}", works=f"pass out with shape {shape}")
    if out.address % out.dtype.size:
        raise LayoutError(
            asked=f"out at address {out.address:#x}",
            rule=f"elements of {out.dtype} lie at multiples of {out.dtype.size} bytes",
            works="pass an out that was allocated as such",
        )


# -- which dimension is contiguous -------------------------------------------------------------------------------------


def _readable(
    majors: tuple[str, str], extents: tuple[int, int], strides: tuple[int, int], dtype: DType
) -> tuple[str, int, str]:
    """(major, pitch, "") of an input matrix, or ("", 0, the rule that it breaks). Where both dimensions would do, the
    first whose pitch TMA can read, or else the first. `majors` names the dimensions."""
    rule = f"{majors[0]} or {majors[1]} is contiguous in it: neighbours lie side by side in memory"
    found = []
    for index in (0, 1):
        other = 1 - index
        if extents[index] != 1 and strides[index] != 1:
            continue
        pitch = fitting_pitch(extents[index], dtype) if extents[other] == 1 else strides[other]
        rule = stride_refusal("row", pitch, dtype)
        if not rule:
            found.append((pitch_refusal(extents[index], pitch, dtype) != "", index, majors[index], pitch))
    if not found:
        return "", 0, rule
    _, _, major, pitch = min(found)
    return major, pitch, ""


def _matrices(held: Matrices) -> tuple[tuple[str, tuple[str, str], tuple[int, int], tuple[int, int]], ...]:
    """(name, names of dimensions, extents, strides) of a and b as _readable() takes them."""
    return ("a", ("k", "m"), (held.k, held.m), held.a[::-1]), ("b", ("k", "n"), (held.k, held.n), held.b)


def _copied(held: Matrices, dtype: DType) -> frozenset[str]:
    """Which of a and b are copied before TMA reads them, for their strides; a layout that nothing reads among them."""
    found = set()
    for name, majors, extents, strides in _matrices(held):
        major, pitch, rule = _readable(majors, extents, strides, dtype)
        index = majors.index(major) if major else 0
        has_pitch = extents[1 - index] != 1
        batch = held.a_batch if name == "a" else held.b_batch
        if (
            rule
            or (has_pitch and pitch_refusal(extents[index], pitch, dtype))
            or any(batch_refusal(stride, dtype) for stride in batch)
        ):
            found.add(name)
    return frozenset(found)


def _is_read(held: Matrices, dtype: DType, copied: frozenset[str]) -> bool:
    """Whether the matrices of a and b can be read, and no other of them than `copied` needs a copy for it."""
    readable = (not _readable(majors, extents, strides, dtype)[2] for _, majors, extents, strides in _matrices(held))
    return all(readable) and _copied(held, dtype) <= copied


def _is_written(held: Matrices) -> bool:
    """Whether the matrices of out have a contiguous dimension."""
    return 1 in (held.m, held.n, *held.out)


def _a_layout(a: View, held: Matrices) -> tuple[AMajor, int]:
    if held.is_empty:
        return "k", fitting_pitch(held.k, a.dtype)
    major, pitch, rule = _readable(*_matrices(held)[0][1:], a.dtype)
    if rule:
        raise _refusal("a", a, rule)
    return "m" if major == "m" else "k", pitch


def _b_layout(b: View, held: Matrices) -> tuple[Major, int]:
    if held.is_empty:
        return "k", fitting_pitch(held.k, b.dtype)
    major, pitch, rule = _readable(*_matrices(held)[1][1:], b.dtype)
    if rule:
        raise _refusal("b", b, rule)
    return "n" if major == "n" else "k", pitch


def _out_layout(out: View | None, held: Matrices) -> tuple[OutMajor, int]:
    m, n = held.m, held.n
    row_stride, column_stride = held.out
    if 0 in (m, n, *held.batch):
        return "n", max(n, 1)
    if n == 1 or column_stride == 1:
        major, row_extent, rows, pitch = "n", n, m, row_stride
    elif m == 1 or row_stride == 1:
        major, row_extent, rows, pitch = "m", m, n, column_stride
    else:
        raise LayoutError(
            asked=f"out {out}",
            rule="rows of out are contiguous or its columns: its last stride is 1, or the one before",
            works="pass such an out, and copy the result afterwards",
        )
    if rows == 1:
        return "n" if major == "n" else "m", row_extent
    if pitch < row_extent:
        raise LayoutError(
            asked=f"out {out}",
            rule=f"each element of out has a place of its own: {'rows' if major == 'n' else 'columns'} lie at least "
            f"{row_extent} elements apart",
            works=f"pass an out with a stride of {row_extent} or more there",
        )
    return "n" if major == "n" else "m", pitch


# -- what would work ---------------------------------------------------------------------------------------------------


def _refusal(name: str, view: View, rule: str) -> LayoutError:
    """The refusal of an operand's strides, with the copy of it that is served: a packed one always is."""
    return LayoutError(
        asked=f"{name} {view}", rule=rule, works=f"pass {name}.contiguous() (NumPy and CuPy: {name}.copy())"
    )


def _clone_that_works(name: str, problem: Problem) -> str:
    """A copy of an operand in memory of its own."""
    is_transposed = getattr(problem, f"{name}_major") == {"a": "m", "b": "k"}[name]
    order = "order='K'" if is_transposed else ""  # as torch's clone: the strides' order stays
    return f"pass {name}.clone() (NumPy and CuPy: {name}.copy({order}))"
