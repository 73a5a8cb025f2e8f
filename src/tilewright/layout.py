"""From three views to a Problem, and from a Problem and three addresses to the memory that a call touches.

Every refusal of shapes, strides, addresses and overlaps lives here or in problem.checked; knows nothing of array
libraries, kernels or devices.
"""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.errors import DTypeError, LayoutError, ShapeError, UnsupportedError
from tilewright.problem import TMA_ALIGNMENT_BYTES, Major, Problem, checked, padded_copy, pitch_refusal
from tilewright.tensor import Rows, View, overlap


def problem_of(a: View, b: View, out: View | None = None, out_dtype: DType | None = None) -> Problem:
    """The product of these arrays; without `out`, into a fresh row-major array of `out_dtype` (default: that of a).

    Shapes: a (m, k), b (k, n), out (m, n). The stride of a dimension of extent 1 reaches no second element and is
    taken as whatever fits.
    Raises: ShapeError, DTypeError, LayoutError, UnsupportedError (two devices): what no kernel serves.
    """
    named = [("a", a), ("b", b)] + ([] if out is None else [("out", out)])
    for name, view in named:
        _check_rank(name, view)
    for name, view in named[1:]:
        if view.location != a.location:
            raise UnsupportedError(
                asked=f"a on {a.location} and {name} on {view.location}",
                rule="the operands of one product lie on one device",
                works=f"move {name} to {a.location}",
            )
    (m, k), (b_rows, n) = a.shape, b.shape
    if k != b_rows:
        raise ShapeError(
            asked=f"a {a.shape} times b {b.shape}",
            rule=f"the {k} columns of a meet the {b_rows} rows of b",
            works=f"pass b with shape ({k}, n); a weight stored as (n, {k}) goes in as its transpose, w.t()",
        )
    _check_dtypes(a, b, out, out_dtype)
    if out is None:
        out_type, out_pitch, out_align = out_dtype or a.dtype, max(n, 1), TMA_ALIGNMENT_BYTES
    else:
        out_type, out_pitch, out_align = out.dtype, _out_pitch(out, m, n), alignment_of(out.address)
    a_pitch = fitting_pitch(k, a.dtype)
    b_major: Major = "k"
    b_pitch = a_pitch
    if 0 not in (m, n, k):  # else no element of a or b is read: their strides mean nothing
        a_pitch = _a_pitch(a, m, k)
        b_major, b_pitch = _b_layout(b, k, n)
    return checked(
        Problem(
            m=m,
            n=n,
            k=k,
            dtype=a.dtype,
            out_dtype=out_type,
            b_major=b_major,
            a_pitch=a_pitch,
            b_pitch=b_pitch,
            out_pitch=out_pitch,
            out_align_bytes=out_align,
        )
    )


def alignment_of(address: int) -> int:
    """The largest power of two up to 16 that divides the address."""
    return min(address & -address, TMA_ALIGNMENT_BYTES) if address else TMA_ALIGNMENT_BYTES


