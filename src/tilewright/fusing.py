"""From an epilogue and views of its arrays to its form, and from addresses to the memory that its arrays are.

Every refusal of an epilogue's shapes, strides, types, addresses and overlaps lives here; knows nothing of array
libraries or kernels. What the arrays of the product may be, layout.py knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.batching import Matrices
from tilewright.epilogue_form import REDUCED, UP, WRITTEN, ArrayForm, Form, StepForm, check_kinds, takes_array
from tilewright.errors import DTypeError, LayoutError, ShapeError, UnsupportedError
from tilewright.problem import Problem
from tilewright.tensor import Location, Rows, View, overlap
from tilewright.tma import MAX_PITCH_BYTES, TMA_ALIGNMENT_BYTES


@dataclass(frozen=True)
class Fusing:
    """An epilogue with views for arrays: each step's (kind, option), and the views of those that have one, in order."""

    structure: tuple[tuple[str, str], ...]
    views: tuple[View, ...]

    @property
    def is_gated(self) -> bool:
        """Whether out has half of the product's columns."""
        return any(kind == "gated" for kind, _ in self.structure)

    @property
    def is_apart(self) -> bool:
        """Whether gate and up are two b, each with half of the product's columns."""
        return any(kind == "gated" and takes_array(kind, option) for kind, option in self.structure)

    @property
    def needs_its_columns(self) -> bool:
        """Whether more columns would be another epilogue: of a gate, or where the columns of a row make one value."""
        return any(kind == "gated" or kind in REDUCED for kind, _ in self.structure)

    def steps(self) -> Iterator[tuple[int, str, str, View | None]]:
        """(index, kind, option, view) of each step."""
        views = iter(self.views)
        for index, (kind, option) in enumerate(self.structure):
            yield index, kind, option, next(views) if takes_array(kind, option) else None


def _is_row(kind: str, option: str) -> bool:
    return option == "row" or kind in REDUCED


