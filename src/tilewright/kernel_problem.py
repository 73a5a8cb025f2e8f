"""The problem that a kernel is chosen and launched for, where it is another than the caller's."""

from __future__ import annotations

import dataclasses

from tilewright.kernels import repack
from tilewright.problem import Problem

ZEROS = "scratch_zeros"  # what stands for a and b where there is nothing to add up
ZEROS_K = 8  # elements: the shortest row that TMA reads, 16 bytes


def has_no_sums(problem: Problem) -> bool:
    """Whether out has elements and k has none, so that an epilogue of zeros is what is written."""
    return problem.k == 0 and 0 not in (problem.m, problem.n, *problem.batch) and problem.epilogue is not None


def kernel_problem(problem: Problem, copied: tuple[str, ...]) -> Problem:
    """What a kernel is chosen and launched for: the row-major problem of the operands' copies, where there are such; of
    an empty one the nearest that has an element, which stands for it in all but run(). With an epilogue of no sums it
    runs: on one step of zeros, which all rows of a and b are."""
    if has_no_sums(problem):
        shared = (0,) * len(problem.batch)
        return dataclasses.replace(
            problem,
            k=ZEROS_K,
            a_major="k",
            b_major="k",
            a_pitch=ZEROS_K,
            b_pitch=ZEROS_K,
            a_batch=shared,
            b_batch=shared,
            a_align_bytes=16,
            b_align_bytes=16,
        ).row_major
    if problem.is_empty:
        m, n, k = max(problem.m, 1), max(problem.n, 1), max(problem.k, 1)
        none: tuple[int, ...] = ()
        problem = dataclasses.replace(
            problem, m=m, n=n, k=k, batch=none, a_batch=none, b_batch=none, out_batch=none, epilogue=None
        )
        copied = ()
    return repack.repacked(problem, copied).row_major
