"""kernels/hopper.py: no number that a kernel is told overflows its type, for any problem that is legal (B053, B056).

Sizes are drawn at the limits: near 2^31 elements, pitches near 2^40 bytes, batches of many matrices, tiles near 2^30.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tilewright import device, dispatch
from tilewright.backends.base import IntArgument, IntsArgument, MapArgument, PointerArgument
from tilewright.backends.parameters import Packer
from tilewright.bench.suite import GROUPS
from tilewright.config import Config
from tilewright.errors import RefusalError
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed
from tilewright.problem import Problem, checked
from tilewright.tiling import MAX_TILES
from tilewright.tma import MAX_EXTENT

H200 = device.preset("h200")
SETTINGS = settings(
    derandomize=True, max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

EXTENTS = st.one_of(
    st.integers(1, 300),
    st.builds(lambda power, by: 2**power + by, st.integers(9, 30), st.integers(-9, 9)),
    st.integers(MAX_EXTENT - 600, MAX_EXTENT),
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Legal ones: an operand's pitch is its row or far more, and so are its strides of up to three dimensions."""
    majors: Any = {
        "a_major": draw(st.sampled_from("km")), "b_major": draw(st.sampled_from("kn")),
        "out_major": draw(st.sampled_from("nm")),
    }  # fmt: skip
    sizes = {name: draw(EXTENTS) for name in "mnk"}
    batch = tuple(draw(st.lists(EXTENTS, max_size=3)))
    dtype = draw(st.sampled_from(["bf16", "fp16"]))
    out_dtype = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    base = packed(**sizes, dtype=dtype, out_dtype=out_dtype, **majors)
    numbers: dict[str, Any] = {}
    for name in ("a", "b", "out"):
        step = 1 if name == "out" else 8
        pitch = getattr(base, f"{name}_pitch")
        pitch += step * draw(st.sampled_from([0, 0, 1, 2**20, 2**31, 2**37]))
        numbers[f"{name}_pitch"] = pitch
        span, strides = base.rows_of(name)[0] * pitch, []
        for extent in reversed(batch):
            is_shared = name != "out" and draw(st.booleans())
            span += step * draw(st.sampled_from([0, 0, 1, 2**31]))
            span += -span % step
            strides.append(0 if is_shared else span)
            span *= 1 if is_shared else extent
        numbers[f"{name}_batch"] = tuple(reversed(strides))
    told = {name: getattr(base, name) for name in base.__dataclass_fields__}
    try:
        return checked(
            Problem(**(told | {"batch": batch, "out_align_bytes": draw(st.sampled_from([2, 16]))} | numbers))
        )
    except RefusalError:
        assume(False)
        raise


CONFIGS = st.builds(
    Config,
    tile_m=st.sampled_from([64, 128, 256]),
    tile_n=st.sampled_from([8, 64, 128, 192, 256]),
    stages=st.sampled_from([2, 3, 8]),
    consumers=st.sampled_from([1, 2]),
    cluster_m=st.sampled_from([1, 1, 2]),
    store_slots=st.just(1),
    tail_n=st.sampled_from([0, 0, 64]),
    group_m=st.sampled_from([1, 8, 65536]),
    square=st.sampled_from([0, 4, 65536]),
    schedule=st.sampled_from(["grouped", "linear"]),
)


