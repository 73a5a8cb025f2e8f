"""The Hopper kernel on drawn shapes, strides, types, configs, devices and schedules: exact, tidy, no finding.

Operands are small whole numbers, so that the product is exact in any order. Padding of a and b is NaN; around every row
of out lies a pattern that must survive. Sizes are drawn about the edges of tiles and of the pipeline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from products import H200

from tilewright.backends.emulated import emulated
from tilewright.bench.cases import wide
from tilewright.config import Config
from tilewright.dtypes import by_name
from tilewright.host_operands import host_operand, host_operands
from tilewright.jit.build import build
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.legality import CLUSTERS
from tilewright.packing import packed
from tilewright.problem import AMajor, Major, Problem, checked

PATTERN = 7
GUARD_BYTES = 64  # of the pattern before and after out
SCHEDULES = ("lazy", "eager", "random")


@dataclass(frozen=True)
class Draw:
    """One run: `out_skew` elements from a multiple of 16 bytes to out's base."""

    problem: Problem
    config: Config
    num_sms: int
    out_skew: int
    schedule: Any
    seed: int


# (tile_m, tile_n, consumers): small ones, since each draw is a compile.
TILES = [(64, 16, 1), (64, 24, 1), (64, 64, 1), (64, 64, 2), (128, 32, 2), (128, 64, 1), (256, 32, 2)]


@st.composite
def draws(draw: st.DrawFn, tile_m: int, tile_n: int, consumers: int) -> Draw:
    """Everything but the tile, wide. A seed is drawn, and all else from it: hypothesis would spend the few examples on
    small changes of one."""
    random = draw(st.randoms(use_true_random=True))

    def pick(*choices: Any) -> Any:
        return random.choice(choices)

    def about(step: int, *counts: int) -> int:
        """A whole number of steps, some less, or some more."""
        return max(1, int(pick(*counts)) * step + int(pick(0, 0, -1, 1, -7, 8, -8, random.randrange(1 - step, step))))

    cluster_m, cluster_n = pick((1, 1), *CLUSTERS)
    forms = [(False, 1), (True, 1), (False, 2), (True, 2), (True, 4)]
    swap, split_k = pick(*forms) if tile_m >= 64 * consumers else (False, 1)  # 64 rows of two consumers are ping-pong's
    if split_k > 1:
        cluster_m = cluster_n = 1
    is_single = cluster_m * cluster_n == 1
    a_major: AMajor = pick("k", "m") if not swap or tile_n % 64 == 0 else "k"  # the side of tile_n has whole panels
    b_major: Major = pick("k", "n") if swap or tile_n % 64 == 0 else "k"
    batch = pick((), (), (2,), (3,), (2, 2), (2, 1, 2))
    is_plain = not swap and split_k == 1
    is_pingpong = is_plain and consumers == 2 and (tile_m == 64 or (tile_m == 128 and pick(True, False)))
    tails = range(8, tile_n, 8) if b_major == "k" else (0,)  # narrower than 64 columns, n-contiguous b has none
    config = Config(
        tile_m=tile_m,
        tile_n=tile_n,
        stages=pick(2, 3, 4),
        consumers=consumers,
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        schedule=pick("linear", "grouped"),
        group_m=pick(1, 2, 3, 16),
        store_slots=pick(1, 2),
        pingpong=is_pingpong,
        tail_n=pick(0, *tails) if is_plain and is_single and not is_pingpong and not batch else 0,
        staggered=is_plain and tile_m == consumers * 128 and not is_pingpong and pick(True, True, False),
        square=pick(0, 2, 3, 4),
        k_back_and_forth=pick(True, False),
        swap=swap,
        split_k=split_k,
        dependent_launch=pick(True, False),
    )
    dtype = by_name(pick("bf16", "fp16"))
    out_dtype = dtype if config.staggered else pick(dtype, dtype, by_name("fp32"))
    m, n = about(tile_m, 1, 1, 2, 3), about(tile_n, *((3, 4, 5) if config.tail_n else (1, 1, 2, 3)))
    m, n = (n, m) if swap else (m, n)
    least = 2 if config.staggered else split_k  # k tiles
    k = max(about(config.tile_k, least, least, config.stages - 1, config.stages, config.stages + 2), 64 * least - 63)
    is_tidy = pick(True, False)  # out's rows in whole 16 bytes: TMA stores them
    n = -(-n // 8) * 8 if is_tidy else n
    skew = 0 if is_tidy else pick(0, 1, 2, 4)
    problem = packed(
        m,
        n,
        k,
        dtype=dtype,
        out_dtype=out_dtype,
        a_major=a_major,
        b_major=b_major,
        batch=batch,
        shared=pick("", "a", "b"),
    )
    if pick(True, False):
        problem = wide(problem, out_gap=8 if is_tidy else pick(1, 3, 8))
    problem = replace(problem, out_align_bytes=math.gcd(16, skew * out_dtype.size))
    num_sms = max(pick(1, 2, 3, 4), config.cluster)
    assume(not config.violations(checked(problem), replace(H200, num_sms=num_sms)))
    return Draw(problem, config, num_sms, skew, pick(*SCHEDULES), random.randrange(100))


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "{}x{}, {} consumers".format(*tile))
@settings(derandomize=True, max_examples=4, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whole_numbers_are_exact_and_nothing_else_is_touched(tile: tuple[int, int, int], data: st.DataObject) -> None:
    draw = data.draw(draws(*tile))
    problem, config = draw.problem, draw.config
    operands = host_operands(problem, draw.seed)
    a, b = (aligned(operand.memory) for operand in operands[:2])
    size = problem.out_dtype.size
    first = GUARD_BYTES // size + draw.out_skew
    held = aligned(np.full(2 * first + problem.extent_bytes["out"] // size, PATTERN, problem.out_dtype.numpy))
    out = host_operand(problem, "out", held[first:]).view
    out[...] = np.nan

    device = replace(H200, num_sms=draw.num_sms)
    launch = HOPPER.launch(problem, config, device)
    backend = emulated(device, checks=True, schedule=draw.schedule, seed=draw.seed)
    addresses = {name: array.ctypes.data for name, array in (("a", a), ("b", b), ("out", out))}
    assert addresses["out"] % problem.out_align_bytes == 0
    kernel = backend.load(build(render(HOPPER, problem, config, device)), 0, launch)
    backend.launch(backend.pack(kernel, launch, HOPPER.arguments(problem, config, launch), addresses), 0)

    expected = (operands[0].view.astype(np.float32) @ operands[1].view.astype(np.float32)).astype(out.dtype)
    assert (out == expected).all(), f"{draw}: {np.argwhere(out != expected)[:4]}"
    out[...] = PATTERN
    assert (held == PATTERN).all(), f"{draw}: bytes round out were written"
    assert backend.findings == ()


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values at a multiple of 64 bytes, which NumPy promises for no array."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy: np.ndarray[Any, Any] = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