def fitting_pitch(row_extent: int, dtype: DType) -> int:
    """Elements between rows that TMA can read: `row_extent` rounded up to 16 bytes."""
    step = TMA_ALIGNMENT_BYTES // dtype.size
    return -(-max(row_extent, 1) // step) * step


def operands(problem: Problem, a: int, b: int, out: int) -> tuple[Rows, Rows, Rows]:
    """The memory of a, b and out at these addresses, padding between rows left out."""
    size, out_size = problem.dtype.size, problem.out_dtype.size
    b_rows, b_extent = (problem.n, problem.k) if problem.b_major == "k" else (problem.k, problem.n)
    return (
        Rows(a, problem.m, problem.k * size, problem.a_pitch * size),
        Rows(b, b_rows, b_extent * size, problem.b_pitch * size),
        Rows(out, problem.m, problem.n * out_size, problem.out_pitch * out_size),
    )


def check_addresses(problem: Problem, a: int, b: int, out: int) -> None:
    """Raises LayoutError when no kernel for the problem can read a and b and write out at these addresses."""
    rows = operands(problem, a, b, out)
    _check_has_memory("a", a)
    _check_has_memory("b", b)
    check_out_address(problem, out)
    for name, address in (("a", a), ("b", b)):
        if address % TMA_ALIGNMENT_BYTES:
            raise LayoutError(
                asked=f"{name} at address {address:#x}, which is {address % TMA_ALIGNMENT_BYTES} past a multiple of "
                f"{TMA_ALIGNMENT_BYTES} bytes",
                rule=f"TMA reads from multiples of {TMA_ALIGNMENT_BYTES} bytes",
                works=_clone_that_works(name, problem),
            )
    for name, memory in (("a", rows[0]), ("b", rows[1])):
        if overlap(rows[2], memory):
            raise LayoutError(
                asked=f"out that shares memory with {name}",
                rule=f"{name} is still read while out is written",
                works=f"{_clone_that_works(name, problem)}, or pass an out of its own",
            )


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


def _check_rank(name: str, view: View) -> None:
    rank = len(view.shape)
    if rank == 2:
        return
    if rank == 1 and name != "out":
        rule = f"torch.matmul would take it for a {'row' if name == 'a' else 'column'}; here operands have 2 dimensions"
        works = f"pass {name}.reshape({'1, -1' if name == 'a' else '-1, 1'})"
    elif rank > 2 and name != "out":
        rule = f"torch.matmul would multiply a batch over the first {rank - 2}; here operands have 2 dimensions"
        works = (
            f"reshape a to (-1, {view.shape[-1]}) where all matrices share b, or call matmul for each matrix"
            if name == "a"
            else "call matmul for each matrix of b"
        )
    else:
        rule, works = "operands have 2 dimensions", f"pass {name} with shape (rows, columns)"
    raise ShapeError(asked=f"{name} with shape {view.shape}", rule=rule, works=works)


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


def _a_pitch(a: View, m: int, k: int) -> int:
    row_stride, inner = a.strides
    if k > 1 and inner != 1:
        raise _refusal("a", a, "k is contiguous in a: neighbours along k lie side by side")
    if m == 1:
        return fitting_pitch(k, a.dtype)
    if rule := _pitch_refusal(k, row_stride, a.dtype):
        raise _refusal("a", a, rule)
    return row_stride


def _b_layout(b: View, k: int, n: int) -> tuple[Major, int]:
    """b's contiguous dimension and its pitch. Where both dimensions would do, the one whose pitch TMA can read."""
    k_stride, n_stride = b.strides
    choices: list[tuple[Major, int, int]] = []  # each with its row's extent and the pitch it would need
    if k == 1 or k_stride == 1:
        choices.append(("k", k, fitting_pitch(k, b.dtype) if n == 1 else n_stride))
    if n == 1 or n_stride == 1:
        choices.append(("n", n, fitting_pitch(n, b.dtype) if k == 1 else k_stride))
    rule = "k is contiguous in b (a weight's w.t()) or n is (a plain row-major b)"
    for major, row_extent, pitch in choices:
        rule = _pitch_refusal(row_extent, pitch, b.dtype)
        if not rule:
            return major, pitch
    raise _refusal("b", b, rule)


def _out_pitch(out: View, m: int, n: int) -> int:
    if out.shape != (m, n):
        raise ShapeError(
            asked=f"out {out.shape}", rule=f"the product is ({m}, {n})", works=f"pass out with shape ({m}, {n})"
        )
    if out.address % out.dtype.size:
        raise LayoutError(
            asked=f"out at address {out.address:#x}",
            rule=f"elements of {out.dtype} lie at multiples of {out.dtype.size} bytes",
            works="pass an out that was allocated as such",
        )
    row_stride, inner = out.strides
    if 0 in (m, n):
        return max(n, 1)
    if n > 1 and inner != 1:
        raise LayoutError(
            asked=f"out {out}",
            rule="rows of out are contiguous: its last stride is 1",
            works="pass a row-major out, and transpose or copy the result afterwards",
        )
    if m == 1:
        return n
    if row_stride < n:
        raise LayoutError(
            asked=f"out {out}",
            rule=f"each element of out has a place of its own: rows lie at least {n} elements apart",
            works=f"pass an out with a row stride of {n} or more",
        )
    return row_stride


def _pitch_refusal(row_extent: int, pitch: int, dtype: DType) -> str:
    """The rule that a row stride breaks; empty where TMA can read such rows."""
    if pitch <= 0:
        return "a stride of 0 (broadcast, expand) or below (flip) cannot be a row pitch of TMA"
    return pitch_refusal(row_extent, pitch, dtype)


def _refusal(name: str, view: View, rule: str) -> LayoutError:
    """The refusal of an operand's strides, with the first copy of it that is served: packed if that will do."""
    rows, columns = view.shape
    if _serves(name, rows, columns, view.dtype):
        works = f"pass {name}.contiguous() (NumPy and CuPy: {name}.copy())"
    elif name == "b" and _serves("b.t()", columns, rows, view.dtype):
        works = "pass b.t().contiguous().t() (NumPy and CuPy: b.T.copy().T)"
    elif name == "b" and view.strides[0] == 1:
        works = padded_copy("b.t()", rows, view.dtype)
    else:
        works = padded_copy(name, columns, view.dtype)
    return LayoutError(asked=f"{name} {view}", rule=rule, works=works)


def _clone_that_works(name: str, problem: Problem) -> str:
    """A copy of an operand whose strides are served, in memory of its own."""
    operand, rows, columns = name, problem.m, problem.k
    if name == "b":
        operand, rows, columns = (
            ("b.t()", problem.n, problem.k) if problem.b_major == "k" else ("b", problem.k, problem.n)
        )
    if _serves(operand, rows, columns, problem.dtype):
        order = "order='K'" if operand == "b.t()" else ""  # as torch's clone: the strides' order stays
        return f"pass {name}.clone() (NumPy and CuPy: {name}.copy({order}))"
    return padded_copy(operand, columns, problem.dtype)


def _serves(operand: str, rows: int, columns: int, dtype: DType) -> bool:
    """Whether a packed copy of the operand, `rows` times `columns` contiguous elements, is served as it is.

    A single row has no pitch, and a single column of b is a row of b.t().
    """
    is_vector = rows == 1 or (columns == 1 and operand != "a")
    return is_vector or not pitch_refusal(columns, columns, dtype)