@SETTINGS
@given(problem=problems(), config=CONFIGS, num_sms=st.sampled_from([None, 2, 78, 131]))
def test_every_number_fits_its_parameter_every_map_the_driver_and_every_count_32_bits(
    problem: Problem, config: Config, num_sms: int | None
) -> None:
    given = problem.row_major
    assume(not config.violations(given, H200))
    launch = HOPPER.launch(given, config, H200, num_sms)
    arguments = HOPPER.arguments(given, config, launch)
    assert 1 <= launch.grid <= max(H200.num_sms, launch.cluster)
    for argument in arguments:
        if isinstance(argument, IntArgument):
            assert 0 <= argument.value < 2 ** (8 * argument.size_bytes - 1), argument
        elif isinstance(argument, IntsArgument):
            assert all(0 <= value < 2**63 for value in argument.values), argument
        elif isinstance(argument, MapArgument):
            assert argument.tensor_map.violations() == (), argument
            assert max(argument.tensor_map.extents) < 2**32
            assert all(pitch < 2**40 for pitch in argument.tensor_map.pitches_bytes)
    Packer(launch, arguments, lambda _: lambda address: bytes(128))  # refuses what does not fit
    # schedule.cuh: tile counts and places are unsigned, first rows and columns of tiles signed.
    rows, columns = config.tiles(given)
    wide = config.wide_tiles(given, launch.grid)
    narrow = config.narrow_tiles(given, wide)
    assert config.num_tiles(given) < MAX_TILES == 2**30
    assert max(wide, narrow) + launch.grid < 2**32  # the place after a CTA's last one
    assert rows * config.tile_m < 2**31
    assert columns * config.tile_n + config.tile_n < 2**31
    assert -(-given.k // config.tile_k) * config.tile_k + 2 * config.tile_k < 2**31
    group = next(x.value for x in arguments if getattr(x, "name", "") == "group_m")
    assert group * columns < 2**32


@pytest.mark.parametrize("b_major", ["k", "n"])
@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("m", "batch"), [(2**30, ()), (2**14, (2**16,)), (2**14, (2**8, 2**8))], ids=str)
@pytest.mark.parametrize("n", [2**12, 2**12 + 1])
def test_the_larger_tile_that_a_refusal_names_is_legal(
    n: int, m: int, batch: tuple[int, ...], out_dtype: str, b_major: Any
) -> None:
    """B022's kind: of 2^30 tiles of 64x64 it names one that is eight times as large and fits the registers."""
    problem = packed(m, n, 72, out_dtype=out_dtype, b_major=b_major, batch=batch)
    (refusal,) = Config(tile_m=64, tile_n=64, consumers=1, stages=2).violations(problem, H200)
    assert refusal.endswith("use a larger tile, such as 256x128")
    assert Config(tile_m=256, tile_n=128, stages=2, store_slots=1).violations(problem, H200) == ()


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((2**20, 8, 4096), {}),  # m x k beyond 2^31
        ((8, 2**20, 4096), {}),
        ((2**17, 2**17, 64), {}),  # m x n
        ((64, 64, 2**26), {}),
        ((8, 8, 8), {"batch": (2**20, 2**9)}),
        ((MAX_EXTENT, 8, 8), {}),
        ((8, MAX_EXTENT, 8), {}),
        ((8, 8, MAX_EXTENT), {}),
    ],
    ids=str,
)
def test_a_large_product_is_planned_and_not_refused(sizes: tuple[int, int, int], options: dict[str, Any]) -> None:
    """B053: and its bytes and flops are counted in Python's integers."""
    problem = packed(*sizes, **options)
    plan = dispatch.plan(problem, device=H200)
    assert plan.problem.flops == 2 * sizes[0] * sizes[1] * sizes[2] * problem.num_matrices
    pointers = [x for x in plan.arguments if isinstance(x, PointerArgument)]
    assert all(pointer.num_bytes >= problem.out_bytes for pointer in pointers if pointer.operand == "out")


@pytest.mark.parametrize("num_sms", [78, 114, 132, 144])
def test_a_chosen_cluster_leaves_no_sms_idle(num_sms: int) -> None:
    """B146: where there are tiles for all of them, 0.97 of the SMs have a CTA; H20, H100 PCIe, H200, a whole die.

    But for products that wait for DRAM alone, which fewer SMs keep busy as well: 1 x 7168 x 16384 takes 57.5 us with 56
    CTAs and with 112, 58.6 with 120 and 57.3 with 132 (H200, 2026-11-30; benchmarks/results, narrow).
    """
    chip = device.Device(**{**{f: getattr(H200, f) for f in H200.__dataclass_fields__}, "num_sms": num_sms})
    for sizes in dict.fromkeys(shape for shapes in GROUPS.values() for shape in shapes):
        plan = dispatch.plan(packed(*sizes), device=chip)
        if plan.config.num_tiles(plan.problem) >= num_sms and plan.prediction.bound != "DRAM":
            assert plan.launch.grid >= 0.97 * num_sms, plan
