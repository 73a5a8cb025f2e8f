"""Which arrays a plan serves: those that make the problem that it was made for, in all that its kernel depends on."""

from __future__ import annotations

from tilewright.errors import DTypeError, LayoutError, ShapeError
from tilewright.kernel_problem import has_no_sums
from tilewright.problem import Problem


def check_agrees(planned: Problem, given: Problem) -> None:
    """Raises the refusal of arrays that the plan was not made for."""
    works = "make a plan from these arrays, or call matmul, which does"
    if (planned.m, planned.n, planned.k) != (given.m, given.n, given.k):
        raise ShapeError(
            asked=f"arrays for {given.m}x{given.n}x{given.k} (m x n x k)",
            rule=f"this plan is for {planned.m}x{planned.n}x{planned.k}",
            works=works,
        )
    if planned.batch != given.batch:
        raise ShapeError(
            asked=f"arrays for a batch {given.batch}", rule=f"this plan is for a batch {planned.batch}", works=works
        )
    if (planned.dtype, planned.out_dtype) != (given.dtype, given.out_dtype):
        raise DTypeError(
            asked=f"arrays of {given.dtype} with out in {given.out_dtype}",
            rule=f"this plan is for {planned.dtype} with out in {planned.out_dtype}",
            works=works,
        )
    own, other = planned.epilogue, given.epilogue
    if own != other and (own is None or other is None or not own.fits(other)):
        raise LayoutError(
            asked=f"a call with {_epilogue_text(given)}",
            rule=f"this plan is for {_epilogue_text(planned)}, and arrays that lie as those that it was made of",
            works=works,
        )
    if planned.is_empty and not has_no_sums(planned):
        return
    for name, planned_value, given_value in (
        ("contiguous dimension of a", planned.a_major, given.a_major),
        ("contiguous dimension of b", planned.b_major, given.b_major),
        ("contiguous dimension of out", planned.out_major, given.out_major),
        ("batch strides of a", planned.a_batch, given.a_batch),
        ("batch strides of b", planned.b_batch, given.b_batch),
        ("batch strides of out", planned.out_batch, given.out_batch),
        ("pitch of a", planned.a_pitch, given.a_pitch),
        ("pitch of b", planned.b_pitch, given.b_pitch),
        ("pitch of out", planned.out_pitch, given.out_pitch),
    ):
        if planned_value != given_value:
            raise LayoutError(
                asked=f"arrays with {name} {given_value}", rule=f"this plan is for {planned_value}", works=works
            )
    if given.out_align_bytes % planned.out_align_bytes:
        raise LayoutError(
            asked=f"an out at a multiple of only {given.out_align_bytes} bytes",
            rule=f"this plan writes an out at a multiple of {planned.out_align_bytes}",
            works=works,
        )


def _epilogue_text(problem: Problem) -> str:
    return "no epilogue" if problem.epilogue is None else f"the epilogue {problem.epilogue}"
