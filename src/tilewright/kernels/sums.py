"""The kernel that adds the slices of a product: where they lie in scratch, and its launch. With an epilogue it is
another one, which applies that to the sums.

It computes no product, so it is no Family. What a slice is, Config.sliced() knows; who runs what, product.py and plans.
"""

from __future__ import annotations

from tilewright.backends.base import Argument, IntArgument, Launch, PointerArgument
from tilewright.config import Config
from tilewright.device import Device
from tilewright.dtypes import FP32
from tilewright.fusing import moved_bytes as moved_by_steps
from tilewright.jit.source import Source
from tilewright.kernels import fused
from tilewright.kernels.render import constants_header, unit
from tilewright.problem import Problem
from tilewright.tiling import WARP_THREADS

NAME = "sums"
FUSED_NAME = "fused_sums"  # with an epilogue
SCRATCH_NAME = "scratch_slices"  # what arguments call the slices
CHUNK = 4  # fp32 or int32 values that a thread adds at once: 16 bytes
THREADS = 128
CTAS_PER_SM = 4
AT_ONCE = 16  # slices of a chunk that are on their way together: 64 registers
BLOCK_ROWS, BLOCK_COLUMNS = 16, 8  # of out that a warp makes at once, with an epilogue


def source(problem: Problem, device: Device) -> Source:
    """The unit: one for each type of out; with an epilogue for its form, and how out lies."""
    if problem.epilogue is not None:
        return _fused_source(problem.row_major, device)
    constants: dict[str, int | bool | str] = {
        "THREADS": THREADS,
        "CTAS_PER_SM": CTAS_PER_SM,
        "AT_ONCE": AT_ONCE,
        "IS_WHOLE": problem.out_dtype.is_whole,
        "OUT_TYPE": f"Type::{FP32 if problem.out_dtype.is_whole else problem.out_dtype}",  # of int32 the bits
    }
    header = constants_header(constants)
    return unit(f"{NAME}_{problem.out_dtype}", f"{NAME}.cu", NAME, {"config.cuh": header}, device)


def _fused_source(problem: Problem, device: Device) -> Source:
    constants: dict[str, int | bool | str] = {
        "THREADS": THREADS,
        "CTAS_PER_SM": CTAS_PER_SM,
        "AT_ONCE": AT_ONCE // (2 if problem.gates else 1),
        "IS_INTERLEAVED": problem.gates == "interleaved",
        "IS_HALF_EVEN": problem.n // 2 % 2 == 0,
        "BATCH_DIMS": 0,
        "OUT_TYPE": f"Type::{problem.out_dtype}",
        "OUT_TRANSPOSED": problem.out_major == "m",
        "OUT_IS_PAIRED": problem.out_major == "n"
        and problem.out_pitch % 2 == 0
        and problem.out_align_bytes >= 2 * problem.out_dtype.size,
    }
    rendered = {"config.cuh": constants_header(constants), **fused.headers(problem)}
    return unit(f"{FUSED_NAME}_{problem.out_dtype}", f"{FUSED_NAME}.cu", FUSED_NAME, rendered, device)


def launch(problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Launch:
    """A thread a chunk, or a warp a block, but no more CTAs than fill `num_sms` SMs (default: all)."""
    sms = device.num_sms if num_sms is None else num_sms
    if problem.epilogue is None:
        needed = -(-_num_chunks(problem) // THREADS)
    else:
        seen = problem.row_major
        blocks = -(-seen.m // BLOCK_ROWS) * -(-seen.out_n // BLOCK_COLUMNS)
        needed = -(-blocks * WARP_THREADS // THREADS)
    return Launch(
        grid=min(needed, sms * CTAS_PER_SM),
        block=THREADS,
        cluster=1,
        smem_bytes=0,
        is_dependent=config.dependent_sums,
    )


def arguments(problem: Problem, config: Config) -> tuple[Argument, ...]:
    """The parameters of sums or of fused_sums in order, for the slices of a single product."""
    if problem.epilogue is not None:
        seen = problem.row_major
        return (
            PointerArgument(SCRATCH_NAME, config.slices_bytes(problem)),
            PointerArgument("out", problem.extent_bytes["out"]),
            IntArgument("out_pitch", seen.out_pitch, 8),
            IntArgument("num_slices", config.slices, 4),
            IntArgument("m", seen.m, 4),
            IntArgument("n", seen.n, 4),
            IntArgument("slice_pitch", config.sliced(seen).out_pitch, 4),
            fused.argument(seen),
        )
    _, extent = problem.rows_of("out")
    return (
        PointerArgument(SCRATCH_NAME, config.slices_bytes(problem)),
        PointerArgument("out", problem.extent_bytes["out"]),
        IntArgument("out_pitch", problem.out_pitch, 8),
        IntArgument("num_slices", config.slices, 4),
        IntArgument("num_chunks", _num_chunks(problem), 4),
        IntArgument("row_chunks", _row_chunks(problem), 4),
        IntArgument("extent", extent, 4),
    )


def moved_bytes(problem: Problem, config: Config) -> tuple[int, int]:
    """Bytes that it reads, slices and what fills their rows up, and bytes that it writes; with an epilogue's arrays."""
    read, written = moved_by_steps(problem)
    return config.slices_bytes(problem) + read, problem.out_bytes + written


def _row_chunks(problem: Problem) -> int:
    return -(-problem.rows_of("out")[1] // CHUNK)


def _num_chunks(problem: Problem) -> int:
    """Of one slice: Config.sliced() pads its rows to whole chunks."""
    return problem.rows_of("out")[0] * _row_chunks(problem)