def folded_shape(shape: tuple[int, ...], fusing: Fusing | None) -> tuple[int, ...]:
    """The shape of out for a product of this shape, a times b.

    Raises: ShapeError: an odd number of columns that come in pairs.
    """
    if fusing is None or not fusing.is_gated or fusing.is_apart:
        return shape
    if shape[-1] % 2:
        raise ShapeError(
            asked=f"a gated epilogue of n = {shape[-1]} columns",
            rule="half of the columns are gates and half are gated",
            works="pass a b with an even number of columns",
        )
    return (*shape[:-1], shape[-1] // 2)


def strides_of(fusing: Fusing, shape: tuple[int, ...], a_dims: int, b: View) -> tuple[tuple[int, ...], ...]:
    """The strides of each array but a gate's other b, as a broadcast one of the product's size, after all that can be
    said before batches are folded.

    Shapes: `shape` (*batch, m, n) is that of a times b.
    Raises: ShapeError, DTypeError, LayoutError, UnsupportedError: steps that are not served, an array that no step
    takes.
    """
    if min(a_dims, len(b.shape)) < 2:
        raise ShapeError(
            asked=f"an epilogue of a product whose a has {a_dims} and whose b has {len(b.shape)} dimensions",
            rule="an epilogue meets rows and columns, which a vector has not both",
            works="pass a[None] or b[:, None]",
        )
    check_kinds(kind for kind, _ in fusing.structure)
    found = []
    width = shape[-1] * (2 if fusing.is_apart else 1)
    for _, kind, option, view in fusing.steps():
        if kind == "row_amax" and width == 0:
            raise ShapeError(
                asked="the largest magnitude of rows without a column", rule="there is none", works="pass n > 0"
            )
        if view is not None:
            _check_view(kind, view, b.location)
        if kind == "gated":
            width //= 2
            if view is not None:
                _check_up(view, b)
        elif view is not None:
            found.append(_broadcast(kind, option, view, (*shape[:-1], width)))
    return tuple(found)


def _check_up(up: View, b: View) -> None:
    """Raises ShapeError, DTypeError, LayoutError: a gate's other b that does not lie as b does."""
    works = "pass one b with both side by side, in halves: Gated(activation) of concatenate((b, up), -1)"
    if up.shape != b.shape:
        raise ShapeError(
            asked=f"b {tuple(b.shape)} and the up of its gates {tuple(up.shape)}",
            rule="each column of b is the gate of one of up's: their shapes are the same",
            works="pass an up of b's shape",
        )
    if up.dtype != b.dtype:
        raise DTypeError(
            asked=f"b of {b.dtype} and the up of its gates of {up.dtype}", rule="both have one type", works="cast one"
        )
    if 0 in b.shape:
        return
    reaches = [extent > 1 for extent in b.shape]
    if any(is_walked and own != other for is_walked, own, other in zip(reaches, up.strides, b.strides, strict=True)):
        raise LayoutError(asked=f"b {b} and the up of its gates {up}", rule="both have the same strides", works=works)
    for name, view in (("b", b), ("the up of its gates", up)):
        if view.address % TMA_ALIGNMENT_BYTES:
            raise LayoutError(
                asked=f"{name} at address {view.address:#x}, beside a gate's other b",
                rule=f"b and up are read where they lie, from multiples of {TMA_ALIGNMENT_BYTES} bytes on",
                works=works,
            )


def _check_view(kind: str, view: View, location: Location) -> None:
    if view.location != location:
        raise UnsupportedError(
            asked=f"a on {location} and the array of {kind} on {view.location}",
            rule="the operands of one product lie on one device",
            works=f"move it to {location}",
        )
    if any(stride < 0 or stride * view.dtype.size >= MAX_PITCH_BYTES for stride in view.strides):
        raise LayoutError(
            asked=f"an array for {kind} of {view}",
            rule="its strides are from 0 up, and below 2^40 bytes",
            works="copy it into a contiguous array",
        )


def _broadcast(kind: str, option: str, view: View, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a step's array, 0 along what it has no dimension for.

    Raises: ShapeError: another shape than the step's.
    """
    zeros = (0,) * (len(shape) - 2)
    if option == "column":
        allowed = {shape[-1:]: (*zeros, 0, *view.strides)}
    elif _is_row(kind, option):
        allowed = {shape[:-1]: (*view.strides, 0)}
        if kind not in WRITTEN:
            allowed[shape[-2:-1]] = (*zeros, *view.strides, 0) if len(view.strides) == 1 else ()
    else:
        allowed = {shape: view.strides}
        if kind not in WRITTEN:
            allowed[shape[-2:]] = (*zeros, *view.strides)
    if view.shape not in allowed:
        what = f"{kind} per {option}" if option in ("column", "row") else kind
        raise ShapeError(
            asked=f"an array {tuple(view.shape)} for {what} of a product {shape}",
            rule=f"it has the shape {' or '.join(str(each) for each in allowed)}",
            works="pass such an array; one that is expanded counts as what it is expanded to",
        )
    return allowed[view.shape]


def form_of(fusing: Fusing, held: Matrices) -> Form:
    """The form, once batches are folded.

    Raises: LayoutError: an array without a contiguous dimension, or one that is written and overlaps itself.
    """
    steps = []
    columns = held.n * (2 if fusing.is_apart else 1)
    width, number = columns, 0
    for _, kind, option, view in fusing.steps():
        array = None
        if view is not None and kind != "gated":
            batch = held.further_batch(number)
            strides = _contiguous(kind, option, view, held.further[number], (held.m, width))
            array = ArrayForm(
                dtype=view.dtype,
                strides=strides,
                batch=batch,
                align_bytes=min(view.address & -view.address, TMA_ALIGNMENT_BYTES) or TMA_ALIGNMENT_BYTES,
            )
            if kind in WRITTEN:
                extents = (held.m, 1 if kind in REDUCED else width, *held.batch)
                _check_apart(kind, view, extents, (*strides, *batch))
            number += 1
        if kind == "gated":
            width //= 2
        steps.append(StepForm(kind=kind, option=option, array=array))  # type: ignore[arg-type]  # kinds of steps
    return Form(tuple(steps)).unpaired_where_halves_are_odd(columns)


def _contiguous(
    kind: str, option: str, view: View, strides: tuple[int, int], extents: tuple[int, int]
) -> tuple[int, int]:
    """(row stride, column stride) of which one is 1; those along a single row or column are whatever fits."""
    rows, columns = extents
    row, column = strides
    is_one_a_row = columns <= 1 or column == 0  # not where a batch of single columns has become columns of one matrix
    if 0 in view.shape:  # without an element any strides are as good
        row, column = 1 if _is_row(kind, option) else columns, 1
    if option == "column" and (column == 1 or columns <= 1):
        return 0, 1
    if _is_row(kind, option) and is_one_a_row and (row == 1 or rows <= 1):
        return 1, 0
    if option not in ("column", "row") and kind not in REDUCED:
        if column == 1 or columns <= 1:
            return (row if rows > 1 else columns), 1
        if row == 1 or rows <= 1:
            return 1, column
    raise LayoutError(
        asked=f"an array for {kind} of {view}",
        rule="neighbours lie side by side in memory, those of a matrix in one of its two dimensions",
        works="pass a contiguous copy of it",
    )


def _check_apart(kind: str, view: View, extents: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Raises LayoutError where two elements of an array that is written share a place."""
    if 0 in extents:
        return
    span = 1
    for stride, extent in sorted(
        (stride, extent) for stride, extent in zip(strides, extents, strict=True) if extent > 1
    ):
        if stride < span:
            raise LayoutError(
                asked=f"an array for {kind} of {view}",
                rule="each of its elements has a place of its own",
                works="pass a contiguous array",
            )
        span += (extent - 1) * stride


def moved_bytes(problem: Problem) -> tuple[int, int]:
    """Bytes of an epilogue's arrays that a kernel reads and writes at least, each once; a tile reads values for columns
    and rows anew."""
    read = written = 0
    if problem.epilogue is not None:
        width = problem.n
        for step in problem.epilogue.steps:
            if step.array is not None:
                steps = zip((problem.m, width, *problem.batch), (*step.array.strides, *step.array.batch), strict=True)
                count = step.array.dtype.size
                for extent, stride in steps:
                    count *= extent if stride else 1
                if step.kind in WRITTEN:
                    written += count
                else:
                    read += count
            if step.kind == "gated":
                width //= 2
    return read, written


# -- addresses ---------------------------------------------------------------------------------------------------------


def rows_of(problem: Problem, array: ArrayForm, width: int, address: int) -> Rows:
    """The memory of an array, `width` columns wide, as rows of neighbouring bytes."""
    size = array.dtype.size
    if array.strides[1] == 1:
        rows, extent = problem.m, width
    else:
        rows, extent = width, problem.m
    pitch = array.pitch
    batch = tuple(
        (count, stride * size) for count, stride in zip(problem.batch, array.batch, strict=True) if stride or not count
    )
    return Rows(address, rows if pitch else 1, extent * size, pitch * size or extent * size, batch)


def check_fused(problem: Problem, addresses: tuple[int, ...]) -> None:
    """Raises LayoutError when the kernels of the problem cannot run its epilogue at these addresses.

    `addresses` are those of a, b, out and the epilogue's arrays. An array that is read may be out itself, element for
    element: each is read by the thread that writes it, before.
    """
    form = problem.epilogue
    if form is None:
        return
    held = problem.footprints
    product = {name: Rows(address, *held[name]) for name, address in zip(("a", "b", "out"), addresses, strict=False)}
    own: list[tuple[str, Rows, bool]] = []
    width, places = problem.n, iter(addresses[3:])
    for step in form.steps:
        if step.kind == "gated" and takes_array(step.kind, step.option):
            product[UP] = Rows(_checked_up_address(next(places), problem), *held["b"])
            if overlap(product[UP], product["out"]):
                raise LayoutError(
                    asked="out that shares memory with the up of its gates",
                    rule="up is still read while out is written",
                    works="pass an out of its own",
                )
        if step.array is not None:
            address = next(places)
            _check_address(step.kind, step.array, address)
            rows = rows_of(problem, step.array, width, address)
            own.append((step.kind, rows, step.kind in WRITTEN))
            is_out = _is_out(problem, step, width) and address == addresses[2]
            if not is_out and overlap(rows, product["out"]):
                own_memory = "an array of its own" if step.kind in WRITTEN else "a copy"
                raise LayoutError(
                    asked=f"an array of {step.kind} that shares memory with out",
                    rule="beta's and add's may be out itself, with its type and strides; nothing else may overlap it",
                    works=f"pass {'out itself, or ' if step.kind in ('beta', 'add') else ''}{own_memory}",
                )
        if step.kind == "gated":
            width //= 2
    for index, (kind, rows, is_written) in enumerate(own):
        others = [*((name, rows, False) for name, rows in product.items() if name != "out"), *own[:index]]
        for other, memory, other_is_written in others:
            if (is_written or other_is_written) and overlap(rows, memory):
                raise LayoutError(
                    asked=f"an array of {kind} that shares memory with {other}",
                    rule="what an epilogue writes is read and written by nothing else",
                    works="pass arrays of their own",
                )


def _checked_up_address(address: int, problem: Problem) -> int:
    if (address == 0 or address % TMA_ALIGNMENT_BYTES) and not problem.is_empty:
        raise LayoutError(
            asked=f"the up of gates at address {address:#x}",
            rule=f"it begins at a multiple of {TMA_ALIGNMENT_BYTES} bytes, and not at 0",
            works="pass an array that was allocated as such",
        )
    return address


def _check_address(kind: str, array: ArrayForm, address: int) -> None:
    if address == 0 or address % array.dtype.size:
        raise LayoutError(
            asked=f"an array for {kind} at address {address:#x}",
            rule=f"elements of {array.dtype} lie at multiples of {array.dtype.size} bytes, and not at 0",
            works="pass an array that was allocated as such",
        )
    if address % array.align_bytes:
        raise LayoutError(
            asked=f"an array for {kind} at address {address:#x}",
            rule=f"this plan was made for one at a multiple of {array.align_bytes} bytes",
            works="make a plan from this array, or call matmul, which does",
        )


def _is_out(problem: Problem, step: StepForm, width: int) -> bool:
    """Whether a step's array lies as out does, and may be out itself."""
    array = step.array
    if array is None or step.kind not in ("beta", "add") or width != problem.out_n:
        return False
    _, strides = problem.strided("out")
    single = (problem.m == 1, width == 1)
    matrix = all(one or own == out for one, own, out in zip(single, array.strides, strides[-2:], strict=True))
    return matrix and array.batch == problem.out_batch and array.dtype == problem.out_dtype
